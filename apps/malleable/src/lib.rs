//! Two SPMD jobs whose number of processes changes while they run, after the applications of the paper on malleable scheduling:
//!
//! - [`ft`]: a Fourier transform, as the NAS benchmark FT: powers of two only, equal processors assumed, and what is left over
//!   is given back.
//! - [`nbody`]: bodies under gravity, any number of processes, with shares by how fast each is (the paper's GADGET 2).
//!
//! Both give the same bits on every number of processes, and whatever resizing there was: what is summed is summed in an order
//! of its own. The jobs know the runtime alone; nothing here may know of nodes, clusters or the command.

pub mod ft;
mod math;
pub mod nbody;
mod slabs;

use std::fmt::Debug;
use std::ops::RangeInclusive;

use springtide_runtime::work::InputError;

pub use ft::Ft;
pub use nbody::Nbody;

/// Refuses an option's value outside of `range`, saying `why` it ends there.
fn check<T: PartialOrd + Debug>(
    option: &str,
    value: T,
    range: RangeInclusive<T>,
    why: &str,
) -> Result<(), InputError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    Err(InputError::new(format!(
        "{option} {value:?}: give a value from {low:?} to {high:?} ({why})"
    )))
}

/// FNV-1a over numbers' bits, for a job's checksum.
fn checksum(numbers: impl IntoIterator<Item = f64>) -> u64 {
    let bytes = numbers.into_iter().flat_map(|number| number.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
