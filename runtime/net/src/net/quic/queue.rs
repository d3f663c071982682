//! The bounded queue of frames to one peer in one class, with its counters.
//!
//! Any thread fills it; one writer on the endpoint's thread empties it. A full queue refuses
//! frames, and notifies the sender once when it is at most half full again. Nothing blocks, and
//! memory is bounded.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::net::ClassStats;
use crate::wire::{Frame, HEADER_LEN};

/// Maximum number of frames in one write.
///
/// It suffices to fill packets and to amortise a wake-up over many small messages. It is small
/// enough that a later frame of a more urgent class does not wait long.
pub(super) const BATCH_FRAMES: usize = 64;
/// Maximum number of bytes in one write.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// A bounded queue of frames.
pub(super) struct FrameQueue {
    inner: Mutex<QueueState>,
    /// Wakes the writer when the queue is no longer empty.
    pub filled: Notify,
    frames_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct QueueState {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Whether a frame was refused and the sender is to be notified of free space.
    refused: bool,
    stats: ClassStats,
}

/// The result of taking a batch from a queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TakeResult {
    /// The queue is empty.
    Empty,
    /// Frames were appended. `drained`: the sender must be notified of free space.
    Frames { drained: bool },
}

impl FrameQueue {
    pub fn new(frames_max: usize, bytes_max: usize) -> Self {
        Self { inner: Mutex::default(), filled: Notify::new(), frames_max, bytes_max }
    }

    /// Appends a frame, unless the queue is full. An empty queue accepts any frame.
    pub fn push(&self, frame: Frame) -> Result<(), Frame> {
        let len = frame.wire_len();
        let mut inner = self.lock();
        let full = inner.frames.len() >= self.frames_max || inner.bytes + len > self.bytes_max;
        if full && !inner.frames.is_empty() {
            inner.refused = true;
            inner.stats.full += 1;
            return Err(frame);
        }
        inner.bytes += len;
        inner.frames.push_back(frame);
        let first = inner.frames.len() == 1;
        drop(inner);
        if first {
            // For later frames the writer is awake, and runs until the queue is empty.
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Number of bytes that the queue would still accept.
    pub fn room(&self) -> usize {
        let inner = self.lock();
        if inner.frames.len() >= self.frames_max {
            return 0;
        }
        self.bytes_max.saturating_sub(inner.bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.lock().frames.is_empty()
    }

    /// Moves the frames of one write into `batch` and counts them as written.
    pub fn take(&self, batch: &mut Vec<Frame>) -> TakeResult {
        let mut inner = self.lock();
        let mut bytes = 0;
        while batch.len() < BATCH_FRAMES
            && let Some(frame) = inner.frames.front()
            && (bytes == 0 || bytes + frame.wire_len() <= BATCH_BYTES)
        {
            bytes += frame.wire_len();
            batch.extend(inner.frames.pop_front());
        }
        if batch.is_empty() {
            return TakeResult::Empty;
        }
        inner.bytes -= bytes;
        inner.stats.frames_out += batch.len() as u64;
        inner.stats.bytes_out += (bytes - batch.len() * HEADER_LEN) as u64;
        let under_half =
            inner.bytes <= self.bytes_max / 2 && inner.frames.len() <= self.frames_max / 2;
        let drained = under_half && std::mem::take(&mut inner.refused);
        TakeResult::Frames { drained }
    }

    /// Empties the queue and returns its unsent frames, and whether a refused sender must be
    /// notified.
    pub fn take_unsent(&self) -> (VecDeque<Frame>, bool) {
        let mut inner = self.lock();
        inner.bytes = 0;
        let frames = std::mem::take(&mut inner.frames);
        inner.stats.dropped += frames.len() as u64;
        let drained = std::mem::take(&mut inner.refused);
        (frames, drained)
    }

    pub fn count_in(&self, frames: u64, bytes: u64) {
        let mut inner = self.lock();
        inner.stats.frames_in += frames;
        inner.stats.bytes_in += bytes;
    }

    pub fn stats(&self) -> ClassStats {
        let inner = self.lock();
        ClassStats {
            queued_frames: inner.frames.len() as u64,
            queued_bytes: inner.bytes as u64,
            ..inner.stats
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No step can panic half way, so the content of a poisoned lock is consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    fn frame(len: usize) -> Frame {
        Frame::new(Kind::TELL, vec![0; len])
    }

    #[test]
    fn the_queue_is_bounded_and_notifies_when_half_empty() {
        let queue = FrameQueue::new(200, 1 << 20);
        for _ in 0..200 {
            queue.push(frame(10)).unwrap();
        }
        assert_eq!(queue.room(), 0);
        assert!(queue.push(frame(10)).is_err());
        assert!(queue.push(frame(10)).is_err());
        let mut notified = Vec::new();
        let mut batch = Vec::new();
        while let TakeResult::Frames { drained } = queue.take(&mut batch) {
            assert!(batch.len() <= BATCH_FRAMES);
            batch.clear();
            notified.push(drained);
        }
        assert_eq!(notified, [false, true, false, false]);
        let stats = queue.stats();
        assert_eq!((stats.frames_out, stats.bytes_out, stats.full), (200, 2000, 2));

        let queue = FrameQueue::new(200, 1000);
        queue.push(frame(600)).unwrap();
        assert_eq!(queue.room(), 1000 - 608);
        assert!(queue.push(frame(385)).is_err());
        queue.push(frame(384)).unwrap();
        assert_eq!(queue.room(), 0);
        let (back, notified) = queue.take_unsent();
        assert_eq!((back.len(), notified, queue.stats().dropped, queue.room()), (2, true, 2, 1000));
        queue.push(frame(5000)).expect("an empty queue accepts any frame");
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_and_keeps_the_order() {
        let queue = FrameQueue::new(200, 8 << 20);
        for i in 0..10u8 {
            queue.push(Frame::new(Kind::TELL, vec![i; 20 << 10])).unwrap();
        }
        let mut seen = Vec::new();
        let mut batch = Vec::new();
        while queue.take(&mut batch) != TakeResult::Empty {
            assert!(batch.iter().map(Frame::wire_len).sum::<usize>() <= BATCH_BYTES);
            seen.extend(batch.drain(..).map(|f| f.body[0]));
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}
