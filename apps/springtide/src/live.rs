//! `wan run`: a scenario with live node processes, over an emulated network, on processors that are slowed down.
//!
//! The same files and the same stage as in simulated time. Must not know how networks are emulated, nor how a processor is slowed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueHint};
use serde::Serialize;
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::{cluster_coordinator_name, coordinator_name};
use springtide_actors::policy::Mode;
use springtide_actors::provider::{
    LocalFuture, LocalProvider, NodeRequest, Provider, ProviderError, Stub,
};
use springtide_actors::scheduler::{Granted, Scheduler};
use springtide_runtime::config::{
    self, GridConfig, ScenarioConfig, Sources, Time, TopologyConfig, load,
};
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::net::tls::Ca;
use springtide_runtime::remote::Remote;
use springtide_runtime::work::{Job, Registry};
use springtide_simulator::Now;
use springtide_simulator::apps::Model;
use springtide_simulator::scenario::{
    EPOCH_US, Play, Played, model, params, perform, play, scaled,
};
use springtide_simulator::stage::{Stage, World, cluster_of};
use springtide_simulator::submitter::Submitter;
use springtide_wan::awake::{self, Awake};
use springtide_wan::place::Carries;
use springtide_wan::quota::Quotas;
use springtide_wan::router::{Change, PortOf};
use springtide_wan::sys::{self, Space};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::args::{GlobalArgs, time, words};
use crate::exit::{Exit, Failed};
use crate::grid::{self, Authority, Plan};
use crate::outdir::{Artefacts, OutDir, manifest, write_file};
use crate::run::clear;
use crate::scratch::Scratch;
use crate::signals::{Signals, word as signal_word};
use crate::sim::word;
use crate::talk::Talk;
use crate::wan::{How, Network};

/// A grid of forty nodes on two cores takes some seconds to come up, and to end.
const AROUND: Duration = Duration::from_secs(120);
/// The largest log of a run, in bytes.
const LOG_MAX: u64 = 1 << 30;
/// Above this share of the machine's time results say more of the machine than of the program.
const BUSY: f64 = 0.9;
/// From this share on it is told that the machine's host took some of its time: packets and threads are late by as much.
const TELLS: f64 = 0.01;

/// Options of a live scenario.
#[derive(Args, Clone, Debug)]
pub struct LiveArgs {
    /// Its file, or the name of one that comes with this program (`sim list`)
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenario: PathBuf,
    /// How far the job's set of nodes is adapted: static, monitor or adaptive [default: the file's]
    #[arg(long, value_name = "HOW", value_parser = words::<config::Mode>(&["static", "monitor", "adaptive"]),
          hide_possible_values = true)]
    pub mode: Option<config::Mode>,
    /// So many times shorter than the file says: its work, what it sends and when things happen; delays of links stay
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = scale)]
    pub time_scale: f64,
    /// A node of speed 1 has this share of a core
    #[arg(long, value_name = "SHARE", default_value_t = 0.04, value_parser = share)]
    pub share: f64,
    /// How nodes get it: by control groups, by compute threads that rest (duty), or by the first that this machine has (auto)
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = ["auto", "groups", "duty"], hide_possible_values = true)]
    pub quota: String,
    /// What carries it: a router between network namespaces, the kernel's queues between them, the nodes' own sockets, or a router where this
    /// machine allows it and sockets elsewhere (auto)
    #[arg(long, value_name = "WHAT", default_value = "auto", value_parser = ["auto", "router", "kernel", "sockets"], hide_possible_values = true)]
    pub network: String,
    /// Whether processors are kept from falling asleep meanwhile, which costs power, and without which a virtual machine's host takes them
    /// away and lets packets and threads be late: always, never, or on a virtual machine (auto)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "always", "never"], hide_possible_values = true)]
    pub awake: String,
    /// How often the set of nodes is thought over, in the file's time [default: the paper's period, or the file's]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub period: Option<Duration>,
    /// Of whatever is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Do not play it in simulated time, too
    #[arg(long)]
    pub no_prediction: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Directory for what the run leaves, for `why`, `replay` and `wan report`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}

fn positive(text: &str, most: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= most);
    number.ok_or_else(|| format!("must be above 0 and at most {most}, found {text:?}"))
}

fn scale(text: &str) -> Result<f64, String> {
    // Times of a file that are a thousand times longer are still times.
    let scale = positive(text, 1e6)?;
    if scale < 1e-3 { Err("must be at least 0.001".to_owned()) } else { Ok(scale) }
}

fn share(text: &str) -> Result<f64, String> {
    positive(text, 1.0)
}

/// What came of a live run: the content of its `wan.json`.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct Report {
    /// Of this content.
    pub schema: u32,
    /// The scenario's name.
    pub scenario: String,
    /// What it is about.
    pub about: String,
    /// static, monitor or adaptive.
    pub mode: String,
    /// Of whatever is random.
    pub seed: u64,
    /// By how much it was shortened.
    pub time_scale: f64,
    /// What a node of speed 1 had of a core.
    pub share: f64,
    /// What gave it to them.
    pub quota: String,
    /// What carried it: `router`, `kernel` or `sockets`.
    pub network: String,
    /// The monitoring period, seconds.
    pub period_s: f64,
    /// From the job's submission to its end, seconds.
    pub wall_s: f64,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// From which second on, how many nodes.
    pub nodes_over_time: Vec<(f64, u32)>,
    /// What happened to the grid: seconds, what.
    pub events: Vec<(f64, String)>,
    /// What was decided: seconds, actions.
    pub decisions: Vec<(f64, String)>,
    /// The answer's checksum.
    pub checksum: String,
    /// What share of the machine's processor time was used meanwhile, by all.
    pub busy: f64,
    /// What share of it the machine's own host took, where the machine is virtual and can tell.
    #[serde(default)]
    pub stolen: f64,
    /// Whether processors were kept from falling asleep meanwhile.
    #[serde(default)]
    pub awake: bool,
    /// By how many microseconds packets left the router late: half of them, 99 of 100, and the latest.
    pub late_us: Option<[f64; 3]>,
    /// By how much the run was shorter than a static one in the paper, as a share.
    pub paper_reduction: Option<f64>,
    /// The same in simulated time, seconds.
    pub predicted_s: Option<f64>,
}

/// Does it.
///
/// # Errors
/// The scenario, the network or the processors cannot be had, or the job goes wrong; nothing is left.
pub fn run(
    args: &LiveArgs,
    registry: Arc<Registry>,
    version: &str,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let (file, text) = crate::sim::read(&args.scenario)?;
    let mode = args.mode.map_or_else(|| file.adaptation.mode.into(), Mode::from);
    let config = scaled(&file, args.time_scale);
    let period = args.period.unwrap_or_else(|| file.paper.period.unwrap_or(file.job.period).get());
    let how = Play { mode, period: Some(period.div_f64(args.time_scale)), seed: args.seed };
    crate::sim::check(&config, &how)?;
    let scratch = Scratch::make()?;
    let lasts = config.job.limit.get().min(Duration::from_secs(24 * 3600)) + AROUND;
    // What this machine may not have comes first: then there is nothing yet to be taken down.
    let quotas = Rc::new(quotas(&args.quota, scratch.path())?);
    let network = Carrier::start(&args.network, &config, scratch.path(), args.seed, lasts)?;
    network.network.tie(quotas.groups(), scratch.path().to_owned())?;
    quotas.take_in(std::process::id()).map_err(Failed::failure)?;
    network.enter()?;
    let network = Rc::new(network);
    let keep_awake = || {
        let aside = quotas.aside();
        Awake::start(move || aside.step())
    };
    let awake = match args.awake.as_str() {
        "always" => Some(keep_awake().map_err(|error| {
            Failed::failure(format!("processors are not kept awake: {error}; `--awake never`"))
        })?),
        // It is the better for it, and goes without.
        "auto" if awake::is_virtual() => keep_awake().ok(),
        _ => None,
    };
    let before = used();
    let setting = Setting {
        config: &config,
        how,
        share: args.share,
        quotas,
        network: network.clone(),
        dir: args.out.clone().unwrap_or_else(|| scratch.path().to_owned()),
        global,
        version,
    };
    let mut out = match &args.out {
        Some(dir) => {
            let name = format!("wan-{}", config.name);
            let mut manifest = manifest(&name, version, Some(args.seed));
            manifest.mode = Some(word(mode).to_owned());
            Some(OutDir::create(dir, &manifest, &text, LOG_MAX)?)
        }
        None => None,
    };
    let kind = setting.quotas.kind();
    let played = crate::app::on_arbiter(live(setting, registry));
    if let Some(dir) = &args.out {
        clear(dir);
    }
    let played = played?;
    let after = used();
    let awake = awake.and_then(|awake| awake.end().ok());
    let (busy, stolen) = after.since(&before, awake.unwrap_or_default());
    let late_us = network.late_us();
    let predicted = match args.no_prediction {
        true => None,
        false => play(&config, &how).ok().map(|played| played.wall.as_secs_f64()),
    };
    let outcome = played.ended.outcome.as_ref();
    let told = |(at, what): &(Duration, String)| (at.as_secs_f64(), what.clone());
    let report = Report {
        schema: crate::report::SCHEMA,
        scenario: config.name.to_string(),
        about: config.about.clone(),
        mode: word(mode).to_owned(),
        seed: args.seed,
        time_scale: args.time_scale,
        share: args.share,
        quota: kind.word().to_owned(),
        network: network.word().to_owned(),
        period_s: how.period.unwrap_or_default().as_secs_f64(),
        wall_s: played.wall.as_secs_f64(),
        iterations: played.iterations.clone(),
        nodes_over_time: played.nodes.clone(),
        events: played.events.iter().map(told).collect(),
        decisions: played.actions().iter().map(told).collect(),
        checksum: outcome.map_or_else(|_| String::new(), |o| format!("{:016x}", o.checksum)),
        busy,
        stolen,
        awake: awake.is_some(),
        late_us,
        paper_reduction: config.paper.reduction,
        predicted_s: predicted,
    };
    let json = serde_json::to_value(&report).map_err(Failed::failure)?;
    let mut artefacts = Artefacts::of(None);
    if let Some(out) = &mut out {
        artefacts.add(out.records(&played.records));
        artefacts.add(out.own_file(REPORT, format!("{json}\n").as_bytes()).map(drop));
        artefacts.add(out.finish(&crate::report::Ended::of(Model::NAME, &played.ended).json()));
    }
    artefacts.print(args.json, json, || story(&report, &played))?;
    match &played.ended.outcome {
        Ok(outcome) if outcome.checksum == played.answer => Ok(()),
        Ok(outcome) => Err(Failed::failure(format!(
            "the answer is {:016x}, not {:016x}: this is a bug, please report it with the scenario and --seed {}",
            outcome.checksum, played.answer, args.seed
        ))),
        Err(error) => Err(Failed::failure(error)),
    }
}

/// The file of a run that has its [`Report`].
pub const REPORT: &str = "wan.json";

fn write(path: &Path, text: &str) -> Result<(), Failed> {
    write_file(path, text.as_bytes())
}

fn quotas(how: &str, scratch: &Path) -> Result<Quotas, Failed> {
    let duty = || Quotas::by_duty(scratch).map_err(Failed::failure);
    match how {
        "duty" => duty(),
        "groups" => Quotas::by_groups().map_err(|error| {
            Failed::usage(format!("no quota by control groups: {error}; `--quota duty` needs none"))
        }),
        _ => Quotas::by_groups().or_else(|_| duty()),
    }
}

fn story(report: &Report, played: &Played) -> String {
    let mut text = format!("scenario {}: {}\n", report.scenario, report.about);
    let mut story: Vec<(Duration, String)> = played.said.clone();
    story.extend(played.events.iter().map(|(at, what)| (*at, format!("--- {what}"))));
    story.extend(played.actions().iter().map(|(at, what)| (*at, format!("=== {what}"))));
    story.sort_by_key(|(at, _)| *at);
    for (at, what) in &story {
        text += &format!("{:9.1} s  {what}\n", at.as_secs_f64());
    }
    let lengths: Vec<_> = report.iterations.iter().map(|s| format!("{s:.1}")).collect();
    let nodes: Vec<_> = report
        .nodes_over_time
        .iter()
        .map(|(at, nodes)| format!("{nodes} from {at:.0} s"))
        .collect();
    let predicted =
        report.predicted_s.map_or(String::new(), |s| format!("; simulated it takes {s:.1} s"));
    let late = match report.late_us {
        Some([half, most, _]) => format!(
            "namespaces and a router; packets were late by {half:.0} us (half), {most:.0} us (99 of 100)"
        ),
        None if report.network == Carries::Kernel.word() => {
            "namespaces and the kernel's queues".to_owned()
        }
        None => "the nodes' own sockets".to_owned(),
    };
    let stolen = match report.stolen {
        share if share >= TELLS => format!(", and its host took {:.0} %", 100.0 * share),
        _ => String::new(),
    };
    let awake = if report.awake { " and kept awake" } else { "" };
    text += &format!(
        "iterations  {} s\nnodes       {}\nprocessors  {:.1} % of a core by {}; the machine was {:.0} % busy{awake}{stolen}\n\
         network     {late}\n\
         runtime     {:.1} s ({}, seed {}, {} times shortened){predicted}\n",
        lengths.join(" "),
        nodes.join(", "),
        100.0 * report.share,
        report.quota,
        100.0 * report.busy,
        report.wall_s,
        report.mode,
        report.seed,
        report.time_scale,
    );
    if report.busy > BUSY {
        text +=
            "the machine had little left: give nodes a smaller --share, or less to do at once\n";
    }
    text
}

/// Of /proc/stat, in a second: what programs see is a hundred on every machine.
const TICKS: f64 = 100.0;

/// What the machine's processors have done since it was started, in ticks.
struct Used {
    busy: u64,
    stolen: u64,
    all: u64,
}

fn used() -> Used {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    let stolen = ticks.get(7).copied().unwrap_or_default();
    Used { busy: all.saturating_sub(idle), stolen, all }
}

impl Used {
    /// Which shares were busy and stolen, where threads that only kept processors awake had so much.
    fn since(&self, before: &Used, awake: Duration) -> (f64, f64) {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        // Linux may count less idle time than before.
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        let awake = awake.as_secs_f64() * TICKS / all;
        ((share(self.busy, before.busy) - awake).max(0.0), share(self.stolen, before.stolen))
    }
}

/// The scenario's network as the text of a topology with a place for the head.
fn topology(config: &ScenarioConfig) -> Result<String, Failed> {
    let value = |section: Result<toml::Value, toml::ser::Error>| section.map_err(Failed::failure);
    let mut clusters = Vec::new();
    for place in &config.cluster {
        let mut site = toml::Table::new();
        site.insert("name".to_owned(), place.name.as_str().into());
        site.insert("nodes".to_owned(), i64::from(place.nodes.get()).into());
        site.insert("delay".to_owned(), place.delay.to_string().into());
        if let Some(uplink) = place.uplink {
            site.insert("uplink".to_owned(), uplink.to_string().into());
        }
        clusters.push(toml::Value::Table(site));
    }
    let head = toml::toml! { name = "head" };
    clusters.push(toml::Value::Table(head));
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), config.name.as_str().into());
    table.insert("net".to_owned(), "10.77.0.0/16".into());
    table.insert("wide".to_owned(), value(toml::Value::try_from(&config.wide))?);
    table.insert("cluster".to_owned(), toml::Value::Array(clusters));
    if !config.link.is_empty() {
        table.insert("link".to_owned(), value(toml::Value::try_from(&config.link))?);
    }
    let text = toml::to_string(&table).map_err(Failed::failure)?;
    // What does not fit an emulated network is told before anything starts.
    load::<TopologyConfig>(&Sources::of_text("the scenario's network", &text))?;
    Ok(text)
}

/// The compute threads of each of a cluster's nodes.
fn threads(config: &ScenarioConfig, place: &config::PlaceSection) -> u32 {
    place.threads.unwrap_or(config.job.threads).get()
}

/// The grid's config. Nodes expect of their links what the scenario says of them.
fn grid_text(config: &ScenarioConfig, head: Ipv4Addr, shape: Option<&Path>) -> String {
    let mut text = format!("grid = \"wan\"\n[head]\nbind = \"{head}:0\"\n");
    if let Some(shape) = shape {
        let shape = toml::Value::from(shape.display().to_string());
        text += &format!("[net]\nshape = {shape}\n");
    }
    for place in &config.cluster {
        let threads = threads(config, place);
        text += &format!(
            "[[cluster]]\nname = \"{}\"\nnodes = {}\nthreads = {threads}\n",
            place.name,
            place.nodes.get()
        );
    }
    for (at, a) in config.cluster.iter().enumerate() {
        for b in &config.cluster[at + 1..] {
            let line = config.line(a.name.as_str(), b.name.as_str());
            let rates = [line.bandwidth, line.bandwidth_back, a.uplink, b.uplink];
            let least = rates
                .into_iter()
                .flatten()
                .reduce(|x, y| if y.bytes_per_second() < x.bytes_per_second() { y } else { x });
            text += &format!(
                "[[link]]\nbetween = [\"{}\", \"{}\"]\nrtt = \"{}\"\n",
                a.name,
                b.name,
                Time::from(line.rtt.max(Duration::from_micros(100)))
            );
            if let Some(rate) = least {
                text += &format!("bandwidth = \"{rate}\"\n");
            }
        }
    }
    text
}

/// All that a live run needs.
struct Setting<'a> {
    config: &'a ScenarioConfig,
    how: Play,
    share: f64,
    quotas: Rc<Quotas>,
    network: Rc<Carrier>,
    dir: PathBuf,
    global: &'a GlobalArgs,
    version: &'a str,
}

/// What declared work costs of a processor where a node of speed 1 has this share of one.
fn on_share(model: Model, share: f64) -> Model {
    let cost = |us: u64| (us as f64 * share).round() as u64;
    let (work_us, serial_us) = (cost(model.work_us), cost(model.serial_us));
    Model { work_us, serial_us, each_us: cost(model.each_us), ..model }
}

async fn live(setting: Setting<'_>, registry: Arc<Registry>) -> Result<Played, Failed> {
    let Setting { config, how, share, .. } = setting;
    let mut signals = Signals::take()?;
    let mut talk = Talk::new(setting.global.quiet);
    let network = setting.network.clone();
    let own = network.address(&format!("{HEAD_CLUSTER}-1"))?;
    let text = grid_text(config, own, network.table.as_deref());
    let grid_config = load::<GridConfig>(&Sources::of_text("the scenario's grid", &text))?.value;
    let program = grid::this_program()?;
    let authority = Authority::Ephemeral(Ca::ephemeral(grid_config.grid.as_str())?);
    // What each node is told beside its file: where it listens, and what slows it down.
    let mut told = BTreeMap::new();
    for place in &config.cluster {
        for number in 1..=place.nodes.get() {
            let node = NodeId::from(format!("{}-{number}", place.name));
            let (key, path) = setting
                .quotas
                .set(node.as_str(), share * place.speed, threads(config, place))
                .map_err(Failed::failure)?;
            let bind = SocketAddr::from((network.address(node.as_str())?, 0)).to_string();
            let quota = format!("SPRINGTIDE_WORK__{}", key.to_uppercase());
            told.insert(node, (bind, quota, path));
        }
    }
    let within = network.clone();
    let inner =
        LocalProvider::new().preparing(move |request: &NodeRequest, command: &mut Command| {
            if let Some((bind, quota, path)) = told.get(&request.node) {
                command.env("SPRINGTIDE_NET__BIND", bind).env(quota, path);
            }
            within.take_in(&request.node, command);
        });
    let processes = Rc::new(Processes {
        inner,
        pids: RefCell::default(),
        off: RefCell::default(),
        on: Notify::new(),
    });
    let plan = Plan {
        config: &grid_config,
        dir: &setting.dir,
        authority: &authority,
        program: &program,
        files: None,
        log_level: setting.global.log_level,
    };
    let head = grid::start_by(&plan, &(processes.clone() as Rc<dyn Provider>)).await?;
    talk.wait_for("starting nodes");
    let submitter = Submitter::new(&head.endpoint, registry.fingerprint(), Some(program.clone()));
    let world = Rc::new(Live {
        scheduler: submitter.scheduler().clone(),
        processes,
        quotas: setting.quotas.clone(),
        share,
        threads: config
            .cluster
            .iter()
            .map(|place| (place.name.to_string(), threads(config, place)))
            .collect(),
        network: network.clone(),
        job: RefCell::default(),
    });
    let play = async {
        let status = head.settled(|_, _| {}).await;
        grid::check_whole(&status)?;
        let stage = Stage::new(world.clone(), config);
        stage.keep_back().await;
        talk.say(&format!("{} nodes; the job begins ({})", status.nodes(), setting.version));
        let job = on_share(model(&config.app), share);
        let (now, system) = (Instant::now(), SystemTime::now());
        let start = system.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = start.saturating_sub(Duration::from_micros(EPOCH_US));
        let clock = |at: Instant| (start + at.saturating_duration_since(now)).as_secs_f64();
        // The process that holds the network lets its lines come and go by itself.
        let played = perform(&stage, &submitter, job, params(config, &how), clock).await;
        played.map_err(|error| Failed::new(Exit::Timeout, error))
    };
    let played = tokio::select! {
        biased;
        exit = signals.next() => Err(Failed::new(exit, format!("ended by {}", signal_word(exit)))),
        played = play => played,
    };
    talk.wait_for("ending the nodes");
    world.processes.let_go();
    tokio::select! {
        biased;
        _ = signals.next() => {}
        () = grid::stop(head, &setting.dir, "the run is over") => {}
    }
    talk.done();
    played
}

/// The processes of a live grid's nodes.
struct Processes {
    inner: LocalProvider,
    pids: RefCell<BTreeMap<NodeId, u32>>,
    /// Machines that are off, with the process that stood still when it was switched off.
    off: RefCell<BTreeMap<NodeId, Option<u32>>>,
    on: Notify,
}

impl Processes {
    fn signal(&self, pid: u32, how: fn(i32)) {
        if let Ok(pid) = i32::try_from(pid) {
            how(pid);
        }
    }

    fn kill(&self, node: &NodeId) {
        if let Some(pid) = self.pids.borrow().get(node) {
            self.signal(*pid, |pid| sys::end(pid, true));
        }
    }

    /// All that are off are on, so that they can be ended.
    fn let_go(&self) {
        let off: Vec<NodeId> = self.off.borrow().keys().cloned().collect();
        off.iter().for_each(|node| self.switch_on(node));
    }

    fn switch_on(&self, node: &NodeId) {
        if let Some(Some(pid)) = self.off.borrow_mut().remove(node) {
            self.signal(pid, |pid| sys::end(pid, true));
        }
        self.on.notify_waiters();
    }
}

impl Provider for Processes {
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        Box::pin(async move {
            while self.off.borrow().contains_key(&request.node) {
                self.on.notified().await;
            }
            let stub = self.inner.spawn(request)?;
            if let Some(pid) = stub.pid() {
                self.pids.borrow_mut().insert(request.node.clone(), pid);
            }
            Ok(Box::new(stub) as Box<dyn Stub>)
        })
    }

    fn starts_programs(&self) -> bool {
        self.inner.starts_programs()
    }
}

/// A live grid as a stage's world.
struct Live {
    scheduler: Remote<Scheduler>,
    processes: Rc<Processes>,
    quotas: Rc<Quotas>,
    share: f64,
    /// By cluster: of each of its nodes.
    threads: BTreeMap<String, u32>,
    network: Rc<Carrier>,
    job: RefCell<Known>,
}

/// What is known of who does what in the job.
#[derive(Default)]
struct Known {
    job: Option<JobId>,
    root: Option<NodeId>,
    /// As they were when the job began: who succeeds them is told to their cluster alone.
    clusters: BTreeSet<NodeId>,
}

impl Live {
    fn change(&self, changes: &[Change]) {
        if let Err(error) = self.network.network.change(changes) {
            tracing::error!("a link does not change: {}", error.message);
        }
    }
}

impl World for Live {
    fn scheduler(&self) -> Remote<Scheduler> {
        self.scheduler.clone()
    }

    fn hosting(&self, actor: &str) -> Vec<NodeId> {
        let known = self.job.borrow();
        match known.job {
            Some(job) if actor == coordinator_name(job) => known.root.iter().cloned().collect(),
            Some(job) if actor == cluster_coordinator_name(job) => {
                known.clusters.iter().cloned().collect()
            }
            _ => Vec::new(),
        }
    }

    fn set_speed(&self, node: &NodeId, speed: f64) {
        let threads = self.threads.get(cluster_of(node)).copied().unwrap_or(1);
        if let Err(error) = self.quotas.set(node.as_str(), self.share * speed, threads) {
            tracing::error!("the share of {node} does not change: {error}");
        }
    }

    fn set_line(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile) {
        self.change(&[Change::Line { from: from.clone(), to: to.clone(), profile }]);
    }

    fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile) {
        let stub = |up| Change::Stub { cluster: cluster.clone(), up, profile: profile.clone() };
        self.change(&[stub(true), stub(false)]);
    }

    fn cut(&self, a: &ClusterId, b: &ClusterId, cut: bool) {
        self.change(&[Change::Cut { a: a.clone(), b: b.clone(), cut }]);
    }

    fn kill(&self, node: &NodeId) {
        self.processes.kill(node);
    }

    /// Its process stands still: nobody sees it end.
    fn switch_off(&self, node: &NodeId) -> bool {
        let mut off = self.processes.off.borrow_mut();
        if off.contains_key(node) {
            return false;
        }
        let pid = self.processes.pids.borrow().get(node).copied();
        if let Some(pid) = pid {
            self.processes.signal(pid, sys::stop);
        }
        off.insert(node.clone(), pid);
        true
    }

    fn switch_on(&self, node: &NodeId) {
        self.processes.switch_on(node);
    }

    fn granted(&self, granted: &Granted) {
        let clusters = granted.view.cluster_coordinators.values().cloned().collect();
        let root = Some(granted.coordinator.node.clone());
        *self.job.borrow_mut() = Known { job: Some(granted.job), root, clusters };
    }

    fn happened(&self, record: &Record) {
        if let Event::ViewChanged { coordinator: Some(node), .. } = &record.event {
            self.job.borrow_mut().root = Some(node.clone());
        }
    }

    fn now(&self, _job: JobId) -> Option<Now> {
        None
    }
}

/// What carries a live grid's datagrams: a network that another process holds, and ends with this one.
struct Carrier {
    network: Network,
    by: Carries,
    /// By cluster, or by node; none where the nodes' own sockets carry them.
    spaces: BTreeMap<String, OwnedFd>,
    nodes: BTreeMap<String, Ipv4Addr>,
    /// The table that nodes' sockets obey.
    table: Option<PathBuf>,
}

/// What loopback takes by itself: clusters with a longer way between two of their nodes need a space for each node.
const INSIDE: Duration = Duration::from_micros(200);

impl Carrier {
    fn start(
        how: &str,
        config: &ScenarioConfig,
        scratch: &Path,
        seed: u64,
        lasts: Duration,
    ) -> Result<Self, Failed> {
        // What fits none is told at once.
        let text = topology(config)?;
        let file = scratch.join("topology.toml");
        write(&file, &text)?;
        let near = config.cluster.iter().all(|place| place.delay.get() <= INSIDE);
        let per = if near { PortOf::Cluster } else { PortOf::Node };
        let start = |by| {
            let name = format!("run-{}", std::process::id());
            let how = How { network: by, per, seed, lasts, partial: false };
            let network = Network::start_tied(&file, &name, &how)?;
            let (spaces, status) = (network.spaces()?, network.status()?);
            for note in &status.notes {
                tracing::warn!("{note}");
            }
            let nodes = status.nodes.into_iter().collect();
            Ok(Self { network, by, spaces, nodes, table: status.table })
        };
        match how {
            "router" => start(Carries::Router),
            "kernel" => start(Carries::Kernel),
            "sockets" => start(Carries::Sockets),
            _ => start(Carries::Router).or_else(|failed: Failed| {
                tracing::warn!("the nodes' own sockets are the network: {}", failed.message);
                start(Carries::Sockets)
            }),
        }
    }

    fn word(&self) -> &'static str {
        self.by.word()
    }

    /// The space that a node is in.
    fn space(&self, node: &str) -> Option<&OwnedFd> {
        self.spaces.get(node).or_else(|| self.spaces.get(cluster_of(&NodeId::from(node))))
    }

    /// Takes this process, which is the head and has no other thread yet, to where the head is.
    fn enter(&self) -> Result<(), Failed> {
        if self.table.is_some() {
            return Ok(());
        }
        if let Some(users) = self.network.users()? {
            sys::enter(users.as_fd(), Space::User).map_err(Failed::failure)?;
        }
        let own = self.space(&format!("{HEAD_CLUSTER}-1"));
        let own = own.ok_or_else(|| Failed::failure("the network has no place for the head"))?;
        sys::enter(own.as_fd(), Space::Net).map_err(Failed::failure)
    }

    /// Lets a node's process begin where its cluster is, and end with this one: it may stand still, and see nothing.
    fn take_in(&self, node: &NodeId, command: &mut Command) {
        // A node that is in no space cannot bind to its address: its site tells.
        let space = self.space(node.as_str()).and_then(|space| space.try_clone().ok());
        sys::run_in(command, space.into_iter().map(|space| (space, Space::Net)).collect());
    }

    fn address(&self, node: &str) -> Result<Ipv4Addr, Failed> {
        let found = self.nodes.get(node).copied();
        found.ok_or_else(|| Failed::failure(format!("the network has no place for {node}")))
    }

    fn late_us(&self) -> Option<[f64; 3]> {
        self.network.status().ok()?.late_us
    }
}
