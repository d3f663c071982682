//! One link's words in a table: what it is like, and the time at which it is free.
//!
//! Must not know where in the file they are, nor which link they are of.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use springtide_runtime::net::LinkProfile;
use springtide_runtime::random::SplitMix;

use crate::router::Counts;

/// Words of a link.
pub(super) const LINK: usize = 24;

/// A link's words: its settings twice, and what is counted, each a cache line. The settings in force are those of the generation that
/// [`AT_FREE`] bears; a change fills the others and brings them into force with that one word, so that what waits and the rate at which it
/// goes out change at one moment, and one who is killed on the way has changed nothing.
const SETTINGS: usize = 8;

/// Places in settings.
const AT_DELAY_US: usize = 0;
const AT_JITTER_US: usize = 1;
/// The bits of an `f64`.
const AT_LOSS: usize = 2;
const AT_RATE: usize = 3;
const AT_QUEUE: usize = 4;
const AT_FLAGS: usize = 5;

/// Places in a link's words, after both settings.
pub(super) const AT_STATE: usize = 2 * SETTINGS;
/// When it is free, with the generation of its settings.
pub(super) const AT_FREE: usize = 2 * SETTINGS + 1;
/// The latest time at which something was offered to it: what had left the queue by then does not come back.
const AT_SEEN: usize = 2 * SETTINGS + 2;
/// The latest arrival, with the generation of the settings by which it may hold up what follows.
pub(super) const AT_LAST: usize = 2 * SETTINGS + 3;
const AT_PACKETS: usize = 2 * SETTINGS + 4;
const AT_BYTES: usize = 2 * SETTINGS + 5;
pub(super) const AT_LOST: usize = 2 * SETTINGS + 6;

/// Flags of settings.
const UP: u64 = 1;
const REORDER: u64 = 2;
/// Of a link's state: two clusters do not reach each other, whatever their line is like.
pub(super) const CUT: u64 = 4;
/// Such a link lies on the way at all: a cluster may have no limited uplink.
pub(super) const THERE: u64 = 8;

/// A time that bears a generation has so many bits, in nanoseconds 36 years; the generation, modulo 16, has the others.
const TIME_BITS: u32 = 60;
pub(super) const TIME: u64 = (1 << TIME_BITS) - 1;
const GENERATIONS: u64 = 1 << (u64::BITS - TIME_BITS);

fn stamped(generation: u64, time: u64) -> u64 {
    (generation << TIME_BITS) | time.min(TIME)
}

/// A generation, and a time.
fn split(word: u64) -> (u64, u64) {
    (word >> TIME_BITS, word & TIME)
}

/// No limit. (A link that carries 0 bytes a second is another thing.)
const NO_RATE: u64 = u64::MAX;

/// What a link is like, as its words say it.
#[derive(Clone, Copy)]
struct Settings {
    delay_us: u64,
    jitter_us: u64,
    loss: f64,
    rate: u64,
    queue: u64,
    flags: u64,
}

impl Settings {
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

    /// As much of it as counts.
    fn jitter_us(&self) -> u64 {
        self.jitter_us.min(self.delay_us)
    }

    /// The longest time from the queue's end to the arrival, in nanoseconds.
    fn longest_ns(&self) -> u64 {
        self.delay_us.saturating_add(self.jitter_us()).saturating_mul(1000)
    }

    /// Whether all takes the same time by both.
    fn is_as_fast_as(&self, other: &Self) -> bool {
        let pace = |of: &Self| (of.delay_us, of.jitter_us, of.rate);
        pace(self) == pace(other)
    }

    /// When the last byte of a datagram has left the queue of a link that is free at a time; `None` where it does not carry, or there is no
    /// room. `seen` is asked where there is a rate.
    fn sent(&self, len: usize, now: u64, free: u64, seen: impl FnOnce() -> u64) -> Option<u64> {
        if !self.has(UP) || self.rate == 0 {
            return None;
        }
        if self.rate == NO_RATE {
            return Some(now);
        }
        let busy = busy_ns(len as u128, self.rate);
        // The model counts what is being sent whole. With datagrams of one length this is the same, else it is less than one off.
        let before = match busy {
            0 => 0,
            busy => u128::from(free.saturating_sub(seen()).div_ceil(busy)) * len as u128,
        };
        let room = u128::from(self.queue);
        (before + len as u128 <= room).then(|| free.max(now).saturating_add(busy))
    }
}

/// One link's words. Of one moment are settings and the time at which it is free; each of the others is read and written by itself.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a>(pub(super) &'a [AtomicU64]);

impl Entry<'_> {
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Relaxed)
    }

    pub(super) fn has(&self, flag: u64) -> bool {
        // Where a link is there, so are its settings.
        self.word(AT_STATE).load(Acquire) & flag != 0
    }

    pub(super) fn add(&self, at: usize, more: u64) {
        self.word(at).fetch_add(more, Relaxed);
    }

    pub(super) fn count(&self, len: usize) {
        self.add(AT_PACKETS, 1);
        self.add(AT_BYTES, len as u64);
    }

    pub(super) fn counts(&self) -> Counts {
        let [packets, bytes, lost] = [AT_PACKETS, AT_BYTES, AT_LOST].map(|at| self.get(at));
        Counts { packets, bytes, lost }
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

    /// Those of a generation. They hold if [`AT_FREE`] still bears it afterwards.
    fn settings(&self, generation: u64) -> Settings {
        let words = self.slot(generation);
        let get = |at: usize| words[at].load(Relaxed);
        let settings = Settings {
            delay_us: get(AT_DELAY_US),
            jitter_us: get(AT_JITTER_US),
            loss: f64::from_bits(get(AT_LOSS)),
            rate: get(AT_RATE),
            queue: get(AT_QUEUE),
            flags: get(AT_FLAGS),
        };
        // Who has read a word of a later change sees that one's generation from here on.
        fence(Acquire);
        settings
    }

    fn slot(&self, generation: u64) -> &[AtomicU64] {
        let slot = if generation.is_multiple_of(2) { 0 } else { SETTINGS };
        &self.0[slot..][..SETTINGS]
    }

    pub(super) fn set(&self, profile: &LinkProfile, now: u64) {
        let new = Settings::of(profile);
        loop {
            let word = self.word(AT_FREE).load(Acquire);
            let (generation, free) = split(word);
            let (old, next) = (self.settings(generation), (generation + 1) % GENERATIONS);
            // The change before this one is seen by whoever sees a word of this one.
            fence(Release);
            let words = self.slot(next);
            let store = |at: usize, word: u64| words[at].store(word, Relaxed);
            store(AT_DELAY_US, new.delay_us);
            store(AT_JITTER_US, new.jitter_us);
            store(AT_LOSS, new.loss.to_bits());
            store(AT_RATE, new.rate);
            store(AT_QUEUE, new.queue);
            store(AT_FLAGS, new.flags);
            // What waits goes out at the new rate, and no more waits than a queue holds: who sets it may be late by its clock.
            let waits = u128::from(free.saturating_sub(now));
            let waits = match old.rate {
                NO_RATE => 0,
                rate => waits * u128::from(rate.max(1)) / 1_000_000_000,
            };
            let waits = waits.min(u128::from(old.queue.max(new.queue)));
            let free = now.saturating_add(busy_ns(waits, new.rate));
            // Else what was sent while it was slow would hold up all that follows, for as long as it was slow.
            let latest = match new.is_as_fast_as(&old) {
                true => TIME,
                false => free.saturating_add(new.longest_ns()),
            };
            let clamp = |word: u64| Some(stamped(next, split(word).1.min(latest)));
            let _ = self.word(AT_LAST).fetch_update(AcqRel, Acquire, clamp);
            let there = stamped(next, free);
            if self.word(AT_FREE).compare_exchange(word, there, AcqRel, Acquire).is_ok() {
                break;
            }
        }
        // Whether it is cut is not the profile's to say.
        self.word(AT_STATE).fetch_or(THERE, Release);
    }

    /// What it is like, with the generation of that, and when the last byte of a datagram has left the queue; `None` where it does not
    /// carry, or there is no room.
    fn queue(&self, len: usize, now: u64) -> Option<(Settings, u64, u64)> {
        let mut word = self.word(AT_FREE).load(Acquire);
        loop {
            let (generation, free) = split(word);
            let settings = self.settings(generation);
            let seen = || self.word(AT_SEEN).fetch_max(now, Relaxed).max(now);
            let sent = settings.sent(len, now, free, seen);
            // Without a rate nothing waits. The word is written all the same: if it is another by now, so are the settings.
            let next = match sent {
                Some(sent) if settings.rate != NO_RATE => stamped(generation, sent),
                _ => word,
            };
            match self.word(AT_FREE).compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return sent.map(|sent| (settings, generation, sent)),
                Err(other) => word = other,
            }
        }
    }

    pub(super) fn offer(&self, len: usize, now: u64, rng: &mut SplitMix) -> Option<u64> {
        let (settings, generation, sent) = self.queue(len, now)?;
        // Drawn whether needed or not, as in the model.
        let (lost, swing) = (rng.unit(), rng.unit());
        if lost < settings.loss {
            return None; // after the queue: it took its share of the rate
        }
        let delay_us = settings.delay_us as f64 + settings.jitter_us() as f64 * (2.0 * swing - 1.0);
        let at = sent.saturating_add((delay_us * 1000.0) as u64);
        // One for all processes, as the link is: a process of its own would keep the order of what it sends itself alone, and what jitter
        // does would depend on how many share the link.
        let later = |word: u64| {
            let (of, last) = split(word);
            // What a change overtook has no place in the order after it.
            (of == generation).then(|| stamped(of, last.max(at)))
        };
        let last = self.word(AT_LAST).fetch_update(AcqRel, Acquire, later);
        Some(match last {
            Ok(word) if !settings.has(REORDER) => at.max(split(word).1),
            _ => at,
        })
    }
}

/// The time that so many bytes keep a link busy, in nanoseconds.
fn busy_ns(bytes: u128, rate: u64) -> u64 {
    match rate {
        NO_RATE => 0,
        rate => u64::try_from(bytes.saturating_mul(1_000_000_000) / u128::from(rate.max(1)))
            .unwrap_or(u64::MAX),
    }
}
