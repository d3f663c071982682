//! Collective operations that cross the links between clusters as rarely as possible.
//!
//! A process sends what is for all of another cluster there once, to its *partner*, which forwards
//! it to its neighbours. Partners are assigned evenly, so that no single process forwards
//! everything. Small parts for processes of another cluster travel together. (After T. Kielmann et
//! al., *MagPIe: MPI's collective communication operations for clustered wide area systems*, PPoPP
//! 1999.) All processes must call the same operations in the same order.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::comm::{COLLECTIVE, Comm, INLINE_MESSAGE_MAX, dissolved};
use super::message::Configuration;
use crate::wire;
use crate::work::Stop;

/// Ranks by cluster, and the routes of forwarded messages.
#[derive(Debug)]
pub(super) struct Clusters {
    /// Clusters in order of their lowest ranks, with ranks in order.
    ranks: Vec<Vec<u32>>,
    /// For each rank, its cluster and its index there.
    positions: Vec<(usize, usize)>,
}

impl Clusters {
    pub(super) fn of(configuration: &Configuration) -> Self {
        Self::new(configuration.members.iter().map(|member| &member.peer.cluster))
    }

    fn new<C: Ord>(clusters: impl IntoIterator<Item = C>) -> Self {
        let (mut ranks, mut positions) = (Vec::<Vec<u32>>::new(), Vec::new());
        let mut known = BTreeMap::new();
        for (rank, cluster) in (0..).zip(clusters) {
            let number = *known.entry(cluster).or_insert(ranks.len());
            if number == ranks.len() {
                ranks.push(Vec::new());
            }
            positions.push((number, ranks[number].len()));
            ranks[number].push(rank);
        }
        Self { ranks, positions }
    }

    pub(super) fn ranks(&self) -> &[Vec<u32>] {
        &self.ranks
    }

    /// Groups these ranks by cluster, and keeps their order. All must exist.
    pub(super) fn by_cluster(&self, ranks: &[u32]) -> impl Iterator<Item = Vec<u32>> {
        let mut parts = BTreeMap::<usize, Vec<u32>>::new();
        for &rank in ranks {
            parts.entry(self.positions[rank as usize].0).or_default().push(rank);
        }
        parts.into_values()
    }

    /// A rank's index in its cluster.
    pub(super) fn index_of(&self, rank: u32) -> usize {
        self.positions[rank as usize].1
    }

    fn are_several(&self) -> bool {
        self.ranks.len() > 1
    }

    /// The other ranks of its cluster.
    fn neighbours(&self, rank: u32) -> impl Iterator<Item = u32> {
        let (cluster, _) = self.positions[rank as usize];
        self.ranks[cluster].iter().copied().filter(move |&other| other != rank)
    }

    /// The clusters other than this rank's.
    fn others(&self, rank: u32) -> impl Iterator<Item = &[u32]> {
        let (cluster, _) = self.positions[rank as usize];
        let others = self.ranks.iter().enumerate().filter(move |(number, _)| *number != cluster);
        others.map(|(_, ranks)| &ranks[..])
    }

    /// The rank of another cluster that forwards messages of this rank.
    fn partner(&self, rank: u32, cluster: &[u32]) -> u32 {
        cluster[self.positions[rank as usize].1 % cluster.len()]
    }

    /// The ranks of other clusters whose messages this rank forwards, in order.
    fn forwarded_by(&self, rank: u32) -> impl Iterator<Item = u32> {
        let (cluster, _) = self.positions[rank as usize];
        let own = &self.ranks[cluster];
        let all = self.others(rank).flatten().copied();
        all.filter(move |&other| self.partner(other, own) == rank)
    }

    pub(super) fn are_neighbours(&self, one: u32, other: u32) -> bool {
        let cluster = |rank: u32| self.positions.get(rank as usize).map(|(cluster, _)| cluster);
        cluster(one) == cluster(other)
    }
}

/// Several messages in one, in order. Those that do not fit are missing, and follow separately.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bundle(Vec<Option<Bytes>>);

impl Bundle {
    /// Bundles messages as far as they fit. Returns the others too, in order, each with its index.
    fn of(all: impl IntoIterator<Item = Bytes>) -> (Self, Vec<(usize, Bytes)>) {
        let (mut apart, mut room) = (Vec::new(), INLINE_MESSAGE_MAX);
        let mut keep = |(at, bytes): (usize, Bytes)| {
            let Some(less) = room.checked_sub(bytes.len()) else {
                apart.push((at, bytes));
                return None;
            };
            room = less;
            Some(bytes)
        };
        let kept = all.into_iter().enumerate().map(&mut keep).collect();
        (Self(kept), apart)
    }
}

impl Comm<'_> {
    fn get_bundle(&self, from: u32, tag: u32, count: usize) -> Result<Vec<Option<Bytes>>, Stop> {
        let Bundle(all) = wire::decode_payload(&self.get(from, tag)?)?;
        if all.len() == count {
            return Ok(all);
        }
        Err(Stop::fail(format_args!(
            "rank {from} forwards {} messages, but {count} are expected: all processes must \
             call the same operations in the same order",
            all.len()
        )))
    }

    /// Starts to share these bytes with all processes under this tag.
    ///
    /// [`Comm::take_shared`] returns what all share. Until then the process may do other work.
    ///
    /// # Errors
    /// The previous result under this tag has not been collected, the tag is 2^31 or above, or as
    /// for [`Comm::send`].
    pub fn share(&self, tag: u32, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        self.check_tag(tag)?;
        self.begin(tag, bytes.into())
    }

    /// What all processes shared under this tag, in order of rank. Waits for it, and forwards
    /// messages to neighbours.
    ///
    /// # Errors
    /// This process has shared nothing under this tag; or as for [`Comm::receive`].
    pub fn take_shared(&self, tag: u32) -> Result<Vec<Bytes>, Stop> {
        self.check_tag(tag)?;
        self.end(tag)
    }

    fn begin(&self, tag: u32, bytes: Bytes) -> Result<(), Stop> {
        let (rank, clusters) = (self.rank(), self.clusters());
        for to in clusters.neighbours(rank) {
            self.put(to, tag, bytes.clone())?;
        }
        for cluster in clusters.others(rank) {
            self.put(clusters.partner(rank, cluster), tag, bytes.clone())?;
        }
        let partial = PartialShare { own: bytes, forwarded: None };
        if self.sharing().borrow_mut().insert(tag, partial).is_some() {
            return Err(Stop::fail(format_args!(
                "the previous result under tag {tag} is not collected: call `shared` first"
            )));
        }
        Ok(())
    }

    /// Whether all shared bytes under this tag are here, so that [`Comm::take_shared`] does not
    /// wait.
    ///
    /// Call it from time to time during other work: it also forwards messages that neighbours wait
    /// for. Where messages are long it may wait briefly.
    ///
    /// # Errors
    /// As for [`Comm::take_shared`].
    pub fn is_share_ready(&self, tag: u32) -> Result<bool, Stop> {
        self.check_tag(tag)?;
        let (rank, clusters) = (self.rank(), self.clusters());
        if !self.has_forwarded(tag)? {
            if !clusters.forwarded_by(rank).all(|from| self.has(from, tag, 1)) {
                return Ok(false);
            }
            self.forward(tag)?;
        }
        // Each neighbour's own message and, if there are other clusters, those that it forwards.
        let count = if clusters.are_several() { 2 } else { 1 };
        Ok(clusters.neighbours(rank).all(|from| self.has(from, tag, count)))
    }

    fn has_forwarded(&self, tag: u32) -> Result<bool, Stop> {
        let sharing = self.sharing().borrow();
        let partial = sharing.get(&tag).ok_or_else(|| {
            Stop::fail(format_args!("nothing was shared here under tag {tag}: share first"))
        })?;
        Ok(partial.forwarded.is_some())
    }

    /// Waits for the messages that this process forwards, and forwards them.
    fn forward(&self, tag: u32) -> Result<(), Stop> {
        let (rank, clusters) = (self.rank(), self.clusters());
        let of = clusters.forwarded_by(rank).map(|from| self.get(from, tag));
        let forwarded = of.collect::<Result<Vec<_>, _>>()?;
        if clusters.are_several() {
            self.send_bundles(tag, clusters.neighbours(rank).map(|to| (to, forwarded.clone())))?;
        }
        if let Some(partial) = self.sharing().borrow_mut().get_mut(&tag) {
            partial.forwarded = Some(forwarded);
        }
        Ok(())
    }

    fn end(&self, tag: u32) -> Result<Vec<Bytes>, Stop> {
        let (rank, clusters) = (self.rank(), self.clusters());
        if !self.has_forwarded(tag)? {
            self.forward(tag)?;
        }
        let partial = self.sharing().borrow_mut().remove(&tag).unwrap_or_default();
        let mut all = vec![Bytes::new(); self.size() as usize];
        let wide = clusters.are_several();
        all[rank as usize] = partial.own;
        for (from, bytes) in
            clusters.forwarded_by(rank).zip(partial.forwarded.into_iter().flatten())
        {
            all[from as usize] = bytes;
        }
        for from in clusters.neighbours(rank) {
            all[from as usize] = self.get(from, tag)?;
            if wide {
                let of: Vec<u32> = clusters.forwarded_by(from).collect();
                let forwarded = self.get_bundle(from, tag, of.len())?;
                for (of, bytes) in of.into_iter().zip(forwarded) {
                    all[of as usize] = bytes.map_or_else(|| self.get(from, tag), Ok)?;
                }
            }
        }
        Ok(all)
    }

    /// Sends several messages to each of these processes.
    fn send_bundles(
        &self,
        tag: u32,
        all: impl IntoIterator<Item = (u32, Vec<Bytes>)>,
    ) -> Result<(), Stop> {
        for (to, messages) in all {
            let (bundle, apart) = Bundle::of(messages);
            self.put(to, tag, wire::encode_payload(&bundle)?)?;
            apart.into_iter().try_for_each(|(_, bytes)| self.put(to, tag, bytes))?;
        }
        Ok(())
    }

    /// Waits until all processes have called it.
    ///
    /// # Errors
    /// As for [`Comm::receive`].
    pub fn barrier(&self) -> Result<(), Stop> {
        self.gather(0, &())?;
        self.broadcast(0, Some(&())).map(drop)
    }

    /// Sends the value of rank `from` to all, and returns it. The other ranks pass `None`.
    ///
    /// # Errors
    /// Rank `from` passes no value, there is no such rank, the value does not serialise or has
    /// another type; or as for [`Comm::receive`].
    pub fn broadcast<T: Serialize + DeserializeOwned>(
        &self,
        from: u32,
        value: Option<&T>,
    ) -> Result<T, Stop> {
        self.check_rank(from)?;
        let (rank, clusters) = (self.rank(), self.clusters());
        let body = if rank == from {
            let Some(value) = value else {
                return Err(Stop::fail(format_args!(
                    "process {from} broadcasts and gives no value"
                )));
            };
            let body = wire::encode_payload(value)?;
            for cluster in clusters.others(rank) {
                self.put(clusters.partner(from, cluster), COLLECTIVE, body.clone())?;
            }
            body
        } else if clusters.are_neighbours(rank, from) {
            self.get(from, COLLECTIVE)?
        } else {
            let (own, _) = clusters.positions[rank as usize];
            let partner = clusters.partner(from, &clusters.ranks[own]);
            self.get(if partner == rank { from } else { partner }, COLLECTIVE)?
        };
        let here = rank == from
            || !clusters.are_neighbours(rank, from)
                && clusters.forwarded_by(rank).any(|of| of == from);
        if here {
            for to in clusters.neighbours(rank) {
                self.put(to, COLLECTIVE, body.clone())?;
            }
        }
        Ok(wire::decode_payload(&body)?)
    }

    /// Collects the values of all processes on rank `to`, in order of rank. Other ranks get `None`.
    ///
    /// # Errors
    /// A value does not serialise or has another type; or as for [`Comm::receive`].
    pub fn gather<T: Serialize + DeserializeOwned>(
        &self,
        to: u32,
        value: &T,
    ) -> Result<Option<Vec<T>>, Stop> {
        // Its own value too, so that all values are encoded and decoded alike.
        self.put(to, COLLECTIVE, wire::encode_payload(value)?)?;
        if self.rank() != to {
            return Ok(None);
        }
        (0..self.size())
            .map(|from| Ok(wire::decode_payload(&self.get(from, COLLECTIVE)?)?))
            .collect::<Result<_, Stop>>()
            .map(Some)
    }

    /// Collects the values of all processes on all ranks, in order of rank. Each process sends its
    /// value to each neighbour, and once to each other cluster.
    ///
    /// # Errors
    /// As for [`Comm::gather`].
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>, Stop> {
        self.begin(COLLECTIVE, wire::encode_payload(value)?)?;
        self.end(COLLECTIVE)?.iter().map(|body| Ok(wire::decode_payload(body)?)).collect()
    }

    /// Folds all values in order of rank, and returns the result on all ranks, bit for bit the
    /// same.
    ///
    /// # Errors
    /// As for [`Comm::gather`].
    pub fn all_reduce<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        fold: impl FnMut(T, T) -> T,
    ) -> Result<T, Stop> {
        let all = self.all_gather(value)?;
        all.into_iter().reduce(fold).ok_or_else(dissolved)
    }

    /// Gives each process its part, `parts` being in order of rank. Returns the parts that all gave
    /// to this process, in order of rank.
    ///
    /// # Errors
    /// The number of parts is not the number of processes; or as for [`Comm::receive`].
    pub fn all_to_all(&self, mut parts: Vec<Bytes>) -> Result<Vec<Bytes>, Stop> {
        let size = self.size();
        if parts.len() != size as usize {
            return Err(Stop::fail(format_args!(
                "{} parts for {size} processes: give one for each",
                parts.len()
            )));
        }
        let (rank, clusters) = (self.rank(), self.clusters());
        let mut all = vec![Bytes::new(); size as usize];
        all[rank as usize] = std::mem::take(&mut parts[rank as usize]);
        for to in clusters.neighbours(rank) {
            self.put(to, COLLECTIVE, std::mem::take(&mut parts[to as usize]))?;
        }
        for cluster in clusters.others(rank) {
            // Parts that do not fit go directly to their receivers.
            let parts = cluster.iter().map(|&to| std::mem::take(&mut parts[to as usize]));
            let (bundle, apart) = Bundle::of(parts);
            let body = wire::encode_payload(&bundle)?;
            self.put(clusters.partner(rank, cluster), COLLECTIVE, body)?;
            apart.into_iter().try_for_each(|(at, part)| self.put(cluster[at], COLLECTIVE, part))?;
        }
        // Parts of others for this cluster, by receiving neighbour.
        let (own, index) = clusters.positions[rank as usize];
        let own = &clusters.ranks[own];
        let mut long = Vec::new();
        let mut forwarded = vec![Vec::new(); own.len()];
        for from in clusters.forwarded_by(rank) {
            for (to, part) in
                forwarded.iter_mut().zip(self.get_bundle(from, COLLECTIVE, own.len())?)
            {
                to.push(part);
            }
        }
        let wide = clusters.are_several();
        for (&to, parts) in own.iter().zip(&mut forwarded) {
            if wide && to != rank {
                let bundle = Bundle(std::mem::take(parts));
                self.put(to, COLLECTIVE, wire::encode_payload(&bundle)?)?;
            }
        }
        let mut take = |of: u32, part: Option<Bytes>| match part {
            Some(part) => all[of as usize] = part,
            None => long.push(of),
        };
        let mine = std::mem::take(&mut forwarded[index]);
        clusters.forwarded_by(rank).zip(mine).for_each(|(of, part)| take(of, part));
        for from in clusters.neighbours(rank) {
            take(from, Some(self.get(from, COLLECTIVE)?));
            if wide {
                let of: Vec<u32> = clusters.forwarded_by(from).collect();
                let forwarded = self.get_bundle(from, COLLECTIVE, of.len())?;
                of.into_iter().zip(forwarded).for_each(|(of, part)| take(of, part));
            }
        }
        for from in long {
            all[from as usize] = self.get(from, COLLECTIVE)?;
        }
        Ok(all)
    }
}

/// Shared bytes that have not been collected, by tag.
pub(super) type Sharing = RefCell<BTreeMap<u32, PartialShare>>;

/// The state of a sharing operation under way.
#[derive(Debug, Default)]
pub(super) struct PartialShare {
    /// The bytes of this process.
    own: Bytes,
    /// What it forwarded to its neighbours, once it has.
    forwarded: Option<Vec<Bytes>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A message for all reaches each process once, and crosses each link once.
        #[test]
        fn each_process_receives_each_message_once(
            clusters in prop::collection::vec(0u8..4, 1..20),
        ) {
            let clusters = Clusters::new(clusters);
            let all = 0..clusters.positions.len() as u32;
            for from in all.clone() {
                let mut receivers = vec![from];
                receivers.extend(clusters.neighbours(from));
                for cluster in clusters.others(from) {
                    let partner = clusters.partner(from, cluster);
                    prop_assert!(cluster.contains(&partner));
                    receivers.push(partner);
                }
                let forwards = |&rank: &u32| clusters.forwarded_by(rank).any(|of| of == from);
                for forwarder in all.clone().filter(forwards) {
                    prop_assert!(receivers.contains(&forwarder));
                    prop_assert!(!clusters.are_neighbours(forwarder, from));
                    receivers.extend(clusters.neighbours(forwarder));
                }
                receivers.sort_unstable();
                prop_assert_eq!(receivers, all.clone().collect::<Vec<_>>());
            }
        }
    }
}
