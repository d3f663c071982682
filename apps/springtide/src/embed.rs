//! A grid inside a program: node processes of the same program, jobs run from code, and actors
//! called from code.
//!
//! Independent of command lines, except for recognising a node's.

use std::process::ExitCode;
use std::sync::Arc;

use springtide_actors::client::{Client, JobUpdate, ReceivedNews};
use springtide_actors::head::{HEAD, Head};
use springtide_actors::job::{JobEndReport, NoteKind, SCHEDULER};
use springtide_actors::scheduler::{Scheduler, Submit};
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::config::GridConfig;
use springtide_runtime::id::NodeId;
use springtide_runtime::net::tls::Ca;
use springtide_runtime::remote::{Hub, Remote};
use springtide_runtime::work::{Job, Registry, encode_job};
use tokio::sync::mpsc;

use crate::app::App;
use crate::operations::grid;
use crate::operations::grid_files;
use crate::operations::grid_files::{Authority, LaunchPlan};
use crate::operations::netconf;
use crate::operations::scratch::Scratch;
use crate::options::GridShape;
use springtide_cli::talk;

/// A running grid of this program's own node processes. [`App::embed`] starts and ends it.
pub struct Grid {
    head: Head,
    config: GridConfig,
    registry: Arc<Registry>,
    news: mpsc::Receiver<ReceivedNews>,
}

impl Grid {
    /// Runs a job on all nodes and waits for its end. `note` receives its notes meanwhile.
    ///
    /// # Errors
    /// [`Failed`]: the job's input is wrong, or it could not be placed. A failure of the job itself
    /// is in the answer.
    pub async fn run<J: Job>(
        &mut self,
        job: J,
        mut note: impl FnMut(NoteKind),
    ) -> Result<JobEndReport, Failed> {
        let scheduler: Remote<Scheduler> = self.hub().remote(&HEAD.into(), SCHEDULER);
        let params = netconf::job_params(&self.config);
        let clusters = netconf::check_start(&self.config, &params, None)?;
        let submit = Submit {
            name: J::NAME.to_owned(),
            body: encode_job(job)?,
            fingerprint: self.registry.fingerprint(),
            params,
            clusters,
            client: self.head.contact(),
            program: std::env::current_exe().ok(),
            need: None,
            principal: None,
        };
        let granted = scheduler.send(submit).await??;
        while let Some((job, item, _)) = self.news.recv().await {
            match item {
                _ if job != granted.job => {}
                JobUpdate::Note(what) => note(*what),
                JobUpdate::Ended(ended) => return Ok(*ended),
            }
        }
        Err(Failed::failure("the client's actor has ended"))
    }

    /// The hub with the actors published on this process and on every node.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.head.endpoint.hub
    }

    /// The nodes that have registered, by name.
    pub async fn nodes(&self) -> Vec<NodeId> {
        let status = self.head.status().await;
        let nodes = status.sites.into_values().flat_map(|site| site.nodes);
        nodes.filter(|node| node.incarnation.is_some()).map(|node| node.node).collect()
    }
}

impl App {
    /// Adds a job that runs only from code: it needs no options on the command line.
    ///
    /// # Panics
    /// As [`App::job`].
    pub fn embedded_job<J: Job>(mut self) -> Self {
        self.program.registry.job::<J>();
        self
    }

    /// Starts a grid of node processes on this host, runs `program` with it, and ends it. `shape`
    /// is clusters x nodes, for example `"2x1"`. The nodes execute this same program: started as
    /// `PROGRAM node run ...`, it is a node and does not call `program`. Therefore `main` should do
    /// nothing before this call.
    pub fn embed<F>(self, shape: &str, program: F) -> ExitCode
    where
        F: AsyncFnOnce(&mut Grid) -> Result<(), Failed>,
    {
        if std::env::args_os().nth(1).is_some_and(|word| word == "node") {
            return self.main();
        }
        let name = self.program.name;
        match self.embedded(shape, program) {
            Ok(()) => Exit::Ok.into(),
            Err(failed) => {
                talk::error(name, &failed.message);
                failed.exit.into()
            }
        }
    }

    fn embedded<F>(self, shape: &str, program: F) -> Result<(), Failed>
    where
        F: AsyncFnOnce(&mut Grid) -> Result<(), Failed>,
    {
        let shape: GridShape = shape.parse().map_err(Failed::usage)?;
        let registry = Arc::new(self.program.registry);
        actix::System::new().block_on(async move {
            let config = grid_files::ad_hoc(shape, |sources| sources)?.value;
            let dir = Scratch::make()?;
            let authority = Authority::Ephemeral(Ca::ephemeral(config.grid.as_str())?);
            let this = grid_files::this_program()?;
            let plan = LaunchPlan {
                config: &config,
                dir: dir.path(),
                authority: &authority,
                program: &this,
                files: None,
                log_level: None,
            };
            let head = grid::start(&plan).await?;
            let (_links, news) = Client::publish(&head.endpoint);
            let status = head.wait_for_nodes(|_, _| {}).await;
            let mut grid = Grid { head, config, registry, news };
            let ended = match grid::check_whole(&status) {
                Ok(()) => program(&mut grid).await,
                Err(failed) => Err(failed),
            };
            grid::stop(grid.head, dir.path(), "the program has ended").await;
            ended
        })
    }
}
