//! Where a network that is up keeps its files, and what is said to it there: one line of JSON each way, over a socket.
//!
//! Must not know what is done about it.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkProfile;

use crate::router::{Change, Counts, PortOf};
use crate::set::{Link, Outcome, Wish};
use crate::sys;

/// Whoever does not answer for so long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What can be asked of a network that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// What it is, and how it does.
    Status,
    /// Something is to change, all of it or nothing.
    Change(Vec<Change>),
    /// So much of a link is to change, whatever it is like by then.
    Set {
        /// Which.
        link: Link,
        /// What.
        wish: Wish,
    },
    /// It is to end. Answered when it has.
    Down,
    /// Tell nothing, but hold the line: it breaks when the network ends.
    Stay,
    /// The network ends when this line breaks.
    Tie {
        /// Who holds the line: it may run in the network, and ends by itself.
        pid: u32,
        /// Folders of control groups that are removed then.
        groups: Vec<PathBuf>,
        /// A folder of its files that is, too.
        folder: PathBuf,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Set`].
    Set(Outcome),
    /// It is done.
    Done,
    /// It cannot be done.
    Failed(String),
}

/// A node, or a cluster, and where it is entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Its name.
    pub name: String,
    /// The number of the file that its space is, in the process that holds it.
    pub file: i32,
}

/// What passed from one cluster to another, and what the line is like now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineStatus {
    /// From this cluster..
    pub from: ClusterId,
    /// ..to this one, which may be the same.
    pub to: ClusterId,
    /// What it is like.
    pub profile: LinkProfile,
    /// Whether it is cut.
    pub cut: bool,
    /// What it carried.
    pub counts: Counts,
}

/// What all traffic out of a cluster, or into it, goes through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StubStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// Out of it.
    pub up: bool,
    /// What it is like.
    pub profile: LinkProfile,
}

/// What carries a network's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carries {
    /// A router in user space, between TUN devices.
    #[default]
    Router,
    /// The kernel's own queues, between veth pairs.
    Kernel,
    /// The sockets of this program's own processes, which share a table.
    Sockets,
}

impl std::str::FromStr for Carries {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let all = [Self::Router, Self::Kernel, Self::Sockets];
        let found = all.into_iter().find(|network| network.word() == word);
        found.ok_or_else(|| {
            format!("a network is carried by a router, the kernel or sockets, not {word:?}")
        })
    }
}

impl Carries {
    /// As said on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Kernel => "kernel",
            Self::Sockets => "sockets",
        }
    }
}

/// A network that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// What it is made of.
    pub network: Carries,
    /// The process that holds it.
    pub pid: u32,
    /// Whether it was started without root, in a space of users of its own.
    pub own_users: bool,
    /// What has a space.
    pub ports: PortOf,
    /// All of them; none where sockets carry it.
    pub spaces: Vec<SpaceStatus>,
    /// The table of links that sockets share.
    pub table: Option<PathBuf>,
    /// Nodes and their addresses.
    pub nodes: Vec<(String, std::net::Ipv4Addr)>,
    /// All lines.
    pub lines: Vec<LineStatus>,
    /// Uplinks and downlinks that are limited.
    pub stubs: Vec<StubStatus>,
    /// Seconds until it ends by itself.
    pub left_s: f64,
    /// In what it falls short of what it should be, a sentence each.
    pub notes: Vec<String>,
    /// By how many microseconds packets left the router late: half of them, 99 of 100, and the latest.
    pub late_us: Option<[f64; 3]>,
    /// Packets that were for nobody.
    pub unroutable: u64,
    /// Packets that Linux did not take.
    pub refused: u64,
}

/// A network cannot be found, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// None of this name.
    #[error("no network named {name} is up: start one with `wan up`{up}")]
    NotUp {
        /// The name.
        name: String,
        /// Which are.
        up: String,
    },
    /// None at all.
    #[error("no network is up: start one with `wan up TOPOLOGY`")]
    None,
    /// It must be said which.
    #[error("several networks are up ({0}): say which with --wan NAME")]
    Several(String),
    /// The files of networks cannot be read or written.
    #[error("{}: {source}", path.display())]
    Files {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else's folder stands where ours should.
    #[error("{} belongs to another user: remove it, or set XDG_RUNTIME_DIR", .0.display())]
    Foreign(PathBuf),
    /// It does not answer.
    #[error("network {name} does not answer: {source}")]
    Silent {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It says no.
    #[error("{0}")]
    Refused(String),
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |source| PlaceError::Files { path, source }
}

/// The folder of all networks of this user; made if it is not there.
///
/// # Errors
/// It cannot be made, or is another's.
pub fn home() -> Result<PathBuf, PlaceError> {
    let (user, _) = sys::ids();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let home = match runtime {
        Some(dir) => PathBuf::from(dir).join("springtide-wan"),
        None => std::env::temp_dir().join(format!("springtide-wan-{user}")),
    };
    match DirBuilder::new().mode(0o700).create(&home) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(files(&home)(error)),
        // In a folder that all can write, somebody may have been first.
        _ => match fs::symlink_metadata(&home) {
            Ok(there) if there.is_dir() && there.uid() == user => Ok(home),
            Ok(_) => Err(PlaceError::Foreign(home)),
            Err(error) => Err(files(&home)(error)),
        },
    }
}

/// A network's socket.
pub fn socket(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.sock"))
}

/// The table of links that a network's sockets share.
pub fn table(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.links"))
}

/// What the kernel back end's script keeps.
pub fn state(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.kernel"))
}

/// What the process that holds a network says.
pub fn log(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}.log"))
}

/// Whether somebody listens at a network's socket. One that is there, and does not answer now, is up.
fn is_up(socket: &Path) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let error = UnixStream::connect(socket).err();
    !error.is_some_and(|error| matches!(error.kind(), ConnectionRefused | NotFound))
}

/// The networks that are up, by name. What one that was killed left behind is removed.
///
/// # Errors
/// As of [`home`].
pub fn all(home: &Path) -> Result<Vec<String>, PlaceError> {
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
            for file in [&path, &log(home, name), &table(home, name), &state(home, name)] {
                let _ = fs::remove_file(file);
            }
        }
    }
    names.sort();
    Ok(names)
}

/// The network that is meant: of this name, or the only one.
///
/// # Errors
/// There is none, or more than one.
pub fn choose(home: &Path, name: Option<&str>) -> Result<String, PlaceError> {
    let up = all(home)?;
    match (name, &up[..]) {
        (Some(name), _) if up.iter().any(|other| other == name) => Ok(name.to_owned()),
        (Some(name), []) => Err(PlaceError::NotUp { name: name.to_owned(), up: String::new() }),
        (Some(name), _) => {
            let up = format!(" (up are: {})", up.join(", "));
            Err(PlaceError::NotUp { name: name.to_owned(), up })
        }
        (None, []) => Err(PlaceError::None),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(PlaceError::Several(up.join(", "))),
    }
}

/// Writes one line.
///
/// # Errors
/// The other side is gone.
pub fn say(to: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one line. `None`: the other side is gone.
///
/// # Errors
/// It is none of ours, or longer than any.
pub fn hear<T: DeserializeOwned>(from: &UnixStream) -> io::Result<Option<T>> {
    const LONGEST: u64 = 64 << 20;
    let mut line = String::new();
    io::Read::take(BufReader::new(from), LONGEST).read_line(&mut line)?;
    if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&line)?)) }
}

/// Asks a network.
///
/// # Errors
/// [`PlaceError`]. One that ends before it has answered is not up.
pub fn ask(home: &Path, name: &str, request: &Request) -> Result<Answer, PlaceError> {
    let silent = |source| {
        let name = name.to_owned();
        if is_up(&socket(home, &name)) {
            PlaceError::Silent { name, source }
        } else {
            PlaceError::NotUp { name, up: String::new() }
        }
    };
    let talk = || {
        let mut stream = UnixStream::connect(socket(home, name))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        say(&mut stream, request)?;
        hear::<Answer>(&stream)
    };
    match talk().map_err(silent)? {
        Some(Answer::Failed(reason)) => Err(PlaceError::Refused(reason)),
        Some(answer) => Ok(answer),
        // Its end is its answer to that.
        None if *request == Request::Down => Ok(Answer::Done),
        None => Err(silent(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// What a network is, and how it does.
///
/// # Errors
/// [`PlaceError`].
pub fn status(home: &Path, name: &str) -> Result<Status, PlaceError> {
    match ask(home, name, &Request::Status)? {
        Answer::Status(status) => Ok(*status),
        _ => Err(PlaceError::Refused(format!("network {name} is another version's"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers one request in the way of `then`, and ends.
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
    fn a_network_that_ends_while_it_is_asked_is_not_up() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        holder(home, "pair", |path| fs::remove_file(path).unwrap());
        let told = status(home, "pair").unwrap_err();
        assert!(matches!(&told, PlaceError::NotUp { name, .. } if name == "pair"), "{told}");
        // Between the look at which are there and the question.
        let told = ask(home, "pair", &Request::Stay).unwrap_err();
        assert!(matches!(told, PlaceError::NotUp { .. }), "{told}");
        assert_eq!(all(home).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn one_that_was_killed_leaves_nothing_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        drop(UnixListener::bind(socket(home, "dead")).unwrap());
        fs::write(log(home, "dead"), "killed").unwrap();
        let _alive = UnixListener::bind(socket(home, "alive")).unwrap();
        assert_eq!(all(home).unwrap(), ["alive"]);
        assert!(!socket(home, "dead").exists() && !log(home, "dead").exists());
    }
}
