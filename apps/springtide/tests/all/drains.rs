//! Nodes that are taken out of service, by command and by a signal; and explanations of runs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{
    CommandOutput, RunningCommand, assert_sound, kill, nodes, program, run, text, until,
};

/// A grid that stays.
pub struct Up {
    running: RunningCommand,
    pub dir: PathBuf,
    pub file: PathBuf,
    pub temp: tempfile::TempDir,
}

impl Up {
    fn start() -> Self {
        Self::of(&[("ams", 3)])
    }

    /// A grid with these clusters, each with its number of nodes.
    pub fn of(clusters: &[(&str, u32)]) -> Self {
        Self::with(clusters, "")
    }

    /// A grid with these clusters, and these lines in its config.
    pub fn with(clusters: &[(&str, u32)], lines: &str) -> Self {
        let one = |(name, nodes): &(&str, u32)| {
            format!("[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\n")
        };
        let clusters: String = clusters.iter().map(one).collect();
        Self::by(&format!("{lines}\n{clusters}"))
    }

    /// A grid with this config.
    pub fn by(config: &str) -> Self {
        Self::written(|_| config.to_owned())
    }

    /// A grid with the config that is made for its directory.
    pub fn written(config: impl FnOnce(&Path) -> String) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("grid.toml");
        std::fs::write(&file, config(temp.path())).unwrap();
        let running = RunningCommand::start(program(&["up", file.to_str().unwrap()]), temp.path());
        let up = Self { running, dir: temp.path().join(".springtide/local"), file, temp };
        up.await_output("Ctrl-C ends the grid");
        up
    }

    /// Kills the head without warning.
    pub fn kill_head(&mut self) {
        self.running.signal("KILL");
        self.running.wait();
    }

    /// Starts a head again.
    pub fn start_head(&mut self) {
        let command = program(&["up", self.file.to_str().unwrap()]);
        self.running = RunningCommand::start(command, self.temp.path());
        self.await_output("Ctrl-C ends the grid");
    }

    /// The output of the head since its start.
    pub fn output(&self) -> String {
        text(&self.temp.path().join("stderr.log"))
    }

    /// Waits for this output of `up`.
    fn await_output(&self, what: &str) {
        until(what, || self.output().contains(what));
    }

    pub fn node(&self, line: &[&str]) -> CommandOutput {
        let config = ["--config", self.file.to_str().unwrap()];
        run(&[&["node"], line, &config].concat())
    }

    /// Starts an endless job.
    fn endless(&self, more: &[&str]) -> RunningCommand {
        let dir = self.temp.path().join("client");
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = program(&["run", "queens", "--size", "18", "-v", "--config"]);
        command.arg(&self.file).args(more);
        let client = RunningCommand::start(command, &dir);
        until("the job runs", || text(&dir.join("stderr.log")).contains("the root runs on"));
        client
    }

    fn log(&self, node: &str) -> String {
        text(&self.dir.join("nodes").join(format!("{node}.log")))
    }

    pub fn pid(&self, node: &str) -> Option<u32> {
        nodes(&self.dir).into_iter().find(|(name, _)| name == node).map(|(_, pid)| pid)
    }

    /// Ends the grid, and starts one with the same config.
    pub fn again(mut self) -> Self {
        self.running.signal("TERM");
        assert_eq!(self.running.wait().code(), Some(0));
        // The log of the ended grid.
        std::fs::remove_file(self.temp.path().join("stderr.log")).unwrap();
        let Self { file, dir, temp, .. } = self;
        let running = RunningCommand::start(program(&["up", file.to_str().unwrap()]), temp.path());
        let up = Self { running, dir, file, temp };
        up.await_output("Ctrl-C ends the grid");
        up
    }

    pub fn end(mut self) {
        self.running.signal("TERM");
        assert_eq!(self.running.wait().code(), Some(0));
        assert_eq!(nodes(&self.dir), []);
        assert_sound(&self.dir);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn nodes_are_drained_and_undrained() {
    let up = Up::start();
    let drained = up.node(&["drain", "ams-3", "ams-2", "--deadline", "30s", "--json"]);
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    let expected =
        serde_json::json!({ "schema": 1, "ok": true, "empty": ["ams-2", "ams-3"], "gone": [] });
    assert_eq!(json(&drained.out), expected);
    up.await_output("node ams-3 is drained");
    let config = up.file.to_str().unwrap();
    let fib = || json(&run(&["run", "fib", "--n", "22", "--json", "--config", config]).out);
    assert_eq!(fib()["clusters"], serde_json::json!([{ "name": "ams", "workers": 1 }]));
    let lost = up.node(&["drain", "asm-3"]);
    assert_eq!((lost.code, lost.out.as_str()), (Some(2), ""), "{}", lost.err);
    assert!(lost.err.contains("no node asm-3: did you mean ams-3?"), "{}", lost.err);
    let lost = up.node(&["undrain", "bud-1", "ams-2"]);
    assert_eq!(lost.code, Some(2), "{}", lost.err);
    assert_eq!(up.node(&["undrain", "ams-2", "ams-3"]).code, Some(0));
    up.await_output("node ams-3 is in service again");
    assert_eq!(fib()["clusters"], serde_json::json!([{ "name": "ams", "workers": 3 }]));
    up.end();
}

#[test]
fn a_job_keeps_the_nodes_that_it_needs() {
    let up = Up::start();
    let mut client = up.endless(&["--min-nodes", "3"]);
    let kept = up.node(&["drain", "ams-3", "--json"]);
    assert_eq!(kept.code, Some(3), "{}", kept.err);
    assert!(kept.err.contains("job-1 needs 3 processors and would have 2:"), "{}", kept.err);
    assert_eq!(json(&kept.out)["ok"], false);
    // A node's own end cannot be refused. The job releases the node in order.
    let pid = up.pid("ams-3").unwrap();
    kill(pid, "TERM");
    until("it ends and is restarted", || up.pid("ams-3").is_some_and(|now| now != pid));
    assert!(up.log("ams-3").contains("SIGTERM: it is empty"), "{}", up.log("ams-3"));
    client.signal("INT");
    assert_eq!(client.wait().code(), Some(130));
    up.end();
}

#[test]
fn a_node_that_is_ordered_to_end_leaves_first() {
    let up = Up::start();
    let pid = up.pid("ams-2").unwrap();
    kill(pid, "TERM");
    until("it ends and is restarted", || up.pid("ams-2").is_some_and(|now| now != pid));
    let log = up.log("ams-2");
    for part in [
        "ordered to end by SIGTERM: leaves its job first",
        "ends: ordered to end by SIGTERM: it is empty",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    up.end();
}

/// Busy nodes end, among them the root's: no part of the job is lost, and no node counts as lost.
#[test]
fn busy_nodes_that_are_ordered_to_end_leave_first() {
    let up = Up::of(&[("ams", 2), ("bud", 2)]);
    let mut client = up.endless(&[]);
    let output = || text(&up.temp.path().join("client/stderr.log"));
    let root =
        output().lines().find_map(|line| Some(line.split("the root runs on ").nth(1)?.to_owned()));
    let root = root.expect("the job runs");
    let other = if root == "bud-2" { "bud-1" } else { "bud-2" };
    for (node, says) in [
        (other, format!("node {other} leaves the job")),
        (&root, format!("the job's root moves from node {root}")),
    ] {
        let pid = up.pid(node).unwrap();
        kill(pid, "TERM");
        until("it ends and is restarted", || up.pid(node).is_some_and(|now| now != pid));
        assert!(output().contains(&says), "{says}: {}", output());
        assert!(
            up.log(node).contains("ordered to end by SIGTERM: it is empty"),
            "{}",
            up.log(node)
        );
    }
    assert!(!output().contains("was lost"), "{}", output());
    client.signal("INT");
    assert_eq!(client.wait().code(), Some(130));
    up.end();
}

/// The explanation of a run without adaptation, and of no run.
#[test]
fn a_run_without_decisions_is_reported_as_such() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out");
    let dir = out.to_str().unwrap();
    let line =
        ["run", "fib", "--n", "20", "--clusters", "2x1", "--mode", "static", "--start", "1x1"];
    let ended = run(&[&line[..], &["--json", "--out", dir]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(
        json(&ended.out)["clusters"],
        serde_json::json!([{ "name": "ams", "workers": 1 }]),
        "the job begins on one of two"
    );
    let config = text(&out.join("config.toml"));
    assert!(config.contains("mode = \"static\"") && config.contains("# flag --mode"), "{config}");
    let output = run(&["why", dir]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for part in
        ["a grid of 2 nodes: ams 1, del 1", "node ams-1 joined", "job-1 (fib) starts under epoch 1"]
    {
        assert!(output.out.contains(part), "{part}: {}", output.out);
    }
    assert!(output.err.contains("no decision is in "), "{}", output.err);
    assert_eq!(run(&["why", dir, "--at", "1"]).code, Some(1));
    assert_eq!(run(&["replay", dir]).code, Some(1));
    let nothing = run(&["why", Path::new(dir).join("nodes").to_str().unwrap()]);
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.err.contains("holds no run"), "{}", nothing.err);
}

/// A run attached to a running grid. Its log has joins, losses and epochs on one clock, even if its
/// root dies before the first period's end.
#[test]
fn an_attached_run_has_its_losses_on_one_clock() {
    let up = Up::of(&[("ams", 2), ("del", 2)]);
    let out = up.temp.path().join("run");
    let (dir, config) = (out.to_str().unwrap(), up.file.to_str().unwrap());
    let line = ["run", "queens", "--size", "18", "-v", "--config", config, "--out", dir];
    let client = up.temp.path().join("client");
    std::fs::create_dir(&client).unwrap();
    let mut running = RunningCommand::start(program(&line), &client);
    let output = || text(&client.join("stderr.log"));
    let root = |times: usize| {
        until("the root runs", || output().matches("the root runs on ").count() == times);
        let line =
            output().lines().rfind(|line| line.contains("the root runs on ")).unwrap().to_owned();
        line.split("the root runs on ").nth(1).unwrap().trim().to_owned()
    };
    let first = root(1);
    kill(up.pid(&first).unwrap(), "KILL");
    let second = root(2);
    running.signal("TERM");
    assert_eq!(running.wait().code(), Some(143), "{}", output());
    let output = run(&["why", dir, "--json"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let object = json(&output.out);
    let entries = object["entries"].as_array().unwrap();
    let of_kind = |kind: &'static str| {
        let found = entries.iter().filter(move |entry| entry["kind"] == kind);
        found.map(|entry| (entry["at_s"].as_f64().unwrap(), entry["text"].as_str().unwrap()))
    };
    let texts = |kind| of_kind(kind).map(|(_, text)| text).collect::<Vec<_>>().join("; ");
    for node in ["ams-1", "ams-2", "del-1", "del-2"] {
        assert!(texts("joined").contains(node), "{node} joined: {}", output.out);
    }
    assert!(texts("lost").contains(&first), "{first} was lost: {}", output.out);
    let coordinated = format!("coordinated by {second} under epoch 2");
    assert!(texts("epoch").contains(&coordinated), "{coordinated}: {}", output.out);
    // One clock: only entries before the job's start precede it, and times are in order.
    let times: Vec<f64> = entries.iter().map(|entry| entry["at_s"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let started: Vec<f64> = of_kind("started").map(|(at_s, _)| at_s).collect();
    assert!(matches!(started[..], [0.0, again] if again > 0.0), "{started:?}: {}", output.out);
    up.end();
}

/// A report has the numbers of the result, even for a short run.
#[test]
fn a_report_of_short_runs_has_their_numbers() {
    let temp = tempfile::tempdir().unwrap();
    let runs = ["one", "two"].map(|name| {
        let dir = temp.path().join(name).to_str().unwrap().to_owned();
        let line = ["run", "queens", "--size", "9", "--clusters", "2x1", "--json", "--out", &dir];
        let ended = run(&line);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        (dir, json(&ended.out))
    });
    let html = temp.path().join("compared.html");
    let line = ["report", &runs[0].0, &runs[1].0, "--compare", "--out", html.to_str().unwrap()];
    assert_eq!(run(&line).code, Some(0));
    let page = text(&html);
    let row = |name: &str| {
        let start = page.find(&format!("<th scope=\"row\">{name}</th>")).expect(name);
        page[start..].split("</tr>").next().unwrap().replace('\u{202f}', "")
    };
    for (_, result) in &runs {
        let executed = result["tasks"]["executed"].as_u64().unwrap();
        assert!(
            executed > 0 && row("tasks run").contains(&executed.to_string()),
            "{}",
            row("tasks run")
        );
        let wide = result["bytes"]["wide"].as_u64().unwrap();
        assert!(wide > 0 && row("bytes sent between clusters").contains(&format!(">{wide}")));
        assert!(result["cpu_s"].as_f64().unwrap() > 0.0, "{result}");
    }
    assert!(row("mode").contains("<td>adaptive</td><td>adaptive</td>"), "{}", row("mode"));
    // The log of a short run has its last period.
    let log = text(&Path::new(&runs[0].0).join("events.jsonl"));
    assert!(log.contains("\"kind\":\"period\""), "{log}");
}
