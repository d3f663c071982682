//! A node process: it registers with its site, stays warm, serves jobs, and ends when told or left alone. Told to leave,
//! it first asks the scheduler to be emptied, so that its job loses nothing that was finished.
//!
//! Assembly only; must not know what its worker does, nor how the process came about.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::{Incarnation, NodeId};
use springtide_runtime::net::{Address, Contact, RefuseReason};
use springtide_runtime::remote::{Hub, Refusal, Remote, RemoteError};
use springtide_runtime::remote_message;
use springtide_runtime::work::Registry;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::admit;
use crate::endpoint::Endpoint;
use crate::enrol::{ENROLMENT, Renewal};
use crate::hardware::Hardware;
use crate::incarnation::{Notice, Notices};
use crate::job::{SCHEDULER, Shutdown};
use crate::links::{Door, Links};
use crate::probe::Prober;
use crate::scheduler::{Drain, DrainError, Drained, Scheduler};
use crate::site::{Register, RegisterError, Site};
use crate::worker::{GetWork, Worker, WorkerConfig};

/// A node whose head cannot be reached for this long ends. Longer than most cuts: meanwhile its job goes on.
const HEAD_GONE: Duration = Duration::from_secs(60);
/// A site that has not answered a registration after this time is asked again.
const REGISTER_WITHIN: Duration = Duration::from_secs(3);
/// Wait before a registration is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// The same where the head has been away for long.
const PATIENT_PAUSE: Duration = Duration::from_secs(5);
/// A job's threads get this long to stop when the node ends.
const STOP_WITHIN: Duration = Duration::from_millis(700);

/// The published name of who has a node register.
pub const REGISTRAR: &str = "registrar";

/// To a node, by its site: say again that you are there, and what you work for. The scheduler may be another than the one that was told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegisterAnew {}

remote_message! {
    "register-anew" => RegisterAnew;
}

/// Has a node register again when its site asks for that.
pub struct Registrar {
    asked: Arc<Notify>,
}

impl Registrar {
    /// Notifies this each time.
    pub fn new(asked: Arc<Notify>) -> Self {
        Self { asked }
    }
}

impl Actor for Registrar {
    type Context = Context<Self>;
}

impl Handler<RegisterAnew> for Registrar {
    type Result = ();

    fn handle(&mut self, _: RegisterAnew, _: &mut Self::Context) {
        self.asked.notify_one();
    }
}

/// Starts users' actors on an arbiter of their own and publishes them.
pub type UserActors = Arc<dyn Fn(&Arc<Hub>) + Send + Sync>;

/// What a node is told by whoever runs its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// To leave its job in order, then to end. Said again, or followed by [`End::Now`]: to end at once.
    Leave(String),
    /// To end at once.
    Now(String),
}

/// How a node is made.
pub struct NodeOptions {
    /// The head, and where it is reached.
    pub head: Contact,
    /// The published name of its site.
    pub site: String,
    /// Where its site is; absent: at the head.
    pub site_at: Option<Contact>,
    /// Its compute threads and what they block at; whom a shutdown is told to is the node's own matter.
    pub worker: WorkerConfig,
    /// Its machine.
    pub hardware: Hardware,
    /// Its process, as the system calls it; for people.
    pub pid: u32,
    /// How long [`End::Leave`] may take; nothing: it is [`End::Now`].
    pub leave_within: Duration,
    /// The users' own actors.
    pub actors: Option<UserActors>,
    /// Hears whether the node is registered.
    pub registered: Option<watch::Sender<bool>>,
    /// It renews its certificate. Absent where there are no certificates.
    pub renewal: Option<Renewal>,
    /// It joined by itself: it waits for its head however long that is away.
    pub patient: bool,
}

/// How a node ended, by order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// Whoever runs its process said so.
    Ended,
    /// The grid said so. A node that joined by itself is to begin a new life.
    Dismissed,
    /// Its site or the head knows a later incarnation: the node is to begin again above that. See
    /// [`incarnation`](crate::incarnation).
    Outnumbered {
        /// What is known. Absent where a former version refused.
        known: Option<Incarnation>,
    },
}

/// Why a node ended, other than by order.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its site does not want it.
    #[error("the site refused the node: {0}")]
    Refused(#[from] RegisterError),
    /// Its head speaks another version.
    #[error("the head cannot be spoken with: {0}")]
    Version(RemoteError),
    /// Its certificate does not let it register.
    #[error("the head does not let this node register: {0}")]
    Denied(RemoteError),
    /// Its certificate has ended.
    #[error("{0}")]
    Expired(String),
    /// A later process of the node has registered.
    #[error(
        "a later process of this node has taken its place, says {0}: two processes under one name are one too many"
    )]
    Superseded(NodeId),
    /// Its head is gone, or never was there.
    #[error("the head at {address} could not be reached for {} s: {why}", HEAD_GONE.as_secs())]
    HeadGone {
        /// Where it was looked for.
        address: Address,
        /// The last attempt's error.
        why: RemoteError,
    },
}

/// A node that takes part. Belongs to the main arbiter of its process.
pub struct Node {
    endpoint: Endpoint,
    worker: Addr<Worker>,
    links: Arc<Links>,
    /// Its site wants to be told again.
    asked: Arc<Notify>,
    shutdowns: UnboundedReceiver<String>,
    register: Register,
    options: NodeOptions,
}

impl Node {
    /// Publishes the node's actors behind this endpoint, which is not started yet, and starts it.
    pub fn start(endpoint: Endpoint, mut options: NodeOptions, registry: Arc<Registry>) -> Self {
        let links = Links::listen(&endpoint.router, Door::Node);
        let (shutdown, shutdowns) = mpsc::unbounded_channel();
        options.worker.on_shutdown = Some(shutdown);
        let Endpoint { net, hub, router, recorder, .. } = endpoint.clone();
        let fingerprint = registry.fingerprint();
        Prober::publish(&hub);
        let asked = Arc::new(Notify::new());
        hub.publish(REGISTRAR, Registrar::new(asked.clone()).start())
            .accepts_from::<RegisterAnew>(admit::by_rule);
        let config = options.worker.clone();
        let worker = Worker::new(config, registry, net, hub, router, recorder);
        let worker = worker.of_head(options.head.node.clone()).publish();
        if let Some(actors) = options.actors.clone() {
            // Apart from the runtime's own, so that a handler that blocks cannot stop them.
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
        tracing::info!(node = %register.contact.node, address = ?register.contact.address, "started");
        Self { endpoint, worker, links, asked, shutdowns, register, options }
    }

    /// Its worker.
    pub fn worker(&self) -> Addr<Worker> {
        self.worker.clone()
    }

    /// Runs until it is told to end, by `ends` or by its site, or is left alone.
    ///
    /// # Errors
    /// [`NodeError`], after an orderly end.
    pub async fn serve(self, mut ends: UnboundedReceiver<End>) -> Result<Served, NodeError> {
        let Self { endpoint, worker, links, asked, mut shutdowns, register, mut options } = self;
        let renewal = options.renewal.take();
        let patient = options.patient;
        let registered = options.registered.take();
        let enrolment = endpoint.hub.remote(&options.head.node, ENROLMENT);
        let mut expired = pin!(async {
            match renewal {
                Some(renewal) => renewal.keep(&endpoint.net, &enrolment).await,
                None => std::future::pending().await,
            }
        });
        let tell = |is| {
            if let Some(registered) = &registered {
                registered.send_replace(is);
            }
        };
        let head = &options.head;
        let host = options.site_at.as_ref().unwrap_or(head);
        let site = endpoint.hub.remote(&host.node, &options.site);
        let (accepted, was_accepted) = watch::channel(false);
        let calling = Calling { address: &host.address, patient, tell: &tell, accepted };
        let mut registration =
            pin!(stay_registered(&site, &worker, &register, (&links, &asked), calling));
        let authorities = [&host.node, &head.node];
        let notices = endpoint.notices.clone();
        let mut outnumbered = pin!(outnumbered(notices, authorities, was_accepted));
        let mut served = Served::Ended;
        let told = tokio::select! {
            biased;
            Some(end) = ends.recv() => Ok(end),
            Some(reason) = shutdowns.recv() => {
                served = Served::Dismissed;
                Ok(End::Now(reason))
            }
            why = &mut expired => Err(NodeError::Expired(why)),
            known = &mut outnumbered => known.map(|known| {
                served = Served::Outnumbered { known };
                End::Now("the head knows a later incarnation of this node".to_owned())
            }),
            known = &mut registration => known.map(|known| {
                served = Served::Outnumbered { known };
                End::Now("its site knows a later incarnation of this node".to_owned())
            }),
        };
        let told = match told {
            Ok(End::Leave(reason)) if !options.leave_within.is_zero() => {
                let within = options.leave_within;
                tracing::info!("{reason}: leaves its job first, within {within:?}");
                let scheduler = endpoint.hub.remote(&head.node, SCHEDULER);
                let me = (&register.contact.node, register.incarnation);
                tokio::select! {
                    biased;
                    Some(End::Leave(again) | End::Now(again)) = ends.recv() => {
                        Ok(format!("{reason}, then {again}: at once"))
                    }
                    Some(by_order) = shutdowns.recv() => Ok(by_order),
                    left = leave(&scheduler, me, &reason, within) => Ok(format!("{reason}: {left}")),
                    stopped = &mut registration => stopped.map(|_| reason),
                }
            }
            Ok(End::Leave(reason) | End::Now(reason)) => Ok(reason),
            Err(error) => Err(error),
        };
        let (ended, reason) = match told {
            Ok(reason) => (Ok(served), reason),
            Err(error) => {
                let reason = error.to_string();
                (Err(error), reason)
            }
        };
        tracing::info!("ends: {reason}");
        tell(false);
        // The threads of a job must not hold up the end; what they work on is lost with the node in any case.
        let _ = timeout(STOP_WITHIN, worker.send(Shutdown { reason: reason.clone() })).await;
        endpoint.net.close(&reason).await;
        ended
    }
}

/// Asks to be emptied and says how that went. It works on meanwhile: its job is asked to let it go, and tells the
/// worker.
async fn leave(
    scheduler: &Remote<Scheduler>,
    (node, life): (&NodeId, Incarnation),
    reason: &str,
    within: Duration,
) -> String {
    // So that the word of a job that let it go at the last moment still arrives.
    let deadline = within.saturating_sub((within / 10).min(Duration::from_secs(1)));
    let drain = Drain {
        nodes: vec![node.clone()],
        reason: reason.to_owned(),
        deadline_ms: Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)),
        life: Some(life),
    };
    how_it_went(scheduler.send(drain).deadline(within).await, within)
}

fn how_it_went(
    answer: Result<Result<Drained, DrainError>, RemoteError>,
    within: Duration,
) -> String {
    match answer {
        Ok(Ok(_)) => "it is empty".to_owned(),
        Ok(Err(error)) => format!("it does not leave in order: {error}"),
        Err(RemoteError::Timeout { .. }) => {
            format!("it is not empty after {within:?}: what was unfinished is computed elsewhere")
        }
        Err(error) => format!("it does not leave in order: the scheduler was not asked: {error}"),
    }
}

/// How a node calls whom it registers with.
struct Calling<'a> {
    address: &'a Address,
    /// However long it is not reached.
    patient: bool,
    /// Hears whether the node is registered.
    tell: &'a dyn Fn(bool),
    /// Whether the site has accepted this process once.
    accepted: watch::Sender<bool>,
}

/// Waits until the head or the site knows a later incarnation of this node, and judges that by the table
/// of [`incarnation`](crate::incarnation). Completes with what is known if the node is to exceed it.
async fn outnumbered(
    mut notices: Notices,
    authorities: [&NodeId; 2],
    registered: watch::Receiver<bool>,
) -> Result<Option<Incarnation>, NodeError> {
    loop {
        let Notice { peer, known } = notices.next().await;
        // Other nodes do not decide which process of this node counts.
        if !authorities.contains(&&peer) {
            continue;
        }
        return match *registered.borrow() {
            false => Ok(known),
            true => Err(NodeError::Superseded(peer)),
        };
    }
}

/// Registers, and again after each change of the link and when the site asks for it. Completes when that
/// is in vain, or with what the site knows if the node is to exceed it.
async fn stay_registered(
    site: &Remote<Site>,
    worker: &Addr<Worker>,
    register: &Register,
    (links, asked): (&Links, &Notify),
    Calling { address, patient, tell, accepted }: Calling<'_>,
) -> Result<Option<Incarnation>, NodeError> {
    let mut alone_since = Instant::now();
    let mut told_alone = false;
    loop {
        // The site may be another than the one that knows what this node does.
        let work = worker.send(GetWork).await.unwrap_or_default();
        let register = Register { work, ..register.clone() };
        match site.send(register).deadline(REGISTER_WITHIN).await {
            Ok(Ok(())) => {
                match std::mem::take(&mut told_alone) {
                    true => tracing::info!("registered again"),
                    false => tracing::debug!("registered"),
                }
                tell(true);
                accepted.send_replace(true);
                let changed = async { while !links.next().await.contains_key(site.node()) {} };
                tokio::select! {
                    biased;
                    () = changed => {}
                    () = asked.notified() => {}
                }
                alone_since = Instant::now();
                tell(false);
            }
            Ok(Err(RegisterError::Stale { known, .. })) if !*accepted.borrow() => return Ok(known),
            Ok(Err(RegisterError::Stale { .. })) => {
                return Err(NodeError::Superseded(site.node().clone()));
            }
            Ok(Err(refused)) => return Err(refused.into()),
            // Of the message, or of the link: it is no other in a minute.
            Err(error)
                if matches!(error.refused(), Some(RefuseReason::Protocol | RefuseReason::Alpn)) =>
            {
                return Err(NodeError::Version(error));
            }
            Err(error @ RemoteError::Refused { why: Refusal::Role | Refusal::Identity, .. }) => {
                return Err(NodeError::Denied(error));
            }
            Err(error) if error.refused() == Some(RefuseReason::Revoked) => {
                return Err(NodeError::Denied(error));
            }
            Err(error) if alone_since.elapsed() >= HEAD_GONE && patient => {
                if !std::mem::replace(&mut told_alone, true) {
                    tracing::warn!(
                        "the head at {address} is not reached, and is called until it is: {error}"
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
    fn how_a_leave_went_is_said() {
        let within = Duration::from_secs(30);
        let timeout = RemoteError::Timeout {
            node: "head".into(),
            actor: SCHEDULER.to_owned(),
            message: "drain",
            after: within,
        };
        let gone = RemoteError::Gone { node: "head".into(), why: "it is off".into() };
        let minimum = DrainError::BelowMinimum { job: JobId(1), min_nodes: 2, left: 1 };
        for (answer, told) in [
            (Ok(Ok(Drained::default())), "it is empty"),
            (Ok(Err(minimum)), "it does not leave in order: job-1 needs 2 nodes"),
            (Err(timeout), "it is not empty after 30s"),
            (Err(gone), "the scheduler was not asked: node head is gone"),
        ] {
            let said = how_it_went(answer, within);
            assert!(said.contains(told), "{said}");
        }
    }
}
