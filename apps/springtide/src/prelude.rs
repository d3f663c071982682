//! The items that a program of tasks needs: `use springtide::prelude::*`.

pub use crate::{Grid, JobHandle, task, tasks};

/// The interface of a running task: its children, shared objects and reports.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// /// The sum of the squares below a limit.
/// #[derive(Serialize, Deserialize)]
/// struct Squares(u64);
///
/// impl Task for Squares {
///     type Output = u64;
///     const NAME: &'static str = "squares";
///
///     fn run(self, cx: &Context) -> Result<u64, Stop> {
///         cx.check()?; // ends the task here if its node must leave
///         let (first, second) = cx.join(Square(0), Square(1))?;
///         let others = cx.join_all((2..self.0).map(Square))?;
///         Ok(first + second + others.iter().sum::<u64>())
///     }
/// }
///
/// # fn main() -> Result<(), springtide::Error> {
/// assert_eq!(springtide::run(Squares(10), 2)?, 285);
/// # Ok(())
/// # }
/// ```
pub use springtide_runtime::work::Context;

/// A program with options, whose root creates tasks.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// /// The job; its field is an option.
/// #[derive(Serialize, Deserialize)]
/// struct Sum {
///     below: u64,
/// }
///
/// impl Job for Sum {
///     const NAME: &'static str = "sum";
///     const ABOUT: &'static str = "Sum of squares";
///
///     fn register(registry: &mut Registry) {
///         registry.task::<Square>();
///     }
///
///     fn run(self, cx: &Context) -> Result<Outcome, Stop> {
///         let sum: u64 = cx.join_all((0..self.below).map(Square))?.iter().sum();
///         Ok(Outcome { checksum: sum, result: sum.into() })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// springtide::node(tasks![].job::<Sum>());
/// let grid = Grid::start("1x1").await?;
/// assert_eq!(grid.run(Sum { below: 10 }).await?.result, 285);
/// # Ok(())
/// # }
/// ```
pub use springtide_runtime::work::Job;

/// The result of a job: a checksum, and a value of JSON.
///
/// ```
/// use springtide::prelude::*;
///
/// let sum = 285_u64;
/// let outcome = Outcome { checksum: sum, result: sum.into() };
/// assert_eq!(outcome.result, 285);
/// ```
pub use springtide_runtime::work::Outcome;

/// The names of a program's tasks, jobs and shared objects.
///
/// A job registers its tasks in `Job::register`. For shared objects of plain tasks there is
/// [`NodeProgram::register`](crate::NodeProgram::register).
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use springtide::prelude::*;
/// use springtide::share::Merged;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// /// The greatest number that a task has found.
/// #[derive(Clone, PartialEq, Serialize, Deserialize)]
/// struct Greatest(u64);
///
/// impl Merged for Greatest {
///     const NAME: &'static str = "greatest";
///
///     fn merge(&mut self, other: &Self) {
///         self.0 = self.0.max(other.0);
///     }
/// }
///
/// # fn main() -> Result<(), springtide::Error> {
/// springtide::node(tasks![Square].register(|registry: &mut Registry| {
///     registry.merged::<Greatest>();
/// }));
/// # Ok(())
/// # }
/// ```
pub use springtide_runtime::work::Registry;

/// The reason why a task ends without an output: pass it up with `?`. Any error converts to it.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use springtide::prelude::*;
///
/// #[derive(Serialize, Deserialize)]
/// struct Parse(String);
///
/// impl Task for Parse {
///     type Output = u64;
///     const NAME: &'static str = "parse";
///
///     fn run(self, _: &Context) -> Result<u64, Stop> {
///         let number: u64 = self.0.parse()?; // a ParseIntError becomes the task's failure
///         if number == 0 {
///             return Err(Stop::fail("zero is not allowed"));
///         }
///         Ok(number)
///     }
/// }
///
/// assert_eq!(springtide::run(Parse("7".to_owned()), 1)?, 7);
/// let error = springtide::run(Parse("seven".to_owned()), 1).unwrap_err();
/// assert_eq!(error.to_string(), "task parse at /0 failed: invalid digit found in string");
/// # Ok::<(), springtide::Error>(())
/// ```
pub use springtide_runtime::work::Stop;

/// A unit of work: data with a `run`, whose output has a type.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use springtide::prelude::*;
///
/// #[derive(Serialize, Deserialize)]
/// struct Fib(u32);
///
/// impl Task for Fib {
///     type Output = u64;
///     const NAME: &'static str = "fib";
///
///     fn run(self, cx: &Context) -> Result<u64, Stop> {
///         if self.0 < 2 {
///             return Ok(self.0.into());
///         }
///         let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2))?;
///         Ok(a + b)
///     }
/// }
///
/// assert_eq!(springtide::run(Fib(20), 2)?, 6765);
/// # Ok::<(), springtide::Error>(())
/// ```
pub use springtide_runtime::work::Task;
