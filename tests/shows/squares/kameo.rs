use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use kameo::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

#[derive(Actor, RemoteActor)]
struct Squarer;

#[derive(Serialize, Deserialize)]
struct Square(u64);

#[remote_message]
impl Message<Square> for Squarer {
    type Reply = u64;

    async fn handle(&mut self, Square(x): Square, _: &mut Context<Self, u64>) -> u64 {
        x * x
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    remote::bootstrap()?;
    if std::env::args().len() > 1 {
        Squarer::spawn(Squarer).register("squarer").await?;
        return std::future::pending().await;
    }
    let worker = || Command::new(std::env::current_exe()?).arg("worker").kill_on_drop(true).spawn();
    let _workers = [worker()?, worker()?];
    let squarers: Vec<RemoteActorRef<Squarer>> = loop {
        // Until a worker is known, the look-up fails.
        let known = RemoteActorRef::lookup_all("squarer").try_collect::<Vec<_>>().await;
        if let Some(squarers) = known.ok().filter(|known| known.len() == 2) {
            break squarers;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    println!("first {}", squarers[0].ask(&Square(7)).await?);
    let ask = |x: u64| {
        let squarer = squarers[x as usize % 2].clone();
        async move { squarer.ask(&Square(x)).await }
    };
    let squares: Vec<u64> = stream::iter((0..1000).map(ask)).buffered(64).try_collect().await?;
    println!("sum {}", squares.iter().sum::<u64>());
    Ok(())
}
