//! Asymmetric fences for a store followed by a load: the frequent side pays nothing, the rare side
//! pays for both.
//!
//! Owners of deques execute millions of `push` and `pop` a second, thieves few steals. Both sides
//! must order a store before a load (Dekker's pattern), which usually costs a full fence on each
//! side.
//!
//! Linux's `membarrier(PRIVATE_EXPEDITED)` makes every running thread of the process execute a full
//! barrier. The owner then only has to keep its compiler from reordering. If the owner's store
//! precedes the barrier, the thief's later load sees it. Otherwise the owner's load follows the
//! barrier and sees what the thief stored or read before it. A thread that does not run has passed
//! a barrier when it was switched out.
//!
//! Where the call is missing (other systems, old kernels, seccomp, Miri, loom), both sides use a
//! plain sequentially consistent fence. The choice is made once per process, before any deque
//! exists.

use super::sync::{Ordering, fence};

/// The way in which this process orders stores before loads. Copied into every deque, so that the
/// hot path reads no static.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fences {
    asymmetric: bool,
}

impl Fences {
    /// The process's choice. The first call registers with the kernel.
    pub(crate) fn of_process() -> Self {
        #[cfg(all(target_os = "linux", not(miri), not(feature = "loom")))]
        {
            static ASYMMETRIC: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
            Self { asymmetric: *ASYMMETRIC.get_or_init(membarrier::register) }
        }
        #[cfg(not(all(target_os = "linux", not(miri), not(feature = "loom"))))]
        Self::symmetric()
    }

    /// Plain fences on both sides.
    #[cfg(any(test, miri, feature = "loom", not(target_os = "linux")))]
    pub(crate) fn symmetric() -> Self {
        Self { asymmetric: false }
    }

    /// The fence of the frequent side.
    #[inline(always)]
    pub(crate) fn light(self) {
        #[cfg(not(feature = "loom"))]
        if self.asymmetric {
            super::sync::compiler_fence(Ordering::SeqCst);
            return;
        }
        full();
    }

    /// The fence of the rare side.
    pub(crate) fn heavy(self) {
        #[cfg(all(target_os = "linux", not(miri), not(feature = "loom")))]
        if self.asymmetric {
            membarrier::barrier();
            return;
        }
        fence(Ordering::SeqCst);
    }
}

/// A full fence in a separate function: next to its cost the call does not matter.
#[cold]
#[inline(never)]
fn full() {
    fence(Ordering::SeqCst);
}

#[cfg(all(target_os = "linux", not(miri), not(feature = "loom")))]
mod membarrier {
    const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    fn call(command: libc::c_int) -> libc::c_long {
        // SAFETY: membarrier takes three integers and accesses no memory of this process; it
        // answers an unknown command with an error value.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    /// Registers this process. Returns whether the barrier may be used.
    pub(super) fn register() -> bool {
        call(CMD_REGISTER_PRIVATE_EXPEDITED) == 0 && call(CMD_PRIVATE_EXPEDITED) == 0
    }

    /// Executes a full barrier on every running thread of the process.
    pub(super) fn barrier() {
        let failed = call(CMD_PRIVATE_EXPEDITED) != 0;
        // After a successful registration the kernel documents no error for this command. Without
        // the barrier a task could run twice, so panic if that is ever wrong.
        assert!(!failed, "membarrier failed after it was registered");
    }
}
