//! The pilots of a run: which have room for which tasks, and which tasks run on them.
//!
//! Data without I/O. It does not know the order of tasks.

use std::collections::BTreeMap;

use springtide_actors::policy::provisioning::{SECOND, Time};
use springtide_actors::reservation::ReservationId;
use springtide_runtime::id::{ClusterId, NodeId};

/// Identifies a pilot among those of a run.
pub type PilotId = u64;

/// The weight of the last task in the mean running time of tasks.
const WEIGHT: f64 = 0.05;
/// A pilot has tasks for this time, so that none waits for messages.
const AHEAD_S: f64 = 0.2;
/// Maximum number of tasks for each processor that a pilot has ahead.
const AHEAD_MAX: f64 = 64.0;

/// An attempt of a task on a pilot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedTask {
    /// Index of the task.
    pub task: usize,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Number of processors of the attempt.
    pub processors: u32,
    /// Number of GPUs of the attempt.
    pub gpus: u32,
}

/// The node of a pilot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PilotNode {
    /// Name of the node.
    pub node: NodeId,
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// The name of its host.
    pub host: String,
    /// Number of processors of the node.
    pub processors: u32,
}

/// The requirements of a pilot's node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedNode {
    /// Minimum number of processors.
    pub processors: u32,
    /// The memory for each processor in bytes; 0: any.
    pub memory_bytes: u64,
    /// Minimum number of GPUs.
    pub gpus: u32,
    /// The only cluster in which it may be; any if absent.
    pub cluster: Option<ClusterId>,
    /// Its reservation, if it has one.
    pub reservation: Option<ReservationId>,
}

impl WantedNode {
    /// Whether a node that meets these requirements meets the others.
    pub fn is_at_least(&self, other: &Self) -> bool {
        let cluster = other.cluster.is_none() || self.cluster == other.cluster;
        self.processors >= other.processors
            && self.memory_bytes >= other.memory_bytes
            && self.gpus >= other.gpus
            && cluster
    }
}

/// A pilot: a job with one node that runs tasks.
#[derive(Clone, Debug)]
pub struct Pilot {
    /// The requirements of its node.
    pub wanted: WantedNode,
    /// Its node, once it is ready.
    pub node: Option<PilotNode>,
    /// Its tasks, by the number of their attempt.
    pub tasks: BTreeMap<u64, PlacedTask>,
    /// Processors of all its tasks.
    used: u32,
    /// Whether it gets no more tasks.
    pub finishes: bool,
    /// When it was submitted, or became ready.
    pub since: Time,
    /// When its last task ended.
    pub idle_since: Time,
}

impl Pilot {
    /// GPUs that no task has.
    fn free_gpus(&self) -> u32 {
        let used: u32 = self.tasks.values().map(|task| task.gpus).sum();
        self.wanted.gpus.saturating_sub(used)
    }

    /// Whether its node has enough memory for a task with this memory for each processor, as far
    /// as it was requested.
    fn has_memory(&self, memory_bytes: u64) -> bool {
        self.wanted.memory_bytes >= memory_bytes
    }

    /// Processors that are free for tasks that run at once. Negative if tasks wait.
    fn free(&self) -> i64 {
        let has = self.node.as_ref().map_or(self.wanted.processors, |node| node.processors);
        i64::from(has) - i64::from(self.used)
    }
}

/// The pilots of a run.
#[derive(Debug, Default)]
pub struct PilotTable {
    pilots: BTreeMap<PilotId, Pilot>,
    next: PilotId,
    /// The mean running time of recent tasks in seconds, if one has ended.
    mean_s: Option<f64>,
}

impl PilotTable {
    /// Adds a pilot that is submitted.
    pub fn add(&mut self, wanted: WantedNode, now: Time) -> PilotId {
        self.next += 1;
        let pilot = Pilot {
            wanted,
            node: None,
            tasks: BTreeMap::new(),
            used: 0,
            finishes: false,
            since: now,
            idle_since: now,
        };
        self.pilots.insert(self.next, pilot);
        self.next
    }

    /// All pilots with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PilotId, &Pilot)> {
        self.pilots.iter().map(|(id, pilot)| (*id, pilot))
    }

    /// The pilot with a number.
    pub fn get(&self, id: PilotId) -> Option<&Pilot> {
        self.pilots.get(&id)
    }

    /// Records the node of a pilot.
    pub fn set_ready(&mut self, id: PilotId, node: PilotNode, now: Time) {
        if let Some(pilot) = self.pilots.get_mut(&id) {
            (pilot.node, pilot.since, pilot.idle_since) = (Some(node), now, now);
        }
    }

    /// Gives a pilot no more tasks.
    pub fn finish(&mut self, id: PilotId) {
        if let Some(pilot) = self.pilots.get_mut(&id) {
            pilot.finishes = true;
        }
    }

    /// Removes a pilot that has ended. Returns it with its tasks.
    pub fn remove(&mut self, id: PilotId) -> Option<Pilot> {
        self.pilots.remove(&id)
    }

    /// Puts a task on a pilot.
    pub fn place(&mut self, id: PilotId, number: u64, placed: PlacedTask) {
        if let Some(pilot) = self.pilots.get_mut(&id) {
            pilot.used += placed.processors;
            pilot.tasks.insert(number, placed);
        }
    }

    /// Removes a task from its pilot. `ran_s`: the seconds for which it ran, if it did.
    pub fn take(
        &mut self,
        id: PilotId,
        number: u64,
        ran_s: Option<f64>,
        now: Time,
    ) -> Option<PlacedTask> {
        let pilot = self.pilots.get_mut(&id)?;
        let placed = pilot.tasks.remove(&number)?;
        pilot.used -= placed.processors;
        pilot.idle_since = now;
        if let Some(ran_s) = ran_s {
            let mean = self.mean_s.get_or_insert(ran_s);
            *mean += WEIGHT * (ran_s - *mean);
        }
        Some(placed)
    }

    /// Tasks for each processor that a pilot may have ahead of those that run.
    fn ahead(&self) -> f64 {
        self.mean_s.map_or(0.0, |mean| (AHEAD_S / mean.max(1e-4)).min(AHEAD_MAX).floor())
    }

    /// The ready pilot that has the most room for a task. `cost` of a cluster precedes the room: a
    /// cluster without cost is none for the task.
    pub fn choose(
        &self,
        wanted: &WantedNode,
        cost: impl Fn(&ClusterId) -> Option<u64>,
    ) -> Option<PilotId> {
        let ahead = self.ahead();
        let candidates = self.pilots.iter().filter_map(|(id, pilot)| {
            let node = pilot.node.as_ref().filter(|node| node.processors >= wanted.processors)?;
            if pilot.free_gpus() < wanted.gpus || !pilot.has_memory(wanted.memory_bytes) {
                return None;
            }
            let free = pilot.free() - i64::from(wanted.processors);
            let behind = -(ahead * f64::from(node.processors)) as i64;
            if pilot.finishes || free < behind {
                return None;
            }
            let cost = cost(&node.cluster)?;
            // A node without room for it now is the last choice.
            Some(((free < 0, cost, -free), *id))
        });
        candidates.min().map(|(_, id)| id)
    }

    /// Processors of ready pilots that get tasks.
    pub fn processors(&self) -> u32 {
        let gets_tasks = self.pilots.values().filter(|pilot| !pilot.finishes);
        gets_tasks.filter_map(|pilot| Some(pilot.node.as_ref()?.processors)).sum()
    }

    /// Whether a ready pilot that gets tasks can run one with these requirements, now or later.
    /// `is_possible` says that of a cluster.
    pub fn serves(&self, wanted: &WantedNode, is_possible: impl Fn(&ClusterId) -> bool) -> bool {
        self.pilots.values().any(|pilot| {
            pilot.node.as_ref().is_some_and(|node| {
                node.processors >= wanted.processors && is_possible(&node.cluster)
            }) && !pilot.finishes
                && pilot.wanted.gpus >= wanted.gpus
                && pilot.has_memory(wanted.memory_bytes)
        })
    }

    /// Pilots that are not ready yet.
    pub fn submitted(&self) -> usize {
        self.pilots.values().filter(|pilot| pilot.node.is_none()).count()
    }

    /// Free processors of pilots that come, or have come, and meet the requirements.
    pub fn coming(&self, wanted: &WantedNode) -> i64 {
        let (processors, cluster) = (wanted.processors, wanted.cluster.as_ref());
        let fits = |pilot: &&Pilot| {
            let has = pilot.node.as_ref().map_or(pilot.wanted.processors, |node| node.processors);
            let at =
                pilot.node.as_ref().map(|node| &node.cluster).or(pilot.wanted.cluster.as_ref());
            !pilot.finishes
                && has >= processors
                && pilot.wanted.gpus >= wanted.gpus
                && pilot.has_memory(wanted.memory_bytes)
                && (cluster.is_none() || at.is_none() || at == cluster)
        };
        self.pilots.values().filter(fits).map(|pilot| pilot.free().max(0)).sum()
    }

    /// Pilots that had no task for this time.
    pub fn idle(&self, time: Time, now: Time) -> Vec<PilotId> {
        let is_idle = |pilot: &Pilot| {
            pilot.node.is_some()
                && pilot.tasks.is_empty()
                && !pilot.finishes
                && now >= pilot.idle_since.saturating_add(time)
        };
        self.iter().filter(|(_, pilot)| is_idle(pilot)).map(|(id, _)| id).collect()
    }

    /// The time of the next idle pilot.
    pub fn idle_at(&self, time: Time) -> Option<Time> {
        let waits =
            |pilot: &&Pilot| pilot.node.is_some() && pilot.tasks.is_empty() && !pilot.finishes;
        self.pilots.values().filter(waits).map(|pilot| pilot.idle_since.saturating_add(time)).min()
    }
}

/// The time after which an idle pilot ends.
pub const IDLE_TIME: Time = 10 * SECOND;
/// The same time while ready tasks wait for other nodes.
pub const SHORT_IDLE_TIME: Time = SECOND / 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, cluster: &str, processors: u32) -> PilotNode {
        PilotNode { node: name.into(), cluster: cluster.into(), host: "h".to_owned(), processors }
    }

    fn width(processors: u32) -> WantedNode {
        WantedNode { processors, ..WantedNode::default() }
    }

    fn placed(task: usize, processors: u32) -> PlacedTask {
        PlacedTask { task, attempt: 1, processors, gpus: 0 }
    }

    #[test]
    fn the_pilot_with_most_room_is_chosen_where_data_costs_least() {
        let mut pilots = PilotTable::default();
        let (a, b) = (pilots.add(width(1), 0), pilots.add(width(1), 0));
        assert_eq!(pilots.choose(&width(1), |_| Some(0)), None, "none is ready");
        assert_eq!(pilots.coming(&width(1)), 2);
        pilots.set_ready(a, node("a-1", "a", 2), 5);
        pilots.set_ready(b, node("b-1", "b", 4), 5);
        assert_eq!(pilots.choose(&width(1), |_| Some(0)), Some(b));
        assert_eq!(
            pilots.choose(&width(3), |cluster| (cluster.as_str() == "a").then_some(0)),
            None
        );
        let cost = |cluster: &ClusterId| Some(u64::from(cluster.as_str() == "b"));
        assert_eq!(pilots.choose(&width(1), cost), Some(a));
        pilots.place(a, 1, placed(0, 2));
        assert_eq!(pilots.choose(&width(1), cost), Some(b));
        pilots.finish(b);
        assert_eq!(pilots.choose(&width(1), cost), None);
        assert!(pilots.idle(10, 14).is_empty());
        assert_eq!(pilots.take(a, 1, Some(100.0), 20), Some(placed(0, 2)));
        assert_eq!((pilots.idle(10, 29), pilots.idle(10, 30)), (Vec::new(), vec![a]));
    }

    #[test]
    fn short_tasks_are_sent_ahead() {
        let mut pilots = PilotTable::default();
        let a = pilots.add(width(1), 0);
        pilots.set_ready(a, node("a-1", "a", 1), 0);
        pilots.place(a, 1, placed(0, 1));
        assert_eq!(pilots.choose(&width(1), |_| Some(0)), None);
        pilots.take(a, 1, Some(0.02), 1);
        for number in 2..13 {
            assert_eq!(pilots.choose(&width(1), |_| Some(0)), Some(a), "{number}");
            pilots.place(a, number, placed(0, 1));
        }
        assert_eq!(pilots.choose(&width(1), |_| Some(0)), None, "ten ahead of the one that runs");
    }
}
