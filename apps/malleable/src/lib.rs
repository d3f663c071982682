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

pub use ft::Ft;
pub use nbody::Nbody;

/// A job's checksum over numbers' bits.
fn checksum(numbers: impl IntoIterator<Item = f64>) -> u64 {
    let bytes = numbers.into_iter().flat_map(|number| number.to_bits().to_le_bytes());
    springtide_runtime::work::checksum(bytes)
}
