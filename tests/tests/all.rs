//! Tests across crates, in one binary.

mod bars;
mod batch;
mod collective;
mod cycles;
mod dependencies;
mod domains;
mod faults;
mod federated;
mod fuzz;
mod gridengine;
mod histories;
mod join;
mod language;
mod managed;
mod mw;
mod public_api;
mod simulated;
mod slurm;
mod solve;
mod spmd;
mod tidy;
mod virtual_time;
