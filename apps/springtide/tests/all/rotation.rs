//! Rotation of a grid's authority while a job runs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::drains::Up;
use crate::support::{
    CommandOutput, RunningCommand, finish, kill, nodes, program, run, text, until,
};

const CONFIG: &str = "[join]\nbind = \"127.0.0.1:0\"\n[[cluster]]\nname = \"ams\"\nnodes = 2\n\
    [[cluster]]\nname = \"lab\"\nnodes = 2\nprovider = \"join\"\n";
/// Half of the period of one hour, for which a head runs before the next step.
const HALF_MS: u64 = 1_800_000;

/// A grid whose authority is replaced.
struct Rotation {
    up: Up,
    ca: PathBuf,
}

impl Rotation {
    fn start() -> Self {
        let up = Up::by(CONFIG);
        let ca = up.dir.join("ca");
        Self { up, ca }
    }

    fn run(&self, line: &[&str]) -> CommandOutput {
        run(&[line, &["--config", self.up.file.to_str().unwrap()]].concat())
    }

    fn object(&self, line: &[&str]) -> Value {
        serde_json::from_str(&self.run(line).out).unwrap_or_default()
    }

    fn begin(&self) {
        let begun = self.run(&["ca", "rotate", "--period", "1h"]);
        assert_eq!(begun.code, Some(0), "{}", begun.err);
        until("both are trusted", || self.up.output().contains("is trusted from now on"));
    }

    /// Issues a certificate without a token.
    fn issue(&self, name: &str, cluster: &str, role: &str) -> PathBuf {
        let out = self.up.temp.path().join(name);
        let line = ["ca", "issue", name, "--cluster", cluster, "--role", role, "--dir"];
        let mut issue = program(&line);
        issue.arg(&self.ca).arg("--out").arg(&out);
        assert_eq!(finish(issue).code, Some(0));
        out
    }

    /// Joins by a token, made with these options.
    fn join(&self, name: &str, options: &[&str]) -> PathBuf {
        let out = self.up.temp.path().join(name);
        let token = self.object(&[&["token", "create", "--json"], options].concat());
        let (at, token) = (token["door"].as_str().unwrap(), token["token"].as_str().unwrap());
        let dir = out.to_str().unwrap();
        let line = ["node", "join", at, "--token", token, "--no-run", "--dir", dir];
        let joined = run(&line);
        assert_eq!(joined.code, Some(0), "{}", joined.err);
        out
    }

    fn list_as(&self, identity: &Path) -> CommandOutput {
        let mut list = program(&["job", "list", "--config", self.up.file.to_str().unwrap()]);
        list.env("SPRINGTIDE_TLS__IDENTITY", identity);
        finish(list)
    }

    fn is_up(&self, node: &str) -> bool {
        let status = self.object(&["node", "status", node, "--json"]);
        ["idle", "busy"].contains(&status["state"].as_str().unwrap_or_default())
    }

    fn elapsed_ms(&self) -> u64 {
        let state: Value =
            serde_json::from_str(&text(&self.ca.join("rotation.json"))).unwrap_or_default();
        state["elapsed_ms"].as_u64().unwrap_or_default()
    }

    fn write_elapsed(&self, elapsed_ms: u64) {
        // The date is that of an earlier version.
        let state = json!({ "period_s": 3600, "elapsed_ms": elapsed_ms, "since_unix_s": 1 });
        let new = self.up.temp.path().join("rotation.json");
        fs::write(&new, state.to_string()).unwrap();
        fs::rename(new, self.ca.join("rotation.json")).unwrap();
    }

    /// Lets the time of the present step pass, until a file of the rotation is removed.
    fn pass_half(&self, file: &str) {
        until(file, || {
            // A head that checks at the same time may replace the written time, or end the step.
            if (1..HALF_MS).contains(&self.elapsed_ms()) {
                self.write_elapsed(HALF_MS);
            }
            !self.ca.join(file).exists()
        });
    }
}

fn run_node(dir: &Path) -> RunningCommand {
    let config = dir.join("node.toml");
    RunningCommand::start(program(&["node", "run", "--config", config.to_str().unwrap()]), dir)
}

fn certificates(file: &Path) -> usize {
    text(file).matches("BEGIN").count()
}

#[test]
fn an_authority_is_replaced_while_a_job_runs() {
    let grid = Rotation::start();
    let (up, ca) = (&grid.up, &grid.ca);
    let fingerprint = || grid.run(&["ca", "fingerprint"]).out;
    let (old, before) = (fingerprint(), text(&ca.join("ca.pem")));
    // Users: one with a certificate without a token, one that runs a command in each step, and one
    // that runs none in the first half.
    let olga = grid.issue("olga", "users", "viewer");
    let vera = grid.join("vera", &["--role", "viewer"]);
    let nora = grid.join("nora", &["--role", "viewer"]);
    // Nodes: one that does not run in the first half, and one with a certificate without a token.
    let away = grid.join("away", &["--cluster", "lab"]);
    let issued = grid.issue("lab-2", "lab", "node");
    let config = text(&away.join("node.toml")).replace("lab-1", "lab-2");
    let config = config.replace(away.to_str().unwrap(), issued.to_str().unwrap());
    fs::write(issued.join("node.toml"), config).unwrap();
    let _lab_2 = run_node(&issued);
    until("the node with an issued certificate is up", || grid.is_up("lab-2"));
    let submitted = grid.run(&["job", "submit", "queens", "--size", "18", "--min", "1", "-q"]);
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    let status = || grid.object(&["job", "status", "1", "--json"]);
    until("the job runs", || status()["state"] == "running");
    let short = grid.run(&["ca", "rotate", "--period", "5s"]);
    assert_eq!(short.code, Some(2), "{}", short.err);
    grid.begin();
    let again = grid.run(&["ca", "rotate"]);
    assert!(again.code == Some(1) && again.err.contains("replaced already"), "{}", again.err);
    // The old authority issues until all processes trust the next one.
    assert_eq!(fingerprint(), old);
    let started = nodes(&up.dir);
    let listed = grid.list_as(&vera);
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    assert_eq!(certificates(&vera.join("ca.pem")), 2);
    let mut trusting = vec![issued.join("ca.pem")];
    trusting.extend(["ams-1", "ams-2"].map(|node| up.dir.join("node").join(node).join("ca.pem")));
    until("all nodes trust both", || trusting.iter().all(|file| certificates(file) == 2));
    assert_eq!(certificates(&issued.join("node.pem")), 1);

    grid.pass_half("next.key");
    until("the head's certificate is of the next authority", || {
        up.output().contains("the next authority issues certificates")
    });
    // The second of two commands of a user does not repeat the warning.
    let warned = grid.list_as(&olga);
    assert_eq!(warned.code, Some(0), "{}", warned.err);
    assert!(warned.err.contains("springtide ca issue olga --cluster users"), "{}", warned.err);
    let listed = grid.list_as(&olga);
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    for user in [&vera, &nora] {
        let listed = grid.list_as(user);
        assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
        assert_eq!(certificates(&user.join("node.pem")), 2, "it is cross-signed");
        assert!(!text(&user.join("ca.pem")).starts_with(before.trim()), "the next one is first");
    }
    let _lab_1 = run_node(&away);
    until("the node that was away is up", || grid.is_up("lab-1"));
    let cross_signed = |node: &PathBuf| certificates(&node.join("node.pem")) == 2;
    let own: Vec<_> = started.iter().map(|(node, _)| up.dir.join("node").join(node)).collect();
    until("certificates are renewed", || own.iter().chain([&away]).all(cross_signed));
    assert!(grid.is_up("lab-2"));

    grid.pass_half("rotation.json");
    until("the head's certificate is not cross-signed", || {
        up.output().contains("the old authority is not trusted")
    });
    let log = up.output();
    for step in ["is trusted from now on", "issues certificates from now on", "has ended"] {
        assert!(log.contains(step), "{step}: {log}");
    }
    assert_ne!(fingerprint(), old);
    let after = text(&ca.join("ca.pem"));
    assert!(!after.contains(before.trim()) && after.matches("BEGIN").count() == 1);
    // No process has ended, and the job continues.
    assert_eq!(nodes(&up.dir), started);
    assert_eq!(status()["state"], "running", "{}", status());
    let refused = grid.list_as(&olga);
    assert_ne!(refused.code, Some(0), "the old authority is trusted: {}", refused.out);
    for user in [&vera, &nora] {
        let renewed = grid.list_as(user);
        assert_eq!(renewed.code, Some(0), "{}", renewed.err);
    }
    // The nodes' files are of the next authority: a node that starts again is accepted.
    trusting.push(away.join("ca.pem"));
    until("all nodes trust only the next one", || trusting.iter().all(|file| text(file) == after));
    assert!(grid.is_up("lab-1"));
    let (name, pid) = started.first().unwrap();
    kill(*pid, "KILL");
    until("the node is back", || {
        let found = grid.object(&["node", "status", name, "--json"]);
        found["pid"].as_u64().is_some_and(|found| found != u64::from(*pid)) && grid.is_up(name)
    });
    let cancelled = grid.run(&["job", "cancel", "1"]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    let commands = grid.run(&["audit"]).out;
    assert!(commands.contains("ca rotate"), "{commands}");
}

#[test]
fn time_without_a_head_does_not_count_for_a_rotation() {
    let mut grid = Rotation::start();
    grid.begin();
    grid.up.kill_head();
    // By the calendar, the step began long ago.
    let counted = 10_000;
    grid.write_elapsed(counted);
    grid.up.start_head();
    until("the next head counts", || grid.elapsed_ms() > counted);
    assert!(grid.elapsed_ms() < HALF_MS && grid.ca.join("next.key").exists());
    grid.pass_half("next.key");
    until("the time of the next step counts", || grid.elapsed_ms() > 0);
    assert!(grid.ca.join("rotation.json").exists());
    grid.up.end();
}
