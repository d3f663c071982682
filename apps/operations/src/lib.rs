//! The operations behind the `springtide` command and behind `springtide::Grid`, and the parts
//! that they share.
//!
//! They return what they found; only long ones report their progress themselves. The feature
//! `command` adds those that only the command has, with their options.
// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod agree;
#[cfg(feature = "command")]
pub mod aliases;
pub mod attach;
#[cfg(feature = "command")]
pub mod backup;
pub mod certificate;
#[cfg(all(feature = "command", target_os = "linux"))]
pub mod compose;
pub mod desk;
#[cfg(all(feature = "command", target_os = "linux"))]
pub mod doctor;
#[cfg(feature = "command")]
pub mod drain;
#[cfg(feature = "command")]
mod film;
pub mod grid;
pub mod grid_files;
#[cfg(feature = "command")]
mod gridlog;
#[cfg(feature = "command")]
pub mod inputs;
#[cfg(feature = "command")]
pub mod jobs;
#[cfg(feature = "command")]
pub mod join;
#[cfg(feature = "command")]
pub mod life;
#[cfg(all(feature = "command", target_os = "linux"))]
pub mod live;
pub mod locate;
#[cfg(feature = "command")]
pub mod names;
#[cfg(feature = "command")]
pub mod needs;
#[cfg(feature = "command")]
pub mod netcheck;
pub mod netconf;
#[cfg(all(feature = "command", target_os = "linux"))]
pub mod network;
pub mod node;
pub mod node_state;
#[cfg(feature = "command")]
pub mod nodes;
mod notify;
#[cfg(feature = "command")]
pub mod offers;
#[cfg(feature = "command")]
pub mod options;
pub mod process;
#[cfg(feature = "command")]
pub mod program;
pub mod programs;
pub mod reach;
#[cfg(feature = "command")]
pub mod run;
#[cfg(feature = "command")]
pub mod runner;
#[cfg(feature = "command")]
pub mod runner_job;
pub mod scratch;
pub mod shape;
pub mod signals;
#[cfg(feature = "command")]
pub mod site;
pub mod site_files;
#[cfg(feature = "command")]
pub mod slots;
#[cfg(feature = "command")]
mod solo;
pub mod standby;
#[cfg(feature = "command")]
pub mod tokens;
#[cfg(feature = "command")]
pub mod unit;
#[cfg(feature = "command")]
pub mod up;
#[cfg(feature = "command")]
pub mod watch;
