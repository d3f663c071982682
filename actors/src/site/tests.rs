//! The site against a provider that does as it is told, with a scheduler that only listens, in virtual time.

use std::cell::{Cell, RefCell};
use std::sync::Mutex;

use springtide_runtime::id::Peer;
use springtide_runtime::net::MemoryNet;
use tokio::time::sleep;

use super::*;
use crate::endpoint::Endpoint;
use crate::hardware::Hardware;
use crate::job::SCHEDULER;
use crate::provider::{Ended, LocalFuture, Stub, StubId};
use crate::scheduler::Work;
use crate::site_host::SiteHost;

const SECOND: Duration = Duration::from_secs(1);

/// What a provider is to do, and what was asked of it.
#[derive(Default)]
struct World {
    on_demand: bool,
    /// Each `hold` fails by this, or succeeds.
    refuses: RefCell<Option<fn() -> ProviderError>>,
    held: RefCell<Vec<Instant>>,
    listed: RefCell<Vec<Listed>>,
    list_takes: Cell<Duration>,
    hold_takes: Cell<Duration>,
    release_takes: Cell<Duration>,
    /// Its stubs wait for ever, for this reason.
    waits: Option<&'static str>,
    done: RefCell<Vec<String>>,
}

#[derive(Clone, Default)]
struct Fake(Rc<World>);

impl Fake {
    fn of(world: World) -> Self {
        Self(Rc::new(world))
    }

    fn stub(&self, node: &NodeId) -> Box<dyn Stub> {
        Box::new(Held { world: self.0.clone(), node: node.clone(), told: false })
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

    fn list(&self) -> LocalFuture<'_, Result<Vec<Listed>, ProviderError>> {
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
        let refused = *self.0.refuses.borrow();
        Box::pin(async move {
            sleep(self.0.hold_takes.get()).await;
            refused.map_or_else(|| Ok(self.stub(&request.node)), |why| Err(why()))
        })
    }

    fn adopt<'a>(
        &'a self,
        listed: &'a Listed,
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

struct Held {
    world: Rc<World>,
    node: NodeId,
    told: bool,
}

impl Held {
    fn note(&self, what: &str) {
        self.world.done.borrow_mut().push(format!("{what} {}", self.node));
    }
}

impl Stub for Held {
    fn id(&self) -> Option<StubId> {
        None
    }

    fn last_lines(&self) -> Vec<String> {
        Vec::new()
    }

    fn news(&mut self) -> LocalFuture<'_, StubNews> {
        let first = !std::mem::replace(&mut self.told, true);
        Box::pin(async move {
            match (first, self.world.waits) {
                (true, None) => StubNews::Active,
                (true, Some(why)) => StubNews::Waits { reason: why.to_owned() },
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

    fn release(&mut self, _: Duration) -> LocalFuture<'_, Ended> {
        self.note("release");
        Box::pin(async {
            sleep(self.world.release_takes.get()).await;
            Ended { how: "released".to_owned(), last_lines: Vec::new() }
        })
    }

    fn kill(&mut self) {
        self.note("kill");
    }

    fn leave(self: Box<Self>) {}
}

/// What the scheduler was told, and when.
type Heard = Arc<Mutex<Vec<(Instant, String)>>>;

/// In the scheduler's place.
struct Ear(Heard);

impl Actor for Ear {
    type Context = Context<Self>;
}

impl Ear {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push((Instant::now(), what));
    }
}

impl Handler<SiteUp> for Ear {
    type Result = ();

    fn handle(&mut self, up: SiteUp, _: &mut Self::Context) {
        let stubs: Vec<&str> = up.stubs.iter().map(NodeId::as_str).collect();
        self.note(format!("up with {}", stubs.join(" ")));
    }
}

impl Handler<Registered> for Ear {
    type Result = ();

    fn handle(&mut self, life: Registered, _: &mut Self::Context) {
        let job = life.work.map(|work| work.job.to_string());
        self.note(format!("{} works for {}", life.node, job.as_deref().unwrap_or("nobody")));
    }
}

impl Handler<NodeLost> for Ear {
    type Result = ();

    fn handle(&mut self, lost: NodeLost, _: &mut Self::Context) {
        let again = lost.retry_ms.map(|wait| format!(", again in {wait}")).unwrap_or_default();
        let NodeLost { node, returns, reason, .. } = lost;
        self.note(format!("{node} lost, returns {returns}{again}: {reason}"));
    }
}

impl Handler<StubGone> for Ear {
    type Result = ();

    fn handle(&mut self, gone: StubGone, _: &mut Self::Context) {
        self.note(format!("{} gone: {}", gone.node, gone.reason));
    }
}

impl Handler<Drain> for Ear {
    type Result = Result<crate::scheduler::Drained, crate::scheduler::DrainError>;

    fn handle(&mut self, drain: Drain, _: &mut Self::Context) -> Self::Result {
        let life = drain.life.map(|life| life.0);
        let nodes: Vec<&str> = drain.nodes.iter().map(NodeId::as_str).collect();
        let nodes = nodes.join(" ");
        self.note(format!("drain [{nodes}] of life {life:?}: {}", drain.reason));
        Ok(crate::scheduler::Drained::default())
    }
}

impl Handler<SitePolled> for Ear {
    type Result = ();

    fn handle(&mut self, polled: SitePolled, _: &mut Self::Context) {
        self.note(format!("polled {:?}", polled.found));
    }
}

/// A site of nodes ams-1 to ams-9.
struct Test {
    site: Addr<Site>,
    fake: Fake,
    heard: Heard,
    network: MemoryNet,
    own: Endpoint,
    began: Instant,
    _head: Endpoint,
}

impl Test {
    /// Time stands still but for what is waited for.
    fn start(fake: Fake) -> Self {
        tokio::time::pause();
        let began = Instant::now();
        let network = MemoryNet::new(1);
        let head = endpoint(&network, "head", 1);
        let own = endpoint(&network, "ams-site", 1);
        own.net.learn(head.net.contact());
        let heard = Heard::default();
        head.hub
            .publish(SCHEDULER, Ear(heard.clone()).start())
            .accepts::<SiteUp>()
            .accepts::<Registered>()
            .accepts::<NodeLost>()
            .accepts::<StubGone>()
            .accepts::<Drain>()
            .accepts::<SitePolled>();
        head.start();
        own.start();
        let request = |n: u32| NodeRequest {
            node: format!("ams-{n}").into(),
            program: "program".into(),
            config: PathBuf::new(),
            log: PathBuf::new(),
            env: Vec::new(),
            threads: 1,
        };
        let nodes = (1..=9).map(request).collect();
        let scheduler = own.hub.remote(&"head".into(), SCHEDULER);
        let provider: Rc<dyn Provider> = Rc::new(fake.clone());
        let (on_demand, hub) = (OnDemand::default(), own.hub.clone());
        let mut site = Site::new("ams".into(), nodes, provider, on_demand, scheduler, hub);
        site.is_own(own.net.contact());
        let site = site.start();
        Self { site, fake, heard, network, own, began, _head: head }
    }

    /// What the scheduler has heard, without polls.
    fn heard(&self) -> Vec<String> {
        let heard = self.heard.lock().unwrap();
        let words = heard.iter().map(|(_, what)| what.clone());
        words.filter(|what| !what.starts_with("polled")).collect()
    }

    /// Until so many seconds after the start.
    async fn at(&self, seconds: u64) {
        tokio::time::sleep_until(self.began + Duration::from_secs(seconds)).await;
    }

    async fn register(&self, node: &Endpoint, work: Option<u64>) {
        let work = work.map(|job| Work { job: springtide_runtime::id::JobId(job), view: None });
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
        self.site.send(HoldStubs { nodes, program: None, reason: "test".into() }).await.unwrap();
    }

    /// A node that can be reached, and how often it was asked to register anew.
    fn node(&self, name: &str, life: u64) -> (Endpoint, Arc<tokio::sync::Notify>) {
        let node = endpoint(&self.network, name, life);
        node.net.learn(self.own.net.contact());
        self.own.net.learn(node.net.contact());
        let asked = Arc::new(tokio::sync::Notify::new());
        let registrar = Registrar::new(asked.clone()).start();
        node.hub.publish(REGISTRAR, registrar).accepts::<RegisterAnew>();
        node.start();
        (node, asked)
    }
}

fn endpoint(network: &MemoryNet, name: &str, life: u64) -> Endpoint {
    let cluster = name.split('-').next().unwrap().into();
    let peer = Peer { node: name.into(), incarnation: Incarnation(life), cluster };
    Endpoint::over(network.join(peer).unwrap())
}

fn listed(node: &str) -> Listed {
    Listed { node: node.into(), id: StubId("7".into()) }
}

fn away() -> ProviderError {
    let (command, how) = ("ssh h sh".to_owned(), "exit status: 255".to_owned());
    ProviderError::Failed { command, how, said: "No route to host".to_owned() }
}

#[test]
fn a_provider_that_fails_is_asked_less_and_less_but_always_again() {
    let usual = Duration::from_secs(2);
    let waits: Vec<u64> = [0, 1, 2, 4, 5, 40].map(|n| backoff(usual, n).as_secs()).to_vec();
    assert_eq!(waits, [2, 4, 8, 32, 60, 60]);
    assert_eq!(backoff(Duration::from_secs(300), 3), Duration::from_secs(300));
}

#[actix_rt::test]
async fn one_that_registers_before_it_was_listed_is_told_of_and_lives() {
    let listed = RefCell::new(vec![listed("ams-1"), listed("ams-2")]);
    let list_takes = Cell::new(5 * SECOND);
    let world = World { on_demand: true, listed, list_takes, ..World::default() };
    let test = Test::start(Fake::of(world));
    let (node, asked) = test.node("ams-1", 1);
    test.at(1).await;
    test.register(&node, Some(3)).await;
    // The scheduler's link is lost meanwhile: nothing is known yet of what is there, so nothing is said of it.
    test.site.send(Announce).await.unwrap();
    test.at(4).await;
    assert_eq!(test.heard(), [""; 0]);
    asked.notified().await;
    test.register(&node, Some(4)).await;
    test.at(60).await;
    assert_eq!(test.heard(), ["up with ams-1 ams-2", "ams-1 works for job-4"]);
    // The other was taken over and never came.
    assert_eq!(test.fake.done(), ["kill ams-2"]);
}

#[actix_rt::test]
async fn a_new_scheduler_hears_what_nodes_do_now() {
    let test = Test::start(Fake::of(World { on_demand: true, ..World::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let (node, asked) = test.node("ams-1", 1);
    test.register(&node, None).await;
    // Its link was down. Who knows it better is not told.
    test.register(&node, Some(3)).await;
    test.at(2).await;
    test.site.send(Announce).await.unwrap();
    asked.notified().await;
    test.register(&node, Some(4)).await;
    test.at(3).await;
    let told = ["up with ", "ams-1 works for nobody", "up with ams-1", "ams-1 works for job-4"];
    assert_eq!(test.heard(), told);
}

#[actix_rt::test]
async fn one_of_a_former_version_cannot_be_asked_and_is_told_of_as_before() {
    let test = Test::start(Fake::of(World { on_demand: true, ..World::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let node = endpoint(&test.network, "ams-1", 1);
    test.own.net.learn(node.net.contact());
    node.start();
    test.register(&node, Some(3)).await;
    test.site.send(Announce).await.unwrap();
    test.at(10).await;
    let told = ["up with ", "ams-1 works for job-3", "up with ams-1", "ams-1 works for job-3"];
    assert_eq!(test.heard(), told);
}

#[actix_rt::test]
async fn another_program_has_its_own_time_to_register() {
    let test = Test::start(Fake::of(World { on_demand: true, ..World::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let (first, _) = test.node("ams-1", 1);
    test.at(2).await;
    test.register(&first, None).await;
    test.at(25).await;
    let (nodes, reason) = (vec!["ams-1".into()], "test".to_owned());
    test.site.send(StartAnew { nodes, program: None, reason }).await.unwrap();
    // The first one's time is over, the second's is not.
    test.at(40).await;
    assert_eq!(test.fake.done(), ["recruit ams-1"]);
    test.at(60).await;
    assert_eq!(test.fake.done(), ["recruit ams-1", "kill ams-1"]);
}

#[actix_rt::test]
async fn a_machine_that_is_away_is_tried_again_without_end() {
    let test =
        Test::start(Fake::of(World { refuses: RefCell::new(Some(away)), ..World::default() }));
    test.at(14).await;
    let of_one: Vec<String> =
        test.heard().into_iter().filter(|what| what.starts_with("ams-1 ")).collect();
    let told = |returns: bool, wait: u64| {
        format!(
            "ams-1 lost, returns {returns}, again in {wait}000: it cannot be started, and is tried again \
             in {wait}s: `ssh h sh` failed (exit status: 255): No route to host"
        )
    };
    assert_eq!(of_one, [told(true, 1), told(true, 2), told(true, 4), told(false, 8)]);
    test.at(600).await;
    let before = test.fake.0.held.borrow().len();
    *test.fake.0.refuses.borrow_mut() = None;
    test.at(661).await;
    assert_eq!(test.fake.0.held.borrow().len(), before + 9);
    let (node, _) = test.node("ams-1", 1);
    test.register(&node, None).await;
    test.at(670).await;
    assert_eq!(test.heard().last().map(String::as_str), Some("ams-1 works for nobody"));
}

/// Words about ams-1 since so many before.
fn of_first(test: &Test, before: usize) -> Vec<String> {
    let heard = test.heard();
    let of_one = heard.into_iter().filter(|what| what.starts_with("ams-1 "));
    of_one.skip(before).collect()
}

#[actix_rt::test]
async fn a_program_that_is_missing_is_tried_after_longer_delays_without_end_and_at_once_by_order() {
    let missing = || ProviderError::Start {
        program: "program".into(),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    };
    let test =
        Test::start(Fake::of(World { refuses: RefCell::new(Some(missing)), ..World::default() }));
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
    // 10 s, 20, 40, 80, 160, then each 5 minutes.
    test.at(3600).await;
    let waits: Vec<String> = of_first(&test, 3)
        .iter()
        .map(|word| word.split("again in ").nth(1).unwrap().split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(waits[..6], ["10000", "20000", "40000", "80000", "160000", "300000"]);
    assert!(waits.len() > 14 && waits[6..].iter().all(|wait| wait == "300000"), "{waits:?}");
    // Another scheduler hears when the next try is.
    let before = of_first(&test, 0).len();
    test.site.send(Announce).await.unwrap();
    test.at(3601).await;
    let words = of_first(&test, before);
    assert!(words[0].contains("returns false, again in "), "{words:?}");
    // It is put back into service: tried at once, and soon again.
    let (tries, before) = (test.fake.0.held.borrow().len(), of_first(&test, 0).len());
    let (nodes, reason) = (vec!["ams-1".into()], "it is put back into service".to_owned());
    test.site.send(StartAnew { nodes, program: None, reason }).await.unwrap();
    test.at(3603).await;
    assert_eq!(test.fake.0.held.borrow().len(), tries + 4);
    let words = of_first(&test, before);
    assert!(words[0].contains("returns true, again in 200"), "{words:?}");
    *test.fake.0.refuses.borrow_mut() = None;
    test.at(3620).await;
    let (node, _) = test.node("ams-1", 1);
    test.register(&node, None).await;
    test.at(3621).await;
    assert_eq!(test.heard().last().map(String::as_str), Some("ams-1 works for nobody"));
}

#[actix_rt::test]
async fn processors_that_are_refused_are_asked_for_less_and_less() {
    let full = || ProviderError::Failed {
        command: "sbatch".to_owned(),
        how: "exit status: 1".to_owned(),
        said: "QOSMaxSubmitJobPerUserLimit".to_owned(),
    };
    let world = World { on_demand: true, refuses: RefCell::new(Some(full)), ..World::default() };
    let test = Test::start(Fake::of(world));
    let all: Vec<String> = (1..=9).map(|n| format!("ams-{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    // As a scheduler does: nine at once, whenever the site does not fail.
    let mut asked = Vec::new();
    for second in 1..=200 {
        test.at(second).await;
        let works =
            match test.heard.lock().unwrap().iter().rev().find(|(_, w)| w.starts_with("polled")) {
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
    let gone = test.heard().pop().unwrap();
    assert_eq!(
        gone,
        "ams-9 gone: it was not to be had: `sbatch` failed (exit status: 1): QOSMaxSubmitJobPerUserLimit"
    );
    // Each refusal is told of once.
    let refusals =
        test.heard.lock().unwrap().iter().filter(|(_, w)| w.starts_with("polled Err")).count();
    assert_eq!(refusals, asked.len());
}

#[actix_rt::test]
async fn one_that_nobody_holds_is_looked_for_and_ended() {
    let test = Test::start(Fake::of(World { on_demand: true, ..World::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    // It came after its submission had been given up.
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
    assert_eq!(test.heard(), ["up with "]);
}

#[actix_rt::test]
async fn that_a_stub_is_gone_is_told_once() {
    let refuses = RefCell::new(Some(away as fn() -> ProviderError));
    let world = World { on_demand: true, refuses, ..World::default() };
    world.hold_takes.set(5 * SECOND);
    let test = Test::start(Fake::of(world));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    test.at(2).await;
    let (nodes, reason) = (vec!["ams-1".into()], "test".to_owned());
    let close = CloseStubs { nodes, reason };
    test.site.send(close.clone()).await.unwrap();
    test.at(10).await;
    // Told again, for the word that it is gone was under way.
    test.site.send(close).await.unwrap();
    test.at(20).await;
    let heard = test.heard();
    let gone: Vec<_> = heard.iter().filter(|what| what.starts_with("ams-1 gone")).collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
}

/// A site that is told to end has its nodes leave their jobs first, and speaks of those alone that are there.
async fn ends_in_order(on_demand: bool) -> Vec<String> {
    let test = Test::start(Fake::of(World { on_demand, ..World::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    let (node, _) = test.node("ams-1", 5);
    test.register(&node, None).await;
    let host = SiteHost::of(&test.own, "head", on_demand, test.site.clone());
    host.stop(30 * SECOND, 3 * SECOND, "told to").await;
    let heard = test.heard();
    let last = heard.iter().filter(|what| what.contains("its site ends: told to"));
    last.cloned().collect()
}

#[actix_rt::test]
async fn nodes_leave_their_jobs_before_their_site_ends() {
    let told = ends_in_order(false).await;
    assert_eq!(told[0], "drain [ams-1] of life Some(5): its site ends: told to");
    assert_eq!(told[1], "ams-1 lost, returns true: its site ends: told to");
    assert_eq!(told.len(), 1 + 9, "{told:?}");
}

#[actix_rt::test]
async fn of_nodes_that_are_off_nothing_is_said_when_their_site_ends() {
    let told = ends_in_order(true).await;
    assert_eq!(told[0], "drain [ams-1] of life Some(5): its site ends: told to");
    assert_eq!(told[1..], ["ams-1 gone: its site ends: told to"]);
}

#[actix_rt::test]
async fn one_that_is_given_up_says_what_it_was_waiting_for() {
    let waits = Some("Resources");
    let test = Test::start(Fake::of(World { on_demand: true, waits, ..World::default() }));
    test.at(1).await;
    test.hold(&["ams-1"]).await;
    test.at(50).await;
    let (nodes, reason) = (vec!["ams-1".into()], "too long".to_owned());
    test.site.send(CloseStubs { nodes, reason }).await.unwrap();
    test.at(51).await;
    // Whoever waits for its processor is not late.
    assert_eq!(test.fake.done(), ["release ams-1"]);
    let told = "ams-1 gone: too long; it was still waiting for its processor: Resources";
    assert_eq!(test.heard().last().map(String::as_str), Some(told));
}
