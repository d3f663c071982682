//! A congestion controller that tells losses apart: those of a full queue, which call for less, and those of the line, which do not.
//!
//! CUBIC takes every loss for a queue that is full: over 50 ms a loss in a thousand packets costs it three quarters of the line. BBR asks
//! the line itself, and wastes packets where queues are deep. What tells the two apart is there to be measured: a queue that is full
//! was filling before, and whoever waited in it came later than those who did not. Must not know what the packets carry.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// Round trips that are longer than without a queue by this share of it..
const QUEUE_SHARE: f64 = 0.125;
/// ..and by this are those of packets that waited.
const QUEUE_LEAST: Duration = Duration::from_millis(2);
/// Where more is lost, packets that nobody takes are in the way of others: it is less, whatever the reason.
const LOSS_MOST: f64 = 0.05;
/// The share of losses is that of the last so many bytes, about.
const SHARE_OVER: f64 = 2e6;
/// A few packets may be lost at the beginning, of which a share of little is much.
const FEW: f64 = 4e3;
/// What the line is like without a queue is what it was at best in two such times.
const EPOCH: Duration = Duration::from_secs(10);

/// Makes controllers that measure.
#[derive(Debug, Default)]
pub(super) struct MeasuredConfig {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for MeasuredConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = self.cubic.clone().build(now, current_mtu);
        Box::new(Measured { cubic, calm: Calm::default(), rtt: None, share: Share::default() })
    }
}

/// The shortest of smoothed round trips in this epoch and in the one before. Smoothed, so that what merely varies is no queue.
#[derive(Clone, Copy, Debug, Default)]
struct Calm {
    began: Option<Instant>,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl Calm {
    fn note(&mut self, now: Instant, rtt: Duration) {
        let began = *self.began.get_or_insert(now);
        if now.saturating_duration_since(began) >= EPOCH {
            (self.began, self.before, self.now) = (Some(now), self.now, None);
        }
        self.now = Some(self.now.map_or(rtt, |least| least.min(rtt)));
    }

    fn rtt(&self) -> Option<Duration> {
        match (self.now, self.before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }

    /// Whether packets that took so long have waited.
    fn is_queue(&self, rtt: Duration) -> bool {
        // Of a line that nothing is known of the worst is assumed.
        self.rtt().is_none_or(|calm| {
            rtt.saturating_sub(calm) > calm.mul_f64(QUEUE_SHARE).max(QUEUE_LEAST)
        })
    }
}

/// How much is lost, in bytes; what is older counts less and less.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sent: f64,
    lost: f64,
}

impl Share {
    fn sent(&mut self, bytes: u64) {
        let bytes = bytes as f64;
        let kept = (1.0 - bytes / SHARE_OVER).max(0.0);
        (self.sent, self.lost) = (self.sent * kept + bytes, self.lost * kept);
    }

    fn is_much(&self) -> bool {
        self.lost > LOSS_MOST * self.sent + FEW
    }
}

struct Measured {
    cubic: Box<dyn Controller>,
    calm: Calm,
    /// Smoothed.
    rtt: Option<Duration>,
    share: Share,
}

impl Controller for Measured {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.share.sent(bytes);
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
        self.calm.note(now, rtt.get());
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
        self.share.lost += lost_bytes as f64;
        // Nothing lost: a router has marked packets, and says itself that its queue fills.
        let is_marked = lost_bytes == 0;
        let waited = self.rtt.is_none_or(|rtt| self.calm.is_queue(rtt));
        if is_marked || is_persistent_congestion || waited || self.share.is_much() {
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
        let Self { cubic, calm, rtt, share } = self;
        Box::new(Self { cubic: cubic.clone_box(), calm: *calm, rtt: *rtt, share: *share })
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
    fn a_queue_is_what_makes_packets_later_than_they_were_at_best() {
        let start = Instant::now();
        let mut calm = Calm::default();
        assert!(calm.is_queue(MS), "nothing is known of the line");
        calm.note(start, 100 * MS);
        calm.note(start + MS, 130 * MS);
        assert!(!calm.is_queue(110 * MS) && calm.is_queue(115 * MS));
        // What was best is remembered for one epoch more, and then no longer.
        calm.note(start + EPOCH, 150 * MS);
        assert_eq!(calm.rtt(), Some(100 * MS));
        calm.note(start + 2 * EPOCH, 150 * MS);
        assert_eq!(calm.rtt(), Some(150 * MS));
        // Of a short line two milliseconds are nothing.
        let mut calm = Calm::default();
        calm.note(start, MS);
        assert!(!calm.is_queue(3 * MS) && calm.is_queue(4 * MS));
    }

    #[test]
    fn losses_count_for_a_while_and_few_packets_say_little() {
        let mut share = Share::default();
        share.sent(12_000);
        share.lost += 2400.0;
        assert!(!share.is_much(), "two packets");
        share.lost += 2400.0;
        assert!(share.is_much(), "of ten packets four");
        (0..5000).for_each(|_| share.sent(1200));
        assert!(!share.is_much());
        share.lost += 0.06 * share.sent;
        assert!(share.is_much());
        (0..5000).for_each(|_| share.sent(1200));
        assert!(!share.is_much());
    }
}
