//! The `springtide` program: the house's own jobs.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use springtide::App;
use springtide_barnes_hut::BarnesHut;
use springtide_classics::{Fib, Integrate, Queens, Raytracer, Tsp, Words};
use springtide_malleable::{Ft, Nbody};
use springtide_stochastic::Solve;

/// Each step of a run makes its trees, lists and messages anew: what the last one gave back is kept for them, and need not be had of the
/// kernel page by page.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    program().main()
}

/// The program: tests of its documentation read their command lines by it.
pub fn program() -> App {
    App::new("springtide", env!("CARGO_PKG_VERSION"))
        .job::<BarnesHut>()
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
