//! What crosses crates, in one binary.

mod faults;
mod federated;
mod histories;
mod managed;
mod mw;
mod simulated;
mod slurm;
mod spmd;
mod tidy;
mod virtual_time;
