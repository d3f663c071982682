//! A program with a task that ends the process of every node that runs it: an example of a poison
//! task.
//!
//! ```text
//! cargo run -p springtide --example deadly -- run deadly --clusters 1x5
//! ```
//!
//! Its site restarts each such node, and the other nodes continue. Without the count of deaths by
//! task, all nodes would die in turn, again and again. A job with foreign code that may end its
//! process should run that code in a process of its own, and fail by `?`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop, Task};

/// The job: its root's node executes one task while another node takes the deadly one.
#[derive(Args, Serialize, Deserialize)]
struct Deadly {
    /// Computing time of the harmless task, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

impl Job for Deadly {
    const NAME: &'static str = "deadly";
    const ABOUT: &'static str = "Ends every node that takes its second task";

    fn register(registry: &mut Registry) {
        registry.task::<Harmless>().task::<Abort>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        cx.join(Harmless { seconds: self.seconds }, Abort)?;
        Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
    }
}

#[derive(Serialize, Deserialize)]
struct Harmless {
    seconds: u64,
}

impl Task for Harmless {
    type Output = ();
    const NAME: &'static str = "deadly.harmless";

    fn run(self, cx: &Context) -> Result<(), Stop> {
        let until = Instant::now() + Duration::from_secs(self.seconds);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            cx.check()?;
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Abort;

impl Task for Abort {
    type Output = ();
    const NAME: &'static str = "deadly.abort";

    fn run(self, _: &Context) -> Result<(), Stop> {
        eprintln!("this is the deadly task");
        std::process::abort();
    }
}

/// A job that panics in a call by the runtime's own actors. The panic is logged by the nodes, and
/// the job runs all the same.
#[derive(Args, Serialize, Deserialize)]
struct Careless;

impl Job for Careless {
    const NAME: &'static str = "careless";
    const ABOUT: &'static str = "Panics when it is asked for its benchmark";

    fn register(_: &mut Registry) {}

    fn benchmark(&self) -> Option<Self> {
        panic!("there is no benchmark");
    }

    fn run(self, _: &Context) -> Result<Outcome, Stop> {
        Ok(Outcome { checksum: 7, result: 7.into() })
    }
}

fn main() -> ExitCode {
    springtide::App::new("deadly", "1.0").job::<Deadly>().job::<Careless>().main()
}
