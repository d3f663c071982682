//! What the nodes of an embedded grid execute, and how this program becomes a node.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use actix::{Actor, Context};
use springtide_actors::node::UserActors;
use springtide_actors::singleton::{SingletonFactory, SingletonHost};
use springtide_actors::supervise::{RestartLimits, supervise};
use springtide_cli::exit::Failed;
use springtide_runtime::remote::{Hub, Published};
use springtide_runtime::work::{Job, Registry, Task, TaskJob};

use super::Error;
use springtide_operations::node;
use springtide_operations::process::{log_of_users_to_stderr, on_arbiter};

/// The program of this process, once [`node`] has been called.
static PROGRAM: OnceLock<LoadedProgram> = OnceLock::new();

/// What this process knows of its program.
pub(super) struct LoadedProgram {
    pub(super) registry: Arc<Registry>,
}

/// Starts an actor on a node and publishes it.
type StartActor = Box<dyn Fn(&Arc<Hub>) + Send + Sync>;

/// The tasks, jobs and actors of a program's nodes. [`tasks!`](crate::tasks) creates it.
///
/// ```
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// # fn main() -> Result<(), springtide::Error> {
/// let program = springtide::NodeProgram::new().task::<Square>().version("1.2");
/// springtide::node(program);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "springtide::node uses it"]
pub struct NodeProgram {
    registry: Registry,
    actors: Vec<StartActor>,
    singletons: Vec<SingletonFactory>,
}

impl NodeProgram {
    /// Creates a program without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task, which a program may run by itself and other tasks may create.
    ///
    /// # Panics
    /// If another task has the same name.
    pub fn task<T: Task>(mut self) -> Self {
        if self.registry.find_job(TaskJob::<T>::NAME).is_none() {
            self.registry.job::<TaskJob<T>>();
        }
        self
    }

    /// Adds a job with the tasks and objects that it registers.
    ///
    /// # Panics
    /// If another job, task or object has one of its names.
    pub fn job<J: Job>(mut self) -> Self {
        self.registry.job::<J>();
        self
    }

    /// Adds what a function registers: shared objects, for example.
    pub fn register(mut self, register: impl FnOnce(&mut Registry)) -> Self {
        register(&mut self.registry);
        self
    }

    /// Sets the version of the program. Nodes with another one execute none of its jobs.
    pub fn version(mut self, version: &str) -> Self {
        self.registry.version(version);
        self
    }

    /// Starts an actor on each node, and publishes it under a name. A panic ends it; then `make`
    /// creates another one, whose state is new. `accept` names the messages that it accepts:
    /// `|published| published.accepts::<Greet>()`.
    ///
    /// The actors have an arbiter of their own, so that a handler that blocks does not stop the
    /// node's heartbeats.
    pub fn actor<A: Actor<Context = Context<A>>>(
        mut self,
        name: &'static str,
        make: impl Fn() -> A + Clone + Send + Sync + 'static,
        accept: impl Fn(Published<A>) -> Published<A> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.actors.push(Box::new(move |hub| {
            supervise(hub, name, RestartLimits::default(), make.clone(), accept.clone());
        }));
        self
    }

    /// Adds an actor that exists once in the grid: [`Grid::singleton`](crate::Grid::singleton)
    /// sends it messages. The first message creates it with `make` on one of the nodes. `accept`
    /// names the messages that it accepts.
    ///
    /// If it panics, or its node ends, the next message creates another one, whose state is new.
    ///
    /// # Panics
    /// If another singleton has the same name.
    pub fn singleton<A: Actor<Context = Context<A>>>(
        mut self,
        name: &'static str,
        make: impl Fn() -> A + Send + Sync + 'static,
        accept: impl Fn(Published<A>) -> Published<A> + Send + Sync + 'static,
    ) -> Self {
        let is_new = self.singletons.iter().all(|known| known.name() != name);
        assert!(is_new, "two singletons have the name `{name}`");
        self.singletons.push(SingletonFactory::new(name, make, accept));
        self
    }

    fn user_actors(&mut self) -> Option<UserActors> {
        let actors = std::mem::take(&mut self.actors);
        let singletons: Arc<[_]> = std::mem::take(&mut self.singletons).into();
        if actors.is_empty() && singletons.is_empty() {
            return None;
        }
        let fingerprint = self.registry.fingerprint();
        Some(Arc::new(move |hub| {
            actors.iter().for_each(|start| start(hub));
            if !singletons.is_empty() {
                SingletonHost::publish(hub, fingerprint, Arc::clone(&singletons));
            }
        }))
    }
}

/// Makes this program's binary a node of its grids. Call it first in `main`.
///
/// A grid starts its nodes as `PROGRAM node run --config FILE`. In such a process this function
/// runs the node, and ends the process with it; otherwise it returns at once. It reads no other
/// arguments, and may be called before an asynchronous runtime exists or within one.
///
/// ```
/// use springtide::prelude::*;
///
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/doc/square.rs"));
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), springtide::Error> {
///     springtide::node(tasks![Square]);
///     let grid = Grid::start("1x2").await?;
///     let squares = grid.map((1..=9).map(Square)).await?;
///     println!("{squares:?}");
///     Ok(())
/// }
/// ```
///
/// # Panics
/// If it is called twice.
pub fn node(mut program: NodeProgram) {
    if let Some(config) = node_config(std::env::args_os()) {
        run_node(&config, program)
    }
    // Tasks that were forgotten are found where they are created.
    program.registry.strict();
    let loaded = LoadedProgram { registry: Arc::new(program.registry) };
    assert!(PROGRAM.set(loaded).is_ok(), "springtide::node was called twice in one process");
}

/// The program of this process.
///
/// # Errors
/// [`node`] was not called.
pub(super) fn loaded() -> Result<&'static LoadedProgram, Error> {
    PROGRAM.get().ok_or(Error::NoNodeProgram)
}

/// The arguments of a node: its config, and whether it ends with its parent.
#[derive(Debug, PartialEq, Eq)]
struct NodeArgs {
    config: PathBuf,
    with_parent: bool,
}

/// The arguments of this process, if it was started as a node.
fn node_config(args: impl IntoIterator<Item = OsString>) -> Option<NodeArgs> {
    let mut args = args.into_iter().skip(1);
    let is = |word: Option<OsString>, expected: &str| word.as_deref() == Some(OsStr::new(expected));
    if !is(args.next(), "node") || !is(args.next(), "run") {
        return None;
    }
    let (mut config, mut with_parent) = (None, false);
    while let Some(word) = args.next() {
        match word.to_str() {
            Some("--with-parent") => with_parent = true,
            Some("--config") => config = args.next().map(PathBuf::from),
            _ => return None,
        }
    }
    Some(NodeArgs { config: config?, with_parent })
}

/// Runs a node on a thread of its own, since the caller may be in an asynchronous runtime.
fn run_node(args: &NodeArgs, program: NodeProgram) -> ! {
    let ended = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("node".to_owned());
        let started = thread.spawn_scoped(scope, || serve(&args.config, args.with_parent, program));
        let failed =
            |error| Failed::failure(format!("the thread of the node does not start: {error}"));
        // A panic of the node's own actors aborts the process.
        let defect = |_| Failed::failure("the node has panicked");
        started.map_err(failed)?.join().map_err(defect)?
    });
    match ended {
        Ok(()) => std::process::exit(0),
        Err(failed) => {
            // The log of the node, which may not have started.
            eprintln!("{}", failed.message);
            std::process::exit(failed.exit.code().into())
        }
    }
}

fn serve(config: &Path, with_parent: bool, mut program: NodeProgram) -> Result<(), Failed> {
    let config = node::config(config)?;
    log_of_users_to_stderr(config.log.level);
    let actors = program.user_actors();
    program.registry.strict();
    on_arbiter(node::run(config, with_parent, Arc::new(program.registry), actors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<NodeArgs> {
        node_config(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn only_the_command_line_of_a_node_is_one() {
        let args = |with_parent| NodeArgs { config: "a.toml".into(), with_parent };
        assert_eq!(of("prog node run --with-parent --config a.toml"), Some(args(true)));
        assert_eq!(of("prog node run --config a.toml"), Some(args(false)));
        let others =
            ["", "prog", "prog node", "prog node run", "prog node run --config", "prog a node run"];
        assert!(others.into_iter().all(|line| of(line).is_none()));
        assert_eq!(of("prog node run --config a.toml --verbose"), None);
    }
}
