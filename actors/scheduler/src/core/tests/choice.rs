//! Tables of the selection of free nodes, and properties of every selection.

use proptest::prelude::*;
use springtide_base::processors::{Processors, select_nodes};

use super::super::choose::{FreeNode, NodeExclusion, SelectionInput, choose};
use super::*;
use crate::policy::SchedulerRequest;

type Free<'a> = (&'a str, Option<f64>, (u32, u32));

fn case(count: u32, free: &[Free<'_>], request: SchedulerRequest) -> SelectionInput {
    let free = free.iter().map(|&(id, speed, (threads, mhz))| {
        let cluster = id.split_once('-').unwrap().0.into();
        let hardware = Hardware { model: "m".into(), threads, mhz, ..Hardware::default() };
        (NodeId::from(id), FreeNode { cluster, speed, threads, hardware })
    });
    let count = count.into();
    SelectionInput { count, request, free: free.collect(), ..SelectionInput::default() }
}

fn names(case: &SelectionInput) -> Vec<String> {
    choose(case).nodes.iter().map(ToString::to_string).collect()
}

const HW: (u32, u32) = (1, 2000);

#[test]
fn fastest_nodes_come_first_within_a_tolerance() {
    let cases: [(&[Free<'_>], &[&str], &str); 10] = [
        (&[("a-1", Some(1.0), HW), ("b-1", Some(2.0), HW)], &["b-1", "a-1"], "speed"),
        (&[("b-1", Some(1.0), HW), ("a-1", Some(0.96), HW)], &["a-1", "b-1"], "equal: by name"),
        (&[("b-1", Some(1.0), HW), ("a-1", Some(0.94), HW)], &["b-1", "a-1"], "not equal"),
        // A chain of equals is bounded: the class ends 5 % below its fastest node.
        (
            &[("c-1", Some(1.0), HW), ("b-1", Some(0.96), HW), ("a-1", Some(0.92), HW)],
            &["b-1", "c-1", "a-1"],
            "classes",
        ),
        (
            &[("a-1", None, HW), ("b-1", Some(0.1), HW)],
            &["b-1", "a-1"],
            "measured before unmeasured",
        ),
        (&[("a-1", None, (4, 2000)), ("b-1", None, (2, 3000))], &["b-1", "a-1"], "by clock"),
        (&[("a-1", None, (4, 2000)), ("b-1", None, (8, 2000))], &["a-1", "b-1"], "not by size"),
        (
            &[("a-1", Some(6.0), (8, 2000)), ("b-1", Some(4.0), (4, 2000))],
            &["b-1", "a-1"],
            "by the speed of a processor",
        ),
        (
            &[("a-1", None, (4, 9000)), ("b-1", None, (8, 0))],
            &["a-1", "b-1"],
            "a clock is not known",
        ),
        (
            &[("a-1", Some(f64::NAN), HW), ("b-1", Some(-1.0), HW), ("c-1", Some(1.0), HW)],
            &["c-1", "a-1", "b-1"],
            "invalid speeds are unknown",
        ),
    ];
    for (free, expected, what) in cases {
        assert_eq!(names(&case(99, free, SchedulerRequest::default())), expected, "{what}");
    }
    // Threads that share a core are slower.
    let mut over = case(
        99,
        &[("a-1", None, (2, 2000)), ("b-1", None, (4, 2000))],
        SchedulerRequest::default(),
    );
    over.free.get_mut(&NodeId::from("a-1")).unwrap().threads = 64;
    assert_eq!(names(&over), ["b-1", "a-1"]);
}

#[test]
fn among_equals_preferred_clusters_then_latency_then_bandwidth_then_name() {
    let free: Vec<Free<'_>> =
        ["a-1", "b-1", "c-1", "d-1", "e-1", "f-1"].map(|id| (id, Some(1.0), HW)).to_vec();
    let request =
        SchedulerRequest { prefer: vec!["e".into(), "c".into()], ..SchedulerRequest::default() };
    let mut case = case(9, &free, request);
    let rtt = [("a", 0.03), ("b", 0.01), ("d", 0.03), ("c", 0.5), ("f", f64::NAN)];
    case.rtt_s = rtt.map(|(cluster, s)| (cluster.into(), s)).into();
    case.bandwidth = [("a", 1e6), ("d", 1e7), ("f", 1e9)].map(|(c, b)| (c.into(), b)).into();
    assert_eq!(names(&case), ["e-1", "c-1", "b-1", "f-1", "d-1", "a-1"]);
    // An unknown latency counts as the median of the known ones, so f's bandwidth decides.
    case.count = 2.into();
    assert_eq!(names(&case), ["e-1", "c-1"]);
    // Speed precedes all other criteria.
    case.free.get_mut(&NodeId::from("f-1")).unwrap().speed = Some(1.2);
    assert_eq!(names(&case), ["f-1", "e-1"]);
}

#[test]
fn only_known_unfit_nodes_are_excluded() {
    let free: Vec<Free<'_>> = vec![
        ("a-1", Some(1.0), HW),
        ("a-2", Some(0.4), HW),
        ("a-3", None, HW),
        ("b-1", Some(1.0), HW),
        ("c-1", Some(1.0), HW),
        ("d-1", Some(1.0), HW),
    ];
    let request = SchedulerRequest {
        min_speed: Some(0.5),
        min_bandwidth: Some(1e6),
        avoid_nodes: ["d-1".into()].into(),
        avoid_clusters: ["c".into()].into(),
        ..SchedulerRequest::default()
    };
    let mut case = case(9, &free, request);
    case.bandwidth = [("b", 5e5)].map(|(cluster, b)| (cluster.into(), b)).into();
    let choice = choose(&case);
    assert_eq!(names(&case), ["a-1", "a-3"]);
    let expected: BTreeMap<NodeId, NodeExclusion> = [
        ("a-2", NodeExclusion::Speed { has: 0.4, least: 0.5 }),
        ("b-1", NodeExclusion::Bandwidth { has: 5e5, least: 1e6 }),
        ("c-1", NodeExclusion::ClusterAvoided),
        ("d-1", NodeExclusion::Avoided),
    ]
    .map(|(node, why)| (node.into(), why))
    .into();
    assert_eq!(choice.unfit, expected);
    assert_eq!(
        choice.why,
        "of 6 free nodes 2 fit, the best are a-1 (1 processor, speed 1.000 each), a-3 (1 \
         processor, not measured, by clock); not a-2: its speed is 0.400, 0.500 is needed, \
         not b-1: \
         its cluster's link carries 500000 B/s, 1000000 are needed, \
         not c-1: the job avoids its cluster, not d-1: the \
         job avoids it"
    );
    case.request.waive.insert("b".into());
    assert_eq!(names(&case), ["a-1", "a-3", "b-1"], "b's link is known to be too slow, a's is not");
    // Invalid conditions are ignored.
    (case.request.min_speed, case.request.min_bandwidth) = (Some(f64::NAN), Some(f64::INFINITY));
    case.request.waive.clear();
    assert_eq!(names(&case), ["b-1", "a-1", "a-2", "a-3"]);
    let empty = SelectionInput { count: 3.into(), ..SelectionInput::default() };
    assert_eq!(choose(&empty).why, "none of 0 free nodes fits");
}

#[test]
fn nodes_are_taken_that_fit_the_requested_processors() {
    let free: &[Free<'_>] = &[
        ("a-1", Some(128.0), (64, 2000)),
        ("b-1", Some(8.0), (8, 2000)),
        ("b-2", Some(8.0), (8, 2000)),
        ("c-1", Some(2.0), (2, 2000)),
    ];
    // (requested, at most, expected)
    let cases: [(u32, u32, &[&str]); 6] = [
        (64, 64, &["a-1"]),
        (10, 10, &["b-1", "c-1"]),
        (16, 99, &["b-1", "b-2"]),
        (1, 1, &[]),
        (1, 2, &["c-1"]),
        (90, 200, &["a-1", "b-1", "b-2", "c-1"]),
    ];
    for (count, most, expected) in cases {
        let mut case = case(count, free, SchedulerRequest::default());
        case.most = most.into();
        assert_eq!(names(&case), expected, "{count} to {most}");
    }
    // Where only a greater node is free, the job gets it if it can use it.
    let mut case = case(2, &free[..1], SchedulerRequest::default());
    assert_eq!(names(&case), [""; 0]);
    case.most = 64.into();
    assert_eq!(names(&case), ["a-1"]);
}

fn any_case() -> impl Strategy<Value = SelectionInput> {
    let speed = prop_oneof![Just(None), any::<f64>().prop_map(Some), (0.5..2.0).prop_map(Some)];
    let node = (0u8..4, 0u8..9, speed, 0u32..5, 0u32..3);
    let measure =
        || prop::collection::btree_map("[a-d]".prop_map(ClusterId::from), any::<f64>(), 0..4);
    let request = (prop::option::of(any::<f64>()), prop::option::of(0.5..2.0), "[a-d]{0,3}");
    let counts = (0u32..30, 0u32..60);
    (counts, prop::collection::vec(node, 0..20), request, measure(), measure()).prop_map(
        |((count, most), nodes, (min_bandwidth, min_speed, prefer), rtt_s, bandwidth)| {
            let free = nodes.into_iter().map(|(cluster, n, speed, threads, mhz)| {
                let cluster = char::from(b'a' + cluster);
                let hardware = Hardware { model: "m".into(), threads, mhz, ..Hardware::default() };
                let candidate =
                    FreeNode { cluster: cluster.to_string().into(), speed, threads, hardware };
                (NodeId::from(format!("{cluster}-{n}")), candidate)
            });
            let prefer = prefer.chars().map(|c| c.to_string().into()).collect();
            let request = SchedulerRequest {
                min_speed,
                min_bandwidth,
                prefer,
                ..SchedulerRequest::default()
            };
            let (count, most) = (count.into(), most.into());
            SelectionInput { count, most, request, rtt_s, bandwidth, free: free.collect() }
        },
    )
}

/// Position of the first node of a cluster in the order of all nodes.
fn position(case: &SelectionInput, cluster: &str) -> Option<usize> {
    let all = choose(&SelectionInput { count: Processors(u32::MAX), ..case.clone() });
    all.nodes.iter().position(|node| case.free[node].cluster.as_str() == cluster)
}

proptest! {
    #[test]
    fn a_good_measurement_never_lowers_a_rank(case in any_case()) {
        let mut case = case;
        case.rtt_s.remove(&ClusterId::from("a"));
        case.bandwidth.remove(&ClusterId::from("a"));
        let unknown = position(&case, "a");
        // At least as good as each other link, and not below the minimum.
        let valid = |x: &&f64| **x > 0.0 && x.is_finite();
        let least = case.rtt_s.values().filter(valid).fold(1.0, |a: f64, b| a.min(*b));
        let rates = case.bandwidth.values().chain(&case.request.min_bandwidth);
        let most = rates.filter(valid).fold(1.0, |a: f64, b| a.max(*b));
        case.rtt_s.insert("a".into(), least);
        case.bandwidth.insert("a".into(), most);
        prop_assert!(position(&case, "a") <= unknown);
    }

    #[test]
    fn a_link_that_is_too_slow_never_precedes_an_unknown_one(
        case in any_case(),
        least in 1e3..1e9,
        fraction in 0.01..0.99,
    ) {
        let mut case = case;
        case.request.min_bandwidth = Some(least);
        case.bandwidth.remove(&ClusterId::from("a"));
        case.bandwidth.insert("b".into(), least * fraction);
        // The quarantine of b is over, so that it may be tried again.
        case.request.waive.insert("b".into());
        if let (Some(unknown), Some(slow)) = (position(&case, "a"), position(&case, "b")) {
            prop_assert!(unknown < slow);
        }
    }

    #[test]
    fn each_free_node_is_selected_or_explained_and_the_best_that_fit_are_taken(case in any_case()) {
        let all = choose(&SelectionInput { count: Processors::MAX, ..case.clone() });
        prop_assert_eq!(all.nodes.len() + all.unfit.len(), case.free.len());
        let some = choose(&case);
        let sizes = all.nodes.iter().map(|node| case.free[node].processors());
        let fit = select_nodes(sizes, case.count, case.most.max(case.count));
        let fit: Vec<NodeId> = fit.into_iter().map(|at| all.nodes[at].clone()).collect();
        prop_assert_eq!(&some.nodes, &fit);
        let known = |node: &NodeId| {
            let speed = case.free[node].speed.filter(|s| *s > 0.0 && s.is_finite())?;
            Some(speed / f64::from(case.free[node].processors()))
        };
        for pair in all.nodes.windows(2) {
            let (a, b) = (known(&pair[0]), known(&pair[1]));
            prop_assert!(a.is_some() || b.is_none());
            // No node precedes one that is faster by more than the tolerance.
            if let Some((a, b)) = a.zip(b) {
                prop_assert!(a >= b * 0.9499, "{} before {}", a, b);
            }
        }
        let least = case.request.min_speed;
        prop_assert!(all.nodes.iter().all(|n| known(n).zip(least).is_none_or(|(s, l)| s >= l)));
    }
}

/// The cause of a slow node may last longer than its measurement is valid. Then the node is not
/// as fast as its kind until a new measurement shows it.
#[test]
fn a_slowed_node_is_of_unknown_speed_until_it_is_measured_again() {
    use springtide_metrics::SpecId;

    use super::super::speeds::{OWN_SPEED_TTL, Speeds, Unit};
    let node = |name: &str| NodeRegistration {
        fingerprint: 7,
        hardware: Hardware { model: "m".into(), threads: 1, ..Hardware::default() },
        ..registration(name, 1)
    };
    let (mut speeds, start) = (Speeds::default(), Instant::now());
    let unit = Unit::of(SpecId::DECLARED, JobId(1));
    let (fast, slow) = (node("a-1"), node("a-2"));
    for (registration, speed) in [(&fast, 1.0), (&slow, 0.1)] {
        speeds.at_work(unit, registration, speed, start).expect("a valid speed");
    }
    assert_eq!(speeds.best(Some(unit), &slow, start), Some(0.1));
    let later = start + OWN_SPEED_TTL;
    assert_eq!(speeds.best(Some(unit), &fast, later), Some(1.0), "as its kind");
    assert_eq!(speeds.best(Some(unit), &slow, later), None);
    speeds.at_work(unit, &slow, 0.95, later).expect("a valid speed");
    assert_eq!(speeds.best(Some(unit), &slow, later + OWN_SPEED_TTL), Some(1.0));
}
