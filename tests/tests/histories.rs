//! Named fault histories: the classes of bugs that such schedulers are known for, and the findings
//! of drawn histories.
//!
//! The former have the number of the report of Dask, Ray or Mesos where there is one. Each is a
//! readable script.

use std::time::Duration;

use springtide_actors::client::Client;
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, HEAD_CLUSTER};
use springtide_actors::job::{JobError, JobParams, SCHEDULER};
use springtide_actors::probe::Prober;
use springtide_actors::scheduler::{NodeState, Scheduler, Submit};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId, Peer};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop, Task, encode_job};
use springtide_simulator::apps::{ModelledJob, WorkDivision};
use springtide_simulator::faults::{
    self, Cut, Fault, FaultHistory, FaultRole, HistoryJob, HistoryReport, Marked, Summed,
};
use springtide_simulator::{SimulatedGrid, simulate};
use springtide_tests::judged::assert_sound;
use tokio::time::{Instant, sleep};

/// About 9 s on six nodes.
const TREE: ModelledJob = ModelledJob {
    shape: WorkDivision::Uneven,
    rounds: 4,
    leaves: 128,
    work_us: 12_800_000,
    ..crate::simulated::TREE
};

const MARKED: Marked = Marked { rounds: 4, leaves: 128, leaf_us: 100_000, saves: false };

/// About 16 s on six nodes.
const SUMMED: Summed = Summed { iterations: 16, tasks: 12, ..Summed::SMALL };

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn cluster(name: &str) -> ClusterId {
    name.into()
}

fn nodes(names: &[&str]) -> Vec<NodeId> {
    names.iter().map(|name| NodeId::from(*name)).collect()
}

/// Runs a history with several seeds: each ends well, and all together take these paths.
fn ends_well(history: impl Fn(u64) -> FaultHistory, met: &[&str]) -> Vec<HistoryReport> {
    let report: Vec<HistoryReport> = (1..=4)
        .map(|seed| {
            let history = history(seed);
            match faults::run(&history) {
                Ok(report) => {
                    assert_sound(&history, &report);
                    report
                }
                Err(failed) => panic!("{history}  {failed}\n{:#?}", failed.said),
            }
        })
        .collect();
    for what in met {
        let times: u64 = report.iter().filter_map(|report| report.paths.get(*what)).sum();
        let all: Vec<_> = report.iter().map(|report| &report.paths).collect();
        assert!(times > 0, "{what}: not met; {all:#?}");
    }
    report
}

fn quiet(seed: u64, clusters: &[u32]) -> FaultHistory {
    FaultHistory::quiet(seed, clusters, HistoryJob::Model(TREE))
}

/// dask#6689: a stolen task ends on both sides.
///
/// A cluster is cut off for longer than the limit of silence and computes on; its results after the
/// cut are refused.
#[test]
fn a_stolen_task_completes_on_both_sides() {
    let history = |seed| {
        let (a, b, c) = (cluster("c0"), cluster("c1"), cluster("c2"));
        let cut = |other| Fault::Cut(c.clone(), other, secs(14));
        quiet(seed, &[2, 2, 2]).at(2000, cut(a)).at(2000, cut(b))
    };
    ends_well(
        history,
        &["member: lost by silence", "engine: a task is taken back from a lost node"],
    );
}

/// dask#6263: a task is "processing" on a lost worker. The node with most stolen tasks dies
/// repeatedly.
#[test]
fn a_task_is_held_by_a_lost_worker() {
    let history = |seed| {
        let kill = || Fault::KillRole(FaultRole::Thief);
        (0..6).fold(quiet(seed, &[2, 2, 2]), |history, n| history.at(700 + 900 * n, kill()))
    };
    ends_well(
        history,
        &[
            "fault: kill: thief",
            "member: lost by its site's word",
            "engine: a task is taken back from a lost node",
        ],
    );
}

/// dask#6244: an object is fetched from a worker that leaves. All nodes of two clusters leave
/// during the transfer of the state.
#[test]
fn an_object_that_is_fetched_from_a_leaving_worker_arrives() {
    let history = |seed| {
        let job = ModelledJob { state_bytes: 400_000, each_us: 10_000, ..TREE };
        let mut history = FaultHistory::quiet(seed, &[2, 2, 2], HistoryJob::Model(job));
        let slow = LinkProfile::default().delay(millis(20)).rate(400_000);
        history.layout.network.between = slow;
        let leave = nodes(&["c1-1", "c1-2", "c2-1"]);
        history.at(600, Fault::Drain(leave, secs(20)))
    };
    ends_well(history, &["member: left"]);
}

/// dask#6361: a worker that returns is another incarnation.
///
/// Its process is killed and restarts at once, twice; messages of and to its former incarnations
/// are refused.
#[test]
fn a_node_that_returns_is_a_new_incarnation() {
    let history = |seed| {
        let again = |node: &str, after| Fault::KillAgain(node.into(), millis(after));
        let mut history = quiet(seed, &[3, 3]);
        // The last messages of an incarnation often arrive after the first one of the next.
        let far = LinkProfile::default().delay(millis(800)).jitter(millis(1200)).reorder(true);
        history.layout.network.between = far;
        for n in 0..12 {
            let node = ["c1-2", "c0-2", "c1-3"][n as usize % 3];
            history = history.at(1000 + 900 * n, again(node, 40 * n));
        }
        history
    };
    ends_well(history, &["fault: kill, and again", "link: refused: of a past incarnation"]);
}

/// ray#8330, and seed 2256 of the drawn histories: an answer to a former incarnation arrives when
/// the next one exists.
///
/// It has a lease number that the new incarnation uses too.
#[test]
fn a_delayed_answer_to_a_former_incarnation_is_refused() {
    let history = |seed| {
        let (a, b) = (cluster("c0"), cluster("c1"));
        let far = LinkProfile::default().delay(millis(1500));
        let mut history = quiet(seed, &[3, 3]).at(0, Fault::Line(a, b, far, secs(60)));
        for n in 0..5 {
            history =
                history.at(3000 + 2000 * n, Fault::KillRole(FaultRole::Cluster(cluster("c1"))));
            history = history.at(3700 + 2000 * n, Fault::KillRole(FaultRole::Thief));
        }
        history
    };
    ends_well(history, &["fault: kill: cluster's coordinator", "fault: kill: thief"]);
}

/// dask#1526: a task moves from node to node and is never executed. Half of the nodes leave and
/// return repeatedly.
#[test]
fn a_task_that_moves_many_times_is_run() {
    let history = |seed| {
        let pauses = vec![millis(300); 30];
        quiet(seed, &[2, 2, 2])
            .at(1000, Fault::Flap(nodes(&["c0-2", "c1-1"]), pauses.clone()))
            .at(1150, Fault::Flap(nodes(&["c1-2", "c2-1"]), pauses))
    };
    let report = ends_well(
        history,
        &["member: left", "member: joined", "engine: a task comes back unfinished"],
    );
    for report in report {
        assert!(report.wall < secs(60), "{:?}", report.wall);
    }
}

/// dask#7002: the scheduler does not know the messages under way. Nodes leave while tasks that they
/// stole are under way to them.
#[test]
fn a_node_leaves_while_stolen_tasks_are_under_way_to_it() {
    let history = |seed| {
        let mut history = quiet(seed, &[2, 2, 2]);
        history.layout.network.between = LinkProfile::default().delay(millis(200));
        for n in 0..12 {
            let leave = nodes(&[["c1-1", "c2-2"], ["c1-2", "c2-1"]][n as usize % 2]);
            history = history.at(700 + 900 * n, Fault::Drain(leave, millis(800)));
        }
        history
    };
    let met = ["member: left", "engine: refused: a request from a non-member"];
    ends_well(history, &[&met[..], &["engine: a task comes back unfinished"]].concat());
}

/// dask#1489: a steal that is not confirmed executes a task twice, or never.
///
/// Links break during steals, for longer than the idle timeout, and no node is lost.
#[test]
fn a_steal_whose_answer_is_lost_with_its_link_is_found() {
    let history = |seed| {
        let mut history = quiet(seed, &[3, 3]);
        history.layout.network.idle_timeout = millis(1500);
        for n in 0..6 {
            let (a, b) = (cluster("c0"), cluster("c1"));
            history = history.at(800 + 2600 * n, Fault::Cut(a, b, millis(1700)));
        }
        history
    };
    ends_well(
        history,
        &[
            "engine: leases are audited when a link is restored",
            "engine: a message that a broken link gave back is sent again",
        ],
    );
}

/// ray#50814: a replaced process floods its successor.
///
/// The root's side of a one-way cut is replaced, continues, and its messages arrive again: the job
/// has one end.
#[test]
fn messages_of_a_replaced_root_are_refused() {
    let history = |seed| {
        let mut history = FaultHistory::quiet(seed, &[2, 3, 3], HistoryJob::Marked(MARKED));
        for (from, to) in [("c0", "c1"), ("c0", "c2"), ("c1", "c2"), ("c1", "c0")] {
            history = history.at(1500, Fault::OneWay(cluster(from), cluster(to), secs(25)));
        }
        history
    };
    ends_well(history, &["root: another succeeds it"]);
}

/// A result that another root's task left at the same place is not used for this root's.
#[test]
fn a_result_of_a_former_roots_task_is_not_used() {
    let history = |seed| {
        let kill = || Fault::KillRole(FaultRole::Root);
        let quiet = FaultHistory::quiet(seed, &[2, 2, 2], HistoryJob::Marked(MARKED));
        (0..3).fold(quiet, |history, n| history.at(1200 + 2500 * n, kill()))
    };
    ends_well(
        history,
        &[
            "root: from the beginning",
            "engine: refused: a result of another task at the same place",
        ],
    );
}

/// Findings of drawn histories, drawn again. Each seed has its cause:
///
/// - 3131: results kept by place and used for another root's tasks;
/// - 2810: a member that was taken for dead and waits for tasks that others have dropped;
/// - 1074, 3316: processes that were killed on stopped machines;
/// - 20620: a coordinator without a job that kept an engine;
/// - 3134: reports of former members against their coordinator;
/// - 7176: the end of a link reported after the start of the next to a stopped process (a defect of
///   the simulated network);
/// - 338: a thread that waited for a child of a stopping task counted as working, so its circle of
///   waits stayed.
#[test]
fn drawn_histories_that_found_defects_end_well() {
    for seed in [3131, 2810, 1074, 3316, 20620, 3134, 7176, 338] {
        let history = FaultHistory::of(seed);
        match faults::run(&history) {
            Ok(report) => drop(assert_sound(&history, &report)),
            Err(failed) => panic!("{history}  {failed}\n{:#?}", failed.said),
        }
    }
}

/// Seed 20620: a stopped node gets the order to take the job's root over, and another does so and
/// ends the job.
///
/// Then the first one resumes, becomes a coordinator, and gets the notification that the job is
/// over.
#[test]
fn a_successor_that_was_stopped_until_the_job_was_over_frees_its_engine() {
    let history = |seed| {
        quiet(seed, &[4, 2, 4])
            .at(200, Fault::StopRole(FaultRole::Cluster(cluster("c1")), secs(18)))
            .at(900, Fault::KillRole(FaultRole::Root))
    };
    ends_well(history, &["fault: stop: cluster's coordinator", "root: another succeeds it"]);
}

/// A root that computes for minutes without a call does not notice its order to stop: its successor
/// starts without it.
#[test]
fn a_successor_does_not_wait_for_a_root_without_calls() {
    let history = |seed| {
        let job = ModelledJob { rounds: 2, serial_us: 8_000_000, ..TREE };
        let slow = Fault::Slow("c0-1".into(), 0.05, secs(200));
        let drain = Fault::Drain(nodes(&["c0-1"]), secs(200));
        FaultHistory::quiet(seed, &[2, 2, 2], HistoryJob::Model(job)).at(0, slow).at(1000, drain)
    };
    for report in ends_well(history, &["root: moved", "root: from the beginning"]) {
        assert!(report.wall < secs(60), "{:?} {:#?}", report.wall, report.said);
    }
}

/// ray#59667: a call is lost, and its caller waits for ever. The head is cut off from all nodes
/// while the job ends.
#[test]
fn the_end_of_a_job_arrives_though_the_head_was_cut_off_from_it() {
    let history = |seed| {
        let mut history = quiet(seed, &[2, 2]);
        for (at, name) in [(8500, "c0"), (9000, "c1")] {
            history = history.at(at, Fault::Cut(cluster(name), HEAD_CLUSTER.into(), secs(35)));
        }
        history
    };
    for report in ends_well(history, &["fault: cut"]) {
        // The job had ended long before.
        assert!(report.wall > secs(43) && report.wall < secs(55), "{:?}", report.wall);
    }
}

/// Seed 7 of the drawn histories: the same with short cuts, so that notifications of the end are
/// repeated.
#[test]
fn the_head_is_cut_off_repeatedly_while_a_job_ends() {
    let history = |seed| {
        let mut history = quiet(seed, &[2, 2]);
        for n in 0..12 {
            let name = cluster(["c0", "c1"][n as usize % 2]);
            history =
                history.at(8000 + 700 * n, Fault::Cut(name, HEAD_CLUSTER.into(), millis(600)));
        }
        history
    };
    ends_well(history, &["fault: cut"]);
}

/// ray#1263, and seeds 132 and 622 of the drawn histories: a worker joins and dies before the job
/// has started, or its cluster's coordinator does.
#[test]
fn nodes_die_while_the_job_begins() {
    for at in [0, 1, 5, 20, 60, 150] {
        let history = |seed| {
            quiet(seed, &[1, 2, 3])
                .at(at, Fault::KillRole(FaultRole::Cluster(cluster("c2"))))
                .at(at, Fault::Kill("c1-2".into()))
                .at(at + 10, Fault::KillRole(FaultRole::Cluster(cluster("c1"))))
        };
        ends_well(history, &["fault: kill"]);
    }
}

/// The fault model includes a job's start: if a node is lost during the assignment, the job starts
/// without it, or again.
#[test]
fn nodes_are_lost_while_the_job_is_assigned() {
    let all = [
        Fault::Kill("c0-1".into()),
        Fault::KillRole(FaultRole::Root),
        Fault::KillRole(FaultRole::Cluster(cluster("c2"))),
        Fault::KillAgain("c1-2".into(), millis(30)),
        Fault::Cut(cluster("c1"), HEAD_CLUSTER.into(), secs(25)),
        Fault::Stop(nodes(&["c2-2"]), secs(5)),
    ];
    for at in [0, 30] {
        for fault in &all {
            let history = |seed| quiet(seed, &[1, 2, 3]).at_start(at, fault.clone());
            ends_well(history, &[]);
        }
    }
}

/// A cluster is unreachable when a job arrives: the job starts with the others after a short wait,
/// and grows when the cluster is back.
#[test]
fn a_job_does_not_wait_for_a_cluster_that_is_cut_off() {
    simulate(|| async {
        let FaultHistory { layout, params, .. } = quiet(1, &[2, 2, 2]);
        let grid = SimulatedGrid::start(&layout, registry()).await;
        let (far, head) = (cluster("c2"), cluster(HEAD_CLUSTER));
        for other in [cluster("c0"), cluster("c1"), head] {
            grid.network().partition(&far, &other, true);
        }
        // Its links have expired by now, and its nodes have not given the head up.
        sleep(secs(25)).await;
        let began = Instant::now();
        let long = ModelledJob { rounds: 40, ..TREE };
        let job = grid.submit(long.clone(), params, None).await.unwrap();
        assert!(began.elapsed() < secs(6), "{:?}", began.elapsed());
        let members = &job.granted().view.members;
        assert!(members.values().all(|member| member.cluster != far), "{members:?}");
        assert_eq!(members.keys().count(), 4);
        for other in [cluster("c0"), cluster("c1"), cluster(HEAD_CLUSTER)] {
            grid.network().partition(&far, &other, false);
        }
        let ended = job.ended(secs(600)).await.unwrap();
        assert_eq!(ended.ended.outcome.unwrap().checksum, long.answer());
        let joined = ended.said.iter().filter(|(_, text)| text.contains("joins the job"));
        let joined: Vec<&String> = joined.map(|(_, text)| text).collect();
        for node in ["c2-1", "c2-2"] {
            assert!(joined.iter().any(|text| text.contains(node)), "{joined:?}");
        }
    });
}

async fn incarnations(grid: &SimulatedGrid) -> Vec<(NodeId, Option<Incarnation>)> {
    let status = grid.head().status().await;
    let nodes = status.sites.values().flat_map(|site| &site.nodes);
    nodes.map(|node| (node.node.clone(), node.incarnation)).collect()
}

/// A process that waits for its job is killed while the job runs, or when it has ended and its end
/// cannot be reported.
///
/// The nodes are free 10 s later, and none is restarted.
#[test]
fn a_killed_client_frees_its_nodes_within_ten_seconds() {
    for (leaves, leaf_us) in [(2000, 500_000), (16, 20_000)] {
        simulate(|| async move {
            let FaultHistory { layout, params, .. } = quiet(1, &[2, 2]);
            let grid = SimulatedGrid::start(&layout, registry()).await;
            let before = incarnations(&grid).await;
            let me = Peer {
                node: "client-1".into(),
                incarnation: Incarnation(1),
                cluster: HEAD_CLUSTER.into(),
            };
            let endpoint = Endpoint::over(grid.network().join(me.clone()).unwrap());
            let (_links, _news) = Client::publish(&endpoint);
            Prober::publish(&endpoint.hub);
            endpoint.start();
            endpoint.net.learn(grid.head().contact());
            let scheduler = endpoint.hub.remote::<Scheduler>(&HEAD.into(), SCHEDULER);
            let work_us = u64::from(leaves) * leaf_us;
            let job = ModelledJob { leaves, work_us, rounds: 1, ..TREE };
            let submit = Submit {
                name: ModelledJob::NAME.to_owned(),
                body: encode_job(job).unwrap(),
                fingerprint: registry().fingerprint(),
                params,
                clusters: None,
                client: endpoint.net.contact(),
                program: None,
                need: None,
                principal: None,
                image: None,
            };
            scheduler.send(submit).deadline(secs(60)).await.unwrap().unwrap();
            // It receives nothing from here on, so that a short job ends without a report.
            assert!(grid.network().stop(&me.node));
            sleep(secs(4)).await;
            grid.network().kill(&me.node);
            let killed = Instant::now();
            while grid.head().status().await.count(NodeState::Idle) < 4 {
                assert!(killed.elapsed() < secs(10), "{:?}", grid.head().status().await);
                sleep(millis(100)).await;
            }
            assert_eq!(incarnations(&grid).await, before);
        });
    }
}

/// The line between two clusters is cut for a minute while a third cluster reaches both: no node is
/// taken for dead, and no process restarts.
#[test]
fn a_cut_between_two_clusters_that_a_third_reaches_is_no_death() {
    for (a, b) in [("c0", "c1"), ("c1", "c2")] {
        let cut = || Fault::Cut(cluster(a), cluster(b), secs(60));
        let history = |seed| quiet(seed, &[2, 2, 2]).at(1000, cut());
        for report in ends_well(history, &["fault: cut"]) {
            for lost in ["member: lost by silence", "member: lost by its site's word"] {
                assert_eq!(report.paths[lost], 0, "{:?}", report.said);
            }
        }
    }
}

/// A process is stopped, its peers take it for dead, and it continues. A watcher must not count the
/// time in which it was stopped itself.
#[test]
fn a_watcher_that_was_stopped_declares_no_node_dead() {
    let history = |seed| {
        // Not long enough for others to notice.
        quiet(seed, &[3, 3]).at(1500, Fault::StopRole(FaultRole::Root, millis(1500)))
    };
    for report in ends_well(history, &["fault: stop: root"]) {
        assert_eq!(report.paths["member: lost by silence"], 0, "{:?}", report.said);
    }
    let history = |seed| quiet(seed, &[3, 3]).at(1500, Fault::StopRole(FaultRole::Root, secs(20)));
    ends_well(history, &["fault: stop: root", "root: another succeeds it"]);
}

/// Lines are cut one by one and heal in another order.
#[test]
fn lines_are_cut_and_heal_in_another_order() {
    let history = |seed| {
        let cut = |a: &str, b: &str, from, until| Cut {
            a: a.into(),
            b: b.into(),
            from: secs(from),
            until: secs(until),
        };
        let cuts = vec![
            cut("c0", "c1", 0, 18),
            cut("c1", "c2", 1, 12),
            cut("c2", "c0", 2, 16),
            cut("c1", HEAD_CLUSTER, 3, 17),
            cut("c0", HEAD_CLUSTER, 4, 11),
        ];
        quiet(seed, &[2, 2, 2]).at(1000, Fault::Swizzle(cuts))
    };
    ends_well(history, &["fault: swizzle"]);
}

/// A job whose task fails.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Failing;

#[derive(serde::Serialize, serde::Deserialize)]
struct Fails {
    depth: u32,
}

impl Task for Fails {
    type Output = ();
    const NAME: &'static str = "failing.fails";

    fn run(self, cx: &Context) -> Result<(), Stop> {
        cx.spend_modelled_time(millis(50))?;
        match self.depth {
            0 => Err(Stop::fail("as expected")),
            depth => cx.join(Self { depth: depth - 1 }, Self { depth: depth - 1 }).map(drop),
        }
    }
}

impl Job for Failing {
    const NAME: &'static str = "failing";
    const ABOUT: &'static str = "a tree of tasks of which some fail";

    fn register(registry: &mut Registry) {
        registry.task::<Fails>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        cx.call(Fails { depth: 6 })?;
        Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.job::<ModelledJob>().job::<Failing>();
    registry
}

async fn all_are_free(grid: &SimulatedGrid, nodes: usize) {
    sleep(secs(30)).await;
    let status = grid.head().status().await;
    assert_eq!((status.count(NodeState::Idle), status.jobs.len()), (nodes, 0), "{status:?}");
}

/// dask#5497: the job after one that failed hangs.
#[test]
fn the_job_after_one_that_failed_runs() {
    for seed in 1..=4 {
        let history = quiet(seed, &[2, 2, 2]);
        simulate(|| async move {
            let grid = SimulatedGrid::start(&history.layout, registry()).await;
            for _ in 0..3 {
                let params = JobParams { seed, ..JobParams::default() };
                let failing = grid.submit(Failing, params.clone(), None).await.expect("taken");
                let ended = failing.ended(secs(300)).await.expect("it ends");
                let error = ended.ended.outcome.expect_err("it fails");
                assert!(matches!(error, JobError::Task(_)), "{error}");
                // At once, without a wait for the end of all messages.
                let next = grid.submit(TREE, params, None).await.expect("taken");
                let ended = next.ended(secs(300)).await.expect("it ends");
                let outcome = ended.ended.outcome.expect("no failure");
                assert_eq!(outcome.checksum, TREE.answer(), "seed {seed}");
            }
            all_are_free(&grid, 6).await;
        });
    }
}

/// Mesos and Chronos, by Jepsen: short interruptions of the network stop all scheduling. The test
/// is the job after them.
#[test]
fn after_short_interruptions_the_grid_works() {
    for seed in 1..=4 {
        let history = quiet(seed, &[2, 2, 2]);
        simulate(|| async move {
            let grid = SimulatedGrid::start(&history.layout, registry()).await;
            let params = JobParams { seed, ..JobParams::default() };
            let calm = grid.submit(TREE, params.clone(), None).await.expect("taken");
            let calm = calm.ended(secs(300)).await.expect("it ends").wall;
            sleep(secs(30)).await;
            let during = grid.submit(TREE, params.clone(), None).await.expect("taken");
            let network = grid.network().clone();
            let script = actix_rt::spawn(async move {
                let names = ["c0", "c1", "c2", HEAD_CLUSTER].map(ClusterId::from);
                for n in 0..40usize {
                    let (a, b) = (&names[n % 4], &names[(n + 1 + n / 4 % 3) % 4]);
                    network.partition(a, b, true);
                    sleep(millis(50 + 97 * n as u64 % 900)).await;
                    network.partition(a, b, false);
                }
            });
            let ended = during.ended(secs(300)).await.expect("it ends");
            assert_eq!(ended.ended.outcome.expect("no failure").checksum, TREE.answer());
            script.await.expect("no panic");
            all_are_free(&grid, 6).await;
            let after = grid.submit(TREE, params, None).await.expect("taken");
            let after = after.ended(secs(300)).await.expect("it ends");
            assert_eq!(after.ended.outcome.expect("no failure").checksum, TREE.answer());
            assert!(after.wall < calm.mul_f64(1.3), "{:?}, before {calm:?}", after.wall);
        });
    }
}

/// A worker dies, a cluster is cut off from the master's, the master dies, and a node leaves.
///
/// The new master continues from the last iterate, and each block counts once.
#[test]
fn a_master_and_its_workers_outlive_each_other() {
    let history = |seed| {
        let cut = Fault::Cut(cluster("c0"), cluster("c2"), secs(20));
        FaultHistory::quiet(seed, &[2, 2, 2], HistoryJob::Summed(SUMMED))
            .at(2000, Fault::KillRole(FaultRole::Thief))
            .at(4000, cut)
            .at(7000, Fault::KillRole(FaultRole::Root))
            .at(9000, Fault::Drain(nodes(&["c1-1"]), secs(20)))
    };
    ends_well(history, &["fault: kill: thief", "fault: kill: root", "root: from a checkpoint"]);
}
