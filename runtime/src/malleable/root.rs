//! The root of a malleable program: calls for processes, observes, asks the decision procedure, and executes; its own thread is
//! rank 0.
//!
//! Must not know who offers nodes or takes them: it sees the job's members, and says which it does not need.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::observe::{Hand, Need, Observation, Place, Refusal};
use super::part::{Met, Part, Point, SAVED_MAX, Whole, whole};
use super::plan::{Plan, Standing, plan};
use super::process::Process;
use super::program::{Program, Strategy};
use crate::id::{NodeId, Peer};
use crate::spmd::crew::{Crew, Disbands, gone};
use crate::spmd::group::{Cause, Group, Out, Stand};
use crate::spmd::message::{Deed, Origin, Recruit, Roster};
use crate::spmd::{Pace, Station};
use crate::wire;
use crate::work::{Checkpoint, Context, Outcome, Stop};

/// Processes that were called for are waited for so long before the program begins.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);
/// The root waits so long for the others to have the parts of those that leave, before it goes on itself.
const PART_WITHIN: Duration = Duration::from_secs(2);
/// While the program computes, it waits so long until it takes those that are there.
const GROW_WITHIN: Duration = Duration::from_secs(10);
/// The decision procedure is asked this often though nobody came or went.
const THINK_EVERY: Duration = Duration::from_secs(2);

/// So often links may break before the program gets any further.
const BREAKS_MAX: u32 = 10;

/// After so many such breaks in a row the processes are left alone for so long: at first not at all, for most are over when the
/// link is made again; at last a minute.
fn pause_after(breaks: u32) -> Duration {
    match breaks {
        0..=2 => Duration::ZERO,
        _ => Duration::from_secs((5 << (breaks - 3).min(8)).min(60)),
    }
}

/// The whole state at a point: what is saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) point: u64,
    state: Bytes,
    /// Steps that were told of, which may be more: those beyond are done again, and not told.
    #[serde(default)]
    pub(super) told: u64,
}

/// Runs a program to its end: what a job's [`run`](crate::work::Job::run) does that is one.
///
/// # Errors
/// The program's own failure, a process's among them; or a halt.
pub fn run<P: Program>(program: P, cx: &Context) -> Result<Outcome, Stop> {
    go(&program, None, cx)
}

/// Runs a program to its end from the state that an earlier root of it left: for a job's
/// [`resume`](crate::work::Job::resume).
///
/// # Errors
/// As [`run`], or if the state is none of this program's.
pub fn resume<P: Program>(program: P, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
    go(&program, Some(state.get()?), cx)
}

fn go<P: Program>(program: &P, saved: Option<Saved>, cx: &Context) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("this pool runs no processes: run the job on a grid, or alone"));
    };
    let group = post.found(cx.waker());
    let _disbands = Disbands(post.clone(), group.clone());
    let now = Instant::now();
    let told = saved.as_ref().map_or(0, |saved| saved.told.max(saved.point));
    let mut root = Root {
        program,
        at: Station { cx, post, group, process: 0 },
        crew: Crew::new(),
        decided: None,
        thought_at: now,
        release: Vec::new(),
        saved,
        saves: true,
        told,
        needed: None,
        refused: None,
        broke: 0,
        broke_at: (0, 0),
    };
    let outcome = root.go();
    if outcome.is_ok() {
        root.crew.collect_all(&root.at);
    }
    root.at.relay();
    outcome
}

/// Who could take part, and whether their nodes are to leave: when it is another, the decision procedure is asked.
type Crowd = Vec<(u32, Peer, bool)>;

struct Root<'c, P: Program> {
    program: &'c P,
    at: Station<'c>,
    crew: Crew<'c, Process<P>>,
    /// For whom the decision procedure was asked last.
    decided: Option<Crowd>,
    thought_at: Instant,
    /// To be given back when the new configuration computes.
    release: Vec<NodeId>,
    /// From where processes begin anew when a node is lost.
    saved: Option<Saved>,
    /// The state is not too long to be saved.
    saves: bool,
    /// Steps that were told of.
    told: u64,
    /// What the program asked for, and neither has come nor was refused; and how many nodes there were without.
    needed: Option<(Need, u32)>,
    refused: Option<Refusal>,
    /// How often links broke while the program got no further than that: the saved point, and the steps that were done.
    broke: u32,
    broke_at: (u64, u64),
}

impl<'c, P: Program> Root<'c, P> {
    fn go(&mut self) -> Result<Outcome, Stop> {
        loop {
            self.muster()?;
            match self.form()? {
                Formed::Whole(part) => {
                    if let Some(outcome) = self.compute(*part)? {
                        return Ok(outcome);
                    }
                }
                Formed::Not => continue,
                // It is over like any other: else one that breaks while it is entered would be tried for ever, and nobody told.
                Formed::Torn => {}
            }
            self.begin_anew()?;
        }
    }

    /// The configuration is over: says why and from where all go on. A link that breaks again and again before the program gets any
    /// further is given time, but not for ever.
    fn begin_anew(&mut self) -> Result<(), Stop> {
        self.crew.called_at = Instant::now();
        let from = self.saved.as_ref().map_or(0, |saved| saved.point);
        let cause = self.group(|group| (group.take_cause(), Vec::new()))?;
        let because = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        self.at.cx.say(format!("the processes begin anew from step {from}{because}"));
        // A node that is lost is not among them the next time.
        let Some(Cause::Link(one, other)) = cause else { return Ok(()) };
        let reached = (from, self.told);
        if std::mem::replace(&mut self.broke_at, reached) != reached {
            self.broke = 0;
        }
        self.broke += 1;
        if self.broke >= BREAKS_MAX {
            return Err(Stop::fail(format_args!(
                "the processes began anew from step {from} {BREAKS_MAX} times and got no further, for links broke, the last \
                 time between {one} and {other}: see that these two reach each other (`springtide net check --all-pairs`), or \
                 run the job without one of them"
            )));
        }
        let pause = pause_after(self.broke);
        if !pause.is_zero() {
            self.at.cx.say(format!(
                "links broke {} times without a step further: waiting {} s",
                self.broke,
                pause.as_secs()
            ));
            self.at.cx.wait_for(false, Some(Instant::now() + pause), &|| false)?;
        }
        Ok(())
    }

    fn group<R>(&self, what: impl FnOnce(&mut Group) -> (R, Vec<Out>)) -> Result<R, Stop> {
        self.at.post.group(&self.at.group, what).ok_or_else(gone)
    }

    fn look<R>(&self, what: impl FnOnce(&Group) -> R) -> Result<R, Stop> {
        self.at.post.look(&self.at.group, what).ok_or_else(gone)
    }

    // --- who is there ---

    /// Waits until all who were called for are there, or long enough.
    fn muster(&mut self) -> Result<(), Stop> {
        let until = Instant::now() + BEGIN_WITHIN;
        loop {
            self.reconcile()?;
            let settled = || {
                let waits = |group: &Group| {
                    let count = |fits: &dyn Fn(Stand) -> bool| {
                        group.stands().filter(|(at, _, stand)| *at != 0 && fits(*stand)).count()
                    };
                    let there = count(&|stand| matches!(stand, Stand::Held | Stand::Seated));
                    // Those beyond were called for by nodes that are no more.
                    there < self.crew.capacity
                        && count(&|stand| matches!(stand, Stand::Called | Stand::Parting)) > 0
                };
                !self.at.post.look(&self.at.group, waits).unwrap_or(false)
            };
            // The members may have changed meanwhile: looked at again each time.
            if settled() || Instant::now() >= until {
                return Ok(());
            }
            self.wait_some(until, &settled)?;
        }
    }

    /// Waits until this is so, but not beyond `until`, and not for long: the members may have changed.
    fn wait_some(&self, until: Instant, settled: &dyn Fn() -> bool) -> Result<(), Stop> {
        let look = (Instant::now() + Duration::from_millis(100)).min(until);
        self.at.cx.wait_for(false, Some(look), settled).map(drop)
    }

    /// Lets those end that gave their parts away, as soon as the others have these: at the root's next point it might be a long step
    /// later, and somebody waits for their nodes.
    fn part_from_leavers(&mut self) -> Result<(), Stop> {
        if !self.standing()?.0.iter().any(|one| one.leaving) {
            return Ok(());
        }
        let until = Instant::now() + PART_WITHIN;
        let settled = || {
            let settled = |group: &Group| group.is_settled() || group.roster().is_none();
            self.at.post.look(&self.at.group, settled).unwrap_or(true)
        };
        while !settled() && Instant::now() < until {
            self.wait_some(until, &settled)?;
        }
        self.reconcile()
    }

    /// Calls for a process for each thread that could run one, and lets those go that are of no use any more.
    fn reconcile(&mut self) -> Result<(), Stop> {
        let call = |group, number| Process { group, number, program: self.program.clone() };
        self.crew.reconcile(&self.at, call)
    }

    /// Those that are there, and how many are on their way.
    fn standing(&self) -> Result<(Vec<Standing>, usize), Stop> {
        let places = self.at.post.places();
        let leaving =
            |peer: &Peer| !places.iter().any(|place| place.peer == *peer && self.crew.stays(place));
        self.look(|group| {
            let mut coming = 0;
            let mut standing = Vec::new();
            for (process, peer, stand) in group.stands() {
                let Some(peer) = peer.filter(|_| matches!(stand, Stand::Held | Stand::Seated))
                else {
                    coming += usize::from(matches!(stand, Stand::Called | Stand::Parting));
                    continue;
                };
                let rank = group.roster().and_then(|roster| roster.rank_of(process));
                let leaving = process != 0 && leaving(peer);
                standing.push(Standing { process, peer: peer.clone(), rank, leaving });
            }
            // Those beyond were called for by nodes that are no more.
            let staying = standing.iter().filter(|one| one.process != 0 && !one.leaving).count();
            (standing, coming.min(self.crew.capacity.saturating_sub(staying)))
        })
    }

    // --- observe, decide, plan ---

    fn observe(&self, standing: &[Standing], point: u64, paces: &[Option<Pace>]) -> Observation {
        let count = |fits: &dyn Fn(&Standing) -> bool| {
            u32::try_from(standing.iter().filter(|one| fits(one)).count()).unwrap_or(u32::MAX)
        };
        Observation {
            point,
            steps: self.program.steps(),
            processes: count(&|one| one.rank.is_some()),
            available: count(&|one| !one.leaving),
            leaving: count(&|one| one.leaving && one.rank.is_some()),
            paces: paces.to_vec(),
            places: places_of(standing),
            needed: self.needed.map(|(need, _)| need),
            refused: self.refused.clone(),
        }
    }

    /// The program asks for nodes.
    fn ask(&mut self, need: Need) {
        if self.needed.is_some_and(|(open, _)| open == need) {
            return;
        }
        let Need { more, within } = need;
        self.at.cx.say(match within {
            None => format!("the program would use {more} more node{}", plural(more)),
            Some(time) => {
                format!("the program needs {more} more node{} within {time:?}", plural(more))
            }
        });
        self.at.cx.need_nodes(more, within);
        (self.needed, self.refused) = (Some((need, self.crew.nodes)), None);
    }

    /// Looks what became of the nodes that the program asked for.
    fn hear(&mut self) {
        let Some((need, had)) = &mut self.needed else { return };
        if let Some(why) = self.at.cx.refused() {
            self.refused = Some(Refusal { need: *need, why });
            self.needed = None;
            // It is to decide what it does without.
            self.decided = None;
            return;
        }
        // Nodes that go meanwhile are none of those that come.
        *had = self.crew.nodes.min(*had);
        if self.crew.nodes >= had.saturating_add(need.more) {
            self.needed = None;
        }
    }

    /// What is to be done, for those that are there.
    fn decide(
        &mut self,
        standing: &[Standing],
        point: u64,
        layout: Option<&P::Layout>,
    ) -> Result<(Plan, P::Layout), Stop> {
        let paces = self.look(|group| group.paces())?;
        let seen = self.observe(standing, point, &paces);
        let mut strategy = self.program.decide(&seen, layout);
        if let Strategy::Need(need) = strategy {
            self.ask(need);
            strategy = Strategy::Keep;
        }
        if let (Strategy::Keep | Strategy::Rebalance, 1..) = (strategy, seen.leaving) {
            let processes = seen.available.min(seen.processes);
            strategy = Strategy::Use { processes, release: false };
        }
        let plan = plan(strategy, standing);
        tracing::debug!(?seen, ?strategy, ?plan, "the program decides");
        self.decided = Some(crowd(standing));
        self.thought_at = Instant::now();
        let hands = plan.members.iter().map(|process| {
            let one = standing.iter().find(|one| one.process == *process);
            let was = one.and_then(|one| one.rank);
            let pace = was.and_then(|was| paces.get(was as usize).copied().flatten());
            let at = one.map(|one| (one.peer.cluster.clone(), one.peer.node.clone()));
            Hand { was, pace, at }
        });
        let hands: Vec<Hand> = hands.collect();
        Ok((plan, self.program.layout(&hands, layout)))
    }

    fn roster_of(&self, plan: &Plan, layout: &P::Layout) -> Result<Option<Roster>, Stop> {
        let layout = wire::encode_payload(layout)?;
        self.group(|group| (group.roster_of(&plan.members, layout), Vec::new()))
    }

    /// Whether those that are on their way are waited for still.
    fn waits_for(&self, coming: usize) -> bool {
        coming > 0 && Instant::now() < self.crew.called_at + GROW_WITHIN
    }

    /// These nodes are to be given back; but not while others are on their way, with which they may be of use: then it is decided
    /// again when those have come, or were waited for long enough.
    fn plan_release(&mut self, nodes: Vec<NodeId>, waits: bool) {
        if waits && !nodes.is_empty() {
            self.decided = None;
            self.release.clear();
        } else {
            self.release = nodes;
        }
    }

    /// Gives nodes back: their processes end, and their threads are not called for.
    fn give_back(&mut self) -> Result<(), Stop> {
        let nodes = std::mem::take(&mut self.release);
        if nodes.is_empty() {
            return Ok(());
        }
        self.crew.release(&self.at, nodes);
        self.reconcile()
    }

    fn say_size(&self, roster: &Roster, point: u64) {
        let nodes: BTreeSet<&Peer> = roster.members.iter().map(|member| &member.peer).collect();
        self.at.cx.say(size_text(point, roster.size(), nodes.len()));
    }

    // --- execute ---

    /// The first configuration, or the first after one that is over.
    fn form(&mut self) -> Result<Formed<'c, P>, Stop> {
        // It takes part in none until it enters this one: the one before is over, and who takes that for this one sends pieces of
        // state without waiting for room.
        self.at.seat(|seat| seat.rise());
        let (standing, coming) = self.standing()?;
        let point = self.saved.as_ref().map_or(0, |saved| saved.point);
        let (plan, layout) = self.decide(&standing, point, None)?;
        let Some(roster) = self.roster_of(&plan, &layout)? else { return Ok(Formed::Not) };
        let single = whole(self.program);
        let origin = match &self.saved {
            None => Origin::Start,
            Some(_) => Origin::From { givers: 1, layout: wire::encode_payload(&single)? },
        };
        let formed = self.group(|group| {
            let out = group.form(roster.clone(), origin.clone(), point);
            (out.is_some(), out.unwrap_or_default())
        })?;
        if !formed {
            // A node was lost meanwhile: it is looked at again who is there.
            return Ok(Formed::Not);
        }
        if let Some(saved) = &self.saved {
            let state: P::State = wire::decode_payload(&saved.state)?;
            for to in 0..roster.size() {
                let piece = self.program.give(&state, (&single, 0), (&layout, to))?;
                self.at.give(&roster, 0, to, piece)?;
            }
        }
        self.plan_release(plan.release, self.waits_for(coming));
        let recruit = Recruit { roster, origin, point };
        match Part::enter(self.program, self.at.clone(), recruit)? {
            Met::Done(part) => {
                self.say_size(&part.roster, point);
                Ok(Formed::Whole(Box::new(part)))
            }
            Met::Torn => Ok(Formed::Torn),
        }
    }

    /// Computes until the program has ended. None: the configuration is over.
    fn compute(&mut self, mut part: Part<'c, P>) -> Result<Option<Outcome>, Stop> {
        loop {
            match part.arrive()? {
                Met::Done(Point::Go) => {}
                Met::Done(Point::Saved(state)) => {
                    self.group(|group| (group.done(), Vec::new()))?;
                    if let Some(whole) = state {
                        self.save(part.point, whole)?;
                    }
                    continue;
                }
                Met::Done(Point::Changed) => {
                    self.say_size(&part.roster, part.point);
                    self.part_from_leavers()?;
                    continue;
                }
                // The root is in every configuration.
                Met::Done(Point::Free) | Met::Torn => return Ok(None),
            }
            if part.is_over() {
                return match part.finish()? {
                    Met::Done(outcome) => {
                        self.let_finish()?;
                        Ok(Some(outcome))
                    }
                    Met::Torn => Ok(None),
                };
            }
            if self.govern(&part)? == Governed::Moved {
                return Ok(None);
            }
            // It computes as all others do: nothing of it is the root's own time.
            if let Met::Torn = self.at.cx.as_work(|| part.step())? {
                return Ok(None);
            }
            if part.point > self.told {
                self.told = part.point;
                self.at.cx.iteration_done();
                self.at.cx.progress(part.point, self.program.steps(), "steps");
            }
        }
    }

    /// Waits until all are through with what comes after the last step: what they say, write or fail with then counts as well. The
    /// outcome is known: when a node is lost meanwhile nothing is done again for what its processes had still to say.
    fn let_finish(&mut self) -> Result<(), Stop> {
        let over = |group: &Group| group.are_done() || group.roster().is_none();
        let settled = || self.at.post.look(&self.at.group, over).unwrap_or(true);
        self.at.wait(false, &settled)?;
        // Of one that failed the failure is known now.
        self.reconcile()?;
        let cause = self.group(|group| (group.take_cause(), Vec::new()))?;
        if let Some(cause) = cause {
            self.at
                .cx
                .say(format!("{cause} after the last step: what processes said then may be lost"));
        }
        Ok(())
    }

    fn save(&mut self, point: u64, whole: Whole) -> Result<(), Stop> {
        let state = match whole {
            Whole::State(state) => state,
            Whole::TooLong(len) => {
                self.saves = false;
                self.at.cx.say(format!(
                    "the program's state has {len} bytes, and no more than {} are saved: when a node is lost, the \
                     program begins anew from {}",
                    P::SAVED_MAX.min(SAVED_MAX),
                    match &self.saved {
                        Some(saved) => format!("step {}, the last that was", saved.point),
                        None => "its start".to_owned(),
                    }
                ));
                return Ok(());
            }
        };
        let saved = Saved { point, state, told: self.told };
        self.at.cx.checkpoint_beside_processes(&saved)?;
        self.saved = Some(saved);
        Ok(())
    }

    /// At the root's points: sees who came and who is to go, and proposes what is to be done. What is proposed here is done at a
    /// later point.
    fn govern(&mut self, part: &Part<'c, P>) -> Result<Governed, Stop> {
        self.reconcile()?;
        if !self.look(Group::is_settled)? {
            return Ok(Governed::On);
        }
        self.give_back()?;
        self.hear();
        // What cannot be saved cannot go along: the root is moved as it is.
        if self.at.cx.checkpoint_wanted() && self.saves {
            return self.move_on(part);
        }
        let (standing, coming) = self.standing()?;
        let must = standing.iter().any(|one| one.leaving && one.rank.is_some());
        let waits = self.waits_for(coming);
        let news = self.decided.as_ref() != Some(&crowd(&standing));
        let told = self.look(|group| group.paces().iter().all(Option::is_some))?;
        let thinks = told && Instant::now() >= self.thought_at + THINK_EVERY;
        if must || (news || thinks) && !waits {
            let (plan, layout) = self.decide(&standing, part.point, Some(&part.layout))?;
            let members = part.roster.members.iter().map(|member| member.process);
            let others = !members.eq(plan.members.iter().copied());
            self.plan_release(plan.release.clone(), waits);
            if others || plan.anew && layout != part.layout {
                if let Some(roster) = self.roster_of(&plan, &layout)? {
                    self.group(|group| ((), group.propose(Deed::Change(roster))))?;
                }
                return Ok(Governed::On);
            }
            self.give_back()?;
        }
        let saved = self.saved.as_ref().map_or(0, |saved| saved.point);
        let due = self.saves && self.program.saves() && part.point > saved;
        if due && self.at.cx.checkpoint_due() {
            self.group(|group| ((), group.propose(Deed::Save)))?;
        }
        Ok(Governed::On)
    }

    /// The root is to go on elsewhere: all state comes here, and all others end; then it is left behind.
    fn move_on(&mut self, part: &Part<'c, P>) -> Result<Governed, Stop> {
        if part.roster.size() > 1 {
            let plan = Plan { members: vec![0], anew: false, release: Vec::new() };
            if let Some(roster) = self.roster_of(&plan, &whole(self.program))? {
                self.group(|group| ((), group.propose(Deed::Change(roster))))?;
            }
            return Ok(Governed::On);
        }
        let whole = part.whole_state()?;
        if let Whole::TooLong(_) = whole {
            self.save(part.point, whole)?;
            return Ok(Governed::On);
        }
        self.crew.collect_all(&self.at);
        self.save(part.point, whole)?;
        // It need not go any more: from here on as after a loss.
        Ok(Governed::Moved)
    }
}

/// What came of a configuration that was to begin.
enum Formed<'c, P: Program> {
    /// All are recruited, and the root has its part.
    Whole(Box<Part<'c, P>>),
    /// Nobody was recruited, for somebody is not there any more: it is looked at again who is.
    Not,
    /// It was over before the root had its part.
    Torn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Governed {
    /// The next step comes.
    On,
    /// Nobody computes any more.
    Moved,
}

fn crowd(standing: &[Standing]) -> Crowd {
    standing.iter().map(|one| (one.process, one.peer.clone(), one.leaving)).collect()
}

/// Those that compute in order of rank, then the others by node.
fn places_of(standing: &[Standing]) -> Vec<Place> {
    let mut places: Vec<Place> = standing
        .iter()
        .map(|one| Place {
            rank: one.rank,
            cluster: one.peer.cluster.clone(),
            node: one.peer.node.clone(),
            leaving: one.leaving,
        })
        .collect();
    places.sort_by(|a, b| {
        let key = |place: &Place| (place.rank.is_none(), place.rank);
        key(a).cmp(&key(b)).then_with(|| a.node.cmp(&b.node))
    });
    places
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// How many compute where, from which step on.
fn size_text(point: u64, processes: u32, nodes: usize) -> String {
    let processes = match processes {
        1 => "1 process computes".to_owned(),
        n => format!("{n} processes compute"),
    };
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    format!("from step {point} on {processes} on {nodes} node{}", plural(nodes))
}
