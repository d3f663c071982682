//! The job `runner`: its client sends tasks while it runs, and programs in other languages run
//! them. How they run is the matter of [`springtide_runtime::runner`].

use serde::{Deserialize, Serialize};
use springtide_runtime::runner::{self, RunnerSpec};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop};

/// A job of runners.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunnerJob {
    /// The parameters of its runners.
    pub spec: RunnerSpec,
}

impl Job for RunnerJob {
    const NAME: &'static str = "runner";
    const ABOUT: &'static str = "Tasks of a program in another language, such as Python";

    fn register(registry: &mut Registry) {
        runner::register(registry);
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        runner::run(&self.spec, cx)
    }
}
