//! A record: an event with its node, incarnation and sequence number; and a hash over a sequence of
//! records.
//!
//! This module does not know the storage of records.

use std::io;

use serde::{Deserialize, Serialize};

use super::catalogue::Event;
use crate::checksum;
use crate::id::{Incarnation, NodeId};

/// An event as recorded by one incarnation of a node. `(node, incarnation, seq)` identifies and
/// orders records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The node that recorded the event.
    pub node: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Counts up from 1 within an incarnation. A gap means that facts were dropped.
    pub seq: u64,
    /// Microseconds since the recorder started, by the node's clock; for display, never for
    /// decisions.
    pub t_us: u64,
    /// Start of the recorder in microseconds since the Unix epoch, by the node's wall clock; only
    /// for display. Absent in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_unix_us: Option<u64>,
    /// The event that was recorded.
    pub event: Event,
}

impl Record {
    /// The key by which records of all nodes are sorted.
    pub fn order(&self) -> (&NodeId, Incarnation, u64) {
        (&self.node, self.incarnation, self.seq)
    }
}

/// A hash over a sequence of records: equal histories have equal hashes, in any process on any
/// host.
///
/// Not cryptographic. Source: FNV-1a, 64 bits, over each record's JSON line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHash(u64);

impl Default for EventHash {
    fn default() -> Self {
        Self(checksum::START)
    }
}

impl EventHash {
    /// The hash of no records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record to the hash.
    pub fn add(&mut self, record: &Record) {
        // Maps in records are ordered and keys are strings, so serialisation cannot fail and is the
        // same everywhere.
        serde_json::to_writer(&mut *self, record)
            .expect("a record has string keys and the hash takes every byte");
        self.0 = checksum::checksum_from(self.0, [b'\n']);
    }

    /// Computes the hash of these records.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> u64 {
        let mut hash = Self::new();
        records.into_iter().for_each(|record| hash.add(record));
        hash.value()
    }

    /// The current value of the hash.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl io::Write for EventHash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = checksum::checksum_from(self.0, bytes.iter().copied());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::event::{BookingRow, Retention, StealScope, StolenTaskEnd, WorkerSample};
    use crate::id::{ClusterId, Epoch, JobId, TaskPath};
    use crate::meter::{Counters, LatencySummary, Times};

    pub fn record(node: &str, seq: u64, event: Event) -> Record {
        let (node, incarnation) = (node.into(), Incarnation(7));
        Record { node, incarnation, seq, t_us: 10 * seq, began_unix_us: None, event }
    }

    pub fn fact(done: u64) -> Event {
        Event::Progress { job: JobId(1), done, total: None, what: "steps".into() }
    }

    pub fn decision(n: u64) -> Event {
        Event::Decision { decision: "grow".into(), why: "idle".into(), inputs: json!({ "n": n }) }
    }

    /// One event of each kind.
    fn catalogue() -> Vec<Event> {
        let (job, path, epoch) = (JobId(1), TaskPath(vec![0, 3]), Epoch(2));
        let (node, cluster) = (NodeId::from("ams-1"), ClusterId::from("ams"));
        let incarnation = Incarnation(1_700_000_000_000_000);
        let (other, text) = (NodeId::from("del-2"), || String::from("some text"));
        let latency = LatencySummary { count: 3, p50_us: 5, p90_us: 6, p99_us: 7, max_us: 8 };
        vec![
            Event::RunStarted {
                run: "r1".into(),
                version: "0.1.0".into(),
                seed: Some(u64::MAX),
                clusters: BTreeMap::from([(cluster.clone(), 2)]),
            },
            Event::RunEnded { ok: true, wall_us: 1, error: None },
            Event::JobStarted { job, name: "fib".into(), epoch },
            Event::JobEnded {
                job,
                ok: false,
                wall_us: 1,
                checksum: Some("00000000000000ff".into()),
                error: Some(text()),
            },
            Event::NodeRegistered {
                node: node.clone(),
                cluster: cluster.clone(),
                incarnation,
                threads: 4,
                job: Some(job),
            },
            Event::NodeJoined { job, node: node.clone(), cluster: cluster.clone() },
            Event::NodeLeft { job, node: node.clone(), cluster: cluster.clone(), why: text() },
            Event::NodeLost {
                node: node.clone(),
                cluster: cluster.clone(),
                incarnation,
                why: text(),
                silent_us: 9,
                last_lines: vec![text(), text()],
            },
            Event::ViewChanged {
                job,
                epoch,
                version: 3,
                members: 4,
                coordinator: Some(node.clone()),
            },
            Event::NodesGranted { job, epoch, nodes: vec![node.clone()], resumed: false },
            Event::NodesFreed { job: Some(job), nodes: vec![node.clone()], why: text() },
            Event::EpochIssued { job, epoch },
            Event::ReservationAgreed {
                reservation: 3,
                bookings: vec![BookingRow {
                    cluster: cluster.clone(),
                    processors: 2,
                    start_us: 5,
                    end_us: 9,
                }],
                capacity: BTreeMap::from([(cluster.clone(), 4)]),
            },
            Event::ReservationRefused { name: text(), why: text() },
            Event::ReservationEnded { reservation: 3, why: text() },
            Event::LinkUp { peer: other.clone(), cluster: cluster.clone(), rtt_us: Some(41_000) },
            Event::LinkDown { peer: other.clone(), why: text() },
            Event::LinkRefused {
                peer: "10.0.0.1:9".into(),
                reason: "foreign_ca".into(),
                detail: text(),
            },
            Event::TaskStolen {
                job,
                path: path.clone(),
                task: "fib".into(),
                from: node.clone(),
                to: other.clone(),
                scope: StealScope::Wide,
                task_bytes: 12,
                lease: Some([3, 17]),
                from_incarnation: Some(incarnation),
            },
            Event::TaskEnded {
                job,
                path: path.clone(),
                from: node.clone(),
                to: other.clone(),
                outcome: StolenTaskEnd::HandedBack,
            },
            Event::LeaseReturned { job, path: path.clone(), holder: other.clone() },
            Event::LeaseReclaimed { job, path: path.clone(), holder: other.clone(), why: text() },
            Event::DuplicateResult { job, path: path.clone(), from: other.clone() },
            Event::TaskFailed {
                job,
                path,
                task: "fib".into(),
                node,
                message: text(),
                panicked: true,
            },
            Event::ObjectPublished {
                job,
                object: "bodies".into(),
                part: 0,
                epoch,
                version: 4,
                object_bytes: 100,
                delta: true,
            },
            Event::ObjectFetched {
                job,
                object: "bodies".into(),
                part: 0,
                epoch,
                version: 4,
                from: other,
                scope: StealScope::Wide,
            },
            Event::IterationDone {
                job,
                iteration: 1,
                wall_us: 2,
                detail: json!({ "energy": -0.25 }),
            },
            Event::Progress { job, done: 1, total: Some(10), what: "steps".into() },
            Event::Period {
                job,
                cluster: Some(cluster),
                period: 1,
                threads: 8,
                times: Times { idle_ns: 5, ..Times::default() },
                counters: Box::new(Counters::default()),
                latencies: BTreeMap::from([("steal_wide".into(), latency)]),
            },
            Event::Workers {
                job,
                cluster: "ams".into(),
                workers: vec![WorkerSample {
                    node: "ams-1".into(),
                    time: [90, 4, 3, 2, 1],
                    speed: Some(1.5),
                }],
            },
            decision(1),
            Event::Fault { part: "site".into(), what: text() },
            Event::Dropped { facts: 5 },
        ]
    }

    #[test]
    fn each_kind_survives_the_log_and_the_wire() {
        let mut kinds = std::collections::BTreeSet::new();
        for (seq, event) in catalogue().into_iter().enumerate() {
            let record = record("ams-1", seq as u64, event);
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record, "{line}");
            let frame = rmp_serde::to_vec_named(&record).unwrap();
            assert_eq!(rmp_serde::from_slice::<Record>(&frame).unwrap(), record, "{line}");
            kinds.insert(serde_json::to_value(&record.event).unwrap()["kind"].to_string());
        }
        assert_eq!(kinds.len(), catalogue().len());
    }

    #[test]
    fn the_format_of_a_log_line_is_fixed() {
        let event = Event::TaskStolen {
            job: JobId(3),
            path: TaskPath(vec![0, 2]),
            task: "fib".into(),
            from: "ams-1".into(),
            to: "del-2".into(),
            scope: StealScope::Wide,
            task_bytes: 12,
            lease: None,
            from_incarnation: None,
        };
        let line = serde_json::to_string(&record("ams-1", 4, event)).unwrap();
        let golden = concat!(
            r#"{"node":"ams-1","incarnation":7,"seq":4,"t_us":40,"#,
            r#""event":{"kind":"task_stolen","job":3,"path":[0,2],"task":"fib","#,
            r#""from":"ams-1","to":"del-2","scope":"wide","task_bytes":12}}"#
        );
        assert_eq!(line, golden);
    }

    #[test]
    fn unknown_kinds_and_fields_are_skipped() {
        let line = r#"{"node":"a","incarnation":1,"seq":2,"t_us":3,"mood":"fine",
            "event":{"kind":"node_cloned","sheep":"dolly"}}"#;
        let record: Record = serde_json::from_str(line).unwrap();
        assert_eq!((record.seq, record.event), (2, Event::Unknown));
        let line = r#"{"kind":"dropped","facts":2,"since":9}"#;
        let event: Event = serde_json::from_str(line).unwrap();
        assert_eq!(event, Event::Dropped { facts: 2 });
    }

    #[test]
    fn decisions_and_membership_are_never_dropped() {
        let kept = catalogue().into_iter().filter(|event| event.weight() == Retention::Always);
        assert_eq!(kept.count(), 18);
        assert_eq!(decision(1).weight(), Retention::Always);
        assert_eq!(fact(1).weight(), Retention::Droppable);
    }

    #[test]
    fn the_hash_depends_on_the_order_and_on_each_record() {
        let (a, b) = (record("a", 1, fact(1)), record("a", 2, decision(2)));
        let hash = EventHash::of([&a, &b]);
        assert_eq!(hash, EventHash::of([&a, &b]));
        assert_ne!(hash, EventHash::of([&b, &a]));
        assert_ne!(hash, EventHash::of([&a]));
        // Pinned: a change here invalidates committed hashes of histories.
        let pinned = serde_json::to_string(&record("a", 1, Event::Dropped { facts: 1 })).unwrap();
        assert_eq!(
            pinned,
            r#"{"node":"a","incarnation":7,"seq":1,"t_us":10,"event":{"kind":"dropped","facts":1}}"#
        );
        assert_eq!(
            EventHash::of([&record("a", 1, Event::Dropped { facts: 1 })]),
            0x97a0_1c62_f1a4_2d4b
        );
    }
}
