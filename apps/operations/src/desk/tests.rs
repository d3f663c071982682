use std::fs;
use std::path::Path;
use std::sync::Arc;

use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head};
use springtide_actors::job::{JobEndReport, JobError, JobReport, NoteKind};
use springtide_actors::scheduler::manager::ManagerSettings;
use springtide_actors::store::Store;
use springtide_cli::exit::Exit;
use springtide_runtime::id::{Epoch, Incarnation};
use springtide_runtime::net::NetConfig;
use springtide_runtime::net::tls::{Ca, NODE_VALIDITY};
use springtide_runtime::records::Disk;
use springtide_runtime::records::memory::{MemoryFiles, StorageFault};
use springtide_runtime::remote::{Refusal, Remote};
use springtide_runtime::work::Outcome;

use super::archived_job::{LINE_MAX, LINES_MAX};
use super::entry::JobEnd;
use super::*;

fn entry(job: u64) -> ArchiveEntry {
    ArchiveEntry {
        job: JobId(job),
        name: "queens".to_owned(),
        line: "queens --size 8".to_owned(),
        submitted_unix_s: 7,
        ended: None,
        ended_unix_s: None,
        principal: None,
    }
}

fn done() -> JobEnd {
    JobEnd { error: None, cancelled: false, exit: None, ..JobEnd::default() }
}

/// A grid's directory with the records of its jobs.
struct ArchiveGrid {
    temp: tempfile::TempDir,
    records: JobRecords,
}

impl ArchiveGrid {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let records = JobRecords::open(Arc::new(Disk), temp.path()).unwrap();
        Self { temp, records }
    }

    fn jobs(&self) -> PathBuf {
        self.temp.path().join("jobs")
    }

    fn create(&self, job: u64) -> Result<ArchivedJob, Failed> {
        create(&self.jobs(), job, &self.records)
    }

    /// The archive as the next head reads it.
    fn reader(&self) -> Result<ArchiveReader, Failed> {
        let retention = Retention { jobs: 1000, age: Duration::MAX };
        let (dir, config) = (self.temp.path().to_owned(), String::new());
        ArchiveReader::open(ArchiveSettings {
            dir,
            files: Arc::new(Disk),
            config,
            version: "1",
            log_max: u64::MAX,
            retention,
        })
    }
}

fn create(jobs: &Path, job: u64, records: &JobRecords) -> Result<ArchivedJob, Failed> {
    create_entry(jobs, entry(job), records)
}

fn create_entry(
    jobs: &Path,
    entry: ArchiveEntry,
    records: &JobRecords,
) -> Result<ArchivedJob, Failed> {
    let about = manifest("queens", "1", None);
    let dir = jobs.join(entry.job.to_string());
    records.submitted(std::slice::from_ref(&entry))?;
    let planned = PlannedFiles { about, config: "".into(), log_max: u64::MAX };
    let mut archived = ArchivedJob::submitted(dir, entry, records.clone(), planned);
    archived.make_files();
    Ok(archived)
}

fn ended(job: u64, outcome: Result<Outcome, JobError>) -> JobUpdate {
    let (job, report) = (JobId(job), JobReport::default());
    JobUpdate::Ended(Box::new(JobEndReport { job, epoch: Some(Epoch(1)), outcome, report }))
}

fn outcome() -> Outcome {
    Outcome { checksum: 7, result: serde_json::Value::Null }
}

/// Files below a directory that this process has open.
#[cfg(target_os = "linux")]
fn open_below(dir: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let below = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(dir))
    };
    all.filter(below).count()
}

#[test]
fn jobs_of_an_earlier_head_are_known_and_end_if_the_scheduler_lost_them() {
    let grid = ArchiveGrid::new();
    let mut archived = grid.create(1).unwrap();
    archived.take(JobUpdate::Note(Box::new(NoteKind::Text { text: "one\ntwo".to_owned() })));
    archived.take(ended(1, Ok(outcome())));
    grid.create(2).unwrap();
    fs::create_dir(grid.jobs().join("job-5")).unwrap();
    fs::create_dir(grid.jobs().join("job-9.old")).unwrap();
    for round in 0..2 {
        let mut reader = grid.reader().unwrap();
        // The number of a directory is not given out again.
        assert_eq!(reader.last(), JobId(5));
        assert_eq!([1, 2, 5].map(|job| reader.awaits_end(JobId(job))), [false, round == 0, false]);
        if round == 0 {
            reader.jobs.get_mut(&JobId(2)).unwrap().end_unreported(LOST);
        }
        let jobs = reader.jobs;
        let ends: Vec<_> = jobs
            .values()
            .map(|archived| (archived.entry.job.0, archived.entry.ended.clone().unwrap().error))
            .collect();
        assert_eq!(ends, [(1, None), (2, Some(LOST.to_owned()))]);
        // Lines of an ended job are read on request.
        let record = jobs[&JobId(1)].record(1, false);
        assert!(jobs[&JobId(1)].lines.is_empty() && record.result.is_none());
        assert_eq!((record.lines, record.said), (vec!["two".to_owned()], 2));
        let (result, _) = jobs[&JobId(2)].result().unwrap().unwrap();
        assert_eq!(result["error"], LOST);
    }
}

#[test]
fn an_end_survives_a_restart_unchanged() {
    let grid = ArchiveGrid::new();
    let failed = JobError::Start { reason: "nowhere".to_owned() };
    let cancelled = JobError::Cancelled { reason: "on request".to_owned() };
    for (job, outcome) in [(1, Ok(outcome())), (2, Err(failed)), (3, Err(cancelled))] {
        let mut archived = grid.create(job).unwrap();
        archived.take(ended(job, outcome));
        let reader = grid.reader().unwrap();
        let found = &reader.jobs[&JobId(job)];
        assert_eq!(found.entry, archived.entry);
        assert_eq!(found.result().unwrap(), archived.result().unwrap());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn no_file_of_a_waiting_job_is_open() {
    let grid = ArchiveGrid::new();
    let temp = grid.jobs();
    let mut all: Vec<ArchivedJob> = (1..=50).map(|job| grid.create(job).unwrap()).collect();
    all.push(ArchivedJob::new(temp.join("job-1"), entry(1), grid.records.clone()));
    all.last_mut().unwrap().resume("1", "", u64::MAX);
    assert_eq!(open_below(&temp), 0);
    let (archived, rest) = all.split_first_mut().unwrap();
    archived.take(JobUpdate::Note(Box::new(NoteKind::Text { text: "one\ntwo".to_owned() })));
    let record = springtide_runtime::event::Recorder::new(
        "ams-1".into(),
        springtide_runtime::id::Incarnation(1),
        Instant::now(),
        10,
    );
    record.record(springtide_runtime::event::Event::RunEnded { ok: true, wall_us: 1, error: None });
    let records = record.drain();
    archived.take(JobUpdate::Note(Box::new(NoteKind::Events { records })));
    assert_eq!(open_below(&temp), 1);
    assert_eq!(
        fs::read_to_string(archived.dir.join("log.txt")).unwrap(),
        "a new head continues the grid\none\ntwo\n"
    );
    archived.take(ended(1, Ok(outcome())));
    rest[0].take(ended(2, Ok(outcome())));
    assert_eq!(open_below(&temp), 0);
    for (job, records) in [("job-1", 1), ("job-2", 0)] {
        let log = springtide_runtime::event::read(&temp.join(job).join("events.jsonl"));
        let log = log.unwrap();
        assert_eq!((log.records.len(), log.complete), (records, true));
    }
}

/// A submission is a record; the files of a job are made when they are first needed.
#[test]
fn a_job_whose_files_cannot_be_written_fails() {
    let grid = ArchiveGrid::new();
    fs::create_dir(grid.jobs()).unwrap();
    fs::write(grid.jobs().join("job-1"), "in the way").unwrap();
    let mut archived = grid.create(1).unwrap();
    archived.take(ended(1, Ok(outcome())));
    let result = archived.result().unwrap().unwrap().0;
    assert_eq!(result["ok"], false, "{result}");
    assert!(result["error"].as_str().unwrap().contains("job-1"), "{result}");
    fs::create_dir_all(grid.jobs().join("job-2")).unwrap();
    fs::write(grid.jobs().join("job-2/nodes"), "in the way").unwrap();
    let mut archived = grid.create(2).unwrap();
    archived.take(ended(2, Ok(outcome())));
    let result = archived.result().unwrap().unwrap().0;
    assert_eq!((&result["ok"], &result["checksum"]), (&false.into(), &"0000000000000007".into()));
    assert!(result["error"].as_str().unwrap().contains("job-2/nodes"), "{result}");
    assert!(archived.dir.join("result.json").exists());
}

#[test]
fn a_result_that_cannot_be_stored_stays_in_memory() {
    let temp = tempfile::tempdir().unwrap();
    let files = MemoryFiles::new(0);
    let records = JobRecords::open(Arc::new(files.clone()), temp.path()).unwrap();
    let mut archived = create(&temp.path().join("jobs"), 1, &records).unwrap();
    files.fault_at(files.steps() + 1, StorageFault::Error);
    archived.take(ended(1, Ok(outcome())));
    let record = archived.record(0, true);
    assert_eq!(record.entry.ended, Some(done()));
    assert_eq!(record.result.unwrap().0["checksum"], "0000000000000007");
    assert!(record.unwritten.unwrap().contains("jobs.records"));
    // The next head knows no end.
    assert_eq!(records.entries(), [entry(1)]);
    // A failed copy for people loses no result, and the log names it.
    let mut archived = create(&temp.path().join("jobs"), 2, &records).unwrap();
    fs::create_dir_all(archived.dir.join("result.json/full")).unwrap();
    archived.take(ended(2, Ok(outcome())));
    let record = archived.record(9, true);
    assert_eq!((record.result.unwrap().0["ok"].clone(), record.unwritten), (true.into(), None));
    assert!(record.lines.concat().contains("result.json"), "{:?}", record.lines);
}

#[test]
fn jobs_unknown_to_the_scheduler_end_and_news_of_unknown_jobs_is_dropped() {
    let grid = ArchiveGrid::new();
    let mut jobs_table = JobTable { settled: JobId(2), ..JobTable::default() };
    for job in [1, 2] {
        jobs_table.jobs.insert(JobId(job), grid.create(job).unwrap());
    }
    let now = Instant::now();
    let at = |s| now + Duration::from_secs(s);
    let both: BTreeSet<JobId> = [JobId(1), JobId(2)].into();
    let one: BTreeSet<JobId> = [JobId(1)].into();
    let ends = |jobs_table: &JobTable| jobs_table.jobs[&JobId(2)].entry.ended.clone();
    jobs_table.compare(&one, at(0));
    jobs_table.compare(&both, at(10));
    jobs_table.compare(&one, at(20));
    jobs_table.compare(&one, at(34));
    assert_eq!(ends(&jobs_table), None);
    jobs_table.compare(&one, at(35));
    assert_eq!(ends(&jobs_table).unwrap().error.as_deref(), Some(UNKNOWN));
    assert!(jobs_table.jobs[&JobId(1)].entry.ended.is_none() && jobs_table.unknown.is_empty());
    // News of an unknown job is kept only while a submission with an unknown number is under way.
    let say = || JobUpdate::Note(Box::new(NoteKind::Text { text: "early".to_owned() }));
    jobs_table.apply_news(JobId(9), say(), Receipt::default());
    assert!(jobs_table.early.is_empty());
    jobs_table.submitting = 2;
    jobs_table.apply_news(JobId(2), say(), Receipt::default());
    jobs_table.apply_news(JobId(3), say(), Receipt::default());
    jobs_table.apply_news(JobId(4), say(), Receipt::default());
    assert_eq!(jobs_table.early.len(), 2);
    jobs_table.jobs.insert(JobId(4), grid.create(4).unwrap());
    jobs_table.settle_submission(Some(JobId(4)));
    assert_eq!((jobs_table.early.len(), jobs_table.settled), (1, JobId(2)));
    assert_eq!(jobs_table.jobs[&JobId(4)].lines, ["early"]);
    jobs_table.settle_submission(None);
    assert!(jobs_table.early.is_empty());
}

#[test]
fn a_job_with_a_stored_outcome_does_not_run_again() {
    let grid = ArchiveGrid::new();
    let mut archived = grid.create(1).unwrap();
    archived.take(JobUpdate::Note(Box::new(NoteKind::Outcome { outcome: Box::new(outcome()) })));
    grid.create(2).unwrap();
    let reader = grid.reader().unwrap();
    assert_eq!([1, 2].map(|job| reader.awaits_end(JobId(job))), [false, true]);
    let archived = &reader.jobs[&JobId(1)];
    assert_eq!(archived.entry.ended, Some(done()));
    assert_eq!(archived.result().unwrap().unwrap().0["checksum"], "0000000000000007");
    assert_eq!(grid.reader().unwrap().jobs[&JobId(1)].entry.ended, Some(done()));
}

/// Flips a bit in the middle of the only file in a directory whose name has this part.
fn damage(dir: &Path, part: &str) {
    let mut files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let path = files.find(|path| path.to_string_lossy().contains(part)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).unwrap();
}

#[test]
fn damaged_records_are_refused_and_never_misread() {
    let grid = ArchiveGrid::new();
    let dir = self::records::records_dir(grid.temp.path());
    grid.create(1).unwrap().take(ended(1, Ok(outcome())));
    let mut archived = grid.create(2).unwrap();
    // It is too large for its record.
    let large = Outcome { checksum: 7, result: serde_json::json!({ "solutions": 724 }) };
    archived.take(JobUpdate::Note(Box::new(NoteKind::Outcome { outcome: Box::new(large) })));
    for name in ["job-1-result", "job-2-outcome"] {
        damage(&dir.join("blobs"), name);
    }
    let reader = grid.reader().unwrap();
    let record = reader.jobs[&JobId(1)].record(0, true);
    let why = record.unreadable.unwrap();
    assert!(record.result.is_none() && why.contains("job-1-result"), "{why}");
    let end = reader.jobs[&JobId(2)].entry.ended.clone().unwrap();
    assert!(end.error.unwrap().contains("job-2-outcome"));
    // A copy is never read as a result.
    let copy = reader.jobs[&JobId(1)].dir.join("result.json");
    fs::write(copy, r#"{"ok": true, "checksum": "0000000000000008"}"#).unwrap();
    assert!(reader.jobs[&JobId(1)].record(0, true).result.is_none());
    damage(&dir, "00000001.log");
    let Err(refused) = grid.reader() else { panic!("the head starts") };
    let parts = ["00000001.log", "backup", "results of jobs are forgotten"];
    assert!(parts.iter().all(|part| refused.message.contains(part)), "{refused}");
}

#[test]
fn jobs_of_an_earlier_version_are_refused() {
    let grid = ArchiveGrid::new();
    fs::create_dir_all(grid.jobs().join("job-3")).unwrap();
    fs::write(grid.jobs().join("job-3/job.json"), "{}").unwrap();
    let Err(refused) = grid.reader() else { panic!("the head starts") };
    assert!(refused.message.contains("job-3/job.json"), "{refused}");
}

#[test]
fn removed_jobs_and_their_files_stay_removed_for_the_next_head() {
    let grid = ArchiveGrid::new();
    let mut jobs_table = JobTable::default();
    for job in 1..=4 {
        let mut archived = grid.create(job).unwrap();
        if job < 4 {
            archived.take(ended(job, Ok(outcome())));
            archived.entry.ended_unix_s = Some(10 * job);
        }
        jobs_table.jobs.insert(JobId(job), archived);
    }
    let listed = |jobs_table: &JobTable, ended| -> Vec<u64> {
        jobs_table.list(ended, None).iter().map(|entry| entry.job.0).collect()
    };
    assert_eq!(listed(&jobs_table, None), [1, 2, 3, 4]);
    assert_eq!(listed(&jobs_table, Some(1)), [3, 4]);
    let limit = Retention { jobs: 2, age: Duration::MAX };
    let expired = limit.expired(&jobs_table.ended(None), 100);
    let purged = jobs_table.remove(&grid.jobs(), &grid.records, expired);
    assert_eq!(purged, Purged { removed: vec![JobId(1)], ..Purged::default() });
    assert_eq!(listed(&jobs_table, None), [2, 3, 4]);
    assert!(!grid.jobs().join("job-1").exists() && grid.jobs().join("job-2").exists());
    // Missing files do not prevent a removal.
    fs::remove_dir_all(grid.jobs().join("job-2")).unwrap();
    let purged = jobs_table.remove(&grid.jobs(), &grid.records, vec![JobId(2)]);
    assert_eq!(purged.removed, [JobId(2)]);
    let reader = grid.reader().unwrap();
    assert_eq!(reader.jobs.keys().map(|job| job.0).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(reader.last(), JobId(4));
}

/// Uses real links, because the archive judges by the sender's certificate.
#[actix_rt::test]
async fn a_client_lists_and_purges_its_own_jobs_and_the_operator_all() {
    let grid = ArchiveGrid::new();
    let ca = Ca::ephemeral("home").unwrap();
    let endpoint = |node: &str, cluster: &str, role: &str| {
        let identity = ca.issue(&node.into(), &cluster.into(), role, NODE_VALIDITY).unwrap();
        Endpoint::quic(NetConfig::default(), &identity, Incarnation(1)).unwrap()
    };
    let of = |name: &str| Principal {
        name: name.into(),
        cluster: "lab".into(),
        role: Some("client".to_owned()),
    };
    // Jobs 4 and 5 have not ended.
    for (job, name) in [(1, "ada"), (2, "ada"), (3, "bob"), (4, "bob"), (5, "ada")] {
        let entry = ArchiveEntry { principal: Some(of(name)), ..entry(job) };
        let mut archived = create_entry(&grid.jobs(), entry, &grid.records).unwrap();
        if job < 4 {
            archived.take(ended(job, Ok(outcome())));
        }
    }
    let reader = grid.reader().unwrap();
    let (store, running) = (Store::open(grid.temp.path()).unwrap(), [JobId(4), JobId(5)]);
    let mut thread = None;
    let head = endpoint(HEAD, HEAD_CLUSTER, "head");
    let (settings, jobs, clusters) = (ManagerSettings::default(), Vec::new(), Vec::new());
    let head = Head::start_again(head, store, settings, jobs, clusters, |head, scheduler| {
        thread = Some(JobArchive::open(reader, head, scheduler, &running, &BTreeMap::new()));
    });
    let senders = [
        endpoint("ada", "lab", "client"),
        endpoint("bob", "lab", "client"),
        endpoint("operator", HEAD_CLUSTER, "client"),
        endpoint("lab-1", "lab", "node"),
    ];
    let archives = senders.each_ref().map(|sender| {
        sender.start();
        sender.net.learn(head.contact());
        let archive: Remote<JobArchive> = sender.hub.remote(&HEAD.into(), DESK);
        archive
    });
    let [ada, bob, operator, node] = &archives;
    let numbers =
        |jobs: Vec<ArchiveEntry>| jobs.iter().map(|entry| entry.job.0).collect::<Vec<_>>();
    let named = |jobs: &[u64]| Selection {
        jobs: jobs.iter().copied().map(JobId).collect(),
        ..Selection::default()
    };
    let all = Selection { keep: Some(0), ..Selection::default() };
    let order = |selection: &Selection, name: Option<&str>| PurgeJobs {
        selection: selection.clone(),
        of: name.map(of),
    };

    // The principal that a sender writes is ignored.
    let bobs = ListJobs { ended: None, of: Some(of("bob")) };
    assert_eq!(numbers(ada.send(bobs).await.unwrap()), [1, 2, 5]);
    let last = ListJobs { ended: Some(1), of: None };
    assert_eq!(numbers(ada.send(last).await.unwrap()), [2, 5]);
    let refused = node.send(order(&all, Some("ada"))).await.unwrap_err();
    assert_eq!(refused.refusal(), Some(Refusal::Role));

    let purged = ada.send(order(&named(&[1, 3, 4, 5, 9]), Some("bob"))).await.unwrap();
    let others = "another principal submitted it".to_owned();
    let failed = [(JobId(3), others.clone()), (JobId(4), others)].into();
    let (running, unknown) = (vec![JobId(5)], vec![JobId(9)]);
    assert_eq!(purged, Purged { removed: vec![JobId(1)], running, unknown, failed });
    let purged = ada.send(order(&all, None)).await.unwrap();
    assert_eq!(purged, Purged { removed: vec![JobId(2)], ..Purged::default() });
    assert!(!grid.jobs().join("job-2").exists() && grid.jobs().join("job-3").exists());
    assert_eq!(numbers(bob.send(ListJobs::default()).await.unwrap()), [3, 4]);

    let everything = operator.send(ListJobs::default()).await.unwrap();
    assert_eq!(numbers(everything), [3, 4, 5]);
    let purged = operator.send(order(&all, Some("ada"))).await.unwrap();
    assert_eq!(purged, Purged { removed: vec![JobId(3)], ..Purged::default() });
    let purged = operator.send(order(&named(&[4]), None)).await.unwrap();
    assert_eq!(purged, Purged { running: vec![JobId(4)], ..Purged::default() });
    for sender in &senders {
        sender.net.close("the test is over").await;
    }
    head.stop(Duration::ZERO, "the test is over").await;
    drop(thread);
}

#[test]
fn a_lost_file_is_reported_in_the_jobs_log() {
    let grid = ArchiveGrid::new();
    let mut archived = grid.create(1).unwrap();
    let bytes = b"all of it".to_vec();
    let file = NoteKind::Artifact { name: "result.json".to_owned(), bytes: bytes.into() };
    archived.take(JobUpdate::Note(Box::new(file)));
    let log = fs::read_to_string(archived.dir.join("log.txt")).unwrap();
    assert!(log.contains("the job's file `result.json` is not written"), "{log}");
    archived.take(ended(1, Ok(outcome())));
    let end = archived.entry.ended.clone().unwrap();
    assert_eq!(end.exit(), Exit::Failure);
    assert!(end.error.unwrap().contains("`result.json` is not written"));
}

#[test]
fn a_stopped_job_keeps_its_last_preliminary_outcome() {
    let grid = ArchiveGrid::new();
    let publish = |archived: &mut ArchivedJob, checksum| {
        let outcome = Box::new(Outcome { checksum, ..outcome() });
        archived.take(JobUpdate::Note(Box::new(NoteKind::Preliminary { outcome })));
    };
    let create = |job| {
        let mut archived = grid.create(job).unwrap();
        publish(&mut archived, 8);
        publish(&mut archived, 9);
        let (name, bytes) = ("x.csv".to_owned(), b"x,1".to_vec().into());
        archived.take(JobUpdate::Note(Box::new(NoteKind::Artifact { name, bytes })));
        archived
    };
    let mut cancelled = create(1);
    cancelled.take(ended(1, Err(JobError::Cancelled { reason: "on request".to_owned() })));
    let mut lost = create(2);
    lost.end_unreported(UNKNOWN);
    let reader = grid.reader().unwrap();
    for (job, archived) in [(1, cancelled), (2, lost)] {
        let found = &reader.jobs[&JobId(job)];
        assert_eq!(found.entry, archived.entry);
        let end = found.entry.ended.clone().unwrap();
        assert_eq!((end.cancelled, end.exit()), (job == 1, Exit::Failure));
        let (result, summary) = found.result().unwrap().unwrap();
        assert_eq!(result["checksum"], "0000000000000009");
        for (key, value) in [("ok", false), ("unfinished", true), ("cancelled", job == 1)] {
            assert_eq!(result[key], value, "{key}: {result}");
        }
        let why = end.error.unwrap();
        assert_eq!(result["error"], why.as_str());
        assert!(summary.contains(&format!("unfinished  {why}")), "{summary}");
        assert_eq!(fs::read_to_string(found.dir.join("x.csv")).unwrap(), "x,1");
    }
    // A job that ends by itself keeps its own outcome.
    let mut archived = create(3);
    archived.take(ended(3, Ok(outcome())));
    let (result, _) = archived.result().unwrap().unwrap();
    assert_eq!((&result["ok"], &result["checksum"]), (&true.into(), &"0000000000000007".into()));
    assert!(result.get("unfinished").is_none());
}

#[test]
fn memory_of_a_job_is_bounded() {
    let grid = ArchiveGrid::new();
    let mut archived = grid.create(1).unwrap();
    let long = "\u{e9}".repeat(LINE_MAX);
    let text = format!("x{long}\n{}", "short\n".repeat(LINES_MAX - 1));
    archived.take(JobUpdate::Note(Box::new(NoteKind::Text { text: text.clone() })));
    let before = archived.record(LINES_MAX, true);
    assert_eq!((before.lines.len(), before.said), (LINES_MAX, LINES_MAX as u64));
    assert!(before.lines[0].len() <= LINE_MAX + 4 && before.lines[0].ends_with("\u{e9} ..."));
    assert_eq!(fs::read_to_string(archived.dir.join("log.txt")).unwrap(), text);
    archived.take(ended(1, Ok(outcome())));
    assert!(archived.lines.is_empty());
    let after = archived.record(LINES_MAX, false);
    assert_eq!((&after.lines, after.said, after.result), (&before.lines, before.said, None));
    assert!(archived.record(0, true).result.is_some());
}
