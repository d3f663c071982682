//! The program of a simulated job: its duration by the number of processors, and the numbers that
//! it can use.
//!
//! This module does not depend on scheduling.

use springtide_actors::policy::malleability::Direction;

/// The duration of a job in seconds, by the number of processors.
#[derive(Clone, Debug, PartialEq)]
pub enum Curve {
    /// `serial + parallel / n`.
    Fit {
        /// Seconds that do not depend on the number of processors.
        serial: f64,
        /// Seconds of one processor that are divided among all.
        parallel: f64,
    },
    /// Measured points by rising processors, at least one. `serial + parallel / n` interpolates
    /// between two neighbours.
    Points(Vec<(u32, f64)>),
    /// Downey's model (*A parallel workload model and its implications for processor allocation*,
    /// 1997).
    Downey {
        /// Seconds on one processor.
        alone: f64,
        /// Average parallelism, at least 1.
        parallelism: f64,
        /// Coefficient of variance of parallelism, 0 or more.
        sigma: f64,
    },
}

impl Curve {
    /// The duration in seconds on this number of processors; 0 counts as 1.
    pub fn seconds(&self, processors: u32) -> f64 {
        let n = f64::from(processors.max(1));
        match self {
            Self::Fit { serial, parallel } => serial + parallel / n,
            Self::Points(points) => interpolate(points, n),
            Self::Downey { alone, parallelism, sigma } => alone / downey(n, *parallelism, *sigma),
        }
    }

    /// Processor-seconds of the work: those of one processor. If the duration is known for a
    /// single number of processors, those of that number.
    pub fn work(&self) -> f64 {
        if let Self::Points(points) = self
            && let [(n, seconds)] = points[..]
        {
            return f64::from(n.max(1)) * seconds;
        }
        self.seconds(1)
    }

    /// The speedup of this number of processors over one.
    pub fn speedup(&self, processors: u32) -> f64 {
        self.seconds(1) / self.seconds(processors)
    }

    /// The speedup per processor on this number of processors.
    pub fn efficiency(&self, processors: u32) -> f64 {
        self.speedup(processors) / f64::from(processors.max(1))
    }
}

fn interpolate(points: &[(u32, f64)], n: f64) -> f64 {
    let at = |&(n, seconds): &(u32, f64)| (1.0 / f64::from(n.max(1)), seconds);
    let (first, last) = match points {
        [] => return 0.0,
        [only] => return at(only).1,
        [first, .., last] => (first, last),
    };
    // The last point also holds for more processors. Below the first, the first two points are
    // extrapolated.
    let n = n.min(f64::from(last.0.max(1)));
    let next = points.iter().skip(1).position(|point| f64::from(point.0) >= n).unwrap_or(0) + 1;
    let ((x0, y0), (x1, y1)) = if n < f64::from(first.0) {
        (at(first), at(&points[1]))
    } else {
        (at(&points[next - 1]), at(&points[next]))
    };
    y0 + (1.0 / n - x0) / (x1 - x0) * (y1 - y0)
}

/// The speedup by Downey's model.
fn downey(n: f64, a: f64, sigma: f64) -> f64 {
    if sigma <= 1.0 {
        if n <= a {
            a * n / (a + sigma * (n - 1.0) / 2.0)
        } else if n <= 2.0 * a - 1.0 {
            a * n / (sigma * (a - 0.5) + n * (1.0 - sigma / 2.0))
        } else {
            a
        }
    } else if n <= a + a * sigma - sigma {
        n * a * (sigma + 1.0) / (sigma * (n + a - 1.0) + a)
    } else {
        a
    }
}

/// The numbers of processors that a program can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkloadSizes {
    /// Every number.
    #[default]
    Any,
    /// The powers of two: 1, 2, 4, 8 and so on.
    PowersOfTwo,
}

/// A program with its duration and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadProgram {
    /// The name of the program.
    pub name: String,
    /// The duration of a run.
    pub curve: Curve,
    /// The usable numbers of processors.
    pub sizes: WorkloadSizes,
    /// The minimum number of processors.
    pub min: u32,
    /// The maximum number of processors.
    pub max: u32,
}

impl WorkloadProgram {
    /// The number of these processors that the program can use.
    pub fn usable(&self, processors: u32) -> u32 {
        match self.sizes {
            WorkloadSizes::Any => processors.min(self.max),
            WorkloadSizes::PowersOfTwo if processors == 0 => 0,
            WorkloadSizes::PowersOfTwo => 1 << processors.min(self.max).ilog2(),
        }
    }

    /// The number of processors that the program accepts of an offer, or gives up on request.
    pub fn accepts(&self, size: u32, direction: Direction, asked: u32) -> u32 {
        match direction {
            Direction::Grow => self.usable(size.saturating_add(asked)).saturating_sub(size),
            Direction::Shrink => {
                size - self.usable(size.saturating_sub(asked)).max(self.min).min(size)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(sizes: WorkloadSizes, max: u32) -> WorkloadProgram {
        let curve = Curve::Fit { serial: 1.0, parallel: 1.0 };
        WorkloadProgram { name: "any".to_owned(), curve, sizes, min: 2, max }
    }

    #[test]
    fn points_are_interpolated_by_hyperbolas() {
        let curve = Curve::Points(vec![(2, 60.0), (4, 40.0), (8, 38.0)]);
        let seconds: Vec<f64> = [1, 2, 3, 4, 8, 100].map(|n| curve.seconds(n)).to_vec();
        assert_eq!(seconds[1], 60.0);
        // The first two points lie on 20 + 80 / n.
        assert!((seconds[0] - 100.0).abs() < 1e-9 && (seconds[2] - 140.0 / 3.0).abs() < 1e-9);
        assert_eq!(&seconds[3..], [40.0, 38.0, 38.0]);
        assert_eq!(Curve::Points(vec![(4, 7.0)]).seconds(9), 7.0);
    }

    #[test]
    fn downeys_curve_is_linear_without_variance_and_ends_at_the_average_parallelism() {
        let curve = |sigma| Curve::Downey { alone: 100.0, parallelism: 8.0, sigma };
        assert_eq!(curve(0.0).speedup(5), 5.0);
        for sigma in [0.0, 0.5, 1.0, 1.5, 3.0] {
            let curve = curve(sigma);
            assert_eq!(curve.speedup(1000), 8.0);
            assert!((1..40).all(|n| curve.speedup(n) <= curve.speedup(n + 1) + 1e-12), "{sigma}");
            assert!((curve.speedup(1) - 1.0).abs() < 1e-9, "{sigma}");
        }
    }

    #[test]
    fn sizes_stay_powers_of_two() {
        let ft = program(WorkloadSizes::PowersOfTwo, 32);
        assert_eq!(ft.accepts(2, Direction::Grow, 20), 14);
        assert_eq!(ft.accepts(8, Direction::Grow, 7), 0);
        assert_eq!(ft.accepts(8, Direction::Shrink, 3), 4);
        assert_eq!(ft.accepts(8, Direction::Shrink, 100), 6);
        assert_eq!(ft.accepts(2, Direction::Shrink, 1), 0);
        assert_eq!(program(WorkloadSizes::Any, 46).accepts(2, Direction::Grow, 60), 44);
    }
}
