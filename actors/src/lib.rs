//! The roles of a Springtide grid as actix actors. See `ARCHITECTURE.md`.
