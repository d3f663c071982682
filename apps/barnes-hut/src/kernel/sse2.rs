//! Four numbers in a 128-bit register of any x86-64 processor.
//!
//! There is no instruction for the fused multiply-add, for which the compiler would call the
//! library number by number.

use std::arch::x86_64::{
    __m128, __m128d, _mm_add_pd, _mm_add_ps, _mm_and_ps, _mm_and_si128, _mm_castpd_ps,
    _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_cmpgt_epi32, _mm_cmpgt_ps,
    _mm_cvtpd_ps, _mm_cvtps_pd, _mm_loadu_ps, _mm_max_ps, _mm_movehl_ps, _mm_movelh_ps,
    _mm_movemask_epi8, _mm_movemask_ps, _mm_mul_pd, _mm_mul_ps, _mm_or_si128, _mm_set1_epi32,
    _mm_set1_ps, _mm_shuffle_ps, _mm_srli_epi32, _mm_storeu_ps, _mm_sub_epi32, _mm_sub_ps,
    _mm_xor_ps,
};
use std::ops::{Add, Mul, Sub};

use super::{LANES, SEED, Wide, fused};

#[derive(Clone, Copy)]
pub(super) struct Xmm(__m128);

macro_rules! xmm_operation {
    ($trait:ident, $method:ident, $instruction:ident) => {
        impl $trait for Xmm {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: every processor of this architecture has SSE2.
                Self(unsafe { $instruction(self.0, other.0) })
            }
        }
    };
}
xmm_operation!(Add, add, _mm_add_ps);
xmm_operation!(Sub, sub, _mm_sub_ps);
xmm_operation!(Mul, mul, _mm_mul_ps);

/// The fused operation of the two numbers in the lower half of each register, before it is rounded
/// to single precision.
#[inline(always)]
fn half(a: __m128, b: __m128, c: __m128) -> __m128d {
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c)) }
}

#[cold]
fn one_by_one(a: Xmm, b: Xmm, c: Xmm) -> Xmm {
    let [a, b, c] = [a, b, c].map(|x| {
        let mut values = [0.0; LANES];
        x.store(&mut values, 0);
        values
    });
    Xmm::load((), &std::array::from_fn(|lane| fused(a[lane], b[lane], c[lane])), 0)
}

impl Wide for Xmm {
    const COUNT: usize = 4;
    const PAIRS: bool = false;
    type Proof = ();

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        // SAFETY: every processor of this architecture has SSE2.
        Self(unsafe { _mm_set1_ps(value) })
    }

    #[inline(always)]
    fn load((): (), values: &[f32; LANES], first: usize) -> Self {
        let four = &values[first..first + 4];
        // SAFETY: four numbers are read from a slice of four.
        Self(unsafe { _mm_loadu_ps(four.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES], first: usize) {
        let four = &mut values[first..first + 4];
        // SAFETY: four numbers are written to a slice of four.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), self.0) }
    }

    /// Fused multiply-add by way of double precision, where the product is exact.
    ///
    /// The sum is rounded twice. That is harmless except in two cases. The sum lies half-way
    /// between two numbers of single precision (its last 29 bits are a one and zeros), or below the
    /// smallest normal number. These cases take the slow path.
    #[inline(always)]
    fn times_plus(self, factor: Self, more: Self) -> Self {
        let (a, b, c) = (self.0, factor.0, more.0);
        // SAFETY: every processor of this architecture has SSE2.
        unsafe {
            let low = half(a, b, c);
            let high = half(_mm_movehl_ps(a, a), _mm_movehl_ps(b, b), _mm_movehl_ps(c, c));
            let (l, h) = (_mm_castpd_ps(low), _mm_castpd_ps(high));
            let last = _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(l, h));
            let first = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(l, h));
            let between = _mm_cmpeq_epi32(
                _mm_and_si128(last, _mm_set1_epi32(0x1fff_ffff)),
                _mm_set1_epi32(0x1000_0000),
            );
            let size = _mm_and_si128(first, _mm_set1_epi32(0x7fff_ffff));
            let tiny = _mm_cmpgt_epi32(_mm_set1_epi32(0x3810_0000), size);
            if _mm_movemask_epi8(_mm_or_si128(between, tiny)) != 0 {
                return one_by_one(self, factor, more);
            }
            Self(_mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high)))
        }
    }

    #[inline(always)]
    fn times_from(self, factor: Self, from: Self) -> Self {
        // SAFETY: every processor of this architecture has SSE2.
        let negative = Self(unsafe { _mm_xor_ps(self.0, _mm_set1_ps(-0.0)) });
        negative.times_plus(factor, from)
    }

    #[inline(always)]
    fn seed(self) -> Self {
        // SAFETY: every processor of this architecture has SSE2.
        Self(unsafe {
            let half = _mm_srli_epi32::<1>(_mm_castps_si128(self.0));
            _mm_castsi128_ps(_mm_sub_epi32(_mm_set1_epi32(SEED as i32), half))
        })
    }

    #[inline(always)]
    fn where_above(self, what: Self, bound: Self) -> Self {
        // SAFETY: every processor of this architecture has SSE2.
        Self(unsafe { _mm_and_ps(self.0, _mm_cmpgt_ps(what.0, bound.0)) })
    }

    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        // SAFETY: every processor of this architecture has SSE2.
        Self(unsafe { _mm_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn above(self, other: Self) -> u32 {
        // SAFETY: every processor of this architecture has SSE2.
        unsafe { _mm_movemask_ps(_mm_cmpgt_ps(self.0, other.0)) as u32 }
    }
}
