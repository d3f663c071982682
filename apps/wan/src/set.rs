//! Changes of links at run time: parses them and computes the new profiles. Words and meanings are
//! those of a topology's file.
//!
//! All functions are pure; callers pass the time. This module depends on neither the caller nor the
//! network's implementation.

use std::collections::BTreeSet;
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

/// Changes of a link; properties that are not given stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkOverrides {
    /// The profile that all other properties are taken from. Of an uplink it sets the rates and the
    /// queue, as `uplink_profile`.
    pub profile: Option<String>,
    /// The round-trip time of packets.
    pub rtt: Option<Time>,
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
        "{0:?}: it must be profile=, rtt=, jitter=, loss=, bandwidth=, queue=, reorder=, up or down"
    )]
    Word(String),
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
            (_, Some(("jitter", time))) => {
                once(&mut self.jitter, "jitter=", value("jitter", time.parse())?)
            }
            (_, Some(("loss", share))) => {
                let read = share.parse::<f64>();
                let read = read.map_err(|_| format!("must lie within 0 and 1, found {share:?}"));
                once(&mut self.loss, "loss=", value("loss", read)?)
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
                let read = is.parse::<bool>();
                let read = read.map_err(|_| format!("must be true or false, found {is:?}"));
                once(&mut self.reorder, "reorder=", value("reorder", read)?)
            }
            _ => Err(SetError::Word(word.to_owned())),
        }
    }

    /// Checks the values by the rules of a topology's file.
    fn check(&self) -> Result<(), SetError> {
        for (key, delay) in [("rtt", self.rtt), ("jitter", self.jitter)] {
            value(key, delay.map_or(Ok(()), |delay| allowed_delay(delay).map(drop)))?;
        }
        value("loss", self.loss.map_or(Ok(()), |loss| allowed_share(loss).map(drop)))?;
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
        if let Some(rtt) = self.rtt {
            now = now.delay(rtt.get() / 2);
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

    fn flapping(&self) -> Flapping {
        match (self.line().and_then(|line| line.up_and_down), self.up) {
            (Some((up, down)), None | Some(true)) => Flapping::Start(up, down),
            (None, None) if self.profile.is_none() => Flapping::Unchanged,
            _ => Flapping::Stop,
        }
    }
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
    match (network, link) {
        (Backend::Kernel, LinkSelector::Uplink { .. }) => {
            let keys = [
                ("rtt=", wish.rtt.is_some()),
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
        Self { flaps: flaps.collect(), queues: topology.queues.clone() }
    }

    /// The time of the next turn of a flap.
    pub fn next_at(&self) -> Option<Instant> {
        self.flaps.iter().map(|flap| flap.at).min()
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

    /// Stops the flaps of all links.
    pub fn end(&mut self) {
        self.flaps.clear();
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
                RouterChange::Cut { .. } => continue,
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
            ("loss=2", "loss must lie within 0 and 1, found 2"),
            ("loss=x", "loss must lie within 0 and 1, found \"x\""),
            ("loss=NaN", "within 0 and 1"),
            ("bandwidth=0B/s", "say `down`"),
            ("bandwidth=7bit/s", "bandwidth must be at least \"1B/s\", found \"7bit/s\""),
            ("rtt=5", "rtt must be a duration"),
            ("rtt=11s", "rtt must be at most \"10s\", found \"11s\""),
            ("jitter=1h", "jitter must be at most \"10s\""),
            ("queue=1kB", "queue must be a number of bytes such as 250000, found \"1kB\""),
            ("queue=100", "queue must be a whole number from 1500 to 4000000000, found 100"),
            ("reorder=1", "reorder must be true or false"),
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
            "profile=lan rtt=1ms jitter=1us loss=0.1 bandwidth=9bit/s queue=1500 reorder=true up",
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
    }
}
