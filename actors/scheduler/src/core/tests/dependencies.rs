//! Jobs that wait for others, job arrays, and submissions of many jobs.

use super::managed::needs;
use super::*;
use crate::manager::Kind;
use crate::scheduler::JobDependency;
use springtide_work::work::ArrayTask;

fn after(jobs: &[u64], any: bool) -> Submit {
    let mut submit = needs(Kind::Rigid, 1, 1);
    if let Some(need) = &mut submit.need {
        need.after = jobs.iter().map(|job| JobDependency { job: JobId(*job), any }).collect();
    }
    submit
}

impl CoreTestGrid {
    fn ended_in_failure(&mut self, job: u64) -> Vec<String> {
        let (job, epoch) = (JobId(job), Epoch(1));
        self.put(SchedulerEvent::JobOver { job, epoch, ended: None, ok: false })
    }

    pub(super) fn reason_to_wait(&self, job: u64) -> String {
        self.core.detail(JobId(job), self.now).unwrap().view.unwrap().reason
    }

    fn submit_all(&mut self, submits: Vec<Submit>) -> Vec<String> {
        let numbered = submits.into_iter().map(|submit| {
            self.jobs += 1;
            let (job, submit) = (JobId(self.jobs), Box::new(submit));
            NumberedSubmission { job, epoch: Epoch(1), submit }
        });
        let all = numbered.collect();
        self.put(SchedulerEvent::SubmitAll(all))
    }
}

#[test]
fn a_job_starts_after_others_have_succeeded() {
    let mut grid = CoreTestGrid::of(2, OURS);
    for (job, node) in [(1, "ams-1"), (2, "del-1")] {
        assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)), [format!("assign job-{job} {node}")]);
        grid.accept(job, &[node]);
    }
    assert_eq!(grid.submit(after(&[1, 2], false)), [""; 0]);
    assert_eq!(grid.reason_to_wait(3), "it waits for the success of job-1, the success of job-2");
    // A job behind it does not wait.
    assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)).len(), 1);
    assert_eq!(grid.over(1), [""; 0]);
    assert_eq!(grid.reason_to_wait(3), "it waits for the success of job-2");
    let out = grid.over(2);
    assert!(out.len() == 1 && out[0].starts_with("assign job-3"), "{out:?}");
}

#[test]
fn a_job_fails_with_one_that_must_succeed_and_so_do_those_that_wait_for_it() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(needs(Kind::Rigid, 1, 1));
    grid.accept(1, &["ams-1"]);
    grid.submit(after(&[1], false));
    grid.submit(after(&[2], false));
    grid.submit(after(&[1], true));
    let out = grid.ended_in_failure(1);
    let refused = |job, of| {
        format!(
            "refuse job-{job}: the job cannot be placed: job-{of} must succeed first, and has \
                 not"
        )
    };
    assert_eq!(out.iter().filter(|line| **line == refused(2, 1)).count(), 1, "{out:?}");
    assert_eq!(out.iter().filter(|line| **line == refused(3, 2)).count(), 1, "{out:?}");
    assert!(out.iter().any(|line| line.starts_with("assign job-4")), "{out:?}");
    // A job that waits for an unknown one cannot start; success is remembered for a while.
    grid.accept(4, &["ams-1"]);
    grid.over(4);
    let out = grid.submit(after(&[4], false));
    assert!(out[0].starts_with("assign job-5"), "{out:?}");
    assert_eq!(grid.submit(after(&[77], false)), [refused(6, 77)]);
}

#[test]
fn a_cancelled_job_has_not_succeeded() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(needs(Kind::Rigid, 1, 1));
    grid.accept(1, &["ams-1"]);
    grid.submit(after(&[1], true));
    grid.submit(after(&[2], false));
    let out = grid.put(SchedulerEvent::Cancel { job: JobId(2), reason: "enough".to_owned() });
    assert_eq!(out.len(), 2, "{out:?}");
    assert!(out[1].contains("job-2 must succeed first"), "{out:?}");
    assert!(grid.core.managing.manager.awaited().next().is_none());
}

#[test]
fn an_array_has_no_more_jobs_with_processors_than_its_limit() {
    let mut grid = CoreTestGrid::of(4, OURS);
    let place = |index| ArrayTask { id: 7, index, first: 0, last: 4, count: 5, limit: Some(2) };
    let array = (0..5).map(|index| {
        let mut submit = needs(Kind::Rigid, 1, 1);
        if let Some(need) = &mut submit.need {
            need.array = Some(place(index));
        }
        submit
    });
    let out = grid.submit_all(array.collect());
    assert_eq!(out.len(), 2, "{out:?}");
    assert_eq!(
        grid.reason_to_wait(3),
        "2 jobs of its array run, and no more may run at the same time"
    );
    // Other jobs pass it.
    assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)).len(), 1);
    let node = |line: &String| line.rsplit(' ').next().unwrap().to_owned();
    grid.accept(1, &[&node(&out[0])]);
    grid.accept(2, &[&node(&out[1])]);
    for (ended, next) in [(1, 3), (2, 4), (3, 5)] {
        let out = grid.over(ended);
        assert!(out.len() == 1 && out[0].starts_with(&format!("assign job-{next}")), "{out:?}");
        grid.accept(next, &[&node(&out[0])]);
    }
    assert_eq!(grid.over(4), [""; 0]);
    assert_eq!(grid.over(5), [""; 0]);
}

#[test]
fn many_jobs_are_submitted_at_once() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let mut wrong = needs(Kind::Rigid, 1, 1);
    if let Some(need) = &mut wrong.need {
        need.max.clear();
    }
    let mut all = vec![wrong];
    all.extend((0..3000).map(|_| needs(Kind::Rigid, 1, 1)));
    let out = grid.submit_all(all);
    assert!(out[0].starts_with("refuse job-1"), "{}", out[0]);
    assert_eq!(out.len(), 5, "{out:?}");
    assert_eq!(grid.core.known().len(), 3000);
}
