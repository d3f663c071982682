//! The same grid for programs without an asynchronous runtime: each call waits for its result.

use std::future::{Future, IntoFuture};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use springtide_runtime::id::NodeId;
use springtide_runtime::work::Task;

use super::{Error, GridSource, JobHandle, Runnable, Submission};

/// A grid whose calls wait. See [`springtide::Grid`](crate::Grid).
///
/// ```
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// fn main() -> Result<(), springtide::Error> {
///     springtide::node(tasks![Square]);
///     let grid = springtide::blocking::Grid::start("1x1")?;
///     assert_eq!(grid.run(Square(7))?, 49);
///     assert_eq!(grid.map((1..4).map(Square))?, [1, 4, 9]);
///     let job = grid.submit(Square(8)).wait()?;
///     assert_eq!(job.wait()?, 64);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Grid(crate::Grid);

impl Grid {
    pub(super) fn of(grid: crate::Grid) -> Self {
        Self(grid)
    }

    /// Starts a grid of this program's own nodes: of a shape such as `"3x2"`, or of a config.
    ///
    /// # Errors
    /// As [`springtide::Grid::start`](crate::Grid::start).
    pub fn start(source: impl Into<GridSource>) -> Result<Self, Error> {
        wait(crate::Grid::start(source)).map(Self)
    }

    /// Connects to the running grid of a configuration file.
    ///
    /// # Errors
    /// As [`springtide::Grid::connect`](crate::Grid::connect).
    pub fn connect(file: impl AsRef<Path>) -> Result<Self, Error> {
        wait(crate::Grid::connect(file)).map(Self)
    }

    /// Runs a task or a job on the whole grid, and returns its output.
    ///
    /// # Errors
    /// As [`JobHandle`].
    pub fn run<K, R: Runnable<K>>(&self, work: R) -> Result<R::Output, Error> {
        wait(self.0.run(work))
    }

    /// Runs independent tasks on the whole grid, and returns their outputs in order.
    ///
    /// # Errors
    /// As [`springtide::Grid::map`](crate::Grid::map).
    pub fn map<T: Task>(
        &self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<T::Output>, Error> {
        wait(self.0.map(tasks))
    }

    /// Prepares a submission; [`Submission::wait`] submits it.
    pub fn submit<K, R: Runnable<K>>(&self, work: R) -> Submission<'_, K, R> {
        self.0.submit(work)
    }

    /// The nodes that have registered, by name.
    ///
    /// # Errors
    /// As [`springtide::Grid::nodes`](crate::Grid::nodes).
    pub fn nodes(&self) -> Result<Vec<NodeId>, Error> {
        wait(self.0.nodes())
    }

    /// Ends the grid with all its jobs, and waits for the end.
    pub fn close(self) {
        wait(self.0.close());
    }
}

impl<K, R: Runnable<K>> Submission<'_, K, R> {
    /// Submits the work, for programs that are not asynchronous.
    ///
    /// # Errors
    /// As awaiting it.
    pub fn wait(self) -> Result<JobHandle<R::Output>, Error> {
        wait(self.into_future())
    }
}

impl<T: Send + 'static> JobHandle<T> {
    /// Waits for the output, for programs that are not asynchronous.
    ///
    /// # Errors
    /// As awaiting it.
    pub fn wait(self) -> Result<T, Error> {
        wait(self.into_future())
    }
}

/// Wakes a thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread until a future completes. The grid's own thread does the work.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_for_another_one() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let other = std::thread::spawn(move || sender.send(7));
        assert_eq!(wait(receiver), Ok(7));
        other.join().unwrap().unwrap();
    }
}
