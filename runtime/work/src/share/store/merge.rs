//! Merged objects: values that only grow in their lattice, sent on when they change, coalesced per
//! link.
//!
//! A node sends changes to its cluster's coordinator, which sends them to the other coordinators
//! and its members. A coordinator forwards another's changes only to its members, since the sender
//! informs the other coordinators itself. When a coordinator changes, every link starts from zero,
//! so that changes in flight through the old one are not lost.

use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::{FrameError, NodeId, Store, plan};
use crate::membership::View;
use crate::share::api::ShareError;
use crate::share::message::{Merge, Message};
use crate::share::types::{CodecError, ObjectKind, ObjectValue};

/// The bound on encoded values, so that with job and name they fit the kind's limit of 4 MiB.
pub(in crate::share) const MERGED_MAX: usize = (4 << 20) - 1024;

#[derive(Default)]
pub(super) struct MergedObject {
    value: Option<ObjectValue>,
    /// Counts the changes of the value.
    generation: u64,
    /// An encoded value with its generation.
    encoded: Option<(u64, Bytes)>,
    /// The nodes to which this node sends changes.
    links: BTreeMap<NodeId, NeighbourState>,
}

/// The state of a neighbour in the tree.
#[derive(Clone, Copy)]
struct NeighbourState {
    /// The newest generation that was sent, or is known to be there.
    known: u64,
    /// The earliest time of the next update.
    next: Option<Instant>,
}

impl Store {
    /// The value of a merged object, if there is any yet.
    pub fn merged(&self, object: usize) -> Option<ObjectValue> {
        self.merged.get(&object)?.value.clone()
    }

    /// Merges a value of this node. Returns whether it changed the object.
    pub fn merge(&mut self, object: usize, value: ObjectValue) -> Result<bool, ShareError> {
        let changed = self.merge_in(object, value)?;
        if changed {
            let name = self.types[object].name;
            if let Some(len) = self.encode_merged(object)?.map(|bytes| bytes.len())
                && len > MERGED_MAX
            {
                return Err(ShareError::TooLarge { name, len, max: MERGED_MAX });
            }
        }
        Ok(changed)
    }

    pub(super) fn on_merge(&mut self, from: &NodeId, merge: &Merge) -> Result<(), FrameError> {
        let object = self
            .object(&merge.name)
            .filter(|object| self.merged.contains_key(object))
            .ok_or_else(|| FrameError::Object(merge.name.clone()))?;
        if merge.data.len() > MERGED_MAX {
            return Err(FrameError::Range("a merged value over its limit"));
        }
        let ty = self.types[object];
        let other = (ty.decode)(&merge.data)?;
        let before = self.merged.get(&object).map_or(0, |object| object.generation);
        let changed = self.merge_in(object, other.clone())?;
        let wide = self.is_wide(from);
        let view = &self.view;
        let cluster = self.cluster.as_ref();
        let Some(state) = self.merged.get_mut(&object) else { return Ok(()) };
        let Some(value) = &state.value else { return Ok(()) };
        if changed && wide {
            // The other coordinators get it from its sender.
            for (node, link) in &mut state.links {
                let far = view.cluster_of(node).is_some_and(|c| Some(c) != cluster);
                if far && link.known == before {
                    link.known = state.generation;
                }
            }
        }
        if let Some(link) = state.links.get_mut(from) {
            let ObjectKind::Merged(merge) = ty.shape else { return Ok(()) };
            if merge(&*other, &**value)?.is_none() {
                link.known = state.generation;
            } else if link.known == state.generation && changed {
                // The neighbour lacks a part of the merge.
                link.known = before;
            }
        }
        Ok(())
    }

    fn merge_in(&mut self, object: usize, value: ObjectValue) -> Result<bool, CodecError> {
        let ty = self.types[object];
        let (Some(state), ObjectKind::Merged(merge)) = (self.merged.get_mut(&object), ty.shape)
        else {
            return Ok(false);
        };
        let new = match &state.value {
            Some(old) => merge(&**old, &*value)?,
            None => Some(value),
        };
        let Some(new) = new else { return Ok(false) };
        state.value = Some(new);
        state.generation += 1;
        self.stats.merges += 1;
        Ok(true)
    }

    fn encode_merged(&mut self, object: usize) -> Result<Option<Bytes>, CodecError> {
        let ty = self.types[object];
        let Some(state) = self.merged.get_mut(&object) else { return Ok(None) };
        let Some(value) = &state.value else { return Ok(None) };
        match &state.encoded {
            Some((generation, bytes)) if *generation == state.generation => Ok(Some(bytes.clone())),
            _ => {
                let bytes = (ty.encode)(&**value)?;
                state.encoded = Some((state.generation, bytes.clone()));
                Ok(Some(bytes))
            }
        }
    }

    /// Updates the links after a change of the view.
    pub(super) fn relink_merges(&mut self, old: &View) {
        let mut nodes: Vec<NodeId> = Vec::new();
        if self.my_relay() == Some(&self.me) {
            nodes.extend(self.neighbours());
            let relays = plan::other_relays(&self.view, self.cluster.as_ref());
            nodes.extend(relays.into_iter().cloned());
        } else {
            nodes.extend(self.my_relay().cloned());
        }
        let incarnation =
            |view: &View, node: &NodeId| view.members.get(node).map(|m| m.incarnation);
        let relays = |view: &View| -> Vec<_> {
            plan::other_relays(view, None)
                .into_iter()
                .map(|node| (node.clone(), incarnation(view, node)))
                .collect()
        };
        let restart = relays(old) != relays(&self.view);
        for state in self.merged.values_mut() {
            let links = std::mem::take(&mut state.links);
            state.links = nodes
                .iter()
                .map(|node| {
                    let same = !restart && incarnation(old, node) == incarnation(&self.view, node);
                    let link = links.get(node).copied().filter(|_| same);
                    (node.clone(), link.unwrap_or(NeighbourState { known: 0, next: None }))
                })
                .collect();
        }
    }

    /// Resets the link to a node, since messages to it may be lost.
    pub(super) fn unlink_merges(&mut self, node: &NodeId) {
        for state in self.merged.values_mut() {
            if let Some(link) = state.links.get_mut(node) {
                link.known = 0;
            }
        }
    }

    /// Sends changes to neighbours that lack them, if their links may be used again.
    pub(super) fn flush_merges(&mut self, now: Instant) {
        let objects: Vec<usize> = self.merged.keys().copied().collect();
        for object in objects {
            let Some(state) = self.merged.get(&object) else { continue };
            let to: Vec<NodeId> = state
                .links
                .iter()
                .filter(|(_, link)| link.known < state.generation)
                .filter(|(_, link)| link.next.is_none_or(|next| next <= now))
                .map(|(node, _)| node.clone())
                .collect();
            if to.is_empty() {
                continue;
            }
            let waits: Vec<_> = to
                .iter()
                .map(|node| {
                    if self.is_wide(node) {
                        self.config.merge_wide
                    } else {
                        self.config.merge_local
                    }
                })
                .collect();
            // A value that cannot be encoded stays on this node; `merge` has returned the error.
            let data = self.encode_merged(object).ok().flatten();
            let data = data.filter(|data| data.len() <= MERGED_MAX);
            let Some(state) = self.merged.get_mut(&object) else { continue };
            for (node, wait) in to.iter().zip(waits) {
                if let Some(link) = state.links.get_mut(node) {
                    *link = NeighbourState { known: state.generation, next: Some(now + wait) };
                }
            }
            let Some(data) = data else { continue };
            self.stats.merges_sent += to.len() as u64;
            let name = self.types[object].name.to_owned();
            self.send(to, Message::Merge(Merge { job: self.job, name, data }));
        }
    }

    /// The next time at which a link with unsent changes may be used.
    pub(super) fn next_merge(&self) -> Option<Instant> {
        self.merged
            .values()
            .flat_map(|state| state.links.values().filter(|link| link.known < state.generation))
            .filter_map(|link| link.next)
            .min()
    }
}
