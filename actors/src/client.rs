//! The client: receives notes of the jobs that this process has submitted, and forwards them in
//! order.
//!
//! This module does not know their use: files, terminals and exit codes belong to the command.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::job::{JobEndReport, JobNote, NoteKind};
use springtide_protocol::names::{CLIENT, HEAD, SCHEDULER};
use springtide_protocol::receivers::Scheduler;
use springtide_protocol::scheduler::JobAuthority;
use springtide_runtime::id::{Epoch, JobId, NodeId};
use springtide_runtime::remote::{MessageOrigin, Remote};
use springtide_runtime::work::Outcome;
use tokio::sync::{mpsc, watch};

use crate::admit::{
    AdmitsMessages, AuthorityQuery, MessageSubject, Places, SenderStanding, ask_scheduler, outside,
};
use crate::endpoint::Endpoint;
use crate::links::{LinkChanges, LinkListener};

/// Maximum number of notes kept out of order. Each is small, or a file of a slower bulk transfer.
const EARLY_MAX: usize = 4096;
/// Maximum wait for outstanding notes after a job's end.
const LATE_NOTES: Duration = Duration::from_secs(10);
/// Maximum number of news in the receiver's queue; beyond it, senders wait.
const NEWS_MAX: usize = 256;

/// News about a submitted job.
#[derive(Clone, Debug)]
pub enum JobUpdate {
    /// A note of the job.
    Note(Box<NoteKind>),
    /// The job has ended; nothing follows.
    Ended(Box<JobEndReport>),
}

/// Receipt for news: the receiver drops it after it has stored the news. Only then the sender of an
/// outcome or an end gets an answer, after which it forgets the job.
#[derive(Debug, Default)]
pub struct Receipt {
    _kept: Option<watch::Sender<()>>,
}

/// News of a job, with their receipt.
pub type ReceivedNews = (JobId, JobUpdate, Receipt);

/// The client actor, published as [`CLIENT`].
pub struct Client {
    jobs: BTreeMap<JobId, JobNotes>,
    news: mpsc::Sender<ReceivedNews>,
    /// Whether the receiver stores news: then answers wait for receipts.
    keeps: bool,
    /// The scheduler, which confirms coordinators of jobs, and this client's node.
    scheduler: Option<(Remote<Scheduler>, NodeId)>,
    /// Authority over each job of this client, by the scheduler's last answer.
    authorities: BTreeMap<JobId, JobAuthority>,
}

/// A job with at least one note.
enum JobNotes {
    Watched(Box<Watched>),
    /// Its end was forwarded. Until the end is stored, repeated reports wait for that.
    Over(Option<watch::Receiver<()>>),
}

impl Client {
    /// Creates a client, and the receiver of its news.
    pub fn new() -> (Self, mpsc::Receiver<ReceivedNews>) {
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        let (jobs, authorities) = Default::default();
        (Self { jobs, news, keeps: false, scheduler: None, authorities }, receiver)
    }

    /// Adds jobs of this process's predecessor, whose earlier notes are known already.
    #[must_use]
    pub fn resuming(mut self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        let joined = || JobNotes::Watched(Box::new(Watched { joins: true, ..Watched::default() }));
        self.jobs.extend(jobs.into_iter().map(|job| (job, joined())));
        self
    }

    /// Answers ends and outcomes when their [`Receipt`] is dropped, not when they are forwarded.
    #[must_use]
    pub fn keeping(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// Publishes the client of a process on its endpoint, before the endpoint starts. Returns its
    /// links and the receiver of its news.
    pub fn publish(endpoint: &Endpoint) -> (Arc<LinkChanges>, mpsc::Receiver<ReceivedNews>) {
        let (client, news) = Self::new();
        client.publish_on(endpoint, news)
    }

    /// Like [`Client::publish`], for a process that stores news on disk, with the jobs of its
    /// predecessor.
    pub fn publish_resuming(
        endpoint: &Endpoint,
        jobs: impl IntoIterator<Item = JobId>,
    ) -> (Arc<LinkChanges>, mpsc::Receiver<ReceivedNews>) {
        let (client, news) = Self::new();
        client.resuming(jobs).keeping().publish_on(endpoint, news)
    }

    fn publish_on(
        mut self,
        endpoint: &Endpoint,
        news: mpsc::Receiver<ReceivedNews>,
    ) -> (Arc<LinkChanges>, mpsc::Receiver<ReceivedNews>) {
        let me = endpoint.net.me().node.clone();
        // The scheduler is in this process or in the head's.
        let head = if endpoint.hub.publishes(SCHEDULER) { me.clone() } else { HEAD.into() };
        self.scheduler = Some((endpoint.hub.remote(&head, SCHEDULER), me));
        endpoint
            .hub
            .publish(CLIENT, self.start())
            .accepts_judged::<JobNote>()
            .accepts_judged::<JobEndReport>();
        (LinkChanges::listen(&endpoint.router, LinkListener::Client), news)
    }

    /// The job's notes, unless its end was forwarded.
    fn watched(&mut self, job: JobId) -> Result<&mut Watched, Option<watch::Receiver<()>>> {
        match self.jobs.entry(job).or_insert_with(|| JobNotes::Watched(Box::default())) {
            JobNotes::Watched(watched) => Ok(watched),
            JobNotes::Over(kept) => Err(kept.clone()),
        }
    }

    /// Forwards notes that are in order. No message is handled or answered before the receiver has
    /// capacity: this keeps the order, and applies back-pressure to the sender.
    fn forward(&mut self, ctx: &mut Context<Self>, job: JobId) {
        let Ok(watched) = self.watched(job) else { return };
        let ready = watched.take();
        if watched.over {
            // A small entry remains: there may be many jobs, and this process may run for long.
            let kept = watched.end.kept.clone();
            self.jobs.insert(job, JobNotes::Over(Some(kept)));
            self.authorities.remove(&job);
        }
        if ready.is_empty() {
            return;
        }
        let news = self.news.clone();
        let handed = async move {
            for (item, receipt) in ready {
                // The receiver is gone when the command ends.
                let _ = news.send((job, item, receipt)).await;
            }
        };
        ctx.wait(handed.into_actor(self));
    }

    /// Answers a message whose news must be stored.
    fn answer(&self, job: JobId, kept: Option<watch::Receiver<()>>) -> ResponseActFuture<Self, ()> {
        let kept = kept.filter(|_| self.keeps);
        let answer = async move {
            if let Some(mut kept) = kept {
                // No value is ever sent: the channel closes when the receipt is dropped.
                let _ = kept.changed().await;
            }
        };
        let on_done = move |(), client: &mut Self, _: &mut _| {
            if let Some(JobNotes::Over(kept)) = client.jobs.get_mut(&job)
                && kept.as_ref().is_some_and(|kept| kept.has_changed().is_err())
            {
                *kept = None;
            }
        };
        Box::pin(answer.into_actor(self).map(on_done))
    }
}

impl AdmitsMessages for Client {
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        confirmed: Option<&JobAuthority>,
    ) -> SenderStanding {
        let Some((scheduler, me)) = &self.scheduler else { return SenderStanding::default() };
        let places = outside(from, Some(scheduler.node()));
        let mine = |authority: &&JobAuthority| authority.client.as_ref() == Some(me);
        if let Some(authority) = confirmed.filter(mine)
            && authority.coordinator.is_some()
        {
            self.authorities.insert(about.job, authority.clone());
        }
        let pending = confirmed.is_none_or(|it| it.coordinator.is_none());
        match self.authorities.get(&about.job) {
            Some(authority) => {
                let coordinates = authority.coordinator.as_ref() == Some(&from.peer.node);
                let places = places.or(Places::COORDINATOR.when(coordinates));
                let epoch = Some(authority.epoch);
                SenderStanding { known: true, places, epoch, is_uncertain: pending }
            }
            None => SenderStanding { known: false, places, epoch: None, is_uncertain: pending },
        }
    }

    fn ask(&self, from: &MessageOrigin, about: &MessageSubject) -> Option<AuthorityQuery> {
        let (scheduler, _) = self.scheduler.as_ref()?;
        Some(ask_scheduler(scheduler, from.peer.node.clone(), about.job))
    }
}

crate::judged!(Client);

impl Actor for Client {
    type Context = Context<Self>;
}

impl Handler<JobNote> for Client {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, note: JobNote, ctx: &mut Self::Context) -> Self::Result {
        let JobNote { job, epoch, seq, kind: what } = note;
        let mut kept = None;
        if let Ok(watched) = self.watched(job) {
            let outcome = matches!(what, NoteKind::Outcome { .. });
            if watched.note(epoch, seq, what) && outcome {
                kept = Some(watched.outcome_receipt.kept.clone());
            }
        }
        self.forward(ctx, job);
        self.answer(job, kept)
    }
}

impl Handler<JobEndReport> for Client {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, ended: JobEndReport, ctx: &mut Self::Context) -> Self::Result {
        let job = ended.job;
        let kept = match self.watched(job) {
            Ok(watched) => watched.ended(ended).then(|| watched.end.kept.clone()),
            Err(kept) => kept,
        };
        ctx.run_later(LATE_NOTES, move |client, ctx| {
            if client.watched(job).is_ok_and(Watched::stop_waiting) {
                tracing::warn!(%job, "some of its notes were lost");
                client.forward(ctx, job);
            }
        });
        self.forward(ctx, job);
        self.answer(job, kept)
    }
}

/// Tracks the receipt of some news.
#[derive(Debug)]
struct ReceiptTracker {
    /// Moves to the receiver of the news.
    receipt: Option<watch::Sender<()>>,
    /// Closes when the receipt is dropped.
    kept: watch::Receiver<()>,
}

impl ReceiptTracker {
    /// Returns the receipt, once.
    fn receipt(&mut self) -> Receipt {
        Receipt { _kept: self.receipt.take() }
    }
}

impl Default for ReceiptTracker {
    fn default() -> Self {
        let (receipt, kept) = watch::channel(());
        Self { receipt: Some(receipt), kept }
    }
}

/// Orders a job's notes. No I/O.
#[derive(Debug, Default)]
struct Watched {
    epoch: Epoch,
    next: u64,
    early: BTreeMap<u64, NoteKind>,
    /// Length of each iteration. A root that resumes from a checkpoint repeats some.
    iterations: Vec<f64>,
    /// Outcome reported before the end.
    outcome: Option<Box<Outcome>>,
    ended: Option<Box<JobEndReport>>,
    over: bool,
    forwards_gaps: bool,
    /// Whether the first note defines the next number: the predecessor of this process received the
    /// earlier ones in order.
    joins: bool,
    /// Receipts of the outcome and of the end.
    outcome_receipt: ReceiptTracker,
    end: ReceiptTracker,
}

impl Watched {
    /// Adds a note. Returns whether it is valid.
    fn note(&mut self, epoch: Epoch, seq: u64, what: NoteKind) -> bool {
        self.follow(epoch);
        if epoch < self.epoch {
            return false; // from a replaced coordinator
        }
        if std::mem::take(&mut self.joins) {
            self.next = seq;
        }
        if seq >= self.next && self.early.len() < EARLY_MAX {
            self.early.entry(seq).or_insert(what);
        }
        true
    }

    /// Under a new epoch, another coordinator numbers its notes from 0.
    fn follow(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            (self.epoch, self.next) = (epoch, 0);
            self.early.clear();
            self.ended = None;
        }
    }

    /// Adds the end. Returns whether it is valid.
    fn ended(&mut self, ended: JobEndReport) -> bool {
        if let Some(epoch) = ended.epoch {
            self.follow(epoch);
            if epoch < self.epoch {
                return false;
            }
        }
        // The first report counts: the scheduler's reason precedes the coordinator's.
        if self.ended.is_none() {
            self.ended = Some(Box::new(ended));
        }
        true
    }

    /// Stops waiting for missing notes. Returns whether this has an effect.
    fn stop_waiting(&mut self) -> bool {
        self.forwards_gaps = true;
        !self.over
    }

    fn take(&mut self) -> Vec<(JobUpdate, Receipt)> {
        let mut ready = Vec::new();
        if self.over {
            self.early.clear();
            return ready;
        }
        while let Some((&seq, _)) = self.early.first_key_value() {
            if seq != self.next && !self.forwards_gaps {
                break;
            }
            let Some((seq, what)) = self.early.pop_first() else { break };
            // The number comes from another process, so the addition saturates.
            self.next = seq.saturating_add(1);
            let mut receipt = Receipt::default();
            if let NoteKind::Outcome { outcome } = &what {
                self.outcome = Some(outcome.clone());
                receipt = self.outcome_receipt.receipt();
            }
            if let NoteKind::Iteration { index, seconds } = &what {
                let known = usize::try_from(*index).unwrap_or(usize::MAX);
                self.iterations.truncate(known);
                self.iterations.push(*seconds);
            }
            ready.push((JobUpdate::Note(Box::new(what)), receipt));
        }
        // For a failed job, missing notes are not awaited.
        let all = self.early.is_empty() || self.ended.as_ref().is_some_and(|e| e.outcome.is_err());
        if all && let Some(mut ended) = self.ended.take() {
            if let (Some(outcome), Err(error)) = (self.outcome.take(), &ended.outcome) {
                tracing::info!(%error, "the job had an outcome before this error");
                ended.outcome = Ok(*outcome);
            }
            // The last coordinator knows only the iterations of its own time.
            if ended.report.iterations.len() < self.iterations.len() {
                ended.report.iterations = std::mem::take(&mut self.iterations);
            }
            self.over = true;
            self.early.clear();
            ready.push((JobUpdate::Ended(ended), self.end.receipt()));
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::{JobError, JobReport};

    fn note(seq: u64) -> NoteKind {
        NoteKind::Text { text: seq.to_string() }
    }

    fn ended(ok: bool) -> JobEndReport {
        let outcome = Outcome { checksum: 1, result: serde_json::Value::Null };
        let failed = JobError::Cancelled { reason: "test".into() };
        let outcome = if ok { Ok(outcome) } else { Err(failed) };
        let report = JobReport::default();
        JobEndReport { job: JobId(1), epoch: Some(Epoch(1)), outcome, report }
    }

    fn text((news, _): &(JobUpdate, Receipt)) -> String {
        match news {
            JobUpdate::Note(note) => match &**note {
                NoteKind::Text { text } => text.clone(),
                other => format!("{other:?}"),
            },
            JobUpdate::Ended(ended) => format!("end {}", ended.outcome.is_ok()),
        }
    }

    proptest! {
        /// Notes in any order and duplicated, the end anywhere after the last note's first arrival:
        /// all are forwarded once, in order.
        #[test]
        fn notes_come_out_in_order_and_the_end_last(
            order in (1u64..20)
                .prop_flat_map(|n| Just((0..n).chain(0..n).collect::<Vec<_>>()).prop_shuffle()),
            end in any::<prop::sample::Index>(),
        ) {
            let count = order.len() as u64 / 2;
            let mut watched = Watched::default();
            let mut out = Vec::new();
            let end = end.index(order.len());
            // The end overtakes only notes before a known one.
            let end = order.iter().position(|&seq| seq == count - 1).unwrap().max(end);
            for (at, &seq) in order.iter().enumerate() {
                watched.note(Epoch(1), seq, note(seq));
                if at == end {
                    watched.ended(ended(true));
                }
                out.extend(watched.take().iter().map(text));
            }
            let expected: Vec<_> =
                (0..count).map(|seq| seq.to_string()).chain(["end true".to_owned()]).collect();
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_restarted_process_continues_after_the_notes_of_its_predecessor() {
        let mut watched = Watched { joins: true, ..Watched::default() };
        watched.note(Epoch(1), 7, note(7));
        watched.note(Epoch(1), 9, note(9));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["7"]);
        watched.note(Epoch(1), 8, note(8));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["8", "9"]);
        // Another coordinator has taken over and numbers from 0.
        watched.note(Epoch(2), 0, note(0));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["0"]);
    }

    #[test]
    fn lost_notes_do_not_delay_the_end_for_ever() {
        let mut watched = Watched::default();
        watched.note(Epoch(1), 1, note(1));
        watched.ended(ended(true));
        assert!(watched.take().is_empty());
        assert!(watched.stop_waiting());
        let out: Vec<_> = watched.take().iter().map(text).collect();
        assert_eq!(out, ["1", "end true"]);
        assert!(!watched.stop_waiting());
        // A failure is reported at once, and only its first report counts.
        let mut watched = Watched::default();
        watched.note(Epoch(1), 1, note(1));
        watched.ended(ended(false));
        watched.ended(ended(true));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["end false"]);
        watched.ended(ended(true));
        assert!(watched.take().is_empty());
    }

    #[test]
    fn a_reported_outcome_counts_even_if_the_end_fails() {
        let mut watched = Watched::default();
        let outcome = Outcome { checksum: 7, result: serde_json::Value::Null };
        watched.note(Epoch(1), 0, NoteKind::Outcome { outcome: Box::new(outcome.clone()) });
        assert!(matches!(watched.take()[..], [(JobUpdate::Note(_), _)]));
        watched.ended(JobEndReport { epoch: None, ..ended(false) });
        let news = watched.take();
        let [(JobUpdate::Ended(end), _)] = &news[..] else { panic!("{news:?}") };
        assert_eq!(end.outcome, Ok(outcome));
    }

    #[test]
    fn the_largest_number_is_valid() {
        let mut watched = Watched { joins: true, ..Watched::default() };
        watched.note(Epoch(1), u64::MAX, note(u64::MAX));
        assert_eq!(watched.take().len(), 1);
    }

    #[test]
    fn answers_wait_for_their_own_receipts_only() {
        System::new().block_on(async {
            for keeps in [true, false] {
                let (client, mut news) = Client::new();
                let client = if keeps { client.keeping() } else { client }.start();
                let outcome = Outcome { checksum: 7, result: serde_json::Value::Null };
                let what = NoteKind::Outcome { outcome: Box::new(outcome) };
                let first = JobNote { job: JobId(1), epoch: Epoch(1), seq: 0, kind: what };
                let other = || JobNote { job: JobId(2), epoch: Epoch(1), seq: 0, kind: note(0) };
                let noted = actix::spawn(client.send(first));
                // Repeated, since its answer was late.
                let ends = [(); 2].map(|()| actix::spawn(client.send(ended(true))));
                let (_, _, outcome) = news.recv().await.unwrap();
                let (_, item, end) = news.recv().await.unwrap();
                assert!(matches!(item, JobUpdate::Ended(_)));
                // Other news do not wait for it.
                client.send(other()).await.unwrap();
                if keeps {
                    assert!(!noted.is_finished() && ends.iter().all(|it| !it.is_finished()));
                    drop(outcome);
                }
                noted.await.unwrap().unwrap();
                if keeps {
                    client.send(other()).await.unwrap();
                    assert!(ends.iter().all(|end| !end.is_finished()));
                    drop(end);
                }
                for end in ends {
                    end.await.unwrap().unwrap();
                }
                // A further report is answered without news.
                client.send(ended(true)).await.unwrap();
                assert!(news.try_recv().is_ok_and(|(job, ..)| job == JobId(2)));
                assert!(news.try_recv().is_err());
            }
        });
    }
}
