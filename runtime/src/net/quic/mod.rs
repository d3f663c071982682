//! QUIC.
mod machine;
mod parse;
mod queue;
