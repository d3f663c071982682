//! What the scheduler's core orders is carried out: other actors are told and asked, and what they answer goes back to the core.
//!
//! Must not decide anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Event as Told;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::remote::{Remote, RemoteError, RemoteMessage};
use tokio::time::Instant;

use super::core::{Action, Asking, Case, Event, TakeOverError};
use super::*;
use crate::coordinator::Coordinator;
use crate::job::{
    Assign, AssignError, Cancel, MemberLost, Release, WORKER, coordinator_name, site_name,
};
use crate::site::{CloseStubs, HoldStubs, Site, StartAnew};
use crate::worker::{Worker, assign_worker, send_assign};

/// A worker that has not answered a release after this time is started anew.
const RELEASE_WITHIN: Duration = Duration::from_secs(20);
/// A coordinator that has not answered a cancellation after this time is gone round.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);
/// A node that has not told its speed after this time is taken to have none. Longer than a benchmark by what its last
/// repeat may take.
const MEASURE_WITHIN: Duration = Duration::from_secs(15);
/// What the store did not take is tried again after this time.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// Stubs whose site was not reached are to be released all the same, and it is told again after this time.
const CLOSE_AGAIN: Duration = Duration::from_secs(5);
/// A node that has not answered an audit after this time is asked at the next one.
const AUDIT_WITHIN: Duration = Duration::from_secs(10);
/// A node that has not taken a job over after this time does not.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(10);

impl Scheduler {
    pub(super) fn carry_out(&mut self, ctx: &mut Context<Self>, mut actions: VecDeque<Action>) {
        while let Some(action) = actions.pop_front() {
            if self.superseded {
                return; // all that is to be done is another's now
            }
            match action {
                Action::Assign { node, assign } => self.assign(ctx, node, *assign),
                Action::Release { node, incarnation, job, over, epoch } => {
                    if let Some(wanted) = self.assignments.remove(&(job, node.clone())) {
                        wanted.store(false, Ordering::Relaxed);
                    }
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let release = Release { job, over, epoch };
                    let call = worker.send(release).deadline(RELEASE_WITHIN).start();
                    let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
                        if let Err(error) = &answer {
                            tracing::info!("node {node} did not release {job}: {error}");
                        }
                        let ok = answer.is_ok();
                        act.feed(ctx, Event::Released { job, node, incarnation, ok });
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::Cancel { job, coordinator, reason } => {
                    let remote: Remote<Coordinator> =
                        self.hub.remote(&coordinator, &coordinator_name(job));
                    let call = remote.send(Cancel { job, reason });
                    let call = call.deadline(CANCEL_WITHIN).start();
                    let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
                        if let Err(error) = answer {
                            let reason = format!("its coordinator did not answer: {error}");
                            act.feed(ctx, Event::CancelFailed { job, reason });
                        }
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::MemberLost { job, coordinator, node, reason } => {
                    let remote: Remote<Coordinator> =
                        self.hub.remote(&coordinator, &coordinator_name(job));
                    let call = remote.send(MemberLost { job, node, reason });
                    let call = call.deadline(TELL_WITHIN).start();
                    let then = move |answer: Result<(), _>, _: &mut Self, _: &mut Context<Self>| {
                        if let Err(error) = answer {
                            // If the coordinator's node is dead too, its own loss ends the job.
                            tracing::warn!("{job}'s coordinator was not told of a loss: {error}");
                        }
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::GrantNodes { job, grant, coordinator, nodes, open, why, case } => {
                    let granted = NodesGranted { job, nodes, open };
                    self.grant_nodes(ctx, grant, &coordinator, granted, (why, &case));
                }
                Action::Measure { node, incarnation, spec } => {
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let call = worker.send(MeasureSpeed { spec: *spec });
                    let call = call.deadline(MEASURE_WITHIN).start();
                    let then =
                        move |answer: Result<_, RemoteError>, act: &mut Self, ctx: &mut _| {
                            let answer = answer.unwrap_or_else(|error| Err(error.to_string()));
                            act.feed(ctx, Event::Measured { node, incarnation, answer });
                        };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::AskLeave { job, coordinator, nodes, reason, deadline_ms } => {
                    self.recorder.record(Told::Decision {
                        decision: format!("ask {job} to leave {} nodes", nodes.len()),
                        why: reason.clone(),
                        inputs: serde_json::json!({ "nodes": nodes, "deadline_ms": deadline_ms }),
                    });
                    let remote: Remote<Coordinator> =
                        self.hub.remote(&coordinator, &coordinator_name(job));
                    let ask = AskLeave { job, nodes: nodes.clone(), reason, deadline_ms };
                    let call = remote.send(ask).deadline(TELL_WITHIN).start();
                    let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
                        if let Err(error) = answer {
                            tracing::info!("{job}'s coordinator was not asked: {error}");
                            act.feed(ctx, Event::AskLeaveFailed { job, nodes });
                        }
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::OfferGrowth(asking) => {
                    let Asking { job, coordinator, change, cluster, count, within, why } = *asking;
                    self.recorder.record(Told::Decision {
                        decision: format!("offer {job} {count} processors of {cluster}"),
                        why: why.clone(),
                        inputs: serde_json::json!({ "change": change }),
                    });
                    let offer = OfferGrowth { job, cluster, count, why };
                    self.ask_count(ctx, (job, change), (&coordinator, within), offer);
                }
                Action::AskShrink { asking, mandatory, within_ms } => {
                    let Asking { job, coordinator, change, cluster, count, within, why } = *asking;
                    self.recorder.record(Told::Decision {
                        decision: format!("ask {job} for {count} processors of {cluster} back"),
                        why: why.clone(),
                        inputs: serde_json::json!({ "change": change, "mandatory": mandatory }),
                    });
                    let ask = AskShrink { job, cluster, count, mandatory, within_ms, why };
                    self.ask_count(ctx, (job, change), (&coordinator, within), ask);
                }
                // It asks for offers anyway when it needs nodes.
                Action::BetterFree { job, coordinator, offers } => {
                    self.tell_coordinator(ctx, job, &coordinator, BetterFree { job, offers });
                }
                // Whoever asks why is told as well.
                Action::RefuseGrowth { job, coordinator, reason, number } => {
                    let refused = GrowthRefused { job, reason, number };
                    self.tell_coordinator(ctx, job, &coordinator, refused);
                }
                Action::Drained { drain, answer } => {
                    if let Some(reply) = self.drains.remove(&drain) {
                        // Whoever asked may have given up; the nodes are drained all the same.
                        let _ = reply.send(answer);
                    }
                }
                Action::NewEpoch { job, known } => match self.store.new_epoch(job, known) {
                    Ok(epoch) => {
                        let issued = Event::EpochIssued { job, epoch };
                        actions.extend(self.core.handle(issued, Instant::now()));
                    }
                    Err(error) => {
                        // A job is no worse off without a coordinator than ended, and a disk that is full is emptied.
                        self.store_failed(&error);
                        ctx.run_later(STORE_AGAIN, move |act, ctx| {
                            act.carry_out(ctx, VecDeque::from([Action::NewEpoch { job, known }]));
                        });
                    }
                },
                Action::TakeOver { node, order } => {
                    let job = order.job;
                    self.recorder.record(Told::Decision {
                        decision: format!(
                            "{job} is coordinated by {node} under epoch {}",
                            order.epoch.0
                        ),
                        why: match order.handed {
                            true => format!("node {} hands it over: {}", order.lost, order.reason),
                            false => format!("node {} is lost: {}", order.lost, order.reason),
                        },
                        inputs: serde_json::json!({ "members": order.members }),
                    });
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let call = worker.send(*order).deadline(TAKE_OVER_WITHIN).start();
                    let then = move |answer: Result<Result<(), String>, RemoteError>,
                                     act: &mut Self,
                                     ctx: &mut Context<Self>| {
                        let answer = match answer {
                            Ok(answer) => answer.map_err(TakeOverError::Refused),
                            Err(error) => Err(TakeOverError::Unanswered(error.to_string())),
                        };
                        act.feed(ctx, Event::TookOver { job, node, answer });
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::Audit { job, node, incarnation } => {
                    let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
                    let call = worker.send(AuditJob { job }).deadline(AUDIT_WITHIN).start();
                    let then = move |found: Result<_, RemoteError>, act: &mut Self, ctx: &mut _| {
                        let found = found.ok();
                        act.feed(ctx, Event::Audited { job, node, incarnation, found });
                    };
                    ctx.spawn(call.into_actor(self).map(then));
                }
                Action::Odd { what } => {
                    tracing::warn!("{what}");
                    self.recorder.record(Told::Fault { part: "scheduler".to_owned(), what });
                }
                Action::Grant(granted) => {
                    self.recorder.record(Told::Decision {
                        decision: format!("grant {}", granted.job),
                        why: "all that it asks for is free".to_owned(),
                        inputs: serde_json::json!({ "members": granted.view.members.len() }),
                    });
                    self.answer(ctx, granted.job, Ok(granted));
                }
                Action::Refuse { job, error } => {
                    tracing::info!("{job} is refused: {error}");
                    self.answer(ctx, job, Err(error));
                }
                Action::Ended { job, client, error } => {
                    tracing::info!("{job} ends: {error}");
                    // Nobody else of the job is told before the client is, so that this reason is the one it hears. Others do not wait.
                    let of_job = |action: &Action| match action {
                        Action::Cancel { job: of, .. } | Action::Release { job: of, .. } => {
                            *of == job
                        }
                        _ => false,
                    };
                    let (later, now) = actions.into_iter().partition(of_job);
                    actions = now;
                    self.tell_end(ctx, client.node, job, error, later);
                }
                Action::Replace { cluster, nodes, program, reason } => {
                    self.replace(ctx, &cluster, StartAnew { nodes, program, reason });
                }
                Action::Begin { job, begun } => {
                    if let Err(error) = self.store.begun(job, begun) {
                        self.store_failed(&error);
                        let reason = format!("its start cannot be written down: {error}");
                        self.refuse_to_start(ctx, job, &reason, &mut actions);
                    }
                }
                Action::Anew { job, client } => {
                    self.waiting.insert(job, Waiter::Client(client.node));
                }
                Action::Limit { job, most } => {
                    let noted = self.store.limit(job, most);
                    self.noted(noted);
                }
                Action::Mark { node, reason } => {
                    let noted = self.store.drained(&node, reason.as_deref());
                    self.noted(noted);
                }
                Action::Forget { job } => self.forget(job),
                Action::HoldStubs { cluster, nodes, program, reason } => {
                    self.recorder.record(Told::Decision {
                        decision: format!("hold {} processors of {cluster}", nodes.len()),
                        why: reason.clone(),
                        inputs: serde_json::json!({ "nodes": nodes }),
                    });
                    let order = HoldStubs { nodes: nodes.clone(), program, reason };
                    self.ask_site(ctx, &cluster, order, move |act, ctx, error| {
                        for node in nodes {
                            let reason = format!("its site was not asked: {error}");
                            act.feed(ctx, Event::StubGone(StubGone { node, reason }));
                        }
                    });
                }
                Action::CloseStubs { cluster, nodes, reason } => {
                    self.recorder.record(Told::Decision {
                        decision: format!("release {} processors of {cluster}", nodes.len()),
                        why: reason.clone(),
                        inputs: serde_json::json!({ "nodes": nodes }),
                    });
                    let order = CloseStubs { nodes: nodes.clone(), reason };
                    // Where the site's process is another they do not end with it.
                    self.ask_site(ctx, &cluster, order, move |_, ctx, error| {
                        tracing::info!("stubs are not released yet: {error}");
                        ctx.run_later(CLOSE_AGAIN, move |act, ctx| {
                            act.feed(ctx, Event::CloseFailed { nodes });
                        });
                    });
                }
                Action::BringFile { job, ask, file, from, to } => {
                    self.bring(ctx, (job, ask), file, from, &to);
                }
                Action::DropFiles { job, cluster } => self.drop_files(job, &cluster),
                Action::Unreserved(bill) => self.unreserved(&bill),
            }
        }
    }

    /// Assigns a worker a job that starts. An assignment that is released before its turn comes is not sent.
    fn assign(&mut self, ctx: &mut Context<Self>, node: NodeId, assign: Assign) {
        let (job, epoch) = (assign.spec.id, assign.spec.epoch);
        let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
        let wanted = Arc::new(AtomicBool::new(true));
        self.assignments.insert((job, node.clone()), wanted.clone());
        let turns = self.assigning.clone();
        let turn = turns.clone().try_acquire_owned().ok();
        // One that need not wait is sent before whatever is sent next.
        let first = turn.is_some().then(|| send_assign(&worker, assign.clone()));
        let (name, flag) = (node.clone(), wanted.clone());
        let call = async move {
            let _turn = match turn {
                Some(turn) => Some(turn),
                None => turns.acquire_owned().await.ok(),
            };
            let wanted = || flag.load(Ordering::Relaxed);
            if !wanted() {
                return Err(AssignError::failed(&name, "the job needs it no more"));
            }
            let first = first.unwrap_or_else(|| send_assign(&worker, assign.clone()));
            let answer = assign_worker(worker, first, assign, wanted).await;
            answer.unwrap_or_else(|error| Err(no_answer(&name, &error)))
        };
        let then = move |answer, act: &mut Self, ctx: &mut Context<Self>| {
            let key = (job, node.clone());
            if act.assignments.get(&key).is_some_and(|current| Arc::ptr_eq(current, &wanted)) {
                act.assignments.remove(&key);
            }
            act.feed(ctx, Event::Assigned { job, epoch, node, answer });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// Tells a job's coordinator what it can do without hearing.
    fn tell_coordinator<M>(
        &self,
        ctx: &mut Context<Self>,
        job: JobId,
        coordinator: &NodeId,
        word: M,
    ) where
        Coordinator: Handler<M>,
        M: RemoteMessage<Result = ()>,
    {
        let remote: Remote<Coordinator> = self.hub.remote(coordinator, &coordinator_name(job));
        let call = remote.send(word).deadline(TELL_WITHIN).start();
        let then = move |answer: Result<(), _>, _: &mut Self, _: &mut Context<Self>| {
            if let Err(error) = answer {
                tracing::debug!("{job}'s coordinator was not told {}: {error}", M::NAME);
            }
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// The start of a job is not on disk: were it started all the same, a later scheduler would start it twice.
    fn refuse_to_start(
        &mut self,
        ctx: &mut Context<Self>,
        job: JobId,
        reason: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let starts = |action: &Action| matches!(action, Action::Assign { assign, .. } if assign.spec.id == job);
        let (refused, rest) = std::mem::take(actions).into_iter().partition::<Vec<_>, _>(starts);
        *actions = rest.into();
        for action in refused {
            let Action::Assign { node, assign } = action else { continue };
            let (epoch, answer) = (assign.spec.epoch, Err(AssignError::failed(&node, reason)));
            self.feed(ctx, Event::Assigned { job, epoch, node, answer });
        }
    }

    /// Asks a job's coordinator a question of the malleability manager. If there is no answer the manager goes on without.
    fn ask_count<M>(
        &mut self,
        ctx: &mut Context<Self>,
        (job, change): (JobId, u64),
        (coordinator, within): (&NodeId, Duration),
        question: M,
    ) where
        Coordinator: Handler<M>,
        M: RemoteMessage<Result = u32>,
    {
        let remote: Remote<Coordinator> = self.hub.remote(coordinator, &coordinator_name(job));
        let call = remote.send(question).deadline(within).start();
        let then = move |answer: Result<u32, RemoteError>, act: &mut Self, ctx: &mut _| {
            if let Err(error) = &answer {
                tracing::info!("{job}'s coordinator was not asked for a number: {error}");
            }
            let count = answer.ok();
            act.feed(ctx, Event::Answered { job, change, count });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    fn grant_nodes(
        &mut self,
        ctx: &mut Context<Self>,
        grant: u64,
        coordinator: &NodeId,
        granted: NodesGranted,
        (why, case): (String, &Case),
    ) {
        let job = granted.job;
        let names: Vec<&str> = granted.nodes.iter().map(|granted| granted.node.as_str()).collect();
        self.recorder.record(Told::Decision {
            decision: format!("grant {} to {job}", names.join(", ")),
            why,
            inputs: serde_json::to_value(case).unwrap_or_default(),
        });
        let remote: Remote<Coordinator> = self.hub.remote(coordinator, &coordinator_name(job));
        let call = remote.send(granted).deadline(TELL_WITHIN).start();
        let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut _| {
            if let Err(error) = &answer {
                tracing::info!("{job}'s coordinator did not take the nodes: {error}");
            }
            act.feed(ctx, Event::GrantTold { job, grant, ok: answer.is_ok() });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    fn replace(&mut self, ctx: &mut Context<Self>, cluster: &ClusterId, order: StartAnew) {
        self.recorder.record(Told::Decision {
            decision: format!("start {} nodes of {cluster} anew", order.nodes.len()),
            why: order.reason.clone(),
            inputs: serde_json::json!({ "nodes": order.nodes, "program": order.program }),
        });
        let nodes = order.nodes.clone();
        self.ask_site(ctx, cluster, order, move |act, ctx, error| {
            for node in nodes {
                let reason = format!("its site did not start it anew: {error}");
                act.feed(ctx, Event::NodeLost { node, reason, returns: false });
            }
        });
    }

    /// Gives a site an order; `failed` is called if it did not get it.
    fn ask_site<M>(
        &self,
        ctx: &mut Context<Self>,
        cluster: &ClusterId,
        order: M,
        failed: impl FnOnce(&mut Self, &mut Context<Self>, RemoteError) + 'static,
    ) where
        Site: Handler<M>,
        M: RemoteMessage<Result = ()>,
    {
        let site: Remote<Site> = self.hub.remote(&self.place_of(cluster).node, &site_name(cluster));
        let call = site.send(order).start();
        let then = move |answer: Result<(), _>, act: &mut Self, ctx: &mut Context<Self>| {
            if let Err(error) = answer {
                failed(act, ctx, error);
            }
        };
        ctx.spawn(call.into_actor(self).map(then));
    }
}

fn no_answer(node: &NodeId, error: &RemoteError) -> AssignError {
    let (node, reason, refused) = (node.clone(), error.to_string(), error.refused());
    AssignError::Failed { node, reason, refused }
}
