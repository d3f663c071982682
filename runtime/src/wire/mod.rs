//! Frames and messages as bytes, and the one gate by which bytes from outside become messages.

mod kind;

pub use kind::*;
