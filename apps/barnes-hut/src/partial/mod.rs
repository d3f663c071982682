//! A tree whose bodies lie on several nodes: each holds blocks of its own, knows the sums of all others, and has bodies of
//! those that are near.
//!
//! A *block* is the first cell on the way down that has no more bodies than the groups of a block may have together, so
//! blocks are those of the whole tree, in the order of their keys, and wherever they lie. Of keys alone follow the cells above them
//! ([`Info`] says enough of each block for that) and those within ([`Branch`]). What a node makes of these and of
//! [`Sums`](crate::tree::Sums) is a [`Tree`](crate::tree::Tree) with the cells of the whole one and with their bits, less what is in blocks
//! that are not there, and a walk meets them in the same order: forces on its own groups come out as they would on one node, or it is said which blocks are missing.
//!
//! Knows nothing of who holds which blocks, nor of messages.

mod assemble;
mod blocks;
mod branch;
mod places;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use self::assemble::{add, assemble};
pub(crate) use self::blocks::{
    Info, blocks, bodies_of, joined, merged, most_bodies, pieces, roots,
};
pub(crate) use self::branch::Branch;
pub(crate) use self::places::{Past, Places, Reference};
pub(crate) use self::view::{Other, Sink, View, around};
