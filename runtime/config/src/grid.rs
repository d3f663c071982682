//! The config of a grid: its clusters and links, and the parameters of its jobs.
// Doc lines of keys are also the template's comments, where `[work]` is a section's name, no link.
#![allow(rustdoc::broken_intra_doc_links)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::alias::check_aliases;
use super::batch::{BatchSection, check_batch};
use super::problem::nearest;
use super::schema::{
    Fallback::{Absent, Elements, Is, Optional, Required, Section},
    section,
};
use super::ssh::{SshHostsError, SshSection};
use super::ssh_directives::refused_option;
use super::units::{
    ArgumentList, BoundedInt, ByteRate, Congestion, Format, HostPort, HostPorts, Level, Mode, Name,
    Pair, Ports, Provider, SitePlace, Size, Steal, Time,
};
use super::workload::SchedulingSection;
use super::{CONFIG_VERSION, Checker, Config};

/// A longer round trip is a mistake of units.
const RTT_MAX: Duration = Duration::from_secs(10);

section! {
    /// A grid: clusters of nodes, the links between them, and the parameters of its jobs.
    GridConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Name of the grid, which its certificates carry. Like every name here it has 1 to 32 of
        /// a-z, 0-9 and dash.
        grid: Name = Is("\"local\"");
        /// The process that hosts the scheduler and, for local clusters, the sites.
        head: HeadSection = Section;
        /// A second head, which takes over when the first one is lost.
        standby: Option<StandbySection> = Optional;
        /// A cluster: nodes that share a local network. One table each.
        cluster: Vec<ClusterSection> = Elements(&[
            &[("name", "\"ams\""), ("nodes", "2")],
            &[("name", "\"del\""), ("nodes", "2"), ("threads", "1")],
        ]);
        /// Network of every process.
        net: NetSection = Section;
        /// Expected properties of the links between two clusters. Pairs without an entry have
        /// defaults.
        link: Vec<LinkSection> = Elements(&[&[]]);
        /// Compute threads.
        work: WorkSection = Section;
        /// Measurements.
        stats: StatsSection = Section;
        /// Adaptation of the set of a job's nodes.
        adaptation: AdaptationSection = Section;
        /// Sharing of the nodes among several jobs.
        scheduling: SchedulingSection = Section;
        /// What may be reserved, and at which price.
        slots: SlotsSection = Section;
        /// Input files of jobs.
        files: FilesSection = Section;
        /// Programs that users bring.
        programs: ProgramsSection = Section;
        /// Certificates of the grid.
        tls: TlsSection = Section;
        /// Endpoint for nodes that join by themselves.
        join: JoinSection = Section;
        /// Log lines on stderr and in the nodes' files.
        log: LogSection = Section;
        /// Page that shows the state of the grid.
        dashboard: DashboardSection = Section;
        /// Runs of jobs.
        run: RunSection = Section;
        /// Retention of ended jobs and logs in a grid that persists. The limits act while it runs.
        retention: RetentionSection = Section;
    }

    /// The head's own addresses.
    HeadSection {
        /// Address at which the head listens. Port 0 takes a free one.
        bind: SocketAddr = Is("\"127.0.0.1:0\"");
        /// Address at which nodes reach the head, if it is not `bind`; or a list of addresses, of
        /// which a node uses the first that answers.
        advertise: Option<HostPorts> = Absent("\"head.example.org:47000\"");
    }

    /// A second head on another machine, and a witness. `head.advertise` has the addresses of both
    /// heads, in the same order.
    StandbySection {
        /// Addresses at which the first and the second head reach each other.
        heads: HostPorts = Required("[\"head-a.example.org:47010\", \"head-b.example.org:47010\"]");
        /// Cluster whose site decides between the heads. It has a site of its own, at a fixed
        /// address; better not at the place of a head.
        witness: Name = Required("\"ams\"");
        /// Address at which this machine's head listens for the other one; default: the one in
        /// `heads`.
        bind: Option<SocketAddr> = Absent("\"0.0.0.0:47010\"");
    }

    /// A cluster of the grid.
    ClusterSection {
        /// Name of the cluster; its nodes are called NAME-1, NAME-2 and so on.
        name: Name = Required("\"ams\"");
        /// Number of nodes; with provider "slurm", "batch" or "join", the maximum at a time.
        nodes: BoundedInt<1, 100_000> = Is("1");
        /// Compute threads of each node; default: those of [work].
        threads: Option<BoundedInt<1, 4096>> = Absent("1");
        /// Processors that growth leaves to local users; default: those of [scheduling].
        reserve: Option<BoundedInt<0, 100_000>> = Absent("1");
        /// Processors in use above which no job grows there; default: only the limit of
        /// [scheduling].
        cap: Option<BoundedInt<1, 100_000>> = Absent("2");
        /// How nodes are started: "local": as processes on the head's host; "slurm": by Slurm,
        /// while jobs need them; "batch": by another batch system, likewise; "ssh": on other hosts;
        /// "join": they join by themselves, with a token (see [join]).
        provider: Provider = Is("\"local\"");
        /// Whether nodes are started while submitted jobs need them, as large as jobs and hosts
        /// permit, instead of `nodes` nodes of `threads` threads each. With provider "ssh", the
        /// numbers of `ssh.hosts` are processors then.
        on_demand: bool = Is("false");
        /// Number of hosts with nodes on demand; with provider "local", parts of this host.
        hosts: BoundedInt<1, 100_000> = Is("1");
        /// Processors of each host that nodes on demand may use; default with provider "local":
        /// those of this host.
        processors: Option<BoundedInt<1, 4096>> = Absent("16");
        /// Memory of each host that nodes on demand may use; default: no limit.
        memory: Option<Size> = Absent("\"64GiB\"");
        /// Devices of each host, by kind, that nodes on demand may use.
        devices: BTreeMap<String, String> = Absent("{ gpu = \"2\" }");
        /// Process of the cluster's site: "head" (the head's) or "own": a process on a host of the
        /// cluster, started there with `springtide site run`. `up` writes its files.
        site: SitePlace = Is("\"head\"");
        /// Address at which a separate site listens; default: that of nodes.
        site_bind: Option<SocketAddr> = Absent("\"192.0.2.20:47000\"");
        /// Address at which nodes, the head and other sites reach it, if it is not `site_bind`.
        site_advertise: Option<SocketAddr> = Absent("\"192.0.2.20:47000\"");
        /// Use of a Slurm cluster.
        slurm: Option<SlurmSection> = Optional;
        /// Use of another batch system.
        batch: Option<BatchSection> = Optional;
        /// Use of hosts by ssh.
        ssh: Option<SshSection> = Optional;
        /// Program of the nodes; default: the running one, which provider "ssh" copies to the
        /// hosts.
        program: Option<PathBuf> = Absent("\"/usr/local/bin/springtide\"");
        /// Environment of the nodes, in addition to that of the head.
        env: BTreeMap<String, String> = Absent("{ RUST_BACKTRACE = \"1\" }");
        /// Directory of jobs' input files, shared by all hosts of the cluster. Without it no files
        /// are copied there.
        files: Option<PathBuf> = Absent("\"/data/springtide\"");
        /// Prices and limits of reservations of this cluster that differ from [slots].
        slots: Option<ClusterSlotsSection> = Optional;
    }

    /// What may be reserved, and its prices in units of your own. A slot is a number of processors
    /// of a cluster for an interval.
    SlotsSection {
        /// Whether slots are offered. Nodes that join by themselves offer none, for they promise no
        /// processors. Nor do batch systems, unless a cluster's own table says so.
        advertise: bool = Is("true");
        /// Price of a processor per second, for an immediate start.
        rate: f64 = Is("1.0");
        /// Additional price of each slot.
        fixed: f64 = Is("0.0");
        /// Discount on the rate for each day until the slot's start, as a share.
        discount_a_day: f64 = Is("0.0");
        /// Maximum discount.
        discount_max: f64 = Is("0.5"), alias "discount_most";
        /// Additional price of a reserved processor-second that is not used, as a share of the
        /// rate.
        unused_surcharge: f64 = Is("0.0"), alias "loose";
        /// Maximum time until the start of a slot; default: no limit.
        ahead_max: Option<Time> = Absent("\"168h\""), alias "most_ahead";
        /// Maximum share of a cluster's processors that may be reserved at a time.
        share_max: f64 = Is("1.0"), alias "most_share";
        /// Interval at which `up` writes the offered slots to slots.json in its log directory;
        /// `slots list` asks at any time.
        advertise_interval: Time = Is("\"30s\""), alias "advertise_every";
        /// Time limit for the commit of a prepared reservation.
        commit_timeout: Time = Is("\"30s\""), alias "commit_within";
        /// Time limit for the confirmation of a committed reservation.
        confirm_timeout: Time = Is("\"60s\""), alias "confirm_within";
    }

    /// Reservations of one cluster and their prices; defaults as in [slots].
    ClusterSlotsSection {
        /// Whether slots are offered. `true` for a batch system means that it gives the cluster's
        /// processors at once, for instance by its own reservation.
        advertise: Option<bool> = Absent("false");
        /// Price of a processor per second.
        rate: Option<f64> = Absent("2.0");
        /// Additional price of each slot.
        fixed: Option<f64> = Absent("10.0");
        /// Discount on the rate for each day until the start.
        discount_a_day: Option<f64> = Absent("0.1");
        /// Maximum discount.
        discount_max: Option<f64> = Absent("0.5"), alias "discount_most";
        /// Additional price of unused processor-seconds.
        unused_surcharge: Option<f64> = Absent("0.25"), alias "loose";
        /// Maximum time until the start.
        ahead_max: Option<Time> = Absent("\"24h\""), alias "most_ahead";
        /// Maximum share of its processors that may be reserved at a time.
        share_max: Option<f64> = Absent("0.5"), alias "most_share";
    }

    /// Input files of jobs, which are copied between clusters before a job starts.
    FilesSection {
        /// Maximum size of a file.
        size_max: Size = Is("\"16GiB\""), alias "largest";
        /// Maximum number of simultaneous transfers into a cluster.
        transfers_max: BoundedInt<1, 64> = Is("4"), alias "at_once";
        /// Interval at which a cluster's directory is searched for new and removed files.
        poll: Time = Is("\"5s\"");
    }

    /// Programs that users bring. A site whose nodes run another program receives the submitted
    /// one.
    ProgramsSection {
        /// Whether jobs may bring programs. Otherwise only those that are installed run.
        foreign: bool = Is("true");
        /// Maximum size of a program.
        size_max: Size = Is("\"1GiB\"");
        /// Maximum size of all programs that the head or a site keeps. Those that no job or node
        /// uses make room for others, the least recently used one first.
        cache_max: Size = Is("\"8GiB\"");
        /// Maximum number of programs that the head or a site receives at a time.
        transfers_max: BoundedInt<1, 64> = Is("2");
    }

    /// A Slurm cluster.
    ///
    /// Each node is a batch job of one task. Its config, log and program must have the same paths
    /// on its hosts as on the head.
    SlurmSection {
        /// Path of the cluster's slurm.conf, if the commands do not find it.
        conf: Option<PathBuf> = Absent("\"/etc/slurm/slurm.conf\"");
        /// Directory of sbatch, squeue, sinfo and scancel; default: the search path.
        commands: Option<PathBuf> = Absent("\"/opt/slurm/bin\"");
        /// Name of the cluster in Slurm, if it is not that of the commands.
        clusters: Option<String> = Absent("\"das5\"");
        /// Partition; default: that of the cluster.
        partition: Option<String> = Absent("\"batch\"");
        /// Account to charge.
        account: Option<String> = Absent("\"physics\"");
        /// Quality of service.
        qos: Option<String> = Absent("\"normal\"");
        /// Generic resources of a node.
        gres: Option<String> = Absent("\"gpu:1\"");
        /// Features that a node's machine must have.
        constraint: Option<String> = Absent("\"haswell\"");
        /// Reservation in which nodes run.
        reservation: Option<String> = Absent("\"course\"");
        /// Maximum time of a node; default: that of the partition.
        time: Option<Time> = Absent("\"8h\"");
        /// Memory of a node; default: that of the cluster.
        memory: Option<Size> = Absent("\"2GiB\"");
        /// Memory of each processor of a node, instead of `memory`.
        mem_per_cpu: Option<Size> = Absent("\"512MiB\"");
        /// Further arguments of sbatch.
        extra: Option<ArgumentList> = Absent("[\"--exclusive\"]");
        /// Shell commands before the node's program. If one fails, the batch job ends.
        prologue: Option<ArgumentList> = Absent("[\". /etc/profile.d/modules.sh\", \
            \"module load cuda\"]");
        /// Time before its end at which a node is replaced; longer if the last nodes waited for
        /// over half of it in the queue.
        leave_ahead: Time = Is("\"60s\"");
        /// Interval at which the cluster is asked for free processors and the states of nodes.
        poll: Time = Is("\"2s\"");
        /// Time limit of a command.
        answer_timeout: Time = Is("\"10s\""), alias "answer_within";
        /// Time after which a running batch job that all answers lack counts as ended.
        missing_timeout: Time = Is("\"60s\"");
        /// Time for which an idle node is kept.
        keep: Time = Is("\"2s\"");
    }

    /// The network of a process.
    NetSection {
        /// Address at which a node listens. Port 0 takes a free one, of `ports` if given.
        bind: SocketAddr = Is("\"127.0.0.1:0\"");
        /// Address at which others reach a node, if it is not `bind`. Port 0 stands for the bound
        /// port.
        advertise: Option<SocketAddr> = Absent("\"192.0.2.10:0\"");
        /// First and last port of nodes, for firewalls; default: any free one.
        ports: Option<Ports> = Absent("\"47000-47100\"");
        /// Send several packets by one system call. Disable for network cards that announce but do
        /// not support it.
        gso: bool = Is("true");
        /// Probe for packets larger than 1200 bytes. Disable for paths that drop large packets
        /// silently.
        mtu_discovery: bool = Is("true");
        /// Socket buffer requested for each direction; the system may grant less.
        socket_buffer: Size = Is("\"4MiB\"");
        /// Maximum number of queued frames per peer and class.
        queue_frames: BoundedInt<16, 1_000_000> = Is("8192");
        /// Maximum number of queued bytes per peer and class.
        queue_bytes: Size = Is("\"4MiB\"");
        /// Time limit of one attempt to open a link.
        connect_timeout: Time = Is("\"5s\"");
        /// Number of attempts to open a link before queued frames are returned.
        attempts: BoundedInt<1, 100> = Is("6");
        /// Delay before the second attempt; it doubles with each further one.
        backoff: Time = Is("\"50ms\"");
        /// Time for sending queued frames when a process ends.
        close_grace: Time = Is("\"1s\"");
        /// Congestion control: "measured" distinguishes losses of the line from those of a full
        /// queue; "cubic", "newreno" and "bbr" do not.
        congestion: Congestion = Is("\"measured\"");
        /// Table of an emulated network (`springtide wan ...`), by which datagrams are delayed,
        /// dropped and limited. Each node binds to its address in the table. Linux only.
        shape: Option<PathBuf> = Absent("\"/run/springtide/pair.links\"");
    }

    /// The expected properties of a link between two clusters. They give initial timeouts, windows
    /// and transfers.
    LinkSection {
        /// Names of the two clusters.
        between: Pair = Required("[\"ams\", \"del\"]");
        /// Round trip time.
        rtt: Time = Is("\"100ms\"");
        /// Bandwidth of one link, in bytes ("10MB/s") or bits ("100Mbit/s").
        bandwidth: ByteRate = Is("\"100Mbit/s\"");
        /// Congestion control of these links; default: that of [net].
        congestion: Option<Congestion> = Absent("\"bbr\"");
    }

    /// Parameters of compute threads.
    WorkSection {
        /// Choice of victims: "cluster-aware", or "random" as the baseline.
        steal: Steal = Is("\"cluster-aware\"");
        /// Compute threads of a node.
        threads: BoundedInt<1, 4096> = Is("1");
        /// Stack of a compute thread, for deep recursion. Only touched pages cost memory.
        stack: Size = Is("\"16MiB\"");
        /// Maximum number of nested waits of one stack that execute unrelated tasks.
        nesting: BoundedInt<1, 10_000> = Is("32");
        /// Number of nodes that die holding the same task after which the job fails. Nodes that
        /// leave in order and clusters lost as a whole do not count. 0: never.
        poison: BoundedInt<0, 1_000_000> = Is("3");
        /// Size of the finished results that each node keeps, so that they need not be computed
        /// again after a loss. "0B": none.
        results: Size = Is("\"64MiB\"");
        /// Maximum mean rate of root checkpoints in bytes per second. Checkpoints that would
        /// exceed it are skipped. "0B": no limit.
        checkpoints: Size = Is("\"256KiB\"");
        /// Maximum share of a core for each compute thread, which rests for the remaining time.
        share: Option<f64> = Absent("0.5");
        /// File with that share, read ten times per second. It may change while a node runs.
        share_file: Option<PathBuf> = Absent("\"/run/springtide/share\"");
        /// Control group that compute threads, and no others, join. Its quota limits them. Version
        /// 1, or a threaded one of version 2.
        cgroup: Option<PathBuf> = Absent("\"/sys/fs/cgroup/cpu/springtide\"");
        /// Time for leaving the job in order after SIGTERM. "0s": the node ends at once.
        leave_within: Time = Is("\"30s\"");
    }

    /// Measurements and their reports.
    StatsSection {
        /// Interval of statistics reports.
        period: Time = Is("\"10s\"");
        /// Number of periods between reports of histograms.
        histogram_periods: BoundedInt<1, 1000> = Is("10");
    }

    /// Adaptation: adding and removing nodes keeps the job's weighted average efficiency within a
    /// band.
    AdaptationSection {
        /// "static": no adaptation; "monitor": measurements and decisions without changes;
        /// "adaptive".
        mode: Mode = Is("\"adaptive\"");
        /// Minimum number of processors of a job: of compute threads of its nodes.
        min_processors: BoundedInt<1, 10_000_000> = Is("1"), alias "min_nodes";
        /// Maximum number of processors of a job; default: no limit.
        max_processors: Option<BoundedInt<1, 10_000_000>> = Absent("64"), alias "max_nodes";
        /// Efficiency below which nodes are removed.
        e_min: f64 = Is("0.3");
        /// Efficiency above which nodes are added.
        e_max: f64 = Is("0.5");
        /// Mean inter-cluster overhead, as a share of time, above which a cluster's link is
        /// suspected.
        cluster_threshold: f64 = Is("0.25");
        /// Factor by which it must exceed that of other clusters before an unmeasured link is
        /// blamed. 0: at once.
        cluster_exceptional: f64 = Is("1.5");
        /// Inter-cluster overhead above which a single node is bad.
        node_threshold: f64 = Is("0.2");
        /// Share of the mean speed of processors below which a node is slow.
        slow_below: f64 = Is("0.5");
        /// Maximum number of processors after a decision, as a multiple of the previous number.
        growth_max: f64 = Is("2.0"), alias "most_growth";
        /// Minimum number of processors after a decision, as a share of the previous number.
        shrink_min: f64 = Is("0.5"), alias "most_shrink";
        /// Successive periods below `e_min` before a node is removed.
        bad_periods: BoundedInt<0, 1_000_000> = Is("2");
        /// Periods without a further action after an action.
        cool_down: BoundedInt<0, 1_000_000> = Is("2");
        /// Periods after joining in which a node is not judged.
        grace: BoundedInt<0, 1_000_000> = Is("2");
        /// Periods for which a node's last report replaces a missing one.
        stale: BoundedInt<0, 1_000_000> = Is("3");
        /// Seconds in which changes settle. They bound the periods of `cool_down`, `check_periods`,
        /// `grace` and `near_end`.
        settle_s: f64 = Is("20.0");
        /// Seconds for which a decision waits at most while the efficiency may be on either side of
        /// its bound. Then all speeds are measured again, and it decides.
        doubt_s: f64 = Is("20.0");
        /// Greatest age of a measured speed, in seconds, where no work units give it; 0: no limit.
        speed_age_s: f64 = Is("60.0");
        /// Periods before the estimated end of the job without changes.
        near_end: BoundedInt<0, 1_000_000> = Is("2");
        /// Number of nodes that a cluster reports as its worst.
        named: BoundedInt<0, 1_000_000> = Is("16");
        /// Whether lost nodes (removed for cause, or crashed) are replaced while efficiency is
        /// above `e_min`.
        refill: bool = Is("true");
        /// Whether the job moves to better free nodes while efficiency is within the band.
        migrate: bool = Is("true");
        /// Factor by which a free node must be faster than the one that it replaces.
        migrate_factor: f64 = Is("1.5");
        /// Cost of moving to a node, in seconds of that node.
        move_cost_s: f64 = Is("10.0");
        /// Factor by which the gain of a move must exceed its cost.
        migrate_margin: f64 = Is("2.0");
        /// Quarantine in seconds of a node or cluster removed for cause; it doubles each time.
        quarantine_s: f64 = Is("300.0"), alias "parole_s";
        /// Maximum quarantine in seconds.
        quarantine_max_s: f64 = Is("3600.0"), alias "parole_cap_s";
        /// Factor of improved measurements that ends a quarantine early.
        better_factor: f64 = Is("1.5");
        /// Factor within which a weight stays of its initial value.
        weight_bound: f64 = Is("4.0");
        /// Factor of one change of a weight.
        weight_step: f64 = Is("1.25");
        /// Periods after which an unmet request for processors is repeated.
        request_patience: BoundedInt<0, 1_000_000> = Is("6");
        /// Settled periods over which an action's prediction is compared with its result.
        check_periods: BoundedInt<0, 1_000_000> = Is("2");
        /// Periods after which a prediction that never settles is dropped.
        check_patience: BoundedInt<0, 1_000_000> = Is("10");
        /// Factor above its past, or above other nodes, at which a speed is invalid.
        implausible_factor: f64 = Is("100.0"), alias "nonsense_factor";
        /// Badness: alpha / speed + beta * inter-cluster overhead + gamma * in the worst cluster.
        weights: WeightsSection = Section;
    }

    /// The weights of badness.
    WeightsSection {
        /// Weight of 1 / relative speed.
        alpha: f64 = Is("1.0");
        /// Weight of inter-cluster overhead.
        beta: f64 = Is("100.0");
        /// Weight of membership in the worst cluster.
        gamma: f64 = Is("10.0");
    }

    /// Certificates of the grid.
    TlsSection {
        /// Directory of the grid's certificate authority; default: a new one for each run.
        ca: Option<PathBuf> = Absent("\"/etc/springtide/ca\"");
        /// Directory with the certificate and key by which commands act; default: an operator's,
        /// which they issue themselves with the authority's key.
        identity: Option<PathBuf> = Absent("\"/home/me/.springtide-identity\"");
        /// Validity of certificates of the head, and of the sites and nodes that it issues them
        /// for. They are renewed at two thirds of this time.
        validity: Time = Is("\"720h\"");
    }

    /// The endpoint at which nodes join: it issues certificates to holders of a token (`springtide
    /// token create`).
    JoinSection {
        /// UDP address at which it listens; default: nodes cannot join. The port should be fixed,
        /// for join commands contain it.
        bind: Option<SocketAddr> = Absent("\"0.0.0.0:47900\"");
        /// Address at which joining nodes reach it, if it is not `bind`.
        advertise: Option<HostPort> = Absent("\"head.example.org:47900\"");
        /// Validity of issued certificates. Nodes renew theirs at two thirds of this time.
        validity: Time = Is("\"24h\"");
        /// Maximum number of simultaneous callers, half of them from one host at most; others are
        /// refused.
        callers_max: BoundedInt<1, 1000> = Is("32"), alias "at_once";
        /// Time limit for a caller's exchange.
        answer_timeout: Time = Is("\"10s\""), alias "answer_within";
    }

    /// Log lines of processes.
    LogSection {
        /// Minimum severity: "error", "warn", "info", "debug" or "trace".
        level: Level = Is("\"info\"");
        /// Format: "pretty" or "json".
        format: Format = Is("\"pretty\"");
    }

    /// The dashboard of the head of `up` and `dev`.
    DashboardSection {
        /// Whether it is enabled.
        on: bool = Is("true");
        /// Address at which it listens; if taken, any free port of loopback. Other addresses need a
        /// token.
        bind: SocketAddr = Is("\"127.0.0.1:7475\"");
        /// Name at which browsers reach it, if it is not `bind`.
        name: Option<String> = Absent("\"grid.example.org\"");
        /// File with its token of at least 16 characters, readable only by its owner.
        token_file: Option<PathBuf> = Absent("\"/etc/springtide/dashboard.token\"");
    }

    /// Runs of jobs.
    RunSection {
        /// Run directory: manifest, config, events, node logs and result.
        out: Option<PathBuf> = Absent("\"runs/today\"");
        /// Time limit of a run.
        timeout: Option<Time> = Absent("\"1h\"");
        /// Size above which the event log omits facts, but no decisions.
        log_size: Size = Is("\"256MiB\"");
    }

    /// Retention of ended jobs and logs, in a grid that persists. The limits act while it runs.
    RetentionSection {
        /// Number of the latest ended jobs that are kept with results and files; `job purge`
        /// removes more.
        jobs: BoundedInt<0, 1_000_000> = Is("1000");
        /// Maximum age of ended jobs.
        jobs_age: Time = Is("\"720h\"");
        /// Size at which the log of decisions, scheduler.events.jsonl, is rotated.
        log_size: Size = Is("\"64MiB\"");
        /// Number of rotated logs of decisions that are kept.
        logs: BoundedInt<0, 1000> = Is("3");
        /// Maximum age of rotated logs of decisions.
        logs_age: Time = Is("\"720h\"");
    }
}

impl LinkSection {
    /// The cluster at the other end of the link from this one; none if the link is not this
    /// cluster's.
    pub fn other_end(&self, cluster: &str) -> Option<&Name> {
        let Pair(a, b) = &self.between;
        match (a.as_str() == cluster, b.as_str() == cluster) {
            (true, false) => Some(b),
            (false, true) => Some(a),
            _ => None,
        }
    }
}

/// Greatest number of nodes of a cluster with nodes on demand. Each has a certificate and files.
const NODES_MAX: u32 = 4096;

/// What nodes on demand may use of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// Name of the host.
    pub name: String,
    /// Number of processors that nodes may use.
    pub processors: u32,
    /// Memory in bytes; 0: no limit.
    pub memory: u64,
    /// Numbers of devices, by kind.
    pub devices: BTreeMap<String, u32>,
}

type SlotNumber =
    (&'static str, f64, fn(&SlotsSection) -> f64, fn(&ClusterSlotsSection) -> Option<f64>);

/// The numbers of slot sections: the key, its maximum, and its values for the grid and a cluster.
/// All are at least 0.
const SLOT_NUMBERS: [SlotNumber; 6] = [
    ("rate", f64::MAX, |all| all.rate, |own| own.rate),
    ("fixed", f64::MAX, |all| all.fixed, |own| own.fixed),
    ("discount_a_day", 1.0, |all| all.discount_a_day, |own| own.discount_a_day),
    ("discount_max", 1.0, |all| all.discount_max, |own| own.discount_max),
    ("unused_surcharge", f64::MAX, |all| all.unused_surcharge, |own| own.unused_surcharge),
    ("share_max", 1.0, |all| all.share_max, |own| own.share_max),
];

impl GridConfig {
    /// The compute threads of each node of a cluster.
    pub fn threads_of(&self, cluster: &ClusterSection) -> u32 {
        cluster.threads.unwrap_or(self.work.threads).get()
    }

    /// The hosts whose shares a cluster's nodes are given; none if its nodes have a fixed size.
    pub fn hosts_of(&self, cluster: &ClusterSection) -> Vec<HostSize> {
        if !cluster.on_demand {
            return Vec::new();
        }
        let memory = cluster.memory.map_or(0, Size::bytes);
        let devices = cluster.devices.iter();
        let devices: BTreeMap<String, u32> =
            devices.map(|(name, count)| (name.clone(), count.parse().unwrap_or(0))).collect();
        let host = |name: String, processors| HostSize {
            name,
            processors,
            memory,
            devices: devices.clone(),
        };
        if let (Provider::Ssh, Some(ssh)) = (cluster.provider, &cluster.ssh) {
            let hosts = ssh.hosts_for(0).unwrap_or_default().into_iter();
            return hosts.map(|one| host(one.name, one.places)).collect();
        }
        let here = || std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let processors = cluster.processors.map_or_else(here, BoundedInt::get);
        let number = 1..=cluster.hosts.get();
        number.map(|number| host(format!("{}-host-{number}", cluster.name), processors)).collect()
    }

    /// Greatest number of a cluster's nodes. With nodes on demand, each processor may be one.
    pub fn node_limit(&self, cluster: &ClusterSection) -> u32 {
        if !cluster.on_demand {
            return cluster.nodes.get();
        }
        let hosts = self.hosts_of(cluster);
        hosts.iter().fold(0, |sum: u32, host| sum.saturating_add(host.processors)).min(NODES_MAX)
    }

    /// Checks a cluster with nodes on demand, and that others have none of its keys.
    fn check_hosts(&self, cluster: &ClusterSection, path: &str, checker: &mut Checker<'_>) {
        for (name, count) in &cluster.devices {
            if count.parse::<u32>().is_err() {
                let reason =
                    format!("`cluster.devices.{name}` must be a whole number, found \"{count}\"");
                checker.report(&format!("{path}.devices.{name}"), reason);
            }
        }
        if !cluster.on_demand {
            let given = [
                ("processors", cluster.processors.is_some()),
                ("memory", cluster.memory.is_some()),
                ("devices", !cluster.devices.is_empty()),
            ];
            for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                let reason = format!("`cluster.{key}` is of nodes on demand: set `on_demand`");
                checker.report(&format!("{path}.{key}"), reason);
            }
            return;
        }
        let reason = match cluster.provider {
            Provider::Join => "nodes that join have the size that they are started with",
            Provider::Slurm | Provider::Batch if cluster.processors.is_none() => {
                "nodes on demand of a batch system need `hosts`, and `processors` of each host"
            }
            Provider::Ssh if cluster.processors.is_some() => {
                "the numbers of `ssh.hosts` are the processors of each host: leave `processors` out"
            }
            _ => return,
        };
        checker.report(&format!("{path}.on_demand"), reason);
    }

    /// The expected properties of the link between two clusters, given in either order.
    pub fn link_between(&self, a: &str, b: &str) -> Option<&LinkSection> {
        self.link.iter().find(|link| {
            let ends = (link.between.0.as_str(), link.between.1.as_str());
            ends == (a, b) || ends == (b, a)
        })
    }

    /// Checks that nodes, the witness and both heads find each other, also after a take-over.
    fn check_standby(&self, checker: &mut Checker<'_>) {
        let Some(standby) = &self.standby else { return };
        let is_pair = |all: &HostPorts| matches!(all.all(), [first, second] if first != second);
        if !is_pair(&standby.heads) {
            let reason = "`standby.heads` must be two addresses: of the first head, and of the \
                          second one";
            checker.report("standby.heads", reason);
        }
        if !self.head.advertise.as_ref().is_some_and(is_pair) {
            let reason = "a grid with a second head needs the addresses of both: set \
                          `head.advertise` to a list of two, in the order of `standby.heads`";
            checker.report("standby", reason);
        }
        if self.head.bind.port() == 0 {
            let reason = "a grid with a second head has fixed addresses: set `head.bind` with its \
                          port";
            checker.report("standby", reason);
        }
        if self.tls.ca.is_some() {
            let reason = "the second head has copies of the grid's directory alone, so it would \
                          have no authority, or that before a rotation: move the files to `ca` \
                          in the grid's directory, and leave `tls.ca` out";
            checker.report("tls.ca", reason);
        }
        let witness = standby.witness.as_str();
        let Some(cluster) = self.cluster.iter().find(|one| one.name.as_str() == witness) else {
            let reason = format!("there is no cluster named \"{witness}\"");
            let meant = nearest(witness, self.cluster.iter().map(|one| one.name.as_str()));
            return checker.report_with_suggestion("standby.witness", reason, meant);
        };
        let address = cluster.site_advertise.or(cluster.site_bind);
        if cluster.site != SitePlace::Own || address.is_none_or(|address| address.port() == 0) {
            let reason = format!(
                "the witness is a process of its own at a fixed address: set `site = \"own\"` and \
                 `site_bind` with its port in cluster \"{witness}\""
            );
            checker.report("standby.witness", reason);
        }
    }

    /// Checks a cluster whose nodes join by themselves.
    fn check_joined(&self, cluster: &ClusterSection, path: &str, checker: &mut Checker<'_>) {
        if self.join.bind.is_none() {
            let reason = "provider \"join\" needs a join endpoint: set `join.bind`";
            checker.report(&format!("{path}.provider"), reason);
        }
        if cluster.site == SitePlace::Own {
            let reason = "the site of a cluster that nodes join is at the head: leave `site` out";
            checker.report(&format!("{path}.site"), reason);
        }
        if cluster.program.is_some() {
            let reason =
                "nodes that join run the program that they are started with: leave `program` out";
            checker.report(&format!("{path}.program"), reason);
        }
    }

    /// Nodes on the head's host must reach the head from the address that they bind to. IPv4 and
    /// IPv6 addresses do not reach each other. Without an own address, nodes bind to one of the
    /// head's kind.
    fn check_families(&self, checker: &mut Checker<'_>) {
        let bind = self.net.bind;
        let is_bound_there = |cluster: &ClusterSection| {
            matches!(cluster.provider, Provider::Local | Provider::Slurm | Provider::Batch)
        };
        // A wildcard IPv6 socket reaches both; nodes of an emulated network bind to its addresses.
        let reaches_both = bind.is_ipv6() && bind.ip().is_unspecified();
        let is_chosen = !checker.is_given("net.bind");
        if is_chosen
            || reaches_both
            || self.net.shape.is_some()
            || !self.cluster.iter().any(is_bound_there)
        {
            return;
        }
        let (key, heads) = match &self.head.advertise {
            Some(at) => {
                let address = |at: &HostPort| Some(SocketAddr::new(at.host.parse().ok()?, at.port));
                // A name may have addresses of both kinds.
                let Some(all) = at.all().iter().map(address).collect::<Option<Vec<_>>>() else {
                    return;
                };
                ("head.advertise", all)
            }
            None => ("head.bind", vec![self.head.bind]),
        };
        if heads.iter().all(|head| head.is_ipv6() != bind.is_ipv6()) {
            let head = heads[0];
            let kind = |is_ipv6| if is_ipv6 { "IPv6" } else { "IPv4" };
            let reason = format!(
                "nodes bind to `net.bind` {bind} ({}) and do not reach `{key}` {head} ({}) from \
                 there: give both addresses of one kind",
                kind(bind.is_ipv6()),
                kind(head.is_ipv6()),
            );
            checker.report(key, reason);
        }
    }

    fn check_slots(&self, checker: &mut Checker<'_>) {
        let mut check = |path: &str, key: &str, most: f64, value: Option<f64>| {
            if let Some(value) = value.filter(|value| !(0.0..=most).contains(value)) {
                let words =
                    if most < f64::MAX { "a part from 0 to 1" } else { "a number from 0 on" };
                checker.report(&format!("{path}.{key}"), format!("must be {words}, found {value}"));
            }
        };
        for (key, most, all, _) in SLOT_NUMBERS {
            check("slots", key, most, Some(all(&self.slots)));
        }
        for (i, cluster) in self.cluster.iter().enumerate() {
            let Some(section) = &cluster.slots else { continue };
            for (key, most, _, own) in SLOT_NUMBERS {
                check(&format!("cluster[{i}].slots"), key, most, own(section));
            }
        }
    }

    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# A Springtide grid. Every key is here with its default; what is commented out is not \
             set by default.\n\
             # Durations are \"150ms\", sizes \"64MiB\", rates \"10MB/s\". Each key can be \
             overridden by the environment:\n\
             # SPRINGTIDE_NET__GSO=false, SPRINGTIDE_CLUSTER__AMS__NODES=4. Check with: springtide \
             config check FILE\n\n",
        )
    }
}

impl Config for GridConfig {
    const WHAT: &'static str = "grid";

    fn check(&self, checker: &mut Checker<'_>) {
        self.scheduling.check("scheduling", checker);
        self.check_slots(checker);
        if self.cluster.is_empty() {
            checker.report(
                "cluster",
                "the grid has no cluster: add a [[cluster]] with name and nodes",
            );
        }
        let mut names = BTreeMap::new();
        for (i, cluster) in self.cluster.iter().enumerate() {
            let path = format!("cluster[{i}].name");
            if let Some(first) = names.insert(cluster.name.as_str(), path.clone()) {
                checker.tell_taken(&path, &first, cluster.name.as_str());
            }
        }
        for (i, cluster) in self.cluster.iter().enumerate() {
            let path = format!("cluster[{i}]");
            match cluster.provider {
                Provider::Ssh => check_ssh(cluster, &path, checker),
                Provider::Slurm | Provider::Batch => check_batch(cluster, &path, checker),
                Provider::Join => self.check_joined(cluster, &path, checker),
                Provider::Local => {}
            }
            self.check_hosts(cluster, &path, checker);
            let size = if cluster.on_demand { 1 } else { self.threads_of(cluster) };
            let nodes = self.node_limit(cluster).saturating_mul(size);
            if let Some(reserve) = cluster.reserve.filter(|reserve| reserve.get() > nodes) {
                let reason = format!(
                    "`cluster.reserve` must be at most its processors, of which there are {nodes}, \
                     found {}",
                    reserve.get()
                );
                checker.report(&format!("{path}.reserve"), reason);
            }
            if cluster.site == SitePlace::Head {
                let given =
                    [("site_bind", cluster.site_bind), ("site_advertise", cluster.site_advertise)];
                for (key, _) in given.iter().filter(|(_, address)| address.is_some()) {
                    let reason = format!(
                        "`cluster.{key}` is of a site of its own: set `site` to \"own\" as well, \
                         or leave it out"
                    );
                    checker.report(&format!("{path}.{key}"), reason);
                }
            }
            let Some(bind) = cluster.site_bind.filter(|bind| bind.ip().is_unspecified()) else {
                continue;
            };
            if cluster.site == SitePlace::Own && cluster.site_advertise.is_none() {
                let reason = format!(
                    "`cluster.site_bind` {bind} is no address that others can connect to: set \
                     `cluster.site_advertise` as well"
                );
                checker.report(&format!("cluster[{i}].site_bind"), reason);
            }
        }
        self.check_standby(checker);
        check_aliases(self, checker);
        check_join(&self.join, checker);
        check_links(&self.link, checker);
        for (i, link) in self.link.iter().enumerate() {
            let Pair(a, b) = &link.between;
            for name in BTreeSet::from([a, b]) {
                if !names.contains_key(name.as_str()) {
                    let reason = format!("there is no cluster named \"{name}\"");
                    let meant = nearest(name.as_str(), names.keys().copied());
                    checker.report_with_suggestion(&format!("link[{i}].between"), reason, meant);
                }
            }
        }
        if self.head.bind.ip().is_unspecified() && self.head.advertise.is_none() {
            let reason = format!(
                "`head.bind` {} is no address that nodes can connect to: set `head.advertise` as \
                 well",
                self.head.bind
            );
            checker.report("head.bind", reason);
        }
        check_net(&self.net, checker);
        self.check_families(checker);
        if let Some(ports) = self.net.ports {
            let (head, node) = (self.head.bind, self.net.bind);
            let meet =
                head.ip() == node.ip() || head.ip().is_unspecified() || node.ip().is_unspecified();
            if meet && ports.contains(head.port()) {
                let reason = format!(
                    "`head.bind` port {} is among `net.ports` {ports}: a node could take it first",
                    head.port()
                );
                checker.report("head.bind", reason);
            }
            let local = || {
                let clusters = self.cluster.iter().enumerate();
                clusters.filter(|(_, cluster)| cluster.provider == Provider::Local)
            };
            let own = |cluster: &ClusterSection| cluster.site == SitePlace::Own;
            let here = local().filter(|(_, cluster)| !own(cluster));
            let nodes: u64 = here.map(|(_, cluster)| u64::from(self.node_limit(cluster))).sum();
            if nodes > u64::from(ports.count()) {
                let reason = format!(
                    "`net.ports` {ports} has {} ports for {nodes} nodes on this machine",
                    ports.count()
                );
                checker.report("net.ports", reason);
            }
            for (i, cluster) in local().filter(|(_, cluster)| own(cluster)) {
                // The site itself takes one of them too, unless it has its own address.
                let site = u64::from(cluster.site_bind.is_none());
                let nodes = u64::from(self.node_limit(cluster));
                if nodes + site > u64::from(ports.count()) {
                    let reason = format!(
                        "`net.ports` {ports} has {} ports for {nodes} nodes{} on the machine of \
                         cluster \"{}\"",
                        ports.count(),
                        if site > 0 { " and their site" } else { "" },
                        cluster.name
                    );
                    checker.report(&format!("cluster[{i}].site"), reason);
                }
            }
        }
        check_work(&self.work, checker);
        let programs = &self.programs;
        if programs.size_max.bytes() > programs.cache_max.bytes() {
            let reason = format!(
                "`programs.size_max` must be at most `programs.cache_max`, found \"{}\" and \"{}\"",
                programs.size_max, programs.cache_max
            );
            checker.report("programs.size_max", reason);
        }
        if self.files.poll.get() < Duration::from_millis(50) {
            let reason =
                format!("`files.poll` must be at least \"50ms\", found \"{}\"", self.files.poll);
            checker.report("files.poll", reason);
        }
        if self.stats.period.get() < Duration::from_millis(100) {
            let reason = format!(
                "`stats.period` must be at least \"100ms\", found \"{}\"",
                self.stats.period
            );
            checker.report("stats.period", reason);
        }
        if self.run.timeout.is_some_and(|timeout| timeout.get().is_zero()) {
            checker
                .report("run.timeout", "`run.timeout` must be longer than nothing, found \"0ns\"");
        }
    }
}

/// Checks an ssh cluster: enough hosts, and options that an unattended connection can have.
fn check_ssh(cluster: &ClusterSection, path: &str, checker: &mut Checker<'_>) {
    match &cluster.ssh {
        None => checker.report(
            &format!("{path}.provider"),
            "provider \"ssh\" needs machines: add [cluster.ssh] with `hosts`",
        ),
        Some(ssh) => {
            let nodes = if cluster.on_demand { 0 } else { cluster.nodes.get() };
            if let Err(error) = ssh.hosts_for(nodes.into()) {
                // The place of a host's entry; without one, that of the provider.
                let at = match (&error, ssh.hosts.keys().next()) {
                    (SshHostsError::NoHost { name } | SshHostsError::NoNumber { name, .. }, _)
                    | (_, Some(name)) => format!("{path}.ssh.hosts.{name}"),
                    (_, None) => format!("{path}.provider"),
                };
                checker.report(&at, error.to_string());
            }
            let long = Duration::from_secs(1);
            if ssh.answer_timeout.get() < long {
                let reason = format!(
                    "`ssh.answer_timeout` must be at least \"1s\", found \"{}\"",
                    ssh.answer_timeout
                );
                checker.report(&format!("{path}.ssh.answer_timeout"), reason);
            }
            for name in ssh.options.keys() {
                if let Some(reason) = refused_option(name) {
                    checker.report(&format!("{path}.ssh.options.{name}"), reason);
                }
            }
            if ssh.dir.to_str().is_none_or(|dir| dir.contains('\0')) {
                let reason = "`ssh.dir` must be a path in UTF-8 without NUL";
                checker.report(&format!("{path}.ssh.dir"), reason);
            }
        }
    }
    for name in cluster.env.keys() {
        let mut letters = name.chars();
        let begins = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !begins || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let reason = format!(
                "no shell can set a variable named {name:?}: use letters, digits and underscores"
            );
            checker.report(&format!("{path}.env.{name}"), reason);
        }
    }
}

/// Checks the links of a grid's config or a node's.
pub(super) fn check_links(links: &[LinkSection], checker: &mut Checker<'_>) {
    let mut pairs = BTreeMap::new();
    for (i, link) in links.iter().enumerate() {
        let path = format!("link[{i}].between");
        let Pair(a, b) = &link.between;
        if a == b {
            checker
                .report(&path, format!("a link must be between two clusters, found \"{a}\" twice"));
        }
        if let Some(first) = pairs.insert((a.min(b), a.max(b)), path.clone()) {
            let first = checker.describe_place(&first);
            let reason = format!(
                "the link between \"{a}\" and \"{b}\" is given twice; the other is {first}"
            );
            checker.report(&path, reason);
        }
        if link.rtt.get() > RTT_MAX {
            let reason = format!("`link.rtt` must be at most \"10s\", found \"{}\"", link.rtt);
            checker.report(&format!("link[{i}].rtt"), reason);
        }
        if !link.bandwidth.carries() {
            let reason =
                format!("`link.bandwidth` must be at least \"1B/s\", found \"{}\"", link.bandwidth);
            checker.report(&format!("link[{i}].bandwidth"), reason);
        }
    }
}

fn check_join(join: &JoinSection, checker: &mut Checker<'_>) {
    if let Some(bind) = join.bind.filter(|bind| bind.ip().is_unspecified())
        && join.advertise.is_none()
    {
        let reason = format!(
            "`join.bind` {bind} is no address that nodes can connect to: set `join.advertise` as \
             well"
        );
        checker.report("join.bind", reason);
    }
    for (key, time, least, shown) in [
        ("validity", join.validity, Duration::from_secs(3), "3s"),
        ("answer_timeout", join.answer_timeout, Duration::from_millis(100), "100ms"),
    ] {
        if time.get() < least {
            let reason = format!("`join.{key}` must be at least \"{shown}\", found \"{time}\"");
            checker.report(&format!("join.{key}"), reason);
        }
    }
}

pub(super) fn check_net(net: &NetSection, checker: &mut Checker<'_>) {
    if net.bind.ip().is_unspecified() && net.advertise.is_none() {
        let reason = format!(
            "`net.bind` {} is no address that others can connect to: set `net.advertise` as well",
            net.bind
        );
        checker.report("net.bind", reason);
    }
    if net.connect_timeout.get() < Duration::from_millis(100) {
        let reason = format!(
            "`net.connect_timeout` must be at least \"100ms\", found \"{}\"",
            net.connect_timeout
        );
        checker.report("net.connect_timeout", reason);
    }
    // Messages that are not divided into chunks have up to 64 KiB, and must fit into an empty
    // queue.
    if net.queue_bytes.bytes() < 256 << 10 {
        let reason =
            format!("`net.queue_bytes` must be at least \"256KiB\", found \"{}\"", net.queue_bytes);
        checker.report("net.queue_bytes", reason);
    }
}

pub(super) fn check_work(work: &WorkSection, checker: &mut Checker<'_>) {
    let stack = work.stack.bytes();
    if !(1 << 18..=1 << 32).contains(&stack) {
        let reason =
            format!("`work.stack` must be \"256KiB\" to \"4GiB\", found \"{}\"", work.stack);
        checker.report("work.stack", reason);
    }
    if let Some(share) = work.share.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
        let reason = format!("`work.share` must lie above 0 and be at most 1, found {share}");
        checker.report("work.share", reason);
    }
}
