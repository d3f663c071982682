//! What a decision procedure sees.
//!
//! Data only; must not know how it was observed, nor what is made of it.

use crate::spmd::Pace;

/// How a program stands at a point of its progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Steps done.
    pub point: u64,
    /// Steps in all.
    pub steps: u64,
    /// Processes that compute; 0 before the start, and when nodes were lost.
    pub processes: u32,
    /// Processes that could: those, without the ones whose nodes are to leave, and those that wait to be recruited. At least 1.
    pub available: u32,
    /// Processes that compute on nodes that are to leave.
    pub leaving: u32,
    /// How fast each goes, by rank; absent before it has told.
    pub paces: Vec<Option<Pace>>,
}

/// A process that is to take part, as a layout is made for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hand {
    /// Its rank until now, if it computes already.
    pub was: Option<u32>,
    /// How fast it went.
    pub pace: Option<Pace>,
}
