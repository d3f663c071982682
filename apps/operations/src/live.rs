//! `wan run`: runs a scenario with live node processes over an emulated network, on slowed
//! processors.
//!
//! Scenario files and driver are those of simulated time. This module knows neither the emulation
//! of networks nor the quotas of processors.

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
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::job::{cluster_coordinator_name, coordinator_name};
use springtide_actors::policy::Mode;
use springtide_actors::provider::{
    LocalFuture, LocalProvider, NodeRequest, Provider, ProviderError, Stub,
};
use springtide_actors::scheduler::{JobGrant, Scheduler};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::options::{keyword_parser, time};
use springtide_cli::outdir::{Artefacts, OutDir, manifest, write_file};
use springtide_cli::talk::Talk;
use springtide_experiments::live_report::{LiveReport, REPORT};
use springtide_experiments::scenario;
use springtide_runtime::config::{
    self, GridConfig, ScenarioConfig, Sources, Time, TopologyConfig, load,
};
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::net::tls::Ca;
use springtide_runtime::remote::Remote;
use springtide_runtime::work::Registry;
use springtide_simulator::GridState;
use springtide_simulator::scenario::{
    EPOCH_US, SimulationParams, SimulationResult, model, params, run as run_scenario, scaled,
    simulate,
};
use springtide_simulator::scenario_driver::{ControlledGrid, ScenarioDriver, cluster_of};
use springtide_simulator::submitter::Submitter;
use springtide_wan::awake::{self, BusyThreads};
use springtide_wan::place::Backend;
use springtide_wan::quota::Quotas;
use springtide_wan::router::{PortKind, RouterChange};
use springtide_wan::sys::{self, Namespace};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::grid;
use crate::grid_files;
use crate::grid_files::clear;
use crate::grid_files::{Authority, LaunchPlan};
use crate::network::{NetworkSettings, RunningNetwork};
use crate::options::GlobalArgs;
use crate::process::on_arbiter;
use crate::scratch::Scratch;
use crate::signals::{Signals, word as signal_word};

/// Time beyond the run's own for the start and end of the grid: forty nodes on two cores take some
/// seconds.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of a run's log in bytes.
const LOG_MAX: u64 = 1 << 30;
/// Utilisation of the host above which the results measure the host rather than the program.
const BUSY_MAX: f64 = 0.9;
/// Fraction of stolen processor time from which on it is reported. Packets and threads are late by
/// as much.
const STOLEN_REPORTED: f64 = 0.01;

/// Options of a live scenario.
#[derive(Args, Clone, Debug)]
pub struct LiveArgs {
    /// Scenario file, or the name of a built-in scenario (`sim list`)
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenario: PathBuf,
    /// Adaptation of the job's set of nodes: static, monitor or adaptive [default: the file's]
    #[arg(
        long,
        value_name = "HOW",
        value_parser = keyword_parser::<config::Mode>(&["static", "monitor", "adaptive"]),
        hide_possible_values = true,
    )]
    pub mode: Option<config::Mode>,
    /// Divide work, traffic and event times by N; link delays stay as they are
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = scale)]
    pub time_scale: f64,
    /// Fraction of a core that a node of speed 1 gets
    #[arg(long, value_name = "SHARE", default_value_t = 0.04, value_parser = share)]
    pub share: f64,
    /// Limit of processors: control groups, pauses of compute threads (duty), or the first that
    /// this host supports (auto)
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        value_parser = ["auto", "groups", "duty"],
        hide_possible_values = true,
    )]
    pub quota: String,
    /// Emulation of the network: a router between network namespaces, the kernel's queues between
    /// them, the nodes' own sockets, or a router with sockets as fallback (auto)
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "auto",
        value_parser = ["auto", "router", "kernel", "sockets"],
        hide_possible_values = true,
    )]
    pub network: String,
    /// Keep processors awake, which costs power: always, never, or on a virtual machine (auto),
    /// whose host would otherwise take them away and delay packets and threads
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        value_parser = ["auto", "always", "never"],
        hide_possible_values = true,
    )]
    pub awake: String,
    /// Interval between decisions on the set of nodes, in the file's time [default: the paper's
    /// period, or the file's]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub period: Option<Duration>,
    /// Random seed of the run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Do not also simulate the scenario
    #[arg(long)]
    pub no_prediction: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Directory for the files of the run, for `why`, `replay` and `wan report`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}

fn positive(text: &str, max: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= max);
    number.ok_or_else(|| format!("must be above 0 and at most {max}, found {text:?}"))
}

fn scale(text: &str) -> Result<f64, String> {
    // Scaled times must stay within the range of times.
    let scale = positive(text, 1e6)?;
    if scale < 1e-3 { Err("must be at least 0.001".to_owned()) } else { Ok(scale) }
}

fn share(text: &str) -> Result<f64, String> {
    positive(text, 1.0)
}

/// Runs a live scenario.
///
/// # Errors
/// The scenario is wrong, the network or the processors are not available, or the job fails. All
/// processes and namespaces are removed.
pub fn run(
    args: &LiveArgs,
    registry: Arc<Registry>,
    version: &str,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let (file, text) = scenario::read(&args.scenario)?;
    let mode = args.mode.map_or_else(|| file.adaptation.mode.into(), Mode::from);
    let config = scaled(&file, args.time_scale);
    let period = args.period.unwrap_or_else(|| file.paper.period.unwrap_or(file.job.period).get());
    let play_params =
        SimulationParams { mode, period: Some(period.div_f64(args.time_scale)), seed: args.seed };
    scenario::check(&config, &play_params)?;
    if let Some(place) = config.cluster.iter().find(|place| place.unequal_threads.is_some()) {
        return Err(Failed::usage(format!(
            "cluster {} has `unequal_threads`, which only `sim run` can give a cluster: use a \
            cluster for each number of threads",
            place.name
        )));
    }
    let scratch = Scratch::make()?;
    let lasts = config.job.limit.get().min(Duration::from_secs(24 * 3600)) + STARTUP_TIMEOUT;
    // First the parts that this host may not support, while there is nothing to remove.
    let quotas = Rc::new(quotas(&args.quota, scratch.path())?);
    let network = LiveNetwork::start(&args.network, &config, scratch.path(), args.seed, lasts)?;
    network.network.tie(quotas.groups(), scratch.path().to_owned())?;
    quotas.move_process(std::process::id()).map_err(Failed::failure)?;
    network.enter()?;
    let network = Rc::new(network);
    let keep_awake = || {
        let aside = quotas.idle_group();
        BusyThreads::start(move || aside.step())
    };
    let awake = match args.awake.as_str() {
        "always" => Some(keep_awake().map_err(|error| {
            Failed::failure(format!("cannot keep processors awake: {error}; use `--awake never`"))
        })?),
        // An improvement that the run can do without.
        "auto" if awake::is_virtual() => keep_awake().ok(),
        _ => None,
    };
    let before = read_cpu_ticks();
    let setting = LiveSettings {
        config: &config,
        play_params,
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
            manifest.mode = Some(mode.word().to_owned());
            Some(OutDir::create(dir, &manifest, &text, LOG_MAX)?)
        }
        None => None,
    };
    let kind = setting.quotas.kind();
    let played = on_arbiter(live(setting, registry));
    if let Some(dir) = &args.out {
        clear(dir);
    }
    let played = played?;
    let after = read_cpu_ticks();
    let awake = awake.and_then(|awake| awake.end().ok());
    let (busy, stolen) = after.since(&before, awake.unwrap_or_default());
    let late_us = network.late_us();
    let predicted = if args.no_prediction {
        None
    } else {
        simulate(&config, &play_params).ok().map(|played| played.wall.as_secs_f64())
    };
    let outcome = played.ended.outcome.as_ref();
    let entry = |(at, what): &(Duration, String)| (at.as_secs_f64(), what.clone());
    let report = LiveReport {
        schema: springtide_cli::format::SCHEMA,
        scenario: config.name.to_string(),
        about: config.about.clone(),
        mode: mode.word().to_owned(),
        seed: args.seed,
        time_scale: args.time_scale,
        share: args.share,
        quota: kind.word().to_owned(),
        network: network.word().to_owned(),
        period_s: play_params.period.unwrap_or_default().as_secs_f64(),
        wall_s: played.wall.as_secs_f64(),
        iterations: played.iterations.clone(),
        nodes_over_time: played.nodes.clone(),
        events: played.events.iter().map(entry).collect(),
        decisions: played.actions().iter().map(entry).collect(),
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
        artefacts.add(out.finish(
            &springtide_cli::run_end::RunEnd::of(model(&config.app).name(), &played.ended).json(),
        ));
    }
    artefacts.print(args.json, json, || report_text(&report, &played))?;
    match &played.ended.outcome {
        Ok(outcome) if outcome.checksum == played.answer => Ok(()),
        Ok(outcome) => Err(Failed::failure(format!(
            "the answer is {:016x}, not {:016x}: this is a bug, please report it with the scenario \
            and --seed {}",
            outcome.checksum, played.answer, args.seed
        ))),
        Err(error) => Err(Failed::failure(error)),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failed> {
    write_file(path, text.as_bytes())
}

fn quotas(kind: &str, scratch: &Path) -> Result<Quotas, Failed> {
    let duty = || Quotas::by_share_files(scratch).map_err(Failed::failure);
    match kind {
        "duty" => duty(),
        "groups" => Quotas::by_groups().map_err(|error| {
            Failed::usage(format!(
                "control groups cannot limit processors: {error}; use `--quota \
                duty`"
            ))
        }),
        _ => Quotas::by_groups().or_else(|_| duty()),
    }
}

fn report_text(report: &LiveReport, played: &SimulationResult) -> String {
    let mut text = format!("scenario {}: {}\n", report.scenario, report.about);
    let mut lines: Vec<(Duration, String)> = played.said.clone();
    lines.extend(played.events.iter().map(|(at, what)| (*at, format!("--- {what}"))));
    lines.extend(played.actions().iter().map(|(at, what)| (*at, format!("=== {what}"))));
    lines.sort_by_key(|(at, _)| *at);
    for (at, what) in &lines {
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
        Some([half, p99, _]) => format!(
            "namespaces and a router; packets were late by {half:.0} us (half), {p99:.0} us (99 of \
            100)"
        ),
        None if report.network == Backend::Kernel.word() => {
            "namespaces and the kernel's queues".to_owned()
        }
        None => "the nodes' own sockets".to_owned(),
    };
    let stolen = match report.stolen {
        share if share >= STOLEN_REPORTED => format!(", and its host took {:.0} %", 100.0 * share),
        _ => String::new(),
    };
    let awake = if report.awake { " and kept awake" } else { "" };
    text += &format!(
        "iterations  {} s\nnodes       {}\n\
        processors  {:.1} % of a core by {}; the host was {:.0} % busy{awake}{stolen}\n\
        network     {late}\nruntime     {:.1} s ({}, seed {}, shortened by {}){predicted}\n",
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
    if report.busy > BUSY_MAX {
        text += "the host was nearly saturated: use a smaller --share, or fewer nodes\n";
    }
    text
}

/// Ticks a second in /proc/stat; 100 on every host.
const TICKS: f64 = 100.0;

/// Processor time of the host since its start, in ticks.
struct CpuTicks {
    busy: u64,
    stolen: u64,
    all: u64,
}

fn read_cpu_ticks() -> CpuTicks {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    let stolen = ticks.get(7).copied().unwrap_or_default();
    CpuTicks { busy: all.saturating_sub(idle), stolen, all }
}

impl CpuTicks {
    /// The fractions of busy and stolen time. `awake` is the time of the threads that only kept
    /// processors awake.
    fn since(&self, before: &CpuTicks, awake: Duration) -> (f64, f64) {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        // Linux may report less idle time than before.
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        let awake = awake.as_secs_f64() * TICKS / all;
        ((share(self.busy, before.busy) - awake).max(0.0), share(self.stolen, before.stolen))
    }
}

/// The scenario's network as a topology file, with a place for the head.
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
    // An error of the topology is reported before anything starts.
    load::<TopologyConfig>(&Sources::of_text("the scenario's network", &text))?;
    Ok(text)
}

/// The number of compute threads of a cluster's nodes.
fn threads(config: &ScenarioConfig, place: &config::PlaceSection) -> u32 {
    place.threads.unwrap_or(config.job.threads).get()
}

/// The grid's config. It contains the links of the scenario.
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

/// The parts of a live run.
struct LiveSettings<'a> {
    config: &'a ScenarioConfig,
    play_params: SimulationParams,
    share: f64,
    quotas: Rc<Quotas>,
    network: Rc<LiveNetwork>,
    dir: PathBuf,
    global: &'a GlobalArgs,
    version: &'a str,
}

async fn live(
    setting: LiveSettings<'_>,
    registry: Arc<Registry>,
) -> Result<SimulationResult, Failed> {
    let LiveSettings { config, play_params, share, .. } = setting;
    let mut signals = Signals::take()?;
    let mut talk = Talk::new(setting.global.quiet);
    let network = setting.network.clone();
    let own = network.address(&format!("{HEAD_CLUSTER}-1"))?;
    let text = grid_text(config, own, network.table.as_deref());
    let grid_config = load::<GridConfig>(&Sources::of_text("the scenario's grid", &text))?.value;
    let program = grid_files::this_program()?;
    let authority = Authority::Ephemeral(Ca::ephemeral(grid_config.grid.as_str())?);
    // Additions to each node's config: its address and its limit of processors.
    let mut node_settings = BTreeMap::new();
    for place in &config.cluster {
        for number in 1..=place.nodes.get() {
            let node = NodeId::from(format!("{}-{number}", place.name));
            let (key, path) = setting
                .quotas
                .set(node.as_str(), share * place.speed, threads(config, place))
                .map_err(Failed::failure)?;
            let bind = SocketAddr::from((network.address(node.as_str())?, 0)).to_string();
            let quota = format!("SPRINGTIDE_WORK__{}", key.to_uppercase());
            node_settings.insert(node, (bind, quota, path));
        }
    }
    let within = network.clone();
    let inner =
        LocalProvider::new().preparing(move |request: &NodeRequest, command: &mut Command| {
            if let Some((bind, quota, path)) = node_settings.get(&request.node) {
                command.env("SPRINGTIDE_NET__BIND", bind).env(quota, path);
            }
            within.enter_namespace(&request.node, command);
        });
    let processes = Rc::new(Processes {
        inner,
        pids: RefCell::default(),
        off: RefCell::default(),
        on: Notify::new(),
    });
    let plan = LaunchPlan {
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
    let world = Rc::new(LiveWorld {
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
        let status = head.wait_for_nodes(|_, _| {}).await;
        grid::check_whole(&status)?;
        let driver = ScenarioDriver::new(world.clone(), config);
        driver.claim_late_nodes().await;
        talk.say(&format!("{} nodes; the job starts ({})", status.nodes(), setting.version));
        // Declared work costs the fraction of a processor that a node of speed 1 has.
        let job = model(&config.app).scaled(share);
        let (now, system) = (Instant::now(), SystemTime::now());
        let start = system.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = start.saturating_sub(Duration::from_micros(EPOCH_US));
        let clock = |at: Instant| (start + at.saturating_duration_since(now)).as_secs_f64();
        // The process that holds the network changes its links over time.
        let played =
            run_scenario(&driver, &submitter, job, params(config, &play_params), clock).await;
        played.map_err(|error| Failed::new(Exit::Timeout, error))
    };
    let played = tokio::select! {
        biased;
        exit = signals.next() => Err(Failed::new(exit, format!("ended by {}", signal_word(exit)))),
        played = play => played,
    };
    talk.wait_for("ending the nodes");
    world.processes.resume_all();
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
    /// Hosts that are switched off, with the process that was stopped.
    off: RefCell<BTreeMap<NodeId, Option<u32>>>,
    on: Notify,
}

impl Processes {
    fn signal(&self, pid: u32, action: fn(i32)) {
        if let Ok(pid) = i32::try_from(pid) {
            action(pid);
        }
    }

    fn kill(&self, node: &NodeId) {
        if let Some(pid) = self.pids.borrow().get(node) {
            self.signal(*pid, |pid| sys::end(pid, true));
        }
    }

    /// Resumes all stopped processes, so that they can end.
    fn resume_all(&self) {
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

/// A live grid as the driver's world.
struct LiveWorld {
    scheduler: Remote<Scheduler>,
    processes: Rc<Processes>,
    quotas: Rc<Quotas>,
    share: f64,
    /// The number of threads of each node, by cluster.
    threads: BTreeMap<String, u32>,
    network: Rc<LiveNetwork>,
    job: RefCell<JobRoles>,
}

/// The roles of nodes in the job.
#[derive(Default)]
struct JobRoles {
    job: Option<JobId>,
    root: Option<NodeId>,
    /// The sub-coordinators when the job began. Only their own clusters know later ones.
    clusters: BTreeSet<NodeId>,
}

impl LiveWorld {
    fn change(&self, changes: &[RouterChange]) {
        if let Err(error) = self.network.network.change(changes) {
            tracing::error!("a link cannot be changed: {}", error.message);
        }
    }
}

impl ControlledGrid for LiveWorld {
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
            tracing::error!("the processor limit of {node} cannot be changed: {error}");
        }
    }

    fn set_link(&self, from: &ClusterId, to: &ClusterId, profile: LinkProfile) {
        self.change(&[RouterChange::Line { from: from.clone(), to: to.clone(), profile }]);
    }

    fn set_uplink(&self, cluster: &ClusterId, profile: LinkProfile) {
        let stub =
            |up| RouterChange::Stub { cluster: cluster.clone(), up, profile: profile.clone() };
        self.change(&[stub(true), stub(false)]);
    }

    fn cut(&self, a: &ClusterId, b: &ClusterId, cut: bool) {
        self.change(&[RouterChange::Cut { a: a.clone(), b: b.clone(), cut }]);
    }

    fn kill(&self, node: &NodeId) {
        self.processes.kill(node);
    }

    /// Stops the node's process, so that no other process sees it end.
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

    fn on_grant(&self, granted: &JobGrant) {
        let clusters = granted.view.cluster_coordinators.values().cloned().collect();
        let root = Some(granted.coordinator.node.clone());
        *self.job.borrow_mut() = JobRoles { job: Some(granted.job), root, clusters };
    }

    fn on_record(&self, record: &Record) {
        if let Event::ViewChanged { coordinator: Some(node), .. } = &record.event {
            self.job.borrow_mut().root = Some(node.clone());
        }
    }

    fn state(&self, _job: JobId) -> Option<GridState> {
        None
    }
}

/// The network of a live grid. Another process holds it, and ends with this one.
struct LiveNetwork {
    network: RunningNetwork,
    by: Backend,
    /// Namespaces by cluster or by node; none if the nodes' own sockets emulate the network.
    spaces: BTreeMap<String, OwnedFd>,
    nodes: BTreeMap<String, Ipv4Addr>,
    /// The table that nodes' sockets obey.
    table: Option<PathBuf>,
}

/// Delay that loopback has by itself. Clusters with a longer internal delay need a namespace for
/// each node.
const LOOPBACK_DELAY: Duration = Duration::from_micros(200);

impl LiveNetwork {
    fn start(
        kind: &str,
        config: &ScenarioConfig,
        scratch: &Path,
        seed: u64,
        lasts: Duration,
    ) -> Result<Self, Failed> {
        // A wrong topology is reported at once.
        let text = topology(config)?;
        let file = scratch.join("topology.toml");
        write(&file, &text)?;
        let near = config.cluster.iter().all(|place| place.delay.get() <= LOOPBACK_DELAY);
        let per = if near { PortKind::Cluster } else { PortKind::Node };
        let start = |by| {
            let name = format!("run-{}", std::process::id());
            let settings = NetworkSettings { network: by, per, seed, lasts, partial: false };
            let network = RunningNetwork::start_tied(&file, &name, &settings)?;
            let (spaces, status) = (network.spaces()?, network.status()?);
            for note in &status.notes {
                tracing::warn!("{note}");
            }
            let nodes = status.nodes.into_iter().collect();
            Ok(Self { network, by, spaces, nodes, table: status.table })
        };
        match kind {
            "router" => start(Backend::Router),
            "kernel" => start(Backend::Kernel),
            "sockets" => start(Backend::Sockets),
            _ => start(Backend::Router).or_else(|failed: Failed| {
                tracing::warn!("the nodes' own sockets emulate the network: {}", failed.message);
                start(Backend::Sockets)
            }),
        }
    }

    fn word(&self) -> &'static str {
        self.by.word()
    }

    /// The namespace of a node.
    fn space(&self, node: &str) -> Option<&OwnedFd> {
        self.spaces.get(node).or_else(|| self.spaces.get(cluster_of(&NodeId::from(node))))
    }

    /// Moves this process, which is the head and has no other thread yet, into the head's
    /// namespace.
    fn enter(&self) -> Result<(), Failed> {
        if self.table.is_some() {
            return Ok(());
        }
        if let Some(users) = self.network.users()? {
            sys::enter(users.as_fd(), Namespace::User).map_err(Failed::failure)?;
        }
        let own = self.space(&format!("{HEAD_CLUSTER}-1"));
        let own = own.ok_or_else(|| Failed::failure("the network has no place for the head"))?;
        sys::enter(own.as_fd(), Namespace::Net).map_err(Failed::failure)
    }

    /// Starts a node's process in the namespace of its cluster, and lets it end with this process:
    /// a stopped node cannot notice its parent's end.
    fn enter_namespace(&self, node: &NodeId, command: &mut Command) {
        // A node without a namespace cannot bind its address, which its site reports.
        let space = self.space(node.as_str()).and_then(|space| space.try_clone().ok());
        sys::run_in_namespaces(
            command,
            space.into_iter().map(|space| (space, Namespace::Net)).collect(),
            None,
        );
    }

    fn address(&self, node: &str) -> Result<Ipv4Addr, Failed> {
        let found = self.nodes.get(node).copied();
        found.ok_or_else(|| Failed::failure(format!("the network has no place for {node}")))
    }

    fn late_us(&self) -> Option<[f64; 3]> {
        self.network.status().ok()?.late_us
    }
}
