//! Whole grids in virtual time: the live scheduler, sites, coordinators and workers on the in-memory network, under tokio's
//! paused clock, with compute threads whose declared time passes at their node's speed. One seed gives one history.
//!
//! What is live and what is modelled: everything above the network, the processes and the processors is the code that runs
//! on real grids. The network is the link model's ([`springtide_runtime::net::MemoryNet`]); a process is a set of actors on this
//! one thread ([`machines`]); a processor is a number ([`springtide_runtime::work::Pace`]).

pub mod apps;
pub mod faults;
pub mod grid;
pub mod machines;
pub mod paper;
pub mod scenario;
pub mod shipped;

pub use self::grid::{Ended, Grid, GridError, Layout, Place, Run, simulate};
