//! The bounded queue of frames to one peer in one class, and its counters.
//!
//! Filled from any thread, emptied by one writer on the endpoint's thread. When it is full a frame is refused, and the
//! sender is told once when it is under half again: nothing waits, nothing grows.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::net::ClassStats;
use crate::wire::{Frame, HEADER_LEN};

/// Most frames and bytes taken for one write: enough to fill packets and to spread a wake-up over many small messages,
/// small enough that a later frame of a more urgent class does not wait long.
pub(super) const BATCH_FRAMES: usize = 64;
pub(super) const BATCH_BYTES: usize = 64 << 10;

pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Wakes the writer.
    pub filled: Notify,
    frames_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Inner {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// A frame was refused and the sender not yet told that there is room.
    refused: bool,
    stats: ClassStats,
}

/// What a writer got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Nothing waits.
    None,
    /// Frames were appended; `drained`: the sender must be told that there is room again.
    Some { drained: bool },
}

impl Queue {
    pub fn new(frames_max: usize, bytes_max: usize) -> Self {
        Self { inner: Mutex::default(), filled: Notify::new(), frames_max, bytes_max }
    }

    /// Takes a frame in, unless it is full. An empty queue takes any frame.
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
            self.filled.notify_one(); // later frames find a writer that is awake, and takes until nothing is left
        }
        Ok(())
    }

    /// Bytes that would still be taken.
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

    /// Moves a batch for one write into `batch` and counts it as written.
    pub fn take(&self, batch: &mut Vec<Frame>) -> Taken {
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
            return Taken::None;
        }
        inner.bytes -= bytes;
        inner.stats.frames_out += batch.len() as u64;
        inner.stats.bytes_out += (bytes - batch.len() * HEADER_LEN) as u64;
        let under_half =
            inner.bytes <= self.bytes_max / 2 && inner.frames.len() <= self.frames_max / 2;
        let drained = under_half && std::mem::take(&mut inner.refused);
        Taken::Some { drained }
    }

    /// Empties the queue: what comes out was never sent. Also says whether a refused sender must be told.
    pub fn give_back(&self) -> (VecDeque<Frame>, bool) {
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing inside can panic half way, so what a poisoned lock holds is sound.
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
    fn it_is_bounded_in_frames_and_in_bytes_and_tells_when_half_empty() {
        let queue = Queue::new(200, 1 << 20);
        for _ in 0..200 {
            queue.push(frame(10)).unwrap();
        }
        assert_eq!(queue.room(), 0);
        assert!(queue.push(frame(10)).is_err());
        assert!(queue.push(frame(10)).is_err());
        let mut told = Vec::new();
        let mut batch = Vec::new();
        while let Taken::Some { drained } = queue.take(&mut batch) {
            assert!(batch.len() <= BATCH_FRAMES);
            batch.clear();
            told.push(drained);
        }
        assert_eq!(told, [false, true, false, false]);
        let stats = queue.stats();
        assert_eq!((stats.frames_out, stats.bytes_out, stats.full), (200, 2000, 2));

        let queue = Queue::new(200, 1000);
        queue.push(frame(600)).unwrap();
        assert_eq!(queue.room(), 1000 - 608);
        assert!(queue.push(frame(385)).is_err());
        queue.push(frame(384)).unwrap();
        assert_eq!(queue.room(), 0);
        let (back, told) = queue.give_back();
        assert_eq!((back.len(), told, queue.stats().dropped, queue.room()), (2, true, 2, 1000));
        queue.push(frame(5000)).expect("an empty queue takes any frame");
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_and_keeps_the_order() {
        let queue = Queue::new(200, 8 << 20);
        for i in 0..10u8 {
            queue.push(Frame::new(Kind::TELL, vec![i; 20 << 10])).unwrap();
        }
        let mut seen = Vec::new();
        let mut batch = Vec::new();
        while queue.take(&mut batch) != Taken::None {
            assert!(batch.iter().map(Frame::wire_len).sum::<usize>() <= BATCH_BYTES);
            seen.extend(batch.drain(..).map(|f| f.body[0]));
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}
