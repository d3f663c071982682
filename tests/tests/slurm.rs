//! The Slurm provider against a real Slurm: small clusters of this machine's own, started for each
//! test.
//!
//! If that is not possible the tests print the reason and pass.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use springtide_actors::provider::{
    Capacity, ExistingStub, NodeRequest, Provider, SlurmProvider, Stub, StubEnd, StubEvent, StubId,
};
use springtide_runtime::config::{GridConfig, Sources, load};
use springtide_tests::slurm::SlurmLab;
use tokio::time::{Instant, sleep, timeout};

/// Far above all expected waits.
const LONG: Duration = Duration::from_secs(120);

/// A program in place of a node: reports that it runs, and ends on SIGTERM.
const LISTENS: &str = "#!/bin/sh\necho \"$GREETING $*\"\ntrap 'echo leaves; exit 0' TERM\n\
    while :; do sleep 0.05; done\n";
/// A program in place of a node that does not end in order.
const STAYS: &str =
    "#!/bin/sh\necho \"$GREETING $*\"\ntrap 'echo stays' TERM\nwhile :; do sleep 0.05; done\n";

/// A cluster of one machine, with the requirements of its nodes.
struct TestCluster {
    lab: SlurmLab,
    grid: String,
    authority: String,
}

impl TestCluster {
    /// Starts a cluster; none, with the reason printed, if this machine does not allow it.
    fn start(processors: u32) -> Option<Self> {
        match SlurmLab::start(&[("vu", processors)]) {
            Ok(lab) => Some(Self { lab, grid: "home".to_owned(), authority: "ours".to_owned() }),
            Err(skipped) => {
                println!("{skipped}");
                None
            }
        }
    }

    fn provider(&self, more: &str) -> SlurmProvider {
        let conf = self.lab.conf("vu").display().to_string();
        let text = format!(
            "[[cluster]]\nname = \"vu\"\nprovider = \"slurm\"\n[cluster.slurm]\nconf = {conf:?}\n\
             poll = \"500ms\"\n{more}\n"
        );
        let config = load::<GridConfig>(&Sources::of_text("test", &text)).expect("a config").value;
        let section = config.cluster[0].slurm.as_ref().expect("a section");
        SlurmProvider::new(&self.grid, &self.authority, &"vu".into(), section, 1)
    }

    /// The folder of its nodes' files: a path that a shell would misread if it could.
    fn path(&self, name: &str) -> PathBuf {
        let dir = self.lab.files("vu").join("it's \"%j\" $HOME");
        fs::create_dir_all(&dir).expect("a folder of the laboratory");
        dir.join(name)
    }

    fn request(&self, node: &str, program: &str, greeting: &str) -> NodeRequest {
        let name = if program == STAYS { "stays" } else { "listens" };
        let file = self.path(name);
        if !file.exists() {
            fs::write(&file, program).expect("a program");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its rights");
        }
        NodeRequest {
            node: node.into(),
            program: file,
            config: self.path(&format!("{node}.toml")),
            log: self.path(&format!("{node}.log")),
            env: vec![("GREETING".to_owned(), greeting.to_owned())],
            threads: 1,
        }
    }

    async fn hold(&self, provider: &SlurmProvider, node: &str) -> Box<dyn Stub> {
        provider.hold(&self.request(node, LISTENS, "hello")).await.expect("it is submitted")
    }

    fn log(&self, node: &str) -> String {
        fs::read_to_string(self.path(&format!("{node}.log"))).unwrap_or_default()
    }

    /// Waits until a node has written this.
    async fn says(&self, node: &str, word: &str) {
        let begun = Instant::now();
        while !self.log(node).contains(word) {
            assert!(begun.elapsed() < LONG, "{node} does not say {word}: {}", self.log(node));
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Processors in use, by Slurm.
    fn busy(&self) -> u32 {
        let counts = self.lab.user("vu", "sinfo", &["--noheader", "--format=%C"]);
        counts.split('/').next().and_then(|busy| busy.trim().parse().ok()).expect("a number")
    }
}

/// The next news of a stub, except the reasons of its wait.
async fn news(stub: &mut Box<dyn Stub>) -> StubEvent {
    loop {
        match timeout(LONG, stub.news()).await.expect("news of a stub") {
            StubEvent::Waits { .. } => {}
            news => return news,
        }
    }
}

async fn ended(stub: &mut Box<dyn Stub>) -> StubEnd {
    loop {
        if let StubEvent::Ended(ended) = news(stub).await {
            return ended;
        }
    }
}

async fn release_all(stubs: Vec<Box<dyn Stub>>) {
    let releases: Vec<_> = stubs
        .into_iter()
        .map(|mut stub| actix_rt::spawn(async move { stub.release(LONG).await }))
        .collect();
    for release in releases {
        timeout(LONG, release).await.expect("it is released").expect("no panic");
    }
}

#[actix_rt::test]
async fn a_processor_is_held_and_is_free_again() {
    let Some(cluster) = TestCluster::start(6) else { return };
    // Its machine claims to have 100,000 MiB.
    let large = cluster.provider("memory = \"40000MiB\"");
    assert_eq!(large.poll().await.unwrap(), Some(Capacity { size: 2, others: 0 }));
    let provider = cluster.provider("");
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 6, others: 0 }));
    let mut stub = cluster.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    let config = cluster.path("vu-1.toml");
    cluster.says("vu-1", &format!("hello node run --config {}\n", config.display())).await;
    assert_eq!(cluster.busy(), 1);
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 6, others: 0 }));
    let end = timeout(LONG, stub.release(LONG)).await.unwrap();
    // The node was ended once, in order, and nothing was killed.
    assert_eq!(cluster.log("vu-1").matches("leaves").count(), 1, "{}", cluster.log("vu-1"));
    assert_eq!(end.last_lines.last().map(String::as_str), Some("leaves"));
    assert!(end.status.ends_with("completed"), "{end:?}");
    assert_eq!(cluster.busy(), 0);
    // Its files are removed, except those of the site.
    let left = fs::read_dir(config.parent().unwrap()).unwrap().count();
    assert_eq!(left, 2, "its program and its log");
}

#[actix_rt::test]
async fn twenty_at_once_fit_and_others_wait_and_are_cancelled() {
    let Some(cluster) = TestCluster::start(20) else { return };
    let provider = cluster.provider("");
    let mut stubs = Vec::new();
    for i in 1..=20 {
        stubs.push(cluster.hold(&provider, &format!("vu-{i}")).await);
    }
    for stub in &mut stubs {
        assert_eq!(news(stub).await, StubEvent::Active);
    }
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 20, others: 0 }));
    let mut waiting = Vec::new();
    for i in 21..=24 {
        waiting.push(cluster.hold(&provider, &format!("vu-{i}")).await);
    }
    for stub in &mut waiting {
        let none = timeout(Duration::from_millis(700), news(stub)).await;
        assert!(none.is_err(), "there is no processor for it: {none:?}");
    }
    assert_eq!(provider.list().await.unwrap().len(), 24);
    release_all(waiting).await;
    assert_eq!((cluster.busy(), provider.list().await.unwrap().len()), (20, 20));
    assert_eq!(cluster.log("vu-21"), "", "it never ran");
    release_all(stubs).await;
    assert_eq!((cluster.busy(), provider.list().await.unwrap().len()), (0, 0));
}

#[actix_rt::test]
async fn processors_of_local_users_are_seen_and_cancelled_stubs_end() {
    let Some(cluster) = TestCluster::start(6) else { return };
    let provider = cluster.provider("");
    let lab = &cluster.lab;
    let args = ["--parsable", "-n1", "-c3", "--output=/dev/null", "--wrap=exec sleep 600"];
    let job = lab.user("vu", "sbatch", &args);
    let begun = Instant::now();
    while provider.poll().await.unwrap() != Some(Capacity { size: 6, others: 3 }) {
        assert!(begun.elapsed() < LONG, "{:?}", provider.poll().await);
        sleep(Duration::from_millis(100)).await;
    }
    let mut stub = cluster.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 6, others: 3 }));
    cluster.says("vu-1", "hello").await;
    lab.user("vu", "scancel", &[&stub.id().unwrap().0]);
    let end = ended(&mut stub).await;
    assert!(end.status.ends_with("cancelled"), "{end:?}");
    // The node was ended once, so that it left in order.
    assert_eq!(cluster.log("vu-1").matches("leaves").count(), 1, "{}", cluster.log("vu-1"));
    drop(stub);
    // Other jobs continue.
    assert_eq!(lab.user("vu", "squeue", &["--noheader", "--format=%i %t"]), format!("{job} R"));
    // A program that ends by itself reports its status.
    let ends = cluster.path("ends");
    fs::write(&ends, "#!/bin/sh\necho no luck\nexit 4\n").unwrap();
    fs::set_permissions(&ends, fs::Permissions::from_mode(0o755)).unwrap();
    let request = NodeRequest { program: ends, ..cluster.request("vu-2", LISTENS, "") };
    let mut stub = provider.hold(&request).await.unwrap();
    let end = ended(&mut stub).await;
    assert!(end.status.ends_with("failed (exit status: 4)"), "{end:?}");
    assert_eq!(end.last_lines, ["no luck"]);
}

#[actix_rt::test]
async fn a_stub_that_was_left_is_found_and_gets_other_programs() {
    let Some(cluster) = TestCluster::start(2) else { return };
    let provider = cluster.provider("");
    let mut stub = cluster.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    cluster.says("vu-1", "hello").await;
    let id = stub.id().unwrap();
    stub.leave();
    drop(provider);

    let later = cluster.provider("");
    let listed = later.list().await.unwrap();
    assert_eq!(listed, [ExistingStub { node: "vu-1".into(), id: id.clone() }]);
    // Another grid sees nothing.
    let other = TestCluster { grid: "other".to_owned(), ..cluster };
    assert_eq!(other.provider("").list().await.unwrap(), []);
    // Nor does another grid with the same name.
    let theirs = "theirs".to_owned();
    let other = TestCluster { grid: "home".to_owned(), authority: theirs, ..other };
    assert_eq!(other.provider("").list().await.unwrap(), []);
    let cluster = TestCluster { authority: "ours".to_owned(), ..other };

    // The new site has other paths; the job knows its own.
    let request = cluster.request("vu-1", STAYS, "second");
    let request = NodeRequest { config: cluster.path("elsewhere.toml"), ..request };
    let mut stub = later.adopt(&listed[0], &request).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    timeout(LONG, stub.recruit(&request, LONG)).await.unwrap().unwrap();
    cluster.says("vu-1", "second node run").await;
    assert_eq!(cluster.log("vu-1").matches("leaves").count(), 1);
    // The second does not end in order.
    let third = cluster.request("vu-1", LISTENS, "third");
    timeout(LONG, stub.recruit(&third, Duration::from_millis(300))).await.unwrap().unwrap();
    cluster.says("vu-1", "third node run").await;
    assert_eq!(cluster.log("vu-1").matches("stays").count(), 1);
    assert_eq!((stub.id(), cluster.busy()), (Some(id), 1));

    // A dropped stub is cancelled, and the node is ended.
    drop(stub);
    let begun = Instant::now();
    // Not by its processor, which sinfo reports as free as soon as a job has an order to end.
    while !cluster.lab.user("vu", "squeue", &["--noheader"]).is_empty() {
        assert!(begun.elapsed() < LONG, "the dropped stub is still there");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(cluster.log("vu-1").matches("leaves").count(), 2, "{}", cluster.log("vu-1"));
    // A job that does not exist has ended.
    let gone = ExistingStub { node: "vu-7".into(), id: StubId("4711".into()) };
    let mut stub = later.adopt(&gone, &third).await.unwrap();
    assert!(ended(&mut stub).await.status.contains("gone"));
}

#[actix_rt::test]
async fn a_job_that_loses_its_processor_is_warned_and_then_killed() {
    let Some(cluster) = TestCluster::start(2) else { return };
    let provider = cluster.provider("time = \"60s\"\nleave_ahead = \"56s\"");
    let request = cluster.request("vu-1", STAYS, "hello");
    let mut stub = provider.hold(&request).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    match news(&mut stub).await {
        StubEvent::Warned { within, reason } => {
            assert!(within <= Duration::from_secs(56) && reason.contains("time"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let end = timeout(LONG, stub.release(Duration::ZERO)).await.unwrap();
    assert!(!end.status.contains("time limit"), "{end:?}");
    assert_eq!(cluster.busy(), 0);
}

#[actix_rt::test]
async fn a_hanging_controller_ends_no_node_and_leaves_no_job() {
    let Some(cluster) = TestCluster::start(3) else { return };
    let provider = cluster.provider("");
    let mut stub = cluster.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    cluster.says("vu-1", "hello").await;

    let hasty = cluster.provider("answer_timeout = \"1s\"");
    cluster.lab.signal_controller("vu", "STOP");
    let Err(error) = hasty.hold(&cluster.request("vu-2", LISTENS, "hello")).await else {
        panic!("it was submitted to a controller that stands still");
    };
    assert!(error.to_string().contains("did not answer within 1 s"), "{error}");
    assert!(hasty.poll().await.is_err());
    let none = timeout(Duration::from_secs(2), stub.news()).await;
    assert!(none.is_err(), "nothing is known of it: {none:?}");
    cluster.lab.signal_controller("vu", "CONT");

    // The submission may be executed now; then it is cancelled.
    let begun = Instant::now();
    let mut quiet = 0;
    while quiet < 10 {
        assert!(begun.elapsed() < LONG, "{:?}", provider.list().await);
        sleep(Duration::from_millis(200)).await;
        let there = provider.list().await.unwrap();
        quiet = if there.len() == 1 && there[0].node.as_str() == "vu-1" { quiet + 1 } else { 0 };
    }
    assert_eq!(cluster.busy(), 1);
    let none = timeout(Duration::from_millis(100), stub.news()).await;
    assert!(none.is_err(), "it runs on: {none:?}");
    timeout(LONG, stub.release(LONG)).await.unwrap();
    assert_eq!(cluster.busy(), 0);
}

/// The time to hold a processor, and to run another program in one that is held: `cargo test -p
/// springtide-tests --test all slurm::measured -- --ignored --nocapture`.
#[actix_rt::test]
#[ignore = "a measurement; its command is in its comment"]
async fn measured() {
    const TIMES: usize = 10;
    let Some(cluster) = TestCluster::start(4) else { return };
    let provider = cluster.provider("");
    let median = |what: &str, times: &mut Vec<Duration>| {
        times.sort();
        let median = (times[TIMES / 2 - 1] + times[TIMES / 2]) / 2;
        let all: Vec<u128> = times.iter().map(Duration::as_millis).collect();
        println!("{what} median {} ms of {all:?}", median.as_millis());
        median
    };
    let (mut active, mut runs, mut freed) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..TIMES {
        let word = format!("held {i}, ");
        let request = cluster.request("vu-1", LISTENS, &word);
        let begun = Instant::now();
        let mut stub = provider.hold(&request).await.unwrap();
        let (is_active, ()) = tokio::join!(
            async {
                assert_eq!(news(&mut stub).await, StubEvent::Active);
                begun.elapsed()
            },
            async {
                cluster.says("vu-1", &word).await;
                runs.push(begun.elapsed());
            }
        );
        active.push(is_active);
        let begun = Instant::now();
        stub.release(LONG).await;
        freed.push(begun.elapsed());
    }
    median("hold, until it is known to be active:", &mut active);
    let fresh = median("hold, until its program runs:        ", &mut runs);
    median("release, until the processor is free:", &mut freed);

    let mut stub = provider.hold(&cluster.request("vu-1", LISTENS, "first")).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    cluster.says("vu-1", "first").await;
    let mut recruited = Vec::new();
    for i in 0..TIMES {
        let word = format!("recruited {i}, ");
        let begun = Instant::now();
        stub.recruit(&cluster.request("vu-1", LISTENS, &word), LONG).await.unwrap();
        cluster.says("vu-1", &word).await;
        recruited.push(begun.elapsed());
    }
    let recruited = median("recruit, until the program runs:     ", &mut recruited);
    stub.release(LONG).await;
    // The purpose of recruiting. On a busy machine one such time is not significant, and ten are.
    assert!(recruited < fresh, "{recruited:?} to recruit, {fresh:?} to hold again");
}
