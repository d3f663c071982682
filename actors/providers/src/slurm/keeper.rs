//! What all stubs of a provider share: the commands, the book, and two tasks that work for all of them at once. One looks at the
//! queue, by one command for hundreds of stubs; the other gathers what is ordered in the same moment into one command.
//!
//! Both tasks are there only while there is something to do. Must not know what a stub runs.

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::answers::{self, JOB_FORMAT, Misread, QueuedStub, StubOwner};
use super::book::{Book, Sight, StubPhase, StubUpdate};
use super::commands::{Commands, shown};
use super::script;
use crate::ProviderError;

/// What is ordered within this time goes into one command.
const GATHER: Duration = Duration::from_millis(5);
/// So many jobs are named in one command.
const NAMED: usize = 500;
/// So many of those that ended in one look are asked for their exit code.
const EXIT_CODES: usize = 16;

/// What is to be done with a stub. Later ones are stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StubOrder {
    /// Another program waits to be started in it.
    Swap,
    /// Its program is to end in order.
    Leave,
    /// It is to be taken out of the queue; a program of it is told to end, and killed when Slurm has no patience left.
    Cancel,
    /// It is to end at once.
    Kill,
}

impl StubOrder {
    /// Arguments of `scancel`, one command after the other.
    fn commands(self) -> Vec<Vec<OsString>> {
        let args = |args: &[&str]| args.iter().map(OsString::from).collect();
        let signal = |signal| format!("--signal={signal}");
        match self {
            Self::Swap => vec![args(&["--batch", &signal(script::SWAP)])],
            Self::Leave => vec![args(&["--batch", &signal(script::LEAVE)])],
            Self::Cancel => vec![args(&[])],
            Self::Kill => vec![args(&["--batch", &signal(script::KILL)]), args(&[])],
        }
    }
}

/// What a provider and its stubs share.
pub(super) struct Keeper {
    pub whose: StubOwner,
    pub commands: Commands,
    pub book: RefCell<Book>,
    /// The jobs of the last look, for what their comments say.
    pub last: RefCell<Vec<QueuedStub>>,
    sights: RefCell<BTreeMap<u64, watch::Sender<Sight>>>,
    orders: RefCell<BTreeMap<u64, StubOrder>>,
    stirred: Notify,
    ordered: Notify,
    looking: Cell<bool>,
    ordering: Cell<bool>,
}

impl Keeper {
    pub fn new(whose: StubOwner, commands: Commands, book: Book) -> Rc<Self> {
        Rc::new(Self {
            whose,
            commands,
            book: RefCell::new(book),
            last: RefCell::default(),
            sights: RefCell::default(),
            orders: RefCell::default(),
            stirred: Notify::new(),
            ordered: Notify::new(),
            looking: Cell::new(false),
            ordering: Cell::new(false),
        })
    }

    /// Follows a stub from now on. One that is followed already is followed by both.
    pub fn follow(self: &Rc<Self>, id: u64, seen: Option<&QueuedStub>) -> watch::Receiver<Sight> {
        let sight = self.book.borrow_mut().want(id, seen, Instant::now());
        let told = match self.sights.borrow_mut().entry(id) {
            Entry::Occupied(known) => known.get().subscribe(),
            Entry::Vacant(free) => free.insert(watch::Sender::new(sight)).subscribe(),
        };
        self.work();
        told
    }

    /// A stub is left as it is.
    pub fn leave(&self, id: u64) {
        self.sights.borrow_mut().remove(&id);
        self.book.borrow_mut().forget(id);
        self.stir();
    }

    /// A stub that may still be there is wanted no more. Waits for nothing, and works without an executor.
    pub fn discard(&self, id: u64) {
        self.sights.borrow_mut().remove(&id);
        self.book.borrow_mut().unwant(id, Instant::now());
        self.order(id, StubOrder::Cancel);
    }

    /// Records a submission that is under way: its batch job is wanted.
    pub fn submission_started(self: &Rc<Self>, token: String) {
        self.book.borrow_mut().submission_started(token);
        self.work();
    }

    /// A submission failed and may yet have arrived. Both tasks are there for it.
    pub fn doubt(&self, token: String) {
        self.book.borrow_mut().doubt(token, Instant::now());
        self.stir();
    }

    /// Has this done, together with what else is ordered in this moment.
    pub fn order(&self, id: u64, order: StubOrder) {
        let mut orders = self.orders.borrow_mut();
        let known = orders.entry(id).or_insert(order);
        *known = (*known).max(order);
        drop(orders);
        self.stir();
        if self.ordering.get() {
            self.ordered.notify_one();
        } else {
            self.carry_out_without_waiting();
        }
    }

    /// The queue is looked at soon.
    fn stir(&self) {
        self.book.borrow_mut().stir();
        self.stirred.notify_one();
    }

    /// Sees to it that both tasks are there.
    pub fn work(self: &Rc<Self>) {
        self.stir();
        if !self.looking.replace(true) {
            let present = Present { keeper: Rc::clone(self), task: |keeper| &keeper.looking };
            tokio::task::spawn_local(async move { present.keeper.look_again_and_again().await });
        }
        if !self.ordering.replace(true) {
            let present = Present { keeper: Rc::clone(self), task: |keeper| &keeper.ordering };
            tokio::task::spawn_local(async move { present.keeper.carry_out_orders().await });
        }
    }

    async fn look_again_and_again(&self) {
        let mut last: Option<Instant> = None;
        let mut failing = false;
        while self.book.borrow().watches() {
            let due = last.map(|last| last + self.book.borrow().pause());
            if let Some(due) = due.filter(|due| *due > Instant::now()) {
                tokio::select! {
                    biased;
                    () = self.stirred.notified() => {}
                    () = sleep_until(due) => {}
                }
                continue;
            }
            last = Some(Instant::now());
            match self.look().await {
                Ok(_) => failing = false,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(
                        "nodes' batch jobs cannot be looked after; it is tried again: {error}"
                    );
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
        self.ordered.notify_one(); // whose task ends as well
    }

    /// Asks the queue for the stubs of this grid and cluster, and tells all who follow one what became of it.
    pub async fn look(&self) -> Result<Vec<QueuedStub>, ProviderError> {
        let question = self.book.borrow_mut().ask();
        let asked = self.queue().await;
        let jobs = asked.inspect_err(|_| self.book.borrow_mut().unanswered(Instant::now()))?;
        let changes = self.book.borrow_mut().answer(question, &jobs, Instant::now());
        self.last.borrow_mut().clone_from(&jobs);
        let mut failed = Vec::new();
        for change in changes {
            match change {
                // Nothing more will be known of it than this, and its exit code.
                StubUpdate::Seen(id, Sight { phase: StubPhase::Ended(how), .. })
                    if has_code(&how) =>
                {
                    failed.push((id, how));
                }
                // Before anything is waited for: a later look would be overtaken by this one.
                StubUpdate::Seen(id, sight) => self.tell(id, sight),
                StubUpdate::Cancel(id) => self.order(id, StubOrder::Cancel),
            }
        }
        let mut codes = EXIT_CODES;
        for (id, how) in failed {
            let how = self.with_exit_code(id, how, &mut codes).await;
            self.tell(id, Sight::of(StubPhase::Ended(how)));
        }
        Ok(jobs)
    }

    fn tell(&self, id: u64, sight: Sight) {
        if let Some(told) = self.sights.borrow().get(&id) {
            told.send_replace(sight);
        }
    }

    async fn queue(&self) -> Result<Vec<QueuedStub>, ProviderError> {
        use std::os::unix::fs::MetadataExt;

        // Whose process this is: others' jobs are none of ours, whatever they are called.
        let mut args = ["--noheader", "--all", "--states=all"].map(OsString::from).to_vec();
        if let Ok(process) = std::fs::metadata("/proc/self") {
            args.push(format!("--user={}", process.uid()).into());
        }
        args.push(format!("--format={JOB_FORMAT}").into());
        let text = self.commands.run("squeue", &args, &[]).await?;
        answers::jobs(&text, &self.whose).map_err(|it| nonsense("squeue", &args, it))
    }

    /// Adds to how a stub ended with which code. Where that is not to be had, it ended all the same.
    async fn with_exit_code(&self, id: u64, how: String, codes: &mut usize) -> String {
        if *codes == 0 {
            return how;
        }
        *codes -= 1;
        let args = ["--oneliner", "show", "job", &id.to_string()].map(OsString::from);
        match self.commands.run("scontrol", &args, &[]).await {
            Ok(text) => {
                let code = answers::exit_code(&text);
                return code.map_or_else(|| how.clone(), |code| format!("{how} ({code})"));
            }
            // The others of this look would fail as well, and each after its time.
            Err(_) => *codes = 0,
        }
        how
    }

    async fn carry_out_orders(&self) {
        loop {
            if self.orders.borrow().is_empty() {
                if !self.book.borrow().watches() {
                    return;
                }
                self.ordered.notified().await;
                continue;
            }
            sleep(GATHER).await;
            let orders = std::mem::take(&mut *self.orders.borrow_mut());
            for args in commands(orders) {
                // What does not reach a stub is ordered again by whoever still sees it in the queue. That a job is not there any
                // more, or not yet, is one of the reasons.
                if let Err(error) = self.commands.run("scancel", &args, &[]).await {
                    tracing::debug!("{error}");
                }
                self.stir();
            }
        }
    }

    /// For when there is no executor any more: nothing may keep a processor because its owner ends in a hurry.
    fn carry_out_without_waiting(&self) {
        let orders = std::mem::take(&mut *self.orders.borrow_mut());
        for args in commands(orders) {
            self.commands.start("scancel", &args);
        }
    }
}

/// Whether there is more to be known of an end: the code of a program that failed.
fn has_code(how: &str) -> bool {
    how.ends_with("failed")
}

/// The arguments of the fewest commands by which orders are carried out.
fn commands(orders: BTreeMap<u64, StubOrder>) -> Vec<Vec<OsString>> {
    let mut by_order: BTreeMap<StubOrder, BTreeSet<u64>> = BTreeMap::new();
    for (id, order) in orders {
        by_order.entry(order).or_default().insert(id);
    }
    let mut commands = Vec::new();
    for (order, ids) in by_order {
        let ids: Vec<OsString> = ids.into_iter().map(|id| id.to_string().into()).collect();
        for some in ids.chunks(NAMED) {
            for mut args in order.commands() {
                args.extend_from_slice(some);
                commands.push(args);
            }
        }
    }
    commands
}

/// That one of the tasks is there. When it ends, also because its executor does, what is still ordered is carried out.
struct Present {
    keeper: Rc<Keeper>,
    task: fn(&Keeper) -> &Cell<bool>,
}

impl Drop for Present {
    fn drop(&mut self) {
        (self.task)(&self.keeper).set(false);
        if !self.keeper.ordering.get() {
            self.keeper.carry_out_without_waiting();
        }
    }
}

/// What is to be said of an answer that is not understood.
pub(super) fn nonsense(name: &str, args: &[OsString], misread: Misread) -> ProviderError {
    let Misread { line, reason } = misread;
    ProviderError::Unintelligible { command: shown(name, args), said: line, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ordered_together_is_one_command() {
        let orders =
            (1..=700).map(|id| (id, if id % 7 == 0 { StubOrder::Kill } else { StubOrder::Leave }));
        let commands = commands(orders.collect());
        let lines: Vec<String> = commands.iter().map(|args| shown("scancel", args)).collect();
        assert_eq!(lines.len(), 4);
        assert!(
            lines[0].starts_with("scancel --batch --signal=USR1 1 2 3 4 5 6 8 "),
            "{}",
            lines[0]
        );
        assert!(lines[1].starts_with("scancel --batch --signal=USR1 "), "{}", lines[1]);
        assert!(lines[2].starts_with("scancel --batch --signal=ALRM 7 14 "), "{}", lines[2]);
        assert!(lines[3].starts_with("scancel 7 14 "), "{}", lines[3]);
    }

    #[test]
    fn the_stronger_order_counts() {
        assert!(StubOrder::Kill > StubOrder::Cancel && StubOrder::Cancel > StubOrder::Leave);
        assert!(StubOrder::Leave > StubOrder::Swap);
    }
}
