//! What stands for a cell that is far: its bodies' mass in one place, their second moments, and how far is far.
//!
//! In whole steps that are small beside the cell: others are told of many cells in each step of a run, and whatever is told of a place
//! or a moment beyond what it adds to forces is noise that has to be told again each time. Whoever holds the bodies goes by the same
//! steps, so all have the same bits. Knows neither who tells whom, nor how cells hang together.

use super::sums::Sums;
use crate::kernel::Quad;
use crate::options::Order;
use crate::shared::Setup;
use crate::smooth::{Counts, nearest_whole};

/// A place is told in so small parts of the size of the cell, rounded down to a power of two: two to the power of minus this. A pull is wrong
/// by some ten-thousandth where the cell just is far, and it is one of many: forces that are wrong by 2.64e-5 (300,000 bodies) would be by
/// 2.60e-5 with a bit more here and two of moments, and by 2.70e-5 with one less of both.
const PLACE: i32 = 11;
/// A size is in such parts of that, rounded up: it grows as bodies leave their cube, and all that it grows by others may have to wish for.
const SIZE: i32 = 10;
/// Second moments in such parts of the mass times the square of the size.
const MOMENT: i32 = 11;
/// Where coordinates are two to the power of this times as large as a size, they have no such steps.
const COORDINATE: i32 = 17;

/// Where an error is asked for, no cell is far that would not be with this theta.
const WIDEST: f64 = 1.4;

/// What lists are made of, of one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    /// Centre of mass and mass.
    pub point: [f32; 4],
    /// The same with second moments, where these are.
    pub quad: Option<Quad>,
    /// The squares of the distances from which it is far: one to be multiplied by a scale, and the least.
    pub far: [f32; 2],
}

impl Value {
    /// The squares of the distances from which it is far while its second moments, which are rounded, are about these: at another time they may
    /// come out some steps more.
    pub(crate) fn far_with_room(&self, setup: &Setup) -> [f32; 2] {
        let [far, least] = self.far;
        if setup.error.is_none() {
            return self.far;
        }
        let mass = f64::from(self.point[3]);
        let step = f64::from(least) * (WIDEST * WIDEST) * mass / f64::from(1 << MOMENT);
        // Each is rounded by up to half a step here, and there.
        let far = match &self.quad {
            Some(quad) => reach(mass, quad.spread() + 3.0 * step, true),
            None => reach(mass, f64::from(far) * f64::from(far) / 1.5 + step, false),
        };
        [far as f32, least]
    }
}

/// What is told of a cell, from which its [`Value`] follows; all but the mass is whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    /// Of the greatest power of two that is not above the size: steps are parts of it.
    exponent: i32,
    size: f64,
    place: [f64; 3],
    mass: f32,
    /// Second moments or, where only their sum matters, that and zeros.
    moments: [f64; 6],
}

/// Where in the numbers of a row.
const EXPONENT: usize = 0;
const FIRST_COORDINATE: usize = 2;
const MASS: usize = 5;
const MOMENTS: usize = 6;

impl Row {
    /// The most numbers.
    const MOST: usize = MOMENTS + 6;

    /// How its numbers count.
    pub(crate) fn columns(setup: &Setup) -> &'static [Counts] {
        const ALL: [Counts; Row::MOST] = {
            let mut all = [Counts::Whole; Row::MOST];
            all[MASS] = Counts::InOrder;
            all
        };
        let more = match setup.order {
            Order::Quad | Order::Series => 6,
            Order::Mono => usize::from(setup.error.is_some()),
        };
        &ALL[..MOMENTS + more]
    }

    /// Of a cell with these sums and of this level.
    pub(crate) fn of(sums: &Sums, cell: usize, level: u8) -> Self {
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

    /// That with these numbers; nothing if there are not so many.
    pub(crate) fn read(numbers: &[f32], setup: &Setup) -> Option<Self> {
        let numbers = numbers.get(..Self::columns(setup).len())?;
        let mut all = [0.0; Self::MOST];
        all[..numbers.len()].copy_from_slice(numbers);
        let [exponent, size, x, y, z, mass, moments @ ..] = all;
        let (exponent, size) = (exponent as i32, size.into());
        let (place, moments) = ([x, y, z].map(f64::from), moments.map(f64::from));
        Some(Self { exponent, size, place, mass, moments })
    }

    /// Its numbers, for [`Row::read`].
    pub(crate) fn write(&self, setup: &Setup, to: &mut Vec<f32>) {
        let [x, y, z] = self.place.map(|steps| steps as f32);
        to.extend([self.exponent as f32, self.size as f32, x, y, z, self.mass]);
        let more = Self::columns(setup).len() - MOMENTS;
        to.extend(self.moments[..more].iter().map(|steps| *steps as f32));
    }

    /// What the next number of a row is about, of which these are known and of the row before all, whose bodies are `more` times as many
    /// here.
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

    /// What follows from it.
    pub(crate) fn value(&self, setup: &Setup) -> Value {
        // What others told may be anything.
        let exponent = self.exponent.clamp(-500, 500);
        let step = power_of_two(exponent - PLACE);
        let [x, y, z] = self.place.map(|steps| (steps * step) as f32);
        let mass = self.mass;
        let step = power_of_two(2 * exponent - MOMENT) * f64::from(mass);
        let moments = self.moments.map(|steps| steps * step);
        let has_quads = setup.order != Order::Mono;
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
        Value { point: [x, y, z, mass], quad, far }
    }
}

/// The whole number of steps nearest to so many; none where that has more than so many bits, or is no number. Single precision tells those
/// of 24 bits apart, and those that a number of single precision is in steps.
fn whole<const BITS: u32>(steps: f64) -> f64 {
    if steps.abs() < f64::from(1 << BITS) { nearest_whole(steps) } else { 0.0 }
}

/// The greatest power of two that is not above a number.
fn exponent(of: f64) -> i32 {
    (of.abs().to_bits() >> 52) as i32 - 1023
}

/// Within what double precision has room for.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

/// What the square of the distance from which a cell is far is in proportion to: the first moment that is left out makes
/// an error of 3/2 S / d^4 or, after quadrupoles, about 5/2 T / d^5, where T, the sum of mass times the third power of
/// distance, is about (S^3 / M)^(1/2).
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

/// What [`reach`] is multiplied by where one cell may be wrong by `error`, an acceleration.
pub(crate) fn reach_scale(error: f64, order: Order) -> f32 {
    let root = match order {
        Order::Mono => error.sqrt(),
        Order::Quad | Order::Series => {
            let root = fifth_root(error);
            root * root
        }
    };
    // No error at all is allowed where nothing acts; finite, so that no product with zero is no number.
    if root > 1e-30 { (1.0 / root) as f32 } else { 1e30 }
}

/// The fifth root of a number that is not negative, by Newton's method from a fixed start: the same bits everywhere. That
/// of zero and of tiny numbers is zero.
pub(super) fn fifth_root(x: f64) -> f64 {
    if x < 1e-200 {
        return 0.0;
    }
    // A fifth of the exponent, taken from the bits: within some 5 % of the root.
    let mut y = f64::from_bits(x.to_bits() / 5 + 0x3325_f000_0000_0000);
    for _ in 0..4 {
        let fourth = y * y * y * y;
        y -= (y * fourth - x) / (5.0 * fourth);
    }
    y
}
