//! The handle of a grid, for asynchronous programs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use springtide_actors::singleton::Singleton;
use springtide_cli::config::load;
use springtide_runtime::config::{GridConfig, Sources};
use springtide_runtime::id::NodeId;
use springtide_runtime::remote::{Hub, Remote};
use springtide_runtime::work::{Registry, Task};
use tokio::sync::{mpsc, oneshot};

use super::job::{Runnable, Submission};
use super::service::{self, Order, Ready, ServiceOptions, ServiceSource};
use super::{Error, blocking, program};
use springtide_operations::grid_files;
use springtide_operations::shape::GridShape;

/// A grid that runs this program's tasks: one of its own, or one that is up.
///
/// It may be used in any asynchronous program and on any thread; all clones are the same grid. The
/// grid's own actors run on a thread of their own. Many jobs may run at once.
///
/// When the last clone and the last [`JobHandle`](crate::JobHandle) are dropped, what the grid has
/// started ends: its jobs, its nodes and their files. The drop waits for that, a few seconds at
/// most. Ctrl-C and SIGTERM end the grid too, and then the process, unless
/// [`GridBuilder::signals`] is off.
///
/// ```
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// # springtide::node(tasks![Square]);
/// let grid = Grid::start("2x1").await?; // two clusters of one node on this host
/// assert_eq!(grid.run(Square(7)).await?, 49);
/// let first = grid.submit(Square(8)).max(1).await?; // two jobs at the same time
/// let second = grid.submit(Square(9)).max(1).await?;
/// assert_eq!(first.await? + second.await?, 145);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Grid {
    pub(super) inner: Arc<GridInner>,
}

/// What all clones of a grid share.
pub(super) struct GridInner {
    pub(super) hub: Arc<Hub>,
    /// Name of the head's node.
    head: NodeId,
    pub(super) config: GridConfig,
    pub(super) registry: Arc<Registry>,
    /// Whether the nodes belong to this grid alone.
    pub(super) is_own: bool,
    service: GridService,
}

/// The thread of a grid. Dropping it ends the grid and waits for the end.
struct GridService {
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl GridService {
    fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was printed when it occurred.
            let _ = thread.join();
        }
    }
}

impl Drop for GridService {
    fn drop(&mut self) {
        self.orders = None;
        self.wait();
    }
}

/// The configuration of a grid, as a file `grid.toml` has it.
///
/// ```
/// use springtide::Config;
///
/// let config: Config = "[[cluster]]\nname = \"ams\"\nnodes = 2\n".parse()?;
/// let mistake = "[[cluster]]\nnodes = 0\n".parse::<Config>().unwrap_err();
/// assert!(mistake.to_string().contains("nodes"));
/// # Ok::<(), springtide::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config(GridConfig);

impl Config {
    /// Reads a configuration. Variables of the environment override its values, as for the command.
    ///
    /// ```no_run
    /// use springtide::prelude::*;
    ///
    /// # async fn example() -> Result<(), springtide::Error> {
    /// let grid = Grid::start(springtide::Config::load("grid.toml")?).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] with all mistakes and their places.
    pub fn load(file: impl AsRef<Path>) -> Result<Self, Error> {
        let sources = Sources::of_process(Some(file.as_ref()));
        let config = load::<GridConfig>(&sources);
        Ok(Self(config.map_err(|error| Error::Config { reason: error.to_string() })?.value))
    }
}

impl std::str::FromStr for Config {
    type Err = Error;

    /// Reads a configuration from the text of a file.
    fn from_str(text: &str) -> Result<Self, Error> {
        let config = load::<GridConfig>(&Sources::of_text("the configuration", text));
        Ok(Self(config.map_err(|error| Error::Config { reason: error.to_string() })?.value))
    }
}

/// What a grid is started from: a shape such as `"3x2"`, or a [`Config`].
#[derive(Clone, Debug)]
pub struct GridSource(SourceKind);

#[derive(Clone, Debug)]
enum SourceKind {
    Shape(String),
    Config(Box<GridConfig>),
}

impl From<&str> for GridSource {
    fn from(shape: &str) -> Self {
        Self(SourceKind::Shape(shape.to_owned()))
    }
}

impl From<String> for GridSource {
    fn from(shape: String) -> Self {
        Self(SourceKind::Shape(shape))
    }
}

impl From<Config> for GridSource {
    fn from(Config(config): Config) -> Self {
        Self(SourceKind::Config(Box::new(config)))
    }
}

impl GridSource {
    fn config(self) -> Result<GridConfig, Error> {
        match self.0 {
            SourceKind::Config(config) => Ok(*config),
            SourceKind::Shape(text) => {
                let shape: GridShape = text.parse().map_err(|reason| Error::Config {
                    reason: format!("{text:?} is no shape of a grid: it {reason}"),
                })?;
                Ok(grid_files::ad_hoc(shape, |sources| sources)?.value)
            }
        }
    }
}

/// Options of a grid, before it starts. [`Grid::builder`] and [`Grid::connector`] create it.
///
/// ```
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), springtide::Error> {
/// # springtide::node(tasks![Square]);
/// let grid = Grid::builder("1x2").signals(false).logs(false).start().await?;
/// assert_eq!(grid.nodes().await?.len(), 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "the grid starts by `start`"]
pub struct GridBuilder {
    source: BuilderSource,
    options: ServiceOptions,
}

enum BuilderSource {
    Own(GridSource),
    Running(PathBuf, Option<String>),
}

impl GridBuilder {
    fn of(source: BuilderSource) -> Self {
        Self { source, options: ServiceOptions { signals: true, logs: true, dir: None } }
    }

    /// Whether Ctrl-C and SIGTERM end the grid, and then this process. Without it, a program that
    /// ends by a signal leaves temporary files, which its next grid removes. The default is true.
    pub fn signals(mut self, handle: bool) -> Self {
        self.options.signals = handle;
        self
    }

    /// Whether the lines that nodes on this host write are written to standard error, each with the
    /// name of its node: what tasks print, and events of `tracing` of the level `info` or of
    /// `RUST_LOG`. The default is true.
    ///
    /// A connection to a running grid writes none: there they stay in the logs of the nodes.
    pub fn logs(mut self, show: bool) -> Self {
        self.options.logs = show;
        self
    }

    /// The directory of the grid's files, instead of a temporary one. The nodes' logs in its folder
    /// `nodes` stay there. A connection to a running grid has no files.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.options.dir = Some(dir.as_ref().to_owned());
        self
    }

    /// The token with which a user without a certificate joins a running grid, as `token create
    /// --role submitter` prints it. The certificate is kept in `tls.identity` of the config, or in
    /// `.springtide/GRID/identity` next to it; later connections need no token. The default is that
    /// of the environment variable `SPRINGTIDE_TOKEN`. A grid of this program's own needs none.
    ///
    /// ```no_run
    /// use springtide::prelude::*;
    ///
    /// # async fn example() -> Result<(), springtide::Error> {
    /// # let text = String::new();
    /// let grid = Grid::connector("grid.toml").token(text).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(mut self, token: impl Into<String>) -> Self {
        if let BuilderSource::Running(_, given) = &mut self.source {
            *given = Some(token.into());
        }
        self
    }

    /// Starts the grid's nodes, or connects to the running grid.
    ///
    /// # Errors
    /// [`Error::NoNodeProgram`] if the program did not call [`node`](crate::node);
    /// [`Error::Config`], [`Error::Start`] or [`Error::Unreachable`] otherwise.
    pub async fn start(self) -> Result<Grid, Error> {
        let loaded = program::loaded()?;
        let (source, is_own) = match self.source {
            BuilderSource::Own(source) => (ServiceSource::Own(Box::new(source.config()?)), true),
            BuilderSource::Running(file, token) => (ServiceSource::Running(file, token), false),
        };
        let (orders, receiver) = mpsc::unbounded_channel();
        let (ready, started) = oneshot::channel();
        let registry = loaded.registry.clone();
        let (fingerprint, options) = (registry.fingerprint(), self.options);
        let thread = std::thread::Builder::new()
            .name("springtide-grid".to_owned())
            .spawn(move || service::run(source, options, fingerprint, receiver, ready));
        let thread = thread.map_err(|error| Error::Start {
            reason: format!("the thread of the grid does not start: {error}"),
        })?;
        // Dropped with this future, it ends what has started.
        let service = GridService { orders: Some(orders), thread: Mutex::new(Some(thread)) };
        let Ready { hub, head, config } = started.await.unwrap_or(Err(Error::Ended))?;
        Ok(Grid { inner: Arc::new(GridInner { hub, head, config, registry, is_own, service }) })
    }
}

impl Grid {
    /// Starts a grid of this program's own nodes: of a shape on this host, such as `"3x2"` for
    /// three clusters of two nodes, or of a [`Config`].
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("1x2").await?;
    /// assert_eq!(grid.run(Square(7)).await?, 49);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GridBuilder::start`].
    pub async fn start(source: impl Into<GridSource>) -> Result<Self, Error> {
        Self::builder(source).start().await
    }

    /// Connects to the running grid of a configuration file, as `run --config FILE` does.
    ///
    /// The file may be a user's, which names the head's address, with a certificate of the user in
    /// `tls.identity` or a [token](GridBuilder::token). A grid whose nodes run another program
    /// receives this one by its digest, and its sites start it.
    ///
    /// ```no_run
    /// use springtide::prelude::*;
    ///
    /// # async fn example() -> Result<(), springtide::Error> {
    /// let grid = Grid::connect("grid.toml").await?; // after `springtide up grid.toml`
    /// println!("{:?}", grid.nodes().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GridBuilder::start`].
    pub async fn connect(file: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connector(file).start().await
    }

    /// Options of a grid of this program's own nodes.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::builder("1x1").logs(false).start().await?;
    /// assert_eq!(grid.run(Square(7)).await?, 49);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(source: impl Into<GridSource>) -> GridBuilder {
        GridBuilder::of(BuilderSource::Own(source.into()))
    }

    /// Options of a connection to a running grid.
    ///
    /// ```no_run
    /// use springtide::prelude::*;
    ///
    /// # async fn example() -> Result<(), springtide::Error> {
    /// let grid = Grid::connector("grid.toml").signals(false).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connector(file: impl AsRef<Path>) -> GridBuilder {
        GridBuilder::of(BuilderSource::Running(file.as_ref().to_owned(), None))
    }

    /// Runs a task or a job on the whole grid, and returns its output. Dropping the future cancels
    /// it.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("1x1").await?;
    /// let square: u64 = grid.run(Square(7)).await?;
    /// assert_eq!(square, 49);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`JobHandle`](crate::JobHandle).
    pub async fn run<K, R: Runnable<K>>(&self, work: R) -> Result<R::Output, Error> {
        self.submit(work).await?.await
    }

    /// Runs independent tasks on the whole grid, and returns their outputs in the order of the
    /// tasks. Dropping the future cancels them.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("1x2").await?;
    /// let squares = grid.map((1..=5).map(Square)).await?;
    /// assert_eq!(squares, [1, 4, 9, 16, 25]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`JobHandle`](crate::JobHandle); the first failure is that of all.
    pub async fn map<T: Task>(
        &self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Result<Vec<T::Output>, Error> {
        let tasks: Vec<T> = tasks.into_iter().collect();
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        self.run(tasks).await
    }

    /// Prepares the submission of a task, a list of tasks or a job. Awaiting it submits the work
    /// and returns its handle, without waiting for nodes.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("1x2").await?;
    /// let job = grid.submit(vec![Square(1), Square(2)]).min(1).max(2).await?;
    /// assert_eq!(job.await?, [1, 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit<K, R: Runnable<K>>(&self, work: R) -> Submission<'_, K, R> {
        Submission::new(self, work)
    }

    /// The actor that each node of this program publishes under a name, on this node.
    ///
    /// ```
    /// use springtide::actix::{Actor, Context, Handler};
    /// use springtide::{Grid, remote_message, tasks};
    ///
    /// struct Counter(u32);
    ///
    /// impl Actor for Counter {
    ///     type Context = Context<Self>;
    /// }
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Add(u32);
    ///
    /// remote_message! { "add" => Add -> u32; }
    ///
    /// impl Handler<Add> for Counter {
    ///     type Result = u32;
    ///
    ///     fn handle(&mut self, Add(number): Add, _: &mut Context<Self>) -> u32 {
    ///         self.0 += number;
    ///         self.0
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// springtide::node(tasks![].actor("counter", || Counter(0), |actor| actor.accepts::<Add>()));
    /// let grid = Grid::start("1x1").await?;
    /// let node = grid.nodes().await?.remove(0);
    /// let counter = grid.actor::<Counter>(&node, "counter");
    /// counter.send(Add(2)).await?;
    /// assert_eq!(counter.send(Add(3)).await?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn actor<A>(&self, node: &NodeId, name: &str) -> Remote<A> {
        self.inner.hub.remote(node, name)
    }

    /// The actor that exists once in the grid under a name.
    ///
    /// The first message creates it on one of the nodes. If it panics, or its node ends, the next
    /// message creates another one. [`SingletonError::StateIsNew`](crate::SingletonError) then says
    /// so once to each handle. A program that connects to the same grid with the same binary
    /// reaches the same actor, as long as nodes run this program.
    ///
    /// ```
    /// use springtide::actix::{Actor, Context, Handler};
    /// use springtide::{Grid, remote_message, tasks};
    ///
    /// struct Counter(u32);
    ///
    /// impl Actor for Counter {
    ///     type Context = Context<Self>;
    /// }
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Add(u32);
    ///
    /// remote_message! { "add" => Add -> u32; }
    ///
    /// impl Handler<Add> for Counter {
    ///     type Result = u32;
    ///
    ///     fn handle(&mut self, Add(number): Add, _: &mut Context<Self>) -> u32 {
    ///         self.0 += number;
    ///         self.0
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let counter = || Counter(0);
    /// springtide::node(tasks![].singleton("counter", counter, |actor| actor.accepts::<Add>()));
    /// let grid = Grid::start("2x1").await?;
    /// let counter = grid.singleton::<Counter>("counter");
    /// counter.send(Add(2)).await?;
    /// assert_eq!(grid.singleton::<Counter>("counter").send(Add(3)).await?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn singleton<A>(&self, name: &str) -> Singleton<A> {
        let GridInner { hub, head, registry, .. } = &*self.inner;
        Singleton::new(hub, head, name, registry.fingerprint())
    }

    /// The hub with the actors of this process, for those that nodes shall reach.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.inner.hub
    }

    /// The nodes that have registered, by name.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("2x1").await?;
    /// for node in grid.nodes().await? {
    ///     println!("{node}"); // ams-1, del-1
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`] or [`Error::Ended`].
    pub async fn nodes(&self) -> Result<Vec<NodeId>, Error> {
        let (reply, nodes) = oneshot::channel();
        self.send(Order::Nodes(reply))?;
        nodes.await.unwrap_or(Err(Error::Ended))
    }

    /// Ends the grid with all its jobs, and waits for the end. Other clones can no longer be used.
    ///
    /// ```
    /// use springtide::prelude::*;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), springtide::Error> {
    /// # springtide::node(tasks![Square]);
    /// let grid = Grid::start("1x1").await?;
    /// let other = grid.clone();
    /// grid.close().await;
    /// assert!(matches!(other.run(Square(7)).await, Err(springtide::Error::Ended)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(self) {
        let (reply, ended) = oneshot::channel();
        if self.send(Order::End(reply)).is_ok() {
            // The thread answers, or has ended.
            let _ = ended.await;
        }
    }

    /// The same grid for threads that are not asynchronous.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), springtide::Error> {
    /// let grid = springtide::Grid::start("1x1").await?;
    /// let blocking = grid.blocking();
    /// std::thread::spawn(move || println!("{:?}", blocking.nodes()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn blocking(&self) -> blocking::Grid {
        blocking::Grid::of(self.clone())
    }

    pub(super) fn send(&self, order: Order) -> Result<(), Error> {
        let orders = self.inner.service.orders.as_ref().ok_or(Error::Ended)?;
        orders.send(order).map_err(|_| Error::Ended)
    }
}

impl std::fmt::Debug for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grid").field("name", &self.inner.config.grid).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_started_from_a_shape_or_a_config() {
        let clusters = |source: GridSource| source.config().map(|config| config.cluster.len());
        assert_eq!(clusters("3x2".into()).unwrap(), 3);
        let config: Config = "[[cluster]]\nname = \"ams\"\nnodes = 4\n".parse().unwrap();
        assert_eq!(clusters(config.into()).unwrap(), 1);
        let error = clusters("six".into()).unwrap_err();
        assert!(
            error.to_string().starts_with("\"six\" is no shape of a grid: it must be"),
            "{error}"
        );
        let error = "[[cluster]]\nnodes = 0\n".parse::<Config>().unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        assert!(Config::load("does/not/exist.toml").is_err());
    }

    #[test]
    fn grids_and_handles_cross_threads() {
        fn crosses<T: Send + Sync + 'static>() {}
        crosses::<Grid>();
        crosses::<crate::JobHandle<u64>>();
        crosses::<crate::JobEvents>();
    }
}
