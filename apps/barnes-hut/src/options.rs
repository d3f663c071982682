//! The options of the job and their default values.
//!
//! This module depends on neither the reading of bodies nor the computation of forces.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::bodies::{Bodies, LARGEST};
use crate::gadget;
use crate::rungs::DEEPEST;
use crate::setup::Accuracy;
pub use crate::setup::CellExpansion;

/// Barnes-Hut N-body simulation. Units: G = 1.
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize)]
pub struct BarnesHut {
    /// Model to simulate if no file is given
    #[arg(long, value_enum, default_value_t = Model::Galaxies)]
    pub model: Model,

    /// Number of bodies to generate
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub bodies: usize,

    /// Seed of the generated bodies
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    /// Read bodies from FILE instead: CSV with the header x,y,z,vx,vy,vz,m in any order, .npy of
    /// shape (n, 7), or a Gadget snapshot (SnapFormat 1 or 2) of any other name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "bodies", "seed"])]
    #[serde(skip)]
    pub input: Option<PathBuf>,

    /// Number of time steps
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub steps: u64,

    /// Length of a time step [default: 0.1 for galaxies, 0.05 for disk and disks, else 1/64]
    #[arg(long, value_name = "TIME")]
    pub dt: Option<f64>,

    /// Plummer softening length [default: 0.05 for galaxies, 0.03 for disk and disks, else 0.01]
    #[arg(long, value_name = "LENGTH")]
    pub softening: Option<f64>,

    /// Opening angle: a cell is opened unless its size / distance is less; 0 sums over all pairs
    #[arg(long, value_name = "ANGLE", default_value_t = 0.7)]
    pub theta: f64,

    /// In place of an opening angle: a cell is opened unless its error is expected to be below this
    /// part of the acceleration there; 3e-3 with --order mono gives forces good to about 1e-3, 2e-4
    /// with --order quad to 1e-4
    #[arg(long, value_name = "PART", conflicts_with = "theta")]
    #[serde(default)]
    pub cell_error: Option<f64>,

    /// Find out --order and --cell-error for forces with this relative error, root of the mean
    /// square over the bodies as they are at the start
    #[arg(long, value_name = "ERROR", conflicts_with_all = ["theta", "order", "cell_error"])]
    #[serde(skip)]
    pub force_error: Option<f64>,

    /// Highest moment of a far cell
    #[arg(long, value_enum, default_value_t = CellExpansion::Quad)]
    pub order: CellExpansion,

    /// Save a checkpoint every K steps, from which a lost root continues; 0: never
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub checkpoint_every: u64,

    /// Maximum number of bodies in a leaf of the tree
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub leaf: u32,

    /// Maximum number of bodies in a group, which shares one list of interactions
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub group: u32,

    /// A task with more bodies than this splits in two
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub grain: u32,

    /// Write a snapshot of all bodies every K steps; 0: never
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub snapshot_every: u64,

    /// File format of the snapshots
    #[arg(long, value_enum, default_value_t = SnapshotFormat::Npy)]
    pub snapshot_format: SnapshotFormat,

    /// Draw a picture (PNG) of the density every K steps; 0: never
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub picture_every: u64,

    /// Draw a frame (PNG of the density) every K steps, and make a video of them at the end if
    /// ffmpeg is on the PATH; 0: never
    #[arg(long, value_name = "K", default_value_t = 0)]
    #[serde(default)]
    pub render: u64,

    /// Width and height of pictures and frames in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 800)]
    pub picture_size: u32,

    /// Block time steps: a body's step is halved until it is at most ETA sqrt(softening /
    /// acceleration); --dt is the longest, at whose end all bodies meet
    #[arg(long, value_name = "ETA")]
    #[serde(default)]
    pub block_steps: Option<f64>,

    /// Maximum number of halvings of a block time step
    #[arg(long, value_name = "N", default_value_t = 6, requires = "block_steps")]
    #[serde(default)]
    pub max_rung: u32,

    /// Find the relative error of the forces on a sample of bodies against an exact sum, every K
    /// steps; 0: never
    #[arg(long, value_name = "K", default_value_t = 0)]
    #[serde(default)]
    pub check_forces: u64,

    /// Number of bodies in that sample, which --seed chooses
    #[arg(long, value_name = "N", default_value_t = 256)]
    #[serde(default)]
    pub check_bodies: u32,

    /// Width of the region in pictures and frames [default: three times the distance from the
    /// middle within which nearly all bodies are at the start]
    #[arg(long, value_name = "LENGTH")]
    #[serde(default)]
    pub picture_width: Option<f64>,

    /// Form in which positions are sent to the nodes in each step; the result is the same
    #[arg(long, value_enum, default_value_t = Broadcast::Changes)]
    pub broadcast: Broadcast,

    /// Distribution of the bodies: every node has all of them, or its own domain; domains pay from
    /// about 100,000 bodies on
    #[arg(long, value_enum, default_value_t = Distribution::Replicated)]
    #[serde(default)]
    pub distribution: Distribution,

    /// With --distribution domains: sort bodies into cells every K steps, instead of when they have
    /// moved; in between, cells keep their bodies. 0: at the start alone
    #[arg(long, value_name = "K")]
    #[serde(default)]
    pub rekey_every: Option<u64>,

    /// With --distribution domains: sum up energies and momenta every K steps, and after the last;
    /// the root waits for all sums
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[serde(default = "one")]
    pub report_every: u64,

    /// The modelled time of computations with domains, for simulations.
    #[arg(skip)]
    #[serde(default)]
    pub costs: Option<crate::domains::Costs>,

    /// The bodies of `input`, once read on the submitting side; they are sent inside the job.
    #[arg(skip)]
    pub loaded: Option<Bodies>,
}

fn one() -> u64 {
    1
}

impl Default for BarnesHut {
    /// The options of a command line without arguments.
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
    /// The length of a time step: the given one, or a value for the model. A galaxy's core rotates
    /// by half a radian in it.
    pub fn time_step(&self) -> f64 {
        self.dt.unwrap_or(match self.generated() {
            Some(Model::Galaxies) => 0.1,
            Some(Model::Disk | Model::Disks) => 0.05,
            Some(Model::Plummer | Model::Hernquist) | None => 1.0 / 64.0,
        })
    }

    /// The parameters of forces.
    pub fn accuracy(&self) -> Accuracy {
        let default = match self.generated() {
            Some(Model::Galaxies) => 0.05,
            Some(Model::Disk | Model::Disks) => 0.03,
            Some(Model::Plummer | Model::Hernquist) | None => 0.01,
        };
        let softening = self.softening.unwrap_or(default);
        let Self { order, theta, leaf, group, .. } = *self;
        Accuracy { order, theta, softening, leaf, group }
    }

    /// Checks values that the command line's own checks cannot check.
    ///
    /// # Errors
    /// The first option with an invalid value.
    pub fn check(&self) -> Result<(), OptionError> {
        let positive = |option, value: f64| {
            if value.is_finite() && value > 0.0 && value <= LARGEST {
                Ok(())
            } else {
                Err(OptionError::NotPositive { option, value })
            }
        };
        if self.input.is_none() && self.loaded.is_none() && self.bodies == 0 {
            return Err(OptionError::NoBodies);
        }
        if self.bodies > BODIES_MAX || self.loaded.as_ref().is_some_and(|b| b.len() > BODIES_MAX) {
            return Err(OptionError::TooManyBodies);
        }
        if let Some(bodies) = &self.loaded {
            if bodies.is_empty() {
                return Err(OptionError::NoBodies);
            }
            if let Some(body) = bodies.first_bad() {
                return Err(OptionError::Body(body));
            }
        }
        let count = self.loaded.as_ref().map_or(self.bodies, Bodies::len);
        if self.snapshot_every > 0
            && self.snapshot_format == SnapshotFormat::Gadget
            && count > gadget::BODIES_MAX
        {
            return Err(OptionError::GadgetBodies);
        }
        positive("--dt", self.time_step())?;
        let softening = self.accuracy().softening;
        if !(0.0..=LARGEST).contains(&softening) {
            return Err(OptionError::Softening(softening));
        }
        if !(0.0..=THETA_MAX).contains(&self.theta) {
            return Err(OptionError::Theta(self.theta));
        }
        if let Some(error) = self.force_error
            && !(FINEST_FORCES..=1.0).contains(&error)
        {
            return Err(OptionError::ForceError(error));
        }
        if let Some(part) = self.cell_error
            && !(part > 0.0 && part <= 1.0)
        {
            return Err(OptionError::CellError(part));
        }
        if let Some(eta) = self.block_steps {
            positive("--block-steps", eta)?;
            if softening == 0.0 {
                return Err(OptionError::BlockStepsUnsoftened);
            }
        }
        if self.distribution == Distribution::Domains
            && (self.block_steps.is_some() || self.check_forces > 0)
        {
            return Err(OptionError::DomainsAlone);
        }
        if self.max_rung > DEEPEST {
            return Err(OptionError::MaxRung(self.max_rung));
        }
        if self.check_forces > 0 && !(1..=CHECKED_MAX).contains(&self.check_bodies) {
            return Err(OptionError::CheckBodies(self.check_bodies));
        }
        for (option, value) in
            [("--leaf", self.leaf), ("--group", self.group), ("--grain", self.grain)]
        {
            if value == 0 {
                return Err(OptionError::Zero(option));
            }
        }
        if self.report_every == 0 {
            return Err(OptionError::Zero("--report-every"));
        }
        if let Some(width) = self.picture_width {
            positive("--picture-width", width)?;
        }
        if !(1..=PIXELS_MAX).contains(&self.picture_size) {
            return Err(OptionError::PictureSize(self.picture_size));
        }
        Ok(())
    }

    /// The model, unless the bodies are a file's.
    fn generated(&self) -> Option<Model> {
        (self.input.is_none() && self.loaded.is_none()).then_some(self.model)
    }
}

/// Indices of bodies have 32 bits, also on the wire; a step's forces on this many are 16 GiB.
const BODIES_MAX: usize = 1 << 30;
/// At 2 a cell may be as near as half its size: larger textbook angles make no sense.
const THETA_MAX: f64 = 2.0;
/// The smallest error that single precision can give, with a margin.
const FINEST_FORCES: f64 = 1e-5;
const PIXELS_MAX: u32 = 16_384;
/// The sums of this number of bodies are a few MB at the root.
const CHECKED_MAX: u32 = 100_000;

/// An option has an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum OptionError {
    /// There is nothing to simulate.
    #[error("--bodies is 0; at least one body is needed")]
    NoBodies,
    /// A body of the job is not valid.
    #[error(
        "body {0} has a position or velocity that is no number of up to 1e100, or a mass that is \
         not within 0 and 1e100"
    )]
    Body(usize),
    /// There are more bodies than indices.
    #[error(
        "more than {BODIES_MAX} bodies are not supported; choose a smaller --bodies or --input"
    )]
    TooManyBodies,
    /// A block of a snapshot would be too long for its length field.
    #[error(
        "a Gadget snapshot takes at most {} bodies; choose --snapshot-format npy",
        gadget::BODIES_MAX
    )]
    GadgetBodies,
    /// A quantity must be above zero.
    #[error("{option} is {value}; it must be a number above 0 and at most 1e100")]
    NotPositive {
        /// The name of the option.
        option: &'static str,
        /// The given value.
        value: f64,
    },
    /// A count must not be zero.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// The softening length is not a length.
    #[error("--softening is {0}; it must be a length of 0 to 1e100")]
    Softening(f64),
    /// The opening angle is out of range.
    #[error("--theta is {0}; it must lie within 0 (exact sum over all pairs) and {THETA_MAX}")]
    Theta(f64),
    /// The wanted error is out of range.
    #[error("--force-error is {0}; it must lie within {FINEST_FORCES} and 1")]
    ForceError(f64),
    /// The error of cells is out of range.
    #[error("--cell-error is {0}; it must be a part above 0 and at most 1")]
    CellError(f64),
    /// The criterion of block time steps needs a length.
    #[error(
        "--block-steps chooses steps by the softening length, which is 0; set --softening, or \
         leave --block-steps out"
    )]
    BlockStepsUnsoftened,
    /// Options that domains do not support.
    #[error(
        "--distribution domains has one step for all bodies and cannot check forces; leave \
         --block-steps and --check-forces out, or the bodies replicated"
    )]
    DomainsAlone,
    /// An option of domains is used with replicated bodies.
    #[error(
        "--rekey-every and --report-every belong to --distribution domains, and the bodies are \
         replicated"
    )]
    OnlyDomains,
    /// The clock of ticks allows fewer halvings.
    #[error("--max-rung is {0}; it must be at most {DEEPEST}")]
    MaxRung(u32),
    /// The size of the sample is out of range.
    #[error("--check-bodies is {0}; it must lie within 1 and {CHECKED_MAX}")]
    CheckBodies(u32),
    /// The size of the picture is out of range.
    #[error("--picture-size is {0}; it must lie within 1 and {PIXELS_MAX} pixels")]
    PictureSize(u32),
}

/// The model to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Model {
    /// Two disc galaxies on a grazing orbit
    Galaxies,
    /// A Plummer sphere at rest in Henon units
    Plummer,
    /// A Hernquist sphere at rest in Henon units, with a cusp
    Hernquist,
    /// A disk galaxy: exponential disk, bulge and halo near equilibrium
    Disk,
    /// Two of them on a parabolic orbit
    Disks,
}

/// The form in which positions are sent to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Broadcast {
    /// As lossless changes: 4 to 8 bytes a body, for links between clusters that are slower than
    /// some 100 MB/s
    Changes,
    /// Whole: 12 bytes a body, and nothing to compute
    Whole,
}

/// The distribution of the bodies over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Distribution {
    /// All nodes have all positions, and one moves the bodies: tasks that anybody may take
    #[default]
    Replicated,
    /// Each process has a domain, moves its bodies and receives the data of others that it needs
    Domains,
}

/// File format of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum SnapshotFormat {
    /// NumPy array of shape (n, 7), columns x, y, z, vx, vy, vz, m
    Npy,
    /// Comma-separated values with a header
    Csv,
    /// Gadget snapshot (SnapFormat 1, single precision), as pynbody and yt read it
    Gadget,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: BarnesHut,
    }

    fn parse(arguments: &str) -> BarnesHut {
        let words = ["barnes-hut"].into_iter().chain(arguments.split_whitespace());
        Line::try_parse_from(words).unwrap().options
    }

    #[test]
    fn defaults_are_good_and_suit_the_model() {
        let galaxies = BarnesHut::default();
        assert_eq!(galaxies.check(), Ok(()));
        assert_eq!((galaxies.time_step(), galaxies.accuracy().softening), (0.1, 0.05));
        let plummer = parse("--model plummer");
        assert_eq!(plummer.check(), Ok(()));
        assert_eq!((plummer.time_step(), plummer.accuracy().softening), (1.0 / 64.0, 0.01));
        assert_eq!(parse("--input some.csv").time_step(), 1.0 / 64.0);
        assert_eq!(parse("--dt 0.5 --softening 0").accuracy().softening, 0.0);
        assert_eq!(parse("--steps 0 --theta 0 --softening 0").check(), Ok(()));
    }

    #[test]
    fn a_file_excludes_options_of_the_models() {
        for other in ["--bodies 5", "--seed 1", "--model plummer"] {
            let words = format!("x --input a.csv {other}");
            assert!(Line::try_parse_from(words.split_whitespace()).is_err(), "{other}");
        }
    }

    #[test]
    fn every_invalid_option_is_named_with_a_remedy() {
        let table = [
            ("--bodies=0", "--bodies is 0; at least one body is needed"),
            (
                "--bodies=2000000000",
                "more than 1073741824 bodies are not supported; choose a smaller --bodies or \
                 --input",
            ),
            (
                "--bodies=400000000 --snapshot-every=1 --snapshot-format=gadget",
                "a Gadget snapshot takes at most 357913941 bodies; choose --snapshot-format npy",
            ),
            ("--dt=NaN", "--dt is NaN; it must be a number above 0 and at most 1e100"),
            ("--dt=0", "--dt is 0; it must be a number above 0 and at most 1e100"),
            ("--dt=-0.1", "--dt is -0.1; it must be a number above 0 and at most 1e100"),
            ("--dt=inf", "--dt is inf; it must be a number above 0 and at most 1e100"),
            ("--softening=-1", "--softening is -1; it must be a length of 0 to 1e100"),
            ("--softening=NaN", "--softening is NaN; it must be a length of 0 to 1e100"),
            ("--softening=inf", "--softening is inf; it must be a length of 0 to 1e100"),
            (
                "--theta=-0.1",
                "--theta is -0.1; it must lie within 0 (exact sum over all pairs) and 2",
            ),
            (
                "--theta=2.5",
                "--theta is 2.5; it must lie within 0 (exact sum over all pairs) and 2",
            ),
            (
                "--theta=NaN",
                "--theta is NaN; it must lie within 0 (exact sum over all pairs) and 2",
            ),
            ("--force-error=0", "--force-error is 0; it must lie within 0.00001 and 1"),
            ("--force-error=NaN", "--force-error is NaN; it must lie within 0.00001 and 1"),
            ("--cell-error=0", "--cell-error is 0; it must be a part above 0 and at most 1"),
            ("--cell-error=NaN", "--cell-error is NaN; it must be a part above 0 and at most 1"),
            ("--cell-error=1.5", "--cell-error is 1.5; it must be a part above 0 and at most 1"),
            (
                "--block-steps=0",
                "--block-steps is 0; it must be a number above 0 and at most 1e100",
            ),
            (
                "--block-steps=NaN",
                "--block-steps is NaN; it must be a number above 0 and at most 1e100",
            ),
            (
                "--block-steps=0.1 --softening=0",
                "--block-steps chooses steps by the softening length, which is 0; set \
                 --softening, or leave --block-steps out",
            ),
            (
                "--distribution=domains --check-forces=1",
                "--distribution domains has one step for all bodies and cannot check forces; \
                 leave --block-steps and --check-forces out, or the bodies replicated",
            ),
            ("--block-steps=0.1 --max-rung=21", "--max-rung is 21; it must be at most 20"),
            (
                "--check-forces=1 --check-bodies=0",
                "--check-bodies is 0; it must lie within 1 and 100000",
            ),
            ("--leaf=0", "--leaf is 0; it must be at least 1"),
            ("--group=0", "--group is 0; it must be at least 1"),
            ("--grain=0", "--grain is 0; it must be at least 1"),
            (
                "--picture-width=0",
                "--picture-width is 0; it must be a number above 0 and at most 1e100",
            ),
            ("--picture-size=0", "--picture-size is 0; it must lie within 1 and 16384 pixels"),
            (
                "--picture-size=99999",
                "--picture-size is 99999; it must lie within 1 and 16384 pixels",
            ),
        ];
        for (argument, message) in table {
            assert_eq!(parse(argument).check().unwrap_err().to_string(), message, "{argument}");
        }
    }
}
