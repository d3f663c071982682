//! The files of a running network, and its control protocol: one line of JSON each way, over a
//! socket.
//!
//! This module does not depend on the execution of requests.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkProfile;

use crate::router::{PortKind, RouterChange, RouterCounts};
use crate::set::{ChangeResult, LinkOverrides, LinkSelector};
use crate::sys;

/// Time limit for the answer of a network.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to a running network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Report the state of the network.
    Status,
    /// Change links, all of them or none.
    Change(Vec<RouterChange>),
    /// Set some properties of a link; its other properties stay as they are then.
    Set {
        /// The link to set.
        link: LinkSelector,
        /// The new properties.
        wish: Box<LinkOverrides>,
    },
    /// End the network; the answer comes after its end.
    Down,
    /// Send packets over this connection as a capture file, until it breaks.
    Capture {
        /// Whether to capture packets when they enter the network, not when they leave it.
        offered: bool,
    },
    /// Keep the connection open without an answer; it breaks when the network ends.
    Stay,
    /// End the network when this connection breaks.
    Tie {
        /// The process that holds the connection; it may run in the network, and ends by itself.
        pid: u32,
        /// Control groups that are removed at that time.
        groups: Vec<PathBuf>,
        /// A folder that is removed at that time.
        folder: PathBuf,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAnswer {
    /// The answer to [`ControlRequest::Status`].
    Status(Box<Status>),
    /// The answer to [`ControlRequest::Set`].
    Set(ChangeResult),
    /// The request was executed.
    Done,
    /// The request failed, for this reason.
    Failed(String),
}

/// A network namespace of a node or a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// The name of the node or cluster.
    pub name: String,
    /// The file descriptor of the namespace, in the process that holds the network.
    pub file: i32,
}

/// The state and the counts of the line from one cluster to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineStatus {
    /// The cluster of the senders.
    pub from: ClusterId,
    /// The cluster of the receivers, which may be the same.
    pub to: ClusterId,
    /// The profile of the line.
    pub profile: LinkProfile,
    /// Whether the line is cut.
    pub cut: bool,
    /// The counts of the line.
    pub counts: RouterCounts,
    /// The bytes that wait in its queue now.
    #[serde(default)]
    pub queued: usize,
    /// Its rate as it was given; none without a limit.
    #[serde(default)]
    pub rate: Option<String>,
    /// Its impairments and its schedule, as words of `wan set`.
    #[serde(default)]
    pub impairments: String,
}

/// The state of the link that all traffic out of a cluster, or into it, passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StubStatus {
    /// The cluster of the link.
    pub cluster: ClusterId,
    /// Whether it is the uplink.
    pub up: bool,
    /// The profile of the link.
    pub profile: LinkProfile,
    /// The bytes that wait in its queue now.
    #[serde(default)]
    pub queued: usize,
    /// Its rate as it was given; none without a limit.
    #[serde(default)]
    pub rate: Option<String>,
    /// Its schedule, as words of `wan set`.
    #[serde(default)]
    pub impairments: String,
}

/// The state of a cluster's address translator and firewall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BorderStatus {
    /// The cluster of the border.
    pub cluster: ClusterId,
    /// Its rules, as words of `wan set`.
    pub rules: String,
    /// The address of its translator, if it has one.
    pub public: Option<std::net::Ipv4Addr>,
    /// The number of flows that may receive answers.
    pub flows: usize,
}

/// The implementation of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// A router in user space, between TUN devices.
    #[default]
    Router,
    /// The kernel's own queues, between veth pairs.
    Kernel,
    /// The sockets of this program's own processes, which share a table.
    Sockets,
}

impl std::str::FromStr for Backend {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let all = [Self::Router, Self::Kernel, Self::Sockets];
        let found = all.into_iter().find(|network| network.word() == word);
        found.ok_or_else(|| {
            format!("a network is carried by a router, the kernel or sockets, not {word:?}")
        })
    }
}

impl Backend {
    /// The word for it on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Kernel => "kernel",
            Self::Sockets => "sockets",
        }
    }
}

/// The state of a running network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The name of the network.
    pub name: String,
    /// The implementation of the network.
    pub network: Backend,
    /// The process that holds the network.
    pub pid: u32,
    /// Whether it was started without root, in its own user namespace.
    pub own_users: bool,
    /// Whether nodes or clusters have namespaces.
    pub ports: PortKind,
    /// All namespaces; none with sockets.
    pub spaces: Vec<SpaceStatus>,
    /// The table of links that sockets share.
    pub table: Option<PathBuf>,
    /// Nodes and their addresses.
    pub nodes: Vec<(String, std::net::Ipv4Addr)>,
    /// All lines of the network.
    pub lines: Vec<LineStatus>,
    /// The limited uplinks and downlinks.
    pub stubs: Vec<StubStatus>,
    /// The clusters with an address translator or a firewall.
    #[serde(default)]
    pub borders: Vec<BorderStatus>,
    /// Seconds until the network ends by itself.
    pub left_s: f64,
    /// Deviations from the topology, a sentence each.
    pub notes: Vec<String>,
    /// Lateness of packets at the router in microseconds: median, 99th percentile and maximum.
    pub late_us: Option<[f64; 3]>,
    /// The number of packets with an unknown destination.
    pub unroutable: u64,
    /// The number of packets that Linux did not accept.
    pub refused: u64,
}

/// Failure to find a network or to reach it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No network of this name is up.
    #[error("no network named {name} is up: start one with `wan up`{up}")]
    NotUp {
        /// The requested name.
        name: String,
        /// The names of the networks that are up.
        up: String,
    },
    /// No network is up at all.
    #[error("no network is up: start one with `wan up TOPOLOGY`")]
    None,
    /// Several networks are up, so the caller must name one.
    #[error("several networks are up ({0}): say which with --wan NAME")]
    Several(String),
    /// The files of networks cannot be read or written.
    #[error("{}: {source}", path.display())]
    Files {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The folder of networks belongs to another user.
    #[error("{} belongs to another user: remove it, or set XDG_RUNTIME_DIR", .0.display())]
    Foreign(PathBuf),
    /// The network does not answer.
    #[error("network {name} does not answer: {source}")]
    Silent {
        /// The name of the network.
        name: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The network refuses the request.
    #[error("{0}")]
    Refused(String),
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> ControlError {
    let path = path.to_owned();
    move |source| ControlError::Files { path, source }
}

/// The folder of all networks of this user; created if it does not exist.
///
/// # Errors
/// It cannot be created, or belongs to another user.
pub fn networks_dir() -> Result<PathBuf, ControlError> {
    let (user, _) = sys::ids();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let home = match runtime {
        Some(dir) => PathBuf::from(dir).join("springtide-wan"),
        None => std::env::temp_dir().join(format!("springtide-wan-{user}")),
    };
    match DirBuilder::new().mode(0o700).create(&home) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(files(&home)(error)),
        // In a folder that all users can write, another user may have created it.
        _ => match fs::symlink_metadata(&home) {
            Ok(there) if there.is_dir() && there.uid() == user => Ok(home),
            Ok(_) => Err(ControlError::Foreign(home)),
            Err(error) => Err(files(&home)(error)),
        },
    }
}

/// The path of a network's socket.
pub fn socket(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.sock"))
}

/// The path of the table of links that a network's sockets share.
pub fn table(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.links"))
}

/// The path of the state of the kernel back end's script.
pub fn state(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.kernel"))
}

/// The path of the file with the nodes' names, which programs see as `/etc/hosts`.
pub fn hosts(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.hosts"))
}

/// The longest path that the address of a socket holds, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Calls a function with a path to a socket that is short enough for an address: the path itself,
/// or one by the open directory.
fn with_short<T>(socket: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if socket.as_os_str().len() <= SOCKET_PATH_MAX {
        return call(socket);
    }
    let (dir, name) = socket.parent().zip(socket.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    let dir = fs::File::open(dir)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

/// Connects to a socket, however long its path is.
///
/// # Errors
/// There is no such socket, or no process listens at it.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    with_short(socket, |path| UnixStream::connect(path))
}

/// Creates a socket, however long its path is.
///
/// # Errors
/// The path exists, or the system does not allow it.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    with_short(socket, |path| UnixListener::bind(path))
}

/// The path of the log of the process that holds a network.
pub fn log(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.log"))
}

/// Whether a process listens at a network's socket. A process that does not answer now counts.
fn is_up(socket: &Path) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let error = connect(socket).err();
    !error.is_some_and(|error| matches!(error.kind(), ConnectionRefused | NotFound))
}

/// The names of the networks that are up. Removes the files of killed ones.
///
/// # Errors
/// As of [`networks_dir`].
pub fn running_networks(home: &Path) -> Result<Vec<String>, ControlError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(home).map_err(files(home))? {
        let path = entry.map_err(files(home))?.path();
        let is_socket = path.extension().is_some_and(|ext| ext == "sock");
        let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_socket)
        else {
            continue;
        };
        if is_up(&path) {
            names.push(name.to_owned());
        } else if path.exists() {
            let own = [log, table, state, hosts].map(|file| file(home, name));
            for file in [&path].into_iter().chain(&own) {
                let _ = fs::remove_file(file);
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Finds a network: that of this name, or the only one.
///
/// # Errors
/// There is none, or more than one.
pub fn find_network(home: &Path, name: Option<&str>) -> Result<String, ControlError> {
    let up = running_networks(home)?;
    match (name, &up[..]) {
        (Some(name), _) if up.iter().any(|other| other == name) => Ok(name.to_owned()),
        (Some(name), []) => Err(ControlError::NotUp { name: name.to_owned(), up: String::new() }),
        (Some(name), _) => {
            let up = format!(" (up are: {})", up.join(", "));
            Err(ControlError::NotUp { name: name.to_owned(), up })
        }
        (None, []) => Err(ControlError::None),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(ControlError::Several(up.join(", "))),
    }
}

/// Writes one line of JSON.
///
/// # Errors
/// The other side has closed the connection.
pub fn write_message(to: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one line of JSON; none if the other side has closed the connection.
///
/// # Errors
/// The line is not a valid message, or too long.
pub fn read_message<T: DeserializeOwned>(from: &UnixStream) -> io::Result<Option<T>> {
    const LINE_MAX: u64 = 64 << 20;
    let mut line = String::new();
    io::Read::take(BufReader::new(from), LINE_MAX).read_line(&mut line)?;
    if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&line)?)) }
}

/// Sends a request to a network and waits for the answer.
///
/// # Errors
/// [`ControlError`]. A network that ends before its answer is not up.
pub fn send_request(
    home: &Path,
    name: &str,
    request: &ControlRequest,
) -> Result<ControlAnswer, ControlError> {
    let silent = |source| {
        let name = name.to_owned();
        if is_up(&socket(home, &name)) {
            ControlError::Silent { name, source }
        } else {
            ControlError::NotUp { name, up: String::new() }
        }
    };
    let exchange = || {
        let mut stream = connect(&socket(home, name))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        write_message(&mut stream, request)?;
        read_message::<ControlAnswer>(&stream)
    };
    match exchange().map_err(silent)? {
        Some(ControlAnswer::Failed(reason)) => Err(ControlError::Refused(reason)),
        Some(answer) => Ok(answer),
        // The end of the network is the answer to this request.
        None if *request == ControlRequest::Down => Ok(ControlAnswer::Done),
        None => Err(silent(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Asks a network for its state.
///
/// # Errors
/// [`ControlError`].
pub fn status(home: &Path, name: &str) -> Result<Status, ControlError> {
    match send_request(home, name, &ControlRequest::Status)? {
        ControlAnswer::Status(status) => Ok(*status),
        _ => Err(ControlError::Refused(format!(
            "network {name} belongs to another version of this program"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Accepts one connection, calls `then`, and ends.
    fn holder(home: &Path, name: &str, then: impl FnOnce(&Path) + Send + 'static) {
        let path = socket(home, name);
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (line, _) = listener.accept().unwrap();
            then(&path);
            drop((line, listener));
        });
    }

    #[test]
    fn a_network_that_ends_during_a_request_is_not_up() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        holder(home, "pair", |path| fs::remove_file(path).unwrap());
        let error = status(home, "pair").unwrap_err();
        assert!(matches!(&error, ControlError::NotUp { name, .. } if name == "pair"), "{error}");
        // The network ends between the check and the request.
        let error = send_request(home, "pair", &ControlRequest::Stay).unwrap_err();
        assert!(matches!(error, ControlError::NotUp { .. }), "{error}");
        assert_eq!(running_networks(home).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn sockets_may_have_long_paths() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("deep".repeat(50));
        fs::create_dir(&home).unwrap();
        let path = socket(&home, "pair");
        let _listener = listen(&path).unwrap();
        assert!(path.exists() && connect(&path).is_ok());
        assert_eq!(running_networks(&home).unwrap(), ["pair"]);
        assert!(connect(&socket(&home, "other")).is_err());
    }

    #[test]
    fn files_of_a_killed_network_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        drop(UnixListener::bind(socket(home, "dead")).unwrap());
        fs::write(log(home, "dead"), "killed").unwrap();
        let _alive = UnixListener::bind(socket(home, "alive")).unwrap();
        assert_eq!(running_networks(home).unwrap(), ["alive"]);
        assert!(!socket(home, "dead").exists() && !log(home, "dead").exists());
    }
}
