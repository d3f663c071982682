//! A tree whose bodies lie on several nodes: each node holds some blocks, the sums of all others,
//! and the bodies of those nearby.
//!
//! A *block* is the first cell on the way down with at most the bodies of a block's groups. Blocks
//! are those of the whole tree, in the order of their keys, independently of their owner. Keys
//! alone determine the cells above blocks ([`BlockInfo`] has enough of each block for that) and
//! those within ([`Branch`]).
//!
//! From these and from [`Sums`](crate::tree::Sums) a node makes a [`Tree`](crate::tree::Tree). It
//! has the cells and bits of the whole tree, without the contents of absent blocks, and a walk
//! meets them in the same order. So forces on own groups have the bits of a single node's, or the
//! missing blocks are reported.
//!
//! This module depends on neither the owners of blocks nor messages.

mod assemble;
mod blocks;
mod branch;
mod encoded_positions;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use self::assemble::{add, assemble};
pub(crate) use self::blocks::{
    BlockInfo, blocks, bodies_of, joined, merged, most_bodies, pieces, roots,
};
pub(crate) use self::branch::Branch;
pub(crate) use self::encoded_positions::{EncodedPositions, FormerViews, Reference};
pub(crate) use self::view::{RemoteBranch, Subscriber, Subscription, around};
