//! A scenario: a grid, a job and a sequence of events, as a file. The simulator and the tests over
//! shaped networks run it.
//!
//! It defines the format, independent of its use.
// Doc lines of keys are also the template's comments, where `[job]` is a section's name, no link.
#![allow(rustdoc::broken_intra_doc_links)]

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_base::processors::Processors;

use super::grid::AdaptationSection;
use super::limits::{check_delay, check_rate, check_share};
use super::problem::nearest;
use super::profile::{LinkProperties, LinkValues, profile, profiles};
use super::schema::{
    Fallback::{Absent, Elements, Is, Required, Section},
    section,
};
use super::units::{
    App, BoundedInt, ByteRate, Happening, Name, Pair, Role, Share, Steal, ThreadCounts, Time,
};
use super::{CONFIG_VERSION, Checker, Config};

/// The least interval of a repeated event. One that recurs at once would never end.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

section! {
    /// A grid, a job and the events of a run.
    ScenarioConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Name of the scenario.
        name: Name = Required("\"slow-uplink\"");
        /// Purpose of the scenario, in a sentence.
        about: String = Is("\"\"");
        /// Model of the job's computation and communication.
        app: AppSection = Section;
        /// Parameters of the job's run.
        job: ScenarioJobSection = Section;
        /// A cluster: nodes that share a local network and an uplink. One table each.
        cluster: Vec<PlaceSection> = Elements(&[
            &[("name", "\"ams\""), ("nodes", "16"), ("start", "12")],
            &[("name", "\"del\""), ("nodes", "16")],
        ]);
        /// Links between two clusters without an entry.
        wide: WideSection = Section;
        /// A link between two clusters. One table each.
        link: Vec<LineSection> = Elements(&[]);
        /// An event. One table each.
        event: Vec<EventSection> = Elements(&[
            &[("what", "\"load\""), ("at", "\"200s\""), ("cluster", "\"ams\""), ("share", "0.3")],
        ]);
        /// Adaptation of the set of the job's nodes.
        adaptation: AdaptationSection = Section;
        /// The paper's results, if the scenario is one of the paper.
        paper: PaperSection = Section;
    }

    /// A job of iterations, each of which sends a state to all nodes and divides its work into a
    /// tree of tasks.
    AppSection {
        /// "barnes-hut": a balanced tree over bodies, whose positions all nodes need and whose
        /// forces are returned; "search": an irregular tree without data; "master-worker": a master
        /// that distributes tasks; or "spmd": a process on each thread, which exchange their parts
        /// of the bodies in each iteration.
        kind: App = Is("\"barnes-hut\"");
        /// Number of iterations.
        iterations: BoundedInt<1, 1_000_000> = Is("15");
        /// Divisible work of an iteration: the time on one thread of a node of speed 1.
        work: Time = Is("\"30m\"");
        /// Work of the root alone in each iteration, while the others are idle.
        serial: Time = Is("\"0s\"");
        /// Work of each node before each iteration, such as building a tree of all bodies.
        each: Time = Is("\"0s\"");
        /// Number of tasks that are not divided further. Of "spmd": items, which the processes
        /// share.
        leaves: BoundedInt<1, 10_000_000> = Is("1024");
        /// Relative variation of leaves around their mean, 0 to 1, as for crowded regions of space.
        /// Only trees have one.
        spread: f64 = Is("0.5");
        /// Number of bodies, with 12 bytes each to the nodes and 16 back. 0: no data.
        bodies: BoundedInt<0, 100_000_000> = Is("0");
        /// Whether tasks declare their cost, from which speeds are measured. Only trees need to.
        declared: bool = Is("true");
        /// Iteration, counted from 1, from which on there are `then_leaves` tasks. Of "spmd":
        /// processes with work.
        then_from: Option<BoundedInt<1, 1_000_000>> = Absent("6");
        /// Changed number of tasks; see `then_from`.
        then_leaves: Option<BoundedInt<1, 10_000_000>> = Absent("8");
        /// Iteration from which on the initial number holds again.
        then_until: Option<BoundedInt<1, 1_000_000>> = Absent("11");
    }

    /// How a job is run.
    ScenarioJobSection {
        /// Interval of statistics and of adaptation decisions.
        period: Time = Is("\"10s\"");
        /// Limit of simulated time.
        limit: Time = Is("\"100h\"");
        /// Threads of each node.
        threads: BoundedInt<1, 4096> = Is("1");
        /// Choice of victims: "cluster-aware", or "random" as the baseline.
        steal: Steal = Is("\"cluster-aware\"");
    }

    /// A cluster of the scenario.
    PlaceSection {
        /// Name of the cluster; its nodes are called NAME-1, NAME-2 and so on.
        name: Name = Required("\"ams\"");
        /// Number of equal clusters. Several are called NAME1, NAME2 and so on.
        times: BoundedInt<1, 10_000> = Is("1");
        /// Number of nodes.
        nodes: BoundedInt<1, 100_000> = Is("1");
        /// Number of nodes on which the job starts; the others are free.
        start: BoundedInt<0, 100_000> = Is("0");
        /// Number of nodes that are unavailable until an event "free".
        later: BoundedInt<0, 100_000> = Is("0");
        /// Seconds of work per second of one of its threads.
        speed: f64 = Is("1.0");
        /// Threads of each of its nodes; default: those of [job].
        threads: Option<BoundedInt<1, 4096>> = Absent("4");
        /// Threads of its nodes in turn, from the first on, if they differ; instead of `threads`.
        unequal_threads: Option<ThreadCounts> = Absent("[1, 4, 64]");
        /// Delay between two of its nodes.
        delay: Time = Is("\"50us\"");
        /// Bandwidth of its uplink in each direction; default: no limit.
        uplink: Option<ByteRate> = Absent("\"100MB/s\"");
    }

    /// Links between clusters.
    WideSection {
        /// Named profile (`springtide wan profiles`); other keys override its values.
        profile: Option<String> = Absent("\"wan-50\"");
        /// Round trip time; default without a profile: 20 ms.
        rtt: Option<Time> = Absent("\"20ms\"");
        /// Variation of the one-way delay in either direction.
        jitter: Option<Time> = Absent("\"1ms\"");
        /// Share of lost packets, as a number or as a percentage such as "0.1%".
        loss: Option<Share> = Absent("0.001");
        /// Bandwidth in each direction; default: no limit.
        bandwidth: Option<ByteRate> = Absent("\"10MB/s\"");
        /// Bandwidth of the opposite direction, if different: from the cluster that is named second
        /// to the first.
        bandwidth_back: Option<ByteRate> = Absent("\"1MB/s\"");
        /// Bytes that may wait if there is a bandwidth; default: 100 ms of it, and at least 100000.
        queue: Option<BoundedInt<1500, 4_000_000_000>> = Absent("250000");
        /// Whether jitter may reorder packets.
        reorder: Option<bool> = Absent("true");
    }

    /// A link between two clusters.
    LineSection {
        /// Names of the two clusters.
        between: Pair = Required("[\"ams\", \"del\"]");
        /// Named profile (`springtide wan profiles`); other keys override its values.
        profile: Option<String> = Absent("\"wan-50\"");
        /// Round trip time; default without a profile: 20 ms.
        rtt: Option<Time> = Absent("\"20ms\"");
        /// Variation of the one-way delay in either direction.
        jitter: Option<Time> = Absent("\"1ms\"");
        /// Share of lost packets, as a number or as a percentage such as "0.1%".
        loss: Option<Share> = Absent("0.001");
        /// Bandwidth in each direction; default: no limit.
        bandwidth: Option<ByteRate> = Absent("\"10MB/s\"");
        /// Bandwidth of the opposite direction, if different: from the cluster that is named second
        /// to the first.
        bandwidth_back: Option<ByteRate> = Absent("\"1MB/s\"");
        /// Bytes that may wait if there is a bandwidth; default: 100 ms of it, and at least 100000.
        queue: Option<BoundedInt<1500, 4_000_000_000>> = Absent("250000");
        /// Whether jitter may reorder packets.
        reorder: Option<bool> = Absent("true");
    }

    /// An event of the scenario.
    EventSection {
        /// "load": nodes compute at `share` of their speed; "uplink": a cluster's uplink has
        /// `bandwidth`; "link": the link `between` two clusters has `rtt`, `loss` and `bandwidth`;
        /// "cut": that link is down; "kill": node processes are killed and restarted; "crash":
        /// hosts are off; "claim": nodes are reclaimed and must be released within `deadline`;
        /// "free": nodes that were unavailable (`later`) or reclaimed become available.
        what: Happening = Required("\"load\"");
        /// Time since the job's start.
        at: Option<Time> = Absent("\"200s\"");
        /// Number of completed iterations, instead of a time.
        iteration: Option<BoundedInt<1, 1_000_000>> = Absent("3");
        /// Duration; default: without end. A "kill" is instantaneous, and `duration` only delays
        /// its `interval`.
        duration: Option<Time> = Absent("\"10m\""), alias "lasts";
        /// Interval from its end to its repetition, until the job ends. All kinds except "kill"
        /// then need `duration`.
        interval: Option<Time> = Absent("\"20m\""), alias "every";
        /// Affected cluster.
        cluster: Option<Name> = Absent("\"ams\"");
        /// Number of affected nodes, from the first on; default: all.
        nodes: Option<BoundedInt<1, 100_000>> = Absent("4");
        /// Affected node by its role: "root", or "cluster-coordinator" of the cluster.
        role: Option<Role> = Absent("\"root\"");
        /// Affected link.
        between: Option<Pair> = Absent("[\"ams\", \"del\"]");
        /// Remaining share of the speed.
        share: Option<f64> = Absent("0.3");
        /// Bandwidth during the event.
        bandwidth: Option<ByteRate> = Absent("\"100kB/s\"");
        /// Round trip time during the event.
        rtt: Option<Time> = Absent("\"300ms\"");
        /// Share of lost packets during the event.
        loss: Option<Share> = Absent("0.01");
        /// Time limit for the release of reclaimed nodes.
        deadline: Option<Time> = Absent("\"60s\"");
    }

    /// The results of the paper.
    PaperSection {
        /// Reduction of the running time by adaptation, as a share.
        reduction: Option<f64> = Absent("0.5");
        /// Number of the figure that shows it.
        figure: Option<BoundedInt<1, 100>> = Absent("2");
        /// Monitoring period of the paper.
        period: Option<Time> = Absent("\"180s\"");
    }
}

/// Implements the values of a link for sections with the same keys.
macro_rules! implement_link_values {
    ($section:ident) => {
        impl $section {
            pub(super) fn own(&self) -> LinkValues<'_> {
                LinkValues {
                    profile: self.profile.as_deref(),
                    rtt: self.rtt,
                    jitter: self.jitter,
                    loss: self.loss.map(Share::get),
                    bandwidth: self.bandwidth,
                    bandwidth_back: self.bandwidth_back,
                    queue: self.queue.map(BoundedInt::get),
                    reorder: self.reorder,
                }
            }

            /// The properties of the link, including those of its profile.
            pub fn line(&self) -> LinkProperties {
                self.own().line()
            }
        }
    };
}

/// The link from `a` to `b`: the one given for the pair, or that between any two clusters.
///
/// Directions follow the order of names in the link, or in the file (`names`).
pub(super) fn line_between<'a>(
    links: &[LineSection],
    wide: &WideSection,
    mut names: impl Iterator<Item = &'a Name>,
    (a, b): (&str, &str),
) -> LinkProperties {
    let (line, first) = match links.iter().find(|link| link.between.is_of(a, b)) {
        Some(link) => (link.line(), link.between.0.as_str().to_owned()),
        None => {
            let first = names.find(|name| [a, b].contains(&name.as_str()));
            (wide.line(), first.map_or(a, Name::as_str).to_owned())
        }
    };
    if first == a {
        return line;
    }
    let (bandwidth, bandwidth_back) = (line.bandwidth_back, line.bandwidth);
    LinkProperties { bandwidth, bandwidth_back, ..line }
}

implement_link_values!(WideSection);
implement_link_values!(LineSection);

impl LineSection {
    /// A link between these two without any values.
    pub fn between(between: Pair) -> Self {
        Self {
            between,
            profile: None,
            rtt: None,
            jitter: None,
            loss: None,
            bandwidth: None,
            bandwidth_back: None,
            queue: None,
            reorder: None,
        }
    }
}

/// The keys that an event requires, and its optional keys.
fn keys_of(what: Happening) -> (&'static [&'static str], &'static [&'static str]) {
    match what {
        Happening::Load => (&["share"], &["cluster", "nodes", "role"]),
        Happening::Uplink => (&["cluster", "bandwidth"], &[]),
        Happening::Link => (&["between"], &["rtt", "loss", "bandwidth"]),
        Happening::Cut => (&["between"], &[]),
        Happening::Kill | Happening::Crash => (&[], &["cluster", "nodes", "role"]),
        Happening::Claim => (&["cluster"], &["nodes", "deadline"]),
        Happening::Free => (&["cluster"], &["nodes"]),
    }
}

impl EventSection {
    /// An event of this kind without any values.
    pub fn of(what: Happening) -> Self {
        Self {
            what,
            at: None,
            iteration: None,
            duration: None,
            interval: None,
            cluster: None,
            nodes: None,
            role: None,
            between: None,
            share: None,
            bandwidth: None,
            rtt: None,
            loss: None,
            deadline: None,
        }
    }

    fn given(&self) -> Vec<&'static str> {
        let Self { cluster, nodes, role, between, share, bandwidth, rtt, loss, deadline, .. } =
            self;
        let all = [
            ("cluster", cluster.is_some()),
            ("nodes", nodes.is_some()),
            ("role", role.is_some()),
            ("between", between.is_some()),
            ("share", share.is_some()),
            ("bandwidth", bandwidth.is_some()),
            ("rtt", rtt.is_some()),
            ("loss", loss.is_some()),
            ("deadline", deadline.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }
}

impl ScenarioConfig {
    /// The compute threads of a cluster's node: its processors. `index` counts nodes from 0.
    pub fn threads_of(&self, place: &PlaceSection, index: u32) -> u32 {
        match &place.unequal_threads {
            Some(threads) => threads.of(index),
            None => place.threads.unwrap_or(self.job.threads).get(),
        }
    }

    /// The processors of a cluster's first `nodes` nodes.
    pub fn processors_of(&self, place: &PlaceSection, nodes: u32) -> Processors {
        (0..nodes).map(|index| Processors(self.threads_of(place, index))).sum()
    }

    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# A Springtide scenario. Every key is here with its default; what is commented out is \
             not set by default.\n\
             # Durations are \"150ms\", sizes \"64MiB\", rates \"10MB/s\". Play it with: \
             springtide sim run FILE\n\n",
        )
    }

    /// The bytes sent to the nodes in each iteration, and the bytes returned.
    pub fn payload(&self) -> (u64, u64) {
        let bodies = u64::from(self.app.bodies.get());
        (12 * bodies, 16 * bodies)
    }

    /// The link between two clusters, with the direction from `a` first.
    pub fn line(&self, a: &str, b: &str) -> LinkProperties {
        line_between(&self.link, &self.wide, self.cluster.iter().map(|place| &place.name), (a, b))
    }

    fn check_event(&self, i: usize, names: &BTreeMap<String, usize>, checker: &mut Checker<'_>) {
        let (event, at) = (&self.event[i], |key: &str| format!("event[{i}].{key}"));
        let what = event.what;
        match (event.at, event.iteration) {
            (None, None) => checker.report(
                &at("what"),
                format!("the \"{what}\" has no time: add `at` or `iteration`"),
            ),
            (Some(_), Some(_)) => checker.report(
                &at("iteration"),
                format!("the \"{what}\" has two times: `at` or `iteration`, not both"),
            ),
            _ => {}
        }
        let iterations = self.app.iterations.get();
        if event.iteration.is_some_and(|iteration| iteration.get() >= iterations) {
            let reason = format!("the job ends with iteration {iterations}: this is never met");
            checker.report(&at("iteration"), reason);
        }
        if event.at.is_some_and(|time| time.get() >= self.job.limit.get()) {
            let reason = format!("the run is over by `job.limit` {}", self.job.limit);
            checker.report(&at("at"), reason);
        }
        let is_instant = what == Happening::Kill;
        if event.interval.is_some() && event.duration.is_none() && !is_instant {
            checker.report(&at("interval"), "an event must end before it repeats: add `duration`");
        }
        if event.duration.is_some() && event.interval.is_none() && is_instant {
            let reason = "a \"kill\" ends at once, and killed processes restart by themselves: \
                          leave `duration` out, or say \"crash\"";
            checker.report(&at("duration"), reason);
        }
        if event.interval.is_some_and(|interval| interval.get() < INTERVAL_MIN) {
            checker.report(&at("interval"), "must be at least \"100ms\"");
        }
        let says_link = event.rtt.is_some() || event.loss.is_some() || event.bandwidth.is_some();
        if what == Happening::Link && !says_link {
            checker.report(
                &at("what"),
                "a \"link\" changes nothing: add `rtt`, `loss` or `bandwidth`",
            );
        }
        if let Some(Pair(a, b)) = event.between.as_ref().filter(|Pair(a, b)| a == b) {
            let reason = format!("a link must be between two clusters, found \"{a}\" and \"{b}\"");
            checker.report(&at("between"), reason);
        }
        let (needs, may) = keys_of(what);
        let given = event.given();
        for key in needs.iter().filter(|key| !given.contains(key)) {
            checker.report(&at("what"), format!("a \"{what}\" needs `{key}`"));
        }
        for key in given.iter().filter(|key| !needs.contains(key) && !may.contains(key)) {
            checker.report(&at(key), format!("a \"{what}\" has no `{key}`"));
        }
        if matches!(what, Happening::Load | Happening::Kill | Happening::Crash) {
            let reason = match (&event.cluster, event.role) {
                (None, None) => Some("say where: add `cluster` or `role`"),
                (None, Some(Role::ClusterCoordinator)) => Some("say of which: add `cluster`"),
                (Some(_), Some(Role::Root)) => {
                    Some("the job has one root in all: leave `cluster` out")
                }
                _ => None,
            };
            if let Some(reason) = reason {
                checker.report(&at("what"), format!("a \"{what}\": {reason}"));
            }
        }
        if event.role.is_some() && event.nodes.is_some() {
            checker.report(&at("nodes"), "one node has that role: `nodes` means nothing here");
        }
        for (name, key) in event
            .cluster
            .iter()
            .map(|name| (name, "cluster"))
            .chain(event.between.iter().flat_map(|Pair(a, b)| [(a, "between"), (b, "between")]))
        {
            known(name, &at(key), names, checker);
        }
        if let (Some(cluster), Some(nodes)) = (&event.cluster, event.nodes)
            && let Some(place) = names.get(cluster.as_str()).map(|at| &self.cluster[*at])
            && nodes.get() > place.nodes.get()
        {
            let reason = format!("cluster \"{cluster}\" has {} nodes", place.nodes.get());
            checker.report(&at("nodes"), reason);
        }
        check_share(event.share, &at("share"), checker);
        check_share(event.loss.map(Share::get), &at("loss"), checker);
        check_delay(event.rtt, &at("rtt"), checker);
        check_rate(event.bandwidth, &at("bandwidth"), checker);
    }
}

fn known(name: &Name, path: &str, names: &BTreeMap<String, usize>, checker: &mut Checker<'_>) {
    if !names.contains_key(name.as_str()) {
        let reason = format!("there is no cluster named \"{name}\"");
        let meant = nearest(name.as_str(), names.keys().map(String::as_str));
        checker.report_with_suggestion(path, reason, meant);
    }
}

/// Checks links independently of the clusters.
pub(super) fn check_lines(lines: &[LineSection], checker: &mut Checker<'_>) {
    let mut pairs = BTreeMap::new();
    for (i, line) in lines.iter().enumerate() {
        let path = |key: &str| format!("link[{i}].{key}");
        let Pair(a, b) = &line.between;
        if a == b {
            let reason = format!("a link must be between two clusters, found \"{a}\" twice");
            checker.report(&path("between"), reason);
        }
        if let Some(first) = pairs.insert((a.min(b), a.max(b)), i) {
            let first = checker.describe_place(&format!("link[{first}].between"));
            let reason = format!(
                "the link between \"{a}\" and \"{b}\" is given twice; the other is {first}"
            );
            checker.report(&path("between"), reason);
        }
        check_line(&line.own(), path, checker);
    }
}

/// Checks a link in any section.
pub(super) fn check_line(
    own: &LinkValues<'_>,
    path: impl Fn(&str) -> String,
    checker: &mut Checker<'_>,
) {
    check_share(own.loss, &path("loss"), checker);
    check_delay(own.rtt, &path("rtt"), checker);
    check_delay(own.jitter, &path("jitter"), checker);
    for (key, rate) in [("bandwidth", own.bandwidth), ("bandwidth_back", own.bandwidth_back)] {
        check_rate(rate, &path(key), checker);
    }
    check_profile(own.profile, &path("profile"), checker);
}

pub(super) fn check_profile(name: Option<&str>, path: &str, checker: &mut Checker<'_>) {
    if let Some(name) = name.filter(|name| profile(name).is_none()) {
        let reason = format!("there is no profile named \"{}\"", name.escape_default());
        let names = profiles().iter().map(|profile| profile.name.as_str());
        checker.report_with_suggestion(path, reason, nearest(name, names));
    }
}

impl Config for ScenarioConfig {
    const WHAT: &'static str = "scenario";

    fn check(&self, checker: &mut Checker<'_>) {
        let mut names = BTreeMap::new();
        for (i, place) in self.cluster.iter().enumerate() {
            let path = |key: &str| format!("cluster[{i}].{key}");
            let taken: Vec<_> = place
                .names()
                .filter_map(|name| Some((names.insert(name.clone(), i)?, name)))
                .collect();
            if let Some((first, name)) = taken.into_iter().next() {
                checker.tell_taken(&path("name"), &format!("cluster[{first}].name"), &name);
            }
            if let Some(Err(reason)) = place.names().last().map(|name| name.parse::<Name>()) {
                checker.report(&path("name"), reason);
            }
            let (nodes, start) = (place.nodes.get(), place.start.get());
            let later = place.later.get();
            if start + later > nodes {
                let key = if later > 0 { "later" } else { "start" };
                let reason = format!(
                    "cluster \"{}\" has {nodes} nodes: it cannot start on {start} and keep {later} \
                     back",
                    place.name
                );
                checker.report(&path(key), reason);
            }
            if place.speed <= 0.0 {
                let reason = format!("must be above 0, found {}", place.speed);
                checker.report(&path("speed"), reason);
            }
            check_rate(place.uplink, &path("uplink"), checker);
            if place.threads.is_some() && place.unequal_threads.is_some() {
                let reason = "`threads` gives all nodes the same number: leave one of them out";
                checker.report(&path("unequal_threads"), reason);
            }
        }
        if self.cluster.iter().all(|place| place.start.get() == 0) {
            let reason = "the job starts on no node: give some [[cluster]] a `start`";
            checker.report("cluster", reason);
        }
        let starting = |place: &PlaceSection| {
            let nodes = self.processors_of(place, place.start.get()).get();
            u64::from(nodes) * u64::from(place.times.get())
        };
        let starting: u64 = self.cluster.iter().map(starting).sum();
        if starting < u64::from(self.adaptation.min_processors.get()) {
            let reason = format!(
                "the job starts on {starting} processors, fewer than its minimum of {}",
                self.adaptation.min_processors.get()
            );
            checker.report("adaptation.min_processors", reason);
        }
        check_lines(&self.link, checker);
        for (i, line) in self.link.iter().enumerate() {
            let Pair(a, b) = &line.between;
            for name in [a, b] {
                known(name, &format!("link[{i}].between"), &names, checker);
            }
        }
        check_line(&self.wide.own(), |key| format!("wide.{key}"), checker);
        check_share(Some(self.app.spread), "app.spread", checker);
        if self.app.work.get().is_zero() {
            checker.report("app.work", "the job has no work: give `app.work` some time");
        }
        let then = (self.app.then_from, self.app.then_leaves);
        if then.0.is_some() != then.1.is_some() {
            let key = if then.0.is_some() { "app.then_from" } else { "app.then_leaves" };
            checker.report(key, "`then_from` and `then_leaves` go together");
        }
        match (self.app.then_from, self.app.then_until) {
            (Some(from), Some(until)) if until <= from => {
                let reason = format!("must be after `then_from` {}", from.get());
                checker.report("app.then_until", reason);
            }
            (None, Some(_)) => {
                checker.report("app.then_until", "means nothing without `then_from`")
            }
            _ => {}
        }
        let iterations = self.app.iterations.get();
        for (key, iteration) in
            [("app.then_from", self.app.then_from), ("app.then_until", self.app.then_until)]
        {
            if iteration.is_some_and(|iteration| iteration.get() > iterations) {
                let reason = format!("the job ends with iteration {iterations}: this is never met");
                checker.report(key, reason);
            }
        }
        if !self.app.each.get().is_zero() && self.app.bodies.get() == 0 {
            let reason = "nodes prepare themselves for what is sent, and nothing is: add `bodies`";
            checker.report("app.each", reason);
        }
        if !self.app.each.get().is_zero() && self.app.kind == App::MasterWorker {
            let reason = "workers of a \"master-worker\" do not prepare themselves: leave it out";
            checker.report("app.each", reason);
        }
        if !self.app.declared && matches!(self.app.kind, App::MasterWorker | App::Spmd) {
            let reason = format!("a \"{}\" declares no cost: leave it out", self.app.kind);
            checker.report("app.declared", reason);
        }
        if self.job.period.get() < Duration::from_millis(100) {
            let reason =
                format!("`job.period` must be at least \"100ms\", found \"{}\"", self.job.period);
            checker.report("job.period", reason);
        }
        for i in 0..self.event.len() {
            self.check_event(i, &names, checker);
        }
    }

    fn expand(mut self) -> Self {
        let like = |place: PlaceSection| {
            let names: Vec<_> = place.names().filter_map(|name| name.parse().ok()).collect();
            names.into_iter().map(move |name| PlaceSection {
                name,
                times: BoundedInt::nearest(1),
                ..place.clone()
            })
        };
        self.cluster = self.cluster.into_iter().flat_map(like).collect();
        self
    }
}

impl PlaceSection {
    /// The names of all clusters that it stands for.
    fn names(&self) -> impl Iterator<Item = String> {
        let all = self.times.get();
        (1..=all).map(move |k| match all {
            1 => self.name.to_string(),
            _ => format!("{}{k}", self.name),
        })
    }
}
