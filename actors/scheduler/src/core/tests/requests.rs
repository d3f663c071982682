//! Histories of requests of running jobs.

use std::time::Duration;

use springtide_metrics::{SpecId, SpeedMeasurement};

use super::*;
use crate::policy::SchedulerRequest;
use crate::scheduler::{
    AuthorityError, NodeFreed, ReleaseReason, RequestNodes, SpeedsMeasured, Subscribe,
    WithdrawNodes,
};

const SECOND: Duration = Duration::from_secs(1);

impl CoreTestGrid {
    /// As [`Grid::of`], with job 1 on the first node of cluster ams.
    pub(super) fn with_job(nodes: usize, least: u32, most: Option<u32>) -> Self {
        let mut grid = Self::of(nodes, OURS);
        let mut submit = submit(Some(&[("ams", 1)]), OURS, None);
        (submit.params.min_processors, submit.params.max_processors) =
            (least.into(), most.map(Into::into));
        grid.submit(submit);
        assert_eq!(grid.accept(1, &["ams-1"]), ["grant job-1 ams-1"]);
        grid
    }

    pub(super) fn request(
        &mut self,
        job: u64,
        request: SchedulerRequest,
        bench: bool,
    ) -> Vec<String> {
        let benchmark = bench.then(|| BenchmarkSpec::of_job("fib", bytes::Bytes::new()));
        let (rtt_s, bandwidth) = (BTreeMap::new(), BTreeMap::new());
        let (job, epoch) = (JobId(job), Epoch(1));
        let request = RequestNodes { job, epoch, request, benchmark, rtt_s, bandwidth };
        self.put(SchedulerEvent::Request(Box::new(request)))
    }

    fn more(&mut self, job: u64, count: u32) -> Vec<String> {
        self.request(
            job,
            SchedulerRequest { count: count.into(), ..SchedulerRequest::default() },
            false,
        )
    }

    pub(super) fn granted(&mut self, job: u64, grant: u64, ok: bool) -> Vec<String> {
        self.put(SchedulerEvent::GrantAcknowledged { job: JobId(job), grant, ok })
    }

    pub(super) fn freed(&mut self, job: u64, node: &str, why: ReleaseReason) -> Vec<String> {
        let node = NodeId::from(node);
        let (job, epoch, incarnation) = (JobId(job), Epoch(1), self.incarnation_of(&node));
        self.put(SchedulerEvent::Freed(NodeFreed { job, epoch, node, incarnation, why }))
    }

    fn measured(&mut self, node: &str, speed: Result<f64, &str>) -> Vec<String> {
        let node = NodeId::from(node);
        let incarnation = self.incarnation_of(&node);
        let answer = speed.map(|speed| SpeedMeasurement { speed, relative_error: None });
        self.put(SchedulerEvent::Measured {
            node,
            incarnation,
            answer: answer.map_err(str::to_owned),
        })
    }

    pub(super) fn after(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.put(SchedulerEvent::Tick)
    }

    /// Sets the kind of a node's hardware.
    pub(super) fn machine(&mut self, node: &str, model: &str, incarnation: u64) -> Vec<String> {
        self.sized_machine(node, (model, 1), incarnation)
    }

    /// Sets the kind of a node's hardware, and its number of processors.
    fn sized_machine(
        &mut self,
        node: &str,
        (model, threads): (&str, u32),
        incarnation: u64,
    ) -> Vec<String> {
        self.put(SchedulerEvent::Registered(NodeRegistration {
            threads,
            hardware: Hardware { model: model.into(), threads, mhz: 1000, ..Hardware::default() },
            ..registration(node, incarnation)
        }))
    }

    pub(super) fn waits(&self, job: u64) -> Option<String> {
        let jobs = self.core.status().jobs;
        jobs.into_iter().find(|known| known.job == JobId(job)).unwrap().waits_for
    }
}

#[test]
fn running_job_gets_nodes_as_they_become_free() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    assert_eq!(grid.more(1, 2), ["grant 1 of job-1 at ams-1: ams-2 del-1 and 0"]);
    assert_eq!(grid.core.asked(JobId(1)), 2.into(), "the grant is under way");
    assert_eq!(grid.granted(1, 1, true), [""; 0]);
    assert_eq!(grid.core.asked(JobId(1)), 0.into());
    assert_eq!(grid.more(1, 2), ["grant 2 of job-1 at ams-1: del-2 and 1"]);
    grid.granted(1, 2, true);
    assert_eq!(grid.waits(1).unwrap(), "1 more processor: none of 0 free nodes fits");
    // A repeated request adds to the first.
    grid.more(1, 2);
    assert_eq!(grid.core.asked(JobId(1)), 3.into());
    let (job, epoch) = (JobId(1), Epoch(1));
    grid.put(SchedulerEvent::Withdraw(WithdrawNodes { job, epoch, count: 2.into() }));
    assert_eq!(grid.core.asked(job), 1.into());
    // A node that left is free, and may return.
    assert_eq!(
        grid.freed(1, "del-1", ReleaseReason::Left),
        ["grant 3 of job-1 at ams-1: del-1 and 0"]
    );
    grid.granted(1, 3, true);
    // A node that refused must end the job before it is granted again.
    let refused = ReleaseReason::Refused { reason: "no threads".into(), busy: None };
    assert_eq!(grid.freed(1, "del-1", refused), ["release job-1 del-1"]);
    assert_eq!(grid.state("del-1"), NodeState::Busy);
    grid.released(1, "del-1", true);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
    // Nodes that were granted late may have joined without the coordinator's knowledge.
    assert_eq!(grid.over(1), ["release job-1 ams-2", "release job-1 del-2"]);
    assert_eq!(grid.state("ams-1"), NodeState::Idle);
    assert_eq!(grid.core.check(job, epoch), Err(AuthorityError::Over { job }));
    grid.released(1, "ams-2", true);
    grid.released(1, "del-2", true);
    assert_eq!(grid.core.status().count(NodeState::Idle), 4);
    assert!(grid.core.status().jobs.is_empty());
}

/// A node counts as its processors: in requests, grants under way, offers, and the job's bounds.
#[test]
fn a_great_node_is_granted_where_the_job_can_use_it() {
    let mut grid = CoreTestGrid::with_job(2, 1, Some(40));
    for (node, threads) in [("ams-2", 4), ("del-1", 32), ("del-2", 64)] {
        grid.sized_machine(node, ("big", threads), 2);
    }
    let of = |count: u32, most: u32| SchedulerRequest {
        count: count.into(),
        most: most.into(),
        ..SchedulerRequest::default()
    };
    let offers = grid.core.offers(JobId(1), Epoch(1), grid.now).unwrap();
    assert_eq!((offers.existing.get(), offers.offers[&"del".into()].free.get()), (101, 96));
    // None of the nodes is as small, and the job can use no greater one.
    assert_eq!(grid.request(1, of(1, 3), false), [""; 0]);
    let withdraw = WithdrawNodes { job: JobId(1), epoch: Epoch(1), count: 1.into() };
    grid.put(SchedulerEvent::Withdraw(withdraw));
    assert_eq!(
        grid.request(1, of(6, 36), false),
        ["grant 1 of job-1 at ams-1: ams-2 and 2"],
        "the rest is no nearer with 32 more"
    );
    assert_eq!(grid.core.asked(JobId(1)), 6.into(), "four under way and two open");
    grid.granted(1, 1, true);
    assert_eq!(grid.core.asked(JobId(1)), 2.into());
    // The job may have 40: the greater node never fits, the smaller one does.
    assert_eq!(grid.request(1, of(20, 99), false), ["grant 2 of job-1 at ams-1: del-1 and 0"]);
    assert_eq!(grid.core.asked(JobId(1)), 32.into());
    // An undelivered grant opens what it served, not what the node has.
    grid.granted(1, 2, false);
    assert_eq!(grid.core.asked(JobId(1)), 22.into());
}

#[test]
fn undelivered_grant_returns_and_the_request_stays_open() {
    let mut grid = CoreTestGrid::with_job(1, 1, None);
    assert_eq!(grid.more(1, 1), ["grant 1 of job-1 at ams-1: del-1 and 0"]);
    assert_eq!(grid.granted(1, 1, false), ["release job-1 del-1"]);
    assert_eq!(grid.released(1, "del-1", true), [""; 0], "no immediate retry");
    assert_eq!(grid.core.asked(JobId(1)), 1.into());
    assert_eq!(grid.core.work_due(), Some(grid.now + SECOND));
    assert_eq!(grid.after(SECOND), ["grant 2 of job-1 at ams-1: del-1 and 0"]);
    assert_eq!(grid.core.work_due(), None);
    // The loss of a node under way is reported like any other.
    let (node, reason) = ("del-1".into(), "killed".to_owned());
    assert_eq!(
        grid.put(SchedulerEvent::NodeLost { node, reason, returns: true }),
        ["lost job-1 ams-1 del-1"]
    );
    assert_eq!(grid.granted(1, 2, false), [""; 0]);
    assert_eq!(grid.core.asked(JobId(1)), 1.into());
}

#[test]
fn queue_precedes_requests_and_bounds_hold() {
    let mut grid = CoreTestGrid::with_job(2, 1, Some(3));
    grid.submit(submit(Some(&[("del", 1)]), OURS, None));
    grid.accept(2, &["del-1"]);
    // Job 3 waits for two nodes of del: the free one is kept for it.
    assert_eq!(grid.submit(submit(Some(&[("del", 2)]), OURS, None)), [""; 0]);
    assert_eq!(grid.more(2, 1), ["grant 1 of job-2 at del-1: ams-2 and 0"]);
    assert_eq!(grid.more(2, 1), [""; 0]);
    assert_eq!(grid.more(1, 5), [""; 0]);
    let offers = grid.core.offers(JobId(1), Epoch(1), grid.now).unwrap();
    assert_eq!((offers.offers.len(), offers.open.get(), offers.existing.get()), (0, 5, 4));
    grid.put(SchedulerEvent::Cancel { job: JobId(3), reason: "enough".into() });
    assert_eq!(grid.waits(1).unwrap(), "4 more processors: no node is free");
    grid.granted(2, 1, true);
    assert_eq!(
        grid.freed(2, "ams-2", ReleaseReason::Left),
        ["grant 3 of job-1 at ams-1: ams-2 and 3"]
    );
    assert_eq!(grid.over(2), [""; 0]);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
    assert_eq!(grid.waits(1).unwrap(), "3 more processors: it has 3, as many as it may have");
}

#[test]
fn former_coordinator_is_ignored() {
    let mut grid = CoreTestGrid::of(1, OURS);
    let (job, epoch) = (JobId(1), Epoch(4));
    let submit = Box::new(submit(Some(&[("ams", 1)]), OURS, None));
    grid.put(SchedulerEvent::Submit { job, epoch, submit });
    grid.accept(1, &["ams-1"]);
    let stale = AuthorityError::Epoch { job, asked: Epoch(3), known: epoch };
    assert_eq!(grid.core.check(job, Epoch(3)), Err(stale));
    assert_eq!(grid.core.check(job, epoch), Ok(()));
    assert_eq!(grid.more(1, 1), [""; 0], "the request has epoch 1");
    assert_eq!(grid.core.asked(job), 0.into());
    assert_eq!(grid.core.check(JobId(2), epoch), Err(AuthorityError::Over { job: JobId(2) }));
}

#[test]
fn one_node_of_each_kind_is_measured_once() {
    let mut grid = CoreTestGrid::with_job(3, 1, None);
    for (node, model) in
        [("ams-2", "slow"), ("ams-3", "slow"), ("del-1", "fast"), ("del-2", "fast")]
    {
        grid.machine(node, model, 1);
    }
    grid.machine("del-3", "broken", 1);
    let one = SchedulerRequest { count: 1.into(), ..SchedulerRequest::default() };
    assert_eq!(
        grid.request(1, one.clone(), true),
        ["measure ams-2", "measure del-1", "measure del-3"]
    );
    assert_eq!(grid.state("del-1"), NodeState::Measuring);
    assert_eq!(grid.waits(1).unwrap(), "1 more processor: free nodes are being measured");
    assert_eq!(grid.measured("ams-2", Ok(1.0)), [""; 0]);
    let output = grid.measured("del-3", Ok(f64::NAN));
    assert_eq!(output, ["odd: node del-3 measured a speed of NaN: not used"]);
    let output = grid.measured("del-1", Ok(3.0));
    assert_eq!(output, ["grant 1 of job-1 at ams-1: del-1 and 0"]);
    grid.granted(1, 1, true);
    let offers = grid.core.offers(JobId(1), Epoch(1), grid.now).unwrap().offers;
    let ams = &offers[&"ams".into()];
    assert_eq!(
        (ams.free.get(), ams.speed, ams.nodes.len()),
        (2, Some(1.0), 1),
        "one node has its own speed"
    );
    let del = &offers[&"del".into()];
    assert_eq!((del.free.get(), del.speed, del.nodes.len()), (2, Some(3.0), 0));
    // Known kinds are not measured again. The minimum speed applies to known speeds.
    let fast =
        SchedulerRequest { count: 9.into(), min_speed: Some(2.0), ..SchedulerRequest::default() };
    assert_eq!(grid.request(1, fast, true), ["grant 2 of job-1 at ams-1: del-2 del-3 and 7"]);
}

/// From the paper's scenario 1b with live nodes: a job waited 2 s for a benchmark of one of 24
/// equal nodes.
#[test]
fn no_benchmark_runs_without_effect_on_the_selection() {
    let three = |kinds: [&str; 3]| {
        let mut grid = CoreTestGrid::with_job(2, 1, None);
        for (node, kind) in ["ams-2", "del-1", "del-2"].into_iter().zip(kinds) {
            grid.machine(node, kind, 2);
        }
        grid
    };
    let some = |count: u32| SchedulerRequest { count: count.into(), ..SchedulerRequest::default() };
    assert_eq!(
        three(["cpu"; 3]).request(1, some(1), true),
        ["grant 1 of job-1 at ams-1: ams-2 and 0"],
        "all nodes are equal"
    );
    assert_eq!(
        three(["a", "b", "b"]).request(1, some(3), true),
        ["grant 1 of job-1 at ams-1: ams-2 del-1 del-2 and 0"],
        "all nodes are granted"
    );
    let measured = three(["a", "b", "b"]).request(1, some(2), true);
    assert_eq!(measured, ["measure ams-2", "measure del-1"], "the speeds affect the selection");
    let fast = SchedulerRequest { min_speed: Some(1.0), ..some(3) };
    assert_eq!(three(["cpu"; 3]).request(1, fast, true), ["measure ams-2"], "it may be too slow");
    // One node was slow in another unit. Its kind's speed shows whether the cause has ended.
    let mut grid = three(["cpu"; 3]);
    let other = Unit::of(SpecId(3), JobId(1));
    let registrations =
        ["del-1", "del-2"].map(|node| grid.core.nodes[&NodeId::from(node)].registration.clone());
    for (registration, speed) in registrations.into_iter().flatten().zip([9.0, 1.0]) {
        grid.core.speeds.at_work(other, &registration, speed, grid.now).unwrap();
    }
    assert_eq!(grid.request(1, some(3), true), ["measure ams-2"]);
    assert_eq!(grid.measured("ams-2", Ok(5.0)), ["measure del-2"]);
}

#[test]
fn request_waits_at_most_five_seconds_for_benchmarks() {
    let mut grid = CoreTestGrid::with_job(1, 1, None);
    let two =
        SchedulerRequest { count: 2.into(), min_speed: Some(0.1), ..SchedulerRequest::default() };
    grid.machine("del-1", "odd", 2);
    assert_eq!(grid.request(1, two.clone(), true), ["measure del-1"]);
    assert_eq!(grid.core.work_due(), Some(grid.now + 5 * SECOND));
    assert_eq!(grid.after(5 * SECOND), [""; 0], "the benchmark still runs");
    let output = grid.measured("del-1", Err("no answer"));
    let odd = "odd: node del-1 could not be measured: no answer";
    assert_eq!(output, [odd, "grant 1 of job-1 at ams-1: del-1 and 1"]);
    // It is not repeated soon.
    grid.granted(1, 1, true);
    grid.freed(1, "del-1", ReleaseReason::Left);
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    grid.machine("del-1", "a", 2);
    grid.machine("del-2", "b", 2);
    grid.register("ams-2", 2, 99);
    assert_eq!(grid.request(1, two, true), ["measure del-1", "measure del-2"]);
    grid.measured("del-1", Ok(1.0));
    assert_eq!(grid.after(5 * SECOND), ["grant 1 of job-1 at ams-1: del-1 and 1"]);
    assert_eq!(grid.measured("del-2", Ok(1.0)), ["grant 2 of job-1 at ams-1: del-2 and 0"]);
}

#[test]
fn node_that_was_slow_at_work_is_measured_again() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    for node in ["ams-2", "del-1", "del-2"] {
        grid.machine(node, "cpu", 2);
    }
    let one =
        SchedulerRequest { count: 1.into(), min_speed: Some(0.1), ..SchedulerRequest::default() };
    assert_eq!(grid.request(1, one.clone(), true), ["measure ams-2"]);
    assert_eq!(grid.measured("ams-2", Ok(2.0)), ["grant 1 of job-1 at ams-1: ams-2 and 0"]);
    grid.granted(1, 1, true);
    let spec = BenchmarkSpec::of_job("fib", bytes::Bytes::new()).id();
    let (job, epoch) = (JobId(1), Epoch(1));
    let speeds =
        BTreeMap::from([("ams-2".into(), 0.5), ("ams-1".into(), -1.0), ("del-1".into(), 9.0)]);
    let output =
        grid.put(SchedulerEvent::SpeedsMeasured(SpeedsMeasured { job, epoch, spec, speeds }));
    assert_eq!(output, ["odd: job-1 measured a speed of -1 of node ams-1: not used"]);
    grid.freed(1, "ams-2", ReleaseReason::Left);
    let speeds = |grid: &CoreTestGrid| {
        let offers = grid.core.offers(job, epoch, grid.now).unwrap().offers;
        (offers[&"ams".into()].nodes.clone(), offers[&"del".into()].speed)
    };
    let own = crate::policy::OfferedNode { processors: 1.into(), speed: 0.5 };
    assert_eq!(
        speeds(&grid),
        ([("ams-2".into(), own)].into(), Some(2.0)),
        "del-1 is no member of the job"
    );
    let fast =
        SchedulerRequest { min_speed: Some(1.0), avoid_clusters: ["del".into()].into(), ..one };
    assert_eq!(grid.request(1, fast.clone(), true), [""; 0]);
    grid.now += 61 * SECOND;
    assert_eq!(speeds(&grid), (BTreeMap::new(), Some(2.0)), "the node's own speed has expired");
    grid.request(1, SchedulerRequest { count: 0.into(), ..fast.clone() }, true);
    assert_eq!(grid.state("ams-2"), NodeState::Measuring);
    assert_eq!(grid.measured("ams-2", Ok(0.6)), [""; 0], "it is still slow");
    // While the request is open, the node is never granted for its kind's speed.
    for _ in 0..2 {
        assert_eq!(grid.after(61 * SECOND), ["measure ams-2"]);
        assert_eq!(grid.measured("ams-2", Ok(0.6)), [""; 0]);
    }
    assert_eq!(grid.after(61 * SECOND), ["measure ams-2"]);
    assert_eq!(grid.measured("ams-2", Ok(1.9)), ["grant 2 of job-1 at ams-1: ams-2 and 0"]);
}

/// From the paper's scenario 2 with live nodes. Nodes with a thousandth of their processor could
/// not finish the benchmark in time, and counted as fast as their kind.
#[test]
fn unmeasurable_node_does_not_get_its_kinds_speed() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    for node in ["ams-2", "del-1", "del-2"] {
        grid.machine(node, "cpu", 2);
    }
    let [unit, other] = [3, 7].map(|spec| Unit::of(SpecId(spec), JobId(1)));
    let registration =
        |node: &str| grid.core.nodes[&NodeId::from(node)].registration.clone().unwrap();
    let registrations = [registration("ams-2"), registration("del-1"), registration("del-2")];
    let (now, speeds) = (grid.now, &mut grid.core.speeds);
    speeds.benchmarked(unit, &registrations[0], 50.0, now).unwrap();
    speeds.at_work(unit, &registrations[1], 1.0, now).unwrap();
    speeds.at_work(other, &registrations[2], 9.0, now).unwrap();
    speeds.at_work(other, &registrations[2], 1.0, now).unwrap();
    let later = now + 61 * SECOND;
    let measure =
        |speeds: &Speeds, now| speeds.to_measure(unit, registrations.iter(), BTreeSet::new(), now);
    assert_eq!(measure(speeds, later), ["del-1".into(), "del-2".into()]);
    for registration in &registrations[1..] {
        speeds.failed(unit, registration, later);
    }
    let best = |speeds: &Speeds, now| {
        registrations.each_ref().map(|registration| speeds.best(Some(unit), registration, now))
    };
    assert_eq!(best(speeds, later), [Some(50.0), Some(1.0), None], "the last speed, or none");
    assert_eq!(measure(speeds, later), []);
    assert_eq!(measure(speeds, later + 61 * SECOND), ["del-1".into(), "del-2".into()]);
    // Of an unknown kind, one attempt suffices.
    let fresh = Unit::of(SpecId(8), JobId(1));
    speeds.failed(fresh, &registrations[0], later);
    assert_eq!(speeds.to_measure(fresh, registrations.iter(), BTreeSet::new(), later), []);
}

/// From the paper's scenario 2 with periods of 180 s. Loaded nodes left because of their declared
/// work. Once the job had a benchmark, they returned for their kind's speed in it.
#[test]
fn slow_node_is_doubted_in_other_units_too() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    for node in ["ams-2", "del-1", "del-2"] {
        grid.machine(node, "cpu", 2);
    }
    let [declared, benchmark] = [3, 7].map(|spec| Unit::of(SpecId(spec), JobId(1)));
    let registration =
        |node: &str| grid.core.nodes[&NodeId::from(node)].registration.clone().unwrap();
    let registrations = [registration("ams-2"), registration("del-1"), registration("del-2")];
    let now = grid.now;
    let speeds = &mut grid.core.speeds;
    for (registration, speed) in registrations.iter().zip([100.0, 3.0, 99.0]) {
        speeds.at_work(declared, registration, speed, now).unwrap();
    }
    let measure = |speeds: &Speeds| {
        let free = registrations.iter();
        speeds.to_measure(benchmark, free, BTreeSet::new(), now)
    };
    assert_eq!(measure(speeds), ["ams-2".into()], "one node of an unknown kind");
    speeds.benchmarked(benchmark, &registrations[0], 50.0, now).unwrap();
    assert_eq!(measure(speeds), ["del-1".into()]);
    speeds.benchmarked(benchmark, &registrations[1], 2.0, now).unwrap();
    assert_eq!(measure(speeds), [], "it was just measured");
    speeds.at_work(declared, &registrations[2], 5.0, now).unwrap();
    assert_eq!(measure(speeds), ["del-2".into()]);
    speeds.at_work(declared, &registrations[2], 98.0, now).unwrap();
    assert_eq!(measure(speeds), [], "the cause has ended");
}

/// From the paper's scenario 4: all free nodes counted as slow as the loaded one that was measured
/// first.
#[test]
fn benchmark_of_a_disturbed_node_does_not_define_its_kind() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    for node in ["ams-2", "del-1", "del-2"] {
        grid.machine(node, "cpu", 2);
    }
    let unit = Unit::of(SpecId(7), JobId(1));
    let registration =
        |node: &str| grid.core.nodes[&NodeId::from(node)].registration.clone().unwrap();
    let (ams, del, other) = (registration("ams-2"), registration("del-1"), registration("del-2"));
    let (now, speeds) = (grid.now, &mut grid.core.speeds);
    speeds.at_work(unit, &ams, 1.0, now).unwrap();
    speeds.benchmarked(unit, &del, 0.2, now).unwrap();
    assert_eq!(speeds.own(Some(unit), &del.node, now), Some(0.2));
    assert_eq!(speeds.of_kind(Some(unit), &other), Some(1.0));
    // A benchmark that is about as fast replaces the speeds at work.
    speeds.benchmarked(unit, &other, 0.9, now).unwrap();
    assert_eq!(speeds.of_kind(Some(unit), &ams), Some(0.9));
    speeds.at_work(unit, &ams, 1.5, now).unwrap();
    assert_eq!(speeds.of_kind(Some(unit), &ams), Some(0.9));
}

#[test]
fn declared_units_belong_to_one_job() {
    let mut grid = CoreTestGrid::with_job(1, 1, None);
    grid.submit(submit(Some(&[("del", 1)]), OURS, None));
    grid.accept(2, &["del-1"]);
    let epoch = Epoch(1);
    let output = |job: u64, node: &str, speed| {
        let (job, spec, speeds) =
            (JobId(job), SpecId::DECLARED, BTreeMap::from([(node.into(), speed)]));
        SchedulerEvent::SpeedsMeasured(SpeedsMeasured { job, epoch, spec, speeds })
    };
    grid.put(output(1, "ams-1", 5.0));
    grid.put(output(2, "del-1", 7.0));
    let (unit, other) = (grid.core.jobs[&JobId(1)].unit, grid.core.jobs[&JobId(2)].unit);
    assert_ne!(unit, other);
    assert_eq!(grid.core.speeds.own(unit, &"ams-1".into(), grid.now), Some(5.0));
    assert_eq!(grid.core.speeds.own(unit, &"del-1".into(), grid.now), None);
    grid.over(1);
    assert_eq!(grid.core.speeds.own(unit, &"ams-1".into(), grid.now), None, "the job has ended");
}

#[test]
fn subscribers_are_notified_once() {
    let mut grid = CoreTestGrid::with_job(2, 1, None);
    for node in ["ams-2", "del-1", "del-2"] {
        grid.machine(node, node, 2);
    }
    let (job, epoch) = (JobId(1), Epoch(1));
    let subscribe = |faster_than| SchedulerEvent::Subscribe(Subscribe { job, epoch, faster_than });
    assert_eq!(grid.put(subscribe(Some(1.0))), [""; 0], "no speed is known");
    let one = SchedulerRequest { count: 1.into(), ..SchedulerRequest::default() };
    grid.request(1, one, true);
    grid.measured("ams-2", Ok(0.9));
    assert_eq!(grid.measured("del-1", Ok(1.1)), ["better for job-1: 1 of ams, 1 of del"]);
    let output = grid.measured("del-2", Ok(1.5));
    assert_eq!(output, ["grant 1 of job-1 at ams-1: del-2 and 0"]);
    grid.granted(1, 1, true);
    let output = grid.freed(1, "del-2", ReleaseReason::Left);
    assert_eq!(output, ["better for job-1: 1 of ams, 2 of del"]);
    assert_eq!(grid.put(SchedulerEvent::Tick), [""; 0]);
    assert_eq!(grid.put(subscribe(Some(0.8))), ["better for job-1: 1 of ams, 2 of del"]);
    let output = grid.put(subscribe(Some(f64::NAN)));
    assert_eq!(output, ["odd: job-1 wants nodes faster than NaN: its subscription ends"]);
    assert_eq!(grid.put(subscribe(None)), [""; 0]);
}

#[test]
fn requests_end_with_their_job() {
    let mut grid = CoreTestGrid::with_job(1, 1, None);
    grid.more(1, 3);
    let lost = |node: &str| SchedulerEvent::NodeLost {
        node: node.into(),
        reason: "killed".into(),
        returns: true,
    };
    assert_eq!(grid.put(lost("ams-1")), ["epoch after 1 for job-1"]);
    let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) };
    assert_eq!(grid.put(issued), ["del-1 takes job-1 over under 2"]);
    // The grant had not reached it.
    let (job, node) = (JobId(1), "del-1".into());
    let output = grid.put(SchedulerEvent::TakeOverAnswered {
        job,
        node,
        answer: refused("it knows no job-1"),
    });
    assert!(
        output[1].starts_with("ended job-1: node ams-1 was lost: killed; no other"),
        "{output:?}"
    );
    assert_eq!(output[2], "release job-1 del-1");
    assert_eq!(grid.granted(1, 1, false), [""; 0]);
    assert_eq!(grid.released(1, "del-1", true), [""; 0]);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
    assert!(grid.core.status().jobs.is_empty() && grid.core.work_due().is_none());
}

#[test]
fn late_answer_of_an_earlier_incarnation_frees_no_node() {
    let mut grid = CoreTestGrid::with_job(1, 1, None);
    for incarnation in 1..=2 {
        let output = grid.more(1, 1);
        assert_eq!(output, [format!("grant {incarnation} of job-1 at ams-1: del-1 and 0")]);
        grid.granted(1, incarnation, true);
        let refused = ReleaseReason::Refused { reason: "no threads".into(), busy: None };
        assert_eq!(grid.freed(1, "del-1", refused), ["release job-1 del-1"]);
        if incarnation == 1 {
            grid.register("del-1", 2, OURS);
            assert_eq!(grid.state("del-1"), NodeState::Idle);
        }
    }
    let (job, node, incarnation) = (JobId(1), NodeId::from("del-1"), Incarnation(1));
    grid.put(SchedulerEvent::Released { job, node, incarnation, ok: true });
    assert_eq!(grid.state("del-1"), NodeState::Busy);
    grid.released(1, "del-1", true);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
}
