//! The words of one link in a table: its settings, and the time at which it is free.
//!
//! This module does not depend on the position of the words in the file, nor on the link.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use springtide_runtime::config::Time;
use springtide_runtime::net::{DropCause, LinkProfile};
use springtide_runtime::random::SplitMix;

use crate::impair::{BurstLoss, Fate, Impairments, Reordering};
use crate::router::RouterCounts;

/// The number of words of a link.
pub(super) const LINK: usize = 48;

/// A link's words are its settings twice, its counters and its impairments, each in cache lines.
///
/// The valid settings are those of the generation in [`AT_FREE`]. A change fills the other settings
/// and validates them with that one word. So the queue and the rate change at one moment, and a
/// process that is killed during a change has changed nothing.
const SETTINGS: usize = 8;

/// Indices of words in settings.
const AT_DELAY_US: usize = 0;
const AT_JITTER_US: usize = 1;
/// The bits of an `f64`.
const AT_LOSS: usize = 2;
const AT_RATE: usize = 3;
const AT_QUEUE: usize = 4;
const AT_FLAGS: usize = 5;

/// Indices of a link's words after both settings.
pub(super) const AT_STATE: usize = 2 * SETTINGS;
/// The time at which the link is free, with the generation of its settings.
pub(super) const AT_FREE: usize = 2 * SETTINGS + 1;
/// The latest time of an offer: a datagram that had left the queue by then does not return to it.
const AT_SEEN: usize = 2 * SETTINGS + 2;
/// The latest arrival, with the generation of the settings by which it may delay later datagrams.
pub(super) const AT_LAST: usize = 2 * SETTINGS + 3;
const AT_PACKETS: usize = 2 * SETTINGS + 4;
const AT_BYTES: usize = 2 * SETTINGS + 5;
const AT_LOST: usize = 2 * SETTINGS + 6;
/// Whether the channel of the bursts is bad.
const AT_CHANNEL: usize = 2 * SETTINGS + 7;
/// Lost packets by cause, and packets by impairment.
const AT_CAUSES: usize = 3 * SETTINGS;
const CAUSES: usize = 7;
/// The impairments. A datagram during a change may meet some old and some new ones.
const AT_IMPAIRMENTS: usize = 4 * SETTINGS;
const IMPAIRMENTS: usize = 8;

/// Flags of settings.
const UP: u64 = 1;
const REORDER: u64 = 2;
/// Flag of a link's state: the two clusters are cut off from each other, independently of the
/// line's settings.
pub(super) const CUT: u64 = 4;
/// Flag of a link's state: the link exists. A cluster may have no limited uplink.
pub(super) const EXISTS: u64 = 8;

/// Bits of a time with a generation: 36 years in nanoseconds. The remaining bits hold the
/// generation modulo 16.
const TIME_BITS: u32 = 60;
pub(super) const TIME: u64 = (1 << TIME_BITS) - 1;
const GENERATIONS: u64 = 1 << (u64::BITS - TIME_BITS);

fn stamped(generation: u64, time: u64) -> u64 {
    (generation << TIME_BITS) | time.min(TIME)
}

/// Splits a word into a generation and a time.
fn split(word: u64) -> (u64, u64) {
    (word >> TIME_BITS, word & TIME)
}

/// The rate of an unlimited link; a rate of 0 carries nothing.
const NO_RATE: u64 = u64::MAX;

/// The settings of a link, as its words encode them.
#[derive(Clone, Copy)]
struct EncodedSettings {
    delay_us: u64,
    jitter_us: u64,
    loss: f64,
    rate: u64,
    queue: u64,
    flags: u64,
}

impl EncodedSettings {
    fn of(profile: &LinkProfile) -> Self {
        let flag = |on, flag| if on { flag } else { 0 };
        Self {
            delay_us: profile.delay_us,
            jitter_us: profile.jitter_us,
            loss: profile.loss,
            rate: profile.rate.unwrap_or(NO_RATE),
            queue: profile.queue as u64,
            flags: flag(profile.up, UP) | flag(profile.reorder, REORDER),
        }
    }

    fn profile(&self) -> LinkProfile {
        LinkProfile {
            delay_us: self.delay_us,
            jitter_us: self.jitter_us,
            loss: self.loss,
            rate: Some(self.rate).filter(|rate| *rate != NO_RATE),
            queue: usize::try_from(self.queue).unwrap_or(usize::MAX),
            reorder: self.has(REORDER),
            up: self.has(UP),
        }
    }

    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// The jitter, which cannot exceed the delay.
    fn jitter_us(&self) -> u64 {
        self.jitter_us.min(self.delay_us)
    }

    /// The longest time from the queue's end to the arrival, in nanoseconds.
    fn longest_ns(&self) -> u64 {
        self.delay_us.saturating_add(self.jitter_us()).saturating_mul(1000)
    }

    /// Whether all datagrams take the same time by both settings.
    fn is_as_fast_as(&self, other: &Self) -> bool {
        let pace = |of: &Self| (of.delay_us, of.jitter_us, of.rate);
        pace(self) == pace(other)
    }

    /// The time at which the last byte of a datagram has left the queue; an error if the link is
    /// down or has no room.
    ///
    /// `free` is the time at which the link is free. `seen` is called only for a limited rate.
    fn sent(
        &self,
        len: usize,
        now: u64,
        free: u64,
        seen: impl FnOnce() -> u64,
    ) -> Result<u64, DropCause> {
        if !self.has(UP) || self.rate == 0 {
            return Err(DropCause::Down);
        }
        if self.rate == NO_RATE {
            return Ok(now);
        }
        let busy = busy_ns(len as u128, self.rate);
        // The model counts a datagram in transmission whole. With datagrams of one length the
        // results are equal; otherwise they differ by less than one datagram.
        let before = match busy {
            0 => 0,
            busy => u128::from(free.saturating_sub(seen()).div_ceil(busy)) * len as u128,
        };
        let room = u128::from(self.queue);
        if before + len as u128 > room {
            return Err(DropCause::QueueFull);
        }
        Ok(free.max(now).saturating_add(busy))
    }
}

/// One link's words. The settings and the time at which the link is free are consistent; all others
/// are accessed independently.
#[derive(Clone, Copy)]
pub(super) struct LinkEntry<'a>(pub(super) &'a [AtomicU64]);

impl LinkEntry<'_> {
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Relaxed)
    }

    pub(super) fn has(&self, flag: u64) -> bool {
        // A link that exists has its settings.
        self.word(AT_STATE).load(Acquire) & flag != 0
    }

    pub(super) fn add(&self, at: usize, more: u64) {
        self.word(at).fetch_add(more, Relaxed);
    }

    pub(super) fn count(&self, len: usize) {
        self.add(AT_PACKETS, 1);
        self.add(AT_BYTES, len as u64);
    }

    pub(super) fn counts(&self) -> RouterCounts {
        let [packets, bytes, lost] = [AT_PACKETS, AT_BYTES, AT_LOST].map(|at| self.get(at));
        let causes: [u64; CAUSES] = std::array::from_fn(|at| self.get(AT_CAUSES + at));
        let [down, queue_full, random, burst, duplicated, corrupted, reordered] = causes;
        let filtered = 0;
        RouterCounts {
            packets,
            bytes,
            lost,
            down,
            queue_full,
            random,
            burst,
            filtered,
            duplicated,
            corrupted,
            reordered,
        }
    }

    /// Counts a datagram that the link did not carry.
    pub(super) fn drop(&self, cause: DropCause) {
        self.add(AT_LOST, 1);
        let at = match cause {
            DropCause::Down => 0,
            DropCause::QueueFull => 1,
            DropCause::Loss => 2,
        };
        self.add(AT_CAUSES + at, 1);
    }

    /// Sets the impairments; a trace is not supported.
    pub(super) fn set_impairments(&self, new: &Impairments) {
        let burst =
            new.burst.unwrap_or(BurstLoss { to_bad: 0.0, to_good: 0.0, bad: 0.0, good: 0.0 });
        let (share, hold) = new.reorder.map_or((0.0, 0), |reorder| {
            let hold = u64::try_from(reorder.hold.get().as_nanos()).unwrap_or(u64::MAX);
            (reorder.share, hold)
        });
        let words: [u64; IMPAIRMENTS] = [
            burst.to_bad.to_bits(),
            burst.to_good.to_bits(),
            burst.bad.to_bits(),
            burst.good.to_bits(),
            new.duplicate.to_bits(),
            new.corrupt.to_bits(),
            share.to_bits(),
            hold,
        ];
        for (at, word) in words.into_iter().enumerate() {
            self.word(AT_IMPAIRMENTS + at).store(word, Relaxed);
        }
    }

    /// Draws what happens to a datagram that the link carries, and counts it.
    pub(super) fn impair(&self, rng: &mut SplitMix) -> Fate {
        let words: [u64; IMPAIRMENTS] = std::array::from_fn(|at| self.get(AT_IMPAIRMENTS + at));
        let [to_bad, to_good, bad, good, duplicate, corrupt, share] =
            std::array::from_fn(|at| f64::from_bits(words[at]));
        let hold = Time::from(std::time::Duration::from_nanos(words[IMPAIRMENTS - 1]));
        let impairments = Impairments {
            burst: Some(BurstLoss { to_bad, to_good, bad, good }),
            duplicate,
            corrupt,
            reorder: Some(Reordering { share, hold }),
            trace: None,
        };
        let was_bad = self.get(AT_CHANNEL) != 0;
        let mut is_bad = was_bad;
        let fate = impairments.draw(&mut is_bad, rng);
        if is_bad != was_bad {
            self.word(AT_CHANNEL).store(u64::from(is_bad), Relaxed);
        }
        let has = [
            fate.is_lost,
            fate.is_duplicated && !fate.is_lost,
            fate.flip.is_some() && !fate.is_lost,
            fate.hold > std::time::Duration::ZERO && !fate.is_lost,
        ];
        self.add(AT_LOST, u64::from(fate.is_lost));
        for (at, has) in has.into_iter().enumerate().filter(|(_, has)| *has) {
            // Behind the three causes of links.
            self.add(AT_CAUSES + 3 + at, u64::from(has));
        }
        fate
    }

    /// The bytes that wait, by the time at which the link is free.
    pub(super) fn queued(&self, now: u64) -> usize {
        let (generation, free) = split(self.word(AT_FREE).load(Acquire));
        let rate = self.settings(generation).rate;
        if rate == NO_RATE {
            return 0;
        }
        let waiting = u128::from(free.saturating_sub(now)) * u128::from(rate) / 1_000_000_000;
        usize::try_from(waiting).unwrap_or(usize::MAX)
    }

    pub(super) fn profile(&self) -> LinkProfile {
        loop {
            let (generation, _) = split(self.word(AT_FREE).load(Acquire));
            let settings = self.settings(generation);
            if split(self.get(AT_FREE)).0 == generation {
                return settings.profile();
            }
        }
    }

    /// The settings of a generation, which are valid if [`AT_FREE`] has this generation afterwards.
    fn settings(&self, generation: u64) -> EncodedSettings {
        let words = self.slot(generation);
        let get = |at: usize| words[at].load(Relaxed);
        let settings = EncodedSettings {
            delay_us: get(AT_DELAY_US),
            jitter_us: get(AT_JITTER_US),
            loss: f64::from_bits(get(AT_LOSS)),
            rate: get(AT_RATE),
            queue: get(AT_QUEUE),
            flags: get(AT_FLAGS),
        };
        // A reader of a word of a later change sees its generation from here on.
        fence(Acquire);
        settings
    }

    fn slot(&self, generation: u64) -> &[AtomicU64] {
        let slot = if generation.is_multiple_of(2) { 0 } else { SETTINGS };
        &self.0[slot..][..SETTINGS]
    }

    pub(super) fn set(&self, profile: &LinkProfile, now: u64) {
        let new = EncodedSettings::of(profile);
        loop {
            let word = self.word(AT_FREE).load(Acquire);
            let (generation, free) = split(word);
            let (old, next) = (self.settings(generation), (generation + 1) % GENERATIONS);
            // A process that sees a word of this change also sees the change before it.
            fence(Release);
            let words = self.slot(next);
            let store = |at: usize, word: u64| words[at].store(word, Relaxed);
            store(AT_DELAY_US, new.delay_us);
            store(AT_JITTER_US, new.jitter_us);
            store(AT_LOSS, new.loss.to_bits());
            store(AT_RATE, new.rate);
            store(AT_QUEUE, new.queue);
            store(AT_FLAGS, new.flags);
            // Waiting datagrams leave at the new rate, and no more wait than a queue holds: the
            // clock of the caller may be late.
            let waiting = u128::from(free.saturating_sub(now));
            let waiting = match old.rate {
                NO_RATE => 0,
                rate => waiting * u128::from(rate.max(1)) / 1_000_000_000,
            };
            let waiting = waiting.min(u128::from(old.queue.max(new.queue)));
            let free = now.saturating_add(busy_ns(waiting, new.rate));
            // Otherwise datagrams sent at the slow rate would delay all later ones, for as long as
            // the link was slow.
            let latest =
                if new.is_as_fast_as(&old) { TIME } else { free.saturating_add(new.longest_ns()) };
            let clamp = |word: u64| Some(stamped(next, split(word).1.min(latest)));
            let _ = self.word(AT_LAST).fetch_update(AcqRel, Acquire, clamp);
            let updated = stamped(next, free);
            if self.word(AT_FREE).compare_exchange(word, updated, AcqRel, Acquire).is_ok() {
                break;
            }
        }
        // A cut is independent of the profile.
        self.word(AT_STATE).fetch_or(EXISTS, Release);
    }

    /// Queues a datagram. Returns the settings with their generation, and the time at which its
    /// last byte has left the queue.
    ///
    /// The result is an error if the link is down or has no room.
    fn queue(&self, len: usize, now: u64) -> Result<(EncodedSettings, u64, u64), DropCause> {
        let mut word = self.word(AT_FREE).load(Acquire);
        loop {
            let (generation, free) = split(word);
            let settings = self.settings(generation);
            let seen = || self.word(AT_SEEN).fetch_max(now, Relaxed).max(now);
            let sent = settings.sent(len, now, free, seen);
            // Without a rate nothing waits. The word is written all the same: if it has changed, so
            // have the settings.
            let next = match sent {
                Ok(sent) if settings.rate != NO_RATE => stamped(generation, sent),
                _ => word,
            };
            match self.word(AT_FREE).compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return sent.map(|sent| (settings, generation, sent)),
                Err(other) => word = other,
            }
        }
    }

    pub(super) fn offer(&self, len: usize, now: u64, rng: &mut SplitMix) -> Result<u64, DropCause> {
        let (settings, generation, sent) = self.queue(len, now)?;
        // Drawn in all cases, as in the model.
        let (lost, swing) = (rng.unit(), rng.unit());
        if lost < settings.loss {
            return Err(DropCause::Loss); // after the queue: it used its share of the rate
        }
        let delay_us = settings.delay_us as f64 + settings.jitter_us() as f64 * (2.0 * swing - 1.0);
        let at = sent.saturating_add((delay_us * 1000.0) as u64);
        // One value for all processes, as the link is shared. With one for each process, only its
        // own datagrams would keep their order, and the effect of jitter would depend on the number
        // of processes.
        let later = |word: u64| {
            let (of, last) = split(word);
            // An arrival by older settings has no place in the order.
            (of == generation).then(|| stamped(of, last.max(at)))
        };
        let last = self.word(AT_LAST).fetch_update(AcqRel, Acquire, later);
        Ok(match last {
            Ok(word) if !settings.has(REORDER) => at.max(split(word).1),
            _ => at,
        })
    }
}

/// The time that this number of bytes occupies a link, in nanoseconds.
fn busy_ns(bytes: u128, rate: u64) -> u64 {
    match rate {
        NO_RATE => 0,
        rate => u64::try_from(bytes.saturating_mul(1_000_000_000) / u128::from(rate.max(1)))
            .unwrap_or(u64::MAX),
    }
}
