//! What crosses crates, in one binary.

mod faults;
mod virtual_time;
