//! Groups and seats together, over a network that keeps no order and nodes that are lost: whoever does what was agreed does it at
//! one point, and in the end all compute in one configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::comm::PIECE;
use super::group::{Group, Out, Stand};
use super::message::{Deed, Mail, Origin, Recruit, Word};
use super::seat::{AtPoint, Order, Seat};
use crate::id::{Incarnation, Peer};

/// Processes, one a node; the root's is 0.
const PROCESSES: u32 = 5;
/// Nobody goes further, at first.
const LAST: u64 = 60;

#[derive(Debug)]
enum Doing {
    Stub,
    Entering { generation: u32, givers: u32, point: u64 },
    At(u64),
}

struct Process {
    peer: Peer,
    seat: Seat,
    doing: Doing,
}

struct World {
    group: Group,
    processes: BTreeMap<u32, Process>,
    /// From whom, to whose process, and what.
    wires: Vec<(Peer, Peer, u32, Word)>,
    /// At which point each deed of a configuration was done.
    done: BTreeMap<(u32, u32, String), u64>,
    /// How many deeds were done.
    deeds: u32,
    changes: u32,
    /// Who has given its piece of what is saved.
    saved: BTreeSet<u32>,
    last: u64,
}

fn peer(node: u32, life: u64) -> Peer {
    Peer { node: format!("n{node}").into(), incarnation: Incarnation(life), cluster: "ams".into() }
}

impl World {
    fn new() -> Self {
        let mut group = Group::new(peer(0, 1));
        (1..PROCESSES).for_each(|process| group.call(process));
        let processes = (0..PROCESSES).map(|process| {
            let (peer, seat) = (peer(process, 1), Seat::default());
            (process, Process { peer, seat, doing: Doing::Stub })
        });
        let (processes, wires) = (processes.collect(), Vec::new());
        let done = BTreeMap::new();
        let mut world = Self {
            group,
            processes,
            wires,
            done,
            deeds: 0,
            changes: 0,
            saved: BTreeSet::new(),
            last: LAST,
        };
        (1..PROCESSES).for_each(|process| world.say_here(process));
        world
    }

    fn root(&self) -> Peer {
        self.processes[&0].peer.clone()
    }

    fn tell_root(&mut self, process: u32, word: Word) {
        let (from, root) = (self.processes[&process].peer.clone(), self.root());
        self.wires.push((from, root, 0, word));
    }

    fn say_here(&mut self, process: u32) {
        let generation = self.processes[&process].seat.generation();
        if process > 0 {
            self.tell_root(process, Word::Here { process, generation });
        }
    }

    fn spread(&mut self, out: Vec<Out>) {
        let root = self.root();
        self.wires
            .extend(out.into_iter().map(|(to, process, word)| (root.clone(), to, process, word)));
    }

    fn deliver(&mut self, at: usize) {
        let (from, to, process, word) = self.wires.swap_remove(at);
        let lives = |peer: &Peer| self.processes.values().any(|process| process.peer == *peer);
        if !lives(&from) || !lives(&to) {
            return;
        }
        let out = match word {
            Word::Here { process, generation } => self.group.here(process, &from, generation),
            Word::Reach { process, change, point } => self.group.reach(process, change, point),
            Word::Whole { process, generation } => {
                self.group.is_whole(process, generation);
                Vec::new()
            }
            Word::Broken { node, incarnation } => {
                self.group.link_broke(&from, (&node, incarnation))
            }
            word => {
                let Some(to) = self.processes.get_mut(&process).filter(|p| p.peer == to) else {
                    return;
                };
                match word {
                    Word::Recruit(recruit) => to.seat.recruit(recruit),
                    Word::Agreed { change, point } => to.seat.agreed(change, point),
                    Word::Apart { generation } => to.seat.apart(generation),
                    Word::Mail(mail) => to.seat.mail(mail),
                    Word::Propose { generation, change, deed } => {
                        if let Some(point) = to.seat.propose(generation, change, deed) {
                            self.tell_root(process, Word::Reach { process, change, point });
                        }
                    }
                    _ => {}
                }
                Vec::new()
            }
        };
        self.spread(out);
    }

    /// A process does the next thing that its thread would.
    fn tick(&mut self, number: u32) {
        let process = self.processes.get_mut(&number).expect("it is there");
        if process.seat.is_torn() {
            process.seat.rise();
            process.doing = Doing::Stub;
            return self.say_here(number);
        }
        match process.doing {
            Doing::Stub if number == 0 => self.form(),
            Doing::Stub => {
                if let Some(Order::Recruit(Recruit { roster, origin, point })) =
                    process.seat.order()
                {
                    let Origin::From { givers, .. } = origin else { return };
                    let generation = roster.generation;
                    process.seat.enter(Arc::new(roster), point);
                    process.doing = Doing::Entering { generation, givers, point };
                }
            }
            Doing::Entering { generation, givers, point } => {
                let mailbox = process.seat.mailbox();
                if (0..givers).all(|from| mailbox.has(generation, from, PIECE, 1)) {
                    process.doing = Doing::At(point);
                    self.tell_root(number, Word::Whole { process: number, generation });
                }
            }
            Doing::At(point) => match process.seat.arrive(point) {
                AtPoint::Go if point < self.last => process.doing = Doing::At(point + 1),
                AtPoint::Go | AtPoint::Hold => {}
                AtPoint::Torn => unreachable!("looked at above"),
                AtPoint::Do(deed) => self.does(number, point, deed),
            },
        }
    }

    fn does(&mut self, number: u32, point: u64, deed: Deed) {
        let process = self.processes.get_mut(&number).expect("it is there");
        let generation = process.seat.generation();
        let old = process.seat.roster().cloned().expect("it takes part");
        let what = format!("{deed:?}");
        let changes = if let Deed::Save = deed { self.changes } else { 0 };
        let known = *self.done.entry((generation, changes, what)).or_insert(point);
        assert_eq!(known, point, "process {number} does it at another point");
        self.deeds += 1;
        let Deed::Change(next) = deed else {
            // The root has them all before it goes on.
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
                process.seat.enter(Arc::new(next.clone()), point);
                process.doing =
                    Doing::Entering { generation: next.generation, givers: old.size(), point };
            }
            None => {
                process.seat.rise();
                process.doing = Doing::Stub;
            }
        }
        self.give(&from, rank, &next);
    }

    fn give(&mut self, from: &Peer, rank: u32, next: &super::message::Roster) {
        for member in &next.members {
            let (generation, body) = (next.generation, Bytes::new());
            let mail = Mail { generation, from: rank, tag: PIECE, number: 0, body };
            let to = (member.peer.clone(), member.process);
            self.wires.push((from.clone(), to.0, to.1, Word::Mail(mail)));
        }
    }

    fn held(&self) -> Vec<u32> {
        let held = self.group.stands();
        let held = held.filter(|(_, _, stand)| matches!(stand, Stand::Held | Stand::Seated));
        held.map(|(process, ..)| process).collect()
    }

    /// The root begins with those that are there.
    fn form(&mut self) {
        if self.group.roster().is_some() {
            return;
        }
        let Some(roster) = self.group.roster_of(&self.held(), Bytes::new()) else { return };
        let origin = Origin::From { givers: 1, layout: Bytes::new() };
        let out = self.group.form(roster.clone(), origin, 0);
        self.spread(out.expect("nobody was lost since"));
        let (root, generation) = (self.root(), roster.generation);
        self.give(&root, 0, &roster);
        let process = self.processes.get_mut(&0).expect("it is there");
        process.seat.enter(Arc::new(roster), 0);
        process.doing = Doing::Entering { generation, givers: 1, point: 0 };
    }

    fn propose(&mut self, chosen: u32) {
        let held = self.held();
        let some = held.iter().filter(|process| **process == 0 || chosen >> **process & 1 == 1);
        let some: Vec<u32> = some.copied().collect();
        let deed = match chosen & 1 {
            0 => Deed::Save,
            _ if !self.group.is_settled() => return,
            _ => match self.group.roster_of(&some, Bytes::new()) {
                Some(roster) => Deed::Change(roster),
                None => return,
            },
        };
        let out = self.group.propose(deed);
        if !out.is_empty() {
            self.changes += 1;
            self.saved.clear();
        }
        self.spread(out);
    }

    /// A node's process ends, and its site starts it anew.
    fn lose(&mut self, number: u32) {
        let process = self.processes.get_mut(&number).expect("it is there");
        let lost = process.peer.clone();
        let life = lost.incarnation.0 + 1;
        *process = Process { peer: peer(number, life), seat: Seat::default(), doing: Doing::Stub };
        let out = self.group.lost(|peer| *peer == lost);
        self.spread(out);
        self.say_here(number);
    }

    /// The link between two nodes breaks: what is on its way between them may be lost. Both ends see it; the root by itself, and of
    /// others it hears, whatever they do at the moment.
    fn break_link(&mut self, one: u32, other: u32, lost: u32) {
        let ends = [one, other].map(|number| self.processes[&number].peer.clone());
        let mut at = 0;
        self.wires.retain(|(from, to, ..)| {
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
                self.tell_root(number, Word::Broken { node, incarnation });
            }
        }
    }

    fn told(&self) -> String {
        let seats = self
            .processes
            .iter()
            .map(|(number, Process { seat, doing, .. })| format!("{number} {doing:?}: {seat:?}"));
        format!("{:?}\n{}", self.group, seats.collect::<Vec<_>>().join("\n"))
    }

    /// Lets all go on without disturbance until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..10 * self.last {
            while !self.wires.is_empty() {
                self.deliver(0);
            }
            for number in 0..PROCESSES {
                self.tick(number);
                // As each does that waits for mail, or has done its last step.
                self.say_here(number);
            }
        }
    }
}

/// A node is lost after the root has chosen who is to take part, and before it calls them.
#[test]
fn nobody_is_counted_on_who_was_lost_since_it_was_chosen() {
    let world = || {
        let mut world = World::new();
        while !world.wires.is_empty() {
            world.deliver(0);
        }
        world
    };
    let origin = || Origin::From { givers: 1, layout: Bytes::new() };
    let mut lost = world();
    let roster = lost.group.roster_of(&[0, 1, 2], Bytes::new()).expect("all are there");
    lost.group.lost(|peer| peer.node == "n2".into());
    assert_eq!(lost.group.form(roster.clone(), origin(), 0), None);
    assert_eq!(lost.group.roster(), None);
    // In another life it is another.
    lost.group.here(2, &peer(2, 2), 0);
    assert_eq!(lost.group.form(roster, origin(), 0), None);

    let mut settled = world();
    settled.form();
    settled.settle();
    assert!(settled.group.is_settled());
    let next = settled.group.roster_of(&[0, 1, 3], Bytes::new()).expect("all are there");
    settled.lose(4);
    settled.settle();
    assert!(settled.group.is_settled());
    let next = super::message::Roster { generation: next.generation + 9, ..next };
    let mut gone = next.clone();
    gone.members[2].peer = peer(3, 7);
    assert!(settled.group.propose(Deed::Change(gone)).is_empty());
    assert!(settled.group.is_settled(), "nothing is proposed");
    assert!(!settled.group.propose(Deed::Change(next)).is_empty());
}

/// The word of a broken link may be later than the node's next life, which has no part in that.
#[test]
fn a_link_of_a_former_life_tears_nothing() {
    let mut world = World::new();
    world.lose(2);
    while !world.wires.is_empty() {
        world.deliver(0);
    }
    world.form();
    world.settle();
    assert_eq!(world.group.roster().map(super::message::Roster::size), Some(PROCESSES));
    let broke = |world: &mut World, one: &Peer, life: Option<u64>| {
        let life = life.map(Incarnation);
        let out = world.group.link_broke(one, (&peer(2, 1).node, life));
        let tears = !out.is_empty();
        world.spread(out);
        tears
    };
    assert!(!broke(&mut world, &peer(1, 1), Some(1)));
    assert!(!broke(&mut world, &peer(0, 1), Some(1)));
    assert!(!broke(&mut world, &peer(1, 0), Some(2)), "nor of whom says so");
    assert!(broke(&mut world, &peer(1, 1), Some(2)));
    world.settle();
    world.last += 10;
    world.propose(u32::MAX);
    world.settle();
    assert_eq!(world.group.roster().map(super::message::Roster::size), Some(PROCESSES));
    // Of one who does not say which life it was any counts.
    assert!(broke(&mut world, &peer(1, 1), None));
}

/// More is reported than is kept: that is said, once, and bytes count as well.
#[test]
fn reports_beyond_what_is_kept_are_dropped_and_that_is_told() {
    use super::group::Report;
    let mut group = Group::new(peer(0, 1));
    let told = |group: &mut Group| {
        let reports = group.take_reports();
        let told = reports.iter().filter(
            |report| matches!(report, Report::Say(text) if text.contains("what is beyond is lost")),
        );
        (reports.len(), told.count())
    };
    (0..20_000).for_each(|n| group.report(Report::Say(format!("line {n}"))));
    assert_eq!(told(&mut group), (10_001, 1));
    // All of one allocation.
    let long = Bytes::from(vec![0; 1 << 28]);
    (0..12).for_each(|_| group.report(Report::Artifact("map".to_owned(), long.clone())));
    assert_eq!(told(&mut group), (8, 1));
    group.report(Report::Say("there is room again".to_owned()));
    assert_eq!(told(&mut group), (1, 0));
}

/// A node may have died of a process that takes part, or did until the link to it broke; not of a stub.
#[test]
fn a_process_is_counted_on_while_it_takes_part() {
    let mut world = World::new();
    while !world.wires.is_empty() {
        world.deliver(0);
    }
    let counts = |world: &World| [1, 2].map(|node| world.group.counts_on(&peer(node, 1)));
    assert_eq!(counts(&world), [false, false]);
    let roster = world.group.roster_of(&[0, 1], Bytes::new()).expect("all are there");
    let origin = Origin::From { givers: 1, layout: Bytes::new() };
    world.group.form(roster, origin, 0).expect("nobody was lost");
    assert_eq!(counts(&world), [true, false]);
    assert!(!world.group.counts_on(&peer(1, 2)), "another life did nothing");
    world.group.link_broke(&peer(0, 1), (&peer(1, 1).node, Some(Incarnation(1))));
    assert_eq!(counts(&world), [true, false]);
    world.group.here(1, &peer(1, 1), 0);
    assert_eq!(counts(&world), [false, false]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// In the moments around an agreement the root is in the next configuration and others are in the one before, and some have
    /// given what they had: whatever link breaks then, and with it all that was on its way, nobody waits for ever.
    #[test]
    fn a_link_that_breaks_during_a_change_holds_nobody_up(
        (first, second) in (any::<u32>(), any::<u32>()),
        steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..90),
        (one, other) in (0..PROCESSES, 1..PROCESSES),
    ) {
        let mut world = World::new();
        for chosen in [first, second] {
            world.settle();
            world.last += 10;
            world.propose(chosen | 1);
        }
        for (delivers, which) in steps {
            if delivers && !world.wires.is_empty() {
                let at = which as usize % world.wires.len();
                world.deliver(at);
            } else {
                world.tick(which % PROCESSES);
            }
        }
        world.break_link(one, (one + other) % PROCESSES, u32::MAX);
        world.settle();
        world.last += 10;
        world.settle();
        prop_assert!(world.group.is_settled(), "{}", world.told());
        for member in &world.group.roster().expect("settled").members {
            let doing = &world.processes[&member.process].doing;
            prop_assert!(matches!(doing, Doing::At(point) if *point == world.last), "{}", world.told());
        }
    }

    #[test]
    fn all_do_what_was_agreed_at_one_point_and_end_in_one_configuration(
        script in prop::collection::vec((0..100u32, any::<u32>()), 50..1500),
    ) {
        let mut world = World::new();
        for (what, which) in script {
            match what {
                0..=44 if !world.wires.is_empty() => {
                    let at = which as usize % world.wires.len();
                    world.deliver(at);
                }
                0..=88 => world.tick(which % PROCESSES),
                89..=94 => world.propose(which),
                // No link says anything twice; what would be if one did.
                95..=96 if !world.wires.is_empty() => {
                    let again = world.wires[which as usize % world.wires.len()].clone();
                    world.wires.push(again);
                }
                95..=96 => {}
                97 => {
                    let (one, other) = (which % PROCESSES, which / PROCESSES % (PROCESSES - 1));
                    world.break_link(one, (one + 1 + other) % PROCESSES, which >> 8);
                }
                98 => world.lose(1 + which % (PROCESSES - 1)),
                _ => {
                    let node = peer(which / PROCESSES % PROCESSES, 1).node;
                    let word = Word::Broken { node, incarnation: None };
                    world.tell_root(1 + which % (PROCESSES - 1), word);
                }
            }
        }
        world.settle();
        // What was proposed at the end is done beyond it.
        world.last += 10;
        world.settle();
        prop_assert!(world.group.is_settled(), "{}", world.told());
        let roster = world.group.roster().expect("settled").clone();
        for member in &roster.members {
            let process = &world.processes[&member.process];
            prop_assert_eq!(process.seat.generation(), roster.generation);
            prop_assert!(matches!(process.doing, Doing::At(point) if point == world.last), "all come to the end");
        }
        // Whoever is left over waits, and takes part when asked.
        world.last += 10;
        world.propose(u32::MAX);
        world.settle();
        let size = world.group.roster().map(super::message::Roster::size);
        prop_assert!(world.group.is_settled(), "{}", world.told());
        prop_assert_eq!(size, Some(PROCESSES));
        prop_assert!(world.deeds >= roster.size(), "the last change was done by all");
    }
}
