//! The provider of batch jobs against real batch systems: the parts that all of them share.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use springtide_actors::provider::{
    BatchCluster, BatchProvider, Capacity, ExistingStub, NodeRequest, Provider, Stub, StubEnd,
    StubEvent, StubId,
};
use springtide_runtime::config::{GridConfig, Sources, load};
use tokio::time::{Instant, sleep, timeout};

/// Far above all expected waits.
pub const LONG: Duration = Duration::from_secs(120);

/// A program in place of a node: reports that it runs, and ends on SIGTERM.
pub const LISTENS: &str = "#!/bin/sh\necho \"$GREETING $*\"\n\
    trap 'echo leaves; exit 0' TERM\nwhile :; do sleep 0.05; done\n";
/// A program in place of a node that does not end in order.
pub const STAYS: &str =
    "#!/bin/sh\necho \"$GREETING $*\"\ntrap 'echo stays' TERM\nwhile :; do sleep 0.05; done\n";

/// The site of a cluster with a real batch system.
#[derive(Clone)]
pub struct BatchSite {
    pub grid: String,
    pub authority: String,
    /// The provider, the header of its section and its keys, in TOML.
    pub section: String,
    /// The compute threads of a node.
    pub threads: u32,
    /// A folder that the nodes share.
    pub files: PathBuf,
}

impl BatchSite {
    pub fn new(section: String, files: PathBuf) -> Self {
        let (grid, authority) = ("home".to_owned(), "ours".to_owned());
        Self { grid, authority, section, threads: 1, files }
    }

    /// A provider, with further keys of its section.
    pub fn provider(&self, more: &str) -> BatchProvider {
        let text = format!("[[cluster]]\nname = \"vu\"\n{}\n{more}\n", self.section);
        let config = load::<GridConfig>(&Sources::of_text("test", &text)).expect("a config").value;
        let section = config.cluster[0].batch_system().expect("a section");
        let cluster = BatchCluster {
            grid: &self.grid,
            authority: &self.authority,
            name: &"vu".into(),
            nodes: 100,
            threads: self.threads,
        };
        BatchProvider::new(&cluster, &section).expect("a batch system")
    }

    /// A file of the nodes, in a path that a shell would misread if it could.
    pub fn path(&self, name: &str) -> PathBuf {
        let dir = self.files.join("it's \"%j\" $HOME");
        fs::create_dir_all(&dir).expect("a folder of the laboratory");
        dir.join(name)
    }

    pub fn request(&self, node: &str, program: &str, greeting: &str) -> NodeRequest {
        let name = match program {
            LISTENS => "listens",
            STAYS => "stays",
            _ => "other",
        };
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
            threads: self.threads,
            host: None,
            shipped: None,
        }
    }

    pub async fn hold(&self, provider: &BatchProvider, node: &str) -> Box<dyn Stub> {
        provider.hold(&self.request(node, LISTENS, "hello")).await.expect("it is submitted")
    }

    pub fn log(&self, node: &str) -> String {
        fs::read_to_string(self.path(&format!("{node}.log"))).unwrap_or_default()
    }

    /// The number of times that a node has written this.
    pub fn count(&self, node: &str, word: &str) -> usize {
        self.log(node).matches(word).count()
    }

    /// Waits until a node has written this.
    pub async fn says(&self, node: &str, word: &str) {
        let begun = Instant::now();
        while !self.log(node).contains(word) {
            assert!(begun.elapsed() < LONG, "{node} does not say {word}: {}", self.log(node));
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The next news of a stub, except the reasons of its wait.
pub async fn news(stub: &mut Box<dyn Stub>) -> StubEvent {
    loop {
        match timeout(LONG, stub.news()).await.expect("news of a stub") {
            StubEvent::Waits { .. } => {}
            news => return news,
        }
    }
}

pub async fn ended(stub: &mut Box<dyn Stub>) -> StubEnd {
    loop {
        if let StubEvent::Ended(ended) = news(stub).await {
            return ended;
        }
    }
}

pub async fn release_all(stubs: Vec<Box<dyn Stub>>) {
    let releases: Vec<_> = stubs
        .into_iter()
        .map(|mut stub| actix_rt::spawn(async move { stub.release(LONG).await }))
        .collect();
    for release in releases {
        timeout(LONG, release).await.expect("it is released").expect("no panic");
    }
}

/// Waits until the provider reports this capacity.
pub async fn capacity_is(provider: &BatchProvider, size: u32, others: u32) {
    let begun = Instant::now();
    let expected = Some(Capacity { size, others });
    loop {
        let found = provider.poll().await.expect("an answer");
        if found == expected {
            return;
        }
        assert!(begun.elapsed() < LONG, "{found:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// A program that ends by itself reports its status and its last lines.
pub async fn a_failed_program_reports_its_status(site: &BatchSite, provider: &BatchProvider) {
    let request = site.request("vu-2", "#!/bin/sh\necho no luck\nexit 4\n", "");
    let mut stub = provider.hold(&request).await.unwrap();
    let end = ended(&mut stub).await;
    assert!(end.status.ends_with("failed (exit status: 4)"), "{end:?}");
    assert_eq!(end.last_lines, ["no luck"]);
}

/// Holds a processor of a cluster with this capacity, and releases it.
pub async fn hold_and_release(site: &BatchSite, size: u32) {
    let provider = site.provider("");
    capacity_is(&provider, size, 0).await;
    let mut stub = site.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    let config = site.path("vu-1.toml");
    site.says("vu-1", &format!("hello node run --config {}\n", config.display())).await;
    capacity_is(&provider, size, 0).await;
    let end = timeout(LONG, stub.release(LONG)).await.unwrap();
    // The node was ended once, in order, and nothing was killed.
    assert_eq!(site.count("vu-1", "leaves"), 1, "{}", site.log("vu-1"));
    assert_eq!(end.last_lines.last().map(String::as_str), Some("leaves"));
    assert!(end.status.ends_with("completed"), "{end:?}");
    drop(stub);
    // Its files are removed, except those of the site.
    let left = fs::read_dir(config.parent().unwrap()).unwrap();
    let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "its program and its log: {left:?}");
}

/// Leaves a stub, finds it again, and starts other programs in it. `exists` says whether the batch
/// system has a job.
pub async fn leave_and_recruit(site: &BatchSite, exists: impl Fn() -> bool) {
    let provider = site.provider("");
    let mut stub = site.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-1", "hello").await;
    let id = stub.id().unwrap();
    stub.leave();
    drop(provider);

    let later = site.provider("");
    let listed = later.list().await.unwrap();
    assert_eq!(listed, [ExistingStub { node: "vu-1".into(), id: id.clone() }]);
    // Another grid sees no stub, nor does another grid with the same name.
    let other = BatchSite { grid: "other".to_owned(), ..site.clone() };
    assert_eq!(other.provider("").list().await.unwrap(), []);
    let other = BatchSite { authority: "theirs".to_owned(), ..site.clone() };
    assert_eq!(other.provider("").list().await.unwrap(), []);

    let request = site.request("vu-1", STAYS, "second");
    let mut stub = later.adopt(&listed[0], &request).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    timeout(LONG, stub.recruit(&request, LONG)).await.unwrap().unwrap();
    site.says("vu-1", "second node run").await;
    assert_eq!(site.count("vu-1", "leaves"), 1);
    // The second does not end in order.
    let third = site.request("vu-1", LISTENS, "third");
    timeout(LONG, stub.recruit(&third, Duration::from_millis(300))).await.unwrap().unwrap();
    site.says("vu-1", "third node run").await;
    assert_eq!(site.count("vu-1", "stays"), 1);
    assert_eq!(stub.id(), Some(id));

    // A dropped stub is cancelled.
    drop(stub);
    let begun = Instant::now();
    while exists() {
        assert!(begun.elapsed() < LONG, "the dropped stub still exists");
        sleep(Duration::from_millis(50)).await;
    }
    // A job that does not exist has ended.
    let gone = ExistingStub { node: "vu-7".into(), id: StubId("4711".into()) };
    let mut stub = later.adopt(&gone, &third).await.unwrap();
    assert!(ended(&mut stub).await.status.contains("gone"));
}

/// Holds all processors, and further stubs that wait. `busy` counts processors in use.
pub async fn fill(site: &BatchSite, size: u32, busy: impl Fn() -> u32) {
    let provider = site.provider("");
    let mut stubs = Vec::new();
    for i in 1..=size {
        stubs.push(site.hold(&provider, &format!("vu-{i}")).await);
    }
    for stub in &mut stubs {
        assert_eq!(news(stub).await, StubEvent::Active);
    }
    capacity_is(&provider, size, 0).await;
    let mut waiting = Vec::new();
    for i in size + 1..=size + 4 {
        waiting.push(site.hold(&provider, &format!("vu-{i}")).await);
    }
    for stub in &mut waiting {
        let none = timeout(Duration::from_millis(700), news(stub)).await;
        assert!(none.is_err(), "there is no processor for it: {none:?}");
    }
    let count = async || provider.list().await.unwrap().len();
    assert_eq!(count().await, size as usize + 4);
    release_all(waiting).await;
    assert_eq!((busy(), count().await), (size, size as usize));
    assert_eq!(site.log(&format!("vu-{}", size + 1)), "", "it never ran");
    release_all(stubs).await;
    assert_eq!((busy(), count().await), (0, 0));
}

/// Stops the controller of the batch system while a node runs and another one is submitted.
pub async fn stop_and_continue(site: &BatchSite, signal: impl Fn(&str)) {
    let provider = site.provider("");
    let mut stub = site.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-1", "hello").await;

    let hasty = site.provider("answer_timeout = \"1s\"");
    signal("STOP");
    let Err(error) = hasty.hold(&site.request("vu-2", LISTENS, "hello")).await else {
        panic!("it was submitted to a controller that stands still");
    };
    assert!(error.to_string().contains("did not answer within 1 s"), "{error}");
    assert!(hasty.poll().await.is_err());
    let none = timeout(Duration::from_secs(2), stub.news()).await;
    assert!(none.is_err(), "its state is unknown: {none:?}");
    signal("CONT");

    // The submission may be executed now; then it is cancelled.
    let begun = Instant::now();
    let mut quiet = 0;
    while quiet < 10 {
        assert!(begun.elapsed() < LONG, "{:?}", provider.list().await);
        sleep(Duration::from_millis(200)).await;
        let there = provider.list().await.unwrap_or_default();
        quiet = if there.len() == 1 && there[0].node.as_str() == "vu-1" { quiet + 1 } else { 0 };
    }
    let none = timeout(Duration::from_millis(100), stub.news()).await;
    assert!(none.is_err(), "it runs on: {none:?}");
    timeout(LONG, stub.release(LONG)).await.unwrap();
    assert_eq!(site.count("vu-1", "leaves"), 1);
}
