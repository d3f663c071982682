use std::fs;
use std::path::Path;

use springtide_actors::job::{JobEnded, JobError, JobReport, NoteKind};
use springtide_actors::scheduler::core::Recovered;
use springtide_runtime::id::Epoch;
use springtide_runtime::work::Outcome;

use super::drawer::{Found, read};
use super::kept::{LINE_MAX, LINES_MAX};
use super::*;

fn entry(job: u64, ended: Option<JobEnd>) -> JobEntry {
    let (name, line) = ("queens".to_owned(), "queens --size 8".to_owned());
    JobEntry { job: JobId(job), name, line, submitted_unix_s: 7, ended, principal: None }
}

fn text(job: u64, ended: Option<JobEnd>) -> String {
    serde_json::to_string(&entry(job, ended)).unwrap()
}

fn done() -> JobEnd {
    JobEnd { error: None, cancelled: false, exit: None }
}

fn write(dir: &Path, job: &str, file: &str, text: &str) {
    fs::create_dir_all(dir.join(job)).unwrap();
    fs::write(dir.join(job).join(file), text).unwrap();
}

fn begin(dir: &Path, job: u64) -> Result<Kept, Failed> {
    let about = manifest("queens", "1", None);
    Kept::begin(dir.join(JobId(job).to_string()), entry(job, None), &about, "", u64::MAX)
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
    let temp = tempfile::tempdir().unwrap();
    let write = |job: &str, file: &str, text: &str| write(temp.path(), job, file, text);
    write("job-1", "job.json", &text(1, Some(done())));
    write("job-1", "result.json", r#"{"ok": true}"#);
    write("job-1", "log.txt", "one\ntwo\n");
    write("job-2", "job.json", &text(2, None));
    write("job-3", "job.json", "damaged");
    write("other", "file", "");
    for round in 0..2 {
        let Found { mut jobs, damaged, last } = read(temp.path()).unwrap();
        // A damaged one has its number still.
        assert_eq!((last, damaged), (JobId(3), [JobId(3)].into()));
        if round == 0 {
            assert!(jobs[&JobId(2)].entry.ended.is_none());
            jobs.get_mut(&JobId(2)).unwrap().lose(LOST);
        }
        let ends: Vec<_> = jobs
            .values()
            .map(|kept| (kept.entry.job.0, kept.entry.ended.clone().unwrap().error))
            .collect();
        assert_eq!(ends, [(1, None), (2, Some(LOST.to_owned()))]);
        // Of one that has ended they are read when somebody wants them.
        let record = jobs[&JobId(1)].record(1, false);
        assert!(jobs[&JobId(1)].lines.is_empty() && record.result.is_none());
        assert_eq!((record.lines, record.said), (vec!["two".to_owned()], 2));
        let (result, _) = jobs[&JobId(2)].result().unwrap();
        assert_eq!(result["error"], LOST);
    }
}

#[test]
fn a_result_that_is_there_is_the_end_though_the_head_died_before_it_noted_that() {
    let temp = tempfile::tempdir().unwrap();
    let failed = JobError::Start { reason: "nowhere".to_owned() };
    let cancelled = JobError::Cancelled { reason: "told to".to_owned() };
    let ways = [(1, Ok(outcome())), (2, Err(failed)), (3, Err(cancelled))];
    for (job, outcome) in ways {
        let mut kept = begin(temp.path(), job).unwrap();
        kept.take(ended(job, outcome));
        let before = (kept.entry.ended.clone().unwrap(), kept.result());
        // As if it had died before the last of what it writes.
        write(temp.path(), &format!("job-{job}"), "job.json", &text(job, None));
        let mut jobs = read(temp.path()).unwrap().jobs;
        let kept = jobs.get_mut(&JobId(job)).unwrap();
        assert!(kept.entry.ended.is_none());
        kept.lose(LOST);
        let end = kept.entry.ended.clone().unwrap();
        assert_eq!((&end.error, end.cancelled), (&before.0.error, before.0.cancelled));
        assert_eq!(end.exit(), before.0.exit());
        assert_eq!(kept.result(), before.1);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn no_file_of_a_job_that_waits_is_open() {
    let temp = tempfile::tempdir().unwrap();
    let mut all: Vec<Kept> = (1..=50).map(|job| begin(temp.path(), job).unwrap()).collect();
    all.push(Kept::of(temp.path().join("job-1"), entry(1, None)));
    all.last_mut().unwrap().resume(u64::MAX);
    assert_eq!(open_below(temp.path()), 0);
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
    assert_eq!(open_below(temp.path()), 1);
    assert_eq!(
        fs::read_to_string(kept.dir.join("log.txt")).unwrap(),
        "the grid's head began anew\none\ntwo\n"
    );
    kept.take(ended(1, Ok(outcome())));
    rest[0].take(ended(2, Ok(outcome())));
    assert_eq!(open_below(temp.path()), 0);
    for (job, records) in [("job-1", 1), ("job-2", 0)] {
        let log = springtide_runtime::event::read(&temp.path().join(job).join("events.jsonl"));
        let log = log.unwrap();
        assert_eq!((log.records.len(), log.complete), (records, true));
    }
}

#[test]
fn a_job_that_the_next_head_would_not_know_is_none() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("job-1"), "in the way").unwrap();
    assert!(begin(temp.path(), 1).is_err());
    // Where only what happens cannot be written, it is one; and what is not written fails it.
    fs::create_dir_all(temp.path().join("job-2")).unwrap();
    fs::write(temp.path().join("job-2/nodes"), "in the way").unwrap();
    let mut kept = begin(temp.path(), 2).unwrap();
    kept.take(ended(2, Ok(outcome())));
    let result = kept.result().unwrap().0;
    assert_eq!((&result["ok"], &result["checksum"]), (&false.into(), &"0000000000000007".into()));
    assert!(result["error"].as_str().unwrap().contains("job-2/nodes"), "{result}");
    assert!(kept.dir.join("result.json").exists());
}

#[test]
fn a_result_that_cannot_be_written_is_kept_as_long_as_the_head_lives() {
    let temp = tempfile::tempdir().unwrap();
    let mut kept = begin(temp.path(), 1).unwrap();
    fs::create_dir_all(kept.dir.join("result.json/full")).unwrap();
    kept.take(ended(1, Ok(outcome())));
    let record = kept.record(0, true);
    assert_eq!(record.entry.ended, Some(done()));
    assert_eq!(record.result.unwrap().0["checksum"], "0000000000000007");
    assert!(record.unwritten.unwrap().contains("result.json"));
    let jobs = read(temp.path()).unwrap().jobs;
    assert_eq!((&jobs[&JobId(1)].entry.ended, jobs[&JobId(1)].result()), (&Some(done()), None));
}

#[test]
fn what_the_scheduler_does_not_know_ends_and_what_nobody_submitted_is_not_kept() {
    let temp = tempfile::tempdir().unwrap();
    let mut book = Book { settled: JobId(2), ..Book::default() };
    for job in [1, 2] {
        book.jobs.insert(JobId(job), begin(temp.path(), job).unwrap());
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
    book.jobs.insert(JobId(4), begin(temp.path(), 4).unwrap());
    book.numbered(Some(JobId(4)));
    assert_eq!((book.early.len(), book.settled), (1, JobId(2)));
    assert_eq!(book.jobs[&JobId(4)].lines, ["early"]);
    book.numbered(None);
    assert!(book.early.is_empty());
}

fn open(dir: &Path) -> Result<Drawer, Failed> {
    let (dir, config) = (dir.to_owned(), String::new());
    Drawer::open(Setting { dir, config, version: "1", log_max: u64::MAX })
}

#[test]
fn a_job_that_has_told_its_outcome_is_not_done_again() {
    let temp = tempfile::tempdir().unwrap();
    let jobs = temp.path().join("jobs");
    let mut kept = begin(&jobs, 1).unwrap();
    kept.take(News::Note(Box::new(NoteKind::Outcome { outcome: Box::new(outcome()) })));
    // One whose result is there, and whose end was not noted, neither; nor one whose entry is damaged.
    begin(&jobs, 2).unwrap().take(ended(2, Ok(outcome())));
    write(&jobs, "job-2", "job.json", &text(2, None));
    begin(&jobs, 3).unwrap().take(ended(3, Ok(outcome())));
    write(&jobs, "job-3", "job.json", "");
    begin(&jobs, 4).unwrap();
    let drawer = open(temp.path()).unwrap();
    assert_eq!([1, 2, 3, 4].map(|job| drawer.wants(JobId(job))), [false, false, false, true]);
    for job in 1..4 {
        let kept = &drawer.jobs[&JobId(job)];
        assert_eq!((&kept.entry.ended, &*kept.entry.name), (&Some(done()), "queens"));
        assert_eq!(kept.result().unwrap().0["checksum"], "0000000000000007");
        assert!(!kept.dir.join("outcome.json").exists());
    }
    assert_eq!(read(&jobs).unwrap().jobs[&JobId(1)].entry.ended, Some(done()));
}

#[test]
fn a_damaged_entry_is_written_anew_or_ends_the_start() {
    let temp = tempfile::tempdir().unwrap();
    let jobs = temp.path().join("jobs");
    for job in [1, 2] {
        begin(&jobs, job).unwrap();
    }
    // Another job's entry is no better than none.
    for wrong in ["", "damaged", &text(2, None)] {
        write(&jobs, "job-1", "job.json", wrong);
        let mut drawer = open(temp.path()).unwrap();
        assert!(drawer.wants(JobId(1)) && drawer.wants(JobId(2)));
        let refused = drawer.mend(&[]).unwrap_err();
        assert!(refused.message.contains("job-1/job.json is damaged"), "{refused}");
    }
    let submit = springtide_actors::scheduler::Submit {
        name: "fib".to_owned(),
        body: bytes::Bytes::new(),
        fingerprint: 1,
        params: Default::default(),
        clusters: None,
        client: Contact {
            node: "head".into(),
            cluster: "head".into(),
            address: springtide_runtime::net::Address::Memory,
        },
        program: None,
        need: None,
        principal: None,
    };
    let (job, epoch, submit) = (JobId(1), Epoch(1), Box::new(submit));
    let found = Recovered { job, epoch, submit, begun: None, limit: None };
    let mut drawer = open(temp.path()).unwrap();
    drawer.mend(&[found]).unwrap();
    assert_eq!(drawer.jobs[&JobId(1)].entry.name, "fib");
    assert_eq!(read(&jobs).unwrap().jobs[&JobId(1)].entry.line, "fib");
    // A copy under another name is nobody's, and one that cannot be read is not taken for none.
    write(&jobs, "job-2.old", "job.json", &text(2, Some(done())));
    assert!(open(temp.path()).unwrap().wants(JobId(2)));
    fs::remove_file(jobs.join("job-2/job.json")).unwrap();
    assert!(!open(temp.path()).unwrap().wants(JobId(2)));
    fs::create_dir(jobs.join("job-2/job.json")).unwrap();
    let Err(refused) = open(temp.path()) else { panic!("it begins") };
    assert!(refused.message.contains("cannot read"), "{refused}");
}

#[test]
fn a_file_that_is_lost_is_told_in_the_jobs_log() {
    let temp = tempfile::tempdir().unwrap();
    let mut kept = begin(temp.path(), 1).unwrap();
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
fn what_is_in_memory_of_a_job_has_an_end() {
    let temp = tempfile::tempdir().unwrap();
    let mut kept = begin(temp.path(), 1).unwrap();
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
