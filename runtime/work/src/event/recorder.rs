//! A node's bounded buffer of records before they are shipped, behind a cheap handle.
//!
//! This module does not know the consumer of the records.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::catalogue::{Event, Retention};
use super::record::Record;
use crate::id::{Incarnation, NodeId};

/// The wall clock in microseconds since the Unix epoch, or `None` before the epoch. Only for
/// display.
pub fn wall_clock_us() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_micros()).ok()
}

/// A handle to a node's buffer of records: cheap to clone, usable from every thread.
///
/// At most `capacity` facts are buffered. One more drops and counts the oldest, and the next drain
/// ends with an [`Event::Dropped`] record. Decisions are stored separately and are never dropped.
/// Their number is small by nature (a few a period) and independent of the capacity.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<RecorderState>,
}

#[derive(Debug)]
struct RecorderState {
    node: NodeId,
    incarnation: Incarnation,
    start: Instant,
    began_unix_us: Option<u64>,
    capacity: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    seq: u64,
    /// Number of facts dropped since the last drain.
    dropped: u64,
    decisions: VecDeque<Record>,
    facts: VecDeque<Record>,
}

impl Recorder {
    /// A recorder of one incarnation of a node. Times count from `start`; `capacity` bounds the
    /// buffered facts.
    pub fn new(node: NodeId, incarnation: Incarnation, start: Instant, capacity: usize) -> Self {
        Self::dated(node, incarnation, start, None, capacity)
    }

    /// A recorder whose `start` also has a wall-clock time, `began_unix_us`: microseconds since the
    /// Unix epoch.
    pub fn dated(
        node: NodeId,
        incarnation: Incarnation,
        start: Instant,
        began_unix_us: Option<u64>,
        capacity: usize,
    ) -> Self {
        let ring = Mutex::new(Ring::default());
        let shared = RecorderState { node, incarnation, start, began_unix_us, capacity, ring };
        Self { shared: Arc::new(shared) }
    }

    /// Time from the recorder's start to `now`; zero before the start.
    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.shared.start)
    }

    /// Records an event at tokio's current time.
    pub fn record(&self, event: Event) {
        self.record_at(event, Instant::now());
    }

    /// Records an event at the time `now`.
    pub fn record_at(&self, event: Event, now: Instant) {
        let weight = event.weight();
        let mut ring = self.lock();
        let record = self.number(&mut ring, event, now);
        match weight {
            Retention::Always => ring.decisions.push_back(record),
            Retention::Droppable => {
                ring.facts.push_back(record);
                if ring.facts.len() > self.shared.capacity {
                    ring.facts.pop_front();
                    ring.dropped += 1;
                }
            }
        }
    }

    /// Removes and returns all records, in order of `seq`.
    pub fn drain(&self) -> Vec<Record> {
        self.drain_at(Instant::now())
    }

    /// Drains as [`Recorder::drain`] does, with `now` as the time of a record of dropped facts.
    pub fn drain_at(&self, now: Instant) -> Vec<Record> {
        let mut ring = self.lock();
        let dropped = std::mem::take(&mut ring.dropped);
        if dropped > 0 {
            let record = self.number(&mut ring, Event::Dropped { facts: dropped }, now);
            ring.decisions.push_back(record);
        }
        let mut records: Vec<Record> = ring.decisions.drain(..).collect();
        records.extend(ring.facts.drain(..));
        records.sort_unstable_by_key(|record| record.seq);
        records
    }

    /// Number of buffered records.
    pub fn buffered(&self) -> usize {
        let ring = self.lock();
        ring.decisions.len() + ring.facts.len()
    }

    fn number(&self, ring: &mut Ring, event: Event, now: Instant) -> Record {
        ring.seq += 1;
        let since = self.elapsed(now);
        Record {
            node: self.shared.node.clone(),
            incarnation: self.shared.incarnation,
            seq: ring.seq,
            t_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            began_unix_us: self.shared.began_unix_us,
            event,
        }
    }

    /// Each step leaves the buffer consistent, so a panic elsewhere does not corrupt it.
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::record::tests::{decision, fact};
    use super::*;

    proptest! {
        #[test]
        fn decisions_are_never_dropped_and_facts_are_dropped_oldest_first(
            steps in prop::collection::vec(any::<Option<bool>>(), 0..80), capacity in 0usize..6,
        ) {
            let start = Instant::now();
            let recorder = Recorder::new("a".into(), Incarnation(1), start, capacity);
            let (mut decisions, mut facts, mut at, mut seq) = (vec![], vec![], 0, 0);
            for step in steps.into_iter().chain([None]) {
                at += 3;
                let now = start + Duration::from_micros(at);
                let Some(is_fact) = step else {
                    let lost = facts.len().saturating_sub(capacity);
                    let mut expected: Vec<u64> = facts.split_off(lost);
                    expected.append(&mut decisions);
                    expected.sort();
                    facts.clear();
                    if lost > 0 {
                        seq += 1;
                        expected.push(seq);
                    }
                    let got = recorder.drain_at(now);
                    prop_assert_eq!(got.iter().map(|r| r.seq).collect::<Vec<_>>(), expected);
                    if lost > 0 {
                        let last = &got.last().unwrap();
                        prop_assert_eq!(&last.event, &Event::Dropped { facts: lost as u64 });
                        prop_assert_eq!(last.t_us, at);
                    }
                    prop_assert_eq!(recorder.buffered(), 0);
                    continue;
                };
                seq += 1;
                recorder.record_at(if is_fact { fact(seq) } else { decision(seq) }, now);
                if is_fact { facts.push(seq) } else { decisions.push(seq) }
            }
        }
    }
}
