//! `node join`: a token becomes a node's directory: its key, its certificate and its config.
//!
//! Must not know how the grid judges it, nor how a node runs.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use springtide_runtime::config::{HostPort, NodeConfig, Sources, load};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::join::{JoinError, JoinGrant, JoinToken, join};
use springtide_runtime::net::tls::{Fingerprint, NewKey, NodeIdentity, Role, calendar};

use crate::dates::date;
use crate::exit::{Exit, Failed};
use crate::grid::{absolute, called, cannot, make_private_dir};
use crate::netconf;
use crate::outdir::write_file;

/// The environment variable that a token may come from.
const TOKEN_VAR: &str = "SPRINGTIDE_TOKEN";
/// How long joining may take.
const WITHIN: Duration = Duration::from_secs(15);
/// A file with a token is no longer than this.
const TOKEN_FILE_MAX: u64 = 4096;

/// `node join`
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// Where the grid lets nodes in: its `join.advertise`, or `join.bind`
    #[arg(value_name = "HOST:PORT")]
    at: HostPort,
    /// The token, as `token create` printed it. It is seen in lists of processes: --token-file and the environment variable
    /// SPRINGTIDE_TOKEN are not
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
    /// Where node.toml, node.pem, node.key and ca.pem go. If a node that has joined is there, it is run, and no token is used
    #[arg(long, value_name = "DIR", default_value = "springtide-node", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The name that the node would have, such as lab-3 [default: the lowest that is free]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where the node listens [default: this machine's address towards the grid, any port]
    #[arg(long, value_name = "ADDR")]
    bind: Option<SocketAddr>,
    /// Where others reach it, when that is not --bind; port 0 stands for the one that was bound
    #[arg(long, value_name = "ADDR")]
    advertise: Option<SocketAddr>,
    /// Compute threads [default: as the grid's config says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Write the files, and do not run the node
    #[arg(long)]
    no_run: bool,
}

impl From<JoinError> for Failed {
    fn from(error: JoinError) -> Self {
        let exit = match &error {
            JoinError::Unreachable { .. } | JoinError::Bind { .. } => Exit::Failure,
            JoinError::OtherGrid { .. } | JoinError::Refused(_) | JoinError::Tls(_) => Exit::Auth,
            JoinError::NoDoor { .. } | JoinError::Answer { .. } => Exit::Version,
        };
        Self::new(exit, error)
    }
}

/// Joins, and returns the config of the node that is to be run, if one is.
///
/// # Errors
/// No token, or none that is good; nobody answers; files cannot be written.
pub async fn run(args: &JoinArgs) -> Result<Option<PathBuf>, Failed> {
    let token = token(args)?;
    let dir = absolute(&args.dir)?;
    let config = dir.join("node.toml");
    let former = former(&dir, token.as_ref())?;
    if let Former::Node(identity) = &former {
        let name = identity.name();
        eprintln!("{} has joined as {} before: no token is used", dir.display(), name.node);
        return Ok(next(args, &config));
    }
    let token = token.ok_or_else(|| {
        Failed::usage(format!(
            "with which token? give --token, --token-file or the environment variable {TOKEN_VAR}; `token create` at the grid makes one"
        ))
    })?;
    let at = netconf::resolve(&args.at).await?;
    let from = match args.bind.filter(|bind| !bind.ip().is_unspecified()) {
        Some(bind) => bind,
        None => SocketAddr::new(towards(at)?, 0),
    };
    let key = NewKey::make()?;
    let wanted = args.name.as_deref().map(NodeId::from);
    let wanted = wanted.or(match former {
        // It is known again by its name, if nobody has got that meanwhile.
        Former::Ended(name) => Some(name),
        _ => None,
    });
    let grant = join((from, at), &token, key.request()?, wanted, WITHIN).await?;
    let JoinGrant { certificate, authority, config: text } = grant;
    if Fingerprint::of_pem(&authority)? != token.authority {
        return Err(Failed::new(
            Exit::Auth,
            "the grid gave the certificate of another authority than the token's: nothing is kept",
        ));
    }
    let identity = key.identity(&certificate, &authority)?;
    make_private_dir(&dir)?;
    let name = identity.name().clone();
    let until = date(u64::try_from(identity.dates()?.until).unwrap_or(0));
    if name.may() != Role::Node {
        identity.save(&dir)?;
        eprintln!(
            "wrote node.pem, node.key and ca.pem of {name} to {}, valid until {until}; no node is run by them",
            dir.display()
        );
        return Ok(None);
    }
    let text = node_config(args, &dir, &text, from)?;
    // The key last: with it the directory is a node's.
    write_file(&config, text.as_bytes())?;
    identity.save(&dir)?;
    eprintln!(
        "joined grid {} as {} of cluster {}; its files are in {}, its certificate is valid until {until} and is renewed while it runs",
        identity.grid(),
        name.node,
        name.cluster,
        dir.display()
    );
    Ok(next(args, &config))
}

fn next(args: &JoinArgs, config: &Path) -> Option<PathBuf> {
    if args.no_run {
        eprintln!("run it with: {} node run --config {}", called(), config.display());
        return None;
    }
    Some(config.to_owned())
}

/// What is in the directory already.
enum Former {
    Nothing,
    /// A node that has joined the same grid.
    Node(Box<NodeIdentity>),
    /// One of this name, whose certificate has ended.
    Ended(NodeId),
}

fn former(dir: &Path, token: Option<&JoinToken>) -> Result<Former, Failed> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let [Some(cert), Some(key), Some(ca)] = ["node.pem", "node.key", "ca.pem"].map(read) else {
        return Ok(Former::Nothing);
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
        return Ok(Former::Ended(identity.name().node.clone()));
    }
    if !dir.join("node.toml").exists() {
        return Err(Failed::usage(format!(
            "{shown} holds the certificate of {} and no node.toml: choose another --dir",
            identity.name()
        )));
    }
    Ok(Former::Node(Box::new(identity)))
}

fn token(args: &JoinArgs) -> Result<Option<JoinToken>, Failed> {
    let text = match (&args.token, &args.token_file) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(file)) => {
            let len = fs::metadata(file).map_err(|error| cannot("read", file, &error))?.len();
            if len > TOKEN_FILE_MAX {
                return Err(Failed::usage(format!("{} is too long for a token", file.display())));
            }
            Some(fs::read_to_string(file).map_err(|error| cannot("read", file, &error))?)
        }
        (None, None) => std::env::var(TOKEN_VAR).ok(),
    };
    text.map(|text| text.parse::<JoinToken>().map_err(Failed::usage)).transpose()
}

/// This machine's address as packets to there have it.
fn towards(at: SocketAddr) -> Result<IpAddr, Failed> {
    let any: IpAddr = match at {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    // Nothing is sent: the system looks up the route alone.
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(at)?;
        socket.local_addr()
    });
    found.map(|address| address.ip()).map_err(|error| {
        Failed::failure(format!("this machine has no way to {at}: {error}; give --bind"))
    })
}

/// What the grid says, and what this machine does.
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
                "the config from the grid is not understood ({error}): bring both to one version"
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
    load::<NodeConfig>(&Sources::of_text("node.toml", &written)).map_err(|error| match args.bind {
        Some(bind) if bind.ip().is_unspecified() && args.advertise.is_none() => Failed::usage(format!(
            "--bind {bind} is no address that others can connect to: give --advertise as well"
        )),
        _ => not_understood(&error),
    })?;
    Ok(written)
}
