//! A model of a job's epochs, leases and handover, searched exhaustively.
//!
//! A scheduler, two nodes and a client. A message that was sent stays in the network: it may arrive
//! at any time, several times, in any order, or never. Nodes and the scheduler crash and restart,
//! the scheduler takes a live node for dead, and the coordinator hands its role over. The number of
//! these faults is bounded.
//!
//! Properties: one incarnation acts in each epoch. The epoch of a view never decreases. One node
//! executes a lease. A task and a job have one result. Each state leads to the end of the job if no
//! further fault happens. [`SOURCES`] names the function that each step stands for. Models
//! with one rule left out are found wrong, so the search can find faults.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;

use Step::*;

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    NodeCrashes,
    NodeRestarts,
    SiteReportsLoss,
    NodeIsSuspected,
    SiteRestartsNode,
    EpochIsIssued,
    TakeOverArrives,
    TakeOverIsAnswered,
    TakeOverTimesOut,
    ViewArrives,
    RootStops,
    HandOverArrives,
    SchedulerCrashes,
    SchedulerRestarts,
    NodeRegisters,
    JobResumes,
    LossArrives,
    TaskIsLeased,
    TaskRunsAtOwner,
    LeaseArrives,
    TaskEnds,
    TaskIsReturned,
    ResultArrives,
    ReturnArrives,
    RootEnds,
    EndArrives,
    JobOverArrives,
    JobFails,
}

/// For each step, the file and the function that it stands for.
const SOURCES: &[(Step, &str, &str)] = &[
    (NodeCrashes, "apps/simulator/src/machines.rs", "remove_process"),
    (NodeRestarts, "actors/scheduler/src/core/pool.rs", "registered"),
    (SiteReportsLoss, "actors/scheduler/src/core/jobs.rs", "node_lost"),
    (NodeIsSuspected, "actors/scheduler/src/core/jobs.rs", "member_silent"),
    (SiteRestartsNode, "actors/src/scheduler/act.rs", "replace"),
    (EpochIsIssued, "actors/scheduler/src/core/coordinator_search.rs", "epoch_issued"),
    (EpochIsIssued, "actors/src/store.rs", "new_epoch"),
    (TakeOverArrives, "actors/src/worker/succession.rs", "handle(&mut self, order: TakeOver"),
    (TakeOverIsAnswered, "actors/scheduler/src/core/coordinator_search.rs", "took_over"),
    (TakeOverTimesOut, "actors/scheduler/src/core/coordinator_search.rs", "retry_take_overs"),
    (ViewArrives, "actors/src/worker/mod.rs", "handle(&mut self, message: NewView"),
    (RootStops, "actors/src/coordinator/handover.rs", "move_root"),
    (HandOverArrives, "actors/scheduler/src/core/coordinator_search.rs", "hand_over"),
    (SchedulerCrashes, "tests/src/federation.rs", "kill_head"),
    (SchedulerRestarts, "actors/src/store.rs", "recover"),
    (NodeRegisters, "actors/scheduler/src/core/recover.rs", "register_work"),
    (JobResumes, "actors/scheduler/src/core/recover.rs", "resume"),
    (LossArrives, "runtime/work/src/work/engine/leave.rs", "lost"),
    (TaskIsLeased, "runtime/work/src/work/engine/leased_tasks.rs", "on_steal_request"),
    (TaskRunsAtOwner, "runtime/forkjoin/src/core/thread.rs", "reclaim_or_drop"),
    (LeaseArrives, "runtime/work/src/work/engine/stolen_tasks.rs", "receive_task"),
    (TaskEnds, "runtime/work/src/work/engine/stolen_tasks.rs", "report"),
    (TaskIsReturned, "runtime/work/src/work/engine/leave.rs", "return_stolen"),
    (ResultArrives, "runtime/work/src/work/engine/leased_tasks.rs", "on_result"),
    (ReturnArrives, "runtime/work/src/work/engine/leased_tasks.rs", "on_return"),
    (RootEnds, "actors/src/coordinator/mod.rs", "end"),
    (EndArrives, "actors/src/client.rs", "ended"),
    (JobOverArrives, "actors/scheduler/src/core/jobs.rs", "job_over"),
    (JobFails, "actors/scheduler/src/core/jobs.rs", "fail"),
];

/// Rules that a model may leave out.
#[derive(Clone, Copy)]
struct Rules {
    /// The scheduler persists an epoch before use.
    epochs_persist: bool,
    /// A node refuses orders and views of an older epoch.
    epochs_checked: bool,
    /// An owner accepts a result only under an open lease.
    leases_checked: bool,
    /// A client refuses ends after the first.
    ends_checked: bool,
}

const ALL_RULES: Rules =
    Rules { epochs_persist: true, epochs_checked: true, leases_checked: true, ends_checked: true };

/// Bounds of the model: the search must end.
const EPOCHS_MAX: u8 = 7;
const LEASES_MAX: u8 = 2;

/// A lease: its owner, the owner's incarnation, and a number.
type Lease = (usize, u8, u8);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Message {
    TakeOver { epoch: u8, to: usize, incarnation: u8 },
    Answer { epoch: u8, from: usize, accepted: bool },
    View { epoch: u8, by: usize },
    HandOver { epoch: u8, from: usize },
    MemberLost { epoch: u8, to: usize },
    Task(Lease),
    Output(Lease),
    Return(Lease),
    End { epoch: u8 },
    JobOver { epoch: u8 },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Root {
    #[default]
    Absent,
    Stopped,
    Queued,
    Leased(u8),
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Node {
    incarnation: u8,
    up: bool,
    /// Epoch of its view; 0 outside of the job.
    view: u8,
    /// Coordinator of its view.
    coordinator: usize,
    /// Its root, if it coordinates.
    root: Root,
    /// Whether it knows that the other node is lost.
    alone: bool,
    leases: u8,
    results: u8,
    accepted: BTreeSet<Lease>,
    executes: Option<Lease>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Scheduler {
    epoch: u8,
    coordinator: Option<usize>,
    asked: Option<usize>,
    successor: Option<usize>,
    /// Incarnations of the members.
    members: [Option<u8>; 2],
    /// After a restart: registered nodes with their views.
    registered: Option<[Option<(u8, usize)>; 2]>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; 2],
    scheduler: Option<Scheduler>,
    disk_epoch: u8,
    over: bool,
    network: BTreeSet<Message>,
    client_epoch: u8,
    deliveries: u8,
    /// The incarnation that acted in each epoch.
    acted: BTreeMap<u8, (usize, u8)>,
    faults_left: u8,
    violation: Option<&'static str>,
}

impl State {
    fn start(faults_left: u8) -> Self {
        let node = Node { up: true, view: 1, ..Node::default() };
        let mut nodes = [node.clone(), node];
        nodes[0].root = Root::Queued;
        let scheduler = Scheduler {
            epoch: 1,
            coordinator: Some(0),
            asked: None,
            successor: None,
            members: [Some(0); 2],
            registered: None,
        };
        Self {
            nodes,
            scheduler: Some(scheduler),
            disk_epoch: 1,
            over: false,
            network: BTreeSet::new(),
            client_epoch: 1,
            deliveries: 0,
            acted: BTreeMap::from([(1, (0, 0))]),
            faults_left,
            violation: None,
        }
    }

    /// Removes a member at the scheduler.
    fn lose(&mut self, node: usize) {
        let Some(scheduler) = &mut self.scheduler else { return };
        scheduler.members[node] = None;
        if scheduler.asked == Some(node) {
            scheduler.asked = None;
        }
        match scheduler.coordinator {
            Some(coordinator) if coordinator == node => scheduler.coordinator = None,
            Some(to) => {
                let epoch = scheduler.epoch;
                self.network.insert(Message::MemberLost { epoch, to });
            }
            None => {}
        }
    }

    fn crash(&mut self, node: usize) {
        let Node { incarnation, .. } = self.nodes[node];
        self.nodes[node] = Node { incarnation, ..Node::default() };
    }

    fn deliver_to_client(&mut self, rules: Rules) {
        if self.deliveries == 0 || !rules.ends_checked {
            self.deliveries += 1;
        }
        if self.deliveries > 1 {
            self.violation = Some("the job has two results");
        }
    }

    /// Removes the messages that no process will accept, so that fewer states differ.
    fn prune(&mut self, rules: Rules) {
        let of_epochs = rules.epochs_checked && rules.epochs_persist;
        let least = if of_epochs { self.disk_epoch } else { 0 };
        let (nodes, client_epoch) = (&self.nodes, self.client_epoch);
        let newer =
            |node: &Node, epoch: u8| node.view > 0 && (epoch > node.view || !rules.epochs_checked);
        self.network.retain(|message| match *message {
            Message::TakeOver { epoch, to, incarnation } => {
                nodes[to].incarnation == incarnation && newer(&nodes[to], epoch)
            }
            Message::View { epoch, by } => newer(&nodes[1 - by], epoch),
            Message::MemberLost { epoch, to } => {
                nodes[to].view > 0 && epoch >= nodes[to].view || !rules.epochs_checked
            }
            Message::Answer { epoch, .. }
            | Message::HandOver { epoch, .. }
            | Message::JobOver { epoch } => epoch >= least,
            Message::End { epoch } => epoch >= client_epoch,
            Message::Task((owner, incarnation, number))
            | Message::Output((owner, incarnation, number))
            | Message::Return((owner, incarnation, number)) => {
                let open = nodes[owner].root == Root::Leased(number) || !rules.leases_checked;
                nodes[owner].incarnation == incarnation && open
            }
        });
    }

    fn set_view(&mut self, node: usize, epoch: u8, coordinator: usize) {
        if epoch < self.nodes[node].view {
            self.violation = Some("the epoch of a view decreases");
        }
        (self.nodes[node].view, self.nodes[node].coordinator) = (epoch, coordinator);
    }
}

/// All steps from a state, and whether each is a fault.
fn steps(state: &State, rules: Rules) -> Vec<(Step, bool, State)> {
    let mut out = Vec::new();
    let mut push = |step, fault: bool, change: &dyn Fn(&mut State)| {
        let mut next = state.clone();
        next.faults_left -= u8::from(fault);
        change(&mut next);
        next.prune(rules);
        if next != *state {
            out.push((step, fault, next));
        }
    };
    let may_fail = state.faults_left > 0;
    for n in 0..2 {
        let (node, other) = (&state.nodes[n], 1 - n);
        if !node.up {
            push(NodeRestarts, false, &|s| {
                let incarnation = s.nodes[n].incarnation + 1;
                s.nodes[n] = Node { incarnation, up: true, ..Node::default() };
            });
        }
        if node.up && may_fail && node.view > 0 {
            push(NodeCrashes, true, &|s| s.crash(n));
        }
        if let Some(scheduler) = &state.scheduler {
            let member = scheduler.members[n];
            let gone = member.is_some_and(|of| of != node.incarnation || !node.up);
            if gone {
                push(SiteReportsLoss, false, &|s| s.lose(n));
            } else if member.is_some() && may_fail {
                push(NodeIsSuspected, true, &|s| s.lose(n));
            }
            let stray = member.is_none() && scheduler.registered.is_none();
            if stray && node.up && node.view > 0 {
                push(SiteRestartsNode, false, &|s| s.crash(n));
            }
            if scheduler.registered.is_some() && node.up && node.view > 0 {
                push(NodeRegisters, false, &|s| {
                    let view = (s.nodes[n].view, s.nodes[n].coordinator);
                    let incarnation = s.nodes[n].incarnation;
                    let scheduler = s.scheduler.as_mut().expect("it is there");
                    scheduler.members[n] = Some(incarnation);
                    scheduler.registered.as_mut().expect("it returns")[n] = Some(view);
                });
            }
        }
        let lease = |number| -> Lease { (n, node.incarnation, number) };
        match node.root {
            Root::Queued => {
                push(TaskRunsAtOwner, false, &|s| {
                    s.nodes[n].root = Root::Done;
                });
                if !node.alone && node.leases < LEASES_MAX {
                    push(TaskIsLeased, false, &|s| {
                        s.nodes[n].leases += 1;
                        let number = s.nodes[n].leases;
                        s.nodes[n].root = Root::Leased(number);
                        s.network.insert(Message::Task(lease(number)));
                    });
                }
            }
            Root::Done => push(RootEnds, false, &|s| {
                s.network.insert(Message::End { epoch: s.nodes[n].view });
            }),
            Root::Absent | Root::Stopped | Root::Leased(_) => {}
        }
        if may_fail && matches!(node.root, Root::Queued | Root::Leased(_)) && !node.alone {
            push(RootStops, true, &|s| {
                s.nodes[n].root = Root::Stopped;
                let epoch = s.nodes[n].view;
                s.network.insert(Message::HandOver { epoch, from: n });
            });
        }
        if let Some(lease) = node.executes {
            push(TaskEnds, false, &|s| {
                s.nodes[n].executes = None;
                s.network.insert(Message::Output(lease));
            });
            push(TaskIsReturned, false, &|s| {
                s.nodes[n].executes = None;
                s.network.insert(Message::Return(lease));
            });
        }
        for message in &state.network {
            push_arrival(*message, (n, other), state, rules, &mut push);
        }
    }
    push_scheduler(state, rules, &mut push);
    out
}

type Push<'a> = dyn FnMut(Step, bool, &dyn Fn(&mut State)) + 'a;

/// A message arrives at a node.
fn push_arrival(
    message: Message,
    (n, other): (usize, usize),
    state: &State,
    rules: Rules,
    push: &mut Push<'_>,
) {
    let node = &state.nodes[n];
    if !node.up || node.view == 0 {
        return;
    }
    let newer = |epoch: u8| epoch > node.view || !rules.epochs_checked;
    let coordinates = node.root != Root::Absent;
    let is_owner = |(owner, incarnation, _): Lease| {
        owner == n && incarnation == node.incarnation && coordinates
    };
    match message {
        Message::TakeOver { epoch, to, incarnation }
            if to == n && incarnation == node.incarnation =>
        {
            let accepted = newer(epoch);
            push(TakeOverArrives, false, &|s| {
                s.network.insert(Message::Answer { epoch, from: n, accepted });
                if !accepted {
                    return;
                }
                s.set_view(n, epoch, n);
                let of = &mut s.nodes[n];
                (of.root, of.results) = (Root::Queued, 0);
                let me = (n, of.incarnation);
                s.network.insert(Message::View { epoch, by: n });
                if *s.acted.entry(epoch).or_insert(me) != me {
                    s.violation = Some("two coordinators act in one epoch");
                }
            });
        }
        Message::View { epoch, by } if by == other && newer(epoch) => {
            push(ViewArrives, false, &|s| {
                s.set_view(n, epoch, by);
                s.nodes[n].root = Root::Absent;
            });
        }
        Message::MemberLost { epoch, to } if to == n && epoch == node.view && coordinates => {
            push(LossArrives, false, &|s| {
                s.nodes[n].alone = true;
                if matches!(s.nodes[n].root, Root::Leased(_)) {
                    s.nodes[n].root = Root::Queued;
                }
            });
        }
        // Only the first incarnation of a node is a member of the job.
        Message::Task(lease @ (owner, ..))
            if owner == other
                && node.incarnation == 0
                && node.executes.is_none()
                && !node.accepted.contains(&lease) =>
        {
            push(LeaseArrives, false, &|s| {
                s.nodes[n].executes = Some(lease);
                s.nodes[n].accepted.insert(lease);
            });
        }
        Message::Output(lease)
            if is_owner(lease) && (node.root == Root::Leased(lease.2) || !rules.leases_checked) =>
        {
            push(ResultArrives, false, &|s| {
                s.nodes[n].root = Root::Done;
                s.nodes[n].results = (s.nodes[n].results + 1).min(2);
                if s.nodes[n].results > 1 {
                    s.violation = Some("a task has two results");
                }
            });
        }
        Message::Return(lease) if is_owner(lease) && node.root == Root::Leased(lease.2) => {
            push(ReturnArrives, false, &|s| s.nodes[n].root = Root::Queued);
        }
        _ => {}
    }
}

/// Steps of the scheduler and the client.
fn push_scheduler(state: &State, rules: Rules, push: &mut Push<'_>) {
    for message in &state.network {
        if let Message::End { epoch } = *message
            && epoch >= state.client_epoch
        {
            push(EndArrives, false, &|s| {
                s.client_epoch = epoch;
                s.network.insert(Message::JobOver { epoch });
                s.deliver_to_client(rules);
            });
        }
    }
    let Some(scheduler) = &state.scheduler else {
        return push(SchedulerRestarts, false, &|s| {
            s.scheduler = Some(Scheduler {
                epoch: s.disk_epoch,
                coordinator: None,
                asked: None,
                successor: None,
                members: [None; 2],
                registered: Some([None; 2]),
            });
        });
    };
    if state.faults_left > 0 {
        push(SchedulerCrashes, true, &|s| s.scheduler = None);
    }
    for message in &state.network {
        match *message {
            Message::JobOver { epoch } if epoch == scheduler.epoch => {
                push(JobOverArrives, false, &|s| s.over = true);
            }
            Message::HandOver { epoch, from }
                if epoch == scheduler.epoch && scheduler.coordinator == Some(from) =>
            {
                push(HandOverArrives, false, &|s| {
                    let scheduler = s.scheduler.as_mut().expect("it is there");
                    (scheduler.coordinator, scheduler.successor) = (None, Some(1 - from));
                });
            }
            Message::Answer { epoch, from, accepted }
                if epoch == scheduler.epoch && scheduler.asked == Some(from) =>
            {
                push(TakeOverIsAnswered, false, &|s| {
                    let scheduler = s.scheduler.as_mut().expect("it is there");
                    scheduler.asked = None;
                    if accepted {
                        (scheduler.coordinator, scheduler.successor) = (Some(from), None);
                        if scheduler.members[1 - from].is_none() {
                            s.network.insert(Message::MemberLost { epoch, to: from });
                        }
                    }
                });
            }
            _ => {}
        }
    }
    if scheduler.asked.is_some() && state.faults_left > 0 {
        push(TakeOverTimesOut, true, &|s| {
            s.scheduler.as_mut().expect("it is there").asked = None;
        });
    }
    if let Some(registered) = scheduler.registered {
        let views = registered.iter().flatten();
        let may_come = |n: usize| state.nodes[n].up && state.nodes[n].view > 0;
        match views.max() {
            Some(&(epoch, by)) => push(JobResumes, false, &|s| {
                let scheduler = s.scheduler.as_mut().expect("it is there");
                scheduler.registered = None;
                if !rules.epochs_persist {
                    scheduler.epoch = epoch;
                }
                match scheduler.members[by] {
                    // A takeover was under way: both sides are fenced.
                    _ if epoch < scheduler.epoch => scheduler.successor = Some(by),
                    None => {}
                    Some(_) => {
                        scheduler.coordinator = Some(by);
                        if scheduler.members[1 - by].is_none() {
                            s.network.insert(Message::MemberLost { epoch, to: by });
                        }
                    }
                }
            }),
            None if !may_come(0) && !may_come(1) => push(JobFails, false, &|s| {
                s.over = true;
                s.deliver_to_client(ALL_RULES);
            }),
            None => {}
        }
        return;
    }
    if scheduler.coordinator.is_some() || scheduler.asked.is_some() {
        return;
    }
    let members = (0..2).filter(|n| scheduler.members[*n].is_some());
    let successor = scheduler.successor.filter(|n| scheduler.members[*n].is_some());
    let candidates: Vec<usize> = successor.map_or_else(|| members.collect(), |n| vec![n]);
    if candidates.is_empty() {
        push(JobFails, false, &|s| {
            s.over = true;
            s.deliver_to_client(ALL_RULES);
        });
    }
    for to in candidates.into_iter().filter(|_| scheduler.epoch < EPOCHS_MAX) {
        push(EpochIsIssued, false, &|s| {
            let scheduler = s.scheduler.as_mut().expect("it is there");
            scheduler.epoch += 1;
            // An attempt that fails is followed by one at another node.
            (scheduler.asked, scheduler.successor) = (Some(to), None);
            let (epoch, incarnation) = (scheduler.epoch, scheduler.members[to].expect("a member"));
            s.disk_epoch = epoch;
            s.network.insert(Message::TakeOver { epoch, to, incarnation });
        });
    }
}

/// The result of a search.
struct Search {
    states: usize,
    /// The violated property, and the steps that lead there.
    violation: Option<(&'static str, Vec<Step>)>,
    taken: BTreeSet<Step>,
}

/// Searches all states breadth-first, so that a counterexample is a shortest one.
fn search(faults: u8, rules: Rules) -> Search {
    let start = State::start(faults);
    let mut known: HashMap<State, usize> = HashMap::from([(start.clone(), 0)]);
    let mut queue = VecDeque::from([start]);
    let mut from: Vec<(usize, Option<Step>)> = vec![(0, None)];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let (mut ended, mut taken) = (Vec::new(), BTreeSet::new());
    let path = |mut at: usize, from: &[(usize, Option<Step>)]| {
        let mut path = Vec::new();
        while let (earlier, Some(step)) = from[at] {
            path.push(step);
            at = earlier;
        }
        path.reverse();
        path
    };
    while let Some(state) = queue.pop_front() {
        let at = known[&state];
        let executed = state.nodes.iter().filter_map(|node| node.executes);
        let twice = state.nodes[0].executes.is_some() && {
            let all: Vec<Lease> = executed.collect();
            all.len() > 1 && all[0] == all[1]
        };
        let violation = state.violation.or(twice.then_some("two nodes execute one lease"));
        if let Some(what) = violation {
            let violation = Some((what, path(at, &from)));
            return Search { states: known.len(), violation, taken };
        }
        if state.over || state.scheduler.as_ref().is_some_and(|s| s.epoch == EPOCHS_MAX) {
            ended.push(at);
            continue;
        }
        for (step, fault, next) in steps(&state, rules) {
            taken.insert(step);
            let new = from.len();
            let to = *known.entry(next.clone()).or_insert(new);
            if to == new {
                from.push((at, Some(step)));
                before.push(Vec::new());
                queue.push_back(next);
            }
            if !fault {
                before[to].push(at);
            }
        }
    }
    // Backwards from the ends: a state that is not met cannot end the job without a fault.
    let mut ends = vec![false; from.len()];
    while let Some(at) = ended.pop() {
        if !std::mem::replace(&mut ends[at], true) {
            ended.extend(&before[at]);
        }
    }
    let stuck = ends.iter().position(|ends| !ends);
    let violation = stuck.map(|at| ("the job cannot end", path(at, &from)));
    Search { states: known.len(), violation, taken }
}

#[test]
fn the_rules_keep_all_properties() {
    let Search { states, violation, taken } = search(2, ALL_RULES);
    println!("{states} states");
    if let Some((what, path)) = violation {
        panic!("{what}, after {path:?}");
    }
    let missing: Vec<_> = SOURCES.iter().filter(|(step, ..)| !taken.contains(step)).collect();
    assert!(missing.is_empty(), "not taken: {missing:?}");
}

#[test]
fn a_model_without_a_rule_is_found_wrong() {
    let wrong = [
        ("epochs persist", Rules { epochs_persist: false, ..ALL_RULES }, 3),
        ("epochs are checked", Rules { epochs_checked: false, ..ALL_RULES }, 2),
        ("leases are checked", Rules { leases_checked: false, ..ALL_RULES }, 1),
        ("ends are checked", Rules { ends_checked: false, ..ALL_RULES }, 1),
    ];
    for (rule, rules, faults) in wrong {
        let Search { states, violation, .. } = search(faults, rules);
        let (what, path) = violation.unwrap_or_else(|| panic!("without {rule}: no violation"));
        println!("without the rule that {rule}: {what}, in {states} states, after");
        path.iter().for_each(|step| println!("    {step:?}"));
    }
}

#[test]
fn each_step_stands_for_a_function() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (step, file, function) in SOURCES {
        let text = std::fs::read_to_string(root.join(file));
        let text = text.unwrap_or_else(|error| panic!("{step:?}: {file}: {error}"));
        let found = text.contains(&format!("fn {function}"));
        assert!(found, "{step:?}: {file} has no fn {function}");
    }
}
