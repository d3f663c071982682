//! Two state machines over a simulated network, under all orders of hellos, welcomes, closes,
//! timers and faults that proptest finds.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Packet {
    Hello { incarnation: Incarnation, dial: u64 },
    Welcome { incarnation: Incarnation, dials: u64 },
    Refuse(RefuseReason),
    Data(u32),
    Close,
}

/// A connection between the two sides, with a queue of packets towards each.
struct Wire {
    dialler: usize,
    dial: u64,
    towards: [VecDeque<Packet>; 2],
    /// Whether the side still reads from it.
    open: [bool; 2],
}

struct Side {
    machine: LinkMachine,
    incarnation: Incarnation,
    queue: VecDeque<u32>,
    sent: u32,
    got: Vec<u32>,
    ups: i32,
    timers: Vec<u64>,
    returned: usize,
}

struct ConnectionWorld {
    sides: [Side; 2],
    wires: BTreeMap<u64, Wire>,
    next: u64,
}

impl ConnectionWorld {
    fn new() -> Self {
        let side = |own_dial_stays, seed| Side {
            machine: LinkMachine::new(own_dial_stays, 1000, Duration::from_millis(50), seed),
            incarnation: Incarnation(1),
            queue: VecDeque::new(),
            sent: 0,
            got: Vec::new(),
            ups: 0,
            timers: Vec::new(),
            returned: 0,
        };
        Self { sides: [side(true, 1), side(false, 2)], wires: BTreeMap::new(), next: 0 }
    }

    fn wire(&self, me: usize, conn: Conn) -> u64 {
        match conn {
            Conn::Accepted(id) => id,
            Conn::Dialled(dial) => {
                *self.wires.iter().find(|(_, w)| w.dialler == me && w.dial == dial).unwrap().0
            }
        }
    }

    fn conn(&self, me: usize, id: u64) -> Conn {
        let wire = &self.wires[&id];
        if wire.dialler == me { Conn::Dialled(wire.dial) } else { Conn::Accepted(id) }
    }

    /// Closes a connection at one side. Its data in transit is lost, because a QUIC close overtakes
    /// data. A hello or welcome may already have arrived and wait for processing.
    fn close(&mut self, me: usize, id: u64) {
        let wire = self.wires.get_mut(&id).unwrap();
        if wire.open[me] {
            wire.open[me] = false;
            wire.towards[1 - me].retain(|p| !matches!(p, Packet::Data(_)));
            wire.towards[1 - me].push_back(Packet::Close);
        }
    }

    fn feed(&mut self, me: usize, event: ConnectionEvent) {
        for action in self.sides[me].machine.handle(event) {
            let side = &mut self.sides[me];
            match action {
                ConnectionAction::Dial(dial) => {
                    let incarnation = side.incarnation;
                    let mut towards = [VecDeque::new(), VecDeque::new()];
                    towards[1 - me].push_back(Packet::Hello { incarnation, dial });
                    let wire = Wire { dialler: me, dial, towards, open: [true; 2] };
                    self.wires.insert(self.next, wire);
                    self.next += 1;
                }
                ConnectionAction::Welcome { conn, dials } => {
                    let incarnation = side.incarnation;
                    let id = self.wire(me, conn);
                    let welcome = Packet::Welcome { incarnation, dials };
                    self.wires.get_mut(&id).unwrap().towards[1 - me].push_back(welcome);
                }
                ConnectionAction::Refuse { conn, reason } => {
                    let id = self.wire(me, conn);
                    let packet = Packet::Refuse(reason);
                    self.wires.get_mut(&id).unwrap().towards[1 - me].push_back(packet);
                    self.close(me, id);
                }
                ConnectionAction::Abandon(conn) => {
                    let id = self.wire(me, conn);
                    self.close(me, id);
                }
                ConnectionAction::Retry { after, serial } => {
                    assert!(after <= BACKOFF_MAX);
                    side.timers.push(serial);
                }
                ConnectionAction::Up { .. } => {
                    side.ups += 1;
                    assert_eq!(side.ups, 1, "up reported twice");
                }
                ConnectionAction::Down { .. } => {
                    side.ups -= 1;
                    assert_eq!(side.ups, 0, "down without up");
                }
                ConnectionAction::DropQueue => {
                    side.returned += side.queue.len();
                    side.queue.clear();
                }
            }
        }
    }

    fn queue_frame(&mut self, me: usize) {
        let side = &mut self.sides[me];
        side.queue.push_back(side.sent);
        side.sent += 1;
        self.feed(me, ConnectionEvent::SendRequested);
    }

    fn lost(&mut self, me: usize, id: u64) {
        let conn = self.conn(me, id);
        let pending = !self.sides[me].queue.is_empty();
        if let Conn::Dialled(dial) = conn
            && self.sides[me].machine.phase() == LinkPhase::Dialling(dial)
        {
            self.feed(me, ConnectionEvent::Failed { dial, why: "closed".into(), fatal: false });
        } else {
            self.feed(
                me,
                ConnectionEvent::Lost { conn, why: "closed".into(), orderly: false, pending },
            );
        }
    }

    /// Delivers the first packet of a connection to a side. Returns whether there was one.
    fn deliver(&mut self, me: usize, id: u64) -> bool {
        let wire = self.wires.get_mut(&id).unwrap();
        let Some(packet) = wire.towards[me].pop_front() else { return false };
        if !wire.open[me] {
            return true;
        }
        let (dial, conn) = (wire.dial, self.conn(me, id));
        match packet {
            Packet::Hello { incarnation, dial } => {
                self.feed(me, ConnectionEvent::Hello { conn, incarnation, dial });
            }
            Packet::Welcome { incarnation, dials } => {
                self.feed(me, ConnectionEvent::Welcomed { dial, incarnation, dials });
            }
            Packet::Refuse(reason) => {
                assert_eq!(reason, RefuseReason::Crossed);
                self.wires.get_mut(&id).unwrap().open[me] = false;
                self.feed(
                    me,
                    ConnectionEvent::Failed { dial, why: "refused".into(), fatal: false },
                );
            }
            Packet::Data(n) => {
                assert_eq!(
                    self.sides[me].machine.phase(),
                    LinkPhase::Up(conn),
                    "data outside a link"
                );
                self.sides[me].got.push(n);
            }
            Packet::Close => {
                self.close(me, id);
                self.lost(me, id);
            }
        }
        true
    }

    /// Writes a queued frame to the link, if it is up.
    fn write(&mut self, me: usize) -> bool {
        let LinkPhase::Up(conn) = self.sides[me].machine.phase() else { return false };
        let Some(n) = self.sides[me].queue.pop_front() else { return false };
        let id = self.wire(me, conn);
        self.wires.get_mut(&id).unwrap().towards[1 - me].push_back(Packet::Data(n));
        true
    }

    fn fire_timer(&mut self, me: usize) -> bool {
        let Some(serial) = self.sides[me].timers.pop() else { return false };
        let pending = !self.sides[me].queue.is_empty();
        self.feed(me, ConnectionEvent::Retry { serial, pending });
        true
    }

    /// Breaks a connection; each side detects it at its own time.
    fn fault(&mut self, id: u64) {
        let wire = self.wires.get_mut(&id).unwrap();
        for side in 0..2 {
            wire.towards[side].clear();
            wire.towards[side].push_back(Packet::Close);
        }
    }

    /// Tells a side that the other has moved, although its address works as before.
    fn peer_moved(&mut self, me: usize) {
        let up = match self.sides[me].machine.phase() {
            LinkPhase::Up(conn) => Some(conn),
            _ => None,
        };
        let pending = !self.sides[me].queue.is_empty();
        self.feed(me, ConnectionEvent::Moved { up, incarnation: None, pending });
    }

    fn step(&mut self, choice: u8, which: usize, faults: &mut u32) {
        let me = which % 2;
        match choice {
            0..=99 if !self.wires.is_empty() => {
                let id = (which / 2) as u64 % self.next;
                self.deliver(me, id);
            }
            0..=149 => drop(self.write(me)),
            150..=199 => self.queue_frame(me),
            200..=229 => drop(self.fire_timer(me)),
            _ if *faults > 0 && self.next > 0 => {
                *faults -= 1;
                if which & 0x100 == 0 {
                    self.fault((which / 2) as u64 % self.next);
                } else {
                    self.peer_moved(me);
                }
            }
            _ => {}
        }
    }

    /// Executes all pending steps.
    fn run_until_quiet(&mut self) {
        for _ in 0..10_000 {
            let mut progress = false;
            for id in 0..self.next {
                for me in 0..2 {
                    progress |= self.deliver(me, id);
                }
            }
            for me in 0..2 {
                progress |= self.write(me) | self.fire_timer(me);
            }
            if !progress {
                return;
            }
        }
        panic!("the simulation does not end");
    }
}

fn increasing(frames: &[u32]) -> bool {
    frames.windows(2).all(|pair| pair[0] < pair[1])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// After any crossing exactly one connection stays, both sides agree on it, and no queued frame
    /// is lost, duplicated or reordered.
    #[test]
    fn crossed_dials_end_in_one_link(
        steps in prop::collection::vec((any::<u8>(), any::<u16>()), 0..120)
    ) {
        let mut world = ConnectionWorld::new();
        let mut faults = 0;
        for (choice, which) in steps {
            world.step(choice, usize::from(which), &mut faults);
        }
        world.queue_frame(0);
        world.run_until_quiet();
        let phases = [0, 1].map(|me| world.sides[me].machine.phase());
        let [LinkPhase::Up(a), LinkPhase::Up(b)] = phases else {
            panic!("both must be up: {:?} {:?}", world.sides[0].machine, world.sides[1].machine)
        };
        prop_assert_eq!(world.wire(0, a), world.wire(1, b));
        let open = world.wires.values().filter(|w| w.open[0] || w.open[1]).count();
        prop_assert_eq!(open, 1);
        for me in 0..2 {
            let all: Vec<u32> = (0..world.sides[me].sent).collect();
            prop_assert_eq!(&world.sides[1 - me].got, &all);
        }
    }

    /// With connections that break at any time, frames may be lost, but never duplicated or
    /// reordered. The simulation always ends, and a frame queued afterwards arrives.
    #[test]
    fn broken_connections_are_replaced(
        steps in prop::collection::vec((any::<u8>(), any::<u16>()), 0..200)
    ) {
        let mut world = ConnectionWorld::new();
        let mut faults = 12;
        for (choice, which) in steps {
            world.step(choice, usize::from(which), &mut faults);
        }
        world.run_until_quiet();
        for me in [0, 1] {
            world.queue_frame(me);
            world.run_until_quiet();
            let last = world.sides[me].sent - 1;
            prop_assert_eq!(world.sides[1 - me].got.last(), Some(&last));
        }
        for me in 0..2 {
            prop_assert!(increasing(&world.sides[me].got));
            prop_assert!(world.sides[me].queue.is_empty());
        }
        let open = world.wires.values().filter(|w| w.open[0] || w.open[1]).count();
        prop_assert_eq!(open, 1);
    }
}

fn machine() -> LinkMachine {
    LinkMachine::new(true, 3, Duration::from_millis(50), 7)
}

fn hello(conn: u64, incarnation: u64, dial: u64) -> ConnectionEvent {
    ConnectionEvent::Hello {
        conn: Conn::Accepted(conn),
        incarnation: Incarnation(incarnation),
        dial,
    }
}

#[test]
fn a_later_incarnation_replaces_a_link_and_an_earlier_one_is_refused() {
    let mut machine = machine();
    machine.handle(hello(1, 5, 1));
    assert_eq!(machine.phase(), LinkPhase::Up(Conn::Accepted(1)));
    let refused = machine.handle(hello(2, 4, 9));
    let conn = Conn::Accepted(2);
    assert_eq!(
        refused,
        [ConnectionAction::Refuse { conn, reason: RefuseReason::StaleIncarnation }]
    );
    let actions = machine.handle(hello(3, 6, 1));
    let conn = Conn::Accepted(3);
    let why = "the node has a new incarnation".into();
    assert_eq!(
        actions,
        [
            ConnectionAction::Abandon(Conn::Accepted(1)),
            ConnectionAction::Down { incarnation: Incarnation(5), why },
            ConnectionAction::DropQueue,
            ConnectionAction::Welcome { conn, dials: 0 },
            ConnectionAction::Up { conn, incarnation: Incarnation(6), again: true },
        ]
    );
}

#[test]
fn the_queue_of_a_moved_peer_goes_to_its_later_incarnation() {
    let mut machine = machine();
    machine.handle(hello(1, 5, 1));
    let up = Some(Conn::Accepted(1));
    let peer_moved = |incarnation, up| ConnectionEvent::Moved { up, incarnation, pending: true };
    let down = ConnectionAction::Down {
        incarnation: Incarnation(5),
        why: "the node is now elsewhere".into(),
    };
    let closed = [ConnectionAction::Abandon(Conn::Accepted(1)), down, ConnectionAction::Dial(1)];
    assert_eq!(machine.handle(peer_moved(None, up)), closed);
    let welcomed = ConnectionEvent::Welcomed { dial: 1, incarnation: Incarnation(6), dials: 0 };
    let conn = Conn::Dialled(1);
    let up = ConnectionAction::Up { conn, incarnation: Incarnation(6), again: true };
    assert_eq!(machine.handle(welcomed), [up], "nothing is returned");
    // The report does not concern the link that came up since.
    assert_eq!(machine.handle(peer_moved(None, Some(Conn::Accepted(1)))), []);
    assert_eq!(machine.handle(peer_moved(Some(Incarnation(6)), None)), []);
    let actions = machine.handle(peer_moved(Some(Incarnation(7)), None));
    assert_eq!(
        (&actions[0], &actions[2]),
        (&ConnectionAction::Abandon(conn), &ConnectionAction::Dial(2))
    );
    let refused = machine.handle(hello(9, 6, 9));
    let conn = Conn::Accepted(9);
    assert_eq!(
        refused,
        [ConnectionAction::Refuse { conn, reason: RefuseReason::StaleIncarnation }]
    );
}

#[test]
fn attempts_are_bounded_and_a_fatal_refusal_ends_them_at_once() {
    let failed = |dial, fatal| ConnectionEvent::Failed { dial, why: "x".into(), fatal };
    let mut machine = machine();
    let mut tries = 0;
    let mut actions = machine.handle(ConnectionEvent::SendRequested);
    while let Some(ConnectionAction::Dial(dial)) = actions.pop() {
        tries += 1;
        actions = machine.handle(failed(dial, false));
        if let Some(ConnectionAction::Retry { serial, .. }) = actions.last() {
            actions = machine.handle(ConnectionEvent::Retry { serial: *serial, pending: true });
        }
    }
    assert_eq!(tries, 3);
    assert_eq!(machine.phase(), LinkPhase::Idle);

    assert_eq!(machine.handle(ConnectionEvent::SendRequested), [ConnectionAction::Dial(4)]);
    let down = ConnectionAction::Down { incarnation: Incarnation(0), why: "x".into() };
    assert_eq!(machine.handle(failed(4, true)), [down, ConnectionAction::DropQueue]);
}

#[test]
fn delays_double_up_to_a_bound_and_vary() {
    let mut machine = LinkMachine::new(true, 100, Duration::from_millis(50), 3);
    let mut actions = machine.handle(ConnectionEvent::SendRequested);
    let mut waits = Vec::new();
    for _ in 0..12 {
        let Some(ConnectionAction::Dial(dial)) = actions.pop() else { panic!("{actions:?}") };
        let failed = ConnectionEvent::Failed { dial, why: "".into(), fatal: false };
        let [ConnectionAction::Retry { after, serial }] = machine.handle(failed)[..] else {
            panic!()
        };
        waits.push(after);
        actions = machine.handle(ConnectionEvent::Retry { serial, pending: true });
    }
    for (i, wait) in waits.iter().enumerate() {
        let whole = BACKOFF_MAX.min(Duration::from_millis(50 << i));
        assert!(*wait >= whole / 2 && *wait <= whole, "{i}: {wait:?}");
    }
    assert_ne!(waits[10], waits[11], "no jitter");
}

#[test]
fn after_a_goodbye_no_attempt_is_made_until_a_frame_is_queued() {
    let mut machine = machine();
    machine.handle(hello(1, 5, 1));
    let conn = Conn::Accepted(1);
    let lost = ConnectionEvent::Lost { conn, why: "bye".into(), orderly: true, pending: true };
    let down = ConnectionAction::Down { incarnation: Incarnation(5), why: "bye".into() };
    assert_eq!(machine.handle(lost), [down, ConnectionAction::DropQueue]);
    assert_eq!(machine.handle(ConnectionEvent::SendRequested), [ConnectionAction::Dial(1)]);
}

#[test]
fn a_late_hello_does_not_replace_a_newer_link() {
    let mut machine = machine();
    machine.handle(hello(2, 5, 2));
    let conn = Conn::Accepted(1);
    let refused = [ConnectionAction::Refuse { conn, reason: RefuseReason::Crossed }];
    assert_eq!(machine.handle(hello(1, 5, 1)), refused);
    assert_eq!(machine.phase(), LinkPhase::Up(Conn::Accepted(2)));
    // A new attempt means that the peer lost the link.
    assert_eq!(machine.handle(hello(3, 5, 3))[0], ConnectionAction::Abandon(Conn::Accepted(2)));
    assert_eq!(machine.phase(), LinkPhase::Up(Conn::Accepted(3)));
}
