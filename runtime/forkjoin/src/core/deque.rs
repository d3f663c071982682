//! The work-stealing deque of one compute thread, after Chase and Lev (SPAA 2005).
//!
//! The memory orders follow Le, Pop, Cohen and Zappa Nardelli (PPoPP 2013), with asymmetric fences.
//! The deque stores pointers and never dereferences them.
//!
//! # Proof sketch
//!
//! `top` only grows, by compare-and-swap; the thread that moves it from `t` to `t + 1` owns element
//! `t`. Only the owner writes `bottom`.
//!
//! The owner takes element `b` without a compare-and-swap only if it read `top < b` after it stored
//! `bottom = b`, with a fence between. A thief takes element `t` only if it read `top = t` and then
//! `bottom > t`, with a fence between.
//!
//! Suppose both take element `b`. The thief read `bottom > b`, so it did not see the owner's store.
//! By the fences the owner's read of `top` then sees at least the thief's read: `top >= b`. This
//! contradicts `top < b`. When one element is left, both sides need the compare-and-swap, and one
//! wins.
//!
//! Buffers only grow, and a replaced buffer is kept until the deque is dropped. Elements between
//! `top` and `bottom` are copied and never moved within a buffer. So a thief that still reads the
//! old buffer reads the same pointer.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;

use super::fence::Fences;
use super::sync::{AtomicIsize, AtomicPtr, Ordering};

#[cfg(not(feature = "loom"))]
const INITIAL_CAPACITY: usize = 256;
#[cfg(feature = "loom")]
const INITIAL_CAPACITY: usize = 2;

struct Buffer<T> {
    mask: usize,
    elements: Box<[AtomicPtr<T>]>,
}

impl<T> Buffer<T> {
    /// Allocates a buffer, which the deque frees when it is dropped. A pointer and no box: moving a
    /// box would invalidate the pointers that thieves hold.
    fn allocate(capacity: usize) -> NonNull<Self> {
        debug_assert!(capacity.is_power_of_two());
        let elements = (0..capacity).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
        NonNull::from(Box::leak(Box::new(Self { mask: capacity - 1, elements })))
    }

    #[inline(always)]
    fn at(&self, index: isize) -> &AtomicPtr<T> {
        // SAFETY: `mask` is the length minus one and the length a power of two, so the masked index
        // is in bounds.
        unsafe { self.elements.get_unchecked(index as usize & self.mask) }
    }
}

/// The result of an attempt to steal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Steal<T> {
    /// The oldest element; it is now the thief's.
    Taken(NonNull<T>),
    /// The deque was empty.
    Empty,
    /// Another thread took the element first; there may be more.
    Lost,
}

// The two ends are on separate cache lines, two lines apart for the adjacent-line prefetcher.
#[repr(align(128))]
struct Padded<V>(V);

pub(crate) struct Deque<T> {
    top: Padded<AtomicIsize>,
    bottom: Padded<AtomicIsize>,
    buffer: AtomicPtr<Buffer<T>>,
    owner: Padded<OwnerPart<T>>,
    fences: Fences,
}

/// The part that only the owner accesses.
struct OwnerPart<T> {
    /// The current buffer's elements and mask, so that `push` and `pop` do not read `buffer`.
    elements: Cell<*const AtomicPtr<T>>,
    mask: Cell<isize>,
    /// `push` needs no check below this index: the capacity beyond a `top` read earlier. So `push`
    /// does not read the thieves' line.
    limit: Cell<isize>,
    /// Replaced buffers and the current one, freed with the deque.
    buffers: UnsafeCell<Vec<NonNull<Buffer<T>>>>,
}

// SAFETY: only the owner's methods access the cells; they are unsafe and bound to one thread by
// their contract. Everything else is atomic. The elements are pointers that the deque never
// dereferences.
unsafe impl<T> Sync for Deque<T> {}
// SAFETY: as above; no part is tied to the thread that created it.
unsafe impl<T> Send for Deque<T> {}

impl<T> Drop for Deque<T> {
    fn drop(&mut self) {
        for buffer in self.owner.0.buffers.get_mut().drain(..) {
            // SAFETY: `allocate` leaked it from a box, and no thief borrows the deque.
            drop(unsafe { Box::from_raw(buffer.as_ptr()) });
        }
    }
}

impl<T> Deque<T> {
    pub(crate) fn new(fences: Fences) -> Self {
        let first = Buffer::allocate(INITIAL_CAPACITY);
        // SAFETY: the buffer was just allocated.
        let elements = unsafe { first.as_ref() }.elements.as_ptr();
        let owner = OwnerPart {
            elements: Cell::new(elements),
            mask: Cell::new(INITIAL_CAPACITY as isize - 1),
            limit: Cell::new(INITIAL_CAPACITY as isize),
            buffers: UnsafeCell::new(vec![first]),
        };
        Self {
            top: Padded(AtomicIsize::new(0)),
            bottom: Padded(AtomicIsize::new(0)),
            buffer: AtomicPtr::new(first.as_ptr()),
            owner: Padded(owner),
            fences,
        }
    }

    /// Adds the newest element. Returns its place, for [`Deque::pop_at`].
    ///
    /// # Safety
    /// Only the deque's owning thread calls this.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, element: NonNull<T>) -> isize {
        let bottom = self.bottom.0.load(Ordering::Relaxed);
        if bottom >= self.owner.0.limit.get() {
            // SAFETY: the caller is the owner.
            unsafe { self.reserve(bottom) };
        }
        // SAFETY: the caller is the owner.
        unsafe { self.current_at(bottom) }.store(element.as_ptr(), Ordering::Relaxed);
        self.bottom.0.store(bottom + 1, Ordering::Release);
        bottom
    }

    /// An element of the current buffer.
    ///
    /// # Safety
    /// As [`Deque::push`].
    #[inline(always)]
    unsafe fn current_at(&self, index: isize) -> &AtomicPtr<T> {
        let owner = &self.owner.0;
        // SAFETY: the owner keeps `elements` and `mask` those of the current buffer, which lives as
        // long as the deque. The masked index is in bounds as in `Buffer::at`.
        unsafe { &*owner.elements.get().offset(index & owner.mask.get()) }
    }

    /// Makes space for an element at `bottom`: if thieves took none, the buffer grows.
    ///
    /// # Safety
    /// As [`Deque::push`].
    #[cold]
    unsafe fn reserve(&self, bottom: isize) {
        let top = self.top.0.load(Ordering::Acquire);
        // SAFETY: only the owner replaces the buffer, and it is the caller.
        let buffer = unsafe { &*self.buffer.load(Ordering::Relaxed) };
        if bottom - top > buffer.mask as isize {
            let allocated = Buffer::allocate((buffer.mask + 1) * 2);
            // SAFETY: the buffer was just allocated, and is freed only with the deque.
            let larger = unsafe { allocated.as_ref() };
            for index in top..bottom {
                let pointer = buffer.at(index).load(Ordering::Relaxed);
                larger.at(index).store(pointer, Ordering::Relaxed);
            }
            self.owner.0.elements.set(larger.elements.as_ptr());
            self.owner.0.mask.set(larger.mask as isize);
            // SAFETY: only the owner accesses `buffers`.
            unsafe { (*self.owner.0.buffers.get()).push(allocated) };
            self.buffer.store(allocated.as_ptr(), Ordering::Release);
        }
        self.owner.0.limit.set(top + self.owner.0.mask.get() + 1);
    }

    /// Takes the newest element.
    ///
    /// # Safety
    /// Only the deque's owning thread calls this.
    #[inline(always)]
    pub(crate) unsafe fn pop(&self) -> Option<NonNull<T>> {
        let newest = self.bottom.0.load(Ordering::Relaxed) - 1;
        // SAFETY: the caller is the owner, and no element is newer.
        if unsafe { self.pop_at(newest) } {
            // The element stays in the buffer until the owner pushes again.
            // SAFETY: the caller is the owner.
            NonNull::new(unsafe { self.current_at(newest) }.load(Ordering::Relaxed))
        } else {
            None
        }
    }

    /// Takes the newest element, if its place is not below `floor`.
    ///
    /// # Safety
    /// Only the deque's owning thread calls this.
    #[inline(always)]
    pub(crate) unsafe fn pop_from(&self, floor: isize) -> Option<NonNull<T>> {
        if self.bottom() <= floor {
            return None;
        }
        // SAFETY: the caller is the owner.
        unsafe { self.pop() }
    }

    /// The place after the newest element; exact for the owner.
    #[inline(always)]
    pub(crate) fn bottom(&self) -> isize {
        self.bottom.0.load(Ordering::Relaxed)
    }

    /// Takes the element that was pushed to this place. Returns whether it was still there.
    ///
    /// The caller passes the place. Otherwise a chain of joins would be a chain of loads of
    /// `bottom` that each wait for the previous store.
    ///
    /// # Safety
    /// Only the deque's owning thread calls this, after all elements above `place` were taken.
    #[inline(always)]
    pub(crate) unsafe fn pop_at(&self, place: isize) -> bool {
        self.bottom.0.store(place, Ordering::Relaxed);
        self.fences.light();
        let top = self.top.0.load(Ordering::Relaxed);
        top < place || self.pop_last(top, place)
    }

    /// Ends a pop that found at most one element.
    #[inline(never)]
    fn pop_last(&self, top: isize, place: isize) -> bool {
        let won = top == place
            && self
                .top
                .0
                .compare_exchange(top, top + 1, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        // The deque is empty now: `bottom` meets `top`. A thief can have moved `top` no further
        // than the previous `bottom`: `place + 1`, or `top` itself if these elements were stolen
        // long ago.
        self.bottom.0.store(top.max(place + 1), Ordering::Relaxed);
        won
    }

    /// Takes the oldest element; any thread may call this.
    pub(crate) fn steal(&self) -> Steal<T> {
        if self.looks_empty() {
            return Steal::Empty;
        }
        let top = self.top.0.load(Ordering::Acquire);
        self.fences.heavy();
        let bottom = self.bottom.0.load(Ordering::Acquire);
        if top >= bottom {
            return Steal::Empty;
        }
        // SAFETY: buffers are freed only with the deque, and `self` is borrowed.
        let buffer = unsafe { &*self.buffer.load(Ordering::Acquire) };
        let element = buffer.at(top).load(Ordering::Relaxed);
        if self.top.0.compare_exchange(top, top + 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return Steal::Lost;
        }
        NonNull::new(element).map_or(Steal::Empty, Steal::Taken)
    }

    /// The light fence: for the side that runs often.
    #[inline(always)]
    pub(crate) fn light_fence(&self) {
        self.fences.light();
    }

    /// Whether the deque looks empty. Without a fence, so it may be wrong in both directions while
    /// the owner works.
    pub(crate) fn looks_empty(&self) -> bool {
        self.top.0.load(Ordering::Relaxed) >= self.bottom.0.load(Ordering::Relaxed)
    }

    /// The approximate number of elements, without a fence.
    pub(crate) fn approximate_len(&self) -> usize {
        let (top, bottom) =
            (self.top.0.load(Ordering::Relaxed), self.bottom.0.load(Ordering::Relaxed));
        usize::try_from(bottom.wrapping_sub(top)).unwrap_or(0)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn fences() -> [Fences; 2] {
        [Fences::symmetric(), Fences::of_process()]
    }

    #[test]
    fn the_owner_pops_newest_first_and_thieves_take_oldest_first() {
        for fences in fences() {
            let mut values: Vec<u32> = (0..1000).collect();
            let pointers: Vec<_> = values.iter_mut().map(NonNull::from).collect();
            let deque = Deque::new(fences);
            // SAFETY: one thread only.
            unsafe {
                for pointer in &pointers {
                    deque.push(*pointer);
                }
                assert_eq!(deque.pop(), Some(pointers[999]));
                for pointer in &pointers[..500] {
                    assert_eq!(deque.steal(), Steal::Taken(*pointer));
                }
                for pointer in pointers[500..999].iter().rev() {
                    assert_eq!(deque.pop(), Some(*pointer));
                }
                assert_eq!(deque.pop(), None);
                assert_eq!(deque.steal(), Steal::Empty);
            }
        }
    }

    /// `pop_at` and `pop` in turn, with the deque empty in between: each gives the newest element.
    #[test]
    fn pop_and_pop_at_agree_on_the_newest_element() {
        let mut values = [0u32; 4];
        let pointers: Vec<_> = values.iter_mut().map(NonNull::from).collect();
        for fences in fences() {
            let deque = Deque::new(fences);
            // SAFETY: one thread only.
            unsafe {
                let place = deque.push(pointers[0]);
                assert!(deque.pop_at(place), "the last element, by a race that is won");
                let below = deque.push(pointers[1]);
                let place = deque.push(pointers[2]);
                deque.push(pointers[3]);
                assert_eq!(deque.pop(), Some(pointers[3]));
                assert!(deque.pop_at(place));
                assert_eq!(deque.steal(), Steal::Taken(pointers[1]));
                assert!(!deque.pop_at(below));
                let place = deque.push(pointers[0]);
                assert_eq!(place, below + 1, "bottom met top");
                assert!(deque.pop_at(place));
                assert!(!deque.pop_at(below), "stolen long ago");
                assert_eq!(deque.pop(), None);
            }
        }
    }

    /// Every element is taken exactly once while the deque shrinks to nothing and grows again.
    #[test]
    fn each_element_is_taken_once_under_contention() {
        use std::sync::atomic::{AtomicBool, AtomicU32 as Count};
        let elements = if cfg!(miri) { 300 } else { 200_000 };
        for fences in fences() {
            let taken: Vec<Count> = (0..elements).map(|_| Count::new(0)).collect();
            let deque = Deque::<Count>::new(fences);
            let over = AtomicBool::new(false);
            let mark = |pointer: NonNull<Count>| {
                // SAFETY: every element is one of `taken`, which outlives the scope.
                unsafe { pointer.as_ref() }.fetch_add(1, Ordering::Relaxed);
            };
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            if let Steal::Taken(pointer) = deque.steal() {
                                mark(pointer);
                            } else {
                                std::thread::yield_now();
                            }
                        }
                    });
                }
                let mut seed = 7u64;
                let mut next = 0;
                while next < elements {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    for _ in 0..(seed >> 59) {
                        if next < elements {
                            // SAFETY: this thread owns the deque.
                            unsafe { deque.push(NonNull::from(&taken[next])) };
                            next += 1;
                        }
                    }
                    for _ in 0..(seed >> 33) % 32 {
                        // SAFETY: as above.
                        if let Some(pointer) = unsafe { deque.pop() } {
                            mark(pointer);
                        }
                    }
                }
                // SAFETY: as above.
                while let Some(pointer) = unsafe { deque.pop() } {
                    mark(pointer);
                }
                over.store(true, Ordering::Relaxed);
            });
            assert!(taken.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
