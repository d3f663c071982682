//! The values that a compute thread has read last, so that a repeated read touches no memory that
//! another thread writes.
//!
//! A count of references that all threads share would move between their caches at every read. So
//! each thread counts the references that it lends itself, in an [`Rc`] of its own.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::Version;

/// The number of values that a thread keeps.
const KEPT_MAX: usize = 16;

/// A shared object's value, lent to the thread that reads it.
///
/// It dereferences to the value. It cannot go to another thread; [`ObjectRef::share`] returns a
/// reference that can.
#[expect(clippy::redundant_allocation, reason = "each thread counts its own references")]
pub struct ObjectRef<V>(Rc<Arc<V>>);

impl<V> ObjectRef<V> {
    /// A reference that any thread may use and drop. Threads that take it often slow each other
    /// down.
    pub fn share(&self) -> Arc<V> {
        Arc::clone(&self.0)
    }
}

impl<V> Deref for ObjectRef<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.0
    }
}

impl<V> Clone for ObjectRef<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V: fmt::Debug> fmt::Debug for ObjectRef<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The source of a kept value within its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    /// A version of a part of a versioned object.
    Version(u32, Version),
    /// A merged object after this number of merges on the node.
    Merges(u64),
}

impl ValueSource {
    /// Whether a value from `other` replaces one from `self`: another version of the same part, or
    /// the merged object after another merge.
    fn is_succeeded_by(self, other: Self) -> bool {
        match (self, other) {
            (Self::Version(part, _), Self::Version(other, _)) => part == other,
            (Self::Merges(_), Self::Merges(_)) => true,
            _ => false,
        }
    }
}

/// A kept value.
struct KeptValue {
    store: u64,
    type_id: TypeId,
    source: ValueSource,
    /// An `Rc<Arc<V>>`. `None` is a merged object without a value.
    value: Option<Rc<dyn Any>>,
}

thread_local! {
    static KEPT: RefCell<Vec<KeptValue>> = const { RefCell::new(Vec::new()) };
}

/// Returns the value of this source, from those that the thread keeps or else from `find`.
///
/// # Errors
/// The error of `find`; then nothing is kept.
#[inline]
pub(super) fn read<V: Send + Sync + 'static, E>(
    store: u64,
    source: ValueSource,
    find: impl FnOnce() -> Result<Option<Arc<V>>, E>,
) -> Result<Option<ObjectRef<V>>, E> {
    let type_id = TypeId::of::<V>();
    let kept = KEPT.with_borrow(|all| {
        all.iter()
            .find(|one| one.store == store && one.type_id == type_id && one.source == source)
            .map(|one| one.value.clone())
    });
    let value = match kept {
        Some(value) => value,
        None => {
            let value = find()?.map(|value| Rc::new(value) as Rc<dyn Any>);
            keep(KeptValue { store, type_id, source, value: value.clone() });
            value
        }
    };
    let of_type = |value: Rc<dyn Any>| value.downcast().expect("values are kept by their type");
    Ok(value.map(|value| ObjectRef(of_type(value))))
}

/// Keeps a value in place of its predecessor, or of the oldest value if there are too many.
fn keep(value: KeptValue) {
    // The replaced value is dropped after the borrow ends: its drop is the user's code, and may
    // read another object.
    let _old = KEPT.with_borrow_mut(|all| {
        let precedes = |one: &KeptValue| {
            one.store == value.store
                && one.type_id == value.type_id
                && one.source.is_succeeded_by(value.source)
        };
        let at = all.iter().position(precedes).or((all.len() >= KEPT_MAX).then_some(0));
        let old = at.map(|at| all.remove(at));
        all.push(value);
        old
    });
}

/// Drops the values that this thread keeps. A thread that sleeps calls it, so that an old version
/// does not stay in memory until the thread's next read.
pub(crate) fn forget_kept() {
    drop(KEPT.take());
}
