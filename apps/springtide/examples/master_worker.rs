//! Master and workers: independent tasks, whose outputs arrive in order.

use springtide::prelude::*;

/// The task of a worker: how many primes are in a range?
#[task]
fn count_primes(cx: &Context, from: u64, below: u64) -> Result<usize, Stop> {
    // A node that must leave stops here. Another one repeats the task.
    cx.check()?;
    Ok((from..below).filter(|&number| is_prime(number)).count())
}

fn is_prime(number: u64) -> bool {
    number > 1 && (2..).take_while(|d| d * d <= number).all(|d| !number.is_multiple_of(d))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    springtide::node(tasks![count_primes]);
    let grid = Grid::start("2x2").await?;
    let ranges = (0..100).map(|part| count_primes(part * 2000, (part + 1) * 2000));
    let counts = grid.map(ranges).await?;
    println!("{} primes in {} ranges", counts.iter().sum::<usize>(), counts.len());
    Ok(())
}
