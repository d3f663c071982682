use std::fs;
use std::path::Path;
use std::sync::Arc;

use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head};
use springtide_actors::job::{JobEnded, JobError, JobReport, NoteKind};
use springtide_actors::scheduler::manager::Settings;
use springtide_actors::store::Store;
use springtide_runtime::id::{Epoch, Incarnation};
use springtide_runtime::net::NetConfig;
use springtide_runtime::net::tls::{Ca, NODE_VALIDITY};
use springtide_runtime::records::Disk;
use springtide_runtime::records::memory::{Fault, MemoryFiles};
use springtide_runtime::remote::{Refusal, Remote};
use springtide_runtime::work::Outcome;

use super::kept::{LINE_MAX, LINES_MAX};
use super::*;

fn entry(job: u64) -> JobEntry {
    JobEntry {
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
    JobEnd { error: None, cancelled: false, exit: None }
}

/// A grid's directory with the records of its jobs.
struct Grid {
    temp: tempfile::TempDir,
    records: JobRecords,
}

impl Grid {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let records = JobRecords::open(Arc::new(Disk), temp.path()).unwrap();
        Self { temp, records }
    }

    fn jobs(&self) -> PathBuf {
        self.temp.path().join("jobs")
    }

    fn begin(&self, job: u64) -> Result<Kept, Failed> {
        begin(&self.jobs(), job, &self.records)
    }

    /// What the next head finds.
    fn drawer(&self) -> Result<Drawer, Failed> {
        let retention = Retention { jobs: 1000, age: Duration::MAX };
        let (dir, config) = (self.temp.path().to_owned(), String::new());
        Drawer::open(Setting { dir, config, version: "1", log_max: u64::MAX, retention })
    }
}

fn begin(jobs: &Path, job: u64, records: &JobRecords) -> Result<Kept, Failed> {
    let about = manifest("queens", "1", None);
    let dir = jobs.join(JobId(job).to_string());
    Kept::begin(dir, entry(job), records.clone(), &about, ("", u64::MAX))
}

fn ended(job: u64, outcome: Result<Outcome, JobError>) -> News {
    let (job, report) = (JobId(job), JobReport::default());
    News::Ended(Box::new(JobEnded { job, epoch: Some(Epoch(1)), outcome, report }))
}

fn outcome() -> Outcome {
    Outcome { checksum: 7, result: Value::Null }
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
fn jobs_of_a_head_that_is_gone_are_known_and_end_if_nobody_has_them() {
    let grid = Grid::new();
    let mut kept = grid.begin(1).unwrap();
    kept.take(News::Note(Box::new(NoteKind::Say { text: "one\ntwo".to_owned() })));
    kept.take(ended(1, Ok(outcome())));
    grid.begin(2).unwrap();
    fs::create_dir(grid.jobs().join("job-5")).unwrap();
    fs::create_dir(grid.jobs().join("job-9.old")).unwrap();
    for round in 0..2 {
        let mut drawer = grid.drawer().unwrap();
        // A number that a directory has is not given out again.
        assert_eq!(drawer.last(), JobId(5));
        assert_eq!([1, 2, 5].map(|job| drawer.wants(JobId(job))), [false, round == 0, false]);
        if round == 0 {
            drawer.jobs.get_mut(&JobId(2)).unwrap().lose(LOST);
        }
        let jobs = drawer.jobs;
        let ends: Vec<_> = jobs
            .values()
            .map(|kept| (kept.entry.job.0, kept.entry.ended.clone().unwrap().error))
            .collect();
        assert_eq!(ends, [(1, None), (2, Some(LOST.to_owned()))]);
        // Of one that has ended they are read when somebody wants them.
        let record = jobs[&JobId(1)].record(1, false);
        assert!(jobs[&JobId(1)].lines.is_empty() && record.result.is_none());
        assert_eq!((record.lines, record.said), (vec!["two".to_owned()], 2));
        let (result, _) = jobs[&JobId(2)].result().unwrap().unwrap();
        assert_eq!(result["error"], LOST);
    }
}

#[test]
fn an_end_is_found_again_as_it_was() {
    let grid = Grid::new();
    let failed = JobError::Start { reason: "nowhere".to_owned() };
    let cancelled = JobError::Cancelled { reason: "told to".to_owned() };
    for (job, outcome) in [(1, Ok(outcome())), (2, Err(failed)), (3, Err(cancelled))] {
        let mut kept = grid.begin(job).unwrap();
        kept.take(ended(job, outcome));
        let drawer = grid.drawer().unwrap();
        let found = &drawer.jobs[&JobId(job)];
        assert_eq!(found.entry, kept.entry);
        assert_eq!(found.result().unwrap(), kept.result().unwrap());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn no_file_of_a_job_that_waits_is_open() {
    let grid = Grid::new();
    let temp = grid.jobs();
    let mut all: Vec<Kept> = (1..=50).map(|job| grid.begin(job).unwrap()).collect();
    all.push(Kept::of(temp.join("job-1"), entry(1), grid.records.clone()));
    all.last_mut().unwrap().resume(u64::MAX);
    assert_eq!(open_below(&temp), 0);
    let (kept, rest) = all.split_first_mut().unwrap();
    kept.take(News::Note(Box::new(NoteKind::Say { text: "one\ntwo".to_owned() })));
    let record = springtide_runtime::event::Recorder::new(
        "ams-1".into(),
        springtide_runtime::id::Incarnation(1),
        Instant::now(),
        10,
    );
    record.record(springtide_runtime::event::Event::RunEnded { ok: true, wall_us: 1, error: None });
    let records = record.drain();
    kept.take(News::Note(Box::new(NoteKind::Events { records })));
    assert_eq!(open_below(&temp), 1);
    assert_eq!(
        fs::read_to_string(kept.dir.join("log.txt")).unwrap(),
        "the grid's head began anew\none\ntwo\n"
    );
    kept.take(ended(1, Ok(outcome())));
    rest[0].take(ended(2, Ok(outcome())));
    assert_eq!(open_below(&temp), 0);
    for (job, records) in [("job-1", 1), ("job-2", 0)] {
        let log = springtide_runtime::event::read(&temp.join(job).join("events.jsonl"));
        let log = log.unwrap();
        assert_eq!((log.records.len(), log.complete), (records, true));
    }
}

#[test]
fn a_job_that_the_next_head_would_not_know_is_none() {
    let grid = Grid::new();
    fs::create_dir(grid.jobs()).unwrap();
    fs::write(grid.jobs().join("job-1"), "in the way").unwrap();
    assert!(grid.begin(1).is_err());
    assert!(grid.records.entries().is_empty());
    // Where only what happens cannot be written, it is one; and what is not written fails it.
    fs::create_dir_all(grid.jobs().join("job-2")).unwrap();
    fs::write(grid.jobs().join("job-2/nodes"), "in the way").unwrap();
    let mut kept = grid.begin(2).unwrap();
    kept.take(ended(2, Ok(outcome())));
    let result = kept.result().unwrap().unwrap().0;
    assert_eq!((&result["ok"], &result["checksum"]), (&false.into(), &"0000000000000007".into()));
    assert!(result["error"].as_str().unwrap().contains("job-2/nodes"), "{result}");
    assert!(kept.dir.join("result.json").exists());
}

#[test]
fn a_result_that_cannot_be_kept_is_there_as_long_as_the_head_lives() {
    let temp = tempfile::tempdir().unwrap();
    let files = MemoryFiles::new(0);
    let records = JobRecords::open(Arc::new(files.clone()), temp.path()).unwrap();
    let mut kept = begin(&temp.path().join("jobs"), 1, &records).unwrap();
    files.fault_at(files.steps() + 1, Fault::Error);
    kept.take(ended(1, Ok(outcome())));
    let record = kept.record(0, true);
    assert_eq!(record.entry.ended, Some(done()));
    assert_eq!(record.result.unwrap().0["checksum"], "0000000000000007");
    assert!(record.unwritten.unwrap().contains("jobs.records"));
    // The next head knows no end.
    assert_eq!(records.entries(), [entry(1)]);
    // A copy for people that cannot be written loses nothing, and its log says so.
    let mut kept = begin(&temp.path().join("jobs"), 2, &records).unwrap();
    fs::create_dir_all(kept.dir.join("result.json/full")).unwrap();
    kept.take(ended(2, Ok(outcome())));
    let record = kept.record(9, true);
    assert_eq!((record.result.unwrap().0["ok"].clone(), record.unwritten), (true.into(), None));
    assert!(record.lines.concat().contains("result.json"), "{:?}", record.lines);
}

#[test]
fn what_the_scheduler_does_not_know_ends_and_what_nobody_submitted_is_not_kept() {
    let grid = Grid::new();
    let mut book = Book { settled: JobId(2), ..Book::default() };
    for job in [1, 2] {
        book.jobs.insert(JobId(job), grid.begin(job).unwrap());
    }
    let now = Instant::now();
    let at = |s| now + Duration::from_secs(s);
    let both: BTreeSet<JobId> = [JobId(1), JobId(2)].into();
    let one: BTreeSet<JobId> = [JobId(1)].into();
    let ends = |book: &Book| book.jobs[&JobId(2)].entry.ended.clone();
    book.compare(&one, at(0));
    book.compare(&both, at(10));
    book.compare(&one, at(20));
    book.compare(&one, at(34));
    assert_eq!(ends(&book), None);
    book.compare(&one, at(35));
    assert_eq!(ends(&book).unwrap().error.as_deref(), Some(UNKNOWN));
    assert!(book.jobs[&JobId(1)].entry.ended.is_none() && book.unknown.is_empty());
    // News of a job whose number is not known is kept only while one is awaited that it may be of.
    let say = || News::Note(Box::new(NoteKind::Say { text: "early".to_owned() }));
    book.hear(JobId(9), say(), Receipt::default());
    assert!(book.early.is_empty());
    book.submitting = 2;
    book.hear(JobId(2), say(), Receipt::default());
    book.hear(JobId(3), say(), Receipt::default());
    book.hear(JobId(4), say(), Receipt::default());
    assert_eq!(book.early.len(), 2);
    book.jobs.insert(JobId(4), grid.begin(4).unwrap());
    book.numbered(Some(JobId(4)));
    assert_eq!((book.early.len(), book.settled), (1, JobId(2)));
    assert_eq!(book.jobs[&JobId(4)].lines, ["early"]);
    book.numbered(None);
    assert!(book.early.is_empty());
}

#[test]
fn a_job_that_has_told_its_outcome_is_not_done_again() {
    let grid = Grid::new();
    let mut kept = grid.begin(1).unwrap();
    kept.take(News::Note(Box::new(NoteKind::Outcome { outcome: Box::new(outcome()) })));
    grid.begin(2).unwrap();
    let drawer = grid.drawer().unwrap();
    assert_eq!([1, 2].map(|job| drawer.wants(JobId(job))), [false, true]);
    let kept = &drawer.jobs[&JobId(1)];
    assert_eq!(kept.entry.ended, Some(done()));
    assert_eq!(kept.result().unwrap().unwrap().0["checksum"], "0000000000000007");
    assert_eq!(grid.drawer().unwrap().jobs[&JobId(1)].entry.ended, Some(done()));
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
fn damage_is_refused_and_never_another_value() {
    let grid = Grid::new();
    let dir = self::records::records_dir(grid.temp.path());
    grid.begin(1).unwrap().take(ended(1, Ok(outcome())));
    let mut kept = grid.begin(2).unwrap();
    kept.take(News::Note(Box::new(NoteKind::Outcome { outcome: Box::new(outcome()) })));
    for name in ["job-1-result", "job-2-outcome"] {
        damage(&dir.join("blobs"), name);
    }
    let drawer = grid.drawer().unwrap();
    let record = drawer.jobs[&JobId(1)].record(0, true);
    let why = record.unreadable.unwrap();
    assert!(record.result.is_none() && why.contains("job-1-result"), "{why}");
    let end = drawer.jobs[&JobId(2)].entry.ended.clone().unwrap();
    assert!(end.error.unwrap().contains("job-2-outcome"));
    // No copy is taken for a result.
    let copy = drawer.jobs[&JobId(1)].dir.join("result.json");
    fs::write(copy, r#"{"ok": true, "checksum": "0000000000000008"}"#).unwrap();
    assert!(drawer.jobs[&JobId(1)].record(0, true).result.is_none());
    damage(&dir, "00000001.log");
    let Err(refused) = grid.drawer() else { panic!("it begins") };
    let told = ["00000001.log", "backup", "results of jobs are forgotten"];
    assert!(told.iter().all(|told| refused.message.contains(told)), "{refused}");
}

#[test]
fn jobs_of_an_earlier_version_are_refused() {
    let grid = Grid::new();
    fs::create_dir_all(grid.jobs().join("job-3")).unwrap();
    fs::write(grid.jobs().join("job-3/job.json"), "{}").unwrap();
    let Err(refused) = grid.drawer() else { panic!("it begins") };
    assert!(refused.message.contains("job-3/job.json"), "{refused}");
}

#[test]
fn jobs_that_are_removed_are_gone_with_their_files_for_the_next_head_as_well() {
    let grid = Grid::new();
    let mut book = Book::default();
    for job in 1..=4 {
        let mut kept = grid.begin(job).unwrap();
        if job < 4 {
            kept.take(ended(job, Ok(outcome())));
            kept.entry.ended_unix_s = Some(10 * job);
        }
        book.jobs.insert(JobId(job), kept);
    }
    let listed = |book: &Book, ended| -> Vec<u64> {
        book.list(ended, None).iter().map(|entry| entry.job.0).collect()
    };
    assert_eq!(listed(&book, None), [1, 2, 3, 4]);
    assert_eq!(listed(&book, Some(1)), [3, 4]);
    let limit = Retention { jobs: 2, age: Duration::MAX };
    let expired = limit.expired(&book.ended(None), 100);
    let purged = book.remove(&grid.jobs(), &grid.records, expired);
    assert_eq!(purged, Purged { removed: vec![JobId(1)], ..Purged::default() });
    assert_eq!(listed(&book, None), [2, 3, 4]);
    assert!(!grid.jobs().join("job-1").exists() && grid.jobs().join("job-2").exists());
    // Files that are gone already are no obstacle.
    fs::remove_dir_all(grid.jobs().join("job-2")).unwrap();
    let purged = book.remove(&grid.jobs(), &grid.records, vec![JobId(2)]);
    assert_eq!(purged.removed, [JobId(2)]);
    let drawer = grid.drawer().unwrap();
    assert_eq!(drawer.jobs.keys().map(|job| job.0).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(drawer.last(), JobId(4));
}

/// Over real links: the desk judges by the certificate at the other end.
#[actix_rt::test]
async fn a_client_lists_and_purges_its_own_jobs_and_the_operator_all() {
    let grid = Grid::new();
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
        let entry = JobEntry { principal: Some(of(name)), ..entry(job) };
        let about = manifest("queens", "1", None);
        let dir = grid.jobs().join(JobId(job).to_string());
        let with = ("", u64::MAX);
        let mut kept = Kept::begin(dir, entry, grid.records.clone(), &about, with).unwrap();
        if job < 4 {
            kept.take(ended(job, Ok(outcome())));
        }
    }
    let drawer = grid.drawer().unwrap();
    let (store, running) = (Store::open(grid.temp.path()).unwrap(), [JobId(4), JobId(5)]);
    let mut thread = None;
    let head = endpoint(HEAD, HEAD_CLUSTER, "head");
    let before = (Vec::new(), Vec::new());
    let head = Head::start_again(head, store, Settings::default(), before, |head, scheduler| {
        thread = Some(Desk::open(drawer, head, scheduler, &running, &BTreeMap::new()));
    });
    let senders = [
        endpoint("ada", "lab", "client"),
        endpoint("bob", "lab", "client"),
        endpoint("operator", HEAD_CLUSTER, "client"),
        endpoint("lab-1", "lab", "node"),
    ];
    let desks = senders.each_ref().map(|sender| {
        sender.start();
        sender.net.learn(head.contact());
        let desk: Remote<Desk> = sender.hub.remote(&HEAD.into(), DESK);
        desk
    });
    let [ada, bob, operator, node] = &desks;
    let numbers = |jobs: Vec<JobEntry>| jobs.iter().map(|entry| entry.job.0).collect::<Vec<_>>();
    let named = |jobs: &[u64]| Selection {
        jobs: jobs.iter().copied().map(JobId).collect(),
        ..Selection::default()
    };
    let all = Selection { keep: Some(0), ..Selection::default() };
    let order = |selection: &Selection, name: Option<&str>| PurgeJobs {
        selection: selection.clone(),
        of: name.map(of),
    };

    // No name that a sender writes counts.
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
fn a_file_that_is_lost_is_told_in_the_jobs_log() {
    let grid = Grid::new();
    let mut kept = grid.begin(1).unwrap();
    let bytes = b"all of it".to_vec();
    let file = NoteKind::Artifact { name: "result.json".to_owned(), bytes: bytes.into() };
    kept.take(News::Note(Box::new(file)));
    let log = fs::read_to_string(kept.dir.join("log.txt")).unwrap();
    assert!(log.contains("the job's file `result.json` is not written"), "{log}");
    kept.take(ended(1, Ok(outcome())));
    let end = kept.entry.ended.clone().unwrap();
    assert_eq!(end.exit(), crate::exit::Exit::Failure);
    assert!(end.error.unwrap().contains("`result.json` is not written"));
}

#[test]
fn a_job_that_is_stopped_has_the_last_outcome_that_it_published() {
    let grid = Grid::new();
    let publish = |kept: &mut Kept, checksum| {
        let outcome = Box::new(Outcome { checksum, ..outcome() });
        kept.take(News::Note(Box::new(NoteKind::Preliminary { outcome })));
    };
    let begin = |job| {
        let mut kept = grid.begin(job).unwrap();
        publish(&mut kept, 8);
        publish(&mut kept, 9);
        let (name, bytes) = ("x.csv".to_owned(), b"x,1".to_vec().into());
        kept.take(News::Note(Box::new(NoteKind::Artifact { name, bytes })));
        kept
    };
    let mut cancelled = begin(1);
    cancelled.take(ended(1, Err(JobError::Cancelled { reason: "told to".to_owned() })));
    let mut lost = begin(2);
    lost.lose(UNKNOWN);
    let drawer = grid.drawer().unwrap();
    for (job, kept) in [(1, cancelled), (2, lost)] {
        let found = &drawer.jobs[&JobId(job)];
        assert_eq!(found.entry, kept.entry);
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
    // A job that ends by itself has its own outcome.
    let mut kept = begin(3);
    kept.take(ended(3, Ok(outcome())));
    let (result, _) = kept.result().unwrap().unwrap();
    assert_eq!((&result["ok"], &result["checksum"]), (&true.into(), &"0000000000000007".into()));
    assert!(result.get("unfinished").is_none());
}

#[test]
fn what_is_in_memory_of_a_job_has_an_end() {
    let grid = Grid::new();
    let mut kept = grid.begin(1).unwrap();
    let long = "\u{e9}".repeat(LINE_MAX);
    let text = format!("x{long}\n{}", "short\n".repeat(LINES_MAX - 1));
    kept.take(News::Note(Box::new(NoteKind::Say { text: text.clone() })));
    let before = kept.record(LINES_MAX, true);
    assert_eq!((before.lines.len(), before.said), (LINES_MAX, LINES_MAX as u64));
    assert!(before.lines[0].len() <= LINE_MAX + 4 && before.lines[0].ends_with("\u{e9} ..."));
    assert_eq!(fs::read_to_string(kept.dir.join("log.txt")).unwrap(), text);
    kept.take(ended(1, Ok(outcome())));
    assert!(kept.lines.is_empty());
    let after = kept.record(LINES_MAX, false);
    assert_eq!((&after.lines, after.said, after.result), (&before.lines, before.said, None));
    assert!(kept.record(0, true).result.is_some());
}
