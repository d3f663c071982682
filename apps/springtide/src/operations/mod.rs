//! The operations behind the commands, and the parts that they share.
//!
//! They return what they found; only long ones report their progress themselves. Independent of the
//! command line.
// Without the commands, `Grid` uses only a part of some modules.
#![cfg_attr(not(feature = "command"), allow(dead_code))]

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
mod film;
pub mod grid;
pub mod grid_files;
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
pub mod process;
pub mod programs;
pub mod reach;
#[cfg(feature = "command")]
pub mod run;
#[cfg(feature = "command")]
pub mod runner;
pub mod scratch;
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
