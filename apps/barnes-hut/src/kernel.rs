//! The inner loops: what a chunk of sources does to the bodies of a group, one body a lane.
//!
//! Only operations that IEEE 754 rounds exactly (+ - * / and square root), none contracted, each lane on its own and
//! sources in order. So the bits are the same with any instruction set, and the wide path below is the same code compiled
//! for wider registers. Knows nothing of trees.
#![allow(unsafe_code)]

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
    Avx2(HasAvx2),
}

/// Proof that the processor has AVX2: made by [`Kernel::best`] alone.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HasAvx2(());

impl Kernel {
    /// The fastest for this processor.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Self::Avx2(HasAvx2(()));
        }
        Self::Portable
    }

    /// Adds what these points do to the sinks: acceleration x, y, z and potential.
    pub(crate) fn points(
        self,
        sources: &[[f32; 4]],
        sinks: &[Lanes],
        softening_squared: f32,
        sums: &mut [[[f64; LANES]; 4]],
    ) {
        match self {
            Self::Portable => points(sources, sinks, softening_squared, sums),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `HasAvx2` is made only after the processor was asked for AVX2.
            Self::Avx2(HasAvx2(())) => unsafe {
                points_avx2(sources, sinks, softening_squared, sums);
            },
        }
    }

    /// Adds what these far cells do to the sinks.
    pub(crate) fn quads(
        self,
        sources: &[Quad],
        sinks: &[Lanes],
        softening_squared: f32,
        sums: &mut [[[f64; LANES]; 4]],
    ) {
        match self {
            Self::Portable => quads(sources, sinks, softening_squared, sums),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `HasAvx2` is made only after the processor was asked for AVX2.
            Self::Avx2(HasAvx2(())) => unsafe {
                quads_avx2(sources, sinks, softening_squared, sums);
            },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn points_avx2(
    sources: &[[f32; 4]],
    sinks: &[Lanes],
    softening_squared: f32,
    sums: &mut [[[f64; LANES]; 4]],
) {
    points(sources, sinks, softening_squared, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quads_avx2(
    sources: &[Quad],
    sinks: &[Lanes],
    softening_squared: f32,
    sums: &mut [[[f64; LANES]; 4]],
) {
    quads(sources, sinks, softening_squared, sums);
}

#[inline(always)]
fn points(
    sources: &[[f32; 4]],
    sinks: &[Lanes],
    softening_squared: f32,
    sums: &mut [[[f64; LANES]; 4]],
) {
    for (sink, sum) in sinks.iter().zip(sums) {
        let mut pull = [[0f32; LANES]; 4];
        for &[sx, sy, sz, mass] in sources {
            for lane in 0..LANES {
                let x = sx - sink[0][lane];
                let y = sy - sink[1][lane];
                let z = sz - sink[2][lane];
                let square = x * x + y * y + z * z + softening_squared;
                let cube = square * square.sqrt();
                let weight = if cube > POINT_BLIND { mass / cube } else { 0.0 };
                pull[0][lane] += weight * x;
                pull[1][lane] += weight * y;
                pull[2][lane] += weight * z;
                pull[3][lane] -= weight * square;
            }
        }
        add(sum, &pull);
    }
}

/// With d from the sink to the cell, R^2 = d^2 + eps^2, S the second moments and t half their trace:
/// potential = -(m / R + 3/2 dSd / R^5 - t / R^3), acceleration = its gradient along d.
#[inline(always)]
fn quads(
    sources: &[Quad],
    sinks: &[Lanes],
    softening_squared: f32,
    sums: &mut [[[f64; LANES]; 4]],
) {
    for (sink, sum) in sinks.iter().zip(sums) {
        let mut pull = [[0f32; LANES]; 4];
        for source in sources {
            let [xx, yy, zz, xy, xz, yz] = source.moments;
            for lane in 0..LANES {
                let x = source.at[0] - sink[0][lane];
                let y = source.at[1] - sink[1][lane];
                let z = source.at[2] - sink[2][lane];
                // A far cell is away from every sink by at least half its size: no division by zero.
                let inverse_square = 1.0 / (x * x + y * y + z * z + softening_squared);
                let inverse = inverse_square.sqrt();
                let sx = (xx * x + xy * y + xz * z) * inverse_square;
                let sy = (xy * x + yy * y + yz * z) * inverse_square;
                let sz = (xz * x + yz * y + zz * z) * inverse_square;
                let along = (sx * x + sy * y + sz * z) * inverse_square;
                let trace = source.half_trace * inverse_square;
                let cube = inverse * inverse_square;
                let weight = source.mass + 7.5 * along - 3.0 * trace;
                pull[0][lane] += cube * (weight * x - 3.0 * sx);
                pull[1][lane] += cube * (weight * y - 3.0 * sy);
                pull[2][lane] += cube * (weight * z - 3.0 * sz);
                pull[3][lane] -= inverse * (source.mass + 1.5 * along - trace);
            }
        }
        add(sum, &pull);
    }
}

#[inline(always)]
fn add(sum: &mut [[f64; LANES]; 4], pull: &[[f32; LANES]; 4]) {
    for (sum, pull) in sum.iter_mut().zip(pull) {
        for (sum, pull) in sum.iter_mut().zip(pull) {
            *sum += f64::from(*pull);
        }
    }
}
