//! Tests of the protocol over grids of stores, in virtual time.

mod grid;
mod outside;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use self::grid::*;
use super::message::{Message, PayloadId, Update};
use super::*;
use crate::id::{ClusterId, NodeId};
use crate::wire;

const LONG: Duration = Duration::from_secs(600);

fn need(version: Version) -> Vec<ObjectNeed> {
    vec![ObjectNeed::of::<Blob>(0, version)]
}

/// Every living node has its ticket answered and reads this value.
fn all_read(grid: &ObjectGrid, ticket: u64, version: Version, value: &Blob) {
    for name in grid.names() {
        let held = grid.ready.get(&(name.clone(), ticket)).unwrap_or_else(|| {
            panic!("{name} lacks {version}: {:?}", grid.failed.get(&(name.clone(), ticket)))
        });
        let read = held.get::<Blob>(0, version).unwrap();
        assert!(*read == *value, "{name} reads another {version}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// For any order, delays, duplicates and refusals: each node gets each version it needs, with
    /// equal bytes. Each cluster's wide-area bytes stay within 1.05 of the published ones.
    #[test]
    fn every_node_gets_every_version_it_needs(
        seed in any::<u64>(),
        size in 1usize..14,
        lens in prop::collection::vec((0usize..200_000, any::<bool>()), 1..5),
        near in 1u64..80,
        far in 1u64..400,
        doubled in 0u64..30,
        refused in 0u64..40,
    ) {
        virtually(async {
            let conditions = Conditions { delay_ms: (near, far), doubled, lost: 0, refused };
            let mut grid = ObjectGrid::new(3, size, seed, small(), conditions);
            let writer = node(0, 0);
            let mut value = blob(lens[0].0, seed);
            let mut published = 0;
            for (i, (len, delta)) in lens.iter().enumerate() {
                let version = if *delta && i > 0 {
                    let delta = (*len as u64, 1 + i as u8, 1000);
                    value = value.apply(delta);
                    published += wire::encode_payload(&delta).unwrap().len();
                    grid.on(&writer, |s| s.update::<Blob>(0, delta)).unwrap()
                } else {
                    value = blob(*len, seed + i as u64);
                    published += wire::encode_payload(&value).unwrap().len();
                    grid.on(&writer, |s| s.put(0, value.clone())).unwrap()
                };
                // Tasks arrive before the version, with it and after it.
                for name in grid.names() {
                    let wait = grid.random(2 * far);
                    grid.need(&name, i as u64, &need(version));
                    grid.run(Duration::from_millis(wait / 8)).await;
                }
                grid.run(LONG).await;
                all_read(&grid, i as u64, version, &value);
            }
            for (cluster, bytes) in &grid.wide {
                // 400 bytes of headers and requests a version do not scale with the object.
                let frames = doubled.min(1) + 1; // doubled messages are counted once by the grid
                let allowed = published as f64 * 1.05 + 400.0 * (lens.len() as f64) * frames as f64;
                prop_assert!(
                    (*bytes as f64) <= allowed,
                    "{cluster}: {bytes} bytes for {published} published"
                );
            }
            Ok(())
        })?;
    }

    /// Messages are lost, and a relay and a member die meanwhile: the others still get what they
    /// need.
    #[test]
    fn losses_and_dead_relays_are_repaired(
        seed in any::<u64>(),
        lost in 0u64..8,
        at_ms in 0u64..150,
        delta in any::<bool>(),
    ) {
        virtually(async {
            let conditions = Conditions { delay_ms: (10, 100), doubled: 5, lost, refused: 5 };
            let mut grid = ObjectGrid::new(3, 4, seed, small(), conditions);
            let writer = node(0, 0);
            let mut value = blob(150_000, seed);
            let mut version = grid.on(&writer, |s| s.put(0, value.clone())).unwrap();
            if delta {
                value = value.apply((3, 5, 70_000));
                version = grid.on(&writer, |s| s.update::<Blob>(0, (3, 5, 70_000))).unwrap();
            }
            for name in grid.names() {
                grid.need(&name, 1, &need(version));
            }
            grid.run(Duration::from_millis(at_ms)).await;
            grid.kill(&node(1, 0));
            grid.kill(&node(2, 1));
            grid.run(Duration::from_millis(300)).await;
            grid.announce();
            grid.run(LONG).await;
            all_read(&grid, 1, version, &value);
        });
    }

    /// Merged objects converge to the merge of all values, in any order, and over a dead
    /// coordinator.
    #[test]
    fn merged_objects_converge(
        seed in any::<u64>(),
        values in prop::collection::vec((0usize..12, 0u32..1000), 1..60),
        kill in any::<bool>(),
        doubled in 0u64..30,
        refused in 0u64..30,
    ) {
        virtually(async {
            let conditions = Conditions { delay_ms: (5, 60), doubled, lost: 0, refused };
            let mut grid = ObjectGrid::new(3, 4, seed, small(), conditions);
            let mut union = BTreeSet::new();
            for (i, (at, value)) in values.iter().enumerate() {
                let name = node(at / 4, at % 4);
                if kill && i == values.len() / 2 {
                    // Changes that only the dead node has may be lost, so let it send first.
                    grid.run(LONG).await;
                    grid.kill(&node(1, 0));
                    grid.run(Duration::from_millis(50)).await;
                    grid.announce();
                }
                if !grid.names().contains(&name) {
                    continue;
                }
                union.insert(*value);
                grid.on(&name, |s| s.merge(Union([*value].into()))).unwrap();
                grid.on(&name, |s| s.merge(Least(u64::from(*value)))).unwrap();
                prop_assert!(grid.at(&name).merged::<Union>().unwrap().0.contains(value));
                let wait = grid.random(30);
                grid.run(Duration::from_millis(wait)).await;
            }
            grid.run(LONG).await;
            // All values were for the dead node.
            let Some(least) = union.first() else { return Ok(()) };
            for name in grid.names() {
                let shared = grid.at(&name);
                prop_assert_eq!(&shared.merged::<Union>().unwrap().0, &union, "{}", name);
                prop_assert_eq!(
                    shared.merged::<Least>().unwrap().0,
                    u64::from(*least)
                );
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_large_object_crosses_to_each_cluster_once() {
    virtually(async {
        let config = ShareConfig { segment: 64 << 10, ..ShareConfig::default() };
        let mut grid = ObjectGrid::new(3, 4, 3, config, Conditions { delay_ms: (1, 800), ..CALM });
        let value = blob(8 << 20, 1);
        let version = grid.on(&node(0, 0), |s| s.put(0, value.clone())).unwrap();
        for name in grid.names() {
            grid.need(&name, 1, &need(version));
        }
        grid.run(LONG).await;
        all_read(&grid, 1, version, &value);
        for cluster in ["c1", "c2"] {
            let bytes = grid.wide[&ClusterId::from(cluster)] as f64;
            let ratio = bytes / (8 << 20) as f64;
            assert!((1.0..=1.05).contains(&ratio), "{cluster} took {ratio}");
        }
        let writer = node(0, 0);
        assert!(grid.wide_frames.keys().all(|(from, _)| *from == writer), "{:?}", grid.wide_frames);
        let sent: u64 = grid.wide.iter().filter(|(c, _)| c.as_str() != "c0").map(|(_, b)| b).sum();
        assert_eq!(grid.at(&writer).stats().sent_wide, sent, "the store counts what the grid saw");
    });
}

#[test]
fn a_large_cluster_is_a_tree() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 60, 5, small(), CALM);
        let value = blob(50_000, 1);
        let version = grid.on(&node(0, 0), |s| s.put(0, value.clone())).unwrap();
        grid.run(LONG).await;
        for name in grid.names() {
            assert_eq!(*grid.at(&name).get::<Blob>(0, version).unwrap(), value);
            assert_eq!(grid.at(&name).stats().fetches_sent, 0);
        }
        // The writer also sends one copy to the other cluster.
        assert!(grid.copies.iter().all(|(_, to)| to.len() <= 9), "{:?}", grid.copies);
    });
}

#[test]
fn relays_forward_segments_before_the_rest_arrives() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 3, 5, small(), CALM);
        let update = segments(&blob(40_000, 1), 4 << 10, Version { epoch: Epoch(1), n: 1 });
        let first = Update { relay: true, ..update[3].clone() };
        let (kind, body) = Message::Update(first).encode().unwrap();
        grid.inject(&node(0, 0), &node(1, 0), kind, body);
        grid.run(Duration::from_millis(10)).await;
        let to: Vec<NodeId> = grid.copies[&node(1, 0)].iter().cloned().collect();
        assert_eq!(to, [node(1, 1), node(1, 2)]);
    });
}

#[test]
fn a_lost_delta_is_repaired_by_the_next() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 3, 5, small(), CALM);
        let writer = node(0, 0);
        let mut value = blob(30_000, 1);
        grid.on(&writer, |s| s.put(0, value.clone())).unwrap();
        grid.run(LONG).await;
        grid.conditions.lost = 100;
        grid.on(&writer, |s| s.update::<Blob>(0, (0, 1, 9))).unwrap();
        grid.run(Duration::from_secs(1)).await;
        grid.conditions.lost = 0;
        let version = grid.on(&writer, |s| s.update::<Blob>(0, (5, 1, 9))).unwrap();
        value = value.apply((0, 1, 9)).apply((5, 1, 9));
        let before = grid.wide.clone();
        grid.run(LONG).await;
        // No task asked: the gap alone is reason enough.
        for name in grid.names() {
            assert_eq!(*grid.at(&name).get::<Blob>(0, version).unwrap(), value, "{name}");
        }
        // The deltas sufficed; the whole value was not sent again.
        let crossed = grid.wide[&ClusterId::from("c1")] - before[&ClusterId::from("c1")];
        assert!(crossed < 2_000, "{crossed} bytes");
    });
}

#[test]
fn old_epochs_are_refused() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 2, 5, small(), CALM);
        let old = node(0, 0);
        let first = grid.on(&old, |s| s.put(0, blob(100, 1))).unwrap();
        grid.run(LONG).await;
        // The job moves to another node; the old writer does not know it and publishes again.
        let deaf = grid.view.clone();
        grid.view.epoch = Epoch(2);
        grid.view.version = 0;
        grid.view.coordinator = Some(node(1, 1));
        let new = node(1, 1);
        for name in grid.names().into_iter().filter(|name| *name != old) {
            let mut view = grid.view.clone();
            view.version = 1;
            grid.on(&name, |s| s.view(&view));
        }
        assert_eq!(deaf.epoch, Epoch(1));
        let stale = grid.on(&old, |s| s.put(0, blob(100, 2))).unwrap();
        assert_eq!(stale, Version { epoch: Epoch(1), n: 2 });
        grid.run(LONG).await;
        for name in grid.names().into_iter().filter(|name| *name != old) {
            assert!(grid.at(&name).get::<Blob>(0, stale).is_none(), "{name} took an old epoch");
            assert!(grid.at(&name).get::<Blob>(0, first).is_some(), "what was there stays");
        }
        let dropped =
            |fact: &Fact| matches!(fact, Fact::StaleDropped { version, .. } if *version == stale);
        assert!(grid.facts.iter().any(|(_, fact)| dropped(fact)));
        // An update under the new epoch publishes the whole value.
        let next = grid.on(&new, |s| s.update::<Blob>(0, (0, 1, 1))).unwrap();
        assert_eq!(next, Version { epoch: Epoch(2), n: 1 });
        grid.run(LONG).await;
        for name in grid.names() {
            assert_eq!(
                *grid.at(&name).get::<Blob>(0, next).unwrap(),
                blob(100, 1).apply((0, 1, 1))
            );
        }
    });
}

#[test]
fn a_joining_node_is_served_from_its_cluster() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 3, 5, small(), CALM);
        let writer = node(0, 0);
        let mut value = blob(60_000, 1);
        grid.on(&writer, |s| s.put(0, value.clone())).unwrap();
        let version = grid.on(&writer, |s| s.update::<Blob>(0, (0, 1, 9))).unwrap();
        value = value.apply((0, 1, 9));
        grid.run(LONG).await;
        grid.on(&writer, |s| s.merge(Least(3))).unwrap();
        grid.run(LONG).await;
        let before = grid.wide.clone();
        grid.add(1, 3);
        grid.announce();
        grid.run(LONG).await;
        assert_eq!(*grid.at(&node(1, 3)).get::<Blob>(0, version).unwrap(), value);
        assert_eq!(grid.at(&node(1, 3)).merged::<Least>().unwrap().0, 3);
        let crossed = grid.wide[&ClusterId::from("c1")] - before[&ClusterId::from("c1")];
        assert!(crossed < 1_000, "the joiner cost {crossed} wide-area bytes");
        // A whole new cluster costs the object once.
        for i in 0..4 {
            grid.add(2, i);
        }
        grid.view.cluster_coordinators.insert("c2".into(), node(2, 0));
        grid.announce();
        grid.run(LONG).await;
        for i in 0..4 {
            assert_eq!(
                grid.at(&node(2, i)).stats().fetches_sent,
                0,
                "it was brought, not asked for"
            );
            assert_eq!(*grid.at(&node(2, i)).get::<Blob>(0, version).unwrap(), value);
            assert_eq!(grid.at(&node(2, i)).merged::<Least>().unwrap().0, 3);
        }
        let crossed = grid.wide[&ClusterId::from("c2")];
        assert!((60_000..63_000).contains(&crossed), "{crossed}");
    });
}

#[test]
fn a_version_needed_early_is_sent_to_its_cluster_once() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 4, 5, small(), CALM);
        let writer = node(0, 0);
        // Cluster 1 does not receive it.
        grid.conditions.lost = 100;
        let value = blob(60_000, 1);
        let version = grid.on(&writer, |s| s.put(0, value.clone())).unwrap();
        grid.conditions.lost = 0;
        grid.run(Duration::from_secs(120)).await;
        let before = grid.wide[&ClusterId::from("c1")];
        for i in 0..4 {
            grid.need(&node(1, i), 1, &need(version));
        }
        for i in 0..4 {
            grid.need(&node(0, i), 1, &need(version));
        }
        grid.run(LONG).await;
        all_read(&grid, 1, version, &value);
        let crossed = grid.wide[&ClusterId::from("c1")] - before;
        assert!((60_000..63_000).contains(&crossed), "{crossed}");
    });
}

#[test]
fn only_the_missing_segments_are_fetched() {
    virtually(async {
        let mut grid = ObjectGrid::new(1, 3, 5, small(), CALM);
        let (a, b, c) = (node(0, 0), node(0, 1), node(0, 2));
        grid.cut.insert((a.clone(), c.clone()));
        let value = blob(200_000, 1);
        let version = grid.on(&a, |s| s.put(0, value.clone())).unwrap();
        let pieces = segments(&value, 4 << 10, version);
        for update in pieces.iter().filter(|update| update.index % 10 != 3) {
            let (kind, body) = Message::Update(update.clone()).encode().unwrap();
            grid.inject(&a, &c, kind, body);
        }
        grid.cut.clear();
        // The time after which the writer no longer assumes that its own copy is under way.
        grid.run(LONG).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        let before = grid.at(&a).stats().sent_local;
        grid.need(&c, 1, &need(version));
        grid.run(LONG).await;
        assert_eq!(*grid.ready[&(c.clone(), 1)].get::<Blob>(0, version).unwrap(), value);
        let sent = grid.at(&a).stats().sent_local - before;
        assert!((5 << 12..6 << 12).contains(&sent), "{sent} bytes for 5 pieces of 4 KiB");
        assert_eq!(grid.at(&b).stats().fetches_served, 0);
        let fetched = Fact::Fetched {
            key: ObjectKey { name: "blob".into(), part: 0 },
            version,
            from: a,
            wide: false,
        };
        assert!(grid.facts.contains(&(c, fetched)), "{:?}", grid.facts);
    });
}

#[test]
fn a_change_of_a_dying_coordinator_reaches_all_by_another() {
    virtually(async {
        let mut grid = ObjectGrid::new(3, 2, 5, small(), CALM);
        let dying = node(1, 0);
        grid.on(&node(0, 0), |s| s.merge(Least(9))).unwrap();
        grid.run(LONG).await;
        grid.cut = [node(1, 1), node(2, 0)].map(|to| (dying.clone(), to)).into();
        grid.on(&dying, |s| s.merge(Least(4))).unwrap();
        grid.run(LONG).await;
        assert_eq!(grid.at(&node(0, 1)).merged::<Least>().unwrap().0, 4);
        assert_eq!(grid.at(&node(2, 0)).merged::<Least>().unwrap().0, 9);
        grid.kill(&dying);
        grid.announce();
        grid.run(LONG).await;
        for name in grid.names() {
            assert_eq!(grid.at(&name).merged::<Least>().unwrap().0, 4, "{name}");
        }
    });
}

#[test]
fn a_link_that_went_down_is_not_trusted() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 1, 5, small(), CALM);
        let (a, b) = (node(0, 0), node(1, 0));
        grid.cut.insert((a.clone(), b.clone()));
        let value = blob(5_000_000, 1);
        let version = grid.on(&a, |s| s.put(0, value.clone())).unwrap();
        grid.on(&a, |s| s.merge(Least(4))).unwrap();
        grid.need(&a, 1, &need(version));
        grid.need(&b, 1, &need(version));
        grid.run(Duration::from_secs(1)).await;
        grid.cut.clear();
        grid.on(&a, |s| s.down(&b));
        grid.on(&b, |s| s.down(&a));
        grid.run(Duration::from_secs(5)).await;
        // Without knowledge of the link the writer would expect 30 s for this size.
        all_read(&grid, 1, version, &value);
        assert_eq!(grid.at(&b).merged::<Least>().unwrap().0, 4);
    });
}

#[test]
fn a_version_without_a_holder_fails_with_its_name() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 2, 5, small(), CALM);
        let version = Version { epoch: Epoch(1), n: 9 };
        for name in grid.names() {
            grid.need(&name, 4, &need(version));
        }
        grid.run(LONG).await;
        assert_eq!(grid.failed.len(), 4);
        let text = grid.failed[&(node(1, 1), 4)].to_string();
        assert!(
            text.starts_with(
                "no node could give version 1.9 of shared object blob/0 (last asked: c"
            ),
            "{text}"
        );
        let unknown = ObjectNeed { key: ObjectKey { name: "bodies".into(), part: 0 }, version };
        let error = grid.at(&node(0, 0)).need(Ticket(1), &[unknown]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "shared object bodies is not registered as a versioned object: \
             add `.versioned::<T>()` to the job's register"
        );
    });
}

#[test]
fn exactly_the_named_version_or_nothing() {
    virtually(async {
        let mut grid = ObjectGrid::new(1, 2, 5, small(), CALM);
        let (a, b) = (node(0, 0), node(0, 1));
        let error = grid.at(&a).update::<Blob>(0, (0, 1, 1)).unwrap_err();
        assert_eq!(error, ShareError::NoBase { name: "blob", part: 0 });
        let versions: Vec<Version> =
            (0..4).map(|i| grid.on(&a, |s| s.put(0, blob(64, i))).unwrap()).collect();
        assert_eq!(versions.iter().map(|v| v.n).collect::<Vec<_>>(), [1, 2, 3, 4]);
        grid.need(&b, 1, &need(versions[0]));
        grid.need(&b, 2, &need(versions[3]));
        grid.run(LONG).await;
        let shared = grid.at(&b).clone();
        // Two versions are kept, and those of a ticket.
        assert!(shared.get::<Blob>(0, versions[1]).is_none());
        assert_eq!(*shared.get::<Blob>(0, versions[2]).unwrap(), blob(64, 2));
        assert_eq!(*shared.get::<Blob>(0, versions[3]).unwrap(), blob(64, 3));
        assert!(shared.get::<Blob>(1, versions[3]).is_none(), "another part");
        assert_eq!(*shared.get::<Blob>(0, versions[0]).unwrap(), blob(64, 0), "held by ticket 1");
        grid.ready.clear();
        // A thread keeps what it has read last until it sleeps.
        assert!(shared.get::<Blob>(0, versions[0]).is_some());
        crate::share::forget_kept();
        assert!(shared.get::<Blob>(0, versions[0]).is_none(), "held no more");
        assert_eq!(shared.latest::<Blob>(0), Some(versions[3]));
    });
}

/// A node that is alone encodes nothing. A node that joins later gets the versions all the same,
/// whole and by changes that follow.
#[test]
fn versions_of_a_lonely_node_are_encoded_for_one_that_joins() {
    virtually(async {
        let mut grid = ObjectGrid::new(1, 1, 5, small(), CALM);
        let a = node(0, 0);
        assert!(grid.at(&a).is_alone());
        grid.on(&a, |s| s.put(0, blob(300, 1))).unwrap();
        let alone = grid.on(&a, |s| s.put(0, blob(300, 2))).unwrap();
        for cluster in [0, 1] {
            grid.add(cluster, 7);
            grid.announce();
            assert!(!grid.at(&a).is_alone());
            let b = node(cluster, 7);
            grid.need(&b, 1, &need(alone));
            grid.run(LONG).await;
            assert_eq!(*grid.at(&b).get::<Blob>(0, alone).unwrap(), blob(300, 2));
        }
        let next = grid.on(&a, |s| s.update::<Blob>(0, (0, 1, 1))).unwrap();
        grid.run(LONG).await;
        let expected = grid.at(&a).get::<Blob>(0, next).unwrap().share();
        assert_eq!(*grid.at(&node(1, 7)).get::<Blob>(0, next).unwrap(), *expected);
    });
}

#[test]
fn unread_deltas_are_folded() {
    virtually(async {
        let config = ShareConfig { chain: 4, ..small() };
        let mut grid = ObjectGrid::new(1, 3, 5, config, CALM);
        let (a, b) = (node(0, 0), node(0, 1));
        let mut value = blob(1000, 1);
        let mut version = grid.on(&a, |s| s.put(0, value.clone())).unwrap();
        for i in 0..100 {
            value = value.apply((i, 1, 3));
            version = grid.on(&a, |s| s.update::<Blob>(0, (i, 1, 3))).unwrap();
            grid.run(Duration::from_secs(1)).await;
        }
        assert!(grid.at(&b).stats().folded >= 5, "{:?}", grid.at(&b).stats());
        assert_eq!(*grid.at(&b).get::<Blob>(0, version).unwrap(), value);
        assert_eq!(grid.at(&b).stats().received, 101);
    });
}

#[test]
fn a_panic_in_the_users_code_is_an_error() {
    virtually(async {
        let mut grid = ObjectGrid::new(1, 2, 5, small(), CALM);
        let (a, b) = (node(0, 0), node(0, 1));
        let first = grid.on(&a, |s| s.put(0, blob(10, 1))).unwrap();
        let error = grid.on(&a, |s| s.update::<Blob>(0, (0, 99, 1))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the code of shared object blob panicked: ninety-nine is refused"
        );
        assert_eq!(grid.at(&a).latest::<Blob>(0), Some(first), "nothing was published");
        // The same with bytes of another node.
        let id = PayloadId {
            version: Version { epoch: Epoch(1), n: 2 },
            delta: true,
            ..segments(&blob(0, 1), 1, first)[0].id
        };
        let data = wire::encode_payload(&(0u64, 99u8, 1u64)).unwrap();
        let payload = cell::Payload::cut(data.clone(), 100);
        let id = PayloadId { len: payload.len as u64, segment: 100, sum: payload.sum, ..id };
        let update = Update { id, data, ..segments(&blob(0, 1), 100, first)[0].clone() };
        grid.run(LONG).await;
        let (kind, body) = Message::Update(update).encode().unwrap();
        grid.inject(&a, &b, kind, body);
        let read = grid.at(&b).try_get::<Blob>(0, id.version).unwrap_err();
        assert!(matches!(read, ShareError::Value(CodecError::Panicked { .. })), "{read}");
        assert!(grid.at(&b).get::<Blob>(0, first).is_some());
    });
}

#[test]
fn merged_values_are_held_to_their_limit_and_cached_by_thread() {
    virtually(async {
        let mut grid = ObjectGrid::new(1, 2, 5, small(), CALM);
        let a = node(0, 0);
        assert!(grid.at(&a).merged::<Least>().is_none());
        assert!(grid.on(&a, |s| s.merge(Least(5))).unwrap());
        assert!(!grid.on(&a, |s| s.merge(Least(6))).unwrap());
        let first = grid.at(&a).merged::<Least>().unwrap();
        assert!(std::ptr::eq(&*first, &*grid.at(&a).merged::<Least>().unwrap()));
        assert!(grid.on(&a, |s| s.merge(Least(4))).unwrap());
        assert_eq!((first.0, grid.at(&a).merged::<Least>().unwrap().0), (5, 4));
        let large = Union((0..1_000_000).map(|i| i + 1_000_000).collect());
        let error = grid.on(&a, |s| s.merge(large)).unwrap_err();
        assert!(matches!(error, ShareError::TooLarge { name: "union", .. }), "{error}");
        grid.run(LONG).await;
        assert!(grid.at(&node(0, 1)).merged::<Union>().is_none());
        assert_eq!(grid.at(&node(0, 1)).merged::<Least>().unwrap().0, 4);
    });
}

#[test]
fn merges_are_coalesced() {
    virtually(async {
        let mut grid = ObjectGrid::new(2, 2, 5, small(), CALM);
        let a = node(0, 0);
        for i in 0..10_000u64 {
            grid.on(&a, |s| s.merge(Least(100_000 - i))).unwrap();
            if i % 100 == 99 {
                grid.run(Duration::from_millis(1)).await;
            }
        }
        grid.run(LONG).await;
        assert_eq!(grid.at(&node(1, 1)).merged::<Least>().unwrap().0, 90_001);
        let sent = grid.at(&a).stats().merges_sent;
        // 100 ms: at most one a millisecond to the neighbour and one in 20 ms to the other cluster.
        assert!(sent <= 110, "{sent} updates sent");
    });
}

#[test]
fn threads_read_merge_and_publish_together() {
    let shared = SharedObjects::new("a".into(), JOB, types(), small(), Arc::new(|_| {}));
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let shared = &shared;
            scope.spawn(move || {
                let mut last = u64::MAX;
                for i in 0..2000u64 {
                    shared.merge(Least(10_000 - i * 4 - t)).unwrap();
                    let seen = shared.merged::<Least>().unwrap().0;
                    assert!(seen <= last && seen <= 10_000 - i * 4 - t);
                    last = seen;
                    if i % 100 == 0 {
                        let version = shared.put(t as u32, blob(64, i)).unwrap();
                        assert_eq!(version.n, i / 100 * 2 + 1);
                        shared.update::<Blob>(t as u32, (0, 1, 1)).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(shared.merged::<Least>().unwrap().0, 10_000 - 1999 * 4 - 3);
    assert_eq!(shared.stats().published, 160);
}

#[test]
#[should_panic(expected = "two types are registered as shared object \"blob\"")]
fn a_name_has_one_type() {
    #[derive(Serialize, Deserialize)]
    struct OtherValue;
    impl Versioned for OtherValue {
        const NAME: &'static str = "blob";
        type Delta = ();
        fn apply(&self, (): ()) -> Self {
            OtherValue
        }
    }
    types().versioned::<Blob>().versioned::<OtherValue>();
}
