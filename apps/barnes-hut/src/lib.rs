//! Barnes-Hut N-body simulation: the flagship divide-and-conquer job.
//!
//! It computes the gravity of many bodies with an octree, whose far cells stand for the bodies in
//! them (J. Barnes and P. Hut, Nature 324, 446, 1986). Positions are a shared object that each node
//! receives once a step, as a lossless [`delta`] of the former ones. Each node builds the tree from
//! it. Tasks are ranges of groups of bodies; the job's root integrates. The forces of a group
//! depend on the shared objects alone. So the result has the same bits, however ranges are split,
//! stolen or repeated.
//!
//! With [`domains`] the bodies are distributed instead, and each process moves its own.
//!
//! The crate depends on the runtime's task interface (in [`job`] and [`domains`]), and on neither
//! nodes and networks nor the command line.
//!
//! The numerics can be used without a grid. [`generate`] or [`read`] make [`bodies::Bodies`], and
//! [`simulate::Simulation`] moves them. It asks for forces, which [`forces::all`] computes on one
//! thread.

pub mod bodies;
mod bounds;
pub mod calibrate;
pub mod check;
pub mod delta;
pub mod domains;
mod error;
mod exact;
pub mod forces;
pub mod gadget;
pub mod generate;
pub mod history;
pub mod job;
mod kernel;
pub mod loops;
pub mod options;
mod output;
mod partial;
pub mod picture;
pub mod read;
pub mod rungs;
mod series;
mod setup;
pub mod shared;
pub mod simulate;
mod smooth;
pub mod speed;
pub mod tree;
pub mod write;

pub use options::BarnesHut;
