//! The inner loops: the forces of a chunk of sources on the bodies of a group, one body per lane.
//!
//! Only operations are used that IEEE 754 rounds exactly (+ - * and the fused multiply-add). Each
//! lane is independent, with sources in order. 1 / sqrt starts with a seed from the bits of a
//! number, by integer operations. So the bits are the same with any instruction set: the formulas
//! are written once, generic over a register of numbers. This module does not depend on trees.
//!
//! The formulas contain neither closures nor `map` of arrays. If the compiler does not inline one,
//! it is compiled for the base instructions and called for every number. Then a kernel is ten times
//! slower.
//!
//! *The reciprocal root.* [`SEED`] less half of the bits of s is some r0 with y = s r0^2 within 3/4
//! and 27/32. This is the smallest ratio, 9/8, of any such constant (by a search over all its
//! mantissas). With e = [`MIDDLE`] - y, 1 / sqrt(s) = r0 f(e) with f(e) = ([`MIDDLE`] - e)^(-1/2),
//! and its cube is r0^3 f(e)^3. Both are replaced by the polynomials of least relative error on
//! that interval (Remez exchange in double precision): 4.1e-7 with degree three and 1.2e-7 with
//! degree four. Both have a leading coefficient of 1, which saves an operation. The missing factor
//! of all sums is applied at the end ([`CUBE_LEAD`]) or in the sources ([`ROOT_LEAD`]).
#![allow(unsafe_code)]

use std::ops::{Add, Mul, Sub};

use crate::series::{self, Derivatives, Far, SeriesGroup, TERMS};

/// The number of bodies side by side: one 512-bit register of `f32`. Smaller registers are
/// processed one after the other, for all simultaneous values must fit into registers.
pub(crate) const LANES: usize = 16;

/// The number of sources whose pulls are summed in single precision before they are added in double
/// precision. The chunk fits into the innermost cache together with the group.
pub(crate) const CHUNK: usize = 1024;

/// The largest square of a distance (in sides of the box) that counts as zero, without force:
/// softening off, two bodies at one point, or a body and itself. It keeps a pull within single
/// precision.
pub(crate) const POINT_BLIND: f32 = 1e-20;

/// See the head of this file.
const SEED: u32 = 0x5f20_0000;
/// The middle of the interval of s r0^2.
const MIDDLE: f32 = 0.796_875;
/// f(e)^3 is this times e^4 + ... with [`CUBE`] from the constant upwards.
const CUBE_LEAD: f64 = 8.616_897_385_661_826;
const CUBE: [f32; 4] = [0.163_141_25, 0.307_087_32, 0.481_707_8, 0.709_036_05];
/// f(e) is this times e^3 + ... with [`ROOT`] from the constant upwards.
pub(crate) const ROOT_LEAD: f64 = 0.694_117_066_525_469_3;
const ROOT: [f32; 3] = [1.613_882_8, 1.012_631, 0.955_477_25];

/// x, y and z of bodies side by side.
pub(crate) type Lanes = [[f32; LANES]; 3];

/// A far cell: place and mass, and second moments (xx, yy, zz, xy, xz, yz) with half their trace.
///
/// All except the place contain powers of [`ROOT_LEAD`] and small factors, as [`quads`] needs them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quad {
    at: [f32; 3],
    mass: f32,
    moments: [f32; 6],
    half_trace: f32,
}

impl Quad {
    /// The factors in a mass and in moments.
    const CUBE: f64 = ROOT_LEAD * ROOT_LEAD * ROOT_LEAD;
    const FIFTH: f64 = Self::CUBE * ROOT_LEAD * ROOT_LEAD;

    pub(crate) fn new(at: [f32; 3], mass: f32, moments: &[f64; 6]) -> Self {
        let half_trace = 0.5 * (moments[0] + moments[1] + moments[2]);
        Self {
            at,
            mass: (f64::from(mass) * Self::CUBE) as f32,
            moments: moments.map(|m| (3.0 * Self::FIFTH * m) as f32),
            half_trace: (Self::FIFTH * half_trace) as f32,
        }
    }

    /// The sum of mass times the square of the distance from the place.
    pub(crate) fn spread(&self) -> f64 {
        f64::from(self.half_trace) * (2.0 / Self::FIFTH)
    }

    /// The second moments, for a test.
    #[cfg(test)]
    pub(crate) fn moments(&self) -> [f64; 6] {
        self.moments.map(|m| f64::from(m) / (3.0 * ROOT_LEAD.powi(5)))
    }

    /// Place, mass, and second moments: xx, yy, zz, xy, xz, yz.
    pub(crate) fn plain(&self) -> ([f32; 3], f32, [f32; 6]) {
        const MOMENT: f32 = (1.0 / (3.0 * Quad::FIFTH)) as f32;
        (self.at, self.mass * (1.0 / Self::CUBE) as f32, self.moments.map(|moment| moment * MOMENT))
    }

    /// The cell with its place relative to this origin.
    pub(crate) fn seen_from(&self, origin: [f32; 3]) -> Self {
        let [x, y, z] = self.at;
        Self { at: [x - origin[0], y - origin[1], z - origin[2]], ..*self }
    }
}

/// An implementation of the kernels; all give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// For any processor of the target.
    Portable,
    /// Compiled for AVX2 and fused multiply-adds; constructed only if the processor has them.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Proof),
    /// Compiled for AVX-512; constructed only if the processor has it.
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Proof),
}

/// The forces on each sink: acceleration x, y, z and potential.
pub(crate) type SinkForces = [[f64; LANES]; 4];

/// Parameters of all sources and sinks of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The square of the softening length.
    pub softening_squared: f32,
    /// Whether potentials are computed too; otherwise their sums stay the same.
    pub potential: bool,
}

impl Kernel {
    /// The fastest kernel for this processor.
    pub(crate) fn best() -> Self {
        *Self::all().last().expect("there is always the portable one")
    }

    /// All kernels that this processor can run, the fastest last.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx2::Proof::ask().map(Self::Avx2));
            all.extend(avx512::Proof::ask().map(Self::Avx512));
        }
        all
    }

    /// The name of the kernel, for a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2 with FMA",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "AVX-512",
        }
    }

    /// Adds the forces of these points on the sinks.
    pub(crate) fn points(
        self,
        sources: &[[f32; 4]],
        sinks: &[Lanes],
        rule: Rule,
        sums: &mut [SinkForces],
    ) {
        match self {
            Self::Portable => points::<Common>((), sources, sinks, rule, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::points(proof, sources, sinks, rule, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => avx512::points(proof, sources, sinks, rule, sums),
        }
    }

    /// Tests [`LANES`] balls from each start on against a box; all columns must extend that far.
    pub(crate) fn look(self, cuboid: Cuboid, balls: Balls, starts: &[u32], looks: &mut Vec<Look>) {
        match self {
            Self::Portable => look::<Common>((), cuboid, balls, starts, looks),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::look(proof, cuboid, balls, starts, looks),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => avx512::look(proof, cuboid, balls, starts, looks),
        }
    }

    /// Adds the derivatives of the field of these sources, with or without second moments.
    pub(crate) fn expand(
        self,
        sources: &[Far],
        quads: bool,
        frame: &SeriesGroup,
        sums: &mut Derivatives,
        taken: &mut Vec<u32>,
    ) {
        match self {
            Self::Portable => expand::<Common>((), sources, quads, frame, sums, taken),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::expand(proof, sources, quads, frame, sums, taken),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => avx512::expand(proof, sources, quads, frame, sums, taken),
        }
    }

    /// Adds the field of a series to the sinks; lengths are `unit` times those of the sinks.
    pub(crate) fn evaluate(
        self,
        series: &[f32; TERMS],
        unit: f32,
        sinks: &[Lanes],
        potential: bool,
        sums: &mut [SinkForces],
    ) {
        match self {
            Self::Portable => evaluate::<Common>((), series, unit, sinks, potential, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::evaluate(proof, series, unit, sinks, potential, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => avx512::evaluate(proof, series, unit, sinks, potential, sums),
        }
    }

    /// Adds the forces of these far cells on the sinks.
    pub(crate) fn quads(
        self,
        sources: &[Quad],
        sinks: &[Lanes],
        rule: Rule,
        sums: &mut [SinkForces],
    ) {
        match self {
            Self::Portable => quads::<Common>((), sources, sinks, rule, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::quads(proof, sources, sinks, rule, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => avx512::quads(proof, sources, sinks, rule, sums),
        }
    }
}

/// A box that balls are tested against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuboid {
    pub low: [f32; 3],
    pub high: [f32; 3],
}

/// Balls side by side: x, y and z of their middles and the squares of their radii, a column each.
///
/// The square of a radius is `scale` times its column, but at least the value of the column of
/// lower limits.
#[derive(Clone, Copy)]
pub(crate) struct Balls<'a> {
    pub middle: [&'a [f32]; 3],
    pub radius_squared: &'a [f32],
    pub least_squared: &'a [f32],
    pub scale: f32,
}

/// The results for [`LANES`] balls side by side, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Every point of the box lies outside the ball.
    pub far: u32,
    /// Every point of the box lies in the ball.
    pub near: u32,
}

/// Operations are not contracted, and rounding preserves order. So a cell that is far from a box,
/// or near to it, is so for each box inside.
#[inline(always)]
fn look<W: Wide>(
    proof: W::Proof,
    cuboid: Cuboid,
    balls: Balls,
    starts: &[u32],
    looks: &mut Vec<Look>,
) {
    looks.clear();
    let (zero, scale) = (W::splat(proof, 0.0), W::splat(proof, balls.scale));
    let [low, high] = [splat_each(proof, cuboid.low), splat_each(proof, cuboid.high)];
    for &start in starts {
        let [x, y, z] = balls.middle;
        let middle = [sixteen(x, start), sixteen(y, start), sixteen(z, start)];
        let least = sixteen(balls.least_squared, start);
        let radius = sixteen(balls.radius_squared, start);
        let (mut outside_ball, mut beyond_ball) = (0, 0);
        for first in (0..LANES).step_by(W::COUNT) {
            let (mut nearest, mut farthest) = (zero, zero);
            for axis in 0..3 {
                let middle = W::load(proof, middle[axis], first);
                let (below, above) = (low[axis] - middle, middle - high[axis]);
                let outside = below.greater(above).greater(zero);
                nearest = outside.times_plus(outside, nearest);
                let across = (high[axis] - middle).greater(middle - low[axis]);
                farthest = across.times_plus(across, farthest);
            }
            let least = W::load(proof, least, first);
            let radius = (W::load(proof, radius, first) * scale).greater(least);
            outside_ball |= nearest.above(radius) << first;
            beyond_ball |= farthest.above(radius) << first;
        }
        looks.push(Look { far: outside_ball, near: !beyond_ball });
    }
}

#[inline(always)]
fn splat_each<W: Wide, const N: usize>(proof: W::Proof, values: [f32; N]) -> [W; N] {
    let mut all = [W::splat(proof, 0.0); N];
    for (one, value) in all.iter_mut().zip(values) {
        *one = W::splat(proof, value);
    }
    all
}

#[inline(always)]
fn sixteen(column: &[f32], start: u32) -> &[f32; LANES] {
    let start = start as usize;
    column[start..start + LANES].try_into().expect("columns extend beyond the last ball")
}

#[inline(always)]
fn expand<W: Wide>(
    proof: W::Proof,
    sources: &[Far],
    quads: bool,
    frame: &SeriesGroup,
    sums: &mut Derivatives,
    taken: &mut Vec<u32>,
) {
    if quads {
        series::expand::<W, true>(proof, sources, frame, sums, taken);
    } else {
        series::expand::<W, false>(proof, sources, frame, sums, taken);
    }
}

#[inline(always)]
fn evaluate<W: Wide>(
    proof: W::Proof,
    series: &[f32; TERMS],
    unit: f32,
    sinks: &[Lanes],
    potential: bool,
    sums: &mut [SinkForces],
) {
    if potential {
        series::evaluate::<W, true>(proof, series, unit, sinks, sums);
    } else {
        series::evaluate::<W, false>(proof, series, unit, sinks, sums);
    }
}

/// The potential that a body adds to its own sum, for it is in its own list; it is subtracted
/// later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelfPotential {
    /// The parts of the inverse cube of the softening length; none if a body does not act on
    /// itself.
    parts: Option<[f32; 3]>,
    softening_squared: f32,
}

impl SelfPotential {
    pub(crate) fn new(softening_squared: f32) -> Self {
        let parts = (softening_squared > POINT_BLIND)
            .then(|| inverse_cube((), Plain::splat((), softening_squared)).map(|part| part.0[0]));
        Self { parts, softening_squared }
    }

    /// The potential of a body with this mass, as [`points`] rounds it.
    pub(crate) fn potential(&self, mass: f32) -> f64 {
        let well = self.parts.map_or(0.0, |[a, b, c]| mass * a * b * c * self.softening_squared);
        -f64::from(well) * CUBE_LEAD
    }
}

/// Numbers side by side, as many as fit into a register; each operation rounds each of them by IEEE
/// 754.
pub(crate) trait Wide:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// The number of numbers, which divides [`LANES`].
    const COUNT: usize;
    /// Whether there are enough registers for two sources at a time.
    const PAIRS: bool;
    /// Proof that the processor supports the instructions; required to construct a value, and so
    /// for all operations.
    type Proof: Copy;

    fn splat(proof: Self::Proof, value: f32) -> Self;
    /// Loads the numbers from `first` on, a multiple of the count.
    fn load(proof: Self::Proof, values: &[f32; LANES], first: usize) -> Self;
    /// Stores the numbers from `first` on.
    fn store(self, values: &mut [f32; LANES], first: usize);
    /// This times `factor` plus `more`, rounded once.
    fn times_plus(self, factor: Self, more: Self) -> Self;
    /// `from` less this times `factor`, rounded once.
    fn times_from(self, factor: Self, from: Self) -> Self;
    /// [`SEED`] less half of the bits.
    fn seed(self) -> Self;
    /// This where `what` is above `bound`, otherwise zero.
    fn where_above(self, what: Self, bound: Self) -> Self;
    /// The greater of both numbers, neither of which is NaN.
    fn greater(self, other: Self) -> Self;
    /// Whether this is above the other: a bit per lane, the first lane's lowest.
    fn above(self, other: Self) -> u32;
}

/// Three numbers whose product is s^(-3/2) / [`CUBE_LEAD`].
#[inline(always)]
fn inverse_cube<W: Wide>(proof: W::Proof, s: W) -> [W; 3] {
    let [c0, c1, c2, c3] = splat_each(proof, CUBE);
    let seed = s.seed();
    let square = seed * seed;
    let e = s.times_from(square, W::splat(proof, MIDDLE));
    let f = (e + c3).times_plus(e, c2).times_plus(e, c1).times_plus(e, c0);
    [seed, square, f]
}

/// The number s^(-1/2) / [`ROOT_LEAD`].
#[inline(always)]
pub(crate) fn inverse_root<W: Wide>(proof: W::Proof, s: W) -> W {
    let [c0, c1, c2] = splat_each(proof, ROOT);
    let seed = s.seed();
    let e = s.times_from(seed * seed, W::splat(proof, MIDDLE));
    seed * (e + c2).times_plus(e, c1).times_plus(e, c0)
}

#[inline(always)]
fn points<W: Wide>(
    proof: W::Proof,
    sources: &[[f32; 4]],
    sinks: &[Lanes],
    rule: Rule,
    sums: &mut [SinkForces],
) {
    let all = (sources, sinks, rule.softening_squared, sums);
    match (rule.potential, rule.softening_squared > POINT_BLIND) {
        (true, true) => points_so::<W, true, false>(proof, all),
        (true, false) => points_so::<W, true, true>(proof, all),
        (false, true) => points_so::<W, false, false>(proof, all),
        (false, false) => points_so::<W, false, true>(proof, all),
    }
}

/// BLIND: whether distances can be so small that [`POINT_BLIND`] matters.
#[inline(always)]
fn points_so<W: Wide, const POTENTIAL: bool, const BLIND: bool>(
    proof: W::Proof,
    (sources, sinks, softening_squared, sums): (&[[f32; 4]], &[Lanes], f32, &mut [SinkForces]),
) {
    let softening_squared = W::splat(proof, softening_squared);
    let blind = W::splat(proof, POINT_BLIND);
    for (sink, sum) in sinks.iter().zip(sums) {
        for first in (0..LANES).step_by(W::COUNT) {
            let sink_x = W::load(proof, &sink[0], first);
            let sink_y = W::load(proof, &sink[1], first);
            let sink_z = W::load(proof, &sink[2], first);
            let zero = W::splat(proof, 0.0);
            let (ax, ay, az, depth) = (zero, zero, zero, zero);
            let sink = [sink_x, sink_y, sink_z];
            let mut felt = [ax, ay, az, depth];
            let (pairs, last) = sources.as_chunks::<2>();
            let (pairs, last) = if W::PAIRS { (pairs, last) } else { (&[][..], sources) };
            for pair in pairs {
                let both = pulls::<W, 2, BLIND>(proof, pair, sink, softening_squared, blind);
                felt = add_pull::<W, POTENTIAL>(felt, both[0]);
                felt = add_pull::<W, POTENTIAL>(felt, both[1]);
            }
            for one in last {
                let [one] = pulls::<W, 1, BLIND>(proof, &[*one], sink, softening_squared, blind);
                felt = add_pull::<W, POTENTIAL>(felt, one);
            }
            let [ax, ay, az, depth] = felt;
            add_force(sum, first, [ax, ay, az], CUBE_LEAD);
            if POTENTIAL {
                add_depth(sum, first, depth, CUBE_LEAD);
            }
        }
    }
}

/// A source as a sink sees it: x, y and z of the vector to it, the softened square of the distance,
/// and the factor of the vector.
type Pull<W> = [W; 5];

#[inline(always)]
fn add_pull<W: Wide, const POTENTIAL: bool>(
    [ax, ay, az, depth]: [W; 4],
    [x, y, z, square, weight]: Pull<W>,
) -> [W; 4] {
    let depth = if POTENTIAL { weight.times_plus(square, depth) } else { depth };
    [weight.times_plus(x, ax), weight.times_plus(y, ay), weight.times_plus(z, az), depth]
}

/// Processes sources side by side, step by step: while an operation waits for the one before, the
/// other source's is executed.
#[inline(always)]
fn pulls<W: Wide, const N: usize, const BLIND: bool>(
    proof: W::Proof,
    sources: &[[f32; 4]; N],
    sink: [W; 3],
    softening_squared: W,
    blind: W,
) -> [Pull<W>; N] {
    let mut pulls = [[softening_squared; 5]; N];
    for axis in 0..3 {
        for i in 0..N {
            let along = W::splat(proof, sources[i][axis]) - sink[axis];
            pulls[i][axis] = along;
            pulls[i][3] = along.times_plus(along, pulls[i][3]);
        }
    }
    let mut parts = [[softening_squared; 2]; N];
    for i in 0..N {
        let seed = pulls[i][3].seed();
        let square = seed * seed;
        parts[i] = [seed, square];
    }
    let [c0, c1, c2, c3] = splat_each(proof, CUBE);
    for i in 0..N {
        let [seed, square] = parts[i];
        pulls[i][4] = W::splat(proof, sources[i][3]) * seed * square;
        let e = pulls[i][3].times_from(square, W::splat(proof, MIDDLE));
        parts[i] = [e, e + c3];
    }
    for c in [c2, c1, c0] {
        for [e, f] in &mut parts {
            *f = f.times_plus(*e, c);
        }
    }
    for i in 0..N {
        pulls[i][4] = pulls[i][4] * parts[i][1];
        if BLIND {
            pulls[i][4] = pulls[i][4].where_above(pulls[i][3], blind);
        }
    }
    pulls
}

#[inline(always)]
fn quads<W: Wide>(
    proof: W::Proof,
    sources: &[Quad],
    sinks: &[Lanes],
    rule: Rule,
    sums: &mut [SinkForces],
) {
    let all = (sources, sinks, rule.softening_squared, sums);
    if rule.potential {
        quads_so::<W, true>(proof, all);
    } else {
        quads_so::<W, false>(proof, all);
    }
}

/// With d from the sink to the cell, R^2 = d^2 + eps^2, S the second moments and t half their
/// trace:
/// potential = -(m / R + 3/2 dSd / R^5 - t / R^3), acceleration = its gradient along d.
#[inline(always)]
fn quads_so<W: Wide, const POTENTIAL: bool>(
    proof: W::Proof,
    (sources, sinks, softening_squared, sums): (&[Quad], &[Lanes], f32, &mut [SinkForces]),
) {
    const SQUARE: f64 = ROOT_LEAD * ROOT_LEAD;
    let softening_squared = W::splat(proof, softening_squared);
    let along_factor = W::splat(proof, (2.5 * SQUARE) as f32);
    let depth_factor = W::splat(proof, (0.5 * SQUARE) as f32);
    let three = W::splat(proof, 3.0);
    for (sink, sum) in sinks.iter().zip(sums) {
        for first in (0..LANES).step_by(W::COUNT) {
            let sink_x = W::load(proof, &sink[0], first);
            let sink_y = W::load(proof, &sink[1], first);
            let sink_z = W::load(proof, &sink[2], first);
            let zero = W::splat(proof, 0.0);
            let (mut ax, mut ay, mut az, mut depth) = (zero, zero, zero, zero);
            for source in sources {
                let splat = |value| W::splat(proof, value);
                let [xx, yy, zz, xy, xz, yz] = source.moments;
                let x = splat(source.at[0]) - sink_x;
                let y = splat(source.at[1]) - sink_y;
                let z = splat(source.at[2]) - sink_z;
                let square = x.times_plus(x, softening_squared);
                let square = z.times_plus(z, y.times_plus(y, square));
                // A far cell is away from every sink by at least half its size: the square is above
                // zero.
                let inverse = inverse_root(proof, square);
                let inverse_square = inverse * inverse;
                let sx = z.times_plus(splat(xz), y.times_plus(splat(xy), x * splat(xx)));
                let sy = z.times_plus(splat(yz), y.times_plus(splat(yy), x * splat(xy)));
                let sz = z.times_plus(splat(zz), y.times_plus(splat(yz), x * splat(xz)));
                let along = sz.times_plus(z, sy.times_plus(y, sx * x)) * inverse_square;
                let (mass, half_trace) = (splat(source.mass), splat(source.half_trace));
                let second = along.times_plus(along_factor, zero - three * half_trace);
                let cube = inverse_square * inverse;
                let weight = inverse_square.times_plus(second, mass) * cube;
                let fifth = cube * inverse_square;
                ax = fifth.times_from(sx, weight.times_plus(x, ax));
                ay = fifth.times_from(sy, weight.times_plus(y, ay));
                az = fifth.times_from(sz, weight.times_plus(z, az));
                if POTENTIAL {
                    let second = along.times_plus(depth_factor, zero - half_trace);
                    depth = inverse.times_plus(inverse_square.times_plus(second, mass), depth);
                }
            }
            add_force(sum, first, [ax, ay, az], 1.0);
            if POTENTIAL {
                add_depth(sum, first, depth, 1.0 / SQUARE);
            }
        }
    }
}

#[inline(always)]
fn add_force<W: Wide>(sum: &mut SinkForces, first: usize, pulls: [W; 3], factor: f64) {
    for (sum, pull) in sum.iter_mut().zip(pulls) {
        add(sum, first, pull, factor);
    }
}

#[inline(always)]
fn add_depth<W: Wide>(sum: &mut SinkForces, first: usize, depth: W, factor: f64) {
    add(&mut sum[3], first, depth, -factor);
}

#[inline(always)]
pub(crate) fn add<W: Wide>(sum: &mut [f64; LANES], first: usize, what: W, factor: f64) {
    let mut values = [0.0; LANES];
    what.store(&mut values, first);
    for lane in first..first + W::COUNT {
        sum[lane] += f64::from(values[lane]) * factor;
    }
}

/// Four numbers for any processor.
#[derive(Clone, Copy)]
struct Plain([f32; 4]);

impl Plain {
    #[inline(always)]
    fn with(self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([operation(a, e), operation(b, f), operation(c, g), operation(d, h)])
    }
}

macro_rules! plain_operation {
    ($trait:ident, $method:ident) => {
        impl $trait for Plain {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.with(other, $trait::$method)
            }
        }
    };
}
plain_operation!(Add, add);
plain_operation!(Sub, sub);
plain_operation!(Mul, mul);

impl Wide for Plain {
    const COUNT: usize = 4;
    const PAIRS: bool = false;
    type Proof = ();

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    fn load((): (), values: &[f32; LANES], first: usize) -> Self {
        let mut all = [0.0; 4];
        all.copy_from_slice(&values[first..first + 4]);
        Self(all)
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES], first: usize) {
        values[first..first + 4].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn times_plus(self, factor: Self, more: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h], [i, j, k, l]) = (self.0, factor.0, more.0);
        Self([a.mul_add(e, i), b.mul_add(f, j), c.mul_add(g, k), d.mul_add(h, l)])
    }

    #[inline(always)]
    fn times_from(self, factor: Self, from: Self) -> Self {
        let [a, b, c, d] = self.0;
        Self([-a, -b, -c, -d]).times_plus(factor, from)
    }

    #[inline(always)]
    fn seed(self) -> Self {
        let mut all = self.0;
        for value in &mut all {
            *value = f32::from_bits(SEED.wrapping_sub(value.to_bits() >> 1));
        }
        Self(all)
    }

    #[inline(always)]
    fn where_above(self, what: Self, bound: Self) -> Self {
        let above = what.with(bound, |what, bound| if what > bound { 1.0 } else { 0.0 });
        self.with(above, |value, above| if above > 0.0 { value } else { 0.0 })
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn above(self, other: Self) -> u32 {
        let mut bits = 0;
        for lane in 0..4 {
            bits |= u32::from(self.0[lane] > other.0[lane]) << lane;
        }
        bits
    }
}

/// The register type of [`Kernel::Portable`].
#[cfg(not(target_arch = "x86_64"))]
type Common = Plain;
#[cfg(target_arch = "x86_64")]
type Common = sse2::Xmm;

#[cfg(target_arch = "x86_64")]
mod sse2;

/// Computes a b + c, rounded once, without an instruction for it.
///
/// In double precision the product is exact. The sum is rounded to odd: it is truncated towards
/// zero, and its last bit is set if bits were lost. Rounding that to single precision is correct
/// (S. Boldo and G. Melquiond, IEEE Trans. Comput. 57, 462, 2008).
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // The rounding error of the sum, exactly (D. E. Knuth, TAOCP 2, 4.2.2).
    let added = sum - product;
    let lost = (product - (sum - added)) + (c - added);
    let bits = sum.to_bits();
    // Not if the sum is infinite or NaN.
    let inexact = u64::from(lost.abs() > 0.0);
    let away_from_zero = (lost.to_bits() ^ bits) >> 63;
    f64::from_bits((bits - (inexact & away_from_zero)) | inexact) as f32
}

/// The entry points of a module with its own `Proof` and vector, compiled for its instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($features:literal, $vector:ident) => {
        pub(super) fn points(
            proof: Proof,
            sources: &[[f32; 4]],
            sinks: &[Lanes],
            rule: Rule,
            sums: &mut [SinkForces],
        ) {
            #[target_feature(enable = $features)]
            fn compiled(proof: Proof, a: &[[f32; 4]], b: &[Lanes], c: Rule, d: &mut [SinkForces]) {
                super::points::<$vector>(proof, a, b, c, d);
            }
            // SAFETY: a `Proof` is only made after the processor has reported these features.
            unsafe { compiled(proof, sources, sinks, rule, sums) }
        }

        pub(super) fn look(
            proof: Proof,
            cuboid: Cuboid,
            balls: Balls,
            starts: &[u32],
            looks: &mut Vec<Look>,
        ) {
            #[target_feature(enable = $features)]
            fn compiled(proof: Proof, a: Cuboid, b: Balls, c: &[u32], d: &mut Vec<Look>) {
                super::look::<$vector>(proof, a, b, c, d);
            }
            // SAFETY: a `Proof` is only made after the processor has reported these features.
            unsafe { compiled(proof, cuboid, balls, starts, looks) }
        }

        pub(super) fn expand(
            proof: Proof,
            sources: &[Far],
            quads: bool,
            frame: &SeriesGroup,
            sums: &mut Derivatives,
            taken: &mut Vec<u32>,
        ) {
            #[target_feature(enable = $features)]
            fn compiled(
                proof: Proof,
                a: &[Far],
                b: bool,
                c: &SeriesGroup,
                d: &mut Derivatives,
                e: &mut Vec<u32>,
            ) {
                super::expand::<$vector>(proof, a, b, c, d, e);
            }
            // SAFETY: a `Proof` is only made after the processor has reported these features.
            unsafe { compiled(proof, sources, quads, frame, sums, taken) }
        }

        pub(super) fn evaluate(
            proof: Proof,
            series: &[f32; TERMS],
            unit: f32,
            sinks: &[Lanes],
            potential: bool,
            sums: &mut [SinkForces],
        ) {
            #[target_feature(enable = $features)]
            fn compiled(
                proof: Proof,
                a: &[f32; TERMS],
                b: f32,
                c: &[Lanes],
                d: bool,
                e: &mut [SinkForces],
            ) {
                super::evaluate::<$vector>(proof, a, b, c, d, e);
            }
            // SAFETY: a `Proof` is only made after the processor has reported these features.
            unsafe { compiled(proof, series, unit, sinks, potential, sums) }
        }

        pub(super) fn quads(
            proof: Proof,
            sources: &[Quad],
            sinks: &[Lanes],
            rule: Rule,
            sums: &mut [SinkForces],
        ) {
            #[target_feature(enable = $features)]
            fn compiled(proof: Proof, a: &[Quad], b: &[Lanes], c: Rule, d: &mut [SinkForces]) {
                super::quads::<$vector>(proof, a, b, c, d);
            }
            // SAFETY: a `Proof` is only made after the processor has reported these features.
            unsafe { compiled(proof, sources, sinks, rule, sums) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(test)]
mod tests;
