//! What leaves a coordinator for its client: what the root reports, as notes in order, and the job's end.
//!
//! Must not know what is decided by it.

use actix::dev::ToEnvelope;
use springtide_runtime::remote::{Refusal, RemoteError, RemoteMessage};
use springtide_runtime::work::Note;

use super::negotiate::{Unneeded, WantNodes};
use super::*;

/// How long the client may take to take in a note (an artefact crosses the network).
const NOTE_DEADLINE: Duration = Duration::from_secs(120);
/// A client or scheduler that was not reached for so long is lost.
const CLIENT_GONE: Duration = Duration::from_secs(120);
/// Until then it is tried this often.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Progress notes are sent at most this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What goes to client and scheduler, in order.
pub(super) enum Outgoing {
    Note(NoteKind),
    /// The outcome; dropped when the client has it, or is given up.
    Outcome(Box<Outcome>, oneshot::Sender<()>),
    End(Box<JobEnded>, JobOver),
}

/// Turns what the root reports into notes, in order; iterations are timed by when they were reported.
pub(super) async fn read_reports(
    mut reports: mpsc::UnboundedReceiver<Reported>,
    out: mpsc::UnboundedSender<Outgoing>,
    coordinator: Addr<Coordinator>,
    recorder: Recorder,
    job: JobId,
    told: Arc<Mutex<RootTold>>,
) {
    let told = || told.lock().unwrap_or_else(PoisonError::into_inner);
    let mut iterations = Vec::new();
    // Those that a former root told.
    let mut before = 0;
    let mut last_iteration = Instant::now();
    let mut last_progress: Option<Instant> = None;
    while let Some(report) = reports.recv().await {
        let (at, note) = match report {
            Reported::Started(at, told) => {
                last_iteration = at;
                before = told;
                iterations.clear();
                continue;
            }
            Reported::Note(at, note) => (at, note),
            Reported::Ended(end) => {
                let iterations = iterations.clone();
                // The coordinator lives until it has told the end. A root that was stopped may begin here again.
                let _ = coordinator.send(RootEnded { end, iterations }).await;
                continue;
            }
        };
        let kind = match note {
            Note::Iteration => {
                let took = at.saturating_duration_since(last_iteration);
                last_iteration = at;
                let index = before + iterations.len() as u64;
                iterations.push(took.as_secs_f64());
                let iterations = index + 1;
                {
                    let mut told = told();
                    told.reached.take_further(Reached { iterations, ..Reached::default() });
                    told.iteration_s = took.as_secs_f64();
                }
                recorder.record_at(
                    Event::IterationDone {
                        job,
                        iteration: index,
                        wall_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                        detail: serde_json::Value::Null,
                    },
                    at,
                );
                NoteKind::Iteration { index, seconds: took.as_secs_f64() }
            }
            Note::Progress { done, total, what } => {
                {
                    let mut told = told();
                    told.what.clone_from(&what);
                    told.progress = Some(Progress { done, total: (total > 0).then_some(total) });
                    told.reached.take_further(Reached { done, ..Reached::default() });
                }
                let soon = last_progress.is_some_and(|last| at < last + PROGRESS_EVERY);
                if soon && done < total {
                    continue;
                }
                last_progress = Some(at);
                NoteKind::Progress { done, total, what }
            }
            Note::Say { text } => NoteKind::Say { text },
            Note::Preliminary { outcome } => NoteKind::Preliminary { outcome: Box::new(outcome) },
            Note::Artifact { name, bytes } => NoteKind::Artifact { name, bytes },
            Note::NeedNodes { more, within } => {
                let _ = coordinator.send(WantNodes { more, within }).await;
                continue;
            }
            Note::Release { nodes } => {
                coordinator.do_send(Unneeded { nodes });
                continue;
            }
            Note::Checkpoint(saved) => {
                let iterations = before + iterations.len() as u64;
                let checkpoint = saved.seq;
                told().reached.take_further(Reached { checkpoint, ..Reached::default() });
                coordinator.do_send(succeed::Checkpointed { saved, iterations });
                continue;
            }
        };
        if out.send(Outgoing::Note(kind)).is_err() {
            return;
        }
    }
}

/// Tells the client all notes in order, and client and scheduler the end.
pub(super) async fn forward(
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    client: Remote<Client>,
    scheduler: Remote<Scheduler>,
    coordinator: Addr<Coordinator>,
    cancelled: Arc<AtomicBool>,
    (job, epoch): (JobId, Epoch),
) {
    let mut seq = 0;
    let mut client_lost = false;
    let never = AtomicBool::new(false);
    while let Some(item) = outgoing.recv().await {
        let (what, told) = match item {
            Outgoing::Note(what) => (what, None),
            Outgoing::Outcome(outcome, told) => (NoteKind::Outcome { outcome }, Some(told)),
            Outgoing::End(ended, over) => {
                // A client beside the scheduler is there when that is, and keeps jobs that nobody waits for: one that it has not
                // heard the end of would be lost when the scheduler forgets it.
                let beside = client.node() == scheduler.node();
                let give_up = if beside { &never } else { &*cancelled };
                if (beside || !client_lost)
                    && let Err(error) = insist(&client, *ended, give_up).await
                {
                    tracing::warn!(%error, "the client did not take the job's end");
                }
                if let Err(error) = insist(&scheduler, over, &never).await {
                    tracing::warn!(%error, "the scheduler did not take the job's end");
                }
                return;
            }
        };
        if client_lost {
            continue;
        }
        let note = JobNote { job, epoch, seq, what };
        seq += 1;
        if let Err(error) = insist(&client, note, &cancelled).await {
            tracing::warn!(%error, "the client does not take notes any more");
            client_lost = true;
            // Another coordinates the job: it is not this one's to end.
            let replaced = matches!(error.refusal(), Some(Refusal::Stale | Refusal::Place));
            if !replaced {
                let reason = format!("its client is lost ({error})");
                let _ = coordinator.send(Cancel { job, reason }).await;
            }
        }
        drop(told);
    }
}

/// Sends it, again and again while the other side cannot be reached: a cut heals, and what the job computes meanwhile is right.
async fn insist<A, M>(to: &Remote<A>, message: M, give_up: &AtomicBool) -> Result<(), RemoteError>
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: RemoteMessage<Result = ()> + Clone,
{
    let began = Instant::now();
    loop {
        match to.send(message.clone()).deadline(NOTE_DEADLINE).await {
            // Where a head has just begun anew, its actors are there in a moment.
            Err(
                RemoteError::Gone { .. }
                | RemoteError::Timeout { .. }
                | RemoteError::NoActor { .. }
                | RemoteError::Refused { why: Refusal::Unconfirmed, .. },
            ) if began.elapsed() < CLIENT_GONE && !give_up.load(Ordering::Relaxed) => {
                tokio::time::sleep(TELL_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::Peer;
    use springtide_runtime::net::MemoryNet;
    use tokio::time::sleep;

    use super::*;
    use crate::endpoint::Endpoint;

    type Heard = Arc<Mutex<Vec<&'static str>>>;

    /// In the client's place, or the scheduler's.
    struct Ear(Heard);

    impl Actor for Ear {
        type Context = Context<Self>;
    }

    impl Ear {
        fn note(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Handler<JobNote> for Ear {
        type Result = ();

        fn handle(&mut self, _: JobNote, _: &mut Self::Context) {
            self.note("a note");
        }
    }

    impl Handler<JobEnded> for Ear {
        type Result = ();

        fn handle(&mut self, _: JobEnded, _: &mut Self::Context) {
            self.note("the end");
        }
    }

    impl Handler<JobOver> for Ear {
        type Result = ();

        fn handle(&mut self, _: JobOver, _: &mut Self::Context) {
            self.note("it is over");
        }
    }

    /// A cancelled job whose coordinator has a note and the end to tell, and a head where only the scheduler listens.
    struct Test {
        head: Endpoint,
        heard: Heard,
        _others: [Endpoint; 2],
    }

    impl Test {
        /// With a client on this node.
        fn of(client: &str) -> Self {
            tokio::time::pause();
            let network = MemoryNet::new(1);
            let [head, desk, own] = ["head", "desk-1", "ams-1"].map(|name| {
                let cluster = name.split('-').next().unwrap().into();
                let peer = Peer { node: name.into(), incarnation: Incarnation(1), cluster };
                Endpoint::over(network.join(peer).unwrap())
            });
            for other in [&head, &desk] {
                own.net.learn(other.net.contact());
            }
            let heard = Heard::default();
            let ear = Ear(heard.clone()).start();
            head.hub.publish(SCHEDULER, ear).accepts::<JobOver>();
            [&head, &desk, &own].into_iter().for_each(Endpoint::start);

            let (job, epoch) = (JobId(1), Epoch(1));
            let (tell, outgoing) = mpsc::unbounded_channel();
            let outcome = Err(JobError::Cancelled { reason: "test".to_owned() });
            let report = JobReport::default();
            let end = JobEnded { job, epoch: Some(epoch), outcome, report };
            let over = JobOver { job, epoch, ok: false, ended: None };
            let note = NoteKind::Say { text: "of no use any more".to_owned() };
            for item in [Outgoing::Note(note), Outgoing::End(Box::new(end), over)] {
                assert!(tell.send(item).is_ok());
            }
            // It is told of a lost client, and need not be there for that.
            let coordinator = Context::<Coordinator>::new().address();
            let client = own.hub.remote::<Client>(&client.into(), CLIENT);
            let scheduler = own.hub.remote::<Scheduler>(&"head".into(), SCHEDULER);
            let cancelled = Arc::new(AtomicBool::new(true));
            actix::spawn(forward(
                outgoing,
                client,
                scheduler,
                coordinator,
                cancelled,
                (job, epoch),
            ));
            Self { head, heard, _others: [desk, own] }
        }

        fn heard(&self) -> Vec<&'static str> {
            self.heard.lock().unwrap().clone()
        }
    }

    /// Who keeps the jobs that nobody waits for is beside the scheduler, which forgets a job when it hears that it is over.
    #[actix::test]
    async fn beside_the_scheduler_the_end_is_told_until_it_is_taken() {
        let test = Test::of("head");
        sleep(CLIENT_GONE * 3 / 4).await;
        assert_eq!(test.heard(), [""; 0], "the job would be forgotten, and its end with it");
        let ear = Ear(test.heard.clone()).start();
        test.head.hub.publish(CLIENT, ear).accepts::<JobNote>().accepts::<JobEnded>();
        sleep(TELL_AGAIN * 3).await;
        // Notes are not: it was lost for them when it did not take the first.
        assert_eq!(test.heard(), ["the end", "it is over"]);
    }

    #[actix::test]
    async fn a_client_elsewhere_that_does_not_take_it_keeps_no_cancelled_job_alive() {
        let test = Test::of("desk-1");
        sleep(TELL_AGAIN * 3).await;
        assert_eq!(test.heard(), ["it is over"]);
    }
}
