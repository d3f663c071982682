//! An embedded grid: a program with its own task and actor, on a grid of its own processes.
//!
//! `cargo run --release -p springtide-classics --example embed` starts two more processes of this
//! program, one in each of two clusters. It runs the job on them, calls the actor on each, and
//! stops them.

use std::process::ExitCode;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide::App;
use springtide_actors::supervise::{RestartLimits, supervise};
use springtide_runtime::remote_message;
use springtide_runtime::work::{Context as Cx, Job, Outcome, Registry, Stop, Task};

/// The task: counts the primes from `from` up to, but not including, `to`.
#[derive(Serialize, Deserialize)]
struct Primes {
    from: u64,
    to: u64,
}

impl Task for Primes {
    type Output = u64;
    const NAME: &'static str = "embed.primes";

    fn run(self, cx: &Cx) -> Result<u64, Stop> {
        let Primes { from, to } = self;
        if to - from <= 2_000 {
            let prime =
                |n: &u64| *n > 1 && (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
            return Ok((from..to).filter(prime).count() as u64);
        }
        let middle = from + (to - from) / 2;
        let (a, b) = cx.join(Primes { from, to: middle }, Primes { from: middle, to })?;
        Ok(a + b)
    }
}

/// The job, whose root runs on one node.
#[derive(Serialize, Deserialize)]
struct CountPrimes {
    below: u64,
}

impl Job for CountPrimes {
    const NAME: &'static str = "count-primes";
    const ABOUT: &'static str = "Counts primes";

    fn register(registry: &mut Registry) {
        registry.task::<Primes>();
    }

    fn run(self, cx: &Cx) -> Result<Outcome, Stop> {
        let primes = cx.call(Primes { from: 0, to: self.below })?;
        Ok(Outcome { checksum: primes, result: primes.into() })
    }
}

/// The actor: one on every node, restarted by supervision.
struct Greeter {
    greeted: u32,
}

impl Actor for Greeter {
    type Context = Context<Self>;
}

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

remote_message! { "embed.greet" => Greet -> String; }

impl Handler<Greet> for Greeter {
    type Result = String;

    fn handle(&mut self, greet: Greet, _ctx: &mut Context<Self>) -> String {
        self.greeted += 1;
        format!(
            "hello {}, you are number {} here (process {})",
            greet.name,
            self.greeted,
            std::process::id()
        )
    }
}

fn main() -> ExitCode {
    let app =
        App::new("embed", env!("CARGO_PKG_VERSION")).embedded_job::<CountPrimes>().actors(|hub| {
            let make = || Greeter { greeted: 0 };
            supervise(hub, "greeter", RestartLimits::default(), make, |p| p.accepts::<Greet>());
        });
    app.embed("2x1", async |grid| {
        let ended = grid.run(CountPrimes { below: 2_000_000 }, |_| {}).await?;
        match ended.outcome {
            Ok(outcome) => println!(
                "{} primes below two million; tasks stolen between clusters: {}",
                outcome.result, ended.report.total.counters.tasks.stolen_wide
            ),
            Err(error) => println!("no result: {error}"),
        }
        for node in grid.nodes().await {
            let greeter = grid.hub().remote::<Greeter>(&node, "greeter");
            let answer = greeter.send(Greet { name: "world".to_owned() }).await;
            println!("{node}: {}", answer.unwrap_or_else(|error| error.to_string()));
        }
        Ok(())
    })
}
