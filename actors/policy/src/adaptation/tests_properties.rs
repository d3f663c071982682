//! Properties: the hierarchy equals the flat formula, and invariants of every decision over random
//! histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use springtide_base::id::{ClusterId, Epoch, NodeId};
use springtide_base::processors::Processors;

use super::model::{PolicyWorld, check};
use super::*;

fn worker() -> impl Strategy<Value = WorkerStats> {
    let speed = prop_oneof![9 => (1e-3f64..1e6).prop_map(Some), 1 => Just(None)];
    let odd = prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        Just(1.5),
        Just(1e300),
        Just(-0.0),
        any::<f64>()
    ];
    let fraction = || prop_oneof![12 => 0.0f64..1.0, 1 => odd.clone()];
    let fractions = (fraction(), fraction(), fraction(), fraction());
    let life = (0u32..6, 0u32..6, prop::bool::weighted(0.05), 1u32..64);
    (speed, fractions, life, odd.clone(), prop::bool::weighted(0.03)).prop_map(
        |(speed, (overhead, intra, inter, error), (age, joined, leaving, threads), odd, spoil)| {
            WorkerStats {
                threads,
                speed: if spoil { Some(odd) } else { speed },
                speed_error: error,
                overhead,
                overhead_intra: intra * overhead,
                overhead_inter: inter * overhead,
                age,
                joined,
                leaving,
                ..WorkerStats::default()
            }
        },
    )
}

fn named(workers: Vec<(u8, WorkerStats)>) -> BTreeMap<ClusterId, Vec<WorkerStats>> {
    let mut clusters: BTreeMap<ClusterId, Vec<WorkerStats>> = BTreeMap::new();
    for (i, (cluster, mut worker)) in workers.into_iter().enumerate() {
        worker.node = format!("n{i:03}").as_str().into();
        clusters.entry(format!("c{cluster}").as_str().into()).or_default().push(worker);
    }
    clusters
}

/// Workers with valid statistics.
fn sound() -> impl Strategy<Value = Vec<(u8, WorkerStats)>> {
    let one = (0u8..5, 1e-3f64..1e3, 0.0f64..1.0, 0.0f64..1.0, 0u32..3, 0u32..5);
    prop::collection::vec(one, 1..60).prop_map(|all| {
        let worker = |(cluster, speed, overhead, inter, age, joined)| {
            let stats = WorkerStats {
                speed: Some(speed),
                overhead,
                overhead_inter: inter * overhead,
                age,
                joined,
                ..WorkerStats::default()
            };
            (cluster, stats)
        };
        all.into_iter().map(worker).collect()
    })
}

/// Parameters without the comparison within a cluster, which a flat list cannot make.
fn agreed(named: u32, max_speed: Option<f64>) -> SharedParameters {
    let settings =
        AdaptationSettings { named, implausible_factor: 1e30, ..AdaptationSettings::default() };
    SharedParameters { max_speed, ..SharedParameters::of(&Memory::new(&settings), &settings) }
}

proptest! {
    /// The sum over clusters equals the flat formula to the bit for any division into clusters. It
    /// equals the written formula up to rounding.
    #[test]
    fn the_hierarchy_is_the_flat_formula(workers in sound()) {
        let agreed = agreed(16, None);
        let all: Vec<WorkerStats> = workers.iter().map(|(_, w)| w.clone()).collect();
        let flat = JobAggregate::of([&ClusterAggregate::of(&all, &agreed)]);
        let clusters: Vec<_> =
            named(workers).values().map(|list| ClusterAggregate::of(list, &agreed)).collect();
        let tree = JobAggregate::of(&clusters);
        prop_assert_eq!(&tree, &flat);
        prop_assert_eq!(
            tree.efficiency().map(f64::to_bits), flat.efficiency().map(f64::to_bits)
        );
        let counted: Vec<_> = all.iter().filter(|w| w.joined >= agreed.grace).collect();
        let max = counted.iter().filter_map(|w| w.speed).fold(0.0, f64::max);
        let sum: f64 = counted.iter().map(|w| w.speed.unwrap() / max * (1.0 - w.overhead)).sum();
        let literal = (!counted.is_empty()).then(|| sum / counted.len() as f64);
        match (literal, tree.efficiency()) {
            (Some(a), Some(b)) => prop_assert!((a - b).abs() <= 1e-12, "{a} {b}"),
            (a, b) => prop_assert_eq!(a, b),
        }
    }

    /// The job's k worst workers are among the k worst of each cluster, if all use the same fastest
    /// speed.
    #[test]
    fn the_worst_of_the_job_are_named_by_their_clusters(workers in sound(), k in 1u32..8) {
        let all: Vec<WorkerStats> = named(workers.clone()).into_values().flatten().collect();
        let counted = all.iter().filter(|w| w.joined >= 2);
        let max = counted.filter_map(|w| w.speed).reduce(f64::max);
        let agreed = agreed(k, max);
        let flat = ClusterAggregate::of(&all, &agreed);
        let clusters: Vec<_> =
            named(workers).values().map(|list| ClusterAggregate::of(list, &agreed)).collect();
        let mut tree: Vec<RatedWorker> = clusters.iter().flat_map(|c| c.worst.clone()).collect();
        let bad = |w: &RatedWorker| w.own_badness(&agreed.weights, max.unwrap_or(1.0));
        tree.sort_by(|a, b| bad(b).total_cmp(&bad(a)).then_with(|| a.node.cmp(&b.node)));
        tree.truncate(k as usize);
        prop_assert_eq!(tree, flat.worst);
    }

    /// An aggregate of arbitrary reports is consistent, and unchanged by the wire and the log.
    #[test]
    fn aggregates_are_sound_and_survive(
        workers in prop::collection::vec((0u8..2, worker()), 0..24),
    ) {
        let agreed = SharedParameters::of(&Memory::default(), &AdaptationSettings::default());
        for list in named(workers).values() {
            let aggregate = ClusterAggregate::of(list, &agreed);
            prop_assert!(aggregate.is_sound(), "{aggregate:?}");
            let total = aggregate.staying().saturating_add(aggregate.leaving);
            let processors = list.iter().map(WorkerStats::processors).sum();
            prop_assert_eq!(total, processors);
            let text = serde_json::to_string(&aggregate).unwrap();
            let back: ClusterAggregate = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(serde_json::to_string(&back).unwrap(), text);
            let bytes = rmp_serde::to_vec_named(&aggregate).unwrap();
            let back: ClusterAggregate = rmp_serde::from_slice(&bytes).unwrap();
            prop_assert_eq!(rmp_serde::to_vec_named(&back).unwrap(), bytes);
        }
    }
}

/// One period of a random history.
#[derive(Clone, Debug)]
struct PropertyStep {
    workers: Vec<(u8, WorkerStats)>,
    root: u8,
    requested: u32,
    bounds: (u32, Option<u32>),
    leaving: Vec<u8>,
    crashed: Vec<u8>,
    offers: Vec<(u8, u32, Option<f64>, Option<f64>)>,
    links: Vec<(u8, u8, f64)>,
    spoil: Option<u8>,
    progress: Option<(u64, u64)>,
    ordered: bool,
}

fn step() -> impl Strategy<Value = PropertyStep> {
    let speed = || prop::option::of(prop_oneof![8 => 1e-2f64..1e6, 1 => any::<f64>()]);
    (
        prop::collection::vec((0u8..4, worker()), 0..24),
        (any::<u8>(), 0u32..20, 0u32..12, prop::option::of(12u32..40)),
        prop::collection::vec(0u8..24, 0..3),
        prop::collection::vec(0u8..24, 0..2),
        prop::collection::vec((0u8..6, 0u32..20, speed(), speed()), 0..4),
        prop::collection::vec((0u8..4, 0u8..4, 1e3f64..1e8), 0..4),
        prop::option::weighted(0.1, any::<u8>()),
        prop::option::of((0u64..100, 0u64..100)),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(
                workers,
                (root, requested, min, max),
                leaving,
                crashed,
                offers,
                links,
                spoil,
                progress,
                ordered,
            )| PropertyStep {
                workers,
                root,
                requested,
                bounds: (min, max),
                leaving,
                crashed,
                offers,
                links,
                spoil,
                progress,
                ordered,
            },
        )
}

fn snapshot(
    step: &PropertyStep,
    period: u64,
    memory: &Memory,
    settings: &AdaptationSettings,
) -> Snapshot {
    let node = |i: u8| -> NodeId { format!("n{i:03}").as_str().into() };
    let cluster = |i: u8| -> ClusterId { format!("c{i}").as_str().into() };
    let agreed = SharedParameters::of(memory, settings);
    let lists = named(step.workers.clone());
    let all: BTreeMap<&NodeId, Processors> =
        lists.values().flatten().map(|w| (&w.node, w.processors())).collect();
    let size = |node: &NodeId| all.get(node).copied().unwrap_or(Processors::ONE);
    let at = usize::from(step.root) % step.workers.len().max(1);
    let root =
        step.workers.get(at).map(|(c, _)| RootNode { node: node(at as u8), cluster: cluster(*c) });
    let mut clusters: BTreeMap<_, _> =
        lists.iter().map(|(id, list)| (id.clone(), ClusterAggregate::of(list, &agreed))).collect();
    let processors = |list: &[WorkerStats]| list.iter().map(WorkerStats::processors).sum();
    let members = lists.iter().map(|(id, list)| (id.clone(), processors(list))).collect();
    if let Some((how, c)) = step.spoil.zip(clusters.values_mut().next()) {
        match how % 4 {
            0 => c.max_speed = f64::NAN,
            1 => c.counted = Processors::MAX,
            2 => c.worst.reverse(),
            _ => c.uplink.bandwidth = Some(-5.0),
        }
    }
    let offer = |&(c, free, speed, bandwidth): &(u8, u32, Option<f64>, Option<f64>)| {
        (cluster(c), NodeOffer { free: free.into(), speed, bandwidth, ..NodeOffer::default() })
    };
    Snapshot {
        epoch: Epoch(1),
        period,
        period_s: 10.0,
        elapsed_s: 10.0 * period as f64,
        mode: Mode::Adaptive,
        clusters,
        members,
        late: BTreeSet::new(),
        root,
        min_processors: step.bounds.0.into(),
        max_processors: step.bounds.1.map(Processors),
        requested: step.requested.into(),
        leaving: step.leaving.iter().map(|&i| (node(i), size(&node(i)))).collect(),
        crashes: step
            .crashed
            .iter()
            .map(|&i| Crash { node: node(i), cluster: cluster(0) })
            .collect(),
        links: step
            .links
            .iter()
            .map(|&(a, b, bandwidth)| LinkEstimate {
                a: cluster(a),
                b: cluster(b),
                bandwidth: Some(bandwidth),
                rtt_s: Some(1e3 / bandwidth),
                age_s: 0.0,
            })
            .collect(),
        offers: step.offers.iter().map(offer).collect(),
        synchronous: period.is_multiple_of(3),
        has_checkpoints: !period.is_multiple_of(5),
        progress: step.progress.map(|(done, total)| JobProgress { done, total: Some(total) }),
        ordered: step.ordered,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Invariants over random histories with implausible reports.
    ///
    /// No decision grows and shrinks at once. None removes the root's node or cluster, a leaving or
    /// unknown node, or the last cluster. None violates the job's bounds. All numbers are finite.
    /// The same inputs give the same decision, also from a log. Learned values stay bounded.
    #[test]
    fn every_decision_is_sane(
        steps in prop::collection::vec(step(), 1..24), monitor in prop::bool::weighted(0.1),
    ) {
        let settings = AdaptationSettings::default();
        prop_assert_eq!(settings.validate(&JobBounds::default()), Ok(()));
        let mut memory = Memory::new(&settings);
        for (i, step) in steps.iter().enumerate() {
            let mut snapshot = snapshot(step, i as u64 + 1, &memory, &settings);
            if monitor {
                snapshot.mode = Mode::Monitor;
            }
            let inputs = Inputs { snapshot, memory: memory.clone(), settings: settings.clone() };
            let (decision, next) = decide(&inputs.snapshot, &inputs.memory, &settings);
            check(&inputs, &decision);
            prop_assert!(!monitor || decision.actions.is_empty());
            let logged = LoggedDecision { inputs, decision };
            let line = serde_json::to_string(&logged).unwrap();
            let back: LoggedDecision = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(replay([&back]), Ok(1));
            let (_, again) = decide(&back.inputs.snapshot, &back.inputs.memory, &settings);
            prop_assert_eq!(&again, &next);
            let Weights { alpha, beta, gamma } = next.weights;
            prop_assert!((0.25..=4.0).contains(&alpha) && (25.0..=400.0).contains(&beta));
            prop_assert!((2.5..=40.0).contains(&gamma));
            let learned = next.requirements;
            for x in [learned.min_bandwidth, learned.min_speed].into_iter().flatten() {
                prop_assert!(x.is_finite() && x > 0.0);
            }
            prop_assert!(next.quarantine.len() <= QUARANTINE_MAX);
            prop_assert_eq!(next.tick, i as u64 + 1);
            memory = next;
        }
    }
}

/// The memory as a successor receives it.
fn received(memory: &Memory) -> Memory {
    let bytes = rmp_serde::to_vec_named(memory).unwrap();
    rmp_serde::from_slice(&bytes).unwrap()
}

/// One estimate for each pair of clusters, as a coordinator reports them.
fn one_for_each_pair(links: &mut Vec<LinkEstimate>) {
    let pair = |link: &LinkEstimate| {
        let (a, b) = (link.a.clone(), link.b.clone());
        if a < b { (a, b) } else { (b, a) }
    };
    let pairs: BTreeMap<_, _> = links.drain(..).map(|link| (pair(&link), link)).collect();
    links.extend(pairs.into_values());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A successor that has measured no link, and that gets no bandwidth with its offers, decides
    /// like its predecessor: after any history, with the root in any cluster, and although free
    /// nodes were measured and members died since the last decision.
    #[test]
    fn a_successor_decides_like_its_predecessor(
        steps in prop::collection::vec(step(), 2..12),
        probes in prop::collection::btree_map(0u8..6, 1e3f64..1e8, 0..3),
    ) {
        let settings = AdaptationSettings::default();
        let mut memory = Memory::new(&settings);
        let mut links = Vec::new();
        let (last, former) = steps.split_last().unwrap();
        for (i, step) in former.iter().enumerate() {
            let mut snapshot = snapshot(step, i as u64 + 1, &memory, &settings);
            one_for_each_pair(&mut snapshot.links);
            links.clone_from(&snapshot.links);
            memory = decide(&snapshot, &memory, &settings).1;
        }
        let mut snapshot = snapshot(last, 1, &memory, &settings);
        snapshot.epoch = Epoch(2);
        for (i, rate) in &probes {
            memory.record_probe(&format!("c{i}").as_str().into(), *rate, 5.0);
        }
        for Crash { node, cluster } in std::mem::take(&mut snapshot.crashes) {
            memory.recent.crashed(&node, &cluster);
        }
        if std::mem::take(&mut snapshot.ordered) {
            memory.recent.ordered(3);
        }
        for offer in snapshot.offers.values_mut() {
            offer.bandwidth = None;
        }
        let decided = |mut memory: Memory, links: &[LinkEstimate]| {
            let (crashes, ordered) = memory.recent.take();
            let links = links.to_vec();
            let snapshot = Snapshot { links, crashes, ordered, ..snapshot.clone() };
            let inputs = Inputs { snapshot, memory, settings: settings.clone() };
            let (decision, _) = decide(&inputs.snapshot, &inputs.memory, &settings);
            check(&inputs, &decision);
            serde_json::to_string_pretty(&decision).unwrap()
        };
        prop_assert_eq!(decided(memory.clone(), &links), decided(received(&memory), &[]));
    }
}

/// A fault of the toy grid.
#[derive(Clone, Debug)]
enum Fault {
    Load(u8, f64),
    Link(u8, f64),
    Serial(f64),
    Crash(u8),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0u8..4, prop_oneof![Just(1.0), 1.0f64..20.0]).prop_map(|(c, x)| Fault::Load(c, x)),
        (0u8..4, prop_oneof![Just(1e7), 5e4f64..1e7]).prop_map(|(c, x)| Fault::Link(c, x)),
        (5.0f64..400.0).prop_map(Fault::Serial),
        (1u8..4).prop_map(Fault::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// In closed loop, with arbitrary faults and noise: once faults end, the job settles. Only
    /// changes that did not help are tried again, at growing intervals.
    #[test]
    fn the_job_comes_to_rest(
        sizes in prop::array::uniform4(2u32..16),
        blows in prop::collection::vec((0u32..12, fault()), 0..6),
        max in prop::option::of(8u32..60),
        noise in prop_oneof![Just(0.0), 0.0f64..0.15],
        seed in any::<u64>(),
    ) {
        let names = ["c0", "c1", "c2", "c3"];
        let clusters: Vec<_> =
            names
                .iter()
                .zip(sizes)
                .map(|(name, n)| (*name, 16, if *name == "c0" { n } else { n / 2 }))
                .collect();
        let mut world = PolicyWorld::of(&clusters);
        (world.max_processors, world.noise, world.seed) = (max, noise, seed);
        for (pause, blow) in &blows {
            match blow {
                Fault::Load(c, load) => world.load(names[usize::from(*c)], *load),
                Fault::Link(c, rate) => {
                    world.uplinks.insert(names[usize::from(*c)].into(), *rate);
                }
                Fault::Serial(serial) => world.serial = *serial,
                Fault::Crash(c) => {
                    let name = names[usize::from(*c)];
                    if world.members_of(name) < world.members() {
                        world.crash(name); // without survivors there is nothing to adapt
                    }
                }
            }
            world.run(*pause);
        }
        world.run(120); // changes that do not help are retried ever more rarely
        let before = world.turns();
        world.run(60);
        let explanation = world.explanation();
        prop_assert!(world.turns() - before <= 3, "it oscillates\n{}", explanation);
        let members = world.members();
        prop_assert!(members >= 1 && members <= max.unwrap_or(64), "{}", explanation);
    }
}
