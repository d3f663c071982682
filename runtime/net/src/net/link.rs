//! The link model: the arrival time of a datagram on a link with delay, jitter, loss, rate and
//! queue.
//!
//! The in-memory network, shaped sockets, the user-space router and tests share it. It has no I/O
//! and no clock: the caller passes the time since any fixed start. One seed gives one history.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::SplitMix;

/// The properties of one direction of a link. Plain numbers in files; builder methods in programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkProfile {
    /// One-way delay in microseconds.
    pub delay_us: u64,
    /// Half the width of the uniform variation of the delay in microseconds, at most the delay.
    pub jitter_us: u64,
    /// Fraction of lost datagrams, 0 to 1.
    pub loss: f64,
    /// Rate in bytes a second; unlimited if absent. 0 carries nothing.
    pub rate: Option<u64>,
    /// Capacity of the queue of a link with a rate, in bytes, with the datagram being sent.
    /// Datagrams beyond it are dropped (tail drop).
    pub queue: usize,
    /// Whether jitter may change the order of datagrams.
    pub reorder: bool,
    /// Whether the link carries any datagrams.
    pub up: bool,
}

/// 100 ms at 1 MB/s, 10 ms at 10 MB/s.
const QUEUE: usize = 100_000;

impl Default for LinkProfile {
    /// No delay, no loss and no limit.
    fn default() -> Self {
        Self {
            delay_us: 0,
            jitter_us: 0,
            loss: 0.0,
            rate: None,
            queue: QUEUE,
            reorder: false,
            up: true,
        }
    }
}

impl LinkProfile {
    /// The profile inside a cluster: 50 us of delay, no limit.
    pub fn lan() -> Self {
        Self::default().delay(Duration::from_micros(50))
    }

    /// Sets the one-way delay.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay_us = micros(delay);
        self
    }

    /// Sets the jitter: the delay varies by this amount in both directions.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter_us = micros(jitter);
        self
    }

    /// Sets the fraction of lost datagrams.
    pub fn loss(mut self, loss: f64) -> Self {
        self.loss = loss;
        self
    }

    /// Sets the rate in bytes a second.
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second);
        self
    }

    /// Sets the capacity of the queue in bytes.
    pub fn queue(mut self, bytes: usize) -> Self {
        self.queue = bytes;
        self
    }

    /// Sets whether jitter may change the order.
    pub fn reorder(mut self, reorder: bool) -> Self {
        self.reorder = reorder;
        self
    }

    /// Takes the link up or down.
    pub fn up(mut self, up: bool) -> Self {
        self.up = up;
        self
    }

    /// Checks the numbers. An error names the field and a valid range.
    ///
    /// # Errors
    /// A message for the author of a configuration.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(format!("loss = {} is out of range: give a number from 0 to 1", self.loss));
        }
        if self.rate.is_some() && self.queue < DATAGRAM {
            return Err(format!(
                "queue = {} bytes is less than a datagram: give at least {DATAGRAM}",
                self.queue
            ));
        }
        Ok(())
    }

    /// The maximum time from the end of the queue to the arrival.
    fn max_delay(&self) -> Duration {
        let jitter_us = self.jitter_us.min(self.delay_us);
        Duration::from_micros(self.delay_us.saturating_add(jitter_us))
    }

    /// The time that `len` bytes occupy the link.
    fn transmission_time(&self, len: usize) -> Duration {
        match self.rate {
            None => Duration::ZERO,
            Some(rate) => {
                let nanos = len as u128 * 1_000_000_000 / u128::from(rate.max(1));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The reason why a link does not carry a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// The link is down, or its rate is 0.
    Down,
    /// The queue has no room.
    QueueFull,
    /// The link loses the datagram at random.
    Loss,
}

/// Size in bytes of the datagrams that streams are cut into for a link: the packet size of QUIC
/// before it finds a larger path MTU.
pub const DATAGRAM: usize = 1200;

/// The state of one direction of a link.
#[derive(Clone, Debug)]
pub struct Link {
    profile: LinkProfile,
    rng: SplitMix,
    /// The time at which the last accepted byte leaves the queue.
    free_at: Duration,
    /// Departure time and length of each datagram in the queue, as of the last offer.
    queue: VecDeque<(Duration, usize)>,
    queued: usize,
    /// The latest arrival so far, which later ones must not precede.
    last_arrival: Duration,
}

impl Link {
    /// A link whose losses and jitter derive from `seed`.
    pub fn new(profile: LinkProfile, seed: u64) -> Self {
        Self {
            profile,
            rng: SplitMix(seed),
            free_at: Duration::ZERO,
            queue: VecDeque::new(),
            queued: 0,
            last_arrival: Duration::ZERO,
        }
    }

    /// The properties of the link.
    pub fn profile(&self) -> &LinkProfile {
        &self.profile
    }

    /// Changes the link from `now` on.
    ///
    /// Queued datagrams leave at the new rate; those that have left keep their arrival time. If
    /// delay, jitter or rate changes, later datagrams may overtake them.
    pub fn set_profile(&mut self, profile: LinkProfile, now: Duration) {
        self.drain(now);
        let timing = |of: &LinkProfile| (of.delay_us, of.jitter_us, of.rate);
        let keeps_timing = timing(&profile) == timing(&self.profile);
        self.profile = profile;
        let mut free_at = now;
        for (departure, len) in &mut self.queue {
            free_at += self.profile.transmission_time(*len);
            *departure = free_at;
        }
        self.free_at = free_at;
        if !keeps_timing {
            // Otherwise datagrams sent while the link was slow would delay all later ones.
            self.last_arrival =
                self.last_arrival.min(free_at.saturating_add(self.profile.max_delay()));
        }
    }

    /// Offers a datagram of `len` bytes. Returns its arrival time, or `None` if it is lost or the
    /// queue is full, as [`try_offer`](Self::try_offer).
    pub fn offer(&mut self, now: Duration, len: usize) -> Option<Duration> {
        self.try_offer(now, len).ok()
    }

    /// Offers a datagram of `len` bytes. Returns its arrival time.
    ///
    /// For links in series, offer the datagram to the next link at its arrival time. Times should
    /// not decrease on one link. Small decreases are possible where links meet: the datagram then
    /// queues behind those already accepted.
    ///
    /// # Errors
    /// The link does not carry the datagram.
    pub fn try_offer(&mut self, now: Duration, len: usize) -> Result<Duration, DropCause> {
        if !self.carries() {
            return Err(DropCause::Down);
        }
        if !self.has_room(now, len) {
            return Err(DropCause::QueueFull);
        }
        let sent = match self.profile.rate {
            None => now,
            Some(_) => {
                self.free_at = self.free_at.max(now) + self.profile.transmission_time(len);
                self.queue.push_back((self.free_at, len));
                self.queued += len;
                self.free_at
            }
        };
        // Drawn in any case, so that the history of a link does not depend on the times of profile
        // changes.
        let (loss_draw, jitter_draw) = (self.rng.unit(), self.rng.unit());
        if loss_draw < self.profile.loss {
            return Err(DropCause::Loss); // after the queue: it took its share of the rate
        }
        let jitter = self.profile.jitter_us.min(self.profile.delay_us) as f64;
        let delay_us = self.profile.delay_us as f64 + jitter * (2.0 * jitter_draw - 1.0);
        let mut arrival = sent + Duration::from_nanos((delay_us * 1000.0) as u64);
        // Only jitter changes the order on one line. A link behind several lines keeps no order
        // among their arrivals.
        if !self.profile.reorder && jitter > 0.0 {
            arrival = arrival.max(self.last_arrival);
        }
        self.last_arrival = self.last_arrival.max(arrival);
        Ok(arrival)
    }

    /// Whether the link carries any datagrams.
    fn carries(&self) -> bool {
        self.profile.up && self.profile.rate != Some(0)
    }

    /// Whether the queue has room for a datagram at this time.
    pub fn has_room(&mut self, now: Duration, len: usize) -> bool {
        if !self.carries() {
            return false;
        }
        self.drain(now);
        self.profile.rate.is_none() || self.queued + len <= self.profile.queue
    }

    /// The time at which the queue has room for a datagram of `len` bytes, without further offers;
    /// `None` if never.
    pub fn room_at(&mut self, now: Duration, len: usize) -> Option<Duration> {
        if self.has_room(now, len) {
            return Some(now);
        }
        if !self.carries() || len > self.profile.queue {
            return None;
        }
        let mut queued = self.queued;
        for (departure, gone) in &self.queue {
            queued -= gone;
            if queued + len <= self.profile.queue {
                return Some(*departure);
            }
        }
        None
    }

    /// Number of bytes in the queue.
    pub fn queued(&mut self, now: Duration) -> usize {
        self.drain(now);
        self.queued
    }

    fn drain(&mut self, now: Duration) {
        while let Some((departure, len)) = self.queue.front()
            && *departure <= now
        {
            self.queued -= len;
            self.queue.pop_front();
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_rate_is_kept_and_a_full_queue_drops_the_tail() {
        let profile = LinkProfile::default().delay(10 * MS).rate(1_000_000).queue(50_000);
        let mut link = Link::new(profile, 1);
        // 1.5 times the rate for ten seconds: 1500 bytes every millisecond.
        let (mut bytes, mut dropped, mut last_arrival) = (0usize, 0, Duration::ZERO);
        for i in 0..10_000 {
            match link.offer(i * MS, 1500) {
                Some(at) => {
                    let delay = at - i * MS;
                    assert!(delay >= 11 * MS && delay <= 61 * MS, "{delay:?}");
                    (bytes, last_arrival) = (bytes + 1500, at);
                }
                None => dropped += 1,
            }
        }
        let rate = bytes as f64 / (last_arrival - 10 * MS).as_secs_f64();
        assert!((rate / 1e6 - 1.0).abs() < 0.001, "{rate}");
        assert!((3200..3400).contains(&dropped), "{dropped}");
    }

    #[test]
    fn loss_and_jitter_match_the_profile() {
        for seed in 1..=5 {
            let profile = LinkProfile::default().delay(10 * MS).jitter(5 * MS).loss(0.02);
            let mut link = Link::new(profile.reorder(true), seed);
            let n = 100_000;
            let arrivals: Vec<f64> = (0..n)
                .filter_map(|i| Some((link.offer(i * MS, 100)? - i * MS).as_secs_f64() * 1e3))
                .collect();
            // 99.9 % interval of a binomial: 0.02 +- 3.29 * sqrt(0.02 * 0.98 / n)
            let lost = 1.0 - arrivals.len() as f64 / f64::from(n);
            assert!((lost - 0.02).abs() < 0.0015, "seed {seed}: {lost}");
            let mean = arrivals.iter().sum::<f64>() / arrivals.len() as f64;
            assert!((mean - 10.0).abs() < 0.031, "seed {seed}: {mean}");
            let low = arrivals.iter().copied().fold(f64::MAX, f64::min);
            let high = arrivals.iter().copied().fold(0.0, f64::max);
            assert!((5.0..5.01).contains(&low) && (14.99..=15.0).contains(&high), "{low} {high}");
        }
    }

    #[test]
    fn a_profile_change_applies_to_the_queue_and_a_link_that_is_down_drops_all() {
        let profile = LinkProfile::default().rate(1_000_000).queue(10_000);
        let mut link = Link::new(profile.clone(), 1);
        for _ in 0..10 {
            assert!(link.offer(Duration::ZERO, 1000).is_some());
        }
        assert_eq!(link.room_at(Duration::ZERO, 1000), Some(MS));
        // After 5 ms half of the queue has left; at a tenth of the rate the rest takes 50 ms.
        link.set_profile(profile.clone().rate(100_000), 5 * MS);
        assert_eq!(link.queued(5 * MS), 5000);
        assert_eq!(link.offer(5 * MS, 1000), Some(65 * MS));
        link.set_profile(profile.clone().up(false), 6 * MS);
        assert_eq!(link.offer(200 * MS, 1), None);
        assert_eq!(link.room_at(200 * MS, 1), None);
        link.set_profile(profile, 300 * MS);
        assert_eq!(link.offer(300 * MS, 1000), Some(301 * MS));
    }

    #[test]
    fn datagrams_of_a_slow_phase_do_not_delay_later_ones() {
        let of = |delay: Duration| LinkProfile::default().delay(delay);
        let mut link = Link::new(of(5000 * MS), 1);
        assert_eq!(link.offer(Duration::ZERO, 100), Some(5000 * MS));
        link.set_profile(of(10 * MS), 100 * MS);
        assert_eq!(link.offer(200 * MS, 100), Some(210 * MS));
        // The same applies to a rate.
        link.set_profile(of(10 * MS).rate(1000), 300 * MS);
        assert_eq!(link.offer(300 * MS, 2000), Some(2310 * MS));
        link.set_profile(of(10 * MS).rate(1_000_000), 300 * MS);
        assert_eq!(link.offer(300 * MS, 1000), Some(313 * MS));
        // A change that does not affect the timing keeps the order.
        let mut link = Link::new(of(10 * MS).jitter(5 * MS), 1);
        let mut last_arrival = Duration::ZERO;
        for i in 0..1000 {
            link.set_profile(link.profile().clone().loss(0.0), i * MS / 10);
            let at = link.offer(i * MS / 10, 100).expect("it carries");
            assert!(at >= last_arrival, "{at:?} {last_arrival:?}");
            last_arrival = at;
        }
    }

    #[test]
    fn a_slow_line_does_not_delay_another_where_lines_meet() {
        let of = |delay: Duration| LinkProfile::default().delay(delay);
        let (mut slow, mut fast) = (Link::new(of(300 * MS), 1), Link::new(of(10 * MS), 2));
        let mut downlink = Link::new(LinkProfile::default(), 3);
        let at = slow.offer(Duration::ZERO, 1000).expect("it carries");
        assert_eq!(downlink.offer(at, 1000), Some(300 * MS));
        let at = fast.offer(MS, 1000).expect("it carries");
        assert_eq!(downlink.offer(at, 1000), Some(11 * MS));
    }

    #[test]
    fn links_in_series_have_the_rate_of_the_slowest() {
        // Two senders behind one uplink of 1 MB/s, then a fast long line each.
        let mut uplink = Link::new(LinkProfile::default().rate(1_000_000).queue(1 << 20), 1);
        let far = LinkProfile::default().delay(20 * MS).rate(10_000_000);
        let mut lines = [Link::new(far.clone(), 2), Link::new(far, 3)];
        let mut last_arrival = Duration::ZERO;
        for i in 0..200 {
            let at = uplink.offer(Duration::ZERO, 1000).expect("room in the queue");
            last_arrival = lines[i % 2].offer(at, 1000).expect("no loss on the line");
        }
        assert_eq!(last_arrival, 200 * MS + 20 * MS + MS / 10);
    }

    #[test]
    fn unknown_fields_of_profiles_are_refused() {
        let profile: LinkProfile =
            toml::from_str("delay_us = 10000\nrate = 1000000\nloss = 0.5").unwrap();
        assert_eq!(profile, LinkProfile::default().delay(10 * MS).rate(1_000_000).loss(0.5));
        assert!(toml::from_str::<LinkProfile>("delay_ms = 10").is_err());
        assert!(LinkProfile::default().loss(1.5).check().unwrap_err().contains("0 to 1"));
        assert!(LinkProfile::default().rate(5).queue(100).check().unwrap_err().contains("1200"));
        assert!(LinkProfile::lan().check().is_ok());
    }

    proptest! {
        #[test]
        fn order_is_kept_and_one_seed_gives_one_history(
            seed: u64,
            jitter in 0u64..20_000,
            loss in 0.0..0.5f64,
            rate in proptest::option::of(10_000u64..10_000_000),
            offers in proptest::collection::vec((0u64..3000, 1usize..1500), 1..200),
        ) {
            let mut profile = LinkProfile::default()
                .delay(10 * MS).jitter(Duration::from_micros(jitter)).loss(loss);
            profile.rate = rate;
            let run = || {
                let (mut link, mut now) = (Link::new(profile.clone(), seed), Duration::ZERO);
                let arrivals: Vec<_> = offers.iter().map(|(gap, len)| {
                    now += Duration::from_micros(*gap);
                    (now, link.offer(now, *len))
                }).collect();
                arrivals
            };
            let arrivals = run();
            prop_assert_eq!(&arrivals, &run());
            let mut last_arrival = Duration::ZERO;
            for (now, at) in arrivals.into_iter().filter_map(|(now, at)| Some((now, at?))) {
                prop_assert!(at >= last_arrival && at >= now);
                last_arrival = at;
            }
        }
    }
}
