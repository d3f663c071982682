//! Bodies under gravity with direct summation. Like the paper's GADGET 2, it runs on any number of
//! processes and balances its load by the times of their steps.
//!
//! Each process moves a run of the bodies. In each step all processes exchange positions. The pull
//! on a body is summed over all others in order, so positions have the same bits for any shares.
//! (Only `+ - * /` and square roots are used, which are exact everywhere.)

use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Malleable, Observation, ProcessInfo, Program, Strategy};
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{InputError, Outcome, Stop};

use crate::math::Random;
use crate::slabs::{SlabRank, Slabs, pack};

/// The job: `springtide run nbody`.
#[derive(Args, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Nbody {
    /// Number of simulated bodies.
    #[arg(long, default_value_t = 2000)]
    pub bodies: u32,
    /// Number of time steps.
    #[arg(long, default_value_t = 40)]
    pub steps: u64,
    /// Length of a step.
    #[arg(long, default_value_t = 1e-3)]
    pub dt: f64,
    /// Distance below which the pull grows no more.
    #[arg(long, default_value_t = 0.02)]
    pub softening: f64,
    /// Seed of the bodies' places.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The ratio of the slowest step time to the mean above which the shares are rebalanced.
const REBALANCE_RATIO: f64 = 1.15;
/// The numbers of a body: position and velocity.
const NUMBERS_PER_BODY: usize = 6;
/// The tag of positions.
const POSITIONS_TAG: u32 = 1;

impl Malleable for Nbody {
    const JOB: &'static str = "nbody";
    const ABOUT: &'static str = "Bodies that pull each other, on any number of processes, balanced";
    const NEGOTIATES: bool = true;

    /// Processes beyond the number of bodies would be idle.
    fn usable(&self, processes: u32) -> u32 {
        processes.min(self.bodies)
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check(
            "--bodies",
            self.bodies,
            2..=200_000,
            "the time grows with their square",
        )?;
        InputError::check("--steps", self.steps, 1..=1_000_000, "at least one")?;
        InputError::check("--dt", self.dt, 1e-9..=1.0, "bodies cross the cube in about 1")?;
        InputError::check("--softening", self.softening, 1e-6..=1.0, "the cube's side is 1")?;
        InputError::check("--seed", self.seed, 1..=(1 << 46) - 1, "numbers are made of 46 bits")
    }

    fn benchmark(&self) -> Option<Self> {
        Some(Nbody { bodies: self.bodies.min(1000), steps: 4, ..self.clone() })
    }
}

impl Nbody {
    /// Collects the positions of all bodies from the processes.
    fn all_positions(
        &self,
        bodies: &[f64],
        layout: &Slabs,
        comm: &Comm<'_>,
    ) -> Result<Vec<[f64; 3]>, Stop> {
        let mine = bodies.as_chunks::<NUMBERS_PER_BODY>().0.iter();
        let mine = pack(mine.flat_map(|body| [body[0], body[1], body[2]]));
        let positions =
            layout.gather(comm, POSITIONS_TAG, 0..comm.size(), &mine, 3)?.unwrap_or_default();
        Ok(positions.as_chunks::<3>().0.to_vec())
    }
}

/// The pull of all others on a body at this position.
fn pull(position: [f64; 3], positions: &[[f64; 3]], softening: f64) -> [f64; 3] {
    let mut sum = [0.0; 3];
    for other in positions {
        let offset = [other[0] - position[0], other[1] - position[1], other[2] - position[2]];
        // The body itself has distance zero and pulls with nothing.
        let square = offset[0] * offset[0]
            + offset[1] * offset[1]
            + offset[2] * offset[2]
            + softening * softening;
        let weight = 1.0 / (square * square.sqrt());
        for (sum, offset) in sum.iter_mut().zip(offset) {
            *sum += offset * weight;
        }
    }
    sum.map(|sum| sum / positions.len() as f64)
}

impl Program for Nbody {
    const NAME: &'static str = "nbody.process";
    /// Positions and velocities of a run of bodies, alternately.
    type State = Vec<f64>;
    type Layout = Slabs;

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Shares by the measured speeds in bodies per second. A process without a measurement counts
    /// as average.
    fn layout(&self, hands: &[ProcessInfo], now: Option<&Slabs>) -> Slabs {
        let speed = |hand: &ProcessInfo| {
            let bodies = now.zip(hand.previous_rank).map(|(now, was)| now.of(was).len());
            let (bodies, pace) = bodies.zip(hand.pace)?;
            (bodies > 0 && pace.step_s > 0.0).then(|| bodies as f64 / pace.step_s)
        };
        let speeds: Vec<Option<f64>> = hands.iter().map(speed).collect();
        let known: Vec<f64> = speeds.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let average = if known.is_empty() { 1.0 } else { mean };
        let weights: Vec<f64> = speeds.iter().map(|speed| speed.unwrap_or(average)).collect();
        Slabs::weighted(self.bodies, &weights)
    }

    fn decide(&self, observation: &Observation, layout: Option<&Slabs>) -> Strategy {
        let processes = self.usable(observation.available);
        if layout.is_none() || processes != observation.processes || observation.leaving > 0 {
            return Strategy::Use { processes, release: true };
        }
        match observation.unevenness() {
            Some(times) if times > REBALANCE_RATIO => Strategy::Rebalance,
            _ => Strategy::Keep,
        }
    }

    fn start(&self, layout: &Slabs, comm: &Comm<'_>) -> Result<Vec<f64>, Stop> {
        let mine = layout.of(comm.rank());
        let mut random = Random::at(self.seed, u64::from(mine.start) * NUMBERS_PER_BODY as u64);
        let mut bodies = Vec::with_capacity(mine.len() * NUMBERS_PER_BODY);
        for _ in mine {
            let positions: [f64; 3] = std::array::from_fn(|_| random.next());
            let velocities: [f64; 3] = std::array::from_fn(|_| 0.2 * (random.next() - 0.5));
            bodies.extend(positions.into_iter().chain(velocities));
        }
        Ok(bodies)
    }

    fn step(
        &self,
        bodies: &mut Vec<f64>,
        _: u64,
        layout: &Slabs,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let positions = self.all_positions(bodies, layout, comm)?;
        for (at, body) in bodies.as_chunks_mut::<NUMBERS_PER_BODY>().0.iter_mut().enumerate() {
            if at % 64 == 0 {
                comm.check()?;
            }
            let pull = pull([body[0], body[1], body[2]], &positions, self.softening);
            for axis in 0..3 {
                body[3 + axis] += pull[axis] * self.dt;
                body[axis] += body[3 + axis] * self.dt;
            }
        }
        Ok(())
    }

    fn split_state(
        &self,
        bodies: &Vec<f64>,
        (from, rank): (&Slabs, u32),
        (to, other): (&Slabs, u32),
    ) -> Result<Bytes, Stop> {
        let share = from.share(rank, bodies, NUMBERS_PER_BODY, SlabRank { slabs: to, rank: other });
        Ok(pack(share.iter().copied()))
    }

    fn join_state(
        &self,
        pieces: &[Bytes],
        from: &Slabs,
        (to, rank): (&Slabs, u32),
    ) -> Result<Vec<f64>, Stop> {
        from.joined(pieces, SlabRank { slabs: to, rank }, NUMBERS_PER_BODY)
    }

    fn finish(&self, bodies: Vec<f64>, layout: &Slabs, comm: &Comm<'_>) -> Result<Outcome, Stop> {
        let Some(all) =
            layout.gather(comm, POSITIONS_TAG, 0..1, &pack(bodies), NUMBERS_PER_BODY)?
        else {
            return Ok(Outcome { checksum: 0, result: serde_json::Value::Null });
        };
        let mut momentum = [0.0; 3];
        for body in all.as_chunks::<NUMBERS_PER_BODY>().0 {
            for axis in 0..3 {
                momentum[axis] += body[3 + axis] / f64::from(self.bodies);
            }
        }
        let result = serde_json::json!({ "bodies": self.bodies, "momentum": momentum });
        Ok(Outcome { checksum: crate::checksum(all), result })
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::spmd::StepRate;

    use super::*;

    const BODIES: Nbody = Nbody { bodies: 90, steps: 3, dt: 1e-3, softening: 0.02, seed: 5 };

    fn pace(step_s: f64) -> Option<StepRate> {
        Some(StepRate { step_s, foreign: None })
    }

    #[test]
    fn shares_follow_what_was_measured() {
        let now = Slabs::equal(90, 3);
        let hand = |rank, step_s| ProcessInfo {
            previous_rank: Some(rank),
            threads: 1,
            pace: pace(step_s),
            location: None,
        };
        // The second is half as fast as the others.
        let hands = [hand(0, 1.0), hand(1, 2.0), hand(2, 1.0)];
        let held =
            |slabs: &Slabs| (0..slabs.processes()).map(|r| slabs.of(r).len()).collect::<Vec<_>>();
        assert_eq!(held(&BODIES.layout(&hands, Some(&now))), [36, 18, 36]);
        // A new process counts as average.
        let more = [&hands[..], &[ProcessInfo::default()]].concat();
        assert_eq!(held(&BODIES.layout(&more, Some(&now))), [27, 14, 27, 22]);
        assert_eq!(held(&BODIES.layout(&vec![ProcessInfo::default(); 4], None)), [23, 22, 23, 22]);
    }

    #[test]
    fn it_rebalances_only_uneven_shares() {
        let now = Slabs::equal(90, 3);
        let observation = |times: [f64; 3]| Observation {
            processes: 3,
            available: 3,
            paces: times.map(pace).to_vec(),
            ..Observation::default()
        };
        assert_eq!(BODIES.decide(&observation([1.0, 1.1, 1.05]), Some(&now)), Strategy::Keep);
        assert_eq!(BODIES.decide(&observation([1.0, 2.0, 1.0]), Some(&now)), Strategy::Rebalance);
        let grows = Observation { available: 5, ..observation([1.0; 3]) };
        let five = Strategy::Use { processes: 5, release: true };
        assert_eq!(BODIES.decide(&grows, Some(&now)), five);
    }

    /// Two bodies attract each other as defined.
    #[test]
    fn bodies_pull_each_other() {
        let positions = [[0.0; 3], [0.3, 0.4, 0.0]];
        let pulled = pull(positions[0], &positions, 1e-6);
        // Half of the mass at a distance of one half.
        let expected = [0.3 / 0.125 / 2.0, 0.4 / 0.125 / 2.0, 0.0];
        assert!(pulled.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{pulled:?}");
    }
}
