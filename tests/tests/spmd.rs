//! SPMD programs whose number of processes changes, on whole grids in virtual time: the answer is
//! that of one process, bit for bit.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_actors::policy::Mode;
use springtide_actors::scheduler::manager::{JobRequirements, Kind};
use springtide_actors::scheduler::{GetStatus, NodeState};
use springtide_malleable::{Ft, Nbody};
use springtide_runtime::malleable::{
    Malleable, Need as Nodes, Observation, Placement, ProcessInfo, Program, Strategy,
};
use springtide_runtime::processors::Processors;
use springtide_runtime::random::SplitMix;
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{
    Context, Job, Outcome, ParallelLoops, PoolConfig, Registry, Stop, encode_job, solo,
};
use springtide_simulator::{CompletedRun, SimulatedGrid, simulate};
use springtide_tests::number;
use springtide_tests::virtual_grid::{Controls, RunOutcome, VirtualGridConfig, run_scripted};
use tokio::time::sleep;

use crate::simulated::{after, drain_after, layout, quiet, root_and_another};

/// A program whose work takes modelled time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Slow<P: Program> {
    program: P,
    /// The work of a step, of all processes together.
    step_us: u64,
    /// Whether it accepts every offer, regardless of the program.
    greedy: bool,
    /// It asks for this number of nodes, until it has them or is refused; with a time limit in
    /// milliseconds, if it cannot continue without.
    requests_nodes: Option<(u32, Option<u64>)>,
    /// Whether each process sends a message in its third step.
    sends_messages: bool,
    action: Option<Action>,
    placement: Placement,
}

/// Additional actions of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Action {
    /// All processes wait for each other before the first step.
    MeetFirst,
    /// Rank 1 sends a message at the beginning of a long step, and rank 0 at its end.
    TalkInLongStep,
    /// After the last step each process takes longer the higher its rank is, then sends a message
    /// and writes a file.
    EndLate,
    /// The last process fails after the last step, later than the others end.
    FailLate,
}

/// The share of a step that a process does.
pub(crate) trait Share: Malleable {
    fn share(&self, layout: &Self::Layout, rank: u32) -> f64;
}

impl Share for Ft {
    fn share(&self, layout: &Self::Layout, rank: u32) -> f64 {
        layout.of(rank).len() as f64 / f64::from(self.size)
    }
}

impl Share for Nbody {
    fn share(&self, layout: &Self::Layout, rank: u32) -> f64 {
        layout.of(rank).len() as f64 / f64::from(self.bodies)
    }
}

impl<P: Share> Program for Slow<P> {
    const NAME: &'static str = P::NAME;
    type State = P::State;
    type Layout = P::Layout;

    fn steps(&self) -> u64 {
        self.program.steps()
    }

    fn is_checkpointed(&self) -> bool {
        self.program.is_checkpointed()
    }

    fn placement(&self) -> Placement {
        self.placement
    }

    fn layout(&self, processes: &[ProcessInfo], now: Option<&P::Layout>) -> P::Layout {
        self.program.layout(processes, now)
    }

    fn decide(&self, seen: &Observation, layout: Option<&P::Layout>) -> Strategy {
        let usual = self.program.decide(seen, layout);
        let nodes: BTreeSet<_> = seen.places.iter().map(|place| &place.node).collect();
        let ranks = seen.places.iter().filter_map(|place| place.rank);
        assert!(ranks.eq(0..seen.processes), "{:?}", seen.places);
        match (self.requests_nodes, &seen.refused) {
            (Some((wanted, within)), None) if seen.point > 3 && usual == Strategy::Keep => {
                let more = wanted.saturating_sub(nodes.len() as u32);
                let within = within.map(Duration::from_millis);
                if more > 0 { Strategy::Need(Nodes { more, within }) } else { usual }
            }
            _ => usual,
        }
    }

    fn start(&self, layout: &P::Layout, comm: &Comm<'_>) -> Result<P::State, Stop> {
        let state = self.program.start(layout, comm)?;
        if self.action == Some(Action::MeetFirst) {
            comm.barrier()?;
        }
        Ok(state)
    }

    fn step(
        &self,
        state: &mut P::State,
        step: u64,
        layout: &P::Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let share = self.program.share(layout, comm.rank());
        comm.spend_modelled_time(Duration::from_micros((self.step_us as f64 * share) as u64))?;
        if self.placement == Placement::EachNode {
            let pieces = comm.parallel_map(0..100, 10, |piece| piece.len())?;
            assert_eq!(pieces, [10; 10]);
        }
        if self.sends_messages && step == 3 {
            comm.report_text(format!("rank {} of {} is here", comm.rank(), comm.size()));
            comm.artifact(&format!("rank-{}.txt", comm.rank()), vec![7; 100])?;
        }
        let sends_messages = self.action == Some(Action::TalkInLongStep) && step == 3;
        if sends_messages && comm.rank() == 1 {
            comm.report_text("the long step begins");
            comm.spend_modelled_time(Duration::from_secs(20))?;
        }
        self.program.step(state, step, layout, comm)?;
        if sends_messages && comm.rank() == 0 {
            comm.report_text("the long step is over");
        }
        Ok(())
    }

    fn split_state(
        &self,
        state: &P::State,
        from: (&P::Layout, u32),
        to: (&P::Layout, u32),
    ) -> Result<Bytes, Stop> {
        self.program.split_state(state, from, to)
    }

    fn join_state(
        &self,
        pieces: &[Bytes],
        from: &P::Layout,
        to: (&P::Layout, u32),
    ) -> Result<P::State, Stop> {
        self.program.join_state(pieces, from, to)
    }

    fn finish(
        &self,
        state: P::State,
        layout: &P::Layout,
        comm: &Comm<'_>,
    ) -> Result<Outcome, Stop> {
        let outcome = self.program.finish(state, layout, comm)?;
        let (rank, last) = (comm.rank(), comm.size() - 1);
        match self.action {
            Some(Action::EndLate) => {
                comm.spend_modelled_time(Duration::from_secs(3 * u64::from(rank)))?;
                comm.report_text(format!("rank {rank} ends"));
                // Long enough for later messages to arrive before it.
                comm.artifact(&format!("end-{rank}.bin"), vec![7; 300_000])?;
            }
            Some(Action::FailLate) if rank == last => {
                comm.spend_modelled_time(Duration::from_secs(30))?;
                return Err(Stop::fail("the last one fails"));
            }
            _ => {}
        }
        Ok(outcome)
    }
}

impl<P: Share> Malleable for Slow<P> {
    const JOB: &'static str = P::JOB;
    const ABOUT: &'static str = "for tests";
    const NEGOTIATES: bool = P::NEGOTIATES;

    fn accept_growth(&self, current: Processors, offered: Processors) -> Processors {
        if self.greedy { offered } else { self.program.accept_growth(current, offered) }
    }

    fn accept_shrink(&self, current: Processors, asked: Processors) -> Processors {
        if self.greedy { asked } else { self.program.accept_shrink(current, asked) }
    }
}

const FT: Ft = Ft { size: 8, iterations: 60, seed: 314_159_265 };
const NBODY: Nbody = Nbody { bodies: 60, steps: 60, dt: 1e-3, softening: 0.02, seed: 3 };

/// Bodies that move for this number of steps, each of this work.
pub(crate) fn bodies(steps: u64, step_us: u64) -> Slow<Nbody> {
    slow(&Nbody { steps, ..NBODY }, step_us)
}

fn slow<P: Share>(program: &P, step_us: u64) -> Slow<P> {
    Slow {
        program: program.clone(),
        step_us,
        greedy: false,
        requests_nodes: None,
        sends_messages: false,
        action: None,
        placement: Placement::EachThread,
    }
}

/// The answer of one process.
fn alone<P: Share>(program: &P) -> u64 {
    let mut registry = Registry::new();
    registry.job::<P>();
    let body = encode_job(program.clone()).expect("the job is right");
    let config = PoolConfig::default();
    let alone = solo::run(Arc::new(registry), P::JOB, body, &config, |_| {});
    alone.expect("it runs").outcome.expect("no failure").checksum
}

/// The numbers of processes of successive configurations, and of their nodes.
fn sizes<'a>(said: impl IntoIterator<Item = &'a str>) -> Vec<(u32, u32)> {
    let size = |text: &str| {
        let text = text.strip_prefix("from step ")?.split_once(" on ")?.1;
        let (processes, nodes) = text.split_once(" on ")?;
        let number = |text: &str| text.split(' ').next()?.parse().ok();
        processes.contains(" process").then_some((number(processes)?, number(nodes)?))
    };
    said.into_iter().filter_map(size).collect()
}

fn scripted<P: Share, F: Future<Output = ()> + 'static>(
    shape: &VirtualGridConfig,
    job: Slow<P>,
    script: impl FnOnce(Rc<Controls>) -> F + 'static,
) -> (RunOutcome, Vec<(u32, u32)>) {
    let right = alone(&job.program);
    let run = run_scripted(shape, job, script);
    let outcome = run.outcome.as_ref().unwrap_or_else(|why| panic!("{why}; {:?}", run.said));
    assert_eq!(outcome.checksum, right, "{:?}", run.said);
    let sizes = sizes(run.said.iter().map(String::as_str));
    (run, sizes)
}

#[test]
fn as_many_processes_as_the_program_can_use_and_one_history_a_seed() {
    let once = |seed| {
        let run = |_: Rc<Controls>| async {};
        let (ft, sizes) =
            scripted(&VirtualGridConfig::of(&[3, 2], 2, seed), slow(&FT, 100_000), run);
        // Ten threads give eight processes, on as few nodes as possible.
        assert_eq!(sizes, [(8, 4)], "{:?}", ft.said);
        let (nbody, sizes) =
            scripted(&VirtualGridConfig::of(&[3, 2], 2, seed), slow(&NBODY, 100_000), run);
        assert_eq!(sizes[0], (10, 5));
        (ft.hash, nbody.hash)
    };
    assert_eq!(once(1), once(1));
}

/// Only one thread of each node computes, and the others help with loops. So no work is left that
/// other nodes do not learn of.
#[test]
fn a_program_has_one_process_on_each_node_if_it_wants() {
    let script = |controls: Rc<Controls>| async move {
        after(3).await;
        controls.leave(&["c0-n01"]).await;
        after(3).await;
        controls.crash("c1-n01");
    };
    for (threads, seed) in [(1, 1), (2, 2), (5, 3)] {
        let shape = VirtualGridConfig::of(&[3, 2], threads, seed);
        let job = Slow { placement: Placement::EachNode, ..slow(&NBODY, 500_000) };
        let (run, sizes) = scripted(&shape, job.clone(), |_| async {});
        assert_eq!(sizes, [(5, 5)], "{:?}", run.said);
        // Sixty steps of a fifth of half a second, and no wait of five seconds for processes.
        let most = Duration::from_secs(9);
        assert!(run.wall < most, "{threads} threads: {:?}", run.wall);
        let (run, sizes) = scripted(&shape, job, script);
        assert_eq!(sizes[..2], [(5, 5), (4, 4)], "{:?}", run.said);
        assert_eq!(sizes.last(), Some(&(3, 3)), "{:?}", run.said);
    }
}

/// Nodes leave in order while the program computes: their state is redistributed first, and no step
/// is repeated.
#[test]
fn nodes_leave_after_the_others_have_continued() {
    let script = |controls: Rc<Controls>| async move {
        after(3).await;
        let took = controls.leave(&["c0-n01", "c1-n00"]).await;
        assert!(took.iter().all(|took| *took < Duration::from_secs(5)), "{took:?}");
        after(5).await;
        controls.leave(&["c1-n01"]).await;
    };
    for seed in 1..=3 {
        let shape = VirtualGridConfig::of(&[3, 2], 1, seed);
        let (ft, sizes) = scripted(&shape, slow(&FT, 1_000_000), script);
        assert_eq!(sizes, [(4, 4), (2, 2)], "{:?}", ft.said);
        let (nbody, sizes) = scripted(&shape, slow(&NBODY, 1_000_000), script);
        assert_eq!(sizes, [(5, 5), (3, 3), (2, 2)], "{:?}", nbody.said);
        assert_eq!((restarts(&ft.said), restarts(&nbody.said)), (0, 0));
    }
}

/// A node is so late that the program starts without it.
///
/// Another node cannot be used without it. It is not returned before the late one arrives, for both
/// together double the number of processes.
#[test]
fn no_node_is_returned_while_another_is_pending() {
    let script = |controls: Rc<Controls>| async move {
        cut(&controls, ("c0", "c1"), Duration::from_millis(7500)).await;
    };
    let (run, sizes) =
        scripted(&VirtualGridConfig::of(&[3, 1], 1, 1), slow(&FT, 2_000_000), script);
    assert_eq!(sizes, [(2, 2), (4, 4)], "{:?}", run.said);
    assert!(!run.said.iter().any(|text| text.contains("has no use for")), "{:?}", run.said);
}

/// The root ends first, and waits for the others: their messages, files and failures after the last
/// step count.
#[test]
fn the_root_waits_for_actions_after_the_last_step() {
    let none = |_: Rc<Controls>| async {};
    let late = Slow { action: Some(Action::EndLate), ..slow(&NBODY, 1_000_000) };
    let (run, _) = scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), late, none);
    for rank in 0..4 {
        let line = format!("rank {rank} ends");
        assert_eq!(run.said.iter().filter(|text| **text == line).count(), 1, "{:?}", run.said);
        let file = (format!("end-{rank}.bin"), 300_000);
        assert_eq!(run.files.iter().filter(|one| **one == file).count(), 1, "{:?}", run.files);
    }
    let fails = Slow { action: Some(Action::FailLate), ..slow(&NBODY, 1_000_000) };
    let run = run_scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), fails, none);
    let failure = run.outcome.expect_err("one process fails");
    assert_eq!(failure.message, "the last one fails");
}

/// The job does not wait for the last message of a lost node, for its outcome is known by then.
#[test]
fn a_node_that_is_lost_after_the_last_step_delays_nothing() {
    let script = |controls: Rc<Controls>| async move {
        // All steps take 15 s, and the last process nine more.
        after(20).await;
        controls.crash("c1-n01");
        after(1).await;
        controls.declare_lost(&["c1-n01"]);
    };
    let late = Slow { action: Some(Action::EndLate), ..slow(&NBODY, 1_000_000) };
    let (run, sizes) = scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), late, script);
    assert_eq!((restarts(&run.said), &sizes[..]), (0, &[(4, 4)][..]), "{:?}", run.said);
    let warning = "node c1-n01 was lost after the last step: later output of processes may be lost";
    assert!(run.said.iter().any(|text| text == warning), "{:?}", run.said);
}

/// The root waits too, and forwards the messages of others meanwhile.
#[test]
fn messages_in_a_long_step_arrive_before_its_end() {
    let sends_messages = Slow { action: Some(Action::TalkInLongStep), ..slow(&NBODY, 1_000_000) };
    let (run, _) =
        scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), sends_messages, |_: Rc<Controls>| async {});
    let said: Vec<_> = run.said.iter().filter(|text| text.contains("long step")).collect();
    assert_eq!(said, ["the long step begins", "the long step is over"], "{:?}", run.said);
}

/// Nodes are lost with their processes: all processes start again from the last saved state, on the
/// remaining nodes.
#[test]
fn lost_nodes_cost_the_steps_since_the_last_saved_state() {
    let script = |controls: Rc<Controls>| async move {
        for node in ["c0-n01", "c0-n02"] {
            after(6).await;
            controls.crash(node);
            after(2).await;
            controls.declare_lost(&[node]);
        }
    };
    for seed in 1..=3 {
        let shape = VirtualGridConfig::of(&[3, 2], 1, seed);
        let (ft, sizes) = scripted(&shape, slow(&FT, 1_000_000), script);
        assert_eq!(sizes.last(), Some(&(2, 2)), "{:?}", ft.said);
        let (nbody, sizes) = scripted(&shape, slow(&NBODY, 1_000_000), script);
        assert_eq!(sizes.last(), Some(&(3, 3)), "{:?}", nbody.said);
        for said in [&ft.said, &nbody.said] {
            let from = said
                .iter()
                .filter_map(|text| text.strip_prefix("the processes restart from step "));
            let from = from.map(|text| text.split_once(": node c0-n0").expect("a cause").0);
            let from: Vec<u64> = from.map(|step| step.parse().expect("a number")).collect();
            assert!(from.len() >= 2 && from.iter().all(|step| *step > 0), "{said:?}");
        }
    }
}

/// The root moves to another node at a saved state, or at once.
#[test]
fn the_root_moves_and_the_program_continues() {
    for at_checkpoint in [true, false] {
        let script = move |controls: Rc<Controls>| async move {
            after(6).await;
            controls.move_root("c1-n00", at_checkpoint).await;
        };
        let (run, sizes) =
            scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), slow(&FT, 1_000_000), script);
        assert!(sizes.len() >= 2 && sizes.last() == Some(&(4, 4)), "{:?}", run.said);
    }
}

/// Cuts the links between two clusters for a time.
async fn cut(controls: &Controls, (a, b): (&str, &str), time: Duration) {
    controls.network.partition(&a.into(), &b.into(), true);
    sleep(time).await;
    controls.network.partition(&a.into(), &b.into(), false);
}

/// Longer than the idle timeout of a link, so that messages on it are lost.
const LONG_CUT: Duration = Duration::from_secs(20);

fn restarts(said: &[String]) -> usize {
    said.iter().filter(|text| text.contains("restart from step")).count()
}

/// A link breaks for a while, and messages are lost with it: a link of the root, or one between two
/// others.
#[test]
fn a_link_that_breaks_loses_no_step_for_good() {
    for ends in [("c0", "c1"), ("c1", "c2")] {
        let script = move |controls: Rc<Controls>| async move {
            after(5).await;
            cut(&controls, ends, LONG_CUT).await;
        };
        let nbody = slow(&Nbody { steps: 90, ..NBODY }, 2_000_000);
        let (run, sizes) = scripted(&VirtualGridConfig::of(&[2, 1, 1], 1, 1), nbody, script);
        assert!(restarts(&run.said) >= 1, "{ends:?}: {:?}", run.said);
        assert_eq!(sizes.last(), Some(&(4, 4)), "{ends:?}: {:?}", run.said);
    }
}

/// Two nodes stay cut off from each other: the others wait for them, longer each time, and the job
/// fails with their names.
#[test]
fn a_link_that_never_returns_fails_the_job_with_its_name() {
    let script = |controls: Rc<Controls>| async move {
        after(5).await;
        controls.network.partition(&"c1".into(), &"c2".into(), true);
    };
    let run =
        run_scripted(&VirtualGridConfig::of(&[1, 1, 1], 1, 1), slow(&NBODY, 2_000_000), script);
    let failure = run.outcome.expect_err("it cannot continue").message;
    assert!(failure.contains("restarted from step") && failure.contains("10 times"), "{failure}");
    assert!(
        failure.contains("between c1-n00 and c2-n00")
            || failure.contains("between c2-n00 and c1-n00"),
        "{failure}"
    );
    let waits = run.said.iter().filter(|text| text.contains("waiting "));
    assert_eq!(waits.count(), 7, "{:?}", run.said);
    assert!(
        run.said.iter().any(|text| text.contains("has waited 30 s for rank"))
            || restarts(&run.said) == 10
    );
}

/// Two nodes never reach each other: the program communicates before its first step, so no
/// configuration is ever complete.
///
/// These attempts count as well, and the job does not wait for ever.
#[test]
fn a_program_that_never_starts_fails_with_the_links_name() {
    let script = |controls: Rc<Controls>| async move {
        // In the first step, so that nothing is saved.
        sleep(Duration::from_millis(700)).await;
        controls.network.partition(&"c1".into(), &"c2".into(), true);
    };
    let ft = Slow { action: Some(Action::MeetFirst), ..slow(&FT, 2_000_000) };
    let run = run_scripted(&VirtualGridConfig::of(&[2, 1, 1], 1, 1), ft, script);
    let failure = run.outcome.expect_err("it cannot continue").message;
    assert!(failure.contains("restarted from step 0 10 times"), "{failure}");
    assert!(
        failure.contains("between c1-n00 and c2-n00")
            || failure.contains("between c2-n00 and c1-n00"),
        "{failure}"
    );
    // Each attempt is reported.
    assert_eq!(restarts(&run.said), 10, "{:?}", run.said);
}

/// A shorter cut costs only its time: messages under way wait.
#[test]
fn a_link_that_is_silent_for_a_while_loses_nothing() {
    let script = |controls: Rc<Controls>| async move {
        after(5).await;
        cut(&controls, ("c0", "c1"), Duration::from_secs(3)).await;
    };
    let (run, sizes) =
        scripted(&VirtualGridConfig::of(&[2, 2], 1, 1), slow(&NBODY, 1_000_000), script);
    assert_eq!((restarts(&run.said), &sizes[..]), (0, &[(4, 4)][..]), "{:?}", run.said);
}

/// A link between two other nodes breaks while a node leaves.
///
/// The root has assigned the ranks of the next configuration already. The two nodes compute in the
/// one before, or have given up their state.
#[test]
fn a_link_that_breaks_during_a_change_delays_nothing() {
    let mut broke = 0;
    for at in 0..20 {
        let script = move |controls: Rc<Controls>| async move {
            after(5).await;
            let leaves = {
                let controls = controls.clone();
                actix_rt::spawn(async move { controls.leave(&["c1-n00"]).await })
            };
            sleep(Duration::from_millis(100 * at)).await;
            cut(&controls, ("c1", "c2"), LONG_CUT).await;
            leaves.await.expect("no panic");
        };
        let nbody = slow(&Nbody { steps: 60, ..NBODY }, 3_000_000);
        let (run, sizes) = scripted(&VirtualGridConfig::of(&[1, 1, 1], 1, 1), nbody, script);
        assert_eq!(sizes.last(), Some(&(2, 2)), "{at}: {:?}", run.said);
        broke += restarts(&run.said);
    }
    assert!(broke > 0);
}

/// A sequence of events on a grid of three clusters, each after a pause of up to `pause_ms`: nodes
/// leave or die, links break, the root moves.
pub(crate) async fn history(controls: Rc<Controls>, seed: u64, events: usize, pause_ms: usize) {
    let mut random = SplitMix(seed);
    // The nodes that exist, and may leave.
    let mut others = controls.nodes().split_off(1);
    let mut root = controls.nodes()[0].clone();
    for _ in 0..events {
        sleep(Duration::from_millis(random.below(pause_ms) as u64)).await;
        let at = random.below(others.len());
        match random.below(4) {
            0 if others.len() > 2 => {
                let node = others.remove(at);
                controls.leave(&[node.as_str()]).await;
            }
            1 if others.len() > 2 => {
                let node = others.remove(at);
                controls.crash(node.as_str());
                sleep(Duration::from_millis(random.below(3000) as u64)).await;
                controls.declare_lost(&[node.as_str()]);
            }
            2 => {
                // Some are longer than the idle timeout of links.
                let time = [4000, 25_000][random.below(2)];
                let time = Duration::from_millis(random.below(time) as u64);
                let ends = [("c0", "c1"), ("c1", "c2"), ("c0", "c2")][random.below(3)];
                cut(&controls, ends, time).await;
            }
            _ => {
                let node = std::mem::replace(&mut others[at], root);
                controls.move_root(node.as_str(), random.below(2) == 0).await;
                root = node;
            }
        }
    }
}

/// For any events in any order: the answer is right, and the job ends.
#[test]
fn random_histories_end_with_the_right_answer() {
    let (first, count) = (number("SPRINGTIDE_SPMD_SEED", 1), number("SPRINGTIDE_SPMD_COUNT", 8));
    for seed in first..first + count {
        let script = move |controls| history(controls, seed, 6, 7000);
        let ft = slow(&Ft { iterations: 250, ..FT }, 1_500_000);
        let nbody = slow(&Nbody { steps: 250, ..NBODY }, 1_500_000);
        if seed % 2 == 0 {
            scripted(&VirtualGridConfig::of(&[2, 2, 2], 1, seed), ft, script);
        } else {
            scripted(&VirtualGridConfig::of(&[2, 1, 1], 2, seed), nbody, script);
        }
    }
}

// --- with all actors ---

pub(crate) fn registry<P: Share>() -> Registry {
    let mut registry = Registry::new();
    registry.job::<Slow<P>>();
    registry.job::<springtide_simulator::apps::ModelledJob>();
    registry.job::<Asks>();
    registry
}

fn check<P: Share>(ended: &CompletedRun, program: &P) -> Vec<(u32, u32)> {
    let outcome = ended.ended.outcome.as_ref().expect("no failure");
    assert_eq!(outcome.checksum, alone(program), "{:?}", ended.said);
    sizes(ended.said.iter().map(|(_, text)| text.as_str()))
}

async fn idle(grid: &SimulatedGrid) -> usize {
    let status = grid.scheduler().send(GetStatus {}).await.expect("a status");
    status.count(NodeState::Idle)
}

/// From two nodes to five: the program uses four and returns one, which is free for other jobs.
#[test]
fn a_transform_grows_to_a_power_of_two_and_returns_the_rest() {
    let job = Slow { greedy: true, ..slow(&Ft { iterations: 120, ..FT }, 1_000_000) };
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[5], 1), registry::<Ft>()).await;
        let need = JobRequirements::one(Kind::Malleable, 2, 2, 5);
        let run = grid.submitter().submit_needing(job.clone(), quiet(1), need).await;
        let run = run.expect("it is taken");
        assert_eq!(run.granted().view.members.len(), 2);
        let free = {
            let grid = grid.clone();
            actix_rt::spawn(async move {
                // After several polls, in each of which it could be offered again.
                after(22).await;
                idle(&grid).await
            })
        };
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        let sizes = check(&ended, &job.program);
        assert_eq!(sizes, [(2, 2), (4, 4)], "{:?}", ended.said);
        let given =
            ended.said.iter().filter(|(_, text)| text.contains("the program has no use for"));
        assert!(given.count() >= 1, "{:?}", ended.said);
        assert_eq!(free.await.expect("no panic"), 1, "{:?}", ended.said);
        assert_eq!(ended.iterations.len(), 120);
        // A returned node is not offered to it again.
        assert_eq!(times(&ended, "leaves the job: the program has no use"), 1, "{:?}", ended.said);
    });
}

/// Another job needs three of eight nodes: the program releases four, and gets them back when the
/// other has ended.
#[test]
fn a_transform_shrinks_by_more_than_requested_and_grows_again() {
    for mode in [Mode::Static, Mode::Adaptive] {
        shrinks_and_grows(mode);
    }
}

fn shrinks_and_grows(mode: Mode) {
    let job = slow(&Ft { iterations: 300, ..FT }, 2_000_000);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[8], 1), registry::<Ft>()).await;
        let need = JobRequirements::one(Kind::Malleable, 2, 8, 8);
        let params = springtide_actors::job::JobParams { mode, ..quiet(1) };
        let run = grid.submitter().submit_needing(job.clone(), params, need).await;
        let run = run.expect("it is taken");
        assert_eq!(run.granted().view.members.len(), 8);
        let other = {
            let grid = grid.clone();
            actix_rt::spawn(async move {
                after(10).await;
                let rigid = JobRequirements::one(Kind::Rigid, 3, 3, 3);
                let model = crate::simulated::TREE;
                let other = grid.submitter().submit_needing(model, quiet(2), rigid).await;
                other.expect("it is taken").granted().view.members.len()
            })
        };
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        assert_eq!(other.await.expect("no panic"), 3);
        let sizes = check(&ended, &job.program);
        assert_eq!(sizes, [(8, 8), (4, 4), (8, 8)], "{:?}", ended.said);
        assert_eq!(ended.iterations.len(), 300);
        assert!(
            !ended.said.iter().any(|(_, text)| text.contains("restart from step")),
            "{:?}",
            ended.said
        );
    });
}

/// The number of messages with this text.
fn times(ended: &CompletedRun, what: &str) -> usize {
    ended.said.iter().filter(|(_, text)| text.contains(what)).count()
}

/// A program cannot continue without one more node: another that needs fewer shrinks for it.
#[test]
fn a_program_asks_for_a_node_and_another_becomes_smaller() {
    let other = slow(&Nbody { steps: 100, ..NBODY }, 2_000_000);
    let requests_nodes =
        Slow { requests_nodes: Some((3, Some(60_000))), ..slow(&NBODY, 2_000_000) };
    // The same history twice: only one job's messages are received at a time.
    let listen = |to_other: bool| {
        let (other, requests_nodes) = (other.clone(), requests_nodes.clone());
        simulate(move || async move {
            let grid = SimulatedGrid::start(&layout(&[6], 1), registry::<Nbody>()).await;
            let submit = async |job, need| {
                let run = grid.submitter().submit_needing(job, quiet(1), need).await;
                run.expect("it is taken")
            };
            let others = submit(other, JobRequirements::one(Kind::Malleable, 2, 4, 4)).await;
            let run = submit(requests_nodes, JobRequirements::one(Kind::Malleable, 2, 2, 3)).await;
            let run = if to_other { others } else { run };
            run.ended(Duration::from_secs(3600)).await.expect("it ends")
        })
    };
    let ended = listen(false);
    assert_eq!(check(&ended, &requests_nodes.program), [(2, 2), (3, 3)], "{:?}", ended.said);
    let asked = times(&ended, "the program needs 1 more node within 60s");
    assert_eq!(asked, 1, "{:?}", ended.said);
    let ended = listen(true);
    let sizes = check(&ended, &other.program);
    assert!(sizes.starts_with(&[(4, 4), (3, 3)]), "{:?}", ended.said);
}

/// It asks for more nodes than it can ever have: it is refused with the reason, and continues
/// without.
#[test]
fn a_program_that_is_refused_is_notified_and_continues() {
    for within in [Some(20_000), None] {
        simulate(|| async move {
            let grid = SimulatedGrid::start(&layout(&[3], 1), registry::<Nbody>()).await;
            let requests_nodes =
                Slow { requests_nodes: Some((9, within)), ..slow(&NBODY, 2_000_000) };
            let need = JobRequirements::one(Kind::Malleable, 2, 2, 3);
            let run = grid.submitter().submit_needing(requests_nodes.clone(), quiet(1), need).await;
            let run = run.expect("it is taken");
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            check(&ended, &requests_nodes.program);
            let asked = times(&ended, "more nodes within") + times(&ended, "the program would use");
            assert_eq!(asked, 1, "{within:?}: {:?}", ended.said);
            assert_eq!(times(&ended, "does not get more nodes"), 1, "{:?}", ended.said);
        });
    }
}

/// A job without processes, which asks for nodes and waits for the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asks {
    more: u32,
}

impl Job for Asks {
    const NAME: &'static str = "asks";
    const ABOUT: &'static str = "for tests";

    fn register(_: &mut Registry) {}

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        cx.need_nodes(self.more, Some(Duration::from_secs(5)));
        for _ in 0..100 {
            cx.spend_modelled_time(Duration::from_millis(100))?;
            if let Some(why) = cx.refused() {
                // A new request is not refused yet.
                cx.need_nodes(1, None);
                let result = serde_json::json!([why, cx.refused()]);
                return Ok(Outcome { checksum: 0, result });
            }
        }
        Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
    }
}

#[test]
fn a_job_that_asks_for_nodes_learns_that_it_is_refused() {
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[3], 1), registry::<Nbody>()).await;
        for (more, refused) in [(7, true), (1, false)] {
            let need = JobRequirements::one(Kind::Malleable, 1, 1, 2);
            let run = grid.submitter().submit_needing(Asks { more }, quiet(1), need).await;
            let run = run.expect("it is taken");
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            let result = ended.ended.outcome.expect("no failure").result;
            if refused {
                let why = result[0].as_str().expect("a reason");
                assert!(why.contains("may have 1 to 2"), "{why}");
                assert!(result[1].is_null(), "{result}");
            } else {
                assert!(result.is_null(), "{result}");
            }
        }
    });
}

/// Messages of processes on other nodes than the root's reach the client.
#[test]
fn messages_of_every_process_arrive() {
    let job = Slow { sends_messages: true, ..slow(&NBODY, 1_000_000) };
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[2, 2], 2), registry::<Nbody>()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job.program);
        for rank in 0..4 {
            let what = format!("rank {rank} of 4 is here");
            assert_eq!(times(&ended, &what), 1, "{what}: {:?}", ended.said);
        }
    });
}

/// A node's process dies: the coordinator is notified, and the program continues on the remaining
/// nodes.
#[test]
fn a_program_outlives_a_node_and_the_roots_node() {
    let job = slow(&NBODY, 2_000_000);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[3, 3], 1), registry::<Nbody>()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        let root = run.granted().view.coordinator.clone().expect("there is a root");
        let nodes: Vec<_> = run.granted().view.members.keys().cloned().collect();
        let other = nodes.iter().find(|node| **node != root).cloned().expect("there are six");
        {
            let grid = grid.clone();
            actix_rt::spawn(async move {
                for node in [other, root] {
                    after(6).await;
                    grid.machines().kill(&node);
                }
            });
        }
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        let sizes = check(&ended, &job.program);
        assert!(sizes.len() >= 3, "{:?}", ended.said);
    });
}

/// Each process is one task as long as the job, and moves to the node that replaces a lost one.
///
/// Over hours several nodes may die while they run it. That is not the task's fault while the job
/// makes progress.
#[test]
fn a_program_outlives_more_nodes_than_one_task_may_kill() {
    let job = slow(&Nbody { steps: 400, ..NBODY }, 2_000_000);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[9], 1), registry::<Nbody>()).await;
        let params = quiet(1);
        assert_eq!(params.poison_limit, 3);
        let need = JobRequirements::one(Kind::Malleable, 2, 3, 3);
        let run = grid.submitter().submit_needing(job.clone(), params, need).await;
        let run = run.expect("it is taken");
        let members = |nodes: &[&str]| nodes.iter().map(|node| (*node).into()).collect::<Vec<_>>();
        let there: Vec<_> = run.granted().view.members.keys().cloned().collect();
        assert_eq!(there, members(&["c0-1", "c0-2", "c0-3"]));
        {
            let grid = grid.clone();
            actix_rt::spawn(async move {
                // In turn those that compute: the one that was lost before has returned, and takes
                // the place of this one.
                for node in members(&["c0-2", "c0-3", "c0-4", "c0-2", "c0-3", "c0-4", "c0-2"]) {
                    after(20).await;
                    grid.machines().kill(&node);
                }
            });
        }
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job.program);
        assert_eq!(times(&ended, "continuing with"), 7, "{:?}", ended.said);
    });
}

/// Machines become slow: bodies move to the faster ones, and steps take the optimal time then.
#[test]
fn bodies_move_to_the_fastest_nodes() {
    let job = slow(&Nbody { bodies: 80, steps: 80, ..NBODY }, 4_000_000);
    let ended = simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[4], 1), registry::<Nbody>()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        {
            let grid = grid.clone();
            actix_rt::spawn(async move {
                after(15).await;
                assert!(grid.machines().set_speed(&"c0-3".into(), 0.25));
            });
        }
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        check(&ended, &job.program);
        ended
    });
    let mean = |some: &[f64]| some.iter().sum::<f64>() / some.len() as f64;
    let slowest = ended.iterations.iter().copied().fold(0.0, f64::max);
    let last = mean(&ended.iterations[70..]);
    // A second with equal machines; four with equal shares; 16/13 of a second with optimal shares.
    assert!(slowest > 3.5 && last < 1.4, "{slowest} {last}: {:?}", ended.said);
}

/// The root's node and a computing one are drained: the state moves along, and no step is repeated.
#[test]
fn a_drained_root_hands_the_whole_state_over() {
    let job = slow(&NBODY, 2_000_000);
    simulate(|| async move {
        let grid = SimulatedGrid::start(&layout(&[2, 2], 1), registry::<Nbody>()).await;
        let run = grid.submit(job.clone(), quiet(1), None).await.expect("it is taken");
        let (root, other) = root_and_another(&run);
        let drained = actix_rt::spawn(drain_after(grid.clone(), 8, vec![root, other]));
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        let sizes = check(&ended, &job.program);
        assert_eq!(sizes.last(), Some(&(2, 2)), "{:?}", ended.said);
        drained.await.expect("no panic");
        assert_eq!(ended.iterations.len() as u64, NBODY.steps, "{:?}", ended.said);
    });
}
