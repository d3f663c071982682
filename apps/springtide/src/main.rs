//! The `springtide` program: the house's own jobs.

use std::process::ExitCode;

use springtide::App;
use springtide_barnes_hut::BarnesHut;
use springtide_classics::{Fib, Integrate, Queens, Raytracer, Tsp, Words};

fn main() -> ExitCode {
    App::new("springtide", env!("CARGO_PKG_VERSION"))
        .job::<BarnesHut>()
        .job::<Fib>()
        .job::<Integrate>()
        .job::<Queens>()
        .job::<Raytracer>()
        .job::<Tsp>()
        .job::<Words>()
        .main()
}
