//! A store in memory with faults at any step, and what its next life reads.

use std::fs;

use proptest::prelude::*;
use springtide_runtime::records::memory::{MemoryFiles, StorageFault};

use super::*;

#[test]
fn numbers_are_issued_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut issued = Vec::new();
    for _ in 0..3 {
        let mut store = Store::open(dir.path()).unwrap();
        issued.push(store.new_job().unwrap().0.0);
        issued.push(store.new_job().unwrap().0.0);
    }
    assert_eq!(issued, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn jobs_of_one_message_share_a_blob_until_the_last_has_ended() {
    let files = MemoryFiles::new(0);
    let mut store = open(&files).unwrap();
    let names = ["one", "one", "two", "one"];
    let submits: Vec<Submit> = names.iter().map(|name| submit(name)).collect();
    let jobs = store.new_jobs(&submits).unwrap();
    assert_eq!(jobs.iter().map(|(job, _)| job.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(store.new_jobs(&[]).unwrap(), []);
    let blobs = || {
        let paths = files.paths();
        paths.iter().filter(|path| path.extension().is_none_or(|end| end != "log")).count()
    };
    assert_eq!(blobs(), 1, "{:?}", files.paths());
    drop(store);
    let mut store = open(&files).unwrap();
    let found = store.recover(|job| job != JobId(2)).unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.job.0, one.submit.name.clone())).collect();
    assert_eq!(found, [(1, "one".into()), (3, "two".into()), (4, "one".into())]);
    for job in [1, 3, 4] {
        assert_eq!(blobs(), 1);
        store.record_end(JobId(job)).unwrap();
    }
    assert_eq!(blobs(), 0);
}

fn open(files: &MemoryFiles) -> Result<Store, StoreError> {
    Store::open_on(Arc::new(files.clone()), Path::new("grid"), None)
}

#[test]
fn every_flipped_bit_is_detected_and_a_damaged_submission_loses_its_job_only() {
    let files = MemoryFiles::new(0);
    let mut store = open(&files).unwrap();
    for name in ["one", "two"] {
        let (job, epoch) = store.new_job().unwrap();
        store.store_submission(job, epoch, &submit(name)).unwrap();
    }
    store.record_start(JobId(1), begun()).unwrap();
    store.new_epoch(JobId(1), Epoch(1)).unwrap();
    store.set_drained(&"vu-1".into(), Some("it smells")).unwrap();
    store.record_reservation(&reservation(2)).unwrap();
    let before = store.state.clone();
    drop(store);
    for path in files.paths() {
        for bit in 0..files.read(&path, 0).unwrap().len() * 8 {
            let damaged = files.copy();
            damaged.flip(&path, bit);
            let about = format!("{}, bit {bit}", path.display());
            let mut store = match open(&damaged) {
                Ok(store) => store,
                Err(error) => {
                    assert!(path.extension().is_some_and(|end| end == "log"), "{about}");
                    assert!(error.to_string().contains("restore the directory"), "{error}");
                    continue;
                }
            };
            assert_eq!(store.state, before, "{about}");
            let found = store.recover(|_| true).unwrap();
            let names: Vec<&str> = found.iter().map(|found| &*found.submit.name).collect();
            let first_is_damaged = path.to_string_lossy().contains("job-1.");
            let (job, whole) = if first_is_damaged { (JobId(1), "two") } else { (JobId(2), "one") };
            assert_eq!(names, [whole], "{about}");
            let reason = &store.lost()[&job];
            assert!(reason.contains("checksum") && reason.contains("job-"), "{reason}");
        }
    }
}

#[test]
fn epochs_are_issued_once_despite_crashes_at_any_step() {
    let live = |files: &MemoryFiles| {
        let mut issued = Vec::new();
        let _ = (|| -> Result<(), StoreError> {
            for _ in 0..3 {
                let mut store = open(files)?;
                let (job, epoch) = store.new_job()?;
                issued.push((job, epoch));
                store.store_submission(job, epoch, &submit("fib"))?;
                issued.push((job, store.new_epoch(job, epoch)?));
                if let Some(LogAndLease { log, .. }) = &mut store.kept {
                    let entries = store.state.entries();
                    let values: Result<Vec<Value>, _> =
                        entries.iter().map(|entry| Value::new(SCHEMA, entry)).collect();
                    log.compact(&values?)?;
                }
            }
            Ok(())
        })();
        issued
    };
    let files = MemoryFiles::new(0);
    assert_eq!(live(&files).len(), 6);
    for step in 1..=files.steps() {
        for seed in 0..10 {
            let files = MemoryFiles::new(seed);
            files.fault_at(step, StorageFault::Crash);
            let issued = live(&files);
            files.restart();
            let mut store = open(&files).unwrap();
            let last = issued.iter().map(|(job, _)| *job).max().unwrap_or_default();
            let (next, _) = store.new_job().unwrap();
            assert!(next > last, "step {step}, seed {seed}: {next} after {last}");
            for (job, open) in &store.state.open {
                let issued = issued.iter().filter(|(of, _)| of == job);
                let issued = issued.map(|(_, epoch)| *epoch).max();
                assert!(Some(open.epoch) >= issued, "step {step}, seed {seed}: {job}");
            }
            let kept = store.state.open.len();
            assert_eq!(store.recover(|_| true).unwrap().len(), kept);
        }
    }
}

proptest! {
    /// A snapshot results in the same state as the records before it.
    #[test]
    fn a_snapshot_results_in_the_same_state(
        ops in proptest::collection::vec((0..7_u8, 1..5_u64), 1..60),
    ) {
        let files = MemoryFiles::new(0);
        let mut store = open(&files).unwrap();
        for (op, number) in ops {
            let job = JobId(number);
            match op {
                0 => {
                    let (job, epoch) = store.new_job().unwrap();
                    store.store_submission(job, epoch, &submit("fib")).unwrap();
                }
                1 => drop(store.new_job().unwrap()),
                2 => store.record_start(job, begun()).unwrap(),
                3 => store.limit(job, Some(number as u32)).unwrap(),
                4 => store.record_end(job).unwrap(),
                5 => store.record_reservation(&reservation(number)).unwrap(),
                _ => store.delete_reservation(ReservationId(number)).unwrap(),
            }
            prop_assert_eq!(store.state.check_entries(&store.state.entries()), Ok(()));
            let opened = open(&files).unwrap();
            prop_assert_eq!(&opened.state.open, &store.state.open);
            prop_assert_eq!(opened.state.last_job, store.state.last_job);
        }
    }
}

#[test]
fn a_store_of_an_earlier_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("scheduler.log"), "0a1b2c3d {}\n").unwrap();
    let refused = Store::open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("scheduler.log") && refused.contains("move it away"), "{refused}");
}

fn submit(name: &str) -> Submit {
    Submit {
        name: name.to_owned(),
        body: bytes::Bytes::from_static(b"body"),
        fingerprint: 7,
        params: crate::job::JobParams::default(),
        clusters: None,
        client: springtide_runtime::net::Contact {
            node: "head".into(),
            cluster: "head".into(),
            address: springtide_runtime::net::Address::Memory,
        },
        program: None,
        need: None,
        principal: None,
        image: None,
    }
}

fn reservation(id: u64) -> Reservation {
    let booking = crate::policy::provisioning::Booking { processors: 2, start: 5, end: 9 };
    Reservation {
        id: ReservationId(id),
        token: 7,
        name: "montage".to_owned(),
        parts: vec![crate::reservation::ReservedSlot {
            cluster: "vu".into(),
            bookings: vec![booking],
        }],
        cost: 8.5,
        phase: crate::reservation::ReservationPhase::Confirmed { until: None },
        lease_ms: None,
        owner: None,
    }
}

fn begun() -> StartRecord {
    let (parts, transfers, why) = (Vec::new(), Vec::new(), "why".to_owned());
    let placed = crate::policy::malleability::PlacementPlan { parts, transfers, why };
    StartRecord { placed, at: Some(5) }
}

#[test]
fn open_jobs_are_recovered_and_the_store_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    for name in ["queued", "running", "ended", "unwanted"] {
        let (job, epoch) = store.new_job().unwrap();
        store.store_submission(job, epoch, &submit(name)).unwrap();
    }
    let plain = store.new_job().unwrap().0;
    store.record_start(JobId(2), begun()).unwrap();
    store.record_start(plain, begun()).unwrap();
    assert_eq!(store.new_epoch(JobId(2), Epoch(1)).unwrap(), Epoch(2));
    store.record_end(JobId(3)).unwrap();
    store.limit(JobId(1), Some(5)).unwrap();
    store.limit(JobId(2), Some(3)).unwrap();
    store.limit(JobId(2), None).unwrap();
    store.set_drained(&"vu-1".into(), Some("it smells")).unwrap();
    store.set_drained(&"vu-2".into(), Some("new fan")).unwrap();
    store.set_drained(&"vu-2".into(), None).unwrap();
    let refused = Store::open(dir.path()).unwrap_err();
    assert!(matches!(refused, StoreError::Lease(LeaseError::Held { .. })), "{refused}");
    drop(store);
    // A crash between a submission and its record leaves a file.
    let blobs = records_dir(dir.path()).join("blobs");
    fs::write(blobs.join("job-77.0"), "").unwrap();
    for _ in 0..2 {
        let mut store = Store::open(dir.path()).unwrap();
        let found = store.recover(|job| job != JobId(4)).unwrap();
        let summary: Vec<_> = found
            .iter()
            .map(|found| (found.job.0, found.epoch.0, &*found.submit.name, found.begun.is_some()))
            .collect();
        assert_eq!(summary, [(1, 1, "queued", false), (2, 2, "running", true)]);
        assert_eq!(found[1].submit.body, &b"body"[..]);
        assert_eq!((found[0].limit, found[1].limit), (Some(5), None));
        let out_of_service = [("vu-1".into(), "it smells".to_owned())];
        assert_eq!(*store.drained_nodes(), out_of_service.into());
        let mut left: Vec<_> = fs::read_dir(&blobs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| name.split('.').next().unwrap().to_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["job-1", "job-2"]);
    }
}

#[test]
fn an_unreadable_submission_is_lost_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    for name in ["damaged", "missing", "whole"] {
        let (job, epoch) = store.new_job().unwrap();
        store.store_submission(job, epoch, &submit(name)).unwrap();
    }
    drop(store);
    for entry in fs::read_dir(records_dir(dir.path()).join("blobs")).unwrap() {
        let path = entry.unwrap().path();
        match &*path.file_stem().unwrap().to_string_lossy() {
            "job-1" => fs::write(path, b"\xc1").unwrap(),
            "job-2" => fs::remove_file(path).unwrap(),
            _ => {}
        }
    }
    for _ in 0..2 {
        let mut store = Store::open(dir.path()).unwrap();
        let found = store.recover(|_| true).unwrap();
        assert_eq!(found.iter().map(|found| found.job.0).collect::<Vec<_>>(), [3]);
    }
}

#[test]
fn numbers_start_above_those_of_remaining_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    store.skip_numbers(JobId(41));
    assert_eq!(store.new_job().unwrap().0, JobId(42));
    store.skip_numbers(JobId(7));
    assert_eq!(store.new_job().unwrap().0, JobId(43));
    drop(store);
    assert_eq!(Store::open(dir.path()).unwrap().new_job().unwrap().0, JobId(44));
}

#[test]
fn a_long_store_is_compacted_in_use_without_loss() {
    let files = MemoryFiles::new(0);
    let mut store = open(&files).unwrap();
    let mut cursor = store.cursor(1).unwrap();
    store.new_job().unwrap();
    store.store_submission(JobId(1), Epoch(1), &submit("fib")).unwrap();
    store.record_start(JobId(1), begun()).unwrap();
    store.limit(JobId(1), Some(2)).unwrap();
    store.set_drained(&"vu-1".into(), Some("it smells")).unwrap();
    let kept = reservation(3);
    store.record_reservation(&reservation(2)).unwrap();
    store.record_reservation(&kept).unwrap();
    store.delete_reservation(ReservationId(2)).unwrap();
    store.record_reservation(&reservation(9)).unwrap();
    store.delete_reservation(ReservationId(9)).unwrap();
    let mut seen = 0;
    for _ in 0..10_000 {
        store.new_job().unwrap();
        seen += cursor.poll().unwrap().len();
    }
    assert_eq!(seen, 10_010);
    let log = |path: &PathBuf| path.extension().is_some_and(|end| end == "log");
    let logs: Vec<PathBuf> = files.paths().into_iter().filter(log).collect();
    let bytes: usize = logs.iter().map(|path| files.read(path, 0).unwrap().len()).sum();
    assert!(logs.len() == 2 && bytes < 600_000, "{bytes}");
    drop(store);
    let mut store = open(&files).unwrap();
    assert_eq!(store.new_job().unwrap().0, JobId(10_002));
    assert_eq!(*store.reservations(), [(kept.id, kept)].into());
    assert_eq!(store.last_reservation(), ReservationId(9));
    let found = store.recover(|_| true).unwrap();
    assert!(found[0].begun.is_some() && found[0].limit == Some(2));
    assert_eq!(store.drained_nodes().len(), 1);
}
