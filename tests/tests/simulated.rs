//! Whole grids in virtual time, with all their actors.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use actix::prelude::*;
use springtide_actors::cluster::NodeSilence;
use springtide_actors::job::{
    Assign, AssignError, JobParams, JobSpec, ReleaseWorker, SCHEDULER, WORKER,
    cluster_coordinator_name, coordinator_name,
};
use springtide_actors::policy::Mode;
use springtide_actors::scheduler::{Drain, NodeState, NodeStatus, Scheduler};
use springtide_actors::worker::Worker;
use springtide_judge::{Expectation, Verdict};
use springtide_runtime::id::{ClusterId, Epoch, JobId, NodeId};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::net::{Address, LinkProfile, MemoryConfig};
use springtide_runtime::work::{Job, Registry, encode_job};
use springtide_simulator::apps::{ModelledJob, WorkDivision};
use springtide_simulator::faults;
use springtide_simulator::machines::Machine;
use springtide_simulator::{
    CompletedRun, Layout, SimulatedCluster, SimulatedGrid, SimulatedRun, simulate,
};
use springtide_tests::judged::{judge_history, judge_records};
use springtide_tests::number;
use tokio::time::sleep;

pub(crate) fn layout(clusters: &[u32], seed: u64) -> Layout {
    let place = |(at, nodes): (usize, &u32)| SimulatedCluster {
        name: format!("c{at}").into(),
        nodes: *nodes,
        machine: Machine { threads: 1, speed: 1.0 },
        unequal_threads: None,
    };
    Layout {
        clusters: clusters.iter().enumerate().map(place).collect(),
        network: MemoryConfig::default(),
        seed,
        leave_within: Duration::from_secs(30),
        stoppable: false,
    }
}

pub(crate) fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.job::<ModelledJob>();
    registry
}

pub(crate) const TREE: ModelledJob = ModelledJob {
    shape: WorkDivision::Even,
    rounds: 6,
    leaves: 256,
    then: None,
    work_us: 25_600_000,
    spread: 500,
    serial_us: 0,
    each_us: 0,
    state_bytes: 0,
    result_bytes: 25_600,
    checkpoint_bytes: 0,
    undeclared: false,
};

pub(crate) fn params(seed: u64) -> JobParams {
    let mut params = JobParams { seed, period_ms: 2000, ..JobParams::default() };
    params.settings.period_s = 2.0;
    params
}

/// The parameters of a job without adaptation.
pub(crate) fn quiet(seed: u64) -> JobParams {
    let mut params = params(seed);
    params.mode = Mode::Static;
    params
}

pub(crate) async fn after(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

/// The node of a job's root, and another of its nodes.
pub(crate) fn root_and_another(run: &SimulatedRun<'_>) -> (NodeId, NodeId) {
    let view = &run.granted().view;
    let root = view.coordinator.clone().expect("there is a root");
    let another = view.members.keys().find(|node| **node != root);
    let another = another.cloned().expect("there are others");
    (root, another)
}

/// Drains nodes after some seconds, with a minute's deadline.
pub(crate) async fn drain_after(grid: Rc<SimulatedGrid>, seconds: u64, nodes: Vec<NodeId>) {
    let (reason, deadline_ms, life) = ("a test".to_owned(), Some(60_000), None);
    let drain = Drain { nodes, reason, deadline_ms, incarnation: life };
    after(seconds).await;
    let sent = grid.scheduler().send(drain).deadline(Duration::from_secs(70));
    let drained = sent.await.expect("an answer");
    assert!(drained.is_ok(), "{drained:?}");
}

/// The nodes of the job's root, by its messages.
fn root(ended: &CompletedRun) -> Vec<String> {
    let says = ended.said.iter().filter_map(|(_, text)| text.strip_prefix("the root runs on "));
    says.map(|text| text.split(',').next().unwrap_or(text).to_owned()).collect()
}

fn run(clusters: &[u32], seed: u64) -> (CompletedRun, u64) {
    let layout = layout(clusters, seed);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let run = grid.submit(TREE, params(seed), None).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        let mut records = ended.records.clone();
        records.extend(grid.drain_records());
        let verdict = judge_records(&records, &Expectation::default());
        assert!(verdict.faults.is_empty(), "{verdict}");
        let digest = grid.digest(&records);
        (ended, digest)
    })
}

#[test]
fn one_seed_gives_one_history_of_a_whole_grid() {
    let (first, digest) = run(&[3, 3], 1);
    let outcome = first.ended.outcome.as_ref().expect("no failure");
    assert_eq!(outcome.checksum, TREE.answer());
    assert_eq!(first.iterations.len(), 6);
    let ideal = TREE.work().as_secs_f64() / 6.0;
    let took: f64 = first.iterations.iter().sum();
    println!("{took:.1} s, ideal {ideal:.1} s; {} records", first.records.len());
    assert!(took < ideal * 1.3, "{took} s, of at least {ideal} s");
    let (again, same) = run(&[3, 3], 1);
    assert_eq!((again.wall, same), (first.wall, digest));
    // Seeds that differ in the lowest bit alone must give different histories.
    let (second, third) = (run(&[3, 3], 2).1, run(&[3, 3], 3).1);
    assert!(second != digest && third != digest && second != third);
}

/// Every role of a grid dies: members, the coordinator of a cluster, the job's own, and a whole
/// cluster whose machines go off.
#[test]
fn all_roles_die_and_the_answer_is_right() {
    for seed in 1..=4 {
        let layout = layout(&[3, 3, 3], seed);
        let (ended, roots) = simulate(|| async move {
            let grid = SimulatedGrid::start(&layout, registry()).await;
            let run = grid.submit(TREE, params(seed), None).await.expect("it is taken");
            let machines = grid.machines().clone();
            let node = |name: &str| NodeId::from(name);
            let first = run.granted().coordinator.node.clone();
            let script = actix_rt::spawn(async move {
                sleep(Duration::from_secs(4)).await;
                assert!(machines.kill(&node("c1-2")));
                sleep(Duration::from_secs(3)).await;
                assert!(machines.kill(&node("c1-1")));
                sleep(Duration::from_secs(5)).await;
                assert!(machines.kill(&first));
                sleep(Duration::from_secs(9)).await;
                for n in 1..=3 {
                    machines.switch_off(&node(&format!("c2-{n}")));
                }
                sleep(Duration::from_secs(30)).await;
                for n in 1..=3 {
                    machines.switch_on(&node(&format!("c2-{n}")));
                }
            });
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            script.abort();
            let roots = root(&ended);
            (ended, roots)
        });
        for (at, text) in &ended.said {
            println!("{:8.3} s  {text}", at.as_secs_f64());
        }
        let outcome = ended.ended.outcome.as_ref().expect("no failure");
        assert_eq!(outcome.checksum, TREE.answer(), "seed {seed}");
        // None of these events is a reason to remove a node.
        let removed = |text: &&String| text.starts_with("removed");
        let removals: Vec<_> = ended.said.iter().map(|(_, text)| text).filter(removed).collect();
        assert!(removals.is_empty(), "seed {seed}: {removals:?}");
        let distinct: BTreeMap<_, _> = roots.iter().map(|root| (root, ())).collect();
        assert!(distinct.len() > 1, "the root continued elsewhere: {roots:?}");
    }
}

/// All nodes of the grid are free within a minute after its job: none computes for a replaced root
/// or coordinator.
async fn all_are_free(grid: &SimulatedGrid, nodes: usize) {
    sleep(Duration::from_secs(60)).await;
    let status = grid.head().status().await;
    assert_eq!((status.count(NodeState::Idle), status.jobs.len()), (nodes, 0), "{status:?}");
}

/// The root's cluster is cut off from the others, but not from the head.
///
/// They report that the root is silent, another node takes its place, and the old root is stopped.
#[test]
fn a_root_that_is_cut_off_is_replaced_and_stopped() {
    for seed in 1..=3 {
        let layout = layout(&[2, 4, 4], seed);
        let ended = simulate(|| async move {
            let grid = SimulatedGrid::start(&layout, registry()).await;
            let on = BTreeMap::from([("c0".into(), 2), ("c1".into(), 4), ("c2".into(), 4)]);
            let run = grid.submit(TREE, params(seed), Some(on)).await.expect("it is taken");
            let home = run.granted().coordinator.cluster.clone();
            let others = ["c0", "c1", "c2"].map(ClusterId::from);
            let network = grid.network().clone();
            let script = actix_rt::spawn(async move {
                sleep(Duration::from_secs(4)).await;
                let cut = |cut| {
                    let others = others.iter().filter(|other| **other != home);
                    others.for_each(|other| network.partition(&home, other, cut));
                };
                cut(true);
                sleep(Duration::from_secs(25)).await;
                cut(false);
            });
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            script.await.expect("no panic");
            all_are_free(&grid, 10).await;
            ended
        });
        for (at, text) in &ended.said {
            println!("{:8.3} s  {text}", at.as_secs_f64());
        }
        let outcome = ended.ended.outcome.as_ref().expect("no failure");
        assert_eq!(outcome.checksum, TREE.answer(), "seed {seed}");
        assert!(root(&ended).len() > 1, "seed {seed}: no node took its place");
    }
}

/// Nodes are drained while the root's node dies: the coordinator with the order is lost, and the
/// next one releases them.
#[test]
fn nodes_that_leave_while_the_root_dies_are_released_by_the_next() {
    for seed in 1..=2 {
        for after_ms in [0, 20, 300, 3000] {
            let layout = layout(&[3, 3], seed);
            let ended = simulate(|| async move {
                let grid = SimulatedGrid::start(&layout, registry()).await;
                let run = grid.submit(TREE, params(seed), None).await.expect("it is taken");
                let first = run.granted().coordinator.node.clone();
                let leaving: Vec<NodeId> = ["c0-2", "c1-2", "c1-3"]
                    .map(NodeId::from)
                    .into_iter()
                    .filter(|node| *node != first)
                    .collect();
                let machines = grid.machines().clone();
                let head = &grid.head().endpoint;
                let scheduler = head.hub.remote::<Scheduler>(&head.net.me().node, SCHEDULER);
                let drain = Drain {
                    nodes: leaving.clone(),
                    reason: "a test".to_owned(),
                    deadline_ms: Some(60_000),
                    incarnation: None,
                };
                let script = actix_rt::spawn(async move {
                    sleep(Duration::from_secs(4)).await;
                    let call = scheduler.send(drain).deadline(Duration::from_secs(70)).start();
                    sleep(Duration::from_millis(after_ms)).await;
                    assert!(machines.kill(&first));
                    call.await.expect("it is answered").expect("they are empty")
                });
                let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
                let drained = script.await.expect("no panic");
                for node in &leaving {
                    assert!(drained.empty.contains(node), "{node} is not in {drained:?}");
                }
                ended
            });
            for (at, text) in &ended.said {
                println!("{:8.3} s  {text}", at.as_secs_f64());
            }
            let outcome = ended.ended.outcome.as_ref().expect("no failure");
            assert_eq!(outcome.checksum, TREE.answer(), "seed {seed}, {after_ms} ms");
        }
    }
}

/// Runs 150 histories from seed 1, or `SPRINGTIDE_HISTORIES` from `SPRINGTIDE_HISTORIES_SEED` on.
///
/// Each kind of fault and each path of recovery must occur in one of 1,000, and in 100 of 10,000.
#[test]
fn jobs_survive_fault_histories() {
    let first = number("SPRINGTIDE_HISTORIES_SEED", 1);
    let seeds = first..first + number("SPRINGTIDE_HISTORIES", 150);
    let alone = seeds.end - seeds.start == 1;
    let judged = Mutex::new(Verdict::default());
    let tally = faults::run_all(seeds, |history, result| match result {
        Ok(report) => {
            let verdict = judge_history(history, report);
            if !verdict.faults.is_empty() {
                println!("{history}{verdict}");
            }
            judged.lock().expect("no thread panics").merge(verdict);
            if alone {
                print!("{history}");
                report.said.iter().for_each(|(at, text)| {
                    println!("{:9.3} s  {text}", at.as_secs_f64());
                });
            }
        }
        Err(failed) => {
            println!("{history}  {failed}");
            failed.said.iter().filter(|_| alone).for_each(|(at, text)| {
                println!("{:9.3} s  {text}", at.as_secs_f64());
            });
        }
    });
    let (after, seed) = tally.slowest;
    println!("{}slowest: seed {seed}, {after:?} after its last fault", tally.lines());
    let judged = judged.into_inner().expect("no thread panics");
    for (what, times) in &judged.judged {
        println!("{times:9}  judged: {what}");
    }
    assert!(judged.faults.is_empty(), "{} faults by the judge", judged.faults.len());
    let replay = "SPRINGTIDE_HISTORIES=1 SPRINGTIDE_HISTORIES_SEED=<one of them> replays it";
    assert!(tally.violations.is_empty(), "{:?}: {replay}", tally.violations);
    let share = tally.histories / 100;
    let rare = tally.rarer_than(if share >= 100 { 100 } else { share.min(1) });
    assert!(rare.is_empty(), "not met, or too seldom: {rare:?}");
}

/// Counts the reports of silent members that a cluster's coordinator sends.
struct SilenceListener(Rc<Cell<u32>>);

impl Actor for SilenceListener {
    type Context = actix::Context<Self>;
}

impl Handler<NodeSilence> for SilenceListener {
    type Result = ();

    fn handle(&mut self, _: NodeSilence, _: &mut Self::Context) {
        self.0.set(self.0.get() + 1);
    }
}

/// A node is assigned a job twice, for its answer to the first order may be lost.
///
/// Once it is released it reports nothing of the members that it watched.
#[test]
fn a_job_may_be_assigned_twice_and_a_released_node_is_silent() {
    let layout = layout(&[3], 1);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let head = &grid.head().endpoint;
        let job = JobId(77);
        let reports = Rc::new(Cell::new(0));
        let ear = SilenceListener(reports.clone()).start();
        head.hub.publish(&coordinator_name(job), ear).accepts::<NodeSilence>();
        let status = grid.head().status().await;
        let member = |node: &NodeStatus| Member {
            incarnation: node.incarnation.expect("it is registered"),
            cluster: "c0".into(),
            address: Address::Memory,
            threads: 1,
            leaving: false,
        };
        let nodes = &status.sites[&ClusterId::from("c0")].nodes;
        let members = nodes.iter().map(|node| (node.node.clone(), member(node))).collect();
        let me = head.net.me().node.clone();
        let view = View {
            epoch: Epoch(1),
            version: 1,
            members,
            coordinator: Some(me.clone()),
            cluster_coordinators: BTreeMap::from([("c0".into(), "c0-1".into())]).into(),
            partial: false,
        };
        let assign = |id| Assign {
            spec: JobSpec {
                id,
                epoch: Epoch(1),
                name: ModelledJob::NAME.to_owned(),
                body: encode_job(TREE).expect("it serialises"),
                fingerprint: registry().fingerprint(),
                params: params(1),
            },
            view: view.clone(),
            client: head.net.contact(),
            scheduler: head.net.contact(),
            benchmark: None,
        };
        let worker = head.hub.remote::<Worker>(&"c0-1".into(), WORKER);
        for _ in 0..2 {
            assert_eq!(worker.send(assign(job)).await, Ok(Ok(())));
        }
        let other = worker.send(assign(JobId(78))).await;
        assert!(matches!(other, Ok(Err(AssignError::Busy { job: JobId(77), .. }))), "{other:?}");
        let name = cluster_coordinator_name(job);
        assert_eq!(grid.machines().hosting(&name), ["c0-1".into()]);
        assert_eq!(worker.send(ReleaseWorker { job, over: true, epoch: Epoch(1) }).await, Ok(()));
        assert_eq!(grid.machines().hosting(&name), []);
        // The message of a coordinator that arrives after the end of its job.
        let late = worker.send(assign(job)).await;
        assert!(matches!(late, Ok(Err(AssignError::Failed { .. }))), "{late:?}");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(reports.get(), 0, "it reported members of a job that it had left");
    });
}

/// A state takes a minute and checkpoints take five over the link of one cluster: they are late
/// there and nowhere else.
#[test]
fn transfers_of_minutes_over_a_slow_link_arrive_and_delay_nothing_else() {
    let layout = layout(&[4, 4, 4], 1);
    let job = ModelledJob {
        rounds: 8,
        work_us: 1_200_000_000,
        state_bytes: 6_000_000,
        checkpoint_bytes: 30_000_000,
        ..TREE
    };
    let answer = job.answer();
    let ended = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let slow = LinkProfile::default().rate(100_000);
        grid.network().set_uplink(&"c2".into(), slow.clone());
        grid.network().set_downlink(&"c2".into(), slow);
        let mut params = params(1);
        params.mode = Mode::Static;
        let run = grid.submit(job, params, None).await.expect("it is taken");
        run.ended(Duration::from_secs(7200)).await.expect("it ends")
    });
    let outcome = ended.ended.outcome.as_ref().expect("no failure");
    assert_eq!(outcome.checksum, answer);
    // Iterations would grow without bound if checkpoints were sent faster than the link carries
    // them.
    for seconds in &ended.iterations {
        assert!((100.0..140.0).contains(seconds), "{:?}", ended.iterations);
    }
}

/// The transfer of a result over a slow link takes longer than the interval at which its owner asks
/// for it. It is sent once, and arrives after the time that it takes.
#[test]
fn a_result_on_its_way_is_not_sent_again() {
    let job = ModelledJob {
        rounds: 2,
        leaves: 64,
        work_us: 64_000_000,
        result_bytes: 12_000_000,
        ..TREE
    };
    let answer = job.answer();
    let ended = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[2, 2], 1), registry()).await;
        let slow = LinkProfile::default().rate(50_000);
        grid.network().set_uplink(&"c1".into(), slow.clone());
        grid.network().set_downlink(&"c1".into(), slow);
        let mut params = params(1);
        params.mode = Mode::Static;
        let run = grid.submit(job, params, None).await.expect("it is taken");
        run.ended(Duration::from_secs(7200)).await.expect("it ends")
    });
    assert_eq!(ended.ended.outcome.as_ref().expect("no failure").checksum, answer);
    let counters = &ended.ended.report.total.counters;
    println!("{:?}: {:?}", ended.iterations, counters);
    assert_eq!(counters.results.duplicates, 0, "{counters:?}");
    // Each result crosses the link at most twice: to a thief's owner, and with the owner's result.
    assert!(counters.bytes.wide < 2 * 2 * 12_000_000, "{counters:?}");
}

/// Nodes of one cluster ask each other for work before all of them take part in the job.
///
/// A node that does not take part yet answers too; otherwise the first iteration waits five seconds
/// for each answer.
#[test]
fn the_first_iteration_in_one_cluster_is_hardly_longer_than_the_others() {
    for seed in 1..=3 {
        let (ended, _) = run(&[16], seed);
        let times = &ended.iterations;
        println!("seed {seed}: {times:?}");
        let others = times[1..].iter().sum::<f64>() / (times.len() - 1) as f64;
        assert!(times[0] < 1.3 * others, "seed {seed}: {times:?}");
    }
}

/// A slow node's last task lasts longer than its deadline to leave and than the limit of silence.
///
/// It leaves all the same, and is not taken for dead.
#[test]
fn a_slow_node_that_leaves_is_not_taken_for_dead() {
    let ended = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[3, 3], 1), registry()).await;
        let mut params = params(1);
        params.mode = Mode::Static;
        let run = grid.submit(TREE, params, None).await.expect("it is taken");
        let root = run.granted().coordinator.node.clone();
        let mut nodes = ["c0-3", "c1-3"].map(NodeId::from).into_iter();
        let slow = nodes.find(|node| *node != root).expect("one is not the root's");
        let head = &grid.head().endpoint;
        let scheduler = head.hub.remote::<Scheduler>(&head.net.me().node, SCHEDULER);
        let drain = Drain {
            nodes: vec![slow.clone()],
            reason: "a test".to_owned(),
            deadline_ms: Some(500),
            incarnation: None,
        };
        grid.machines().set_speed(&slow, 0.005);
        let script = actix_rt::spawn(async move {
            sleep(Duration::from_secs(4)).await;
            let call = scheduler.send(drain).deadline(Duration::from_secs(300));
            call.await.expect("an answer").expect("it is empty").empty
        });
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        assert_eq!(script.await.expect("no panic"), [slow]);
        ended
    });
    assert_eq!(ended.ended.outcome.as_ref().expect("no failure").checksum, TREE.answer());
    let lost: Vec<_> = ended.said.iter().filter(|(_, text)| text.contains("was lost")).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// The coordinator of a cluster dies at once with those that would succeed it. The other members
/// are not lost with them.
#[test]
fn members_survive_the_loss_of_their_coordinator_and_its_successors() {
    let job = ModelledJob { work_us: 200_000_000, ..TREE };
    let answer = job.answer();
    for seed in 1..=3 {
        let job = job.clone();
        let (ended, dead) = simulate(|| async move {
            let grid = SimulatedGrid::start(&layout(&[8, 8], seed), registry()).await;
            let run = grid.submit(job, quiet(seed), None).await.expect("it is taken");
            let root = run.granted().coordinator.cluster.clone();
            let hosts = run.granted().view.cluster_coordinators.clone();
            let machines = grid.machines().clone();
            let far = if root == "c0".into() { "c1" } else { "c0" };
            let mut members: Vec<NodeId> =
                run.granted().view.in_cluster(&far.into()).cloned().collect();
            members.sort_by_key(|node| hosts.get(&far.into()) != Some(node));
            // Its coordinator, and those that would succeed it.
            let dead: Vec<NodeId> = members[..members.len().div_ceil(2)].to_vec();
            let killed = dead.clone();
            let script = actix_rt::spawn(async move {
                sleep(Duration::from_secs(2)).await;
                for node in &killed {
                    machines.switch_off(node);
                }
            });
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            script.abort();
            (ended, dead)
        });
        for (at, text) in &ended.said {
            println!("{:8.3} s  {text}", at.as_secs_f64());
        }
        assert_eq!(ended.ended.outcome.as_ref().expect("no failure").checksum, answer);
        let losses = ended.said.iter().filter(|(_, text)| text.contains("lost"));
        let last = losses.map(|(_, text)| text.as_str()).next_back().expect("nodes are lost");
        let left = format!("continuing with {} nodes", 16 - dead.len());
        assert!(last.ends_with(&left), "seed {seed}: {last}");
    }
}

/// A checkpoint that takes five minutes over a cluster's link does not delay the orders to its
/// nodes to leave.
#[test]
fn a_node_leaves_at_once_while_it_receives_a_long_checkpoint() {
    let job = ModelledJob { rounds: 8, work_us: 800_000_000, checkpoint_bytes: 30_000_000, ..TREE };
    let answer = job.answer();
    let (ended, took) = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[4, 4], 1), registry()).await;
        let mut params = params(1);
        params.mode = Mode::Static;
        let run = grid.submit(job, params, None).await.expect("it is taken");
        let root = run.granted().coordinator.cluster.clone();
        let far = if root == "c0".into() { "c1" } else { "c0" };
        let slow = LinkProfile::default().rate(100_000);
        grid.network().set_uplink(&far.into(), slow.clone());
        grid.network().set_downlink(&far.into(), slow);
        let head = &grid.head().endpoint;
        let scheduler = head.hub.remote::<Scheduler>(&head.net.me().node, SCHEDULER);
        let nodes = (1..=4).map(|n| NodeId::from(format!("{far}-{n}"))).collect();
        let drain =
            Drain { nodes, reason: "a test".to_owned(), deadline_ms: None, incarnation: None };
        let script = actix_rt::spawn(async move {
            // The first checkpoint is under way by then.
            sleep(Duration::from_secs(150)).await;
            let ordered = tokio::time::Instant::now();
            let within = Duration::from_secs(1200);
            scheduler
                .send(drain)
                .deadline(within)
                .await
                .expect("an answer")
                .expect("they are empty");
            ordered.elapsed()
        });
        let ended = run.ended(Duration::from_secs(7200)).await.expect("it ends");
        (ended, script.await.expect("no panic"))
    });
    assert_eq!(ended.ended.outcome.as_ref().expect("no failure").checksum, answer);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Thousands of grids in one process: a network and its handlers must not keep each other alive.
#[test]
fn nothing_of_a_grid_is_left_after_its_end() {
    let network = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[2, 3], 1), registry()).await;
        let job = grid.submit(TREE, params(1), None).await.expect("taken");
        grid.machines().kill(&"c1-2".into());
        let ended = job.ended(Duration::from_secs(300)).await.expect("it ends");
        assert_eq!(ended.ended.outcome.expect("no failure").checksum, TREE.answer());
        grid.network().clone()
    });
    assert_eq!(network.references(), 1);
}

/// A job on slow nodes, which needs no more of them, is notified of fast ones that another job has
/// released.
#[test]
fn a_job_is_notified_of_better_nodes_and_may_move_to_them() {
    // Half of its work is its root's: more nodes would not help much.
    let job = ModelledJob { rounds: 6, serial_us: 40_000_000, ..TREE };
    let mut layout = layout(&[3, 3], 1);
    layout.clusters[0].machine.speed = 0.4;
    let (ended, answer) = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let only = |at: &str| Some([(ClusterId::from(at), 3)].into());
        let other = ModelledJob { rounds: 3, ..TREE };
        // It measures its nodes, so the scheduler knows their speeds when they become free.
        let other_params = JobParams { mode: Mode::Monitor, ..params(1) };
        grid.submit(other, other_params, only("c1")).await.expect("it is taken");
        let answer = job.answer();
        let run = grid.submit(job, params(1), only("c0")).await.expect("it is taken");
        (run.ended(Duration::from_secs(3600)).await.expect("it ends"), answer)
    });
    assert_eq!(ended.ended.outcome.as_ref().expect("no failure").checksum, answer);
    let said: Vec<&str> = ended.said.iter().map(|(_, text)| text.as_str()).collect();
    let is_notice =
        |text: &&str| text.starts_with("better nodes are free: ") && text.contains("of c1");
    assert!(said.iter().any(is_notice), "{:#?}", ended.said);
}
