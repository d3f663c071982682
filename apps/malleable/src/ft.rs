//! A Fourier transform in three dimensions, like the NAS benchmark FT.
//!
//! Random numbers are transformed. Each iteration evolves them in frequency space, transforms them
//! back, and sums a sample of them.
//!
//! It uses powers of two only and assumes equal processors. So it accepts nodes that reach the next
//! power of two, and gives up those beyond one. It releases nodes that it gets beyond that.
//!
//! One process computes each one-dimensional transform, and rank 0 sums in the benchmark's order.
//! So the checksum has the same bits on any number of processes. Source: NAS Parallel Benchmarks
//! (NAS-95-020), FT.

use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Malleable, Observation, ProcessInfo, Program, Strategy};
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{InputError, Outcome, Stop};

use crate::math::{Random, exp, turn};
use crate::slabs::{SlabRank, Slabs, pack, unpack};

/// The job: `springtide run ft`.
#[derive(Args, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Ft {
    /// Points along each side of the cube: a power of two.
    #[arg(long, default_value_t = 64)]
    pub size: u32,
    /// Number of iterations to run.
    #[arg(long, default_value_t = 20)]
    pub iterations: u64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 314_159_265)]
    pub seed: u64,
}

/// The decay rate of waves, as in the benchmark.
const ALPHA: f64 = 1e-6;
/// The number of points in the checksum.
const SAMPLES: u32 = 1024;
/// The tag of sampled points.
const SAMPLES_TAG: u32 = 1;

/// The greatest power of two up to `count`; 0 for 0.
fn power_of_two(count: u32) -> u32 {
    count.checked_ilog2().map_or(0, |power| 1 << power)
}

impl Malleable for Ft {
    const JOB: &'static str = "ft";
    const ABOUT: &'static str = "A Fourier transform on powers of two, which gives the rest back";
    const NEGOTIATES: bool = true;

    /// The greatest power of two, but at most the number of planes.
    fn usable(&self, processes: u32) -> u32 {
        power_of_two(processes).min(self.size)
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check("--size", self.size, 4..=256, "256 takes 540 MB in all")?;
        if !self.size.is_power_of_two() {
            let (below, size) = (power_of_two(self.size), self.size);
            return Err(InputError::new(format!(
                "--size {size}: give a power of two, such as {below} or {}",
                below * 2
            )));
        }
        InputError::check("--iterations", self.iterations, 1..=1_000_000, "each is summed up")?;
        InputError::check("--seed", self.seed, 1..=(1 << 46) - 1, "numbers are made of 46 bits")
    }

    fn benchmark(&self) -> Option<Self> {
        Some(Ft { size: self.size.min(32), iterations: 4, ..self.clone() })
    }
}

/// The state of a process: planes of the cube in frequency space, and on rank 0 the sums so far.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Planes {
    /// Alternating real and imaginary parts, by second, first and third wave number.
    waves: Vec<f64>,
    sums: Vec<f64>,
}

impl Program for Ft {
    const NAME: &'static str = "ft.process";
    type State = Planes;
    type Layout = Slabs;

    fn steps(&self) -> u64 {
        self.iterations
    }

    fn layout(&self, hands: &[ProcessInfo], _: Option<&Slabs>) -> Slabs {
        Slabs::equal(self.size, u32::try_from(hands.len()).unwrap_or(1))
    }

    fn decide(&self, observation: &Observation, _: Option<&Slabs>) -> Strategy {
        Strategy::Use { processes: self.usable(observation.available), release: true }
    }

    fn start(&self, layout: &Slabs, comm: &Comm<'_>) -> Result<Planes, Stop> {
        let cube = Cube::new(self.size);
        let mine = layout.of(comm.rank());
        let before = u64::from(mine.start) * cube.plane as u64;
        let mut random = Random::at(self.seed, before);
        let mut points: Vec<f64> = (0..mine.len() * cube.plane).map(|_| random.next()).collect();
        for plane in points.chunks_exact_mut(cube.plane) {
            cube.transform_plane(plane, Direction::Forward);
            comm.check()?;
        }
        let mut waves = cube.transpose(&points, layout, comm)?;
        for plane in waves.chunks_exact_mut(cube.plane) {
            cube.transform_columns(plane, Direction::Forward);
            comm.check()?;
        }
        Ok(Planes { waves, sums: Vec::new() })
    }

    fn step(
        &self,
        state: &mut Planes,
        _: u64,
        layout: &Slabs,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let cube = Cube::new(self.size);
        cube.evolve(&mut state.waves, layout.of(comm.rank()).start);
        let mut waves = state.waves.clone();
        for plane in waves.chunks_exact_mut(cube.plane) {
            cube.transform_columns(plane, Direction::Inverse);
            comm.check()?;
        }
        let mut points = cube.transpose(&waves, layout, comm)?;
        for plane in points.chunks_exact_mut(cube.plane) {
            cube.transform_plane(plane, Direction::Inverse);
            comm.check()?;
        }
        if let Some((real, imaginary)) = cube.sum(&points, layout, comm)? {
            state.sums.extend([real, imaginary]);
        }
        Ok(())
    }

    fn split_state(
        &self,
        state: &Planes,
        (from, rank): (&Slabs, u32),
        (to, other): (&Slabs, u32),
    ) -> Result<Bytes, Stop> {
        let plane = Cube::new(self.size).plane;
        let waves = from.share(rank, &state.waves, plane, SlabRank { slabs: to, rank: other });
        // Only rank 0 has sums. It passes them to rank 0, after its planes.
        let sums = if other == 0 { &state.sums[..] } else { &[] };
        Ok(pack(waves.iter().chain(sums).copied()))
    }

    fn join_state(
        &self,
        pieces: &[Bytes],
        from: &Slabs,
        (to, rank): (&Slabs, u32),
    ) -> Result<Planes, Stop> {
        let plane = Cube::new(self.size).plane;
        let to = SlabRank { slabs: to, rank };
        let (mut shares, mut sums) = (pieces.to_vec(), Vec::new());
        if let Some(first) = shares.first_mut() {
            let planes = from.common(0, to).len() * plane * size_of::<f64>();
            let rest = first.split_off(planes.min(first.len()));
            sums = unpack(&rest, rest.len() / size_of::<f64>())?;
        }
        Ok(Planes { waves: from.joined(&shares, to, plane)?, sums })
    }

    fn finish(&self, state: Planes, _: &Slabs, _: &Comm<'_>) -> Result<Outcome, Stop> {
        let (sums, _) = state.sums.as_chunks::<2>();
        let result = serde_json::json!({ "size": self.size, "checksums": sums });
        Ok(Outcome { checksum: crate::checksum(state.sums.iter().copied()), result })
    }
}

/// The direction of a transform: from points to waves, or back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Inverse,
}

/// The dimensions and tables of the cube.
struct Cube {
    side: usize,
    /// Numbers in a plane: two for each point.
    plane: usize,
    /// Cosines and sines of fractions of a turn, one for each point of a side.
    roots: Vec<(f64, f64)>,
}

impl Cube {
    fn new(size: u32) -> Self {
        let side = size as usize;
        let roots = (0..size).map(|k| turn(k, size)).collect();
        Self { side, plane: 2 * side * side, roots }
    }

    /// Transforms a line of complex numbers in place, without scaling.
    fn transform(&self, line: &mut [f64], direction: Direction) {
        let n = self.side;
        let bits = n.trailing_zeros();
        for at in 0..n {
            let other = at.reverse_bits() >> (usize::BITS - bits);
            if at < other {
                line.swap(2 * at, 2 * other);
                line.swap(2 * at + 1, 2 * other + 1);
            }
        }
        let mut half = 1;
        while half < n {
            let stride = n / (2 * half);
            for block in line.chunks_exact_mut(4 * half) {
                let (low, high) = block.split_at_mut(2 * half);
                for k in 0..half {
                    let (cos, sin) = self.roots[k * stride];
                    let sin = if direction == Direction::Forward { -sin } else { sin };
                    let (re, im) = (high[2 * k], high[2 * k + 1]);
                    let (re, im) = (re * cos - im * sin, re * sin + im * cos);
                    (high[2 * k], high[2 * k + 1]) = (low[2 * k] - re, low[2 * k + 1] - im);
                    (low[2 * k], low[2 * k + 1]) = (low[2 * k] + re, low[2 * k + 1] + im);
                }
            }
            half *= 2;
        }
    }

    /// Transforms all columns of a plane.
    fn transform_columns(&self, plane: &mut [f64], direction: Direction) {
        let (n, row) = (self.side, 2 * self.side);
        let mut line = vec![0.0; row];
        for column in 0..n {
            for at in 0..n {
                line[2 * at] = plane[at * row + 2 * column];
                line[2 * at + 1] = plane[at * row + 2 * column + 1];
            }
            self.transform(&mut line, direction);
            for at in 0..n {
                plane[at * row + 2 * column] = line[2 * at];
                plane[at * row + 2 * column + 1] = line[2 * at + 1];
            }
        }
    }

    /// Transforms the rows and columns of a plane.
    fn transform_plane(&self, plane: &mut [f64], direction: Direction) {
        for row in plane.chunks_exact_mut(2 * self.side) {
            self.transform(row, direction);
        }
        self.transform_columns(plane, direction);
    }

    /// Transposes planes by the first index to planes by the second, or back. Each process sends
    /// each other the rows that it will hold.
    fn transpose(&self, planes: &[f64], layout: &Slabs, comm: &Comm<'_>) -> Result<Vec<f64>, Stop> {
        let row = 2 * self.side;
        let mine = layout.of(comm.rank());
        let rows = |to: u32| {
            let there = layout.of(to);
            let count = mine.len();
            there.flat_map(move |second| {
                (0..count).map(move |first| first * self.plane + second as usize * row)
            })
        };
        let part = |to: u32| pack(rows(to).flat_map(|at| &planes[at..at + row]).copied());
        let parts = comm.all_to_all((0..comm.size()).map(part).collect())?;
        let mut turned = vec![0.0; mine.len() * self.plane];
        for (from, part) in (0..).zip(parts) {
            let there = layout.of(from);
            let numbers = unpack(&part, mine.len() * there.len() * row)?;
            let mut numbers = numbers.chunks_exact(row);
            for second in 0..mine.len() {
                for first in there.clone() {
                    let at = second * self.plane + first as usize * row;
                    if let Some(numbers) = numbers.next() {
                        turned[at..at + row].copy_from_slice(numbers);
                    }
                }
            }
        }
        Ok(turned)
    }

    /// The signed wave number: those from half the side on are negative.
    fn wave(&self, at: usize) -> f64 {
        let (at, side) = (at as f64, self.side as f64);
        if 2.0 * at >= side { at - side } else { at }
    }

    /// Advances the waves by one step of time.
    fn evolve(&self, waves: &mut [f64], first_plane: u32) {
        let rate = -4.0 * ALPHA * std::f64::consts::PI * std::f64::consts::PI;
        // A factor for each direction. Their product is that of the sum of squares.
        let decay: Vec<f64> =
            (0..self.side).map(|at| exp(rate * self.wave(at) * self.wave(at))).collect();
        for (second, plane) in (first_plane as usize..).zip(waves.chunks_exact_mut(self.plane)) {
            for (first, row) in plane.chunks_exact_mut(2 * self.side).enumerate() {
                let factor = decay[second] * decay[first];
                for (third, wave) in row.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *wave = wave.map(|part| part * (factor * decay[third]));
                }
            }
        }
    }

    /// The sum of the samples in order of their numbers, on rank 0.
    fn sum(
        &self,
        points: &[f64],
        layout: &Slabs,
        comm: &Comm<'_>,
    ) -> Result<Option<(f64, f64)>, Stop> {
        let side = self.side as u32;
        // The third index is the benchmark's first.
        let sample = |number: u32| (number * 5 % side, number * 3 % side, number % side);
        let of = |rank: u32| {
            let planes = layout.of(rank);
            (1..=SAMPLES).filter(move |number| planes.contains(&sample(*number).0))
        };
        let first = layout.of(comm.rank()).start;
        let mine = of(comm.rank()).flat_map(|number| {
            let (plane, row, column) = sample(number);
            let at = (plane - first) as usize * self.plane
                + row as usize * 2 * self.side
                + column as usize * 2;
            [points[at], points[at + 1]]
        });
        comm.send(0, SAMPLES_TAG, pack(mine))?;
        if comm.rank() != 0 {
            return Ok(None);
        }
        let mut samples = vec![[0.0; 2]; SAMPLES as usize];
        for from in 0..comm.size() {
            let numbers = comm.receive(from, SAMPLES_TAG)?;
            let numbers = unpack(&numbers, 2 * of(from).count())?;
            for (number, sample) in of(from).zip(numbers.as_chunks::<2>().0) {
                samples[number as usize - 1] = *sample;
            }
        }
        let sum =
            samples.iter().fold((0.0, 0.0), |(re, im), sample| (re + sample[0], im + sample[1]));
        // A transform and its inverse multiply by the number of points.
        let points = (self.side * self.side * self.side) as f64;
        Ok(Some((sum.0 / points, sum.1 / points)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use springtide_runtime::processors::Processors;
    use springtide_runtime::work::{PoolConfig, Registry, encode_job, solo};

    use super::*;

    #[test]
    fn a_line_is_transformed_as_its_definition_says_and_back() {
        let cube = Cube::new(16);
        let mut random = Random::at(7, 0);
        let line: Vec<f64> = (0..32).map(|_| random.next()).collect();
        let mut waves = line.clone();
        cube.transform(&mut waves, Direction::Forward);
        for k in 0..16 {
            let mut sum = (0.0, 0.0);
            for at in 0..16usize {
                let angle = -std::f64::consts::TAU * (k * at) as f64 / 16.0;
                let (re, im) = (line[2 * at], line[2 * at + 1]);
                sum.0 += re * angle.cos() - im * angle.sin();
                sum.1 += re * angle.sin() + im * angle.cos();
            }
            assert!(
                (sum.0 - waves[2 * k]).abs() < 1e-12 && (sum.1 - waves[2 * k + 1]).abs() < 1e-12
            );
        }
        cube.transform(&mut waves, Direction::Inverse);
        assert!(waves.iter().zip(&line).all(|(a, b)| (a / 16.0 - b).abs() < 1e-14));
    }

    /// The sums of class S (64 points on each side) as published with the benchmark.
    #[test]
    fn the_sums_are_those_of_the_benchmark() {
        let given = [
            [554.6087004964, 484.5363331978],
            [554.6385409189, 486.5304269511],
            [554.6148406171, 488.3910722336],
            [554.5423607415, 490.1273169046],
            [554.4255039624, 491.7475857993],
            [554.2683411902, 493.2597244941],
        ];
        let mut registry = Registry::new();
        registry.job::<Ft>();
        let job = Ft { size: 64, iterations: 6, seed: 314_159_265 };
        let body = encode_job(job).expect("the options are right");
        let config = PoolConfig { threads: 2, ..PoolConfig::default() };
        let report = solo::run(Arc::new(registry), "ft", body, &config, |_| {}).expect("it runs");
        let result = report.outcome.expect("no failure").result;
        let sums: Vec<[f64; 2]> =
            serde_json::from_value(result["checksums"].clone()).expect("pairs of numbers");
        assert_eq!(sums.len(), given.len());
        for (sum, given) in sums.iter().flatten().zip(given.iter().flatten()) {
            assert!((sum / given - 1.0).abs() < 1e-12, "{sum} {given}");
        }
    }

    #[test]
    fn it_accepts_and_gives_up_to_powers_of_two() {
        let ft = Ft { size: 64, iterations: 1, seed: 1 };
        let growth = |ft: &Ft, current, offered| {
            ft.accept_growth(Processors(current), Processors(offered)).get()
        };
        let growths = [(2, 3, 2), (2, 1, 0), (4, 4, 4), (4, 40, 28), (32, 100, 32), (5, 1, 0)];
        for (current, offered, takes) in growths {
            assert_eq!(growth(&ft, current, offered), takes, "{current} + {offered}");
        }
        let small = Ft { size: 4, ..ft.clone() };
        assert_eq!(growth(&small, 4, 8), 0, "a cube of 4 planes has 4 processes");
        for (current, asked, gives) in
            [(8, 3, 4), (8, 4, 4), (8, 1, 4), (2, 1, 1), (1, 1, 0), (4, 9, 3), (9, 3, 5)]
        {
            let answer = ft.accept_shrink(Processors(current), Processors(asked));
            assert_eq!(answer, Processors(gives), "{current} - {asked}");
        }
        let used = |available| {
            let observation = Observation { available, ..Observation::default() };
            let Strategy::Use { processes, release: true } = ft.decide(&observation, None) else {
                panic!("it gives back what it does not use");
            };
            processes
        };
        assert_eq!([1, 2, 3, 5, 8, 100].map(used), [1, 2, 2, 4, 8, 64]);
    }
}
