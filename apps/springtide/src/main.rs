//! The `springtide` program with the project's own jobs.

use std::process::ExitCode;

use springtide::App;
use springtide_allocator as _;
use springtide_barnes_hut::BarnesHut;
use springtide_classics::{Fib, Integrate, Queens, Raytracer, Tsp, Words};
use springtide_malleable::{Ft, Nbody};
use springtide_stochastic::Solve;

fn main() -> ExitCode {
    program().main()
}

/// The program; tests of its documentation parse command lines with it.
pub fn program() -> App {
    App::new("springtide", env!("CARGO_PKG_VERSION"))
        .job::<BarnesHut>()
        .commands()
        .job::<Fib>()
        .job::<Ft>()
        .job::<Integrate>()
        .job::<Nbody>()
        .job::<Queens>()
        .job::<Raytracer>()
        .command::<Solve>()
        .job::<Tsp>()
        .job::<Words>()
}
