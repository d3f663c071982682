//! Nodes that join with a token, as processes, through all their states; and each reason for a
//! refusal.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::drains::Up;
use crate::support::{CommandOutput, RunningCommand, finish, kill, program, run, text, until};

/// Cluster ams with one node of the head's, and lab, which two nodes may join.
fn config(validity: &str) -> String {
    format!(
        "[join]\nbind = \"127.0.0.1:0\"\nvalidity = \"{validity}\"\n[[cluster]]\nname = \"ams\"\n\
        nodes = 1\n\
        [[cluster]]\nname = \"lab\"\nnodes = 2\nprovider = \"join\"\n"
    )
}

fn execute(up: &Up, line: &[&str]) -> CommandOutput {
    run(&[line, &["--config", up.file.to_str().unwrap()]].concat())
}

fn object(ended: &CommandOutput) -> Value {
    serde_json::from_str(&ended.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

/// A token of cluster lab, and the join address.
fn token(up: &Up, more: &[&str]) -> (String, String) {
    let line = [&["token", "create", "--cluster", "lab", "--json"], more].concat();
    let made = object(&execute(up, &line));
    let text = |key: &str| made[key].as_str().unwrap().to_owned();
    assert!(text("command").ends_with(&format!(
        "node join {} --token {}",
        text("door"),
        text("token")
    )));
    (text("token"), text("door"))
}

fn status(up: &Up, node: &str) -> Value {
    object(&execute(up, &["node", "status", node, "--json"]))
}

fn state(up: &Up, node: &str) -> String {
    status(up, node)["state"].as_str().unwrap().to_owned()
}

/// A host of its own: another address, another directory.
struct TestHost {
    dir: PathBuf,
    /// The notifications to its service manager.
    received: Arc<Mutex<Vec<String>>>,
}

impl TestHost {
    fn new(up: &Up, name: &str) -> Self {
        let dir = up.temp.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        let manager = UnixDatagram::bind(dir.join("notify")).unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let words = Arc::downgrade(&received);
        // A manager that does not read gets no more messages after a few; no process waits for it.
        manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 512];
            while let Some(words) = words.upgrade() {
                if let Ok(len) = manager.recv(&mut bytes) {
                    words.lock().unwrap().push(String::from_utf8_lossy(&bytes[..len]).into_owned());
                }
            }
        });
        Self { dir, received }
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = program(line);
        command.current_dir(&self.dir).env("NOTIFY_SOCKET", self.dir.join("notify"));
        command.env("WATCHDOG_USEC", "2000000");
        command
    }

    fn join(&self, at: &str, token: &str, more: &[&str]) -> RunningCommand {
        let line = [&["node", "join", at, "--bind", "127.0.0.2:0"], more].concat();
        let mut command = self.command(&line);
        command.env("SPRINGTIDE_TOKEN", token);
        RunningCommand::start(command, &self.dir)
    }

    fn config(&self) -> PathBuf {
        self.dir.join("springtide-node/node.toml")
    }

    fn again(&self) -> RunningCommand {
        let config = self.config();
        RunningCommand::start(
            self.command(&["node", "run", "--config", config.to_str().unwrap()]),
            &self.dir,
        )
    }

    /// Waits until the manager has received this.
    fn await_notification(&self, what: &str) {
        until(what, || self.received.lock().unwrap().iter().any(|word| word.contains(what)));
    }

    fn is_healthy(&self) -> bool {
        run(&["node", "status", "--self", "--config", self.config().to_str().unwrap()]).code
            == Some(0)
    }

    fn output(&self) -> String {
        text(&self.dir.join("stderr.log"))
    }
}

#[test]
fn a_node_joins_works_renews_dies_comes_back_is_drained_and_revoked() {
    let up = Up::by(&config("15s"));
    assert!(up.output().contains("cluster lab: 0 of up to 2 nodes have joined"), "{}", up.output());
    assert!(up.output().contains("nodes join at 127.0.0.1:"), "{}", up.output());
    assert_eq!(state(&up, "lab-1"), "off");
    let machine = TestHost::new(&up, "elsewhere");
    let (secret, door) = token(&up, &[]);
    let mut node = machine.join(&door, &secret, &["--threads", "2"]);
    machine.await_notification("READY=1");
    machine.await_notification("WATCHDOG=1");
    until("it is there", || state(&up, "lab-1") == "idle");
    until("it says so", || up.output().contains("node lab-1 has joined, with 2 threads"));
    until("it is well", || machine.is_healthy());
    let known = status(&up, "lab-1");
    assert!(known["address"].as_str().unwrap().starts_with("127.0.0.2:"), "{known}");
    for (file, mode) in [("node.key", 0o600), ("node.pem", 0o644)] {
        use std::os::unix::fs::PermissionsExt as _;
        let found =
            fs::metadata(machine.config().with_file_name(file)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{file}");
    }

    let fib = object(&execute(&up, &["run", "fib", "--n", "24", "--json"]));
    let both =
        serde_json::json!([{ "name": "ams", "workers": 1 }, { "name": "lab", "workers": 1 }]);
    assert_eq!((&fib["clusters"], &fib["result"]["fib"]), (&both, &46_368.into()), "{fib}");

    let first = known["certificate_until"].as_str().unwrap().to_owned();
    let later = || status(&up, "lab-1")["certificate_until"].as_str().unwrap() > first.as_str();
    until("its certificate is renewed", later);
    assert_eq!(state(&up, "lab-1"), "idle", "by a link that stays");
    let life = known["pid"].clone();
    assert_eq!(status(&up, "lab-1")["pid"], life);

    // After a kill it is recognised by its certificate, without a token.
    node.signal("KILL");
    node.wait();
    let mut node = machine.again();
    until("it is back", || {
        status(&up, "lab-1")["pid"] == node.0.id() && state(&up, "lab-1") == "idle"
    });

    let drained = execute(&up, &["node", "drain", "lab-1", "--reason", "new disk"]);
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    let known = status(&up, "lab-1");
    assert_eq!((&known["state"], &known["reason"]), (&"drained".into(), &"new disk".into()));
    assert_eq!(execute(&up, &["node", "undrain", "lab-1"]).code, Some(0));
    assert_eq!(state(&up, "lab-1"), "idle");

    // On a signal it reports its end; restarted, it is back.
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0), "{}", machine.output());
    machine.await_notification("STOPPING=1");
    until("it is gone", || state(&up, "lab-1") == "off");
    let why = status(&up, "lab-1")["reason"].as_str().unwrap().to_owned();
    assert!(why.contains("ordered to end by SIGTERM"), "{why}");
    let mut node = machine.again();
    until("it is back", || state(&up, "lab-1") == "idle");

    let lost = execute(&up, &["node", "revoke", "lab-3"]);
    assert_eq!(lost.code, Some(2), "{}", lost.err);
    assert!(
        lost.err.contains("no process has joined under the name lab-3: did you mean lab-1?"),
        "{}",
        lost.err
    );
    let revoked = execute(&up, &["node", "revoke", "lab-1", "--reason", "stolen"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    assert_eq!(node.wait().code(), Some(5), "{}", machine.output());
    assert!(machine.output().contains("is revoked (stolen)"), "{}", machine.output());
    assert_eq!(state(&up, "lab-1"), "off");
    assert_eq!(status(&up, "lab-1")["revoked"], "stolen");
    let listed = execute(&up, &["node", "list"]).out;
    assert!(listed.contains("revoked: stolen"), "{listed}");
    let listing = object(&execute(&up, &["token", "list", "--json"]));
    assert!(listing["door"]["links_refused"]["revoked"].as_u64() > Some(0), "{listing}");
    up.end();
}

#[test]
fn a_job_continues_without_a_revoked_node() {
    let up = Up::by(&config("1h"));
    let machine = TestHost::new(&up, "elsewhere");
    let (secret, door) = token(&up, &[]);
    let mut node = machine.join(&door, &secret, &[]);
    until("it is there", || state(&up, "lab-1") == "idle");
    let mut job = program(&["run", "queens", "--size", "15", "-v", "--json", "--config"]);
    job.arg(&up.file);
    let dir = up.temp.path().join("client");
    fs::create_dir_all(&dir).unwrap();
    let mut job = RunningCommand::start(job, &dir);
    until("the node works", || state(&up, "lab-1") == "busy");
    assert_eq!(execute(&up, &["node", "revoke", "lab-1"]).code, Some(0));
    assert_eq!(node.wait().code(), Some(5), "{}", machine.output());
    assert_eq!(job.wait().code(), Some(0), "{}", text(&dir.join("stderr.log")));
    let result: Value = serde_json::from_str(&text(&dir.join("stdout.log"))).unwrap();
    assert_eq!(result["result"]["solutions"], 2_279_184, "{result}");
    up.end();
}

#[test]
fn a_node_waits_for_its_head_and_registers_with_the_next() {
    let mut up = Up::by(&config("1h"));
    let machine = TestHost::new(&up, "elsewhere");
    let (secret, door) = token(&up, &[]);
    let node = machine.join(&door, &secret, &[]);
    until("it is there", || state(&up, "lab-1") == "idle");
    let pid = status(&up, "lab-1")["pid"].clone();
    up.kill_head();
    until("it has missed its head", || !machine.is_healthy());
    up.start_head();
    until("it is there again", || state(&up, "lab-1") == "idle");
    assert_eq!(status(&up, "lab-1")["pid"], pid, "in the same life");
    until("it is well", || machine.is_healthy());
    drop(node);
    up.end();
}

#[test]
fn refusals_to_join_say_what_to_do() {
    let up = Up::by(&config("1h"));
    let machine = TestHost::new(&up, "elsewhere");
    let (secret, door) = token(&up, &["--uses", "2", "--ttl", "1h"]);
    let ask = |line: &[&str], token: Option<&str>| {
        let mut command = machine.command(&[&["node", "join", &door, "--no-run"], line].concat());
        if let Some(token) = token {
            command.env("SPRINGTIDE_TOKEN", token);
        }
        finish(command)
    };
    let refused = |line: &[&str], token: Option<&str>, code: i32, says: &str| {
        let ended = ask(line, token);
        assert_eq!(ended.code, Some(code), "{line:?}: {}{}", ended.out, ended.err);
        assert!(
            ended.err.contains(says) && !ended.err.contains("panicked"),
            "{line:?}: {}",
            ended.err
        );
        assert!(!ended.err.contains(&secret[80..]), "the secret is shown: {}", ended.err);
    };
    refused(&[], None, 2, "token create");
    refused(&[], Some("SPRINGTIDE1"), 2, "this is no join token");
    refused(&[], Some(&secret[..secret.len() - 2]), 2, "its secret must be");
    let other = format!("SPRINGTIDE1{}{}", "0".repeat(64), &secret[75..]);
    refused(&[], Some(&other), 5, "nothing was sent to it");
    let wrong = format!("{}{}", &secret[..secret.len() - 4], "0000");
    refused(&[], Some(&wrong), 5, "this token is not valid");
    refused(&["--name", "lab-7"], Some(&secret), 5, "are named lab-1 to lab-2");
    refused(&["--bind", "0.0.0.0:0"], Some(&secret), 2, "add --advertise");
    assert!(!machine.dir.join("springtide-node/node.pem").exists());

    // The token in a file; the node is not run, and can be later.
    let file = machine.dir.join("token");
    fs::write(&file, format!("{secret}\n")).unwrap();
    let joined =
        ask(&["--token-file", file.to_str().unwrap(), "--dir", "two", "--name", "lab-2"], None);
    assert_eq!(joined.code, Some(0), "{}", joined.err);
    assert!(joined.err.contains("node run --config"), "{}", joined.err);
    let config = machine.dir.join("two/node.toml");
    let check = run(&["config", "check", "--node", config.to_str().unwrap()]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    let ill = run(&["node", "status", "--self", "--config", config.to_str().unwrap()]);
    assert_eq!(ill.code, Some(1), "{}", ill.err);
    assert!(ill.err.contains("has not run yet"), "{}", ill.err);
    // A second time it uses no token, and another grid's is refused.
    let again = ask(&["--dir", "two"], Some(&secret));
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.err.contains("has joined as lab-2 before"), "{}", again.err);
    refused(&["--dir", "two"], Some(&other), 5, "of another grid");
    // Both uses are spent: one by an address that is unreachable.
    refused(&["--dir", "three"], Some(&secret), 5, "this token is not valid");
    let list = object(&execute(&up, &["token", "list", "--json"]));
    assert_eq!(list["tokens"][0]["state"], "used-up", "{list}");
    assert!(list["door"]["refused"]["used-up-token"].as_u64() == Some(1), "{list}");

    let (revoked, _) = token(&up, &[]);
    assert_eq!(execute(&up, &["token", "revoke", &revoked]).code, Some(0));
    refused(&["--dir", "four"], Some(&revoked), 5, "this token is not valid");
    let events = text(&up.dir.join("scheduler.events.jsonl"));
    until("the reason is an event", || {
        text(&up.dir.join("scheduler.events.jsonl")).contains("was not let in (revoked-token)")
    });
    assert!(!events.contains(&revoked[87..]), "a secret is in the log");

    for (line, says) in [
        (&["--cluster", "ams"][..], "is not one that nodes join"),
        (&["--cluster", "lap"], "did you mean lab?"),
        (&["--role", "site", "--cluster", "lab"], "has no site of its own"),
        (&[], "--cluster NAME"),
    ] {
        let ended = execute(&up, &[&["token", "create"], line].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains(says), "{}", ended.err);
    }
    assert_eq!(execute(&up, &["token", "revoke", "none"]).code, Some(2));

    // The address of links is not a join endpoint, and an unused address does not answer.
    let head: Value = serde_json::from_str(&text(&up.dir.join("head.json"))).unwrap();
    let links = head["address"].as_str().unwrap();
    let ended = run(&["node", "join", links, "--no-run", "--token", &revoked]);
    assert_eq!(ended.code, Some(6), "{}", ended.err);
    up.end();
    let ended = run(&["node", "join", &door, "--no-run", "--token", &revoked]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("is the grid up"), "{}", ended.err);
}

#[test]
fn errors_of_the_config_are_reported_before_the_start() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("grid.toml");
    for (text, says) in [
        ("[[cluster]]\nname = \"lab\"\nprovider = \"join\"\n", "set `join.bind`"),
        (
            "[join]\nbind = \"0.0.0.0:47900\"\n[[cluster]]\nname = \"lab\"\n",
            "set `join.advertise` as well",
        ),
        (
            "[join]\nbind = \"127.0.0.1:0\"\nvalidity = \"1s\"\n[[cluster]]\nname = \"lab\"\n",
            "`join.validity`",
        ),
        (
            "[join]\nbind = \"127.0.0.1:0\"\n[[cluster]]\nname = \"lab\"\nprovider = \"join\"\n\
            site = \"own\"\nprogram = \"x\"\n",
            "leave `site` out",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let ended = run(&["config", "check", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(2), "{text}");
        assert!(ended.err.contains(says), "{text}: {}", ended.err);
    }
    let sound =
        "[join]\nbind = \"127.0.0.1:47900\"\n[[cluster]]\nname = \"lab\"\nprovider = \"join\"\n";
    fs::write(&file, sound).unwrap();
    let early = run(&["token", "create", "--cluster", "lab", "--config", file.to_str().unwrap()]);
    assert_eq!(early.code, Some(1), "{}", early.err);
    assert!(early.err.contains("has no authority yet"), "{}", early.err);
}

#[test]
fn an_authority_has_a_fingerprint_and_every_command_a_page() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("ca");
    let path = dir.to_str().unwrap();
    assert_eq!(run(&["ca", "init", "--dir", path]).code, Some(0));
    let sum = run(&["ca", "fingerprint", "--dir", path]);
    assert_eq!((sum.code, sum.out.len()), (Some(0), 65), "{}", sum.err);
    let file = dir.join("ca.pem");
    assert_eq!(run(&["ca", "fingerprint", "--dir", file.to_str().unwrap()]).out, sum.out);
    let json = object(&run(&["ca", "fingerprint", "--dir", path, "--json"]));
    assert_eq!((&json["schema"], json["sha256"].as_str()), (&1.into(), Some(sum.out.trim())));
    assert_eq!(run(&["ca", "fingerprint", "--dir", "nowhere"]).code, Some(1));
    let pages = temp.path().join("man");
    let written = run(&["man", pages.to_str().unwrap()]);
    assert_eq!(written.code, Some(0), "{}", written.err);
    for page in
        ["springtide.1", "springtide-up.1", "springtide-node-join.1", "springtide-token-create.1"]
    {
        assert!(text(&pages.join(page)).contains(".TH"), "{page}");
    }
}

/// Checks the service files with the system's manager, with this program instead of the installed
/// one.
#[test]
fn the_service_files_are_sound() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    let temp = tempfile::tempdir().unwrap();
    for unit in ["springtide-node.service", "springtide-head.service"] {
        let written = text(&packaging.join(unit));
        for must in [
            "Type=notify",
            "WatchdogSec=",
            "Restart=on-failure",
            "DynamicUser=yes",
            "StateDirectory=",
            "ProtectSystem=strict",
            "NoNewPrivileges=yes",
            "LimitNOFILE=",
        ] {
            assert!(written.contains(must), "{unit}: {must}");
        }
        fs::write(
            temp.path().join(unit),
            written.replace("/usr/bin/springtide", env!("CARGO_BIN_EXE_springtide")),
        )
        .unwrap();
        let verify = Command::new("systemd-analyze")
            .arg("verify")
            .arg("--man=no")
            .arg(temp.path().join(unit))
            .output();
        let verify = match verify {
            Ok(verify) => verify,
            Err(error) => {
                println!("skipped: no systemd-analyze here: {error}");
                continue;
            }
        };
        let output = String::from_utf8_lossy(&verify.stderr);
        // It may report problems of other units of this host.
        let ours: Vec<&str> = output.lines().filter(|line| line.contains("springtide")).collect();
        assert!(ours.is_empty(), "{output}");
    }
    let container = text(&packaging.join("Containerfile"));
    for must in ["AS build", "USER 10001", "HEALTHCHECK", "node\", \"status\", \"--self"] {
        assert!(container.contains(must), "{must}");
    }
}

/// A node that lives but was declared lost restarts by itself.
#[test]
fn a_node_that_was_stopped_for_long_restarts() {
    let up = Up::by(&config("1h"));
    let machine = TestHost::new(&up, "elsewhere");
    let (secret, door) = token(&up, &[]);
    let node = machine.join(&door, &secret, &[]);
    until("it is there", || state(&up, "lab-1") == "idle");
    let dir = up.temp.path().join("client");
    fs::create_dir_all(&dir).unwrap();
    let mut job = program(&["run", "queens", "--size", "18", "-v", "--config"]);
    job.arg(&up.file);
    let job = RunningCommand::start(job, &dir);
    until("the node works", || state(&up, "lab-1") == "busy");
    kill(node.0.id(), "STOP");
    until("its job continues without it", || {
        text(&dir.join("stderr.log")).contains("lab-1 was lost")
    });
    kill(node.0.id(), "CONT");
    until("it is there again", || matches!(&*state(&up, "lab-1"), "idle" | "busy"));
    job.signal("INT");
    until("it is free", || state(&up, "lab-1") == "idle");
    drop(job);
    drop(node);
    up.end();
}
