//! The inner loops: what a chunk of sources does to the bodies of a group, one body a lane.
//!
//! Only operations that IEEE 754 rounds exactly (+ - * / and square root), none contracted, each lane on its own and
//! sources in order. So the bits are the same with any instruction set: the formulas stand once, generic over a vector of
//! eight numbers. Knows nothing of trees.
#![allow(unsafe_code)]

use std::ops::{Add, Div, Mul, Sub};

/// Bodies side by side: one 256-bit register of `f32`.
pub(crate) const LANES: usize = 8;

/// Sources whose pulls are summed in single precision before they go into the double-precision sum; also what fits the
/// innermost cache together with the group.
pub(crate) const CHUNK: usize = 1024;

/// Cubes of distances (in sides of the box) up to this count as no distance and no force: softening off, two bodies at one
/// point, or a body and itself. It keeps a pull within single precision.
pub(crate) const POINT_BLIND: f32 = 1e-30;

/// x, y and z of bodies side by side.
pub(crate) type Lanes = [[f32; LANES]; 3];

/// A far cell: place and mass, second moments (xx, yy, zz, xy, xz, yz), and half their trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quad {
    at: [f32; 3],
    mass: f32,
    moments: [f32; 6],
    half_trace: f32,
}

impl Quad {
    pub(crate) fn new(at: [f32; 3], mass: f32, moments: &[f64; 6]) -> Self {
        let half_trace = 0.5 * (moments[0] + moments[1] + moments[2]);
        Self { at, mass, moments: moments.map(|m| m as f32), half_trace: half_trace as f32 }
    }
}

/// Which code computes; all give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Compiled for the target's own instruction set.
    Portable,
    /// Compiled for AVX2. Only made when the processor has it.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Proof),
}

/// What each sink feels: acceleration x, y, z and potential.
pub(crate) type Sums = [[f64; LANES]; 4];

impl Kernel {
    /// The fastest for this processor.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = avx2::Proof::ask() {
            return Self::Avx2(proof);
        }
        Self::Portable
    }

    /// For a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2",
        }
    }

    /// Adds what these points do to the sinks.
    pub(crate) fn points(
        self,
        sources: &[[f32; 4]],
        sinks: &[Lanes],
        softening_squared: f32,
        sums: &mut [Sums],
    ) {
        match self {
            Self::Portable => points::<Plain>((), sources, sinks, softening_squared, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::points(proof, sources, sinks, softening_squared, sums),
        }
    }

    /// Adds what these far cells do to the sinks.
    pub(crate) fn quads(
        self,
        sources: &[Quad],
        sinks: &[Lanes],
        softening_squared: f32,
        sums: &mut [Sums],
    ) {
        match self {
            Self::Portable => quads::<Plain>((), sources, sinks, softening_squared, sums),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::quads(proof, sources, sinks, softening_squared, sums),
        }
    }
}

/// Eight numbers side by side; each operation rounds each of them as IEEE 754 says.
trait Wide:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Proof that the processor can do it; needed to make a value, and so for all else.
    type Proof: Copy;

    fn splat(proof: Self::Proof, value: f32) -> Self;
    fn load(proof: Self::Proof, values: &[f32; LANES]) -> Self;
    fn store(self) -> [f32; LANES];
    fn sqrt(self) -> Self;
    /// This where `what` is above `bound`, else zero.
    fn where_above(self, what: Self, bound: Self) -> Self;
}

#[inline(always)]
fn points<W: Wide>(
    proof: W::Proof,
    sources: &[[f32; 4]],
    sinks: &[Lanes],
    softening_squared: f32,
    sums: &mut [Sums],
) {
    let softening_squared = W::splat(proof, softening_squared);
    let blind = W::splat(proof, POINT_BLIND);
    for (sink, sum) in sinks.iter().zip(sums) {
        let [sink_x, sink_y, sink_z] = [0, 1, 2].map(|axis| W::load(proof, &sink[axis]));
        let [mut ax, mut ay, mut az, mut depth] = [W::splat(proof, 0.0); 4];
        for &source in sources {
            let [source_x, source_y, source_z, mass] = source.map(|v| W::splat(proof, v));
            let (x, y, z) = (source_x - sink_x, source_y - sink_y, source_z - sink_z);
            let square = x * x + y * y + z * z + softening_squared;
            let cube = square * square.sqrt();
            let weight = (mass / cube).where_above(cube, blind);
            ax = ax + weight * x;
            ay = ay + weight * y;
            az = az + weight * z;
            depth = depth + weight * square;
        }
        add(sum, [ax, ay, az, depth]);
    }
}

/// With d from the sink to the cell, R^2 = d^2 + eps^2, S the second moments and t half their trace:
/// potential = -(m / R + 3/2 dSd / R^5 - t / R^3), acceleration = its gradient along d.
#[inline(always)]
fn quads<W: Wide>(
    proof: W::Proof,
    sources: &[Quad],
    sinks: &[Lanes],
    softening_squared: f32,
    sums: &mut [Sums],
) {
    let splat = |value| W::splat(proof, value);
    let softening_squared = splat(softening_squared);
    let (one, one_and_half, three, seven_and_half) =
        (splat(1.0), splat(1.5), splat(3.0), splat(7.5));
    for (sink, sum) in sinks.iter().zip(sums) {
        let [sink_x, sink_y, sink_z] = [0, 1, 2].map(|axis| W::load(proof, &sink[axis]));
        let [mut ax, mut ay, mut az, mut depth] = [splat(0.0); 4];
        for source in sources {
            let [source_x, source_y, source_z] = source.at.map(splat);
            let (mass, half_trace) = (splat(source.mass), splat(source.half_trace));
            let [xx, yy, zz, xy, xz, yz] = source.moments.map(splat);
            let (x, y, z) = (source_x - sink_x, source_y - sink_y, source_z - sink_z);
            // A far cell is away from every sink by at least half its size: no division by zero.
            let inverse_square = one / (x * x + y * y + z * z + softening_squared);
            let inverse = inverse_square.sqrt();
            let sx = (xx * x + xy * y + xz * z) * inverse_square;
            let sy = (xy * x + yy * y + yz * z) * inverse_square;
            let sz = (xz * x + yz * y + zz * z) * inverse_square;
            let along = (sx * x + sy * y + sz * z) * inverse_square;
            let trace = half_trace * inverse_square;
            let cube = inverse * inverse_square;
            let weight = mass + seven_and_half * along - three * trace;
            ax = ax + cube * (weight * x - three * sx);
            ay = ay + cube * (weight * y - three * sy);
            az = az + cube * (weight * z - three * sz);
            depth = depth + inverse * (mass + one_and_half * along - trace);
        }
        add(sum, [ax, ay, az, depth]);
    }
}

#[inline(always)]
fn add<W: Wide>(sum: &mut Sums, [ax, ay, az, depth]: [W; 4]) {
    for (component, pull) in [ax, ay, az].into_iter().enumerate() {
        for (sum, pull) in sum[component].iter_mut().zip(pull.store()) {
            *sum += f64::from(pull);
        }
    }
    for (sum, depth) in sum[3].iter_mut().zip(depth.store()) {
        *sum -= f64::from(depth);
    }
}

/// Eight numbers for any processor.
#[derive(Clone, Copy)]
struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn with(self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| operation(self.0[lane], other.0[lane])))
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
plain_operation!(Div, div);

impl Wide for Plain {
    type Proof = ();

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load((): (), values: &[f32; LANES]) -> Self {
        Self(*values)
    }

    #[inline(always)]
    fn store(self) -> [f32; LANES] {
        self.0
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    fn where_above(self, what: Self, bound: Self) -> Self {
        let above = what.with(bound, |what, bound| if what > bound { 1.0 } else { 0.0 });
        self.with(above, |value, above| if above > 0.0 { value } else { 0.0 })
    }
}

/// Eight numbers in a 256-bit register.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _CMP_GT_OQ, _mm256_add_ps, _mm256_and_ps, _mm256_cmp_ps, _mm256_div_ps,
        _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_sqrt_ps, _mm256_storeu_ps,
        _mm256_sub_ps,
    };
    use std::ops::{Add, Div, Mul, Sub};

    use super::{LANES, Lanes, Quad, Sums, Wide};

    /// Proof that the processor has AVX2.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Proof(());

    impl Proof {
        pub(super) fn ask() -> Option<Self> {
            std::arch::is_x86_feature_detected!("avx2").then_some(Self(()))
        }
    }

    pub(super) fn points(
        proof: Proof,
        sources: &[[f32; 4]],
        sinks: &[Lanes],
        softening_squared: f32,
        sums: &mut [Sums],
    ) {
        #[target_feature(enable = "avx2")]
        fn compiled(proof: Proof, a: &[[f32; 4]], b: &[Lanes], c: f32, d: &mut [Sums]) {
            super::points::<Ymm>(proof, a, b, c, d);
        }
        // SAFETY: a `Proof` is only made after the processor said that it has AVX2.
        unsafe { compiled(proof, sources, sinks, softening_squared, sums) }
    }

    pub(super) fn quads(
        proof: Proof,
        sources: &[Quad],
        sinks: &[Lanes],
        softening_squared: f32,
        sums: &mut [Sums],
    ) {
        #[target_feature(enable = "avx2")]
        fn compiled(proof: Proof, a: &[Quad], b: &[Lanes], c: f32, d: &mut [Sums]) {
            super::quads::<Ymm>(proof, a, b, c, d);
        }
        // SAFETY: a `Proof` is only made after the processor said that it has AVX2.
        unsafe { compiled(proof, sources, sinks, softening_squared, sums) }
    }

    /// Made by `splat` and `load` alone, which take a [`Proof`]; so whoever holds one runs on a processor with AVX2.
    #[derive(Clone, Copy)]
    struct Ymm(__m256);

    macro_rules! ymm_operation {
        ($trait:ident, $method:ident, $instruction:ident) => {
            impl $trait for Ymm {
                type Output = Self;

                #[inline(always)]
                fn $method(self, other: Self) -> Self {
                    // SAFETY: `self` is there, so the processor has AVX2.
                    Self(unsafe { $instruction(self.0, other.0) })
                }
            }
        };
    }
    ymm_operation!(Add, add, _mm256_add_ps);
    ymm_operation!(Sub, sub, _mm256_sub_ps);
    ymm_operation!(Mul, mul, _mm256_mul_ps);
    ymm_operation!(Div, div, _mm256_div_ps);

    impl Wide for Ymm {
        type Proof = Proof;

        #[inline(always)]
        fn splat(_: Proof, value: f32) -> Self {
            // SAFETY: the proof says that the processor has AVX2.
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        fn load(_: Proof, values: &[f32; LANES]) -> Self {
            // SAFETY: the proof says that the processor has AVX2; eight numbers are read from an array of eight.
            Self(unsafe { _mm256_loadu_ps(values.as_ptr()) })
        }

        #[inline(always)]
        fn store(self) -> [f32; LANES] {
            let mut values = [0.0; LANES];
            // SAFETY: `self` is there, so the processor has AVX2; eight numbers are written to an array of eight.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), self.0) };
            values
        }

        #[inline(always)]
        fn sqrt(self) -> Self {
            // SAFETY: `self` is there, so the processor has AVX2.
            Self(unsafe { _mm256_sqrt_ps(self.0) })
        }

        #[inline(always)]
        fn where_above(self, what: Self, bound: Self) -> Self {
            // SAFETY: `self` is there, so the processor has AVX2.
            Self(unsafe { _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_GT_OQ>(what.0, bound.0)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of all magnitudes, zero and equal ones among them.
    fn number() -> impl Strategy<Value = f32> {
        prop_oneof![Just(0.0f32), Just(0.25), -1f32..1.0, (-1f32..1.0).prop_map(|v| v * 1e-12)]
    }

    proptest! {
        #[test]
        fn every_path_gives_the_same_bits(
            points in prop::collection::vec(prop::array::uniform4(number()), 1..50),
            sinks in prop::collection::vec(prop::array::uniform3(prop::array::uniform8(number())), 1..4),
            softening in prop_oneof![Just(0f32), Just(1e-4), Just(1e-20)],
        ) {
            let bits = |kernel: Kernel| {
                let mut sums = vec![[[0.0; LANES]; 4]; sinks.len()];
                kernel.points(&points, &sinks, softening, &mut sums);
                let far = |p: &[f32; 4]| Quad::new([p[0] + 3.0, p[1], p[2]], p[3], &[0.1, 0.2, 0.3, 0.01, -0.02, 0.03]);
                let cells: Vec<Quad> = points.iter().map(far).collect();
                kernel.quads(&cells, &sinks, softening, &mut sums);
                sums.into_iter().flatten().flatten().map(f64::to_bits).collect::<Vec<_>>()
            };
            prop_assert_eq!(bits(Kernel::Portable), bits(Kernel::best()));
        }
    }

    #[test]
    fn two_points_pull_as_newton_says() {
        let sinks = [[[0.5; LANES], [0.0; LANES], [0.0; LANES]]];
        let mut sums = vec![[[0.0; LANES]; 4]];
        Kernel::best().points(
            &[[1.0, 0.0, 0.0, 0.5], [0.5, 0.0, 0.0, 9.0]],
            &sinks,
            0.0,
            &mut sums,
        );
        // The second source lies on the sink: without softening it counts as the sink itself.
        assert_eq!(sums[0].map(|component| component[0]), [2.0, 0.0, 0.0, -1.0]);
    }

    #[test]
    fn a_far_cell_acts_as_its_points_to_third_order() {
        // Four points seen from further and further. The first term left out is smaller than the monopole by the cube of
        // size / distance: twice the distance, an eighth of the relative error of the force.
        let cloud: [[f32; 4]; 4] = [
            [0.1, 0.0, 0.05, 0.1],
            [-0.1, 0.1, 0.0, 0.2],
            [0.05, -0.1, 0.1, 0.3],
            [0.0, 0.02, -0.1, 0.4],
        ];
        let mass: f32 = cloud.iter().map(|p| p[3]).sum();
        let com = [0, 1, 2].map(|k| cloud.iter().map(|p| p[k] * p[3]).sum::<f32>() / mass);
        let mut moments = [0.0; 6];
        for p in &cloud {
            let d = [0, 1, 2].map(|k| f64::from(p[k] - com[k]));
            for (k, (i, j)) in
                [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)].into_iter().enumerate()
            {
                moments[k] += f64::from(p[3]) * d[i] * d[j];
            }
        }
        let quad = Quad::new(com, mass, &moments);
        let mut last: Option<f64> = None;
        for distance in [0.8f32, 1.6, 3.2] {
            let d = distance / 14f32.sqrt();
            let sinks = [[[d; LANES], [2.0 * d; LANES], [3.0 * d; LANES]]];
            let feel = |exact: bool| {
                let mut sums = vec![[[0.0; LANES]; 4]];
                if exact {
                    Kernel::best().points(&cloud, &sinks, 0.01, &mut sums);
                } else {
                    Kernel::best().quads(&[quad], &sinks, 0.01, &mut sums);
                }
                sums[0].map(|component| component[0])
            };
            let (exact, near) = (feel(true), feel(false));
            let error = (0..3).map(|k| (exact[k] - near[k]).powi(2)).sum::<f64>().sqrt();
            let relative = error * f64::from(distance).powi(2);
            assert!((exact[3] - near[3]).abs() / exact[3].abs() < 0.02);
            if let Some(last) = last {
                assert!(relative < last / 5.0 + 1e-6, "{relative} after {last} at {distance}");
            }
            last = Some(relative);
        }
    }
}
