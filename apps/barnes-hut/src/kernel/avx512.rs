//! Sixteen numbers in a 512-bit register.

use std::arch::x86_64::{
    __m512, _CMP_GT_OQ, _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps,
    _mm512_max_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_srli_epi32,
    _mm512_storeu_ps, _mm512_sub_epi32, _mm512_sub_ps,
};
use std::ops::{Add, Mul, Sub};

use super::{
    Balls, Cuboid, Derivatives, Far, LANES, Lanes, Look, Quad, Rule, SEED, SeriesGroup, SinkForces,
    TERMS, Wide,
};

/// Proof that the processor has AVX-512's foundation, which includes fused multiply-adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof(());

impl Proof {
    pub(super) fn ask() -> Option<Self> {
        std::arch::is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

entries!("avx512f", Zmm);

/// Made only by `splat` and `load`, which take a [`Proof`]; so a value exists only on a processor
/// with AVX-512.
#[derive(Clone, Copy)]
struct Zmm(__m512);

macro_rules! zmm_operation {
    ($trait:ident, $method:ident, $instruction:ident) => {
        impl $trait for Zmm {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: `self` exists, so the processor has AVX-512.
                Self(unsafe { $instruction(self.0, other.0) })
            }
        }
    };
}
zmm_operation!(Add, add, _mm512_add_ps);
zmm_operation!(Sub, sub, _mm512_sub_ps);
zmm_operation!(Mul, mul, _mm512_mul_ps);

impl Wide for Zmm {
    const COUNT: usize = LANES;
    const PAIRS: bool = true;
    type Proof = Proof;

    #[inline(always)]
    fn splat(_: Proof, value: f32) -> Self {
        // SAFETY: the proof says that the processor has AVX-512.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    fn load(_: Proof, values: &[f32; LANES], _first: usize) -> Self {
        // SAFETY: the proof says that the processor has AVX-512; sixteen numbers are read from an
        // array of sixteen.
        Self(unsafe { _mm512_loadu_ps(values.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES], _first: usize) {
        // SAFETY: `self` exists, so the processor has AVX-512; sixteen numbers are written to an
        // array of sixteen.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn times_plus(self, factor: Self, more: Self) -> Self {
        // SAFETY: `self` exists, so the processor has AVX-512.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, more.0) })
    }

    #[inline(always)]
    fn times_from(self, factor: Self, from: Self) -> Self {
        // SAFETY: `self` exists, so the processor has AVX-512.
        Self(unsafe { _mm512_fnmadd_ps(self.0, factor.0, from.0) })
    }

    #[inline(always)]
    fn seed(self) -> Self {
        // SAFETY: `self` exists, so the processor has AVX-512.
        Self(unsafe {
            let half = _mm512_srli_epi32::<1>(_mm512_castps_si512(self.0));
            _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(SEED as i32), half))
        })
    }

    #[inline(always)]
    fn where_above(self, what: Self, bound: Self) -> Self {
        // SAFETY: `self` exists, so the processor has AVX-512.
        Self(unsafe {
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(what.0, bound.0);
            _mm512_maskz_mov_ps(above, self.0)
        })
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        // SAFETY: `self` exists, so the processor has AVX-512.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn above(self, other: Self) -> u32 {
        // SAFETY: `self` exists, so the processor has AVX-512.
        u32::from(unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0) })
    }
}
