//! The costs of a domain's work: fixed ones, by which bodies are distributed, and the modelled
//! times of simulations.

use serde::{Deserialize, Serialize};

/// The cost of a body's own work, in interactions with points: moving, sorting and walking.
pub(super) const BODY_COST: f64 = 150.0;

/// The cost of sending or receiving a number of others, in the same unit.
pub(super) const NUMBER_COST: f64 = 25.0;

/// The cost of putting a cell into the tree, in the same unit.
pub(super) const CELL_COST: f64 = 60.0;

/// Modelled times in a simulation, where computing takes no time of its own; in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A pair of a body and a point that acts on it.
    pub point: f64,
    /// A pair of a body and a cell with second moments.
    pub quad: f64,
    /// Making one entry of a group's list, or adding it to the group's series.
    pub entry: f64,
    /// Moving a body and summing it up into cells, and into its block at its next place.
    pub body: f64,
    /// Putting a cell into the tree.
    pub cell: f64,
    /// Sending or receiving a number.
    pub number: f64,
    /// Sorting a body into cells.
    pub key: f64,
}
