//! The placement queue, and what is kept free for its first job, or for one that cannot go on without more.

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::books::{Job, Stage, Wanted};
use super::event::{Action, Kind, Need, Want};
use super::{Approach, Manager};
use crate::policy::malleability::{
    Component, Direction, Ground, NoPlace, Placed, Placement, Room, Runner, Transfer, place,
};
use crate::policy::provisioning::Time;

/// Processors that are kept free for somebody until there are enough.
#[derive(Debug)]
pub(super) struct Pledge {
    pub(super) whom: Whom,
    /// How many where.
    need: BTreeMap<ClusterId, u32>,
}

/// What jobs that wait are judged by at one moment: made for the first that is asked about, and as good for a thousand more, as
/// long as nothing happens to the manager.
#[derive(Debug, Default)]
pub struct Outlook(OnceCell<Grounds>);

#[derive(Debug)]
struct Grounds {
    all: Ground,
    /// For those that nothing is kept for, where something is kept.
    others: Option<Ground>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// A job that waits.
    Start(JobId),
    /// A job that cannot go on.
    Growth(JobId),
}

impl Whom {
    /// The running job that it is.
    fn growing(self) -> Option<JobId> {
        match self {
            Self::Start(_) => None,
            Self::Growth(job) => Some(job),
        }
    }
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(job) => write!(f, "{job}, which waits"),
            Self::Growth(job) => write!(f, "{job}, which cannot go on without more"),
        }
    }
}

/// What is there for others than the one that something is kept for.
fn without(ground: &Ground, pledge: &Pledge) -> Ground {
    let mut ground = ground.clone();
    for (cluster, kept) in &pledge.need {
        if let Some(room) = ground.rooms.get_mut(cluster) {
            room.idle = room.idle.saturating_sub(*kept);
        }
    }
    ground
}

impl Manager {
    pub(super) fn submit(&mut self, id: JobId, need: Need, now: Instant, out: &mut Vec<Action>) {
        if self.jobs.contains_key(&id) {
            return out.push(Action::Odd { what: format!("{id} is submitted twice") });
        }
        if need.spreads {
            self.spreading.insert(id);
        }
        self.jobs.insert(id, Job::waiting(need));
        self.queue.push_back(id);
        self.next_scan.get_or_insert(now + self.settings.scan_every);
        self.stirred = true;
    }

    /// Looks through the queue, from its head to its tail, if there is a cause. A job that finds no place goes to the tail; that
    /// counts as a try if it is the regular scan.
    pub(super) fn scan(&mut self, now: Instant, out: &mut Vec<Action>) {
        let regular = self.next_scan.is_some_and(|at| at <= now);
        if !regular && !self.stirred {
            return;
        }
        self.stirred = false;
        self.drop_vain_pledge(now);
        if self.queue.is_empty() {
            self.next_scan = None;
            return;
        }
        let mut ground = self.ground_now();
        let mut glance = Glance::at(&ground);
        let whole = self.settings.approach == Approach::Waiting && self.pledge.is_none();
        let mut head = None;
        let mut tail = VecDeque::new();
        while let Some(id) = self.queue.pop_front() {
            let Some(job) = self.jobs.get(&id) else { continue };
            if let Some(reason) = self.stranded(&job.need) {
                self.forget(id);
                out.push(Action::Fail { job: id, reason });
                continue;
            }
            let own = job.need.under.is_some();
            let mine = self.pledge.as_ref().is_some_and(|pledge| pledge.whom == Whom::Start(id));
            // To say why it finds no place takes longer than to see that it finds none.
            let hopeless = !job.need.has_own_rooms() && glance.hopeless(&job.need);
            let tried = match hopeless && !glance.impossible(&job.need, &ground) {
                true => None,
                false => Some(self.try_place(&job.need, mine, &ground)),
            };
            match tried {
                Some(Ok(placed)) => {
                    if placed.transfers.is_empty() && !own {
                        for part in &placed.parts {
                            if let Some(room) = ground.rooms.get_mut(&part.cluster) {
                                room.idle = room.idle.saturating_sub(part.count);
                            }
                        }
                        glance = Glance::at(&ground);
                    }
                    if mine {
                        self.pledge = None;
                    }
                    self.placed(id, placed, now, out);
                    continue;
                }
                Some(Err(no)) if no.never => {
                    self.forget(id);
                    out.push(Action::Fail { job: id, reason: no.to_string() });
                    continue;
                }
                _ => {}
            }
            if own {
                tail.push_back(id); // it waits for its own time, which no try is lost over
                continue;
            }
            head.get_or_insert(id);
            if mine {
                tail.push_front(id);
                continue; // room is being made for it
            }
            if regular && let Some(job) = self.jobs.get_mut(&id) {
                job.tries += 1;
                let (tries, limit) = (job.tries, self.settings.tries);
                if limit.is_some_and(|limit| tries > limit) {
                    let why =
                        self.jobs.get(&id).map(|job| self.waits_for(id, job, &Outlook::default()));
                    self.forget(id);
                    let reason =
                        format!("no place was found in {tries} tries: {}", why.unwrap_or_default());
                    out.push(Action::Fail { job: id, reason });
                    if head == Some(id) {
                        head = None;
                    }
                    continue;
                }
            }
            tail.push_back(id);
        }
        self.queue = tail;
        if regular || self.queue.is_empty() {
            self.next_scan = (!self.queue.is_empty()).then(|| now + self.settings.scan_every);
        }
        if let Some(head) = head.filter(|_| whole) {
            self.pledge_start(head, &ground);
        }
    }

    /// What is kept for another is not there.
    fn try_place(&self, need: &Need, mine: bool, ground: &Ground) -> Result<Placed, NoPlace> {
        let pledge = self.pledge.as_ref().filter(|_| !mine && need.under.is_none());
        if pledge.is_none() && !need.has_own_rooms() {
            return place(need.placement, &need.components, ground);
        }
        let mut ground = ground.clone();
        self.rooms_of(need, &mut ground.rooms);
        match pledge {
            Some(pledge) => place(need.placement, &need.components, &without(&ground, pledge)),
            None => place(need.placement, &need.components, &ground),
        }
    }

    fn grounds_now(&self) -> Grounds {
        let all = self.ground_now();
        let others = self.pledge.as_ref().map(|pledge| without(&all, pledge));
        Grounds { all, others }
    }

    /// Why a job waits.
    pub(super) fn waits_for(&self, id: JobId, job: &Job, outlook: &Outlook) -> String {
        let mine = self.pledge.as_ref().is_some_and(|pledge| pledge.whom == Whom::Start(id));
        if let Some(when) = self.own_time(&job.need) {
            return when;
        }
        let Grounds { all, others } = outlook.0.get_or_init(|| self.grounds_now());
        let ground = others.as_ref().filter(|_| !mine).unwrap_or(all);
        let tried = match job.need.has_own_rooms() {
            true => self.try_place(&job.need, mine, all),
            false => place(job.need.placement, &job.need.components, ground),
        };
        match (tried, mine, &self.pledge) {
            (Ok(placed), ..) => format!("it is about to start ({})", placed.why),
            (Err(no), true, _) => format!("{no}; running jobs are making room for it"),
            (Err(no), false, Some(pledge)) => format!("{no}; first comes {}", pledge.whom),
            (Err(no), false, None) => no.to_string(),
        }
    }

    fn placed(&mut self, id: JobId, placed: Placed, now: Instant, out: &mut Vec<Action>) {
        let seconds: f64 = placed.transfers.iter().map(|transfer| transfer.seconds).sum();
        let ahead = self.settings.claim_ahead;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.why = placed.why.clone();
        if placed.transfers.is_empty() {
            return self.claim(id, placed, out);
        }
        // Nobody knows how long it takes where nothing was measured: its processors are claimed when the files are there.
        let start =
            Duration::try_from_secs_f64(seconds).ok().and_then(|takes| now.checked_add(takes));
        let claim_at = start.map(|start| start.checked_sub(ahead).unwrap_or(now).max(now));
        out.push(Action::Move { job: id, transfers: placed.transfers.clone() });
        job.stage = Stage::Placed { placed, claim_at };
    }

    fn claim(&mut self, id: JobId, placed: Placed, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.stage = Stage::Claiming;
        job.lie(&placed);
        for part in &placed.parts {
            if let Some((known, account)) = self.account(id, &part.cluster) {
                account.coming += part.count;
                known.booked += part.count;
            }
        }
        out.push(Action::Claim { job: id, placed });
    }

    /// The files of a placed job are there.
    pub(super) fn moved(&mut self, id: JobId, now: Instant, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Stage::Placed { placed, claim_at } = &mut job.stage else { return };
        *claim_at = Some(now);
        for Transfer { file, to, .. } in &placed.transfers {
            if let Some(replica) = self.ground.files.get_mut(file) {
                replica.clusters.insert(to.clone());
            }
        }
        self.claim_due(now, out);
    }

    /// The files of a placed job do not get there.
    pub(super) fn move_failed(
        &mut self,
        id: JobId,
        reason: &str,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        // Of one whose processors are claimed already the claim fails, which is told by whoever carries it out.
        if self.jobs.get(&id).is_some_and(|job| matches!(job.stage, Stage::Placed { .. })) {
            let why = format!("its files could not be moved: {reason}");
            self.requeue(id, &why, now, out);
        }
    }

    /// Claims the processors of placed jobs whose start is near, as far as they are still there.
    pub(super) fn claim_due(&mut self, now: Instant, out: &mut Vec<Action>) {
        let due = |(&id, job): (&JobId, &Job)| match &job.stage {
            Stage::Placed { placed, claim_at: Some(at) } if *at <= now => {
                Some((id, placed.clone()))
            }
            _ => None,
        };
        let due: Vec<(JobId, Placed)> = self.jobs.iter().filter_map(due).collect();
        for (id, placed) in due {
            let mut needed: BTreeMap<&ClusterId, u32> = BTreeMap::new();
            for part in &placed.parts {
                *needed.entry(&part.cluster).or_default() += part.count;
            }
            let need = self.jobs.get(&id).map(|job| &job.need);
            let there = |(cluster, count): (&&ClusterId, &u32)| {
                let known = self.clusters.get(*cluster);
                let available = self.available(cluster, need);
                known.is_some_and(|known| known.closed.is_none() && available >= *count)
            };
            if needed.iter().all(there) {
                self.claim(id, placed, out);
            } else {
                self.requeue(id, "its processors were taken while its files were moved", now, out);
            }
        }
    }

    /// Puts a job at the queue's tail, which is a try.
    fn requeue(&mut self, id: JobId, why: &str, now: Instant, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.tries += 1;
        if self.settings.tries.is_some_and(|limit| job.tries > limit) {
            let reason = format!("no place was found in {} tries: {why}", job.tries);
            self.forget(id);
            return out.push(Action::Fail { job: id, reason });
        }
        (job.stage, job.why) = (Stage::Waiting, why.to_owned());
        job.bounds.clear();
        self.queue.push_back(id);
        self.next_scan.get_or_insert(now + self.settings.scan_every);
    }

    pub(super) fn claimed(&mut self, id: JobId, got: &BTreeMap<ClusterId, u32>, now: Instant) {
        let started = self.time(now);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.stage == Stage::Claiming) else {
            return;
        };
        (job.stage, job.started) = (Stage::Running, started);
        let clusters: Vec<ClusterId> = job.accounts.keys().cloned().collect();
        for cluster in clusters {
            let Some((known, account)) = self.account(id, &cluster) else { continue };
            let count = got.get(&cluster).copied().unwrap_or(0).min(account.coming);
            known.booked -= account.coming - count;
            (account.coming, account.size) = (0, count);
        }
        self.stirred = true;
    }

    /// A job runs that a former manager placed.
    pub(super) fn resumed(
        &mut self,
        id: JobId,
        need: Need,
        placed: &Placed,
        since: Option<Time>,
        sizes: &BTreeMap<ClusterId, u32>,
    ) {
        if self.jobs.contains_key(&id) {
            return;
        }
        if need.spreads {
            self.spreading.insert(id);
        }
        // Clocks of two machines may differ: it has not begun in the future.
        let started = since.unwrap_or(self.now).min(self.now);
        let mut job = Job { stage: Stage::Running, started, ..Job::waiting(need) };
        job.why = "it ran when the scheduler came back".to_owned();
        job.lie(placed);
        self.jobs.insert(id, job);
        for (cluster, size) in sizes {
            self.clusters.entry(cluster.clone()).or_default();
            if let Some((known, account)) = self.account(id, cluster) {
                account.size += size;
                known.booked += size;
            }
        }
        self.stirred = true;
    }

    pub(super) fn claim_failed(
        &mut self,
        id: JobId,
        reason: &str,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.stage == Stage::Claiming) else {
            return;
        };
        for (cluster, account) in std::mem::take(&mut job.accounts) {
            if let Some(known) = self.clusters.get_mut(&cluster) {
                known.booked -= account.all();
                known.jobs.remove(&id);
            }
        }
        // The next regular scan tries it, unless something happens: at once it would fail again as likely as not.
        self.requeue(id, reason, now, out);
    }

    pub(super) fn withdraw(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if matches!(job.stage, Stage::Waiting | Stage::Placed { .. }) {
            self.queue.retain(|queued| *queued != id);
            self.forget(id);
            self.stirred = true;
        }
    }

    /// Whether processors of a cluster are kept for somebody.
    pub(super) fn is_pledged(&self, cluster: &ClusterId) -> bool {
        self.pledge.as_ref().is_some_and(|pledge| pledge.need.contains_key(cluster))
    }

    /// Processors of a cluster that jobs release already.
    pub(super) fn on_the_way(&self, cluster: &ClusterId) -> u32 {
        let Some(known) = self.clusters.get(cluster) else { return 0 };
        known.jobs.iter().filter_map(|id| self.jobs.get(id)).map(|job| job.owes(cluster)).sum()
    }

    /// Processors of a cluster that malleable jobs could release now.
    pub(super) fn reclaimable(&self, cluster: &ClusterId, but: Option<JobId>) -> u32 {
        let others = self.runners(cluster).into_iter().filter(|runner| Some(runner.job) != but);
        others.map(|Runner { size, min, .. }| size.saturating_sub(min)).sum()
    }

    /// If the first job of the queue fits where running ones shrink to their minimum, they are to do so.
    fn pledge_start(&mut self, id: JobId, ground: &Ground) {
        let Some(job) = self.jobs.get(&id) else { return };
        let mut could = ground.clone();
        for (cluster, room) in &mut could.rooms {
            let more = self.on_the_way(cluster) + self.reclaimable(cluster, None);
            // What others give back for it may still be reserved for later.
            room.idle = (room.idle + more).min(self.available_with(cluster, Some(&job.need), more));
        }
        let at_least = |one: &Component| Component { start: one.min, ..one.clone() };
        let components: Vec<Component> = job.need.components.iter().map(at_least).collect();
        let Ok(placed) = place(job.need.placement, &components, &could) else { return };
        let mut need: BTreeMap<ClusterId, u32> = BTreeMap::new();
        for part in placed.parts {
            *need.entry(part.cluster).or_default() += part.count;
        }
        self.pledge = Some(Pledge { whom: Whom::Start(id), need });
    }

    /// Drops a pledge that nobody waits for, or that cannot be kept.
    fn drop_vain_pledge(&mut self, now: Instant) {
        let Some(pledge) = &self.pledge else { return };
        let waited_for = match pledge.whom {
            Whom::Start(id) => self.jobs.get(&id).is_some_and(|job| job.stage == Stage::Waiting),
            Whom::Growth(id) => self.jobs.get(&id).is_some_and(|job| {
                let wanted = job.want.as_ref().and_then(|wanted| wanted.until);
                job.stage == Stage::Running && wanted.is_some_and(|until| until > now)
            }),
        };
        let coming = |(cluster, count): (&ClusterId, &u32)| {
            let more = self.on_the_way(cluster) + self.reclaimable(cluster, pledge.whom.growing());
            let could = self.kept(pledge.whom, cluster, more);
            // In a round some wait to be asked, and in a growth some will be able to give.
            self.rounds.contains_key(cluster) || could >= *count
        };
        if !waited_for || !pledge.need.iter().all(coming) {
            self.pledge = None;
        }
    }

    /// What there is for somebody of a cluster's processors, if so many more were given back: the reserve for local users and the caps
    /// bound growth, and not a job's start.
    fn kept(&self, whom: Whom, cluster: &ClusterId, back: u32) -> u32 {
        match whom {
            Whom::Growth(_) => self.grow_value_with(cluster, back),
            Whom::Start(id) => {
                let known = self.clusters.get(cluster).filter(|known| known.closed.is_none());
                let need = self.jobs.get(&id).map(|job| &job.need);
                known.map_or(0, |_| self.available_with(cluster, need, back))
            }
        }
    }

    /// Begins the shrinks that a pledge needs, and gives what is kept for a running job.
    pub(super) fn serve_pledge(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.refuse_late(now, out);
        if self.pledge.is_none() {
            self.pledge_growth(out);
        }
        let Some(pledge) = &self.pledge else { return };
        let (whom, need) = (pledge.whom, pledge.need.clone());
        for (cluster, count) in need {
            if let Whom::Growth(id) = whom
                && self.kept(whom, &cluster, 0) >= count
            {
                self.give_pledged(id, &cluster, count, now, out);
                continue;
            }
            let lacks = count.saturating_sub(self.kept(whom, &cluster, self.on_the_way(&cluster)));
            if lacks > 0 && !self.rounds.contains_key(&cluster) {
                self.begin(&cluster, Direction::Shrink, lacks, whom.growing());
            }
        }
    }

    fn give_pledged(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.change.is_none()) else { return };
        let Some(Wanted { want, .. }) = job.want.clone() else { return };
        // It may have grown elsewhere since. What it wants it wants until it has it.
        let count = count.min(self.allows(id, &want, cluster));
        if count > 0 {
            let why = format!("it cannot go on without more: {count} of {cluster}");
            self.give(id, cluster, count, why, now, out);
        }
        if let Some(pledge) = &mut self.pledge {
            pledge.need.remove(cluster);
            if pledge.need.is_empty() {
                self.pledge = None;
            }
        }
    }

    /// A running job wants more.
    pub(super) fn want(&mut self, id: JobId, want: Want, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let until = want.within.and_then(|within| now.checked_add(within));
        // For how long it waits changes nothing of what room is kept.
        let same =
            |Wanted { want: was, .. }: &Wanted| Want { within: want.within, ..was.clone() } == want;
        if !job.want.as_ref().is_some_and(same)
            && matches!(&self.pledge, Some(pledge) if pledge.whom == Whom::Growth(id))
        {
            self.pledge = None;
        }
        let stalled = job.want.as_ref().is_some_and(|wanted| wanted.stalled);
        job.want = (want.count > 0).then_some(Wanted { want, until, stalled });
        self.stirred = true;
    }

    /// A job did not get all that it was given.
    pub(super) fn stall(&mut self, id: JobId) {
        if let Some(wanted) = self.jobs.get_mut(&id).and_then(|job| job.want.as_mut()) {
            wanted.stalled = true;
        }
    }

    /// Tells jobs that waited too long for what they cannot do without.
    fn refuse_late(&mut self, now: Instant, out: &mut Vec<Action>) {
        for (&id, job) in &mut self.jobs {
            let late = job.want.as_ref().is_some_and(|w| w.until.is_some_and(|until| until <= now));
            if late && let Some(Wanted { want, .. }) = job.want.take() {
                let reason = format!("{} processors were not to be had in time", want.count);
                out.push(Action::Refuse { job: id, reason });
                if matches!(&self.pledge, Some(pledge) if pledge.whom == Whom::Growth(id)) {
                    self.pledge = None;
                }
            }
        }
    }

    /// Where a job may have more, and how many.
    fn allows(&self, id: JobId, want: &Want, cluster: &ClusterId) -> u32 {
        let Some(job) = self.jobs.get(&id) else { return 0 };
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return 0;
        };
        if !want.clusters.is_empty() && !want.clusters.contains(cluster)
            || want.but.contains(cluster)
        {
            return 0;
        }
        let here = job.accounts.get(cluster).map_or(0, |account| account.size);
        job.bounds(cluster).1.min(known.size).saturating_sub(here)
    }

    /// Looks where a job that cannot go on can have what it needs: idle processors first, then others'.
    fn pledge_growth(&mut self, out: &mut Vec<Action>) {
        let must = |(&id, job): (&JobId, &Job)| {
            let wanted = job.want.as_ref().filter(|w| w.until.is_some() && !w.stalled)?;
            (job.stage == Stage::Running && job.change.is_none()).then(|| (id, wanted.want.clone()))
        };
        let Some((id, want)) = self.jobs.iter().find_map(must) else { return };
        let mut left = want.count;
        let mut need: BTreeMap<ClusterId, u32> = BTreeMap::new();
        let mut most: Vec<(u32, u32, ClusterId)> = Vec::new();
        for cluster in self.clusters.keys() {
            let allowed = self.allows(id, &want, cluster);
            let more = self.on_the_way(cluster) + self.reclaimable(cluster, Some(id));
            let idle = self.grow_value(cluster).min(allowed);
            let all = self.grow_value_with(cluster, more).min(allowed);
            most.push((idle, all, cluster.clone()));
        }
        most.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)).then_with(|| a.2.cmp(&b.2)));
        for by_idle in [true, false] {
            for (idle, all, cluster) in &most {
                let has = need.get(cluster).copied().unwrap_or(0);
                let here = if by_idle { *idle } else { *all }.saturating_sub(has).min(left);
                if here > 0 {
                    *need.entry(cluster.clone()).or_default() += here;
                    left -= here;
                }
            }
        }
        if left > 0 {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.want = None;
            }
            let could = want.count - left;
            let reason = format!(
                "{} more processors are asked for, and {could} could be had if all others shrank to their minimum",
                want.count
            );
            return out.push(Action::Refuse { job: id, reason });
        }
        self.pledge = Some(Pledge { whom: Whom::Growth(id), need });
    }

    /// Gives jobs of a cluster what they asked for and can do without, as far as growth goes.
    pub(super) fn serve_wants(&mut self, cluster: &ClusterId, now: Instant, out: &mut Vec<Action>) {
        let wants = |(&id, job): (&JobId, &Job)| {
            let wanted = job.want.as_ref().filter(|wanted| wanted.until.is_none())?;
            let asks = job.stage == Stage::Running
                && job.change.is_none()
                && job.need.kind == Kind::Malleable;
            asks.then(|| (id, wanted.want.clone()))
        };
        let wants: Vec<(JobId, Want)> = self.jobs.iter().filter_map(wants).collect();
        for (id, want) in wants {
            let allowed = self.allows(id, &want, cluster);
            let count = self.grow_value(cluster).min(want.count).min(allowed);
            if count == 0 {
                continue;
            }
            let why = format!("it asked for processors: {count} of {cluster}");
            self.give(id, cluster, count, why, now, out);
        }
    }
}

/// Clusters at a glance.
struct Glance {
    most_idle: u32,
    all_idle: u64,
    /// Of one that cannot be used now nobody knows what it will be.
    most_size: u64,
    all_sizes: u64,
}

impl Glance {
    fn at(ground: &Ground) -> Self {
        let open =
            || ground.rooms.values().filter(|room| room.closed.is_none()).map(|room| room.idle);
        let sizes = || ground.rooms.values().map(Room::could_have);
        Self {
            most_idle: open().max().unwrap_or(0),
            all_idle: open().map(u64::from).sum(),
            most_size: sizes().max().unwrap_or(0),
            all_sizes: sizes().sum(),
        }
    }

    /// Whether a job certainly finds no place.
    fn hopeless(&self, need: &Need) -> bool {
        match need.placement {
            Placement::FlexibleClusterMinimisation => self.all_idle < u64::from(need.least()),
            _ => need.components.iter().any(|one| one.min > self.most_idle),
        }
    }

    /// Whether it may be that it never finds one.
    fn impossible(&self, need: &Need, ground: &Ground) -> bool {
        let named = |one: &Component| {
            let rooms = one.clusters.iter().filter_map(|cluster| ground.rooms.get(cluster));
            rooms.map(Room::could_have).max().unwrap_or(0)
        };
        let too_small = |one: &Component| match one.clusters.is_empty() {
            true => u64::from(one.min) > self.most_size,
            false => u64::from(one.min) > named(one),
        };
        match need.placement {
            Placement::FlexibleClusterMinimisation => {
                let any_named = need.components.iter().any(|one| !one.clusters.is_empty());
                any_named || self.all_sizes < u64::from(need.least())
            }
            _ => {
                let sum: u64 = need.components.iter().map(|one| u64::from(one.min)).sum();
                sum > self.all_sizes || need.components.iter().any(too_small)
            }
        }
    }
}
