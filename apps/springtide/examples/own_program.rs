//! A program on the grid: a task, a job with options, an actix actor, and three lines of `main`.
//!
//! ```text
//! cargo run --release -p springtide --example own_program -- run collatz --below 3000000
//! ```
//!
//! The same file is the program that submits and the program of every node. It can also use a grid
//! that another program started: `springtide up grid.toml`, then `own_program run collatz --config
//! grid.toml`. The sites start its nodes.

use std::process::ExitCode;

use actix::{Actor, Context as ActorContext, Handler};
use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::remote_message;
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

/// The job: which number below a limit has the longest Collatz sequence? Its fields are the
/// options.
#[derive(Args, Serialize, Deserialize)]
struct Collatz {
    /// Upper limit of the numbers
    #[arg(long, default_value_t = 1_000_000)]
    below: u64,
    /// Numbers per task
    #[arg(long, default_value_t = 10_000)]
    grain: u64,
}

impl Job for Collatz {
    const NAME: &'static str = "collatz";
    const ABOUT: &'static str = "The longest Collatz sequence";

    fn register(registry: &mut Registry) {
        registry.task::<Longest>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        if self.below < 2 || self.grain == 0 {
            return Err(InputError::new("give --below 2 or more, and --grain 1 or more"));
        }
        Ok(())
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let (length, start) = cx.call(Longest { from: 1, below: self.below, grain: self.grain })?;
        let result = serde_json::json!({ "start": start, "length": length });
        Ok(Outcome { checksum: start ^ (u64::from(length) << 48), result })
    }
}

/// The task: the longest sequence in a range, and the smallest number that has it.
#[derive(Serialize, Deserialize)]
struct Longest {
    from: u64,
    below: u64,
    grain: u64,
}

impl Task for Longest {
    type Output = (u32, u64);
    const NAME: &'static str = "collatz.longest";

    fn run(self, cx: &Context) -> Result<(u32, u64), Stop> {
        let Self { from, below, grain } = self;
        if below - from <= grain {
            let lengths = (from..below).map(|start| (length(start), start));
            return Ok(lengths.fold((0, 0), longer));
        }
        let middle = from + (below - from) / 2;
        let (low, high) = cx
            .join(Longest { from, below: middle, grain }, Longest { from: middle, below, grain })?;
        Ok(longer(low, high))
    }
}

fn longer(a: (u32, u64), b: (u32, u64)) -> (u32, u64) {
    if b.0 > a.0 { b } else { a }
}

fn length(mut n: u64) -> u32 {
    let mut steps = 1;
    while n != 1 {
        n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

/// Any actix actor, published under a name on each node, and reachable from the whole grid.
struct Greeter;

impl Actor for Greeter {
    type Context = ActorContext<Self>;
}

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

remote_message! { "greet" => Greet -> String; }

impl Handler<Greet> for Greeter {
    type Result = String;

    fn handle(&mut self, greet: Greet, _: &mut Self::Context) -> String {
        format!("Hello, {}!", greet.name)
    }
}

fn main() -> ExitCode {
    springtide::App::new("own-program", "1.0")
        .job::<Collatz>()
        .actors(|hub| drop(hub.publish("greeter", Greeter.start()).accepts::<Greet>()))
        .main()
}
