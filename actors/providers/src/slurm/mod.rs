//! Nodes as batch jobs of a Slurm cluster, one of size 1 each.
//!
//! `answers` reads what the commands print, `book` knows what became of whom, `commands` runs them, `keeper` does so for all stubs
//! at once, `script` is what a job runs, `stub` is one of them. All that is asked of a cluster is sbatch, squeue, sinfo,
//! scancel and, for exit codes, scontrol, as they have been for years; nothing of its configuration, and no rights but a user's.
//!
//! A stub outlives the head that submitted it: a later one finds it by its job's name and takes it over.

mod answers;
mod book;
mod commands;
mod keeper;
mod script;
mod stub;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::rc::Rc;
use std::time::Duration;

use springtide_base::id::{ClusterId, NodeId};
use springtide_config::SlurmSection;
use tokio::time::Instant;

use self::answers::{MACHINE_FORMAT, QueuedStub, SlurmJobState, StubComment, StubOwner};
use self::book::Book;
use self::commands::Commands;
use self::keeper::{Keeper, StubOrder, nonsense};
use self::stub::SlurmStub;
use super::{
    Capacity, ExistingStub, LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubId,
};
use springtide_base::incarnation::unique;

/// Slurm counts time in minutes, and memory in MiB.
const MINUTE: Duration = Duration::from_secs(60);

/// Holds processors of a Slurm cluster. Copies are the same provider.
#[derive(Clone)]
pub struct SlurmProvider {
    keeper: Rc<Keeper>,
    section: Rc<SlurmSection>,
    threads: u32,
    leave_ahead: Duration,
    /// Begins the tokens of this life's submissions, and how many there were.
    life: u64,
    submissions: Rc<Cell<u64>>,
}

impl SlurmProvider {
    /// For the nodes of this grid and cluster, which have so many compute threads each. Asks nothing of Slurm yet.
    ///
    /// Only jobs of this user, grid and cluster are ever seen or touched. Grids may have the same name: `authority`, the certificate of
    /// this one's authority, tells them apart, and is the same for the next head of it.
    pub fn new(
        grid: &str,
        authority: &str,
        cluster: &ClusterId,
        section: &SlurmSection,
        threads: u32,
    ) -> Self {
        let within = section.answer_timeout.get();
        let commands = Commands::new(section.conf.clone(), section.commands.clone(), within);
        // A node that would be warned from the start would never work.
        let leave_ahead = match section.time.map(|time| time.get()) {
            Some(time) if section.leave_ahead.get() >= time => time / 2,
            _ => section.leave_ahead.get(),
        };
        let book = Book::new(section.poll.get(), leave_ahead);
        let (grid, cluster) = (grid.to_owned(), cluster.as_str().to_owned());
        let whose = StubOwner { grid, mark: mark(authority), cluster };
        Self {
            keeper: Keeper::new(whose, commands, book),
            section: Rc::new(section.clone()),
            threads: threads.max(1),
            leave_ahead,
            life: unique(),
            submissions: Rc::default(),
        }
    }

    /// MiB of memory of a stub, if it asks for any.
    fn memory(&self) -> Option<u64> {
        self.section.memory.map(|size| size.bytes().div_ceil(1 << 20).max(1))
    }

    /// What `sbatch` is told of a stub.
    fn submission(
        &self,
        request: &NodeRequest,
        about: &StubComment,
    ) -> Result<Vec<OsString>, ProviderError> {
        let (section, keeper) = (&self.section, &self.keeper);
        let name = keeper.whose.job_name(request.node.as_str());
        let mut args: Vec<String> = vec![
            "--parsable".into(),
            "--no-requeue".into(),
            "--export=ALL".into(),
            "--nodes=1".into(),
            "--ntasks=1".into(),
            format!("--cpus-per-task={}", request.threads.max(1)),
            format!("--job-name={name}"),
            format!("--comment={}", about.comment()),
            // To the script alone, which passes it on; Slurm may be a minute early.
            format!("--signal=B:{}@{}", script::LEAVE, self.leave_ahead.as_secs().clamp(1, 65_535)),
            "--open-mode=append".into(),
        ];
        let named = [
            ("partition", section.partition.clone()),
            ("account", section.account.clone()),
            ("qos", section.qos.clone()),
            (
                "time",
                section
                    .time
                    .map(|time| time.get().as_secs().div_ceil(MINUTE.as_secs()).to_string()),
            ),
            ("mem", self.memory().map(|size| format!("{size}M"))),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                args.push(format!("--{key}={value}"));
            }
        }
        let mut args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        let output = script::output(&request.log);
        let output =
            output.map_err(|source| ProviderError::Log { log: request.log.clone(), source })?;
        // Slurm's own words on a job's end are worth having among its last lines.
        let output = output.unwrap_or_else(|| "/dev/null".into());
        for key in ["--output=", "--error="] {
            let mut arg = OsString::from(key);
            arg.push(&output);
            args.push(arg);
        }
        Ok(args)
    }

    async fn submit(&self, request: &NodeRequest) -> Result<Box<dyn Stub>, ProviderError> {
        script::check(request)?;
        let log = request.log.clone();
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let unwritten = |source| ProviderError::Log { log: log.clone(), source };
        open.map_err(unwritten)?;
        let begin = stub::length(&log);
        let base = std::path::absolute(&request.config).map_err(unwritten)?;
        let log = std::path::absolute(&log).map_err(unwritten)?;
        let number = self.submissions.get() + 1;
        self.submissions.set(number);
        let token = format!("{}-{number}", self.life);
        let about = StubComment {
            token: Some(token.clone()),
            base: Some(base.clone()),
            log: Some(log.clone()),
        };
        let args = self.submission(request, &about)?;
        let batch = script::batch(request, &base).map_err(unwritten)?;
        // A submission of which nothing is heard, or nobody waits for any more, may have arrived all the same.
        self.keeper.submission_started(token.clone());
        let mut doubt = Doubt { keeper: &self.keeper, token: Some(token.clone()) };
        let answer = self.keeper.commands.run("sbatch", &args, &batch).await?;
        let id =
            answers::submitted(&answer).map_err(|misread| nonsense("sbatch", &args, misread))?;
        doubt.token = None;
        let sights = self.keeper.follow(id, None);
        self.keeper.book.borrow_mut().submission_succeeded(&token);
        Ok(Box::new(SlurmStub::new(Rc::clone(&self.keeper), id, sights, base, log, begin)))
    }

    /// Jobs of the last look, or of one now if this one was not among them.
    async fn known(&self, id: u64) -> Result<Option<QueuedStub>, ProviderError> {
        let find = |jobs: &[QueuedStub]| jobs.iter().find(|job| job.id == id).cloned();
        if let Some(job) = find(&self.keeper.last.borrow()) {
            return Ok(Some(job));
        }
        Ok(find(&self.keeper.look().await?))
    }

    async fn take_over(
        &self,
        listed: &ExistingStub,
        request: &NodeRequest,
    ) -> Result<Box<dyn Stub>, ProviderError> {
        let Ok(id) = listed.id.0.parse() else {
            return Err(ProviderError::Unintelligible {
                command: format!("adopt node {}", listed.node),
                said: listed.id.0.clone(),
                reason: "it is not the number of a batch job".to_owned(),
            });
        };
        let job = self.known(id).await?;
        let about = job.as_ref().map(|job| job.about.clone()).unwrap_or_default();
        // Its script goes by the paths that it was submitted with.
        let base = about.base.unwrap_or_else(|| request.config.clone());
        let log = about.log.unwrap_or_else(|| request.log.clone());
        let sights = self.keeper.follow(id, job.as_ref());
        Ok(Box::new(SlurmStub::new(Rc::clone(&self.keeper), id, sights, base, log, 0)))
    }

    async fn stubs(&self) -> Result<Vec<ExistingStub>, ProviderError> {
        let jobs = self.keeper.look().await?;
        let (kept, twice) = one_each(
            jobs,
            |job| self.keeper.book.borrow().wants(job.id),
            |job| self.keeper.book.borrow().refuses(job),
        );
        for job in twice {
            tracing::warn!("node {} has two batch jobs: {} is cancelled", job.node, job.id);
            self.keeper.book.borrow_mut().unwant(job.id, Instant::now());
            self.keeper.work();
            self.keeper.order(job.id, StubOrder::Cancel);
        }
        let listed = |job: QueuedStub| ExistingStub {
            node: NodeId::from(job.node.as_str()),
            id: StubId(job.id.to_string()),
        };
        Ok(kept.into_iter().map(listed).collect())
    }

    async fn count(&self) -> Result<Option<Capacity>, ProviderError> {
        // Jobs before machines: see `answers::capacity`.
        let jobs = self.keeper.look().await?;
        let mut args = vec![
            "--Node".to_owned(),
            "--noheader".to_owned(),
            "--all".to_owned(),
            format!("--format={MACHINE_FORMAT}"),
        ];
        let partition = self.section.partition.as_deref();
        args.extend(partition.map(|partition| format!("--partition={partition}")));
        let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        let text = self.keeper.commands.run("sinfo", &args, &[]).await?;
        let machines = answers::machines(&text, partition);
        let machines = machines.map_err(|misread| nonsense("sinfo", &args, misread))?;
        let book = self.keeper.book.borrow();
        let held = jobs.iter().filter(|job| book.wants(job.id));
        Ok(Some(answers::capacity(&machines, held, (self.threads, self.memory()))))
    }
}

impl Provider for SlurmProvider {
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        Box::pin(self.count())
    }

    /// Of two jobs for one node the one that runs is kept, and the other cancelled.
    fn list(&self) -> LocalFuture<'_, Result<Vec<ExistingStub>, ProviderError>> {
        Box::pin(self.stubs())
    }

    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(self.submit(request))
    }

    /// Of a job that is there no more a stub comes that soon says that it has ended.
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

/// A few letters that stand for an authority's certificate, however that is broken into lines.
fn mark(authority: &str) -> String {
    let lines = authority.lines().map(str::trim).filter(|line| !line.starts_with('-'));
    let text: String = lines.collect();
    let sum = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    sum.as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

/// A submission that is under way; dropped before its end, its job is wanted no more.
struct Doubt<'a> {
    keeper: &'a Rc<Keeper>,
    token: Option<String>,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.keeper.doubt(token);
        }
    }
}

/// Of those that are there, one for each node, and those that are too many. Who is held by somebody comes first, then who has a
/// processor, then who was first.
fn one_each(
    jobs: Vec<QueuedStub>,
    held: impl Fn(&QueuedStub) -> bool,
    refused: impl Fn(&QueuedStub) -> bool,
) -> (Vec<QueuedStub>, Vec<QueuedStub>) {
    let ends =
        |job: &QueuedStub| matches!(job.state, SlurmJobState::Over(_) | SlurmJobState::Completing);
    let mut jobs: Vec<QueuedStub> =
        jobs.into_iter().filter(|job| !ends(job) && !refused(job)).collect();
    jobs.sort_by_key(|job| (!held(job), !job.state.occupies(), job.id));
    let mut kept: BTreeMap<String, QueuedStub> = BTreeMap::new();
    let mut twice = Vec::new();
    for job in jobs {
        match kept.get(&job.node) {
            None => drop(kept.insert(job.node.clone(), job)),
            // Two that somebody holds are not for us to judge.
            Some(_) if held(&job) => {}
            Some(_) => twice.push(job),
        }
    }
    (kept.into_values().collect(), twice)
}
