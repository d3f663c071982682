//! Tests of the thief's side.

use super::victims::WIDE_VICTIMS;
use super::*;
use crate::id::{Epoch, Incarnation};
use crate::membership::Member;
use crate::net::Address;

fn view(nodes: &[(&str, &str)]) -> View {
    let member = |cluster: &str| Member {
        incarnation: Incarnation(1),
        cluster: ClusterId::from(cluster),
        address: Address::Memory,
        threads: 1,
        leaving: false,
    };
    let members = nodes.iter().map(|(n, c)| (NodeId::from(*n), member(c))).collect();
    View { epoch: Epoch(1), version: 1, members, ..View::default() }
}

fn thief(policy: StealPolicy) -> Thief {
    let mut thief = Thief::new("a0".into(), "a".into(), policy, 42);
    thief.view(&view(&[("a0", "a"), ("a1", "a"), ("a2", "a"), ("b0", "b"), ("b1", "b")]));
    thief.set_idle(true);
    thief
}

fn requests(actions: &[ThiefAction]) -> Vec<(NodeId, u32, StealScope)> {
    let request = |action: &ThiefAction| match action {
        ThiefAction::Request { to, id, scope, .. } => Some((to.clone(), *id, *scope)),
        _ => None,
    };
    actions.iter().filter_map(request).collect()
}

#[tokio::test(start_paused = true)]
async fn at_most_one_request_inside_and_one_between_clusters() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let now = Instant::now();
    let first = requests(&thief.pump(&[], now));
    assert_eq!(
        first.iter().map(|r| r.2).collect::<Vec<_>>(),
        [StealScope::Local, StealScope::Wide]
    );
    assert!(requests(&thief.pump(&[], now)).is_empty());
    // The local request is answered: only a local one follows, to the other local node.
    thief.answered(first[0].1, false, now);
    let second = requests(&thief.pump(&[], now));
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].2, StealScope::Local);
    assert_ne!(second[0].0, first[0].0);
}

#[tokio::test(start_paused = true)]
async fn requests_to_former_members_are_dropped() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let now = Instant::now();
    let (victim, id, _) = requests(&thief.pump(&[], now)).remove(0);
    let all = [("a0", "a"), ("a1", "a"), ("a2", "a"), ("b0", "b"), ("b1", "b")];
    let left: Vec<_> = all.into_iter().filter(|(node, _)| victim != (*node).into()).collect();
    thief.view(&view(&left));
    let next = requests(&thief.pump(&[], now));
    assert_eq!(next.len(), 1);
    assert!(next[0].2 == StealScope::Local && next[0].0 != victim);
    assert_eq!(thief.answered(id, false, now), None);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_charged_to_the_local_request_while_there_is_one() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let now = Instant::now();
    let actions = thief.pump(&[], now);
    assert!(actions.contains(&ThiefAction::Waiting(ThreadState::WaitLocal)));
    let mut states = Vec::new();
    let mut outstanding = requests(&actions);
    for _ in 0..8 {
        let Some(at) = outstanding.iter().position(|r| r.2 == StealScope::Local) else { break };
        thief.answered(outstanding.remove(at).1, false, now);
        let actions = thief.pump(&[], now);
        outstanding.extend(requests(&actions));
        states.extend(actions.iter().filter_map(|a| match a {
            ThiefAction::Waiting(state) => Some(*state),
            _ => None,
        }));
    }
    // Both local nodes had no work; only the remote request is pending now.
    assert_eq!(states, [ThreadState::WaitWide]);
    for (_, id, _) in std::mem::take(&mut outstanding) {
        thief.answered(id, false, now);
    }
    let (_, id, _) = requests(&thief.pump(&[], now)).remove(0);
    thief.answered(id, false, now);
    assert!(thief.pump(&[], now).contains(&ThiefAction::Waiting(ThreadState::Idle)));
}

#[tokio::test(start_paused = true)]
async fn rests_grow_while_no_victim_has_work_and_a_hint_ends_them() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let start = Instant::now();
    let mut now = start;
    let mut asked = 0;
    while now < start + Duration::from_secs(60) {
        let actions = thief.pump(&[], now);
        let requests = requests(&actions);
        asked += requests.len();
        if requests.is_empty() {
            let wake = actions.iter().find_map(|a| match a {
                ThiefAction::Wake(at) => Some(*at),
                _ => None,
            });
            now = wake.expect("a resting thief wants to be woken");
        }
        for (_, id, _) in requests {
            thief.answered(id, false, now);
        }
    }
    // Two local victims about once a second, two remote ones about once in four, and more often at
    // first: far below the millions of requests of a thief that spins.
    assert!(asked < 60 * 2 + 60 * 2 / 4 + 60, "{asked} requests in an idle minute");
    // In any state of rest, a hint causes a request to its sender at once.
    let mut outstanding = requests(&thief.pump(&[], now));
    loop {
        for (_, id, _) in outstanding.drain(..) {
            thief.answered(id, false, now);
        }
        outstanding = requests(&thief.pump(&[], now));
        if outstanding.is_empty() {
            break;
        }
    }
    thief.hinted(&"a2".into());
    let hinted = requests(&thief.pump(&[], now));
    assert_eq!(hinted.iter().filter(|r| r.2 == StealScope::Local).count(), 1);
    assert_eq!(hinted[0].0, NodeId::from("a2"));
}

#[tokio::test(start_paused = true)]
async fn random_stealing_asks_one_node_at_a_time_anywhere() {
    let mut thief = thief(StealPolicy::Random);
    let now = Instant::now();
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        let asked = requests(&thief.pump(&[], now));
        assert_eq!(asked.len(), 1);
        seen.insert(asked[0].0.clone());
        thief.answered(asked[0].1, false, now);
    }
    assert_eq!(seen.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn answers_are_matched_by_id_and_late_ones_count_as_unknown() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let start = Instant::now();
    let first = requests(&thief.pump(&[], start));
    let later = start + TIMEOUT_WIDE + Duration::from_secs(1);
    let second = requests(&thief.pump(&[], later));
    assert_eq!(thief.timeouts(), [1, 1]);
    assert_eq!(second.len(), 2);
    assert_eq!(thief.answered(first[0].1, true, later), None);
    let answered = thief.answered(second[0].1, true, later + Duration::from_millis(3));
    assert_eq!(answered.map(|a| a.latency), Some(Duration::from_millis(3)));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_node_that_is_not_idle_only_leapfrogs() {
    let mut thief = thief(StealPolicy::ClusterAware);
    thief.set_idle(false);
    let now = Instant::now();
    assert!(requests(&thief.pump(&[], now)).is_empty());
    let path = TaskPath(vec![0, 1]);
    let actions = thief.pump(&[(path.clone(), "b1".into())], now);
    let asked: Vec<_> = actions
        .iter()
        .filter_map(|a| match a {
            ThiefAction::Request { to, awaited, .. } => Some((to.clone(), awaited.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [(NodeId::from("b1"), Some(path))]);
}

/// The longest time from a pump without a request to the next one.
fn longest_rest(thief: &mut Thief, awaited: &[(TaskPath, NodeId)], mut now: Instant) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..1000 {
        let actions = thief.pump(awaited, now);
        let requests = requests(&actions);
        if requests.is_empty() {
            let wakes = actions.iter().filter_map(|action| match action {
                ThiefAction::Wake(at) => Some(*at),
                _ => None,
            });
            let wake = wakes.min().expect("a resting thief wants to be woken");
            longest = longest.max(wake - now);
            now = wake;
        }
        for (_, id, _) in requests {
            thief.answered(id, false, now);
        }
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn a_thief_that_awaits_a_leased_task_rests_less() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let now = Instant::now();
    let awaited = [(TaskPath(vec![0]), NodeId::from("a1"))];
    assert!(longest_rest(&mut thief, &awaited, now) <= REST_LOCAL_MAX / REST_AWAITING_DIVISOR);
    let later = now + Duration::from_secs(3600);
    assert!(longest_rest(&mut thief, &[], later) > REST_LOCAL_MAX / 2);
    // The same if it begins to await during a rest.
    let long_after = later + Duration::from_secs(3600);
    while requests(&thief.pump(&[], long_after)).len() + thief.pending.len() > 0 {
        let pending: Vec<u32> = thief.pending.keys().copied().collect();
        for id in pending {
            thief.answered(id, false, long_after);
        }
    }
    let rest = thief.pump(&awaited, long_after).iter().find_map(|action| match action {
        ThiefAction::Wake(at) => Some(*at - long_after),
        _ => None,
    });
    assert!(rest.expect("it rests") <= REST_LOCAL_MAX / REST_AWAITING_DIVISOR);
}

/// The numbers of requests to the holder of an awaited task and to others within a time, after a
/// minute without work.
fn asked_within(awaited: &[(TaskPath, NodeId)], time: Duration) -> (usize, usize) {
    let mut thief = thief(StealPolicy::ClusterAware);
    let mut now = Instant::now();
    let counted_from = now + Duration::from_secs(60);
    let (mut holder, mut others) = (0, 0);
    while now < counted_from + time {
        let actions = thief.pump(awaited, now);
        for (to, id, _) in requests(&actions) {
            let is_holder = awaited.iter().any(|(_, holder)| *holder == to);
            if now >= counted_from {
                *if is_holder { &mut holder } else { &mut others } += 1;
            }
            thief.answered(id, false, now);
        }
        let wake = actions.iter().find_map(|action| match action {
            ThiefAction::Wake(at) if requests(&actions).is_empty() => Some(*at),
            _ => None,
        });
        now = wake.unwrap_or(now);
    }
    (holder, others)
}

#[tokio::test(start_paused = true)]
async fn only_the_holder_of_an_awaited_task_is_asked_more_often() {
    let awaited = [(TaskPath(vec![0]), NodeId::from("a1"))];
    let time = Duration::from_secs(100);
    let (_, usual) = asked_within(&[], time);
    let (holder, others) = asked_within(&awaited, time);
    assert!((400..=900).contains(&holder), "some five a second, and what chance adds: {holder}");
    assert!(others <= usual, "{others} requests to others, without {usual}");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_victim_frees_its_lane() {
    let mut thief = thief(StealPolicy::ClusterAware);
    let now = Instant::now();
    let first = requests(&thief.pump(&[], now));
    thief.unreachable(&first[1].0);
    let second = requests(&thief.pump(&[], now));
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].2, StealScope::Wide);
    assert_ne!(second[0].0, first[1].0);
}

#[test]
fn in_a_large_grid_each_node_has_few_victims_and_some_thieves() {
    let names: Vec<(String, String)> =
        (0..400).map(|n| (format!("c{}-{n:03}", n / 40), format!("c{}", n / 40))).collect();
    let nodes: Vec<_> = names.iter().map(|(node, id)| (node.as_str(), id.as_str())).collect();
    let view = view(&nodes);
    let mut asked: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (at, (node, cluster)) in nodes.iter().enumerate() {
        let seed = crate::random::SplitMix(at as u64).next();
        let mut thief =
            Thief::new((*node).into(), (*cluster).into(), StealPolicy::ClusterAware, seed);
        thief.view(&view);
        let victims = &thief.lanes[1].victims;
        let places: BTreeSet<_> = (0..victims.count).map(|i| victims.place(i)).collect();
        assert!((2..=WIDE_VICTIMS).contains(&places.len()), "{places:?}");
        for victim in places.into_iter().map(|place| view.members.staying()[place].clone()) {
            assert_eq!(thief.scope_of(&victim), StealScope::Wide);
            *asked.entry(victim).or_default() += 1;
        }
    }
    assert_eq!(asked.len(), 400, "each node has a thief");
    assert!(asked.values().all(|times| *times < 3 * WIDE_VICTIMS), "{asked:?}");
}

#[test]
fn the_expected_latency_of_a_link_sets_the_timeout_of_a_steal() {
    let mut thief = thief(StealPolicy::ClusterAware);
    thief.set_timeouts([(ClusterId::from("b"), Duration::from_secs(7))].into());
    thief.view(&view(&[("a0", "a"), ("b0", "b")]));
    thief.set_idle(true);
    let now = Instant::now();
    let actions = thief.pump(&[], now);
    assert!(actions.contains(&ThiefAction::Wake(now + Duration::from_secs(7))), "{actions:?}");
    thief.pump(&[], now + Duration::from_secs(6));
    assert_eq!(thief.timeouts(), [0, 0]);
    thief.pump(&[], now + Duration::from_secs(7));
    assert_eq!(thief.timeouts(), [0, 1]);
}
