//! Tests of `springtide wan`: networks that start, carry other programs, change, end, and leave
//! nothing behind.
//!
//! Only one test at a time has a network, with at most five processes. If Linux allows none, tests
//! say so and pass. Waits have generous bounds and are never asserted on. This module does not know
//! the emulation.
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than any step takes on a working host.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which networks end by themselves, even if the test fails.
const LIFETIME: &str = "2m";
/// The environment variable that makes this program a peer in a network.
const PEER: &str = "WAN_TEST_PEER";

/// Runs a command to its end.
fn ended(mut command: Command) -> (Option<i32>, String, String) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let pid = child.id();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(Ok(Output { status, stdout, stderr })) = receiver.recv_timeout(STEP_TIMEOUT) else {
        kill(pid);
        panic!("it does not end: {command:?}");
    };
    let [out, err] = [stdout, stderr].map(|text| String::from_utf8(text).expect("text"));
    (status.code(), out, err)
}

fn kill(pid: u32) {
    // The process may have ended already.
    let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < STEP_TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The processes with this word on their command line. Zombies have none.
fn running(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).split('\0').any(|other| other == word)
    };
    pids.filter(has).collect()
}

/// A number that no other process has on its command line: seconds that no test waits for.
fn word(number: u32) -> String {
    format!("{number}{:07}", std::process::id())
}

/// A program in the background; killed when the test ends.
struct RunningProgram(Child);

impl RunningProgram {
    /// Its exit code if it has ended.
    fn code(&mut self) -> Option<i32> {
        let mut status = None;
        until("it ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The directory of one test's networks, invisible to other tests.
struct TestNetwork {
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());
/// The reason why Linux allows no networks here, if it allows none.
static NONE: OnceLock<Option<String>> = OnceLock::new();

impl TestNetwork {
    /// Waits for this test's turn.
    fn any() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { dir: tempfile::tempdir().unwrap(), _turn: turn }
    }

    /// Waits for this test's turn, if networks are possible.
    fn new() -> Option<Self> {
        let place = Self::any();
        match place.none() {
            Some(reason) => {
                println!("skipped: {reason}");
                None
            }
            None => Some(place),
        }
    }

    /// Asks Linux once. Failures that are not refusals of Linux are bugs.
    fn none(&self) -> Option<&'static str> {
        let none = NONE.get_or_init(|| {
            let (code, _, err) = self.wan(&["up", "pair", "--name", "probe", "--for", LIFETIME]);
            if code == Some(0) {
                assert_eq!(self.wan(&["down"]).0, Some(0));
                return None;
            }
            let refusals = ["a user namespace", "a network namespace", "a TUN device"];
            assert!(refusals.iter().any(|refusal| err.contains(refusal)), "{err}");
            Some(err.trim().to_owned())
        });
        none.as_deref()
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_springtide"));
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("SPRINGTIDE_")) {
            command.env_remove(key);
        }
        command.arg("wan").args(line).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path()).env("NO_COLOR", "1").env_remove("RUST_LOG");
        command
    }

    fn wan(&self, line: &[&str]) -> (Option<i32>, String, String) {
        ended(self.command(line))
    }

    /// The output of a command that must succeed.
    fn done(&self, line: &[&str]) -> String {
        let (code, out, err) = self.wan(line);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{line:?}: {out}");
        out
    }

    /// Checks that a command fails as wrong, with this text.
    fn wrong(&self, line: &[&str], output: &str) {
        let (code, out, err) = self.wan(line);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{line:?}: {err}");
        assert!(err.contains(output), "{line:?}: {err}");
    }

    /// Starts the built-in network of two clusters with two nodes each, 50 ms apart.
    fn up(&self, more: &[&str]) -> String {
        let line = [&["up", "pair", "--for", LIFETIME], more].concat();
        let (code, out, err) = self.wan(&line);
        assert_eq!(code, Some(0), "{err}");
        out
    }

    fn start(&self, line: &[&str]) -> RunningProgram {
        let mut command = self.command(line);
        RunningProgram(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.done(&["status", "--json"])).unwrap()
    }

    /// The files of running networks, and those left behind.
    fn files(&self) -> Vec<PathBuf> {
        files(&self.dir.path().join("springtide-wan"))
    }

    fn none_is_up(&self) -> bool {
        let (code, _, err) = self.wan(&["status"]);
        assert!(matches!(code, Some(0 | 2)), "{err}");
        code == Some(2) && err.contains("no network is up: start one with `wan up TOPOLOGY`")
    }

    fn nothing_is_left(&self) {
        assert!(self.none_is_up());
        assert!(self.files().is_empty(), "{:?}", self.files());
    }
}

impl Drop for TestNetwork {
    /// Ends networks that a failed test left.
    fn drop(&mut self) {
        for file in self.files().iter().filter(|file| file.extension().is_some_and(|e| e == "sock"))
        {
            if let Some(name) = file.file_stem().and_then(|name| name.to_str()) {
                let _ = self.command(&["down", name]).stderr(Stdio::null()).status();
            }
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The link from one cluster to another in the output of `wan status --json`.
fn line<'a>(status: &'a Value, from: &str, to: &str) -> &'a Value {
    let lines = status["lines"].as_array().expect("lines");
    let line = lines.iter().find(|line| line["from"] == from && line["to"] == to);
    line.unwrap_or_else(|| panic!("{from}>{to}: {status}"))
}

#[test]
fn a_network_starts_is_listed_and_ends() {
    let Some(place) = TestNetwork::new() else { return };
    let output = place.up(&[]);
    assert!(
        output.starts_with(
            "network pair is up: 4 nodes (a-1 10.77.1.1, a-2 10.77.1.2, b-1 10.77.2.1"
        ),
        "{output}"
    );
    let output = place.done(&["status"]);
    assert!(output.starts_with("network pair: 4 nodes by router, ends in "), "{output}");
    assert!(
        output.lines().any(|line| line.starts_with("a>b ") && line.contains("  25ms  ")),
        "{output}"
    );
    let status = place.status();
    assert_eq!((&status["schema"], &status["name"]), (&1.into(), &"pair".into()));
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(4));
    assert_eq!(line(&status, "b", "a")["profile"]["delay_us"], 25_000);
    let pid = status["pid"].to_string();
    place.wrong(&["up", "pair"], "a network named pair is up: end it with `wan down pair`");
    assert_eq!(place.done(&["down"]), "network pair is down\n");
    place.nothing_is_left();
    until("its process ends", || !Path::new("/proc").join(&pid).join("cwd").exists());
}

#[test]
fn links_are_changed_while_it_is_up() {
    let Some(place) = TestNetwork::new() else { return };
    place.up(&[]);
    assert_eq!(place.done(&["set", "a,b", "rtt=80ms", "loss=0.5"]), "a,b: rtt=80ms loss=0.5\n");
    place.done(&["set", "b>a", "down"]);
    place.done(&["set", ">b", "bandwidth=1MB/s"]);
    let status = place.status();
    for (from, to, up) in [("a", "b", true), ("b", "a", false)] {
        let profile = &line(&status, from, to)["profile"];
        let found = (&profile["delay_us"], &profile["loss"], &profile["up"]);
        assert_eq!(found, (&40_000.into(), &0.5.into(), &up.into()), "{from}>{to}");
    }
    let stubs = status["stubs"].as_array().unwrap();
    assert_eq!(stubs.len(), 1, "{stubs:?}");
    let found = (&stubs[0]["cluster"], &stubs[0]["up"], &stubs[0]["profile"]["rate"]);
    assert_eq!(found, (&"b".into(), &false.into(), &1_000_000.into()));
    place.done(&["set", "a,b", "profile=satellite", "up"]);
    let status = place.status();
    let profile = &line(&status, "b", "a")["profile"];
    assert_eq!((&profile["delay_us"], &profile["up"]), (&300_000.into(), &true.into()));
    place.done(&["down"]);
}

#[test]
fn any_program_runs_on_a_node_and_its_exit_code_is_returned() {
    let Some(place) = TestNetwork::new() else { return };
    place.up(&[]);
    let routes = place.done(&["exec", "a-1", "cat", "/proc/net/route"]);
    // No route leads out of it.
    assert!(routes.lines().count() > 1, "{routes}");
    assert!(routes.lines().skip(1).all(|route| route.starts_with("wan\t")), "{routes}");
    let address = place.done(&["exec", "b-2", "--", "printenv", "SPRINGTIDE_WAN_ADDRESS"]);
    assert_eq!(address, "10.77.2.2\n");
    let code = |words: &[&str]| place.wan(&[&["exec", "a-1", "--"], words].concat()).0;
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["sh", "-c", "kill -KILL $$"]), Some(137));
    let (code, _, err) = place.wan(&["exec", "a-1", "no-such-program"]);
    assert!(code == Some(127) && err.contains("no-such-program"), "{code:?}: {err}");
    let (code, _, err) = place.wan(&["exec", "a-1", "/etc/passwd"]);
    assert!(code == Some(126) && err.contains("/etc/passwd"), "{code:?}: {err}");
    let hosts = place.done(&["exec", "a-1", "--", "getent", "hosts", "b-2"]);
    assert!(hosts.starts_with("10.77.2.2") && hosts.trim_end().ends_with("b-2"), "{hosts}");
    let all = place.done(&["exec", "--all", "printenv", "SPRINGTIDE_WAN_ADDRESS"]);
    let mut all: Vec<&str> = all.lines().collect();
    all.sort_unstable();
    let expected = ["a-1 | 10.77.1.1", "a-2 | 10.77.1.2", "b-1 | 10.77.2.1", "b-2 | 10.77.2.2"];
    assert_eq!(all, expected);
    let script = "test $SPRINGTIDE_WAN_ADDRESS != 10.77.1.2 || exit 9";
    assert_eq!(place.wan(&["exec", "--all", "--", "sh", "-c", script]).0, Some(9));
    // The program hangs its parent up, which ignores that as under nohup.
    let command = place.command(&["exec", "a-1", "--", "sh", "-c", "kill -HUP $PPID; sleep 0.2"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(command.get_program());
    shell.args(command.get_args()).stdin(Stdio::null());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    assert_eq!(ended(shell).0, Some(0));
    place.done(&["down", "--wan", "pair"]);
}

#[test]
fn impairments_are_set_shown_counted_and_captured() {
    let Some(place) = TestNetwork::new() else { return };
    let change = "a,b delay=7ms loss=0% bandwidth=8Mbit/s burst=1%/25%";
    place.up(&["--set", change, "--set", "b firewall=on"]);
    let shown = |start: &str, part: &str| {
        let output = place.done(&["status", "--wan", "pair"]);
        let is_shown =
            output.lines().any(|line| line.trim().starts_with(start) && line.contains(part));
        assert!(is_shown, "{start} ... {part}: {output}");
    };
    shown("a>b", " 7ms ");
    shown("b>a", " 8Mbit/s ");
    shown("burst=1%/25%", "");
    shown("border of b", "firewall=on");
    // The firewall lets nothing in.
    let send = "exec 3<>/dev/udp/10.77.2.1/4000; echo hello >&3";
    place.done(&["exec", "a-1", "--", "bash", "-c", send]);
    let counts = || line(&place.status(), "a", "b")["counts"].clone();
    until("the firewall counts it", || counts()["filtered"] == 1);
    shown("a>b", "1 filtered");
    place.done(&["set", "b", "firewall=off"]);
    place.done(&["set", "a>b", "burst=none", "duplicate=100%", "corrupt=100%"]);
    let file = place.dir.path().join("both.pcap");
    let file = file.to_str().expect("text");
    let mut capture = place.start(&["capture", "pair", "--out", file, "--packets", "2"]);
    // The capture starts some time before or after a packet.
    until("two packets are captured", || {
        place.done(&["exec", "a-1", "--", "bash", "-c", send]);
        std::fs::metadata(file).is_ok_and(|file| file.len() > 24)
            || capture.0.try_wait().unwrap().is_some()
    });
    assert_eq!(capture.code(), Some(0));
    let bytes = std::fs::read(file).unwrap();
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    // The header, and two records of one packet that arrived twice.
    assert_eq!(bytes.len(), 24 + 2 * (16 + 20 + 8 + 6));
    let (one, two) = bytes[24..].split_at(50);
    assert_eq!(one[16..], two[16..]);
    let counts = counts();
    assert_eq!(counts["duplicated"], counts["corrupted"]);
    place.wrong(&["set", "a", "burst=1%/25%"], "an uplink has no burst=");
    place.done(&["down"]);
    let bad = ["up", "pair", "--set", "a,c down"];
    place.wrong(&bad, "there is no cluster named \"c\"");
    place.nothing_is_left();
}

/// Sends a datagram from a-2 to b-1 and back.
fn datagrams_cross(place: &TestNetwork) {
    let this = std::env::current_exe().unwrap();
    let peer = |node: &str, order: &str| {
        let mut command = place.command(&["exec", node, "--"]);
        command.arg(&this).args(["wan::peer", "--exact", "--ignored", "--nocapture"]);
        command.env(PEER, order);
        command
    };
    let echo = peer("b-1", "echo").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut echo = RunningProgram(echo.unwrap());
    let (code, out, err) = ended(peer("a-2", "ask"));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("answered by 10.77.2.1:4000 to 10.77.1.2"), "{out}");
    assert_eq!(echo.code(), Some(0));
}

#[test]
fn datagrams_of_other_programs_cross_it() {
    let Some(place) = TestNetwork::new() else { return };
    place.up(&[]);
    datagrams_cross(&place);
    let status = place.status();
    for (from, to) in [("a", "b"), ("b", "a")] {
        let packets = line(&status, from, to)["counts"]["packets"].as_u64();
        assert!(packets.is_some_and(|packets| packets > 0), "{status}");
    }
    place.done(&["down"]);
}

/// Part of the previous test: the program in the network.
#[test]
#[ignore = "part of another test"]
fn peer() {
    let Ok(order) = std::env::var(PEER) else { return };
    let address = std::env::var("SPRINGTIDE_WAN_ADDRESS").unwrap();
    let mut buffer = [0; 64];
    let end = Instant::now() + STEP_TIMEOUT / 2;
    let socket = UdpSocket::bind(format!("{address}:4000")).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while Instant::now() < end {
        if order == "ask" {
            // The peer may not have started, and datagrams may be lost; then there may also be an
            // error to receive.
            let _ = socket.send_to(b"who?", "10.77.2.1:4000");
        }
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) if order == "ask" => return println!("answered by {from} to {address}"),
            Ok((len, from)) => {
                socket.send_to(&buffer[..len], from).unwrap();
                // After the answer the peer ends: this program ends when nothing arrives for this
                // time.
                socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
                while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..len], from);
                }
                return;
            }
            Err(_) => {}
        }
    }
    panic!("no answer");
}

#[test]
fn clusters_can_have_the_namespaces() {
    let Some(place) = TestNetwork::new() else { return };
    place.up(&["--per", "cluster"]);
    let address = place.done(&["exec", "a-2", "printenv", "SPRINGTIDE_WAN_ADDRESS"]);
    assert_eq!(address, "10.77.1.2\n");
    place.done(&["exec", "b", "true"]);
    place.wrong(&["exec", "c", "true"], "network pair has no c: it has a, b");
    place.done(&["down"]);
}

#[test]
fn the_kernel_can_emulate_a_network() {
    let Some(place) = TestNetwork::new() else { return };
    let file = place.dir.path().join("two.toml");
    let text = "name = \"two\"\n[wide]\nrtt = \"0ms\"\nbandwidth = \"1MB/s\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 2\n[[cluster]]\nname = \"b\"\nnodes = 2\n\
    uplink = \"500kB/s\"\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().expect("text");
    let up = ["up", file, "--network", "kernel", "--for", LIFETIME];
    place.wrong(&[&up[..], &["--per", "node"]].concat(), "each cluster has one namespace");
    let (code, out, err) = place.wan(&up);
    if code == Some(1) && err.contains("the kernel does not take it") {
        return println!("skipped: {}", err.trim());
    }
    // Any kernel with tc supports rates.
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("network two is up: 4 nodes"), "{out}");
    let address = place.done(&["exec", "a-2", "printenv", "SPRINGTIDE_WAN_ADDRESS"]);
    assert_eq!(address, "10.77.1.2\n");
    datagrams_cross(&place);
    place.done(&["set", "a,b", "bandwidth=2MB/s"]);
    place.done(&["set", "b>a", "down"]);
    let status = place.status();
    assert_eq!((&status["network"], &status["late_us"]), (&"kernel".into(), &Value::Null));
    assert_eq!(line(&status, "a", "b")["profile"]["rate"], 2_000_000);
    assert_eq!(line(&status, "b", "a")["profile"]["up"], false);
    let packets = line(&status, "a", "b")["counts"]["packets"].as_u64();
    assert!(packets.is_some_and(|packets| packets > 0), "{status}");
    place.wrong(&["set", "a,c", "down"], "there is no cluster named \"c\"");
    let slower = ["set", "a,b", "rtt=40ms"];
    let (code, _, output) = place.wan(&slower);
    let has_netem = code == Some(0);
    if !has_netem {
        place
            .wrong(&slower, "link a b: not modelled, for this kernel has no netem: delay 20000 us");
        assert!(output.contains("nothing is changed"), "{output}");
    }
    let delay = if has_netem { 20_000 } else { 0 };
    assert_eq!(line(&place.status(), "a", "b")["profile"]["delay_us"], delay);
    place.done(&["down"]);
    place.nothing_is_left();

    // Missing features are reported and nothing starts, or the kernel has them all.
    let (code, _, err) = place.wan(&["up", "pair", "--network", "kernel", "--for", LIFETIME]);
    if code == Some(0) {
        place.done(&["down"]);
    } else {
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("links") && err.contains("--partial"), "{err}");
        place.nothing_is_left();
        let line = ["up", "pair", "--network", "kernel", "--partial", "--for", LIFETIME];
        let output = place.done(&line);
        assert!(output.contains("no netem: delay 25000 us"), "{output}");
        let (code, _, output) = place.wan(&["set", "a,b", "rtt=40ms"]);
        assert_eq!(code, Some(0), "{output}");
        assert!(output.starts_with("warning: link a b: not modelled"), "{output}");
        // The notes on a link list the features that it lacks now.
        let notes = place.status()["notes"].to_string();
        assert!(notes.contains("delay 20000 us") && notes.contains("a b"), "{notes}");
        let (code, _, _) = place.wan(&["set", "a,b", "rtt=0ms"]);
        assert_eq!(code, Some(0));
        let notes = place.status()["notes"].to_string();
        assert!(!notes.contains("20000 us"), "{notes}");
        place.done(&["down"]);
    }
    place.nothing_is_left();
}

#[test]
fn sockets_emulate_a_network_without_rights() {
    let place = TestNetwork::any();
    let output = place.up(&["--network", "sockets"]);
    assert!(output.contains("127.77.1.1") && output.contains("net.shape = "), "{output}");
    let (code, env, output) = place.wan(&["exec", "b-2", "printenv"]);
    assert_eq!(code, Some(0), "{output}");
    // Not a program of this project, so that it is not shaped.
    assert!(
        output.starts_with("note: network pair shapes only the sockets of Springtide's"),
        "{output}"
    );
    let of = |key: &str| env.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    assert_eq!(of("SPRINGTIDE_NET__BIND"), Some("127.77.2.2:0"));
    let table = PathBuf::from(of("SPRINGTIDE_NET__SHAPE").expect("its table"));
    assert!(table.exists());
    place.wrong(&["exec", "c-1", "true"], "network pair has no c-1: it has a-1, a-2, b-1, b-2");
    place.done(&["set", "a>b", "rtt=8ms", "loss=0.25"]);
    let status = place.status();
    assert_eq!(line(&status, "a", "b")["profile"]["delay_us"], 4_000);
    assert_eq!(line(&status, "b", "a")["profile"]["delay_us"], 25_000);
    assert_eq!(status["table"].as_str().map(PathBuf::from), Some(table.clone()));
    // A later reader of the table sees the changes.
    let table_seen = springtide_wan::table::LinkTable::open(&table).unwrap();
    let set = table_seen.lines().find(|(from, to, ..)| from.as_str() == "a" && to.as_str() == "b");
    assert_eq!(set.map(|(_, _, profile, ..)| profile.loss), Some(0.25));
    let word = word(5);
    let mut exec = place.start(&["exec", "a-1", "--", "sleep", &word]);
    until("the program runs", || running(&word).len() == 2);
    place.done(&["down"]);
    // The program was asked to end.
    assert_eq!(exec.code(), Some(143));
    assert!(!table.exists());
    place.nothing_is_left();
}

/// The files of the book's page about services.
fn page_files(dir: &Path) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/test/services.md");
    let page = std::fs::read_to_string(page).unwrap();
    for block in page.split("```").skip(1).step_by(2) {
        let (head, text) = block.split_once('\n').expect("a block has lines");
        let file = head.split(',').find_map(|part| part.strip_prefix("file="));
        if let Some(file) = file {
            std::fs::write(dir.join(file), text).unwrap();
        }
    }
}

#[test]
fn services_of_the_book_run_on_their_networks() {
    let Some(place) = TestNetwork::new() else { return };
    let dir = place.dir.path().join("page");
    std::fs::create_dir(&dir).unwrap();
    page_files(&dir);
    let compose = |file: &str| {
        let mut command = place.command(&["compose", "up", file, "--for", LIFETIME]);
        command.current_dir(&dir);
        ended(command)
    };
    let has = |program: &str| {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        let is_found = found.is_ok_and(|found| found.status.success());
        if !is_found {
            println!("skipped: {program} is not installed");
        }
        is_found
    };
    let log = |service: &str| {
        std::fs::read_to_string(dir.join("wan-logs").join(format!("{service}.log"))).unwrap()
    };
    if has("redis-server") && has("redis-benchmark") {
        let (code, out, err) = compose("redis.toml");
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.contains("client | ") && err.contains("service redis is ready"), "{out}{err}");
        assert!(log("client").contains("\"GET\","), "{}", log("client"));
    }
    if has("python3") && has("curl") {
        let (code, out, err) = compose("http.toml");
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(log("client").starts_with("code 200 after "), "{}", log("client"));
    }
    if has("python3") {
        let (code, out, err) = compose("gossip.toml");
        assert_eq!(code, Some(0), "{out}{err}");
        let complete = ["one", "two", "three", "four"].map(log);
        assert!(complete.iter().all(|log| log.contains("knows 4 names")), "{complete:?}");
    }
    // A failure ends all, with the reason and the code; so does a service that is never ready.
    let service = |name: &str, script: &str, more: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nhost = \"a-1\"\n\
             command = [\"sh\", \"-c\", \"{script}\"]\n{more}\n"
        )
    };
    let word = word(6);
    let forever = service("forever", &format!("sleep {word}; true"), "");
    for (last, code, part) in [
        (service("bad", "echo the reason; exit 9", ""), 9, "exit code 9\n    the reason"),
        (
            service("late", "sleep 60", "ready_timeout = \"100ms\"\nready = { port = 9 }"),
            4,
            "not ready after 100ms: no socket on its host is bound to port 9",
        ),
        (
            service("odd", "exit 0", "ready = { log = \"never\" }"),
            1,
            "ended with exit code 0 before it was ready",
        ),
    ] {
        let text = format!("topology = \"pair\"\n{forever}{last}");
        std::fs::write(dir.join("bad.toml"), text).unwrap();
        let (found, out, err) = compose("bad.toml");
        assert_eq!(found, Some(code), "{out}{err}");
        assert!(err.contains(part), "{err}");
        until("all services end", || running(&word).is_empty());
        place.nothing_is_left();
    }
}

#[test]
fn unknown_names_are_reported_with_the_known_ones() {
    let Some(place) = TestNetwork::new() else { return };
    for line in [&["status"][..], &["down"], &["exec", "a-1", "true"], &["set", "a", "down"]] {
        place.wrong(line, "no network is up: start one with `wan up TOPOLOGY`");
    }
    place.up(&[]);
    place.wrong(
        &["status", "other"],
        "no network named other is up: start one with `wan up` (up are: pair)",
    );
    place.wrong(&["exec", "c-9", "true"], "network pair has no c-9: it has a-1, a-2, b-1, b-2");
    place.wrong(
        &["set", "a,c", "rtt=5ms"],
        "there is no cluster named \"c\": the topology has a, b",
    );
    place.wrong(&["set", "a,b", "profile=wan-5"], "no profile named \"wan-5\": see `wan profiles`");
    place.wrong(&["set", "a,b", "speed=3"], "\"speed=3\": it must be profile=");
    // Failed commands changed nothing.
    assert_eq!(line(&place.status(), "a", "b")["profile"]["delay_us"], 25_000);
    place.up(&["--name", "other"]);
    place.wrong(&["status"], "several networks are up (other, pair): say which");
    place.done(&["down", "other"]);
    place.done(&["down"]);
}

/// A program on a node. The word is on the command lines of the program and of the command that
/// runs it.
fn sleeper(place: &TestNetwork, word: &str) -> RunningProgram {
    let exec = place.start(&["exec", "a-1", "--", "sleep", word]);
    until("the program runs", || running(word).len() == 2);
    exec
}

#[test]
fn a_network_ends_its_programs() {
    let Some(place) = TestNetwork::new() else { return };
    place.up(&[]);
    let word = word(1);
    let mut exec = sleeper(&place, &word);
    place.done(&["down"]);
    // Asked to end, or killed with the network.
    let code = exec.code();
    assert!(matches!(code, Some(143 | 137)), "{code:?}");
    until("the program ends", || running(&word).is_empty());
    place.nothing_is_left();
}

#[test]
fn a_holder_that_is_killed_leaves_no_process_and_no_network() {
    let Some(place) = TestNetwork::new() else { return };
    let name = format!("killed-{}", std::process::id());
    place.up(&["--name", &name]);
    let word = word(2);
    let mut exec = sleeper(&place, &word);
    // Without its connection to the network, it could not notice the network's end.
    let fds = PathBuf::from(format!("/proc/{}/fd", exec.0.id()));
    let is_socket = |fd: &PathBuf| {
        std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    until("it holds a line", || files(&fds).iter().any(is_socket));
    let holder = place.status()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap();
    kill(holder);
    assert_eq!(exec.code(), Some(137));
    until("the program ends", || running(&word).is_empty());
    until("the holder ends", || running(&name).is_empty());
    // Files are closed shortly after the name is removed.
    let socket = place.dir.path().join("springtide-wan").join(format!("{name}.sock"));
    until("no process listens", || UnixStream::connect(&socket).is_err());
    place.nothing_is_left();
    // The name is free again.
    place.up(&["--name", &name]);
    place.done(&["down", &name]);
}

#[test]
fn a_killed_command_ends_its_program() {
    let Some(place) = TestNetwork::new() else { return };
    place.up(&[]);
    let word = word(3);
    let exec = sleeper(&place, &word);
    drop(exec);
    until("the program ends", || running(&word).is_empty());
    assert_eq!(place.done(&["exec", "a-1", "echo", "still up"]), "still up\n");
    place.done(&["down"]);
}

#[test]
fn a_network_ends_by_itself() {
    let Some(place) = TestNetwork::new() else { return };
    let (code, _, err) = place.wan(&["up", "pair", "--for", "2s"]);
    assert_eq!(code, Some(0), "{err}");
    let word = word(4);
    // On a slow host it may have ended already.
    let mut exec = place.start(&["exec", "a-1", "--", "sleep", &word]);
    until("it ends", || place.none_is_up());
    assert_ne!(exec.code(), Some(0));
    until("the program ends", || running(&word).is_empty());
    place.nothing_is_left();
}

#[test]
fn a_mistake_leaves_nothing() {
    let place = TestNetwork::any();
    let name = format!("wrong-{}", std::process::id());
    let file = place.dir.path().join("wrong.toml");
    let text = "name = \"wrong\"\n[wide]\nrtt = \"5ms\"\n[[cluster]]\nname = \"a\"\nnodse = 2\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().expect("text");
    place.wrong(&["up", file, "--name", &name], "wrong.toml:6");
    place.wrong(&["up", "no-such-topology", "--name", &name], "no-such-topology");
    place.wrong(&["up", "pair", "--per", "rack", "--name", &name], "rack");
    place.nothing_is_left();
    assert!(running(&name).is_empty());

    // The failure occurs with the namespaces, or without rights before them.
    let text = "name = \"near\"\nnet = \"127.77.0.0/16\"\n[[cluster]]\nname = \"a\"\n";
    std::fs::write(file, text).unwrap();
    let (code, out, err) = place.wan(&["up", file, "--name", &name, "--for", LIFETIME]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains(&format!("network {name} is not up: ")), "{err}");
    assert!(place.files().is_empty());
    until("its holder ends", || running(&name).is_empty());

    // A long path of a socket is not a mistake.
    let far = place.dir.path().join("far".repeat(40));
    std::fs::create_dir(&far).unwrap();
    for line in [&["up", "pair", "--network", "sockets", "--for", LIFETIME][..], &["down"]] {
        let mut command = place.command(line);
        command.env("XDG_RUNTIME_DIR", &far);
        let (code, _, err) = ended(command);
        assert_eq!(code, Some(0), "{err}");
    }
    assert!(files(&far.join("springtide-wan")).is_empty());
}

#[test]
fn the_doctor_is_right() {
    let place = TestNetwork::any();
    let none = place.none();
    let found: Value = serde_json::from_str(&place.done(&["doctor", "--json"])).unwrap();
    assert_eq!(found["schema"], 1);
    let expected = if none.is_none() { "router" } else { "shaped_sockets" };
    assert_eq!(found["network"], expected, "{none:?}: {found}");
    let checks = found["checks"].as_object().unwrap();
    for (name, works) in [("shaped_sockets", true), ("kernel_network", found["kernel"] == "whole")]
    {
        let [asked, took] = ["asked_ms", "measured_ms"].map(|key| checks[name][key].as_f64());
        assert!(!works || took.zip(asked).is_some_and(|(took, asked)| took >= asked), "{found}");
    }
    let output = place.done(&["doctor"]);
    assert!(output.starts_with("yes  shaped sockets"), "{output}");
    for check in checks.values() {
        let what = check["what"].as_str().expect("text");
        assert!(output.contains(what), "{what}: {output}");
        assert!(check["ok"] == true || check["why"] != "", "{check}");
    }
    place.nothing_is_left();
    // The report on the kernel agrees with a network with delay.
    let (code, _, err) = place.wan(&["up", "pair", "--network", "kernel", "--for", LIFETIME]);
    match found["kernel"].as_str() {
        Some("whole") => {
            assert_eq!(code, Some(0), "{err}");
            place.done(&["down"]);
        }
        Some("rates") => assert!(code == Some(1) && err.contains("--partial"), "{code:?}: {err}"),
        _ => assert_eq!(code, Some(1), "{err}"),
    }
    place.nothing_is_left();
}
