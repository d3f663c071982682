//! Plays a scenario file on a grid: executes each event at its time, and undoes it.
//!
//! The grid is a simulated or a live one. This module does not depend on the job.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use actix_rt::task::JoinHandle;
use springtide_actors::job::{cluster_coordinator_name, coordinator_name};
use springtide_actors::scheduler::{Drain, JobGrant, Scheduler, Undrain};
use springtide_runtime::config::{
    ByteRate, EventSection, Happening, Pair, PlaceSection, Role, ScenarioConfig, Share,
};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::remote::Remote;
use springtide_runtime::topology::{directions, limited};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dead_end::{DeadEndDetector, GridState, Trigger};
use crate::grid::SimulatedGrid;
use crate::scenario::id;

/// A grid whose links, processors and processes can be changed.
pub trait ControlledGrid {
    /// The scheduler of the grid.
    fn scheduler(&self) -> Remote<Scheduler>;

    /// The nodes on which an actor is published under this name.
    fn hosting(&self, actor: &str) -> Vec<NodeId>;

    /// Sets the speed of a node's threads: seconds of work per second.
    fn set_speed(&self, node: &NodeId, speed: f64);

    /// Sets the link from a cluster to another, or inside one.
    fn set_link(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile);

    /// Sets the link that all traffic into and out of a cluster passes.
    fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile);

    /// Cuts or restores the connection between two clusters.
    fn cut(&self, a: &ClusterId, b: &ClusterId, cut: bool);

    /// Kills a node's process; its site sees the end.
    fn kill(&self, node: &NodeId);

    /// Switches a machine off without notice. Returns false if it was off.
    fn switch_off(&self, node: &NodeId) -> bool;

    /// Switches a machine on, with a new process.
    fn switch_on(&self, node: &NodeId);

    /// Called when a job has got its nodes.
    fn on_grant(&self, _granted: &JobGrant) {}

    /// Called for each recorded event of the job.
    fn on_record(&self, _record: &Record) {}

    /// The nodes that run and whether one of them coordinates the job, where that is known.
    fn state(&self, job: JobId) -> Option<GridState>;
}

impl ControlledGrid for SimulatedGrid {
    fn scheduler(&self) -> Remote<Scheduler> {
        SimulatedGrid::scheduler(self)
    }

    fn hosting(&self, actor: &str) -> Vec<NodeId> {
        self.machines().hosting(actor)
    }

    fn set_speed(&self, node: &NodeId, speed: f64) {
        self.machines().set_speed(node, speed);
    }

    fn set_link(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile) {
        self.network().set_link(from, to, profile);
    }

    fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile) {
        self.network().set_uplink(cluster, profile.clone());
        self.network().set_downlink(cluster, profile);
    }

    fn cut(&self, a: &ClusterId, b: &ClusterId, cut: bool) {
        self.network().partition(a, b, cut);
    }

    fn kill(&self, node: &NodeId) {
        self.machines().kill(node);
    }

    fn switch_off(&self, node: &NodeId) -> bool {
        self.machines().switch_off(node)
    }

    fn switch_on(&self, node: &NodeId) {
        self.machines().switch_on(node);
    }

    fn state(&self, job: JobId) -> Option<GridState> {
        let is_led = !self.hosting(&coordinator_name(job)).is_empty();
        Some(GridState { running: self.machines().running(), is_led })
    }
}

/// A grid and its scenario file.
pub struct ScenarioDriver {
    pub(crate) world: Rc<dyn ControlledGrid>,
    config: ScenarioConfig,
    /// Nodes that were claimed or freed, with the time on the clock.
    claims: RefCell<Vec<(Instant, Vec<NodeId>)>>,
    pub(crate) detector: DeadEndDetector,
}

impl ScenarioDriver {
    /// Creates a driver for a grid. [`ScenarioDriver::set_links`] and
    /// [`ScenarioDriver::claim_late_nodes`] then apply the file.
    pub fn new(world: Rc<dyn ControlledGrid>, config: &ScenarioConfig) -> Rc<Self> {
        let (claims, detector) = (RefCell::default(), DeadEndDetector::new(config.event.len()));
        Rc::new(Self { world, config: config.clone(), claims, detector })
    }

    /// The scenario file.
    pub(crate) fn config(&self) -> &ScenarioConfig {
        &self.config
    }

    /// Takes the nodes that were claimed or freed so far, with the times on the clock.
    pub(crate) fn take_claims(&self) -> Vec<(Instant, Vec<NodeId>)> {
        self.claims.take()
    }

    fn place(&self, name: &ClusterId) -> Option<&PlaceSection> {
        self.config.cluster.iter().find(|place| place.name.as_str() == name.as_str())
    }

    /// Sets the links of the grid from the file.
    pub fn set_links(&self) {
        let [there, back] = directions(&self.config.wide.line());
        if there != back {
            for (a, b) in self.pairs() {
                self.set_link(&a, &b, [there.clone(), back.clone()]);
            }
        }
        for link in &self.config.link {
            let Pair(a, b) = &link.between;
            self.set_link(&id(a), &id(b), directions(&link.line()));
        }
        for place in &self.config.cluster {
            let name = id(&place.name);
            let inside = LinkProfile::default().delay(place.delay.get());
            self.world.set_link(&name, &name, inside);
            self.set_uplink(&name, place.uplink);
        }
    }

    /// Claims the nodes that are added later.
    pub async fn claim_late_nodes(&self) {
        for place in &self.config.cluster {
            let (name, nodes) = (id(&place.name), place.nodes.get());
            let later = nodes - place.later.get() + 1..=nodes;
            let later: Vec<_> = later.map(|n| node(&name, n)).collect();
            if !later.is_empty() {
                self.claim(later, None).await;
            }
        }
    }

    /// All pairs of clusters, in the order of the file.
    fn pairs(&self) -> impl Iterator<Item = (ClusterId, ClusterId)> {
        let all: Vec<ClusterId> = self.config.cluster.iter().map(|place| id(&place.name)).collect();
        let after = |at: usize| (at + 1..all.len()).map(move |other| (at, other));
        let pairs: Vec<_> = (0..all.len()).flat_map(after).collect();
        pairs.into_iter().map(move |(a, b)| (all[a].clone(), all[b].clone()))
    }

    /// Starts tasks that cut and restore flapping links until they are aborted.
    pub fn start_flapping(self: &Rc<Self>) -> Vec<JoinHandle<()>> {
        let flaps = self.pairs().filter_map(|(a, b)| {
            Some((self.config.line(a.as_str(), b.as_str()).up_and_down?, a, b))
        });
        let flaps = flaps.map(|((up, down), a, b)| {
            let driver = self.clone();
            actix_rt::spawn(async move {
                loop {
                    sleep(up).await;
                    driver.world.cut(&a, &b, true);
                    sleep(down).await;
                    driver.world.cut(&a, &b, false);
                }
            })
        });
        flaps.collect()
    }

    /// Sets a link in both directions.
    fn set_link(&self, a: &ClusterId, b: &ClusterId, [there, back]: [LinkProfile; 2]) {
        self.world.set_link(a, b, there);
        self.world.set_link(b, a, back);
    }

    fn set_uplink(&self, cluster: &ClusterId, uplink: Option<ByteRate>) {
        self.world.set_uplink(cluster, limited(LinkProfile::default(), uplink, None));
    }

    async fn claim(&self, nodes: Vec<NodeId>, deadline: Option<Duration>) {
        self.claims.borrow_mut().push((Instant::now(), nodes.clone()));
        let deadline_ms = deadline.map(|limit| limit.as_millis() as u64);
        let reason = "they are wanted for something else".to_owned();
        let drain = Drain { nodes: nodes.clone(), reason, deadline_ms, incarnation: None };
        let within = deadline.unwrap_or(Duration::from_secs(600)) + Duration::from_secs(60);
        match self.world.scheduler().send(drain).deadline(within).await {
            Ok(Ok(_)) => self.detector.claim(&nodes),
            Ok(Err(error)) => {
                tracing::warn!("cannot drain the claimed nodes: {error}");
            }
            Err(_) => {}
        }
    }

    /// Executes an event at its time or iteration.
    pub(crate) async fn run_event(
        &self,
        (number, event): (usize, &EventSection),
        job: JobId,
        began: Instant,
        mut iterations: watch::Receiver<u64>,
        tell: impl Fn(String),
    ) {
        if event.at.is_none() {
            self.detector.set(number, Trigger::Iteration);
        }
        match (event.at, event.iteration) {
            (Some(at), _) => sleep_until(began + at.get()).await,
            (None, Some(iteration)) => {
                let enough = |done: &u64| *done >= u64::from(iteration.get());
                if iterations.wait_for(enough).await.is_err() {
                    return;
                }
            }
            (None, None) => {}
        }
        self.detector.set(number, Trigger::Clock);
        self.repeat_event(event, job, tell).await;
        self.detector.set(number, Trigger::Never);
    }

    /// Executes an event, undoes it, and repeats it. A kill is over at once and cannot be undone.
    async fn repeat_event(&self, event: &EventSection, job: JobId, tell: impl Fn(String)) {
        loop {
            let undo = self.execute(event, job, &tell).await;
            if let Some(duration) = event.duration {
                sleep(duration.get()).await;
                if let Some(undo) = undo {
                    self.undo(undo, &tell).await;
                }
            }
            let Some(interval) = event.interval else { return };
            sleep(interval.get()).await;
        }
    }

    /// The nodes that an event concerns.
    fn nodes_of(&self, event: &EventSection, job: JobId) -> Vec<NodeId> {
        let cluster = event.cluster.as_ref().map(id);
        let hosting = |name: &str| self.world.hosting(name);
        match (event.role, &cluster) {
            (Some(Role::Root), _) => hosting(&coordinator_name(job)),
            (Some(Role::ClusterCoordinator), Some(cluster)) => {
                let all = hosting(&cluster_coordinator_name(job));
                all.into_iter().filter(|node| cluster_of(node) == cluster.as_str()).collect()
            }
            (_, Some(cluster)) => {
                let most = self.place(cluster).map_or(0, |place| place.nodes.get());
                let count = event.nodes.map_or(most, |nodes| nodes.get().min(most));
                (1..=count).map(|n| node(cluster, n)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Executes an event. Returns how to undo it; none: it cannot be undone.
    async fn execute(
        &self,
        event: &EventSection,
        job: JobId,
        tell: &impl Fn(String),
    ) -> Option<Undo> {
        let nodes = self.nodes_of(event, job);
        let names = listed(&nodes);
        let cluster = event.cluster.as_ref().map(id);
        match event.what {
            Happening::Load => {
                let share = event.share.unwrap_or(1.0);
                tell(format!("{names}: {:.0} % of the speed", 100.0 * share));
                let speeds = nodes.iter().map(|node| (node.clone(), self.speed(node)));
                let speeds: Vec<_> = speeds.collect();
                for (node, speed) in &speeds {
                    self.world.set_speed(node, speed * share);
                }
                Some(Undo::Speeds(speeds))
            }
            Happening::Uplink => {
                let (cluster, bandwidth) = (cluster?, event.bandwidth?);
                tell(format!("the uplink of {cluster} carries {bandwidth}"));
                self.set_uplink(&cluster, Some(bandwidth));
                Some(Undo::Uplink(cluster))
            }
            Happening::Link => {
                let Pair(a, b) = event.between.as_ref()?;
                let (a, b) = (id(a), id(b));
                let line = self.config.line(a.as_str(), b.as_str());
                let original = directions(&line);
                tell(format!("the link between {a} and {b} is another"));
                self.set_link(
                    &a,
                    &b,
                    original.each_ref().map(|original| changed(original, event, line.queue)),
                );
                Some(Undo::Line(a, b, original))
            }
            Happening::Cut => {
                let Pair(a, b) = event.between.as_ref()?;
                let (a, b) = (id(a), id(b));
                tell(format!("{a} and {b} do not reach each other"));
                self.world.cut(&a, &b, true);
                Some(Undo::Cut(a, b))
            }
            Happening::Kill => {
                tell(format!("{names}: killed"));
                for node in &nodes {
                    self.world.kill(node);
                }
                None
            }
            Happening::Crash => {
                tell(format!("{names}: off"));
                let off = nodes.into_iter().filter(|node| self.world.switch_off(node));
                Some(Undo::Off(off.collect()))
            }
            Happening::Claim => {
                tell(format!("{names}: wanted for something else"));
                let deadline = event.deadline.map(|deadline| deadline.get());
                // The duration begins with the request, not with its completion.
                let claim = self.claim(nodes.clone(), deadline);
                match event.duration {
                    Some(duration) => drop(timeout(duration.get(), claim).await),
                    None => claim.await,
                }
                Some(Undo::Claim(nodes))
            }
            Happening::Free => {
                let place = self.place(cluster.as_ref()?)?;
                let nodes = self.kept_back(place, event.nodes.map(|nodes| nodes.get()));
                self.free(&nodes, tell).await;
                Some(Undo::Free(nodes))
            }
        }
    }

    /// Nodes of a cluster that can be freed: all, or the given number of those that were kept back.
    fn kept_back(&self, place: &PlaceSection, count: Option<u32>) -> Vec<NodeId> {
        let (name, nodes) = (id(&place.name), place.nodes.get());
        match count {
            None => (1..=nodes).map(|n| node(&name, n)).collect(),
            Some(count) => {
                let first = nodes - place.later.get().min(nodes) + 1;
                (first..=nodes).take(count as usize).map(|n| node(&name, n)).collect()
            }
        }
    }

    async fn undo(&self, undo: Undo, tell: &impl Fn(String)) {
        match undo {
            Undo::Speeds(speeds) => {
                let nodes: Vec<_> = speeds.iter().map(|(node, _)| node.clone()).collect();
                tell(format!("{}: the whole speed", listed(&nodes)));
                for (node, speed) in speeds {
                    self.world.set_speed(&node, speed);
                }
            }
            Undo::Uplink(cluster) => {
                tell(format!("the uplink of {cluster} is as before"));
                let uplink = self.place(&cluster).and_then(|place| place.uplink);
                self.set_uplink(&cluster, uplink);
            }
            Undo::Line(a, b, line) => {
                tell(format!("the link between {a} and {b} is as before"));
                self.set_link(&a, &b, line);
            }
            Undo::Cut(a, b) => {
                tell(format!("{a} and {b} reach each other again"));
                self.world.cut(&a, &b, false);
            }
            Undo::Off(nodes) => {
                tell(format!("{}: on", listed(&nodes)));
                for node in &nodes {
                    self.world.switch_on(node);
                }
            }
            Undo::Claim(nodes) => self.free(&nodes, tell).await,
            Undo::Free(nodes) => {
                tell(format!("{}: wanted for something else again", listed(&nodes)));
                self.claim(nodes, None).await;
            }
        }
    }

    /// Frees nodes for the job.
    async fn free(&self, nodes: &[NodeId], tell: &impl Fn(String)) {
        tell(format!("{}: free", listed(nodes)));
        self.claims.borrow_mut().push((Instant::now(), nodes.to_vec()));
        self.detector.free(nodes);
        // If no node was held, there is nothing to give back.
        let _ = self.world.scheduler().send(Undrain { nodes: nodes.to_vec() }).await;
    }

    fn speed(&self, node: &NodeId) -> f64 {
        self.place(&cluster_of(node).into()).map_or(1.0, |place| place.speed)
    }
}

/// Applies an event to a direction of a link. A queue that the file gives stays; another follows
/// the bandwidth.
fn changed(original: &LinkProfile, event: &EventSection, queue: Option<u32>) -> LinkProfile {
    let now = original.clone().loss(event.loss.map_or(original.loss, Share::get));
    let now = event.rtt.map_or(now.clone(), |rtt| now.delay(rtt.get() / 2));
    limited(now, event.bandwidth, queue)
}

/// The inverse of an event.
enum Undo {
    Speeds(Vec<(NodeId, f64)>),
    Uplink(ClusterId),
    Line(ClusterId, ClusterId, [LinkProfile; 2]),
    Cut(ClusterId, ClusterId),
    Off(Vec<NodeId>),
    Claim(Vec<NodeId>),
    Free(Vec<NodeId>),
}

fn node(cluster: &ClusterId, n: u32) -> NodeId {
    format!("{cluster}-{n}").into()
}

/// The cluster of a node of a scenario, by its name.
pub fn cluster_of(node: &NodeId) -> &str {
    node.as_str().rsplit_once('-').map_or("", |(cluster, _)| cluster)
}

/// Lists nodes by cluster in a short text.
pub(crate) fn listed(nodes: &[NodeId]) -> String {
    let mut by_cluster = BTreeMap::<&str, Vec<&NodeId>>::new();
    for node in nodes {
        by_cluster.entry(cluster_of(node)).or_default().push(node);
    }
    let words = by_cluster.values().map(|nodes| match nodes[..] {
        [only] => only.to_string(),
        _ => format!("{} to {}", nodes[0], nodes[nodes.len() - 1]),
    });
    let words: Vec<_> = words.collect();
    if words.is_empty() { "no node".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{ScenarioConfig, Sources, load};

    use super::*;

    #[test]
    fn a_given_queue_stays_for_every_bandwidth() {
        let of = |queue: &str| {
            let text = format!(
                "name = \"x\"\n[wide]\nbandwidth = \"10MB/s\"\n{queue}\n\
                 [[cluster]]\nname = \"a\"\nstart = 1\n[[cluster]]\nname = \"b\"\n\
                 [[event]]\nwhat = \"link\"\nat = \"1s\"\nbetween = [\"a\", \"b\"]\n\
                 bandwidth = \"2MB/s\"\n"
            );
            let config = load::<ScenarioConfig>(&Sources::of_text("x.toml", &text));
            let config = config.unwrap_or_else(|error| panic!("{error}")).value;
            let line = config.line("a", "b");
            let [there, _] = directions(&line);
            (there.queue, changed(&there, &config.event[0], line.queue))
        };
        let (original, now) = of("queue = 50000");
        assert_eq!((original, now.queue, now.rate), (50_000, 50_000, Some(2_000_000)));
        let (original, now) = of("");
        assert_eq!((original, now.queue, now.rate), (1_000_000, 200_000, Some(2_000_000)));
    }
}
