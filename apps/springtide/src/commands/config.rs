//! `config` and `ca`: the files that a grid needs.
//!
//! Independent of the use of the files.

use std::path::Path;
use std::time::Duration;

use springtide_runtime::config::{
    Config, GridConfig, JobsConfig, LinkSection, NetSection, NodeConfig, Sources, load,
};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::{Ca, Fingerprint};

use crate::args::{CaCommand, ConfigCommand, Shape};
use crate::exit::{Exit, Failed};
use crate::grid::{self, ad_hoc, make_private_dir, program_name};
use crate::netconf;
use crate::outdir::{make_dir, write_file};
use crate::report::SCHEMA;
use crate::run::print;

/// Executes a subcommand of `config`.
///
/// # Errors
/// All mistakes in a config; or files cannot be written.
pub fn config(command: &ConfigCommand) -> Result<(), Failed> {
    match command {
        ConfigCommand::Init { file, node, jobs } => {
            let text = match (node, jobs) {
                (true, _) => NodeConfig::template(),
                (false, true) => JobsConfig::template(),
                (false, false) => GridConfig::template(),
            };
            if file == Path::new("-") {
                return print(&text);
            }
            if file.exists() {
                let shown = file.display();
                return Err(Failed::failure(format!(
                    "{shown} exists: remove it, or name another file"
                )));
            }
            write_file(file, text.as_bytes())?;
            let shown = file.display();
            let next = match (jobs, node) {
                (true, _) => ("submit it", format!("job submit --file {shown} --config GRID")),
                (false, true) => ("check it", format!("config check --node {shown}")),
                (false, false) => ("check it", format!("config check {shown}")),
            };
            eprintln!("wrote {shown}; {} with `{} {}`", next.0, program_name(), next.1);
            Ok(())
        }
        ConfigCommand::Check { file, node: true } => {
            let config = load::<NodeConfig>(&Sources::of_process(Some(file)))?.value;
            eprintln!("{}: no mistakes", file.display());
            print_links(&config.link, &config.net);
            Ok(())
        }
        ConfigCommand::Check { file, node: false } => {
            let config = load::<GridConfig>(&Sources::of_process(Some(file)))?.value;
            netconf::check_adaptation(&config, &netconf::job_params(&config))?;
            eprintln!("{}: no mistakes", file.display());
            print_links(&config.link, &config.net);
            Ok(())
        }
        ConfigCommand::Show { file, origin, node: true } => {
            show::<NodeConfig>(file.as_deref(), *origin)
        }
        ConfigCommand::Show { file: None, origin, node: false } => {
            let grid = ad_hoc(Shape::default(), |sources| sources)?;
            print(&grid.show(*origin))
        }
        ConfigCommand::Show { file, origin, node: false } => {
            show::<GridConfig>(file.as_deref(), *origin)
        }
    }
}

/// Prints the consequences of links' expected values, which otherwise show only when a job runs.
fn print_links(links: &[LinkSection], net: &NetSection) {
    for link in links {
        eprintln!("{}", netconf::describe(link, net));
    }
}

fn show<T: Config>(file: Option<&Path>, origin: bool) -> Result<(), Failed> {
    print(&load::<T>(&Sources::of_process(file))?.show(origin))
}

/// Writes manual pages, one per command, under the names that `man` searches for.
///
/// # Errors
/// They cannot be written.
pub fn man(command: &clap::Command, dir: &Path) -> Result<(), Failed> {
    make_dir(dir)?;
    clap_mangen::generate_to(command.clone(), dir)
        .map_err(|error| grid::cannot("write to", dir, &error))?;
    eprintln!(
        "wrote the manual pages to {0}; read one with `man {0}/{1}.1`",
        dir.display(),
        command.get_name()
    );
    Ok(())
}

/// Executes a subcommand of `ca`.
///
/// # Errors
/// A certificate cannot carry a name, an authority exists already or does not exist, or files
/// cannot be written.
pub fn ca(command: &CaCommand) -> Result<(), Failed> {
    match command {
        CaCommand::Init { dir, grid } => {
            make_private_dir(dir)?;
            Ca::create(grid, dir)?;
            let shown = dir.display();
            eprintln!(
                "made the authority of grid {grid} in {shown}; {shown}/ca.key must stay secret"
            );
        }
        CaCommand::Fingerprint { dir, config, json } => {
            let at = match config {
                Some(file) => {
                    let config = load::<GridConfig>(&Sources::of_process(Some(file)))?.value;
                    grid::ca_dir(&config, &grid::dir_of(file, &config))
                }
                None => dir.clone(),
            };
            let file = if at.is_file() { at } else { at.join("ca.pem") };
            let pem = std::fs::read_to_string(&file).map_err(|error| {
                let Failed { exit, message } = grid::cannot("read", &file, &error);
                Failed {
                    exit,
                    message: format!(
                        "{message}; name an authority's directory with \
                        --dir, or a grid with --config"
                    ),
                }
            })?;
            let sum = Fingerprint::of_pem(&pem)
                .map_err(|error| Failed::new(Exit::Auth, format!("{}: {error}", file.display())))?;
            return match json {
                true => {
                    let object = serde_json::json!({ "schema": SCHEMA, "sha256": sum.to_string() });
                    print(&format!("{object}\n"))
                }
                false => print(&format!("{sum}\n")),
            };
        }
        CaCommand::Issue { node, cluster, role, dir, out, days } => {
            let (id, cluster) = (NodeId::from(node.as_str()), ClusterId::from(cluster.as_str()));
            let validity = Duration::from_secs(days * 24 * 3600);
            let identity = Ca::load(dir)?.issue(&id, &cluster, role, validity)?;
            let out = out.clone().unwrap_or_else(|| node.into());
            make_private_dir(&out)?;
            identity.save(&out)?;
            let shown = out.display();
            eprintln!("wrote node.pem, node.key and ca.pem of {} to {shown}", identity.name());
        }
    }
    Ok(())
}
