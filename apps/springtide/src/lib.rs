//! The `springtide` command as a library: a program with its own jobs needs three lines of `main`.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     let program = springtide::App::new("my-program", env!("CARGO_PKG_VERSION"));
//!     program.job::<springtide_classics::Fib>().main()
//! }
//! ```
//!
//! The program then has `run`, `up`, `dev`, `node run`, `config` and so on. Its nodes execute the
//! same program, so that tasks need not be sent as code. `ARCHITECTURE.md` describes the modules.
// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod agree;
mod app;
mod args;
mod atr;
mod dashboard;
mod dates;
mod desk;
#[cfg(target_os = "linux")]
mod doctor;
mod drain;
mod embed;
mod exit;
mod files;
mod film;
mod grid;
mod gridlog;
mod inputs;
mod jobs;
mod join;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod live_report;
mod netcheck;
mod netconf;
mod node;
mod nodes;
mod notify;
mod outdir;
mod provisioning;
mod report;
mod run;
mod runlog;
mod scaling;
mod scratch;
mod signals;
mod sim;
mod site;
mod slots;
mod solo;
mod talk;
mod token;
mod top;
mod trace;
mod up;
#[cfg(target_os = "linux")]
mod wan;
mod whatif;
mod why;
mod workflow;
mod workload;
mod wrap;

pub use app::App;
pub use embed::Grid;
pub use exit::{Exit, Failed};
