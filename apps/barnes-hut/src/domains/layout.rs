//! The assignment of blocks to processes: each holds consecutive ones with its share of the work.
//!
//! Processes of one cluster hold neighbouring domains, so that few bodies are near those of other
//! clusters. Pure; independent of bodies.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::ProcessInfo;

use crate::partial::BlockInfo;

/// Borders within a cluster stay while the slowest process takes at most this many times the time
/// of a new distribution.
const SLACK: f64 = 1.03;
/// The same for the borders between clusters.
const SLACK_BETWEEN_CLUSTERS: f64 = 1.2;

/// The processes in the order in which they hold domains, along the curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// The rank of each process.
    ranks: Vec<u32>,
    /// The share of the work of each, in any unit.
    weights: Vec<f64>,
}

impl Layout {
    /// The layout for these processes, in order of rank. The weight of a process is its measured
    /// speed. One without a measurement counts as fast as the others, for each of its threads.
    pub(crate) fn new(processes: &[ProcessInfo], now: Option<&Layout>) -> Self {
        let speed = |process: &ProcessInfo| {
            let (now, was, pace) = (now?, process.previous_rank?, process.pace?);
            let speed = now.weight_of(was)? / pace.step_s;
            (speed.is_finite() && speed > 0.0).then_some(speed)
        };
        let speeds: Vec<Option<f64>> = processes.iter().map(speed).collect();
        let threads = |rank: usize| f64::from(processes[rank].threads.max(1));
        let known = || (0..processes.len()).filter_map(|rank| Some((speeds[rank]?, threads(rank))));
        let (sum, of) =
            known().fold((0.0, 0.0), |(sum, of), (speed, threads)| (sum + speed, of + threads));
        let average = if of > 0.0 { sum / of } else { 1.0 };
        // The layout of one process is that of the whole state.
        let weight = |rank: usize| match processes.len() {
            1 => 1.0,
            _ => speeds[rank].unwrap_or(average * threads(rank)),
        };
        let mut order: Vec<usize> = (0..processes.len()).collect();
        order.sort_by_key(|&rank| (processes[rank].location.clone(), rank));
        Self {
            weights: order.iter().map(|&rank| weight(rank)).collect(),
            ranks: order.into_iter().map(|rank| rank as u32).collect(),
        }
    }

    fn weight_of(&self, rank: u32) -> Option<f64> {
        self.weights.get(self.slot_of(rank)?).copied()
    }

    /// The number of processes.
    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The place of a process along the curve.
    pub(crate) fn slot_of(&self, rank: u32) -> Option<usize> {
        self.ranks.iter().position(|&other| other == rank)
    }

    /// The ranks of the processes, along the curve.
    pub(crate) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The number of each process's cluster, along the curve. `ranks` has the ranks of each
    /// cluster.
    pub(crate) fn clusters(&self, ranks: &[Vec<u32>]) -> Vec<usize> {
        let cluster =
            |rank| ranks.iter().position(|ranks| ranks.contains(rank)).unwrap_or_default();
        self.ranks.iter().map(cluster).collect()
    }

    /// The longest time that one of these teams of neighbours takes for its blocks; in the unit of
    /// costs by that of speeds.
    fn longest(&self, cuts: &[u32], infos: &[BlockInfo], teams: &[Range<usize>]) -> f64 {
        let times = teams.iter().map(|slots| {
            let blocks = cuts[slots.start] as usize..cuts[slots.end] as usize;
            work(&infos[blocks]) / self.weights[slots.clone()].iter().sum::<f64>()
        });
        times.fold(0.0, f64::max)
    }

    /// The first block of each process, along the curve, and the number of blocks at the end. Whole
    /// blocks approximate each share of the work.
    pub(crate) fn cuts(&self, infos: &[BlockInfo]) -> Vec<u32> {
        self.cuts_among(0..self.len(), 0..infos.len(), infos)
    }

    /// The same for some processes that share some of the blocks.
    fn cuts_among(
        &self,
        slots: Range<usize>,
        blocks: Range<usize>,
        infos: &[BlockInfo],
    ) -> Vec<u32> {
        let all = work(&infos[blocks.clone()]);
        let weights: f64 = self.weights[slots.clone()].iter().sum();
        let mut cuts = vec![blocks.start as u32];
        let (mut rest, mut done, mut wanted) = (blocks.clone(), 0.0, 0.0);
        for weight in &self.weights[slots] {
            wanted += weight / weights * all;
            // Its middle is before the end of the share.
            while let Some(block) = rest.clone().next()
                && done + 0.5 * f64::from(infos[block].cost) <= wanted
            {
                done += f64::from(infos[block].cost);
                rest.start += 1;
            }
            cuts.push(rest.start as u32);
        }
        if let Some(last) = cuts.last_mut() {
            *last = blocks.end as u32;
        }
        cuts
    }

    /// As [`Layout::cuts`], but borders stay as `before` unless that is much slower. (A small
    /// change of a block's cost would move all later borders.)
    ///
    /// Borders between clusters, which have these [numbers](Layout::clusters), move if a cluster
    /// takes more than [`SLACK_BETWEEN_CLUSTERS`] times the time of a new distribution; those
    /// within a cluster, at [`SLACK`] times.
    pub(crate) fn cuts_about(
        &self,
        before: &[u32],
        infos: &[BlockInfo],
        clusters: &[usize],
    ) -> Vec<u32> {
        let fresh = self.cuts(infos);
        let mut teams: Vec<Range<usize>> = Vec::new();
        for slot in 0..self.len() {
            match teams.last_mut() {
                Some(team) if clusters[team.start] == clusters[slot] => team.end = slot + 1,
                _ => teams.push(slot..slot + 1),
            }
        }
        let longest = |cuts| self.longest(cuts, infos, &teams);
        let stays = longest(before) <= SLACK_BETWEEN_CLUSTERS * longest(&fresh);
        let of_teams = if stays { before } else { &fresh };
        let mut cuts = of_teams.to_vec();
        for team in teams {
            let blocks = cuts[team.start]..cuts[team.end];
            let [mut kept, mut fresh] = [cuts.clone(), cuts];
            for slot in team.start + 1..team.end {
                kept[slot] = before[slot].clamp(blocks.start, blocks.end);
            }
            let each: Vec<Range<usize>> = team.clone().map(|slot| slot..slot + 1).collect();
            let blocks = blocks.start as usize..blocks.end as usize;
            let of_team = team.start..team.end + 1;
            fresh[of_team].copy_from_slice(&self.cuts_among(team, blocks, infos));
            let longest = |cuts| self.longest(cuts, infos, &each);
            cuts = if longest(&kept) <= SLACK * longest(&fresh) { kept } else { fresh };
        }
        cuts
    }
}

/// The cost of these blocks.
fn work(infos: &[BlockInfo]) -> f64 {
    infos.iter().map(|info| f64::from(info.cost)).sum()
}

/// The blocks between two of [`Layout::cuts`].
pub(crate) fn of_slot(cuts: &[u32], slot: usize) -> Range<usize> {
    cuts[slot] as usize..cuts[slot + 1] as usize
}

/// The place along the curve of a block's process.
pub(crate) fn slot_with(cuts: &[u32], block: usize) -> usize {
    cuts.partition_point(|&first| first as usize <= block) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use springtide_runtime::id::{ClusterId, NodeId};
    use springtide_runtime::spmd::StepRate;

    use super::*;

    fn info(cost: f32) -> BlockInfo {
        BlockInfo { first: 0, last: 0, bodies: 1, cost }
    }

    fn process(was: Option<u32>, step_s: Option<f64>, cluster: &str, node: &str) -> ProcessInfo {
        let pace = step_s.map(|step_s| StepRate { step_s, foreign: None });
        ProcessInfo {
            previous_rank: was,
            pace,
            threads: 1,
            location: Some((ClusterId::from(cluster), NodeId::from(node))),
        }
    }

    #[test]
    fn domains_follow_clusters_and_speeds() {
        let processes = [
            process(None, None, "b", "b-1"),
            process(None, None, "a", "a-2"),
            process(None, None, "b", "b-0"),
            process(None, None, "a", "a-1"),
        ];
        let first = Layout::new(&processes, None);
        assert_eq!(first.ranks, [3, 1, 2, 0]);
        let blocks = vec![info(1.0); 12];
        assert_eq!(first.cuts(&blocks), [0, 3, 6, 9, 12]);
        // Rank 1 took three times as long for the same work.
        let processes = [
            process(Some(0), Some(1.0), "b", "b-1"),
            process(Some(1), Some(3.0), "a", "a-2"),
            process(Some(2), Some(1.0), "b", "b-0"),
            process(Some(3), Some(1.0), "a", "a-1"),
        ];
        let next = Layout::new(&processes, Some(&first));
        assert_eq!(next.cuts(&vec![info(1.0); 10]), [0, 3, 4, 7, 10]);
        // A measurement with those shares gives the same speeds.
        let processes = processes.map(|process| ProcessInfo {
            pace: Some(StepRate { step_s: 0.9, foreign: None }),
            ..process
        });
        let again = Layout::new(&processes, Some(&next));
        assert_eq!(again.cuts(&vec![info(1.0); 10]), [0, 3, 4, 7, 10]);
        assert_eq!(Layout::new(&[ProcessInfo::default()], None).cuts(&blocks), [0, 12]);
        // A process that was not measured counts by its threads.
        let new = ProcessInfo { threads: 3, ..process(None, None, "c", "c-0") };
        let [mut one, mut other, ..] = processes;
        (one.threads, other.threads) = (2, 2);
        let processes = [one, other, new];
        let (measured, first) =
            (Layout::new(&processes, Some(&first)), Layout::new(&processes, None));
        assert_eq!(first.weights, [1.0 * 2.0, 1.0 * 2.0, 1.0 * 3.0]);
        let per_thread = (measured.weights[0] + measured.weights[1]) / 4.0;
        assert_eq!(measured.weights[2], 3.0 * per_thread);
    }

    proptest! {
        #[test]
        fn each_block_has_one_holder(
            costs in prop::collection::vec(0f32..9.0, 0..50),
            processes in 1usize..9,
        ) {
            let infos: Vec<BlockInfo> = costs.into_iter().map(info).collect();
            let layout = Layout::new(&vec![ProcessInfo::default(); processes], None);
            let cuts = layout.cuts(&infos);
            prop_assert_eq!(cuts.len(), processes + 1);
            let all: f64 = infos.iter().map(|info| f64::from(info.cost)).sum();
            let most = infos.iter().map(|info| f64::from(info.cost)).fold(0.0, f64::max);
            let each: Vec<Range<usize>> = (0..processes).map(|slot| slot..slot + 1).collect();
            let longest = layout.longest(&cuts, &infos, &each);
            let mean = all / processes as f64;
            prop_assert!(longest >= 0.999 * mean && longest <= 1.001 * (mean + most));
            for block in 0..infos.len() {
                let slot = slot_with(&cuts, block);
                prop_assert!(of_slot(&cuts, slot).contains(&block));
            }
            let held: usize = (0..processes).map(|slot| of_slot(&cuts, slot).len()).sum();
            prop_assert_eq!(held, infos.len());
        }

        /// No process has much more work than in a new distribution within its cluster, and no
        /// cluster much more than in one of all.
        #[test]
        fn clusters_keep_what_they_have(
            costs in prop::collection::vec(0.5f32..2.0, 40..200),
            before in prop::collection::vec(any::<prop::sample::Index>(), 5),
            is_about in any::<bool>(),
        ) {
            let infos: Vec<BlockInfo> = costs.into_iter().map(info).collect();
            let layout = Layout::new(&vec![ProcessInfo::default(); 6], None);
            let clusters = [1, 1, 0, 0, 0, 2];
            let teams = [0..2, 2..5, 5..6];
            let (fresh, all) = (layout.cuts(&infos), infos.len() as u32);
            let mut before: Vec<u32> =
                before.iter().map(|cut| cut.index(infos.len()) as u32).collect();
            if is_about {
                // Each border moves by a block, a small part of a domain.
                before = fresh[1..6].iter().map(|cut| cut + 1).collect();
            }
            before.extend([0, all]);
            before.sort_unstable();
            let cuts = layout.cuts_about(&before, &infos, &clusters);
            prop_assert_eq!((cuts.len(), cuts[0], cuts[6]), (7, 0, all));
            prop_assert!(cuts.is_sorted());
            let longest = |cuts: &[u32]| layout.longest(cuts, &infos, &teams);
            let stays = longest(&before) <= SLACK_BETWEEN_CLUSTERS * longest(&fresh);
            let of_teams = if stays { &before } else { &fresh };
            prop_assert!([2, 5].iter().all(|&slot| cuts[slot] == of_teams[slot]));
            for team in teams {
                let most = infos.iter().map(|info| f64::from(info.cost)).fold(0.0, f64::max);
                let each: Vec<Range<usize>> = team.clone().map(|slot| slot..slot + 1).collect();
                let of_team = cuts[team.start] as usize..cuts[team.end] as usize;
                let fair = work(&infos[of_team]) / team.len() as f64 + most;
                prop_assert!(layout.longest(&cuts, &infos, &each) <= 1.001 * SLACK * fair);
            }
            // A fair distribution stays.
            prop_assert_eq!(layout.cuts_about(&fresh, &infos, &[0; 6]), fresh);
        }
    }
}
