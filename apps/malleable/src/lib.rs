//! Two malleable SPMD jobs, after the applications of the paper on malleable scheduling.
//!
//! - [`ft`]: a Fourier transform like the NAS benchmark FT. It uses powers of two only, assumes
//!   equal processors, and releases the rest.
//! - [`nbody`]: bodies under gravity on any number of processes, with shares by measured speed (the
//!   paper's GADGET 2).
//!
//! Both give the same bits on any number of processes and with any resizing, for sums have a fixed
//! order. The jobs depend on the runtime only, and know neither nodes, clusters nor the command.

pub mod ft;
mod math;
pub mod nbody;
mod slabs;

pub use ft::Ft;
pub use nbody::Nbody;

/// A job's checksum over the bits of numbers.
fn checksum(numbers: impl IntoIterator<Item = f64>) -> u64 {
    let bytes = numbers.into_iter().flat_map(|number| number.to_bits().to_le_bytes());
    springtide_runtime::work::checksum(bytes)
}
