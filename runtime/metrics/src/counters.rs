//! What is counted on a node and shown in a run's report.
//!
//! Plain numbers since the node joined the job: they only grow, so that a report that comes late or twice does no harm.

use serde::{Deserialize, Serialize};

use super::is_default;

/// Addition and difference, field by field: saturating, for counters reach neither end in honest use.
trait Countable {
    fn add(&mut self, other: &Self);
    fn since(&self, earlier: &Self) -> Self;
    /// Gives each field a number of its own.
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

/// A sum with fractions. Never negative, and always finite.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Amount(f64);

impl Amount {
    /// A sum so far; what is negative or no number counts as nothing, and what has no end as the largest number.
    pub fn new(sum: f64) -> Self {
        Self(sum.clamp(0.0, f64::MAX).max(0.0) + 0.0) // never -0
    }

    /// The number.
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
    /// Everything counted.
    Counters {
        /// Tasks.
        tasks: TaskCounts,
        /// Steals, by the thief.
        steals: StealScopes,
        /// Stream payload sent.
        bytes: ScopedBytes,
        /// Results of stolen tasks.
        results: ResultCounts,
        /// What was computed, for whoever wants to know how the job would do elsewhere.
        work: WorkCounts,
        /// Links refused: certificate, protocol, grid or registry did not fit.
        links_refused: u64,
        /// Frames refused by the decode gate.
        frames_refused: u64,
        /// Processor time of the node's process, in microseconds; 0 where it is not known.
        cpu_us: u64,
    }

    /// Counts of tasks.
    TaskCounts {
        /// Children made by `join`, `join_all` and `spawn`.
        spawned: u64,
        /// Tasks run to their end here.
        executed: u64,
        /// Of those executed, stolen from another thread or node of the cluster.
        stolen_local: u64,
        /// Of those executed, stolen from another cluster.
        stolen_wide: u64,
        /// Leases taken back: the send failed, the thief left or died.
        reclaimed: u64,
        /// Leases whose task came back unfinished.
        returned: u64,
        /// Tasks whose result was no longer wanted.
        abandoned: u64,
        /// Results of lost or returned work, finished or still being computed, used in place of running a task again.
        reused: u64,
        /// Outputs of long tasks kept until their parents ended, for the case that the node had to leave.
        kept: u64,
        /// Results known for a task's path that were another task's: the task was run.
        reuse_misses: u64,
    }

    /// Steals by scope.
    StealScopes {
        /// Inside the cluster, between nodes.
        local: StealCounts,
        /// Between clusters.
        wide: StealCounts,
    }

    /// Counts of steals.
    StealCounts {
        /// Requests sent.
        requests: u64,
        /// Answered with a task.
        hits: u64,
        /// Answered with none.
        empty: u64,
        /// Given up waiting for. A task in a late answer is a hit nevertheless.
        timeouts: u64,
    }

    /// Bytes by scope.
    ScopedBytes {
        /// Inside the cluster.
        local: u64,
        /// Between clusters.
        wide: u64,
    }

    /// Work, as the job declares it.
    WorkCounts {
        /// Tasks that ended and had declared a cost.
        tasks: u64,
        /// Their costs.
        units: Amount,
        /// The squares of their costs: how much they differ. (Its name is short on the wire, where every byte of a report counts.)
        #[serde(rename = "sq")]
        squares: Amount,
        /// Microseconds that the job's root ran its own code, between its children.
        root_us: u64,
    }

    /// Counts of results.
    ResultCounts {
        /// Bytes of results received.
        bytes: u64,
        /// Results dropped because another had come first.
        duplicates: u64,
        /// Results refused: malformed, or of another epoch.
        refused: u64,
    }
}

impl Counters {
    /// Adds another node's counters. Saturates at 2^64-1.
    pub fn merge(&mut self, other: &Counters) {
        self.add(other);
    }

    /// What was counted since an `earlier` state of the same counters; a counter that is smaller than before counts as zero.
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
        // What is zero is not written: a field that was left out of the sum would be missing.
        let of =
            |counters: &Counters| serde_json::to_string(counters).unwrap().matches(':').count();
        assert!(of(&sum) == of(&a), "a field was left out of the sum");
        assert_eq!(serde_json::to_string(&Counters::default()).unwrap(), "{}");
    }

    #[test]
    fn what_is_no_number_adds_nothing() {
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
