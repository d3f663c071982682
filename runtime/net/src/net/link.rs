//! The link model: when does a datagram that is offered to a link now arrive, if it does? Delay, jitter, loss, rate, queue.
//!
//! One model for the in-memory network, shaped sockets, the user-space router and tests. No I/O and no clock: the caller
//! says what time it is, as time since any fixed start. One seed, one history.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::SplitMix;

/// What a link is like, in one direction. Plain numbers in files; builder methods in programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkProfile {
    /// One-way delay, microseconds.
    pub delay_us: u64,
    /// Half the width of a uniform variation of the delay, microseconds; at most the delay counts.
    pub jitter_us: u64,
    /// Share of datagrams lost, 0 to 1.
    pub loss: f64,
    /// Bytes a second; no limit when absent. 0 carries nothing.
    pub rate: Option<u64>,
    /// Bytes that may wait for a link with a rate, the one being sent included; what comes on top is dropped (tail drop).
    pub queue: usize,
    /// Whether jitter may change the order of datagrams.
    pub reorder: bool,
    /// Whether it carries anything at all.
    pub up: bool,
}

/// 100 ms at 1 MB/s, 10 ms at 10 MB/s.
const QUEUE: usize = 100_000;

impl Default for LinkProfile {
    /// No delay, no loss, no limit.
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
    /// Inside a cluster: 50 us, no limit.
    pub fn lan() -> Self {
        Self::default().delay(Duration::from_micros(50))
    }

    /// Sets the one-way delay.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay_us = micros(delay);
        self
    }

    /// Sets the jitter: the delay varies by so much either way.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter_us = micros(jitter);
        self
    }

    /// Sets the share of datagrams lost.
    pub fn loss(mut self, loss: f64) -> Self {
        self.loss = loss;
        self
    }

    /// Sets the rate, bytes a second.
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second);
        self
    }

    /// Sets the queue, bytes.
    pub fn queue(mut self, bytes: usize) -> Self {
        self.queue = bytes;
        self
    }

    /// Lets jitter change the order.
    pub fn reorder(mut self, reorder: bool) -> Self {
        self.reorder = reorder;
        self
    }

    /// Takes the link up or down.
    pub fn up(mut self, up: bool) -> Self {
        self.up = up;
        self
    }

    /// What is wrong with the numbers, if anything: the field and the mend.
    ///
    /// # Errors
    /// A message for the author of a configuration.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(format!("loss = {} is no share: give a number from 0 to 1", self.loss));
        }
        if self.rate.is_some() && self.queue < DATAGRAM {
            return Err(format!(
                "queue = {} bytes is less than a datagram: give at least {DATAGRAM}",
                self.queue
            ));
        }
        Ok(())
    }

    /// The longest time from the queue's end to the arrival.
    fn longest(&self) -> Duration {
        let jitter_us = self.jitter_us.min(self.delay_us);
        Duration::from_micros(self.delay_us.saturating_add(jitter_us))
    }

    /// The time that `len` bytes keep the link busy.
    fn busy(&self, len: usize) -> Duration {
        match self.rate {
            None => Duration::ZERO,
            Some(rate) => {
                let nanos = len as u128 * 1_000_000_000 / u128::from(rate.max(1));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The datagram that streams are cut into when they are offered to a link, bytes: what QUIC sends before it has found a
/// larger path MTU.
pub const DATAGRAM: usize = 1200;

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Link {
    profile: LinkProfile,
    rng: SplitMix,
    /// When the last byte taken so far leaves the queue.
    free_at: Duration,
    /// When each datagram in the queue has left it, and its length; up to the last offer's time.
    queue: VecDeque<(Duration, usize)>,
    queued: usize,
    /// The latest arrival so far, to keep the order.
    last: Duration,
}

impl Link {
    /// A link whose losses and jitter follow from `seed`.
    pub fn new(profile: LinkProfile, seed: u64) -> Self {
        Self {
            profile,
            rng: SplitMix(seed),
            free_at: Duration::ZERO,
            queue: VecDeque::new(),
            queued: 0,
            last: Duration::ZERO,
        }
    }

    /// What the link is like.
    pub fn profile(&self) -> &LinkProfile {
        &self.profile
    }

    /// Changes the link from `now` on. What is in the queue goes out at the new rate; what has left it keeps its arrival. Where the time
    /// that it takes is another now, what comes later may overtake that.
    pub fn set_profile(&mut self, profile: LinkProfile, now: Duration) {
        self.drain(now);
        let pace = |of: &LinkProfile| (of.delay_us, of.jitter_us, of.rate);
        let is_as_fast = pace(&profile) == pace(&self.profile);
        self.profile = profile;
        let mut free_at = now;
        for (left_at, len) in &mut self.queue {
            free_at += self.profile.busy(*len);
            *left_at = free_at;
        }
        self.free_at = free_at;
        if !is_as_fast {
            // Else what was sent while it was slow would hold up all that follows, for as long as it was slow.
            self.last = self.last.min(free_at.saturating_add(self.profile.longest()));
        }
    }

    /// Offers a datagram of `len` bytes. Returns when it arrives, or `None` when it is lost or the queue is full.
    ///
    /// For links in series, offer to the next link at the arrival time. Times should not run backwards on one link (they may a
    /// little where links meet: a datagram offered for an earlier time then queues behind those already taken).
    pub fn offer(&mut self, now: Duration, len: usize) -> Option<Duration> {
        if !self.has_room(now, len) {
            return None;
        }
        let sent_at = match self.profile.rate {
            None => now,
            Some(_) => {
                self.free_at = self.free_at.max(now) + self.profile.busy(len);
                self.queue.push_back((self.free_at, len));
                self.queued += len;
                self.free_at
            }
        };
        // Drawn whether needed or not, so that one link's history does not depend on when its profile changed.
        let (lost, swing) = (self.rng.unit(), self.rng.unit());
        if lost < self.profile.loss {
            return None; // after the queue: it took its share of the rate
        }
        let jitter = self.profile.jitter_us.min(self.profile.delay_us) as f64;
        let delay_us = self.profile.delay_us as f64 + jitter * (2.0 * swing - 1.0);
        let mut at = sent_at + Duration::from_nanos((delay_us * 1000.0) as u64);
        // Jitter alone changes the order on one line. A link that several lines lead to is offered
        // their arrivals, and keeps no order among those.
        if !self.profile.reorder && jitter > 0.0 {
            at = at.max(self.last);
        }
        self.last = self.last.max(at);
        Some(at)
    }

    /// Whether a datagram offered now would find room in the queue.
    pub fn has_room(&mut self, now: Duration, len: usize) -> bool {
        if !self.profile.up || self.profile.rate == Some(0) {
            return false;
        }
        self.drain(now);
        self.profile.rate.is_none() || self.queued + len <= self.profile.queue
    }

    /// When a datagram of `len` bytes will find room, if nothing else is offered before; `None` when never.
    pub fn room_at(&mut self, now: Duration, len: usize) -> Option<Duration> {
        if self.has_room(now, len) {
            return Some(now);
        }
        if !self.profile.up || self.profile.rate == Some(0) || len > self.profile.queue {
            return None;
        }
        let mut queued = self.queued;
        for (left_at, gone) in &self.queue {
            queued -= gone;
            if queued + len <= self.profile.queue {
                return Some(*left_at);
            }
        }
        None
    }

    /// Bytes in the queue.
    pub fn queued(&mut self, now: Duration) -> usize {
        self.drain(now);
        self.queued
    }

    fn drain(&mut self, now: Duration) {
        while let Some((left_at, len)) = self.queue.front()
            && *left_at <= now
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
    fn a_rate_holds_and_a_full_queue_drops_the_tail() {
        let profile = LinkProfile::default().delay(10 * MS).rate(1_000_000).queue(50_000);
        let mut link = Link::new(profile, 1);
        // 1.5 times the rate for ten seconds: 1500 bytes every millisecond.
        let (mut bytes, mut dropped, mut last) = (0usize, 0, Duration::ZERO);
        for i in 0..10_000 {
            match link.offer(i * MS, 1500) {
                Some(at) => {
                    let delay = at - i * MS;
                    assert!(delay >= 11 * MS && delay <= 61 * MS, "{delay:?}");
                    (bytes, last) = (bytes + 1500, at);
                }
                None => dropped += 1,
            }
        }
        let rate = bytes as f64 / (last - 10 * MS).as_secs_f64();
        assert!((rate / 1e6 - 1.0).abs() < 0.001, "{rate}");
        assert!((3200..3400).contains(&dropped), "{dropped}");
    }

    #[test]
    fn losses_and_jitter_are_as_stated() {
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
    fn a_change_applies_to_what_waits_and_a_link_that_is_down_takes_nothing() {
        let profile = LinkProfile::default().rate(1_000_000).queue(10_000);
        let mut link = Link::new(profile.clone(), 1);
        for _ in 0..10 {
            assert!(link.offer(Duration::ZERO, 1000).is_some());
        }
        assert_eq!(link.room_at(Duration::ZERO, 1000), Some(MS));
        // After 5 ms half of it is gone; at a tenth of the rate the rest takes 50 ms.
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
    fn what_was_slow_holds_nothing_up_once_the_link_is_fast_again() {
        let of = |delay: Duration| LinkProfile::default().delay(delay);
        let mut link = Link::new(of(5000 * MS), 1);
        assert_eq!(link.offer(Duration::ZERO, 100), Some(5000 * MS));
        link.set_profile(of(10 * MS), 100 * MS);
        assert_eq!(link.offer(200 * MS, 100), Some(210 * MS));
        // The same for a rate.
        link.set_profile(of(10 * MS).rate(1000), 300 * MS);
        assert_eq!(link.offer(300 * MS, 2000), Some(2310 * MS));
        link.set_profile(of(10 * MS).rate(1_000_000), 300 * MS);
        assert_eq!(link.offer(300 * MS, 1000), Some(313 * MS));
        // What has no part in the time leaves the order as it is.
        let mut link = Link::new(of(10 * MS).jitter(5 * MS), 1);
        let mut last = Duration::ZERO;
        for i in 0..1000 {
            link.set_profile(link.profile().clone().loss(0.0), i * MS / 10);
            let at = link.offer(i * MS / 10, 100).expect("it carries");
            assert!(at >= last, "{at:?} {last:?}");
            last = at;
        }
    }

    #[test]
    fn a_slow_line_holds_up_no_other_where_lines_meet() {
        let of = |delay: Duration| LinkProfile::default().delay(delay);
        let (mut slow, mut fast) = (Link::new(of(300 * MS), 1), Link::new(of(10 * MS), 2));
        let mut downlink = Link::new(LinkProfile::default(), 3);
        let at = slow.offer(Duration::ZERO, 1000).expect("it carries");
        assert_eq!(downlink.offer(at, 1000), Some(300 * MS));
        let at = fast.offer(MS, 1000).expect("it carries");
        assert_eq!(downlink.offer(at, 1000), Some(11 * MS));
    }

    #[test]
    fn links_in_series_share_the_slowest() {
        // Two senders behind one uplink of 1 MB/s, then a fast long line each.
        let mut uplink = Link::new(LinkProfile::default().rate(1_000_000).queue(1 << 20), 1);
        let far = LinkProfile::default().delay(20 * MS).rate(10_000_000);
        let mut lines = [Link::new(far.clone(), 2), Link::new(far, 3)];
        let mut last = Duration::ZERO;
        for i in 0..200 {
            let at = uplink.offer(Duration::ZERO, 1000).expect("room in the queue");
            last = lines[i % 2].offer(at, 1000).expect("no loss on the line");
        }
        assert_eq!(last, 200 * MS + 20 * MS + MS / 10);
    }

    #[test]
    fn files_have_plain_numbers_and_no_unknown_fields() {
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
        fn order_is_kept_and_one_seed_is_one_history(
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
            let mut last = Duration::ZERO;
            for (now, at) in arrivals.into_iter().filter_map(|(now, at)| Some((now, at?))) {
                prop_assert!(at >= last && at >= now);
                last = at;
            }
        }
    }
}
