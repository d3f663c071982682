//! Jobs over clusters with batch systems, in virtual time: growth during the work, and crashes of
//! head and sites at any time.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::policy::malleability::Policy;
use springtide_actors::scheduler::manager::{Approach, JobRequirements, Kind, ManagerSettings};
use springtide_actors::scheduler::{GetJob, NodeState};
use springtide_malleable::Nbody;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::random::SplitMix;
use springtide_runtime::work::{Job, Registry};
use springtide_simulator::apps::{ModelledJob, WorkDivision};
use springtide_simulator::simulate;
use springtide_tests::federation::{Federation, FederationJob};
use springtide_tests::number;
use tokio::time::{Instant, sleep, sleep_until};

use crate::simulated::{quiet, registry};

const SECOND: Duration = Duration::from_secs(1);

/// Iterations of two seconds' work.
const fn job(rounds: u32) -> ModelledJob {
    ModelledJob {
        shape: WorkDivision::Even,
        rounds,
        leaves: 64,
        then: None,
        work_us: 2_000_000,
        spread: 0,
        serial_us: 0,
        each_us: 0,
        state_bytes: 0,
        result_bytes: 640,
        checkpoint_bytes: 64,
        undeclared: false,
    }
}

/// A federation whose scheduler and sites poll every second.
async fn federation(
    clusters: &[(&str, u32)],
    delay: Duration,
    settings: ManagerSettings,
    registry: Registry,
) -> Rc<Federation> {
    let settings = ManagerSettings { poll_interval: SECOND, scan_interval: SECOND, ..settings };
    Federation::start(clusters, delay, registry, settings, 1).await
}

/// Runs a single job to its end, and returns the client's records.
async fn run<J: Job>(grid: &Federation, job: J, need: JobRequirements) -> FederationJob {
    let id = grid.submit(job, quiet(1), need).await.expect("the head runs").expect("it is taken");
    assert_eq!(grid.ended(&[id], 3600 * SECOND).await, []);
    grid.record(id).expect("it was submitted")
}

/// The additional time of a job from its submission to its end, compared with its iterations on one
/// or the other number of processors.
fn lost(record: &FederationJob, usual: [f64; 2]) -> f64 {
    let nearest = |took: &f64| {
        let [one, other] = usual;
        if (took - one).abs() < (took - other).abs() { one } else { other }
    };
    let ended = record.ended.first().expect("it has ended").0;
    (ended - record.submitted).as_secs_f64() - record.iterations.iter().map(nearest).sum::<f64>()
}

/// A job continues while the batch system delays its growth; the time that growth costs does not
/// depend on the delay.
#[test]
fn growth_is_overlapped_with_the_work() {
    let grows = |delay: u64, spmd: bool| {
        simulate(move || async move {
            let registry = if spmd { crate::spmd::registry::<Nbody>() } else { registry() };
            let all = [("a", 4)];
            let settings =
                ManagerSettings { hold_timeout: 120 * SECOND, ..ManagerSettings::default() };
            let grid = federation(&all, SECOND, settings, registry).await;
            // It starts at once; the additional processors arrive late.
            let need = JobRequirements::one(Kind::Malleable, 2, 2, 4);
            let late = grid.clone();
            actix_rt::spawn(async move {
                while late.batch("a").jobs().0.len() < 2 {
                    sleep(Duration::from_millis(10)).await;
                }
                late.batch("a").set_delay(Duration::from_secs(delay));
            });
            let record = if spmd {
                run(&grid, crate::spmd::bodies(60, 2_000_000), need).await
            } else {
                run(&grid, job(60), need).await
            };
            let small = record.iterations.iter().filter(|took| **took > 0.9).count();
            assert_eq!(grid.batch("a").max_running(), 4);
            assert!(small as u64 >= delay && record.iterations.len() - small > 10, "{record:?}");
            let lost = lost(&record, [1.0, 0.5]);
            println!(
                "spmd {spmd}, {delay} s late: {small} iterations on two, {lost:.3} s lost with its \
                 start"
            );
            lost
        })
    };
    for spmd in [false, true] {
        let lost = [0, 5, 30].map(|delay| grows(delay, spmd));
        let most = lost.iter().copied().fold(0.0, f64::max);
        let least = lost.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(most - least < 0.2, "{lost:?}");
    }
}

/// A job that must shrink continues first and then releases its processors: within its present step
/// and a second.
#[test]
fn a_job_goes_on_before_it_releases_and_does_so_in_time() {
    simulate(|| async {
        let settings =
            ManagerSettings { approach: Approach::Waiting, ..ManagerSettings::default() };
        let registry = crate::spmd::registry::<Nbody>();
        let grid = federation(&[("a", 4)], SECOND, settings, registry).await;
        sleep(3 * SECOND).await;
        let need = JobRequirements::one(Kind::Malleable, 2, 4, 4);
        let bodies = crate::spmd::bodies(60, 4_000_000);
        let first = grid.submit(bodies, quiet(1), need).await.expect("up").expect("taken");
        sleep(10 * SECOND).await;
        let rigid = JobRequirements::one(Kind::Rigid, 2, 2, 2);
        let second = grid.submit(job(2), quiet(2), rigid).await.expect("up").expect("taken");
        assert_eq!(grid.ended(&[second], 120 * SECOND).await, []);
        let scheduler = grid.scheduler().expect("up");
        let status = scheduler.send(GetJob { job: first }).await.expect("up").expect("it runs");
        let now = Instant::now();
        let at = |what: &str| {
            let (age, _) = status.history.iter().find(|(_, line)| line.contains(what)).expect(what);
            now - Duration::from_secs_f64(*age)
        };
        let (asked, free) = (at("must release 2 of a"), at("2 of a are free"));
        let record = grid.record(first).expect("it was submitted");
        let continued =
            record.said.iter().find(|(_, text)| text.ends_with("2 processes compute on 2 nodes"));
        let continued = continued.expect("it continues").0;
        // The notification of the continuation arrives over the head's link.
        let link = Duration::from_millis(50);
        println!("asked; continues after {:?}, free after {:?}", continued - asked, free - asked);
        assert!(asked < continued && continued <= free + link, "{status:#?}");
        assert!(free - asked <= SECOND + SECOND, "{status:#?}");
        assert_eq!(grid.ended(&[first], 600 * SECOND).await, []);
    });
}

/// A process that a test kills.
#[derive(Clone, Debug)]
enum VictimProcess {
    Head,
    Site(&'static str),
    Both(&'static str),
    Node(&'static str),
}

impl VictimProcess {
    fn any(random: &mut SplitMix) -> Self {
        let at = ["a", "b"][random.below(2)];
        match random.below(7) {
            0..3 => Self::Head,
            3 | 4 => Self::Site(at),
            5 => Self::Both(at),
            _ => Self::Node(["a-1", "a-2", "b-1", "b-3"][random.below(4)]),
        }
    }

    fn site(&self) -> Option<ClusterId> {
        match self {
            Self::Site(at) | Self::Both(at) => Some((*at).into()),
            _ => None,
        }
    }
}

/// Kills a process, and starts it again after a time. Its jobs are not notified.
async fn crash(grid: &Federation, victim: &VictimProcess, down: Duration) {
    if let VictimProcess::Node(node) = victim {
        grid.machines().kill(&(*node).into());
        return;
    }
    let head = matches!(victim, VictimProcess::Head | VictimProcess::Both(_));
    if head {
        grid.kill_head().await;
    }
    if let Some(site) = victim.site() {
        grid.kill_site(&site).await;
    }
    sleep(down).await;
    if head {
        grid.start_head();
    }
    if let Some(site) = victim.site() {
        grid.start_site(&site);
    }
}

/// The states of jobs at this time, in the scheduler's words, and the number of stubs that wait at
/// the batch systems.
async fn under_way(grid: &Federation, jobs: &[JobId]) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let Some(scheduler) = grid.scheduler() else { return words };
    for job in jobs {
        let detail = scheduler.send(GetJob { job: *job }).await.ok().flatten();
        words.extend(detail.and_then(|detail| Some(format!("{:?}", detail.view?.phase))));
    }
    if grid.batches().any(|(_, batch)| !batch.jobs().1.is_empty()) {
        words.insert("Held".to_owned());
    }
    words
}

/// Three jobs share two batch systems while head, sites and nodes are killed; the last one has no
/// place at first.
///
/// Returns the states at the times of crashes.
fn crashes(seed: u64) -> BTreeSet<String> {
    simulate(move || async move {
        let mut random = SplitMix(seed);
        let settings = ManagerSettings {
            approach: Approach::Waiting,
            policy: [Policy::Fpsma, Policy::Egs, Policy::EfficiencyAware][random.below(3)],
            ..ManagerSettings::default()
        };
        let delay = Duration::from_millis(100 + random.below(1500) as u64);
        let grid = federation(&[("a", 4), ("b", 3)], delay, settings, registry()).await;
        let mut jobs = Vec::new();
        let mut answers = Vec::new();
        let mut seen = BTreeSet::new();
        let rounds = [24, 30, 10];
        let needs = [
            JobRequirements::one(Kind::Malleable, 2, 2, 4),
            JobRequirements::one(Kind::Malleable, 1, 1, 3),
            JobRequirements::one(Kind::Rigid, 2, 2, 2),
        ];
        // Submissions, a local user's processors, and crashes, in order of time.
        let mut script: Vec<(Duration, FederationStep)> = vec![
            (2 * SECOND, FederationStep::Submit(0)),
            (3 * SECOND, FederationStep::Submit(1)),
            (9 * SECOND, FederationStep::Submit(2)),
            (6 * SECOND, FederationStep::Others("b", 1)),
            (14 * SECOND, FederationStep::Others("b", 0)),
        ];
        for _ in 0..1 + random.below(2) {
            let at = Duration::from_millis(1500 + random.below(24_000) as u64);
            let down = Duration::from_millis(random.below(4000) as u64);
            script.push((at, FederationStep::Crash(VictimProcess::any(&mut random), down)));
        }
        script.sort_by_key(|(at, _)| *at);
        let began = Instant::now();
        for (at, step) in script.clone() {
            sleep_until(began + at).await;
            match step {
                FederationStep::Others(cluster, count) => grid.batch(cluster).set_others(count),
                FederationStep::Submit(which) => {
                    let (job, need) = (job(rounds[which]), needs[which].clone());
                    let id = grid.submit(job.clone(), quiet(seed), need).await;
                    jobs.push(id.expect("the head runs").expect("it is taken"));
                    answers.push(job.answer());
                }
                FederationStep::Crash(victim, down) => {
                    seen.extend(under_way(&grid, &jobs).await);
                    crash(&grid, &victim, down).await;
                }
            }
        }
        let open = grid.ended(&jobs, 600 * SECOND).await;
        let replay = format!(
            "SPRINGTIDE_CRASH_SEED={seed} SPRINGTIDE_CRASHES=1 cargo test -p springtide-tests \
             --test all federated:: -- --nocapture; {delay:?} {script:?}"
        );
        let records: Vec<FederationJob> = jobs.iter().filter_map(|job| grid.record(*job)).collect();
        assert_eq!(open, [], "{replay}\n{:#?}\n{records:#?}", grid.status().await);
        for (record, answer) in records.iter().zip(&answers) {
            let ends: Vec<_> = record.ended.iter().map(|(_, end)| end.clone()).collect();
            assert_eq!(ends, [Ok(*answer)], "{replay}\n{record:#?}");
        }
        // Nothing is left, and no processor was held twice.
        sleep(60 * SECOND).await;
        let status = grid.status().await;
        assert_eq!(status.jobs, [], "{replay}");
        assert_eq!(status.count(NodeState::Off), status.nodes(), "{replay}\n{status:#?}");
        for (cluster, batch) in grid.batches() {
            assert_eq!(batch.jobs(), (Vec::new(), Vec::new()), "{cluster}: {replay}");
            assert_eq!(batch.violations(), Vec::<String>::new(), "{cluster}: {replay}");
        }
        seen
    })
}

#[derive(Clone, Debug)]
enum FederationStep {
    Submit(usize),
    Others(&'static str, u32),
    Crash(VictimProcess, Duration),
}

/// For any crashes of head, sites and nodes: no job is lost or reported twice, and no processor is
/// held twice or for ever.
#[test]
fn crashes_lose_and_duplicate_nothing() {
    let first = number("SPRINGTIDE_CRASH_SEED", 1);
    let count = number("SPRINGTIDE_CRASHES", 30);
    let mut seen = BTreeSet::new();
    for seed in first..first + count {
        seen.extend(crashes(seed));
    }
    println!("{count} histories from {first} on; states at the times of crashes: {seen:?}");
    if count >= 60 {
        for phase in ["Held", "Waiting", "Running", "Growing", "Claiming", "Shrinking"] {
            assert!(seen.contains(phase), "{phase} is not in {seen:?}");
        }
    }
}

/// A job survives crashes of the head with its engines and its first epoch, and loses neither an
/// iteration nor time.
#[test]
fn a_restarted_head_finds_the_running_jobs_of_its_sites() {
    simulate(|| async {
        let all = [("a", 3), ("b", 2)];
        let grid = federation(&all, SECOND, ManagerSettings::default(), registry()).await;
        // The first job has the nodes of the second, so that the news of the former is over when
        // the head is killed again.
        for (rounds, kill) in
            [(4, None), (60, Some(VictimProcess::Head)), (60, Some(VictimProcess::Head))]
        {
            let need = JobRequirements::one(Kind::Rigid, 3, 3, 3);
            let begun = Instant::now();
            let job_id = grid.submit(job(rounds), quiet(1), need).await;
            let id = job_id.expect("the head runs").expect("it is taken");
            if let Some(victim) = kill {
                sleep(8 * SECOND).await;
                let before = engines(&grid, id);
                assert_eq!(before.len(), 3, "it computes on three nodes");
                crash(&grid, &victim, 2 * SECOND).await;
                // A site notices the end of its head by silence.
                for _ in 0..600 {
                    sleep(Duration::from_millis(100)).await;
                    if grid.status().await.count(NodeState::Busy) == 3 {
                        break;
                    }
                }
                let status = grid.status().await;
                assert_eq!(status.count(NodeState::Busy), 3, "{status:#?}");
                assert_eq!(engines(&grid, id), before, "it started from the beginning");
            }
            assert_eq!(grid.ended(&[id], 600 * SECOND).await, []);
            let record = grid.record(id).expect("it was submitted");
            let took = begun.elapsed().as_secs_f64();
            // Each iteration was reported once, also those that ended while the head was down.
            assert_eq!(record.iterations.len(), rounds as usize, "{record:?}");
            let work: f64 = record.iterations.iter().sum();
            assert!(took < work + 4.0, "{took} s for {work} s of work: {record:?}");
            assert_eq!(grid.epochs(id), 1, "a job that continues needs no other epoch");
        }
    });
}

/// The engines of a job, of all incarnations of all nodes so far.
fn engines(grid: &Federation, job: JobId) -> Vec<String> {
    let engines = grid.machines().engines();
    let of = engines.iter().filter(|engine| engine.job() == job);
    of.map(|engine| format!("{:?}", engine.me())).collect()
}
