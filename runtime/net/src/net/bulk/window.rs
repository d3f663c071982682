//! How much of a bulk transfer may be under way to one peer: a window by delay, so that a queue never builds up in front
//! of a steal.
//!
//! After LEDBAT (RFC 6817) and LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus): the round trip of a chunk and its credit,
//! over the smallest one seen, is taken for queueing delay and held near a small target. Differences: the target scales
//! with the base round trip; the base is measured anew now and then by draining (as BBR's ProbeRTT does), so that a
//! transfer of minutes does not take its own queue for the base, and a path that became longer is noticed; chunks shrink
//! with the window, for on a slow link one full chunk is a long queue by itself; what delays differ by while next to nothing is
//! under way (jitter) is not taken for a queue, where RFC 6817 would leave the window at its least; and neither is what a lost packet
//! holds up, for chunks arrive in order and wait for it. (RFC 6817 halves its window for each loss. What losses mean is for the
//! transport's congestion controller to say, which tells those of the line from those of a full queue.)
//!
//! Pure: no clock, no I/O. Times are since any fixed start.

use std::time::Duration;

use crate::wire::INLINE_MAX;

/// Smallest chunk, bytes: at 100 KB/s it delays a steal by 41 ms.
pub(crate) const CHUNK_MIN: usize = 4 << 10;
/// Largest chunk, bytes.
pub(crate) const CHUNK_MAX: usize = INLINE_MAX;

/// Two of the smallest chunks: one on the wire and one behind it.
const WINDOW_MIN: usize = 2 * CHUNK_MIN;
/// Where a transfer starts when nothing is known of the path.
const WINDOW_START: usize = 4 * CHUNK_MIN;
/// A window holds at least so many chunks, so that credits come evenly; and the target delay holds so many, so that the
/// time a chunk itself takes on a slow link is not taken for a queue.
const CHUNKS: f64 = 4.0;

/// Queueing delay aimed at, as a share of the base round trip, and its bounds. The lower one stands above the noise of
/// thread wake-ups, the upper one under what RFC 6817 allows (100 ms).
const TARGET_SHARE: f64 = 0.4;
const TARGET_MIN: Duration = Duration::from_millis(2);
const TARGET_MAX: Duration = Duration::from_millis(20);

/// From this part of the target on a queue shows.
const ENDS_START: f64 = 0.75;

/// What a lost packet holds up, in base round trips: until it is missed, and until it has come once more.
const STALL: f64 = 1.25;

/// The base is measured anew after so long without a sample near it.
const BASE_AGE: Duration = Duration::from_secs(10);
/// Samples taken from the drained path before the base is believed.
const PROBE_SAMPLES: u32 = 2;

/// So many samples with the same, and next to nothing, under way tell what a path's delays differ by of themselves. The least and
/// the greatest of them are left out.
const CALM_SAMPLES: usize = 16;
/// What they are believed to differ by at most: what RFC 6817 allows a queue.
const NOISE_MAX: Duration = Duration::from_millis(100);

/// The window to one peer.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: f64,
    /// Where it starts, also after a rest.
    first: usize,
    max: usize,
    /// Doubles in a round trip, until a queue shows or this is reached.
    starting: Option<f64>,
    base: Option<Duration>,
    base_at: Duration,
    probe: Probe,
    /// Samples of chunks that had one other before them.
    calm: Vec<Duration>,
    /// What delays differ by without a queue of ours.
    noise: Duration,
}

#[derive(Debug, PartialEq)]
enum Probe {
    Off,
    /// Waits until at most half of the window is under way: what was in a queue has left it then, for a window is not
    /// much more than the path itself holds.
    Draining,
    /// Counts chunks sent at or after `since`.
    Sampling {
        since: Duration,
        left: u32,
        least: Duration,
    },
}

/// The queueing delay aimed at on a path with this base round trip.
fn target(base: Duration) -> Duration {
    base.mul_f64(TARGET_SHARE).clamp(TARGET_MIN, TARGET_MAX)
}

impl Window {
    /// A window that may grow to `max` bytes, for a path of which nothing is known.
    #[cfg(test)]
    pub(crate) fn new(max: usize) -> Self {
        Self::starting_at(WINDOW_START, max)
    }

    /// A window for a path that is expected to take `first` bytes at once.
    pub(crate) fn starting_at(first: usize, max: usize) -> Self {
        let first = first.max(WINDOW_START).min(max);
        Self {
            bytes: first as f64,
            first,
            max: max.max(WINDOW_MIN),
            starting: Some(f64::INFINITY),
            base: None,
            base_at: Duration::ZERO,
            probe: Probe::Off,
            calm: Vec::new(),
            noise: Duration::ZERO,
        }
    }

    /// Bytes that may be under way.
    pub(crate) fn bytes(&self) -> usize {
        if self.probe == Probe::Off { self.bytes as usize } else { self.half() }
    }

    fn half(&self) -> usize {
        (self.bytes as usize / 2).max(WINDOW_MIN)
    }

    /// Bytes of the next chunk.
    pub(crate) fn chunk(&self) -> usize {
        // At the rate of a window in a round trip, this much takes as long as the target delay.
        let share = self.base.map_or(1.0, |base| target(base).as_secs_f64() / base.as_secs_f64());
        let chunk = self.bytes() as f64 * share.min(1.0) / CHUNKS;
        (chunk as usize).clamp(CHUNK_MIN, CHUNK_MAX)
    }

    /// The smallest round trip of a chunk, once known.
    #[cfg(test)]
    pub(crate) fn base(&self) -> Option<Duration> {
        self.base
    }

    /// Nothing is under way and nothing was for long: what is known of the path may be old.
    pub(crate) fn idle(&mut self, now: Duration) {
        if self.base.is_some() && now.saturating_sub(self.base_at) > BASE_AGE {
            *self = Self::starting_at(self.first, self.max);
            self.base_at = now;
        }
    }

    /// A credit came: `acked` bytes that were sent at `sent_at`, when `ahead` bytes were out with them; `under_way` bytes were out
    /// before it, these included. `lossy`: some packet to that peer was lost meanwhile.
    pub(crate) fn credited(
        &mut self,
        acked: usize,
        (sent_at, ahead): (Duration, usize),
        under_way: usize,
        lossy: bool,
        now: Duration,
    ) {
        let sample = now.saturating_sub(sent_at);
        self.note_base(sample, sent_at, under_way.saturating_sub(acked), now);
        let Some(base) = self.base else { return };
        if self.probe != Probe::Off {
            return;
        }
        if !lossy {
            self.note_noise(sample, base, ahead);
        }
        let aim = target(base) + self.noise;
        let part = |waited: Duration| waited.as_secs_f64() / aim.as_secs_f64();
        let mut queueing = part(sample.saturating_sub(base));
        if lossy && queueing > ENDS_START {
            queueing = part(sample.saturating_sub(base + base.mul_f64(STALL)));
            if queueing <= 1.0 {
                // It says nothing of a queue.
                return;
            }
        }
        let limited = under_way as f64 >= self.bytes - self.chunk() as f64;
        let acked = acked as f64;
        if self.starting.is_some_and(|until| queueing > ENDS_START || self.bytes >= until) {
            self.starting = None;
        }
        if self.starting.is_some() {
            self.bytes += if limited { acked } else { 0.0 };
        } else if queueing <= 1.0 {
            // Up to an eighth, but at least a quarter of the smallest chunk, in a round trip.
            let step = (self.bytes / 8.0).max(CHUNK_MIN as f64 / 4.0);
            self.bytes += if limited { (1.0 - queueing) * step * acked / self.bytes } else { 0.0 };
        } else {
            // Down to one half in a round trip.
            self.bytes -= (queueing - 1.0).min(1.0) * acked / 2.0;
        }
        self.bytes = self.bytes.clamp(WINDOW_MIN as f64, self.max as f64);
    }

    /// What waits behind as much of its own as the sample before takes as long, but for the path's jitter.
    fn note_noise(&mut self, sample: Duration, base: Duration, ahead: usize) {
        if ahead <= CHUNK_MIN || ahead > WINDOW_MIN {
            return;
        }
        self.calm.push(sample);
        if self.calm.len() < CALM_SAMPLES {
            return;
        }
        self.calm.sort_unstable();
        let spread = self.calm[CALM_SAMPLES - 2] - self.calm[1];
        self.calm.clear();
        let noise = if spread > target(base) { spread.min(NOISE_MAX) } else { Duration::ZERO };
        if noise > self.noise * 2 {
            // What ended the start was none of its doing.
            self.starting = Some(f64::INFINITY);
        }
        self.noise = noise;
    }

    fn note_base(&mut self, sample: Duration, sent_at: Duration, left: usize, now: Duration) {
        match &mut self.probe {
            Probe::Off => match self.base {
                // A twentieth above the base counts as seeing it again.
                Some(base) if sample > base + base / 20 => {
                    if now.saturating_sub(self.base_at) > BASE_AGE {
                        self.probe = Probe::Draining;
                    }
                }
                known => {
                    self.base = Some(known.map_or(sample, |base| base.min(sample)));
                    self.base_at = now;
                }
            },
            Probe::Draining => {}
            Probe::Sampling { since, left, least } => {
                if sent_at >= *since {
                    *least = (*least).min(sample);
                    *left -= 1;
                }
                if *left == 0 {
                    self.base = Some(*least);
                    self.base_at = now;
                    // Back to where it was, but not in one burst.
                    self.starting = Some(self.bytes);
                    self.bytes = self.half() as f64;
                    self.probe = Probe::Off;
                }
            }
        }
        if self.probe == Probe::Draining && left <= self.half() {
            self.probe = Probe::Sampling { since: now, left: PROBE_SAMPLES, least: Duration::MAX };
        }
    }
}
