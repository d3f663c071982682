//! Tests of received messages: golden forms, mutated and contradictory messages, bounds.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::grid::*;
use crate::id::{Epoch, JobId};
use crate::share::message::{Fetch, Merge, Message, Miss, PayloadId, RANGES_MAX, Update};
use crate::share::{
    Merged, ObjectKey, ObjectNeed, ObjectTypes, ShareConfig, SharedObjects, Version, Versioned,
};
use crate::wire::{self, Kind};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any bytes decode to a message or a counted refusal, within the bound on memory.
    #[test]
    fn memory_is_bounded_for_any_input(
        frames in prop::collection::vec(
            (48u16..53, prop::collection::vec(any::<u8>(), 0..80)),
            0..40,
        ),
    ) {
        virtually(async {
            let mut grid = ObjectGrid::new(1, 2, 1, small(), CALM);
            let (a, b) = (node(0, 0), node(0, 1));
            let count = frames.len() as u64;
            for (kind, body) in frames {
                grid.inject(&a, &b, Kind(kind), body.into());
            }
            prop_assert_eq!(grid.at(&b).stats().refused, count);
            Ok(())
        })?;
    }
}

#[test]
fn unfinished_payloads_stay_within_their_bound() {
    virtually(async {
        let config = ShareConfig { assembly: 100_000, ..small() };
        let mut grid = ObjectGrid::new(1, 2, 5, config, CALM);
        let (a, b) = (node(0, 0), node(0, 1));
        for n in 1..200 {
            let update = segments(&blob(20_000, n), 4 << 10, Version { epoch: Epoch(1), n });
            for update in &update[..4] {
                let (kind, body) = Message::Update(update.clone()).encode().unwrap();
                grid.inject(&a, &b, kind, body);
            }
        }
        let stats = grid.at(&b).stats();
        assert!(grid.at(&b).assembling() <= 100_000);
        assert!(stats.evicted >= 190, "{stats:?}");
        // A complete payload is accepted all the same, and clears older ones.
        let version = Version { epoch: Epoch(1), n: 500 };
        for update in segments(&blob(20_000, 1), 4 << 10, version) {
            let (kind, body) = Message::Update(update).encode().unwrap();
            grid.inject(&a, &b, kind, body);
        }
        assert_eq!(*grid.at(&b).get::<Blob>(0, version).unwrap(), blob(20_000, 1));
        assert_eq!(grid.at(&b).assembling(), 0);
    });
}

#[test]
fn two_writers_and_mixed_segments_are_detected() {
    virtually(async {
        let mut grid = ObjectGrid::new(1, 2, 5, small(), CALM);
        let (a, b) = (node(0, 0), node(0, 1));
        let version = Version { epoch: Epoch(1), n: 1 };
        let one = segments(&blob(20_000, 1), 4 << 10, version);
        let two = segments(&blob(20_000, 2), 4 << 10, version);
        let give = |grid: &mut ObjectGrid, update: Update| {
            let (kind, body) = Message::Update(update).encode().unwrap();
            grid.inject(&a, &b, kind, body);
        };
        // Segments of two writers are never combined.
        for (x, y) in one.iter().zip(&two).take(3) {
            give(&mut grid, x.clone());
            give(&mut grid, y.clone());
        }
        // A segment with a wrong sum invalidates only its own payload.
        let last = Update { id: one[0].id, ..two[3].clone() };
        give(&mut grid, last);
        give(&mut grid, one[4].clone());
        assert!(grid.at(&b).get::<Blob>(0, version).is_none());
        give(&mut grid, two[3].clone());
        give(&mut grid, two[4].clone());
        assert_eq!(*grid.at(&b).get::<Blob>(0, version).unwrap(), blob(20_000, 2));
        assert_eq!(grid.at(&b).assembling(), 0);
        for update in one {
            give(&mut grid, update);
        }
        let stats = grid.at(&b).stats();
        assert_eq!((stats.refused, stats.conflicts), (1, 5), "{stats:?}");
        assert_eq!(
            *grid.at(&b).get::<Blob>(0, version).unwrap(),
            blob(20_000, 2),
            "the first stays"
        );
    });
}

fn golden_messages() -> (Update, Fetch, Miss, Merge) {
    let version = Version { epoch: Epoch(2), n: 7 };
    let key = ObjectKey { name: "bodies".into(), part: 1 };
    let id = PayloadId { version, delta: true, len: 5, segment: 3, sum: 0x0123_4567_89ab_cdef };
    let update = Update {
        job: JobId(9),
        key: key.clone(),
        id,
        index: 1,
        origin: "ams-1".into(),
        request: 0,
        relay: true,
        below: vec!["ams-2".into(), "ams-3".into()],
        data: Bytes::from_static(&[1, 2]),
    };
    let fetch = Fetch {
        job: JobId(9),
        request: 12,
        need: ObjectNeed { key, version },
        have: 6,
        partial: Some((id, vec![(0, 1), (4, 9)])),
    };
    let miss = Miss { job: JobId(9), request: 12, coming: true };
    let merge =
        Merge { job: JobId(9), name: "bound".into(), data: Bytes::from_static(&[205, 1, 2]) };
    (update, fetch, miss, merge)
}

#[test]
fn messages_match_their_golden_files() {
    let crate_dir = env!("CARGO_MANIFEST_DIR");
    let (update, fetch, miss, merge) = golden_messages();
    wire::golden::check(crate_dir, Kind::OBJECT_UPDATE, "delta", &update);
    wire::golden::check(crate_dir, Kind::OBJECT_FETCH, "partial", &fetch);
    wire::golden::check(
        crate_dir,
        Kind::OBJECT_FETCH,
        "whole",
        &Fetch { have: 0, partial: None, ..fetch.clone() },
    );
    wire::golden::check(crate_dir, Kind::OBJECT_MISS, "coming", &miss);
    wire::golden::check(crate_dir, Kind::OBJECT_MERGE, "bound", &merge);
}

#[test]
fn a_fetch_with_all_its_ranges_fits_its_cap() {
    let (_, fetch, ..) = golden_messages();
    let id = fetch.partial.as_ref().unwrap().0;
    let ranges = vec![(u32::MAX, u32::MAX); RANGES_MAX];
    let key = ObjectKey { name: "x".repeat(2000), part: u32::MAX };
    let need = ObjectNeed { key, version: id.version };
    let fetch = Fetch { partial: Some((id, ranges)), need, ..fetch };
    assert!(Message::Fetch(fetch).encode().is_ok());
}

#[test]
fn mutated_messages_never_panic() {
    fn store(kind: Kind, body: &[u8]) -> bool {
        // A store of this job that knows the golden objects gets all frames that decode.
        thread_local! {
            static STORE: SharedObjects = {
                let config =
                    ShareConfig { assembly: 1 << 20, parts: 100, ..ShareConfig::default() };
                SharedObjects::new(
                    "ams-1".into(),
                    JobId(9),
                    golden_types(),
                    config,
                    Arc::new(|_| {}),
                )
            };
        }
        STORE.with(|store| {
            let refused = store.stats().refused;
            store.frame(&"ams-2".into(), kind, body.to_vec().into());
            store.tick();
            assert!(store.assembling() <= 1 << 20);
            store.stats().refused == refused
        })
    }
    let corpus: Vec<_> = wire::golden::corpus(env!("CARGO_MANIFEST_DIR"))
        .into_iter()
        .filter(|(kind, _)| (48..52).contains(&kind.0))
        .collect();
    assert!(corpus.len() >= 5);
    let tally = wire::fuzz::run(
        &corpus,
        &[
            (Kind::OBJECT_UPDATE, |body| store(Kind::OBJECT_UPDATE, body)),
            (Kind::OBJECT_FETCH, |body| store(Kind::OBJECT_FETCH, body)),
            (Kind::OBJECT_MISS, |body| store(Kind::OBJECT_MISS, body)),
            (Kind::OBJECT_MERGE, |body| store(Kind::OBJECT_MERGE, body)),
        ],
        48,
    );
    assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Bound(u16);

impl Merged for Bound {
    const NAME: &'static str = "bound";

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.min(other.0);
    }
}

#[derive(Serialize, Deserialize)]
struct Bodies(Vec<f32>);

impl Versioned for Bodies {
    const NAME: &'static str = "bodies";
    type Delta = Vec<f32>;

    fn apply(&self, delta: Self::Delta) -> Self {
        Self(delta)
    }
}

fn golden_types() -> ObjectTypes {
    let mut types = ObjectTypes::new();
    types.versioned::<Bodies>().merged::<Bound>();
    types
}
