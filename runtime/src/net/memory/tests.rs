//! Tests of the in-memory network.
