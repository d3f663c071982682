//! Tests of remote actors.
