//! Files that a grid keeps: record stores, the scheduler's state, tokens, event logs and
//! certificates.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use springtide_actors::enrol::EnrolmentStore;
use springtide_actors::policy::malleability::PlacementPlan;
use springtide_actors::policy::provisioning::Booking;
use springtide_actors::reservation::{Reservation, ReservationId, ReservationPhase, ReservedSlot};
use springtide_actors::scheduler::core::StartRecord;
use springtide_actors::store::{SCHEMA, SETTINGS, Store, StoreRecord, records_dir};
use springtide_runtime::event::{self, Event, LogHeader, Record, SCHEMA as SCHEMA_OF_EVENTS};
use springtide_runtime::fuzz::{Target, run};
use springtide_runtime::id::{Epoch, Incarnation, JobId};
use springtide_runtime::net::join::JoinToken;
use springtide_runtime::net::tls::{Ca, Dates, EPHEMERAL_VALIDITY, Fingerprint, NodeIdentity};
use springtide_runtime::net::tls::{NewKey, check_request};
use springtide_runtime::records::memory::MemoryFiles;
use springtide_runtime::records::{BlobRef, Files, RecordLog, RecordSchema, RecordSettings};

use super::{target, text};

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "\n",
    "\\u0000",
    "r ",
    "h ",
    "s ",
    " ",
    "{\"kind\":\"epoch\",\"job\":1,\"epoch\":1}\n",
    "{\"kind\":\"over\",\"job\":1}\n",
    "{\"kind\":\"limit\",\"job\":1,\"most\":3}\n",
    "{\"kind\":\"drained\",\"node\":\"a-1\"}\n",
    "{\"kind\":\"unreserved\",\"id\":3}\n",
    "{\"kind\":\"drained\",\"node\":\"a-1\",\"reason\":\"x\"}\n",
];

/// A directory in memory where the system has one, since some stores wait for each write.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// An error's text without the directory, whose name is random.
fn reason(error: impl Display, dir: &tempfile::TempDir) -> String {
    error.to_string().replace(&*dir.path().to_string_lossy(), "")
}

const ANY: RecordSchema = RecordSchema { name: "any", version: 1 };
const ANY_SETTINGS: RecordSettings = RecordSettings::new("any", "nothing");

fn segment() -> PathBuf {
    PathBuf::from("/store/00000001.log")
}

/// Records of this store, as bytes.
fn store_bytes(values: &[Value]) -> Vec<u8> {
    let files = MemoryFiles::new(0);
    let opened = RecordLog::open(Arc::new(files.clone()), Path::new("/store"), ANY_SETTINGS);
    let (mut log, _) = opened.unwrap();
    for value in values {
        log.append(ANY, value).unwrap();
    }
    files.read(&segment(), 0).unwrap()
}

/// What is read stays when a record is appended.
fn record_store(bytes: &[u8]) -> Result<(), String> {
    let files = MemoryFiles::new(0);
    let mut file = files.create(&segment()).unwrap();
    file.write(0, bytes).unwrap();
    let open = || RecordLog::open(Arc::new(files.clone()), Path::new("/store"), ANY_SETTINGS);
    let (mut log, contents) = open().map_err(|error| error.to_string())?;
    log.append(ANY, &7).map_err(|error| error.to_string())?;
    drop(log);
    let (_, again) = open().unwrap();
    let jsons = |contents: &springtide_runtime::records::Contents| -> Vec<String> {
        contents.iter().map(|record| record.json.clone()).collect()
    };
    let mut before = jsons(&contents);
    before.push("7".to_owned());
    assert_eq!(jsons(&again), before);
    Ok(())
}

#[test]
fn record_stores() {
    let object = serde_json::json!({"name": "a", "list": [1, 2, 3]});
    let seeds = vec![store_bytes(&[]), store_bytes(&[1.into(), "two".into(), object])];
    run(Target { words: WORDS, ..target("fuzz::kept::record_stores", record_store) }, seeds);
}

/// Opens a scheduler's store whose records are the lines of an input. Then numbers go up, and the
/// state after a compaction is the same.
fn scheduler(bytes: &[u8]) -> Result<(), String> {
    let dir = directory();
    let records = records_dir(dir.path());
    let files: Arc<dyn Files> = Arc::new(springtide_runtime::records::Disk);
    let (mut log, _) = RecordLog::open(files, &records, SETTINGS).unwrap();
    for line in bytes.split(|byte| *byte == b'\n').take(50) {
        if let Ok(value) = serde_json::from_slice::<Value>(line) {
            log.append(SCHEMA, &value).map_err(|error| error.to_string())?;
        }
    }
    drop(log);
    let mut store = Store::open(dir.path()).map_err(|error| reason(error, &dir))?;
    store.recover(|_| true).map_err(|error| reason(error, &dir))?;
    let (first, _) = store.new_job().map_err(|error| reason(error, &dir))?;
    let (second, _) = store.new_job().map_err(|error| reason(error, &dir))?;
    assert!(first < second);
    let (job, epoch) = store.new_job().map_err(|error| reason(error, &dir))?;
    store.new_epoch(job, epoch).map_err(|error| reason(error, &dir))?;
    let (nodes, reservations) = (store.drained_nodes().clone(), store.reservations().clone());
    drop(store);
    let again = Store::open(dir.path()).unwrap();
    assert_eq!((again.drained_nodes(), again.reservations()), (&nodes, &reservations));
    Ok(())
}

#[test]
fn scheduler_stores() {
    let job = JobId(1);
    let booking = Booking { processors: 2, start: 5, end: 9 };
    let reservation = Reservation {
        id: ReservationId(3),
        token: 7,
        name: "montage".to_owned(),
        parts: vec![ReservedSlot { cluster: "a".into(), bookings: vec![booking] }],
        cost: 8.5,
        phase: ReservationPhase::Confirmed { until: None },
        lease_ms: None,
        owner: None,
    };
    let placed = PlacementPlan { parts: Vec::new(), transfers: Vec::new(), why: "why".to_owned() };
    let begun = StartRecord { placed, at: Some(5) };
    let submission = BlobRef { file: "job-2.0".to_owned(), bytes: 3, sha256: "0".repeat(64) };
    let entries = [
        StoreRecord::Epoch { job, epoch: Epoch(1) },
        StoreRecord::Submitted { job: JobId(2), submission, index: None },
        StoreRecord::Begun { job, begun },
        StoreRecord::Limit { job, most: Some(3) },
        StoreRecord::Drained { node: "a-1".into(), reason: Some("it smells".to_owned()) },
        StoreRecord::Reserved { reservation: Box::new(reservation) },
        StoreRecord::Unreserved { id: ReservationId(2) },
        StoreRecord::Over { job },
    ];
    let line = |entry: &StoreRecord| serde_json::to_string(entry).unwrap() + "\n";
    let text: String = entries.iter().map(line).collect();
    let target = target("fuzz::kept::scheduler_stores", scheduler);
    let found: &[&[u8]] = &[
        br#"{"kind":"over","job":18446744073709551615}"#,
        br#"{"kind":"epoch","job":1,"epoch":18446744073709551615}"#,
        br#"{"kind":"unreserved","id":18446744073709551615}"#,
    ];
    run(Target { words: WORDS, max_len: 4 << 10, found, ..target }, vec![text.into_bytes()]);
}

#[test]
fn tokens() {
    let read = |bytes: &[u8]| {
        let dir = directory();
        let records = dir.path().join("join.records");
        fs::create_dir(&records).unwrap();
        fs::write(records.join("00000001.log"), bytes).unwrap();
        EnrolmentStore::of(dir.path()).read().map(drop).map_err(|error| reason(error, &dir))
    };
    let dir = directory();
    EnrolmentStore::of(dir.path()).change(|_| ()).unwrap();
    let written = fs::read(dir.path().join("join.records/00000001.log"));
    let seeds = vec![written.unwrap_or_else(|_| store_bytes(&[1.into()]))];
    run(Target { words: WORDS, ..target("fuzz::kept::tokens", read) }, seeds);
}

#[test]
fn event_logs() {
    let read = |bytes: &[u8]| {
        let dir = directory();
        let path = dir.path().join("events.jsonl");
        fs::write(&path, bytes).unwrap();
        let log = event::read(&path).map_err(|error| reason(error, &dir))?;
        assert!(log.records.is_sorted_by(|a, b| a.order() < b.order()));
        Ok(())
    };
    let header = LogHeader {
        schema: SCHEMA_OF_EVENTS,
        run: "a".into(),
        started_unix_us: 5,
        version: "1".into(),
    };
    let record = |seq| Record {
        node: "head".into(),
        incarnation: Incarnation(1),
        seq,
        t_us: seq,
        began_unix_us: Some(5),
        event: Event::Fault { part: "scheduler".to_owned(), what: "x".to_owned() },
    };
    let line = |json: serde_json::Result<String>| json.unwrap() + "\n";
    let end = "{\"end\":{\"records\":2,\"facts_left_out\":0}}\n".to_owned();
    let text = [
        line(serde_json::to_string(&header)),
        line(serde_json::to_string(&record(1))),
        line(serde_json::to_string(&record(2))),
        end,
    ];
    let target = target("fuzz::kept::event_logs", read);
    run(Target { words: WORDS, max_len: 4 << 10, ..target }, vec![text.concat().into_bytes()]);
}

/// Certificates and keys as a node's directory has them, and a token of an enrolment.
#[test]
fn certificates() {
    let read = |bytes: &[u8]| {
        let _ = check_request(bytes);
        let text = text(bytes)?;
        let token = text.parse::<JoinToken>();
        if let Ok(token) = &token {
            assert_eq!(token.to_string().parse::<JoinToken>().as_ref(), Ok(token));
        }
        if let Ok(sum) = Fingerprint::of_pem(text) {
            assert_eq!(sum.to_string().parse::<Fingerprint>(), Ok(sum));
        }
        let dates = Dates::of_pem(Path::new("x"), text).map(|dates| {
            let _ = (dates.made(), dates.days_left(1));
        });
        let mut parts = text.split('\u{1c}');
        let [cert, key, ca] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let identity = NodeIdentity::of_parts(cert, key, ca).map(drop);
        match (token, dates, identity) {
            (Err(token), Err(dates), Err(identity)) => Err(format!("{token} {dates} {identity}")),
            _ => Ok(()),
        }
    };
    let ca = Ca::ephemeral("g").unwrap();
    let identity = ca.issue(&"a-1".into(), &"a".into(), "node", EPHEMERAL_VALIDITY).unwrap();
    let (id, secret) = ("0".repeat(10), "f".repeat(48));
    let token = format!("SPRINGTIDE1{}::{id}.{secret}", ca.fingerprint());
    let request = NewKey::make().unwrap().request().unwrap();
    let seeds = vec![identity.pem().join("\u{1c}").into_bytes(), token.into_bytes(), request];
    let words = &[
        "-----BEGIN CERTIFICATE-----\n",
        "-----END CERTIFICATE-----\n",
        "-----BEGIN PRIVATE KEY-----\n",
        "=",
        "::",
        ".",
        "SPRINGTIDE1",
        "\u{1c}",
    ];
    run(Target { words, max_len: 8 << 10, ..target("fuzz::kept::certificates", read) }, seeds);
}
