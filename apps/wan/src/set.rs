//! Changes of links at run time: parses them and computes the new profiles. Words and meanings are
//! those of a topology's file.
//!
//! All functions are pure; callers pass the time. This module depends on neither the caller nor the
//! network's implementation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use springtide_runtime::config::{
    BoundedInt, ByteRate, LinkProperties, Time, allowed_delay, allowed_share, profile,
};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkProfile;
use springtide_runtime::topology::{
    LinkFlap, LinkId, Topology, directions, limited, uplink, usual_queue,
};

use crate::border::{BorderRules, NatMapping};
use crate::impair::{self, BurstLoss, DeliveryTrace, Impairments, RateSchedule, Reordering};
use crate::place::Backend;
use crate::router::{PortKind, RouterChange, UnknownCluster};

/// The range of a queue, as in files.
type QueueRange = BoundedInt<1500, 4_000_000_000>;

/// The link to change, as users write it: `A,B`, `A>B`, `A`, `A>` or `>A`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkSelector {
    /// The line between two clusters, or inside one if both are the same.
    Line {
        /// The cluster of the senders.
        a: ClusterId,
        /// The cluster of the receivers.
        b: ClusterId,
        /// Whether the other direction changes too.
        both: bool,
    },
    /// The link that all traffic of a cluster passes.
    Uplink {
        /// The cluster of the link.
        cluster: ClusterId,
        /// Whether the uplink changes.
        out: bool,
        /// Whether the downlink changes.
        into: bool,
    },
}

impl FromStr for LinkSelector {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        let line = |a: &str, b: &str, both| Ok(Self::Line { a: a.into(), b: b.into(), both });
        let uplink = |of: &str, out, into| Ok(Self::Uplink { cluster: of.into(), out, into });
        match (text.split_once('>'), text.split_once(',')) {
            (Some(("", "")), _) | (None, Some(("", _) | (_, ""))) => {}
            (Some((cluster, "")), _) => return uplink(cluster, true, false),
            (Some(("", cluster)), _) => return uplink(cluster, false, true),
            (Some((a, b)), _) => return line(a, b, false),
            (None, Some((a, b))) => return line(a, b, true),
            (None, None) if text.is_empty() => {}
            (None, None) => return uplink(text, true, true),
        }
        Err(SetError::Link(text.to_owned()))
    }
}

impl LinkSelector {
    /// The directions of the link: first from the cluster that is named first, then back.
    fn directions(&self) -> Vec<LinkId> {
        match self {
            Self::Line { a, b, both } => {
                let there = LinkId::Line(a.clone(), b.clone());
                let back = (*both && a != b).then(|| LinkId::Line(b.clone(), a.clone()));
                [there].into_iter().chain(back).collect()
            }
            Self::Uplink { cluster, out, into } => {
                let ways =
                    [(true, *out), (false, *into)].into_iter().filter(|(_, is_meant)| *is_meant);
                ways.map(|(up, _)| LinkId::Stub(cluster.clone(), up)).collect()
            }
        }
    }

    /// The ends of a flap of this link; a line inside a cluster cannot flap.
    fn ends(&self) -> Option<(&ClusterId, &ClusterId)> {
        match self {
            Self::Line { a, b, .. } if a == b => None,
            Self::Line { a, b, .. } => Some((a, b)),
            Self::Uplink { cluster, .. } => Some((cluster, cluster)),
        }
    }

    fn is_both_ways(&self) -> bool {
        match self {
            Self::Line { both, .. } => *both,
            Self::Uplink { out, into, .. } => *out && *into,
        }
    }
}

/// A limit of the bandwidth, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bandwidth {
    /// The bandwidth is not limited.
    None,
    /// The bandwidth has this limit.
    Rate(ByteRate),
}

/// A new value of a property, or its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting<T> {
    /// The property has no value from now on.
    None,
    /// The property has this value.
    Is(T),
}

impl<T> Setting<T> {
    /// The value; none if the property ends.
    fn value(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::Is(value) => Some(value),
        }
    }
}

/// A trace of delivery opportunities: its file, or its contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceSource {
    /// The file, which the command reads before it sends the change.
    File(PathBuf),
    /// The contents of the file.
    Contents(DeliveryTrace),
}

/// Changes of a link; properties that are not given stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkOverrides {
    /// The profile that all other properties are taken from. Of an uplink it sets the rates and the
    /// queue, as `uplink_profile`.
    pub profile: Option<String>,
    /// The round-trip time of packets.
    pub rtt: Option<Time>,
    /// The one-way delay of packets, instead of the round-trip time.
    pub delay: Option<Time>,
    /// The largest deviation of the one-way delay from its mean.
    pub jitter: Option<Time>,
    /// The share of lost packets.
    pub loss: Option<f64>,
    /// The limit of the bandwidth.
    pub bandwidth: Option<Bandwidth>,
    /// Bytes that may wait if the bandwidth is limited. A given queue stays when the bandwidth
    /// changes.
    pub queue: Option<QueueRange>,
    /// Whether jitter may change the order of packets.
    pub reorder: Option<bool>,
    /// Whether the link carries packets.
    pub up: Option<bool>,
    /// The loss of packets in bursts.
    pub burst: Option<Setting<BurstLoss>>,
    /// The share of packets that arrive twice.
    pub duplicate: Option<f64>,
    /// The share of packets that arrive with a wrong bit.
    pub corrupt: Option<f64>,
    /// The share of packets that are held back.
    pub hold_back: Option<Setting<Reordering>>,
    /// The schedule of the bandwidth.
    pub schedule: Option<Setting<RateSchedule>>,
    /// The trace of the bandwidth.
    pub trace: Option<Setting<TraceSource>>,
    /// The address translator of a cluster.
    pub nat: Option<Setting<NatMapping>>,
    /// Whether a cluster has a firewall.
    pub firewall: Option<bool>,
}

/// A link cannot be changed as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The text is not a link.
    #[error(
        "{0:?} is no link: say `A,B` for the line between two clusters, `A>B` for one way of it, \
         `A` for a cluster's uplink"
    )]
    Link(String),
    /// There is no such key.
    #[error(
        "{0:?}: it must be profile=, rtt=, delay=, jitter=, loss=, burst=, duplicate=, corrupt=, \
         reorder=, bandwidth=, schedule=, trace=, queue=, nat=, firewall=, up or down"
    )]
    Word(String),
    /// Two keys say the same.
    #[error("{0} and {1} exclude each other: leave one out")]
    Both(&'static str, &'static str),
    /// Impairments belong to lines.
    #[error(
        "an uplink has no {0}: set it of the lines between two clusters (`A,B`, or one way `A>B`)"
    )]
    OnlyLines(String),
    /// Address translators and firewalls belong to clusters.
    #[error("{0} belongs to a cluster, not to a line: name the cluster alone, as `A`")]
    OnlyClusters(String),
    /// Only one back end has the property.
    #[error("{network} does not emulate {keys}: bring the network up with `--network {other}`")]
    Backend {
        /// The back end of the network.
        network: &'static str,
        /// The properties that it lacks.
        keys: String,
        /// The back end that has them.
        other: &'static str,
    },
    /// A trace cannot be read.
    #[error("the trace {}: {reason}", path.display())]
    Trace {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system, or the mistake in the file.
        reason: String,
    },
    /// A key is given twice, and one of the values would be ignored.
    #[error("{0} is given twice: leave one out")]
    Twice(&'static str),
    /// A value is not valid.
    #[error("{key} {reason}")]
    Value {
        /// The key of the value.
        key: &'static str,
        /// The rule that the value breaks.
        reason: String,
    },
    /// There is no such profile.
    #[error("there is no profile named {0:?}: see `wan profiles`")]
    Profile(String),
    /// A flapping profile is given for one direction, but lines flap in both.
    #[error("{profile} flaps, and a line does so both ways: say `{link}`, or another profile")]
    OneWay {
        /// The name of the profile.
        profile: String,
        /// The link in both directions.
        link: String,
    },
    /// A flapping profile is given for the inside of a cluster, which cannot flap.
    #[error(
        "{0} flaps, and the line inside a cluster does not: name another profile, or a line \
         between two clusters"
    )]
    FlapsInside(String),
    /// No packet of the link passes the implementation of the network.
    #[error(
        "where clusters have the namespaces, packets inside {0} never reach the router: bring \
         the network up with `--per node`"
    )]
    Inside(ClusterId),
    /// The kernel's uplinks have only rates and queues.
    #[error(
        "by the kernel an uplink has no {0}: set bandwidth=, queue=, profile=, up or down of it, \
         and the rest of its cluster's lines (`A,B`); or bring the network up with `--network \
         router` or `--network sockets`"
    )]
    KernelUplink(String),
    /// The link names an unknown cluster.
    #[error(transparent)]
    Unknown(#[from] UnknownCluster),
}

/// The change of a link's flapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flapping {
    Unchanged,
    Stop,
    /// The link is up for the first time, then down for the second, and so on.
    Start(Duration, Duration),
}

fn setting<T>(
    key: &'static str,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Setting<T>, SetError> {
    match text {
        "none" => Ok(Setting::None),
        text => value(key, read(text)).map(Setting::Is),
    }
}

fn value<T>(key: &'static str, read: Result<T, String>) -> Result<T, SetError> {
    read.map_err(|reason| SetError::Value { key, reason })
}

fn once<T>(place: &mut Option<T>, key: &'static str, value: T) -> Result<(), SetError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(SetError::Twice(key)),
    }
}

impl LinkOverrides {
    /// Parses words such as `rtt=30ms` and `down`.
    ///
    /// # Errors
    /// A word is unknown, or its value is not valid.
    pub fn of(words: &[impl AsRef<str>]) -> Result<Self, SetError> {
        let mut wish = Self::default();
        words.iter().try_for_each(|word| wish.read(word.as_ref()))?;
        wish.check()?;
        Ok(wish)
    }

    fn read(&mut self, word: &str) -> Result<(), SetError> {
        match (word, word.split_once('=')) {
            ("up", _) => once(&mut self.up, "up or down", true),
            ("down", _) => once(&mut self.up, "up or down", false),
            (_, Some(("profile", name))) => once(&mut self.profile, "profile=", name.to_owned()),
            (_, Some(("rtt", time))) => once(&mut self.rtt, "rtt=", value("rtt", time.parse())?),
            (_, Some(("delay", time))) => {
                once(&mut self.delay, "delay=", value("delay", time.parse())?)
            }
            (_, Some(("jitter", time))) => {
                once(&mut self.jitter, "jitter=", value("jitter", time.parse())?)
            }
            (_, Some(("loss", share))) => {
                once(&mut self.loss, "loss=", value("loss", impair::share(share))?)
            }
            (_, Some(("duplicate", share))) => {
                let share = value("duplicate", impair::share(share))?;
                once(&mut self.duplicate, "duplicate=", share)
            }
            (_, Some(("corrupt", share))) => {
                once(&mut self.corrupt, "corrupt=", value("corrupt", impair::share(share))?)
            }
            (_, Some(("burst", text))) => {
                once(&mut self.burst, "burst=", setting("burst", text, str::parse)?)
            }
            (_, Some(("schedule", text))) => {
                once(&mut self.schedule, "schedule=", setting("schedule", text, str::parse)?)
            }
            (_, Some(("trace", text))) => {
                let read = |path: &str| Ok(TraceSource::File(path.into()));
                once(&mut self.trace, "trace=", setting("trace", text, read)?)
            }
            (_, Some(("nat", text))) => {
                once(&mut self.nat, "nat=", setting("nat", text, str::parse)?)
            }
            (_, Some(("firewall", word))) => {
                let read = match word {
                    "on" => Ok(true),
                    "off" => Ok(false),
                    _ => Err(format!("must be on or off, found {word:?}")),
                };
                once(&mut self.firewall, "firewall=", value("firewall", read)?)
            }
            (_, Some(("bandwidth", "none"))) => {
                once(&mut self.bandwidth, "bandwidth=", Bandwidth::None)
            }
            (_, Some(("bandwidth", rate))) => {
                let rate = value("bandwidth", rate.parse::<ByteRate>())?;
                once(&mut self.bandwidth, "bandwidth=", Bandwidth::Rate(rate))
            }
            (_, Some(("queue", bytes))) => {
                let read = bytes.parse::<u32>();
                let read = read.map_err(|_| {
                    format!("must be a number of bytes such as 250000, found {bytes:?}")
                });
                once(
                    &mut self.queue,
                    "queue=",
                    value("queue", read.and_then(QueueRange::try_from))?,
                )
            }
            (_, Some(("reorder", is))) => {
                let Ok(may) = is.parse::<bool>() else {
                    let hold = setting("reorder", is, str::parse)?;
                    return once(&mut self.hold_back, "reorder=SHARE/TIME", hold);
                };
                once(&mut self.reorder, "reorder=", may)
            }
            _ => Err(SetError::Word(word.to_owned())),
        }
    }

    /// Checks the values by the rules of a topology's file.
    fn check(&self) -> Result<(), SetError> {
        let hold = match &self.hold_back {
            Some(Setting::Is(reorder)) => Some(reorder.hold),
            _ => None,
        };
        let times =
            [("rtt", self.rtt), ("delay", self.delay), ("jitter", self.jitter), ("reorder", hold)];
        for (key, delay) in times {
            value(key, delay.map_or(Ok(()), |delay| allowed_delay(delay).map(drop)))?;
        }
        let shares =
            [("loss", self.loss), ("duplicate", self.duplicate), ("corrupt", self.corrupt)];
        for (key, share) in shares {
            value(key, share.map_or(Ok(()), |share| allowed_share(share).map(drop)))?;
        }
        let is_set = |is_given: bool, key| is_given.then_some(key);
        let has_trace = matches!(self.trace, Some(Setting::Is(_)));
        let has_schedule = matches!(self.schedule, Some(Setting::Is(_)));
        let exclusive = [
            [is_set(self.rtt.is_some(), "rtt="), is_set(self.delay.is_some(), "delay=")],
            [is_set(self.bandwidth.is_some(), "bandwidth="), is_set(has_schedule, "schedule=")],
            [is_set(has_trace, "trace="), is_set(has_schedule, "schedule=")],
        ];
        if let Some((one, other)) = exclusive.into_iter().find_map(|[one, other]| one.zip(other)) {
            return Err(SetError::Both(one, other));
        }
        if let Some(Bandwidth::Rate(rate)) = self.bandwidth
            && !rate.carries()
        {
            let reason = format!(
                "must be at least \"1B/s\", found \"{rate}\": where nothing is to pass, say `down`"
            );
            return Err(SetError::Value { key: "bandwidth", reason });
        }
        match &self.profile {
            Some(name) if profile(name).is_none() => Err(SetError::Profile(name.clone())),
            _ => Ok(()),
        }
    }

    /// The line of the profile, which exists if [`check`](Self::check) succeeds.
    fn line(&self) -> Option<LinkProperties> {
        self.profile.as_deref().and_then(profile).map(LinkProperties::from)
    }

    /// Computes one direction's new profile, and whether its queue is a given one. `back` marks the
    /// second direction of a profile.
    fn after(
        &self,
        link: &LinkId,
        back: bool,
        was: LinkProfile,
        was_given: bool,
    ) -> (LinkProfile, bool) {
        let (mut now, is_given) = match (self.line(), link) {
            (None, _) => (was, was_given),
            (Some(line), LinkId::Line(..)) => {
                let [there, its_back] = directions(&line);
                (if back { its_back } else { there }, line.queue.is_some())
            }
            (Some(line), LinkId::Stub(_, up)) => {
                let [out, into] = uplink(&line);
                let stub = if *up { out } else { into };
                (stub.unwrap_or_default(), line.queue.is_some())
            }
        };
        if let Some(delay) = self.rtt.map(|rtt| rtt.get() / 2).or(self.delay.map(Time::get)) {
            now = now.delay(delay);
        }
        if let Some(jitter) = self.jitter {
            now = now.jitter(jitter.get());
        }
        now.loss = self.loss.unwrap_or(now.loss);
        now.reorder = self.reorder.unwrap_or(now.reorder);
        now.up = self.up.unwrap_or(now.up);
        let given = now.queue;
        now = match self.bandwidth {
            None => now,
            Some(Bandwidth::Rate(rate)) => limited(now, Some(rate), None),
            Some(Bandwidth::None) => LinkProfile { rate: None, queue: usual_queue(None), ..now },
        };
        match self.queue {
            Some(queue) => {
                let bytes = usize::try_from(queue.get()).unwrap_or(usize::MAX);
                (now.queue(bytes), true)
            }
            None if is_given => (now.queue(given), true),
            None => (now, false),
        }
    }

    /// Reads the trace's file, so that the change holds its contents.
    ///
    /// # Errors
    /// The file cannot be read, or is not a trace.
    pub fn load_trace(mut self) -> Result<Self, SetError> {
        if let Some(Setting::Is(TraceSource::File(path))) = &self.trace {
            self.trace = Some(Setting::Is(TraceSource::Contents(read_trace(path)?)));
        }
        Ok(self)
    }

    /// The given keys that only lines have.
    fn line_keys(&self) -> Vec<&'static str> {
        let keys = [
            ("burst=", self.burst.is_some()),
            ("duplicate=", self.duplicate.is_some()),
            ("corrupt=", self.corrupt.is_some()),
            ("reorder=SHARE/TIME", self.hold_back.is_some()),
            ("trace=", self.trace.is_some()),
        ];
        keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }

    /// The given keys that only clusters have.
    fn cluster_keys(&self) -> Vec<&'static str> {
        let keys = [("nat=", self.nat.is_some()), ("firewall=", self.firewall.is_some())];
        keys.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }

    /// The impairments of a line after the change. A profile has none.
    fn impairments_after(&self, was: &Impairments) -> Result<Impairments, SetError> {
        let was = if self.profile.is_some() { Impairments::default() } else { was.clone() };
        let trace = match self.trace.clone() {
            None => was.trace,
            Some(Setting::None) => None,
            Some(Setting::Is(TraceSource::Contents(trace))) => Some(trace),
            Some(Setting::Is(TraceSource::File(path))) => {
                let reason = "it was sent without its contents".to_owned();
                return Err(SetError::Trace { path, reason });
            }
        };
        Ok(Impairments {
            burst: self.burst.clone().map_or(was.burst, Setting::value),
            duplicate: self.duplicate.unwrap_or(was.duplicate),
            corrupt: self.corrupt.unwrap_or(was.corrupt),
            reorder: self.hold_back.clone().map_or(was.reorder, Setting::value),
            trace,
        })
    }

    /// The rules of a cluster's border after the change.
    fn rules_after(&self, was: BorderRules) -> BorderRules {
        BorderRules {
            nat: self.nat.clone().map_or(was.nat, Setting::value),
            firewall: self.firewall.unwrap_or(was.firewall),
        }
    }

    /// Whether a property of the links themselves is given.
    fn has_profile_keys(&self) -> bool {
        let rest = Self {
            burst: None,
            duplicate: None,
            corrupt: None,
            hold_back: None,
            schedule: None,
            trace: None,
            nat: None,
            firewall: None,
            ..self.clone()
        };
        rest != Self::default()
    }

    fn flapping(&self) -> Flapping {
        match (self.line().and_then(|line| line.up_and_down), self.up) {
            (Some((up, down)), None | Some(true)) => Flapping::Start(up, down),
            (None, None) if self.profile.is_none() => Flapping::Unchanged,
            _ => Flapping::Stop,
        }
    }
}

/// Reads a trace of delivery opportunities.
fn read_trace(path: &Path) -> Result<DeliveryTrace, SetError> {
    let failed = |reason| SetError::Trace { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    text.parse::<DeliveryTrace>().map_err(failed)
}

/// Checks whether a network of this implementation emulates a change.
///
/// # Errors
/// The change would have no effect; the error names one that has.
pub fn check_supported(
    network: Backend,
    ports: PortKind,
    link: &LinkSelector,
    wish: &LinkOverrides,
) -> Result<(), SetError> {
    let (of_lines, of_clusters) = (wish.line_keys(), wish.cluster_keys());
    match link {
        LinkSelector::Uplink { .. } if !of_lines.is_empty() => {
            return Err(SetError::OnlyLines(of_lines.join(", ")));
        }
        LinkSelector::Line { .. } if !of_clusters.is_empty() => {
            return Err(SetError::OnlyClusters(of_clusters.join(", ")));
        }
        LinkSelector::Uplink { .. } if !of_clusters.is_empty() && !link.is_both_ways() => {
            return Err(SetError::OnlyClusters(of_clusters.join(", ")));
        }
        _ => {}
    }
    let lacking: Vec<&str> = match network {
        Backend::Router => Vec::new(),
        Backend::Kernel => of_lines.into_iter().chain(of_clusters).collect(),
        Backend::Sockets => {
            let traces = of_lines.into_iter().filter(|key| *key == "trace=");
            traces.chain(of_clusters).collect()
        }
    };
    if !lacking.is_empty() {
        let (network, other) = (network.word(), Backend::Router.word());
        return Err(SetError::Backend { network, keys: lacking.join(", "), other });
    }
    match (network, link) {
        (Backend::Kernel, LinkSelector::Uplink { .. }) => {
            let keys = [
                ("rtt=", wish.rtt.is_some()),
                ("delay=", wish.delay.is_some()),
                ("jitter=", wish.jitter.is_some()),
                ("loss=", wish.loss.is_some()),
                ("reorder=", wish.reorder.is_some()),
            ];
            let given = keys.iter().filter(|(_, is_given)| *is_given).map(|(key, _)| *key);
            match given.collect::<Vec<_>>() {
                none if none.is_empty() => Ok(()),
                given => Err(SetError::KernelUplink(given.join(", "))),
            }
        }
        (Backend::Router, LinkSelector::Line { a, b, .. })
            if a == b && ports == PortKind::Cluster =>
        {
            Err(SetError::Inside(a.clone()))
        }
        _ => Ok(()),
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeResult {
    /// The new profile of each direction.
    pub links: Vec<(LinkId, LinkProfile)>,
    /// Whether the link flaps.
    pub flaps: bool,
    /// Properties that are not emulated, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
}

/// A flapping link and the time of its next turn.
#[derive(Clone, Debug, PartialEq)]
struct FlapState {
    flap: LinkFlap,
    cut: bool,
    at: Instant,
}

impl FlapState {
    fn new(flap: LinkFlap, now: Instant) -> Self {
        Self { at: now + flap.up, cut: false, flap }
    }

    fn turn(&mut self) -> RouterChange {
        self.cut = !self.cut;
        self.at += if self.cut { self.flap.down } else { self.flap.up };
        self.change(self.cut)
    }

    fn change(&self, cut: bool) -> RouterChange {
        RouterChange::Cut { a: self.flap.from.clone(), b: self.flap.to.clone(), cut }
    }

    fn is_of(&self, (a, b): (&ClusterId, &ClusterId)) -> bool {
        let LinkFlap { from, to, .. } = &self.flap;
        [(a, b), (b, a)].contains(&(from, to))
    }
}

/// The state of a network's links beyond their profiles: which flap, and whose queue is a given
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct Steering {
    flaps: Vec<FlapState>,
    queues: BTreeSet<LinkId>,
    /// Links whose rate was given in bits a second.
    bit_rates: BTreeSet<LinkId>,
    schedules: BTreeMap<LinkId, ScheduleState>,
    impairments: BTreeMap<LinkId, Impairments>,
    borders: BTreeMap<ClusterId, BorderRules>,
}

/// A schedule of a link's rate, its next step and the time of that.
#[derive(Clone, Debug, PartialEq)]
struct ScheduleState {
    schedule: RateSchedule,
    step: usize,
    at: Instant,
}

/// The steps of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangePlan {
    /// The changes of links, all of which are applied or none.
    pub changes: Vec<RouterChange>,
    /// The state after the changes.
    pub then: Steering,
    /// The result after the changes.
    pub outcome: ChangeResult,
}

impl Steering {
    /// The state of a network that starts now.
    pub fn new(topology: &Topology, now: Instant) -> Self {
        let flaps = topology.flaps.iter().map(|flap| FlapState::new(flap.clone(), now));
        Self {
            flaps: flaps.collect(),
            queues: topology.queues.clone(),
            bit_rates: topology.bit_rates.clone(),
            schedules: BTreeMap::new(),
            impairments: BTreeMap::new(),
            borders: BTreeMap::new(),
        }
    }

    /// The rate of a link as text, in bits if it was given so; none without a limit.
    pub fn rate_text(&self, link: &LinkId, rate: Option<u64>) -> Option<String> {
        rate.map(|rate| ByteRate::of_bytes(rate, self.bit_rates.contains(link)).to_string())
    }

    /// The words by which `wan set` gives a link its impairments and its schedule.
    pub fn words(&self, link: &LinkId) -> String {
        let impairments = self.impairments.get(link).map(Impairments::words);
        let schedule = self.schedules.get(link).map(|state| format!("schedule={}", state.schedule));
        let words: Vec<String> = impairments.into_iter().chain(schedule).collect();
        words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" ")
    }

    /// The time of the next turn of a flap or of a schedule.
    pub fn next_at(&self) -> Option<Instant> {
        let flaps = self.flaps.iter().map(|flap| flap.at);
        flaps.chain(self.schedules.values().map(|state| state.at)).min()
    }

    /// The links whose schedules are due, with their new rates.
    pub fn due_rates(&mut self, now: Instant) -> Vec<(LinkId, Option<u64>)> {
        let mut due = Vec::new();
        for (link, state) in &mut self.schedules {
            let mut rate = None;
            while state.at <= now {
                let (next, lasts) = state.schedule.step(state.step);
                state.step += 1;
                state.at += lasts;
                rate = Some(next.map(|rate| rate.bytes_per_second() as u64));
            }
            due.extend(rate.map(|rate| (link.clone(), rate)));
        }
        due
    }

    /// The changes of all flaps that are due.
    pub fn turn(&mut self, now: Instant) -> Vec<RouterChange> {
        let due = self.flaps.iter_mut().filter(|flap| flap.at <= now).map(FlapState::turn);
        let due: Vec<RouterChange> = due.collect();
        if due.is_empty() {
            return due;
        }
        // A flap that opens may share a line with one that stays cut.
        due.into_iter().chain(self.cuts()).collect()
    }

    /// Stops the flaps and the schedules of all links.
    pub fn end(&mut self) {
        self.flaps.clear();
        self.schedules.clear();
    }

    fn cuts(&self) -> impl Iterator<Item = RouterChange> {
        self.flaps.iter().filter(|flap| flap.cut).map(|flap| flap.change(true))
    }

    /// Records changes that were made without a plan.
    pub fn note_changes(&mut self, changes: &[RouterChange]) {
        for change in changes {
            let (link, profile) = match change {
                RouterChange::Line { from, to, profile } => {
                    (LinkId::Line(from.clone(), to.clone()), profile)
                }
                RouterChange::Stub { cluster, up, profile } => {
                    (LinkId::Stub(cluster.clone(), *up), profile)
                }
                RouterChange::Cut { .. }
                | RouterChange::Impair { .. }
                | RouterChange::Border { .. } => continue,
            };
            // These do not say whether the queue was given. A queue other than the usual one counts
            // as given.
            self.set_queue_given(link, profile.queue != usual_queue(profile.rate));
        }
    }

    fn set_queue_given(&mut self, link: LinkId, is_given: bool) {
        if is_given {
            self.queues.insert(link);
        } else {
            self.queues.remove(&link);
        }
    }

    /// Computes the steps of a change; `was` returns the present profile of a link.
    ///
    /// # Errors
    /// [`SetError`]: the change is not possible.
    pub fn plan(
        &self,
        link: &LinkSelector,
        wish: &LinkOverrides,
        was: impl Fn(&LinkId) -> Result<LinkProfile, UnknownCluster>,
        now: Instant,
    ) -> Result<ChangePlan, SetError> {
        wish.check()?;
        let (mut then, mut changes, mut links) = (self.clone(), Vec::new(), Vec::new());
        for (at, id) in link.directions().into_iter().enumerate() {
            if let LinkId::Line(from, to) = &id
                && (!wish.line_keys().is_empty() || wish.profile.is_some())
            {
                let old = self.impairments.get(&id).cloned().unwrap_or_default();
                let impairments = wish.impairments_after(&old)?;
                if impairments != old {
                    let (from, to) = (from.clone(), to.clone());
                    let sent = impairments.clone();
                    changes.push(RouterChange::Impair { from, to, impairments: sent });
                    then.impairments.insert(id.clone(), impairments);
                }
            }
            match &wish.bandwidth {
                Some(Bandwidth::Rate(rate)) if rate.is_in_bits() => {
                    then.bit_rates.insert(id.clone());
                }
                Some(_) => drop(then.bit_rates.remove(&id)),
                None if wish.profile.is_some() => drop(then.bit_rates.remove(&id)),
                None => {}
            }
            match &wish.schedule {
                Some(Setting::Is(schedule)) => {
                    if schedule.step(0).0.is_some_and(ByteRate::is_in_bits) {
                        then.bit_rates.insert(id.clone());
                    }
                    let state = ScheduleState { schedule: schedule.clone(), step: 0, at: now };
                    then.schedules.insert(id.clone(), state);
                }
                Some(Setting::None) => drop(then.schedules.remove(&id)),
                // Another rate ends the schedule.
                None if wish.bandwidth.is_some() || wish.profile.is_some() => {
                    then.schedules.remove(&id);
                }
                None => {}
            }
            if !wish.has_profile_keys() {
                links.push((id.clone(), was(&id)?));
                continue;
            }
            let is_given = self.queues.contains(&id);
            let (profile, is_given) = wish.after(&id, at == 1, was(&id)?, is_given);
            let new = profile.clone();
            changes.push(match &id {
                LinkId::Line(from, to) => {
                    RouterChange::Line { from: from.clone(), to: to.clone(), profile }
                }
                LinkId::Stub(cluster, up) => {
                    RouterChange::Stub { cluster: cluster.clone(), up: *up, profile }
                }
            });
            then.set_queue_given(id.clone(), is_given);
            links.push((id, new));
        }
        if let LinkSelector::Uplink { cluster, .. } = link
            && !wish.cluster_keys().is_empty()
        {
            let old = self.borders.get(cluster).copied().unwrap_or_default();
            let rules = wish.rules_after(old);
            changes.push(RouterChange::Border { cluster: cluster.clone(), rules });
            then.borders.insert(cluster.clone(), rules);
        }
        let named = || wish.profile.clone().unwrap_or_default();
        let ends = match (wish.flapping(), link.ends()) {
            (Flapping::Start(..), None) => return Err(SetError::FlapsInside(named())),
            (Flapping::Start(..), Some((a, b))) if !link.is_both_ways() => {
                let link = if a == b { a.to_string() } else { format!("{a},{b}") };
                return Err(SetError::OneWay { profile: named(), link });
            }
            (Flapping::Unchanged, _) => None,
            (_, ends) => ends,
        };
        if let Some((a, b)) = ends {
            let all = std::mem::take(&mut then.flaps);
            let (ended, others): (Vec<FlapState>, _) =
                all.into_iter().partition(|flap| flap.is_of((a, b)));
            then.flaps = others;
            // The other flaps keep their lines cut.
            changes.extend(ended.iter().filter(|flap| flap.cut).map(|flap| flap.change(false)));
            changes.extend(then.cuts());
            if let Flapping::Start(up, down) = wish.flapping() {
                let flap = LinkFlap { from: a.clone(), to: b.clone(), up, down };
                then.flaps.push(FlapState::new(flap, now));
            }
        }
        let flaps = link.ends().is_some_and(|ends| then.flaps.iter().any(|one| one.is_of(ends)));
        Ok(ChangePlan { changes, then, outcome: ChangeResult { links, flaps, lacks: Vec::new() } })
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{Sources, TopologyConfig, load, profiles};

    use super::*;
    use crate::router::Router;

    fn topology(text: &str) -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text));
        Topology::from_config(&config.unwrap_or_else(|error| panic!("{error}")).value)
    }

    const THREE: &str = "name = \"three\"\n[wide]\nrtt = \"20ms\"\n[[cluster]]\nname = \"a\"\n\
        [[cluster]]\nname = \"b\"\n[[cluster]]\nname = \"c\"\n";

    fn wish(text: &str) -> LinkOverrides {
        LinkOverrides::of(&text.split_whitespace().collect::<Vec<_>>())
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// A network whose links can be set.
    struct Set {
        router: Router,
        steering: Steering,
        start: Instant,
    }

    impl Set {
        fn new(text: &str) -> Self {
            let (topology, start) = (topology(text), Instant::now());
            let steering = Steering::new(&topology, start);
            Self { router: Router::new(topology, PortKind::Cluster, 1), steering, start }
        }

        fn change(&mut self, changes: &[RouterChange]) {
            for change in changes {
                self.router.change(change, Duration::ZERO).unwrap();
            }
        }

        fn set(&mut self, link: &str, words: &str) -> Result<ChangeResult, SetError> {
            let link: LinkSelector = link.parse()?;
            let was = |id: &LinkId| self.router.profile(id);
            let plan = self.steering.plan(&link, &wish(words), was, self.start)?;
            self.change(&plan.changes);
            self.steering = plan.then;
            Ok(plan.outcome)
        }

        fn turn(&mut self, after_s: u64) {
            let changes = self.steering.turn(self.start + Duration::from_secs(after_s));
            self.change(&changes);
        }

        /// Whether both directions are cut.
        fn cut(&self, a: &str, b: &str) -> bool {
            let of = |from: &str, to: &str| {
                let mut lines = self.router.lines();
                lines.find(|(x, y, ..)| (x.as_str(), y.as_str()) == (from, to)).map(|line| line.3)
            };
            assert_eq!(of(a, b), of(b, a));
            of(a, b) == Some(true)
        }
    }

    #[test]
    fn words_are_parsed_and_mistakes_reported() {
        let read = wish("rtt=30ms loss=0.5 bandwidth=2MB/s queue=250000 down");
        assert_eq!(
            (read.rtt.map(Time::get), read.loss),
            (Some(Duration::from_millis(30)), Some(0.5))
        );
        assert_eq!((read.queue.map(BoundedInt::get), read.up), (Some(250_000), Some(false)));
        assert_eq!(wish("bandwidth=none").bandwidth, Some(Bandwidth::None));
        for (words, part) in [
            ("loss=2", "loss must lie within 0 and 1 (or 0% and 100%), found 2"),
            ("loss=x", "loss must lie within 0 and 1 (or 0% and 100%), found \"x\""),
            ("loss=NaN", "within 0 and 1"),
            ("bandwidth=0B/s", "say `down`"),
            ("bandwidth=7bit/s", "bandwidth must be at least \"1B/s\", found \"7bit/s\""),
            ("rtt=5", "rtt must be a duration"),
            ("rtt=11s", "rtt must be at most \"10s\", found \"11s\""),
            ("jitter=1h", "jitter must be at most \"10s\""),
            ("queue=1kB", "queue must be a number of bytes such as 250000, found \"1kB\""),
            ("queue=100", "queue must be a whole number from 1500 to 4000000000, found 100"),
            ("reorder=1", "reorder must be true, false, or SHARE/TIME"),
            ("reorder=2%/11s", "reorder must be at most \"10s\""),
            ("loss=200%", "loss must lie within 0 and 1 (or 0% and 100%), found \"200%\""),
            ("rtt=5ms delay=5ms", "rtt= and delay= exclude each other"),
            ("bandwidth=1MB/s schedule=1MB/s:1s", "bandwidth= and schedule= exclude each other"),
            ("burst=1%", "burst must be TO_BAD/TO_GOOD"),
            ("nat=cone", "nat must be endpoint-independent, endpoint-dependent or none"),
            ("firewall=1", "firewall must be on or off"),
            ("profile=x", "no profile named \"x\": see `wan profiles`"),
            ("speed=3", "\"speed=3\": it must be profile="),
            ("rtt", "\"rtt\": it must be profile="),
            ("up down", "up or down is given twice"),
            ("rtt=5ms rtt=6ms", "rtt= is given twice"),
        ] {
            let result =
                LinkOverrides::of(&words.split(' ').collect::<Vec<_>>()).unwrap_err().to_string();
            assert!(result.contains(part), "{words}: {result}");
        }
        // Only given properties are serialised, and unknown ones are refused.
        let text = r#"{"rtt":"30ms","bandwidth":"none"}"#;
        assert_eq!(
            serde_json::from_str::<LinkOverrides>(text).unwrap(),
            wish("rtt=30ms bandwidth=none")
        );
        let whole = wish(
            "profile=lan rtt=1ms jitter=1us loss=10% bandwidth=9bit/s queue=1500 reorder=true up \
             burst=1%/25% duplicate=1% corrupt=0.1% reorder=2%/10ms schedule=none trace=none \
             nat=endpoint-dependent firewall=on",
        );
        let again = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<LinkOverrides>(&again).unwrap(), whole);
        assert!(serde_json::from_str::<LinkOverrides>(r#"{"speed":3}"#).is_err());
        // The caller may have skipped the checks, so the values are checked again.
        let unread = LinkOverrides {
            rtt: Some(Time::from(Duration::from_secs(60))),
            ..LinkOverrides::default()
        };
        let steering = Steering::new(&topology(THREE), Instant::now());
        let link: LinkSelector = "a,b".parse().unwrap();
        let result = steering.plan(&link, &unread, |_| Ok(LinkProfile::default()), Instant::now());
        assert!(result.unwrap_err().to_string().contains("at most \"10s\""));
    }

    #[test]
    fn links_have_names() {
        let line = |a: &str, b: &str| LinkId::Line(a.into(), b.into());
        let stub = |up| LinkId::Stub("a".into(), up);
        for (name, ways) in [
            ("a,b", vec![line("a", "b"), line("b", "a")]),
            ("b>a", vec![line("b", "a")]),
            ("a,a", vec![line("a", "a")]),
            ("a", vec![stub(true), stub(false)]),
            ("a>", vec![stub(true)]),
            (">a", vec![stub(false)]),
        ] {
            assert_eq!(
                name.parse::<LinkSelector>().map(|link| link.directions()),
                Ok(ways),
                "{name}"
            );
        }
        for none in ["", ">", ",", "a,", ",a"] {
            let result = none.parse::<LinkSelector>().unwrap_err().to_string();
            assert!(result.contains("is no link: say `A,B`"), "{result}");
        }
        let result = Set::new(THREE).set("a,d", "down").unwrap_err().to_string();
        assert_eq!(result, "there is no cluster named \"d\": the topology has a, b, c");
    }

    #[test]
    fn given_properties_change_and_others_stay() {
        let mut set = Set::new(THREE);
        set.set("a,b", "rtt=80ms").unwrap();
        set.set("a>b", "loss=0.5 jitter=2ms").unwrap();
        let result = set.set("b>a", "down").unwrap();
        let expected = LinkProfile::default().delay(Duration::from_millis(40));
        assert_eq!(
            result.links,
            [(LinkId::Line("b".into(), "a".into()), expected.clone().up(false))]
        );
        let there = set.router.profile(&LinkId::Line("a".into(), "b".into())).unwrap();
        assert_eq!(there, expected.jitter(Duration::from_millis(2)).loss(0.5));
        // The order of words does not matter: a profile comes first, as in files.
        let result = set.set("a,b", "loss=0.25 profile=asymmetric").unwrap();
        let rates: Vec<_> =
            result.links.iter().map(|(_, link)| (link.rate, link.loss, link.up)).collect();
        assert_eq!(rates, [(Some(1_250_000), 0.25, true), (Some(12_500_000), 0.25, true)]);
    }

    #[test]
    fn impairments_schedules_and_borders_are_set_and_end() {
        let mut set = Set::new(THREE);
        let ab = LinkId::Line("a".into(), "b".into());
        set.set("a>b", "burst=1%/25% duplicate=1%").unwrap();
        set.set("a,b", "corrupt=0.1% delay=7ms bandwidth=8Mbit/s").unwrap();
        assert_eq!(set.steering.words(&ab), "burst=1%/25% duplicate=1% corrupt=0.1%");
        let profile = set.router.profile(&ab).unwrap();
        assert_eq!(profile.delay_us, 7000);
        assert_eq!(set.steering.rate_text(&ab, profile.rate).as_deref(), Some("8Mbit/s"));
        set.set("a,b", "burst=none duplicate=0 bandwidth=1MB/s").unwrap();
        assert_eq!(set.steering.words(&ab), "corrupt=0.1%");
        assert_eq!(set.steering.rate_text(&ab, profile.rate).as_deref(), Some("1MB/s"));
        set.set("a,b", "schedule=1MB/s:2s,none:1s").unwrap();
        let mut rates = |after_s| {
            let due = set.steering.due_rates(set.start + Duration::from_secs(after_s));
            due.into_iter().map(|(_, rate)| rate).collect::<Vec<_>>()
        };
        assert_eq!(rates(0), [Some(1_000_000); 2]);
        assert_eq!((rates(1), rates(2)), (vec![], vec![None; 2]));
        assert_eq!(rates(7), [Some(1_000_000); 2]);
        assert_eq!(set.steering.next_at(), Some(set.start + Duration::from_secs(8)));
        // Another rate ends the schedule, and a profile all impairments.
        set.set("a>b", "bandwidth=none").unwrap();
        set.set("b>a", "profile=lan").unwrap();
        assert_eq!(set.steering.next_at(), None);
        assert_eq!(set.steering.words(&ab), "corrupt=0.1%");
        assert_eq!(set.steering.words(&LinkId::Line("b".into(), "a".into())), "");
        set.set("b", "nat=endpoint-dependent").unwrap();
        set.set("b", "firewall=on").unwrap();
        let rules: Vec<String> =
            set.router.borders().map(|(_, border)| border.rules().words()).collect();
        assert_eq!(rules, ["", "nat=endpoint-dependent firewall=on", ""]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10\n20\n").unwrap();
        let words = format!("trace={}", file.path().display());
        let loaded = wish(&words).load_trace().unwrap();
        let link: LinkSelector = "a>b".parse().unwrap();
        let was = |_: &LinkId| Ok(LinkProfile::default());
        let plan = set.steering.plan(&link, &loaded, was, set.start).unwrap();
        assert!(plan.then.words(&ab).contains("trace=(150kB/s on average, every 20ms)"));
        std::fs::write(file.path(), "10\nx\n").unwrap();
        let error = wish(&words).load_trace().unwrap_err().to_string();
        assert!(error.contains("line 2 must be a time"), "{error}");
    }

    #[test]
    fn an_uplink_is_set_as_by_a_file() {
        for profile in profiles() {
            let name = &profile.name;
            let key = format!("name = \"a\"\nuplink_profile = \"{name}\"\n");
            let file = topology(&THREE.replace("name = \"a\"\n", &key));
            let plain = LinkProfile::default();
            let site = &file.sites[0];
            let [out, into] =
                [&site.up, &site.down].map(|stub| stub.clone().unwrap_or(plain.clone()));
            let words = format!("profile={name}");
            if profile.up.is_none() {
                let result = Set::new(THREE).set(">a", &words).unwrap();
                assert_eq!(result.links[0].1, into, "{name}");
                let result = Set::new(THREE).set("a>", &words).unwrap();
                assert_eq!(result.links[0].1, out, "{name}");
            }
            let result = Set::new(THREE).set("a", &words).unwrap();
            let found: Vec<_> = result.links.into_iter().map(|(_, link)| link).collect();
            assert_eq!(found, [out, into], "{name}");
            assert_eq!(result.flaps, !file.flaps.is_empty(), "{name}");
        }
        let result = Set::new(THREE).set(">a", "profile=asymmetric").unwrap();
        assert_eq!(result.links[0].1.rate, Some(12_500_000));
        assert_eq!((result.links[0].1.delay_us, result.links[0].1.loss), (0, 0.0));
    }

    #[test]
    fn a_given_queue_stays_and_others_follow_their_rates() {
        let text = format!(
            "{THREE}[[link]]\nbetween = [\"a\", \"b\"]\nbandwidth = \"1MB/s\"\nqueue = 100000\n"
        );
        let mut set = Set::new(&text);
        let mut queue = |link: &str, words: &str| {
            let result = set.set(link, words).unwrap();
            result.links.into_iter().map(|(_, link)| link.queue).collect::<Vec<_>>()
        };
        // The file gives this queue, though it is the usual one.
        assert_eq!(queue("a,b", "bandwidth=10MB/s"), [100_000, 100_000]);
        assert_eq!(queue("a,c", "bandwidth=10MB/s"), [1_000_000, 1_000_000]);
        assert_eq!(queue("a>c", "queue=50000"), [50_000]);
        assert_eq!(queue("a,c", "bandwidth=20MB/s"), [50_000, 2_000_000]);
        assert_eq!(queue("a,c", "bandwidth=none"), [50_000, 100_000]);
        assert_eq!(queue("a>c", "bandwidth=3MB/s loss=0.1"), [50_000]);
        assert_eq!(queue("a>c", "loss=0.2"), [50_000]);
        // A profile replaces the whole link.
        assert_eq!(queue("a>c", "profile=wan-50"), [1_250_000]);
        assert_eq!(queue("a>c", "bandwidth=3MB/s"), [300_000]);
        assert_eq!(queue("c", "profile=congested-uplink-100KBps"), [30_000, 30_000]);
        assert_eq!(queue("c", "bandwidth=10MB/s"), [30_000, 30_000]);
        assert_eq!(queue("b", "bandwidth=10MB/s queue=20000"), [20_000, 20_000]);
        // Changes without a plan.
        let profile = LinkProfile::default().rate(1_000_000).queue(7000);
        let stub = |profile| RouterChange::Stub { cluster: "b".into(), up: true, profile };
        let mut steering = Set::new(THREE).steering;
        steering.note_changes(&[stub(profile.clone())]);
        assert_eq!(steering.queues.len(), 1);
        steering.note_changes(&[stub(profile.queue(100_000))]);
        assert!(steering.queues.is_empty());
    }

    #[test]
    fn links_start_and_stop_flapping() {
        // 20 s up, 5 s down.
        let mut set = Set::new(THREE);
        assert!(set.set("b,a", "profile=flapping").unwrap().flaps);
        assert_eq!(set.steering.next_at(), Some(set.start + Duration::from_secs(20)));
        set.turn(19);
        assert!(!set.cut("a", "b"));
        set.turn(20);
        assert!(set.cut("a", "b") && !set.cut("a", "c"));
        assert!(set.set("a,b", "rtt=10ms").unwrap().flaps);
        assert!(set.cut("a", "b"));
        set.turn(25);
        assert!(!set.cut("a", "b"));
        for end in ["up", "down", "profile=lan", "profile=flapping down"] {
            set.set("a,b", "profile=flapping").unwrap();
            set.turn(20);
            assert!(set.cut("a", "b"), "{end}");
            let result = set.set("a,b", end).unwrap();
            assert!(
                !result.flaps && !set.cut("a", "b") && set.steering.next_at().is_none(),
                "{end}"
            );
            assert!(result.links.iter().all(|(_, link)| link.up != end.ends_with("down")), "{end}");
        }
        // A flap that starts again is up first.
        set.set("a,b", "profile=flapping").unwrap();
        set.turn(20);
        set.set("a,b", "profile=flapping").unwrap();
        assert!(!set.cut("a", "b") && set.steering.flaps.len() == 1);
        // An uplink is another link: the end of the line's flap does not restore it.
        set.set("a", "profile=flapping").unwrap();
        set.turn(20);
        assert!(set.cut("a", "b") && set.cut("a", "c") && !set.cut("b", "c"));
        set.set("a,b", "up").unwrap();
        assert!(set.cut("a", "b") && set.cut("a", "c"));
        set.set("a,a", "up").unwrap();
        assert!(set.cut("a", "c"));
        set.set("a", "up").unwrap();
        assert!(!set.cut("a", "b") && !set.cut("a", "c"));
        let result = |link, words| Set::new(THREE).set(link, words).unwrap_err().to_string();
        assert!(result("a>b", "profile=flapping").contains("both ways: say `a,b`"));
        assert!(result(">a", "profile=flapping").contains("both ways: say `a`"));
        assert!(result("a,a", "profile=flapping").contains("inside a cluster does not"));
        // A flap of the topology's file.
        let mut set = Set::new(&format!(
            "{THREE}[[link]]\nbetween = [\"a\", \"c\"]\nprofile = \"flapping\"\n"
        ));
        set.turn(20);
        assert!(set.cut("c", "a"));
        assert!(!set.set("c,a", "profile=wan-50").unwrap().flaps);
        assert!(!set.cut("c", "a") && set.steering.next_at().is_none());
    }

    #[test]
    fn changes_without_effect_are_refused_with_an_alternative() {
        let result = |network, ports, link: &str, words: &str| {
            let result = check_supported(network, ports, &link.parse().unwrap(), &wish(words));
            result.map_err(|error| error.to_string())
        };
        let kernel = |link, words| result(Backend::Kernel, PortKind::Cluster, link, words);
        for words in ["bandwidth=1MB/s queue=5000", "profile=wan-50", "down", "up"] {
            assert_eq!(kernel("a", words), Ok(()));
        }
        assert_eq!(kernel("a,b", "rtt=5ms loss=0.1 jitter=1ms reorder=true"), Ok(()));
        assert_eq!(kernel("a,a", "rtt=5ms"), Ok(()));
        let error = kernel(">a", "rtt=5ms loss=0.1 down").unwrap_err();
        for part in ["no rtt=, loss=:", "bandwidth=, queue=", "(`A,B`)", "--network sockets"] {
            assert!(error.contains(part), "{error}");
        }
        let router = |ports, link| result(Backend::Router, ports, link, "rtt=5ms");
        let error = router(PortKind::Cluster, "a,a").unwrap_err();
        assert!(error.contains("inside a") && error.contains("`--per node`"), "{error}");
        assert_eq!(router(PortKind::Cluster, "a,b"), Ok(()));
        assert_eq!(router(PortKind::Node, "a,a"), Ok(()));
        assert_eq!(result(Backend::Sockets, PortKind::Node, "a", "rtt=5ms"), Ok(()));
        for (network, link, words, part) in [
            (Backend::Router, "a", "burst=1%/25%", "an uplink has no burst=: set it of the lines"),
            (Backend::Router, "a,b", "nat=none", "nat= belongs to a cluster"),
            (Backend::Router, "a>", "firewall=on", "firewall= belongs to a cluster"),
            (Backend::Sockets, "a", "nat=none", "sockets does not emulate nat=: bring"),
            (Backend::Sockets, "a,b", "trace=x corrupt=1%", "does not emulate trace=: bring"),
            (Backend::Kernel, "a,b", "corrupt=1%", "kernel does not emulate corrupt=: bring"),
        ] {
            let error = result(network, PortKind::Node, link, words).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let plain = "schedule=1MB/s:1s";
        assert_eq!(result(Backend::Sockets, PortKind::Node, "a,b", plain), Ok(()));
    }
}
