//! Judgement of received messages before an actor's handler gets them.
//!
//! This module knows neither rules nor messages.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix::dev::{MessageResponse, OneshotSender};
use actix::fut::{ActorFutureExt as _, wrap_future};
use actix::prelude::*;
use springtide_protocol::receivers::Scheduler;
use springtide_protocol::scheduler::{GetAuthority, JobAuthority};
use springtide_runtime::id::{JobId, NodeId};
use springtide_runtime::net::tls::Role;
use springtide_runtime::remote::{MessageOrigin, ReceivedMessage, Refusal, Remote, RemoteError};

use super::{HasRule, Judgement, MessageSubject, Principal, Rule, SenderStanding, judge};
use crate::audit::{AuditEntry, AuditLog};

/// Timeout of a query to the scheduler about a job's authority.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Delay before a repeated query.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// Maximum number of queries for one message.
const ASKS_MAX: u32 = 80;

/// An outstanding answer of the scheduler.
pub type AuthorityQuery = Pin<Box<dyn Future<Output = Option<JobAuthority>>>>;

/// An actor that judges messages about jobs.
pub trait AdmitsMessages: Actor<Context = Context<Self>> {
    /// Returns the sender's places in a job, as far as this actor knows them. `confirmed` is the
    /// scheduler's answer, after a query.
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        confirmed: Option<&JobAuthority>,
    ) -> SenderStanding;

    /// Queries the scheduler about a job and a sender; absent where the actor cannot.
    fn ask(&self, from: &MessageOrigin, about: &MessageSubject) -> Option<AuthorityQuery>;

    /// Returns the log of commands, if this actor's are to be recorded.
    fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        None
    }
}

/// Queries a scheduler about a job's coordinator, and whether `node` is a member.
pub fn ask_scheduler(scheduler: &Remote<Scheduler>, node: NodeId, job: JobId) -> AuthorityQuery {
    let ask = GetAuthority { job, node };
    let call = scheduler.send(ask).deadline(ANSWER_WITHIN).start();
    Box::pin(async move {
        let error = match call.await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        tracing::debug!(%error, %job, "the scheduler did not return the job's coordinator");
        tokio::time::sleep(ASK_AGAIN).await;
        // An authority without a coordinator, since the scheduler may answer later.
        let later = matches!(error, RemoteError::Timeout { .. } | RemoteError::Gone { .. });
        later.then(JobAuthority::default)
    })
}

/// Waits before a message is judged again.
pub fn wait() -> AuthorityQuery {
    Box::pin(async {
        tokio::time::sleep(ASK_AGAIN).await;
        Some(JobAuthority::default())
    })
}

/// Result of a judged message.
pub enum AdmissionResult<A, M>
where
    A: Actor + Handler<M>,
    M: Message,
{
    /// The handler's reply, and the command that it completes in the audit log.
    Taken(<A as Handler<M>>::Result, Option<PendingCommand>),
    /// A refusal of the message.
    Refused,
    /// The scheduler must be asked first.
    Later(AuthorityQuery, ReceivedMessage<M>),
}

impl<A, M> MessageResponse<A, ReceivedMessage<M>> for AdmissionResult<A, M>
where
    A: AdmitsMessages + Handler<M>,
    M: HasRule,
{
    fn handle(self, ctx: &mut Context<A>, tx: Option<OneshotSender<M::Result>>) {
        match self {
            AdmissionResult::Taken(answer, command) => reply::<A, M>(ctx, answer, command, tx),
            AdmissionResult::Refused => drop(tx),
            AdmissionResult::Later(asking, received) => resume(ctx, asking, received, tx, 1),
        }
    }
}

/// A command whose reply the audit log awaits.
pub struct PendingCommand {
    log: Arc<AuditLog>,
    entry: AuditEntry,
}

impl PendingCommand {
    /// The command of a message of another process, if the actor records commands.
    fn of<A, M>(actor: &A, received: &ReceivedMessage<M>) -> Option<Self>
    where
        A: AdmitsMessages,
        M: HasRule,
    {
        let log = actor.audit_log()?;
        let job = received.message.about().map(|about| about.job);
        let entry = log.entry(Principal::of(&received.from), M::NAME, job);
        Some(Self { log: Arc::clone(log), entry })
    }

    fn refused(&self, why: Refusal) {
        self.log.append(&self.entry.clone().refused(why));
    }
}

/// Sends a handler's reply. The audit log gets its outcome first.
fn reply<A, M>(
    ctx: &mut Context<A>,
    answer: <A as Handler<M>>::Result,
    command: Option<PendingCommand>,
    tx: Option<OneshotSender<M::Result>>,
) where
    A: AdmitsMessages + Handler<M>,
    M: HasRule,
{
    let Some(PendingCommand { log, entry }) = command else { return answer.handle(ctx, tx) };
    let (inner, outcome) = tokio::sync::oneshot::channel();
    answer.handle(ctx, Some(inner));
    let completed = wrap_future::<_, A>(outcome).map(move |reply, _: &mut A, _: &mut _| {
        // Without a reply, the actor has dropped the command.
        let Ok(reply) = reply else { return log.append(&entry.refused(Refusal::Stopped)) };
        log.append(&entry.completed(M::outcome(&reply)));
        if let Some(tx) = tx {
            // The caller may have gone.
            let _ = tx.send(reply);
        }
    });
    ctx.spawn(completed);
}

/// Judges a message again after the scheduler's answer.
fn resume<A, M>(
    ctx: &mut Context<A>,
    asking: AuthorityQuery,
    received: ReceivedMessage<M>,
    tx: Option<OneshotSender<M::Result>>,
    asked: u32,
) where
    A: AdmitsMessages + Handler<M>,
    M: HasRule,
{
    let on_done = move |confirmed: Option<JobAuthority>, actor: &mut A, ctx: &mut Context<A>| {
        let judgement = weigh(actor, &received, Some(confirmed.as_ref()));
        let why = match (judgement, asked < ASKS_MAX) {
            (Judgement::Admit, _) => {
                let command = audited(actor, &received);
                let answer = Handler::<M>::handle(actor, signed(received), ctx);
                return reply::<A, M>(ctx, answer, command, tx);
            }
            (Judgement::Refuse(why), _) => why,
            (Judgement::Ask, true) => match ask_for(actor, &received) {
                Some(asking) => return resume(ctx, asking, received, tx, asked + 1),
                None => Refusal::Unconfirmed,
            },
            (Judgement::Ask, false) => Refusal::Unconfirmed,
        };
        refuse(actor, received, why);
    };
    ctx.spawn(wrap_future::<_, A>(asking).map(on_done));
}

/// Judges a message. `answered` is absent before a query of the scheduler, and empty if the
/// scheduler does not know the job.
fn weigh<A: AdmitsMessages, M: HasRule>(
    actor: &mut A,
    received: &ReceivedMessage<M>,
    answered: Option<Option<&JobAuthority>>,
) -> Judgement {
    let (from, message) = (&received.from, &received.message);
    let about = message.about();
    let standing = match &about {
        Some(about) => {
            let standing = actor.standing(from, about, answered.flatten());
            // A scheduler that does not know the job will not know it later.
            let unsure = standing.is_uncertain && answered != Some(None);
            SenderStanding { is_uncertain: unsure, ..standing }
        }
        None => SenderStanding::default(),
    };
    let epoch = about.and_then(|about| about.epoch);
    let rule = Rule { places: message.places(), ..M::RULE };
    match judge(&rule, from, &standing, epoch) {
        Judgement::Admit => match message.claim(&from.sender()) {
            Ok(()) => Judgement::Admit,
            Err(why) => Judgement::Refuse(why),
        },
        other => other,
    }
}

fn ask_for<A: AdmitsMessages, M: HasRule>(
    actor: &A,
    received: &ReceivedMessage<M>,
) -> Option<AuthorityQuery> {
    actor.ask(&received.from, &received.message.about()?)
}

fn signed<M: HasRule>(received: ReceivedMessage<M>) -> M {
    let mut message = received.message;
    message.sign(&received.from);
    message
}

/// Judges a message and passes it to its handler. [`judged!`](crate::judged) calls it.
pub fn hear<A, M>(
    actor: &mut A,
    received: ReceivedMessage<M>,
    ctx: &mut Context<A>,
) -> AdmissionResult<A, M>
where
    A: AdmitsMessages + Handler<M>,
    M: HasRule,
{
    let why = match weigh(actor, &received, None) {
        Judgement::Admit => {
            let command = audited(actor, &received);
            let answer = Handler::<M>::handle(actor, signed(received), ctx);
            return AdmissionResult::Taken(answer, command);
        }
        Judgement::Ask => match ask_for(actor, &received) {
            Some(asking) => return AdmissionResult::Later(asking, received),
            None => Refusal::Unconfirmed,
        },
        Judgement::Refuse(why) => why,
    };
    refuse(actor, received, why);
    AdmissionResult::Refused
}

/// The command of an admitted message, if the log has its kind.
fn audited<A: AdmitsMessages, M: HasRule>(
    actor: &A,
    received: &ReceivedMessage<M>,
) -> Option<PendingCommand> {
    if M::AUDITED { PendingCommand::of(actor, received) } else { None }
}

fn refuse<A: AdmitsMessages, M: HasRule>(actor: &A, received: ReceivedMessage<M>, why: Refusal) {
    // The log also has the attempts of users to read what is not theirs.
    let is_user = matches!(received.from.role, Some(Role::Client | Role::Viewer));
    if M::AUDITED || (is_user && why.is_denial()) {
        PendingCommand::of(actor, &received).inspect(|command| command.refused(why));
    }
    received.refuse(why);
}

/// Makes an actor that implements [`AdmitsMessages`](crate::admit::AdmitsMessages) handle a message
/// with a rule only after its judgement.
#[macro_export]
macro_rules! judged {
    ($actor:ty) => {
        impl<M> ::actix::Handler<::springtide_runtime::remote::ReceivedMessage<M>> for $actor
        where
            M: $crate::admit::HasRule,
            $actor: ::actix::Handler<M>,
        {
            type Result = $crate::admit::AdmissionResult<$actor, M>;

            fn handle(
                &mut self,
                received: ::springtide_runtime::remote::ReceivedMessage<M>,
                ctx: &mut Self::Context,
            ) -> Self::Result {
                $crate::admit::hear(self, received, ctx)
            }
        }
    };
}
