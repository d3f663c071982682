//! The operations behind the commands, and the parts that they share.
//!
//! They return what they found; only long ones report their progress themselves. Independent of the
//! command line.

pub mod agree;
pub mod aliases;
pub mod attach;
pub mod backup;
#[cfg(target_os = "linux")]
pub mod compose;
pub mod desk;
#[cfg(target_os = "linux")]
pub mod doctor;
pub mod drain;
mod film;
pub mod grid;
pub mod grid_files;
mod gridlog;
pub mod inputs;
pub mod jobs;
pub mod join;
pub mod life;
#[cfg(target_os = "linux")]
pub mod live;
pub mod locate;
pub mod names;
pub mod needs;
pub mod netcheck;
pub mod netconf;
#[cfg(target_os = "linux")]
pub mod network;
pub mod node;
pub mod node_state;
pub mod nodes;
mod notify;
pub mod offers;
pub mod process;
pub mod programs;
pub mod reach;
pub mod run;
pub mod runner;
pub mod scratch;
pub mod signals;
pub mod site;
pub mod site_files;
pub mod slots;
mod solo;
pub mod tokens;
pub mod unit;
pub mod up;
pub mod watch;
