//! A singleton: one counter in the whole grid, which gets its state again after a panic.

use serde::{Deserialize, Serialize};
use springtide::actix::{Actor, Context, Handler};
use springtide::{Grid, SingletonError, remote_message, tasks};

/// The actor, which keeps a sum.
struct Counter {
    sum: u64,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

/// Adds a number, and returns the sum.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Add(u64);

remote_message! { "add" => Add -> u64; }

impl Handler<Add> for Counter {
    type Result = u64;

    fn handle(&mut self, Add(number): Add, _: &mut Context<Self>) -> u64 {
        self.sum = self.sum.checked_add(number).expect("the sum fits 64 bits");
        self.sum
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let counter = || Counter { sum: 0 };
    springtide::node(tasks![].singleton("counter", counter, |actor| actor.accepts::<Add>()));
    let grid = Grid::start("2x1").await?;
    let counter = grid.singleton::<Counter>("counter");
    let mut sum = 0;
    for number in [1, 2, u64::MAX, 3] {
        match counter.send(Add(number)).await {
            Ok(answer) => sum = answer,
            // The actor has lost its sum, and gets it from here.
            Err(SingletonError::StateIsNew { .. }) => sum = counter.send(Add(sum + number)).await?,
            Err(error) => println!("{error}"),
        }
        println!("the sum is {sum}");
    }
    Ok(())
}
