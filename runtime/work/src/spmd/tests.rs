//! Groups and processes together, over a network without order and with lost nodes.
//!
//! All execute an agreed action at one point, and in the end all compute in one configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::comm::PIECE;
use super::group::{OutgoingMessage, ProcessGroup, ProcessState};
use super::local_process::{Call, LocalProcess, PointAction};
use super::message::{CollectiveAction, DataMessage, Invitation, ProcessMessage, StateSource};
use crate::id::{Incarnation, Peer};

/// The number of processes, one per node. The root's is 0.
const PROCESSES: u32 = 5;
/// The last point, at first.
const LAST: u64 = 60;

#[derive(Debug)]
enum Activity {
    Waiting,
    Entering { generation: u32, givers: u32, point: u64 },
    At(u64),
}

struct TestProcess {
    peer: Peer,
    local: LocalProcess,
    activity: Activity,
}

struct GroupWorld {
    group: ProcessGroup,
    processes: BTreeMap<u32, TestProcess>,
    /// Messages on their way: sender, receiver, process and message.
    messages: Vec<(Peer, Peer, u32, ProcessMessage)>,
    /// The point at which each action of a configuration was executed.
    executed_at: BTreeMap<(u32, u32, String), u64>,
    /// The number of executed actions.
    executed: u32,
    changes: u32,
    /// The number of the root's decisions at points where the others waited.
    decisions: u32,
    /// The root's decision there, if it is not to vary.
    choice: Option<u32>,
    /// The processes that have sent their part of a checkpoint.
    saved: BTreeSet<u32>,
    last: u64,
}

fn peer(node: u32, incarnation: u64) -> Peer {
    Peer {
        node: format!("n{node}").into(),
        incarnation: Incarnation(incarnation),
        cluster: "ams".into(),
    }
}

impl GroupWorld {
    fn new() -> Self {
        let mut group = ProcessGroup::new(peer(0, 1));
        (1..PROCESSES).for_each(|process| group.call(process));
        let processes = (0..PROCESSES).map(|process| {
            let (peer, local) = (peer(process, 1), LocalProcess::default());
            (process, TestProcess { peer, local, activity: Activity::Waiting })
        });
        let (processes, messages) = (processes.collect(), Vec::new());
        let executed_at = BTreeMap::new();
        let mut world = Self {
            group,
            processes,
            messages,
            executed_at,
            executed: 0,
            changes: 0,
            decisions: 0,
            choice: None,
            saved: BTreeSet::new(),
            last: LAST,
        };
        (1..PROCESSES).for_each(|process| world.report_presence(process));
        world
    }

    fn root(&self) -> Peer {
        self.processes[&0].peer.clone()
    }

    fn send_to_root(&mut self, process: u32, word: ProcessMessage) {
        let (from, root) = (self.processes[&process].peer.clone(), self.root());
        self.messages.push((from, root, 0, word));
    }

    fn report_presence(&mut self, process: u32) {
        let generation = self.processes[&process].local.generation();
        if process > 0 {
            self.send_to_root(process, ProcessMessage::Here { process, generation });
        }
    }

    fn spread(&mut self, out: Vec<OutgoingMessage>) {
        let root = self.root();
        self.messages
            .extend(out.into_iter().map(|(to, process, word)| (root.clone(), to, process, word)));
    }

    fn deliver(&mut self, at: usize) {
        let (from, to, process, word) = self.messages.swap_remove(at);
        let runs = |peer: &Peer| self.processes.values().any(|process| process.peer == *peer);
        if !runs(&from) || !runs(&to) {
            return;
        }
        let out = match word {
            ProcessMessage::Here { process, generation } => {
                self.group.handle_here(process, &from, generation)
            }
            ProcessMessage::Reach { process, change, point } => {
                self.group.reach(process, change, point)
            }
            ProcessMessage::Whole { process, generation } => {
                self.group.mark_complete(process, generation)
            }
            ProcessMessage::Broken { node, incarnation } => {
                self.group.link_broke(&from, (&node, incarnation))
            }
            word => {
                let Some(to) = self.processes.get_mut(&process).filter(|p| p.peer == to) else {
                    return;
                };
                match word {
                    ProcessMessage::Recruit(recruit) => to.local.recruit(recruit),
                    ProcessMessage::Agreed { change, point } => to.local.agreed(change, point),
                    ProcessMessage::Apart { generation } => to.local.apart(generation),
                    ProcessMessage::Mail(mail) => to.local.mail(mail),
                    ProcessMessage::Propose { generation, change, action } => {
                        if let Some(point) = to.local.propose(generation, change, action) {
                            self.send_to_root(
                                process,
                                ProcessMessage::Reach { process, change, point },
                            );
                        }
                    }
                    _ => {}
                }
                Vec::new()
            }
        };
        self.spread(out);
    }

    /// A process does the next step of its thread.
    fn tick(&mut self, number: u32) {
        let process = self.processes.get_mut(&number).expect("it is there");
        if process.local.has_ended() {
            process.local.leave();
            process.activity = Activity::Waiting;
            return self.report_presence(number);
        }
        match process.activity {
            Activity::Waiting if number == 0 => self.form(),
            Activity::Waiting => {
                if let Some(Call::Recruit(Invitation { configuration, origin, point })) =
                    process.local.take_call()
                {
                    let StateSource::From { givers, .. } = origin else { return };
                    let generation = configuration.generation;
                    process.local.enter(Arc::new(configuration), point);
                    process.activity = Activity::Entering { generation, givers, point };
                }
            }
            Activity::Entering { generation, givers, point } => {
                let mailbox = process.local.mailbox();
                if (0..givers).all(|from| mailbox.has(generation, from, PIECE, 1)) {
                    process.activity = Activity::At(point);
                    self.send_to_root(
                        number,
                        ProcessMessage::Whole { process: number, generation },
                    );
                }
            }
            Activity::At(point) => match process.local.arrive(point) {
                PointAction::Continue if point < self.last => {
                    process.activity = Activity::At(point + 1)
                }
                PointAction::Continue | PointAction::Hold => {}
                PointAction::Ended => unreachable!("looked at above"),
                PointAction::Execute(action) => self.execute(number, point, action),
            },
        }
    }

    fn execute(&mut self, number: u32, point: u64, action: CollectiveAction) {
        if action.only_waits() {
            if action == CollectiveAction::Decide && number == 0 {
                self.decide();
            }
            return;
        }
        let process = self.processes.get_mut(&number).expect("it is there");
        let generation = process.local.generation();
        let old = process.local.configuration().cloned().expect("it takes part");
        let kind = format!("{action:?}");
        let changes = if let CollectiveAction::Save = action { self.changes } else { 0 };
        let known = *self.executed_at.entry((generation, changes, kind)).or_insert(point);
        assert_eq!(known, point, "process {number} executes it at another point");
        self.executed += 1;
        let CollectiveAction::Change(next) = action else {
            // The root has all parts before it continues.
            self.saved.insert(number);
            if old.members.iter().all(|member| self.saved.contains(&member.process)) {
                self.group.done();
            }
            return;
        };
        let rank = old.rank_of(number).expect("it takes part");
        let from = process.peer.clone();
        match next.rank_of(number) {
            Some(_) => {
                process.local.enter(Arc::new(next.clone()), point);
                process.activity =
                    Activity::Entering { generation: next.generation, givers: old.size(), point };
            }
            None => {
                process.local.leave();
                process.activity = Activity::Waiting;
            }
        }
        self.give(&from, rank, &next);
    }

    /// The root decides while the others wait.
    fn decide(&mut self) {
        self.decisions += 1;
        self.group.done();
        self.group.begin_decision();
        let varied = self.decisions.wrapping_mul(0x9e37_79b9);
        let choice = self.choice.unwrap_or(varied);
        if choice >> 31 == 1 {
            self.propose(choice);
        }
        let out = self.group.propose(CollectiveAction::Continue);
        self.spread(out.unwrap_or_default());
    }

    fn give(&mut self, from: &Peer, rank: u32, next: &super::message::Configuration) {
        for member in &next.members {
            let (generation, body) = (next.generation, Bytes::new());
            let mail = DataMessage { generation, from: rank, tag: PIECE, number: 0, body };
            let to = (member.peer.clone(), member.process);
            self.messages.push((from.clone(), to.0, to.1, ProcessMessage::Mail(mail)));
        }
    }

    fn held(&self) -> Vec<u32> {
        let held = self.group.process_states();
        let held = held
            .filter(|(_, _, state)| matches!(state, ProcessState::Waiting | ProcessState::Member));
        held.map(|(process, ..)| process).collect()
    }

    /// The root starts with the processes that are here.
    fn form(&mut self) {
        if self.group.configuration().is_some() {
            return;
        }
        self.group.begin_decision();
        let Some(configuration) = self.group.make_configuration(&self.held(), Bytes::new()) else {
            return;
        };
        let origin = StateSource::From { givers: 1, layout: Bytes::new() };
        let out = self.group.form(configuration.clone(), origin, 0);
        self.spread(out.expect("no process was lost since"));
        let (root, generation) = (self.root(), configuration.generation);
        self.give(&root, 0, &configuration);
        let process = self.processes.get_mut(&0).expect("it is there");
        process.local.enter(Arc::new(configuration), 0);
        process.activity = Activity::Entering { generation, givers: 1, point: 0 };
    }

    fn propose(&mut self, chosen: u32) {
        let held = self.held();
        let some = held.iter().filter(|process| **process == 0 || chosen >> **process & 1 == 1);
        let some: Vec<u32> = some.copied().collect();
        let action = match chosen & 1 {
            0 => CollectiveAction::Save,
            _ if !self.group.is_settled() => return,
            _ => match self.group.make_configuration(&some, Bytes::new()) {
                Some(configuration) => CollectiveAction::Change(configuration),
                None => return,
            },
        };
        if let Some(out) = self.group.propose(action) {
            self.changes += 1;
            self.saved.clear();
            self.spread(out);
        }
    }

    /// A node's process ends, and its site restarts it.
    fn lose(&mut self, number: u32) {
        let process = self.processes.get_mut(&number).expect("it is there");
        let lost = process.peer.clone();
        let incarnation = lost.incarnation.0 + 1;
        *process = TestProcess {
            peer: peer(number, incarnation),
            local: LocalProcess::default(),
            activity: Activity::Waiting,
        };
        let out = self.group.lost(|peer| *peer == lost);
        self.spread(out);
        self.report_presence(number);
    }

    /// Breaks the link between two nodes, and may lose messages on their way. Both ends detect it:
    /// the root by itself, and others report it to the root.
    fn break_link(&mut self, one: u32, other: u32, lost: u32) {
        let ends = [one, other].map(|number| self.processes[&number].peer.clone());
        let mut at = 0;
        self.messages.retain(|(from, to, ..)| {
            at += 1;
            let over = from != to && ends.contains(from) && ends.contains(to);
            !over || lost >> (at % 8) & 1 == 0
        });
        for (number, far) in [(one, &ends[1]), (other, &ends[0])] {
            let (node, incarnation) = (far.node.clone(), Some(far.incarnation));
            if number == 0 {
                let out = self.group.link_broke(&self.root(), (&node, incarnation));
                self.spread(out);
            } else {
                self.send_to_root(number, ProcessMessage::Broken { node, incarnation });
            }
        }
    }

    fn text(&self) -> String {
        let seats = self.processes.iter().map(|(number, TestProcess { local, activity, .. })| {
            format!("{number} {activity:?}: {local:?}")
        });
        format!("{:?}\n{}", self.group, seats.collect::<Vec<_>>().join("\n"))
    }

    /// Runs all without disturbance until nothing changes any more.
    fn settle(&mut self) {
        self.settle_without(PROCESSES);
    }

    /// As [`settle`](Self::settle), and without the process of this number.
    fn settle_without(&mut self, absent: u32) {
        for _ in 0..10 * self.last {
            while !self.messages.is_empty() {
                self.deliver(0);
            }
            for number in (0..PROCESSES).filter(|number| *number != absent) {
                self.tick(number);
                // As each process does that waits for messages or has done its last step.
                self.report_presence(number);
            }
        }
    }
}

/// A node is lost after the root has chosen the members, and before it recruits them.
#[test]
fn members_lost_since_they_were_chosen_prevent_a_configuration() {
    let world = || {
        let mut world = GroupWorld::new();
        while !world.messages.is_empty() {
            world.deliver(0);
        }
        world
    };
    let origin = || StateSource::From { givers: 1, layout: Bytes::new() };
    let mut lost = world();
    let configuration =
        lost.group.make_configuration(&[0, 1, 2], Bytes::new()).expect("all are there");
    lost.group.lost(|peer| peer.node == "n2".into());
    assert_eq!(lost.group.form(configuration.clone(), origin(), 0), None);
    assert_eq!(lost.group.configuration(), None);
    // Another incarnation is another process.
    lost.group.handle_here(2, &peer(2, 2), 0);
    assert_eq!(lost.group.form(configuration, origin(), 0), None);

    let mut settled = world();
    settled.form();
    settled.settle();
    assert!(settled.group.is_settled());
    let next = settled.group.make_configuration(&[0, 1, 3], Bytes::new()).expect("all are there");
    settled.lose(4);
    settled.settle();
    assert!(settled.group.is_settled());
    let next = super::message::Configuration { generation: next.generation + 9, ..next };
    let mut gone = next.clone();
    gone.members[2].peer = peer(3, 7);
    assert_eq!(settled.group.propose(CollectiveAction::Change(gone)), None);
    assert!(settled.group.is_settled(), "nothing is proposed");
    assert!(settled.group.propose(CollectiveAction::Change(next)).is_some());
}

/// While an action is proposed, another one is refused, and its proposer learns that. A refused
/// configuration that counts as proposed would leave new processes without work.
#[test]
fn a_second_proposal_is_refused_until_the_first_has_ended() {
    let mut world = GroupWorld::new();
    world.settle();
    world.form();
    world.settle();
    let next = world.group.make_configuration(&[0, 1, 3], Bytes::new()).expect("all are there");
    let decision = world.group.request_decision();
    assert!(world.group.has_proposal(), "without a measured pace, the root decides at once");
    assert_eq!(world.group.propose(CollectiveAction::Change(next)), None);
    world.choice = Some(0);
    world.spread(decision);
    world.settle();
    world.last += 10;
    world.settle();
    assert!(!world.group.has_proposal(), "the decision was made");
    let next = world.group.make_configuration(&[0, 1, 3], Bytes::new()).expect("all are there");
    assert!(world.group.propose(CollectiveAction::Change(next)).is_some());
}

/// A report of a broken link may arrive after the node's next incarnation started, which it does
/// not concern.
#[test]
fn a_link_of_an_earlier_incarnation_ends_no_configuration() {
    let mut world = GroupWorld::new();
    world.lose(2);
    while !world.messages.is_empty() {
        world.deliver(0);
    }
    world.form();
    world.settle();
    assert_eq!(
        world.group.configuration().map(super::message::Configuration::size),
        Some(PROCESSES)
    );
    let broke = |world: &mut GroupWorld, one: &Peer, incarnation: Option<u64>| {
        let incarnation = incarnation.map(Incarnation);
        let out = world.group.link_broke(one, (&peer(2, 1).node, incarnation));
        let ends = !out.is_empty();
        world.spread(out);
        ends
    };
    assert!(!broke(&mut world, &peer(1, 1), Some(1)));
    assert!(!broke(&mut world, &peer(0, 1), Some(1)));
    assert!(!broke(&mut world, &peer(1, 0), Some(2)), "nor of the reporting node");
    assert!(broke(&mut world, &peer(1, 1), Some(2)));
    world.settle();
    world.last += 10;
    world.propose(u32::MAX);
    world.settle();
    assert_eq!(
        world.group.configuration().map(super::message::Configuration::size),
        Some(PROCESSES)
    );
    // A report without an incarnation concerns all.
    assert!(broke(&mut world, &peer(1, 1), None));
}

/// The root decides at the end of the step in which a process came, and changes the configuration
/// there. Where steps are short no process waits for its decision.
#[test]
fn processes_that_come_during_a_long_step_take_part_at_its_end() {
    for (step_s, waits) in [(60.0, true), (0.1, false)] {
        let mut world = GroupWorld::new();
        let late = PROCESSES - 1;
        world.messages.retain(|(from, ..)| *from != peer(late, 1));
        while !world.messages.is_empty() {
            world.deliver(0);
        }
        world.form();
        world.settle_without(late);
        let generation = world.group.configuration().expect("settled").generation;
        let pace = super::message::StepRate { step_s, foreign: None };
        world.group.set_step_rate(0, generation, pace);
        let at = world.last;
        world.last += 1;
        world.report_presence(late);
        while !world.messages.is_empty() {
            world.deliver(0);
        }
        world.choice = Some(u32::MAX);
        world.settle();
        let size = world.group.configuration().map(super::message::Configuration::size);
        assert_eq!(size, Some(if waits { PROCESSES } else { late }));
        assert_eq!(world.executed_at.values().copied().max(), waits.then_some(at + 1));
        assert!(world.group.is_settled());
    }
}

/// Reports beyond the bounds are dropped, with one notice. Bytes count as well.
#[test]
fn reports_beyond_the_bounds_are_dropped_with_one_notice() {
    use super::group::ProcessReport;
    let mut group = ProcessGroup::new(peer(0, 1));
    let counts = |group: &mut ProcessGroup| {
        let reports = group.take_reports();
        let dropped = reports.iter().filter(
            |report| matches!(report, ProcessReport::Say(text) if text.contains("beyond is lost")),
        );
        (reports.len(), dropped.count())
    };
    (0..20_000).for_each(|n| group.report(ProcessReport::Say(format!("line {n}"))));
    assert_eq!(counts(&mut group), (10_001, 1));
    // All share one allocation.
    let long = Bytes::from(vec![0; 1 << 28]);
    (0..12).for_each(|_| group.report(ProcessReport::Artifact("map".to_owned(), long.clone())));
    assert_eq!(counts(&mut group), (8, 1));
    group.report(ProcessReport::Say("there is room again".to_owned()));
    assert_eq!(counts(&mut group), (1, 0));
}

/// A node's failure may be due to a process that takes part, or did until the link broke, but not
/// to a waiting process.
#[test]
fn others_depend_on_a_process_while_it_takes_part() {
    let mut world = GroupWorld::new();
    while !world.messages.is_empty() {
        world.deliver(0);
    }
    let counts = |world: &GroupWorld| [1, 2].map(|node| world.group.counts_on(&peer(node, 1)));
    assert_eq!(counts(&world), [false, false]);
    let configuration =
        world.group.make_configuration(&[0, 1], Bytes::new()).expect("all are there");
    let origin = StateSource::From { givers: 1, layout: Bytes::new() };
    world.group.form(configuration, origin, 0).expect("no process was lost");
    assert_eq!(counts(&world), [true, false]);
    assert!(!world.group.counts_on(&peer(1, 2)), "another incarnation did nothing");
    world.group.link_broke(&peer(0, 1), (&peer(1, 1).node, Some(Incarnation(1))));
    assert_eq!(counts(&world), [true, false]);
    world.group.handle_here(1, &peer(1, 1), 0);
    assert_eq!(counts(&world), [false, false]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Around an agreement, the root is in the next configuration and others are in the previous
    /// one. Some have sent their state. If any link breaks then with all its messages, no process
    /// blocks.
    #[test]
    fn a_link_that_breaks_during_a_change_blocks_no_process(
        (first, second) in (any::<u32>(), any::<u32>()),
        steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..90),
        (one, other) in (0..PROCESSES, 1..PROCESSES),
    ) {
        let mut world = GroupWorld::new();
        for chosen in [first, second] {
            world.settle();
            world.last += 10;
            world.propose(chosen | 1);
        }
        for (delivers, choice) in steps {
            if delivers && !world.messages.is_empty() {
                let at = choice as usize % world.messages.len();
                world.deliver(at);
            } else {
                world.tick(choice % PROCESSES);
            }
        }
        world.break_link(one, (one + other) % PROCESSES, u32::MAX);
        world.settle();
        world.last += 10;
        world.settle();
        prop_assert!(world.group.is_settled(), "{}", world.text());
        for member in &world.group.configuration().expect("settled").members {
            let activity = &world.processes[&member.process].activity;
            let ended = matches!(activity, Activity::At(point) if *point == world.last);
            prop_assert!(ended, "{}", world.text());
        }
    }

    #[test]
    fn all_execute_an_agreed_action_at_one_point_and_end_in_one_configuration(
        script in prop::collection::vec((0..100u32, any::<u32>()), 50..1500),
    ) {
        let mut world = GroupWorld::new();
        for (kind, choice) in script {
            match kind {
                0..=44 if !world.messages.is_empty() => {
                    let at = choice as usize % world.messages.len();
                    world.deliver(at);
                }
                0..=88 => world.tick(choice % PROCESSES),
                89..=92 => world.propose(choice),
                93..=94 => {
                    let out = world.group.request_decision();
                    world.spread(out);
                }
                // No link duplicates messages; this tests that duplicates do no harm.
                95..=96 if !world.messages.is_empty() => {
                    let again = world.messages[choice as usize % world.messages.len()].clone();
                    world.messages.push(again);
                }
                95..=96 => {}
                97 => {
                    let (one, other) = (choice % PROCESSES, choice / PROCESSES % (PROCESSES - 1));
                    world.break_link(one, (one + 1 + other) % PROCESSES, choice >> 8);
                }
                98 => world.lose(1 + choice % (PROCESSES - 1)),
                _ => {
                    let node = peer(choice / PROCESSES % PROCESSES, 1).node;
                    let word = ProcessMessage::Broken { node, incarnation: None };
                    world.send_to_root(1 + choice % (PROCESSES - 1), word);
                }
            }
        }
        world.settle();
        // An action proposed at the end is executed beyond it.
        world.last += 10;
        world.settle();
        prop_assert!(world.group.is_settled(), "{}", world.text());
        let configuration = world.group.configuration().expect("settled").clone();
        for member in &configuration.members {
            let process = &world.processes[&member.process];
            prop_assert_eq!(process.local.generation(), configuration.generation);
            let ended = matches!(process.activity, Activity::At(point) if point == world.last);
            prop_assert!(ended, "all reach the last point");
        }
        // Remaining processes wait, and take part when asked.
        world.last += 10;
        world.propose(u32::MAX);
        world.settle();
        let size = world.group.configuration().map(super::message::Configuration::size);
        prop_assert!(world.group.is_settled(), "{}", world.text());
        prop_assert_eq!(size, Some(PROCESSES));
        prop_assert!(world.executed >= configuration.size(), "the last change was executed by all");
    }
}
