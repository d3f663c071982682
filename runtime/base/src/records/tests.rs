use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::memory::{MemoryFiles, StorageFault};
use super::*;

const SET: RecordSchema = RecordSchema { name: "set", version: 1 };
const SETTINGS: RecordSettings = RecordSettings {
    store: "test",
    loss: "all keys are lost",
    compact_bytes: 400,
    keep_segments: 1,
};

fn dir() -> &'static Path {
    Path::new("grid/test")
}

/// A persistent map: the user of a store.
#[derive(Debug)]
struct Map {
    log: RecordLog,
    values: BTreeMap<u8, u64>,
    blobs: BTreeMap<u8, BlobRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Set {
    key: u8,
    value: u64,
    blob: Option<BlobRef>,
}

/// The values of a map, with their blobs.
type Values = BTreeMap<u8, u64>;

impl Map {
    fn open(files: &MemoryFiles) -> Result<Self, RecordError> {
        let (log, contents) = RecordLog::open(Arc::new(files.clone()), dir(), SETTINGS)?;
        let (mut values, mut blobs) = (BTreeMap::new(), BTreeMap::new());
        for record in contents.iter() {
            let Set { key, value, blob } = record.decode(SET).expect("the map wrote the record");
            values.insert(key, value);
            match blob {
                Some(blob) => drop(blobs.insert(key, blob)),
                None => drop(blobs.remove(&key)),
            }
        }
        let wanted: Vec<String> = blobs.values().map(|blob| blob.file.clone()).collect();
        log.retain_blobs(|file| wanted.iter().any(|wanted| wanted == file))?;
        Ok(Self { log, values, blobs })
    }

    fn set(&mut self, key: u8, value: u64) -> Result<(), RecordError> {
        // Every third value is large.
        let blob = if value.is_multiple_of(3) {
            Some(self.log.put_blob(&format!("key-{key}"), &[value as u8; 300])?)
        } else {
            None
        };
        self.log.append(SET, &Set { key, value, blob: blob.clone() })?;
        self.values.insert(key, value);
        match blob {
            Some(blob) => drop(self.blobs.insert(key, blob)),
            None => drop(self.blobs.remove(&key)),
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<(), RecordError> {
        let entry = |(&key, &value): (&u8, &u64)| {
            NewRecord::new(SET, &Set { key, value, blob: self.blobs.get(&key).cloned() })
        };
        let entries: Result<Vec<NewRecord>, RecordError> = self.values.iter().map(entry).collect();
        self.log.compact(&entries?)
    }

    fn check_blobs(&self) -> Result<(), RecordError> {
        for (key, blob) in &self.blobs {
            assert_eq!(self.log.blob(blob)?, [self.values[key] as u8; 300]);
        }
        Ok(())
    }
}

/// Executes a short sequence of operations on a map. Returns the values that are certainly durable,
/// and those including the operation that was under way.
fn run_operations(files: &MemoryFiles) -> (Values, Values) {
    let (mut durable, mut attempted) = (Values::new(), Values::new());
    let mut work = || -> Result<(), RecordError> {
        let mut map = Map::open(files)?;
        for (key, value) in (0..4).zip(1..) {
            attempted.insert(key, value);
            map.set(key, value)?;
            durable = attempted.clone();
        }
        map.compact()?;
        for (key, value) in (2..6).zip(30..) {
            attempted.insert(key, value);
            map.set(key, value)?;
            durable = attempted.clone();
        }
        map.compact()?;
        map.compact()?;
        attempted.insert(9, 99);
        map.set(9, 99)?;
        durable = attempted.clone();
        drop(map);
        let mut map = Map::open(files)?;
        attempted.insert(9, 100);
        map.set(9, 100)?;
        durable = attempted.clone();
        Ok(())
    };
    let _ = work();
    (durable, attempted)
}

#[test]
fn a_crash_at_each_step_leaves_durable_values() {
    let files = MemoryFiles::new(0);
    let (durable, attempted) = run_operations(&files);
    assert_eq!(durable, attempted);
    let steps = files.steps();
    assert!(steps > 50, "{steps}");
    for step in 1..=steps {
        // The seed determines which unsynced changes survive.
        for seed in 0..60 {
            let files = MemoryFiles::new(seed);
            files.fault_at(step, StorageFault::Crash);
            let (durable, attempted) = run_operations(&files);
            assert!(files.has_crashed());
            files.restart();
            let about = format!("step {step}, seed {seed}");
            let mut map = Map::open(&files).unwrap_or_else(|error| panic!("{about}: {error}"));
            assert!(map.values == durable || map.values == attempted, "{about}: {:?}", map.values);
            map.check_blobs().unwrap_or_else(|error| panic!("{about}: {error}"));
            map.set(77, 7).unwrap();
            let values = map.values.clone();
            drop(map);
            files.crash();
            files.restart();
            let map = Map::open(&files).unwrap();
            assert_eq!(map.values, values, "{about}");
            let left = files.paths();
            assert!(left.iter().all(|path| path.extension().is_none_or(|end| end != "tmp")));
        }
    }
}

#[test]
fn a_failure_at_each_step_loses_and_invents_nothing() {
    let files = MemoryFiles::new(0);
    run_operations(&files);
    for step in 1..=files.steps() {
        for seed in 0..20 {
            let files = MemoryFiles::new(seed);
            files.fault_at(step, StorageFault::Error);
            let Ok(mut map) = Map::open(&files) else { continue };
            let mut durable = Values::new();
            for round in 0..40_u64 {
                let (key, value) = ((round % 5) as u8, round + 1);
                if map.set(key, value).is_ok() {
                    durable.insert(key, value);
                }
                if round % 7 == 0 {
                    let _ = map.compact();
                }
                assert_eq!(map.values, durable);
            }
            drop(map);
            files.crash();
            files.restart();
            let map = Map::open(&files).unwrap();
            assert_eq!(map.values, durable, "step {step}, seed {seed}");
            map.check_blobs().unwrap();
        }
    }
}

#[test]
fn each_flipped_bit_is_refused_with_file_name_and_remedy() {
    let files = MemoryFiles::new(0);
    let mut map = Map::open(&files).unwrap();
    for value in 1..6 {
        map.set(value as u8, value).unwrap();
    }
    map.compact().unwrap();
    map.set(7, 8).unwrap();
    map.set(8, 9).unwrap();
    let values = map.values.clone();
    drop(map);
    for path in files.paths() {
        let old = path.ends_with("00000001.log");
        for bit in 0..files.read(&path, 0).unwrap().len() * 8 {
            let damaged = files.copy();
            damaged.flip(&path, bit);
            let opened = Map::open(&damaged).and_then(|map| {
                map.check_blobs()?;
                Ok(map.values)
            });
            match opened {
                // The segment before the current one serves cursors alone.
                Ok(found) => assert!(old && found == values, "{}, bit {bit}", path.display()),
                Err(error) => {
                    let (text, name) = (error.to_string(), path.display().to_string());
                    let helpful = text.contains(&name) && text.contains("backup");
                    assert!(!old && helpful, "{name}, bit {bit}: {text}");
                }
            }
            if old {
                let mut cursor = Cursor::open(Arc::new(damaged), dir(), SETTINGS, 1);
                let error = cursor.poll().unwrap_err();
                assert!(matches!(error, RecordError::Damaged { .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_log_cut_at_any_byte_reads_up_to_its_last_complete_record() {
    let files = MemoryFiles::new(0);
    let path = dir().join("00000001.log");
    let mut map = Map::open(&files).unwrap();
    let mut ends = vec![files.read(&path, 0).unwrap().len()];
    for value in [1, 2, 4, 5] {
        map.set(value as u8, value).unwrap();
        ends.push(files.read(&path, 0).unwrap().len());
    }
    for cut in 0..=*ends.last().unwrap() {
        let files = files.copy();
        files.open(&path).unwrap().truncate(cut as u64).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count();
        match Map::open(&files) {
            Ok(mut map) => {
                assert_eq!(map.values.len(), whole - 1, "{cut}");
                map.set(9, 10).unwrap();
                assert_eq!(Map::open(&files).unwrap().values, map.values);
            }
            // A segment appears with its complete header.
            Err(error) => assert!(whole == 0 && error.to_string().contains("cut off"), "{error}"),
        }
    }
}

#[test]
fn stores_of_another_name_or_a_later_version_are_refused() {
    let files = MemoryFiles::new(0);
    drop(Map::open(&files).unwrap());
    let other = RecordSettings { store: "other", ..SETTINGS };
    let opened = RecordLog::open(Arc::new(files.clone()), dir(), other);
    let refused = opened.unwrap_err().to_string();
    assert!(refused.contains("store test, and not segment 1 of the store other"), "{refused}");
    let (mut log, _) = RecordLog::open(Arc::new(files.clone()), dir(), SETTINGS).unwrap();
    log.append(RecordSchema { name: "set", version: 2 }, &1).unwrap();
    let contents = read(&files, dir(), SETTINGS).unwrap().unwrap();
    let refused = contents.records[0].decode::<Set>(SET).unwrap_err();
    assert!(refused.contains("set/2") && refused.contains("newer"), "{refused}");
    assert!(contents.records[0].decode::<Set>(RecordSchema { name: "get", version: 2 }).is_err());
}

#[test]
fn a_cursor_reads_each_record_once_across_compactions_or_reports_that_it_is_behind() {
    let files = MemoryFiles::new(0);
    let shared: Arc<dyn Files> = Arc::new(files.clone());
    let mut map = Map::open(&files).unwrap();
    let mut inside = map.log.cursor(1);
    let mut outside = Cursor::open(Arc::clone(&shared), dir(), SETTINGS, 1);
    let mut late = Cursor::open(Arc::clone(&shared), dir(), SETTINGS, 5);
    let number = |record: Record| record.number;
    let (mut all, mut of_outside, mut of_late) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=60 {
        map.set((round % 7) as u8, round).unwrap();
        if round % 5 == 0 {
            map.compact().unwrap();
        }
        if round % 4 == 0 {
            all.extend(inside.poll().unwrap().into_iter().map(number));
        }
        of_outside.extend(outside.poll().unwrap().into_iter().map(number));
        of_late.extend(late.poll().unwrap().into_iter().map(number));
    }
    assert_eq!(all, (1..=60).collect::<Vec<_>>());
    assert_eq!(of_outside, all);
    assert_eq!(of_late, (5..=60).collect::<Vec<_>>());
    let mut behind = map.log.cursor(20);
    let error = behind.poll().unwrap_err();
    assert!(matches!(error, RecordError::Compacted { wanted: 20, first: 56, .. }), "{error}");
    let (snapshot, mut cursor) = Cursor::of_snapshot(shared, dir(), SETTINGS).unwrap();
    assert_eq!((snapshot.len(), cursor.next()), (map.values.len(), 61));
    assert!(cursor.poll().unwrap().is_empty());
    map.set(1, 61).unwrap();
    assert_eq!(cursor.poll().unwrap().len(), 1);
}

#[test]
fn a_cursor_of_this_process_reads_durable_records_only() {
    let files = MemoryFiles::new(3);
    let mut map = Map::open(&files).unwrap();
    let mut cursor = map.log.cursor(1);
    map.set(1, 1).unwrap();
    // The write succeeds, its sync fails, and so does the repair.
    files.fault_at(files.steps() + 2, StorageFault::Error);
    assert!(map.set(2, 2).is_err());
    assert_eq!(cursor.poll().unwrap().len(), 1);
    map.set(3, 4).unwrap();
    let found = cursor.poll().unwrap();
    assert_eq!(found[0].decode::<Set>(SET).unwrap().value, 4);
}

#[test]
fn a_store_on_disk_is_private_to_its_owner() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("deep/store");
    let open = || RecordLog::open(Arc::new(Disk), &dir, SETTINGS).unwrap();
    let (mut log, _) = open();
    let blob = log.put_blob("big", &[7; 5000]).unwrap();
    log.append(SET, &Set { key: 1, value: 2, blob: Some(blob.clone()) }).unwrap();
    log.compact(&[NewRecord::new(SET, &Set { key: 1, value: 2, blob: None }).unwrap()]).unwrap();
    log.append(SET, &Set { key: 2, value: 3, blob: None }).unwrap();
    drop(log);
    let (log, contents) = open();
    assert_eq!((contents.snapshot.len(), contents.records.len(), log.last()), (1, 1, 2));
    assert_eq!(log.blob(&blob).unwrap(), [7; 5000]);
    log.remove_blob(&blob).unwrap();
    assert!(log.blob(&blob).unwrap_err().to_string().contains("is missing"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("00000002.log"))), (0o700, 0o600));
    }
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum RecordStep {
    Set(u8, u64),
    Compact,
    Reopen,
    Poll,
    /// A fault after this number of operations; `true` for a crash.
    Fault(u64, bool),
}

fn step() -> impl Strategy<Value = RecordStep> {
    prop_oneof![
        6 => (0..6_u8, 1..1000_u64).prop_map(|(key, value)| RecordStep::Set(key, value)),
        2 => Just(RecordStep::Compact),
        1 => Just(RecordStep::Reopen),
        2 => Just(RecordStep::Poll),
        1 => (1..12_u64, any::<bool>()).prop_map(|(steps, crash)| RecordStep::Fault(steps, crash)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// At every step a store holds the same values as its model. A cursor that never falls far
    /// behind has read each durable record once, in order.
    #[test]
    fn random_histories_end_as_the_model_does(
        steps in proptest::collection::vec(step(), 1..80),
        seed in any::<u64>(),
    ) {
        let files = MemoryFiles::new(seed);
        let mut map = Map::open(&files).unwrap();
        let (mut durable, mut attempted) = (Values::new(), Values::new());
        let mut cursor = map.log.cursor(1);
        let mut read = Values::new();
        for step in steps {
            let done = match step {
                RecordStep::Set(key, value) => {
                    attempted = durable.clone();
                    attempted.insert(key, value);
                    let done = map.set(key, value);
                    if done.is_ok() {
                        durable = attempted.clone();
                    }
                    done
                }
                RecordStep::Compact => map.compact(),
                RecordStep::Reopen => Map::open(&files).map(|opened| {
                    map = opened;
                    cursor = map.log.cursor(cursor.next());
                }),
                RecordStep::Poll => Ok(()),
                RecordStep::Fault(steps, crash) => {
                    let fault = if crash { StorageFault::Crash } else { StorageFault::Error };
                    files.fault_at(files.steps() + steps, fault);
                    Ok(())
                }
            };
            if files.has_crashed() {
                prop_assert!(done.is_err());
                files.restart();
                map = Map::open(&files).unwrap();
                prop_assert!(map.values == durable || map.values == attempted);
                durable = map.values.clone();
                cursor = Cursor::open(Arc::new(files.clone()), dir(), SETTINGS, cursor.next());
            }
            prop_assert_eq!(&map.values, &durable);
            map.check_blobs().unwrap();
            for record in cursor.poll().unwrap() {
                let Set { key, value, .. } = record.decode(SET).unwrap();
                read.insert(key, value);
            }
            prop_assert_eq!(&read, &durable);
            attempted = durable.clone();
        }
    }
}
