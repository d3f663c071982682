//! Tests of the site with a scripted provider and a recording scheduler, in virtual time.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Mutex;

use springtide_runtime::id::Peer;
use springtide_runtime::net::MemoryNet;
use tokio::time::sleep;

use super::*;
use crate::endpoint::Endpoint;
use crate::files::entry_of;
use crate::hardware::Hardware;
use crate::job::SCHEDULER;
use crate::node::Registrar;
use crate::programs::{
    ElfHeader, ProgramImage, ProgramLimits, ProgramReport, ProgramState, ProgramStore,
    ProgramStoreSettings, ProgramTarget, read_header,
};
use crate::provider::{LocalFuture, Stub, StubEnd, StubId};
use crate::scheduler::{NodeWork, StubLoss};
use crate::site_host::SiteHost;

const SECOND: Duration = Duration::from_secs(1);

/// Script of a provider, and the requests that it received.
#[derive(Default)]
struct SiteWorld {
    on_demand: bool,
    /// Results of `hold`: an error or success.
    refuses: RefCell<Option<fn() -> ProviderError>>,
    held: RefCell<Vec<Instant>>,
    /// Programs of these requests.
    programs: RefCell<Vec<PathBuf>>,
    listed: RefCell<Vec<ExistingStub>>,
    list_takes: Cell<Duration>,
    hold_takes: Cell<Duration>,
    release_takes: Cell<Duration>,
    /// Reason for which its stubs wait for ever, if any.
    waits: Option<&'static str>,
    done: RefCell<Vec<String>>,
}

#[derive(Clone, Default)]
struct Fake(Rc<SiteWorld>);

impl Fake {
    fn of(world: SiteWorld) -> Self {
        Self(Rc::new(world))
    }

    fn stub(&self, node: &NodeId) -> Box<dyn Stub> {
        Box::new(FakeStub { world: self.0.clone(), node: node.clone(), reports: false })
    }

    fn done(&self) -> Vec<String> {
        self.0.done.borrow().clone()
    }
}

impl Provider for Fake {
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        let found = self.0.on_demand.then_some(Capacity { size: 4, others: 0 });
        Box::pin(async move { Ok(found) })
    }

    fn list(&self) -> LocalFuture<'_, Result<Vec<ExistingStub>, ProviderError>> {
        Box::pin(async {
            sleep(self.0.list_takes.get()).await;
            Ok(self.0.listed.borrow().clone())
        })
    }

    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        self.0.held.borrow_mut().push(Instant::now());
        self.0.programs.borrow_mut().push(request.program.clone());
        let refused = *self.0.refuses.borrow();
        Box::pin(async move {
            sleep(self.0.hold_takes.get()).await;
            refused.map_or_else(|| Ok(self.stub(&request.node)), |why| Err(why()))
        })
    }

    fn adopt<'a>(
        &'a self,
        listed: &'a ExistingStub,
        _: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move { Ok(self.stub(&listed.node)) })
    }

    fn starts_programs(&self) -> bool {
        true
    }

    fn on_demand(&self) -> bool {
        self.0.on_demand
    }
}

struct FakeStub {
    world: Rc<SiteWorld>,
    node: NodeId,
    reports: bool,
}

impl FakeStub {
    fn note(&self, what: &str) {
        self.world.done.borrow_mut().push(format!("{what} {}", self.node));
    }
}

impl Stub for FakeStub {
    fn id(&self) -> Option<StubId> {
        None
    }

    fn last_lines(&self) -> Vec<String> {
        Vec::new()
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        let first = !std::mem::replace(&mut self.reports, true);
        Box::pin(async move {
            match (first, self.world.waits) {
                (true, None) => StubEvent::Active,
                (true, Some(why)) => StubEvent::Waits { reason: why.to_owned() },
                (false, _) => std::future::pending().await,
            }
        })
    }

    fn recruit<'a>(
        &'a mut self,
        _: &'a NodeRequest,
        _: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        self.note("recruit");
        Box::pin(async { Ok(()) })
    }

    fn release(&mut self, _: Duration) -> LocalFuture<'_, StubEnd> {
        self.note("release");
        Box::pin(async {
            sleep(self.world.release_takes.get()).await;
            StubEnd { status: "released".to_owned(), out_of_memory: false, last_lines: Vec::new() }
        })
    }

    fn kill(&mut self) {
        self.note("kill");
    }

    fn leave(self: Box<Self>) {}
}

/// Messages to the scheduler, with their times.
type ReceivedMessages = Arc<Mutex<Vec<(Instant, String)>>>;

/// Actor in place of the scheduler.
struct RecordingScheduler(ReceivedMessages);

impl Actor for RecordingScheduler {
    type Context = Context<Self>;
}

impl RecordingScheduler {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push((Instant::now(), what));
    }
}

impl Handler<SiteRegistration> for RecordingScheduler {
    type Result = ();

    fn handle(&mut self, up: SiteRegistration, _: &mut Self::Context) {
        let stubs: Vec<&str> = up.stubs.iter().map(NodeId::as_str).collect();
        self.note(format!("up with {}", stubs.join(" ")));
    }
}

impl Handler<NodeRegistration> for RecordingScheduler {
    type Result = ();

    fn handle(&mut self, registered: NodeRegistration, _: &mut Self::Context) {
        let job = registered.work.map(|work| work.job.to_string());
        self.note(format!("{} works for {}", registered.node, job.as_deref().unwrap_or("no job")));
    }
}

impl Handler<NodeLoss> for RecordingScheduler {
    type Result = ();

    fn handle(&mut self, lost: NodeLoss, _: &mut Self::Context) {
        let again = lost.retry_ms.map(|wait| format!(", again in {wait}")).unwrap_or_default();
        let NodeLoss { node, returns, reason, .. } = lost;
        self.note(format!("{node} lost, returns {returns}{again}: {reason}"));
    }
}

impl Handler<StubLoss> for RecordingScheduler {
    type Result = ();

    fn handle(&mut self, gone: StubLoss, _: &mut Self::Context) {
        self.note(format!("{} gone: {}", gone.node, gone.reason));
    }
}

impl Handler<ProgramReport> for RecordingScheduler {
    type Result = ();

    fn handle(&mut self, report: ProgramReport, _: &mut Self::Context) {
        self.note(match report.state {
            ProgramState::Sending { received, bytes } => format!("program {received} of {bytes}"),
            ProgramState::Ready { bytes, .. } => format!("program ready, {bytes} sent"),
            ProgramState::Failed { error } => format!("program failed: {error}"),
        });
    }
}

impl Handler<Drain> for RecordingScheduler {
    type Result = Result<crate::scheduler::DrainResult, crate::scheduler::DrainError>;

    fn handle(&mut self, drain: Drain, _: &mut Self::Context) -> Self::Result {
        let incarnation = drain.incarnation.map(|incarnation| incarnation.0);
        let nodes: Vec<&str> = drain.nodes.iter().map(NodeId::as_str).collect();
        let nodes = nodes.join(" ");
        self.note(format!("drain [{nodes}] of incarnation {incarnation:?}: {}", drain.reason));
        Ok(crate::scheduler::DrainResult::default())
    }
}

impl Handler<SiteReport> for RecordingScheduler {
    type Result = ();

    fn handle(&mut self, polled: SiteReport, _: &mut Self::Context) {
        self.note(format!("polled {:?}", polled.found));
    }
}

/// A site with nodes ams-1 to ams-9.
struct Test {
    site: Addr<Site>,
    fake: Fake,
    received: ReceivedMessages,
    network: MemoryNet,
    own: Endpoint,
    began: Instant,
    _head: Endpoint,
}

impl Test {
    /// Starts the site in paused time, which advances only during waits.
    fn start(fake: Fake) -> Self {
        Self::start_with(fake, None)
    }

    /// As [`Test::start`], with a store of programs in this directory.
    fn start_with(fake: Fake, programs: Option<&Path>) -> Self {
        tokio::time::pause();
        let began = Instant::now();
        let network = MemoryNet::new(1);
        let head = endpoint(&network, "head", 1);
        let own = endpoint(&network, "ams-site", 1);
        own.net.learn(head.net.contact());
        let received = ReceivedMessages::default();
        head.hub
            .publish(SCHEDULER, RecordingScheduler(received.clone()).start())
            .accepts::<SiteRegistration>()
            .accepts::<NodeRegistration>()
            .accepts::<NodeLoss>()
            .accepts::<StubLoss>()
            .accepts::<ProgramReport>()
            .accepts::<Drain>()
            .accepts::<SiteReport>();
        head.start();
        own.start();
        let request = |n: u32| NodeRequest {
            node: format!("ams-{n}").into(),
            program: "program".into(),
            config: PathBuf::new(),
            log: PathBuf::new(),
            env: Vec::new(),
            threads: 1,
            host: None,
            shipped: None,
        };
        let nodes = (1..=9).map(request).collect();
        let scheduler = own.hub.remote(&"head".into(), SCHEDULER);
        let provider: Rc<dyn Provider> = Rc::new(fake.clone());
        let (on_demand, hub) = (OnDemand::default(), own.hub.clone());
        let mut site = Site::new("ams".into(), nodes, provider, on_demand, scheduler, hub);
        site.is_own(own.net.contact());
        if let Some(dir) = programs {
            let limits = ProgramLimits::default();
            let dir = dir.to_owned();
            let settings =
                ProgramStoreSettings { dir, limits, foreign: true, own: None, audit_log: None };
            site.starts_from(ProgramStore::publish(settings, &own.net, &own.hub).unwrap());
        }
        let site = site.start();
        Self { site, fake, received, network, own, began, _head: head }
    }

    /// Messages to the scheduler, without polls.
    fn received(&self) -> Vec<String> {
        let received = self.received.lock().unwrap();
        let words = received.iter().map(|(_, what)| what.clone());
        words.filter(|what| !what.starts_with("polled")).collect()
    }

    /// Waits until this many seconds after the start.
    async fn at(&self, seconds: u64) {
        tokio::time::sleep_until(self.began + Duration::from_secs(seconds)).await;
    }

    async fn register(&self, node: &Endpoint, work: Option<u64>) {
        let work = work.map(|job| NodeWork { job: springtide_runtime::id::JobId(job), view: None });
        let register = Register {
            contact: node.net.contact(),
            incarnation: node.net.me().incarnation,
            threads: 1,
            fingerprint: 7,
            pid: 1,
            hardware: Hardware::default(),
            work,
        };
        assert_eq!(self.site.send(register).await.unwrap(), Ok(()));
    }

    async fn hold(&self, nodes: &[&str]) {
        let nodes = nodes.iter().map(|&node| node.into()).collect();
        self.site
            .send(StartStubs {
                nodes,
                shares: BTreeMap::new(),
                program: None,
                reason: "test".into(),
                shipped: None,
            })
            .await
            .unwrap();
    }

    /// A reachable node, and a count of its orders to register again.
    fn node(&self, name: &str, incarnation: u64) -> (Endpoint, Arc<tokio::sync::Notify>) {
        let node = endpoint(&self.network, name, incarnation);
        node.net.learn(self.own.net.contact());
        self.own.net.learn(node.net.contact());
        let asked = Arc::new(tokio::sync::Notify::new());
        let registrar = Registrar::new(asked.clone()).start();
        node.hub.publish(REGISTRAR, registrar).accepts::<RegisterAgain>();
        node.start();
        (node, asked)
    }
}

fn endpoint(network: &MemoryNet, name: &str, incarnation: u64) -> Endpoint {
    let cluster = name.split('-').next().unwrap().into();
    let peer = Peer { node: name.into(), incarnation: Incarnation(incarnation), cluster };
    Endpoint::over(network.join(peer).unwrap())
}

fn listed(node: &str) -> ExistingStub {
    ExistingStub { node: node.into(), id: StubId("7".into()) }
}

fn away() -> ProviderError {
    let (command, how) = ("ssh h sh".to_owned(), "exit status: 255".to_owned());
    ProviderError::Failed { command, how, said: "No route to host".to_owned() }
}

#[test]
fn a_failing_provider_is_asked_at_growing_intervals() {
    let usual = Duration::from_secs(2);
    let waits: Vec<u64> = [0, 1, 2, 4, 5, 40].map(|n| backoff(usual, n).as_secs()).to_vec();
    assert_eq!(waits, [2, 4, 8, 32, 60, 60]);
    assert_eq!(backoff(Duration::from_secs(300), 3), Duration::from_secs(300));
}

#[actix_rt::test]
async fn a_node_that_registers_before_the_list_is_reported_and_kept() {
    let listed = RefCell::new(vec![listed("ams-1"), listed("ams-2")]);
    let list_takes = Cell::new(5 * SECOND);
    let world = SiteWorld { on_demand: true, listed, list_takes, ..SiteWorld::default() };
    let test = Test::start(Fake::of(world));
    let (node, asked) = test.node("ams-1", 1);
    test.at(1).await;
    test.register(&node, Some(3)).await;
    // The scheduler's link is lost meanwhile. The stubs are unknown, so nothing is reported.
    test.site.send(ReportEverything).await.unwrap();
    test.at(4).await;
    assert_eq!(test.received(), [""; 0]);
    asked.notified().await;
    test.register(&node, Some(4)).await;
    test.at(60).await;
    assert_eq!(test.received(), ["up with ams-1 ams-2", "ams-1 works for job-4"]);
    // The other was taken over and never registered.
    assert_eq!(test.fake.done(), ["kill ams-2"]);
}

#[actix_rt::test]
async fn a_new_scheduler_learns_the_current_jobs_of_nodes() {
    let test = Test::start(Fake::of(SiteWorld { on_demand: true, ..SiteWorld::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let (node, asked) = test.node("ams-1", 1);
    test.register(&node, None).await;
    // Its link was down. Only the node knows its current job.
    test.register(&node, Some(3)).await;
    test.at(2).await;
    test.site.send(ReportEverything).await.unwrap();
    asked.notified().await;
    test.register(&node, Some(4)).await;
    test.at(3).await;
    let reports = ["up with ", "ams-1 works for no job", "up with ams-1", "ams-1 works for job-4"];
    assert_eq!(test.received(), reports);
}

#[actix_rt::test]
async fn a_node_of_an_older_version_is_reported_with_its_last_registration() {
    let test = Test::start(Fake::of(SiteWorld { on_demand: true, ..SiteWorld::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let node = endpoint(&test.network, "ams-1", 1);
    test.own.net.learn(node.net.contact());
    node.start();
    test.register(&node, Some(3)).await;
    test.site.send(ReportEverything).await.unwrap();
    test.at(10).await;
    let reports = ["up with ", "ams-1 works for job-3", "up with ams-1", "ams-1 works for job-3"];
    assert_eq!(test.received(), reports);
}

#[actix_rt::test]
async fn another_program_has_its_own_deadline_to_register() {
    let test = Test::start(Fake::of(SiteWorld { on_demand: true, ..SiteWorld::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let (first, _) = test.node("ams-1", 1);
    test.at(2).await;
    test.register(&first, None).await;
    test.at(25).await;
    let (nodes, reason) = (vec!["ams-1".into()], "test".to_owned());
    test.site.send(RestartNodes { nodes, program: None, reason, shipped: None }).await.unwrap();
    // The first program's deadline has passed, the second's has not.
    test.at(40).await;
    assert_eq!(test.fake.done(), ["recruit ams-1"]);
    test.at(60).await;
    assert_eq!(test.fake.done(), ["recruit ams-1", "kill ams-1"]);
}

#[actix_rt::test]
async fn an_unreachable_machine_is_retried_without_end() {
    let test = Test::start(Fake::of(SiteWorld {
        refuses: RefCell::new(Some(away)),
        ..SiteWorld::default()
    }));
    test.at(14).await;
    let of_one: Vec<String> =
        test.received().into_iter().filter(|what| what.starts_with("ams-1 ")).collect();
    let reports = |returns: bool, wait: u64| {
        format!(
            "ams-1 lost, returns {returns}, again in {wait}000: it cannot be started, and is \
             retried in {wait}s: `ssh h sh` failed (exit status: 255): No route to host"
        )
    };
    assert_eq!(of_one, [reports(true, 1), reports(true, 2), reports(true, 4), reports(false, 8)]);
    test.at(600).await;
    let before = test.fake.0.held.borrow().len();
    *test.fake.0.refuses.borrow_mut() = None;
    test.at(661).await;
    assert_eq!(test.fake.0.held.borrow().len(), before + 9);
    let (node, _) = test.node("ams-1", 1);
    test.register(&node, None).await;
    test.at(670).await;
    assert_eq!(test.received().last().map(String::as_str), Some("ams-1 works for no job"));
}

/// Messages about ams-1 after the first `before`.
fn of_first(test: &Test, before: usize) -> Vec<String> {
    let received = test.received();
    let of_one = received.into_iter().filter(|what| what.starts_with("ams-1 "));
    of_one.skip(before).collect()
}

#[actix_rt::test]
async fn a_missing_program_is_retried_at_growing_intervals_and_at_once_by_order() {
    let missing = || ProviderError::Start {
        program: "program".into(),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    };
    let test = Test::start(Fake::of(SiteWorld {
        refuses: RefCell::new(Some(missing)),
        ..SiteWorld::default()
    }));
    test.at(2).await;
    assert_eq!(test.fake.0.held.borrow().len(), 9 * 4);
    let words = of_first(&test, 0);
    assert_eq!(words.len(), 4, "{words:?}");
    assert!(words[2].contains("lost, returns true, again in 200"), "{words:?}");
    let last = &words[3];
    assert!(
        last.contains("lost, returns false, again in 10000: it ended 4 times in a row"),
        "{last}"
    );
    assert!(last.contains("it cannot be started: cannot start program"), "{last}");
    // 10 s, 20, 40, 80, 160, then 5 minutes each.
    test.at(3600).await;
    let waits: Vec<String> = of_first(&test, 3)
        .iter()
        .map(|word| word.split("again in ").nth(1).unwrap().split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(waits[..6], ["10000", "20000", "40000", "80000", "160000", "300000"]);
    assert!(waits.len() > 14 && waits[6..].iter().all(|wait| wait == "300000"), "{waits:?}");
    // Another scheduler learns the time of the next attempt.
    let before = of_first(&test, 0).len();
    test.site.send(ReportEverything).await.unwrap();
    test.at(3601).await;
    let words = of_first(&test, before);
    assert!(words[0].contains("returns false, again in "), "{words:?}");
    // Back in service: retried at once, and soon again.
    let (tries, before) = (test.fake.0.held.borrow().len(), of_first(&test, 0).len());
    let (nodes, reason) = (vec!["ams-1".into()], "it is put back into service".to_owned());
    test.site.send(RestartNodes { nodes, program: None, reason, shipped: None }).await.unwrap();
    test.at(3603).await;
    assert_eq!(test.fake.0.held.borrow().len(), tries + 4);
    let words = of_first(&test, before);
    assert!(words[0].contains("returns true, again in 200"), "{words:?}");
    *test.fake.0.refuses.borrow_mut() = None;
    test.at(3620).await;
    let (node, _) = test.node("ams-1", 1);
    test.register(&node, None).await;
    test.at(3621).await;
    assert_eq!(test.received().last().map(String::as_str), Some("ams-1 works for no job"));
}

#[actix_rt::test]
async fn refused_processors_are_requested_at_growing_intervals() {
    let full = || ProviderError::Failed {
        command: "sbatch".to_owned(),
        how: "exit status: 1".to_owned(),
        said: "QOSMaxSubmitJobPerUserLimit".to_owned(),
    };
    let world =
        SiteWorld { on_demand: true, refuses: RefCell::new(Some(full)), ..SiteWorld::default() };
    let test = Test::start(Fake::of(world));
    let all: Vec<String> = (1..=9).map(|n| format!("ams-{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    // As by a scheduler: nine at once, whenever the site works.
    let mut asked = Vec::new();
    for second in 1..=200 {
        test.at(second).await;
        let works =
            match test.received.lock().unwrap().iter().rev().find(|(_, w)| w.starts_with("polled"))
            {
                Some((_, word)) => word.contains("Ok"),
                None => false,
            };
        if works {
            asked.push(second);
            test.hold(&all).await;
        }
    }
    let between: Vec<u64> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    for (between, least) in between.iter().zip([2, 4, 8, 16, 32, 60]) {
        assert!(*between >= least && *between <= least + 3, "{asked:?}");
    }
    let gone = test.received().pop().unwrap();
    assert_eq!(
        gone,
        "ams-9 gone: no processor was available: `sbatch` failed (exit status: 1): \
         QOSMaxSubmitJobPerUserLimit"
    );
    // Each refusal is reported once.
    let refusals =
        test.received.lock().unwrap().iter().filter(|(_, w)| w.starts_with("polled Err")).count();
    assert_eq!(refusals, asked.len());
}

#[actix_rt::test]
async fn a_stray_stub_is_found_and_ended() {
    let test = Test::start(Fake::of(SiteWorld { on_demand: true, ..SiteWorld::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    // It started after its submission was given up.
    *test.fake.0.listed.borrow_mut() = vec![listed("ams-1"), listed("ams-2")];
    test.fake.0.release_takes.set(10 * SECOND);
    let (node, _) = test.node("ams-2", 1);
    test.register(&node, None).await;
    test.at(5).await;
    // Its link was lost and is back, while it is being ended.
    test.register(&node, None).await;
    test.at(10).await;
    assert_eq!(test.fake.done(), ["release ams-2"]);
    test.at(15).await;
    test.register(&node, None).await;
    test.at(16).await;
    assert_eq!(test.fake.done(), ["release ams-2"; 2]);
    assert_eq!(test.received(), ["up with "]);
}

#[actix_rt::test]
async fn the_end_of_a_stub_is_reported_once() {
    let refuses = RefCell::new(Some(away as fn() -> ProviderError));
    let world = SiteWorld { on_demand: true, refuses, ..SiteWorld::default() };
    world.hold_takes.set(5 * SECOND);
    let test = Test::start(Fake::of(world));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    test.at(2).await;
    let (nodes, reason) = (vec!["ams-1".into()], "test".to_owned());
    let close = EndStubs { nodes, reason };
    test.site.send(close.clone()).await.unwrap();
    test.at(10).await;
    // Repeated, since the report of its end was under way.
    test.site.send(close).await.unwrap();
    test.at(20).await;
    let received = test.received();
    let gone: Vec<_> = received.iter().filter(|what| what.starts_with("ams-1 gone")).collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
}

/// When a site ends, its nodes first leave their jobs, and only existing nodes are reported.
async fn ends_in_order(on_demand: bool) -> Vec<String> {
    let test = Test::start(Fake::of(SiteWorld { on_demand, ..SiteWorld::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let (node, _) = test.node("ams-1", 5);
    test.register(&node, None).await;
    let host = SiteHost::of(&test.own, "head", on_demand, test.site.clone());
    host.stop(30 * SECOND, 3 * SECOND, "by order").await;
    let received = test.received();
    let last = received.iter().filter(|what| what.contains("its site ends: by order"));
    last.cloned().collect()
}

#[actix_rt::test]
async fn nodes_leave_their_jobs_before_their_site_ends() {
    let reports = ends_in_order(false).await;
    assert_eq!(reports[0], "drain [ams-1] of incarnation Some(5): its site ends: by order");
    assert_eq!(reports[1], "ams-1 lost, returns true: its site ends: by order");
    assert_eq!(reports.len(), 1 + 9, "{reports:?}");
}

#[actix_rt::test]
async fn nodes_that_are_off_are_not_reported_at_the_end_of_their_site() {
    let reports = ends_in_order(true).await;
    assert_eq!(reports[0], "drain [ams-1] of incarnation Some(5): its site ends: by order");
    assert_eq!(reports[1..], ["ams-1 gone: its site ends: by order"]);
}

#[actix_rt::test]
async fn a_released_stub_reports_its_reason_of_waiting() {
    let waits = Some("Resources");
    let test = Test::start(Fake::of(SiteWorld { on_demand: true, waits, ..SiteWorld::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    test.at(50).await;
    let (nodes, reason) = (vec!["ams-1".into()], "too long".to_owned());
    test.site.send(EndStubs { nodes, reason }).await.unwrap();
    test.at(51).await;
    // A node without a processor is not late.
    assert_eq!(test.fake.done(), ["release ams-1"]);
    let reports = "ams-1 gone: too long; it was still waiting for its processor: Resources";
    assert_eq!(test.received().last().map(String::as_str), Some(reports));
}

/// A program of a user in this directory. Nothing starts it.
fn users_program(dir: &Path) -> ShippedProgram {
    let path = dir.join("own");
    let mut bytes = std::fs::read("/proc/self/exe").unwrap();
    bytes.truncate(8192);
    std::fs::write(&path, bytes).unwrap();
    let ElfHeader { target, interpreter } = read_header(&path).unwrap();
    let entry = entry_of(&path, "own").unwrap();
    let (name, digest, bytes) = (entry.name, entry.sum.parse().unwrap(), entry.bytes);
    let image = ProgramImage { name, digest, bytes, target, interpreter };
    ShippedProgram { image, path: Some(path), sources: Vec::new() }
}

/// Waits in steps of the paused clock. The disk works in real time.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

impl Test {
    async fn restart(&self, node: &str, shipped: ShippedProgram) {
        let (nodes, reason) = (vec![node.into()], "another program".to_owned());
        let order = RestartNodes { nodes, program: None, shipped: Some(shipped), reason };
        self.site.send(order).await.unwrap();
    }

    fn programs(&self) -> Vec<PathBuf> {
        self.fake.0.programs.borrow().clone()
    }
}

#[actix_rt::test]
async fn a_node_starts_with_a_users_program_and_returns_if_that_cannot_run() {
    let temp = tempfile::tempdir().unwrap();
    let store = temp.path().join("programs");
    let test = Test::start_with(Fake::default(), Some(&store));
    let shipped = users_program(temp.path());
    let stored = store.join(shipped.image.digest.to_string());
    until("all nodes are started", || test.programs().len() == 9).await;
    let (node, _) = test.node("ams-1", 1);
    test.register(&node, None).await;
    test.restart("ams-1", shipped.clone()).await;
    until("the program is started", || test.programs().contains(&stored)).await;
    assert!(stored.exists());
    for report in ["program 0 of 8192", "program ready, 0 sent"] {
        until(report, || test.received().contains(&report.to_owned())).await;
    }
    // Its later processes do not start.
    test.fake.0.refuses.replace(Some(|| ProviderError::Start {
        program: "own".into(),
        source: std::io::Error::other("Exec format error"),
    }));
    test.restart("ams-1", shipped.clone()).await;
    let failed =
        "program failed: own cannot run as a node of cluster ams: node ams-1: cannot start";
    until("it is given up", || test.received().iter().any(|what| what.starts_with(failed))).await;
    let tries = test.programs().iter().filter(|program| **program == stored).count();
    assert_eq!(tries, 1 + 3);
    test.fake.0.refuses.replace(None);
    until("its own program is started", || {
        test.programs().last().is_some_and(|program| program.as_os_str() == "program")
    })
    .await;
}

#[actix_rt::test]
async fn a_program_that_the_hosts_cannot_start_leaves_the_nodes_as_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let store = temp.path().join("programs");
    let test = Test::start_with(Fake::default(), Some(&store));
    until("all nodes are started", || test.programs().len() == 9).await;
    // The scheduler knows the site.
    test.at(1).await;
    let (node, _) = test.node("ams-1", 1);
    test.register(&node, None).await;
    let own = users_program(temp.path());
    let target = ProgramTarget { machine: 22, ..own.image.target };
    let foreign =
        ShippedProgram { image: ProgramImage { target, ..own.image.clone() }, ..own.clone() };
    test.restart("ams-1", foreign).await;
    let interpreter = Some("/no/such/loader".to_owned());
    let image = ProgramImage { interpreter, ..own.image.clone() };
    test.restart("ams-1", ShippedProgram { image, ..own.clone() }).await;
    test.restart("ams-1", ShippedProgram { path: None, ..own }).await;
    let has = |part: &str| test.received().iter().any(|what| what.contains(part));
    until("all are refused", || {
        has("own is for s390x, and the hosts of cluster ams are")
            && has("own needs /no/such/loader, which the hosts of cluster ams lack")
            && has("own could not be fetched: no process has its file")
    })
    .await;
    // For the scheduler, the node is there again after each of them.
    let again = || test.received().iter().filter(|what| *what == "ams-1 works for no job").count();
    until("it is reported", || again() == 4).await;
    assert_eq!(test.programs().len(), 9, "no process was replaced");
}

#[actix_rt::test]
async fn a_node_on_demand_is_gone_if_its_program_is_refused_or_needed_no_longer() {
    let temp = tempfile::tempdir().unwrap();
    let store = temp.path().join("programs");
    let world = SiteWorld { on_demand: true, ..SiteWorld::default() };
    let test = Test::start_with(Fake::of(world), Some(&store));
    let own = users_program(temp.path());
    let stored = store.join(own.image.digest.to_string());
    let start = |node: &str, shipped: ShippedProgram| StartStubs {
        nodes: vec![node.into()],
        shares: BTreeMap::new(),
        program: None,
        shipped: Some(shipped),
        reason: "a job needs it".to_owned(),
    };
    test.site.send(start("ams-1", own.clone())).await.unwrap();
    until("it is held", || test.programs() == [stored.clone()]).await;
    let lost = ShippedProgram { path: None, ..own.clone() };
    let image = ProgramImage { digest: "0".repeat(64).parse().unwrap(), ..lost.image.clone() };
    test.site.send(start("ams-2", ShippedProgram { image, ..lost })).await.unwrap();
    let gone = "ams-2 gone: own could not be fetched: no process has its file";
    until("it is gone", || test.received().iter().any(|what| what.starts_with(gone))).await;
    // An order to end comes while the program is on its way.
    test.site.do_send(start("ams-3", own));
    let (nodes, reason) = (vec!["ams-3".into()], "no job needs it".to_owned());
    test.site.send(EndStubs { nodes, reason }).await.unwrap();
    let gone = "ams-3 gone: no job needs it";
    until("it is gone", || test.received().contains(&gone.to_owned())).await;
    assert_eq!(test.programs().len(), 1);
}
