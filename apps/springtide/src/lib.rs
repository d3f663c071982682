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

mod app;
mod command_job;
mod commands;
mod embed;
mod operations;
mod options;
mod output;
mod program;
mod runner_job;
mod workflow;

pub use app::App;
pub use embed::Grid;
pub use springtide_cli::exit::{Exit, Failed};
