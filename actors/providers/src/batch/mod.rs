//! Nodes as batch jobs, one job for each node.
//!
//! `system` is the table of a batch system: its commands, and readers of their output. `commands`
//! runs them. `ledger` compares lists with requests. `monitor` queries and orders for all stubs
//! together. `script` is the script of a job, and `files` are its files. `stub` is one job.
//! `capacity` counts processors.
//!
//! A provider needs the rights of a user. A stub outlives the head that submitted it: a later head
//! finds it by the name of its job, and takes it over.

mod capacity;
mod commands;
mod files;
mod identity;
mod ledger;
mod monitor;
mod script;
mod stub;
mod system;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use springtide_base::id::{ClusterId, NodeId};
use springtide_base::incarnation::unique;
use springtide_config::BatchSection;
use tokio::time::Instant;

use self::capacity::{StubSize, capacity, processors_given};
use self::commands::CommandRunner;
use self::files::StubFiles;
use self::identity::{StubComment, StubName, StubOwner};
use self::ledger::{LedgerSettings, StubLedger};
use self::monitor::{JobMonitor, StubOrder, invalid, unintelligible};
use self::stub::BatchStub;
use self::system::{BatchJobId, BatchSystem, QueuedStub, StubState, StubSubmission, memory_mib};
use super::{
    Capacity, ExistingStub, LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubId,
};

/// Holds processors of a batch system. Copies are the same provider.
#[derive(Clone)]
pub struct BatchProvider {
    monitor: Rc<JobMonitor>,
    prologue: Rc<[String]>,
    size: StubSize,
    /// The processors of the last running stubs, if they have more than was requested. They count
    /// after these have ended: otherwise all processors would be promised again.
    given: Rc<Cell<Option<u32>>>,
    /// The number of nodes of the cluster: its capacity, if the batch system lists no machines.
    nodes: u32,
    /// The start of the tokens of this provider's submissions.
    incarnation: u64,
    submissions: Rc<Cell<u64>>,
}

/// The cluster whose nodes a provider of batch jobs holds.
#[derive(Clone, Copy, Debug)]
pub struct BatchCluster<'a> {
    /// The name of the grid.
    pub grid: &'a str,
    /// The certificate of the grid's authority. It distinguishes grids of one name, and is the same
    /// for the next head of the grid.
    pub authority: &'a str,
    /// The name of the cluster.
    pub name: &'a ClusterId,
    /// The maximum number of nodes.
    pub nodes: u32,
    /// The compute threads of each node.
    pub threads: u32,
}

impl BatchProvider {
    /// The provider of a cluster. It does not contact the batch system yet, and handles only the
    /// jobs of this user, grid and cluster.
    ///
    /// # Errors
    /// The section's template lacks a key or a value: the reason, in words.
    pub fn new(cluster: &BatchCluster<'_>, section: &BatchSection) -> Result<Self, String> {
        let time = section.time.map(|time| time.get());
        // Otherwise a node would be warned from its start, and never work.
        let leave_ahead = match time {
            Some(time) if section.leave_ahead.get() >= time => time / 2,
            _ => section.leave_ahead.get(),
        };
        let system = BatchSystem::new(section, leave_ahead)?;
        let mut variables = system.variables().clone();
        variables.extend(section.variables.clone());
        let timeout = section.answer_timeout.get();
        let commands =
            CommandRunner::new(section.commands.clone(), variables, system.unset(), timeout);
        let ledger = StubLedger::new(LedgerSettings {
            poll: section.poll.get(),
            leave_ahead,
            time,
            missing_timeout: section.missing_timeout.get(),
        });
        let owner = StubOwner::new(cluster.grid, cluster.authority, cluster.name.as_str());
        let size = StubSize { processors: cluster.threads.max(1), memory: memory_mib(section) };
        let provider = Self {
            monitor: JobMonitor::new(owner, system, commands, ledger),
            prologue: section.prologue.iter().flat_map(|lines| lines.0.clone()).collect(),
            size,
            given: Rc::default(),
            nodes: cluster.nodes,
            incarnation: unique(),
            submissions: Rc::default(),
        };
        provider.check()?;
        Ok(provider)
    }

    /// Checks that all commands have their values.
    fn check(&self) -> Result<(), String> {
        let name = StubName { node: "n".to_owned(), token: "t".to_owned() };
        let files = StubFiles { base: PathBuf::from("/n"), token: name.token.clone() };
        let submission = StubSubmission {
            owner: &self.monitor.owner,
            name: &name,
            comment: &StubComment::default(),
            files: &files,
            threads: self.size.processors,
            log: &files.base,
            script: b"",
        };
        let system = &self.monitor.system;
        system.submission(&submission)?;
        system.list()?;
        system.list_machines().map(drop)
    }

    /// The queue that takes the jobs of this cluster, which names none: the batch system's default,
    /// if the template shows it.
    ///
    /// # Errors
    /// The batch system does not answer.
    pub async fn default_queue(&self) -> Result<Option<String>, ProviderError> {
        let line = self.monitor.system.list_machines();
        let line = line.map_err(|reason| invalid("list_machines", &reason))?;
        let Some(line) = line else { return Ok(None) };
        let text = self.monitor.commands.run(&line).await?;
        Ok(self.monitor.system.default_queue(&text).map(str::to_owned))
    }

    async fn submit(&self, request: &NodeRequest) -> Result<Box<dyn Stub>, ProviderError> {
        script::check(request)?;
        let monitor = &self.monitor;
        let log = request.log.clone();
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let unwritable = |source| ProviderError::Log { log: log.clone(), source };
        open.map_err(unwritable)?;
        let begin = files::length(&log);
        let base = std::path::absolute(&request.config).map_err(unwritable)?;
        let log = std::path::absolute(&log).map_err(unwritable)?;
        let number = self.submissions.get() + 1;
        self.submissions.set(number);
        let token = format!("{:x}-{number}", self.incarnation);
        let name = StubName { node: request.node.as_str().to_owned(), token: token.clone() };
        let comment = StubComment { base: Some(base.clone()), log: Some(log.clone()) };
        let files = StubFiles { base, token: token.clone() };
        let reads_signals = !monitor.system.sends_signals();
        let script = script::batch(request, &files, &self.prologue, reads_signals);
        let script = script.map_err(unwritable)?;
        let submission = StubSubmission {
            owner: &monitor.owner,
            name: &name,
            comment: &comment,
            files: &files,
            threads: request.threads,
            log: &log,
            script: &script,
        };
        let line = monitor.system.submission(&submission);
        let line = line.map_err(|reason| invalid("submit", &reason))?;
        if monitor.system.needs_script_file() {
            let file = files.script();
            let unwritable = |source| ProviderError::Log { log: file.clone(), source };
            files::write(&file, &script).map_err(unwritable)?;
        }
        // A submission that fails, or that its caller abandons, may be executed all the same.
        monitor.submission_started(token.clone());
        let mut uncertain = PendingSubmission { monitor, files: Some(files.clone()) };
        let output = match monitor.commands.run(&line).await {
            Ok(output) => output,
            Err(error) => {
                drop(uncertain); // the next list shows whether it was executed all the same
                return Err(self.refusal(error).await);
            }
        };
        let id = monitor.system.submitted(&output);
        let id = id.map_err(|misread| unintelligible(&line, misread))?;
        uncertain.files = None;
        let changes = monitor.follow(&id, None, &files);
        monitor.ledger.borrow_mut().submission_succeeded(&token);
        let stub = BatchStub::new(Rc::clone(monitor), id, changes, files, log);
        Ok(Box::new(stub.with_begin(begin)))
    }

    /// The error of a failed submission: a refusal, if the batch system answers otherwise.
    async fn refusal(&self, error: ProviderError) -> ProviderError {
        match error {
            ProviderError::Failed { command, how, said } if self.monitor.query().await.is_ok() => {
                ProviderError::Refused { command, how, said }
            }
            error => error,
        }
    }

    /// A job of the last list. If it is not in it, queries again.
    async fn known(&self, id: &BatchJobId) -> Result<Option<QueuedStub>, ProviderError> {
        let find = |jobs: &[QueuedStub]| jobs.iter().find(|job| job.id == *id).cloned();
        if let Some(job) = find(&self.monitor.last.borrow()) {
            return Ok(Some(job));
        }
        Ok(find(&self.monitor.query().await?))
    }

    async fn take_over(
        &self,
        listed: &ExistingStub,
        request: &NodeRequest,
    ) -> Result<Box<dyn Stub>, ProviderError> {
        let Some(id) = BatchJobId::new(&listed.id.0) else {
            return Err(ProviderError::Unintelligible {
                command: format!("adopt node {}", listed.node),
                said: listed.id.0.clone(),
                reason: "it is not the identifier of a batch job".to_owned(),
            });
        };
        let job = self.known(&id).await?;
        // Its script uses the paths of its submission. A batch system without comments does not
        // show them: then they are those of the request.
        let comment = job.as_ref().map(|job| job.comment.clone()).unwrap_or_default();
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let base = comment.base.unwrap_or_else(|| absolute(&request.config));
        let log = comment.log.unwrap_or_else(|| absolute(&request.log));
        let token = job.as_ref().map_or_else(|| id.to_string(), |job| job.token.clone());
        let files = StubFiles { base, token };
        let changes = self.monitor.follow(&id, job.as_ref(), &files);
        if job.is_none() {
            // It was listed before and is not now, so that its end is not a surprise.
            self.monitor.ledger.borrow_mut().end_ordered(&id);
        }
        Ok(Box::new(BatchStub::new(Rc::clone(&self.monitor), id, changes, files, log)))
    }

    async fn stubs(&self) -> Result<Vec<ExistingStub>, ProviderError> {
        let monitor = &self.monitor;
        let jobs = monitor.query().await?;
        let NodeJobs { kept, surplus } = one_per_node(jobs, &monitor.ledger.borrow());
        for job in surplus {
            tracing::warn!("node {} has two batch jobs: {} is cancelled", job.node, job.id);
            monitor.ledger.borrow_mut().abandon(&job.id, Instant::now());
            monitor.start_tasks();
            monitor.order(&job.id, StubOrder::Cancel);
        }
        let listed = |job: QueuedStub| ExistingStub {
            node: NodeId::from(job.node.as_str()),
            id: StubId(job.id.to_string()),
        };
        Ok(kept.into_iter().map(listed).collect())
    }

    async fn count(&self) -> Result<Option<Capacity>, ProviderError> {
        // Jobs before machines: see `capacity`.
        let monitor = &self.monitor;
        let jobs = monitor.query().await?;
        let line = monitor.system.list_machines();
        let line = line.map_err(|reason| invalid("list_machines", &reason))?;
        let Some(line) = line else {
            return Ok(Some(Capacity { size: self.nodes, others: 0 }));
        };
        let text = monitor.commands.run(&line).await?;
        let machines = monitor.system.machines(&text);
        let machines = machines.map_err(|misread| unintelligible(&line, misread))?;
        let ledger = monitor.ledger.borrow();
        let held = || jobs.iter().filter(|job| ledger.tracks(&job.id));
        self.given.set(processors_given(held()).or(self.given.get()));
        let processors = self.size.processors.max(self.given.get().unwrap_or(0));
        Ok(Some(capacity(&machines, held(), StubSize { processors, ..self.size })))
    }
}

impl Provider for BatchProvider {
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        Box::pin(self.count())
    }

    /// Of two jobs for one node the running one is kept, and the other is cancelled.
    fn list(&self) -> LocalFuture<'_, Result<Vec<ExistingStub>, ProviderError>> {
        Box::pin(self.stubs())
    }

    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(self.submit(request))
    }

    /// A job that does not exist becomes a stub that ends after a time.
    fn adopt<'a>(
        &'a self,
        listed: &'a ExistingStub,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(self.take_over(listed, request))
    }

    fn starts_programs(&self) -> bool {
        true
    }

    fn on_demand(&self) -> bool {
        true
    }
}

/// A submission under way. If it is dropped with its files, its job is cancelled.
struct PendingSubmission<'a> {
    monitor: &'a Rc<JobMonitor>,
    files: Option<StubFiles>,
}

impl Drop for PendingSubmission<'_> {
    fn drop(&mut self) {
        if let Some(files) = self.files.take() {
            self.monitor.submission_failed(files.token);
        }
    }
}

/// The jobs of a site's nodes.
struct NodeJobs {
    /// One for each node.
    kept: Vec<QueuedStub>,
    /// Further jobs of these nodes.
    surplus: Vec<QueuedStub>,
}

/// Chooses one job for each node: a held one first, then a running one, then the oldest.
fn one_per_node(jobs: Vec<QueuedStub>, ledger: &StubLedger) -> NodeJobs {
    let ends = |job: &QueuedStub| matches!(job.state, StubState::Ended(_) | StubState::Ending);
    let held = |job: &QueuedStub| ledger.tracks(&job.id);
    let mut jobs: Vec<QueuedStub> =
        jobs.into_iter().filter(|job| !ends(job) && !ledger.refuses(job)).collect();
    jobs.sort_by_key(|job| (!held(job), !job.state.occupies(), job.id.clone()));
    let mut kept: BTreeMap<String, QueuedStub> = BTreeMap::new();
    let mut surplus = Vec::new();
    for job in jobs {
        match kept.get(&job.node) {
            None => drop(kept.insert(job.node.clone(), job)),
            // Of two held jobs, their holders decide.
            Some(_) if held(&job) => {}
            Some(_) => surplus.push(job),
        }
    }
    NodeJobs { kept: kept.into_values().collect(), surplus }
}
