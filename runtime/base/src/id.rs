//! Identifiers of nodes, clusters, jobs, tasks and epochs.
//!
//! The module knows nothing of the network, of actors or of roles. Every identifier is small and
//! serialises as its plain value. All are ordered, so that iteration over them sends messages in a
//! fixed order.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Name);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0.text
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(Name::new(name.into()))
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(Name::new(name.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// A text with its beginning as a number, since names are compared at every step of the maps that
/// have them as keys.
#[derive(Clone)]
struct Name {
    /// The first bytes of the text, the first one highest, padded with zeros.
    beginning: u128,
    text: Arc<str>,
}

impl Name {
    fn new(text: Arc<str>) -> Self {
        let mut bytes = [0; size_of::<u128>()];
        let len = text.len().min(bytes.len());
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { beginning: u128::from_be_bytes(bytes), text }
    }
}

impl Ord for Name {
    /// Compares as the texts do.
    fn cmp(&self, other: &Self) -> Ordering {
        let whole = size_of::<u128>();
        let by_beginning = self.beginning.cmp(&other.beginning);
        by_beginning.then_with(|| match (self.text.len(), other.text.len()) {
            // The texts differ at most in the number of final zero bytes.
            (mine, others) if mine <= whole && others <= whole => mine.cmp(&others),
            _ => self.text.cmp(&other.text),
        })
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arc::deserialize(deserializer).map(Self::new)
    }
}

name_id! {
    /// The name of a node, for example `ams-3`. Unique in its grid among living nodes; its
    /// certificate contains it. Its [`Incarnation`] distinguishes successive processes.
    NodeId
}

name_id! {
    /// The name of a cluster: a set of nodes that share a local network and a site.
    ClusterId
}

/// The number of one process of a node; later processes have greater ones.
///
/// It consists of a counter and a tie-break. The counter is stored next to the node's certificate
/// and does not depend on a clock: see `springtide_actors::incarnation`. The tie-break is random.
/// It distinguishes two processes that were started from copies of one directory, so that one of
/// them is refused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The number of bits of the tie-break.
    const TIE_BITS: u32 = 16;
    /// The counter of a node without a past. It is above the incarnations of earlier releases,
    /// which are microseconds since 1970. It is below 2^53, so that JavaScript reads it exactly.
    const FIRST: u64 = 1 << 36;

    /// The incarnation of a node without a past.
    pub fn first(tie_break: u16) -> Self {
        Self::new(Self::FIRST, tie_break)
    }

    /// The next incarnation: the smallest greater counter, with this tie-break.
    pub fn next(self, tie_break: u16) -> Self {
        Self::new(((self.0 >> Self::TIE_BITS) + 1).max(Self::FIRST), tie_break)
    }

    fn new(counter: u64, tie_break: u16) -> Self {
        Self(counter.saturating_mul(1 << Self::TIE_BITS) | u64::from(tie_break))
    }
}

/// The number of a job, unique in its grid; the scheduler assigns it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job-{}", self.0)
    }
}

/// The number of an authority over a job. Only the scheduler issues it, and every message about
/// ownership contains it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u32);

/// A node as the network addresses it: its name, incarnation and cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// The name of the node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The cluster of the node.
    pub cluster: ClusterId,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.node)
    }
}

/// The identity of a task: the child indices from the job's root (the empty path) down to it.
///
/// A recomputed parent that follows the contract (same children, same order) gives its children the
/// same paths. Source: the *stamp* of Satin's spawn records.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskPath(pub Vec<u32>);

impl TaskPath {
    /// The path of the job's root.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// Whether this task is `other` or a descendant of it.
    pub fn is_at_or_below(&self, other: &TaskPath) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The path of the child with this index.
    pub fn child(&self, index: u32) -> TaskPath {
        let mut path = Vec::with_capacity(self.0.len() + 1);
        path.extend_from_slice(&self.0);
        path.push(index);
        TaskPath(path)
    }
}

impl fmt::Display for TaskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        for (i, index) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            write!(f, "{index}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TaskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_texts() {
        let texts = [
            "",
            "\0",
            "a",
            "a\0",
            "a\0b",
            "ab",
            "a-node-of-sixteen",
            "a-node-of-sixtee",
            "a-node-of-sixteen-and-more",
            "a-node-of-sixteen-and-less",
            "a-node-of-sixteem-and-less",
            "é",
        ];
        for a in texts {
            for b in texts {
                let (x, y) = (NodeId::from(a), NodeId::from(b));
                assert_eq!((x.cmp(&y), x == y), (a.cmp(b), a == b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn incarnations_grow_for_any_tie_breaks() {
        let mut known = Incarnation::first(u16::MAX);
        // An incarnation of an earlier release, which is a time.
        assert!(known > Incarnation(4_000_000_000_000_000));
        assert!(Incarnation(4_000_000_000_000_000).next(0) > Incarnation(4_000_000_000_000_000));
        for tie_break in [0, 7, u16::MAX, 1, 0] {
            let next = known.next(tie_break);
            assert!(next > known, "{next:?} {known:?}");
            known = next;
        }
        assert!(known.0 < 1 << 53);
        assert!(Incarnation(u64::MAX).next(0) <= Incarnation(u64::MAX), "it saturates");
    }

    #[test]
    fn descent_is_by_prefix() {
        let task = TaskPath(vec![0, 3, 1]);
        assert!(task.is_at_or_below(&TaskPath::root()));
        assert!(task.is_at_or_below(&TaskPath(vec![0, 3])));
        assert!(task.is_at_or_below(&task));
        assert!(!task.is_at_or_below(&TaskPath(vec![0, 3, 1, 0])));
        assert!(!task.is_at_or_below(&TaskPath(vec![0, 2])));
        assert_eq!(TaskPath(vec![0, 3]).child(1), task);
        assert_eq!(task.to_string(), "/0.3.1");
        assert_eq!(TaskPath::root().to_string(), "/");
    }
}
