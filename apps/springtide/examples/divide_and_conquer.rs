//! Divide and conquer: which number below a limit has the longest Collatz sequence?

use serde::{Deserialize, Serialize};
use springtide::prelude::*;

/// The task: the longest sequence of a range of numbers.
#[derive(Serialize, Deserialize)]
struct Longest {
    from: u64,
    below: u64,
}

impl Task for Longest {
    /// The length of the sequence, and the smallest number that has it.
    type Output = (u32, u64);
    const NAME: &'static str = "longest";

    fn run(self, cx: &Context) -> Result<(u32, u64), Stop> {
        let Longest { from, below } = self;
        if below - from <= 10_000 {
            return Ok((from..below).map(|start| (length(start), start)).fold((0, 0), longer));
        }
        let middle = from + (below - from) / 2;
        let (low, high) =
            cx.join(Longest { from, below: middle }, Longest { from: middle, below })?;
        Ok(longer(low, high))
    }
}

fn longer(a: (u32, u64), b: (u32, u64)) -> (u32, u64) {
    if b.0 > a.0 { b } else { a }
}

fn length(mut number: u64) -> u32 {
    let mut steps = 1;
    while number != 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        steps += 1;
    }
    steps
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    // First: the nodes of the grid are processes of this program.
    springtide::node(tasks![Longest]);
    let grid = Grid::start("2x2").await?;
    let (length, start) = grid.run(Longest { from: 1, below: 300_000 }).await?;
    println!("{start} has the longest sequence, of {length} numbers");
    Ok(())
}
