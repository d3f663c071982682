//! Named link profiles from `netem-scripts/profiles`, common to all back ends and the simulator.
//!
//! It defines the format, independent of its use.

use std::sync::OnceLock;
use std::time::Duration;

use super::limits::{check_delay, check_rate, check_share};
use super::schema::{
    Fallback::{Absent, Required},
    section,
};
use super::units::{BoundedInt, ByteRate, Share, Time};
use super::{Checker, Config, Sources, load};

section! {
    /// The properties of a link.
    ProfileConfig {
        /// Name of the profile.
        name: String = Required("\"wan-50\"");
        /// Situation that it models, and its purpose.
        why: String = Required("\"Two sites of one continent over a leased line.\"");
        /// Round trip time.
        rtt: Option<Time> = Absent("\"50ms\"");
        /// Variation of the one-way delay in either direction.
        jitter: Option<Time> = Absent("\"1ms\"");
        /// Share of lost packets, as a number or as a percentage such as "0.1%".
        loss: Option<Share> = Absent("0.001");
        /// Bandwidth in each direction; default: no limit. Of an uplink: out of the cluster.
        bandwidth: Option<ByteRate> = Absent("\"10MB/s\"");
        /// Bandwidth of the opposite direction, if different. Of an uplink: into the cluster.
        bandwidth_back: Option<ByteRate> = Absent("\"1MB/s\"");
        /// Bytes that may wait if there is a bandwidth; default: 100 ms of it, and at least 100000.
        queue: Option<BoundedInt<1500, 4_000_000_000>> = Absent("250000");
        /// Whether jitter may reorder packets.
        reorder: Option<bool> = Absent("true");
        /// Time for which the link carries data before it carries none for `down`.
        up: Option<Time> = Absent("\"20s\"");
        /// See `up`.
        down: Option<Time> = Absent("\"5s\"");
    }
}

impl Config for ProfileConfig {
    const WHAT: &'static str = "profile";

    fn check(&self, checker: &mut Checker<'_>) {
        check_share(self.loss.map(Share::get), "loss", checker);
        check_delay(self.rtt, "rtt", checker);
        check_delay(self.jitter, "jitter", checker);
        check_rate(self.bandwidth, "bandwidth", checker);
        check_rate(self.bandwidth_back, "bandwidth_back", checker);
        if self.up.is_some() != self.down.is_some() {
            let key = if self.up.is_some() { "up" } else { "down" };
            checker.report(key, "`up` and `down` go together");
        }
        for (key, time) in [("up", self.up), ("down", self.down)] {
            if time.is_some_and(|time| time.get() < Duration::from_millis(10)) {
                checker.report(key, "must be at least \"10ms\"");
            }
        }
    }
}

/// The files of the profiles.
const SHIPPED: &[(&str, &str)] = &[
    ("lan", include_str!("../profiles/lan.toml")),
    ("metro", include_str!("../profiles/metro.toml")),
    ("das2", include_str!("../profiles/das2.toml")),
    ("wan-50", include_str!("../profiles/wan-50.toml")),
    ("congested-uplink-100KBps", include_str!("../profiles/congested-uplink-100KBps.toml")),
    ("lossy", include_str!("../profiles/lossy.toml")),
    ("satellite", include_str!("../profiles/satellite.toml")),
    ("asymmetric", include_str!("../profiles/asymmetric.toml")),
    ("flapping", include_str!("../profiles/flapping.toml")),
];

/// All profiles that are shipped.
pub fn profiles() -> &'static [ProfileConfig] {
    static READ: OnceLock<Vec<ProfileConfig>> = OnceLock::new();
    READ.get_or_init(|| {
        // A test reads all of them.
        let read = |(name, text): &(&str, &str)| load(&Sources::of_text(name, text)).ok();
        SHIPPED.iter().filter_map(read).map(|loaded| loaded.value).collect()
    })
}

/// The shipped profile with this name.
pub fn profile(name: &str) -> Option<&'static ProfileConfig> {
    profiles().iter().find(|profile| profile.name == name)
}

/// The properties of a link in both directions, without references to profiles or defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProperties {
    /// The round trip time.
    pub rtt: Duration,
    /// The variation of the one-way delay in either direction.
    pub jitter: Duration,
    /// The share of lost packets in each direction.
    pub loss: f64,
    /// The bandwidth from the first named cluster to the other; none: no limit.
    pub bandwidth: Option<ByteRate>,
    /// The bandwidth in the opposite direction.
    pub bandwidth_back: Option<ByteRate>,
    /// The bytes that may wait for the bandwidth; none: derived from it.
    pub queue: Option<u32>,
    /// Whether jitter may reorder packets.
    pub reorder: bool,
    /// Alternating times in which the link carries data and in which it does not.
    pub up_and_down: Option<(Duration, Duration)>,
}

impl LinkProperties {
    /// The round trip without a profile or a value.
    const RTT: Duration = Duration::from_millis(20);
}

impl From<&ProfileConfig> for LinkProperties {
    fn from(profile: &ProfileConfig) -> Self {
        Self {
            rtt: profile.rtt.map(Time::get).unwrap_or_default(),
            jitter: profile.jitter.map(Time::get).unwrap_or_default(),
            loss: profile.loss.unwrap_or_default().get(),
            bandwidth: profile.bandwidth,
            bandwidth_back: profile.bandwidth_back.or(profile.bandwidth),
            queue: profile.queue.map(BoundedInt::get),
            reorder: profile.reorder.unwrap_or_default(),
            up_and_down: profile.up.zip(profile.down).map(|(up, down)| (up.get(), down.get())),
        }
    }
}

/// The values that a section of a file gives for a link.
pub(super) struct LinkValues<'a> {
    pub profile: Option<&'a str>,
    pub rtt: Option<Time>,
    pub jitter: Option<Time>,
    pub loss: Option<f64>,
    pub bandwidth: Option<ByteRate>,
    pub bandwidth_back: Option<ByteRate>,
    pub queue: Option<u32>,
    pub reorder: Option<bool>,
}

impl LinkValues<'_> {
    /// Combines the values with those of the profile.
    pub fn line(&self) -> LinkProperties {
        let plain = LinkProperties {
            rtt: LinkProperties::RTT,
            jitter: Duration::ZERO,
            loss: 0.0,
            bandwidth: None,
            bandwidth_back: None,
            queue: None,
            reorder: false,
            up_and_down: None,
        };
        let line = self.profile.and_then(profile).map_or(plain, LinkProperties::from);
        LinkProperties {
            rtt: self.rtt.map_or(line.rtt, Time::get),
            jitter: self.jitter.map_or(line.jitter, Time::get),
            loss: self.loss.unwrap_or(line.loss),
            bandwidth: self.bandwidth.or(line.bandwidth),
            bandwidth_back: self.bandwidth_back.or(self.bandwidth).or(line.bandwidth_back),
            queue: self.queue.or(line.queue),
            reorder: self.reorder.unwrap_or(line.reorder),
            up_and_down: line.up_and_down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shipped_profiles_load_under_their_names_with_a_reason() {
        for (name, text) in SHIPPED {
            let read = load::<ProfileConfig>(&Sources::of_text(name, text));
            let read = read.unwrap_or_else(|error| panic!("{error}")).value;
            assert_eq!(read.name, *name);
            assert!(read.why.len() > 40, "{name}: {}", read.why);
        }
        assert_eq!(profiles().len(), SHIPPED.len());
        let congested = LinkProperties::from(profile("congested-uplink-100KBps").unwrap());
        assert_eq!(congested.bandwidth.map(ByteRate::bytes_per_second), Some(1e5));
        assert!(LinkProperties::from(profile("flapping").unwrap()).up_and_down.is_some());
        let asymmetric = LinkProperties::from(profile("asymmetric").unwrap());
        assert!(asymmetric.bandwidth != asymmetric.bandwidth_back);
    }

    #[test]
    fn errors_are_reported() {
        let text = "name = \"x\"\nwhy = \"y\"\nloss = 2.0\nbandwidth = \"0B/s\"\nup = \"1s\"\n";
        let errors =
            load::<ProfileConfig>(&Sources::of_text("x.toml", text)).unwrap_err().to_string();
        for part in [
            "x.toml:3:1: must lie within 0 and 1, found 2",
            "x.toml:4:1: nothing passes at this rate",
            "x.toml:5:1: `up` and `down` go together",
        ] {
            assert!(errors.contains(part), "{part} is not in\n{errors}");
        }
    }
}
