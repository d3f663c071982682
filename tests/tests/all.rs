//! What crosses crates, in one binary.

mod virtual_time;
