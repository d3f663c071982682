//! A grid as files: its directory, its authority, and the address of its head.
//!
//! ```text
//! DIR/head.json        address of the running head; exists only while it runs
//! DIR/scheduler.records/  numbers and epochs given out, jobs that have not ended
//! DIR/jobs.records/    submitted jobs and their outcomes
//! DIR/ca/              the authority, unless the config names another
//! DIR/node/NODE/       a node's config, certificate and key
//! DIR/nodes/NODE.log   its log
//! DIR/join.records/    join tokens, names of joined nodes, and revoked names
//! DIR/site/NAME/       a site process of a cluster: its config and certificate, and its nodes'
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::store::records_dir;
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::outdir::write_file;
use springtide_runtime::config::{GridConfig, Level, Loaded, Sources};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};

use crate::shape::GridShape;

/// The certificate authority of a grid, for one command or permanent.
pub enum Authority {
    /// An authority in memory, which ends with the command.
    Ephemeral(Ca),
    /// An authority in a directory, and the validity of its certificates.
    Kept(Ca, Duration),
    /// An authority on another host. Its certificates are in their places already.
    Elsewhere,
}

impl Authority {
    /// Issues an identity.
    ///
    /// # Errors
    /// A certificate cannot carry the name.
    pub fn issue(&self, node: &NodeId, cluster: &str, role: &str) -> Result<NodeIdentity, Failed> {
        let (ca, validity) = match self {
            Authority::Ephemeral(ca) => (ca, EPHEMERAL_VALIDITY),
            Authority::Kept(ca, validity) => (ca, *validity),
            Authority::Elsewhere => {
                return Err(Failed::new(
                    Exit::Auth,
                    format!("the grid's authority is not here to issue a certificate for {node}"),
                ));
            }
        };
        Ok(ca.issue(node, &ClusterId::from(cluster), role, validity)?)
    }

    /// Its certificate in PEM; empty if the authority is elsewhere.
    pub fn certificate(&self) -> &str {
        match self {
            Authority::Ephemeral(ca) | Authority::Kept(ca, _) => ca.cert_pem(),
            Authority::Elsewhere => "",
        }
    }
}

/// A grid to be started.
pub struct LaunchPlan<'a> {
    /// The config of the grid.
    pub config: &'a GridConfig,
    /// The directory of the grid.
    pub dir: &'a Path,
    /// The authority of the grid.
    pub authority: &'a Authority,
    /// The program of nodes whose cluster names none.
    pub program: &'a Path,
    /// Directory of input files of nodes whose cluster names none.
    pub files: Option<&'a Path>,
    /// The log level of nodes; the config's if absent.
    pub log_level: Option<Level>,
}

/// The address of a running head: the content of `head.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadFile {
    /// The version of the content.
    pub schema: u32,
    /// The address of the head.
    pub address: SocketAddr,
    /// The process id of the head.
    pub pid: u32,
    /// The host of the head. Earlier versions do not write it; then the process is unknown.
    #[serde(default)]
    pub host: Option<String>,
    /// The address where nodes join, if the grid has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<SocketAddr>,
}

/// This host's name as a head's file contains it.
pub fn this_host() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

impl HeadFile {
    /// The path of the file.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("head.json")
    }

    /// Reads the file. None if no head wrote it, or if its head is known to have died. Only a
    /// connection shows whether the head lives. The lease of the grid's store decides whether
    /// another head may start.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(dir: &Path) -> Result<Option<Self>, Failed> {
        let path = Self::path(dir);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        let head: Self = serde_json::from_slice(&bytes)
            .map_err(|error| Failed::failure(format!("{}: {error}", path.display())))?;
        Ok((!head.is_dead(this_host().as_deref(), Path::new("/proc"))).then_some(head))
    }

    /// Whether the head's process has ended, as far as this host can know. A process id counts only
    /// on the host that gave it out: hosts may share the directory.
    fn is_dead(&self, here: Option<&str>, proc: &Path) -> bool {
        let ours = here.is_some() && self.host.as_deref() == here;
        // This process is not a head, so that its own id was reused, as in a restarted container.
        let again = self.pid == std::process::id();
        ours && proc.join("self").exists() && (again || !proc.join(self.pid.to_string()).exists())
    }

    /// The host of the head, if it is another one.
    pub fn elsewhere(&self) -> Option<&str> {
        self.host.as_deref().filter(|host| this_host().as_deref() != Some(*host))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn write(&self, dir: &Path) -> Result<(), Failed> {
        let path = Self::path(dir);
        let bytes = serde_json::to_vec(self).map_err(Failed::failure)?;
        write_file(&path, &bytes)
    }
}

/// The path of this program's file, which nodes start.
///
/// # Errors
/// The system does not report it.
pub fn this_program() -> Result<PathBuf, Failed> {
    std::env::current_exe()
        .map_err(|error| Failed::failure(format!("this program cannot find itself: {error}")))
}

/// The name by which people call this program, for messages that contain commands.
pub fn program_name() -> String {
    let file = std::env::current_exe().ok();
    let name = file.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    name.map_or_else(|| "springtide".to_owned(), |name| name.into_owned())
}

/// The directory of the state of a grid with this config file.
pub fn dir_of(file: &Path, config: &GridConfig) -> PathBuf {
    state_dir(file).join(config.grid.as_str())
}

/// The directory of the state of all grids whose configs are in the directory of this one.
pub fn state_dir(file: &Path) -> PathBuf {
    file.parent().unwrap_or_else(|| Path::new("")).join(".springtide")
}

/// The authority's directory of a grid with this config.
pub fn ca_dir(config: &GridConfig, dir: &Path) -> PathBuf {
    config.tls.ca.clone().unwrap_or_else(|| dir.join("ca"))
}

/// Checks that a grid that has run still has the certificate of its authority.
///
/// # Errors
/// The certificate is missing: another authority would exclude every node and client of the grid.
pub fn check_authority(config: &GridConfig, dir: &Path) -> Result<(), Failed> {
    let at = ca_dir(config, dir);
    let certificate = at.join("ca.pem");
    let leftover = [HeadFile::path(dir), at.join("ca.key")];
    if config.tls.ca.is_some() || certificate.exists() || !leftover.iter().any(|path| path.exists())
    {
        return Ok(());
    }
    Err(Failed::new(
        Exit::Auth,
        format!(
            "{} is missing, and the grid in {} has run with it: restore it from a backup; or end \
            the grid and \
            remove {} and {} to begin with another authority, which voids all certificates and \
            tokens",
            certificate.display(),
            dir.display(),
            at.display(),
            HeadFile::path(dir).display()
        ),
    ))
}

/// The authority of a grid that stays: that of the config, or one created in the grid's directory.
///
/// # Errors
/// It cannot be read or created.
pub fn kept_authority(config: &GridConfig, dir: &Path) -> Result<Authority, Failed> {
    check_authority(config, dir)?;
    let at = ca_dir(config, dir);
    let make = config.tls.ca.is_none() && !at.join("ca.pem").exists();
    let ca = if make {
        make_private_dir(&at)?;
        Ca::create(config.grid.as_str(), &at)?
    } else {
        Ca::load(&at)?
    };
    if ca.grid() != config.grid.as_str() {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "the authority in {} is of grid {}, the config's grid is {}: set `grid` or \
                `tls.ca` right",
                at.display(),
                ca.grid(),
                config.grid
            ),
        ));
    }
    Ok(Authority::Kept(ca, config.tls.validity.get()))
}

/// The config of an ad-hoc grid of this shape. `over` applies flags.
///
/// # Errors
/// An environment variable or a flag has a wrong value.
pub fn ad_hoc(
    shape: GridShape,
    over: impl FnOnce(Sources) -> Sources,
) -> Result<Loaded<GridConfig>, Failed> {
    // A text instead of a file, so that the environment can override it.
    let mut text = String::new();
    for name in shape.names() {
        let GridShape { nodes, threads, .. } = shape;
        text += &format!("[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\nthreads = {threads}\n");
    }
    let of_text = Sources::of_text(&format!("--clusters {shape}"), &text);
    let sources = Sources { env: Sources::of_process(None).env, ..of_text };
    Ok(load::<GridConfig>(&over(sources))?)
}

/// Creates a directory that only its owner may enter.
///
/// # Errors
/// The operating system reports an error.
pub fn make_private_dir(dir: &Path) -> Result<(), Failed> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| cannot("make", dir, &error))
}

/// Makes a path absolute, so that processes started elsewhere can use it.
///
/// # Errors
/// No current directory exists.
pub fn absolute(path: &Path) -> Result<PathBuf, Failed> {
    std::path::absolute(path).map_err(|error| cannot("find", path, &error))
}

/// Removes the files of an ended grid from its run's directory, except the nodes' logs.
pub fn clear(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir.join("node"));
    let _ = std::fs::remove_dir_all(records_dir(dir));
    // The lock ended with the head; the file alone has no meaning.
    let _ = std::fs::remove_file(dir.join("scheduler.lease"));
    let _ = std::fs::remove_file(HeadFile::path(dir));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_that_has_run_keeps_its_authority() {
        let temp = tempfile::tempdir().unwrap();
        let config = ad_hoc(GridShape::default(), |sources| sources).unwrap().value;
        let dir = temp.path().join("grid");
        make_private_dir(&dir).unwrap();
        kept_authority(&config, &dir).unwrap();
        let ca = dir.join("ca");
        for leftover in ["ca.key", "", "head.json"] {
            match leftover {
                "ca.key" => fs::remove_file(ca.join("ca.pem")).unwrap(),
                "" => fs::remove_file(ca.join("ca.key")).unwrap(),
                head => fs::write(dir.join(head), "").unwrap(),
            }
            let made = kept_authority(&config, &dir);
            if leftover.is_empty() {
                // Nothing is left of a grid, so that a new one starts.
                made.unwrap();
                fs::remove_dir_all(&ca).unwrap();
                continue;
            }
            let Err(refused) = made else { panic!("{leftover}") };
            assert_eq!(refused.exit, Exit::Auth);
            let parts = ["ca.pem is missing", "backup", "end the grid"];
            assert!(parts.iter().all(|part| refused.message.contains(part)), "{refused}");
            assert!(!ca.join("ca.pem").exists());
        }
    }

    #[test]
    fn a_process_is_judged_on_its_own_host_only() {
        let temp = tempfile::tempdir().unwrap();
        let proc = temp.path();
        for name in ["self", "7"] {
            fs::create_dir(proc.join(name)).unwrap();
        }
        let head = |pid, host: Option<&str>| HeadFile {
            schema: 1,
            address: "127.0.0.1:1".parse().unwrap(),
            pid,
            host: host.map(str::to_owned),
            join: None,
        };
        let dead = |head: &HeadFile| head.is_dead(Some("here"), proc);
        assert!(!dead(&head(7, Some("here"))));
        assert!(dead(&head(8, Some("here"))));
        // The asking process is not a head, though the file contains its id.
        assert!(dead(&head(std::process::id(), Some("here"))));
        assert!(!dead(&head(8, Some("there"))) && !dead(&head(8, None)));
        assert!(!head(8, Some("here")).is_dead(None, proc));
        // Without /proc the state of processes is unknown.
        assert!(!head(8, Some("here")).is_dead(Some("here"), &proc.join("7")));
        // An earlier version did not write its host.
        let old = r#"{"schema":1,"address":"127.0.0.1:1","pid":7}"#;
        assert_eq!(serde_json::from_str::<HeadFile>(old).unwrap().host, None);
    }
}
