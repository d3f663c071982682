//! The provider against commands that are scripts: they keep a queue in a file and fail as they are told to. What a real Slurm does
//! is tested with a real one, in the `tests` crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use springtide_config::{GridConfig, Sources, load};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{StubEnd, StubEvent};

/// Each command notes its arguments and then does what the file of its name says: `hang`, `fail`, or to say something else.
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
const SCONTROL: &str = "act\necho 'JobId=1 JobState=FAILED ExitCode=3:0 X=y'\n";
/// What hangs or fails here has arrived all the same.
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
    sed "s/^\([^|]*|$id|\)[A-Z]*|/\1CA|/" "$dir/queue" >"$dir/queue.new" && mv "$dir/queue.new" "$dir/queue"
done
"#;

/// The certificate of the grid's authority, and 31152f8dd9 stands for it in names.
const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nMIIB\nAQAB\n-----END CERTIFICATE-----\n";

/// Far above whatever is waited for here.
const LONG: Duration = Duration::from_secs(60);

struct Fake {
    dir: tempfile::TempDir,
    provider: SlurmProvider,
}

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scripts = [
            ("squeue", SQUEUE),
            ("sinfo", SINFO),
            ("sbatch", SBATCH),
            ("scancel", SCANCEL),
            ("scontrol", SCONTROL),
        ];
        for (name, script) in scripts {
            // By a process of its own: a file that is open for writing in this one cannot be run.
            let made = Command::new("sh")
                .args(["-c", "printf %s \"$1\" >\"$0\" && chmod +x \"$0\""])
                .arg(dir.path().join(name))
                .arg(format!("{BEGIN}{script}"))
                .status();
            assert!(made.unwrap().success());
        }
        let provider = Self::provider(dir.path(), "5s");
        Self { dir, provider }
    }

    fn provider(dir: &Path, answer_timeout: &str) -> SlurmProvider {
        let text = format!(
            "[[cluster]]\nname = \"vu\"\nprovider = \"slurm\"\n[cluster.slurm]\ncommands = {:?}\n\
             poll = \"300ms\"\nanswer_timeout = \"{answer_timeout}\"\npartition = \"batch\"\ntime = \"90s\"\n\
             leave_ahead = \"20s\"\nmemory = \"1GiB\"\n",
            dir.display().to_string()
        );
        let config = load::<GridConfig>(&Sources::of_text("test", &text)).unwrap().value;
        let section = config.cluster[0].slurm.as_ref().unwrap();
        SlurmProvider::new("home", AUTHORITY, &"vu".into(), section, 2)
    }

    /// With commands that are given up soon.
    fn hasty(mut self) -> Self {
        self.provider = Self::provider(self.dir.path(), "1s");
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
        }
    }

    async fn hold(&self, node: &str) -> Box<dyn Stub> {
        self.provider.hold(&self.request(node)).await.unwrap()
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

    /// Puts a line into the queue, whole or not at all.
    fn write_queue(&self, text: &str) {
        fs::write(self.path("queue.test"), text).unwrap();
        fs::rename(self.path("queue.test"), self.path("queue")).unwrap();
    }

    /// All jobs of the queue have this state from now on.
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

    /// Waits for so many more looks at the queue.
    async fn looks(&self, more: usize) {
        let before = self.calls("squeue").len();
        self.until("looks", |fake| fake.calls("squeue").len() >= before + more).await;
    }
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
    let fake = Fake::new();
    let mut stub = fake.hold("vu-1").await;
    let call = &fake.calls("sbatch")[0];
    for part in [
        "--parsable --no-requeue --export=ALL --nodes=1 --ntasks=1 --cpus-per-task=2",
        "--job-name=springtide.home.31152f8dd9.vu.vu-1 ",
        "--signal=B:USR1@20 ",
        "--partition=batch --time=2 --mem=1024M",
    ] {
        assert!(call.contains(part), "{call}");
    }
    assert!(fake.read("script").contains("node' 'run' '--config'"), "{}", fake.read("script"));
    // Why it waits is said once.
    let waits = StubEvent::Waits { reason: "Priority".to_owned() };
    assert_eq!(timeout(LONG, stub.news()).await, Ok(waits));
    assert!(timeout(Duration::from_millis(300), stub.news()).await.is_err());
    fake.all_are("R");
    active(&mut stub).await;
    fs::write(fake.path("vu-1.log"), "so it goes\n").unwrap();
    fake.all_are("F");
    let end = ended(&mut stub).await;
    assert_eq!(end.status, "batch job 101 failed (exit status: 3)");
    assert_eq!(end.last_lines, ["so it goes"]);
    assert_eq!((stub.id(), stub.release(LONG).await), (None, end));
    drop(stub);
    assert_eq!(fake.calls("scancel"), [""; 0]);
}

#[actix_rt::test]
async fn a_queue_that_does_not_answer_ends_nobody() {
    let fake = Fake::new().hasty();
    let mut stub = fake.hold("vu-1").await;
    fake.all_are("R");
    active(&mut stub).await;
    for mode in ["hang", "fail", "say Maintenance today", "say "] {
        fake.mode("squeue", mode);
        let polled = fake.provider.poll().await;
        let text = polled.map_err(|error| error.to_string());
        match mode {
            "hang" => assert!(text.unwrap_err().contains("did not answer within 1 s")),
            "fail" => assert!(text.unwrap_err().contains("Unable to contact slurm controller")),
            "say Maintenance today" => assert!(text.unwrap_err().contains("Maintenance today")),
            // An empty answer may be true: it counts when it is given again.
            _ => {}
        }
        if mode != "say " {
            assert!(timeout(Duration::from_millis(1500), stub.news()).await.is_err(), "{mode}");
        }
    }
    let end = ended(&mut stub).await;
    assert!(end.status.contains("gone"), "{end:?}");
    assert_eq!(fake.calls("scancel"), [""; 0]);
}

/// What one look saw before it asked for an exit code does not undo what a later one saw.
#[actix_rt::test]
async fn looks_side_by_side_do_not_turn_time_back() {
    let fake = Fake::new();
    let (mut first, mut second) = (fake.hold("vu-1").await, fake.hold("vu-2").await);
    fake.mode("scontrol", "slow");
    let both = |one: &str, two: &str| {
        let lines = [("101", one), ("102", two)].map(|(id, state)| {
            format!("springtide.home.31152f8dd9.vu.vu-{id}|{id}|{state}|1:00|2|n1|None|\n")
        });
        fake.write_queue(&lines.concat());
    };
    both("F", "R");
    fake.until("it asks", |fake| !fake.calls("scontrol").is_empty()).await;
    both("F", "CD");
    fake.provider.list().await.unwrap();
    assert_eq!(ended(&mut first).await.status, "batch job 101 failed (exit status: 3)");
    assert_eq!(ended(&mut second).await.status, "batch job 102 completed");
}

/// A wrapper of a command leaves nothing behind that hangs.
#[actix_rt::test]
async fn what_a_command_has_started_ends_with_it() {
    let fake = Fake::new().hasty();
    let pids = fake.path("pids");
    let started = format!("sleep 600 & echo $! >>'{}'; wait", pids.display());
    let made = Command::new("sh")
        .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\""])
        .arg(fake.path("squeue"))
        .arg(started)
        .status();
    assert!(made.unwrap().success());
    let error = fake.provider.list().await.unwrap_err();
    assert!(error.to_string().contains("did not answer within 1 s"), "{error}");
    let pid = fake.read("pids").trim().to_owned();
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended.
    fake.until("it ends", |_| state().is_empty() || state().contains(") Z ")).await;
}

#[actix_rt::test]
async fn what_no_shell_can_be_told_is_refused() {
    let fake = Fake::new();
    for (name, value) in [("A B", "x"), ("a.b", "x"), ("A", "x\0y")] {
        let env = vec![(name.to_owned(), value.to_owned())];
        let request = NodeRequest { env, ..fake.request("vu-1") };
        let Err(error) = fake.provider.hold(&request).await else { panic!("held") };
        assert!(error.to_string().contains("`cluster.env`"), "{error}");
    }
    assert_eq!(fake.calls("sbatch"), [""; 0]);
}

#[actix_rt::test]
async fn a_submission_that_hangs_and_arrives_is_taken_back() {
    let fake = Fake::new().hasty();
    fake.write_queue("springtide.home.31152f8dd9.vu.vu-1|7|R|1:00|2|n1|None|\n");
    for (mode, word) in [("hang", "did not answer"), ("fail", "controller"), ("say ok", "\"ok\"")] {
        fake.mode("sbatch", mode);
        let Err(error) = fake.provider.hold(&fake.request("vu-2")).await else { panic!("held") };
        assert!(error.to_string().contains(word), "{error}");
    }
    fake.until("all are cancelled", |fake| fake.read("queue").matches("|CA|").count() == 3).await;
    // Nobody else's, and no other node's.
    assert!(fake.read("queue").contains("springtide.home.31152f8dd9.vu.vu-1|7|R|"));
    let listed = fake.provider.list().await.unwrap();
    assert_eq!(listed, [ExistingStub { node: "vu-1".into(), id: StubId("7".into()) }]);
}

#[actix_rt::test]
async fn one_that_nobody_waits_for_is_taken_back() {
    let fake = Fake::new();
    fake.mode("sbatch", "hang");
    let request = fake.request("vu-1");
    let provider = fake.provider.clone();
    let held = actix_rt::spawn(async move { provider.hold(&request).await.map(drop) });
    fake.until("it arrives", |fake| fake.read("queue").contains("vu-1")).await;
    held.abort();
    fake.until("it is cancelled", |fake| fake.read("queue").contains("|CA|")).await;
}

#[actix_rt::test]
async fn only_own_stubs_are_listed_and_one_for_each_node() {
    let fake = Fake::new();
    fake.write_queue(
        "springtide.home.31152f8dd9.vu.vu-1|1|PD|5:00|2||Priority|\n\
         springtide.home.31152f8dd9.vu.vu-1|2|R|5:00|2|n1|None|\n\
         springtide.home.31152f8dd9.vu.vu-2|3|CG|5:00|2|n1|None|\n\
         springtide.home.31152f8dd9.vu.vu-3|4|PD|5:00|2||Priority|\n\
         springtide.home.31152f8dd9.vu.vu-4|5|CD|5:00|2||None|\n\
         springtide.home.31152f8dd9.uva.uva-1|6|R|5:00|2|n1|None|\n\
         springtide.other.31152f8dd9.vu.vu-1|7|R|5:00|2|n1|None|\n\
         mine|8|R|5:00|2|n1|None|\n",
    );
    let listed = fake.provider.list().await.unwrap();
    let listed: Vec<_> = listed.iter().map(|it| (it.node.as_str(), it.id.0.as_str())).collect();
    assert_eq!(listed, [("vu-1", "2"), ("vu-3", "4")]);
    fake.until("the second", |fake| fake.calls("scancel") == ["1"]).await;
    fake.until("it is cancelled", |fake| fake.read("queue").contains("vu-1|1|CA|")).await;
    let lines = fake.read("queue");
    assert_eq!(lines.matches("|CA|").count(), 1, "{lines}");
}

#[actix_rt::test]
async fn dropped_is_cancelled_and_left_is_not() {
    let fake = Fake::new();
    let (dropped, left) = (fake.hold("vu-1").await, fake.hold("vu-2").await);
    left.leave();
    // The first order does not arrive.
    fake.mode("scancel", "fail");
    drop(dropped);
    fake.until("it was tried", |fake| !fake.calls("scancel").is_empty()).await;
    fake.mode("scancel", "");
    fake.until("it is cancelled", |fake| fake.read("queue").contains("vu-1|101|CA|")).await;
    fake.looks(1).await;
    assert!(fake.read("queue").contains("vu-2|102|PD|"));
    assert!(fake.calls("scancel").iter().all(|call| call == "101"));

    // Found again, by another life of the provider.
    let later = Fake::provider(fake.dir.path(), "5s");
    let listed = later.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    fake.all_are("R");
    let request = NodeRequest { config: fake.path("elsewhere.toml"), ..fake.request("vu-2") };
    let mut stub = later.adopt(&listed[0], &request).await.unwrap();
    active(&mut stub).await;
    // Nor does this one, at first: whoever waits for its end orders it again.
    fake.mode("scancel", "fail");
    let before = fake.calls("scancel").len();
    stub.kill();
    fake.until("it was tried", |fake| fake.calls("scancel").len() >= before + 2).await;
    fake.mode("scancel", "");
    let end = ended(&mut stub).await;
    fake.until("it is killed", |fake| fake.read("queue").contains("vu-2|102|CA|")).await;
    assert!(fake.calls("scancel").contains(&"--batch --signal=ALRM 102".to_owned()));
    assert_eq!(end.status, "batch job 102 cancelled");
}

#[test]
fn a_process_that_ends_in_a_hurry_cancels_what_it_holds() {
    let fake = Fake::new();
    let system = actix_rt::System::new();
    let (provider, request) = (fake.provider.clone(), fake.request("vu-1"));
    let again = fake.provider.clone();
    let outlives = system.block_on(async move {
        let second = NodeRequest { node: "vu-2".into(), ..request.clone() };
        let stub = provider.hold(&request).await.unwrap();
        // One in a task, as a site has it, and one that outlives the executor.
        actix_rt::spawn(async move {
            let mut stub = stub;
            loop {
                stub.news().await;
            }
        });
        again.hold(&second).await.unwrap()
    });
    drop(system);
    drop(outlives);
    let begun = std::time::Instant::now();
    // What is read is what was ordered: these commands run at the same time, and the scripts' queue is not made for that.
    let ordered = || fake.calls("scancel").join(" ");
    while ["101", "102"].iter().any(|id| !ordered().contains(id)) {
        assert!(begun.elapsed() < LONG, "{}", ordered());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[actix_rt::test]
async fn hundreds_of_stubs_are_one_command_each_time() {
    let fake = Fake::new();
    let mut stubs = Vec::new();
    for i in 0..150 {
        stubs.push(fake.hold(&format!("vu-{i}")).await);
    }
    fake.all_are("R");
    for stub in &mut stubs {
        active(stub).await;
    }
    let before = fake.calls("squeue").len();
    fake.looks(2).await;
    assert!(fake.calls("squeue").len() < before + 20);
    let releases = stubs.into_iter().map(|mut stub| {
        actix_rt::spawn(async move { stub.release(Duration::from_millis(100)).await })
    });
    for release in releases.collect::<Vec<_>>() {
        assert!(release.await.unwrap().status.ends_with("cancelled"));
    }
    let calls = fake.calls("scancel");
    assert!(calls[0].starts_with("--batch --signal=USR1 101 102 "), "{}", calls[0]);
    assert!(calls.len() < 30, "{}", calls.len());
}

#[actix_rt::test]
async fn what_others_use_is_seen_and_ours_is_not() {
    let fake = Fake::new();
    fs::write(
        fake.path("machines"),
        "n1|5/3/0/8|mixed|up|batch*|8000\nn2|0/0/8/8|drained|up|batch*|8000\n",
    )
    .unwrap();
    // A stub that nobody here holds is others'.
    fake.write_queue("springtide.home.31152f8dd9.vu.vu-9|7|R|1:00|2|n1|None|\n");
    let poll = async || fake.provider.poll().await.unwrap();
    assert_eq!(poll().await, Some(Capacity { size: 4, others: 3 }));
    let mut stub = fake.hold("vu-1").await;
    fake.all_are("R");
    active(&mut stub).await;
    assert_eq!(poll().await, Some(Capacity { size: 4, others: 2 }));
    fake.mode("sinfo", "say n1|lots|idle");
    let error = fake.provider.poll().await.unwrap_err();
    assert!(error.to_string().contains("n1|lots|idle"), "{error}");
    stub.leave();
}

#[actix_rt::test]
async fn a_stub_that_waits_gets_another_program() {
    let fake = Fake::new();
    let mut stub = fake.hold("vu-1").await;
    for env in ["second", "third"] {
        let env = vec![("GREETING".to_owned(), env.to_owned())];
        let request = NodeRequest { env, ..fake.request("vu-1") };
        stub.recruit(&request, LONG).await.unwrap();
    }
    // It begins with the last of them.
    let next = fake.read("vu-1.toml.next-101-1");
    assert!(next.contains("GREETING=third"), "{next}");
    assert_eq!(fake.calls("scancel"), [""; 0]);
    stub.release(LONG).await;
    assert!(!fake.path("vu-1.toml.next-101-1").exists());
    assert_eq!(fake.calls("scancel"), ["101"]);
}

/// The queue may be behind: a script that listens has begun, whatever was last seen.
#[actix_rt::test]
async fn one_that_has_begun_is_told_though_the_queue_says_that_it_waits() {
    let fake = Fake::new();
    let mut stub = fake.hold("vu-1").await;
    fs::write(fake.path("vu-1.toml.up-101"), "").unwrap();
    let request = fake.request("vu-1");
    let recruit = actix_rt::spawn(async move { stub.recruit(&request, LONG).await.map(|()| stub) });
    let told = ["--batch --signal=USR2 101"];
    fake.until("it is told", |fake| fake.calls("scancel") == told).await;
    assert!(!recruit.is_finished());
    // It takes the program.
    fs::remove_file(fake.path("vu-1.toml.next-101-1")).unwrap();
    let mut stub = timeout(LONG, recruit).await.unwrap().unwrap().unwrap();
    fake.all_are("R");
    active(&mut stub).await;
}

#[actix_rt::test]
async fn one_that_two_have_ends_for_both() {
    let fake = Fake::new();
    fake.write_queue(
        "springtide.home.31152f8dd9.vu.vu-1|7|R|1:00|2|n1|None|\n\
         springtide.home.31152f8dd9.vu.vu-2|8|R|1:00|2|n1|None|\n",
    );
    let listed = fake.provider.list().await.unwrap();
    let request = fake.request("vu-1");
    let adopt = async |at: usize| fake.provider.adopt(&listed[at], &request).await.unwrap();
    // Where the one leaves it the other hears no more of it, which is an end as well.
    let (left, mut other) = (adopt(1).await, adopt(1).await);
    active(&mut other).await;
    left.leave();
    assert_eq!(ended(&mut other).await.status, "batch job 8 is followed by nobody any more");
    other.leave();
    let (mut first, mut second) = (adopt(0).await, adopt(0).await);
    active(&mut first).await;
    fake.all_are("CD");
    for stub in [&mut first, &mut second] {
        assert_eq!(ended(stub).await.status, "batch job 7 completed");
    }
}

#[actix_rt::test]
async fn commands_that_are_not_there_are_said() {
    let mut fake = Fake::new();
    fake.provider = Fake::provider(&fake.path("nothing"), "5s");
    let Err(error) = fake.provider.hold(&fake.request("vu-1")).await else { panic!("held") };
    let text = error.to_string();
    assert!(text.contains("cannot start") && text.contains("nothing/sbatch"), "{text}");
}
