//! The provider against scripts in place of commands. They keep a queue in a file and fail on
//! request. The `tests` crate has the tests against real batch systems.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use springtide_config::{GridConfig, Sources, load};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{StubEnd, StubEvent};

/// Each command records its arguments, and does what its mode file says: hang, fail, or print a
/// text.
const BEGIN: &str = r#"#!/bin/sh
dir=${0%/*}
name=${0##*/}
printf '%s\n' "$*" >>"$dir/$name.calls"
mode=$(cat "$dir/$name.mode" 2>/dev/null)
act() {
    case $mode in
    hang) exec sleep 600 ;;
    slow) sleep 1 ;;
    fail) echo "$name: error: Unable to contact slurm controller" >&2; exit 1 ;;
    say\ *) echo "${mode#say }"; exit 0 ;;
    esac
}
"#;
const SQUEUE: &str = "act\ncat \"$dir/queue\" 2>/dev/null || true\n";
const SINFO: &str = "act\ncat \"$dir/machines\"\n";
/// A submission that hangs or fails here is executed all the same.
const SBATCH: &str = r#"cat >"$dir/script"
for arg; do
    case $arg in
    --job-name=*) job=${arg#*=} ;;
    --comment=*) comment=${arg#*=} ;;
    esac
done
id=$(($(cat "$dir/id" 2>/dev/null || echo 100) + 1))
echo $id >"$dir/id"
echo "$job|$id|PD|UNLIMITED|1||Priority|$comment" >>"$dir/queue"
act
echo $id
"#;
const SCANCEL: &str = r#"act
case $* in *--signal=*) exit 0 ;; esac
for id; do
    case $id in --*) continue ;; esac
    sed "s/^\([^|]*|$id|\)[A-Z]*|/\1CA|/" "$dir/queue" >"$dir/queue.new" &&
        mv "$dir/queue.new" "$dir/queue"
done
"#;

/// The certificate of the grid's authority. Names have 31152f8dd9 for it.
const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nMIIB\nAQAB\n-----END CERTIFICATE-----\n";

/// Far above all expected waits.
const LONG: Duration = Duration::from_secs(60);

/// A batch system of scripts, and its provider.
struct ScriptedSystem {
    dir: tempfile::TempDir,
    provider: BatchProvider,
}

/// The name of a stub's job in the queue.
fn name(cluster: &str, node: &str) -> String {
    format!("springtide.home.31152f8dd9.{cluster}.{node}.t-{node}")
}

impl ScriptedSystem {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scripts =
            [("squeue", SQUEUE), ("sinfo", SINFO), ("sbatch", SBATCH), ("scancel", SCANCEL)];
        for (name, script) in scripts {
            make_program(&dir.path().join(name), &format!("{BEGIN}{script}"));
        }
        let provider = Self::slurm(dir.path(), "5s");
        Self { dir, provider }
    }

    fn slurm(dir: &Path, answer_timeout: &str) -> BatchProvider {
        Self::provider(&format!(
            "provider = \"slurm\"\n[cluster.slurm]\ncommands = {:?}\npoll = \"300ms\"\n\
             answer_timeout = \"{answer_timeout}\"\npartition = \"batch\"\ntime = \"90s\"\n\
             leave_ahead = \"20s\"\nmemory = \"1GiB\"\nmissing_timeout = \"4s\"\n",
            dir.display().to_string()
        ))
    }

    fn provider(cluster: &str) -> BatchProvider {
        let text = format!("[[cluster]]\nname = \"vu\"\n{cluster}");
        let config = load::<GridConfig>(&Sources::of_text("test", &text)).unwrap().value;
        let section = config.cluster[0].batch_system().unwrap();
        let cluster = BatchCluster {
            grid: "home",
            authority: AUTHORITY,
            name: &"vu".into(),
            nodes: 6,
            threads: 2,
        };
        BatchProvider::new(&cluster, &section).unwrap()
    }

    /// With a short time limit of commands.
    fn hasty(mut self) -> Self {
        self.provider = Self::slurm(self.dir.path(), "1s");
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn request(&self, node: &str) -> NodeRequest {
        NodeRequest {
            node: node.into(),
            program: "true".into(),
            config: self.path(&format!("{node}.toml")),
            log: self.path(&format!("{node}.log")),
            env: Vec::new(),
            threads: 2,
            host: None,
            shipped: None,
        }
    }

    async fn hold(&self, node: &str) -> Box<dyn Stub> {
        self.provider.hold(&self.request(node)).await.unwrap()
    }

    /// The files of a submitted stub.
    fn files(&self, node: &str) -> StubFiles {
        let queue = self.read("queue");
        let prefix = format!(".vu.{node}.");
        let line = queue.lines().find(|line| line.contains(&prefix)).unwrap();
        let job = line.split('|').next().unwrap();
        let token = job.rsplit('.').next().unwrap().to_owned();
        StubFiles { base: self.path(&format!("{node}.toml")), token }
    }

    fn mode(&self, command: &str, mode: &str) {
        fs::write(self.path(&format!("{command}.mode")), mode).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn calls(&self, command: &str) -> Vec<String> {
        self.read(&format!("{command}.calls")).lines().map(str::to_owned).collect()
    }

    /// Writes the queue, whole or not at all.
    fn write_queue(&self, text: &str) {
        fs::write(self.path("queue.test"), text).unwrap();
        fs::rename(self.path("queue.test"), self.path("queue")).unwrap();
    }

    /// Writes running jobs of these nodes, with their identifiers and states.
    fn write_jobs(&self, jobs: &[(&str, u32, &str)]) {
        let line = |(node, id, state): &(&str, u32, &str)| {
            format!("{}|{id}|{state}|1:00|2|n1|None|\n", name("vu", node))
        };
        self.write_queue(&jobs.iter().map(line).collect::<String>());
    }

    /// Sets the state of all jobs of the queue.
    fn all_are(&self, state: &str) {
        let lines = self.read("queue");
        let lines = lines.lines().map(|line| {
            let mut parts: Vec<&str> = line.splitn(8, '|').collect();
            parts[2] = state;
            parts[5] = "n1";
            parts.join("|") + "\n"
        });
        self.write_queue(&lines.collect::<String>());
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is(self) {
            assert!(begun.elapsed() < LONG, "{what}: {}", self.read("queue"));
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for this number of further queries.
    async fn queries(&self, more: usize) {
        let before = self.calls("squeue").len();
        self.until("queries", |system| system.calls("squeue").len() >= before + more).await;
    }
}

/// Writes a program. By another process: a file that is open for writing in this one cannot be run.
fn make_program(file: &Path, text: &str) {
    let made = Command::new("sh")
        .args(["-c", "printf %s \"$1\" >\"$0\" && chmod +x \"$0\""])
        .arg(file)
        .arg(text)
        .status();
    assert!(made.unwrap().success());
}

async fn ended(stub: &mut Box<dyn Stub>) -> StubEnd {
    let end = async {
        loop {
            if let StubEvent::Ended(ended) = stub.news().await {
                return ended;
            }
        }
    };
    timeout(LONG, end).await.expect("its end")
}

async fn active(stub: &mut Box<dyn Stub>) {
    let past_waiting = async {
        loop {
            match stub.news().await {
                StubEvent::Waits { .. } => {}
                news => return news,
            }
        }
    };
    assert_eq!(timeout(LONG, past_waiting).await, Ok(StubEvent::Active));
}

#[actix_rt::test]
async fn a_stub_is_submitted_becomes_active_and_ends() {
    let system = ScriptedSystem::new();
    let mut stub = system.hold("vu-1").await;
    let call = &system.calls("sbatch")[0];
    for part in [
        "--parsable --no-requeue --export=ALL --nodes=1 --ntasks=1 --cpus-per-task=2",
        "--job-name=springtide.home.31152f8dd9.vu.vu-1.",
        "--signal=B:USR1@5 ",
        "--partition=batch --time=2 --mem=1024M",
    ] {
        assert!(call.contains(part), "{call}");
    }
    assert!(system.read("script").contains("node' 'run' '--config'"), "{}", system.read("script"));
    // The reason of the wait comes once.
    let waits = StubEvent::Waits { reason: "Priority".to_owned() };
    assert_eq!(timeout(LONG, stub.news()).await, Ok(waits));
    assert!(timeout(Duration::from_millis(300), stub.news()).await.is_err());
    system.all_are("R");
    active(&mut stub).await;
    fs::write(system.path("vu-1.log"), "out of luck\n").unwrap();
    let exit = format!("vu-1.toml.exit-{}", system.files("vu-1").token);
    fs::write(system.path(&exit), "3\n").unwrap();
    system.all_are("F");
    let end = ended(&mut stub).await;
    assert_eq!(end.status, "batch job 101 failed (exit status: 3)");
    assert!(!end.out_of_memory, "{end:?}");
    assert_eq!(end.last_lines, ["out of luck"]);
    assert_eq!((stub.id(), stub.release(LONG).await), (None, end));
    drop(stub);
    assert_eq!(system.calls("scancel"), [""; 0]);
    assert!(!system.path(&exit).exists());
}

#[actix_rt::test]
async fn the_state_of_a_job_that_exceeded_its_memory_is_told_from_a_failure() {
    let system = ScriptedSystem::new();
    let mut stub = system.hold("vu-1").await;
    system.all_are("R");
    active(&mut stub).await;
    system.all_are("OOM");
    let end = ended(&mut stub).await;
    assert!(end.out_of_memory, "{end:?}");
}

#[actix_rt::test]
async fn a_failing_or_empty_list_ends_no_stub() {
    let system = ScriptedSystem::new().hasty();
    let mut stub = system.hold("vu-1").await;
    system.all_are("R");
    active(&mut stub).await;
    for (mode, error) in [
        ("hang", "did not answer within 1 s"),
        ("fail", "Unable to contact slurm controller"),
        ("say Maintenance today", "Maintenance today"),
        ("say ", ""),
    ] {
        system.mode("squeue", mode);
        let listed = system.provider.list().await.map_err(|error| error.to_string());
        match listed {
            Err(text) => assert!(!error.is_empty() && text.contains(error), "{text}"),
            Ok(stubs) => assert!(error.is_empty() && stubs.is_empty(), "{stubs:?}"),
        }
        // Also an empty list with exit status 0, for some seconds.
        let news = timeout(Duration::from_millis(2500), stub.news()).await;
        assert!(news.is_err(), "{mode}: {news:?}");
    }
    let end = ended(&mut stub).await;
    assert!(end.status.contains("gone"), "{end:?}");
    assert_eq!(system.calls("scancel"), [""; 0]);
}

/// A wrapper of a command leaves no process that hangs.
#[actix_rt::test]
async fn the_children_of_a_command_end_with_it() {
    let system = ScriptedSystem::new().hasty();
    let pids = system.path("pids");
    let text = format!("#!/bin/sh\nsleep 600 & echo $! >>'{}'; wait\n", pids.display());
    make_program(&system.path("squeue"), &text);
    let error = system.provider.list().await.unwrap_err();
    assert!(error.to_string().contains("did not answer within 1 s"), "{error}");
    let pid = system.read("pids").trim().to_owned();
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended.
    system.until("it ends", |_| state().is_empty() || state().contains(") Z ")).await;
}

#[actix_rt::test]
async fn variables_that_no_shell_can_set_are_refused() {
    let system = ScriptedSystem::new();
    for (name, value) in [("A B", "x"), ("a.b", "x"), ("A", "x\0y")] {
        let env = vec![(name.to_owned(), value.to_owned())];
        let request = NodeRequest { env, ..system.request("vu-1") };
        let Err(error) = system.provider.hold(&request).await else { panic!("held") };
        assert!(error.to_string().contains("`cluster.env`"), "{error}");
    }
    assert_eq!(system.calls("sbatch"), [""; 0]);
}

#[actix_rt::test]
async fn a_submission_that_fails_and_is_executed_is_cancelled() {
    let system = ScriptedSystem::new().hasty();
    system.write_jobs(&[("vu-1", 7, "R")]);
    for (mode, word) in [("hang", "did not answer"), ("fail", "controller"), ("say ok", "\"ok\"")] {
        system.mode("sbatch", mode);
        let Err(error) = system.provider.hold(&system.request("vu-2")).await else {
            panic!("held")
        };
        assert!(error.to_string().contains(word), "{error}");
    }
    // On a busy machine the first one may be ended before it has submitted anything.
    let are_cancelled = |system: &ScriptedSystem| {
        let queue = system.read("queue");
        let submitted = queue.matches("log=").count();
        submitted >= 2 && queue.matches("|CA|").count() == submitted
    };
    system.until("all are cancelled", are_cancelled).await;
    // The job of another node continues.
    assert!(system.read("queue").contains(&format!("{}|7|R|", name("vu", "vu-1"))));
    let listed = system.provider.list().await.unwrap();
    assert_eq!(listed, [ExistingStub { node: "vu-1".into(), id: StubId("7".into()) }]);
}

#[actix_rt::test]
async fn a_submission_that_its_caller_drops_is_cancelled() {
    let system = ScriptedSystem::new();
    system.mode("sbatch", "hang");
    let request = system.request("vu-1");
    let provider = system.provider.clone();
    let held = actix_rt::spawn(async move { provider.hold(&request).await.map(drop) });
    system.until("it is executed", |system| system.read("queue").contains("vu-1")).await;
    held.abort();
    system.until("it is cancelled", |system| system.read("queue").contains("|CA|")).await;
}

#[actix_rt::test]
async fn own_stubs_are_listed_one_for_each_node() {
    let system = ScriptedSystem::new();
    let (one, two, three, four) =
        (name("vu", "vu-1"), name("vu", "vu-2"), name("vu", "vu-3"), name("vu", "vu-4"));
    system.write_queue(&format!(
        "{one}|1|PD|5:00|2||Priority|\n{one}|2|R|5:00|2|n1|None|\n\
         {two}|3|CG|5:00|2|n1|None|\n{three}|4|PD|5:00|2||Priority|\n\
         {four}|5|CD|5:00|2||None|\n{}|6|R|5:00|2|n1|None|\n\
         springtide.other.31152f8dd9.vu.vu-1.t|7|R|5:00|2|n1|None|\nmine|8|R|5:00|2|n1|None|\n",
        name("uva", "uva-1"),
    ));
    let listed = system.provider.list().await.unwrap();
    let listed: Vec<_> = listed.iter().map(|it| (it.node.as_str(), it.id.0.as_str())).collect();
    assert_eq!(listed, [("vu-1", "2"), ("vu-3", "4")]);
    system.until("an order", |system| system.calls("scancel") == ["1"]).await;
    let first = format!("{one}|1|CA|");
    system.until("it is cancelled", |system| system.read("queue").contains(&first)).await;
    let lines = system.read("queue");
    assert_eq!(lines.matches("|CA|").count(), 1, "{lines}");
}

#[actix_rt::test]
async fn a_dropped_stub_is_cancelled_and_a_left_one_continues() {
    let system = ScriptedSystem::new();
    let (dropped, left) = (system.hold("vu-1").await, system.hold("vu-2").await);
    left.leave();
    // The first order is lost.
    system.mode("scancel", "fail");
    let up = system.files("vu-1").up();
    fs::write(&up, "").unwrap();
    drop(dropped);
    system.until("it was tried", |system| !system.calls("scancel").is_empty()).await;
    system.mode("scancel", "");
    system.until("it is cancelled", |system| system.read("queue").contains("|101|CA|")).await;
    system.until("its files are removed", |_| !up.exists()).await;
    assert!(system.read("queue").contains("|102|PD|"));
    assert!(system.calls("scancel").iter().all(|call| call == "101"));

    // Another provider finds it.
    let later = ScriptedSystem::slurm(system.dir.path(), "5s");
    let listed = later.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    system.all_are("R");
    let request = NodeRequest { config: system.path("elsewhere.toml"), ..system.request("vu-2") };
    let mut stub = later.adopt(&listed[0], &request).await.unwrap();
    active(&mut stub).await;
    // Its first order is lost too, and repeated while its end is awaited.
    system.mode("scancel", "fail");
    let before = system.calls("scancel").len();
    stub.kill();
    system.until("it was tried", |system| system.calls("scancel").len() >= before + 2).await;
    system.mode("scancel", "");
    let end = ended(&mut stub).await;
    system.until("it is killed", |system| system.read("queue").contains("|102|CA|")).await;
    assert!(system.calls("scancel").contains(&"--batch --signal=ALRM 102".to_owned()));
    assert_eq!(end.status, "batch job 102 cancelled");
}

#[test]
fn a_process_that_ends_quickly_cancels_its_stubs() {
    let system = ScriptedSystem::new();
    let executor = actix_rt::System::new();
    let (provider, request) = (system.provider.clone(), system.request("vu-1"));
    let again = system.provider.clone();
    let outlives = executor.block_on(async move {
        let second = NodeRequest { node: "vu-2".into(), ..request.clone() };
        let stub = provider.hold(&request).await.unwrap();
        // One is in a task, as in a site, and one outlives the executor.
        actix_rt::spawn(async move {
            let mut stub = stub;
            loop {
                stub.news().await;
            }
        });
        again.hold(&second).await.unwrap()
    });
    drop(executor);
    drop(outlives);
    let begun = std::time::Instant::now();
    // The orders are compared, for these commands run at the same time and share a file.
    let ordered = || system.calls("scancel").join(" ");
    while ["101", "102"].iter().any(|id| !ordered().contains(id)) {
        assert!(begun.elapsed() < LONG, "{}", ordered());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[actix_rt::test]
async fn hundreds_of_stubs_share_commands() {
    let system = ScriptedSystem::new();
    let mut stubs = Vec::new();
    for i in 0..150 {
        stubs.push(system.hold(&format!("vu-{i}")).await);
    }
    system.all_are("R");
    for stub in &mut stubs {
        active(stub).await;
    }
    let before = system.calls("squeue").len();
    system.queries(2).await;
    assert!(system.calls("squeue").len() < before + 20);
    let releases = stubs.into_iter().map(|mut stub| {
        actix_rt::spawn(async move { stub.release(Duration::from_millis(100)).await })
    });
    for release in releases.collect::<Vec<_>>() {
        assert!(release.await.unwrap().status.ends_with("cancelled"));
    }
    let calls = system.calls("scancel");
    assert!(calls[0].starts_with("--batch --signal=USR1 101 102 "), "{}", calls[0]);
    assert!(calls.len() < 30, "{}", calls.len());
}

#[actix_rt::test]
async fn processors_of_others_are_reported() {
    let system = ScriptedSystem::new();
    let machines = "n1|5/3/0/8|mixed|up|batch*|8000\nn2|0/0/8/8|drained|up|batch*|8000\n";
    fs::write(system.path("machines"), machines).unwrap();
    // A stub without a holder here counts as others'.
    system.write_jobs(&[("vu-9", 7, "R")]);
    let poll = async || system.provider.poll().await.unwrap();
    assert_eq!(poll().await, Some(Capacity { size: 4, others: 3 }));
    let mut stub = system.hold("vu-1").await;
    system.all_are("R");
    active(&mut stub).await;
    assert_eq!(poll().await, Some(Capacity { size: 4, others: 2 }));
    system.mode("sinfo", "say n1|lots|idle");
    let error = system.provider.poll().await.unwrap_err();
    assert!(error.to_string().contains("n1|lots|idle"), "{error}");
    stub.leave();
}

/// A batch system that gives whole hosts shows that only while a stub has one.
#[actix_rt::test]
async fn given_processors_are_remembered() {
    let system = ScriptedSystem::new();
    let machines = "n1|0/8/0/8|idle|up|batch*|8000\n";
    fs::write(system.path("machines"), machines).unwrap();
    let poll = async || system.provider.poll().await.unwrap();
    assert_eq!(poll().await, Some(Capacity { size: 4, others: 0 }));
    let mut stub = system.hold("vu-1").await;
    system.all_are("R");
    active(&mut stub).await;
    let queue = fs::read_to_string(system.path("queue")).unwrap();
    fs::write(system.path("queue"), queue.replace("|UNLIMITED|1|", "|UNLIMITED|8|")).unwrap();
    fs::write(system.path("machines"), machines.replace("0/8/0/8", "8/0/0/8")).unwrap();
    assert_eq!(poll().await.map(|found| found.size), Some(1));
    system.all_are("CD");
    fs::write(system.path("machines"), machines).unwrap();
    assert_eq!(poll().await, Some(Capacity { size: 1, others: 0 }));
    drop(stub);
}

/// A failed submission is a refusal if the batch system answers otherwise.
#[actix_rt::test]
async fn a_refusal_is_no_failure_of_the_batch_system() {
    let system = ScriptedSystem::new();
    system.mode("sbatch", "fail");
    let error = system.provider.hold(&system.request("vu-1")).await.err().expect("no stub");
    assert!(matches!(error, ProviderError::Refused { .. }), "{error}");
    system.mode("squeue", "fail");
    let error = system.provider.hold(&system.request("vu-2")).await.err().expect("no stub");
    assert!(matches!(error, ProviderError::Failed { .. }), "{error}");
}

#[actix_rt::test]
async fn a_waiting_stub_gets_another_program() {
    let system = ScriptedSystem::new();
    let mut stub = system.hold("vu-1").await;
    for env in ["second", "third"] {
        let env = vec![("GREETING".to_owned(), env.to_owned())];
        let request = NodeRequest { env, ..system.request("vu-1") };
        stub.recruit(&request, LONG).await.unwrap();
    }
    // It begins with the last one.
    let next = system.files("vu-1").next(1);
    let text = fs::read_to_string(&next).unwrap();
    assert!(text.contains("GREETING=third"), "{text}");
    assert_eq!(system.calls("scancel"), [""; 0]);
    stub.release(LONG).await;
    assert!(!next.exists());
    assert_eq!(system.calls("scancel"), ["101"]);
}

/// The list may be old: a script that handles signals runs.
#[actix_rt::test]
async fn a_running_script_is_signalled_though_the_list_says_that_it_waits() {
    let system = ScriptedSystem::new();
    let mut stub = system.hold("vu-1").await;
    let files = system.files("vu-1");
    fs::write(files.up(), "").unwrap();
    let request = system.request("vu-1");
    let recruit = actix_rt::spawn(async move { stub.recruit(&request, LONG).await.map(|()| stub) });
    let orders = ["--batch --signal=USR2 101"];
    system.until("a signal", |system| system.calls("scancel") == orders).await;
    assert!(!recruit.is_finished());
    // It takes the program.
    fs::remove_file(files.next(1)).unwrap();
    let mut stub = timeout(LONG, recruit).await.unwrap().unwrap().unwrap();
    system.all_are("R");
    active(&mut stub).await;
}

#[actix_rt::test]
async fn a_stub_with_two_holders_ends_for_both() {
    let system = ScriptedSystem::new();
    system.write_jobs(&[("vu-1", 7, "R"), ("vu-2", 8, "R")]);
    let listed = system.provider.list().await.unwrap();
    let request = system.request("vu-1");
    let adopt = async |at: usize| system.provider.adopt(&listed[at], &request).await.unwrap();
    // If one holder leaves it, the other receives no more changes, which is an end too.
    let (left, mut other) = (adopt(1).await, adopt(1).await);
    active(&mut other).await;
    left.leave();
    assert_eq!(ended(&mut other).await.status, "batch job 8 has lost its holder");
    other.leave();
    let (mut first, mut second) = (adopt(0).await, adopt(0).await);
    active(&mut first).await;
    system.all_are("CD");
    for stub in [&mut first, &mut second] {
        assert_eq!(ended(stub).await.status, "batch job 7 completed");
    }
}

#[actix_rt::test]
async fn missing_commands_are_named() {
    let mut system = ScriptedSystem::new();
    system.provider = ScriptedSystem::slurm(&system.path("nothing"), "5s");
    let Err(error) = system.provider.hold(&system.request("vu-1")).await else { panic!("held") };
    let text = error.to_string();
    assert!(text.contains("cannot start") && text.contains("nothing/sbatch"), "{text}");
}

/// A batch system that starts its jobs at once as processes, and knows neither signals, comments
/// nor machines. Ended jobs vanish.
const START: &str = r#"#!/bin/sh
dir=${0%/*}
id=$(($(cat "$dir/id" 2>/dev/null || echo 100) + 1))
echo $id >"$dir/id"
mkdir "$dir/job-$id"
echo "$1" >"$dir/job-$id/name"
setsid sh "$2" </dev/null >/dev/null 2>&1 &
echo $! >"$dir/job-$id/pid"
echo "job $id accepted"
"#;
const SHOW: &str = r#"#!/bin/sh
dir=${0%/*}
for job in "$dir"/job-*; do
    pid=$(cat "$job/pid" 2>/dev/null) || continue
    case $(cat "/proc/$pid/stat" 2>/dev/null) in
    '' | *') Z '*) ;;
    *) echo "${job##*-} RUN $(cat "$job/name")" ;;
    esac
done
[ -n "$(ls -d "$dir"/job-* 2>/dev/null)" ] || { echo "no jobs" >&2; exit 255; }
"#;
const STOP: &str = r#"#!/bin/sh
dir=${0%/*}
kill -s KILL -- "-$(cat "$dir/job-$1/pid")"
"#;

/// Kills the jobs of such a batch system at the end of a test.
struct StartedJobs(PathBuf);

impl Drop for StartedJobs {
    fn drop(&mut self) {
        let kill = "for f in \"$0\"/job-*/pid; do kill -s KILL -- \"-$(cat \"$f\")\"; done";
        let _ = Command::new("sh").args(["-c", kill]).arg(&self.0).output();
    }
}

/// A template in a user's config teaches a batch system.
#[actix_rt::test]
async fn a_template_drives_a_system_without_signals() {
    let mut system = ScriptedSystem::new();
    for (name, text) in [("start", START), ("show", SHOW), ("stop", STOP)] {
        make_program(&system.path(name), text);
    }
    let _jobs = StartedJobs(system.dir.path().to_owned());
    system.provider = ScriptedSystem::provider(&format!(
        "provider = \"batch\"\n[cluster.batch]\ncommands = {:?}\npoll = \"300ms\"\n\
         [cluster.batch.template]\nsubmit = [\"start\", \"{{name}}\", \"{{script}}\", \
         [\"{{threads}}\"]]\ninput = \"\"\nsubmitted = 'job (\\d+) accepted'\nlist = [\"show\"]\n\
         empty = 'no jobs'\nid = '^(\\d+) '\nstate = ' ([A-Z]+) '\nname = '(\\S+)$'\n\
         state_meanings = {{ RUN = \"running\" }}\ncancel = [\"stop\", \"{{id}}\"]\n",
        system.dir.path().display().to_string()
    ));
    assert_eq!(system.provider.list().await.unwrap(), []);
    assert_eq!(system.provider.poll().await.unwrap(), Some(Capacity { size: 6, others: 0 }));
    let program = system.path("node");
    let text = "#!/bin/sh\necho \"$GREETING $*\"\ntrap 'echo leaves; exit 5' TERM\n\
        while :; do sleep 0.05; done\n";
    make_program(&program, text);
    let request = |greeting: &str| NodeRequest {
        program: program.clone(),
        env: vec![("GREETING".to_owned(), greeting.to_owned())],
        ..system.request("vu-1")
    };
    let log = |word: &str| system.read("vu-1.log").contains(word);
    let mut stub = system.provider.hold(&request("hello")).await.unwrap();
    active(&mut stub).await;
    system.until("it runs", |_| log("hello node run")).await;
    stub.recruit(&request("second"), LONG).await.unwrap();
    system.until("the second runs", |_| log("second node run")).await;
    // A later provider finds it, without comments.
    stub.leave();
    let listed = system.provider.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    let mut stub = system.provider.adopt(&listed[0], &request("second")).await.unwrap();
    active(&mut stub).await;
    let end = timeout(LONG, stub.release(LONG)).await.unwrap();
    assert_eq!(end.status, "batch job 101 failed (exit status: 5)");
    drop(stub);
    let mut stub = system.provider.hold(&request("third")).await.unwrap();
    active(&mut stub).await;
    system.until("the third runs", |_| log("third node run")).await;
    stub.kill();
    // Both the signal and the command end it.
    let end = ended(&mut stub).await;
    assert!(end.status.contains("gone") || end.status.contains("signal: 9"), "{end:?}");
    drop(stub);
    let files = fs::read_dir(system.dir.path()).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = files.filter(|name| name.starts_with("vu-1.toml")).collect();
    assert_eq!(left, [""; 0]);
}
