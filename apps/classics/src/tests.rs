//! What the five jobs answer.
