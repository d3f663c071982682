//! Stored data with fields of a later version can be read: the scheduler's store and the records of
//! run logs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use springtide_actors::store::{SCHEMA, SETTINGS, Store, records_dir};
use springtide_runtime::event::Record;
use springtide_runtime::id::{Epoch, JobId};
use springtide_runtime::records::{Disk, NewRecord, RecordLog, read};
use springtide_simulator::apps::ModelledJob;
use springtide_simulator::{SimulatedGrid, simulate};

use crate::simulated;

/// The object with an unknown field, at the start or at the end.
fn with_later(object: &Map<String, Value>, first: bool) -> Map<String, Value> {
    let later = || std::iter::once(("zz_later".to_owned(), serde_json::json!({ "a": [1, null] })));
    let known = || object.iter().map(|(key, value)| (key.clone(), value.clone()));
    if first { later().chain(known()).collect() } else { known().chain(later()).collect() }
}

#[test]
fn the_schedulers_store_is_read_with_fields_of_a_later_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let (job, epoch) = store.new_job().unwrap();
    store.new_epoch(job, epoch).unwrap();
    store.set_drained(&"ams-1".into(), Some("a fan")).unwrap();
    store.set_drained(&"ams-2".into(), Some("a disk")).unwrap();
    store.set_drained(&"ams-2".into(), None).unwrap();
    store.new_job().unwrap();
    let drained = store.drained_nodes().clone();
    drop(store);
    let contents = read(&Disk, &records_dir(dir.path()), SETTINGS).unwrap().unwrap();
    assert!(contents.records.len() >= 5, "{contents:?}");
    for first in [true, false] {
        let later = |record: &springtide_runtime::records::Record| {
            let object = with_later(&serde_json::from_str(&record.json).unwrap(), first);
            NewRecord::new(SCHEMA, &object).unwrap()
        };
        let entries: Vec<NewRecord> = contents.iter().map(later).collect();
        let dir = tempfile::tempdir().unwrap();
        let to = records_dir(dir.path());
        let (mut log, _) = RecordLog::open(Arc::new(Disk), &to, SETTINGS).unwrap();
        log.append_all(&entries).unwrap();
        drop(log);
        let mut store = Store::open(dir.path()).unwrap();
        assert_eq!(store.drained_nodes(), &drained);
        assert_eq!(store.new_job().unwrap(), (JobId(3), Epoch(1)));
    }
}

#[test]
fn records_of_a_run_are_read_with_fields_of_a_later_version() {
    let layout = simulated::layout(&[2, 2], 1);
    let records = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout, simulated::registry()).await;
        let job = ModelledJob { rounds: 2, ..simulated::TREE };
        let run = grid.submit(job, simulated::params(1), None).await.expect("it is taken");
        run.ended(Duration::from_secs(3600)).await.expect("it ends").records
    });
    assert!(records.len() > 10, "{}", records.len());
    for record in &records {
        let Value::Object(object) = serde_json::to_value(record).unwrap() else {
            panic!("no object")
        };
        for first in [true, false] {
            let mut later = with_later(&object, first);
            // Also inside an event: an object by its kind, or one with its kind inside.
            if let Some(Value::Object(event)) = later.get_mut("event") {
                let inside = match event.len() {
                    1 => event.values_mut().next().and_then(Value::as_object_mut),
                    _ => Some(event),
                };
                if let Some(inside) = inside {
                    *inside = with_later(inside, first);
                }
            }
            let read: Record =
                serde_json::from_value(Value::Object(later)).unwrap_or_else(|error| {
                    panic!("{record:?}: {error}");
                });
            assert_eq!(read, *record);
        }
    }
}
