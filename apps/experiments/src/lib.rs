//! Experiments: simulations that give the tables and figures of papers, forecasts and scaling; and
//! the table of the live runs that are compared with them.
//!
//! Each module has the options of its experiment and one function that runs it and prints the
//! result. They use the simulator, the policies and the solver, and no live grid.
// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod atr;
pub mod faults;
pub mod live_report;
pub mod paper;
pub mod provisioning;
pub mod scale;
pub mod scaling;
pub mod scenario;
pub mod whatif;
pub mod workload;
