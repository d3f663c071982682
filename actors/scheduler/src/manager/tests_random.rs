//! The manager with sites and jobs that answer in any order, late, in part or never.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::policy::provisioning::{Booking, SECOND};
use crate::reservation::{ReservationId, ReservationRequest, ReservedSlot};

/// Actual state of a site.
#[derive(Default)]
struct SiteState {
    size: u32,
    /// Processors of this manager's jobs, including held ones.
    ours: u32,
    users: u32,
}

impl SiteState {
    fn idle(&self) -> u32 {
        self.size - self.ours - self.users
    }
}

/// Outstanding replies. `there` is the number of released processors that the site really has.
#[derive(Clone, Debug)]
enum PendingReply {
    Claim(JobId, Vec<(ClusterId, u32)>),
    Answer {
        job: JobId,
        change: u64,
        cluster: ClusterId,
        count: u32,
        shrink: bool,
    },
    Stub {
        job: JobId,
        change: u64,
        cluster: ClusterId,
    },
    Grown {
        job: JobId,
        change: u64,
        cluster: ClusterId,
        count: u32,
    },
    Free {
        job: JobId,
        cluster: ClusterId,
        count: u32,
    },
    Unheld {
        job: JobId,
        cluster: ClusterId,
        count: u32,
        there: u32,
    },
    /// The owner of processors takes them away, as it announced.
    Revoke {
        job: JobId,
        cluster: ClusterId,
        count: u32,
    },
}

/// Inputs of the manager.
#[derive(Clone, Debug)]
enum Input {
    Event(ManagerEvent),
    /// Prepare, and as many further steps of the agreement.
    Reserve(ReservationRequest, u8),
    Release(ReservationId),
}

impl Input {
    fn apply(self, manager: &mut Manager, now: Instant) -> Vec<ManagerAction> {
        let mut out = Vec::new();
        match self {
            Self::Event(event) => out = manager.handle(event, now),
            Self::Reserve(ask, steps) => {
                if let Ok(one) = manager.prepare(&ask) {
                    let (id, mut changes) = ((one.id, one.token), Vec::new());
                    let committed = steps > 0 && manager.commit(id.0, id.1, &mut changes).is_ok();
                    if committed && steps > 1 {
                        manager.confirm(id.0, id.1, &mut changes).unwrap();
                    }
                }
            }
            Self::Release(id) => drop(manager.release(id, None, &mut out)),
        }
        out
    }
}

struct ManagerWorld {
    manager: Manager,
    now: Instant,
    sites: BTreeMap<ClusterId, SiteState>,
    /// Processors that jobs compute on.
    sizes: BTreeMap<JobId, BTreeMap<ClusterId, u32>>,
    /// Processors that will be taken away, and those of them without replacements.
    revocations: BTreeMap<(JobId, ClusterId), (u32, u32)>,
    /// Processors held for jobs, by change.
    stubs: BTreeMap<u64, u32>,
    pending: Vec<PendingReply>,
    needs: BTreeMap<JobId, JobRequirements>,
    /// Requests of jobs that were not granted yet.
    wants: BTreeMap<JobId, GrowthRequest>,
    started: Instant,
    /// All inputs, with the resulting actions.
    log: Vec<(Instant, Input, Vec<ManagerAction>)>,
    next_job: u64,
}

impl ManagerWorld {
    fn new(settings: ManagerSettings) -> Self {
        let now = Instant::now();
        let sites = [("a", 6), ("b", 9), ("c", 4)].map(|(name, size)| {
            (ClusterId::from(name), SiteState { size, ..SiteState::default() })
        });
        let manager = Manager::new(settings, sites.iter().map(|site| site.0.clone()), now);
        Self {
            manager,
            now,
            sites: sites.into(),
            sizes: BTreeMap::new(),
            revocations: BTreeMap::new(),
            stubs: BTreeMap::new(),
            pending: Vec::new(),
            needs: BTreeMap::new(),
            wants: BTreeMap::new(),
            started: now,
            log: Vec::new(),
            next_job: 1,
        }
    }

    /// A world after a poll of all sites and these steps.
    fn after_steps(
        settings: ManagerSettings,
        steps: impl IntoIterator<Item = (u8, u8, u8)>,
    ) -> Self {
        let mut world = Self::new(settings);
        (0..3).for_each(|site| world.step((2, site, 0)));
        steps.into_iter().for_each(|step| world.step(step));
        world
    }

    /// Checks that no change stays under way, and that another manager decides the same.
    fn check(mut self) {
        self.drain();
        self.replay();
    }

    fn tell(&mut self, event: ManagerEvent) {
        self.feed(Input::Event(event));
    }

    fn feed(&mut self, input: Input) {
        let out = input.clone().apply(&mut self.manager, self.now);
        self.manager.audit().unwrap();
        self.log.push((self.now, input, out.clone()));
        let mut ordered_ends = Vec::new();
        for action in out {
            match action {
                ManagerAction::Claim { job, placed } => {
                    self.check_start(job, &placed);
                    let parts = placed.parts.iter().map(|part| (part.cluster.clone(), part.count));
                    self.pending.push(PendingReply::Claim(job, parts.collect()));
                }
                ManagerAction::Offer { job, change, cluster, count, .. } => {
                    self.check_growth(&cluster);
                    self.pending.push(PendingReply::Answer {
                        job,
                        change,
                        cluster,
                        count,
                        shrink: false,
                    });
                }
                ManagerAction::Shrink { job, change, cluster, count, .. } => {
                    self.pending.push(PendingReply::Answer {
                        job,
                        change,
                        cluster,
                        count,
                        shrink: true,
                    });
                }
                ManagerAction::Hold { job, change, cluster, count } => {
                    for _ in 0..count {
                        self.pending.push(PendingReply::Stub {
                            job,
                            change,
                            cluster: cluster.clone(),
                        });
                    }
                }
                ManagerAction::Recruit { job, change, cluster, count } => {
                    let held = self.held(change);
                    assert!(
                        held >= count,
                        "{job} recruits {count} of {held} held processors in {cluster}"
                    );
                    self.pending.push(PendingReply::Grown { job, change, cluster, count });
                }
                ManagerAction::Unhold { job, change, cluster, count, .. } => {
                    // As with nodes: only holds of this change, and outstanding ones first.
                    let mut there = count;
                    self.pending.retain(|reply| {
                        let comes =
                            matches!(reply, PendingReply::Stub { change: of, .. } if *of == change);
                        let goes = comes && there > 0;
                        there -= u32::from(goes);
                        !goes
                    });
                    let held = self.held(change);
                    assert!(
                        held >= there,
                        "{job} releases {there} of {held} held processors in {cluster}"
                    );
                    self.stubs.insert(change, held - there);
                    self.pending.push(PendingReply::Unheld { job, cluster, count, there });
                }
                ManagerAction::Force { job, cluster, count, .. } => {
                    // The order replaces outstanding releases and answers.
                    self.pending.retain(|reply| match reply {
                        PendingReply::Free { job: j, cluster: c, .. }
                        | PendingReply::Answer { job: j, cluster: c, shrink: true, .. } => {
                            (*j, c) != (job, &cluster)
                        }
                        _ => true,
                    });
                    let has = self.sizes.get(&job).and_then(|sizes| sizes.get(&cluster));
                    let count = count.min(has.copied().unwrap_or(0));
                    self.pending.push(PendingReply::Free { job, cluster, count });
                }
                ManagerAction::TransferFiles { job, .. } => self.tell(ManagerEvent::Moved { job }),
                ManagerAction::Refuse { job, .. } => {
                    assert!(self.wants.remove(&job).is_some(), "{job} made no request");
                }
                // Other actions may concern the same job, and come first.
                ManagerAction::End { job, .. } => ordered_ends.push(job),
                ManagerAction::Fail { .. }
                | ManagerAction::ProtocolViolation { .. }
                | ManagerAction::ReservationEnded(_) => {}
            }
        }
        ordered_ends.into_iter().for_each(|job| self.end_job(job));
    }

    /// Ends a job, and frees its processors.
    fn end_job(&mut self, job: JobId) {
        let Some(sizes) = self.sizes.get(&job).cloned() else { return };
        self.tell(ManagerEvent::Ended { job });
        for (cluster, count) in sizes {
            self.pending.push(PendingReply::Free { job, cluster, count });
        }
        while let Some(at) = self
            .pending
            .iter()
            .position(|pending| matches!(pending, PendingReply::Free { job: j, .. } if *j == job))
        {
            self.execute_pending(at, 9);
        }
        self.sizes.remove(&job);
    }

    /// Jobs of a reservation stay within it, or leave free what other reservations need. Other jobs
    /// leave all reserved processors free.
    fn check_start(&self, job: JobId, placed: &PlacementPlan) {
        let under = self.needs.get(&job).and_then(|need| need.reservation);
        for part in &placed.parts {
            let known = &self.manager.clusters[&part.cluster];
            if let Some(id) = under {
                let one = &self.manager.reservations()[&id];
                let has = one.processors_at(&part.cluster, self.manager.now);
                // The parts of the job are booked already.
                let needed = self.manager.withheld_for_others(&part.cluster, id);
                let starts_early = self.needs[&job].starts_early;
                let is_early = starts_early && known.others + known.booked + needed <= known.size;
                let count = part.count;
                assert!(has >= count || is_early, "{job} gets {count} of {has} of {id}: {known:?}");
                continue;
            }
            let withheld = self.manager.withheld_processors(&part.cluster);
            assert!(
                known.others + known.booked + withheld <= known.size,
                "{job} in {}: {known:?}, {withheld} are reserved",
                part.cluster
            );
        }
    }

    fn check_growth(&self, cluster: &ClusterId) {
        let ManagerSettings { caps, cap, reserve, .. } = &self.manager.settings;
        let known = &self.manager.clusters[cluster];
        assert!(known.others + known.booked + reserve <= known.size, "{cluster}: {known:?}");
        assert!(caps.get(cluster).is_none_or(|cap| known.booked <= *cap));
        let all: u32 = self.manager.clusters.values().map(|known| known.booked).sum();
        assert!(cap.is_none_or(|cap| all <= cap), "{all} of {cap:?}");
    }

    /// Executes an outstanding reply. `success` decides how much of it succeeds.
    fn execute_pending(&mut self, at: usize, success: u8) {
        match self.pending.swap_remove(at) {
            PendingReply::Claim(job, parts) => {
                let fits =
                    |(cluster, count): &(ClusterId, u32)| self.sites[cluster].idle() >= *count;
                if success == 0 || !parts.iter().all(fits) {
                    let (reason, without) = ("no".to_owned(), Default::default());
                    return self.tell(ManagerEvent::ClaimFailed { job, reason, without });
                }
                let mut got: BTreeMap<ClusterId, u32> = BTreeMap::new();
                for (cluster, count) in parts {
                    self.site_state(&cluster).ours += count;
                    *got.entry(cluster).or_default() += count;
                }
                self.sizes.insert(job, got.clone());
                self.tell(ManagerEvent::Claimed { job, got });
            }
            PendingReply::Answer { job, change, cluster, count, shrink } => {
                let Some(sizes) = self.sizes.get(&job) else { return };
                let here = sizes.get(&cluster).copied().unwrap_or(0);
                // Earlier promises are not made again, even if their answers were lost.
                let promised = |pending: &PendingReply| match pending {
                    PendingReply::Free { job: j, cluster: c, count }
                        if (*j, c) == (job, &cluster) =>
                    {
                        *count
                    }
                    _ => 0,
                };
                let promised: u32 = self.pending.iter().map(promised).sum();
                let here = here.saturating_sub(promised);
                let answer = if success < 3 { u32::from(success).min(count) } else { count };
                let least = self.manager.jobs.get(&job).map_or(0, |job| job.bounds(&cluster).0);
                let answer = if shrink { answer.min(here.saturating_sub(least)) } else { answer };
                self.tell(ManagerEvent::Answer { job, change, count: Some(answer) });
                if shrink && answer > 0 {
                    self.pending.push(PendingReply::Free { job, cluster, count: answer });
                }
            }
            PendingReply::Stub { job, change, cluster } => {
                if success == 0 || self.sites[&cluster].idle() == 0 {
                    let reason = "no".to_owned();
                    return self.tell(ManagerEvent::NotHeld { job, change, count: 1, reason });
                }
                self.site_state(&cluster).ours += 1;
                *self.stubs.entry(change).or_default() += 1;
                self.tell(ManagerEvent::Held { job, change, count: 1 });
            }
            PendingReply::Grown { job, change, cluster, count } => {
                let held = self.held(change);
                let uses =
                    if success < 3 { u32::from(success).min(count) } else { count }.min(held);
                let Some(sizes) = self.sizes.get_mut(&job) else { return };
                *sizes.entry(cluster.clone()).or_default() += uses;
                self.stubs.insert(change, held - uses);
                self.replan(job, &cluster, 0, uses);
                if let Some(want) = self.wants.get_mut(&job) {
                    want.count -= uses.min(want.count);
                    let want = want.clone();
                    self.tell(ManagerEvent::GrowthRequested { job, want });
                }
                self.tell(ManagerEvent::Grown { job, change, count: uses });
            }
            PendingReply::Revoke { job, cluster, count } => {
                self.replan(job, &cluster, count, 0);
                let has = self.sizes.get_mut(&job).and_then(|sizes| sizes.get_mut(&cluster));
                let Some(has) = has else { return };
                let count = count.min(*has);
                *has -= count;
                self.site_state(&cluster).ours -= count;
                self.tell(ManagerEvent::Freed { job, cluster, count, voluntary: false });
                self.end_without_processors(job);
            }
            PendingReply::Unheld { job, cluster, count, there } => {
                self.site_state(&cluster).ours -= there;
                self.tell(ManagerEvent::Unheld { job, cluster, count });
            }
            PendingReply::Free { job, cluster, count } => {
                let has = self.sizes.get_mut(&job).and_then(|sizes| sizes.get_mut(&cluster));
                let Some(has) = has else { return };
                let count = count.min(*has);
                *has -= count;
                self.site_state(&cluster).ours -= count;
                self.tell(ManagerEvent::Freed { job, cluster, count, voluntary: success == 1 });
                self.end_without_processors(job);
            }
        }
    }

    /// Ends a running job that has lost its last processor: it cannot continue.
    fn end_without_processors(&mut self, job: JobId) {
        let runs =
            self.manager.jobs.get(&job).is_some_and(|job| job.stage == AllocationStage::Running);
        let has_none = |sizes: &BTreeMap<_, u32>| sizes.values().all(|size| *size == 0);
        if runs && self.sizes.get(&job).is_some_and(has_none) {
            self.end_job(job);
        }
    }

    /// Reports the processors that will still be taken away, after `taken` of them have been and
    /// `replaced` have got replacements.
    fn replan(&mut self, job: JobId, cluster: &ClusterId, taken: u32, replaced: u32) {
        let key = (job, cluster.clone());
        let Some((count, unreplaced)) = self.revocations.get_mut(&key) else { return };
        *count -= taken.min(*count);
        *unreplaced = unreplaced.saturating_sub(taken.max(replaced)).min(*count);
        let (count, unreplaced) = (*count, *unreplaced);
        let (job, cluster) = key;
        self.tell(ManagerEvent::RevocationsPlanned { job, cluster, count, unreplaced });
    }

    fn held(&self, change: u64) -> u32 {
        self.stubs.get(&change).copied().unwrap_or(0)
    }

    fn site_state(&mut self, cluster: &ClusterId) -> &mut SiteState {
        self.sites.get_mut(cluster).expect("it is a site")
    }

    fn submit(&mut self, need: JobRequirements) {
        let job = JobId(self.next_job);
        self.next_job += 1;
        self.needs.insert(job, need.clone());
        self.tell(ManagerEvent::Submit { job, need: Box::new(need) });
    }

    fn step(&mut self, (what, which, success): (u8, u8, u8)) {
        let which = usize::from(which);
        let cluster = self.sites.keys().nth(which % 3).expect("three sites").clone();
        match what {
            0..=1 => {
                let kind = [Kind::Malleable, Kind::Rigid, Kind::Moldable][which % 3];
                let min = 1 + u32::from(success) % 4;
                let most = if kind == Kind::Rigid { min } else { min + which as u32 % 6 };
                let mut need = JobRequirements::one(kind, min, min + (most - min) / 2, most);
                need.spreads = kind == Kind::Malleable && success == 3;
                need.expected_ms = (which % 2 == 0).then_some(7_000 * u64::from(success));
                self.submit(need);
            }
            2..=3 => {
                let SiteState { size, users, .. } = self.sites[&cluster];
                self.tell(ManagerEvent::Polled { cluster, size, others: users, whole: size });
            }
            4 => {
                let site_state = self.site_state(&cluster);
                site_state.users = if success < 2 {
                    site_state.users.saturating_sub(1)
                } else {
                    site_state.users + site_state.idle().min(2)
                };
            }
            5 => {
                let running: Vec<JobId> = self.sizes.keys().copied().collect();
                let Some(&job) = running.get(which % running.len().max(1)) else { return };
                self.end_job(job);
            }
            6 => {
                self.now += Duration::from_secs(u64::from(success) * 7);
                self.tell(ManagerEvent::Tick);
            }
            7 => {
                let running: Vec<JobId> = self.sizes.keys().copied().collect();
                let Some(&job) = running.get(which % running.len().max(1)) else { return };
                let within = (success > 4).then(|| Duration::from_secs(30));
                let want = GrowthRequest {
                    count: u32::from(success) % 4,
                    timeout: within,
                    clusters: BTreeSet::new(),
                    excluded_clusters: BTreeSet::new(),
                };
                self.wants.insert(job, want.clone());
                self.tell(ManagerEvent::GrowthRequested { job, want });
            }
            20 => {
                let start = self.manager.now + SECOND * (which as u64 % 120);
                let processors = 1 + which as u32 % 4;
                let booking = Booking { processors, start, end: start + SECOND * 40 };
                let parts = vec![ReservedSlot { cluster, bookings: vec![booking] }];
                let (token, name) = (self.log.len() as u64, "random".to_owned());
                let lease_ms = (which % 2 == 0).then_some(30_000);
                let ask = ReservationRequest {
                    token,
                    name,
                    parts,
                    max_cost: f64::INFINITY,
                    lease_ms,
                    owner: None,
                };
                self.feed(Input::Reserve(ask, success));
            }
            21 => {
                let known: Vec<ReservationId> =
                    self.manager.reservations().keys().copied().collect();
                let Some(&id) = known.get(which % known.len().max(1)) else { return };
                if success == 0 {
                    return self.feed(Input::Release(id));
                }
                let min = 1 + u32::from(success) % 3;
                let need = JobRequirements {
                    reservation: Some(id),
                    starts_early: which.is_multiple_of(2),
                    ..JobRequirements::one(Kind::Rigid, min, min, min)
                };
                self.submit(need);
            }
            22 => {
                let min = 1 + u32::from(success) % 3;
                let time_ms = Some(10_000 * (1 + which as u64 % 9));
                self.submit(JobRequirements {
                    time_ms,
                    ..JobRequirements::one(Kind::Rigid, min, min, min)
                });
            }
            23 => {
                let running: Vec<JobId> = self.sizes.keys().copied().collect();
                let Some(&job) = running.get(which % running.len().max(1)) else { return };
                let sizes = self.sizes[&job].iter().filter(|(_, size)| **size > 0);
                let Some((cluster, &size)) = sizes.max_by_key(|(_, size)| **size) else { return };
                let (cluster, count) = (cluster.clone(), size.min(1 + u32::from(success)));
                let planned = self.revocations.entry((job, cluster.clone())).or_default();
                let count = count.min(size.saturating_sub(planned.0));
                (planned.0, planned.1) = (planned.0 + count, planned.1 + count);
                self.replan(job, &cluster, 0, 0);
                self.pending.push(PendingReply::Revoke { job, cluster, count });
            }
            // As often as the driver polls while nothing happens.
            24 => {
                for _ in 0..1 + success {
                    self.now += self.manager.settings.poll_interval;
                    (0..3).for_each(|site| self.step((2, site, 0)));
                }
            }
            8 => self.tell(ManagerEvent::Unreachable { cluster, reason: "it hangs".to_owned() }),
            _ if !self.pending.is_empty() => {
                self.execute_pending(which % self.pending.len(), success)
            }
            _ => {}
        }
    }

    /// Another manager decides the same on the same inputs: decisions have no other input. It
    /// examines all waiting jobs at each scan, and takes no poll for one that changes nothing.
    fn replay(&self) {
        let clusters = self.sites.keys().cloned();
        let mut other = Manager::new(self.manager.settings.clone(), clusters, self.started);
        other.examines_all = true;
        for (now, input, out) in &self.log {
            assert_eq!(input.clone().apply(&mut other, *now), *out, "after {input:?}");
        }
        assert_eq!(other.queued().collect::<Vec<_>>(), self.manager.queued().collect::<Vec<_>>());
    }

    /// Executes all outstanding replies and lets time pass: no change may stay under way.
    fn drain(&mut self) {
        for _ in 0..200 {
            while !self.pending.is_empty() {
                self.execute_pending(0, 9);
            }
            let Some(due) = self.manager.due() else { break };
            self.now = due.max(self.now);
            self.tell(ManagerEvent::Tick);
            let waiting = self.manager.queued().next().is_some();
            let wants = self.manager.jobs.values().any(|job| job.want.is_some());
            if !waiting && !wants && self.pending.is_empty() && self.manager.rounds.is_empty() {
                break;
            }
        }
        while !self.pending.is_empty() {
            self.execute_pending(0, 9);
        }
        for (id, job) in &self.manager.jobs {
            assert!(
                job.change.is_none() || !self.pending.is_empty(),
                "{id} has a change under way: {:?}",
                job.change
            );
            for (cluster, account) in &job.accounts {
                let has =
                    self.sizes.get(id).and_then(|sizes| sizes.get(cluster)).copied().unwrap_or(0);
                assert_eq!(
                    account.size, has,
                    "{id} has {has} of {cluster}, and its account has {account:?}"
                );
                assert_eq!(
                    (account.pending, account.releasing),
                    (0, 0),
                    "{id} in {cluster}: {job:?}"
                );
            }
            if matches!(job.stage, AllocationStage::Running) {
                assert!(job.size() >= 1 || job.need.least() == 0, "{id} has no processors");
                let most: u32 = job.need.max.iter().sum();
                assert!(job.size() <= most, "{id} has {} of {most}", job.size());
            }
        }
        for (cluster, site_state) in &self.sites {
            assert_eq!(
                site_state.ours,
                self.manager.booked_processors(cluster),
                "{cluster} has processors of no job"
            );
        }
    }
}

fn settings() -> impl Strategy<Value = ManagerSettings> {
    let approach = prop_oneof![Just(Approach::Running), Just(Approach::Waiting)];
    let policy = prop_oneof![Just(Policy::Fpsma), Just(Policy::Egs), Just(Policy::EfficiencyAware)];
    let queue = prop::sample::select(vec![
        QueueDiscipline::Koala,
        QueueDiscipline::Easy,
        QueueDiscipline::Conservative,
    ]);
    (approach, policy, queue, 0u32..3, prop::option::of(4u32..15)).prop_map(
        |(approach, policy, queue, reserve, cap)| ManagerSettings {
            approach,
            policy,
            queue,
            reserve,
            cap,
            caps: [("b".into(), 6)].into(),
            ..ManagerSettings::default()
        },
    )
}

/// Draws 1,000 histories, or as many as `SPRINGTIDE_HISTORIES` says.
#[test]
fn random_histories_neither_lose_nor_double_processors() {
    let count = springtide_net::wire::fuzz::number("SPRINGTIDE_HISTORIES", 1000);
    let cases = Config { cases: count as u32, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(cases);
    let steps = prop::collection::vec((0u8..25, any::<u8>(), 0u8..8), 15..50);
    let result = runner.run(&(settings(), steps), |(settings, steps)| {
        ManagerWorld::after_steps(settings, steps).check();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// A late job loses processors, and its later answer does not release as many again.
///
/// The random histories found this case, in which the job had no processors left.
#[test]
fn late_job_does_not_release_forced_processors_again() {
    let approach = Approach::Waiting;
    let caps = [("b".into(), 6)].into();
    let settings =
        ManagerSettings { approach, policy: Policy::Fpsma, caps, ..ManagerSettings::default() };
    let steps = [
        (4, 2, 2),
        (0, 15, 2),
        (0, 28, 2),
        (9, 157, 1),
        (0, 135, 4),
        (2, 8, 0),
        (0, 0, 3),
        (9, 19, 1),
        (9, 126, 0),
        (6, 0, 3),
        (6, 0, 6),
    ];
    ManagerWorld::after_steps(settings, steps.into_iter().chain([(0, 0, 0); 4])).check();
}

/// The same in another way: a job answers two questions, of which the first has expired.
#[test]
fn processors_promised_twice_are_released_once() {
    let approach = Approach::Waiting;
    let caps = [("b".into(), 6)].into();
    let settings = ManagerSettings {
        approach,
        policy: Policy::Fpsma,
        caps,
        reserve: 1,
        ..ManagerSettings::default()
    };
    let steps = [
        (0, 126, 2),
        (0, 129, 4),
        (0, 0, 1),
        (9, 0, 1),
        (9, 0, 1),
        (0, 0, 3),
        (9, 0, 1),
        (9, 0, 1),
        (2, 24, 0),
        (0, 0, 0),
        (0, 0, 0),
        (6, 0, 2),
        (2, 93, 0),
        (0, 0, 0),
        (0, 0, 3),
        (9, 16, 0),
    ];
    ManagerWorld::after_steps(settings, steps).check();
}

/// The release of a failed change must not take processors of the next one.
#[test]
fn release_belongs_to_its_own_change() {
    let steps = [
        (0, 3, 0),
        (9, 0, 7),
        (2, 1, 0),
        (9, 0, 7),
        (6, 0, 7),
        (6, 0, 7),
        (6, 0, 7),
        (6, 0, 7),
        (6, 0, 7),
        (6, 0, 7),
        (6, 0, 7),
        (2, 1, 0),
        (9, 3, 7),
        (9, 4, 7),
        (9, 2, 7),
        (9, 2, 7),
    ];
    let world = ManagerWorld::after_steps(ManagerSettings::default(), steps);
    let recruited = |(_, _, out): &(_, _, Vec<ManagerAction>)| {
        out.iter().any(|action| matches!(action, ManagerAction::Recruit { count: 2, .. }))
    };
    assert!(world.log.iter().any(recruited));
    world.check();
}
