//! `node join`: creates a node's directory from a token: key, certificate and config.
//!
//! This module knows neither the grid's judgement nor the execution of nodes.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use springtide_cli::dates::date;
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::outdir::write_file;
use springtide_runtime::config::{HostPort, NodeConfig, Sources, load};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::join::{JoinToken, join};
use springtide_runtime::net::tls::{Fingerprint, NewKey, NodeIdentity, Role, calendar};

use crate::certificate::{JOIN_TIMEOUT, TOKEN_VAR, given_token, identity_of, local_address};
use crate::grid_files::{absolute, make_private_dir, program_name};
use crate::netconf;

/// Maximum size of a file with a token.
const TOKEN_FILE_MAX: u64 = 4096;

/// Options of `node join`.
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// Address at which the grid admits nodes: its `join.advertise`, or `join.bind`
    #[arg(value_name = "HOST:PORT")]
    at: HostPort,
    /// Token as printed by `token create`. Lists of processes show it, unlike --token-file and the
    /// environment variable SPRINGTIDE_TOKEN
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
    /// Directory for node.toml, node.pem, node.key and ca.pem. If it contains a joined node, that
    /// node is run without a token
    #[arg(
        long,
        value_name = "DIR",
        default_value = "springtide-node",
        value_hint = ValueHint::DirPath,
    )]
    dir: PathBuf,
    /// Requested name of the node, such as lab-3 [default: the lowest free one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Address on which the node listens [default: this host's address towards the grid, any port]
    #[arg(long, value_name = "ADDR")]
    bind: Option<SocketAddr>,
    /// Address at which others reach the node, if it differs from --bind; port 0 stands for the
    /// bound one
    #[arg(long, value_name = "ADDR")]
    advertise: Option<SocketAddr>,
    /// Compute threads [default: as in the grid's config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Write the files without running the node
    #[arg(long)]
    no_run: bool,
}

/// Joins a grid. Returns the config of the node to run, if any.
///
/// # Errors
/// No token is given or it is not valid, the grid does not answer, or files cannot be written.
pub async fn run(args: &JoinArgs) -> Result<Option<PathBuf>, Failed> {
    let token = token(args)?;
    let dir = absolute(&args.dir)?;
    let config = dir.join("node.toml");
    let previous = previous(&dir, token.as_ref())?;
    if let Previous::Node(identity) = &previous {
        let name = identity.name();
        eprintln!("{} has joined as {} before: no token is used", dir.display(), name.node);
        return Ok(next(args, &config));
    }
    let token = token.ok_or_else(|| {
        Failed::usage(format!(
            "no token is given: add --token, --token-file or the environment variable {TOKEN_VAR}; \
            `token create` at the grid creates one"
        ))
    })?;
    let at = netconf::resolve(&args.at).await?;
    let from = match args.bind.filter(|bind| !bind.ip().is_unspecified()) {
        Some(bind) => bind,
        None => SocketAddr::new(local_address(at)?, 0),
    };
    let key = NewKey::make()?;
    let wanted = args.name.as_deref().map(NodeId::from);
    let wanted = wanted.or(match previous {
        // A node keeps its name, unless another node has it meanwhile.
        Previous::Ended(name) => Some(name),
        _ => None,
    });
    let grant = join(from, at, &token, key.request()?, wanted, JOIN_TIMEOUT).await?;
    let identity = identity_of(key, &token, &grant)?;
    let text = grant.config;
    make_private_dir(&dir)?;
    let name = identity.name().clone();
    let until = date(u64::try_from(identity.dates()?.until).unwrap_or(0));
    if name.role_kind() != Role::Node {
        identity.save(&dir)?;
        eprintln!(
            "wrote node.pem, node.key and ca.pem of {name} to {}, valid until {until}; they belong \
            to no node",
            dir.display()
        );
        return Ok(None);
    }
    let text = node_config(args, &dir, &text, from)?;
    // The key last, because it makes the directory a node's.
    write_file(&config, text.as_bytes())?;
    identity.save(&dir)?;
    eprintln!(
        "joined grid {} as {} of cluster {}; its files are in {}, its certificate is valid until \
        {until} and is renewed while it runs",
        identity.grid(),
        name.node,
        name.cluster,
        dir.display()
    );
    Ok(next(args, &config))
}

fn next(args: &JoinArgs, config: &Path) -> Option<PathBuf> {
    if args.no_run {
        eprintln!("run it with: {} node run --config {}", program_name(), config.display());
        return None;
    }
    Some(config.to_owned())
}

/// The previous content of the directory.
enum Previous {
    Nothing,
    /// A node that has joined the same grid.
    Node(Box<NodeIdentity>),
    /// A node with this name, whose certificate has ended.
    Ended(NodeId),
}

fn previous(dir: &Path, token: Option<&JoinToken>) -> Result<Previous, Failed> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let [Some(cert), Some(key), Some(ca)] = ["node.pem", "node.key", "ca.pem"].map(read) else {
        return Ok(Previous::Nothing);
    };
    let identity = NodeIdentity::of_parts(&cert, &key, &ca)?;
    let shown = dir.display();
    if token.is_some_and(|token| Fingerprint::of_pem(&ca).ok() != Some(token.authority)) {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "{shown} is {}'s of another grid ({}) than the token's: choose another --dir",
                identity.name().node,
                identity.grid()
            ),
        ));
    }
    if identity.dates()?.until < calendar()() {
        return Ok(Previous::Ended(identity.name().node.clone()));
    }
    if !dir.join("node.toml").exists() {
        return Err(Failed::usage(format!(
            "{shown} contains the certificate of {} and no node.toml: choose another --dir",
            identity.name()
        )));
    }
    Ok(Previous::Node(Box::new(identity)))
}

fn token(args: &JoinArgs) -> Result<Option<JoinToken>, Failed> {
    let given = match (&args.token, &args.token_file) {
        (None, Some(file)) => {
            let len = fs::metadata(file).map_err(|error| cannot("read", file, &error))?.len();
            if len > TOKEN_FILE_MAX {
                return Err(Failed::usage(format!("{} is too long for a token", file.display())));
            }
            Some(fs::read_to_string(file).map_err(|error| cannot("read", file, &error))?)
        }
        (text, _) => text.clone(),
    };
    given_token(given.as_deref())
}

/// The node's config, from the grid's terms and the options of this command.
fn node_config(
    args: &JoinArgs,
    dir: &Path,
    text: &str,
    from: SocketAddr,
) -> Result<String, Failed> {
    let not_understood = |error: &dyn std::fmt::Display| {
        Failed::new(
            Exit::Version,
            format!(
                "the config from the grid is not readable ({error}): use the same version on both \
                sides"
            ),
        )
    };
    let mut table: toml::Table = text.parse().map_err(|error| not_understood(&error))?;
    let mut set = |section: &str, key: &str, value: toml::Value| {
        let of = table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(of) = of.as_table_mut() {
            of.insert(key.to_owned(), value);
        }
    };
    let bind = args.bind.unwrap_or(from);
    set("net", "bind", bind.to_string().into());
    if let Some(advertise) = args.advertise {
        set("net", "advertise", advertise.to_string().into());
    }
    if let Some(threads) = args.threads {
        set("work", "threads", i64::from(threads).into());
    }
    for (key, name) in [("certificate", "node.pem"), ("key", "node.key"), ("ca", "ca.pem")] {
        let path = dir.join(name).into_os_string().into_string().map_err(|_| {
            Failed::usage(format!("{} is not UTF-8: choose another --dir", dir.display()))
        })?;
        set("identity", key, path.into());
    }
    let written = toml::to_string(&table).map_err(Failed::failure)?;
    load::<NodeConfig>(&Sources::of_text("node.toml", &written)).map_err(|error| {
        match args.bind {
            Some(bind) if bind.ip().is_unspecified() && args.advertise.is_none() => {
                let text = "is no address that others can connect to: add --advertise";
                Failed::usage(format!("--bind {bind} {text}"))
            }
            _ => not_understood(&error),
        }
    })?;
    Ok(written)
}
