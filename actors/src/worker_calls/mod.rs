//! Calls to workers that several roles make: assignments, views and indirect probes.

mod assign;
mod probe;
mod views;

pub(crate) use assign::{assign_worker, send_assign};
pub(crate) use probe::probe_indirectly;
pub(crate) use views::{small_change, send_view, workers_by_cluster};
