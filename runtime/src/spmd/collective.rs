//! Operations of all processes, which cross each line between two clusters as seldom as can be.
//!
//! What one process has for all of another cluster is sent there once, to its *partner*, who passes it on to its own neighbours;
//! partners are dealt out evenly, so no single process has to pass on everything. Small parts for the processes of another
//! cluster travel together, too. (After T. Kielmann et al., *MagPIe: MPI's collective communication operations for clustered
//! wide area systems*, PPoPP 1999.) Each process must call the same operations in the same order. Must not know programs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::comm::{ALL, Comm, SHORT, torn};
use super::message::Roster;
use crate::wire;
use crate::work::Stop;

/// Who passes on what to whom: ranks by cluster, and the place of one of them.
#[derive(Debug)]
pub(super) struct Clusters {
    /// In order of each one's lowest rank; ranks in order.
    ranks: Vec<Vec<u32>>,
    /// The cluster of each rank, and its place there.
    places: Vec<(usize, usize)>,
}

impl Clusters {
    pub(super) fn of(roster: &Roster) -> Self {
        Self::new(roster.members.iter().map(|member| &member.peer.cluster))
    }

    fn new<C: Ord>(clusters: impl IntoIterator<Item = C>) -> Self {
        let (mut ranks, mut places) = (Vec::<Vec<u32>>::new(), Vec::new());
        let mut known = BTreeMap::new();
        for (rank, cluster) in (0..).zip(clusters) {
            let number = *known.entry(cluster).or_insert(ranks.len());
            if number == ranks.len() {
                ranks.push(Vec::new());
            }
            places.push((number, ranks[number].len()));
            ranks[number].push(rank);
        }
        Self { ranks, places }
    }

    pub(super) fn ranks(&self) -> &[Vec<u32>] {
        &self.ranks
    }

    /// Of these ranks those of each cluster, in their order. All must be some.
    pub(super) fn parted(&self, ranks: &[u32]) -> impl Iterator<Item = Vec<u32>> {
        let mut parts = BTreeMap::<usize, Vec<u32>>::new();
        for &rank in ranks {
            parts.entry(self.places[rank as usize].0).or_default().push(rank);
        }
        parts.into_values()
    }

    /// A rank's place in its cluster.
    pub(super) fn place(&self, rank: u32) -> usize {
        self.places[rank as usize].1
    }

    fn are_several(&self) -> bool {
        self.ranks.len() > 1
    }

    /// The others of its cluster.
    fn neighbours(&self, rank: u32) -> impl Iterator<Item = u32> {
        let (cluster, _) = self.places[rank as usize];
        self.ranks[cluster].iter().copied().filter(move |&other| other != rank)
    }

    /// The other clusters than this rank's.
    fn others(&self, rank: u32) -> impl Iterator<Item = &[u32]> {
        let (cluster, _) = self.places[rank as usize];
        let others = self.ranks.iter().enumerate().filter(move |(number, _)| *number != cluster);
        others.map(|(_, ranks)| &ranks[..])
    }

    /// Who of another cluster passes on what this rank has for it.
    fn partner(&self, rank: u32, cluster: &[u32]) -> u32 {
        cluster[self.places[rank as usize].1 % cluster.len()]
    }

    /// Those of other clusters whose partner in its own this rank is, in order.
    fn passes_on(&self, rank: u32) -> impl Iterator<Item = u32> {
        let (cluster, _) = self.places[rank as usize];
        let own = &self.ranks[cluster];
        let of_all = self.others(rank).flatten().copied();
        of_all.filter(move |&other| self.partner(other, own) == rank)
    }

    pub(super) fn are_neighbours(&self, one: u32, other: u32) -> bool {
        let cluster = |rank: u32| self.places.get(rank as usize).map(|(cluster, _)| cluster);
        cluster(one) == cluster(other)
    }
}

/// Several messages in one, in order, as far as there is room; those that are missing follow by themselves.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bundle(Vec<Option<Bytes>>);

impl Bundle {
    /// With those apart for which there is no room, in order; each with its place among all.
    fn of(all: impl IntoIterator<Item = Bytes>) -> (Self, Vec<(usize, Bytes)>) {
        let (mut apart, mut room) = (Vec::new(), SHORT);
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
            "rank {from} passes on {} messages where there should be {count}: all processes must take part in the same \
             operations in the same order",
            all.len()
        )))
    }

    /// Begins to give these bytes to all, under this tag. What all give is had by [`Comm::shared`]; in between a process can do other things.
    ///
    /// # Errors
    /// If what was shared under this tag before has not been had, the tag is 2^31 or above, or as [`Comm::send`].
    pub fn share(&self, tag: u32, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        self.check_tag(tag)?;
        self.begin(tag, bytes.into())
    }

    /// What all gave under this tag, in order of rank. Waits for it, and passes on what the neighbours are to have.
    ///
    /// # Errors
    /// If this process shared nothing under this tag; or as [`Comm::receive`].
    pub fn shared(&self, tag: u32) -> Result<Vec<Bytes>, Stop> {
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
        let half = Half { own: bytes, passed: None };
        if self.sharing().borrow_mut().insert(tag, half).is_some() {
            return Err(Stop::fail(format_args!(
                "what was shared under tag {tag} before has to be had first"
            )));
        }
        Ok(())
    }

    /// Whether what all gave under this tag is here, so that [`Comm::shared`] need not wait; passes on what has come, for neighbours
    /// wait for it. To be asked now and then by who has something else to do. (Where messages are long it may still wait a bit.)
    ///
    /// # Errors
    /// As [`Comm::shared`].
    pub fn is_shared(&self, tag: u32) -> Result<bool, Stop> {
        self.check_tag(tag)?;
        let (rank, clusters) = (self.rank(), self.clusters());
        if !self.has_passed(tag)? {
            if !clusters.passes_on(rank).all(|from| self.has(from, tag, 1)) {
                return Ok(false);
            }
            self.pass(tag)?;
        }
        // Its own message and, where there are other clusters, those that it passes on.
        let count = if clusters.are_several() { 2 } else { 1 };
        Ok(clusters.neighbours(rank).all(|from| self.has(from, tag, count)))
    }

    fn has_passed(&self, tag: u32) -> Result<bool, Stop> {
        let sharing = self.sharing().borrow();
        let half = sharing.get(&tag).ok_or_else(|| {
            Stop::fail(format_args!("nothing was shared here under tag {tag}: share first"))
        })?;
        Ok(half.passed.is_some())
    }

    /// Waits for what others want this process to pass on, and does.
    fn pass(&self, tag: u32) -> Result<(), Stop> {
        let (rank, clusters) = (self.rank(), self.clusters());
        let of = clusters.passes_on(rank).map(|from| self.get(from, tag));
        let passed = of.collect::<Result<Vec<_>, _>>()?;
        if clusters.are_several() {
            self.pass_on(tag, clusters.neighbours(rank).map(|to| (to, passed.clone())))?;
        }
        if let Some(half) = self.sharing().borrow_mut().get_mut(&tag) {
            half.passed = Some(passed);
        }
        Ok(())
    }

    fn end(&self, tag: u32) -> Result<Vec<Bytes>, Stop> {
        let (rank, clusters) = (self.rank(), self.clusters());
        if !self.has_passed(tag)? {
            self.pass(tag)?;
        }
        let half = self.sharing().borrow_mut().remove(&tag).unwrap_or_default();
        let mut all = vec![Bytes::new(); self.size() as usize];
        let wide = clusters.are_several();
        all[rank as usize] = half.own;
        for (from, bytes) in clusters.passes_on(rank).zip(half.passed.into_iter().flatten()) {
            all[from as usize] = bytes;
        }
        for from in clusters.neighbours(rank) {
            all[from as usize] = self.get(from, tag)?;
            if wide {
                let of: Vec<u32> = clusters.passes_on(from).collect();
                let passed = self.get_bundle(from, tag, of.len())?;
                for (of, bytes) in of.into_iter().zip(passed) {
                    all[of as usize] = bytes.map_or_else(|| self.get(from, tag), Ok)?;
                }
            }
        }
        Ok(all)
    }

    /// Sends each of these processes several messages.
    fn pass_on(
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

    /// Waits until all have come here.
    ///
    /// # Errors
    /// As [`Comm::receive`].
    pub fn barrier(&self) -> Result<(), Stop> {
        self.gather(0, &())?;
        self.broadcast(0, Some(&())).map(drop)
    }

    /// The value of process `from`, for all. The others give none.
    ///
    /// # Errors
    /// If `from` gives none, there is no such rank, the value does not serialise or is none of this type; or as [`Comm::receive`].
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
                self.put(clusters.partner(from, cluster), ALL, body.clone())?;
            }
            body
        } else if clusters.are_neighbours(rank, from) {
            self.get(from, ALL)?
        } else {
            let (own, _) = clusters.places[rank as usize];
            let partner = clusters.partner(from, &clusters.ranks[own]);
            self.get(if partner == rank { from } else { partner }, ALL)?
        };
        let here = rank == from
            || !clusters.are_neighbours(rank, from)
                && clusters.passes_on(rank).any(|of| of == from);
        if here {
            for to in clusters.neighbours(rank) {
                self.put(to, ALL, body.clone())?;
            }
        }
        Ok(wire::decode_payload(&body)?)
    }

    /// The values of all processes in order of rank, for process `to`; the others get none.
    ///
    /// # Errors
    /// If a value does not serialise or is none of this type; or as [`Comm::receive`].
    pub fn gather<T: Serialize + DeserializeOwned>(
        &self,
        to: u32,
        value: &T,
    ) -> Result<Option<Vec<T>>, Stop> {
        // Its own too, so that all values have gone the same way.
        self.put(to, ALL, wire::encode_payload(value)?)?;
        if self.rank() != to {
            return Ok(None);
        }
        (0..self.size())
            .map(|from| Ok(wire::decode_payload(&self.get(from, ALL)?)?))
            .collect::<Result<_, Stop>>()
            .map(Some)
    }

    /// The values of all processes in order of rank, for all. Each sends its own to each of its cluster, and once to each other cluster.
    ///
    /// # Errors
    /// As [`Comm::gather`].
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>, Stop> {
        self.begin(ALL, wire::encode_payload(value)?)?;
        self.end(ALL)?.iter().map(|body| Ok(wire::decode_payload(body)?)).collect()
    }

    /// All values folded into one, in order of rank, for all: the same bits everywhere.
    ///
    /// # Errors
    /// As [`Comm::gather`].
    pub fn all_reduce<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        fold: impl FnMut(T, T) -> T,
    ) -> Result<T, Stop> {
        let all = self.all_gather(value)?;
        all.into_iter().reduce(fold).ok_or_else(torn)
    }

    /// Gives each process its part, `parts` in order of rank; returns what each gave to this one, in order of rank.
    ///
    /// # Errors
    /// If there is not one part for each; or as [`Comm::receive`].
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
            self.put(to, ALL, std::mem::take(&mut parts[to as usize]))?;
        }
        for cluster in clusters.others(rank) {
            // Those for which there is no room go straight to whom they are for.
            let parts = cluster.iter().map(|&to| std::mem::take(&mut parts[to as usize]));
            let (bundle, apart) = Bundle::of(parts);
            let body = wire::encode_payload(&bundle)?;
            self.put(clusters.partner(rank, cluster), ALL, body)?;
            apart.into_iter().try_for_each(|(at, part)| self.put(cluster[at], ALL, part))?;
        }
        // What others have for this cluster, by the neighbours that it is for.
        let (own, place) = clusters.places[rank as usize];
        let own = &clusters.ranks[own];
        let mut long = Vec::new();
        let mut passed = vec![Vec::new(); own.len()];
        for from in clusters.passes_on(rank) {
            for (to, part) in passed.iter_mut().zip(self.get_bundle(from, ALL, own.len())?) {
                to.push(part);
            }
        }
        let wide = clusters.are_several();
        for (&to, parts) in own.iter().zip(&mut passed) {
            if wide && to != rank {
                let bundle = Bundle(std::mem::take(parts));
                self.put(to, ALL, wire::encode_payload(&bundle)?)?;
            }
        }
        let mut take = |of: u32, part: Option<Bytes>| match part {
            Some(part) => all[of as usize] = part,
            None => long.push(of),
        };
        let mine = std::mem::take(&mut passed[place]);
        clusters.passes_on(rank).zip(mine).for_each(|(of, part)| take(of, part));
        for from in clusters.neighbours(rank) {
            take(from, Some(self.get(from, ALL)?));
            if wide {
                let of: Vec<u32> = clusters.passes_on(from).collect();
                let passed = self.get_bundle(from, ALL, of.len())?;
                of.into_iter().zip(passed).for_each(|(of, part)| take(of, part));
            }
        }
        for from in long {
            all[from as usize] = self.get(from, ALL)?;
        }
        Ok(all)
    }
}

/// What was shared and not yet had, by tag.
pub(super) type Sharing = RefCell<BTreeMap<u32, Half>>;

/// Of an operation of all that has begun.
#[derive(Debug, Default)]
pub(super) struct Half {
    /// What this process gives.
    own: Bytes,
    /// What it passed on to its neighbours, once it has.
    passed: Option<Vec<Bytes>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever one has for all reaches each of them once, over each line once.
        #[test]
        fn each_hears_of_each_once(clusters in prop::collection::vec(0u8..4, 1..20)) {
            let clusters = Clusters::new(clusters);
            let all = 0..clusters.places.len() as u32;
            for from in all.clone() {
                let mut heard = vec![from];
                heard.extend(clusters.neighbours(from));
                for cluster in clusters.others(from) {
                    let partner = clusters.partner(from, cluster);
                    prop_assert!(cluster.contains(&partner));
                    heard.push(partner);
                }
                for passes in all.clone().filter(|&rank| clusters.passes_on(rank).any(|of| of == from)) {
                    prop_assert!(heard.contains(&passes) && !clusters.are_neighbours(passes, from));
                    heard.extend(clusters.neighbours(passes));
                }
                heard.sort_unstable();
                prop_assert_eq!(heard, all.clone().collect::<Vec<_>>());
            }
        }
    }
}
