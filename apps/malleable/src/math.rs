//! Sines, exponentials and random numbers with the same bits on every machine.
//!
//! They use only `+ - * /`, for the system's functions may differ between processors. Source of the
//! random numbers: NAS Parallel Benchmarks, `x' = 5^13 x mod 2^46`, which can start at any index.

/// The cosine and sine of `k / n` of a whole turn, for a power of two `n`, to the last bits of a
/// double.
pub fn turn(k: u32, n: u32) -> (f64, f64) {
    // Reduced to an eighth of a turn, where the series are short.
    let eighths = u64::from(k % n) * 8;
    let (octant, rest) = (eighths / u64::from(n), eighths % u64::from(n));
    let odd = octant % 2 == 1;
    let part = if odd { u64::from(n) - rest } else { rest };
    let angle = std::f64::consts::FRAC_PI_4 * (part as f64 / f64::from(n));
    let (cos, sin) = small_turn(angle);
    // Odd octants are mirrored at their end.
    match (octant, odd) {
        (0, _) => (cos, sin),
        (1, _) => (sin, cos),
        (2, _) => (-sin, cos),
        (3, _) => (-cos, sin),
        (4, _) => (-cos, -sin),
        (5, _) => (-sin, -cos),
        (6, _) => (sin, -cos),
        _ => (cos, -sin),
    }
}

/// The cosine and sine of an angle from 0 to a quarter of pi.
fn small_turn(angle: f64) -> (f64, f64) {
    let square = angle * angle;
    // From the smallest term up; the first omitted one is below 1e-18.
    let series = |first: u32| {
        (0..9).rev().fold(1.0, |sum, term| {
            let n = f64::from(first + 2 * term);
            1.0 - sum * square / (n * (n + 1.0))
        })
    };
    (series(1), angle * series(2))
}

/// `e` to a power of at most 0.
pub fn exp(power: f64) -> f64 {
    // After the halvings the series is short, and each squaring undoes one.
    let mut halvings = 0;
    let mut small = power;
    while small < -0.03125 {
        small /= 2.0;
        halvings += 1;
    }
    let mut value = (1..=10u32).rev().fold(1.0, |sum, n| 1.0 + sum * small / f64::from(n));
    for _ in 0..halvings {
        value *= value;
    }
    value
}

const MODULUS: u64 = 1 << 46;
const FACTOR: u64 = 1_220_703_125;

/// Random numbers from 0 to 1 that can start at any index.
pub struct Random(u64);

impl Random {
    /// The numbers from index `place` on.
    pub fn at(seed: u64, place: u64) -> Self {
        let (mut state, mut factor, mut left) = (seed % MODULUS, FACTOR, place);
        while left > 0 {
            if left % 2 == 1 {
                state = times(state, factor);
            }
            factor = times(factor, factor);
            left /= 2;
        }
        Self(state)
    }

    /// The next random number.
    pub fn next(&mut self) -> f64 {
        self.0 = times(self.0, FACTOR);
        self.0 as f64 / MODULUS as f64
    }
}

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(MODULUS)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_those_of_the_system_to_the_last_bits() {
        for n in [1u32, 2, 4, 8, 16, 64, 1024, 1 << 20] {
            for k in (0..n).step_by((n / 64).max(1) as usize) {
                let angle = std::f64::consts::TAU * f64::from(k) / f64::from(n);
                let (cos, sin) = turn(k, n);
                // The system's angle is rounded too.
                assert!((cos - angle.cos()).abs() < 1e-15, "cos {k}/{n}: {cos}");
                assert!((sin - angle.sin()).abs() < 1e-15, "sin {k}/{n}: {sin}");
            }
        }
    }

    #[test]
    fn powers_of_e_are_those_of_the_system() {
        for step in 0..400 {
            let power = -f64::from(step) * 0.25;
            let (ours, theirs) = (exp(power), power.exp());
            assert!((ours - theirs).abs() <= theirs * 1e-12, "{power}: {ours} {theirs}");
        }
        assert_eq!(exp(-1e6), 0.0);
    }

    #[test]
    fn random_numbers_can_start_at_any_index() {
        let mut all = Random::at(314_159_265, 0);
        let numbers: Vec<f64> = (0..200).map(|_| all.next()).collect();
        for place in [0, 1, 2, 63, 100] {
            let mut from = Random::at(314_159_265, place);
            assert!(numbers[place as usize..].iter().all(|number| *number == from.next()));
        }
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 200.0;
        assert!((mean - 0.5).abs() < 0.1, "{mean}");
    }
}
