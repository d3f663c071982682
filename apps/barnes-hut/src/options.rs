//! The options of the job and what is a sensible value for each.
//!
//! Knows nothing of how bodies are read or forces computed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::bodies::Bodies;
use crate::shared::Accuracy;

/// Barnes-Hut N-body simulation. Units: G = 1.
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize)]
pub struct BarnesHut {
    /// What to simulate when no file is given
    #[arg(long, value_enum, default_value_t = Model::Galaxies)]
    pub model: Model,

    /// Number of bodies to generate
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub bodies: usize,

    /// Seed of the generated bodies
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    /// Read bodies from FILE instead: CSV with the header x,y,z,vx,vy,vz,m in any order, or .npy of shape (n, 7)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "bodies", "seed"])]
    #[serde(skip)]
    pub input: Option<PathBuf>,

    /// Number of time steps
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub steps: u64,

    /// Length of a time step [default: 0.1 for galaxies, else 1/64]
    #[arg(long, value_name = "TIME")]
    pub dt: Option<f64>,

    /// Plummer softening length [default: 0.05 for galaxies, else 0.01]
    #[arg(long, value_name = "LENGTH")]
    pub softening: Option<f64>,

    /// Opening angle: a cell is opened unless its size / distance is less; 0 sums over all pairs
    #[arg(long, value_name = "ANGLE", default_value_t = 0.7)]
    pub theta: f64,

    /// Highest moment of a far cell
    #[arg(long, value_enum, default_value_t = Order::Quad)]
    pub order: Order,

    /// Most bodies in a leaf of the tree
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub leaf: u32,

    /// Most bodies in a group, which shares one list of interactions
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub group: u32,

    /// A task with more bodies than this splits in two
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub grain: u32,

    /// Write a snapshot of all bodies every K steps; 0: never
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub snapshot_every: u64,

    /// Format of snapshots
    #[arg(long, value_enum, default_value_t = SnapshotFormat::Npy)]
    pub snapshot_format: SnapshotFormat,

    /// Draw a picture (PNG) of the density every K steps; 0: never
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub picture_every: u64,

    /// Width and height of pictures in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 800)]
    pub picture_size: u32,

    /// The bodies of `input`, once read on the submitting side; they travel inside the job.
    #[arg(skip)]
    pub loaded: Option<Bodies>,
}

impl Default for BarnesHut {
    /// What the command line gives when no option is set.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: BarnesHut,
        }
        <Line as clap::Parser>::parse_from(["barnes-hut"]).options
    }
}

impl BarnesHut {
    /// The length of a time step: as set, or what suits the model. A galaxy's core turns by half a radian in it.
    pub fn time_step(&self) -> f64 {
        self.dt.unwrap_or(if self.two_galaxies() { 0.1 } else { 1.0 / 64.0 })
    }

    /// How forces are computed.
    pub fn accuracy(&self) -> Accuracy {
        let default = if self.two_galaxies() { 0.05 } else { 0.01 };
        let softening = self.softening.unwrap_or(default);
        let Self { order, theta, leaf, group, .. } = *self;
        Accuracy { order, theta, softening, leaf, group }
    }

    fn two_galaxies(&self) -> bool {
        self.model == Model::Galaxies && self.input.is_none() && self.loaded.is_none()
    }
}

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Model {
    /// Two disc galaxies on a grazing orbit
    Galaxies,
    /// A Plummer sphere at rest in Henon units
    Plummer,
}

/// How a far cell acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Order {
    /// As a point at its centre of mass
    Mono,
    /// With its quadrupole moment: dearer, more exact
    Quad,
}

/// File format of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum SnapshotFormat {
    /// NumPy array of shape (n, 7), columns x, y, z, vx, vy, vz, m
    Npy,
    /// Comma-separated values with a header
    Csv,
}
