//! Changes of jobs' sizes: growth by offer, hold and recruitment, and shrinking.
//!
//! Each job has at most one change under way, and each step has a time limit.

use springtide_base::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::accounts::{AllocationStage, ClusterAccount, PendingResize, ResizeStep};
use super::event::ManagerAction;
use super::{Approach, Manager, ManagerSettings};
use crate::policy::malleability::{Direction, MalleableJob, Round};

impl Manager {
    /// Starts the growth of a polled cluster's jobs. Jobs below their minimum come first.
    pub(super) fn grow(&mut self, cluster: &ClusterId, now: Instant, out: &mut Vec<ManagerAction>) {
        self.restore(cluster, now, out);
        if self.is_kept(cluster) || self.rounds.contains_key(cluster) {
            return;
        }
        self.serve_wants(cluster, now, out);
        let value = self.grow_value(cluster);
        if value > 0 {
            return self.start_round(cluster, Direction::Grow, value, None);
        }
        // Where running jobs have precedence, none shrinks.
        let lacks = self.reserve_lacks(cluster).saturating_sub(self.under_release(cluster));
        if lacks > 0 && self.settings.approach == Approach::Waiting {
            self.start_round(cluster, Direction::Shrink, lacks, None);
        }
    }

    /// Replaces lost processors of jobs that are below their minimum, whether malleable or not, and
    /// processors that will be taken away. Above a job's minimum, its growth leaves as many
    /// processors to others as any growth.
    pub(super) fn restore(
        &mut self,
        cluster: &ClusterId,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return;
        };
        let lacks = |id: &JobId| {
            let job = self.jobs.get(id)?;
            let account = job.accounts.get(cluster).copied().unwrap_or_default();
            let below_minimum = job.bounds(cluster).0.saturating_sub(account.lasting());
            let lacks = below_minimum > 0 || account.unreplaced > 0;
            (lacks && self.may_change(*id)).then_some((*id, below_minimum, account.unreplaced))
        };
        let lack: Vec<(JobId, u32, u32)> = known.jobs.iter().filter_map(lacks).collect();
        for (id, below_minimum, unreplaced) in lack {
            // A job of a reservation gets replacements from its reservation.
            let need = self.jobs.get(&id).map(|job| &job.need);
            let needed = self.restorable(cluster, need).min(below_minimum);
            let count = needed.max(self.grow_value(cluster).min(unreplaced));
            if count > 0 {
                let replaced = match unreplaced {
                    0 => "lost processors",
                    _ => "processors that will be taken away",
                };
                let why = format!("{count} of {cluster} to replace {replaced}");
                self.grant(id, cluster, count, why, now, out);
            }
        }
    }

    /// Starts a round among a cluster's jobs, without the job that the others shrink for.
    pub(super) fn start_round(
        &mut self,
        cluster: &ClusterId,
        direction: Direction,
        value: u32,
        but: Option<JobId>,
    ) {
        let mut runners = self.runners(cluster);
        runners.retain(|runner| Some(runner.job) != but);
        if direction == Direction::Shrink && !self.must_shrink(cluster) {
            let declined = |runner: &MalleableJob| {
                let account = self.jobs.get(&runner.job).and_then(|j| j.accounts.get(cluster));
                account.is_some_and(|account| account.declined)
            };
            runners.retain(|runner| !declined(runner));
        }
        let (policy, worth) = (self.settings.policy, &self.settings.worth);
        let round = Round::new(policy, direction, value, worth, &runners);
        if !round.is_over() {
            self.rounds.insert(cluster.clone(), round);
        }
    }

    /// Sends the questions of all rounds.
    pub(super) fn serve_rounds(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        let clusters: Vec<ClusterId> = self.rounds.keys().cloned().collect();
        for cluster in clusters {
            while let Some(round) = self.rounds.get_mut(&cluster) {
                let (direction, policy) = (round.direction(), round.policy());
                let asks = round.requests();
                if asks.is_empty() {
                    break;
                }
                for ask in asks {
                    match direction {
                        Direction::Grow => {
                            let free = self.grow_value(&cluster);
                            let why = format!("{policy}: {free} free in {cluster}");
                            self.offer(ask.job, &cluster, ask.count, why, now, out);
                        }
                        Direction::Shrink => {
                            // A release for local users is voluntary.
                            let head_reservation =
                                self.head_reservation.as_ref().filter(|_| self.is_kept(&cluster));
                            let reserved_for = head_reservation
                                .map(|head_reservation| head_reservation.reserved_for.to_string());
                            let reserved_for = self.lacking_reservation(&cluster).or(reserved_for);
                            let must = reserved_for.is_some();
                            let reserved_for =
                                reserved_for.unwrap_or_else(|| "local users".to_owned());
                            let why = format!("{policy}: {cluster} makes room for {reserved_for}");
                            self.ask_to_shrink(ask.job, &cluster, ask.count, must, why, now, out);
                        }
                    }
                }
            }
            if self.rounds.get(&cluster).is_some_and(Round::is_over) {
                self.rounds.remove(&cluster);
                self.dirty = true;
            }
        }
    }

    fn start_change(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        step: ResizeStep,
        (began, until): (Instant, Instant),
    ) -> u64 {
        self.last_change += 1;
        let number = self.last_change;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.change =
                Some(PendingResize { number, cluster: cluster.clone(), step, began, until });
        }
        number
    }

    /// Whether the job runs and has no change under way.
    fn may_change(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id);
        job.is_some_and(|job| job.stage == AllocationStage::Running && job.change.is_none())
    }

    /// Offers processors to a job. They are in its account until it declines them.
    fn offer(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        why: String,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        // Processors that were free at the round's start may have gone to a placed job.
        let count = count.min(self.grow_value(cluster));
        if !self.may_change(id) || count == 0 {
            return self.drop_from_round(cluster, id);
        }
        let within = self.settings.answer_timeout;
        let change =
            self.start_change(id, cluster, ResizeStep::Offered(count), (now, now + within));
        self.add_pending(id, cluster, count);
        self.set_reason(id, why.clone());
        out.push(ManagerAction::Offer {
            job: id,
            change,
            cluster: cluster.clone(),
            count,
            within,
            why,
        });
    }

    /// Holds processors for a job that requested or needs them, without an offer.
    pub(super) fn grant(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        why: String,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let step = ResizeStep::Acquiring { held: 0, of: count };
        let change = self.start_change(id, cluster, step, (now, now + self.settings.hold_timeout));
        self.add_pending(id, cluster, count);
        self.set_reason(id, why);
        out.push(ManagerAction::Hold { job: id, change, cluster: cluster.clone(), count });
    }

    fn add_pending(&mut self, id: JobId, cluster: &ClusterId, count: u32) {
        if let Some((known, account)) = self.account(id, cluster) {
            account.pending += count;
            known.booked += count;
        }
    }

    /// Asks a job to release processors.
    #[allow(clippy::too_many_arguments, reason = "they are the message's fields")]
    fn ask_to_shrink(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        mandatory: bool,
        why: String,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        if !self.may_change(id) {
            return self.drop_from_round(cluster, id);
        }
        let ManagerSettings { release_timeout: within, answer_timeout, .. } = self.settings;
        let step = ResizeStep::Asked { count, mandatory, freed: 0 };
        let change = self.start_change(id, cluster, step, (now, now + answer_timeout));
        self.set_reason(id, why.clone());
        let (job, cluster) = (id, cluster.clone());
        out.push(ManagerAction::Shrink {
            job,
            change,
            cluster,
            count,
            mandatory,
            answer_timeout,
            within,
            why,
        });
    }

    /// Shrinks jobs above their owner's limit, in the cluster where they can release most.
    pub(super) fn keep_limits(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        let over = |(&id, job): (&JobId, &super::JobAccount)| {
            let revoked: u32 = job.accounts.values().map(|account| account.to_be_revoked).sum();
            // Replacements join before the processors that they replace leave.
            let excess = job.size().saturating_sub(job.limit?.saturating_add(revoked));
            if excess == 0 || job.stage != AllocationStage::Running || job.change.is_some() {
                return None;
            }
            let can = |(cluster, account): (&ClusterId, &super::ClusterAccount)| {
                (account.lasting().saturating_sub(job.bounds(cluster).0), cluster.clone())
            };
            let (can, cluster) = job.accounts.iter().map(can).max()?;
            (can > 0).then(|| (id, cluster, excess.min(can)))
        };
        let over: Vec<(JobId, ClusterId, u32)> = self.active_jobs().filter_map(over).collect();
        for (id, cluster, count) in over {
            let why = "its owner limits its size".to_owned();
            self.ask_to_shrink(id, &cluster, count, true, why, now, out);
        }
    }

    /// Removes a job from a cluster's round.
    fn drop_from_round(&mut self, cluster: &ClusterId, id: JobId) {
        if let Some(round) = self.rounds.get_mut(cluster) {
            round.drop_job(id);
        }
    }

    fn current_change(&self, id: JobId, number: u64) -> Option<PendingResize> {
        let change = self.jobs.get(&id).and_then(|job| job.change.clone());
        change.filter(|change| change.number == number)
    }

    /// Processes a job's answer. A late answer is ignored.
    pub(super) fn answer(
        &mut self,
        id: JobId,
        number: u64,
        count: Option<u32>,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(PendingResize { cluster, step, .. }) = self.current_change(id, number) else {
            return;
        };
        match step {
            ResizeStep::Offered(of) => self.offer_answered(id, &cluster, of, count, now, out),
            ResizeStep::Asked { .. } => self.shrink_answered(id, &cluster, step, count, now, out),
            _ => {}
        }
    }

    fn offer_answered(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        of: u32,
        answer: Option<u32>,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let count = answer.unwrap_or(0);
        // The job knows its greatest size, and the manager enforces it.
        let job = self.jobs.get(&id);
        let size = job.and_then(|job| job.accounts.get(cluster)).map_or(0, |account| account.size);
        let room = job.map_or(0, |job| job.bounds(cluster).1).saturating_sub(size);
        let taken = count.min(of).min(room);
        if taken < count {
            let what = format!(
                "{id} takes {count} of {of} offered processors of {cluster}, but may have \
                 {room}: it gets {taken}"
            );
            out.push(ManagerAction::ProtocolViolation { what });
        }
        if let Some((known, account)) = self.account(id, cluster) {
            account.subtract_pending(of - taken, known);
            known.subtract_booked(of - taken);
            // A missing answer is not a refusal.
            if taken == 0 && answer.is_some() {
                account.refused = account.refused.max(of);
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.refusal_efficiency = job.efficiency;
        }
        self.dirty |= taken < of;
        if let Some(round) = self.rounds.get_mut(cluster) {
            round.record_answer(id, taken);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = &mut job.change else { return };
        if taken == 0 {
            job.change = None;
            return self.close(id, cluster);
        }
        change.step = ResizeStep::Acquiring { held: 0, of: taken };
        change.until = now + self.settings.hold_timeout;
        let (change, cluster) = (change.number, cluster.clone());
        out.push(ManagerAction::Hold { job: id, change, cluster, count: taken });
    }

    /// Processes an answer to a shrink. A mandatory release is owed regardless of the answer.
    ///
    /// Processors that were freed since the question count as released.
    fn shrink_answered(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        asked: ResizeStep,
        answer: Option<u32>,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let ResizeStep::Asked { count: asked, mandatory, freed } = asked else { return };
        let Some(job) = self.jobs.get(&id) else { return };
        let lasting = job.accounts.get(cluster).map_or(0, ClusterAccount::lasting);
        let can = lasting.saturating_sub(job.bounds(cluster).0);
        let offered = answer.unwrap_or(0);
        let must = if mandatory { asked.saturating_sub(freed).min(can) } else { 0 };
        let mut owes = offered.saturating_sub(freed).min(can);
        if owes < must {
            let reaction =
                answer.map_or("does not answer".to_owned(), |count| format!("offers {count}"));
            let what = format!("{id} must release {asked} processors of {cluster} and {reaction}");
            out.push(ManagerAction::ProtocolViolation { what });
            owes = must;
        }
        if let Some((_, account)) = self.account(id, cluster) {
            account.declined = !mandatory && answer.is_some() && owes + freed == 0;
        }
        if let Some(round) = self.rounds.get_mut(cluster) {
            round.record_answer(id, owes + freed);
            round.record_release(id, freed);
        }
        let within = self.settings.release_timeout;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = &mut job.change else { return };
        if owes == 0 {
            job.change = None;
            return;
        }
        change.step = ResizeStep::Releasing { owes };
        // The question stated the time limit. A job that did not answer gets some extra time.
        change.until = (change.began + within).max(now + within / 4);
    }

    pub(super) fn held(
        &mut self,
        id: JobId,
        number: u64,
        count: u32,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(PendingResize { step: ResizeStep::Acquiring { held, of }, .. }) =
            self.current_change(id, number)
        else {
            return; // the hold was cancelled, and is being released
        };
        self.acquire(id, (held + count).min(of), of, now, out);
    }

    /// Books processors beyond those of a change or a start, because their nodes have a fixed size.
    pub(super) fn enlarged(
        &mut self,
        id: JobId,
        number: Option<u64>,
        cluster: &ClusterId,
        count: u32,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match number {
            Some(number) => {
                let change = job.change.as_mut().filter(|change| change.number == number);
                let Some(PendingResize { step: ResizeStep::Acquiring { of, .. }, .. }) = change
                else {
                    return;
                };
                *of += count;
            }
            None if job.stage == AllocationStage::Claiming => {}
            None => return,
        }
        self.add_pending(id, cluster, count);
    }

    pub(super) fn not_held(
        &mut self,
        id: JobId,
        number: u64,
        count: u32,
        reason: &str,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(PendingResize { step: ResizeStep::Acquiring { held, of }, cluster, .. }) =
            self.current_change(id, number)
        else {
            return;
        };
        let count = count.min(of - held);
        if let Some((known, account)) = self.account(id, &cluster) {
            account.subtract_pending(count, known);
            known.subtract_booked(count);
        }
        self.set_reason(id, format!("{count} processors of {cluster} could not be held: {reason}"));
        self.dirty = true;
        self.stall(id);
        self.acquire(id, held, of - count, now, out);
    }

    /// Recruits the held processors once all are held.
    fn acquire(
        &mut self,
        id: JobId,
        held: u32,
        of: u32,
        now: Instant,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = &mut job.change else { return };
        let (number, cluster) = (change.number, change.cluster.clone());
        if of == 0 {
            job.change = None;
            return self.close(id, &cluster);
        }
        if held < of {
            change.step = ResizeStep::Acquiring { held, of };
            return;
        }
        change.step = ResizeStep::Recruiting(of);
        change.until = now + self.settings.recruit_timeout;
        out.push(ManagerAction::Recruit { job: id, change: number, cluster, count: of });
    }

    pub(super) fn grown(
        &mut self,
        id: JobId,
        number: u64,
        count: u32,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some(PendingResize { step: ResizeStep::Recruiting(of), cluster, .. }) =
            self.current_change(id, number)
        else {
            return;
        };
        let count = count.min(of);
        if let Some((known, account)) = self.account(id, &cluster) {
            account.subtract_pending(of, known);
            account.size += count;
            if count > 0 {
                (account.refused, account.declined) = (0, false);
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.change = None;
        }
        if count < of {
            self.stall(id);
        }
        self.unhold(id, number, &cluster, of - count, "the job does not use them", out);
    }

    /// Releases held processors, which are in no account when this is called.
    fn unhold(
        &mut self,
        id: JobId,
        change: u64,
        cluster: &ClusterId,
        count: u32,
        reason: &str,
        out: &mut Vec<ManagerAction>,
    ) {
        if count == 0 {
            return;
        }
        if let Some((_, account)) = self.account(id, cluster) {
            account.releasing += count;
        }
        let (cluster, reason) = (cluster.clone(), reason.to_owned());
        out.push(ManagerAction::Unhold { job: id, change, cluster, count, reason });
    }

    pub(super) fn unheld(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        out: &mut Vec<ManagerAction>,
    ) {
        let Some((known, account)) = self.account(id, cluster) else { return };
        let freed = count.min(account.releasing);
        account.subtract_releasing(freed, known);
        known.subtract_booked(freed);
        if freed < count {
            let what = format!(
                "{count} processors of {cluster} are released for {id}, which has only {freed} \
                 to release there"
            );
            out.push(ManagerAction::ProtocolViolation { what });
        }
        self.dirty = true;
        self.close(id, cluster);
    }

    /// Processes processors that a job freed or lost.
    pub(super) fn freed(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        let_go: bool,
        out: &mut Vec<ManagerAction>,
    ) {
        let change = self.jobs.get(&id).and_then(|job| job.change.as_ref());
        let ordered = change.is_some_and(|change| {
            change.cluster == *cluster && change.step.direction() == Direction::Shrink
        });
        let Some((known, account)) = self.account(id, cluster) else { return };
        let freed = count.min(account.size);
        account.subtract_size(freed, known);
        // A job has no use for voluntarily released processors. Others may be offered again.
        account.refused =
            if let_go && !ordered { account.refused.saturating_add(freed) } else { 0 };
        account.declined = false;
        known.subtract_booked(freed);
        if freed < count {
            let what = format!("{id} frees {count} processors of {cluster}, but has {freed} there");
            out.push(ManagerAction::ProtocolViolation { what });
        }
        self.dirty = true;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let_go && !ordered {
            job.refusal_efficiency = job.efficiency;
        }
        if let Some(change) = &mut job.change
            && change.cluster == *cluster
        {
            match &mut change.step {
                ResizeStep::Releasing { owes } => {
                    *owes = owes.saturating_sub(freed);
                    if *owes == 0 {
                        job.change = None;
                    }
                    if let Some(round) = self.rounds.get_mut(cluster) {
                        round.record_release(id, freed);
                    }
                }
                ResizeStep::Asked { freed: before, .. } => *before += freed,
                _ => {}
            }
        }
        self.close(id, cluster);
    }

    /// Cancels part of a forced release, since the job keeps these processors.
    pub(super) fn not_forced(&mut self, id: JobId, cluster: &ClusterId, count: u32) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = job.change.as_mut().filter(|change| change.cluster == *cluster) else {
            return;
        };
        let ResizeStep::Releasing { owes } = &mut change.step else { return };
        *owes = owes.saturating_sub(count);
        if *owes == 0 {
            job.change = None;
            job.why = format!("it keeps {count} of {cluster}, because it cannot run without them");
            self.drop_from_round(cluster, id);
        }
        self.dirty = true;
    }

    pub(super) fn ended(&mut self, id: JobId, out: &mut Vec<ManagerAction>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.queue.remove(id);
        if let Some(program) = &job.need.program
            && job.stage == AllocationStage::Running
        {
            self.memory.run_times.record(program, self.now.saturating_sub(job.started));
        }
        job.want = None;
        job.stage = AllocationStage::Ending;
        // Offered processors are free at once, and held ones are released.
        if let Some(PendingResize { number, cluster, step, .. }) = job.change.take()
            && let Some((known, account)) = self.account(id, &cluster)
        {
            match step {
                ResizeStep::Offered(of) => {
                    account.subtract_pending(of, known);
                    known.subtract_booked(of);
                    self.dirty = true;
                }
                ResizeStep::Acquiring { of, .. } | ResizeStep::Recruiting(of) => {
                    account.subtract_pending(of, known);
                    self.unhold(id, number, &cluster, of, "the job has ended", out);
                }
                ResizeStep::Asked { .. } | ResizeStep::Releasing { .. } => {}
            }
        }
        let clusters: Vec<ClusterId> = self.clusters.keys().cloned().collect();
        for cluster in &clusters {
            self.drop_from_round(cluster, id);
            let job = self.jobs.get_mut(&id);
            if let Some(account) = job.and_then(|job| job.accounts.get_mut(cluster)) {
                account.size += std::mem::take(&mut account.pending);
            }
            self.close(id, cluster);
        }
        // Its other processors become free one by one, and waiting jobs may need several of them.
    }

    /// Ends all steps whose time limit has passed.
    pub(super) fn expire(&mut self, now: Instant, out: &mut Vec<ManagerAction>) {
        let late = |(&id, job): (&JobId, &super::JobAccount)| {
            job.change
                .as_ref()
                .filter(|change| change.until <= now)
                .map(|change| (id, change.clone()))
        };
        let late: Vec<(JobId, PendingResize)> = self.active_jobs().filter_map(late).collect();
        for (id, PendingResize { number, cluster, step, .. }) in late {
            match step {
                ResizeStep::Offered(of) => self.offer_answered(id, &cluster, of, None, now, out),
                ResizeStep::Asked { .. } => {
                    self.shrink_answered(id, &cluster, step, None, now, out)
                }
                ResizeStep::Acquiring { held, of } => {
                    if let Some((known, account)) = self.account(id, &cluster) {
                        account.subtract_pending(of - held, known);
                    }
                    self.stall(id);
                    self.unhold(id, number, &cluster, of - held, "they were not held in time", out);
                    self.acquire(id, held, held, now, out);
                }
                ResizeStep::Recruiting(of) => {
                    if let Some((known, account)) = self.account(id, &cluster) {
                        account.subtract_pending(of, known);
                    }
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.change = None;
                    }
                    self.stall(id);
                    self.unhold(id, number, &cluster, of, "the job did not use them in time", out);
                }
                ResizeStep::Releasing { owes } => {
                    let job = self.jobs.get_mut(&id);
                    if let Some(change) = job.and_then(|job| job.change.as_mut()) {
                        change.until = now + self.settings.release_timeout;
                    }
                    let within = self.settings.release_timeout;
                    let reason = format!("{id} did not release them within {within:?}");
                    out.push(ManagerAction::Force { job: id, cluster, count: owes, reason });
                }
            }
        }
    }
}
