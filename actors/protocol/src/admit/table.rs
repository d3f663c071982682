//! The list of the runtime's messages to actors with their rules: the roles that may send a
//! message, and for a message about a job the places in that job.
//!
//! An actor accepts a message only by its rule. A message without a rule does not compile where it
//! is published. `matrix.txt` shows the consequences of the rules for each role and place.

use springtide_base::id::{Epoch, JobId, NodeId};
use springtide_net::net::tls::Role;
use springtide_remote::{MessageOrigin, Refusal, RemoteMessage, Sender};

use super::audit::AuditOutcome;
use super::place::{Places, Principal, Rule};
use super::*;
use crate::cluster::{FinishCluster, FinishWithout, GetMemory, NodeSilence, StoreMemory};
use crate::enrol::{GetAuthorities, GetJoinStatus, ReloadEnrolment};
use crate::files::{CancelFetches, FetchFile, PutChunk, ReadChunk, RemoveFiles, ScanFiles};
use crate::job::{
    Assign, Cancel, ClientMessage, JobEndNotice, JobEndReport, JobNote, LostMember, ReleaseWorker,
    Shutdown, TasksHeldAtDeath,
};
use crate::look::{InspectCluster, InspectJob, QueryWorker};
use crate::probe::{BandwidthSample, CheckPaths, FetchSample, Ping};
use crate::program::{GetProgramTerms, OfferProgram, ProgramReport};
use crate::scheduler::{
    AskLeave, AskShrink, AuditJob, BetterFree, CancelJob, CommitSlots, ConfirmSlots, GetAuthority,
    GetFiles, GetJob, GetOffers, GetSample, GetSlots, GetStatus, GetWait, GrowthRefused, HandOver,
    JobEfficiency, MeasureSpeed, MemberSilent, NeedNodes, NodeFreed, NodeGrant, OfferGrowth,
    PlanJob, PrepareSlots, ReleaseSlots, RequestNodes, ResizeJob, RootAdvanced, SpeedsMeasured,
    Subscribe, TakeOver, Undrain, WithdrawNodes,
};
use crate::singleton::{CreateSingleton, FindSingleton, GetSingleton};
use crate::site::{EndStubs, RestartNodes, StartStubs};
use crate::worker::{
    ChangeView, FindCheckpoint, Finish, GetCheckpoint, Leave, NewView, PrepareSuccessor,
    ProbeMember, StoreCheckpoint, unknown_epoch,
};

/// The subject of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSubject {
    /// Job that the message is about.
    pub job: JobId,
    /// Epoch that the sender names.
    pub epoch: Option<Epoch>,
    /// Another node that the message is about, if the sender's place depends on it.
    pub subject: Option<NodeId>,
    /// Whether the message gives the job to the receiver, which may not have it yet.
    pub is_assignment: bool,
}

impl MessageSubject {
    /// A message about a job in any epoch.
    pub fn of(job: JobId) -> Self {
        Self { job, epoch: None, subject: None, is_assignment: false }
    }

    /// Sets the epoch of the message.
    #[must_use]
    pub fn under(self, epoch: Epoch) -> Self {
        Self { epoch: Some(epoch), ..self }
    }

    /// Sets the epoch of the message, if any.
    #[must_use]
    pub fn under_any(self, epoch: Option<Epoch>) -> Self {
        Self { epoch, ..self }
    }

    /// Sets the node that the message is about.
    #[must_use]
    pub fn of_node(self, node: &NodeId) -> Self {
        Self { subject: Some(node.clone()), ..self }
    }

    /// Marks the message as giving the job to the receiver.
    #[must_use]
    pub fn beginning(self) -> Self {
        Self { is_assignment: true, ..self }
    }
}

/// A message with a rule for admission.
pub trait HasRule: RemoteMessage {
    /// The rule of the message.
    const RULE: Rule;

    /// The subject of the message, if it is about a job.
    fn about(&self) -> Option<MessageSubject> {
        None
    }

    /// The places that may send this message: those of the rule, or fewer.
    fn places(&self) -> Option<Places> {
        Self::RULE.places
    }

    /// Checks the message's statements about its sender.
    ///
    /// # Errors
    /// [`Refusal`] if a statement is false.
    fn claim(&self, _from: &Sender<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    /// Writes the sender into the message, if the message stores it.
    fn sign(&mut self, _from: &MessageOrigin) {}

    /// Whether the message is a command for the audit log.
    const AUDITED: bool = false;

    /// The outcome of the command for the audit log, from the handler's reply.
    fn outcome(_reply: &<Self as actix::Message>::Result) -> AuditOutcome {
        AuditOutcome::default()
    }
}

/// Judges a message that is not about a job, for [`Published::accepts_from`].
///
/// # Errors
/// [`Refusal`] of the sender.
///
/// [`Published::accepts_from`]: springtide_remote::Published::accepts_from
pub fn by_rule<M: HasRule>(from: &Sender<'_>, message: &M) -> Result<(), Refusal> {
    from.is(M::RULE.roles)?;
    message.claim(from)
}

const HEAD: &[Role] = &[Role::Head];
const CLIENTS: &[Role] = &[Role::Client, Role::Head];
const NODES: &[Role] = &[Role::Node];
const WORKERS: &[Role] = &[Role::Node, Role::Head];
const SITES: &[Role] = &[Role::Site, Role::Head];
const VIEWERS: &[Role] = &[Role::Client, Role::Viewer, Role::Head];
const READERS: &[Role] = &[Role::Client, Role::Site, Role::Head];
const HOLDERS: &[Role] = &[Role::Node, Role::Site, Role::Client, Role::Viewer];
const DRAINERS: &[Role] = &[Role::Node, Role::Site, Role::Client, Role::Head];
const PARTIES: &[Role] = &[Role::Node, Role::Client, Role::Head];
const ANY: &[Role] = &[Role::Node, Role::Site, Role::Client, Role::Viewer, Role::Head, Role::Other];

const OWNERS: Places = Places::OWNER.or(Places::OPERATOR).or(Places::HEAD);
const OBSERVERS: Places = OWNERS.or(Places::VIEWER);
const COORDINATOR: Places = Places::COORDINATOR;
const MEMBERS: Places = Places::MEMBER.or(Places::HOST).or(Places::COORDINATOR);
const HOSTS: Places = Places::HOST.or(Places::COORDINATOR);
const ORDERS: Places = Places::HEAD;

macro_rules! rules {
    (@places) => { None };
    (@places $places:expr) => { Some($places) };
    (@confirmed) => { false };
    (@confirmed $confirmed:literal) => { $confirmed };
    (@audited) => { false };
    (@audited $audited:expr) => { true };
    ($($message:ident {
        roles: $roles:expr
        $(, about: $about:expr, places: $places:expr)?
        $(, confirmed: $confirmed:literal)?
        $(, narrowed: $narrowed:expr)?
        $(, claim: $claim:expr)?
        $(, sign: $sign:expr)?
        $(, audited: $audited:expr)?
    })*) => {
        $(impl HasRule for $message {
            const RULE: Rule = Rule {
                roles: $roles,
                places: rules!(@places $($places)?),
                confirmed: rules!(@confirmed $($confirmed)?),
            };

            $(fn about(&self) -> Option<MessageSubject> {
                let about: fn(&Self) -> MessageSubject = $about;
                Some(about(self))
            })?

            $(fn places(&self) -> Option<Places> {
                let narrowed: fn(&Self) -> Places = $narrowed;
                Some(narrowed(self))
            })?

            $(fn claim(&self, from: &Sender<'_>) -> Result<(), Refusal> {
                let claim: fn(&Sender<'_>, &Self) -> Result<(), Refusal> = $claim;
                claim(from, self)
            })?

            $(fn sign(&mut self, from: &MessageOrigin) {
                let sign: fn(&mut Self, &MessageOrigin) = $sign;
                sign(self, from);
            })?

            const AUDITED: bool = rules!(@audited $($audited)?);

            $(fn outcome(reply: &<Self as actix::Message>::Result) -> AuditOutcome {
                let outcome: fn(&<Self as actix::Message>::Result) -> AuditOutcome = $audited;
                outcome(reply)
            })?
        })*

        /// Each message's name and its rule.
        pub const RULES: &[(&str, Rule)] =
            &[$((<$message as RemoteMessage>::NAME, <$message as HasRule>::RULE)),*];

        /// Source text of each message's subject.
        #[cfg(test)]
        const ABOUTS: &[&str] = &[$(concat!($(stringify!($about))?)),*];
    };
}

rules! {
    // To the scheduler, by clients.
    Submit {
        roles: CLIENTS, claim: submit,
        sign: |m, from| m.principal = Some(Principal::of(from)),
        audited: |r| match r {
            Ok(grant) => AuditOutcome::of_jobs(vec![grant.job]),
            Err(error) => AuditOutcome::failed(error),
        }
    }
    CancelJob {
        roles: CLIENTS, about: |m| MessageSubject::of(m.job), places: OWNERS,
        audited: |_| AuditOutcome::default()
    }
    CancelClientJobs { roles: CLIENTS, claim: cancel_of, audited: |_| AuditOutcome::default() }
    ResizeJob {
        roles: CLIENTS, about: |m| MessageSubject::of(m.job), places: OWNERS, audited: failure
    }
    GetJob { roles: VIEWERS, about: |m| MessageSubject::of(m.job), places: OBSERVERS }
    GetStatus { roles: ANY }
    GetWait { roles: CLIENTS, claim: get_wait }
    PlanJob { roles: ANY }
    GetSlots { roles: ANY }
    GetFiles { roles: ANY }
    PrepareSlots { roles: CLIENTS, sign: |m, from| m.ask.owner = Some(Principal::of(from)) }
    CommitSlots { roles: CLIENTS, audited: failure }
    ConfirmSlots { roles: CLIENTS }
    ReleaseSlots {
        roles: CLIENTS, sign: |m, from| m.by = Some(Principal::of(from)), audited: failure
    }
    Drain { roles: DRAINERS, claim: drain, audited: failure }
    Undrain { roles: CLIENTS, claim: by_operator, audited: failure }
    // To the scheduler, by sites.
    FilesReport { roles: SITES, claim: files_here }
    SiteRegistration { roles: SITES, claim: site_up }
    NodeRegistration { roles: SITES, claim: registered }
    NodeLoss { roles: SITES, claim: node_lost }
    SiteReport { roles: SITES, claim: site_polled }
    StubLoss { roles: SITES, claim: stub_gone }
    StubDelay { roles: SITES, claim: stub_waits }
    ProgramReport { roles: SITES, claim: program_report }
    // To the scheduler, by members of jobs.
    MemberSilent {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: MEMBERS, confirmed: true,
        narrowed: |m| if m.reporting_cluster.is_some() { MEMBERS } else { COORDINATOR },
        claim: member_silent
    }
    ConfirmMembership { roles: NODES, claim: confirm_membership }
    RequestNodes {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    WithdrawNodes {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    NeedNodes {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    NodeFreed {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    HandOver {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    RootAdvanced {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    GetOffers {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    GetSample {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    Subscribe {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    JobEfficiency {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    SpeedsMeasured {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    JobEndNotice {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    GetAuthority { roles: PARTIES }
    // To a worker.
    Assign {
        roles: WORKERS, about: |m| MessageSubject::of(m.spec.id).under(m.spec.epoch).beginning(),
        places: COORDINATOR.or(ORDERS), confirmed: true, claim: assign
    }
    ReleaseWorker { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    TakeOver { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    MeasureSpeed { roles: HEAD }
    AuditJob { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    Shutdown { roles: HEAD }
    NewView {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.view.epoch),
        places: MEMBERS, confirmed: true
    }
    ChangeView {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.change.epoch),
        places: MEMBERS, confirmed: true
    }
    Leave {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under_any(named(m.epoch)),
        places: COORDINATOR, confirmed: true
    }
    Finish {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under_any(named(m.epoch)),
        places: HOSTS, confirmed: true
    }
    PrepareSuccessor {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.bequest.epoch),
        places: COORDINATOR, confirmed: true
    }
    StoreCheckpoint {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.kept.epoch),
        places: COORDINATOR, confirmed: true
    }
    FindCheckpoint {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, confirmed: true
    }
    ProbeMember {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, confirmed: true
    }
    GetCheckpoint {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, confirmed: true
    }
    QueryWorker { roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS }
    // To a cluster's coordinator.
    WorkerJoinNotice {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, confirmed: true,
        claim: joined
    }
    WorkerPeriod {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, confirmed: true,
        claim: period
    }
    GetMemory {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, confirmed: true
    }
    StoreMemory {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    FinishCluster {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under_any(named(m.epoch)),
        places: COORDINATOR, confirmed: true
    }
    FinishWithout {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    InspectCluster {
        roles: CLIENTS, about: |m| MessageSubject::of(m.job),
        places: Places::OPERATOR.or(Places::HEAD)
    }
    // To a job's coordinator.
    ClusterReady {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, claim: cluster_joined
    }
    ClusterPeriod {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, claim: cluster_period
    }
    ClusterHeartbeat {
        roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS, claim: cluster_alive
    }
    TasksHeldAtDeath { roles: WORKERS, about: |m| MessageSubject::of(m.job), places: MEMBERS }
    NodeSilence {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).of_node(&m.node), places: HOSTS
    }
    LostMember { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    NodeGrant { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    AskLeave { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    OfferGrowth { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    AskShrink { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    BetterFree { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    GrowthRefused { roles: HEAD, about: |m| MessageSubject::of(m.job), places: ORDERS }
    InspectJob { roles: VIEWERS, about: |m| MessageSubject::of(m.job), places: OBSERVERS }
    Cancel { roles: CLIENTS, about: |m| MessageSubject::of(m.job), places: OWNERS }
    ClientMessage { roles: CLIENTS, about: |m| MessageSubject::of(m.job), places: Places::OWNER }
    // To a client.
    JobNote {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under(m.epoch),
        places: COORDINATOR, confirmed: true
    }
    JobEndReport {
        roles: WORKERS, about: |m| MessageSubject::of(m.job).under_any(m.epoch),
        places: COORDINATOR.or(ORDERS),
        confirmed: true,
        narrowed: |m| if m.epoch.is_some() { COORDINATOR } else { ORDERS }
    }
    // To a site, its file server, and a node's registrar.
    Register { roles: NODES, claim: register }
    RestartNodes { roles: HEAD }
    StartStubs { roles: HEAD }
    EndStubs { roles: HEAD }
    FetchFile { roles: CLIENTS }
    CancelFetches { roles: HEAD }
    ReadChunk { roles: READERS }
    PutChunk { roles: CLIENTS }
    ScanFiles { roles: CLIENTS }
    RemoveFiles { roles: CLIENTS, claim: remove_files }
    RegisterAgain { roles: SITES }
    // To the head's program store.
    GetProgramTerms { roles: ANY }
    OfferProgram { roles: CLIENTS, claim: offer_program, audited: failure }
    // To the head's directory of singletons, and to their hosts.
    FindSingleton { roles: PARTIES }
    CreateSingleton { roles: HEAD }
    GetSingleton { roles: HEAD }
    // To the enrolment service, and to the prober of every process.
    RenewCertificate { roles: HOLDERS, claim: renew }
    ReloadEnrolment { roles: CLIENTS, claim: by_operator }
    GetJoinStatus { roles: CLIENTS }
    Ping { roles: ANY }
    BandwidthSample { roles: ANY }
    FetchSample { roles: ANY }
    CheckPaths { roles: CLIENTS }
    GetAuthorities { roles: HOLDERS }
}

/// The outcome of a command that names its jobs, or concerns none.
fn failure<T, E: std::fmt::Display>(reply: &Result<T, E>) -> AuditOutcome {
    reply.as_ref().err().map_or_else(AuditOutcome::default, AuditOutcome::failed)
}

/// The epoch of an order. An older program sends none; then only the sender's place counts.
fn named(epoch: Epoch) -> Option<Epoch> {
    Some(epoch).filter(|epoch| *epoch != unknown_epoch())
}

/// Members of a cluster without contact to the coordinator report for that cluster and for
/// themselves.
fn member_silent(from: &Sender<'_>, message: &MemberSilent) -> Result<(), Refusal> {
    let Some(by) = &message.reporting_cluster else { return Ok(()) };
    from.holds(|peer| {
        let own = |(node, incarnation): &(NodeId, springtide_base::id::Incarnation)| {
            *node == peer.node && *incarnation == peer.incarnation
        };
        *by == peer.cluster && message.reporter.as_ref().is_none_or(own)
    })
}

/// The view of a job must have the job's epoch. A coordinator that assigns a job must be the
/// view's.
fn assign(from: &Sender<'_>, message: &Assign) -> Result<(), Refusal> {
    let Assign { spec, view, .. } = message;
    if spec.epoch != view.epoch {
        return Err(Refusal::Epoch);
    }
    match from.role {
        Some(Role::Node) => from.holds(|peer| view.coordinator.as_ref() == Some(&peer.node)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use springtide_base::id::{Incarnation, Peer};

    use super::*;
    use crate::admit::{Judgement, SenderStanding, judge};

    const ROLES: [(Role, &str); 5] = [
        (Role::Node, "node"),
        (Role::Site, "site"),
        (Role::Client, "client"),
        (Role::Viewer, "viewer"),
        (Role::Head, "head"),
    ];

    fn origin(role: Role) -> MessageOrigin {
        let (node, cluster) = ("ams-1".into(), "ams".into());
        MessageOrigin {
            peer: Peer { node, cluster, incarnation: Incarnation(1) },
            role: Some(role),
        }
    }

    /// The judgement of a message by a sender in this place: under the last issued epoch, an older
    /// one, and one that was not issued.
    fn cell(rule: &Rule, role: Role, places: Places, names_epoch: bool) -> String {
        let standing =
            SenderStanding { known: true, places, epoch: Some(Epoch(5)), is_uncertain: false };
        let word = |epoch: u32| match judge(rule, &origin(role), &standing, Some(Epoch(epoch))) {
            Judgement::Admit => "yes",
            Judgement::Ask => "ask",
            Judgement::Refuse(Refusal::JobRole) => "place",
            Judgement::Refuse(Refusal::Epoch) => "epoch",
            Judgement::Refuse(Refusal::Stale) => "stale",
            Judgement::Refuse(Refusal::Owner) => "owner",
            Judgement::Refuse(other) => panic!("{other}"),
        };
        let words = [word(5), word(4), word(6)];
        let same = words.iter().all(|word| *word == words[0]);
        if !names_epoch || same { words[0].to_owned() } else { words.join(" ") }
    }

    fn matrix() -> String {
        let mut text = String::from(
            "Which roles may send a message of the runtime, and for a message about a job, which\n\
             places in that job: `yes`, or the reason of the refusal. Three words: under the \
             epoch\nissued last, an older epoch, an epoch that was not issued. Roles that are not \
             listed\nare refused. The test of the table writes this file.\n\n",
        );
        for ((name, rule), about) in RULES.iter().zip(ABOUTS) {
            let roles = ROLES.iter().filter(|(role, _)| rule.roles.contains(role));
            let names: Vec<&str> = roles.clone().map(|(_, name)| *name).collect();
            let _ = writeln!(text, "{name}: {}", names.join(", "));
            if rule.places.is_none() {
                continue;
            }
            for (places, place) in Places::ALL {
                let names_epoch = about.contains("under");
                let of = |(role, _): &(Role, &str)| cell(rule, *role, places, names_epoch);
                let cells: BTreeSet<String> = roles.clone().map(of).collect();
                assert_eq!(cells.len(), 1, "within the roles of a rule the place decides: {name}");
                let cells: Vec<String> = cells.into_iter().collect();
                let _ = writeln!(text, "    {place:<11} {}", cells.join(" "));
            }
        }
        text
    }

    #[test]
    fn the_matrix_equals_the_reviewed_one() {
        let (found, path) =
            (matrix(), concat!(env!("CARGO_MANIFEST_DIR"), "/src/admit/matrix.txt"));
        if std::env::var_os("SPRINGTIDE_BLESS").is_some_and(|v| v == "1") {
            std::fs::write(path, &found).unwrap();
        }
        let reviewed = std::fs::read_to_string(path).unwrap();
        assert_eq!(found, reviewed, "run it with SPRINGTIDE_BLESS=1 and review the change");
    }

    #[test]
    fn each_message_has_one_rule() {
        let names: BTreeSet<&str> = RULES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), RULES.len());
    }

    #[test]
    fn a_sender_without_a_place_in_a_job_is_refused() {
        for (name, rule) in RULES.iter().filter(|(_, rule)| rule.places.is_some()) {
            for (role, _) in ROLES {
                for epoch in [None, Some(Epoch(4)), Some(Epoch(5)), Some(Epoch(6))] {
                    let standing = SenderStanding {
                        known: true,
                        places: Places::NONE,
                        epoch: Some(Epoch(5)),
                        is_uncertain: false,
                    };
                    let judged = judge(rule, &origin(role), &standing, epoch);
                    assert!(matches!(judged, Judgement::Refuse(_)), "{name} {role:?} {judged:?}");
                }
            }
        }
    }

    #[test]
    fn an_epoch_that_was_not_issued_last_never_counts() {
        let inside = [Places::MEMBER, Places::HOST, Places::COORDINATOR, Places::OWNER];
        for (name, rule) in RULES.iter().filter(|(_, rule)| rule.places.is_some()) {
            for places in inside {
                for epoch in [Epoch(0), Epoch(4), Epoch(6), Epoch(u32::MAX)] {
                    let standing = SenderStanding {
                        known: true,
                        places,
                        epoch: Some(Epoch(5)),
                        is_uncertain: false,
                    };
                    let judged = judge(rule, &origin(rule.roles[0]), &standing, Some(epoch));
                    assert!(matches!(judged, Judgement::Refuse(_)), "{name} {places:?} {judged:?}");
                }
            }
        }
    }

    #[test]
    fn a_receiver_asks_the_scheduler_before_it_refuses() {
        let rule = <NewView as HasRule>::RULE;
        let node = origin(Role::Node);
        let standing = |places, unsure| SenderStanding {
            known: true,
            places,
            epoch: Some(Epoch(5)),
            is_uncertain: unsure,
        };
        let judged = |places, unsure, epoch| {
            judge(&rule, &node, &standing(places, unsure), Some(Epoch(epoch)))
        };
        assert_eq!(judged(Places::MEMBER, true, 6), Judgement::Ask);
        assert_eq!(judged(Places::NONE, true, 5), Judgement::Ask);
        assert_eq!(judged(Places::MEMBER, true, 4), Judgement::Refuse(Refusal::Stale));
        assert_eq!(judged(Places::MEMBER, false, 6), Judgement::Refuse(Refusal::Epoch));
        assert_eq!(judged(Places::MEMBER, true, 5), Judgement::Admit);
        // A receiver without the job refuses.
        let absent = SenderStanding { is_uncertain: true, ..SenderStanding::default() };
        assert_eq!(judge(&rule, &node, &absent, Some(Epoch(5))), Judgement::Ask);
        let absent = SenderStanding::default();
        let refused = Judgement::Refuse(Refusal::NoJob);
        assert_eq!(judge(&rule, &node, &absent, Some(Epoch(5))), refused);
    }
}
