//! A congestion controller that distinguishes congestion losses, which call for a lower rate, from
//! random losses, which do not.
//!
//! CUBIC attributes every loss to a full queue: over 50 ms a loss rate of 0.1 % costs it three
//! quarters of the rate. BBR measures the link itself, and wastes packets where queues are deep.
//! The cause of a loss is measurable: a full queue first fills up, and packets that waited in it
//! have longer round trips. This module does not know the contents of packets.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// A round trip counts as queueing if it exceeds the base round trip by this fraction of it ...
const QUEUE_SHARE: f64 = 0.125;
/// ... and by at least this time.
const QUEUE_MIN: Duration = Duration::from_millis(2);
/// Loss rate above which the rate is reduced regardless of the cause, because the excess packets
/// only delay others.
const LOSS_MAX: f64 = 0.05;
/// Number of bytes over which the loss rate is averaged, approximately.
const LOSS_WINDOW: f64 = 2e6;
/// Lost bytes that are always tolerated, because early losses are a large fraction of little
/// traffic.
const LOSS_ALLOWANCE: f64 = 4e3;
/// The base round trip is the minimum over the current and the previous epoch of this length.
const EPOCH: Duration = Duration::from_secs(10);

/// Creates controllers of the kind [`MeasuredCubic`].
#[derive(Debug, Default)]
pub(super) struct MeasuredConfig {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for MeasuredConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = self.cubic.clone().build(now, current_mtu);
        Box::new(MeasuredCubic {
            cubic,
            base: BaseRtt::default(),
            rtt: None,
            loss: LossRate::default(),
        })
    }
}

/// The minimum of smoothed round-trip times in the current and the previous epoch. Smoothing
/// removes mere variation.
#[derive(Clone, Copy, Debug, Default)]
struct BaseRtt {
    epoch_start: Option<Instant>,
    now: Option<Duration>,
    previous: Option<Duration>,
}

impl BaseRtt {
    fn record(&mut self, now: Instant, rtt: Duration) {
        let epoch_start = *self.epoch_start.get_or_insert(now);
        if now.saturating_duration_since(epoch_start) >= EPOCH {
            (self.epoch_start, self.previous, self.now) = (Some(now), self.now, None);
        }
        self.now = Some(self.now.map_or(rtt, |least| least.min(rtt)));
    }

    fn rtt(&self) -> Option<Duration> {
        match (self.now, self.previous) {
            (Some(now), Some(previous)) => Some(now.min(previous)),
            (now, previous) => now.or(previous),
        }
    }

    /// Whether packets with this round-trip time waited in a queue.
    fn is_queueing(&self, rtt: Duration) -> bool {
        // Without a measurement, queueing is assumed.
        self.rtt()
            .is_none_or(|base| rtt.saturating_sub(base) > base.mul_f64(QUEUE_SHARE).max(QUEUE_MIN))
    }
}

/// Sent and lost bytes, exponentially weighted.
#[derive(Clone, Copy, Debug, Default)]
struct LossRate {
    sent: f64,
    lost: f64,
}

impl LossRate {
    fn sent(&mut self, bytes: u64) {
        let bytes = bytes as f64;
        let kept = (1.0 - bytes / LOSS_WINDOW).max(0.0);
        (self.sent, self.lost) = (self.sent * kept + bytes, self.lost * kept);
    }

    fn is_high(&self) -> bool {
        self.lost > LOSS_MAX * self.sent + LOSS_ALLOWANCE
    }
}

struct MeasuredCubic {
    cubic: Box<dyn Controller>,
    base: BaseRtt,
    /// The smoothed round-trip time.
    rtt: Option<Duration>,
    loss: LossRate,
}

impl Controller for MeasuredCubic {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.loss.sent(bytes);
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.base.record(now, rtt.get());
        self.rtt = Some(rtt.get());
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.loss.lost += lost_bytes as f64;
        // No lost bytes: a router marked packets, because its queue fills.
        let is_marked = lost_bytes == 0;
        let waited = self.rtt.is_none_or(|rtt| self.base.is_queueing(rtt));
        if is_marked || is_persistent_congestion || waited || self.loss.is_high() {
            self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let Self { cubic, base, rtt, loss } = self;
        Box::new(Self { cubic: cubic.clone_box(), base: *base, rtt: *rtt, loss: *loss })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn round_trips_above_the_base_are_queueing() {
        let start = Instant::now();
        let mut base = BaseRtt::default();
        assert!(base.is_queueing(MS), "nothing is known of the line");
        base.record(start, 100 * MS);
        base.record(start + MS, 130 * MS);
        assert!(!base.is_queueing(110 * MS) && base.is_queueing(115 * MS));
        // The minimum is kept for one more epoch, then expires.
        base.record(start + EPOCH, 150 * MS);
        assert_eq!(base.rtt(), Some(100 * MS));
        base.record(start + 2 * EPOCH, 150 * MS);
        assert_eq!(base.rtt(), Some(150 * MS));
        // On a short link two milliseconds are within the tolerance.
        let mut base = BaseRtt::default();
        base.record(start, MS);
        assert!(!base.is_queueing(3 * MS) && base.is_queueing(4 * MS));
    }

    #[test]
    fn losses_expire_and_few_lost_packets_are_tolerated() {
        let mut loss = LossRate::default();
        loss.sent(12_000);
        loss.lost += 2400.0;
        assert!(!loss.is_high(), "two packets");
        loss.lost += 2400.0;
        assert!(loss.is_high(), "four of ten packets");
        (0..5000).for_each(|_| loss.sent(1200));
        assert!(!loss.is_high());
        loss.lost += 0.06 * loss.sent;
        assert!(loss.is_high());
        (0..5000).for_each(|_| loss.sent(1200));
        assert!(!loss.is_high());
    }
}
