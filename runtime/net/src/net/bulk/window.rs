//! The bytes of bulk transfers in flight to one peer: a delay-based window, so that no queue builds
//! up in front of a steal.
//!
//! It follows LEDBAT (RFC 6817) and LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus). The round trip of
//! a chunk and its credit, minus the smallest one observed, is the queueing delay, which is kept
//! near a small target. Differences:
//!
//! - The target scales with the base round trip.
//! - The base is measured again periodically by draining (as BBR's ProbeRTT does). A transfer of
//!   minutes thus does not include its own queue in the base, and a longer path is detected.
//! - Chunks shrink with the window, because one full chunk is a long queue on a slow link.
//! - Delay variation with almost nothing in flight (jitter) does not count as queueing. RFC 6817
//!   would keep the window at its minimum.
//! - Delays by lost packets do not count as queueing, because chunks arrive in order and wait for a
//!   retransmission. RFC 6817 halves its window for each loss. Here the transport's congestion
//!   controller handles losses, and distinguishes random ones from congestion.
//!
//! Pure: no clock, no I/O. Times count from any fixed start.

use std::time::Duration;

use crate::wire::INLINE_MAX;

/// Smallest chunk in bytes: at 100 KB/s it delays a steal by 41 ms.
pub(crate) const CHUNK_MIN: usize = 4 << 10;
/// Largest chunk in bytes.
pub(crate) const CHUNK_MAX: usize = INLINE_MAX;

/// Smallest window in bytes: one chunk on the wire and one behind it.
const WINDOW_MIN: usize = 2 * CHUNK_MIN;
/// Initial window in bytes for an unknown path.
const WINDOW_START: usize = 4 * CHUNK_MIN;
/// Minimum number of chunks in a window, so that credits arrive evenly, and in the target delay.
/// The transmission time of one chunk on a slow link thus does not count as queueing.
const CHUNKS_MIN: f64 = 4.0;

/// Target queueing delay as a fraction of the base round trip, with its bounds. The lower one is
/// above the noise of thread wake-ups, the upper one below that of RFC 6817 (100 ms).
const TARGET_SHARE: f64 = 0.4;
const TARGET_MIN: Duration = Duration::from_millis(2);
const TARGET_MAX: Duration = Duration::from_millis(20);

/// Fraction of the target delay at which slow start ends.
const SLOW_START_END: f64 = 0.75;

/// Delay by a lost packet in base round trips: its detection plus its retransmission.
const LOSS_DELAY: f64 = 1.25;

/// Time without a sample near the base after which the base is measured again.
const BASE_AGE: Duration = Duration::from_secs(10);
/// Number of samples of the drained path that determine the base.
const PROBE_SAMPLES: u32 = 2;

/// Number of samples with the same, almost empty path that determine its delay variation. The
/// smallest and the largest are excluded.
const NOISE_SAMPLES: usize = 16;
/// Maximum delay variation that is taken into account: the queueing delay that RFC 6817 allows.
const NOISE_MAX: Duration = Duration::from_millis(100);

/// The window to one peer.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: f64,
    /// Initial window, also after an idle time.
    initial: usize,
    max: usize,
    /// During slow start: the window doubles per round trip, until queueing or this size.
    slow_start_until: Option<f64>,
    base: Option<Duration>,
    base_at: Duration,
    probe: WindowProbe,
    /// Samples of chunks with one other chunk in front of them.
    noise_samples: Vec<Duration>,
    /// Delay variation of the path without queueing.
    noise: Duration,
}

#[derive(Debug, PartialEq)]
enum WindowProbe {
    Off,
    /// Waits until at most half of the window is in flight. A queue is empty by then, because a
    /// window is hardly larger than the path's own capacity.
    Draining,
    /// Samples chunks sent at or after `since`.
    Sampling {
        since: Duration,
        left: u32,
        min: Duration,
    },
}

/// Target queueing delay of a path with this base round trip.
fn target(base: Duration) -> Duration {
    base.mul_f64(TARGET_SHARE).clamp(TARGET_MIN, TARGET_MAX)
}

impl Window {
    /// A window of up to `max` bytes for an unknown path.
    #[cfg(test)]
    pub(crate) fn new(max: usize) -> Self {
        Self::with_initial(WINDOW_START, max)
    }

    /// A window for a path that is expected to hold `initial` bytes.
    pub(crate) fn with_initial(initial: usize, max: usize) -> Self {
        let initial = initial.max(WINDOW_START).min(max);
        Self {
            bytes: initial as f64,
            initial,
            max: max.max(WINDOW_MIN),
            slow_start_until: Some(f64::INFINITY),
            base: None,
            base_at: Duration::ZERO,
            probe: WindowProbe::Off,
            noise_samples: Vec::new(),
            noise: Duration::ZERO,
        }
    }

    /// Maximum number of bytes in flight.
    pub(crate) fn bytes(&self) -> usize {
        if self.probe == WindowProbe::Off { self.bytes as usize } else { self.half() }
    }

    fn half(&self) -> usize {
        (self.bytes as usize / 2).max(WINDOW_MIN)
    }

    /// Size of the next chunk in bytes.
    pub(crate) fn chunk(&self) -> usize {
        // At one window per round trip, transmitting this much takes the target delay.
        let share = self.base.map_or(1.0, |base| target(base).as_secs_f64() / base.as_secs_f64());
        let chunk = self.bytes() as f64 * share.min(1.0) / CHUNKS_MIN;
        (chunk as usize).clamp(CHUNK_MIN, CHUNK_MAX)
    }

    /// The smallest round trip of a chunk, if known.
    #[cfg(test)]
    pub(crate) fn base(&self) -> Option<Duration> {
        self.base
    }

    /// Resets the window before a transfer after a long idle time, because the measurements may be
    /// outdated.
    pub(crate) fn idle(&mut self, now: Duration) {
        if self.base.is_some() && now.saturating_sub(self.base_at) > BASE_AGE {
            *self = Self::with_initial(self.initial, self.max);
            self.base_at = now;
        }
    }

    /// Processes a credit for `acked` bytes sent at `sent_at`, with `ahead` bytes in flight at that
    /// time.
    ///
    /// `in_flight` bytes were in flight before the credit, with these. `lossy`: a packet to the
    /// peer was lost in the meantime.
    pub(crate) fn credited(
        &mut self,
        acked: usize,
        (sent_at, ahead): (Duration, usize),
        in_flight: usize,
        lossy: bool,
        now: Duration,
    ) {
        let sample = now.saturating_sub(sent_at);
        self.update_base(sample, sent_at, in_flight.saturating_sub(acked), now);
        let Some(base) = self.base else { return };
        if self.probe != WindowProbe::Off {
            return;
        }
        if !lossy {
            self.update_noise(sample, base, ahead);
        }
        let target_delay = target(base) + self.noise;
        let fraction = |waited: Duration| waited.as_secs_f64() / target_delay.as_secs_f64();
        let mut queueing = fraction(sample.saturating_sub(base));
        if lossy && queueing > SLOW_START_END {
            queueing = fraction(sample.saturating_sub(base + base.mul_f64(LOSS_DELAY)));
            if queueing <= 1.0 {
                // The sample does not indicate queueing.
                return;
            }
        }
        let limited = in_flight as f64 >= self.bytes - self.chunk() as f64;
        let acked = acked as f64;
        if self
            .slow_start_until
            .is_some_and(|until| queueing > SLOW_START_END || self.bytes >= until)
        {
            self.slow_start_until = None;
        }
        if self.slow_start_until.is_some() {
            self.bytes += if limited { acked } else { 0.0 };
        } else if queueing <= 1.0 {
            // Grows by up to an eighth per round trip, but at least by a quarter of the smallest
            // chunk.
            let step = (self.bytes / 8.0).max(CHUNK_MIN as f64 / 4.0);
            self.bytes += if limited { (1.0 - queueing) * step * acked / self.bytes } else { 0.0 };
        } else {
            // Shrinks to at least one half per round trip.
            self.bytes -= (queueing - 1.0).min(1.0) * acked / 2.0;
        }
        self.bytes = self.bytes.clamp(WINDOW_MIN as f64, self.max as f64);
    }

    /// Updates the delay variation: chunks with the same number of bytes in flight differ only by
    /// the path's jitter.
    fn update_noise(&mut self, sample: Duration, base: Duration, ahead: usize) {
        if ahead <= CHUNK_MIN || ahead > WINDOW_MIN {
            return;
        }
        self.noise_samples.push(sample);
        if self.noise_samples.len() < NOISE_SAMPLES {
            return;
        }
        self.noise_samples.sort_unstable();
        let spread = self.noise_samples[NOISE_SAMPLES - 2] - self.noise_samples[1];
        self.noise_samples.clear();
        let noise = if spread > target(base) { spread.min(NOISE_MAX) } else { Duration::ZERO };
        if noise > self.noise * 2 {
            // Jitter ended slow start, not queueing.
            self.slow_start_until = Some(f64::INFINITY);
        }
        self.noise = noise;
    }

    fn update_base(&mut self, sample: Duration, sent_at: Duration, left: usize, now: Duration) {
        match &mut self.probe {
            WindowProbe::Off => match self.base {
                // A sample within a twentieth of the base confirms it.
                Some(base) if sample > base + base / 20 => {
                    if now.saturating_sub(self.base_at) > BASE_AGE {
                        self.probe = WindowProbe::Draining;
                    }
                }
                known => {
                    self.base = Some(known.map_or(sample, |base| base.min(sample)));
                    self.base_at = now;
                }
            },
            WindowProbe::Draining => {}
            WindowProbe::Sampling { since, left, min } => {
                if sent_at >= *since {
                    *min = (*min).min(sample);
                    *left -= 1;
                }
                if *left == 0 {
                    self.base = Some(*min);
                    self.base_at = now;
                    // Returns to the former window, but not in one burst.
                    self.slow_start_until = Some(self.bytes);
                    self.bytes = self.half() as f64;
                    self.probe = WindowProbe::Off;
                }
            }
        }
        if self.probe == WindowProbe::Draining && left <= self.half() {
            self.probe =
                WindowProbe::Sampling { since: now, left: PROBE_SAMPLES, min: Duration::MAX };
        }
    }
}
