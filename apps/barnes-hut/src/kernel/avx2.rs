//! Sixteen numbers in two 256-bit registers.

use std::arch::x86_64::{
    __m256, _CMP_GT_OQ, _mm256_add_ps, _mm256_and_ps, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_srli_epi32,
    _mm256_storeu_ps, _mm256_sub_epi32, _mm256_sub_ps,
};
use std::ops::{Add, Mul, Sub};

use super::{
    Balls, Cuboid, Derivatives, Far, LANES, Lanes, Look, Quad, Rule, SEED, SeriesGroup, SinkForces,
    TERMS, Wide,
};

/// Proof that the processor has AVX2 and fused multiply-adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof(());

impl Proof {
    pub(super) fn ask() -> Option<Self> {
        let both = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma");
        both.then_some(Self(()))
    }
}

entries!("avx2,fma", Ymm);

/// Made only by `splat` and `load`, which take a [`Proof`]; so a value exists only on a processor
/// with these features.
#[derive(Clone, Copy)]
struct Ymm([__m256; 2]);

macro_rules! ymm_operation {
    ($trait:ident, $method:ident, $instruction:ident) => {
        impl $trait for Ymm {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let ([a, b], [c, d]) = (self.0, other.0);
                // SAFETY: `self` exists, so the processor has AVX2.
                Self(unsafe { [$instruction(a, c), $instruction(b, d)] })
            }
        }
    };
}
ymm_operation!(Add, add, _mm256_add_ps);
ymm_operation!(Sub, sub, _mm256_sub_ps);
ymm_operation!(Mul, mul, _mm256_mul_ps);

impl Wide for Ymm {
    const COUNT: usize = LANES;
    // One source at a time: two do not fit into sixteen registers.
    const PAIRS: bool = false;
    type Proof = Proof;

    #[inline(always)]
    fn splat(_: Proof, value: f32) -> Self {
        // SAFETY: the proof says that the processor has AVX2.
        let one = unsafe { _mm256_set1_ps(value) };
        Self([one, one])
    }

    #[inline(always)]
    fn load(_: Proof, values: &[f32; LANES], _first: usize) -> Self {
        let (low, high) = values.split_at(LANES / 2);
        // SAFETY: the proof says that the processor has AVX2; eight numbers are read from either
        // half of sixteen.
        Self(unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] })
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES], _first: usize) {
        let (low, high) = values.split_at_mut(LANES / 2);
        // SAFETY: `self` exists, so the processor has AVX2; eight numbers are written to either
        // half of sixteen.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), self.0[0]);
            _mm256_storeu_ps(high.as_mut_ptr(), self.0[1]);
        }
    }

    #[inline(always)]
    fn times_plus(self, factor: Self, more: Self) -> Self {
        let ([a, b], [c, d], [e, f]) = (self.0, factor.0, more.0);
        // SAFETY: `self` exists, so the processor has fused multiply-adds.
        Self(unsafe { [_mm256_fmadd_ps(a, c, e), _mm256_fmadd_ps(b, d, f)] })
    }

    #[inline(always)]
    fn times_from(self, factor: Self, from: Self) -> Self {
        let ([a, b], [c, d], [e, f]) = (self.0, factor.0, from.0);
        // SAFETY: `self` exists, so the processor has fused multiply-adds.
        Self(unsafe { [_mm256_fnmadd_ps(a, c, e), _mm256_fnmadd_ps(b, d, f)] })
    }

    #[inline(always)]
    fn seed(self) -> Self {
        let [a, b] = self.0;
        // SAFETY: `self` exists, so the processor has AVX2.
        Self(unsafe {
            let seed = _mm256_set1_epi32(SEED as i32);
            let a = _mm256_srli_epi32::<1>(_mm256_castps_si256(a));
            let b = _mm256_srli_epi32::<1>(_mm256_castps_si256(b));
            [
                _mm256_castsi256_ps(_mm256_sub_epi32(seed, a)),
                _mm256_castsi256_ps(_mm256_sub_epi32(seed, b)),
            ]
        })
    }

    #[inline(always)]
    fn where_above(self, what: Self, bound: Self) -> Self {
        let ([a, b], [c, d], [e, f]) = (self.0, what.0, bound.0);
        // SAFETY: `self` exists, so the processor has AVX2.
        Self(unsafe {
            [
                _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_GT_OQ>(c, e)),
                _mm256_and_ps(b, _mm256_cmp_ps::<_CMP_GT_OQ>(d, f)),
            ]
        })
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        // SAFETY: `self` exists, so the processor has AVX2.
        Self(unsafe { [_mm256_max_ps(a, c), _mm256_max_ps(b, d)] })
    }

    #[inline(always)]
    fn above(self, other: Self) -> u32 {
        let ([a, b], [c, d]) = (self.0, other.0);
        // SAFETY: `self` exists, so the processor has AVX2.
        let [low, high] = unsafe {
            [
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, c)),
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(b, d)),
            ]
        };
        low as u32 | (high as u32) << 8
    }
}
