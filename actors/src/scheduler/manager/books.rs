//! Who has which processors: counts by job and cluster.
//!
//! Must not know what anybody wants. A processor is in one account from the moment that it is promised to a job until
//! somebody who knows says that it is free again.

use std::collections::{BTreeMap, BTreeSet};

use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::event::{Need, Want};
use crate::policy::malleability::{Benefit, Direction, Placed, Placement};
use crate::policy::provisioning::Time;

/// A cluster.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) size: u32,
    /// In use by others.
    pub(super) others: u32,
    /// What it would have if all worked.
    pub(super) whole: u32,
    /// In accounts of jobs.
    pub(super) booked: u32,
    /// Why it cannot be used.
    pub(super) closed: Option<String>,
    /// Who has something there.
    pub(super) jobs: BTreeSet<JobId>,
}

impl Cluster {
    pub(super) fn idle(&self) -> u32 {
        self.size.saturating_sub(self.others).saturating_sub(self.booked)
    }
}

/// A job's processors in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// It computes on them.
    pub(super) size: u32,
    /// They were offered to it, are claimed or held for it.
    pub(super) coming: u32,
    /// They were held for it, and are given back.
    pub(super) going: u32,
    /// Most that it was offered at this size and took none of, or let go.
    pub(super) refused: u32,
    /// It was asked whether it can do with less, and cannot.
    pub(super) declined: bool,
}

impl Account {
    pub(super) fn all(&self) -> u32 {
        self.size + self.coming + self.going
    }
}

/// Where a job is in its life.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Has no place.
    Waiting,
    /// Has a place, and its files are on their way; its processors are claimed then.
    Placed {
        placed: Placed,
        claim_at: Option<Instant>,
    },
    /// Is being started.
    Claiming,
    Running,
    /// Its processors are being freed.
    Ending,
}

/// A job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) need: Need,
    pub(super) stage: Stage,
    /// Scans that found no place for it.
    pub(super) tries: u32,
    /// Why it waits, or what was last done about it.
    pub(super) why: String,
    /// When it began to run.
    pub(super) started: Time,
    pub(super) accounts: BTreeMap<ClusterId, Account>,
    /// Bounds by cluster, as it was placed.
    pub(super) bounds: BTreeMap<ClusterId, (u32, u32)>,
    pub(super) change: Option<Change>,
    pub(super) benefit: Benefit,
    /// Its efficiency as last told, and when it last refused processors.
    pub(super) efficiency: Option<f64>,
    pub(super) refused_at: Option<f64>,
    pub(super) want: Option<Wanted>,
    /// Most processors that whoever owns it lets it have.
    pub(super) limit: Option<u32>,
    /// Where its root runs.
    pub(super) root: Option<ClusterId>,
    /// Its time is over, and it was told.
    pub(super) told_to_end: bool,
}

/// What a job asked for, and until when it waits for it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) want: Want,
    pub(super) until: Option<Instant>,
    /// What it was given last it did not get: before a cluster was polled again that would be tried in vain.
    pub(super) stalled: bool,
}

/// A change of a job's size that is under way.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) number: u64,
    pub(super) cluster: ClusterId,
    pub(super) step: Step,
    pub(super) began: Instant,
    /// When it is not waited for any more.
    pub(super) until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many were offered.
    Offered(u32),
    /// So many are held for it, of so many.
    Acquiring { held: u32, of: u32 },
    /// It was given so many.
    Recruiting(u32),
    /// It was asked for so many, and some became free before it answered.
    Asked { count: u32, mandatory: bool, freed: u32 },
    /// It owes so many: also what it promised without having to.
    Releasing { owes: u32 },
}

impl Step {
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::Offered(_) | Self::Acquiring { .. } | Self::Recruiting(_) => Direction::Grow,
            Self::Asked { .. } | Self::Releasing { .. } => Direction::Shrink,
        }
    }
}

impl Job {
    pub(super) fn waiting(need: Need) -> Self {
        Self {
            need,
            stage: Stage::Waiting,
            tries: 0,
            why: String::new(),
            started: 0,
            accounts: BTreeMap::new(),
            bounds: BTreeMap::new(),
            change: None,
            benefit: Benefit::default(),
            efficiency: None,
            refused_at: None,
            want: None,
            limit: None,
            root: None,
            told_to_end: false,
        }
    }

    /// Notes where it lies.
    pub(super) fn lie(&mut self, placed: &Placed) {
        self.bounds.clear();
        for part in &placed.parts {
            let (min, most) = self.bounds.entry(part.cluster.clone()).or_default();
            *min += self.need.components[part.component].min;
            *most = most.saturating_add(self.need.most[part.component]);
        }
    }

    /// Processors that it computes on.
    pub(super) fn size(&self) -> u32 {
        self.accounts.values().map(|account| account.size).sum()
    }

    pub(super) fn booked(&self) -> u32 {
        self.accounts.values().map(Account::all).sum()
    }

    /// Fewest and most that it can have in a cluster, as long as it has what it has elsewhere.
    pub(super) fn bounds(&self, cluster: &ClusterId) -> (u32, u32) {
        let (min, most) = self.needs(cluster);
        let Some(limit) = self.limit else { return (min, most) };
        let here = self.accounts.get(cluster).map_or(0, |account| account.size);
        (min, most.min(limit.saturating_sub(self.size() - here)))
    }

    /// The same by what it needs alone.
    fn needs(&self, cluster: &ClusterId) -> (u32, u32) {
        let as_one =
            self.need.spreads || self.need.placement == Placement::FlexibleClusterMinimisation;
        if !as_one {
            return self.bounds.get(cluster).copied().unwrap_or_default();
        }
        if !self.need.spreads && !self.bounds.contains_key(cluster) {
            return (0, 0);
        }
        let here = self.accounts.get(cluster).map_or(0, |account| account.size);
        let elsewhere = self.size() - here;
        let roots = u32::from(self.root.as_ref() == Some(cluster)).min(here);
        (
            self.need.least().saturating_sub(elsewhere).max(roots),
            self.need.greatest().saturating_sub(elsewhere),
        )
    }

    /// What it says it will release in a cluster, or is releasing.
    pub(super) fn owes(&self, cluster: &ClusterId) -> u32 {
        let going = self.accounts.get(cluster).map_or(0, |account| account.going);
        let ending = self.accounts.get(cluster).map_or(0, |account| account.size);
        match &self.change {
            _ if self.stage == Stage::Ending => going + ending,
            Some(Change { cluster: c, step: Step::Releasing { owes, .. }, .. }) if c == cluster => {
                going + owes
            }
            Some(Change { cluster: c, step: Step::Asked { count, freed, .. }, .. })
                if c == cluster =>
            {
                going + count.saturating_sub(*freed)
            }
            _ => going,
        }
    }
}
