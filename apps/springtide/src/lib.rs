//! Runs divide-and-conquer and master-worker programs, and groups of processes, over several
//! clusters: from a program of your own, or as a command.
//!
//! # In a program
//!
//! [`Grid`] starts nodes of this program, or connects to a grid that is up. A task is data with a
//! `run`, and its output has a type:
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use springtide::prelude::*;
//!
//! #[derive(Serialize, Deserialize)]
//! struct Fib(u32);
//!
//! impl Task for Fib {
//!     type Output = u64;
//!     const NAME: &'static str = "fib";
//!
//!     fn run(self, cx: &Context) -> Result<u64, Stop> {
//!         if self.0 < 2 {
//!             return Ok(self.0.into());
//!         }
//!         let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2))?;
//!         Ok(a + b)
//!     }
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), springtide::Error> {
//!     springtide::node(tasks![Fib]); // makes this program its own nodes
//!     let grid = Grid::start("2x2").await?;
//!     println!("{}", grid.run(Fib(30)).await?);
//!     Ok(())
//! }
//! ```
//!
//! [`run`] and [`join`] compute on the threads of this process alone. [`blocking`] is for programs
//! that are not asynchronous.
//!
//! # As a command
//!
//! [`App`] is the `springtide` command as a library: a program with its own jobs needs three lines
//! of `main`.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     let program = springtide::App::new("my-program", env!("CARGO_PKG_VERSION"));
//!     program.job::<springtide_classics::Fib>().main()
//! }
//! ```
//!
//! The program then has `run`, `up`, `dev`, `node run`, `config` and so on. Its nodes execute the
//! same program, so that tasks need not be sent as code. `ARCHITECTURE.md` describes the modules.
// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(feature = "command")]
mod app;
#[cfg(feature = "command")]
mod command_job;
#[cfg(feature = "command")]
mod commands;
mod embed;
#[cfg(feature = "command")]
mod output;
pub mod prelude;

pub use actix;
#[cfg(feature = "command")]
pub use app::App;
pub use bytes::Bytes;
pub use embed::{
    Config, Error, Grid, GridBuilder, GridSource, JobEvent, JobEvents, JobHandle, JobSnapshot,
    NodeProgram, Progress, Runnable, Submission, blocking, join, node, run,
};
#[doc(hidden)]
pub use serde;
pub use springtide_actors::singleton::{Singleton, SingletonError};
pub use springtide_cli::exit::{Exit, Failed};
pub use springtide_runtime::forkjoin::Context as JoinContext;
pub use springtide_runtime::id::NodeId;
pub use springtide_runtime::remote::{Hub, Remote, RemoteError};
pub use springtide_runtime::{malleable, mw, remote_message, share, spmd, work};

/// Makes a task of a function: `#[task] fn square(x: u64) -> u64`.
///
/// The function becomes a type of the same name, whose values are calls: `square(7)` computes
/// nothing, and is a [`Task`](prelude::Task) with the number 7. A grid runs it, or another task
/// joins it. The arguments are what is sent to another node, so that the task owns them.
///
/// ```
/// use springtide::prelude::*;
///
/// #[task]
/// fn square(x: u64) -> u64 {
///     x * x
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// springtide::node(tasks![square]);
/// let grid = Grid::start("1x2").await?;
/// assert_eq!(grid.run(square(7)).await?, 49);
/// assert_eq!(grid.map((1..=5).map(square)).await?, [1, 4, 9, 16, 25]);
/// # Ok(())
/// # }
/// ```
///
/// If the first argument is a [`&Context`](prelude::Context), the function gets that of the running
/// task, and creates children with it. If the function returns a `Result`, the output of the task
/// is the content, and an error fails the task:
///
/// ```
/// use springtide::prelude::*;
///
/// /// A number of the Fibonacci sequence.
/// #[task]
/// fn fib(cx: &Context, n: u32) -> Result<u64, Stop> {
///     if n < 2 {
///         return Ok(n.into());
///     }
///     let (a, b) = cx.join(fib(n - 1), fib(n - 2))?;
///     Ok(a + b)
/// }
///
/// #[task(name = "sum of lines")]
/// fn sum(lines: Vec<String>) -> Result<i64, std::num::ParseIntError> {
///     lines.iter().map(|line| line.parse::<i64>()).sum()
/// }
///
/// # fn main() -> Result<(), springtide::Error> {
/// assert_eq!(springtide::run(fib(20), 2)?, 6765);
/// assert_eq!(springtide::run(sum(vec!["1".to_owned(), "2".to_owned()]), 1)?, 3);
/// let error = springtide::run(sum(vec!["one".to_owned()]), 1).unwrap_err();
/// assert_eq!(error.to_string(), "task sum of lines at /0 failed: invalid digit found in string");
/// # Ok(())
/// # }
/// ```
///
/// The task has the name of the function, or the one in `name`. Functions of other shapes are not
/// tasks: those with borrowed arguments, generic, `async` or `unsafe` ones, and methods.
///
/// ```compile_fail
/// #[springtide::task]
/// fn length(text: &str) -> usize { // the task must own its text
///     text.len()
/// }
/// ```
pub use springtide_macros::task;

/// The tasks of a program's nodes, as a [`NodeProgram`]: `tasks![Fib, Longest]`.
///
/// Each type implements [`Task`](prelude::Task). The version of the calling package is that of the
/// program.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use springtide::prelude::*;
///
/// #[derive(Serialize, Deserialize)]
/// struct Square(u64);
///
/// impl Task for Square {
///     type Output = u64;
///     const NAME: &'static str = "square";
///
///     fn run(self, _: &Context) -> Result<u64, Stop> {
///         Ok(self.0 * self.0)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// springtide::node(tasks![Square]);
/// let grid = Grid::start("1x1").await?;
/// assert_eq!(grid.run(Square(7)).await?, 49);
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! tasks {
    ($($task:ty),* $(,)?) => {
        $crate::NodeProgram::new().version(env!("CARGO_PKG_VERSION"))$(.task::<$task>())*
    };
}
