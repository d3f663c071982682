//! The parts that the commands and the crates behind them share: failures with exit codes, parsers
//! of options, texts, and files that are written.
//!
//! This crate is independent of all commands.
// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod adaptation;
pub mod config;
pub mod dates;
pub mod exit;
pub mod format;
#[cfg(feature = "terminal")]
pub mod options;
pub mod outdir;
pub mod print;
pub mod run_end;
#[cfg(feature = "terminal")]
pub mod talk;
#[cfg(feature = "terminal")]
pub mod wrap;
