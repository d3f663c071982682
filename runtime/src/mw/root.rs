//! The master: calls for workers, tells them what the book says, and gives what they found to the program's driver.
//!
//! Must not know who offers nodes or takes them: it sees the job's members, and says which it does not need.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::book::{Action, Book, Event, Told};
use super::desk::Desk;
use super::message::{Answer, Order, Run};
use super::process::{Hands, Process};
use super::program::{Batch, BatchId, Dealing, Driver, Program, Settings, WorkerView};
use super::schedule::Forecast;
use crate::id::{NodeId, Peer};
use crate::spmd::crew::{Crew, Disbands, gone};
use crate::spmd::group::{Answered, Group, Out, Stand};
use crate::spmd::{MESSAGE_MAX, Station};
use crate::wire;
use crate::work::{Checkpoint, Context, Outcome, Stop};

/// Workers that were called for are waited for so long before the program begins, or before the master does their work itself.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);
/// The master looks so often who is there, though nobody told it of any change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// And so often before the program begins.
const MUSTER_EVERY: Duration = Duration::from_millis(100);

/// What a checkpoint holds.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Saved<P: Program> {
    state: P::State,
}

/// Runs a program to its end: what a job's [`run`](crate::work::Job::run) does that is one.
///
/// # Errors
/// The program's own failure, a worker's among them; or a halt.
pub fn run<P: Program>(program: P, cx: &Context) -> Result<Outcome, Stop> {
    go(&program, None, cx)
}

/// Runs a program to its end from the state that an earlier master of it left: for a job's
/// [`resume`](crate::work::Job::resume).
///
/// # Errors
/// As [`run`], or if the state is none of this program's.
pub fn resume<P: Program>(program: P, saved: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
    let Saved { state } = saved.get::<Saved<P>>()?;
    go(&program, Some(state), cx)
}

fn go<P: Program>(program: &P, saved: Option<P::State>, cx: &Context) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("this pool runs no workers: run the job on a grid, or alone"));
    };
    let group = post.found(cx.waker());
    let _disbands = Disbands(post.clone(), group.clone());
    let now = Instant::now();
    let settings = program.settings();
    let mut master = Master {
        program,
        at: Station { cx, post, group, process: 0 },
        crew: Crew::new(),
        book: Book::new(settings, now),
        settings,
        workers: BTreeMap::new(),
        next_worker: 1,
        batches: BTreeMap::new(),
        next_batch: 1,
        whole: VecDeque::new(),
        own: None,
        desk: Desk::default(),
        hands: Hands::new(program),
        lonely_since: now,
        looked: None,
        views: 0,
        saves: false,
    };
    let mut driver = program.driver(saved, cx)?;
    let outcome = master.go(&mut driver);
    if outcome.is_ok() {
        master.crew.collect_all(&master.at);
    }
    master.at.relay();
    let counts = master.book.counts();
    tracing::debug!(?counts, "the master is through");
    outcome
}

/// A process that is a worker, or was.
struct Known {
    peer: Peer,
    sitting: u64,
    /// Its number in the book. Another life of the process has another.
    worker: u32,
    /// It is to end, or may not compute.
    leaving: bool,
}

/// A batch's parts, encoded.
struct Bodies {
    common: Bytes,
    works: Vec<Bytes>,
}

/// The master as the program's [`Driver`] sees it. Not `Send`: it stands for the job's root on its thread.
pub struct Master<'c, P: Program> {
    program: &'c P,
    at: Station<'c>,
    crew: Crew<'c, Process<P>>,
    book: Book,
    settings: Settings,
    /// By process.
    workers: BTreeMap<u32, Known>,
    next_worker: u32,
    batches: BTreeMap<u64, Bodies>,
    next_batch: u64,
    /// Done, and not given to the driver.
    whole: VecDeque<(u64, u32, Vec<Bytes>)>,
    /// The master's own thread as a worker, while there is no other.
    own: Option<u32>,
    desk: Desk,
    hands: Hands<'c, P>,
    /// Since when there is no worker.
    lonely_since: Instant,
    /// When it was looked last who is there, and how often that had been said by then.
    looked: Option<Instant>,
    views: u64,
    /// The driver asked for a checkpoint.
    saves: bool,
}

// --- what drivers call ---

impl<'c, P: Program> Master<'c, P> {
    /// The job's context, to report by, to read files, and to compute with: what the driver computes is the root's own time. Children
    /// that are spawned by it are to be taken before the driver returns.
    pub fn cx(&self) -> &'c Context<'c> {
        self.at.cx
    }

    /// The master's own node.
    pub fn node(&self) -> &NodeId {
        &self.at.post.me().node
    }

    /// Gives out tasks, to the workers that are there now. They are done in any order: see [`Driver::done`].
    ///
    /// # Errors
    /// If there are no tasks, two have one number, one has no block or no number for units, or something is too long for a message or
    /// does not serialise; or a halt.
    pub fn submit(&mut self, batch: Batch<P::Common, P::Work>) -> Result<BatchId, Stop> {
        let Batch { common, tasks } = batch;
        let number = self.next_batch;
        if tasks.is_empty() {
            return Err(Stop::fail("a batch without tasks was submitted: it would never be done"));
        }
        let mut ids = BTreeSet::new();
        for task in &tasks {
            let id = task.id;
            if !ids.insert(id) {
                return Err(Stop::fail(format_args!(
                    "two tasks of a batch have the number {id}: give each its own"
                )));
            }
            if task.blocks == 0 || !task.units.is_finite() || task.units < 0.0 {
                return Err(Stop::fail(format_args!(
                    "task {id} has {} blocks and {} units: give it one block or more, and a number of units that is not \
                     negative",
                    task.blocks, task.units
                )));
            }
        }
        let encode = |body: Result<Bytes, wire::WireError>, what: &str| {
            let body = body?;
            if body.len() > MESSAGE_MAX / 2 {
                return Err(Stop::fail(format_args!(
                    "{what} has {} bytes, and no more than {} go to a worker at once",
                    body.len(),
                    MESSAGE_MAX / 2
                )));
            }
            Ok(body)
        };
        let common = encode(wire::encode_payload(&common), "what a batch's tasks share")?;
        let mut works = Vec::with_capacity(tasks.len());
        for task in &tasks {
            works.push(encode(wire::encode_payload(&task.work), "what a task is told")?);
        }
        self.next_batch += 1;
        self.batches.insert(number, Bodies { common, works });
        let tasks =
            tasks.iter().map(|task| (task.id, task.units / f64::from(task.blocks), task.blocks));
        let tasks = tasks.collect();
        self.event(Event::Submit { batch: number, tasks })?;
        Ok(BatchId(number))
    }

    /// Nothing of a batch is wanted any more. Tasks of it that are not begun are not done, and of none the driver hears again.
    ///
    /// # Errors
    /// A halt.
    pub fn withdraw(&mut self, batch: BatchId) -> Result<(), Stop> {
        self.whole.retain(|(of, ..)| *of != batch.0);
        self.event(Event::Withdraw { batch: batch.0 })
    }

    /// The driver's [`state`](Driver::state) is saved when it returns, if the last was long enough ago for its size, or the master is
    /// to move: so this may be called after each iteration. A master that is lost goes on from the last that was saved.
    pub fn checkpoint(&mut self) {
        self.saves = true;
    }

    /// The workers that are there.
    pub fn workers(&self) -> Vec<WorkerView> {
        let by_number: BTreeMap<u32, &Known> =
            self.workers.values().map(|known| (known.worker, known)).collect();
        let views = self.book.workers().map(|seen| {
            let known = by_number.get(&seen.worker);
            // The master's own thread is in none of these.
            let cluster = known.map_or(&self.at.post.me().cluster, |known| &known.peer.cluster);
            WorkerView {
                id: seen.worker,
                node: seen.node.clone(),
                cluster: cluster.clone(),
                cold_s: seen.cold_s,
                warm_s: seen.warm_s,
                waiting: seen.waiting,
                leaving: seen.leaving,
            }
        });
        views.collect()
    }

    /// What tasks of so many units, which cannot be split, would take the workers that are there, after what they have, if they were
    /// dealt out by this rule: the schedule of a batch that is not submitted. Absent while there is no worker.
    pub fn forecast(&self, units: &[f64], dealing: Dealing) -> Option<Forecast> {
        self.book.forecast(units, dealing, Instant::now())
    }

    /// How work was given out the last time, and why. What is submitted before speeds are known is planned in two parts.
    pub fn planned(&self) -> Forecast {
        self.book.planned()
    }

    /// From now on no worker computes on the master's node, or they do again: see [`Settings::isolate`].
    pub fn isolate(&mut self, isolate: bool) {
        self.settings.isolate = isolate;
        self.looked = None;
    }

    /// The program has no use for these nodes: their workers end after the block that they do, and they may leave the job.
    pub fn release(&mut self, nodes: Vec<NodeId>) {
        if !nodes.is_empty() {
            self.crew.release(&self.at, nodes);
            self.looked = None;
        }
    }
}

// --- what it does ---

impl<'c, P: Program> Master<'c, P> {
    fn go(&mut self, driver: &mut P::Driver) -> Result<Outcome, Stop> {
        self.muster()?;
        driver.begin(self)?;
        loop {
            if let Some(outcome) = driver.outcome() {
                return Ok(outcome);
            }
            if std::mem::take(&mut self.saves) {
                self.save(driver)?;
            }
            if let Some((batch, task, bodies)) = self.whole.pop_front() {
                let outputs: Result<Vec<P::Output>, _> =
                    bodies.iter().map(|body| wire::decode_payload(body)).collect();
                driver.done(BatchId(batch), task, outputs?, self)?;
                continue;
            }
            if !self.book.is_busy() {
                return Err(Stop::fail(
                    "the driver has neither an outcome nor work in hand: submit a batch in Driver::begin or Driver::done, \
                     or return an outcome",
                ));
            }
            self.turn()?;
        }
    }

    /// Takes in what has come, or waits for it, or works itself where nobody else does.
    fn turn(&mut self) -> Result<(), Stop> {
        self.look()?;
        self.hear()?;
        self.event(Event::Tick)?;
        if !self.whole.is_empty() {
            return Ok(());
        }
        if self.own.is_some()
            && let Some(block) = self.desk.next()
        {
            let cx = self.at.cx;
            let answer = cx.as_work(|| self.hands.execute(&self.desk, block, None, cx))?;
            cx.check()?;
            return self.answer(self.own, answer, Instant::now());
        }
        let now = Instant::now();
        let lonely = self.is_lonely().then_some(self.lonely_since + BEGIN_WITHIN);
        let lonely = lonely.filter(|at| *at > now);
        let wakes = [Some(now + LOOK_EVERY), self.book.wake_at(), lonely];
        let until = wakes.into_iter().flatten().min().map(|at| at.max(now));
        self.wait(until)
    }

    /// Waits until something has come, or this time.
    fn wait(&self, until: Option<Instant>) -> Result<(), Stop> {
        let (post, group) = (&self.at.post, &self.at.group);
        let news =
            || post.views() != self.views || post.look(group, Group::has_news).unwrap_or(true);
        self.at.cx.wait_for(false, until, &news).map(drop)
    }

    fn group<R>(&self, what: impl FnOnce(&mut Group) -> (R, Vec<Out>)) -> Result<R, Stop> {
        self.at.post.group(&self.at.group, what).ok_or_else(gone)
    }

    // --- who is there ---

    /// Waits until all who were called for are there, or long enough.
    fn muster(&mut self) -> Result<(), Stop> {
        let until = Instant::now() + BEGIN_WITHIN;
        loop {
            self.look()?;
            self.hear()?;
            if self.workers.len() >= self.crew.capacity || Instant::now() >= until {
                return Ok(());
            }
            self.wait(Some(until.min(Instant::now() + MUSTER_EVERY)))?;
            self.looked = None;
        }
    }

    /// Calls for workers, lets those go that are of no use, and tells the book who is there, if anything has changed.
    fn look(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        let views = self.at.post.views();
        let news = self.group(|group| (group.take_news(), Vec::new()))?;
        let due = self.looked.is_none_or(|looked| now >= looked + LOOK_EVERY);
        if !news && !due && views == self.views {
            return Ok(());
        }
        (self.looked, self.views) = (Some(now), views);
        let program = self.program;
        let call = |group, number| Process { group, number, program: program.clone() };
        self.crew.reconcile(&self.at, call)?;
        self.take_stock()?;
        self.take_turns(now)
    }

    /// Tells the book of workers that came, are to go, or are no more.
    fn take_stock(&mut self) -> Result<(), Stop> {
        let me = self.at.post.me().node.clone();
        let others = |place: &crate::spmd::post::Place| place.peer.node != me && !place.leaving;
        let isolated = self.settings.isolate && self.at.post.places().iter().any(others);
        let (here, stands) = self.group(|group| {
            let here: BTreeMap<u32, (Peer, u64)> =
                group.desks().map(|(at, peer, sitting)| (at, (peer.clone(), sitting))).collect();
            let stands = group.stands().map(|(at, peer, stand)| (at, (peer.cloned(), stand)));
            ((here, stands.collect::<BTreeMap<_, _>>()), Vec::new())
        })?;
        let mut events = Vec::new();
        self.workers.retain(|process, known| {
            let worker = known.worker;
            let is_same =
                |(peer, sitting): &(Peer, u64)| (peer, *sitting) == (&known.peer, known.sitting);
            if here.get(process).is_some_and(is_same) {
                let barred = isolated && known.peer.node == me;
                if barred != known.leaving {
                    known.leaving = barred;
                    events.push(match barred {
                        true => Event::Leaving { worker },
                        false => Event::Here { worker, node: known.peer.node.clone() },
                    });
                }
                return true;
            }
            match stands.get(process) {
                // It does what it has begun.
                Some((Some(peer), Stand::Dismissed)) if *peer == known.peer => {
                    if !std::mem::replace(&mut known.leaving, true) {
                        events.push(Event::Leaving { worker });
                    }
                    true
                }
                stand => {
                    let over = matches!(stand, None | Some((_, Stand::Over | Stand::Dismissed)));
                    events.push(Event::Gone { worker, died: !over && !known.leaving });
                    false
                }
            }
        });
        for (process, (peer, sitting)) in here {
            if self.workers.contains_key(&process) {
                continue;
            }
            let worker = self.number();
            let leaving = isolated && peer.node == me;
            events.push(Event::Here { worker, node: peer.node.clone() });
            if leaving {
                events.push(Event::Leaving { worker });
            }
            self.workers.insert(process, Known { peer, sitting, worker, leaving });
        }
        events.into_iter().try_for_each(|event| self.event(event))
    }

    fn number(&mut self) -> u32 {
        self.next_worker += 1;
        self.next_worker - 1
    }

    fn is_lonely(&self) -> bool {
        !self.workers.values().any(|known| !known.leaving)
    }

    /// Where no worker is, and none is on its way or long enough, the master does the work itself, a block at a time; it ends that as
    /// soon as one is there, for it would come late to what the others say.
    fn take_turns(&mut self, now: Instant) -> Result<(), Stop> {
        if !self.is_lonely() {
            self.lonely_since = now;
            if let Some(worker) = self.own.take() {
                self.desk = Desk::default();
                self.event(Event::Gone { worker, died: false })?;
            }
            return Ok(());
        }
        let waits = self.crew.capacity > 0 && now < self.lonely_since + BEGIN_WITHIN;
        if self.own.is_none() && !waits {
            let worker = self.number();
            self.own = Some(worker);
            let node = self.at.post.me().node.clone();
            self.event(Event::Here { worker, node })?;
        }
        Ok(())
    }

    // --- what comes and goes ---

    /// Takes in what workers answered.
    fn hear(&mut self) -> Result<(), Stop> {
        let came = self.group(|group| (group.take_answers(), Vec::new()))?;
        for Answered { process, peer, body, at } in came {
            let known = self.workers.get(&process).filter(|known| known.peer == peer);
            let worker = known.map(|known| known.worker);
            let answers: Vec<Answer> = match wire::decode_payload(&body) {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::warn!(%peer, %error, "a worker's answer is not understood");
                    continue;
                }
            };
            for answer in answers {
                self.answer(worker, answer, at)?;
            }
            let works = worker.is_some_and(|worker| self.book.works(worker));
            self.group(|group| (group.works(process, works), Vec::new()))?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        worker: Option<u32>,
        answer: Answer,
        came_at: Instant,
    ) -> Result<(), Stop> {
        let Answer { batch, task, block, seconds, output } = answer;
        self.event(Event::Answer { worker, place: (batch, task, block), seconds, output, came_at })
    }

    /// Tells the book, and does what it says.
    fn event(&mut self, event: Event) -> Result<(), Stop> {
        for action in self.book.handle(event, Instant::now()) {
            match action {
                Action::Tell { worker, what } => self.tell(worker, what)?,
                Action::Whole { batch, task, outputs } => {
                    self.whole.push_back((batch, task, outputs));
                }
                Action::Over { batch } => drop(self.batches.remove(&batch)),
                Action::Deadly { task, deaths } => {
                    return Err(Stop::fail(format_args!(
                        "{deaths} nodes died, one after the other, doing task {task}: it is taken for the cause; see what it \
                         does, or set Settings::deaths to another number"
                    )));
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, worker: u32, what: Vec<Told>) -> Result<(), Stop> {
        let orders: Vec<Order> = what.into_iter().filter_map(|told| self.order(told)).collect();
        if self.own == Some(worker) {
            orders.into_iter().for_each(|order| self.desk.take_in(order));
            return Ok(());
        }
        let known = self.workers.iter().find(|(_, known)| known.worker == worker);
        // One that is no more is told nothing.
        let Some(process) = known.map(|(process, _)| *process) else { return Ok(()) };
        let works = self.book.works(worker);
        for body in packed(orders)? {
            self.at.room()?;
            self.group(|group| ((), group.order(process, body)))?;
        }
        self.group(|group| (group.works(process, works), Vec::new()))
    }

    fn order(&self, told: Told) -> Option<Order> {
        Some(match told {
            Told::Common { batch } => {
                Order::Common { batch, body: self.batches.get(&batch)?.common.clone() }
            }
            Told::Run { batch, task, id, from, to, units } => {
                let work = self.batches.get(&batch)?.works.get(task as usize)?.clone();
                Order::Run(Run { batch, task, id, from, to, units, work })
            }
            Told::Revoke { batch, task, from, to } => Order::Revoke { batch, task, from, to },
            Told::Forget { batch } => Order::Forget { batch },
        })
    }

    // --- checkpoints ---

    /// Saves the driver's state, if one is due. If the master is to go on elsewhere, its workers end first.
    fn save(&mut self, driver: &P::Driver) -> Result<(), Stop> {
        let cx = self.at.cx;
        if cx.checkpoint_wanted() {
            self.crew.collect_all(&self.at);
            self.looked = None;
        } else if !cx.checkpoint_due() {
            return Ok(());
        }
        cx.checkpoint_beside_processes(&Saved::<P> { state: driver.state() })
    }
}

/// Orders in as few messages as hold them.
fn packed(orders: Vec<Order>) -> Result<Vec<Bytes>, Stop> {
    let size = |order: &Order| match order {
        Order::Common { body, .. } => body.len() + 64,
        Order::Run(run) => run.work.len() + 128,
        Order::Revoke { .. } | Order::Forget { .. } => 64,
    };
    let (mut packs, mut pack, mut bytes) = (Vec::new(), Vec::new(), 0);
    for order in orders {
        let more = size(&order);
        if !pack.is_empty() && bytes + more > MESSAGE_MAX / 2 {
            packs.push(wire::encode_payload(&std::mem::take(&mut pack))?);
            bytes = 0;
        }
        bytes += more;
        pack.push(order);
    }
    if !pack.is_empty() {
        packs.push(wire::encode_payload(&pack)?);
    }
    Ok(packs)
}
