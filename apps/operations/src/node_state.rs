//! The state that a joined node writes, for health checks on its own host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_cli::config::load;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::write_file;
use springtide_runtime::config::{NodeConfig, Sources};
use springtide_runtime::net::tls::calendar;

use super::grid_files::program_name;

/// Maximum age of a node's own state file.
const STATE_AGE_MAX: Duration = Duration::from_secs(20);

/// The state that a joined node writes next to its certificate, for health checks on its own
/// host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnState {
    /// The version of the content.
    pub schema: u32,
    /// The name of the node.
    pub node: String,
    /// The cluster of the node.
    pub cluster: String,
    /// Whether its site has registered it.
    pub registered: bool,
    /// The process id of the node.
    pub pid: u32,
    /// The time of the state, in seconds since the Unix epoch.
    pub at: i64,
}

impl OwnState {
    /// The path of the file.
    pub fn path(config: &NodeConfig) -> PathBuf {
        config.identity.certificate.with_file_name("node.state.json")
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn write(&self, path: &Path) -> Result<(), Failed> {
        write_file(path, &serde_json::to_vec(self).map_err(Failed::failure)?)
    }

    /// The reason why the node is unhealthy, if it is.
    fn unhealthy(&self, now: i64) -> Option<String> {
        let ago = now.saturating_sub(self.at);
        if ago > STATE_AGE_MAX.as_secs() as i64 {
            return Some(format!(
                "{} has written no state for {ago} s: it does not run, or hangs",
                self.node
            ));
        }
        (!self.registered).then(|| {
            format!("{} runs and is not registered: it does not reach its head", self.node)
        })
    }
}

/// The health of a node, by its own state.
pub struct Health {
    /// The state that the node wrote last.
    pub state: OwnState,
    /// The reason why the node is unhealthy, if it is.
    pub unhealthy: Option<String>,
}

/// The health of the joined node with this config on this host.
///
/// # Errors
/// The config is not a joined node's, or the node has not run.
pub fn health(file: &Path) -> Result<Health, Failed> {
    let config = load::<NodeConfig>(&Sources::of_process(Some(file)))?.value;
    if !config.renew {
        return Err(Failed::usage(format!(
            "{} is not the config of a node that has joined (`renew = true`): for other nodes use \
            `node status NODE --config GRID`",
            file.display()
        )));
    }
    let path = OwnState::path(&config);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failed::failure(format!(
                "{} has not run yet: start it with `{} node run --config {}`",
                config.node,
                program_name(),
                file.display()
            )));
        }
        Err(error) => return Err(cannot("read", &path, &error)),
    };
    let state: OwnState = serde_json::from_slice(&bytes)
        .map_err(|error| Failed::failure(format!("{}: {error}", path.display())))?;
    let unhealthy = state.unhealthy(calendar()());
    Ok(Health { state, unhealthy })
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_healthy_while_its_state_is_recent() {
        let state = |registered| OwnState {
            schema: 1,
            node: "lab-1".into(),
            cluster: "lab".into(),
            registered,
            pid: 1,
            at: 100,
        };
        assert_eq!(state(true).unhealthy(110), None);
        assert!(state(true).unhealthy(121).unwrap().contains("does not run"));
        assert!(state(false).unhealthy(110).unwrap().contains("not registered"));
        // A clock that was set back makes no node unhealthy.
        assert_eq!(state(true).unhealthy(50), None);
    }
}
