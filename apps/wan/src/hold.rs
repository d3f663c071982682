//! The process that holds a network: it makes the spaces, routes, answers, and ends all when it is told to or its time is over.
//!
//! Must not know who started it, nor how results are shown.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use springtide_runtime::topology::{Flap, Topology};

use crate::fabric::{Fabric, FabricError, Routing};
use crate::place::{self, Answer, LineStatus, Request, SpaceStatus, Status, StubStatus};
use crate::quota;
use crate::router::{Change, PortOf, Router};
use crate::sys;

/// Programs that still run in a network that ends have so long to end themselves.
const END_WITHIN: Duration = Duration::from_secs(1);

/// What is to be held.
#[derive(Clone, Debug)]
pub struct Order {
    /// Under which name.
    pub name: String,
    /// What.
    pub topology: Topology,
    /// Who has a space of its own.
    pub ports: PortOf,
    /// Losses and jitter follow from it.
    pub seed: u64,
    /// It ends by itself after so long.
    pub lasts: Duration,
}

/// A network cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// A space of users is not to be had.
    #[error(
        "without root a space of users is needed, and Linux does not give one ({0}): run it as root"
    )]
    Users(#[source] io::Error),
    /// The network's spaces are not to be had.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Something else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What Linux said.
        #[source]
        source: io::Error,
    },
}

fn io(what: &'static str) -> impl FnOnce(io::Error) -> HoldError {
    move |source| HoldError::Io { what, source }
}

struct Held {
    order: Order,
    own_users: bool,
    fabric: Fabric,
    routing: Routing,
    ends: Instant,
    tied: Mutex<Vec<Tied>>,
}

/// Whom a network is tied to, and what that one leaves.
#[derive(Clone)]
struct Tied {
    pid: u32,
    groups: Vec<PathBuf>,
    folder: PathBuf,
    /// It is gone, and did not say so before.
    is_broken: bool,
}

/// Holds a network until it is told to end or its time is over. `ready` is called once it can be used.
///
/// # Errors
/// [`HoldError`]; nothing is left.
pub fn hold(order: Order, home: &Path, ready: impl FnOnce()) -> Result<(), HoldError> {
    let own_users = sys::be_root().map_err(HoldError::Users)?;
    let fabric = Fabric::new(&order.topology, order.ports)?;
    let router = Router::new(order.topology.clone(), order.ports, order.seed);
    let routing = Routing::start(router, &fabric).map_err(io("the router"))?;
    let path = place::socket(home, &order.name);
    let listener = UnixListener::bind(&path).map_err(io("its socket"))?;
    let ends = Instant::now() + order.lasts;
    let held = Arc::new(Held { order, own_users, fabric, routing, ends, tied: Mutex::default() });
    let (tell, told) = mpsc::channel();
    let answering = held.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (held, tell) = (answering.clone(), tell.clone());
            thread::spawn(move || {
                // Whoever asked may be gone; then nobody wants the answer.
                let _ = held.answer(stream, &tell);
            });
        }
    });
    ready();
    let mut flaps: Vec<_> = held.order.topology.flaps.iter().map(Swing::new).collect();
    let asker = loop {
        let now = Instant::now();
        let due = flaps.iter_mut().filter(|swing| swing.at <= now).map(Swing::turn);
        for change in due.collect::<Vec<_>>() {
            held.change(&[change]).unwrap_or_else(|error| tracing::error!("{error}"));
        }
        let next = flaps.iter().map(|swing| swing.at).chain([ends]).min().unwrap_or(ends);
        match told.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(asker) => break asker,
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= ends => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    held.end_programs();
    held.clear_up();
    for file in [path, place::log(home, &held.order.name)] {
        let _ = fs::remove_file(file);
    }
    if let Some(mut asker) = asker {
        let _ = place::say(&mut asker, &Answer::Done);
    }
    Ok(())
}

/// A flap and when it turns next.
struct Swing {
    flap: Flap,
    cut: bool,
    at: Instant,
}

impl Swing {
    fn new(flap: &Flap) -> Self {
        Self { flap: flap.clone(), cut: false, at: Instant::now() + flap.up }
    }

    fn turn(&mut self) -> Change {
        self.cut = !self.cut;
        self.at += if self.cut { self.flap.down } else { self.flap.up };
        let Flap { from, to, .. } = &self.flap;
        Change::Cut { a: from.clone(), b: to.clone(), cut: self.cut }
    }
}

impl Held {
    fn answer(
        &self,
        mut stream: UnixStream,
        tell: &mpsc::Sender<Option<UnixStream>>,
    ) -> io::Result<()> {
        while let Some(request) = place::hear::<Request>(&stream)? {
            let answer = match request {
                Request::Status => Answer::Status(Box::new(self.status())),
                Request::Change(changes) => match self.change(&changes) {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Failed(error),
                },
                // Nothing is said until the end, which closes the line.
                Request::Stay => continue,
                Request::Tie { pid, groups, folder } => {
                    let new = Tied { pid, groups, folder, is_broken: false };
                    let mut tied = self.tied.lock().unwrap_or_else(PoisonError::into_inner);
                    let at = tied.len();
                    tied.push(new);
                    drop(tied);
                    place::say(&mut stream, &Answer::Done)?;
                    // Whatever it is that comes, the line is at its end.
                    let _ = place::hear::<Request>(&stream);
                    let mut tied = self.tied.lock().unwrap_or_else(PoisonError::into_inner);
                    tied[at].is_broken = true;
                    drop(tied);
                    let _ = tell.send(None);
                    return Ok(());
                }
                Request::Down => {
                    let _ = tell.send(Some(stream));
                    return Ok(());
                }
            };
            place::say(&mut stream, &answer)?;
        }
        Ok(())
    }

    fn change(&self, changes: &[Change]) -> Result<(), String> {
        let now = self.routing.now();
        let mut core = self.routing.core();
        for change in changes {
            core.router.change(change, now).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn status(&self) -> Status {
        let Self { order, own_users, fabric, routing, ends, .. } = self;
        let core = routing.core();
        let late = |share| core.late.value_at_quantile(share) as f64 * 1e-3;
        let spaces = fabric.ports.iter();
        let nodes = order.topology.nodes().map(|(node, _, address)| (node.to_string(), address));
        Status {
            name: order.name.clone(),
            pid: std::process::id(),
            own_users: *own_users,
            ports: order.ports,
            spaces: spaces
                .map(|port| SpaceStatus { name: port.name.clone(), file: port.net.as_raw_fd() })
                .collect(),
            nodes: nodes.collect(),
            lines: core
                .router
                .lines()
                .map(|(from, to, profile, cut, counts)| {
                    let (from, to, profile) = (from.clone(), to.clone(), profile.clone());
                    LineStatus { from, to, profile, cut, counts }
                })
                .collect(),
            stubs: core
                .router
                .stubs()
                .map(|(cluster, up, profile)| StubStatus {
                    cluster: cluster.clone(),
                    up,
                    profile: profile.clone(),
                })
                .collect(),
            left_s: ends.saturating_duration_since(Instant::now()).as_secs_f64(),
            ordinary: routing.ordinary.clone(),
            late_us: [late(0.5), late(0.99), late(1.0)],
            unroutable: core.router.unroutable(),
            refused: core.refused,
        }
    }

    fn tied(&self) -> Vec<Tied> {
        self.tied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes what those leave who are gone: groups as soon as Linux sees that nothing runs in them.
    fn clear_up(&self) {
        let tied = self.tied();
        for folder in tied.iter().filter(|tied| tied.is_broken).map(|tied| &tied.folder) {
            let _ = fs::remove_dir_all(folder);
        }
        let groups: Vec<&PathBuf> = tied.iter().flat_map(|tied| &tied.groups).collect();
        let until = Instant::now() + END_WITHIN;
        while groups.iter().any(|group| group.exists()) && Instant::now() < until {
            groups.iter().for_each(|group| quota::remove(group));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends what still runs in the spaces: asks it to, and kills what does not.
    fn end_programs(&self) {
        let spaces = self.fabric.ports.iter();
        let spaces: Vec<u64> = spaces.filter_map(|port| sys::number_of(&port.net).ok()).collect();
        let tied = self.tied();
        let inside = || {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            let here = |pid: &i32| {
                let space = fs::metadata(format!("/proc/{pid}/ns/net"));
                space.is_ok_and(|space| spaces.contains(&space.ino()))
            };
            let ends_itself =
                |pid: &i32| tied.iter().any(|tied| i32::try_from(tied.pid) == Ok(*pid));
            pids.filter(here).filter(|pid| !ends_itself(pid)).collect::<Vec<i32>>()
        };
        let asked = inside();
        asked.iter().for_each(|pid| sys::end(*pid, false));
        let until = Instant::now() + END_WITHIN;
        while !inside().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        inside().into_iter().for_each(|pid| sys::end(pid, true));
    }
}
