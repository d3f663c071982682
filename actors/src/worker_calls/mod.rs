//! Calls to workers that several roles make: assignments, views and indirect probes.

mod assign;
mod probe;
mod views;

pub(crate) use assign::{assign_worker, send_assign};
pub(crate) use probe::probe_indirectly;
pub(crate) use views::{SendingView, ViewSender, send_view, small_change, workers_by_cluster};
