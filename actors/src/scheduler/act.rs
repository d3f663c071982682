//! Executes the actions of the scheduler's core: sends messages, and returns the answers to the
//! core.
//!
//! This module must not decide anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::job::{Assign, AssignError, Cancel, LostMember, ReleaseWorker};
use springtide_protocol::names::{WORKER, coordinator_name, site_name};
use springtide_protocol::receivers::{Coordinator, Site, Worker};
use springtide_protocol::site::{EndStubs, RestartNodes, StartStubs};
use springtide_runtime::event::Event as GridEvent;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::remote::{Receives, Remote, RemoteError, RemoteMessage};
use tokio::time::Instant;

use super::core::{
    ManagerQuestion, SchedulerAction, SchedulerEvent, SelectionInput, TakeOverError,
};
use super::*;
use crate::worker_calls::{assign_worker, send_assign};

/// Time limit for a release. Then the worker is restarted.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a cancellation. Then the coordinator is bypassed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a benchmark, after which the node counts as unmeasured. It exceeds a benchmark's
/// time by that of its last repetition.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(15);
/// Delay before a failed write to the store is repeated.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before an order to release stubs is repeated, if the site was unreachable.
const CLOSE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time limit for an audit. Without an answer, the node is asked again at the next one.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a takeover. Then another node is selected.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

impl Scheduler {
    pub(super) fn execute(
        &mut self,
        ctx: &mut Context<Self>,
        mut actions: VecDeque<SchedulerAction>,
    ) {
        if !self.superseded {
            self.record_granted(actions.iter());
        }
        while let Some(action) = actions.pop_front() {
            if self.superseded {
                return; // another scheduler executes all further actions
            }
            match action {
                SchedulerAction::Assign { node, assign } => self.assign(ctx, node, *assign),
                SchedulerAction::Release { node, incarnation, job, over, epoch } => {
                    if let Some(wanted) = self.assignments.remove(&(job, node.clone())) {
                        wanted.store(false, Ordering::Relaxed);
                    }
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let release = ReleaseWorker { job, over, epoch };
                    let call = worker.send(release).deadline(RELEASE_TIMEOUT).start();
                    let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
                        if let Err(error) = &answer {
                            tracing::info!("node {node} did not release {job}: {error}");
                        }
                        let ok = answer.is_ok();
                        act.feed(ctx, SchedulerEvent::Released { job, node, incarnation, ok });
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::Cancel { job, coordinator, reason } => {
                    let remote: Remote<Coordinator> =
                        self.hub.remote(&coordinator, &coordinator_name(job));
                    let call = remote.send(Cancel { job, reason });
                    let call = call.deadline(CANCEL_TIMEOUT).start();
                    let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
                        if let Err(error) = answer {
                            let reason = format!("its coordinator did not answer: {error}");
                            act.feed(ctx, SchedulerEvent::CancelFailed { job, reason });
                        }
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::MemberLost { job, coordinator, node, reason, excused } => {
                    let remote: Remote<Coordinator> =
                        self.hub.remote(&coordinator, &coordinator_name(job));
                    let call = remote.send(LostMember { job, node, reason, excused });
                    let call = call.deadline(NOTIFY_TIMEOUT).start();
                    let then = move |answer: Result<(), _>, _: &mut Self, _: &mut Context<Self>| {
                        if let Err(error) = answer {
                            // If the coordinator's node is dead too, its own loss ends the job.
                            tracing::warn!(
                                "the coordinator of {job} did not receive a node loss: {error}"
                            );
                        }
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::GrantNodes { job, grant, coordinator, nodes, open, why, case } => {
                    let granted = NodeGrant { job, nodes, open };
                    self.grant_nodes(ctx, grant, &coordinator, granted, (why, &case));
                }
                SchedulerAction::Measure { node, incarnation, spec } => {
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let call = worker.send(MeasureSpeed { spec: *spec });
                    let call = call.deadline(MEASURE_TIMEOUT).start();
                    let then =
                        move |answer: Result<_, RemoteError>, act: &mut Self, ctx: &mut _| {
                            let answer = answer.unwrap_or_else(|error| Err(error.to_string()));
                            act.feed(ctx, SchedulerEvent::Measured { node, incarnation, answer });
                        };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::AskLeave { job, coordinator, nodes, reason, deadline_ms } => {
                    self.recorder.record(GridEvent::Decision {
                        decision: format!("ask {job} to leave {} nodes", nodes.len()),
                        why: reason.clone(),
                        inputs: serde_json::json!({ "nodes": nodes, "deadline_ms": deadline_ms }),
                    });
                    let remote: Remote<Coordinator> =
                        self.hub.remote(&coordinator, &coordinator_name(job));
                    let ask = AskLeave { job, nodes: nodes.clone(), reason, deadline_ms };
                    let call = remote.send(ask).deadline(NOTIFY_TIMEOUT).start();
                    let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
                        if let Err(error) = answer {
                            tracing::info!(
                                "the coordinator of {job} did not receive an order: {error}"
                            );
                            act.feed(ctx, SchedulerEvent::AskLeaveFailed { job, nodes });
                        }
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::OfferGrowth(asking) => {
                    let ManagerQuestion { job, coordinator, change, cluster, count, within, why } =
                        *asking;
                    self.recorder.record(GridEvent::Decision {
                        decision: format!("offer {job} {count} processors of {cluster}"),
                        why: why.clone(),
                        inputs: serde_json::json!({ "change": change }),
                    });
                    let offer = OfferGrowth { job, cluster, count, why };
                    self.ask_count(ctx, (job, change), (&coordinator, within), offer);
                }
                SchedulerAction::AskShrink { asking, mandatory, within_ms } => {
                    let ManagerQuestion { job, coordinator, change, cluster, count, within, why } =
                        *asking;
                    self.recorder.record(GridEvent::Decision {
                        decision: format!("ask {job} for {count} processors of {cluster} back"),
                        why: why.clone(),
                        inputs: serde_json::json!({ "change": change, "mandatory": mandatory }),
                    });
                    let ask =
                        AskShrink { job, cluster, count, mandatory, timeout_ms: within_ms, why };
                    self.ask_count(ctx, (job, change), (&coordinator, within), ask);
                }
                // A coordinator asks for offers anyway when it needs nodes.
                SchedulerAction::BetterFree { job, coordinator, offers } => {
                    self.notify_coordinator(ctx, job, &coordinator, BetterFree { job, offers });
                }
                // The job's state shows the refusal as well.
                SchedulerAction::RefuseGrowth { job, coordinator, reason, number } => {
                    let refused = GrowthRefused { job, reason, number };
                    self.notify_coordinator(ctx, job, &coordinator, refused);
                }
                SchedulerAction::Drained { drain, answer } => {
                    if let Some(reply) = self.drains.remove(&drain) {
                        // The caller may have gone; the nodes are drained all the same.
                        let _ = reply.send(answer);
                    }
                }
                SchedulerAction::NewEpoch { job, known } => {
                    match self.store.new_epoch(job, known) {
                        Ok(epoch) => {
                            self.recorder.record(GridEvent::EpochIssued { job, epoch });
                            let issued = SchedulerEvent::EpochIssued { job, epoch };
                            let following = self.core.handle(issued, Instant::now());
                            self.record_granted(following.iter());
                            actions.extend(following);
                        }
                        Err(error) => {
                            // A full disk may be freed, and until then the job waits without a
                            // coordinator instead of ending.
                            self.store_failed(&error);
                            ctx.run_later(STORE_RETRY_DELAY, move |act, ctx| {
                                act.execute(
                                    ctx,
                                    VecDeque::from([SchedulerAction::NewEpoch { job, known }]),
                                );
                            });
                        }
                    }
                }
                SchedulerAction::TakeOver { node, order } => {
                    let job = order.job;
                    self.recorder.record(GridEvent::Decision {
                        decision: format!(
                            "{job} is coordinated by {node} under epoch {}",
                            order.epoch.0
                        ),
                        why: if order.handed {
                            format!("node {} hands it over: {}", order.lost, order.reason)
                        } else {
                            format!("node {} is lost: {}", order.lost, order.reason)
                        },
                        inputs: serde_json::json!({ "members": order.members }),
                    });
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let call = worker.send(*order).deadline(TAKE_OVER_TIMEOUT).start();
                    let then = move |answer: Result<Result<(), String>, RemoteError>,
                                     act: &mut Self,
                                     ctx: &mut Context<Self>| {
                        let answer = match answer {
                            Ok(answer) => answer.map_err(TakeOverError::Refused),
                            Err(error) => Err(TakeOverError::Unanswered(error.to_string())),
                        };
                        act.feed(ctx, SchedulerEvent::TakeOverAnswered { job, node, answer });
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::Audit { job, node, incarnation } => {
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let call = worker.send(AuditJob { job }).deadline(AUDIT_TIMEOUT).start();
                    let then = move |found: Result<_, RemoteError>, act: &mut Self, ctx: &mut _| {
                        let found = found.ok();
                        act.feed(ctx, SchedulerEvent::Audited { job, node, incarnation, found });
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                SchedulerAction::ProtocolViolation { what } => {
                    tracing::warn!("{what}");
                    self.recorder.record(GridEvent::Fault { part: "scheduler".to_owned(), what });
                }
                SchedulerAction::Grant(granted) => {
                    self.recorder.record(GridEvent::Decision {
                        decision: format!("grant {}", granted.job),
                        why: "all requested nodes are free".to_owned(),
                        inputs: serde_json::json!({ "members": granted.view.members.len() }),
                    });
                    self.answer(ctx, granted.job, Ok(granted));
                }
                SchedulerAction::Refuse { job, error } => {
                    tracing::info!("{job} was refused: {error}");
                    self.answer(ctx, job, Err(error));
                }
                SchedulerAction::Ended { job, client, error } => {
                    tracing::info!("{job} ends: {error}");
                    // The client must get this reason first. Actions for the job's other processes
                    // wait, others do not.
                    let of_job = |action: &SchedulerAction| match action {
                        SchedulerAction::Cancel { job: of, .. }
                        | SchedulerAction::Release { job: of, .. } => *of == job,
                        _ => false,
                    };
                    let (later, now) = actions.into_iter().partition(of_job);
                    actions = now;
                    self.notify_end(ctx, client.node, job, error, later);
                }
                SchedulerAction::Replace { cluster, nodes, program, image, reason } => {
                    let shipped = self.shipped(&cluster, image, program.as_ref());
                    let order = RestartNodes { nodes, program, shipped, reason };
                    self.replace(ctx, &cluster, order);
                }
                SchedulerAction::StoreStart { job, begun } => {
                    if let Err(error) = self.store.record_start(job, begun) {
                        self.store_failed(&error);
                        let reason = format!("its start cannot be stored: {error}");
                        self.refuse_start(ctx, job, &reason, &mut actions);
                    }
                }
                SchedulerAction::Restart { job, client } => {
                    self.waiters.insert(job, Waiter::Client(client.node));
                }
                SchedulerAction::Limit { job, most } => {
                    let written = self.store.limit(job, most);
                    self.check_write(written);
                }
                SchedulerAction::StoreDrain { node, reason } => {
                    let written = self.store.set_drained(&node, reason.as_deref());
                    self.check_write(written);
                }
                SchedulerAction::Forget { job } => self.forget(job),
                SchedulerAction::HoldStubs { cluster, nodes, shares, program, image, reason } => {
                    self.recorder.record(GridEvent::Decision {
                        decision: format!("start {} nodes of {cluster}", nodes.len()),
                        why: reason.clone(),
                        inputs: serde_json::json!({ "nodes": nodes, "shares": shares }),
                    });
                    let shipped = self.shipped(&cluster, image, program.as_ref());
                    let nodes_of_order = nodes.clone();
                    let order =
                        StartStubs { nodes: nodes_of_order, shares, program, shipped, reason };
                    self.ask_site(ctx, &cluster, order, move |act, ctx, error| {
                        for node in nodes {
                            let reason = format!("its site did not answer: {error}");
                            act.feed(
                                ctx,
                                SchedulerEvent::StubGone(StubLoss {
                                    node,
                                    reason,
                                    kind: StubLossKind::Ended,
                                }),
                            );
                        }
                    });
                }
                SchedulerAction::CloseStubs { cluster, nodes, reason } => {
                    self.recorder.record(GridEvent::Decision {
                        decision: format!("end {} nodes of {cluster}", nodes.len()),
                        why: reason.clone(),
                        inputs: serde_json::json!({ "nodes": nodes }),
                    });
                    let order = EndStubs { nodes: nodes.clone(), reason };
                    // If the site has its own process, the stubs do not end with this one.
                    self.ask_site(ctx, &cluster, order, move |_, ctx, error| {
                        tracing::info!("stubs could not be released yet: {error}");
                        ctx.run_later(CLOSE_RETRY_DELAY, move |act, ctx| {
                            act.feed(ctx, SchedulerEvent::CloseFailed { nodes });
                        });
                    });
                }
                SchedulerAction::BringFile { job, ask, file, from, to } => {
                    self.fetch_file(ctx, (job, ask), file, from, &to);
                }
                SchedulerAction::DropFiles { job, cluster } => self.cancel_fetches(job, &cluster),
                SchedulerAction::Unreserved(bill) => self.end_reservation(&bill),
            }
        }
    }

    /// Assigns a starting job to a worker. An assignment that is released before its turn is not
    /// sent.
    fn assign(&mut self, ctx: &mut Context<Self>, node: NodeId, assign: Assign) {
        let (job, epoch) = (assign.spec.id, assign.spec.epoch);
        let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
        let wanted = Arc::new(AtomicBool::new(true));
        self.assignments.insert((job, node.clone()), wanted.clone());
        let turns = self.assigning.clone();
        let turn = turns.clone().try_acquire_owned().ok();
        // Without a wait for its turn, the assignment must precede all later messages.
        let first = turn.is_some().then(|| send_assign(&worker, assign.clone()));
        let (name, flag) = (node.clone(), wanted.clone());
        let call = async move {
            let _turn = match turn {
                Some(turn) => Some(turn),
                None => turns.acquire_owned().await.ok(),
            };
            let wanted = || flag.load(Ordering::Relaxed);
            if !wanted() {
                return Err(AssignError::failed(&name, "the job does not need it any longer"));
            }
            let first = first.unwrap_or_else(|| send_assign(&worker, assign.clone()));
            let answer = assign_worker(worker, first, assign, wanted).await;
            answer.unwrap_or_else(|error| Err(failed_assignment(&name, &error)))
        };
        let then = move |answer, act: &mut Self, ctx: &mut Context<Self>| {
            let key = (job, node.clone());
            if act.assignments.get(&key).is_some_and(|current| Arc::ptr_eq(current, &wanted)) {
                act.assignments.remove(&key);
            }
            act.feed(ctx, SchedulerEvent::Assigned { job, epoch, node, answer });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// Sends a notification to a job's coordinator whose loss is harmless.
    fn notify_coordinator<M>(
        &self,
        ctx: &mut Context<Self>,
        job: JobId,
        coordinator: &NodeId,
        message: M,
    ) where
        Coordinator: Receives<M>,
        M: RemoteMessage<Result = ()>,
    {
        let remote: Remote<Coordinator> = self.hub.remote(coordinator, &coordinator_name(job));
        let call = remote.send(message).deadline(NOTIFY_TIMEOUT).start();
        let then = move |answer: Result<(), _>, _: &mut Self, _: &mut Context<Self>| {
            if let Err(error) = answer {
                tracing::debug!("the coordinator of {job} did not receive {}: {error}", M::NAME);
            }
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// Refuses to start a job whose start is not on disk. A later scheduler would start it twice.
    fn refuse_start(
        &mut self,
        ctx: &mut Context<Self>,
        job: JobId,
        reason: &str,
        actions: &mut VecDeque<SchedulerAction>,
    ) {
        let starts = |action: &SchedulerAction| match action {
            SchedulerAction::Assign { assign, .. } => assign.spec.id == job,
            _ => false,
        };
        let (refused, rest) = std::mem::take(actions).into_iter().partition::<Vec<_>, _>(starts);
        *actions = rest.into();
        for action in refused {
            let SchedulerAction::Assign { node, assign } = action else { continue };
            let (epoch, answer) = (assign.spec.epoch, Err(AssignError::failed(&node, reason)));
            self.feed(ctx, SchedulerEvent::Assigned { job, epoch, node, answer });
        }
    }

    /// Sends a question of the malleability manager to a job's coordinator. The manager tolerates a
    /// missing answer.
    fn ask_count<M>(
        &mut self,
        ctx: &mut Context<Self>,
        (job, change): (JobId, u64),
        (coordinator, within): (&NodeId, Duration),
        question: M,
    ) where
        Coordinator: Receives<M>,
        M: RemoteMessage<Result = u32>,
    {
        let remote: Remote<Coordinator> = self.hub.remote(coordinator, &coordinator_name(job));
        let call = remote.send(question).deadline(within).start();
        let then = move |answer: Result<u32, RemoteError>, act: &mut Self, ctx: &mut _| {
            if let Err(error) = &answer {
                tracing::info!("the coordinator of {job} did not answer: {error}");
            }
            let count = answer.ok();
            act.feed(ctx, SchedulerEvent::Answered { job, change, count });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    fn grant_nodes(
        &mut self,
        ctx: &mut Context<Self>,
        grant: u64,
        coordinator: &NodeId,
        granted: NodeGrant,
        (why, case): (String, &SelectionInput),
    ) {
        let job = granted.job;
        let names: Vec<&str> = granted.nodes.iter().map(|granted| granted.node.as_str()).collect();
        self.recorder.record(GridEvent::Decision {
            decision: format!("grant {} to {job}", names.join(", ")),
            why,
            inputs: serde_json::to_value(case).unwrap_or_default(),
        });
        let remote: Remote<Coordinator> = self.hub.remote(coordinator, &coordinator_name(job));
        let call = remote.send(granted).deadline(NOTIFY_TIMEOUT).start();
        let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
            if let Err(error) = &answer {
                tracing::info!("the coordinator of {job} did not receive the nodes: {error}");
            }
            act.feed(ctx, SchedulerEvent::GrantAcknowledged { job, grant, ok: answer.is_ok() });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    fn replace(&mut self, ctx: &mut Context<Self>, cluster: &ClusterId, order: RestartNodes) {
        self.recorder.record(GridEvent::Decision {
            decision: format!("restart {} nodes of {cluster}", order.nodes.len()),
            why: order.reason.clone(),
            inputs: serde_json::json!({ "nodes": order.nodes, "program": order.program }),
        });
        let nodes = order.nodes.clone();
        self.ask_site(ctx, cluster, order, move |act, ctx, error| {
            for node in nodes {
                let reason = format!("its site did not restart it: {error}");
                act.feed(ctx, SchedulerEvent::NodeLost { node, reason, returns: false });
            }
        });
    }

    /// Sends an order to a site. Calls `failed` if it was not delivered.
    fn ask_site<M>(
        &self,
        ctx: &mut Context<Self>,
        cluster: &ClusterId,
        order: M,
        failed: impl FnOnce(&mut Self, &mut Context<Self>, RemoteError) + 'static,
    ) where
        Site: Receives<M>,
        M: RemoteMessage<Result = ()>,
    {
        let site: Remote<Site> =
            self.hub.remote(&self.process_of(cluster).node, &site_name(cluster));
        let call = site.send(order).start();
        let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut Context<Self>| {
            if let Err(error) = answer {
                failed(act, ctx, error);
            }
        };
        ctx.spawn(call.into_actor(self).map(then));
    }
}

fn failed_assignment(node: &NodeId, error: &RemoteError) -> AssignError {
    let (node, reason, refused) = (node.clone(), error.to_string(), error.refused());
    AssignError::Failed { node, reason, refused }
}
