//! Tests of bulk transfers.
