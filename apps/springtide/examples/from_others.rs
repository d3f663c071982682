//! The programs of the page "From other systems": each function is the counterpart of one of them.

use serde::{Deserialize, Serialize};
use springtide::JoinContext;
use springtide::prelude::*;

// rayon

/// Sums in this process, as with `rayon::join`.
fn sum(cx: &JoinContext<'_>, numbers: &[u64]) -> u64 {
    if numbers.len() <= 1000 {
        return numbers.iter().sum();
    }
    let (left, right) = numbers.split_at(numbers.len() / 2);
    let (a, b) = cx.join(|cx| sum(cx, left), |cx| sum(cx, right));
    a + b
}

fn sum_of_halves(numbers: &[u64]) -> u64 {
    let (left, right) = numbers.split_at(numbers.len() / 2);
    let (a, b) = springtide::join(|cx| sum(cx, left), |cx| sum(cx, right));
    a + b
}

// Ray and Dask

/// A task, as a remote function of Ray or a delayed one of Dask.
#[task]
fn square(x: u64) -> u64 {
    x * x
}

/// As `ray.get([square.remote(i) for i in range(100)])`, or `client.gather(client.map(..))`.
async fn squares(grid: &Grid) -> Result<Vec<u64>, springtide::Error> {
    grid.map((0..100).map(square)).await
}

/// As two `remote` calls, or two of `client.submit`, that run at the same time.
async fn two_at_once(grid: &Grid) -> Result<u64, springtide::Error> {
    let first = grid.submit(square(20)).max(1).await?;
    let second = grid.submit(square(21)).max(1).await?;
    Ok(first.await? + second.await?)
}

// Satin

/// A task with children, as a spawnable method of Satin with `spawn` and `sync`.
#[derive(Serialize, Deserialize)]
struct Fib(u32);

impl Task for Fib {
    type Output = u64;
    const NAME: &'static str = "fib";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        if self.0 < 20 {
            return Ok(fib(self.0));
        }
        let first = cx.spawn(Fib(self.0 - 1));
        let second = cx.spawn(Fib(self.0 - 2));
        cx.sync()?;
        Ok(first.take()? + second.take()?)
    }
}

fn fib(n: u32) -> u64 {
    if n < 2 { n.into() } else { fib(n - 1) + fib(n - 2) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), springtide::Error> {
    springtide::node(tasks![square, Fib]);
    let numbers: Vec<u64> = (1..=100_000).collect();
    println!("{} is the sum", sum_of_halves(&numbers));
    let grid = Grid::start("2x1").await?;
    println!("{} is the last of {} squares", squares(&grid).await?[99], 100);
    println!("{} is the sum of two jobs", two_at_once(&grid).await?);
    println!("{} is fib(25)", grid.run(Fib(25)).await?);
    Ok(())
}
