//! The value of a far cell: its mass at one place, its second moments, and the distance from which
//! it is far.
//!
//! Values are rounded to steps that are small compared with the cell. Other nodes get the values of
//! many cells in each step of a run. Digits without effect on forces would be noise that has to be
//! sent each time. The owner of the bodies uses the rounded values too, so all nodes have the same
//! bits. This module depends on neither communication nor the structure of trees.

use super::sums::CellSums;
use crate::kernel::Quad;
use crate::setup::{CellExpansion, Setup};
use crate::smooth::{ColumnCoding, nearest_whole};

/// A place is rounded to the cell's size, rounded down to a power of two, times two to the power of
/// minus this.
///
/// A pull is wrong by about 1e-4 if the cell is just far, and it is one of many. With 300,000
/// bodies the error of forces is 2.64e-5. One bit more here and two more of moments give 2.60e-5,
/// and one bit less of both gives 2.70e-5.
const PLACE: i32 = 11;
/// A size is rounded up to steps of this power. It grows as bodies leave their cube, and its growth
/// can cause requests of other nodes.
const SIZE: i32 = 10;
/// Second moments are rounded to steps of this power, in units of the mass times the square of the
/// size.
const MOMENT: i32 = 11;
/// Coordinates beyond two to the power of this, in sizes, are not rounded.
const COORDINATE: i32 = 17;

/// With a wanted error, no cell is far that is not far with this theta.
const WIDEST: f64 = 1.4;

/// The properties of a cell that lists use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellProperties {
    /// Centre of mass and mass.
    pub point: [f32; 4],
    /// Centre of mass and mass with second moments, if these are used.
    pub quad: Option<Quad>,
    /// Squares of the distances from which the cell is far: one to be scaled, and the lower limit.
    pub far: [f32; 2],
}

impl CellProperties {
    /// The squares of these distances with a margin for the rounding of second moments, which may
    /// differ by some steps at another time.
    pub(crate) fn far_with_room(&self, setup: &Setup) -> [f32; 2] {
        let [far, least] = self.far;
        if setup.error.is_none() {
            return self.far;
        }
        let mass = f64::from(self.point[3]);
        let step = f64::from(least) * (WIDEST * WIDEST) * mass / f64::from(1 << MOMENT);
        // Each is rounded by up to half a step, here and there.
        let far = match &self.quad {
            Some(quad) => reach(mass, quad.spread() + 3.0 * step, true),
            None => reach(mass, f64::from(far) * f64::from(far) / 1.5 + step, false),
        };
        [far as f32, least]
    }
}

/// The numbers of a cell that are sent, from which its [`Value`] follows; all except the mass are
/// whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CellNumbers {
    /// The exponent of the largest power of two up to the size; steps are parts of it.
    exponent: i32,
    size: f64,
    place: [f64; 3],
    mass: f32,
    /// Second moments or, if only their sum matters, that and zeros.
    moments: [f64; 6],
}

/// Indices of the numbers of a row.
const EXPONENT: usize = 0;
const FIRST_COORDINATE: usize = 2;
const MASS: usize = 5;
const MOMENTS: usize = 6;

impl CellNumbers {
    /// The maximum count of numbers.
    const MOST: usize = MOMENTS + 6;

    /// The coding of each number.
    pub(crate) fn columns(setup: &Setup) -> &'static [ColumnCoding] {
        const ALL: [ColumnCoding; CellNumbers::MOST] = {
            let mut all = [ColumnCoding::Whole; CellNumbers::MOST];
            all[MASS] = ColumnCoding::InOrder;
            all
        };
        let more = match setup.order {
            CellExpansion::Quad | CellExpansion::Series => 6,
            CellExpansion::Mono => usize::from(setup.error.is_some()),
        };
        &ALL[..MOMENTS + more]
    }

    /// The row of a cell with these sums and this level.
    pub(crate) fn of(sums: &CellSums, cell: usize, level: u8) -> Self {
        let [x, y, z, mass] = sums.points[cell];
        let size = sums.size(cell, level);
        let farthest = x.abs().max(y.abs()).max(z.abs());
        let exponent = exponent(size).max(exponent(farthest.into()) - COORDINATE);
        let steps = power_of_two(PLACE - exponent);
        let place = [x, y, z].map(|x| whole::<30>(f64::from(x) * steps));
        let steps = power_of_two(MOMENT - 2 * exponent) / f64::from(mass);
        let moments = match sums.moments.get(cell) {
            Some(moments) => moments.map(f64::from),
            None => [
                sums.spreads.get(cell).map_or(0.0, |spread| (*spread).into()),
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
        };
        let moments = moments.map(|moment| whole::<24>(moment * steps));
        let exact = size * power_of_two(SIZE - exponent);
        let size = whole::<24>(exact);
        let size = if size < exact { size + 1.0 } else { size };
        Self { exponent, size, place, mass, moments }
    }

    /// Parses a row; none if there are too few numbers.
    pub(crate) fn read(numbers: &[f32], setup: &Setup) -> Option<Self> {
        let numbers = numbers.get(..Self::columns(setup).len())?;
        let mut all = [0.0; Self::MOST];
        all[..numbers.len()].copy_from_slice(numbers);
        let [exponent, size, x, y, z, mass, moments @ ..] = all;
        let (exponent, size) = (exponent as i32, size.into());
        let (place, moments) = ([x, y, z].map(f64::from), moments.map(f64::from));
        Some(Self { exponent, size, place, mass, moments })
    }

    /// Appends the numbers of a row, for [`Row::read`].
    pub(crate) fn write(&self, setup: &Setup, to: &mut Vec<f32>) {
        let [x, y, z] = self.place.map(|steps| steps as f32);
        to.extend([self.exponent as f32, self.size as f32, x, y, z, self.mass]);
        let more = Self::columns(setup).len() - MOMENTS;
        to.extend(self.moments[..more].iter().map(|steps| *steps as f32));
    }

    /// Predicts the next number of a row from the known ones and the row before.
    ///
    /// `more` is the ratio of the two cells' bodies.
    pub(crate) fn expected(before: &[f32], known: &[f32], more: f64) -> f32 {
        let column = known.len();
        let of_before = f64::from(before[column]);
        match column {
            FIRST_COORDINATE..MASS => {
                let steps = power_of_two((before[EXPONENT] - known[EXPONENT]) as i32);
                (of_before * steps) as f32
            }
            MASS => (of_before * more) as f32,
            _ => before[column],
        }
    }

    /// The value that follows from a row.
    pub(crate) fn value(&self, setup: &Setup) -> CellProperties {
        // Numbers from other nodes may be arbitrary.
        let exponent = self.exponent.clamp(-500, 500);
        let step = power_of_two(exponent - PLACE);
        let [x, y, z] = self.place.map(|steps| (steps * step) as f32);
        let mass = self.mass;
        let step = power_of_two(2 * exponent - MOMENT) * f64::from(mass);
        let moments = self.moments.map(|steps| steps * step);
        let has_quads = setup.order != CellExpansion::Mono;
        let quad = has_quads.then(|| Quad::new([x, y, z], mass, &moments));
        let size = self.size * power_of_two(exponent - SIZE);
        let square = size * size;
        let far = if setup.error.is_some() {
            let spread = moments[0] + moments[1] + moments[2];
            let least = square * (1.0 / (WIDEST * WIDEST));
            [reach(mass.into(), spread, has_quads) as f32, least as f32]
        } else if setup.theta > 0.0 {
            [(square / (setup.theta * setup.theta)) as f32, 0.0]
        } else {
            [f32::INFINITY, 0.0]
        };
        CellProperties { point: [x, y, z, mass], quad, far }
    }
}

/// The nearest whole number of steps; 0 if it has more than `BITS` bits or is not a number.
///
/// Single precision represents whole numbers of 24 bits, and multiples of a single-precision
/// number's unit.
fn whole<const BITS: u32>(steps: f64) -> f64 {
    if steps.abs() < f64::from(1 << BITS) { nearest_whole(steps) } else { 0.0 }
}

/// The exponent of the largest power of two up to a number.
fn exponent(of: f64) -> i32 {
    (of.abs().to_bits() >> 52) as i32 - 1023
}

/// A power of two, limited to the range of double precision.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

/// The quantity that is proportional to the square of the distance from which a cell is far.
///
/// The first omitted moment causes an error of 3/2 S / d^4 or, with quadrupoles, about 5/2 T / d^5.
/// T, the sum of mass times the third power of distance, is about (S^3 / M)^(1/2).
fn reach(mass: f64, spread: f64, quad: bool) -> f64 {
    if !quad {
        (1.5 * spread).sqrt()
    } else if mass > 0.0 {
        let root = fifth_root(2.5 * spread * (spread / mass).sqrt());
        root * root
    } else {
        0.0
    }
}

/// The factor of [`reach`] if one cell may be wrong by `error`, an acceleration.
pub(crate) fn reach_scale(error: f64, order: CellExpansion) -> f32 {
    let root = match order {
        CellExpansion::Mono => error.sqrt(),
        CellExpansion::Quad | CellExpansion::Series => {
            let root = fifth_root(error);
            root * root
        }
    };
    // With no acceleration no error is allowed; the value is finite, so that its product with zero
    // is a number.
    if root > 1e-30 { (1.0 / root) as f32 } else { 1e30 }
}

/// The fifth root of a non-negative number, by Newton's method from a fixed start: the same bits
/// everywhere.
///
/// The roots of zero and of tiny numbers are zero.
pub(super) fn fifth_root(x: f64) -> f64 {
    if x < 1e-200 {
        return 0.0;
    }
    // A fifth of the exponent, taken from the bits: within 5 % of the root.
    let mut y = f64::from_bits(x.to_bits() / 5 + 0x3325_f000_0000_0000);
    for _ in 0..4 {
        let fourth = y * y * y * y;
        y -= (y * fourth - x) / (5.0 * fourth);
    }
    y
}
