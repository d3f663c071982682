//! Tests of the `springtide` program: its output, exit codes, and the absence of leftover processes
//! and files.
//!
//! Each grid has at most twelve nodes of one thread. Waits have generous bounds and are never
//! asserted on.
// Tests may write files directly.
#![allow(clippy::disallowed_methods)]

#[cfg(target_os = "linux")]
mod backups;
#[cfg(target_os = "linux")]
mod book;
mod cli;
mod commands;
mod dashboard;
mod drains;
#[cfg(target_os = "linux")]
mod embed;
mod gridengine;
mod grids;
mod incarnations;
mod inputs;
mod jobs;
#[cfg(target_os = "linux")]
mod joined;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod live;
mod malleable;
#[cfg(target_os = "linux")]
mod netem_scripts;
mod poison;
mod programs;
#[cfg(target_os = "linux")]
mod rotation;
#[cfg(target_os = "linux")]
mod runners;
mod sites;
#[cfg(target_os = "linux")]
mod slurm;
mod solve;
mod spmd;
#[cfg(target_os = "linux")]
mod ssh;
#[cfg(target_os = "linux")]
mod standby;
mod starts;
mod support;
mod users;
#[cfg(target_os = "linux")]
mod wan;
mod workflows;
mod writing;
