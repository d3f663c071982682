//! The measured endpoint, in a process of its own: the test binary runs again as a single test that
//! does nothing by default.
//!
//! For each line on its standard input, it writes a line of JSON to its standard error (the output
//! belongs to the test harness). It ends with its input, so that it does not outlive a test.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::join::{
    JoinAuthorizer, JoinDecision, JoinEndpoint, JoinLimits, JoinReason, JoinRefusal, JoinRequest,
};
use springtide_runtime::net::tls::{ALPN, Ca, EPHEMERAL_VALIDITY, JOIN_ALPN, NodeIdentity};
use springtide_runtime::net::{Address, Class, Net, NetConfig, NetworkHandler, SendError};
use springtide_runtime::remote::Hub;
use springtide_runtime::remote_message;
use springtide_runtime::wire::{INLINE_MAX, Kind};

use super::loopback;

/// The kind of the measured process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessKind {
    /// An endpoint of links that accepts all messages.
    Links,
    /// An endpoint of links that sends at full speed to the given peers.
    Sender,
    /// An endpoint of links with a published actor that handles nothing until it is released.
    Slow,
    /// An endpoint at which nodes join; all tokens are invalid.
    Door,
}

impl ProcessKind {
    /// The name of its protocol.
    pub fn alpn(self) -> &'static [u8] {
        match self {
            ProcessKind::Door => JOIN_ALPN,
            ProcessKind::Links | ProcessKind::Sender | ProcessKind::Slow => ALPN,
        }
    }
}

/// The state of the measured process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MeasuredProcess {
    /// The address that it listens at.
    pub at: String,
    /// Resident memory in KiB.
    pub resident_kib: u64,
    /// Payloads that were accepted for sending.
    pub taken: u64,
    /// Payloads that were refused, because a queue was full.
    pub full: u64,
    /// Messages that its actor has handled.
    pub handled: u64,
    /// Calls that it refused, because too many were pending.
    pub busy: u64,
    /// Tells that it dropped for the same reason.
    pub dropped: u64,
    /// Refused links, for all reasons.
    pub refused: u64,
    /// The number of links that are up.
    pub up: usize,
}

/// The measured process; it ends when this is dropped.
pub struct Helper {
    child: Child,
    ask: ChildStdin,
    answers: Lines<BufReader<ChildStderr>>,
    pub at: SocketAddr,
    _dir: tempfile::TempDir,
}

const ROLE: &str = "SPRINGTIDE_BARS_ROLE";
const DIR: &str = "SPRINGTIDE_BARS_DIR";
/// The name of the measured endpoint's node.
pub const NAME: &str = "measured";

impl Helper {
    pub fn start(ca: &Ca, role: ProcessKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let identity = ca.issue(&NAME.into(), &"bars".into(), "head", EPHEMERAL_VALIDITY).unwrap();
        for (name, text) in ["cert", "key", "ca"].iter().zip(identity.pem()) {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["bars::helper::process", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, serde_json::to_string(&role).unwrap())
            .env(DIR, dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let ask = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut helper = Self { child, ask, answers, at: loopback(), _dir: dir };
        helper.at = helper.look().at.parse().unwrap();
        helper
    }

    pub fn tell(&mut self, what: &str) -> MeasuredProcess {
        writeln!(self.ask, "{what}").expect("the helper lives");
        loop {
            let line = self.answers.next().expect("the helper lives").unwrap();
            if let Ok(look) = serde_json::from_str(&line) {
                return look;
            }
            eprintln!("helper: {line}");
        }
    }

    pub fn look(&mut self) -> MeasuredProcess {
        self.tell("look")
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A message to the slow actor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadMessage {
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

remote_message! {
    "load" => LoadMessage;
}

/// An actor that handles nothing before it is released.
pub struct SlowActor(Arc<Counts>);

impl Actor for SlowActor {
    type Context = Context<Self>;
}

impl Handler<LoadMessage> for SlowActor {
    type Result = ();

    fn handle(&mut self, load: LoadMessage, _: &mut Self::Context) {
        while !self.0.free.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!load.bytes.is_empty());
        self.0.handled.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Counts {
    taken: AtomicU64,
    full: AtomicU64,
    handled: AtomicU64,
    free: AtomicBool,
    stop: AtomicBool,
}

struct Nothing;

impl NetworkHandler for Nothing {
    fn frame(&self, _: &Peer, _: Kind, _: Bytes) {}
}

struct NoToken;

impl JoinAuthorizer for NoToken {
    fn authorize(&self, _: JoinRequest, _: SocketAddr) -> JoinDecision {
        Box::pin(async { Err(JoinRefusal::closed(JoinReason::UnknownToken, "none is good")) })
    }

    fn refused(&self, _: SocketAddr, _: &JoinRefusal) {}
}

/// The subject of the requests.
enum RequestSubject {
    Links(Net, Option<Arc<Hub>>),
    Door(JoinEndpoint),
}

/// Does nothing unless [`Helper::start`] runs it.
#[test]
#[ignore = "a process of other tests"]
fn process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role: ProcessKind = serde_json::from_str(&role).unwrap();
    let dir = std::env::var(DIR).unwrap();
    let read = |name| std::fs::read_to_string(Path::new(&dir).join(name)).unwrap();
    let identity = NodeIdentity::of_parts(&read("cert"), &read("key"), &read("ca")).unwrap();
    actix_rt::System::new().block_on(async move {
        let counts = Arc::new(Counts::default());
        let subject = match role {
            ProcessKind::Door => {
                let judge = Arc::new(NoToken);
                let door = JoinEndpoint::open(loopback(), &identity, judge, JoinLimits::default());
                RequestSubject::Door(door.unwrap())
            }
            ProcessKind::Links | ProcessKind::Sender => {
                let net = Net::quic(config(role), &identity, Incarnation(1)).unwrap();
                net.start(Arc::new(Nothing));
                RequestSubject::Links(net, None)
            }
            ProcessKind::Slow => {
                let net = Net::quic(config(role), &identity, Incarnation(1)).unwrap();
                let hub = Hub::new(net.clone());
                let slow = counts.clone();
                // On an arbiter of its own, as users' actors are.
                let arbiter = Arbiter::new();
                let addr = SlowActor::start_in_arbiter(&arbiter.handle(), move |_| SlowActor(slow));
                hub.publish("slow", addr).accepts::<LoadMessage>();
                net.start(hub.clone());
                RequestSubject::Links(net, Some(hub))
            }
        };
        std::thread::spawn(move || answer(&subject, &counts));
        std::future::pending::<()>().await;
    });
}

/// A node's configuration, but bulk payloads may wait as long as those of other classes: a user's
/// own queue is not measured.
fn config(role: ProcessKind) -> NetConfig {
    let mut config = NetConfig::default();
    if role == ProcessKind::Sender {
        config.bulk.queue_bytes = config.queue_bytes;
    }
    config
}

/// Answers requests until the input ends; then the process ends.
fn answer(subject: &RequestSubject, counts: &Arc<Counts>) {
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&*words, subject) {
            (["flood", to @ ..], RequestSubject::Links(net, _)) => {
                let to: Vec<NodeId> = to.iter().map(|name| NodeId::from(*name)).collect();
                let (net, counts) = (net.clone(), counts.clone());
                std::thread::spawn(move || flood(&net, &to, &counts));
            }
            (["free"], _) => counts.free.store(true, Ordering::Release),
            (["stop"], _) => counts.stop.store(true, Ordering::Release),
            _ => {}
        }
        let mut look = MeasuredProcess {
            resident_kib: resident_kib(),
            taken: counts.taken.load(Ordering::Relaxed),
            full: counts.full.load(Ordering::Relaxed),
            handled: counts.handled.load(Ordering::Relaxed),
            ..MeasuredProcess::default()
        };
        match subject {
            RequestSubject::Door(door) => {
                look.at = door.address().to_string();
                look.refused = door.counts().refused.values().sum();
            }
            RequestSubject::Links(net, hub) => {
                let Address::Socket(at) = net.address() else { panic!("no socket") };
                look.at = at.to_string();
                look.refused = net.refused().values().sum();
                let up = springtide_runtime::net::LinkState::Up;
                look.up = net.links().iter().filter(|link| link.state == up).count();
                if let Some(hub) = hub {
                    let stats = hub.stats();
                    (look.busy, look.dropped) = (stats.refused_in, stats.tells_dropped);
                }
            }
        }
        eprintln!("{}", serde_json::to_string(&look).unwrap());
    }
    std::process::exit(0);
}

/// Sends in every class at full speed, each payload with memory of its own.
fn flood(net: &Net, to: &[NodeId], counts: &Counts) {
    while !counts.stop.load(Ordering::Acquire) {
        let mut taken = false;
        for node in to {
            for (class, len) in
                [(Class::Control, INLINE_MAX), (Class::Steal, INLINE_MAX), (Class::Bulk, 1 << 20)]
            {
                match net.send(node, class, Kind::TASK_RESULT, vec![1; len]) {
                    Ok(()) => {
                        taken = true;
                        counts.taken.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(SendError::Full(_)) => {
                        counts.full.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if !taken {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
