//! Barnes-Hut N-body simulation: the flagship divide-and-conquer job.
//!
//! Gravity of many bodies with an octree, whose far cells stand for the bodies in them (J. Barnes and P. Hut, Nature
//! 324, 446, 1986). Positions are a shared object that each node receives once a step (as a lossless [`delta`] of those
//! before, which is shorter) and builds the tree from; tasks are ranges of groups of bodies; the job's root integrates.
//! The forces of a group depend on the shared objects alone, so the result has the same bits however the ranges were
//! split, stolen or run again.
//!
//! With [`domains`] bodies are dealt out instead, and each process moves its own.
//!
//! Knows the runtime's task interface (in [`job`] and [`domains`]) and nothing of nodes, networks or the command line.
//!
//! The numerics, usable without a grid:
//! [`generate`] or [`read`] make [`bodies::Bodies`]; [`simulate::Simulation`] moves them; it asks for forces, and
//! [`forces::all`] gives them on one thread.

pub mod bodies;
mod bounds;
pub mod calibrate;
pub mod check;
pub mod delta;
pub mod domains;
mod exact;
pub mod forces;
pub mod gadget;
pub mod generate;
pub mod history;
pub mod job;
mod kernel;
pub mod options;
mod partial;
pub mod picture;
pub mod read;
pub mod rungs;
mod series;
pub mod shared;
pub mod simulate;
mod smooth;
pub mod speed;
pub mod tree;
pub mod write;

pub use options::BarnesHut;
