//! `config`: writes, checks and shows configuration.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueHint};
use springtide_cli::config::load;
use springtide_cli::exit::Failed;
use springtide_cli::outdir::write_file;
use springtide_cli::print::print;
use springtide_runtime::config::{
    Config, GridConfig, JobsConfig, LinkSection, NetSection, NodeConfig, Sources,
};

use springtide_operations::grid_files::{ad_hoc, program_name};
use springtide_operations::process::on_runtime;
use springtide_operations::shape::GridShape;
use springtide_operations::{aliases, netconf};

/// The subcommands of `config`.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// Write a commented example
    Init {
        /// File to write; `-` is standard output
        #[arg(value_name = "FILE", default_value = "grid.toml", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Write a node's config instead of a grid's
        #[arg(long)]
        node: bool,
        /// Write a file of jobs instead of a grid's config
        #[arg(long, conflicts_with = "node")]
        jobs: bool,
    },
    /// Check a config and report all errors
    Check {
        /// Config to check
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The config is a node's
        #[arg(long)]
        node: bool,
    },
    /// Print the effective config: defaults, file and environment combined
    Show {
        /// Config to show [default: defaults and environment alone]
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Print the origin of each value
        #[arg(long)]
        origin: bool,
        /// The config is a node's
        #[arg(long)]
        node: bool,
    },
}

/// Executes a subcommand of `config`.
///
/// # Errors
/// All mistakes in a config; or files cannot be written.
pub fn execute(command: &ConfigCommand) -> Result<(), Failed> {
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
            let loaded = load::<GridConfig>(&Sources::of_process(Some(file)))?;
            let config = &loaded.value;
            netconf::check_adaptation(config, &netconf::job_params(config))?;
            on_runtime(aliases::check(&loaded))?;
            eprintln!("{}: no mistakes", file.display());
            print_links(&config.link, &config.net);
            Ok(())
        }
        ConfigCommand::Show { file, origin, node: true } => {
            show::<NodeConfig>(file.as_deref(), *origin)
        }
        ConfigCommand::Show { file: None, origin, node: false } => {
            let grid = ad_hoc(GridShape::default(), |sources| sources)?;
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
