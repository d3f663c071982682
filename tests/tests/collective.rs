//! Collectives of an SPMD program: they are right on clusters of any sizes, and data for a whole
//! cluster crosses the line to it once.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::malleable::{Malleable, ProcessInfo, Program};
use springtide_runtime::random::SplitMix;
use springtide_runtime::spmd::Comm;
use springtide_runtime::work::{Outcome, Registry, Stop};
use springtide_simulator::{SimulatedGrid, simulate};

use crate::simulated::{layout, quiet};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Way {
    Share,
    Multicast,
}

/// Executes all operations in each step, with messages that only the sender knows, and compares the
/// results.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AllCollectives {
    steps: u64,
    /// The maximum length of a message, in bytes.
    length_max: u64,
    seed: u64,
    processes: u32,
    /// If set, the step only sends this number of bytes to all processes in this way.
    sends_only: Option<(u32, Way)>,
}

impl AllCollectives {
    /// The message of `from` to `to` in the operation `what` of a step.
    fn message(&self, step: u64, what: u64, from: u32, to: u32) -> Bytes {
        let seed = self.seed ^ step << 48 ^ what << 40 ^ u64::from(from) << 20 ^ u64::from(to);
        let mut random = SplitMix(seed);
        // Half of them are short.
        let most = if random.next().is_multiple_of(2) { self.length_max } else { 100 };
        let length = (random.next() % (most + 1)) as usize;
        let first = random.next();
        (0..length).map(|i| (first.wrapping_add(i as u64) % 251) as u8).collect()
    }

    fn compare(&self, what: &str, due: &[Bytes], got: &[Bytes]) -> Result<(), Stop> {
        if due == got {
            return Ok(());
        }
        let differ = due.iter().zip(got).position(|(due, got)| due != got);
        Err(Stop::fail(format_args!("{what} gives something else from {differ:?}")))
    }
}

impl Program for AllCollectives {
    const NAME: &'static str = "together.process";
    type State = u64;
    type Layout = u32;

    fn steps(&self) -> u64 {
        self.steps
    }

    fn layout(&self, hands: &[ProcessInfo], _: Option<&u32>) -> u32 {
        hands.len() as u32
    }

    fn start(&self, _: &u32, _: &Comm<'_>) -> Result<u64, Stop> {
        Ok(0)
    }

    fn step(&self, done: &mut u64, step: u64, size: &u32, comm: &Comm<'_>) -> Result<(), Stop> {
        let (rank, size, all) = (comm.rank(), *size, 0..*size);
        comm.spend_modelled_time(Duration::from_millis(10))?;
        let others: Vec<u32> = all.clone().filter(|other| *other != rank).collect();
        match self.sends_only {
            Some((bytes, Way::Share)) => {
                comm.share(1, vec![0; bytes as usize])?;
                return comm.take_shared(1).map(drop);
            }
            Some((bytes, Way::Multicast)) => {
                comm.multicast(&others, 3, vec![0; bytes as usize])?;
                return others.iter().try_for_each(|from| comm.receive(*from, 3).map(drop));
            }
            None => {}
        }
        let of_all = |what: u64| -> Vec<Bytes> {
            all.clone().map(|from| self.message(step, what, from, 0)).collect()
        };
        let wrap = |bytes: &Bytes| bytes.to_vec();
        let own = |what| self.message(step, what, rank, 0);

        // Two at once, and other operations before they end; one is polled for completion
        // occasionally.
        comm.share(1, own(1))?;
        comm.share(2, own(2))?;
        let gathered = comm.all_gather(&wrap(&own(3)))?;
        let gathered: Vec<Bytes> = gathered.into_iter().map(Bytes::from).collect();
        self.compare("all_gather", &of_all(3), &gathered)?;
        let mut asked = 0;
        while step.is_multiple_of(2) && !comm.is_share_ready(2)? {
            comm.spend_modelled_time(Duration::from_micros(100))?;
            asked += 1;
            if asked > 100_000 {
                return Err(Stop::fail("what is shared never comes"));
            }
        }

        // Each process sends to some, twice, without a wait for forwarders; between these is a
        // message with the same tag.
        let sends_to = |from: u32, to: u32| (from * 7 + to * 3 + step as u32) % 5 < 3;
        let some: Vec<u32> = all.clone().filter(|to| sends_to(rank, *to)).collect();
        comm.multicast(&some, 4, own(7))?;
        comm.send((rank + 1) % size, 4, own(8))?;
        comm.multicast(&some, 4, own(9))?;
        for from in all.clone() {
            let before = (from + 1) % size == rank;
            let sent = sends_to(from, rank);
            for (what, due) in [(7, sent), (8, before), (9, sent)] {
                if due {
                    while step.is_multiple_of(2) && !comm.has_arrived(from, 4)? {
                        comm.spend_modelled_time(Duration::from_micros(100))?;
                    }
                    let due = self.message(step, what, from, 0);
                    self.compare("multicast", &[due], &[comm.receive(from, 4)?])?;
                }
            }
        }

        if comm.has_arrived((rank + 1) % size, 5)? {
            return Err(Stop::fail("a message arrived that no process sent"));
        }

        let parts = all.clone().map(|to| self.message(step, 4, rank, to)).collect();
        let due: Vec<_> = all.clone().map(|from| self.message(step, 4, from, rank)).collect();
        self.compare("all_to_all", &due, &comm.all_to_all(parts)?)?;

        let from = (step % u64::from(size)) as u32;
        let sent = self.message(step, 5, from, 0);
        let said = (from == rank).then(|| wrap(&sent));
        self.compare("broadcast", &[sent], &[comm.broadcast(from, said.as_ref())?.into()])?;

        let gathered = comm.gather(from, &wrap(&own(6)))?;
        if let Some(gathered) = gathered {
            let gathered: Vec<Bytes> = gathered.into_iter().map(Bytes::from).collect();
            self.compare("gather", &of_all(6), &gathered)?;
        }
        // In the order of ranks, on any nodes.
        let most = comm.all_reduce(&vec![rank], |mut a, b| {
            a.extend(b);
            a
        })?;
        if !most.into_iter().eq(all.clone()) {
            return Err(Stop::fail("all_reduce has another order"));
        }
        self.compare("share", &of_all(2), &comm.take_shared(2)?)?;
        comm.barrier()?;
        self.compare("share", &of_all(1), &comm.take_shared(1)?)?;
        *done += 1;
        Ok(())
    }

    fn split_state(&self, state: &u64, _: (&u32, u32), _: (&u32, u32)) -> Result<Bytes, Stop> {
        Ok(state.to_le_bytes().to_vec().into())
    }

    fn join_state(&self, pieces: &[Bytes], _: &u32, _: (&u32, u32)) -> Result<u64, Stop> {
        let piece = pieces.first().and_then(|piece| piece[..].try_into().ok());
        piece.map(u64::from_le_bytes).ok_or_else(|| Stop::fail("no piece"))
    }

    fn finish(&self, done: u64, size: &u32, _: &Comm<'_>) -> Result<Outcome, Stop> {
        let right = *size == self.processes;
        let result = serde_json::Value::from(*size);
        Ok(Outcome { checksum: if right { done } else { u64::MAX }, result })
    }
}

impl Malleable for AllCollectives {
    const JOB: &'static str = "together";
    const ABOUT: &'static str = "for tests";
}

/// Runs the program on clusters of these sizes; returns the number of steps, and the bytes between
/// clusters.
fn play(clusters: &'static [u32], job: AllCollectives) -> (u64, u64) {
    simulate(move || async move {
        let mut registry = Registry::new();
        registry.job::<AllCollectives>();
        let grid = SimulatedGrid::start(&layout(clusters, 1), registry).await;
        let run = grid.submit(job, quiet(1), None).await.expect("it is taken");
        let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
        let outcome = ended.ended.outcome.unwrap_or_else(|why| panic!("{why}; {:?}", ended.said));
        let traffic = grid.network().traffic();
        let wide = traffic.iter().filter(|((from, to), _)| from != to);
        (outcome.checksum, wide.map(|(_, traffic)| traffic.bytes).sum())
    })
}

#[test]
fn collectives_are_right_on_clusters_of_any_sizes() {
    for clusters in [&[4][..], &[3, 2], &[1, 1, 1], &[1, 5, 2], &[3, 3, 1, 2]] {
        let processes = clusters.iter().sum();
        let job =
            AllCollectives { steps: 6, length_max: 100_000, seed: 7, processes, sends_only: None };
        assert_eq!(play(clusters, job).0, 6, "{clusters:?}");
    }
}

/// Each of four processes in each of two clusters sends 100 kB to all: eight times that crosses
/// lines, not 32 times.
#[test]
fn data_for_a_whole_cluster_crosses_the_line_once() {
    for way in [Way::Share, Way::Multicast] {
        let bytes = |bytes| {
            let sends_only = Some((bytes, way));
            play(
                &[4, 4],
                AllCollectives { steps: 10, length_max: 0, seed: 7, processes: 8, sends_only },
            )
            .1
        };
        let more = bytes(100_000) - bytes(0);
        assert!((8_000_000..8_100_000).contains(&more), "{way:?} {more}");
    }
}
