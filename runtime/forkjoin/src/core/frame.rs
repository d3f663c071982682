//! Frames of running tasks: each task's place in its tree.
//!
//! # Why reading a frame is safe
//!
//! Only this module and the engine create frames. A frame is on the stack of its running task, in
//! the task's [`Scope`](super::scope::Scope), or its parent's frame is named by a slot. Each task
//! waits for its children, so the frames above are alive as long as the frame. The crate hands
//! frames out by reference alone: of the calling task, of a slot that the caller holds, or of a
//! task that waits on the caller's stack. A frame is immutable while others may read it, so an
//! exporter may traverse it while the task runs.

use std::marker::PhantomData;

use super::layer::ComputeThread;

/// A running task's place in the tree.
///
/// It consists of two full words because every join writes two frames. A narrower store followed by
/// a wide load stalls each join by some 15 cycles (measured: 70 % of the time of `fib`).
pub struct TaskFrame<W: ComputeThread> {
    /// The parent's frame, or the tree for its top task.
    parent: *const (),
    /// The index among the parent's children; [`TOP`] for the top task.
    index: u64,
    layer: PhantomData<*const W>,
}

const TOP: u64 = u64::MAX;

impl<W: ComputeThread> TaskFrame<W> {
    /// The frame of a tree's top task. The tree outlives it.
    pub(super) fn top(tree: &W::Tree) -> Self {
        Self { parent: std::ptr::from_ref(tree).cast(), index: TOP, layer: PhantomData }
    }

    /// The frame of child `index` of the task in `parent`, which outlives it.
    #[inline(always)]
    pub(super) fn child(parent: *const Self, index: u32) -> Self {
        Self { parent: parent.cast(), index: index.into(), layer: PhantomData }
    }

    /// Turns this into the frame of another child of the same parent. No other thread reads the
    /// frame meanwhile: all descendants of the former child have ended.
    #[inline(always)]
    pub(super) fn renew(&mut self, index: u32) {
        self.index = index.into();
    }

    /// The parent's frame, or the tree of the top task.
    #[inline]
    pub fn parent_or_tree(&self) -> Result<&Self, &W::Tree> {
        if self.index == TOP {
            // SAFETY: only `top` creates frames with this index, from a tree, which outlives every
            // frame of it.
            Err(unsafe { &*self.parent.cast::<W::Tree>() })
        } else {
            // SAFETY: `child` created the frame, and the parent waits for it (see the module).
            Ok(unsafe { &*self.parent.cast::<Self>() })
        }
    }

    /// The parent's frame; `None` for a tree's top task.
    pub fn parent(&self) -> Option<&Self> {
        self.parent_or_tree().ok()
    }

    /// The tree, if this is the frame of its top task.
    pub fn top_of(&self) -> Option<&W::Tree> {
        self.parent_or_tree().err()
    }

    /// The index among the parent's children. With the frame's address it identifies the task while
    /// the parent runs.
    #[inline]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The tree of the task.
    pub fn tree(&self) -> &W::Tree {
        let mut frame = self;
        loop {
            match frame.parent_or_tree() {
                Ok(parent) => frame = parent,
                Err(tree) => return tree,
            }
        }
    }

    /// The tree, and the indices on the path from its top task to this task.
    pub fn indices(&self) -> (&W::Tree, Vec<u32>) {
        let mut indices = Vec::new();
        let mut frame = self;
        loop {
            match frame.parent_or_tree() {
                Ok(parent) => {
                    indices.push(frame.index as u32);
                    frame = parent;
                }
                Err(tree) => {
                    indices.reverse();
                    return (tree, indices);
                }
            }
        }
    }

    /// The place of this task's child `index`.
    #[inline]
    pub fn child_place(&self, index: u32) -> Place<'_, W> {
        Place { parent: self, index }
    }
}

/// The place of a child in its tree.
pub struct Place<'a, W: ComputeThread> {
    /// The frame of the child's parent, which waits for the child.
    pub parent: &'a TaskFrame<W>,
    /// The index among the parent's children.
    pub index: u32,
}

impl<'a, W: ComputeThread> Place<'a, W> {
    /// The tree of the child.
    pub fn tree(&self) -> &'a W::Tree {
        self.parent.tree()
    }

    /// The tree, and the indices on the path from its top task to the child.
    pub fn indices(&self) -> (&'a W::Tree, Vec<u32>) {
        let (tree, mut indices) = self.parent.indices();
        indices.push(self.index);
        (tree, indices)
    }
}

impl<W: ComputeThread> Clone for Place<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: ComputeThread> Copy for Place<'_, W> {}
