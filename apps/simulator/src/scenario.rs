//! Simulates a scenario file: its grid, its job and, in `scenario_driver`, its events.
//!
//! This module depends on neither the presentation nor the expected result.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::job::{JobEndReport, JobParams};
use springtide_actors::policy::{self, ADAPT, LoggedDecision, Mode};
use springtide_runtime::config::{
    App, AppSection, BoundedInt, ByteRate, PlaceSection, ScenarioConfig, Time,
};
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::{LinkPolicy, LinkUnit, MemoryConfig};
use springtide_runtime::topology::directions;
use springtide_runtime::work::Registry;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apps::{AppModel, LeafPhase, ModelledJob, ModelledProcesses, WorkDivision};
use crate::dead_end::{DeadEnd, GridState};
use crate::faults::Summed;
use crate::grid::{
    GridError, Layout, RecentEvents, SimulatedCluster, SimulatedGrid, simulate as run_simulation,
};
pub use crate::machines::EPOCH_US;
use crate::machines::Machine;
use crate::scenario_driver::{ScenarioDriver, listed};
use crate::submitter::{SubmissionProgress, Submitter};

/// The options of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct SimulationParams {
    /// The extent to which the set of nodes is adapted.
    pub mode: Mode,
    /// The monitoring period, if it replaces the file's.
    pub period: Option<Duration>,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// The result of a simulated scenario.
#[derive(Debug)]
pub struct SimulationResult {
    /// The report that the client gets.
    pub ended: Box<JobEndReport>,
    /// The checksum that the job must have.
    pub answer: u64,
    /// Time from the job's submission to its end.
    pub wall: Duration,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// Pairs of a time in seconds and the job's number of nodes from then on.
    pub nodes: Vec<(f64, u32)>,
    /// Messages of the job, by time since its submission.
    pub said: Vec<(Duration, String)>,
    /// Events of the grid, by time since the job's submission.
    pub events: Vec<(Duration, String)>,
    /// The time of the job's submission, in seconds of the grid.
    start_s: f64,
    /// Nodes that events claimed or freed, by time since the job's submission.
    pub claims: Vec<(Duration, Vec<NodeId>)>,
    /// The recorded events of the run.
    pub records: Vec<Record>,
    /// Digest of all events: equal for equal histories; 0 for live runs.
    pub digest: u64,
    /// Number of events of the simulated network; 0 for live runs.
    pub network_events: u64,
}

impl SimulationResult {
    /// The actions that the policy decided on, by seconds of the job.
    pub fn actions(&self) -> Vec<(Duration, String)> {
        let describe = |logged: &LoggedDecision| {
            let at = Duration::try_from_secs_f64(logged.inputs.snapshot.elapsed_s);
            let words: Vec<_> =
                logged.decision.actions.iter().map(policy::describe_action).collect();
            (at.unwrap_or_default(), words.join("; "))
        };
        let decisions = self.decisions();
        decisions
            .iter()
            .filter(|logged| !logged.decision.actions.is_empty())
            .map(describe)
            .collect()
    }

    /// Recorded events of nodes and roles, by seconds since the job's start.
    pub fn events_by_time(&self) -> impl Iterator<Item = (f64, &Event)> {
        events_by_time(&self.records, self.start_s)
    }

    /// Whether an event claimed or freed this node in this time.
    pub fn was_claimed(&self, node: &NodeId, from: f64, to: f64) -> bool {
        let claims = self.claims.iter().filter(|(_, nodes)| nodes.contains(node));
        let times = claims.map(|(at, _)| at.as_secs_f64());
        times.into_iter().any(|at| (from - 1.0..=to + 1.0).contains(&at))
    }

    /// The decisions of the policy, with their inputs.
    pub fn decisions(&self) -> Vec<LoggedDecision> {
        let decisions = self.records.iter().filter_map(|record| match &record.event {
            Event::Decision { decision, inputs, .. } if decision == ADAPT => {
                serde_json::from_value(inputs.clone()).ok()
            }
            _ => None,
        });
        decisions.collect()
    }
}

/// Builds the job model that a section describes.
pub fn model(app: &AppSection) -> AppModel {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let bodies = app.bodies.get();
    let (rounds, from) = (app.iterations.get(), app.then_from);
    let then = from.zip(app.then_leaves).map(|(from, leaves)| LeafPhase {
        from: from.get() - 1,
        until: app.then_until.map_or(rounds, |until| until.get() - 1),
        leaves: leaves.get(),
    });
    let (work_us, serial_us) = (micros(app.work.get()), micros(app.serial.get()));
    let (each_us, leaves) = (micros(app.each.get()), app.leaves.get());
    // The sizes of the real job's positions, forces, and positions with velocities.
    let state_bytes = bodies.saturating_mul(12);
    let result_bytes = bodies.saturating_mul(16);
    let checkpoint_bytes = bodies.saturating_mul(60);
    let tree = |shape| {
        AppModel::Tree(ModelledJob {
            shape,
            rounds,
            leaves,
            then,
            work_us,
            spread: (app.spread * 1000.0) as u32,
            serial_us,
            each_us,
            state_bytes,
            result_bytes,
            checkpoint_bytes,
            undeclared: !app.declared,
        })
    };
    match app.kind {
        App::BarnesHut => tree(WorkDivision::Even),
        App::Search => tree(WorkDivision::Uneven),
        App::MasterWorker => AppModel::Master(Summed {
            iterations: rounds,
            tasks: leaves,
            then,
            blocks: 1,
            block_us: work_us / u64::from(leaves),
            serial_us,
            common_bytes: state_bytes,
            result_bytes,
            ..Summed::SMALL
        }),
        App::Spmd => AppModel::Processes(ModelledProcesses {
            steps: rounds,
            items: leaves,
            then,
            work_us,
            serial_us,
            each_us,
            exchanged_bytes: state_bytes,
            state_bytes: checkpoint_bytes,
        }),
    }
}

pub(crate) fn id(name: &springtide_runtime::config::Name) -> ClusterId {
    name.as_str().into()
}

/// Divides work, traffic and event times by `scale`; link delays stay as they are.
///
/// All three shrink alike, so that unchanged links can carry the traffic.
pub fn scaled(config: &ScenarioConfig, scale: f64) -> ScenarioConfig {
    let mut scaled = config.clone();
    let time = |time: Time| Time::from(time.get().div_f64(scale));
    let (app, job) = (&mut scaled.app, &mut scaled.job);
    for work in [&mut app.work, &mut app.serial, &mut app.each, &mut job.period, &mut job.limit] {
        *work = time(*work);
    }
    app.bodies = BoundedInt::nearest((f64::from(app.bodies.get()) / scale).round() as u32);
    scaled.paper.period = scaled.paper.period.map(time);
    // The policy's times shrink too: the adaptation of the shorter job is that of the original.
    let adapts = &mut scaled.adaptation;
    for seconds in [
        &mut adapts.settle_s,
        &mut adapts.doubt_s,
        &mut adapts.move_cost_s,
        &mut adapts.quarantine_s,
        &mut adapts.quarantine_max_s,
    ] {
        *seconds /= scale;
    }
    for event in &mut scaled.event {
        for at in [&mut event.at, &mut event.duration, &mut event.interval, &mut event.deadline] {
            *at = at.map(time);
        }
    }
    scaled
}

/// Builds the layout of the grid that a file describes.
pub fn layout(config: &ScenarioConfig, seed: u64) -> Layout {
    let place = |place: &PlaceSection| SimulatedCluster {
        name: id(&place.name),
        nodes: place.nodes.get(),
        machine: Machine { threads: config.threads_of(place, 0), speed: place.speed },
        unequal_threads: place.unequal_threads.clone(),
    };
    let [between, _] = directions(&config.wide.line());
    Layout {
        clusters: config.cluster.iter().map(place).collect(),
        network: MemoryConfig { between, ..MemoryConfig::default() },
        seed,
        leave_within: Duration::from_secs(600),
        stoppable: false,
    }
}

/// Sets the link policy of QUIC endpoints to the file's links between clusters, unless the caller
/// set one.
fn expect_links(mut wire: LinkUnit, config: &ScenarioConfig) -> LinkUnit {
    if let LinkUnit::Quic(net) = &mut wire
        && net.link == LinkPolicy::default()
    {
        let uplinks = config.cluster.iter().map(|place| place.uplink);
        let wide = config.wide.line();
        let rates = uplinks.chain([wide.bandwidth]).flatten();
        let least = rates.map(ByteRate::bytes_per_second).reduce(f64::min);
        let rtt_ms = wide.rtt.as_secs_f64() * 1e3;
        let bandwidth = least.unwrap_or(net.link.bandwidth);
        net.link = LinkPolicy { rtt_ms, bandwidth, ..net.link };
    }
    wire
}

/// Builds the parameters of the job.
pub fn params(config: &ScenarioConfig, play: &SimulationParams) -> JobParams {
    // Small, since large grids have many threads. Frames of unoptimised code take several times as
    // much.
    let stack_bytes = if cfg!(debug_assertions) { 1 << 20 } else { 1 << 18 };
    let mut params = JobParams { seed: play.seed, stack_bytes, ..JobParams::default() };
    params.adapt(&config.adaptation);
    params.set_period(play.period.unwrap_or(config.job.period.get()));
    params.mode = play.mode;
    params.steal = config.job.steal.into();
    params
}

/// Simulates a scenario from its job's submission to its end.
///
/// # Errors
/// The job cannot be run, or does not end in time.
pub fn simulate(
    config: &ScenarioConfig,
    how: &SimulationParams,
) -> Result<SimulationResult, GridError> {
    simulate_over(config, how, LinkUnit::Frames)
}

/// Simulates a scenario over the given wire; real QUIC endpoints take several times as long to
/// simulate.
///
/// # Errors
/// As of [`simulate`].
pub fn simulate_over(
    config: &ScenarioConfig,
    how: &SimulationParams,
    wire: LinkUnit,
) -> Result<SimulationResult, GridError> {
    simulate_job(config, model(&config.app), how, wire)
}

/// Simulates a scenario with the given job instead of the file's.
///
/// # Errors
/// As of [`simulate`].
pub fn simulate_job(
    config: &ScenarioConfig,
    job: AppModel,
    how: &SimulationParams,
    wire: LinkUnit,
) -> Result<SimulationResult, GridError> {
    run_simulation(|| run_job(config, job, how, wire))
}

async fn run_job(
    config: &ScenarioConfig,
    model: AppModel,
    how: &SimulationParams,
    wire: LinkUnit,
) -> Result<SimulationResult, GridError> {
    let mut registry = Registry::new();
    AppModel::register(&mut registry);
    let mut layout = layout(config, how.seed);
    layout.network.wire = expect_links(wire, config);
    let grid = SimulatedGrid::start(&layout, registry).await;
    let driver = ScenarioDriver::new(grid.clone(), config);
    driver.set_links();
    driver.claim_late_nodes().await;
    let flapping = driver.start_flapping();
    let clock = |at| grid.machines().seconds_until(at);
    let played = run(&driver, grid.submitter(), model, params(config, how), clock).await;
    flapping.iter().for_each(actix_rt::task::JoinHandle::abort);
    let mut played = played?;
    played.digest = grid.digest(&played.records);
    played.network_events = grid.network().event_counts().events;
    Ok(played)
}

/// Runs a job on a grid and executes the events of the scenario file.
///
/// `clock` converts an instant to the time of the grid's records, in seconds since [`EPOCH_US`].
///
/// # Errors
/// The job cannot be run, or does not end within the file's limit.
pub async fn run(
    driver: &Rc<ScenarioDriver>,
    submitter: &Submitter,
    model: AppModel,
    params: JobParams,
    clock: impl Fn(Instant) -> f64,
) -> Result<SimulationResult, GridError> {
    let config = driver.config();
    let answer = model.answer();
    let start = config.cluster.iter().filter(|place| place.start.get() > 0);
    let start: BTreeMap<_, _> = start.map(|place| (id(&place.name), place.start.get())).collect();
    let first = start.values().sum();
    let run = model.submit(submitter, params, Some(start)).await?;
    let submitted_at = Instant::now();
    let start_s = clock(submitted_at);
    let job = run.granted().job;
    driver.world.on_grant(run.granted());
    let (progress_sender, iterations) = watch::channel(0);
    let (tell, mut event_receiver) = tokio::sync::mpsc::unbounded_channel();
    let scripts: Vec<_> = config
        .event
        .iter()
        .enumerate()
        .map(|(number, event)| {
            let (driver, event) = (driver.clone(), event.clone());
            let (iterations, tell) = (iterations.clone(), tell.clone());
            actix_rt::spawn(async move {
                driver
                    .run_event((number, &event), job, submitted_at, iterations, |what| {
                        // The receiver may have ended.
                        let _ = tell.send((submitted_at.elapsed(), what));
                    })
                    .await
            })
        })
        .collect();
    let limit = config.job.limit.get();
    let on_progress = |update: SubmissionProgress<'_>| match update {
        SubmissionProgress::Iterations(done) => drop(progress_sender.send_replace(done)),
        SubmissionProgress::Record(record) => driver.world.on_record(record),
    };
    let may_end = !config.event.is_empty() && driver.world.state(job).is_some();
    // The state is known either always or never.
    let now = || driver.world.state(job).unwrap_or(GridState { running: Vec::new(), is_led: true });
    let ended = tokio::select! {
        biased;
        ended = run.on_progress(on_progress).ended(limit) => Ok(ended),
        end = driver.detector.dead_end(now), if may_end => Err(end),
    };
    scripts.iter().for_each(actix_rt::task::JoinHandle::abort);
    let mut events = Vec::new();
    while let Ok(event) = event_receiver.try_recv() {
        events.push(event);
    }
    let ended = match ended {
        Ok(ended) => ended?,
        Err(DeadEnd::NoNode(claimed)) => {
            let claimed = (!claimed.is_empty()).then(|| listed(&claimed));
            return Err(GridError::NoNode { claimed, last: RecentEvents(events) });
        }
        Err(DeadEnd::NoCoordinator) => {
            return Err(GridError::NoCoordinator { last: RecentEvents(events) });
        }
    };
    let claims = driver.take_claims().into_iter();
    let claims =
        claims.map(|(at, nodes)| (at.saturating_duration_since(submitted_at), nodes)).collect();
    Ok(SimulationResult {
        answer,
        wall: ended.wall,
        iterations: ended.iterations,
        nodes: node_counts(&ended.records, job, (first, start_s)),
        claims,
        start_s,
        said: ended.said,
        events,
        records: ended.records,
        digest: 0,
        network_events: 0,
        ended: ended.ended,
    })
}

/// The job's number of nodes over time, in seconds since its start.
fn node_counts(records: &[Record], job: JobId, (first, start_s): (u32, f64)) -> Vec<(f64, u32)> {
    let changes = events_by_time(records, start_s).filter_map(|(at, event)| match event {
        Event::ViewChanged { job: of, members, .. } if *of == job => Some((at.max(0.0), *members)),
        _ => None,
    });
    let mut seen: Vec<(f64, u32)> = std::iter::once((0.0, first)).chain(changes).collect();
    seen.dedup_by_key(|(_, members)| *members);
    seen
}

/// All records in order of time, in seconds since the job's start.
fn events_by_time(records: &[Record], start_s: f64) -> impl Iterator<Item = (f64, &Event)> {
    // The incarnation of a simulated process is the time of its start, that of a live one is not.
    let began = |record: &Record| record.began_unix_us.unwrap_or(record.incarnation.0);
    let at = move |record: &Record| began(record).saturating_sub(EPOCH_US) + record.t_us;
    let moment = move |record| (at(record) as f64 * 1e-6 - start_s, &record.event);
    let mut moments: Vec<(f64, &Event)> = records.iter().map(moment).collect();
    moments.sort_by(|a, b| a.0.total_cmp(&b.0));
    moments.into_iter()
}

/// Converts times to seconds.
pub fn seconds(events: &[(Duration, String)]) -> Vec<(f64, String)> {
    events.iter().map(|(at, what)| (at.as_secs_f64(), what.clone())).collect()
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::Inputs;
    use springtide_runtime::config::{Sources, load};
    use springtide_runtime::id::{Epoch, Incarnation};

    use super::*;
    use crate::shipped;

    fn read(text: &str) -> ScenarioConfig {
        let loaded = load(&Sources::of_text("test.toml", text)).expect("it is right");
        assert_eq!(loaded.warnings, []);
        loaded.value
    }

    #[test]
    fn times_of_live_and_simulated_nodes_are_those_of_the_job() {
        let changed = |members, t_us, incarnation, began_unix_us| Record {
            node: "n".into(),
            incarnation: Incarnation(incarnation),
            seq: 1,
            t_us,
            began_unix_us,
            event: Event::ViewChanged {
                job: JobId(1),
                epoch: Epoch(1),
                version: 1,
                members,
                coordinator: None,
            },
        };
        let start = EPOCH_US + 90_000_000;
        let simulated = changed(3, 15_000_000, start, None);
        let live = changed(4, 25_000_000, 5 << 16, Some(start));
        let counts = node_counts(&[simulated, live], JobId(1), (2, 100.0));
        assert_eq!(counts, [(0.0, 2), (5.0, 3), (15.0, 4)]);
    }

    const SMALL: &str = r#"
        name = "small"
        [app]
        iterations = 8
        work = "60s"
        leaves = 64
        [job]
        period = "2s"
        [[cluster]]
        name = "a"
        nodes = 4
        start = 3
        later = 1
        [[cluster]]
        name = "b"
        nodes = 3
        start = 2
        [adaptation]
        mode = "static"
        [[event]]
        what = "load"
        iteration = 2
        cluster = "b"
        nodes = 1
        share = 0.5
        duration = "10s"
        [[event]]
        what = "crash"
        at = "30s"
        cluster = "b"
        duration = "20s"
        [[event]]
        what = "free"
        at = "5s"
        cluster = "a"
        nodes = 1
    "#;

    /// Other nodes take over the tasks of nodes that leave, and some of them wait for each other in
    /// a circle. Until the circle breaks no node works, which can take three seconds, an
    /// iteration's length.
    #[test]
    fn an_iteration_in_which_nodes_leave_is_not_twice_as_long() {
        let clusters = [("vu", 12, 3), ("leiden", 12, 0), ("uva", 12, 0), ("delft", 4, 4)];
        for at in [14_000, 14_400, 14_600] {
            let mut text = "name = \"leaves\"\n\
                [app]\nkind = \"barnes-hut\"\niterations = 6\nwork = \"60s\"\n\
                serial = \"1233ms\"\neach = \"100ms\"\nleaves = 1024\nspread = 0.5\n\
                bodies = 53333\n[wide]\nrtt = \"4ms\"\nbandwidth = \"12MB/s\"\n"
                .to_owned();
            for (name, nodes, goes) in clusters {
                text += &format!(
                    "[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\nstart = {nodes}\n\
                     uplink = \"50MB/s\"\n"
                );
                if goes > 0 {
                    text += &format!(
                        "[[event]]\nwhat = \"claim\"\nat = \"{at}ms\"\n\
                         cluster = \"{name}\"\nnodes = {goes}\n"
                    );
                }
            }
            let how = SimulationParams { mode: Mode::Static, period: None, seed: 3 };
            let played = simulate(&read(&text), &how).expect("it ends");
            let mut lengths = played.iterations;
            lengths.sort_by(f64::total_cmp);
            let [.., middle, _, _, longest] = lengths[..] else { panic!("{lengths:?}") };
            assert!(longest < 1.6 * middle, "nodes leave at {at} ms: {lengths:?}");
        }
    }

    #[test]
    fn events_happen_at_their_times_and_one_seed_gives_one_history() {
        let config = read(SMALL);
        let how = SimulationParams { mode: Mode::Static, period: None, seed: 3 };
        let [one, other] = [(); 2].map(|()| simulate(&config, &how).expect("it ends"));
        assert_eq!(one.digest, other.digest);
        let outcome = one.ended.outcome.as_ref().expect("no failure");
        assert_eq!((outcome.checksum, one.iterations.len()), (one.answer, 8));
        let at = |part: &str| {
            let event = one.events.iter().find(|(_, what)| what.contains(part));
            event.unwrap_or_else(|| panic!("{part} is not in {:?}", one.events)).0.as_secs_f64()
        };
        let second = one.iterations[..2].iter().sum::<f64>();
        let loaded = at("b-1: 50 % of the speed");
        assert!((second..second + 1.0).contains(&loaded), "{loaded}, {second}");
        assert!((at("b-1: the whole speed") - loaded - 10.0).abs() < 0.1);
        assert_eq!((at("b-1 to b-3: off"), at("b-1 to b-3: on")), (30.0, 50.0));
        assert_eq!(at("a-4: free"), 5.0);
        assert_eq!(one.nodes[0], (0.0, 5));
        assert_eq!(one.nodes.last().map(|(_, nodes)| *nodes), Some(3), "{:?}", one.nodes);
    }

    /// The root moves, and its node dies twice, once a cluster is in quarantine for its link. Each
    /// successor decides with the memory that its predecessor's last decision left. Only
    /// measurements of links may be newer.
    #[test]
    fn successors_continue_with_the_memory_of_the_last_decision() {
        let places = ["vu", "leiden", "uva", "delft"].map(|name| {
            let start = if name == "delft" { 0 } else { 4 };
            format!(
                "[[cluster]]\nname = \"{name}\"\nnodes = 4\nstart = {start}\nuplink = \"50MB/s\"\n"
            )
        });
        let config = read(&format!(
            r#"
            name = "successions"
            [app]
            kind = "barnes-hut"
            iterations = 40
            work = "20s"
            serial = "1233ms"
            each = "100ms"
            leaves = 256
            spread = 0.5
            bodies = 53333
            [wide]
            rtt = "4ms"
            bandwidth = "12MB/s"
            [job]
            period = "6s"
            {}
            [[event]]
            what = "uplink"
            at = "0s"
            cluster = "uva"
            bandwidth = "100kB/s"
            [[event]]
            what = "load"
            at = "0s"
            cluster = "leiden"
            share = 0.2
            [[event]]
            what = "crash"
            at = "47s"
            role = "root"
            [[event]]
            what = "crash"
            at = "80s"
            role = "root"
            "#,
            places.concat()
        ));
        let how = SimulationParams { mode: Mode::Adaptive, period: None, seed: 1 };
        let played = simulate(&config, &how).expect("it ends");
        let outcome = played.ended.outcome.as_ref().expect("no failure");
        assert_eq!(outcome.checksum, played.answer);
        let decisions = played.decisions();
        let (mut successions, mut with_quarantine) = (0, 0);
        for pair in decisions.windows(2) {
            let Inputs { snapshot, memory, settings } = &pair[0].inputs;
            let (_, mut left) = policy::decide(snapshot, memory, settings);
            let mut found = pair[1].inputs.memory.clone();
            let probes = std::mem::take(&mut found.links.probes);
            for (cluster, known) in std::mem::take(&mut left.links.probes) {
                assert!(probes[&cluster].at_s >= known.at_s, "{cluster}: {known:?}");
            }
            assert_eq!(found, left, "after {:.1} s", snapshot.elapsed_s);
            if pair[1].inputs.snapshot.epoch > snapshot.epoch {
                successions += 1;
                with_quarantine += u32::from(!left.quarantine.is_empty());
            }
        }
        assert!(successions >= 3 && with_quarantine >= 2, "{:?}", played.said);
    }

    /// A large checkpoint over a slow link, as in the paper's scenario 5: the successor must not
    /// give up the transfer.
    #[test]
    fn a_roots_checkpoint_is_fetched_however_long_that_takes() {
        let places = ["a", "b", "c"].map(|name| {
            format!("[[cluster]]\nname = \"{name}\"\nnodes = 2\nstart = 2\nuplink = \"1MB/s\"\n")
        });
        let config = read(&format!(
            r#"
            name = "large-checkpoint"
            [app]
            kind = "barnes-hut"
            iterations = 7
            work = "400s"
            leaves = 64
            bodies = 600000
            [adaptation]
            mode = "static"
            {}
            # One of those that keep it: the next of its cluster is the successor, and has none.
            [[event]]
            what = "crash"
            at = "485s"
            cluster = "b"
            nodes = 1
            [[event]]
            what = "crash"
            at = "500s"
            role = "root"
            "#,
            places.concat()
        ));
        let played =
            simulate(&config, &SimulationParams { mode: Mode::Static, period: None, seed: 1 })
                .unwrap();
        let outcome = played.ended.outcome.as_ref().unwrap();
        assert_eq!(outcome.checksum, played.answer);
        let said = |part: &str| played.said.iter().find(|(_, text)| text.contains(part));
        let (lost, resumed) = (said("succeeds it"), said("the root continues from its checkpoint"));
        let took = resumed.unwrap().0 - lost.unwrap().0;
        assert!(took > Duration::from_secs(30), "{took:?}");
        assert_eq!(said("the root restarts"), None);
    }

    /// A static and an adaptive run of a shipped scenario.
    fn static_and_adaptive(name: &str) -> [SimulationResult; 2] {
        let config = read(shipped::find(name).expect("it is shipped").text);
        [Mode::Static, Mode::Adaptive].map(|mode| {
            let params = SimulationParams { mode, period: None, seed: 1 };
            let result = simulate(&config, &params).expect("it ends");
            let outcome = result.ended.outcome.as_ref().expect("no failure");
            assert_eq!(outcome.checksum, result.answer);
            result
        })
    }

    /// Efficiency counts processors: by nodes, one great node makes all others look idle.
    #[test]
    fn busy_hosts_of_unequal_sizes_are_kept() {
        let [fixed, adaptive] = static_and_adaptive("unequal-hosts");
        assert!(adaptive.nodes.iter().all(|(_, nodes)| *nodes == 13), "{:?}", adaptive.nodes);
        let (fixed, adaptive) = (fixed.wall.as_secs_f64(), adaptive.wall.as_secs_f64());
        assert!(adaptive <= 1.02 * fixed, "{adaptive} s, static {fixed} s");
    }

    /// The job needs more than its 4 processors, and fewer than the 104 that there are.
    #[test]
    fn a_job_grows_over_hosts_of_unequal_sizes_as_far_as_it_helps() {
        let [fixed, adaptive] = static_and_adaptive("unequal-growth");
        let most = adaptive.nodes.iter().map(|(_, nodes)| *nodes).max();
        assert!(most > Some(2), "{:?}", adaptive.nodes);
        let (fixed, adaptive) = (fixed.wall.as_secs_f64(), adaptive.wall.as_secs_f64());
        assert!(adaptive < 0.8 * fixed, "{adaptive} s, static {fixed} s");
    }

    /// A step of the processes takes longer than an order to leave may stay unanswered.
    #[test]
    fn a_node_with_long_work_leaves_and_is_not_lost() {
        let config = read(
            r#"
            name = "long-steps"
            [app]
            kind = "spmd"
            iterations = 2
            work = "3000s"
            leaves = 4
            [[cluster]]
            name = "a"
            nodes = 2
            start = 2
            [[cluster]]
            name = "b"
            nodes = 2
            start = 2
            [[event]]
            what = "claim"
            at = "20s"
            cluster = "b"
            nodes = 1
            "#,
        );
        let params = SimulationParams { mode: Mode::Static, period: None, seed: 1 };
        let result = simulate(&config, &params).expect("it ends");
        assert_eq!(result.iterations.len(), 2);
        let lost = result.said.iter().find(|(_, text)| text.contains("was lost"));
        assert_eq!(lost, None);
    }

    /// One direction of a link is narrow. Its cluster leaves, and a measurement of the other
    /// direction does not bring it back.
    #[test]
    fn a_cluster_behind_a_narrow_direction_does_not_return() {
        let config = read(
            r#"
            name = "asymmetric"
            [app]
            kind = "barnes-hut"
            iterations = 10
            work = "400s"
            leaves = 1024
            bodies = 200000
            [[link]]
            between = ["a", "b"]
            rtt = "20ms"
            bandwidth = "12MB/s"
            bandwidth_back = "30kB/s"
            [[cluster]]
            name = "a"
            nodes = 8
            start = 8
            [[cluster]]
            name = "b"
            nodes = 8
            start = 8
            [[cluster]]
            name = "c"
            nodes = 8
            "#,
        );
        let params = SimulationParams { mode: Mode::Adaptive, period: None, seed: 1 };
        let result = simulate(&config, &params).expect("it ends");
        let said = |parts: [&str; 2]| {
            result.said.iter().position(|(_, text)| parts.iter().all(|part| text.contains(part)))
        };
        let removed = said(["removed cluster b", "link"]).expect("its link is too slow");
        let later = &result.said[removed..];
        let returns =
            later.iter().find(|(_, text)| text.contains(" joins the job") && text.contains("b-1"));
        assert_eq!(returns, None, "{:?}", result.said);
    }

    #[test]
    fn the_papers_scenarios_are_calibrated_alike_and_all_shipped_ones_load() {
        let all: Vec<_> = shipped::PAPER.iter().map(|shipped| read(shipped.text)).collect();
        for config in &all {
            assert_eq!((&config.app, &config.wide), (&all[0].app, &all[0].wide), "{}", config.name);
            let uplink = |place: &PlaceSection| (place.uplink, place.speed.to_bits());
            assert!(config.cluster.iter().all(|p| uplink(p) == uplink(&all[0].cluster[0])));
            assert_eq!(config.paper.period.map(|time| time.get().as_secs()), Some(180));
        }
        for shipped in shipped::all() {
            assert_eq!(read(shipped.text).name.as_str(), shipped.name);
            assert!(!read(shipped.text).about.is_empty());
        }
        read(&ScenarioConfig::template());
    }

    #[test]
    fn all_mistakes_of_a_file_are_reported_with_their_places() {
        let text = r#"name = "x"
[app]
kind = "barnes-hutt"
[[cluster]]
name = "a"
start = 2
[[event]]
what = "load"
at = "5s"
cluster = "b"
share = 2.0
[[event]]
what = "cut"
[[event]]
what = "kill"
at = "200h"
role = "root"
deadline = "1s"
"#;
        let Err(error) = load::<ScenarioConfig>(&Sources::of_text("bad.toml", text)) else {
            panic!("it is wrong")
        };
        let message = error.to_string();
        for part in [
            "bad.toml:3:",
            "did you mean `barnes-hut`?",
            "bad.toml:6:1: cluster \"a\" has 1 nodes: it cannot start on 2 and keep 0 back",
            "bad.toml:10:1: there is no cluster named \"b\"",
            "bad.toml:11:1: must lie within 0 and 1, found 2",
            "bad.toml:13:1: the \"cut\" has no time: add `at` or `iteration`",
            "bad.toml:13:1: a \"cut\" needs `between`",
            "bad.toml:16:1: the run is over by `job.limit` 100h",
            "bad.toml:18:1: a \"kill\" has no `deadline`",
        ] {
            assert!(message.contains(part), "{part} is not in\n{message}");
        }
    }
}
