//! The waiting jobs in order, with an index of the processors that they need.
//!
//! The index finds the jobs that may start on a number of idle processors, without a visit to the
//! others. This module must not depend on why a job waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use springtide_base::id::JobId;

use super::JobRequirements;
use crate::policy::malleability::PlacementPolicy;

/// Position of a job in the queue. Positions are not consecutive.
pub(super) type Place = i64;

/// What a waiting job needs before it can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitingNeed {
    /// The end of other jobs.
    OtherJobs,
    /// This number of processors in any one cluster.
    Processors(u32),
    /// Something else, so that each scan examines the job.
    Other,
}

impl WaitingNeed {
    pub fn of(need: &JobRequirements) -> Self {
        let is_limited = need.array.is_some_and(|array| array.limit.is_some());
        match need.components.as_slice() {
            _ if need.reservation.is_some() => Self::Other,
            _ if !need.after.is_empty() => Self::OtherJobs,
            _ if !need.node.is_met_by_all() => Self::Other,
            [one]
                if one.clusters.is_empty()
                    && !is_limited
                    && need.placement != PlacementPolicy::FlexibleClusterMinimisation =>
            {
                Self::Processors(one.min)
            }
            _ => Self::Other,
        }
    }
}

/// The queue of waiting jobs.
#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    order: BTreeMap<Place, JobId>,
    jobs: BTreeMap<JobId, (Place, WaitingNeed)>,
    /// Places of the jobs that need a number of processors, by this number.
    by_processors: BTreeMap<u32, BTreeSet<Place>>,
    /// Places of the jobs that each scan examines.
    others: BTreeSet<Place>,
}

impl WaitingQueue {
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The jobs in order.
    pub fn iter(&self) -> impl Iterator<Item = JobId> {
        self.order.values().copied()
    }

    pub fn push_back(&mut self, id: JobId, need: WaitingNeed) {
        let place = self.order.last_key_value().map_or(0, |(last, _)| last + 1);
        self.insert(place, id, need);
    }

    /// Moves a job to the front.
    pub fn move_to_front(&mut self, id: JobId) {
        let first = self.order.first_key_value().map_or(0, |(first, _)| *first);
        if let Some((place, need)) = self.jobs.get(&id).copied()
            && place != first
        {
            self.remove(id);
            self.insert(first - 1, id, need);
        }
    }

    /// Replaces what a job needs. A job that does not wait here is ignored.
    pub fn update(&mut self, id: JobId, need: WaitingNeed) {
        if let Some((place, _)) = self.jobs.get(&id).copied() {
            self.remove(id);
            self.insert(place, id, need);
        }
    }

    /// Removes a job, if it waits here.
    pub fn remove(&mut self, id: JobId) {
        let Some((place, need)) = self.jobs.remove(&id) else { return };
        self.order.remove(&place);
        match need {
            WaitingNeed::OtherJobs => {}
            WaitingNeed::Other => {
                self.others.remove(&place);
            }
            WaitingNeed::Processors(count) => {
                if let Some(places) = self.by_processors.get_mut(&count) {
                    places.remove(&place);
                    if places.is_empty() {
                        self.by_processors.remove(&count);
                    }
                }
            }
        }
    }

    fn insert(&mut self, place: Place, id: JobId, need: WaitingNeed) {
        self.order.insert(place, id);
        self.jobs.insert(id, (place, need));
        match need {
            WaitingNeed::OtherJobs => {}
            WaitingNeed::Other => {
                self.others.insert(place);
            }
            WaitingNeed::Processors(count) => {
                self.by_processors.entry(count).or_default().insert(place);
            }
        }
    }

    /// Replaces the order of the jobs.
    pub fn set_order(&mut self, order: impl IntoIterator<Item = JobId>) {
        let former = std::mem::take(self);
        for id in order {
            if let Some((_, need)) = former.jobs.get(&id) {
                self.push_back(id, *need);
            }
        }
    }

    /// The first job after a place; absent: the first of all.
    pub fn after(&self, place: Option<Place>) -> Option<(Place, JobId)> {
        let from = place.map_or(Place::MIN, |place| place + 1);
        self.order.range(from..).next().map(|(place, id)| (*place, *id))
    }

    /// The jobs after a place that need at most `idle` or more than `largest` processors, and those
    /// that each scan examines.
    pub fn candidates(&self, after: Place, idle: u32, largest: u64) -> Candidates {
        let sizes = self.by_processors.keys().copied();
        let fits = |size: &u32| *size <= idle || u64::from(*size) > largest;
        let kinds = sizes.filter(fits).map(WaitingNeed::Processors).chain([WaitingNeed::Other]);
        let first = |kind| Some(Reverse((self.next_of(kind, after)?, kind)));
        Candidates(kinds.filter_map(first).collect())
    }

    /// The first place after another of a job with this need.
    fn next_of(&self, need: WaitingNeed, after: Place) -> Option<Place> {
        let places = match need {
            WaitingNeed::OtherJobs => return None,
            WaitingNeed::Other => &self.others,
            WaitingNeed::Processors(count) => self.by_processors.get(&count)?,
        };
        places.range(after + 1..).next().copied()
    }

    /// Checks the index.
    ///
    /// # Errors
    /// Description of the first inconsistency.
    pub fn audit(&self, need: impl Fn(JobId) -> Option<WaitingNeed>) -> Result<(), String> {
        let indexed: usize = self.by_processors.values().map(BTreeSet::len).sum();
        let mut held = 0;
        for (place, id) in &self.order {
            let Some(need) = need(*id) else {
                return Err(format!("{id} is in the queue, and no such job exists"));
            };
            if self.jobs.get(id) != Some(&(*place, need)) {
                return Err(format!("the queue's index is wrong about {id}"));
            }
            held += usize::from(need == WaitingNeed::OtherJobs);
        }
        let sum = indexed + self.others.len() + held;
        if (sum, self.jobs.len()) != (self.order.len(), self.order.len()) {
            return Err(format!("the queue has {} jobs, its index {sum}", self.order.len()));
        }
        Ok(())
    }
}

/// The jobs that a scan examines, in order: the places of each need are merged.
#[derive(Debug)]
pub(super) struct Candidates(BinaryHeap<Reverse<(Place, WaitingNeed)>>);

impl Candidates {
    /// The next job, after some processors may have become used since the last one.
    pub fn next(
        &mut self,
        queue: &WaitingQueue,
        idle: u32,
        largest: u64,
    ) -> Option<(Place, JobId)> {
        loop {
            let Reverse((place, need)) = self.0.pop()?;
            let fits = match need {
                WaitingNeed::Processors(size) => size <= idle || u64::from(size) > largest,
                _ => true,
            };
            if !fits {
                continue;
            }
            if let Some(next) = queue.next_of(need, place) {
                self.0.push(Reverse((next, need)));
            }
            if let Some(id) = queue.order.get(&place) {
                return Some((place, *id));
            }
        }
    }
}
