//! A second head and a witness: the second head takes over from one that is killed or stopped, with
//! its jobs, clients and tokens.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use springtide_judge::{Expectation, judge};

use crate::support::{CommandOutput, RunningCommand, finish, nodes, program, run, text, until};

/// The number of solutions of the jobs.
const SOLUTIONS: u64 = 14_200;
/// A first packet of QUIC of a reserved version, which an endpoint answers with its versions.
const PROBE_START: [u8; 6] = [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];

/// Two heads and a witness with two nodes, each with files of its own.
struct HeadPair {
    heads: [Option<RunningCommand>; 2],
    witness: Option<RunningCommand>,
    /// Addresses for nodes and clients.
    addresses: [String; 2],
    second_member: String,
    temp: tempfile::TempDir,
}

fn free_addresses<const N: usize>() -> [String; N] {
    // All are open at once, so that they differ.
    let sockets = [(); N].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().to_string())
}

/// The config of two heads and a witness at these addresses.
fn config([first, second, member, other, site]: [&str; 5]) -> String {
    format!(
        "grid = \"pair\"\n[head]\nbind = \"{first}\"\nadvertise = [\"{first}\", \"{second}\"]\n\
        [standby]\nheads = [\"{member}\", \"{other}\"]\nwitness = \"del\"\n\
        [dashboard]\non = false\n\
        [[cluster]]\nname = \"del\"\nnodes = 2\nsite = \"own\"\nsite_bind = \"{site}\"\n"
    )
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl HeadPair {
    fn start() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let [first, second, member, other, site] = free_addresses();
        let config = config([&first, &second, &member, &other, &site]);
        for name in ["first", "second", "witness"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        fs::write(temp.path().join("first/grid.toml"), config).unwrap();
        let (heads, witness) = ([None, None], None);
        let addresses = [first, second];
        let mut pair = Self { heads, witness, addresses, second_member: other, temp };
        pair.start_head(0);
        let state = pair.state(0);
        until("the first head begins", || state.join("standby/grid.toml").exists());
        copy_all(&state.join("standby"), &pair.dir(1));
        copy_all(&state.join("site/del"), &pair.temp.path().join("witness"));
        pair.start_witness();
        pair.start_head(1);
        until("the nodes have registered", || pair.is_free());
        pair
    }

    fn dir(&self, place: usize) -> PathBuf {
        self.temp.path().join(["first", "second"][place])
    }

    fn state(&self, place: usize) -> PathBuf {
        self.dir(place).join(".springtide/pair")
    }

    fn config(&self) -> PathBuf {
        self.dir(0).join("grid.toml")
    }

    fn start_head(&mut self, place: usize) {
        let file = self.dir(place).join("grid.toml");
        let file = file.to_str().unwrap();
        let mut command = if place == 0 {
            program(&["up", "-v", file])
        } else {
            program(&["up", "-v", "--standby", file])
        };
        if place == 1 {
            command.env("SPRINGTIDE_HEAD__BIND", &self.addresses[1]);
            command.env("SPRINGTIDE_STANDBY__BIND", &self.second_member);
        }
        self.heads[place] = Some(RunningCommand::start(command, &self.dir(place)));
    }

    fn start_witness(&mut self) {
        let dir = self.temp.path().join("witness");
        let file = dir.join("site.toml");
        let command = program(&["site", "run", "-v", "--config", file.to_str().unwrap()]);
        self.witness = Some(RunningCommand::start(command, &dir));
    }

    fn head(&self, place: usize) -> &RunningCommand {
        self.heads[place].as_ref().unwrap()
    }

    fn output(&self, place: usize) -> String {
        text(&self.dir(place).join("stderr.log"))
    }

    fn execute(&self, line: &[&str]) -> CommandOutput {
        run(&[line, &["--config", self.config().to_str().unwrap()]].concat())
    }

    fn is_free(&self) -> bool {
        let need = ["job", "plan", "queens", "--kind", "rigid", "--min", "2", "--on", "del"];
        self.execute(&need).code == Some(0)
    }

    /// Whether a head answers at its address, as only the one that acts does.
    fn answers(&self, place: usize) -> bool {
        // At another address than the heads': a socket at a free port of theirs would ask itself.
        let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
        socket.connect(&self.addresses[place]).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut packet = vec![0; 1200];
        packet[..6].copy_from_slice(&PROBE_START);
        packet[14] = 8;
        // A refused datagram is an error of the next call.
        socket.send(&packet).is_ok() && socket.recv(&mut [0; 2000]).is_ok()
    }

    fn acting(&self) -> Option<usize> {
        (0..2).find(|place| self.answers(*place))
    }

    /// Starts a client that waits for a job.
    fn client(&self) -> RunningCommand {
        let dir = self.temp.path().join("client");
        fs::create_dir_all(&dir).unwrap();
        let mut command = program(&["run", "queens", "--size", "12", "--json", "-v", "--config"]);
        command.arg(self.config());
        let client = RunningCommand::start(command, &dir);
        until("its job runs", || text(&dir.join("stderr.log")).contains("the root runs on"));
        client
    }

    fn client_output(&self) -> String {
        let dir = self.temp.path().join("client");
        text(&dir.join("stdout.log")) + &text(&dir.join("stderr.log"))
    }

    fn submit(&self) -> String {
        let line =
            ["job", "submit", "queens", "--size", "12", "--kind", "rigid", "--min", "1", "-q"];
        let submitted = self.execute(&line);
        assert_eq!(submitted.code, Some(0), "{}", submitted.err);
        submitted.out.trim().trim_start_matches("job-").to_owned()
    }

    fn assert_result(&self, job: &str) {
        let line = ["job", "result", job, "--wait", "--timeout", "2m", "--json"];
        let done = self.execute(&line);
        let why = self.execute(&["job", "why", job]).out;
        assert_eq!(done.code, Some(0), "{}{why}", done.err);
        assert_eq!(solutions(&done.out), Some(SOLUTIONS), "{}", done.out);
    }

    fn end(mut self) {
        let acting = self.acting().unwrap();
        for place in [1 - acting, acting] {
            let mut head = self.heads[place].take().unwrap();
            head.signal("TERM");
            assert_eq!(head.wait().code(), Some(0), "{}", self.output(place));
        }
        let mut witness = self.witness.take().unwrap();
        witness.signal("TERM");
        assert_eq!(witness.wait().code(), Some(0));
        assert_eq!(nodes(&self.temp.path().join("witness")), []);
        self.assert_one_history();
    }

    /// Judges the decisions of both heads as those of one scheduler, in the order of incarnations.
    fn assert_one_history(&self) {
        let logs = [0, 1].map(|place| text(&self.state(place).join("scheduler.events.jsonl")));
        let incarnation = |line: &&str| {
            let record: Value = serde_json::from_str(line).unwrap();
            record["incarnation"].as_u64().unwrap_or(0)
        };
        let mut lines: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
        lines.sort_by_key(incarnation);
        let verdict = judge(lines, &Expectation::default()).unwrap();
        assert!(verdict.faults.is_empty(), "{verdict}");
        assert!(verdict.judged.contains_key("records"), "{verdict}");
    }
}

fn solutions(json: &str) -> Option<u64> {
    let object: Value = serde_json::from_str(json).ok()?;
    object["result"]["solutions"].as_u64()
}

#[test]
fn a_killed_head_is_replaced_and_jobs_and_clients_continue() {
    let mut pair = HeadPair::start();
    let first = pair.acting().unwrap();
    let other = 1 - first;
    let ended = pair.submit();
    pair.assert_result(&ended);
    let mut client = pair.client();
    let job = pair.submit();
    pair.head(first).signal("KILL");
    pair.heads[first].as_mut().unwrap().wait();
    until("the other head acts", || pair.acting() == Some(other));
    assert_eq!(client.wait().code(), Some(0), "{}", pair.client_output());
    let out = text(&pair.temp.path().join("client/stdout.log"));
    assert_eq!(solutions(&out), Some(SOLUTIONS), "{out}");
    pair.assert_result(&job);
    pair.assert_result(&ended);
    // The killed head returns, catches up, and takes over itself.
    pair.start_head(first);
    let has_caught_up = || {
        let status = pair.execute(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status.out).unwrap_or_default();
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let waits = |member: &Value| member["role"] == "waits" && member["behind"] == 0;
        members.len() == 3 && members.iter().any(waits)
    };
    until("it has all records", has_caught_up);
    pair.head(other).signal("KILL");
    pair.heads[other].as_mut().unwrap().wait();
    until("the first head acts again", || pair.acting() == Some(first));
    pair.start_head(other);
    for job in [&ended, &job] {
        pair.assert_result(job);
    }
    let next = pair.submit();
    assert!(next.parse::<u64>().unwrap() > job.parse().unwrap(), "{next} after {job}");
    pair.assert_result(&next);
    pair.end();
}

#[test]
fn a_stopped_head_does_not_act_when_it_continues() {
    let pair = HeadPair::start();
    let first = pair.acting().unwrap();
    let other = 1 - first;
    let job = pair.submit();
    pair.head(first).signal("STOP");
    until("the other head acts", || pair.answers(other));
    pair.head(first).signal("CONT");
    for _ in 0..20 {
        assert!(!pair.answers(first), "{}\n{}", pair.output(first), pair.output(other));
    }
    until("it waits again", || pair.output(first).contains("has lost the right to act"));
    pair.assert_result(&job);
    assert!(pair.answers(other) && !pair.answers(first));
    pair.end();
}

#[test]
fn a_second_head_needs_the_files_of_the_first_one() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    fs::write(&file, "[[cluster]]\nname = \"a\"\n").unwrap();
    let refused = run(&["up", "--standby", file.to_str().unwrap()]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("add [standby]"), "{}", refused.err);
    let text = "[head]\nbind = \"127.0.0.1:47000\"\n\
        advertise = [\"127.0.0.1:47000\", \"127.0.0.2:47000\"]\n\
        [standby]\nheads = [\"127.0.0.1:47010\", \"127.0.0.2:47010\"]\nwitness = \"a\"\n\
        [[cluster]]\nname = \"a\"\nsite = \"own\"\nsite_bind = \"127.0.0.3:47000\"\n";
    fs::write(&file, text).unwrap();
    for option in [None, Some("--detach"), Some("--install-unit")] {
        let mut command = program(&["up", "--standby", file.to_str().unwrap()]);
        command.args(option).env("XDG_CONFIG_HOME", temp.path());
        let refused = finish(command);
        assert_ne!(refused.code, Some(0), "{option:?}: {}", refused.err);
        assert!(refused.err.contains("copy the directory `standby`"), "{}", refused.err);
    }
    assert!(!temp.path().join("systemd").exists());
}

/// Ends the heads of these configs that run in the background.
struct Detached(Vec<PathBuf>);

impl Drop for Detached {
    fn drop(&mut self) {
        for file in &self.0 {
            run(&["down", "--force", "--config", file.to_str().unwrap()]);
        }
    }
}

#[test]
fn heads_wait_in_the_background_and_are_started_by_units() {
    let temp = tempfile::tempdir().unwrap();
    let [first, second, member, other, site] = free_addresses();
    for name in ["first", "second"] {
        fs::create_dir(temp.path().join(name)).unwrap();
    }
    let files = ["first", "second"].map(|name| temp.path().join(name).join("grid.toml"));
    fs::write(&files[0], config([&first, &second, &member, &other, &site])).unwrap();
    let _ends = Detached(files.to_vec());
    let ended = run(&["up", "--detach", files[0].to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in ["the head waits until it may act", "the other head: copy", "site run --config"] {
        assert!(ended.err.contains(part), "{}", ended.err);
    }
    let status = run(&["status", "--config", files[0].to_str().unwrap()]);
    assert_eq!(status.code, Some(1), "{}", status.err);
    assert!(status.out.contains("a head waits here until it may act"), "{}", status.out);
    copy_all(&temp.path().join("first/.springtide/pair/standby"), &temp.path().join("second"));
    let as_second = |option: &str| {
        let mut command = program(&["up", "--standby", option, files[1].to_str().unwrap()]);
        command.env("SPRINGTIDE_HEAD__BIND", &second).env("SPRINGTIDE_STANDBY__BIND", &other);
        command.env("XDG_CONFIG_HOME", temp.path());
        finish(command)
    };
    let ended = as_second("--detach");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.err.contains("the head waits until it may act"), "{}", ended.err);
    let ended = as_second("--detach");
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let ended = as_second("--install-unit");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let unit = text(&temp.path().join("systemd/user/springtide-pair.service"));
    assert!(unit.contains("up --standby \""), "{unit}");
    for file in &files {
        let ended = run(&["down", "--config", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
}
