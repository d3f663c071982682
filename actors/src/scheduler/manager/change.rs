//! Offers, growth in three steps, and shrinks: one change at a time of each job, each step with a time of its own.

use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::books::{Change, Stage, Step};
use super::event::Action;
use super::{Approach, Manager, Settings};
use crate::policy::malleability::{Direction, Round, Runner};

impl Manager {
    /// A cluster was polled: its jobs grow, if that is due. First come those that have lost what they cannot do without.
    pub(super) fn grow(&mut self, cluster: &ClusterId, now: Instant, out: &mut Vec<Action>) {
        self.restore(cluster, now, out);
        if self.is_pledged(cluster) || self.rounds.contains_key(cluster) {
            return;
        }
        self.serve_wants(cluster, now, out);
        let value = self.grow_value(cluster);
        if value > 0 {
            return self.begin(cluster, Direction::Grow, value, None);
        }
        // Where running jobs have precedence nobody shrinks.
        let lacks = self.reserve_lacks(cluster).saturating_sub(self.on_the_way(cluster));
        if lacks > 0 && self.settings.approach == Approach::Waiting {
            self.begin(cluster, Direction::Shrink, lacks, None);
        }
    }

    /// Jobs that have fewer processors than they need, since they lost some, get others, whatever kind they are of.
    fn restore(&mut self, cluster: &ClusterId, now: Instant, out: &mut Vec<Action>) {
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return;
        };
        let lacks = |id: &JobId| {
            let job = self.jobs.get(id)?;
            let here = job.accounts.get(cluster).map_or(0, |account| account.size);
            let lacks = job.bounds(cluster).0.saturating_sub(here);
            (lacks > 0 && self.may_change(*id)).then_some((*id, lacks))
        };
        let lack: Vec<(JobId, u32)> = known.jobs.iter().filter_map(lacks).collect();
        for (id, lacks) in lack {
            // What of a reservation's job was lost comes from what that has.
            let need = self.jobs.get(&id).map(|job| &job.need);
            let count = self.to_restore(cluster, need).min(lacks);
            if count > 0 {
                let why = format!("{count} of {cluster} in place of what it has lost");
                self.give(id, cluster, count, why, now, out);
            }
        }
    }

    /// Begins a round among a cluster's jobs, but for one that others shrink for.
    pub(super) fn begin(
        &mut self,
        cluster: &ClusterId,
        direction: Direction,
        value: u32,
        but: Option<JobId>,
    ) {
        let mut runners = self.runners(cluster);
        runners.retain(|runner| Some(runner.job) != but);
        if direction == Direction::Shrink && !self.must_shrink(cluster) {
            let declined = |runner: &Runner| {
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

    /// Asks whom the rounds want to be asked.
    pub(super) fn ask(&mut self, now: Instant, out: &mut Vec<Action>) {
        let clusters: Vec<ClusterId> = self.rounds.keys().cloned().collect();
        for cluster in clusters {
            while let Some(round) = self.rounds.get_mut(&cluster) {
                let (direction, policy) = (round.direction(), round.policy());
                let asks = round.asks();
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
                            // What nobody waits for is for local users, and not urgent.
                            let pledge = self.pledge.as_ref().filter(|_| self.is_pledged(&cluster));
                            let whom = pledge.map(|pledge| pledge.whom.to_string());
                            let whom = self.room_for(&cluster).or(whom);
                            let must = whom.is_some();
                            let whom = whom.unwrap_or_else(|| "local users".to_owned());
                            let why = format!("{policy}: {cluster} makes room for {whom}");
                            self.ask_back(ask.job, &cluster, ask.count, must, why, now, out);
                        }
                    }
                }
            }
            if self.rounds.get(&cluster).is_some_and(Round::is_over) {
                self.rounds.remove(&cluster);
                self.stirred = true;
            }
        }
    }

    fn change(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        step: Step,
        (began, until): (Instant, Instant),
    ) -> u64 {
        self.last_change += 1;
        let number = self.last_change;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.change = Some(Change { number, cluster: cluster.clone(), step, began, until });
        }
        number
    }

    /// It runs, and nothing of it is changing.
    fn may_change(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id);
        job.is_some_and(|job| job.stage == Stage::Running && job.change.is_none())
    }

    /// Offers processors to a job. They are its from now on, as far as it takes them.
    fn offer(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        why: String,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        // What was free when the round began may have gone to a job that was placed meanwhile.
        let count = count.min(self.grow_value(cluster));
        if !self.may_change(id) || count == 0 {
            return self.settle(cluster, id);
        }
        let within = self.settings.answer_within;
        let change = self.change(id, cluster, Step::Offered(count), (now, now + within));
        self.book(id, cluster, count);
        self.note(id, why.clone());
        out.push(Action::Offer { job: id, change, cluster: cluster.clone(), count, within, why });
    }

    /// Gives a job what it asked for itself, or needs, so that it need not be asked.
    pub(super) fn give(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        why: String,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let step = Step::Acquiring { held: 0, of: count };
        let change = self.change(id, cluster, step, (now, now + self.settings.hold_within));
        self.book(id, cluster, count);
        self.note(id, why);
        out.push(Action::Hold { job: id, change, cluster: cluster.clone(), count });
    }

    fn book(&mut self, id: JobId, cluster: &ClusterId, count: u32) {
        if let Some((known, account)) = self.account(id, cluster) {
            account.coming += count;
            known.booked += count;
        }
    }

    /// Asks a job for processors.
    #[allow(clippy::too_many_arguments, reason = "they are the message's fields")]
    fn ask_back(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        mandatory: bool,
        why: String,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        if !self.may_change(id) {
            return self.settle(cluster, id);
        }
        let Settings { release_within: within, answer_within, .. } = self.settings;
        let step = Step::Asked { count, mandatory, freed: 0 };
        let change = self.change(id, cluster, step, (now, now + answer_within));
        self.note(id, why.clone());
        let (job, cluster) = (id, cluster.clone());
        out.push(Action::Shrink {
            job,
            change,
            cluster,
            count,
            mandatory,
            answer_within,
            within,
            why,
        });
    }

    /// Jobs that have more than they may give it back, where most can go.
    pub(super) fn keep_limits(&mut self, now: Instant, out: &mut Vec<Action>) {
        let over = |(&id, job): (&JobId, &super::Job)| {
            let excess = job.size().saturating_sub(job.limit?);
            if excess == 0 || job.stage != Stage::Running || job.change.is_some() {
                return None;
            }
            let can = |(cluster, account): (&ClusterId, &super::Account)| {
                (account.size.saturating_sub(job.bounds(cluster).0), cluster.clone())
            };
            let (can, cluster) = job.accounts.iter().map(can).max()?;
            (can > 0).then(|| (id, cluster, excess.min(can)))
        };
        let over: Vec<(JobId, ClusterId, u32)> = self.jobs.iter().filter_map(over).collect();
        for (id, cluster, count) in over {
            let why = "its owner wants it smaller".to_owned();
            self.ask_back(id, &cluster, count, true, why, now, out);
        }
    }

    /// Nobody waits for a job in a cluster's round any more.
    fn settle(&mut self, cluster: &ClusterId, id: JobId) {
        if let Some(round) = self.rounds.get_mut(cluster) {
            round.gone(id);
        }
    }

    fn under_way(&self, id: JobId, number: u64) -> Option<Change> {
        let change = self.jobs.get(&id).and_then(|job| job.change.clone());
        change.filter(|change| change.number == number)
    }

    /// A job has answered. A late answer is nobody's any more.
    pub(super) fn answer(
        &mut self,
        id: JobId,
        number: u64,
        count: Option<u32>,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(Change { cluster, step, .. }) = self.under_way(id, number) else { return };
        match step {
            Step::Offered(of) => self.offer_answered(id, &cluster, of, count, now, out),
            Step::Asked { .. } => self.shrink_answered(id, &cluster, step, count, now, out),
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
        out: &mut Vec<Action>,
    ) {
        let count = answer.unwrap_or(0);
        // The job knows its most itself; it is held to it.
        let job = self.jobs.get(&id);
        let size = job.and_then(|job| job.accounts.get(cluster)).map_or(0, |account| account.size);
        let room = job.map_or(0, |job| job.bounds(cluster).1).saturating_sub(size);
        let taken = count.min(of).min(room);
        if taken < count {
            let what = format!(
                "{id} takes {count} of {of} offered processors of {cluster} and may have {room}: it gets {taken}"
            );
            out.push(Action::Odd { what });
        }
        if let Some((known, account)) = self.account(id, cluster) {
            account.coming -= of - taken;
            known.booked -= of - taken;
            // Who was not heard has refused nothing.
            if taken == 0 && answer.is_some() {
                account.refused = account.refused.max(of);
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.refused_at = job.efficiency;
        }
        self.stirred |= taken < of;
        if let Some(round) = self.rounds.get_mut(cluster) {
            round.answered(id, taken);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = &mut job.change else { return };
        if taken == 0 {
            job.change = None;
            return self.close(id, cluster);
        }
        change.step = Step::Acquiring { held: 0, of: taken };
        change.until = now + self.settings.hold_within;
        let (change, cluster) = (change.number, cluster.clone());
        out.push(Action::Hold { job: id, change, cluster, count: taken });
    }

    /// A job that must release, and can, owes it, whatever it says. What has become free since it was asked is paid.
    fn shrink_answered(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        asked: Step,
        answer: Option<u32>,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Step::Asked { count: asked, mandatory, freed } = asked else { return };
        let Some(job) = self.jobs.get(&id) else { return };
        let size = job.accounts.get(cluster).map_or(0, |account| account.size);
        let can = size.saturating_sub(job.bounds(cluster).0);
        let says = answer.unwrap_or(0);
        let must = if mandatory { asked.saturating_sub(freed).min(can) } else { 0 };
        let mut owes = says.saturating_sub(freed).min(can);
        if owes < must {
            let said = answer.map_or("does not answer".to_owned(), |says| format!("says {says}"));
            let what = format!("{id} must release {asked} processors of {cluster} and {said}");
            out.push(Action::Odd { what });
            owes = must;
        }
        if let Some((_, account)) = self.account(id, cluster) {
            account.declined = !mandatory && answer.is_some() && owes + freed == 0;
        }
        if let Some(round) = self.rounds.get_mut(cluster) {
            round.answered(id, owes + freed);
            round.released(id, freed);
        }
        let within = self.settings.release_within;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = &mut job.change else { return };
        if owes == 0 {
            job.change = None;
            return;
        }
        change.step = Step::Releasing { owes };
        // It was told how long it has when it was asked. One that has said nothing may need a moment all the same.
        change.until = (change.began + within).max(now + within / 4);
    }

    pub(super) fn held(
        &mut self,
        id: JobId,
        number: u64,
        count: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(Change { step: Step::Acquiring { held, of }, .. }) = self.under_way(id, number)
        else {
            return; // given up: it is given back already
        };
        self.acquire(id, (held + count).min(of), of, now, out);
    }

    pub(super) fn not_held(
        &mut self,
        id: JobId,
        number: u64,
        count: u32,
        reason: &str,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(Change { step: Step::Acquiring { held, of }, cluster, .. }) =
            self.under_way(id, number)
        else {
            return;
        };
        let count = count.min(of - held);
        if let Some((known, account)) = self.account(id, &cluster) {
            account.coming -= count;
            known.booked -= count;
        }
        self.note(id, format!("{count} processors of {cluster} were not to be had: {reason}"));
        self.stirred = true;
        self.stall(id);
        self.acquire(id, held, of - count, now, out);
    }

    /// So many are held of so many: if these are all the job gets them.
    fn acquire(&mut self, id: JobId, held: u32, of: u32, now: Instant, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = &mut job.change else { return };
        let (number, cluster) = (change.number, change.cluster.clone());
        if of == 0 {
            job.change = None;
            return self.close(id, &cluster);
        }
        if held < of {
            change.step = Step::Acquiring { held, of };
            return;
        }
        change.step = Step::Recruiting(of);
        change.until = now + self.settings.recruit_within;
        out.push(Action::Recruit { job: id, change: number, cluster, count: of });
    }

    pub(super) fn grown(&mut self, id: JobId, number: u64, count: u32, out: &mut Vec<Action>) {
        let Some(Change { step: Step::Recruiting(of), cluster, .. }) = self.under_way(id, number)
        else {
            return;
        };
        let count = count.min(of);
        if let Some((_, account)) = self.account(id, &cluster) {
            account.coming -= of;
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

    /// Gives back what is in no account at the moment.
    fn unhold(
        &mut self,
        id: JobId,
        change: u64,
        cluster: &ClusterId,
        count: u32,
        reason: &str,
        out: &mut Vec<Action>,
    ) {
        if count == 0 {
            return;
        }
        if let Some((_, account)) = self.account(id, cluster) {
            account.going += count;
        }
        let (cluster, reason) = (cluster.clone(), reason.to_owned());
        out.push(Action::Unhold { job: id, change, cluster, count, reason });
    }

    pub(super) fn unheld(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        out: &mut Vec<Action>,
    ) {
        let Some((known, account)) = self.account(id, cluster) else { return };
        let freed = count.min(account.going);
        account.going -= freed;
        known.booked -= freed;
        if freed < count {
            let what = format!(
                "{count} processors of {cluster} are given back for {id}, which has {freed} there to give back"
            );
            out.push(Action::Odd { what });
        }
        self.stirred = true;
        self.close(id, cluster);
    }

    /// A job does not compute on so many any more.
    pub(super) fn freed(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        let_go: bool,
        out: &mut Vec<Action>,
    ) {
        let change = self.jobs.get(&id).and_then(|job| job.change.as_ref());
        let ordered = change.is_some_and(|change| {
            change.cluster == *cluster && change.step.direction() == Direction::Shrink
        });
        let Some((known, account)) = self.account(id, cluster) else { return };
        let freed = count.min(account.size);
        account.size -= freed;
        // It has no use for what it gives back of its own accord; nobody knows what it has for what it was asked for, or lost.
        account.refused = match let_go && !ordered {
            true => account.refused.saturating_add(freed),
            false => 0,
        };
        account.declined = false;
        known.booked -= freed;
        if freed < count {
            let what = format!("{id} frees {count} processors of {cluster}, where it has {freed}");
            out.push(Action::Odd { what });
        }
        self.stirred = true;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let_go && !ordered {
            job.refused_at = job.efficiency;
        }
        if let Some(change) = &mut job.change
            && change.cluster == *cluster
        {
            match &mut change.step {
                Step::Releasing { owes } => {
                    *owes = owes.saturating_sub(freed);
                    if *owes == 0 {
                        job.change = None;
                    }
                    if let Some(round) = self.rounds.get_mut(cluster) {
                        round.released(id, freed);
                    }
                }
                Step::Asked { freed: before, .. } => *before += freed,
                _ => {}
            }
        }
        self.close(id, cluster);
    }

    /// Some of what was to be taken from a job stays its: nobody waits for that any more.
    pub(super) fn not_forced(&mut self, id: JobId, cluster: &ClusterId, count: u32) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(change) = job.change.as_mut().filter(|change| change.cluster == *cluster) else {
            return;
        };
        let Step::Releasing { owes } = &mut change.step else { return };
        *owes = owes.saturating_sub(count);
        if *owes == 0 {
            job.change = None;
            job.why = format!("it keeps {count} of {cluster}, which it cannot run without");
            self.settle(cluster, id);
        }
        self.stirred = true;
    }

    pub(super) fn ended(&mut self, id: JobId, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.queue.retain(|queued| *queued != id);
        job.want = None;
        job.stage = Stage::Ending;
        // What was offered is nobody's, and what is held for it is given back.
        if let Some(Change { number, cluster, step, .. }) = job.change.take()
            && let Some((known, account)) = self.account(id, &cluster)
        {
            match step {
                Step::Offered(of) => {
                    account.coming -= of;
                    known.booked -= of;
                }
                Step::Acquiring { of, .. } | Step::Recruiting(of) => {
                    account.coming -= of;
                    self.unhold(id, number, &cluster, of, "the job has ended", out);
                }
                Step::Asked { .. } | Step::Releasing { .. } => {}
            }
        }
        let clusters: Vec<ClusterId> = self.clusters.keys().cloned().collect();
        for cluster in &clusters {
            self.settle(cluster, id);
            let job = self.jobs.get_mut(&id);
            if let Some(account) = job.and_then(|job| job.accounts.get_mut(cluster)) {
                account.size += std::mem::take(&mut account.coming);
            }
            self.close(id, cluster);
        }
        self.stirred = true;
    }

    /// Ends what was awaited for too long.
    pub(super) fn expire(&mut self, now: Instant, out: &mut Vec<Action>) {
        let late = |(&id, job): (&JobId, &super::Job)| {
            job.change
                .as_ref()
                .filter(|change| change.until <= now)
                .map(|change| (id, change.clone()))
        };
        let late: Vec<(JobId, Change)> = self.jobs.iter().filter_map(late).collect();
        for (id, Change { number, cluster, step, .. }) in late {
            match step {
                Step::Offered(of) => self.offer_answered(id, &cluster, of, None, now, out),
                Step::Asked { .. } => self.shrink_answered(id, &cluster, step, None, now, out),
                Step::Acquiring { held, of } => {
                    if let Some((_, account)) = self.account(id, &cluster) {
                        account.coming -= of - held;
                    }
                    self.stall(id);
                    self.unhold(id, number, &cluster, of - held, "they were not held in time", out);
                    self.acquire(id, held, held, now, out);
                }
                Step::Recruiting(of) => {
                    if let Some((_, account)) = self.account(id, &cluster) {
                        account.coming -= of;
                    }
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.change = None;
                    }
                    self.stall(id);
                    self.unhold(id, number, &cluster, of, "the job did not use them in time", out);
                }
                Step::Releasing { owes } => {
                    let job = self.jobs.get_mut(&id);
                    if let Some(change) = job.and_then(|job| job.change.as_mut()) {
                        change.until = now + self.settings.release_within;
                    }
                    let within = self.settings.release_within;
                    let reason = format!("{id} did not release them within {within:?}");
                    out.push(Action::Force { job: id, cluster, count: owes, reason });
                }
            }
        }
    }
}
