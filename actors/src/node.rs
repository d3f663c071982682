//! A node process: it registers with its site, waits for jobs and executes them, and ends by order
//! or when it loses its head. When it must end, it first asks the scheduler to be drained, so that
//! its job loses no results.
//!
//! Assembly only, independent of the worker and of the process's start.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{Incarnation, NodeId};
use springtide_runtime::net::{Address, Contact, RefuseReason};
use springtide_runtime::remote::{Hub, Refusal, Remote, RemoteError};
use springtide_runtime::work::Registry;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::admit;
use crate::endpoint::Endpoint;
use crate::enrol::Renewal;
use crate::incarnation::{Notice, Notices};
use crate::links::{LinkChanges, LinkListener};
use crate::probe::Prober;
use crate::worker::{GetWork, Worker, WorkerConfig};
use springtide_protocol::hardware::Hardware;
use springtide_protocol::job::Shutdown;
pub use springtide_protocol::names::REGISTRAR;
use springtide_protocol::names::{ENROLMENT, SCHEDULER};
pub use springtide_protocol::node::RegisterAgain;
use springtide_protocol::receivers::{Scheduler, Site};
use springtide_protocol::scheduler::{Drain, DrainError, DrainResult};
use springtide_protocol::site::{Register, RegisterError};

/// Time without a reachable head after which a node ends. It exceeds most network cuts, during
/// which the job continues.
const HEAD_GONE: Duration = Duration::from_secs(60);
/// Timeout of a registration.
const REGISTER_WITHIN: Duration = Duration::from_secs(3);
/// Delay before a registration is retried.
const PAUSE: Duration = Duration::from_millis(200);
/// Delay before retries while the head is unreachable for long.
const PATIENT_PAUSE: Duration = Duration::from_secs(5);
/// Time for a job's threads to stop when the node ends.
const STOP_WITHIN: Duration = Duration::from_millis(700);

/// Triggers a new registration of a node when its site requests one.
pub struct Registrar {
    asked: Arc<Notify>,
}

impl Registrar {
    /// Creates the actor, which notifies `asked` for each request.
    pub fn new(asked: Arc<Notify>) -> Self {
        Self { asked }
    }
}

impl Actor for Registrar {
    type Context = Context<Self>;
}

impl Handler<RegisterAgain> for Registrar {
    type Result = ();

    fn handle(&mut self, _: RegisterAgain, _: &mut Self::Context) {
        self.asked.notify_one();
    }
}

/// Starts users' actors on an arbiter of their own and publishes them.
pub type UserActors = Arc<dyn Fn(&Arc<Hub>) + Send + Sync>;

/// An order of the host process to its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOrder {
    /// Leave the job in order, then end. If repeated, or followed by [`EndOrder::Now`]: end at
    /// once.
    Leave(String),
    /// End at once, without leaving the job.
    Now(String),
}

/// Configuration of a node.
pub struct NodeOptions {
    /// Name and address of the head.
    pub head: Contact,
    /// Published name of its site.
    pub site: String,
    /// Address of its site; absent: the head's.
    pub site_at: Option<Contact>,
    /// Its compute threads and their seam. The node itself sets the receiver of shutdowns.
    pub worker: WorkerConfig,
    /// Hardware of its machine.
    pub hardware: Hardware,
    /// Process id, for people.
    pub pid: u32,
    /// Maximum time for [`EndOrder::Leave`]; zero makes it [`EndOrder::Now`].
    pub leave_timeout: Duration,
    /// The users' own actors.
    pub actors: Option<UserActors>,
    /// Receives whether the node is registered.
    pub registered: Option<watch::Sender<bool>>,
    /// Renewal of its certificate; absent on networks without certificates.
    pub renewal: Option<Renewal>,
    /// Whether it waits for its head without limit, since it joined by itself.
    pub waits_for_head: bool,
}

/// How a node ended, by order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// By order of its host process.
    Ended,
    /// By order of the grid. A node that joined by itself must restart.
    Dismissed,
    /// Its site or the head knows a later incarnation: the node must restart with a higher one. See
    /// [`incarnation`](crate::incarnation).
    IncarnationTooLow {
        /// The known incarnation; absent if an older version refused.
        known: Option<Incarnation>,
    },
}

/// Why a node ended, other than by order.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its site refused the registration.
    #[error("the site refused the node: {0}")]
    Refused(#[from] RegisterError),
    /// Its head has an incompatible version.
    #[error("the head has an incompatible version: {0}")]
    Version(RemoteError),
    /// Its certificate does not permit the registration.
    #[error("the head does not let this node register: {0}")]
    Denied(RemoteError),
    /// Its certificate has ended.
    #[error("{0}")]
    Expired(String),
    /// A later process of the node has registered.
    #[error(
        "a later process of this node has taken its place, says {0}: two processes use one name"
    )]
    Superseded(NodeId),
    /// Its head is unreachable.
    #[error("the head at {address} could not be reached for {} s: {why}", HEAD_GONE.as_secs())]
    HeadGone {
        /// Address of the head.
        address: Address,
        /// Error of the last attempt.
        why: RemoteError,
    },
}

/// A running node. Belongs to the main arbiter of its process.
pub struct RunningNode {
    endpoint: Endpoint,
    worker: Addr<Worker>,
    links: Arc<LinkChanges>,
    /// Notified when its site requests a registration.
    asked: Arc<Notify>,
    shutdowns: UnboundedReceiver<String>,
    register: Register,
    options: NodeOptions,
}

impl RunningNode {
    /// Publishes the node's actors on this endpoint, which is not started yet, and starts it.
    pub fn start(endpoint: Endpoint, mut options: NodeOptions, registry: Arc<Registry>) -> Self {
        let links = LinkChanges::listen(&endpoint.router, LinkListener::Node);
        let (shutdown, shutdowns) = mpsc::unbounded_channel();
        options.worker.on_shutdown = Some(shutdown);
        let Endpoint { net, hub, router, recorder, .. } = endpoint.clone();
        let fingerprint = registry.fingerprint();
        Prober::publish(&hub);
        let asked = Arc::new(Notify::new());
        hub.publish(REGISTRAR, Registrar::new(asked.clone()).start())
            .accepts_from::<RegisterAgain>(admit::by_rule);
        let config = options.worker.clone();
        let worker = Worker::new(config, registry, net, hub, router, recorder);
        let worker = worker.of_head(options.head.node.clone()).publish();
        if let Some(actors) = options.actors.clone() {
            // On another arbiter, so that a blocking handler cannot stop the runtime's actors.
            let hub = endpoint.hub.clone();
            Arbiter::new().spawn_fn(move || actors(&hub));
        }
        endpoint.net.learn(options.head.clone());
        if let Some(site) = &options.site_at {
            endpoint.net.learn(site.clone());
        }
        endpoint.start();
        let register = Register {
            contact: endpoint.net.contact(),
            incarnation: endpoint.net.me().incarnation,
            threads: options.worker.threads,
            fingerprint,
            pid: options.pid,
            hardware: options.hardware.clone(),
            work: None,
        };
        let Contact { node, address, .. } = &register.contact;
        tracing::info!(%node, ?address, "started");
        Self { endpoint, worker, links, asked, shutdowns, register, options }
    }

    /// Address of its worker actor.
    pub fn worker(&self) -> Addr<Worker> {
        self.worker.clone()
    }

    /// Runs until an order to end arrives from `ends` or its site, or the head is lost.
    ///
    /// # Errors
    /// [`NodeError`], after an orderly end.
    pub async fn serve(self, mut ends: UnboundedReceiver<EndOrder>) -> Result<EndKind, NodeError> {
        let Self { endpoint, worker, links, asked, mut shutdowns, register, mut options } = self;
        let renewal = options.renewal.take();
        let patient = options.waits_for_head;
        let registered = options.registered.take();
        let enrolment = endpoint.hub.remote(&options.head.node, ENROLMENT);
        let mut expired = pin!(async {
            match renewal {
                Some(renewal) => renewal.keep(&endpoint.net, &enrolment).await,
                None => std::future::pending().await,
            }
        });
        let report = |is| {
            if let Some(registered) = &registered {
                registered.send_replace(is);
            }
        };
        let head = &options.head;
        let host = options.site_at.as_ref().unwrap_or(head);
        let site = endpoint.hub.remote(&host.node, &options.site);
        let (accepted, was_accepted) = watch::channel(false);
        let params =
            RegistrationParams { address: &host.address, patient, report: &report, accepted };
        let mut registration =
            pin!(stay_registered(&site, &worker, &register, (&links, &asked), params));
        let authorities = [&host.node, &head.node];
        let notices = endpoint.notices.clone();
        let mut outnumbered = pin!(outnumbered(notices, authorities, was_accepted));
        let mut served = EndKind::Ended;
        let order = tokio::select! {
            biased;
            Some(end) = ends.recv() => Ok(end),
            Some(reason) = shutdowns.recv() => {
                served = EndKind::Dismissed;
                Ok(EndOrder::Now(reason))
            }
            why = &mut expired => Err(NodeError::Expired(why)),
            known = &mut outnumbered => known.map(|known| {
                served = EndKind::IncarnationTooLow { known };
                EndOrder::Now("the head knows a later incarnation of this node".to_owned())
            }),
            known = &mut registration => known.map(|known| {
                served = EndKind::IncarnationTooLow { known };
                EndOrder::Now("its site knows a later incarnation of this node".to_owned())
            }),
        };
        let order = match order {
            Ok(EndOrder::Leave(reason)) if !options.leave_timeout.is_zero() => {
                let within = options.leave_timeout;
                tracing::info!("{reason}: leaves its job first, within {within:?}");
                let scheduler = endpoint.hub.remote(&head.node, SCHEDULER);
                let me = (&register.contact.node, register.incarnation);
                tokio::select! {
                    biased;
                    Some(EndOrder::Leave(again) | EndOrder::Now(again)) = ends.recv() => {
                        Ok(format!("{reason}, then {again}: at once"))
                    }
                    Some(by_order) = shutdowns.recv() => Ok(by_order),
                    result = leave(&scheduler, me, &reason, within) => {
                        Ok(format!("{reason}: {result}"))
                    }
                    stopped = &mut registration => stopped.map(|_| reason),
                }
            }
            Ok(EndOrder::Leave(reason) | EndOrder::Now(reason)) => Ok(reason),
            Err(error) => Err(error),
        };
        let (ended, reason) = match order {
            Ok(reason) => (Ok(served), reason),
            Err(error) => {
                let reason = error.to_string();
                (Err(error), reason)
            }
        };
        tracing::info!("ends: {reason}");
        report(false);
        // A job's threads must not delay the end; their unfinished work is lost with the node in
        // any case.
        let _ = timeout(STOP_WITHIN, worker.send(Shutdown { reason: reason.clone() })).await;
        endpoint.net.close(&reason).await;
        ended
    }
}

/// Asks the scheduler to drain the node, and describes the result. The node keeps working until its
/// job releases it. A head that is gone may come back, and is asked again.
async fn leave(
    scheduler: &Remote<Scheduler>,
    (node, incarnation): (&NodeId, Incarnation),
    reason: &str,
    within: Duration,
) -> String {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Leaves time for the answer of a job that releases the node at the deadline.
        let deadline = left.saturating_sub((within / 10).min(Duration::from_secs(1)));
        let drain = Drain {
            nodes: vec![node.clone()],
            reason: reason.to_owned(),
            deadline_ms: Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)),
            incarnation: Some(incarnation),
        };
        let answer = scheduler.send(drain).deadline(left).await;
        let left = until.saturating_duration_since(Instant::now());
        if left <= PAUSE || !is_asked_again(&answer) {
            return describe_leave(answer, within);
        }
        sleep(PAUSE).await;
    }
}

/// Whether the scheduler may still answer, although it did not now.
fn is_asked_again(answer: &Result<Result<DrainResult, DrainError>, RemoteError>) -> bool {
    matches!(answer, Err(RemoteError::Gone { .. } | RemoteError::NoActor { .. }))
}

fn describe_leave(
    answer: Result<Result<DrainResult, DrainError>, RemoteError>,
    within: Duration,
) -> String {
    match answer {
        Ok(Ok(_)) => "it is empty".to_owned(),
        Ok(Err(error)) => format!("it does not leave in order: {error}"),
        Err(RemoteError::Timeout { .. }) => {
            format!("it is not empty after {within:?}: unfinished work is computed elsewhere")
        }
        Err(error) => format!("it does not leave in order: the scheduler did not answer: {error}"),
    }
}

/// Parameters of a node's registration.
struct RegistrationParams<'a> {
    address: &'a Address,
    /// Whether it retries without limit.
    patient: bool,
    /// Receives whether the node is registered.
    report: &'a dyn Fn(bool),
    /// Whether the site has accepted this process before.
    accepted: watch::Sender<bool>,
}

/// Waits until the head or the site knows a later incarnation of this node, and judges that by the
/// table of [`incarnation`](crate::incarnation). Completes with the known incarnation if the node
/// must exceed it.
async fn outnumbered(
    mut notices: Notices,
    authorities: [&NodeId; 2],
    registered: watch::Receiver<bool>,
) -> Result<Option<Incarnation>, NodeError> {
    loop {
        let Notice { peer, known } = notices.next().await;
        // Other nodes do not decide which process of this node is valid.
        if !authorities.contains(&&peer) {
            continue;
        }
        return if *registered.borrow() { Err(NodeError::Superseded(peer)) } else { Ok(known) };
    }
}

/// Registers, and repeats it after each change of the link and on request of the site. Completes
/// when the registration is refused, or with the incarnation known to the site if the node must
/// exceed it.
async fn stay_registered(
    site: &Remote<Site>,
    worker: &Addr<Worker>,
    register: &Register,
    (links, asked): (&LinkChanges, &Notify),
    RegistrationParams { address, patient, report, accepted }: RegistrationParams<'_>,
) -> Result<Option<Incarnation>, NodeError> {
    let mut alone_since = Instant::now();
    let mut reported_alone = false;
    loop {
        // The site may have been restarted, and not know this node's job.
        let work = worker.send(GetWork).await.unwrap_or_default();
        let register = Register { work, ..register.clone() };
        match site.send(register).deadline(REGISTER_WITHIN).await {
            Ok(Ok(())) => {
                if std::mem::take(&mut reported_alone) {
                    tracing::info!("registered again");
                } else {
                    tracing::debug!("registered");
                }
                report(true);
                accepted.send_replace(true);
                let changed = async { while !links.next().await.contains_key(site.node()) {} };
                tokio::select! {
                    biased;
                    () = changed => {}
                    () = asked.notified() => {}
                }
                alone_since = Instant::now();
                report(false);
            }
            Ok(Err(RegisterError::Stale { known, .. })) if !*accepted.borrow() => return Ok(known),
            Ok(Err(RegisterError::Stale { .. })) => {
                return Err(NodeError::Superseded(site.node().clone()));
            }
            Ok(Err(refused)) => return Err(refused.into()),
            // An incompatible version stays incompatible.
            Err(error)
                if matches!(error.refused(), Some(RefuseReason::Protocol | RefuseReason::Alpn)) =>
            {
                return Err(NodeError::Version(error));
            }
            Err(error @ RemoteError::Refused { reason: Refusal::Role | Refusal::Identity, .. }) => {
                return Err(NodeError::Denied(error));
            }
            Err(error) if error.refused() == Some(RefuseReason::Revoked) => {
                return Err(NodeError::Denied(error));
            }
            Err(error) if alone_since.elapsed() >= HEAD_GONE && patient => {
                if !std::mem::replace(&mut reported_alone, true) {
                    tracing::warn!(
                        "the head at {address} is unreachable; retrying without limit: {error}"
                    );
                }
                sleep(PATIENT_PAUSE).await;
            }
            Err(error) if alone_since.elapsed() >= HEAD_GONE => {
                return Err(NodeError::HeadGone { address: address.clone(), why: error });
            }
            Err(error) => {
                tracing::debug!("not registered yet: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::JobId;

    use super::*;

    #[test]
    fn results_of_a_leave_are_described() {
        let within = Duration::from_secs(30);
        let timeout = RemoteError::Timeout {
            node: "head".into(),
            actor: SCHEDULER.to_owned(),
            message: "drain",
            deadline: within,
        };
        let gone = RemoteError::Gone { node: "head".into(), reason: "it is off".into() };
        let minimum = DrainError::BelowMinimum { job: JobId(1), min: 2.into(), left: 1.into() };
        for (answer, again, expected) in [
            (Ok(Ok(DrainResult::default())), false, "it is empty"),
            (Ok(Err(minimum)), false, "it does not leave in order: job-1 needs 2 processors"),
            (Err(timeout), false, "it is not empty after 30s"),
            (Err(gone), true, "the scheduler did not answer: node head is gone"),
        ] {
            assert_eq!(is_asked_again(&answer), again);
            let text = describe_leave(answer, within);
            assert!(text.contains(expected), "{text}");
        }
    }
}
