//! The counters of a node, as shown in a run's report.
//!
//! Plain totals since the node joined the job. They only grow, so late or duplicate reports do no
//! harm.

use serde::{Deserialize, Serialize};

use super::is_default;

/// Addition and difference by field. They saturate, for real counters reach neither bound.
trait Countable {
    fn add(&mut self, other: &Self);
    fn since(&self, earlier: &Self) -> Self;
    /// Sets each field to a distinct number, for tests.
    #[cfg(test)]
    fn fill(&mut self, next: &mut dyn FnMut() -> u64);
}

impl Countable for u64 {
    fn add(&mut self, other: &u64) {
        *self = self.saturating_add(*other);
    }

    fn since(&self, earlier: &u64) -> u64 {
        self.saturating_sub(*earlier)
    }

    #[cfg(test)]
    fn fill(&mut self, next: &mut dyn FnMut() -> u64) {
        *self = next();
    }
}

/// A sum with a fractional part, never negative and always finite.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Amount(f64);

impl Amount {
    /// Converts a sum. Negative values and NaN count as zero, and infinity as the largest number.
    pub fn new(sum: f64) -> Self {
        Self(sum.clamp(0.0, f64::MAX).max(0.0) + 0.0) // never -0
    }

    /// The number as a float.
    pub fn get(self) -> f64 {
        Self::new(self.0).0
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.get().to_bits() == other.get().to_bits()
    }
}

impl Eq for Amount {}

impl Countable for Amount {
    fn add(&mut self, other: &Self) {
        *self = Self::new(self.get() + other.get());
    }

    fn since(&self, earlier: &Self) -> Self {
        Self::new(self.get() - earlier.get())
    }

    #[cfg(test)]
    fn fill(&mut self, next: &mut dyn FnMut() -> u64) {
        *self = Self::new(next() as f64);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(default)]
            pub struct $name {
                $(
                    $(#[$field_doc])*
                    #[serde(skip_serializing_if = "is_default")]
                    pub $field: $kind,
                )*
            }

            impl Countable for $name {
                fn add(&mut self, other: &Self) {
                    $(self.$field.add(&other.$field);)*
                }

                fn since(&self, earlier: &Self) -> Self {
                    Self { $($field: self.$field.since(&earlier.$field),)* }
                }

                #[cfg(test)]
                fn fill(&mut self, next: &mut dyn FnMut() -> u64) {
                    $(self.$field.fill(next);)*
                }
            }
        )*
    };
}

counters! {
    /// All counters of a node.
    Counters {
        /// Counts of tasks by event.
        tasks: TaskCounts,
        /// Steals, counted by the thief.
        steals: StealScopes,
        /// Stream payload sent, in bytes.
        bytes: ScopedBytes,
        /// Results of stolen tasks.
        results: ResultCounts,
        /// The work done, from which the job's time elsewhere can be predicted.
        work: WorkCounts,
        /// Links refused for a wrong certificate, protocol, grid or registry.
        links_refused: u64,
        /// Frames refused by the decode gate.
        frames_refused: u64,
        /// Processor time of the node's process, in microseconds; 0 where unknown.
        cpu_us: u64,
    }

    /// Counts of tasks.
    TaskCounts {
        /// Children created by `join`, `join_all` and `spawn`.
        spawned: u64,
        /// Tasks completed on this node.
        executed: u64,
        /// Of the executed tasks, those stolen from another thread or node of the cluster.
        stolen_local: u64,
        /// Of the executed tasks, those stolen from another cluster.
        stolen_wide: u64,
        /// Leases taken back because sending failed, or the thief left or died.
        reclaimed: u64,
        /// Leases whose task was returned unfinished.
        returned: u64,
        /// Tasks whose result was not needed any more.
        abandoned: u64,
        /// Results of lost or returned tasks, finished or under computation, that replaced a
        /// repetition.
        reused: u64,
        /// Outputs of long tasks kept until their parents ended, in case the node had to leave.
        kept: u64,
        /// Results stored for a task's path that belonged to another task, so the task was run.
        reuse_misses: u64,
    }

    /// Steals by scope.
    StealScopes {
        /// Steals between nodes of a cluster.
        local: StealCounts,
        /// Steals between clusters of the grid.
        wide: StealCounts,
    }

    /// Counts of steals.
    StealCounts {
        /// Steal requests that were sent.
        requests: u64,
        /// Requests answered with a task.
        hits: u64,
        /// Requests answered without a task.
        empty: u64,
        /// Requests that timed out. A task in a late answer still counts as a hit.
        timeouts: u64,
    }

    /// Bytes by scope.
    ScopedBytes {
        /// Bytes within the cluster.
        local: u64,
        /// Bytes between different clusters.
        wide: u64,
    }

    /// Work, as the job declares it.
    WorkCounts {
        /// Completed tasks that had declared a cost.
        tasks: u64,
        /// The sum of their costs.
        units: Amount,
        /// The sum of the squares of their costs, for their variance. The name on the wire is
        /// short, for every byte of a report counts.
        #[serde(rename = "sq")]
        squares: Amount,
        /// Microseconds of the root's own code, between its children.
        root_us: u64,
    }

    /// Counts of results.
    ResultCounts {
        /// Bytes of results received.
        bytes: u64,
        /// Results dropped as duplicates.
        duplicates: u64,
        /// Results refused as malformed, or for another epoch.
        refused: u64,
    }
}

impl Counters {
    /// Adds another node's counters. Saturates at 2^64-1.
    pub fn merge(&mut self, other: &Counters) {
        self.add(other);
    }

    /// The counts since an `earlier` state of the same counters. A smaller value than before counts
    /// as zero.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Countable::since(self, earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(base: u64) -> Counters {
        let mut n = base;
        let mut next = || {
            n += 1;
            n
        };
        let mut counters = Counters::default();
        counters.fill(&mut next);
        counters
    }

    #[test]
    fn every_field_takes_part_in_sum_and_difference() {
        let (a, b) = (filled(100), filled(5000));
        let mut sum = a;
        sum.merge(&b);
        assert_eq!(sum.since(&a), b);
        assert_eq!(sum.since(&b), a);
        assert_ne!(a, Counters::default());
        // Zeros are omitted, so a field missing in the sum would be missing in the text.
        let of =
            |counters: &Counters| serde_json::to_string(counters).unwrap().matches(':').count();
        assert!(of(&sum) == of(&a), "a field was left out of the sum");
        assert_eq!(serde_json::to_string(&Counters::default()).unwrap(), "{}");
    }

    #[test]
    fn nan_adds_nothing() {
        let mut sum = Amount::new(2.5);
        for odd in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            sum.add(&Amount::new(odd));
        }
        assert_eq!(sum, Amount::new(2.5));
        assert_eq!(sum.since(&Amount::new(3.0)), Amount::default());
        let odd: Amount = serde_json::from_str("-7.5").unwrap();
        assert_eq!(odd.get(), 0.0);
    }

    #[test]
    fn a_counter_of_a_newer_version_is_ignored_and_a_missing_one_is_zero() {
        let text = r#"{"tasks":{"spawned":3,"teleported":9},"unheard":{"of":1}}"#;
        let counters: Counters = serde_json::from_str(text).unwrap();
        assert_eq!(counters.tasks.spawned, 3);
        assert_eq!(counters.tasks.executed, 0);
    }
}
