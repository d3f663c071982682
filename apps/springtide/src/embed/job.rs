//! Jobs of an embedded grid: what runs, with which processors, and how it is followed.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture, Ready, ready};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use springtide_actors::scheduler::manager::{JobRequirements, Kind};
use springtide_runtime::config::{GridConfig, JobSizes};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::work::{
    Job, Outcome, OutputAssembler, OutputError, Task, TaskJob, encode_job,
};
use tokio::sync::{broadcast, oneshot, watch};

use super::Error;
use super::grid::Grid;
use super::service::{JobChannel, JobOrder, Order};
use springtide_operations::netconf;

/// The maximum length of an encoded job, in bytes. Each node of the job receives it.
const JOB_MAX: usize = 64 << 20;
/// Events that a slow reader may leave unread, before it loses the oldest.
const EVENTS_MAX: usize = 1024;

/// What a grid can run: a [`Task`], a `Vec` of tasks, or a [`Job`]. `Kind` only distinguishes
/// these; it is always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot run on a grid",
    note = "implement `springtide::prelude::Task` or `springtide::prelude::Job` for it"
)]
pub trait Runnable<Kind> {
    /// The result: the output of the task, the outputs of all tasks, or the [`Outcome`] of the job.
    type Output: Send + 'static;

    #[doc(hidden)]
    fn encode(self) -> Result<EncodedWork, Error>;

    #[doc(hidden)]
    fn decode(end: JobEnd) -> Result<Self::Output, Error>;
}

/// Marks a task among the kinds of work.
#[doc(hidden)]
pub enum OneTask {}
/// Marks a list of tasks among the kinds of work.
#[doc(hidden)]
pub enum TaskList {}
/// Marks a job among the kinds of work.
#[doc(hidden)]
pub enum WholeJob {}

/// Work as the scheduler receives it.
#[doc(hidden)]
pub struct EncodedWork {
    /// The registered name of the job.
    job: &'static str,
    /// The name that the program knows.
    name: &'static str,
    body: Bytes,
}

impl EncodedWork {
    fn of<J: Job>(job: J, name: &'static str) -> Result<Self, Error> {
        let body = encode_job(job).map_err(|error| Error::Config { reason: error.to_string() })?;
        if body.len() > JOB_MAX {
            let (what, bytes) = (format!("the submission of {name}"), body.len());
            return Err(Error::TooLong { what, bytes, limit: JOB_MAX });
        }
        Ok(Self { job: J::NAME, name, body })
    }
}

/// The end of a job that has an outcome.
#[doc(hidden)]
pub struct JobEnd {
    pub(super) outcome: Outcome,
    pub(super) output: OutputAssembler,
}

impl<T: Task> Runnable<OneTask> for T {
    type Output = T::Output;

    fn encode(self) -> Result<EncodedWork, Error> {
        EncodedWork::of(TaskJob { tasks: vec![self] }, T::NAME)
    }

    fn decode(end: JobEnd) -> Result<T::Output, Error> {
        let output = end.output.finish::<T>(&end.outcome)?.pop();
        output.ok_or(OutputError::Incomplete { received: 0 }.into())
    }
}

impl<T: Task> Runnable<TaskList> for Vec<T> {
    type Output = Vec<T::Output>;

    fn encode(self) -> Result<EncodedWork, Error> {
        EncodedWork::of(TaskJob { tasks: self }, T::NAME)
    }

    fn decode(end: JobEnd) -> Result<Vec<T::Output>, Error> {
        Ok(end.output.finish::<T>(&end.outcome)?)
    }
}

impl<J: Job> Runnable<WholeJob> for J {
    type Output = Outcome;

    fn encode(self) -> Result<EncodedWork, Error> {
        EncodedWork::of(self, J::NAME)
    }

    fn decode(end: JobEnd) -> Result<Outcome, Error> {
        Ok(end.outcome)
    }
}

/// Numbers of processors, if the scheduler is to choose the job's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RequestedSize {
    min: Option<u32>,
    max: Option<u32>,
    malleable: bool,
    clusters: Vec<String>,
}

/// A submission with its options. Awaiting it submits the work and returns the [`JobHandle`].
///
/// Without numbers of processors, a job gets all nodes, and such jobs run one after another. With
/// them, jobs run at the same time, each on the processors that it needs.
///
/// ```
/// use std::time::Duration;
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// # springtide::node(tasks![Square]);
/// let grid = Grid::start("1x2").await?;
/// let job = grid.submit(Square(7)).min(1).malleable().deadline(Duration::from_secs(60)).await?;
/// assert_eq!(job.await?, 49);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is submitted before it is awaited"]
pub struct Submission<'g, K, R> {
    grid: &'g Grid,
    work: R,
    size: RequestedSize,
    name: Option<String>,
    deadline: Option<Duration>,
    kind: PhantomData<fn(K)>,
}

impl<'g, K, R: Runnable<K>> Submission<'g, K, R> {
    pub(super) fn new(grid: &'g Grid, work: R) -> Self {
        let size = RequestedSize::default();
        Self { grid, work, size, name: None, deadline: None, kind: PhantomData }
    }

    /// The minimum number of processors; 1 by default.
    pub fn min(mut self, processors: u32) -> Self {
        self.size.min = Some(processors);
        self
    }

    /// The maximum number of processors; all of the grid by default.
    pub fn max(mut self, processors: u32) -> Self {
        self.size.max = Some(processors);
        self
    }

    /// Lets the number of processors change between the limits while the job runs.
    pub fn malleable(mut self) -> Self {
        self.size.malleable = true;
        self
    }

    /// Uses only these clusters.
    pub fn clusters<C: Into<String>>(mut self, names: impl IntoIterator<Item = C>) -> Self {
        self.size.clusters = names.into_iter().map(Into::into).collect();
        self
    }

    /// A name for errors, instead of the task's.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Cancels the job if it has not ended after this time from now, including its wait for nodes.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    fn send(self) -> Result<JobHandle<R::Output>, Error> {
        let Self { grid, work, size, name, deadline, .. } = self;
        let EncodedWork { job, name: default, body } = work.encode()?;
        if grid.inner.registry.find_job(job).is_none() {
            return Err(Error::NotRegistered { name: default.to_owned() });
        }
        let config = &grid.inner.config;
        let mut params = netconf::job_params(config);
        let (need, nodes) = size.resolve(config)?;
        let mut clusters = nodes;
        if let Some(need) = &need {
            params.min_processors = need.least().into();
            params.max_processors = Some(need.greatest().into());
        } else if grid.inner.is_own && clusters.is_none() {
            clusters = netconf::check_start(config, &params, None)?;
        }
        let name = name.unwrap_or_else(|| default.to_owned());
        let (state, state_receiver) = watch::channel(JobSnapshot::default());
        let (events, event_receiver) = broadcast::channel(EVENTS_MAX);
        let (handle_orders, orders) = watch::channel(HandleOrder::Run);
        let (end, ended) = oneshot::channel();
        let channel = JobChannel { name: name.clone(), state, events, orders, end };
        let order = JobOrder { job, body, params, clusters, need, deadline, channel };
        grid.send(Order::Submit(Box::new(order)))?;
        Ok(JobHandle {
            grid: grid.clone(),
            name,
            state: state_receiver,
            events: event_receiver,
            orders: handle_orders,
            ended,
            decode: R::decode,
        })
    }
}

impl<K, R: Runnable<K>> IntoFuture for Submission<'_, K, R> {
    type Output = Result<JobHandle<R::Output>, Error>;
    type IntoFuture = Ready<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        ready(self.send())
    }
}

/// Requirements of a job, or its numbers of nodes by cluster. Neither: all nodes.
type Resources = (Option<JobRequirements>, Option<BTreeMap<ClusterId, u32>>);

impl RequestedSize {
    /// The requirements of the job in a grid of this config.
    fn resolve(self, config: &GridConfig) -> Result<Resources, Error> {
        let wrong = |reason: String| Error::Config { reason };
        let names = netconf::clusters_of(&self.clusters, config).map_err(wrong)?;
        let chosen =
            config.cluster.iter().filter(|one| names.contains(&ClusterId::from(one.name.as_str())));
        if self.min.is_none() && self.max.is_none() && !self.malleable {
            let nodes = chosen.map(|one| (one.name.as_str().into(), one.nodes.get())).collect();
            return Ok((None, Some(nodes).filter(|_| !names.is_empty())));
        }
        let all = netconf::existing_processors(config).get();
        let (min, max) = (self.min.unwrap_or(1), self.max);
        if min == 0 || max == Some(0) {
            return Err(wrong(
                "a job needs at least one processor: give min or max of 1".to_owned(),
            ));
        }
        let kind = if self.malleable {
            Kind::Malleable
        } else if max == Some(min) {
            Kind::Rigid
        } else {
            Kind::Moldable
        };
        let start = (kind != Kind::Rigid).then(|| max.unwrap_or(all.max(min)));
        let sizes = JobSizes::of(kind, min, start, max, all);
        let sizes = sizes.map_err(|(key, reason)| wrong(format!("{key}: {reason}")))?;
        let mut need = JobRequirements::one(kind, sizes.min, sizes.start, sizes.max);
        need.placement = config.scheduling.placement;
        need.spreads = self.malleable;
        need.components[0].clusters = names;
        need.check().map_err(wrong)?;
        Ok((Some(need), None))
    }
}

/// An order of a handle to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandleOrder {
    /// Run as long as the handle exists.
    Run,
    /// Run without the handle.
    Detach,
    /// End without an outcome.
    Cancel,
}

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobSnapshot {
    /// The number of the job in its grid, once it has nodes.
    pub job: Option<JobId>,
    /// Whether the root of the job has started.
    pub is_running: bool,
    /// What the first waiting job of this program waits for. None once the job has nodes.
    pub waits_for: Option<String>,
    /// The last progress that the job reported with `Context::progress`.
    pub progress: Option<Progress>,
}

/// The progress of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of completed units.
    pub done: u64,
    /// The number of units in total.
    pub total: u64,
    /// The name of the unit.
    pub unit: String,
}

/// An event of a running job.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum JobEvent {
    /// The job has no nodes yet, for this reason, as in `sending program (12 of 40 MB) to cluster
    /// ams`. If several jobs of this program wait, it is that of the first one.
    Waiting(String),
    /// The root has started on this node, with this number of nodes.
    Started {
        /// The node of the root.
        root: NodeId,
        /// The number of nodes.
        nodes: u32,
    },
    /// The job reported its progress.
    Progress(Progress),
    /// An iteration of the job has ended.
    Iteration {
        /// Its number, from 0.
        index: u64,
        /// The time that it took.
        duration: Duration,
    },
    /// A line of text, by `Context::report_text`.
    Text(String),
    /// A file, by `Context::artifact`. Nothing is written.
    Artifact {
        /// A plain file name.
        name: String,
        /// The contents of the file.
        bytes: Bytes,
    },
    /// The outcome that the job would have if it ended now.
    Preliminary(Outcome),
}

/// The events of a job, in order.
///
/// ```
/// use springtide::JobEvent;
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// # springtide::node(tasks![Square]);
/// let grid = Grid::start("1x1").await?;
/// let mut job = grid.submit(Square(7)).await?;
/// let mut events = job.events();
/// job.await?;
/// while let Some(event) = events.next().await {
///     if let JobEvent::Started { root, nodes } = event {
///         println!("started on {root}, with {nodes} nodes");
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct JobEvents(broadcast::Receiver<JobEvent>);

impl JobEvents {
    /// Waits for the next event; none follows after the job's end. A reader that is more than a
    /// thousand events behind loses the oldest. Cancel safe.
    pub async fn next(&mut self) -> Option<JobEvent> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// A submitted job. Awaiting it returns the output.
///
/// Dropping the handle, or the future that awaits it, cancels the job, unless it is
/// [detached](JobHandle::detach).
///
/// ```
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// # springtide::node(tasks![Square]);
/// let grid = Grid::start("1x1").await?;
/// let job = grid.submit(Square(7)).await?;
/// println!("{}: {:?}", job.name(), job.state());
/// let square: u64 = job.await?;
/// assert_eq!(square, 49);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What it returns if the job has no output: [`Error::Task`], [`Error::NodeLost`],
/// [`Error::PoisonTask`], [`Error::Deadline`], [`Error::Cancelled`], [`Error::NotPlaced`],
/// [`Error::OtherProgram`], [`Error::ProgramRefused`], [`Error::Unreachable`] or [`Error::Ended`].
#[must_use = "dropping the handle cancels its job"]
pub struct JobHandle<T> {
    grid: Grid,
    name: String,
    state: watch::Receiver<JobSnapshot>,
    events: broadcast::Receiver<JobEvent>,
    orders: watch::Sender<HandleOrder>,
    ended: oneshot::Receiver<Result<JobEnd, Error>>,
    decode: fn(JobEnd) -> Result<T, Error>,
}

impl<T> JobHandle<T> {
    /// The name of the job: that of its task, or of its submission.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The present state of the job.
    pub fn state(&self) -> JobSnapshot {
        self.state.borrow().clone()
    }

    /// The last progress that the job reported.
    pub fn progress(&self) -> Option<Progress> {
        self.state.borrow().progress.clone()
    }

    /// The events of the job: at the first call all since its submission, then those that follow.
    pub fn events(&mut self) -> JobEvents {
        let later = self.events.resubscribe();
        JobEvents(std::mem::replace(&mut self.events, later))
    }

    /// Cancels the job. Awaiting the handle then returns [`Error::Cancelled`], unless the job has
    /// ended before.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("1x1").await?;
    /// let job = grid.submit(Square(7)).min(9).await?; // the grid has one processor
    /// job.cancel();
    /// assert!(job.await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self) {
        self.orders.send_replace(HandleOrder::Cancel);
    }

    /// Lets the job run to its end without its handle, as long as the grid exists. Its output is
    /// discarded.
    pub fn detach(self) {
        self.orders.send_replace(HandleOrder::Detach);
    }
}

impl<T: Send + 'static> IntoFuture for JobHandle<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // The grid and the right to run live as long as this future.
            let Self { grid: _grid, orders: _orders, ended, decode, .. } = self;
            decode(ended.await.unwrap_or(Err(Error::Ended))?)
        })
    }
}

impl<T> std::fmt::Debug for JobHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobHandle").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use springtide_operations::grid_files;

    fn resolve(size: RequestedSize) -> Result<Resources, Error> {
        size.resolve(&grid_files::ad_hoc("2x2".parse().unwrap(), |sources| sources).unwrap().value)
    }

    #[test]
    fn a_job_without_numbers_gets_whole_clusters() {
        assert_eq!(resolve(RequestedSize::default()).unwrap(), (None, None));
        let clusters = vec!["del".to_owned()];
        let (need, nodes) = resolve(RequestedSize { clusters, ..Default::default() }).unwrap();
        assert_eq!((need, nodes), (None, Some([("del".into(), 2)].into())));
        let clusters = vec!["dle".to_owned()];
        let error = resolve(RequestedSize { clusters, ..Default::default() }).unwrap_err();
        assert!(error.to_string().contains("did you mean del?"), "{error}");
    }

    #[test]
    fn numbers_decide_the_kind_of_a_job() {
        let need = |min, max, malleable| {
            let size = RequestedSize { min, max, malleable, clusters: Vec::new() };
            let need = resolve(size)?.0.expect("it has numbers");
            let component = &need.components[0];
            Ok::<_, Error>((need.kind, component.min, component.max_at_start, need.max[0]))
        };
        assert_eq!(need(Some(2), Some(2), false).unwrap(), (Kind::Rigid, 2, 2, 2));
        assert_eq!(need(Some(2), None, false).unwrap(), (Kind::Moldable, 2, 4, 4));
        assert_eq!(need(None, Some(3), true).unwrap(), (Kind::Malleable, 1, 3, 3));
        for (min, max) in [(Some(0), None), (Some(3), Some(2)), (None, Some(0))] {
            assert!(matches!(need(min, max, true), Err(Error::Config { .. })), "{min:?} {max:?}");
        }
    }
}
