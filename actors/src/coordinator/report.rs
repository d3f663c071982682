//! Messages of a coordinator to its client: the root's reports as notes in order, and the job's
//! end.
//!
//! This module does not know decisions.

use springtide_protocol::look::PICTURE_BYTES_MAX;
use springtide_runtime::remote::{Receives, Refusal, Remote, RemoteError, RemoteMessage};
use springtide_runtime::work::{PhaseTimes, ProgressReport};

use super::negotiate::{Unneeded, WantNodes};
use super::*;

/// Timeout of a note to the client (an artefact crosses the network).
const NOTE_DEADLINE: Duration = Duration::from_secs(120);
/// Time after which an unreachable client or scheduler is lost.
const CLIENT_GONE: Duration = Duration::from_secs(120);
/// Interval of retries until then.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Minimum interval between progress notes.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Messages to client and scheduler, in order.
pub(super) enum OutgoingReport {
    Note(NoteKind),
    /// The outcome. The sender is dropped when the client has it or is lost.
    Outcome(Box<Outcome>, oneshot::Sender<()>),
    End(Box<JobEndReport>, JobEndNotice),
}

/// Converts the root's reports into notes, in order. Iterations are timed by their reports.
pub(super) async fn read_reports(
    mut reports: mpsc::UnboundedReceiver<RootReport>,
    out: mpsc::UnboundedSender<OutgoingReport>,
    coordinator: Addr<Coordinator>,
    recorder: Recorder,
    job: JobId,
    root_progress: Arc<Mutex<RootReportState>>,
) {
    let progress = || root_progress.lock().unwrap_or_else(PoisonError::into_inner);
    let mut iterations = Vec::new();
    // The phases of the iteration that ends next.
    let mut of_iteration = None;
    // Iterations of former roots.
    let mut before = 0;
    let mut last_iteration = Instant::now();
    let mut last_progress: Option<Instant> = None;
    while let Some(report) = reports.recv().await {
        let (at, note) = match report {
            RootReport::Started(at, reported) => {
                last_iteration = at;
                before = reported;
                iterations.clear();
                continue;
            }
            RootReport::Note(at, note) => (at, note),
            RootReport::Ended(end) => {
                let (iterations, phases) = (iterations.clone(), progress().phases.clone());
                // The coordinator lives until it has reported the end. A stopped root may restart
                // here.
                let _ = coordinator.send(RootEndReport { end, iterations, phases }).await;
                continue;
            }
        };
        let kind = match note {
            ProgressReport::Iteration => {
                let took = at.saturating_duration_since(last_iteration);
                last_iteration = at;
                let index = before + iterations.len() as u64;
                iterations.push(took.as_secs_f64());
                let iterations = index + 1;
                {
                    let mut known = progress();
                    known.reached.merge_max(RootProgress { iterations, ..RootProgress::default() });
                    known.iteration_s = took.as_secs_f64();
                }
                recorder.record_at(
                    Event::IterationDone {
                        job,
                        iteration: index,
                        wall_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                        detail: of_iteration
                            .take()
                            .map_or(serde_json::Value::Null, |times: PhaseTimes| times.to_json()),
                    },
                    at,
                );
                NoteKind::Iteration { index, seconds: took.as_secs_f64() }
            }
            ProgressReport::Phases(times) => {
                progress().phases.add(&times);
                of_iteration = Some(times);
                continue;
            }
            ProgressReport::Progress { done, total, what } => {
                {
                    let mut known = progress();
                    known.unit.clone_from(&what);
                    known.progress =
                        Some(JobProgress { done, total: (total > 0).then_some(total) });
                    known.reached.merge_max(RootProgress { done, ..RootProgress::default() });
                }
                let soon = last_progress.is_some_and(|last| at < last + PROGRESS_EVERY);
                if soon && done < total {
                    continue;
                }
                last_progress = Some(at);
                NoteKind::Progress { done, total, what }
            }
            ProgressReport::Synchronous => {
                progress().is_synchronous = true;
                continue;
            }
            ProgressReport::Say { text } => NoteKind::Text { text },
            ProgressReport::Preliminary { outcome } => {
                NoteKind::Preliminary { outcome: Box::new(outcome) }
            }
            ProgressReport::ClientMessage { body } => NoteKind::Message { body },
            ProgressReport::Artifact { name, bytes } => {
                if name.ends_with(".png") && bytes.len() <= PICTURE_BYTES_MAX {
                    let mut known = progress();
                    let number = known.picture.as_ref().map_or(0, |last| last.number) + 1;
                    let (name, bytes) = (name.clone(), bytes.clone());
                    known.picture = Some(JobPicture { number, name, bytes });
                }
                NoteKind::Artifact { name, bytes }
            }
            ProgressReport::Output { rank, attempt, processes, stream, bytes } => {
                NoteKind::Output { rank, attempt, processes, stream, bytes }
            }
            ProgressReport::NeedNodes { more, within } => {
                let _ = coordinator.send(WantNodes { more, timeout: within }).await;
                continue;
            }
            ProgressReport::Release { nodes } => {
                coordinator.do_send(Unneeded { nodes });
                continue;
            }
            ProgressReport::Checkpoint(saved) => {
                let iterations = before + iterations.len() as u64;
                let checkpoint = saved.seq;
                progress()
                    .reached
                    .merge_max(RootProgress { checkpoint, ..RootProgress::default() });
                coordinator.do_send(succeed::Checkpointed { saved, iterations });
                continue;
            }
        };
        if out.send(OutgoingReport::Note(kind)).is_err() {
            return;
        }
    }
}

/// Sends the client all notes in order, and client and scheduler the end.
pub(super) async fn forward(
    mut outgoing: mpsc::UnboundedReceiver<OutgoingReport>,
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
            OutgoingReport::Note(what) => (what, None),
            OutgoingReport::Outcome(outcome, told) => (NoteKind::Outcome { outcome }, Some(told)),
            OutgoingReport::End(ended, over) => {
                // A client on the scheduler's node is available with the scheduler, and keeps
                // unattended jobs. If the scheduler forgot a job whose end this client did not
                // receive, the end would be lost.
                let is_local = client.node() == scheduler.node();
                let abort = if is_local { &never } else { &*cancelled };
                if (is_local || !client_lost)
                    && let Err(error) = send_until_accepted(&client, *ended, abort).await
                {
                    tracing::warn!(%error, "the job's end did not reach the client");
                }
                if let Err(error) = send_until_accepted(&scheduler, over, &never).await {
                    tracing::warn!(%error, "the job's end did not reach the scheduler");
                }
                return;
            }
        };
        if client_lost {
            continue;
        }
        let note = JobNote { job, epoch, seq, kind: what };
        seq += 1;
        if let Err(error) = send_until_accepted(&client, note, &cancelled).await {
            tracing::warn!(%error, "the client is lost; notes are dropped");
            client_lost = true;
            // Another node coordinates the job, and is responsible for its end.
            let replaced = matches!(error.refusal(), Some(Refusal::Stale | Refusal::JobRole));
            if !replaced {
                let reason = format!("its client is lost ({error})");
                let _ = coordinator.send(Cancel { job, reason }).await;
            }
        }
        drop(told);
    }
}

/// Sends a message repeatedly while the receiver is unreachable: a cut may heal, and the job's work
/// stays valid.
async fn send_until_accepted<A, M>(
    to: &Remote<A>,
    message: M,
    abort: &AtomicBool,
) -> Result<(), RemoteError>
where
    A: Receives<M>,
    M: RemoteMessage<Result = ()> + Clone,
{
    let began = Instant::now();
    loop {
        match to.send(message.clone()).deadline(NOTE_DEADLINE).await {
            // Actors of a restarted head become available shortly.
            Err(
                RemoteError::Gone { .. }
                | RemoteError::Timeout { .. }
                | RemoteError::NoActor { .. }
                | RemoteError::Refused { reason: Refusal::Unconfirmed, .. },
            ) if began.elapsed() < CLIENT_GONE && !abort.load(Ordering::Relaxed) => {
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

    type Received = Arc<Mutex<Vec<&'static str>>>;

    /// Receiver in place of the client or the scheduler.
    struct TestReceiver(Received);

    impl Actor for TestReceiver {
        type Context = Context<Self>;
    }

    impl TestReceiver {
        fn note(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Handler<JobNote> for TestReceiver {
        type Result = ();

        fn handle(&mut self, _: JobNote, _: &mut Self::Context) {
            self.note("a note");
        }
    }

    impl Handler<JobEndReport> for TestReceiver {
        type Result = ();

        fn handle(&mut self, _: JobEndReport, _: &mut Self::Context) {
            self.note("the end");
        }
    }

    impl Handler<JobEndNotice> for TestReceiver {
        type Result = ();

        fn handle(&mut self, _: JobEndNotice, _: &mut Self::Context) {
            self.note("it is over");
        }
    }

    /// A cancelled job whose coordinator has a note and the end to send, and a head with a
    /// scheduler only.
    struct Test {
        head: Endpoint,
        received: Received,
        _others: [Endpoint; 2],
    }

    impl Test {
        /// A test with a client on this node.
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
            let received = Received::default();
            let receiver = TestReceiver(received.clone()).start();
            head.hub.publish(SCHEDULER, receiver).accepts::<JobEndNotice>();
            [&head, &desk, &own].into_iter().for_each(Endpoint::start);

            let (job, epoch) = (JobId(1), Epoch(1));
            let (tell, outgoing) = mpsc::unbounded_channel();
            let outcome = Err(JobError::Cancelled { reason: "test".to_owned() });
            let report = JobReport::default();
            let end = JobEndReport { job, epoch: Some(epoch), outcome, report };
            let over = JobEndNotice { job, epoch, ok: false, ended: None };
            let note = NoteKind::Text { text: "obsolete".to_owned() };
            for item in [OutgoingReport::Note(note), OutgoingReport::End(Box::new(end), over)] {
                assert!(tell.send(item).is_ok());
            }
            // It would learn of a lost client, which this test does not need.
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
            Self { head, received, _others: [desk, own] }
        }

        fn received(&self) -> Vec<&'static str> {
            self.received.lock().unwrap().clone()
        }
    }

    /// A client on the scheduler's node keeps unattended jobs, and the scheduler forgets a job once
    /// it is over.
    #[actix::test]
    async fn the_end_is_repeated_to_a_client_on_the_schedulers_node() {
        let test = Test::of("head");
        sleep(CLIENT_GONE * 3 / 4).await;
        assert_eq!(test.received(), [""; 0], "the job would be forgotten, and its end lost");
        let receiver = TestReceiver(test.received.clone()).start();
        test.head.hub.publish(CLIENT, receiver).accepts::<JobNote>().accepts::<JobEndReport>();
        sleep(TELL_AGAIN * 3).await;
        // Notes are dropped: the client counted as lost after the first.
        assert_eq!(test.received(), ["the end", "it is over"]);
    }

    #[actix::test]
    async fn an_unreachable_remote_client_does_not_delay_the_end_of_a_cancelled_job() {
        let test = Test::of("desk-1");
        sleep(TELL_AGAIN * 3).await;
        assert_eq!(test.received(), ["it is over"]);
    }
}
