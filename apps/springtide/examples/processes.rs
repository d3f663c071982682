//! Processes whose number may change while they run: heat in a rod.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use springtide::malleable::{Malleable, ProcessInfo, Program};
use springtide::prelude::*;
use springtide::spmd::Comm;
use springtide::{Bytes, work::checksum};

/// The job: a hot half of a rod warms the cold one.
#[derive(Clone, Serialize, Deserialize)]
struct Rod {
    cells: usize,
    steps: u64,
}

impl Malleable for Rod {
    const JOB: &'static str = "rod";
    const ABOUT: &'static str = "Heat in a rod";
}

/// Process `rank` of this many holds these cells.
fn cells_of(rod: &Rod, processes: usize, rank: usize) -> Range<usize> {
    rod.cells * rank / processes..rod.cells * (rank + 1) / processes
}

impl Program for Rod {
    const NAME: &'static str = "rod.process";
    /// The temperatures of a process's cells.
    type State = Vec<f64>;
    /// The number of processes.
    type Layout = usize;

    fn steps(&self) -> u64 {
        self.steps
    }

    fn layout(&self, processes: &[ProcessInfo], _: Option<&usize>) -> usize {
        processes.len()
    }

    fn start(&self, processes: &usize, comm: &Comm<'_>) -> Result<Vec<f64>, Stop> {
        let cells = cells_of(self, *processes, comm.rank() as usize);
        Ok(cells.map(|cell| if cell < self.cells / 2 { 1.0 } else { 0.0 }).collect())
    }

    /// Neighbours send each other the cells at their ends.
    fn step(&self, own: &mut Vec<f64>, _: u64, _: &usize, comm: &Comm<'_>) -> Result<(), Stop> {
        let (rank, last) = (comm.rank(), comm.size() - 1);
        let (mut left, mut right) = (own[0], own[own.len() - 1]);
        if rank > 0 {
            comm.send(rank - 1, 1, left.to_le_bytes().to_vec())?;
        }
        if rank < last {
            comm.send(rank + 1, 2, right.to_le_bytes().to_vec())?;
            right = numbers(&comm.receive(rank + 1, 1)?)[0];
        }
        if rank > 0 {
            left = numbers(&comm.receive(rank - 1, 2)?)[0];
        }
        for cell in 0..own.len() {
            let (here, next) = (own[cell], *own.get(cell + 1).unwrap_or(&right));
            own[cell] = here + 0.25 * (left - here + next - here);
            left = here;
        }
        Ok(())
    }

    /// The cells of one process that another one holds after a change.
    fn split_state(
        &self,
        own: &Vec<f64>,
        (from, rank): (&usize, u32),
        (to, other): (&usize, u32),
    ) -> Result<Bytes, Stop> {
        let mine = cells_of(self, *from, rank as usize);
        let theirs = cells_of(self, *to, other as usize);
        let both = mine.start.max(theirs.start)..mine.end.min(theirs.end);
        let bytes = both.flat_map(|cell| own[cell - mine.start].to_le_bytes());
        Ok(bytes.collect::<Vec<u8>>().into())
    }

    fn join_state(&self, parts: &[Bytes], _: &usize, _: (&usize, u32)) -> Result<Vec<f64>, Stop> {
        Ok(parts.iter().flat_map(|part| numbers(part)).collect())
    }

    fn finish(&self, own: Vec<f64>, _: &usize, comm: &Comm<'_>) -> Result<Outcome, Stop> {
        let rod = comm.gather(0, &own)?.unwrap_or_default().concat();
        let checksum = checksum(rod.iter().flat_map(|cell| cell.to_le_bytes()));
        Ok(Outcome { checksum, result: rod.get(rod.len() / 2).copied().into() })
    }
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|number| f64::from_le_bytes(*number)).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    springtide::node(tasks![].job::<Rod>());
    let grid = Grid::start("1x3").await?;
    // It starts on one or more processors, and uses those that become free.
    let job = grid.submit(Rod { cells: 3000, steps: 500 }).min(1).malleable().await?;
    let outcome = job.await?;
    println!("the middle of the rod has {}, checksum {:x}", outcome.result, outcome.checksum);
    Ok(())
}
