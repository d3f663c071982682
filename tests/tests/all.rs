//! What crosses crates, in one binary.

mod faults;
mod simulated;
mod virtual_time;
