//! What goes into the malleability manager and what comes out. Data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub use springtide_runtime::config::JobKind as Kind;
use springtide_runtime::files::check_name;
use springtide_runtime::id::{ClusterId, JobId};

use crate::policy::malleability::{Component, Placed, Placement, Transfer};
use crate::policy::provisioning::{NEVER, Time, from_duration};
use crate::reservation::ReservationId;

/// What a job needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Whether that can change.
    pub kind: Kind,
    /// How it is placed.
    pub placement: Placement,
    /// Its parts, at least one.
    pub components: Vec<Component>,
    /// Most processors of each component, at least its start; of rigid jobs its start.
    pub most: Vec<u32>,
    /// It may grow in clusters where it has nothing yet.
    pub spreads: bool,
    /// It runs on what this reservation has, and on nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<ReservationId>,
    /// It takes no longer than so many milliseconds, and is ended when it does. What has no end leaves nothing to reserve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
}

impl Need {
    /// One component of any cluster.
    pub fn one(kind: Kind, min: u32, start: u32, most: u32) -> Self {
        let (clusters, files) = (BTreeSet::new(), Vec::new());
        let components = vec![Component { min, start, clusters, files }];
        let placement = Placement::default();
        let most = vec![most];
        Self { kind, placement, components, most, spreads: false, under: None, time_ms: None }
    }

    /// How long it takes, by what it says; [`NEVER`] if it does not.
    pub(super) fn time(&self) -> Time {
        self.time_ms.map_or(NEVER, |ms| from_duration(Duration::from_millis(ms)))
    }

    /// Whether its rooms are others than everybody's: it has a reservation of its own, or says when it ends.
    pub(super) fn has_own_rooms(&self) -> bool {
        self.under.is_some() || self.time_ms.is_some()
    }

    /// Whether it makes sense: it may come from another program.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        if self.components.is_empty() || self.components.len() != self.most.len() {
            let (parts, most) = (self.components.len(), self.most.len());
            return Err(format!(
                "it has {parts} components and says of {most} how many processors they need"
            ));
        }
        for (i, (one, most)) in self.components.iter().zip(&self.most).enumerate() {
            if one.min == 0 || one.min > one.start || one.start > *most {
                let (min, start) = (one.min, one.start);
                return Err(format!(
                    "component {} needs at least {min} processors, starts with {start} and may have {most}: each must be at least \
                     the one before, and the first at least 1",
                    i + 1
                ));
            }
        }
        if self.under.is_some() && (self.kind == Kind::Malleable || self.spreads) {
            return Err(
                "it runs on a reservation, which has what it has: make it rigid or moldable"
                    .to_owned(),
            );
        }
        if self.time_ms == Some(0) {
            return Err("it says that it takes no time".to_owned());
        }
        if self.spreads && self.components.iter().any(|one| !one.files.is_empty()) {
            return Err("it needs files, so it cannot grow into clusters that do not have them: leave out spreading".to_owned());
        }
        let files = self.components.iter().flat_map(|one| &one.files);
        if let Some(error) = files.filter_map(|file| check_name(file).err()).next() {
            return Err(error.to_string());
        }
        if self.components.iter().try_fold(0u32, |sum, one| sum.checked_add(one.min)).is_none() {
            return Err("its components need more processors than can be counted".to_owned());
        }
        Ok(())
    }

    /// Most processors of all components together.
    pub fn greatest(&self) -> u32 {
        self.most.iter().fold(0, |sum, most| sum.saturating_add(*most))
    }

    /// Fewest processors of all components together.
    pub fn least(&self) -> u32 {
        self.components.iter().map(|one| one.min).sum()
    }
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A site was polled.
    Polled {
        /// Which.
        cluster: ClusterId,
        /// Processors that work.
        size: u32,
        /// Those in use by others than this manager's jobs.
        others: u32,
        /// Processors that it would have if all worked: what needs more never fits.
        whole: u32,
    },
    /// A site cannot be asked.
    Unreachable {
        /// Which.
        cluster: ClusterId,
        /// Why.
        reason: String,
    },
    /// Copies of a file are there, and nowhere else.
    Replicas {
        /// Its name.
        file: String,
        /// Its length.
        bytes: u64,
        /// Where.
        clusters: BTreeSet<ClusterId>,
        /// What differs between them, if they are not of one file: then no job is placed that needs it.
        differs: Option<String>,
    },
    /// A link was measured.
    Link {
        /// From here.
        from: ClusterId,
        /// To there.
        to: ClusterId,
        /// Bytes per second.
        rate: f64,
    },
    /// A job is submitted.
    Submit {
        /// Its number, never used before.
        job: JobId,
        /// What it needs.
        need: Box<Need>,
    },
    /// The files of [`Action::Move`] are where they are needed.
    Moved {
        /// Whose.
        job: JobId,
    },
    /// They will not be, for this reason: the job waits again, which is a try.
    MoveFailed {
        /// Whose.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A job runs on what it has got of [`Action::Claim`]; all else of it is free.
    Claimed {
        /// Which.
        job: JobId,
        /// Processors by cluster.
        got: BTreeMap<ClusterId, u32>,
    },
    /// A job of a former manager runs on these processors.
    Resumed {
        /// Which.
        job: JobId,
        /// What it needs.
        need: Box<Need>,
        /// Where it was placed.
        placed: Placed,
        /// Since when, in microseconds of the Unix epoch, if anybody knows.
        since: Option<Time>,
        /// Processors by cluster.
        sizes: Box<BTreeMap<ClusterId, u32>>,
    },
    /// A job could not be started; all that was claimed is free.
    ClaimFailed {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A job takes so many of what it was offered ([`Action::Offer`]), or will release so many ([`Action::Shrink`]).
    Answer {
        /// Which.
        job: JobId,
        /// To which question.
        change: u64,
        /// How many; absent: it could not be asked, or did not answer.
        count: Option<u32>,
    },
    /// So many more of [`Action::Hold`] are held.
    Held {
        /// Whose.
        job: JobId,
        /// For which change.
        change: u64,
        /// How many more.
        count: u32,
    },
    /// So many of [`Action::Hold`] will not be had, and are free.
    NotHeld {
        /// Whose.
        job: JobId,
        /// For which change.
        change: u64,
        /// How many.
        count: u32,
        /// Why.
        reason: String,
    },
    /// A job computes on so many of [`Action::Recruit`].
    Grown {
        /// Which.
        job: JobId,
        /// By which change.
        change: u64,
        /// How many.
        count: u32,
    },
    /// Processors that a job computed on are free: it has shrunk, or they are lost to it.
    Freed {
        /// Which.
        job: JobId,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
        /// It let them go itself, in order: what it has no use for it is not offered again.
        let_go: bool,
    },
    /// So many of [`Action::Force`] cannot be taken: the job cannot run without them.
    NotForced {
        /// Which.
        job: JobId,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
    },
    /// A job's root runs in this cluster now: the processor that it runs on cannot be released.
    Root {
        /// Which.
        job: JobId,
        /// Where; absent: another is being sought.
        cluster: Option<ClusterId>,
    },
    /// Processors of [`Action::Unhold`] are free.
    Unheld {
        /// Whose they were.
        job: JobId,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
    },
    /// A job has measured its (weighted) efficiency.
    Efficiency {
        /// Which.
        job: JobId,
        /// From 0 to 1.
        efficiency: f64,
        /// On how many processors.
        processors: u32,
    },
    /// A job that runs wants more: so many from now on, whatever it wanted before. Of what it was given meanwhile this is said
    /// before [`Event::Grown`], else it would be given that once more.
    Want {
        /// Which.
        job: JobId,
        /// What.
        want: Want,
    },
    /// A job may have so many processors at most, whatever it could use: where it has more it is made to shrink, but not below what
    /// it needs.
    Limit {
        /// Which.
        job: JobId,
        /// How many; absent: as many as it can use.
        most: Option<u32>,
    },
    /// A job has ended; its processors become free one by one ([`Event::Freed`]).
    Ended {
        /// Which.
        job: JobId,
    },
    /// A job that waits is not wanted any more.
    Withdraw {
        /// Which.
        job: JobId,
    },
    /// [`Manager::due`](super::Manager::due) has come.
    Tick,
}

/// Growth that a job asks for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// How many more in all; none withdraws what was asked for.
    pub count: u32,
    /// It cannot go on without them: others are made to shrink, and it is told after this time what it cannot have. Absent: it gets
    /// them when they are free.
    pub within: Option<Duration>,
    /// Only there; empty: where it may grow.
    pub clusters: BTreeSet<ClusterId>,
    /// Not there: nothing that is there, as far as that is known, is as it must be.
    pub but: BTreeSet<ClusterId>,
}

/// What became of a reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Which.
    pub id: ReservationId,
    /// Its name.
    pub name: String,
    /// What it cost.
    pub cost: f64,
    /// What is to be paid besides for what was not used.
    pub penalty: f64,
    /// Processor-seconds on which its jobs ran.
    pub used_s: f64,
    /// Processor-seconds that it had.
    pub had_s: f64,
    /// Why it is no more.
    pub why: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Bring a job's files there; answered by [`Event::Moved`] or [`Event::MoveFailed`].
    Move {
        /// Whose.
        job: JobId,
        /// What, from where and to where.
        transfers: Vec<Transfer>,
    },
    /// Start a job there; answered by [`Event::Claimed`] or [`Event::ClaimFailed`]. Its files may still be on their way.
    Claim {
        /// Which.
        job: JobId,
        /// Where, and why.
        placed: Placed,
    },
    /// A job never starts.
    Fail {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// Ask a job how many of so many more processors it takes; answered by [`Event::Answer`].
    Offer {
        /// Which.
        job: JobId,
        /// Names the question.
        change: u64,
        /// Where.
        cluster: ClusterId,
        /// How many at most.
        count: u32,
        /// How long its answer is waited for.
        within: Duration,
        /// How it came about.
        why: String,
    },
    /// Hold processors for a job, which computes meanwhile; answered by [`Event::Held`] and [`Event::NotHeld`].
    Hold {
        /// For which.
        job: JobId,
        /// For which change.
        change: u64,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
    },
    /// Give a job the processors that are held for it; answered by [`Event::Grown`].
    Recruit {
        /// Which.
        job: JobId,
        /// Of which change.
        change: u64,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
    },
    /// Give back what is held, or was to be, for a job; answered by [`Event::Unheld`].
    Unhold {
        /// For which.
        job: JobId,
        /// For which change.
        change: u64,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
        /// Why.
        reason: String,
    },
    /// Ask a job to release processors; answered by [`Event::Answer`], and by [`Event::Freed`] when they are free.
    Shrink {
        /// Which.
        job: JobId,
        /// Names the question.
        change: u64,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
        /// It must.
        mandatory: bool,
        /// How long its answer is waited for.
        answer_within: Duration,
        /// How long it has in all.
        within: Duration,
        /// For what.
        why: String,
    },
    /// Take processors from a job that has not released them in time; answered by [`Event::Freed`].
    Force {
        /// Which.
        job: JobId,
        /// Where.
        cluster: ClusterId,
        /// How many.
        count: u32,
        /// Why.
        reason: String,
    },
    /// End a job that runs: its time is over.
    End {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A reservation is no more; this is its bill. It is to be forgotten on disk.
    Unreserved(Box<Bill>),
    /// Tell a job that it does not get what it cannot do without.
    Refuse {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// Note in the log that somebody says what cannot be.
    Odd {
        /// Who said what, and what was done with it.
        what: String,
    },
}
