//! Elementary and Bessel functions from operations that IEEE 754 rounds exactly.
//!
//! They give the same bits on every machine, unlike the platform's library. Their relative error is
//! about 1e-14 over the ranges that the models need. This module does not depend on bodies.

use std::f64::consts::{LN_2, SQRT_2};

/// The natural logarithm of a positive number within the normal range.
pub fn ln(x: f64) -> f64 {
    // x = m 2^k with m around 1.
    let bits = x.to_bits();
    let mut k = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52);
    if m > SQRT_2 {
        m *= 0.5;
        k += 1;
    }
    // ln m = 2 artanh s, |s| < 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for n in (0..13).rev() {
        sum = sum * square + 1.0 / f64::from(2 * n + 1);
    }
    f64::from(k) * LN_2 + 2.0 * s * sum
}

/// The exponential function, for |x| up to 700.
pub fn exp(x: f64) -> f64 {
    let k = (x / LN_2).round().clamp(-1000.0, 1000.0);
    let rest = x - k * LN_2;
    let mut sum = 1.0;
    for n in (1..19).rev() {
        sum = 1.0 + sum * rest / f64::from(n);
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// The angle in 0 to pi / 2 whose sine is x, for x of 0 to 1.
pub fn arcsin(x: f64) -> f64 {
    const HALVINGS: i32 = 4;
    let mut sine = x;
    for _ in 0..HALVINGS {
        let cosine = (1.0 - sine * sine).max(0.0).sqrt();
        sine /= (2.0 * (1.0 + cosine)).sqrt();
    }
    // At most pi / 32 now: sum of (2n)! / (4^n n!^2 (2n + 1)) s^(2n + 1).
    let square = sine * sine;
    let mut sum = 0.0;
    for n in (0..8).rev() {
        let n = f64::from(n);
        // The ratio of the next coefficient to this one.
        let ratio = (2.0 * n + 1.0) * (2.0 * n + 1.0) / ((2.0 * n + 2.0) * (2.0 * n + 3.0));
        sum = 1.0 + ratio * square * sum;
    }
    sine * sum * f64::from(1 << HALVINGS)
}

/// Modified Bessel functions at a positive x of up to 5, by their power series.
pub struct Bessel {
    /// The functions of the first kind, of orders 0 and 1.
    pub i: [f64; 2],
    /// The functions of the second kind, of orders 0 and 1.
    pub k: [f64; 2],
}

impl Bessel {
    /// Computes the functions by M. Abramowitz and I. A. Stegun, Handbook of Mathematical
    /// Functions, 9.6.10, 9.6.13 and 9.6.15.
    pub fn at(x: f64) -> Self {
        const EULER: f64 = 0.577_215_664_901_532_9;
        let quarter = 0.25 * x * x;
        let (mut i0, mut i1, mut rest) = (0.0, 0.0, 0.0);
        // (x^2 / 4)^n / n!^2, and the sum of 1 / 1 to 1 / n.
        let (mut term, mut harmonic) = (1.0, 0.0);
        for n in 0..30 {
            let n = f64::from(n);
            if n > 0.0 {
                term *= quarter / (n * n);
                harmonic += 1.0 / n;
            }
            i0 += term;
            i1 += term / (n + 1.0);
            rest += term * harmonic;
        }
        let i1 = 0.5 * x * i1;
        let k0 = rest - (ln(0.5 * x) + EULER) * i0;
        Self { i: [i0, i1], k: [k0, (1.0 / x - i1 * k0) / i0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, expected: f64) -> bool {
        (got - expected).abs() <= 2e-14 * expected.abs().max(1e-2)
    }

    #[test]
    fn functions_agree_with_the_platforms() {
        for i in 1..=2000 {
            let x = f64::from(i) * 0.013;
            assert!(near(ln(x), x.ln()), "ln {x}");
            assert!(near(ln(1.0 / x), -x.ln()), "ln 1/{x}");
            assert!(near(exp(x) / x.exp(), 1.0) && near(exp(-x) * x.exp(), 1.0), "exp {x}");
            let sine = f64::from(i) / 2000.0;
            assert!(near(arcsin(sine), sine.asin()), "arcsin {sine}");
        }
        assert_eq!((ln(1.0), exp(0.0), arcsin(0.0)), (0.0, 1.0, 0.0));
        assert!(near(ln(1e-300), -300.0 * std::f64::consts::LN_10));
    }

    #[test]
    fn bessel_functions_are_those_of_the_tables() {
        // Abramowitz and Stegun, tables 9.8 and 9.11.
        let table = [
            (0.1, 1.002_501_562, 0.050_062_526, 2.427_069_025, 9.853_844_781),
            (1.0, 1.266_065_878, 0.565_159_104, 0.421_024_438, 0.601_907_230),
            (3.0, 4.880_792_586, 3.953_370_217, 0.034_739_504, 0.040_156_431),
        ];
        for (x, i0, i1, k0, k1) in table {
            let Bessel { i, k } = Bessel::at(x);
            for (got, expected) in i.into_iter().chain(k).zip([i0, i1, k0, k1]) {
                assert!((got - expected).abs() < 1e-8, "at {x}: {got} for {expected}");
            }
        }
    }
}
