//! Fair shares: the past use of users and projects, and their limits.
//!
//! The use of processors loses half of its weight in each half-life, as in the fair-share factor of
//! batch systems. A job's *charge* is the larger of its user's and its project's past use divided
//! by their shares. This module must not depend on the queue.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::id::JobId;
use springtide_config::{BoundedInt, ShareSection};

use super::{JobRequirements, Manager, ManagerSettings};
use crate::policy::malleability::PlacementPlan;
use crate::policy::provisioning::{SECOND, Time, from_duration};

/// Greatest number of users, and of projects, whose use is kept: those with the largest use.
const HOLDERS_MAX: usize = 10_000;

/// Share, priority and limits of a user or project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShareTerms {
    /// Share of the grid, relative to those of others; positive.
    pub share: f64,
    /// Jobs with a higher priority start first.
    pub priority: u32,
    /// Greatest number of processors of all jobs, at the start of each.
    pub processors_max: Option<u32>,
    /// Greatest number of running jobs.
    pub jobs_max: Option<u32>,
}

impl Default for ShareTerms {
    fn default() -> Self {
        Self { share: 1.0, priority: 0, processors_max: None, jobs_max: None }
    }
}

impl From<&ShareSection> for ShareTerms {
    fn from(section: &ShareSection) -> Self {
        Self {
            share: section.share,
            priority: section.priority.get(),
            processors_max: section.processors_max.map(BoundedInt::get),
            jobs_max: section.jobs_max.map(BoundedInt::get),
        }
    }
}

/// Processor-seconds that lose their weight with time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct DecayedUse {
    seconds: f64,
    at: Time,
}

impl DecayedUse {
    fn at(self, now: Time, half_life: Duration) -> f64 {
        let half_lives = now.saturating_sub(self.at) as f64 / from_duration(half_life) as f64;
        self.seconds * (-half_lives).exp2()
    }

    fn add(&mut self, seconds: f64, now: Time, half_life: Duration) {
        *self = Self { seconds: self.at(now, half_life) + seconds, at: now };
    }
}

/// Whose share a job uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShareHolder<'a> {
    User(&'a str),
    Project(&'a str),
}

impl std::fmt::Display for ShareHolder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Project(name) => write!(f, "project {name}"),
        }
    }
}

/// The holders of a job's shares.
pub(super) fn holders(need: &JobRequirements) -> impl Iterator<Item = ShareHolder<'_>> {
    let user = need.user.as_deref().map(ShareHolder::User);
    user.into_iter().chain(need.project.as_deref().map(ShareHolder::Project))
}

/// Past use of all users and projects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareLedger {
    users: BTreeMap<String, DecayedUse>,
    projects: BTreeMap<String, DecayedUse>,
}

impl ShareLedger {
    /// Adds processor-seconds to the use of a job's user and project.
    pub(super) fn charge(
        &mut self,
        need: &JobRequirements,
        seconds: f64,
        now: Time,
        half_life: Duration,
    ) {
        for holder in holders(need) {
            let (all, name) = match holder {
                ShareHolder::User(name) => (&mut self.users, name),
                ShareHolder::Project(name) => (&mut self.projects, name),
            };
            match all.get_mut(name) {
                Some(used) => used.add(seconds, now, half_life),
                None => {
                    forget_least(all, now, half_life);
                    all.insert(name.to_owned(), DecayedUse { seconds, at: now });
                }
            }
        }
    }

    /// A job's charge, in processor-seconds per share.
    pub(super) fn charge_of<'a>(
        &self,
        need: &'a JobRequirements,
        now: Time,
        half_life: Duration,
        terms: impl Fn(ShareHolder<'a>) -> f64,
    ) -> f64 {
        let charge = |holder: ShareHolder<'a>| {
            let used = match holder {
                ShareHolder::User(name) => self.users.get(name),
                ShareHolder::Project(name) => self.projects.get(name),
            };
            used.map_or(0.0, |used| used.at(now, half_life) / terms(holder))
        };
        holders(need).map(charge).fold(0.0, f64::max)
    }
}

/// Makes room for another holder.
fn forget_least(all: &mut BTreeMap<String, DecayedUse>, now: Time, half_life: Duration) {
    if all.len() < HOLDERS_MAX {
        return;
    }
    let used = |used: &DecayedUse| used.at(now, half_life);
    let least = all.iter().min_by(|a, b| used(a.1).total_cmp(&used(b.1)));
    if let Some(least) = least.map(|(name, _)| name.clone()) {
        all.remove(&least);
    }
}

/// Jobs and processors of users and projects that have limits.
#[derive(Debug, Default)]
pub(super) struct ShareHoldings {
    /// Number of jobs and of processors, by user.
    users: BTreeMap<String, (u32, u32)>,
    /// The same by project.
    projects: BTreeMap<String, (u32, u32)>,
}

impl ShareHoldings {
    fn of(&self, holder: ShareHolder<'_>) -> (u32, u32) {
        match holder {
            ShareHolder::User(name) => self.users.get(name),
            ShareHolder::Project(name) => self.projects.get(name),
        }
        .copied()
        .unwrap_or_default()
    }

    fn add_processors(&mut self, need: &JobRequirements, processors: u32) {
        for holder in holders(need) {
            let held = match holder {
                ShareHolder::User(name) => self.users.entry(name.to_owned()).or_default(),
                ShareHolder::Project(name) => self.projects.entry(name.to_owned()).or_default(),
            };
            *held = (held.0.saturating_add(1), held.1.saturating_add(processors));
        }
    }

    /// Adds a job that starts.
    pub fn add(&mut self, need: &JobRequirements, placed: &PlacementPlan) {
        self.add_processors(need, placed.parts.iter().map(|part| part.count).sum());
    }
}

impl Manager {
    fn terms_of(&self, holder: ShareHolder<'_>) -> Option<&ShareTerms> {
        match holder {
            ShareHolder::User(name) => self.settings.users.get(name),
            ShareHolder::Project(name) => self.settings.projects.get(name),
        }
    }

    /// What users and projects have now, if any of them has a limit.
    pub(super) fn share_holdings(&self) -> Option<ShareHoldings> {
        let has_limit =
            |terms: &ShareTerms| terms.processors_max.is_some() || terms.jobs_max.is_some();
        let ManagerSettings { users, projects, .. } = &self.settings;
        if !users.values().chain(projects.values()).any(has_limit) {
            return None;
        }
        let mut held = ShareHoldings::default();
        for (_, job) in self.active_jobs() {
            held.add_processors(&job.need, job.booked());
        }
        Some(held)
    }

    /// The limit that a job would exceed if it started now.
    pub(super) fn exceeded_limit(
        &self,
        need: &JobRequirements,
        held: &ShareHoldings,
    ) -> Option<String> {
        holders(need).find_map(|holder| {
            let terms = self.terms_of(holder)?;
            let (jobs, processors) = held.of(holder);
            if let Some(most) = terms.jobs_max.filter(|most| jobs >= *most) {
                return Some(format!("{holder} has {jobs} jobs of at most {most} at a time"));
            }
            let least = need.least();
            let most = terms.processors_max.filter(|most| processors.saturating_add(least) > *most);
            most.map(|most| {
                format!(
                    "{holder} has {processors} processors of at most {most}, and the job needs \
                     {least}"
                )
            })
        })
    }

    /// Charges users and projects for the processors that their jobs have had since the last call.
    pub(super) fn charge_shares(&mut self) {
        let before = std::mem::replace(&mut self.charged_until, self.now);
        let Some(half_life) = self.settings.fair_share_half_life else { return };
        let seconds = self.now.saturating_sub(before) as f64 / SECOND as f64;
        if seconds <= 0.0 {
            return;
        }
        let jobs = self.active.iter().filter_map(|id| self.jobs.get(id));
        for job in jobs.filter(|job| job.need.user.is_some() || job.need.project.is_some()) {
            let used = f64::from(job.booked()) * seconds;
            self.memory.shares.charge(&job.need, used, self.now, half_life);
        }
    }

    /// Orders the queue by priority, then by past use, then by submission.
    pub(super) fn order_queue(&mut self) {
        let half_life = self.settings.fair_share_half_life;
        let has_priority = |terms: &ShareTerms| terms.priority > 0;
        let ManagerSettings { users, projects, .. } = &self.settings;
        let any_priority = users.values().chain(projects.values()).any(has_priority);
        if half_life.is_none() && !any_priority {
            return;
        }
        // Thousands of jobs may wait, of a few users.
        let mut charges: BTreeMap<[Option<&str>; 2], f64> = BTreeMap::new();
        let mut key = |id: JobId| {
            let Some(need) = self.jobs.get(&id).map(|job| &job.need) else { return (0, 0.0) };
            let priority =
                holders(need).filter_map(|of| self.terms_of(of)).map(|terms| terms.priority).max();
            let share = |of: ShareHolder<'_>| self.terms_of(of).map_or(1.0, |terms| terms.share);
            let charge = half_life.map_or(0.0, |half_life| {
                *charges.entry([need.user.as_deref(), need.project.as_deref()]).or_insert_with(
                    || self.memory.shares.charge_of(need, self.now, half_life, share),
                )
            });
            (priority.unwrap_or(0), charge)
        };
        let mut order: Vec<((u32, f64), JobId)> =
            self.queue.iter().map(|id| (key(id), id)).collect();
        let by_key = |((a, used_a), _): &((u32, f64), JobId), ((b, used_b), _): &_| {
            u32::cmp(b, a).then_with(|| used_a.total_cmp(used_b))
        };
        if !order.is_sorted_by(|a, b| by_key(a, b).is_le()) {
            order.sort_by(by_key);
            self.queue.set_order(order.into_iter().map(|(_, id)| id));
        }
    }
}
