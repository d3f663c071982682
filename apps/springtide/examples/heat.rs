//! An SPMD program whose number of processes changes while it runs: heat in a one-dimensional rod.
//!
//! ```text
//! cargo run --release -p springtide --example heat -- \
//!     run heat --cells 200000 --steps 2000 --clusters 2x2 -v
//! ```
//!
//! Each process holds a range of the rod's cells, and sends the cells at its ends to its neighbours
//! in each step. Between two steps the runtime may ask for a decision (`decide`) and a distribution
//! (`layout`), and move cells (`give`, `take`). It does so when nodes join, leave, fail, or are
//! slower than others. Every cell is computed in the same way on every process, so that the result
//! always has the same bits.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Malleable, Need, Observation, ProcessInfo, Program, Strategy};
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{InputError, Outcome, Stop, checksum};

/// The job. Its fields are the options.
#[derive(Args, Serialize, Deserialize, Clone)]
struct Heat {
    /// Number of cells of the rod
    #[arg(long, default_value_t = 100_000)]
    cells: u32,
    /// Number of time steps
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Minimum number of nodes; the job requests missing ones once, and continues without those
    /// that it does not get
    #[arg(long, default_value_t = 1)]
    nodes: u32,
}

/// The fraction of the difference that flows in a step.
const RATE: f64 = 0.25;
/// Cells are redistributed if the slowest process takes this many times as long as the average.
const UNEVEN: f64 = 1.25;
/// Tags of messages: the end of a range for the left or right neighbour.
const TO_LEFT: u32 = 1;
const TO_RIGHT: u32 = 2;

impl Malleable for Heat {
    const JOB: &'static str = "heat";
    const ABOUT: &'static str = "Heat in a rod, on any number of processes";
    const NEGOTIATES: bool = true;

    /// Each process needs a cell.
    fn usable(&self, processes: u32) -> u32 {
        processes.min(self.cells)
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check("--cells", self.cells, 2..=1 << 24, "16 million take 128 MB")
    }

    fn benchmark(&self) -> Option<Self> {
        Some(Heat { cells: self.cells.min(50_000), steps: 100, ..self.clone() })
    }
}

/// Process `rank` holds the cells from `bounds[rank]` up to `bounds[rank + 1]`.
type Bounds = Vec<u32>;

fn run_of(bounds: &Bounds, rank: u32) -> std::ops::Range<u32> {
    bounds[rank as usize]..bounds[rank as usize + 1]
}

impl Program for Heat {
    const NAME: &'static str = "heat.process";
    /// The heat of one process's cells.
    type State = Vec<f64>;
    type Layout = Bounds;

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Decides: as many processes as possible, a redistribution if one is slow, more nodes if there
    /// are too few.
    fn decide(&self, seen: &Observation, layout: Option<&Bounds>) -> Strategy {
        let processes = self.usable(seen.available);
        if layout.is_none() || processes != seen.processes || seen.leaving > 0 {
            return Strategy::Use { processes, release: true };
        }
        let mut nodes: Vec<_> = seen.places.iter().map(|place| &place.node).collect();
        nodes.sort();
        nodes.dedup();
        let more = self.nodes.saturating_sub(nodes.len() as u32);
        // Requested once: nodes under way arrive during the redistribution, and refused ones are
        // not requested again.
        if more > 0 && seen.needed.is_none() && seen.refused.is_none() {
            return Strategy::Need(Need { more, within: None });
        }
        let times: Option<Vec<f64>> = seen.paces.iter().map(|p| p.map(|p| p.step_s)).collect();
        let Some(times) = times else { return Strategy::Keep };
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let slowest = times.iter().copied().fold(0.0, f64::max);
        if slowest > UNEVEN * mean { Strategy::Rebalance } else { Strategy::Keep }
    }

    /// Distributes cells: one for each process, and the rest by cells per time. Processes without
    /// measurements count as average, so that a single one gets all cells.
    fn layout(&self, hands: &[ProcessInfo], now: Option<&Bounds>) -> Bounds {
        let speed = |hand: &ProcessInfo| {
            let (now, was, pace) = (now?, hand.previous_rank?, hand.pace?);
            (pace.step_s > 0.0).then(|| run_of(now, was).len() as f64 / pace.step_s)
        };
        let speeds: Vec<Option<f64>> = hands.iter().map(speed).collect();
        let known: Vec<f64> = speeds.iter().flatten().copied().collect();
        let average = match known.len() {
            0 => 1.0,
            n => known.iter().sum::<f64>() / n as f64,
        };
        let speeds: Vec<f64> = speeds.iter().map(|speed| speed.unwrap_or(average)).collect();
        let (all, rest) = (speeds.iter().sum::<f64>(), self.cells - hands.len() as u32);
        let (mut before, mut bounds) = (0.0, vec![0]);
        for (at, speed) in (1..).zip(speeds) {
            before += speed;
            bounds.push(at + (f64::from(rest) * (before / all)).round() as u32);
        }
        bounds
    }

    fn start(&self, layout: &Bounds, comm: &Comm<'_>) -> Result<Vec<f64>, Stop> {
        // A hot half and a cold one.
        let heat = |cell| if cell < self.cells / 2 { 1.0 } else { 0.0 };
        Ok(run_of(layout, comm.rank()).map(heat).collect())
    }

    fn step(&self, cells: &mut Vec<f64>, _: u64, _: &Bounds, comm: &Comm<'_>) -> Result<(), Stop> {
        let (rank, last) = (comm.rank(), comm.size() - 1);
        let (first_cell, last_cell) = (cells[0], cells[cells.len() - 1]);
        if rank > 0 {
            comm.send(rank - 1, TO_LEFT, first_cell.to_le_bytes().to_vec())?;
        }
        if rank < last {
            comm.send(rank + 1, TO_RIGHT, last_cell.to_le_bytes().to_vec())?;
        }
        // The ends of the rod lose nothing.
        let mut left = match rank {
            0 => first_cell,
            _ => number(&comm.receive(rank - 1, TO_RIGHT)?)?,
        };
        let right =
            if rank == last { last_cell } else { number(&comm.receive(rank + 1, TO_LEFT)?)? };
        for at in 0..cells.len() {
            let (here, next) = (cells[at], cells.get(at + 1).copied().unwrap_or(right));
            cells[at] = here + RATE * ((left - here) + (next - here));
            left = here;
        }
        Ok(())
    }

    /// The cells of this process that another process needs in a new distribution: those in both
    /// ranges.
    fn split_state(
        &self,
        cells: &Vec<f64>,
        (from, rank): (&Bounds, u32),
        (to, other): (&Bounds, u32),
    ) -> Result<Bytes, Stop> {
        let (mine, theirs) = (run_of(from, rank), run_of(to, other));
        let common = mine.start.max(theirs.start)..mine.end.min(theirs.end);
        // Empty if the ranges have none in common.
        let cells = common.map(|cell| cells[(cell - mine.start) as usize]);
        Ok(cells.flat_map(f64::to_le_bytes).collect::<Vec<u8>>().into())
    }

    /// Ranges are in order of rank, and so are the pieces.
    fn join_state(
        &self,
        pieces: &[Bytes],
        _: &Bounds,
        to: (&Bounds, u32),
    ) -> Result<Vec<f64>, Stop> {
        let cells = pieces.iter().flat_map(|piece| piece.chunks(8)).map(number);
        let cells = cells.collect::<Result<Vec<f64>, Stop>>()?;
        if cells.len() != run_of(to.0, to.1).len() {
            return Err(Stop::fail(
                "the pieces do not make a run: all nodes need the same program",
            ));
        }
        Ok(cells)
    }

    fn finish(&self, cells: Vec<f64>, _: &Bounds, comm: &Comm<'_>) -> Result<Outcome, Stop> {
        // The outcome of rank 0 is the job's.
        let all = comm.gather(0, &cells)?.unwrap_or_default().concat();
        let bytes = all.iter().flat_map(|cell| cell.to_le_bytes());
        let result =
            serde_json::json!({ "middle": all.get(all.len() / 2), "processes": comm.size() });
        Ok(Outcome { checksum: checksum(bytes), result })
    }
}

fn number(bytes: impl AsRef<[u8]>) -> Result<f64, Stop> {
    Ok(f64::from_le_bytes(bytes.as_ref().try_into()?))
}

fn main() -> ExitCode {
    springtide::App::new("heat", "1.0").job::<Heat>().main()
}
