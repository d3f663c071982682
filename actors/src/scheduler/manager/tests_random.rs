//! The manager among sites and jobs that answer in any order, late, too little or never.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::policy::provisioning::{Booking, SECOND};
use crate::reservation::{Ask, Part, ReservationId};

/// A site and what is really there.
#[derive(Default)]
struct Truth {
    size: u32,
    /// Of our jobs, with stubs.
    ours: u32,
    users: u32,
}

impl Truth {
    fn idle(&self) -> u32 {
        self.size - self.ours - self.users
    }
}

/// What somebody has to say yet. Of what is given back ([`Owed::Unheld`]) so many were there.
#[derive(Clone, Debug)]
enum Owed {
    Claim(JobId, Vec<(ClusterId, u32)>),
    Answer { job: JobId, change: u64, cluster: ClusterId, count: u32, shrink: bool },
    Stub { job: JobId, change: u64, cluster: ClusterId },
    Grown { job: JobId, change: u64, cluster: ClusterId, count: u32 },
    Free { job: JobId, cluster: ClusterId, count: u32 },
    Unheld { job: JobId, cluster: ClusterId, count: u32, there: u32 },
}

/// What the manager was told or asked.
#[derive(Clone, Debug)]
enum Said {
    Event(Event),
    /// All steps of an agreement, or fewer.
    Reserve(Ask, u8),
    Release(ReservationId),
}

impl Said {
    fn to(self, manager: &mut Manager, now: Instant) -> Vec<Action> {
        let mut out = Vec::new();
        match self {
            Self::Event(event) => out = manager.handle(event, now),
            Self::Reserve(ask, steps) => {
                if let Ok(one) = manager.prepare(&ask) {
                    let (id, mut notes) = ((one.id, one.token), Vec::new());
                    let committed = steps > 0 && manager.commit(id, &mut notes).is_ok();
                    if committed && steps > 1 {
                        manager.confirm(id, &mut notes).unwrap();
                    }
                }
            }
            Self::Release(id) => drop(manager.release(id, None, &mut out)),
        }
        out
    }
}

struct World {
    manager: Manager,
    now: Instant,
    sites: BTreeMap<ClusterId, Truth>,
    /// What jobs compute on.
    sizes: BTreeMap<JobId, BTreeMap<ClusterId, u32>>,
    /// What is held for them, by change.
    stubs: BTreeMap<u64, u32>,
    owed: Vec<Owed>,
    needs: BTreeMap<JobId, Need>,
    /// What jobs asked for and have not got.
    wants: BTreeMap<JobId, Want>,
    began: Instant,
    /// All that was told, and what was ordered then.
    log: Vec<(Instant, Said, Vec<Action>)>,
    next_job: u64,
}

impl World {
    fn new(settings: Settings) -> Self {
        let now = Instant::now();
        let sites = [("a", 6), ("b", 9), ("c", 4)]
            .map(|(name, size)| (ClusterId::from(name), Truth { size, ..Truth::default() }));
        let manager = Manager::new(settings, sites.iter().map(|site| site.0.clone()), now);
        Self {
            manager,
            now,
            sites: sites.into(),
            sizes: BTreeMap::new(),
            stubs: BTreeMap::new(),
            owed: Vec::new(),
            needs: BTreeMap::new(),
            wants: BTreeMap::new(),
            began: now,
            log: Vec::new(),
            next_job: 1,
        }
    }

    /// One in which all sites are polled, and then this happens.
    fn lived(settings: Settings, steps: impl IntoIterator<Item = (u8, u8, u8)>) -> Self {
        let mut world = Self::new(settings);
        (0..3).for_each(|site| world.step((2, site, 0)));
        steps.into_iter().for_each(|step| world.step(step));
        world
    }

    /// Nothing is left under way in it, and another manager decides the same.
    fn check(mut self) {
        self.settle();
        self.replay();
    }

    fn tell(&mut self, event: Event) {
        self.say(Said::Event(event));
    }

    fn say(&mut self, said: Said) {
        let out = said.clone().to(&mut self.manager, self.now);
        self.manager.audit();
        self.log.push((self.now, said, out.clone()));
        for action in out {
            match action {
                Action::Claim { job, placed } => {
                    self.a_start_leaves_what_is_reserved(job, &placed);
                    let parts = placed.parts.iter().map(|part| (part.cluster.clone(), part.count));
                    self.owed.push(Owed::Claim(job, parts.collect()));
                }
                Action::Offer { job, change, cluster, count, .. } => {
                    self.growth_keeps_to_its_bounds(&cluster);
                    self.owed.push(Owed::Answer { job, change, cluster, count, shrink: false });
                }
                Action::Shrink { job, change, cluster, count, .. } => {
                    self.owed.push(Owed::Answer { job, change, cluster, count, shrink: true });
                }
                Action::Hold { job, change, cluster, count } => {
                    for _ in 0..count {
                        self.owed.push(Owed::Stub { job, change, cluster: cluster.clone() });
                    }
                }
                Action::Recruit { job, change, cluster, count } => {
                    let held = self.held(change);
                    assert!(held >= count, "{job} is given {count} of {held} stubs in {cluster}");
                    self.owed.push(Owed::Grown { job, change, cluster, count });
                }
                Action::Unhold { job, change, cluster, count, .. } => {
                    // As with nodes: only of this change, and first what has not come yet.
                    let mut there = count;
                    self.owed.retain(|owed| {
                        let comes = matches!(owed, Owed::Stub { change: of, .. } if *of == change);
                        let goes = comes && there > 0;
                        there -= u32::from(goes);
                        !goes
                    });
                    let held = self.held(change);
                    assert!(held >= there, "{job} gives back {there} of {held} in {cluster}");
                    self.stubs.insert(change, held - there);
                    self.owed.push(Owed::Unheld { job, cluster, count, there });
                }
                Action::Force { job, cluster, count, .. } => {
                    // What it was about to release, or to say that it would, is what is taken.
                    self.owed.retain(|owed| match owed {
                        Owed::Free { job: j, cluster: c, .. }
                        | Owed::Answer { job: j, cluster: c, shrink: true, .. } => {
                            (*j, c) != (job, &cluster)
                        }
                        _ => true,
                    });
                    let has = self.sizes.get(&job).and_then(|sizes| sizes.get(&cluster));
                    let count = count.min(has.copied().unwrap_or(0));
                    self.owed.push(Owed::Free { job, cluster, count });
                }
                Action::Move { job, .. } => self.tell(Event::Moved { job }),
                Action::Refuse { job, .. } => {
                    assert!(self.wants.remove(&job).is_some(), "{job} wanted nothing");
                }
                Action::End { job, .. } => self.end(job),
                Action::Fail { .. } | Action::Odd { .. } | Action::Unreserved(_) => {}
            }
        }
    }

    /// A job ends, and what it has is free.
    fn end(&mut self, job: JobId) {
        let Some(sizes) = self.sizes.get(&job).cloned() else { return };
        self.tell(Event::Ended { job });
        for (cluster, count) in sizes {
            self.owed.push(Owed::Free { job, cluster, count });
        }
        while let Some(at) =
            self.owed.iter().position(|owed| matches!(owed, Owed::Free { job: j, .. } if *j == job))
        {
            self.pay(at, 9);
        }
        self.sizes.remove(&job);
    }

    /// A job of a reservation has no more than that has; no other takes what is reserved.
    fn a_start_leaves_what_is_reserved(&self, job: JobId, placed: &Placed) {
        let under = self.needs.get(&job).and_then(|need| need.under);
        for part in &placed.parts {
            let known = &self.manager.clusters[&part.cluster];
            if let Some(id) = under {
                let one = &self.manager.reservations()[&id];
                let has = one.at(&part.cluster, self.manager.now);
                assert!(has >= part.count, "{job} gets {} of {has} of {id}", part.count);
                continue;
            }
            let withheld = self.manager.withheld(&part.cluster);
            assert!(
                known.others + known.booked + withheld <= known.size,
                "{job} in {}: {known:?}, {withheld} are reserved",
                part.cluster
            );
        }
    }

    fn growth_keeps_to_its_bounds(&self, cluster: &ClusterId) {
        let Settings { caps, cap, reserve, .. } = &self.manager.settings;
        let known = &self.manager.clusters[cluster];
        assert!(known.others + known.booked + reserve <= known.size, "{cluster}: {known:?}");
        assert!(caps.get(cluster).is_none_or(|cap| known.booked <= *cap));
        let all: u32 = self.manager.clusters.values().map(|known| known.booked).sum();
        assert!(cap.is_none_or(|cap| all <= cap), "{all} of {cap:?}");
    }

    /// Somebody does what is owed. `how` says how willing he is.
    fn pay(&mut self, at: usize, how: u8) {
        match self.owed.swap_remove(at) {
            Owed::Claim(job, parts) => {
                let fits =
                    |(cluster, count): &(ClusterId, u32)| self.sites[cluster].idle() >= *count;
                if how == 0 || !parts.iter().all(fits) {
                    return self.tell(Event::ClaimFailed { job, reason: "no".to_owned() });
                }
                let mut got: BTreeMap<ClusterId, u32> = BTreeMap::new();
                for (cluster, count) in parts {
                    self.truth(&cluster).ours += count;
                    *got.entry(cluster).or_default() += count;
                }
                self.sizes.insert(job, got.clone());
                self.tell(Event::Claimed { job, got });
            }
            Owed::Answer { job, change, cluster, count, shrink } => {
                let Some(sizes) = self.sizes.get(&job) else { return };
                let here = sizes.get(&cluster).copied().unwrap_or(0);
                // What it has promised already, whoever heard it, it does not promise again.
                let promised = |owed: &Owed| match owed {
                    Owed::Free { job: j, cluster: c, count } if (*j, c) == (job, &cluster) => {
                        *count
                    }
                    _ => 0,
                };
                let promised: u32 = self.owed.iter().map(promised).sum();
                let here = here.saturating_sub(promised);
                let answer = if how < 3 { u32::from(how).min(count) } else { count };
                let least = self.manager.jobs.get(&job).map_or(0, |job| job.bounds(&cluster).0);
                let answer = if shrink { answer.min(here.saturating_sub(least)) } else { answer };
                self.tell(Event::Answer { job, change, count: Some(answer) });
                if shrink && answer > 0 {
                    self.owed.push(Owed::Free { job, cluster, count: answer });
                }
            }
            Owed::Stub { job, change, cluster } => {
                if how == 0 || self.sites[&cluster].idle() == 0 {
                    let reason = "no".to_owned();
                    return self.tell(Event::NotHeld { job, change, count: 1, reason });
                }
                self.truth(&cluster).ours += 1;
                *self.stubs.entry(change).or_default() += 1;
                self.tell(Event::Held { job, change, count: 1 });
            }
            Owed::Grown { job, change, cluster, count } => {
                let held = self.held(change);
                let uses = if how < 3 { u32::from(how).min(count) } else { count }.min(held);
                let Some(sizes) = self.sizes.get_mut(&job) else { return };
                *sizes.entry(cluster).or_default() += uses;
                self.stubs.insert(change, held - uses);
                if let Some(want) = self.wants.get_mut(&job) {
                    want.count -= uses.min(want.count);
                    let want = want.clone();
                    self.tell(Event::Want { job, want });
                }
                self.tell(Event::Grown { job, change, count: uses });
            }
            Owed::Unheld { job, cluster, count, there } => {
                self.truth(&cluster).ours -= there;
                self.tell(Event::Unheld { job, cluster, count });
            }
            Owed::Free { job, cluster, count } => {
                let has = self.sizes.get_mut(&job).and_then(|sizes| sizes.get_mut(&cluster));
                let Some(has) = has else { return };
                let count = count.min(*has);
                *has -= count;
                self.truth(&cluster).ours -= count;
                self.tell(Event::Freed { job, cluster, count, let_go: how == 1 });
            }
        }
    }

    fn held(&self, change: u64) -> u32 {
        self.stubs.get(&change).copied().unwrap_or(0)
    }

    fn truth(&mut self, cluster: &ClusterId) -> &mut Truth {
        self.sites.get_mut(cluster).expect("it is a site")
    }

    fn submit(&mut self, need: Need) {
        let job = JobId(self.next_job);
        self.next_job += 1;
        self.needs.insert(job, need.clone());
        self.tell(Event::Submit { job, need: Box::new(need) });
    }

    fn step(&mut self, (what, which, how): (u8, u8, u8)) {
        let which = usize::from(which);
        let cluster = self.sites.keys().nth(which % 3).expect("three sites").clone();
        match what {
            0..=1 => {
                let kind = [Kind::Malleable, Kind::Rigid, Kind::Moldable][which % 3];
                let min = 1 + u32::from(how) % 4;
                let most = if kind == Kind::Rigid { min } else { min + which as u32 % 6 };
                let mut need = Need::one(kind, min, min + (most - min) / 2, most);
                need.spreads = kind == Kind::Malleable && how == 3;
                self.submit(need);
            }
            2..=3 => {
                let Truth { size, users, .. } = self.sites[&cluster];
                self.tell(Event::Polled { cluster, size, others: users, whole: size });
            }
            4 => {
                let truth = self.truth(&cluster);
                truth.users = if how < 2 {
                    truth.users.saturating_sub(1)
                } else {
                    truth.users + truth.idle().min(2)
                };
            }
            5 => {
                let running: Vec<JobId> = self.sizes.keys().copied().collect();
                let Some(&job) = running.get(which % running.len().max(1)) else { return };
                self.end(job);
            }
            6 => {
                self.now += Duration::from_secs(u64::from(how) * 7);
                self.tell(Event::Tick);
            }
            7 => {
                let running: Vec<JobId> = self.sizes.keys().copied().collect();
                let Some(&job) = running.get(which % running.len().max(1)) else { return };
                let within = (how > 4).then(|| Duration::from_secs(30));
                let want = Want {
                    count: u32::from(how) % 4,
                    within,
                    clusters: BTreeSet::new(),
                    but: BTreeSet::new(),
                };
                self.wants.insert(job, want.clone());
                self.tell(Event::Want { job, want });
            }
            20 => {
                let start = self.manager.now + SECOND * (which as u64 % 120);
                let processors = 1 + which as u32 % 4;
                let booking = Booking { processors, start, end: start + SECOND * 40 };
                let parts = vec![Part { cluster, bookings: vec![booking] }];
                let (token, name) = (self.log.len() as u64, "random".to_owned());
                let lease_ms = (which % 2 == 0).then_some(30_000);
                let ask = Ask { token, name, parts, most_cost: f64::INFINITY, lease_ms };
                self.say(Said::Reserve(ask, how));
            }
            21 => {
                let known: Vec<ReservationId> =
                    self.manager.reservations().keys().copied().collect();
                let Some(&id) = known.get(which % known.len().max(1)) else { return };
                if how == 0 {
                    return self.say(Said::Release(id));
                }
                let min = 1 + u32::from(how) % 3;
                let need = Need { under: Some(id), ..Need::one(Kind::Rigid, min, min, min) };
                self.submit(need);
            }
            22 => {
                let min = 1 + u32::from(how) % 3;
                let time_ms = Some(10_000 * (1 + which as u64 % 9));
                self.submit(Need { time_ms, ..Need::one(Kind::Rigid, min, min, min) });
            }
            8 => self.tell(Event::Unreachable { cluster, reason: "it hangs".to_owned() }),
            _ if !self.owed.is_empty() => self.pay(which % self.owed.len(), how),
            _ => {}
        }
    }

    /// Another manager that is told the same orders the same: nothing else goes into its decisions.
    fn replay(&self) {
        let clusters = self.sites.keys().cloned();
        let mut other = Manager::new(self.manager.settings.clone(), clusters, self.began);
        for (now, said, out) in &self.log {
            assert_eq!(said.clone().to(&mut other, *now), *out, "after {said:?}");
        }
    }

    /// All that is owed is paid, and time passes: nothing may be left under way.
    fn settle(&mut self) {
        for _ in 0..200 {
            while !self.owed.is_empty() {
                self.pay(0, 9);
            }
            let Some(due) = self.manager.due() else { break };
            self.now = due.max(self.now);
            self.tell(Event::Tick);
            let waiting = self.manager.queued().next().is_some();
            let wants = self.manager.jobs.values().any(|job| job.want.is_some());
            if !waiting && !wants && self.owed.is_empty() && self.manager.rounds.is_empty() {
                break;
            }
        }
        while !self.owed.is_empty() {
            self.pay(0, 9);
        }
        for (id, job) in &self.manager.jobs {
            assert!(
                job.change.is_none() || !self.owed.is_empty(),
                "{id} still changes: {:?}",
                job.change
            );
            for (cluster, account) in &job.accounts {
                let has =
                    self.sizes.get(id).and_then(|sizes| sizes.get(cluster)).copied().unwrap_or(0);
                assert_eq!(
                    account.size, has,
                    "{id} has {has} of {cluster} and is booked {account:?}"
                );
                assert_eq!((account.coming, account.going), (0, 0), "{id} in {cluster}: {job:?}");
            }
            if matches!(job.stage, Stage::Running) {
                assert!(job.size() >= 1 || job.need.least() == 0, "{id} has nothing");
                let most: u32 = job.need.most.iter().sum();
                assert!(job.size() <= most, "{id} has {} of {most}", job.size());
            }
        }
        for (cluster, truth) in &self.sites {
            assert_eq!(truth.ours, self.manager.booked(cluster), "{cluster} has stubs of nobody");
        }
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    let approach = prop_oneof![Just(Approach::Running), Just(Approach::Waiting)];
    let policy = prop_oneof![Just(Policy::Fpsma), Just(Policy::Egs), Just(Policy::EfficiencyAware)];
    (approach, policy, 0u32..3, prop::option::of(4u32..15)).prop_map(
        |(approach, policy, reserve, cap)| {
            let caps = [("b".into(), 6)].into();
            Settings { approach, policy, reserve, cap, caps, ..Settings::default() }
        },
    )
}

/// Draws 1,000 histories, or as many as `SPRINGTIDE_HISTORIES` says.
#[test]
fn drawn_histories_lose_and_double_nothing() {
    let count = springtide_runtime::wire::fuzz::number("SPRINGTIDE_HISTORIES", 1000);
    let cases = Config { cases: count as u32, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(cases);
    let steps = prop::collection::vec((0u8..23, any::<u8>(), 0u8..8), 15..50);
    let result = runner.run(&(settings(), steps), |(settings, steps)| {
        World::lived(settings, steps).check();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// A job that has not answered in time loses processors, and does not release as many again when it would have answered: a history that the
/// random ones found once, where it had none left.
#[test]
fn what_is_taken_from_a_job_that_is_late_it_does_not_release_as_well() {
    let approach = Approach::Waiting;
    let caps = [("b".into(), 6)].into();
    let settings = Settings { approach, policy: Policy::Fpsma, caps, ..Settings::default() };
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
    World::lived(settings, steps.into_iter().chain([(0, 0, 0); 4])).check();
}

/// The same in another way: a job answers two questions of which nobody waits for the first any more.
#[test]
fn what_is_promised_twice_is_released_once() {
    let approach = Approach::Waiting;
    let caps = [("b".into(), 6)].into();
    let settings =
        Settings { approach, policy: Policy::Fpsma, caps, reserve: 1, ..Settings::default() };
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
    World::lived(settings, steps).check();
}

/// What is given back of a change that came to nothing is not what the next one holds.
#[test]
fn what_is_given_back_is_of_its_own_change() {
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
    let world = World::lived(Settings::default(), steps);
    let recruited = |(_, _, out): &(_, _, Vec<Action>)| {
        out.iter().any(|action| matches!(action, Action::Recruit { count: 2, .. }))
    };
    assert!(world.log.iter().any(recruited));
    world.check();
}
