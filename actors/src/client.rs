//! The client: hears of the jobs that this process has submitted, and hands the news on in order.
//!
//! Must not know what is done with them: files, terminals and exit codes are the command's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{Epoch, JobId, NodeId};
use springtide_runtime::remote::{Origin, Remote};
use springtide_runtime::work::Outcome;
use tokio::sync::{mpsc, watch};

use crate::admit::{About, Asking, Judges, Places, Standing, ask_scheduler, outside};
use crate::endpoint::Endpoint;
use crate::head::HEAD;
use crate::job::{CLIENT, JobEnded, JobNote, NoteKind, SCHEDULER};
use crate::links::{Door, Links};
use crate::scheduler::{JobAuthority, Scheduler};

/// Notes kept out of order at most. Each is small, or a file of a bulk transfer that others overtook.
const EARLY_MAX: usize = 4096;
/// After the word of a job's end, notes still under way are waited for at most this long.
const LATE_NOTES: Duration = Duration::from_secs(10);
/// News that wait for the receiver at most; beyond that the sender's calls wait.
const NEWS_MAX: usize = 256;

/// News of a job.
#[derive(Clone, Debug)]
pub enum News {
    /// It says something.
    Note(Box<NoteKind>),
    /// It has ended; nothing follows.
    Ended(Box<JobEnded>),
}

/// That whoever hears some news is not done with them: dropped, it says that they are. A job's end and its outcome are answered
/// only then to clients that keep them, for whoever tells them forgets the job when they are answered.
#[derive(Debug, Default)]
pub struct Receipt {
    _kept: Option<watch::Sender<()>>,
}

/// News of a job, and that they are to be kept.
pub type Heard = (JobId, News, Receipt);

/// The client actor, published as [`CLIENT`].
pub struct Client {
    jobs: BTreeMap<JobId, Known>,
    news: mpsc::Sender<Heard>,
    /// The receiver writes down what it hears: receipts are waited for.
    keeps: bool,
    /// Confirms who coordinates a job, and the node of this client.
    scheduler: Option<(Remote<Scheduler>, NodeId)>,
    /// Who coordinates each job of this client, as the scheduler said last.
    authorities: BTreeMap<JobId, JobAuthority>,
}

/// A job that was heard of.
enum Known {
    Watched(Box<Watched>),
    /// Its end was handed on; until it is kept, who tells it again waits for that.
    Over(Option<watch::Receiver<()>>),
}

impl Client {
    /// A client, and where its news come out.
    pub fn new() -> (Self, mpsc::Receiver<Heard>) {
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        let (jobs, authorities) = Default::default();
        (Self { jobs, news, keeps: false, scheduler: None, authorities }, receiver)
    }

    /// Jobs that a former life of this process had: what was said of them before is known already.
    #[must_use]
    pub fn resuming(mut self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        let joined = || Known::Watched(Box::new(Watched { joins: true, ..Watched::default() }));
        self.jobs.extend(jobs.into_iter().map(|job| (job, joined())));
        self
    }

    /// Ends and outcomes are answered when their [`Receipt`] is dropped, not when they are handed on.
    #[must_use]
    pub fn keeping(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// Publishes the client of a process on its endpoint, before that starts. Returns its links and where its news come out.
    pub fn publish(endpoint: &Endpoint) -> (Arc<Links>, mpsc::Receiver<Heard>) {
        let (client, news) = Self::new();
        client.publish_on(endpoint, news)
    }

    /// The same of a process that keeps what it hears on disk, with jobs that a former life of it had.
    pub fn publish_again(
        endpoint: &Endpoint,
        jobs: impl IntoIterator<Item = JobId>,
    ) -> (Arc<Links>, mpsc::Receiver<Heard>) {
        let (client, news) = Self::new();
        client.resuming(jobs).keeping().publish_on(endpoint, news)
    }

    fn publish_on(
        mut self,
        endpoint: &Endpoint,
        news: mpsc::Receiver<Heard>,
    ) -> (Arc<Links>, mpsc::Receiver<Heard>) {
        let me = endpoint.net.me().node.clone();
        // The process of the head, or another.
        let head = if endpoint.hub.publishes(SCHEDULER) { me.clone() } else { HEAD.into() };
        self.scheduler = Some((endpoint.hub.remote(&head, SCHEDULER), me));
        endpoint
            .hub
            .publish(CLIENT, self.start())
            .accepts_judged::<JobNote>()
            .accepts_judged::<JobEnded>();
        (Links::listen(&endpoint.router, Door::Client), news)
    }

    /// The job's notes, unless its end was handed on.
    fn watched(&mut self, job: JobId) -> Result<&mut Watched, Option<watch::Receiver<()>>> {
        match self.jobs.entry(job).or_insert_with(|| Known::Watched(Box::default())) {
            Known::Watched(watched) => Ok(watched),
            Known::Over(kept) => Err(kept.clone()),
        }
    }

    /// Hands on what is in order. No message is handled, and none answered, before the receiver has room:
    /// that keeps the order, and is the sender's back-pressure.
    fn hand_on(&mut self, ctx: &mut Context<Self>, job: JobId) {
        let Ok(watched) = self.watched(job) else { return };
        let ready = watched.take();
        if watched.over {
            // All that is left of it: there may be a great many, and this process may run for long.
            let kept = watched.end.kept.clone();
            self.jobs.insert(job, Known::Over(Some(kept)));
            self.authorities.remove(&job);
        }
        if ready.is_empty() {
            return;
        }
        let news = self.news.clone();
        let handed = async move {
            for (item, receipt) in ready {
                // The receiver is gone when the command ends: nobody wants the news then.
                let _ = news.send((job, item, receipt)).await;
            }
        };
        ctx.wait(handed.into_actor(self));
    }

    /// The answer to a word that is to be kept.
    fn answer(&self, job: JobId, kept: Option<watch::Receiver<()>>) -> ResponseActFuture<Self, ()> {
        let kept = kept.filter(|_| self.keeps);
        let answer = async move {
            if let Some(mut kept) = kept {
                // Nothing is ever sent: it ends when the receipt is dropped.
                let _ = kept.changed().await;
            }
        };
        let then = move |(), client: &mut Self, _: &mut _| {
            if let Some(Known::Over(kept)) = client.jobs.get_mut(&job)
                && kept.as_ref().is_some_and(|kept| kept.has_changed().is_err())
            {
                *kept = None;
            }
        };
        Box::pin(answer.into_actor(self).map(then))
    }
}

impl Judges for Client {
    fn standing(
        &mut self,
        from: &Origin,
        about: &About,
        confirmed: Option<&JobAuthority>,
    ) -> Standing {
        let Some((scheduler, me)) = &self.scheduler else { return Standing::default() };
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
                Standing { known: true, places, epoch, unsure: pending }
            }
            None => Standing { known: false, places, epoch: None, unsure: pending },
        }
    }

    fn ask(&self, from: &Origin, about: &About) -> Option<Asking> {
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
        let JobNote { job, epoch, seq, what } = note;
        let mut kept = None;
        if let Ok(watched) = self.watched(job) {
            let outcome = matches!(what, NoteKind::Outcome { .. });
            if watched.note(epoch, seq, what) && outcome {
                kept = Some(watched.told.kept.clone());
            }
        }
        self.hand_on(ctx, job);
        self.answer(job, kept)
    }
}

impl Handler<JobEnded> for Client {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, ended: JobEnded, ctx: &mut Self::Context) -> Self::Result {
        let job = ended.job;
        let kept = match self.watched(job) {
            Ok(watched) => watched.ended(ended).then(|| watched.end.kept.clone()),
            Err(kept) => kept,
        };
        ctx.run_later(LATE_NOTES, move |client, ctx| {
            if client.watched(job).is_ok_and(Watched::give_up_waiting) {
                tracing::warn!(%job, "some of its notes were lost");
                client.hand_on(ctx, job);
            }
        });
        self.hand_on(ctx, job);
        self.answer(job, kept)
    }
}

/// Whether something was kept by whoever heard it.
#[derive(Debug)]
struct Keep {
    /// Goes with it.
    receipt: Option<watch::Sender<()>>,
    /// Ends when that is dropped.
    kept: watch::Receiver<()>,
}

impl Keep {
    /// For whoever hears it first.
    fn receipt(&mut self) -> Receipt {
        Receipt { _kept: self.receipt.take() }
    }
}

impl Default for Keep {
    fn default() -> Self {
        let (receipt, kept) = watch::channel(());
        Self { receipt: Some(receipt), kept }
    }
}

/// Puts a job's notes in order. No I/O.
#[derive(Debug, Default)]
struct Watched {
    epoch: Epoch,
    next: u64,
    early: BTreeMap<u64, NoteKind>,
    /// Length of each iteration, of whatever root: one that goes on from a checkpoint tells some again.
    iterations: Vec<f64>,
    /// Told before the end.
    outcome: Option<Box<Outcome>>,
    ended: Option<Box<JobEnded>>,
    over: bool,
    impatient: bool,
    /// The first note heard is the next: those before were told to a former life of this process, one after the other.
    joins: bool,
    /// What became of the outcome, and of the end.
    told: Keep,
    end: Keep,
}

impl Watched {
    /// Whether it counts.
    fn note(&mut self, epoch: Epoch, seq: u64, what: NoteKind) -> bool {
        self.follow(epoch);
        if epoch < self.epoch {
            return false; // of a coordinator that was replaced
        }
        if std::mem::take(&mut self.joins) {
            self.next = seq;
        }
        if seq >= self.next && self.early.len() < EARLY_MAX {
            self.early.entry(seq).or_insert(what);
        }
        true
    }

    /// Under a new epoch another coordinator speaks, from its own beginning on.
    fn follow(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            (self.epoch, self.next) = (epoch, 0);
            self.early.clear();
            self.ended = None;
        }
    }

    /// Whether it counts.
    fn ended(&mut self, ended: JobEnded) -> bool {
        if let Some(epoch) = ended.epoch {
            self.follow(epoch);
            if epoch < self.epoch {
                return false;
            }
        }
        // The first word counts: the scheduler's reason comes before the coordinator's.
        if self.ended.is_none() {
            self.ended = Some(Box::new(ended));
        }
        true
    }

    /// Whether that changes anything.
    fn give_up_waiting(&mut self) -> bool {
        self.impatient = true;
        !self.over
    }

    fn take(&mut self) -> Vec<(News, Receipt)> {
        let mut ready = Vec::new();
        if self.over {
            self.early.clear();
            return ready;
        }
        while let Some((&seq, _)) = self.early.first_key_value() {
            if seq != self.next && !self.impatient {
                break;
            }
            let Some((seq, what)) = self.early.pop_first() else { break };
            // The number is another process's.
            self.next = seq.saturating_add(1);
            let mut receipt = Receipt::default();
            if let NoteKind::Outcome { outcome } = &what {
                self.outcome = Some(outcome.clone());
                receipt = self.told.receipt();
            }
            if let NoteKind::Iteration { index, seconds } = &what {
                let known = usize::try_from(*index).unwrap_or(usize::MAX);
                self.iterations.truncate(known);
                self.iterations.push(*seconds);
            }
            ready.push((News::Note(Box::new(what)), receipt));
        }
        // A failed job's missing notes are not worth waiting for.
        let all = self.early.is_empty() || self.ended.as_ref().is_some_and(|e| e.outcome.is_err());
        if all && let Some(mut ended) = self.ended.take() {
            if let (Some(outcome), Err(error)) = (self.outcome.take(), &ended.outcome) {
                tracing::info!(%error, "the job had its outcome already");
                ended.outcome = Ok(*outcome);
            }
            // The last coordinator knows only those of its own time.
            if ended.report.iterations.len() < self.iterations.len() {
                ended.report.iterations = std::mem::take(&mut self.iterations);
            }
            self.over = true;
            self.early.clear();
            ready.push((News::Ended(ended), self.end.receipt()));
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
        NoteKind::Say { text: seq.to_string() }
    }

    fn ended(ok: bool) -> JobEnded {
        let outcome = Outcome { checksum: 1, result: serde_json::Value::Null };
        let failed = JobError::Cancelled { reason: "test".into() };
        let outcome = if ok { Ok(outcome) } else { Err(failed) };
        let report = JobReport::default();
        JobEnded { job: JobId(1), epoch: Some(Epoch(1)), outcome, report }
    }

    fn text((news, _): &(News, Receipt)) -> String {
        match news {
            News::Note(note) => match &**note {
                NoteKind::Say { text } => text.clone(),
                other => format!("{other:?}"),
            },
            News::Ended(ended) => format!("end {}", ended.outcome.is_ok()),
        }
    }

    proptest! {
        /// Notes in any order and doubled, the word of the end anywhere after the first: all come out once, in order.
        #[test]
        fn notes_come_out_in_order_and_the_end_last(
            order in (1u64..20).prop_flat_map(|n| Just((0..n).chain(0..n).collect::<Vec<_>>()).prop_shuffle()),
            end in any::<prop::sample::Index>(),
        ) {
            let count = order.len() as u64 / 2;
            let mut watched = Watched::default();
            let mut out = Vec::new();
            let end = end.index(order.len());
            // The end overtakes only notes of which a later one is known.
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
    fn a_later_life_hears_on_from_where_the_former_was() {
        let mut watched = Watched { joins: true, ..Watched::default() };
        watched.note(Epoch(1), 7, note(7));
        watched.note(Epoch(1), 9, note(9));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["7"]);
        watched.note(Epoch(1), 8, note(8));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["8", "9"]);
        // Another coordinator has taken over meanwhile: it speaks from its own beginning.
        watched.note(Epoch(2), 0, note(0));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["0"]);
    }

    #[test]
    fn lost_notes_do_not_hold_up_the_end_for_ever() {
        let mut watched = Watched::default();
        watched.note(Epoch(1), 1, note(1));
        watched.ended(ended(true));
        assert!(watched.take().is_empty());
        assert!(watched.give_up_waiting());
        let out: Vec<_> = watched.take().iter().map(text).collect();
        assert_eq!(out, ["1", "end true"]);
        assert!(!watched.give_up_waiting());
        // A failure is told at once, and the first word of the end is the only one.
        let mut watched = Watched::default();
        watched.note(Epoch(1), 1, note(1));
        watched.ended(ended(false));
        watched.ended(ended(true));
        assert_eq!(watched.take().iter().map(text).collect::<Vec<_>>(), ["end false"]);
        watched.ended(ended(true));
        assert!(watched.take().is_empty());
    }

    #[test]
    fn an_outcome_that_was_told_counts_though_nobody_could_tell_the_end() {
        let mut watched = Watched::default();
        let outcome = Outcome { checksum: 7, result: serde_json::Value::Null };
        watched.note(Epoch(1), 0, NoteKind::Outcome { outcome: Box::new(outcome.clone()) });
        assert!(matches!(watched.take()[..], [(News::Note(_), _)]));
        watched.ended(JobEnded { epoch: None, ..ended(false) });
        let told = watched.take();
        let [(News::Ended(end), _)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(end.outcome, Ok(outcome));
    }

    #[test]
    fn a_number_at_the_end_of_all_numbers_is_one() {
        let mut watched = Watched { joins: true, ..Watched::default() };
        watched.note(Epoch(1), u64::MAX, note(u64::MAX));
        assert_eq!(watched.take().len(), 1);
    }

    #[test]
    fn what_is_kept_is_answered_when_it_is_and_nothing_else_waits_for_that() {
        System::new().block_on(async {
            for keeps in [true, false] {
                let (client, mut news) = Client::new();
                let client = if keeps { client.keeping() } else { client }.start();
                let outcome = Outcome { checksum: 7, result: serde_json::Value::Null };
                let what = NoteKind::Outcome { outcome: Box::new(outcome) };
                let told = JobNote { job: JobId(1), epoch: Epoch(1), seq: 0, what };
                let other = || JobNote { job: JobId(2), epoch: Epoch(1), seq: 0, what: note(0) };
                let told = actix::spawn(client.send(told));
                // Told again, for its answer was late.
                let ends = [(); 2].map(|()| actix::spawn(client.send(ended(true))));
                let (_, _, outcome) = news.recv().await.unwrap();
                let (_, item, end) = news.recv().await.unwrap();
                assert!(matches!(item, News::Ended(_)));
                // Who is not concerned does not wait.
                client.send(other()).await.unwrap();
                if keeps {
                    assert!(!told.is_finished() && ends.iter().all(|it| !it.is_finished()));
                    drop(outcome);
                }
                told.await.unwrap().unwrap();
                if keeps {
                    client.send(other()).await.unwrap();
                    assert!(ends.iter().all(|end| !end.is_finished()));
                    drop(end);
                }
                for end in ends {
                    end.await.unwrap().unwrap();
                }
                // Whoever says it once more is answered, though nobody hears of it.
                client.send(ended(true)).await.unwrap();
                assert!(news.try_recv().is_ok_and(|(job, ..)| job == JobId(2)));
                assert!(news.try_recv().is_err());
            }
        });
    }
}
