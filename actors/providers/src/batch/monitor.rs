//! The part that all stubs of a provider share: the ledger, and two tasks for all stubs together.
//! One queries the batch system, by one command for hundreds of stubs. The other collects the
//! orders of one moment into one command.
//!
//! Both tasks exist only while they have work. This module does not know what a stub runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::commands::CommandRunner;
use super::files::{self, StubFiles};
use super::identity::StubOwner;
use super::ledger::{LedgerChange, StubLedger, StubRecord};
use super::script;
use super::system::{BatchJobId, BatchSystem, CommandLine, Misread, QueuedStub};
use crate::ProviderError;

/// Orders of this time become one command.
const COLLECT: Duration = Duration::from_millis(5);

/// An order to a stub. Later ones are stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StubOrder {
    /// Start the next program instead of the current one.
    Swap,
    /// End the program in order.
    Leave,
    /// Take the job out of the queue. The batch system ends a program of it, in order or not.
    Cancel,
    /// End at once.
    Kill,
}

impl StubOrder {
    /// The signal that the script receives.
    fn signal(self) -> Option<&'static str> {
        match self {
            Self::Swap => Some(script::SWAP),
            Self::Leave => Some(script::LEAVE),
            Self::Cancel => None,
            Self::Kill => Some(script::KILL),
        }
    }

    /// Whether the job is cancelled.
    fn cancels(self) -> bool {
        matches!(self, Self::Cancel | Self::Kill)
    }
}

/// A stub that the monitor reports on.
struct MonitoredStub {
    record: watch::Sender<StubRecord>,
    files: StubFiles,
}

/// The files of a stub without a holder.
struct DiscardedFiles {
    files: StubFiles,
    /// The number of further programs.
    programs: u32,
}

/// The shared part of a provider and its stubs.
pub(super) struct JobMonitor {
    pub owner: StubOwner,
    pub system: BatchSystem,
    pub commands: CommandRunner,
    pub ledger: RefCell<StubLedger>,
    /// The stubs in the last list.
    pub last: RefCell<Vec<QueuedStub>>,
    stubs: RefCell<BTreeMap<BatchJobId, MonitoredStub>>,
    /// Files of abandoned stubs, until their jobs are gone.
    discarded: RefCell<BTreeMap<BatchJobId, DiscardedFiles>>,
    orders: RefCell<BTreeMap<BatchJobId, StubOrder>>,
    query_soon: Notify,
    ordered: Notify,
    querying: Cell<bool>,
    ordering: Cell<bool>,
}

impl JobMonitor {
    pub fn new(
        owner: StubOwner,
        system: BatchSystem,
        commands: CommandRunner,
        ledger: StubLedger,
    ) -> Rc<Self> {
        Rc::new(Self {
            owner,
            system,
            commands,
            ledger: RefCell::new(ledger),
            last: RefCell::default(),
            stubs: RefCell::default(),
            discarded: RefCell::default(),
            orders: RefCell::default(),
            query_soon: Notify::new(),
            ordered: Notify::new(),
            querying: Cell::new(false),
            ordering: Cell::new(false),
        })
    }

    /// Reports on a stub from now on. Two holders of one stub both receive its changes.
    pub fn follow(
        self: &Rc<Self>,
        id: &BatchJobId,
        listed: Option<&QueuedStub>,
        files: &StubFiles,
    ) -> watch::Receiver<StubRecord> {
        let record = self.ledger.borrow_mut().track(id, listed, Instant::now());
        let changes = match self.stubs.borrow_mut().entry(id.clone()) {
            Entry::Occupied(known) => known.get().record.subscribe(),
            Entry::Vacant(free) => {
                let (record, files) = (watch::Sender::new(record), files.clone());
                free.insert(MonitoredStub { record, files }).record.subscribe()
            }
        };
        self.start_tasks();
        changes
    }

    /// Ends the reports on a stub that continues.
    pub fn leave(&self, id: &BatchJobId) {
        self.stubs.borrow_mut().remove(id);
        self.ledger.borrow_mut().forget(id);
        self.expect_change();
    }

    /// Cancels a stub that may still exist and has no holder. Does not wait, and works without an
    /// executor. `programs` is the number of its further programs.
    pub fn discard(&self, id: &BatchJobId, programs: u32) {
        if let Some(MonitoredStub { files, .. }) = self.stubs.borrow_mut().remove(id) {
            let files = DiscardedFiles { files, programs };
            self.discarded.borrow_mut().insert(id.clone(), files);
        }
        self.ledger.borrow_mut().abandon(id, Instant::now());
        self.order(id, StubOrder::Cancel);
    }

    /// Records a submission that is under way.
    pub fn submission_started(self: &Rc<Self>, token: String) {
        self.ledger.borrow_mut().submission_started(token);
        self.start_tasks();
    }

    /// Records that a submission failed, but may have been executed.
    pub fn submission_failed(&self, token: String) {
        self.ledger.borrow_mut().submission_failed(token, Instant::now());
        self.expect_change();
    }

    /// Executes an order, together with others of this moment.
    pub fn order(&self, id: &BatchJobId, order: StubOrder) {
        let mut orders = self.orders.borrow_mut();
        let known = orders.entry(id.clone()).or_insert(order);
        *known = (*known).max(order);
        drop(orders);
        if order != StubOrder::Swap {
            self.ledger.borrow_mut().end_ordered(id);
        }
        self.expect_change();
        if self.ordering.get() {
            self.ordered.notify_one();
        } else {
            self.execute_without_waiting();
        }
    }

    /// Queries the batch system soon.
    fn expect_change(&self) {
        self.ledger.borrow_mut().expect_change();
        self.query_soon.notify_one();
    }

    /// Starts both tasks, unless they run.
    pub fn start_tasks(self: &Rc<Self>) {
        self.expect_change();
        if !self.querying.replace(true) {
            let task = RunningTask { monitor: Rc::clone(self), flag: |monitor| &monitor.querying };
            tokio::task::spawn_local(async move { task.monitor.query_repeatedly().await });
        }
        if !self.ordering.replace(true) {
            let task = RunningTask { monitor: Rc::clone(self), flag: |monitor| &monitor.ordering };
            tokio::task::spawn_local(async move { task.monitor.execute_orders().await });
        }
    }

    async fn query_repeatedly(&self) {
        let mut last: Option<Instant> = None;
        let mut failing = false;
        while self.ledger.borrow().needs_queries() {
            let due = last.map(|last| last + self.ledger.borrow().interval());
            if let Some(due) = due.filter(|due| *due > Instant::now()) {
                tokio::select! {
                    biased;
                    () = self.query_soon.notified() => {}
                    () = sleep_until(due) => {}
                }
                continue;
            }
            last = Some(Instant::now());
            match self.query().await {
                Ok(_) => failing = false,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!("the states of batch jobs are unknown; retried: {error}");
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
        self.ordered.notify_one(); // that task ends too
    }

    /// Lists the stubs of this grid and cluster, and reports changes to their holders.
    pub async fn query(&self) -> Result<Vec<QueuedStub>, ProviderError> {
        let query = self.ledger.borrow_mut().begin_query();
        let listed = self.list().await;
        let mut jobs = listed.inspect_err(|_| {
            self.ledger.borrow_mut().query_failed(Instant::now());
        })?;
        self.add_time_left(&mut jobs);
        let exits = self.exits(&jobs);
        let changes = self.ledger.borrow_mut().record(query, &jobs, &exits, Instant::now());
        self.last.borrow_mut().clone_from(&jobs);
        self.discarded.borrow_mut().retain(|id, DiscardedFiles { files, programs }| {
            let exists = self.ledger.borrow().is_abandoned(id);
            if !exists {
                files.remove(*programs);
            }
            exists
        });
        for change in changes {
            match change {
                LedgerChange::Changed(id, record) => {
                    if let Some(stub) = self.stubs.borrow().get(&id) {
                        stub.record.send_replace(record);
                    }
                }
                LedgerChange::Cancel(id) => self.order(&id, StubOrder::Cancel),
            }
        }
        Ok(jobs)
    }

    async fn list(&self) -> Result<Vec<QueuedStub>, ProviderError> {
        let line = self.system.list().map_err(|reason| invalid("list", &reason))?;
        let text = match self.commands.run(&line).await {
            // Some batch systems fail if there are no jobs.
            Err(ProviderError::Failed { said, .. }) if self.system.is_empty_list(&said) => {
                return Ok(Vec::new());
            }
            other => other?,
        };
        self.system.jobs(&text, &self.owner).map_err(|misread| unintelligible(&line, misread))
    }

    /// Adds the remaining times of jobs of which the list has none, by the ages of their scripts.
    /// A later head has not seen the start of a job that it takes over.
    fn add_time_left(&self, jobs: &mut [QueuedStub]) {
        let Some(time) = self.ledger.borrow().time_limit() else { return };
        let stubs = self.stubs.borrow();
        for job in jobs.iter_mut().filter(|job| job.left.is_none() && job.state.occupies()) {
            let age = stubs.get(&job.id).and_then(|stub| stub.files.age());
            job.left = age.map(|age| time.saturating_sub(age));
        }
    }

    /// The exit statuses of scripts whose jobs are over or missing.
    fn exits(&self, jobs: &[QueuedStub]) -> BTreeMap<BatchJobId, files::ExitStatus> {
        let runs = |id: &BatchJobId| jobs.iter().any(|job| job.id == *id && !job.state.is_over());
        let stubs = self.stubs.borrow();
        let ledger = self.ledger.borrow();
        let ended = ledger.tracked().filter(|id| !runs(id));
        ended.filter_map(|id| Some((id.clone(), stubs.get(id)?.files.exit_status()?))).collect()
    }

    async fn execute_orders(&self) {
        loop {
            if self.orders.borrow().is_empty() {
                if !self.ledger.borrow().needs_queries() {
                    return;
                }
                self.ordered.notified().await;
                continue;
            }
            sleep(COLLECT).await;
            let orders = std::mem::take(&mut *self.orders.borrow_mut());
            for line in self.command_lines(orders) {
                // An order that is lost is repeated while its job is in the list. A job that does
                // not exist is one of the reasons.
                if let Err(error) = self.commands.run(&line).await {
                    tracing::debug!("{error}");
                }
                self.expect_change();
            }
        }
    }

    /// Executes orders without an executor, so that no processor stays held after a quick end of
    /// its owner.
    fn execute_without_waiting(&self) {
        let orders = std::mem::take(&mut *self.orders.borrow_mut());
        for line in self.command_lines(orders) {
            self.commands.start(&line);
        }
    }

    /// The commands of these orders. Signals of scripts that read files are written here.
    fn command_lines(&self, orders: BTreeMap<BatchJobId, StubOrder>) -> Vec<CommandLine> {
        let mut by_order: BTreeMap<StubOrder, Vec<BatchJobId>> = BTreeMap::new();
        for (id, order) in orders {
            by_order.entry(order).or_default().push(id);
        }
        let mut lines = Vec::new();
        for (order, ids) in by_order {
            if let Some(signal) = order.signal() {
                if self.system.sends_signals() {
                    lines.extend(self.system.signal(signal, &ids));
                } else {
                    ids.iter().for_each(|id| self.write_signal(id, signal));
                }
            }
            if order.cancels() {
                lines.extend(self.system.cancel(&ids));
            }
        }
        lines
    }

    fn write_signal(&self, id: &BatchJobId, signal: &str) {
        let stubs = self.stubs.borrow();
        let Some(stub) = stubs.get(id) else { return };
        let file = stub.files.order();
        if let Err(error) = files::write(&file, format!("{signal}\n").as_bytes()) {
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }
}

/// A task of a monitor that runs. At its end, which may be that of the executor, it executes the
/// remaining orders.
struct RunningTask {
    monitor: Rc<JobMonitor>,
    flag: fn(&JobMonitor) -> &Cell<bool>,
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        (self.flag)(&self.monitor).set(false);
        if !self.monitor.ordering.get() {
            self.monitor.execute_without_waiting();
        }
    }
}

/// The error for output that the template does not read.
pub(super) fn unintelligible(line: &CommandLine, misread: Misread) -> ProviderError {
    let Misread { line: said, reason } = misread;
    ProviderError::Unintelligible { command: line.to_string(), said, reason }
}

/// The error for a template that gives no command.
pub(super) fn invalid(key: &str, reason: &str) -> ProviderError {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, reason.to_owned());
    ProviderError::Start { program: key.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stronger_order_counts() {
        assert!(StubOrder::Kill > StubOrder::Cancel && StubOrder::Cancel > StubOrder::Leave);
        assert!(StubOrder::Leave > StubOrder::Swap);
    }
}
