//! What the paper's experiments ran: the testbed, the two applications and the four workloads.
//!
//! Source: Buisson et al., *Scheduling malleable applications in multicluster systems*, CLUSTER 2007, sections 6 and 7.

use std::time::Duration;

use springtide_actors::scheduler::manager::Kind;

use super::dice::Dice;
use super::program::{Curve, Program, Sizes};
use super::{Arrival, Site};

/// Jobs of a workload.
pub const JOBS: usize = 300;

/// The N-body code: any size, balances its load.
pub fn gadget() -> Program {
    let curve = Curve::Fit { serial: 223.6, parallel: 752.7 };
    Program { name: "gadget".to_owned(), curve, sizes: Sizes::Any, min: 2, max: 46 }
}

/// The NAS FFT: powers of two, processors that are equal.
pub fn ft() -> Program {
    let curve = Curve::Fit { serial: 56.0, parallel: 128.0 };
    Program { name: "ft".to_owned(), curve, sizes: Sizes::PowersOfTwo, min: 2, max: 32 }
}

/// DAS-3.
pub fn das3() -> Vec<Site> {
    let nodes = [("delft", 68), ("leiden", 32), ("mmn", 46), ("uva", 41), ("vu", 85)];
    nodes.into_iter().map(|(name, size)| Site::new(name, size)).collect()
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// All malleable, one every 120 s.
    Wm,
    /// Half of them rigid.
    Wmr,
    /// All malleable, one every 30 s.
    WmDense,
    /// Half of them rigid.
    WmrDense,
    /// All rigid, one every 120 s: what the others are compared with.
    Rigid,
    /// All rigid, one every 30 s.
    RigidDense,
}

impl Workload {
    /// Its name; the paper's are those with an apostrophe for the dense ones.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wm => "Wm",
            Self::Wmr => "Wmr",
            Self::WmDense => "W'm",
            Self::WmrDense => "W'mr",
            Self::Rigid => "rigid",
            Self::RigidDense => "rigid'",
        }
    }

    fn every(self) -> Duration {
        Duration::from_secs(match self {
            Self::Wm | Self::Wmr | Self::Rigid => 120,
            Self::WmDense | Self::WmrDense | Self::RigidDense => 30,
        })
    }

    fn malleable(self) -> f64 {
        match self {
            Self::Wm | Self::WmDense => 1.0,
            Self::Wmr | Self::WmrDense => 0.5,
            Self::Rigid | Self::RigidDense => 0.0,
        }
    }

    /// Its jobs. The same seed draws the same programs for all of them, so that they differ in nothing else.
    pub fn jobs(self, seed: u64) -> Vec<Arrival> {
        let mut dice = Dice::new(seed, 0);
        let programs = [gadget(), ft()].map(std::sync::Arc::new);
        let job = |at: usize| {
            let program = &programs[usize::from(dice.unit() < 0.5)];
            let (kind, max) = match dice.unit() < self.malleable() {
                true => (Kind::Malleable, program.max),
                false => (Kind::Rigid, program.min),
            };
            Arrival {
                at: self.every() * u32::try_from(at).unwrap_or(u32::MAX),
                kind,
                min: program.min,
                start: program.min,
                max,
                program: program.clone(),
                scale: 1.0,
            }
        };
        (0..JOBS).map(job).collect()
    }
}
