//! Nodes of unequal numbers of processors: efficiency and sizes count processors.

use std::collections::BTreeMap;

use proptest::prelude::*;
use springtide_base::id::ClusterId;
use springtide_base::processors::Processors;

use super::case::*;
use super::model::{PolicyWorld, ToyNodeState};
use super::*;

/// A node: its cluster, its processors, the speed of one of them in 1/1024, its overhead and the
/// inter-cluster part in 1/1024. Such numbers make all products exact.
type Drawn = (u8, u32, u32, u32, u32);

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let node = (0u8..4, 1u32..129, 256u32..2048, 0u32..1025, 0u32..1025);
    prop::collection::vec(node, 1..16)
}

/// The job of these nodes. With `split`, each processor is a node of its own.
fn job(nodes: &[Drawn], split: bool) -> PolicyTestJob {
    let mut case = PolicyTestJob::of(&[WorkerGroup("c0", 1, 1.0, 0.5, 0.0)]);
    case.workers.clear();
    // Names only in the order of badness count. Nothing else depends on the number of nodes.
    case.settings.named = 1024;
    for (i, &(cluster, processors, speed, overhead, inter)) in nodes.iter().enumerate() {
        let (parts, each) = if split { (processors, 1) } else { (1, processors) };
        let list = case.workers.entry(format!("c{cluster}").as_str().into()).or_default();
        list.extend((0..parts).map(|part| WorkerStats {
            node: format!("n{i:02}-{part:03}").as_str().into(),
            threads: each,
            speed: Some(f64::from(speed * each) / 1024.0),
            overhead: f64::from(overhead) / 1024.0,
            overhead_inter: f64::from(inter.min(overhead)) / 1024.0,
            joined: 50,
            ..WorkerStats::default()
        }));
    }
    case.root("n00-000");
    case
}

/// The sizes that the decision's reasons name.
fn wanted(decision: &Decision) -> Vec<(Processors, Option<Processors>)> {
    let of = |reason: &Reason| match reason {
        Reason::Above { wanted, expected, .. } => Some((*wanted, Some(*expected))),
        Reason::Below { wanted, .. } => Some((*wanted, None)),
        _ => None,
    };
    decision.reasons.iter().filter_map(of).collect()
}

proptest! {
    /// A node of `k` processors counts as `k` nodes of one: in the efficiency, in each sum, in the
    /// wanted number of processors and in the request.
    #[test]
    fn a_node_counts_as_its_processors(nodes in drawn(), presumed in prop::bool::weighted(0.2)) {
        let (mut whole, mut split) = (job(&nodes, false), job(&nodes, true));
        if presumed {
            for case in [&mut whole, &mut split] {
                case.each(|w| if w.overhead >= 0.9 { w.speed = None });
            }
        }
        whole.aggregate();
        split.aggregate();
        // One speed of a node has one error, so the fastest workers differ.
        let sums = |case: &PolicyTestJob| JobAggregate {
            fastest: FastestWorker::default(),
            ..JobAggregate::of(case.snapshot.clusters.values())
        };
        prop_assert_eq!(sums(&whole), sums(&split));
        for _ in 0..3 {
            let (one, many) = (whole.decide(), split.decide());
            let bits = |decision: &Decision| decision.efficiency.map(f64::to_bits);
            prop_assert_eq!((bits(&one), one.processors), (bits(&many), many.processors));
            prop_assert_eq!(wanted(&one), wanted(&many));
            prop_assert_eq!(asked(&one), asked(&many));
            let most = |decision: &Decision| decision.actions.iter().find_map(|a| match a {
                AdaptationAction::Request(request) => Some(request.most),
                _ => None,
            });
            prop_assert_eq!(most(&one), most(&many));
            if !one.actions.is_empty() || !many.actions.is_empty() {
                break; // the jobs differ from here: whole nodes leave
            }
        }
    }

    /// A removal of surplus brings the size nearer to the wanted one, and never below the bounds.
    #[test]
    fn a_removal_fits_what_is_wanted(nodes in drawn(), min in 1u32..200) {
        let mut case = job(&nodes, false);
        case.each(|w| (w.speed, w.overhead) = (Some(f64::from(w.threads)), 0.85));
        case.each(|w| w.overhead_inter = 0.0);
        let all: Processors = case.workers.values().flatten().map(WorkerStats::processors).sum();
        let min = Processors(min).min(all);
        case.snapshot.min_processors = min;
        let sizes: BTreeMap<String, u32> = case
            .workers
            .values()
            .flatten()
            .map(|w| (w.node.to_string(), w.threads))
            .collect();
        let decision = case.decide_patiently();
        let gone: u32 = removed(&decision).iter().map(|node| sizes[node]).sum();
        let wanted = wanted(&decision)[0].0;
        let left = all.get() - gone;
        prop_assert!(left >= min.get() && 2 * left >= all.get(), "{gone} of {all}");
        let target = wanted.max(min).get();
        prop_assert!(
            gone == 0 || left.abs_diff(target) < all.get().abs_diff(target),
            "{gone} of {all}, wanted {wanted}, min {min}",
        );
    }

    /// A job whose processors are all busy never shrinks. Its nodes have any sizes.
    #[test]
    fn an_all_busy_job_never_shrinks(
        members in prop::collection::vec((0usize..4, 1u32..129), 1..12),
        pool in prop::collection::vec((0usize..4, 1u32..129), 0..12),
        noise in 0.0f64..0.05,
        seed in any::<u64>(),
    ) {
        let names = ["c0", "c1", "c2", "c3"];
        let count = |cluster: usize, all: &[(usize, u32)]| {
            all.iter().filter(|(c, _)| *c == cluster).count() as u32
        };
        let clusters: Vec<_> = (0..4)
            .map(|c| (names[c], count(c, &members) + count(c, &pool), count(c, &members)))
            .collect();
        let first = clusters.iter().position(|c| c.2 > 0).unwrap();
        let mut world = PolicyWorld::of(&clusters);
        world.root = format!("{}-00", names[first]).as_str().into();
        (world.serial, world.bytes, world.noise, world.seed) = (0.0, 0.0, noise, seed);
        for (c, name) in names.iter().enumerate() {
            let of = |all: &[(usize, u32)]| -> Vec<u32> {
                all.iter().filter(|(cluster, _)| *cluster == c).map(|(_, size)| *size).collect()
            };
            let sizes: Vec<u32> = [of(&members), of(&pool)].concat();
            for ((_, node), size) in world.cluster(name).zip(sizes) {
                node.processors = Processors(size);
            }
        }
        let mut before = world.members();
        for _ in 0..30 {
            world.step();
            let now = world.members();
            prop_assert!(now >= before, "{}", world.explanation());
            before = now;
        }
        let free = world.nodes.values().filter(|node| node.state == ToyNodeState::Pool).count();
        prop_assert_eq!(free, 0, "it grows to the whole grid\n{}", world.explanation());
    }
}

/// The grid on which efficiency over nodes removed nine busy nodes: one of 32 processors and twelve
/// of 4.
#[test]
fn a_great_busy_node_does_not_make_small_ones_useless() {
    let nodes: Vec<Drawn> =
        std::iter::once((0, 32, 1024, 20, 0)).chain((0..12).map(|_| (1, 4, 1024, 20, 0))).collect();
    let mut case = job(&nodes, false);
    let decision = case.decide();
    assert_eq!(decision.processors, Processors(80));
    assert!(decision.efficiency.is_some_and(|e| e > 0.97), "{:?}", decision.efficiency);
    assert!(removed(&case.decide_patiently()).is_empty());
}

#[test]
fn processors_under_a_quota_are_slow_ones() {
    // Four threads on one core's time: each has a quarter of the speed of the others.
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 8, 4.0, 0.75, 0.0)]);
    case.each(|w| w.threads = 4);
    case.worker("a7").speed = Some(1.0);
    let decision = case.decide_patiently();
    assert_eq!(removed(&decision), ["a7"]);
    assert!(says(&decision, "node a7 of cluster a with 4 processors is removed: it is slow"));
    assert_eq!(case.memory.quarantine[0].measured, Some(0.25));
}

#[test]
fn a_node_of_unknown_size_counts_as_one_processor() {
    let mut case = PolicyTestJob::even(6, 0.4);
    case.each(|w| w.threads = 0);
    assert_eq!(case.decide().processors, Processors(6));
}

#[test]
fn a_great_node_joins_only_where_the_job_can_use_it() {
    // (processors, efficiency, requested, at most)
    for (n, efficiency, count, most) in [
        (1, 0.9, 1, u32::MAX - 1), // the limit of one processor is unknown
        (10, 0.6, 5, 22),          // A = 13.5: at 32 processors, efficiency is 0.303
        (4, 0.6, 2, 7),
        (100, 0.99, 100, 22_770),
    ] {
        let mut case =
            PolicyTestJob::of(&[WorkerGroup("a", 1, f64::from(n), 1.0 - efficiency, 0.0)]);
        case.each(|w| w.threads = n);
        let decision = case.decide();
        let request = request(&decision);
        assert_eq!(request.count, Processors(count), "{n} at {efficiency}");
        let near = request.most.get().abs_diff(most) <= most / 10;
        assert!(near, "{n} at {efficiency}: {:?}", request.most);
    }
    // Nodes that are too great do not fit, and the reason says so.
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 1, 4.0, 0.4, 0.0)]);
    case.each(|w| w.threads = 4);
    let offer = NodeOffer { free: 64.into(), smallest: 64.into(), ..NodeOffer::default() };
    case.snapshot.offers.insert("a".into(), offer);
    assert!(says(&case.decide(), "2 processors asked for (adding nodes); 0 free ones are known"));
    // The maximum of the job bounds both.
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 1, 1.0, 0.1, 0.0)]);
    case.snapshot.max_processors = Some(Processors(9));
    let decision = case.decide();
    assert_eq!((request(&decision).count, request(&decision).most), (1.into(), 8.into()));
}

#[test]
fn the_worst_bad_node_may_be_of_any_size() {
    let mut case = PolicyTestJob::of(&[WorkerGroup("a", 12, 1.0, 0.72, 0.0)]);
    case.worker("a11").threads = 10;
    case.worker("a11").speed = Some(1.0);
    let decision = case.decide_patiently();
    // By size, about a third of 21 processors would leave.
    assert_eq!(removed(&decision), ["a11"]);
}

#[test]
fn a_violated_maximum_is_corrected_by_the_fitting_nodes() {
    // The nodes' sizes, the maximum, and the sizes of those that leave. The first has the root.
    for (sizes, max, gone) in [
        (&[8, 2, 2, 2][..], 12, &[2][..]),
        (&[8, 4, 2], 12, &[2]),
        (&[8, 8, 8], 20, &[8]),
        (&[8, 8, 8], 12, &[8, 8]),
        (&[8], 4, &[]),
    ] {
        let mut case = PolicyTestJob::of(&[WorkerGroup("a", sizes.len() as u32, 1.0, 0.6, 0.0)]);
        for (i, &size) in sizes.iter().enumerate() {
            let worker = case.worker(&format!("a{i}"));
            (worker.threads, worker.speed) = (size, Some(f64::from(size)));
        }
        case.snapshot.max_processors = Some(Processors(max));
        let decision = case.decide();
        let mut left: Vec<u32> =
            removed(&decision).iter().map(|node| case.worker(node).threads).collect();
        left.sort_unstable();
        assert_eq!(left, gone, "{sizes:?} to {max}\n{}", text(&decision));
    }
}

#[test]
fn a_migration_replaces_processors_by_as_many_better_ones() {
    let cluster = ClusterId::from("a");
    // Two slow nodes of 4 processors; free processors of three times the speed.
    for (free, count) in [(8, 8), (7, 4), (3, 0)] {
        let mut case = PolicyTestJob::of(&[
            WorkerGroup("a", 4, 4.0, 0.6, 0.0),
            WorkerGroup("b", 2, 2.4, 0.6, 0.0),
        ]);
        case.each(|w| w.threads = 4);
        let own = OfferedNode { processors: free.into(), speed: 3.0 };
        let nodes = [("a-free".into(), own)].into();
        let offer = NodeOffer { free: free.into(), nodes, ..NodeOffer::default() };
        case.snapshot.offers.insert(cluster.clone(), offer);
        let decision = case.decide();
        assert_eq!(asked(&decision), count, "{free}\n{}", text(&decision));
    }
}
