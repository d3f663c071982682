//! Impairments of a line beyond delay, jitter, loss and rate: bursts of loss, duplicates, corrupted
//! and held-back packets, and a trace of delivery opportunities.
//!
//! All functions are pure: callers pass the time and a seeded generator. The router and shaped
//! sockets share them. This module depends on neither the packets' source nor their contents.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::config::{ByteRate, Share, Time};
use springtide_runtime::random::SplitMix;

/// Loss in bursts by the Gilbert-Elliott model: a channel is good or bad, and may change with each
/// packet.
///
/// The share of packets in the bad state is `to_bad / (to_bad + to_good)`, and the mean length of a
/// bad phase is `1 / to_good` packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstLoss {
    /// The probability that a good channel is bad for the next packet.
    pub to_bad: f64,
    /// The probability that a bad channel is good for the next packet.
    pub to_good: f64,
    /// The share of packets that a bad channel loses.
    pub bad: f64,
    /// The share of packets that a good channel loses.
    pub good: f64,
}

impl BurstLoss {
    /// The share of packets that are lost in the long run.
    pub fn mean(&self) -> f64 {
        let changes = self.to_bad + self.to_good;
        // A channel that never changes stays good, as it is at the start.
        let bad_share = if changes > 0.0 { self.to_bad / changes } else { 0.0 };
        bad_share * self.bad + (1.0 - bad_share) * self.good
    }
}

impl FromStr for BurstLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "must be TO_BAD/TO_GOOD, or TO_BAD/TO_GOOD/LOSS_BAD/LOSS_GOOD, such as 1%/25%, \
                 found {text:?}"
            )
        };
        let shares = text.split('/').map(share).collect::<Result<Vec<f64>, _>>();
        let shares = shares.map_err(|_| wrong())?;
        let (to_bad, to_good, bad, good) = match shares[..] {
            [to_bad, to_good] => (to_bad, to_good, 1.0, 0.0),
            [to_bad, to_good, bad] => (to_bad, to_good, bad, 0.0),
            [to_bad, to_good, bad, good] => (to_bad, to_good, bad, good),
            _ => return Err(wrong()),
        };
        Ok(Self { to_bad, to_good, bad, good })
    }
}

impl fmt::Display for BurstLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to_bad, to_good, bad, good } = *self;
        write!(f, "{}/{}", Share::from(to_bad), Share::from(to_good))?;
        if (bad, good) == (1.0, 0.0) {
            return Ok(());
        }
        write!(f, "/{}/{}", Share::from(bad), Share::from(good))
    }
}

/// Reordering: a share of packets is held back, so that later packets overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reordering {
    /// The share of packets that are held back.
    pub share: f64,
    /// The additional delay of these packets.
    pub hold: Time,
}

impl FromStr for Reordering {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "must be true, false, or SHARE/TIME such as 2%/10ms (this share of packets comes \
                 so much later), found {text:?}"
            )
        };
        let (part, hold) = text.split_once('/').ok_or_else(wrong)?;
        let (part, hold) = (share(part).map_err(|_| wrong())?, hold.parse::<Time>()?);
        Ok(Self { share: part, hold })
    }
}

impl fmt::Display for Reordering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Share::from(self.share), self.hold)
    }
}

/// Parses a share from 0 to 1, as a number or a percentage.
///
/// # Errors
/// A description of valid shares.
pub fn share(text: &str) -> Result<f64, String> {
    let read = text.parse::<Share>().ok().map(Share::get);
    read.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| {
        // The number alone, as files are reported.
        let found = text.parse::<f64>().map_or_else(|_| format!("{text:?}"), |n| n.to_string());
        format!("must lie within 0 and 1 (or 0% and 100%), found {found}")
    })
}

/// Size in bytes of the packet that one delivery opportunity of a trace carries.
pub const OPPORTUNITY: usize = 1500;
/// The maximum number of delivery opportunities of a trace.
const OPPORTUNITIES_MAX: usize = 4_000_000;

/// A link whose rate follows a recorded trace, in the format of Mahimahi: each line is a time in
/// milliseconds at which 1500 bytes can be delivered.
///
/// The trace repeats after its last time. An opportunity that no packet waits for is lost.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct DeliveryTrace(std::sync::Arc<[u32]>);

impl fmt::Debug for DeliveryTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeliveryTrace").field(&self.0.len()).finish()
    }
}

impl From<DeliveryTrace> for Vec<u32> {
    fn from(trace: DeliveryTrace) -> Self {
        trace.0.to_vec()
    }
}

impl TryFrom<Vec<u32>> for DeliveryTrace {
    type Error = String;

    fn try_from(times: Vec<u32>) -> Result<Self, String> {
        if times.len() > OPPORTUNITIES_MAX {
            return Err(format!("it has {} lines, more than {OPPORTUNITIES_MAX}", times.len()));
        }
        if let Some(at) = times.windows(2).position(|pair| pair[0] > pair[1]) {
            let line = at + 2;
            return Err(format!("line {line} has an earlier time than the line before it"));
        }
        match times.last() {
            None => Err("it has no delivery opportunity".to_owned()),
            Some(0) => Err("its last time is 0 ms, so it has no length: end it later".to_owned()),
            Some(_) => Ok(Self(times.into())),
        }
    }
}

impl FromStr for DeliveryTrace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let time = |(at, line): (usize, &str)| {
            let read = line.trim().parse::<u32>();
            read.map_err(|_| {
                format!("line {} must be a time in whole milliseconds, found {line:?}", at + 1)
            })
        };
        Self::try_from(lines.map(time).collect::<Result<Vec<u32>, _>>()?)
    }
}

impl DeliveryTrace {
    /// The length of the trace, after which it repeats.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.0.last().copied().unwrap_or(1).into())
    }

    /// The mean rate of the trace in bytes a second.
    pub fn mean_rate(&self) -> f64 {
        (self.0.len() * OPPORTUNITY) as f64 / self.period().as_secs_f64()
    }

    fn at(&self, index: u64) -> Duration {
        let len = self.0.len() as u64;
        let round = self.period().as_millis() as u64 * (index / len);
        // Below the length of a slice.
        Duration::from_millis(round + u64::from(self.0[(index % len) as usize]))
    }

    /// The first opportunity that is not before this time.
    fn first_from(&self, now: Duration) -> u64 {
        let period_ms = self.period().as_millis() as u64;
        let now_ms = now.as_nanos().div_ceil(1_000_000) as u64;
        let (round, rest) = (now_ms / period_ms, now_ms % period_ms);
        let before = self.0.partition_point(|at| u64::from(*at) < rest) as u64;
        // The last time of a round is the start of the next one, which may have its own times 0.
        let at_start = if rest == 0 && round > 0 {
            self.0.iter().rev().take_while(|at| u64::from(**at) == period_ms).count() as u64
        } else {
            0
        };
        round * self.0.len() as u64 + before - at_start
    }
}

/// The impairments of one direction of a line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Impairments {
    /// Loss in bursts, in addition to the line's random loss.
    pub burst: Option<BurstLoss>,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets that arrive with one wrong bit behind their IP header.
    pub corrupt: f64,
    /// Packets that are held back.
    pub reorder: Option<Reordering>,
    /// The trace that the line's rate follows.
    pub trace: Option<DeliveryTrace>,
}

impl Impairments {
    /// Whether the line has none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The words by which `wan set` sets these impairments; empty if there are none.
    pub fn words(&self) -> String {
        let share =
            |key: &str, share: f64| (share > 0.0).then(|| format!("{key}={}", Share::from(share)));
        let trace = self.trace.as_ref().map(|trace| {
            let kilobytes = (trace.mean_rate() / 1e3).round();
            let period = Time::from(trace.period());
            format!("trace=({kilobytes}kB/s on average, every {period})")
        });
        let words = [
            self.burst.filter(|burst| burst.mean() > 0.0).map(|burst| format!("burst={burst}")),
            share("duplicate", self.duplicate),
            share("corrupt", self.corrupt),
            self.reorder.filter(|it| it.share > 0.0).map(|reorder| format!("reorder={reorder}")),
            trace,
        ];
        words.into_iter().flatten().collect::<Vec<String>>().join(" ")
    }

    /// Draws what happens to the next packet. `is_bad` is the state of the channel, which the call
    /// updates.
    ///
    /// The number of draws does not depend on the settings, so that the history of a line does not
    /// depend on the times of changes.
    pub fn draw(&self, is_bad: &mut bool, rng: &mut SplitMix) -> Fate {
        let [loss, change, twice, wrong, late, place] = std::array::from_fn(|_| rng.unit());
        let is_lost = match self.burst {
            None => {
                *is_bad = false;
                false
            }
            Some(burst) => {
                let (share, turn) =
                    if *is_bad { (burst.bad, burst.to_good) } else { (burst.good, burst.to_bad) };
                *is_bad ^= change < turn;
                loss < share
            }
        };
        let hold = self.reorder.filter(|reorder| late < reorder.share);
        Fate {
            is_lost,
            is_duplicated: twice < self.duplicate,
            flip: (wrong < self.corrupt).then_some(place),
            hold: hold.map_or(Duration::ZERO, |reorder| reorder.hold.get()),
        }
    }
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fate {
    /// Whether the packet is lost in a burst.
    pub is_lost: bool,
    /// Whether the packet arrives twice.
    pub is_duplicated: bool,
    /// The place of the wrong bit, as a share of the contents from 0 to less than 1.
    pub flip: Option<f64>,
    /// The additional delay of a packet that is held back.
    pub hold: Duration,
}

impl Fate {
    /// Flips the bit at [`flip`](Self::flip) in these contents, if there is one.
    pub fn corrupt(&self, contents: &mut [u8]) {
        let Some(place) = self.flip.filter(|_| !contents.is_empty()) else { return };
        let bits = 8 * contents.len();
        // Less than the number of bits, since the share is less than 1.
        let bit = ((place * bits as f64) as usize).min(bits - 1);
        contents[bit / 8] ^= 1 << (bit % 8);
    }
}

/// The queue in front of a trace's delivery opportunities.
#[derive(Clone, Debug, Default)]
pub struct TraceQueue {
    /// The next opportunity with room, and its free bytes.
    next: Option<(u64, usize)>,
    /// Departure time and length of each packet in the queue, as of the last offer.
    queue: VecDeque<(Duration, usize)>,
    queued: usize,
}

impl TraceQueue {
    /// Offers a packet of `len` bytes. Returns the time at which its last byte is delivered; none
    /// if the queue of `capacity` bytes has no room.
    pub fn offer(
        &mut self,
        trace: &DeliveryTrace,
        capacity: usize,
        now: Duration,
        len: usize,
    ) -> Option<Duration> {
        if self.queued(now) + len > capacity {
            return None;
        }
        let first = trace.first_from(now);
        let (mut index, mut free) = match self.next {
            // Opportunities before this packet are lost. So is the rest of one that a former
            // packet left at an earlier time.
            Some((index, free)) if index >= first => (index, free),
            _ => (first, OPPORTUNITY),
        };
        let mut left = len;
        loop {
            if free == 0 {
                (index, free) = (index + 1, OPPORTUNITY);
            }
            if left <= free {
                break;
            }
            left -= free;
            free = 0;
        }
        self.next = Some((index, free - left));
        let departure = trace.at(index);
        self.queue.push_back((departure, len));
        self.queued += len;
        Some(departure)
    }

    /// The bytes that wait.
    pub fn queued(&mut self, now: Duration) -> usize {
        while let Some((departure, len)) = self.queue.front()
            && *departure <= now
        {
            self.queued -= len;
            self.queue.pop_front();
        }
        self.queued
    }
}

/// A rate that changes by a schedule: each rate for its time, in a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RateSchedule(Vec<(Option<ByteRate>, Time)>);

impl RateSchedule {
    /// The rate and the duration of a step; steps repeat in a cycle.
    pub fn step(&self, index: usize) -> (Option<ByteRate>, Duration) {
        let (rate, time) = self.0[index % self.0.len()];
        (rate, time.get())
    }
}

impl TryFrom<String> for RateSchedule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<RateSchedule> for String {
    fn from(schedule: RateSchedule) -> Self {
        schedule.to_string()
    }
}

impl FromStr for RateSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "must be a list of RATE:TIME such as 10MB/s:5s,1MB/s:2s, where a rate may be \
                 `none`, found {text:?}"
            )
        };
        let step = |part: &str| {
            let (rate, time) = part.split_once(':').ok_or_else(wrong)?;
            let rate = match rate {
                "none" => None,
                rate => Some(rate.parse::<ByteRate>()?),
            };
            if rate.is_some_and(|rate| !rate.carries()) {
                return Err(format!("has the rate {part:?}, by which nothing passes"));
            }
            let time = time.parse::<Time>()?;
            if time.get() < Duration::from_millis(10) {
                return Err(format!("has a step shorter than 10ms: {part:?}"));
            }
            Ok((rate, time))
        };
        text.split(',').map(step).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

impl fmt::Display for RateSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = |(rate, time): &(Option<ByteRate>, Time)| {
            let rate = rate.map_or("none".to_owned(), |rate| rate.to_string());
            format!("{rate}:{time}")
        };
        f.write_str(&self.0.iter().map(step).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bursts_have_the_stationary_loss_and_length_of_the_model() {
        for (text, mean) in [("1%/25%", 1.0 / 26.0), ("5%/50%/80%/1%", 0.0818)] {
            let burst: BurstLoss = text.parse().unwrap();
            assert!((burst.mean() - mean).abs() < 1e-3, "{text}: {}", burst.mean());
            assert_eq!(burst.to_string(), text);
            for seed in 1..=5 {
                let impairments = Impairments { burst: Some(burst), ..Impairments::default() };
                let (mut rng, mut is_bad) = (SplitMix(seed), false);
                let (mut lost, mut phases, mut bad) = (0u32, 0u32, 0u32);
                let count = 400_000;
                for _ in 0..count {
                    let was_bad = is_bad;
                    lost += u32::from(impairments.draw(&mut is_bad, &mut rng).is_lost);
                    phases += u32::from(is_bad && !was_bad);
                    bad += u32::from(was_bad);
                }
                // Losses of a burst are not independent: three times the binomial interval.
                let found = f64::from(lost) / f64::from(count);
                assert!((found - mean).abs() < 0.004, "{text}, seed {seed}: {found}");
                let length = f64::from(bad) / f64::from(phases);
                let expected = 1.0 / burst.to_good;
                assert!((length / expected - 1.0).abs() < 0.05, "{text}, seed {seed}: {length}");
            }
        }
    }

    #[test]
    fn shares_of_packets_are_duplicated_corrupted_and_held_back() {
        let impairments = Impairments {
            duplicate: 0.03,
            corrupt: 0.01,
            reorder: Some("2%/10ms".parse().unwrap()),
            ..Impairments::default()
        };
        assert_eq!(impairments.words(), "duplicate=3% corrupt=1% reorder=2%/10ms");
        // Impairments that are switched off are no words.
        let off = Impairments {
            burst: Some("0%/100%".parse().unwrap()),
            reorder: Some("0%/1ms".parse().unwrap()),
            ..Impairments::default()
        };
        assert_eq!(off.words(), "");
        for seed in 1..=5 {
            let (mut rng, mut is_bad) = (SplitMix(seed), false);
            let (mut twice, mut wrong, mut late) = (0, 0, 0);
            let count = 100_000;
            for _ in 0..count {
                let fate = impairments.draw(&mut is_bad, &mut rng);
                assert!(!fate.is_lost);
                twice += u32::from(fate.is_duplicated);
                late += u32::from(fate.hold == 10 * MS);
                let mut contents = [0u8; 40];
                fate.corrupt(&mut contents);
                let ones: u32 = contents.iter().map(|byte| byte.count_ones()).sum();
                assert_eq!(ones, u32::from(fate.flip.is_some()));
                wrong += ones;
            }
            for (found, asked) in [(twice, 0.03), (wrong, 0.01), (late, 0.02f64)] {
                let found = f64::from(found) / f64::from(count);
                // 99.9 % interval of a binomial.
                let width = 3.29 * (asked * (1.0 - asked) / f64::from(count)).sqrt();
                assert!((found - asked).abs() < width, "seed {seed}: {found} of {asked}");
            }
        }
    }

    #[test]
    fn a_trace_delivers_at_its_opportunities_and_repeats() {
        let trace: DeliveryTrace = "0\n10\n10\n\n20\n".parse().unwrap();
        assert_eq!((trace.period(), trace.mean_rate()), (20 * MS, 300_000.0));
        let mut queue = TraceQueue::default();
        let mut offer = |at: u32, len| queue.offer(&trace, 10_000, at * MS, len);
        assert_eq!(offer(0, 1500), Some(Duration::ZERO));
        // Two packets share an opportunity; the third takes the rest of one and part of the next.
        assert_eq!((offer(1, 1000), offer(1, 500)), (Some(10 * MS), Some(10 * MS)));
        assert_eq!((offer(1, 1000), offer(1, 1000)), (Some(10 * MS), Some(20 * MS)));
        // The end of the trace is the start of the next round, with two opportunities.
        assert_eq!((offer(2, 1000), offer(2, 1500)), (Some(20 * MS), Some(20 * MS)));
        // Those that passed while nothing waited are lost.
        assert_eq!(offer(35, 100), Some(40 * MS));
        assert_eq!(offer(41, 3001), Some(60 * MS));
        // At saturation the rate is that of the trace, and a full queue drops.
        let mut queue = TraceQueue::default();
        let (mut bytes, mut dropped, mut last) = (0, 0, Duration::ZERO);
        for at in 0..10_000 {
            match queue.offer(&trace, 10_000, at * MS, 1000) {
                Some(at) => {
                    assert!(at >= last);
                    (bytes, last) = (bytes + 1000, at);
                }
                None => dropped += 1,
            }
        }
        let rate = f64::from(bytes) / last.as_secs_f64();
        assert!((rate / trace.mean_rate() - 1.0).abs() < 0.01 && dropped > 0, "{rate}");
        for (text, part) in [
            ("", "no delivery opportunity"),
            ("0\n", "no length"),
            ("5\n4\n", "line 2 has an earlier time"),
            ("5\n1.5\n", "line 2 must be a time in whole milliseconds, found \"1.5\""),
        ] {
            let error = text.parse::<DeliveryTrace>().unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn words_are_parsed_and_mistakes_reported() {
        let schedule: RateSchedule = "8Mbit/s:5s,none:200ms".parse().unwrap();
        assert_eq!(schedule.to_string(), "8Mbit/s:5s,none:200ms");
        assert_eq!(schedule.step(3), (None, Duration::from_millis(200)));
        for text in ["", "1MB/s", "1MB/s:5", "0B/s:5s", "1MB/s:1ms", "x:1s"] {
            assert!(text.parse::<RateSchedule>().is_err(), "{text}");
        }
        for text in ["", "1%", "1%/2%/3%/4%/5%", "2/1%", "a/b"] {
            assert!(text.parse::<BurstLoss>().unwrap_err().contains("TO_BAD/TO_GOOD"), "{text}");
        }
        for text in ["", "2%", "200%/1ms", "2%/x"] {
            assert!(text.parse::<Reordering>().is_err(), "{text}");
        }
        assert!(share("150%").unwrap_err().contains("within 0 and 1"));
    }
}
