//! Conversion of config sections to settings of the runtime.
//!
//! This module does not know commands.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
#[cfg(all(target_os = "linux", feature = "wan"))]
use std::path::PathBuf;
use std::time::Duration;

use springtide_actors::endpoint::Endpoint;
use springtide_actors::job::JobParams;
use springtide_actors::policy::provisioning::{Terms, from_duration};
use springtide_actors::scheduler::GridLink;
use springtide_actors::scheduler::manager::ManagerSettings;
use springtide_cli::adaptation::{contradictions, refuse};
use springtide_cli::exit::Failed;
use springtide_runtime::config::{
    BoundedInt, ClusterSection, ClusterSlotsSection, Congestion, GridConfig, HostPort, HostPorts,
    LinkSection, NetSection, NodeConfig, Provider, WorkSection, nearest,
};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::tls::NodeIdentity;
use springtide_runtime::net::{
    self, Address, Contact, GateCondition, LinkPolicy, Net, NetConfig, gated, plain_socket,
};
use springtide_runtime::processors::Processors;

use crate::reach::{answers, first_answering, first_answering_or_first};
use crate::shape::GridShape;

fn congestion(choice: Congestion) -> net::Congestion {
    match choice {
        Congestion::Cubic => net::Congestion::Cubic,
        Congestion::Bbr => net::Congestion::Bbr,
        Congestion::NewReno => net::Congestion::NewReno,
        Congestion::Measured => net::Congestion::Measured,
    }
}

/// The policy of a link; `section` is that of the whole process.
pub fn policy(link: &LinkSection, section: &NetSection) -> LinkPolicy {
    LinkPolicy {
        rtt_ms: link.rtt.get().as_secs_f64() * 1e3,
        bandwidth: link.bandwidth.bytes_per_second(),
        congestion: congestion(link.congestion.unwrap_or(section.congestion)),
    }
}

/// The consequences of a link's expected values, for people.
pub fn describe(link: &LinkSection, section: &NetSection) -> String {
    let policy = policy(link, section);
    format!(
        "link {} - {}: {} round trip, {}, {}; a stream's window is {}, bulk transfers begin with \
        {}, a steal times out after {:.0} s",
        link.between.0,
        link.between.1,
        link.rtt,
        link.bandwidth,
        link.congestion.unwrap_or(section.congestion),
        springtide_cli::format::size(u64::from(policy.stream_window())),
        springtide_cli::format::size(policy.bulk_start() as u64),
        policy.steal_timeout().as_secs_f64(),
    )
}

/// The network settings of a node.
pub fn node_net(config: &NodeConfig) -> NetConfig {
    let mut net = net(&config.net);
    let links = config.link.iter().filter_map(|link| {
        let other = link.other_end(config.cluster.as_str())?;
        Some((ClusterId::from(other.as_str()), policy(link, &config.net)))
    });
    net.links = links.collect();
    net.forgets_nodes = true;
    net
}

/// The network settings of a process, without links to certain clusters.
pub fn net(section: &NetSection) -> NetConfig {
    let default = NetConfig::default();
    let millis = |time: springtide_runtime::config::Time| {
        u64::try_from(time.get().as_millis()).unwrap_or(u64::MAX)
    };
    let bytes = |size: springtide_runtime::config::Size| {
        usize::try_from(size.bytes()).unwrap_or(usize::MAX)
    };
    NetConfig {
        bind: section.bind,
        ports: section.ports.map(|ports| (ports.first, ports.last)),
        advertise: section.advertise,
        gso: section.gso,
        mtu_discovery: section.mtu_discovery,
        socket_buffer: bytes(section.socket_buffer),
        link: LinkPolicy { congestion: congestion(section.congestion), ..default.link },
        queue_frames: section.queue_frames.get() as usize,
        queue_bytes: bytes(section.queue_bytes),
        connect_timeout_ms: millis(section.connect_timeout),
        attempts: section.attempts.get(),
        backoff_ms: millis(section.backoff),
        close_grace_ms: millis(section.close_grace),
        ..default
    }
}

/// The network settings of the head, or of one of its clients.
pub fn head_net(config: &GridConfig, bind: SocketAddr) -> NetConfig {
    let mut net = net(&config.net);
    net.bind = bind;
    net.ports = None;
    net.advertise = None;
    net
}

/// An emulated network that carries this process's datagrams.
#[cfg(all(target_os = "linux", feature = "wan"))]
pub type Emulated = std::sync::Arc<springtide_wan::table::LinkTable>;
/// No emulated network exists on other systems, or without the feature `wan`.
#[cfg(not(all(target_os = "linux", feature = "wan")))]
pub type Emulated = std::convert::Infallible;

/// The emulated network that `net.shape` names, if any.
///
/// # Errors
/// The file is missing or no table of links.
#[cfg(all(target_os = "linux", feature = "wan"))]
pub fn emulated(section: &NetSection) -> Result<Option<Emulated>, Failed> {
    let open = |path: &PathBuf| springtide_wan::table::LinkTable::open(path).map(Emulated::new);
    let opened = section.shape.as_ref().map(open).transpose();
    opened.map_err(|error| Failed::usage(format!("net.shape: {error}")))
}

/// The emulated network that `net.shape` names, if any.
///
/// # Errors
/// It names one: networks are emulated on Linux only, with the feature `wan`.
#[cfg(not(all(target_os = "linux", feature = "wan")))]
pub fn emulated(section: &NetSection) -> Result<Option<Emulated>, Failed> {
    match &section.shape {
        None => Ok(None),
        Some(_) => Err(Failed::usage(
            "net.shape: networks are emulated on Linux only, with the feature `wan`: omit it",
        )),
    }
}

/// The address of a node in an emulated network.
///
/// # Errors
/// The network has no such node.
#[cfg_attr(not(all(target_os = "linux", feature = "wan")), expect(unused_variables))]
pub fn emulated_address(network: &Emulated, node: &NodeId) -> Result<IpAddr, Failed> {
    #[cfg(all(target_os = "linux", feature = "wan"))]
    match network.address(node.as_str()) {
        Some(address) => Ok(address.into()),
        None => {
            let names: Vec<&str> = network.clusters().map(ClusterId::as_str).collect();
            Err(Failed::usage(format!(
                "net.shape: the emulated network has no node {node}: it has the clusters {}; use \
                the cluster names and node counts of the topology that the table was made from",
                names.join(", ")
            )))
        }
    }
    #[cfg(not(all(target_os = "linux", feature = "wan")))]
    match *network {}
}

/// Opens a process's endpoint, over an emulated network if one is given.
///
/// # Errors
/// As [`Endpoint::quic`]; or the address is not one of the emulated network.
pub fn endpoint(
    config: NetConfig,
    identity: &NodeIdentity,
    incarnation: Incarnation,
    network: Option<&Emulated>,
) -> Result<Endpoint, Failed> {
    endpoint_while(config, identity, incarnation, network, None)
}

/// As [`endpoint`], which sends while a condition holds.
///
/// # Errors
/// As [`endpoint`].
pub fn endpoint_while(
    config: NetConfig,
    identity: &NodeIdentity,
    incarnation: Incarnation,
    network: Option<&Emulated>,
    condition: Option<GateCondition>,
) -> Result<Endpoint, Failed> {
    let wrap = |socket: UdpSocket| -> io::Result<_> {
        let inner = match network {
            None => plain_socket(socket)?,
            #[cfg(all(target_os = "linux", feature = "wan"))]
            Some(network) => springtide_wan::shaped::Shaped::wrap(socket, network.clone())?,
            #[cfg(not(all(target_os = "linux", feature = "wan")))]
            Some(network) => match *network {},
        };
        Ok(match condition {
            Some(condition) => gated(inner, condition),
            None => inner,
        })
    };
    Ok(Endpoint::quic_over(config, identity, incarnation, wrap)?)
}

/// Looks up clusters by their names.
///
/// # Errors
/// A name is unknown: the names that exist.
pub fn clusters_of(names: &[String], config: &GridConfig) -> Result<BTreeSet<ClusterId>, String> {
    let known = || config.cluster.iter().map(|cluster| cluster.name.as_str());
    match names.iter().find(|name| known().all(|known| known != name.as_str())) {
        None => Ok(names.iter().map(|name| name.as_str().into()).collect()),
        Some(unknown) => {
            let meant = nearest(unknown, known());
            let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? "));
            let all = known().collect::<Vec<_>>().join(", ");
            Err(format!("the grid has no cluster {unknown}: {meant}it has {all}"))
        }
    }
}

/// The parameters of jobs on a grid with this config.
pub fn job_params(config: &GridConfig) -> JobParams {
    let mut params = work_params(&config.work);
    params.adapt(&config.adaptation);
    params.set_period(config.stats.period.get());
    params.histogram_periods = config.stats.histogram_periods.get();
    params
}

/// The settings of the scheduler: of malleable jobs, and of links without measurements.
pub fn scheduling(config: &GridConfig) -> ManagerSettings {
    let names = || config.cluster.iter().map(|cluster| cluster.name.as_str());
    let mut links = Vec::new();
    for from in names() {
        for to in names().filter(|to| *to != from) {
            let rate = config.link_between(from, to).map(|link| link.bandwidth.bytes_per_second());
            let rate = rate.unwrap_or(LinkPolicy::default().bandwidth);
            links.push((ClusterId::from(from), ClusterId::from(to), rate));
        }
    }
    let without = config.cluster.iter().filter(|cluster| cluster.files.is_none());
    let without_files = without.map(|cluster| ClusterId::from(cluster.name.as_str())).collect();
    let own = |of: fn(&ClusterSection) -> Option<u32>| {
        let clusters = config.cluster.iter();
        clusters.filter_map(|cluster| Some((cluster.name.as_str().into(), of(cluster)?))).collect()
    };
    let reserves = own(|cluster| cluster.reserve.map(BoundedInt::get));
    let caps = own(|cluster| cluster.cap.map(BoundedInt::get));
    let terms = config.cluster.iter();
    let terms = terms.map(|one| (one.name.as_str().into(), terms_of(config, one))).collect();
    ManagerSettings {
        links,
        without_files,
        reserves,
        caps,
        terms,
        grid_links: grid_links(config),
        commit_timeout: config.slots.commit_timeout.get(),
        confirm_timeout: config.slots.confirm_timeout.get(),
        ..ManagerSettings::from(&config.scheduling)
    }
}

/// The terms of a cluster's slots.
fn terms_of(config: &GridConfig, cluster: &ClusterSection) -> Terms {
    let (all, own) = (&config.slots, cluster.slots.as_ref());
    let share = |of: fn(&ClusterSlotsSection) -> Option<f64>, all| own.and_then(of).unwrap_or(all);
    let asked = own.and_then(|own| own.advertise);
    Terms {
        advertise: match cluster.provider {
            // Batch systems promise no start times, unless the user knows better.
            Provider::Slurm | Provider::Batch => asked == Some(true),
            // Joining nodes come at unknown times.
            Provider::Join => false,
            _ => asked.unwrap_or(all.advertise),
        },
        rate: share(|own| own.rate, all.rate),
        fixed: share(|own| own.fixed, all.fixed),
        discount_a_day: share(|own| own.discount_a_day, all.discount_a_day),
        discount_max: share(|own| own.discount_max, all.discount_max),
        unused_surcharge: share(|own| own.unused_surcharge, all.unused_surcharge),
        ahead_max: own
            .and_then(|own| own.ahead_max)
            .or(all.ahead_max)
            .map(|time| from_duration(time.get())),
        share_max: share(|own| own.share_max, all.share_max),
    }
}

/// The links between clusters, as brokers get them.
fn grid_links(config: &GridConfig) -> Vec<GridLink> {
    let names: Vec<&str> = config.cluster.iter().map(|cluster| cluster.name.as_str()).collect();
    let expected = LinkPolicy::default();
    let mut links = Vec::new();
    for (at, a) in names.iter().enumerate() {
        for b in &names[at + 1..] {
            let link = config.link_between(a, b);
            let rtt_s = link.map_or(expected.rtt_ms / 1e3, |link| link.rtt.get().as_secs_f64());
            let rate = link.map_or(expected.bandwidth, |link| link.bandwidth.bytes_per_second());
            let (a, b) = (ClusterId::from(*a), ClusterId::from(*b));
            links.push(GridLink { a, b, latency_s: rtt_s / 2.0, bytes_per_s: rate });
        }
    }
    links
}

fn work_params(work: &WorkSection) -> JobParams {
    JobParams {
        steal: work.steal.into(),
        stack_bytes: work.stack.bytes(),
        nesting_bound: work.nesting.get(),
        poison_limit: work.poison.get(),
        results_bytes: work.results.bytes(),
        checkpoint_rate: work.checkpoints.bytes(),
        ..JobParams::default()
    }
}

/// The number of processors in the config.
pub fn existing_processors(config: &GridConfig) -> Processors {
    let of = |cluster: &ClusterSection| {
        let hosts = config.hosts_of(cluster);
        if hosts.is_empty() {
            return Processors(config.threads_of(cluster)).saturating_mul(cluster.nodes.get());
        }
        hosts.iter().map(|host| Processors(host.processors)).sum()
    };
    config.cluster.iter().map(of).sum()
}

/// Checks that a job's adaptation parameters are consistent, and fit the config's grid.
///
/// # Errors
/// All contradictions together.
pub fn check_adaptation(config: &GridConfig, params: &JobParams) -> Result<(), Failed> {
    check_start(config, params, None).map(drop)
}

/// As [`check_adaptation`], with the nodes on which the job starts. Returns their number by
/// cluster; `None` if the scheduler chooses.
///
/// # Errors
/// All contradictions together.
pub fn check_start(
    config: &GridConfig,
    params: &JobParams,
    start: Option<GridShape>,
) -> Result<Option<BTreeMap<ClusterId, u32>>, Failed> {
    let existing = existing_processors(config);
    let mut wrong = contradictions(params, existing);
    let node_counts = start.and_then(|start| start_nodes(config, params, start, &mut wrong));
    refuse(&wrong)?;
    let most = params.max_processors.unwrap_or(Processors::MAX);
    let all = || config.cluster.iter().map(|c| (ClusterId::from(c.name.as_str()), c.nodes.get()));
    Ok(node_counts.or_else(|| (existing <= most).then(|| all().collect())))
}

/// The first nodes of a job by cluster.
fn start_nodes(
    config: &GridConfig,
    params: &JobParams,
    start: GridShape,
    wrong: &mut Vec<String>,
) -> Option<BTreeMap<ClusterId, u32>> {
    let message = wrong.len();
    let clusters = start.clusters as usize;
    if clusters > config.cluster.len() {
        let has = config.cluster.len();
        wrong.push(format!(
            "--start {start} names {clusters} clusters, the grid has {has}: see --clusters"
        ));
    }
    let first = || config.cluster.iter().take(clusters);
    for cluster in first().filter(|cluster| cluster.nodes.get() < start.nodes) {
        let (name, has) = (&cluster.name, cluster.nodes.get());
        wrong.push(format!(
            "--start {start} is more than cluster {name} has, {has}: see --clusters"
        ));
    }
    let size = |cluster| Processors(config.threads_of(cluster)).saturating_mul(start.nodes);
    let sum: Processors = first().map(size).sum();
    let (least, most) = (params.min_or_one(), params.max_processors.unwrap_or(Processors::MAX));
    if sum < least {
        wrong.push(format!("--start {start} is below the job's minimum ({least})"));
    }
    if sum > most {
        wrong.push(format!("--start {start} is above the job's maximum ({most})"));
    }
    let names = first().map(|cluster| (ClusterId::from(cluster.name.as_str()), start.nodes));
    (wrong.len() == message).then(|| names.collect())
}

/// Resolves the address of a name and port.
///
/// # Errors
/// The name is unknown, or has no address.
pub async fn resolve(at: &HostPort) -> Result<SocketAddr, Failed> {
    Ok(lookup(at).await?[0])
}

/// All addresses of a name, at least one.
async fn lookup(at: &HostPort) -> Result<Vec<SocketAddr>, Failed> {
    let failed = |why: String| Failed::failure(format!("cannot find the head at {at}: {why}"));
    let found = tokio::net::lookup_host((at.host.as_str(), at.port)).await;
    let found: Vec<_> = found.map_err(|error| failed(error.to_string()))?.collect();
    if found.is_empty() { Err(failed("the name has no address".to_owned())) } else { Ok(found) }
}

/// The first of a process's addresses that answers; if none does, the first one.
///
/// # Errors
/// No name has an address.
pub async fn resolve_any(all: &HostPorts) -> Result<SocketAddr, Failed> {
    let (mut found, mut unknown) = (Vec::new(), None);
    for at in all.all() {
        match lookup(at).await {
            Ok(addresses) => found.extend(addresses),
            Err(failed) => unknown = Some(failed),
        }
    }
    let answering = first_answering_or_first(&found).await;
    answering.ok_or_else(|| unknown.unwrap_or_else(|| Failed::failure("the head has no address")))
}

/// Interval between checks of the head's address.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);

/// Keeps the address of the head current while this process runs, where the head has several: the
/// heads of a grid may be on different machines. Never returns if there is a choice.
pub async fn follow_head(net: Net, mut head: Contact, addresses: HostPorts) {
    while addresses.all().len() > 1 {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        let is_there = match head.address {
            Address::Socket(address) => answers(address).await,
            _ => false,
        };
        if !is_there {
            let mut found = Vec::new();
            for at in addresses.all() {
                // A name that is unknown now may be known later.
                found.extend(lookup(at).await.unwrap_or_default());
            }
            let Some(address) = first_answering(&found).await else { continue };
            tracing::info!("the head is at {address}");
            head.address = Address::Socket(address);
        }
        // A message of an earlier head may have named another address.
        net.learn(head.clone());
    }
}

/// The address at which a process listens that is to reach the head. Where the config has the
/// default, it is of the head's kind.
pub fn bind_towards(section: &NetSection, head: SocketAddr, is_on_its_host: bool) -> SocketAddr {
    let bind = section.bind;
    let is_default = bind == SocketAddr::from(([127, 0, 0, 1], 0));
    if !is_default || head.is_ipv4() || section.shape.is_some() {
        return bind;
    }
    let own = is_on_its_host.then_some(head.ip()).filter(|ip| !ip.is_unspecified());
    // A zone is that of the head's interface.
    let scope = if let SocketAddr::V6(head) = head { head.scope_id() } else { 0 };
    match own {
        Some(IpAddr::V6(ip)) => SocketAddrV6::new(ip, 0, 0, scope).into(),
        _ => SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{Sources, load};

    use springtide_actors::policy::AdaptationSettings;

    use super::*;
    use crate::grid_files;

    /// Loopback is the first interface of Linux.
    #[cfg(all(target_os = "linux", feature = "wan"))]
    #[tokio::test]
    async fn the_zone_of_an_address_is_an_interface() {
        let at: HostPorts = serde_json::from_str("[\"[fe80::1%lo]:5\"]").unwrap();
        let SocketAddr::V6(found) = resolve_any(&at).await.unwrap() else { panic!("{at:?}") };
        assert_eq!((found.scope_id(), found.port()), (1, 5));
    }

    #[test]
    fn nodes_listen_at_an_address_of_the_heads_kind() {
        let section = |bind: &str| {
            let text = format!("[net]\nbind = \"{bind}\"\n[[cluster]]\nname = \"a\"\n");
            load::<GridConfig>(&Sources::of_text("grid.toml", &text)).unwrap().value.net
        };
        let default = section("127.0.0.1:0");
        let near = |head: &str, here| bind_towards(&default, head.parse().unwrap(), here);
        assert_eq!(near("127.0.0.1:5", true).to_string(), "127.0.0.1:0");
        assert_eq!(near("[::1]:5", true).to_string(), "[::1]:0");
        assert_eq!(near("[2001:db8::1]:5", true).to_string(), "[2001:db8::1]:0");
        assert_eq!(near("[fe80::1%3]:5", true).to_string(), "[fe80::1%3]:0");
        // Its host is known only when the node is there.
        assert_eq!(near("[2001:db8::1]:5", false).to_string(), "[::1]:0");
        let own = section("10.0.0.1:0");
        let head = "[::1]:5".parse().unwrap();
        assert_eq!(bind_towards(&own, head, true).to_string(), "10.0.0.1:0");
    }

    #[test]
    fn a_batch_system_offers_slots_only_where_its_own_table_says_so() {
        let offers = |grid: &str, provider: &str, own: &str| {
            let text = format!("[slots]\n{grid}\n[[cluster]]\nname = \"a\"\n{provider}\n{own}\n");
            let config = load::<GridConfig>(&Sources::of_text("grid.toml", &text)).unwrap().value;
            terms_of(&config, &config.cluster[0]).advertise
        };
        let own = "[cluster.slots]\nadvertise = true";
        let local = "nodes = 1";
        let slurm = "nodes = 1\nprovider = \"slurm\"\n[cluster.slurm]";
        assert!(offers("", local, "") && !offers("advertise = false", local, ""));
        assert!(offers("advertise = false", local, own));
        assert!(!offers("", slurm, "") && offers("", slurm, own));
    }

    #[cfg(all(target_os = "linux", feature = "wan"))]
    #[test]
    fn an_emulated_network_opens_or_the_reason_is_reported() {
        use springtide_runtime::config::TopologyConfig;
        use springtide_runtime::topology::Topology;
        use springtide_wan::table::LinkTable;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pair.links");
        let opened = || {
            let set = |sources: Sources| sources.with_flag("--set", "net.shape", path.display());
            emulated(&grid_files::ad_hoc(GridShape::default(), set).unwrap().value.net)
        };
        let message = opened().unwrap_err().message;
        assert!(
            message.starts_with("net.shape: cannot open") && message.contains("pair.links"),
            "{message}"
        );
        std::fs::write(&path, "something else").unwrap();
        let message = opened().unwrap_err().message;
        assert!(message.contains("is no table of links"), "{message}");
        let text = "name = \"pair\"\nnet = \"127.77.0.0/16\"\n[[cluster]]\nname = \"a\"\n\
        nodes = 2\n[[cluster]]\nname = \"b\"\n";
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text)).unwrap().value;
        LinkTable::create(&path, &Topology::from_config(&config), 1).unwrap();
        let network = opened().unwrap().expect("it is named");
        let address = |node: &str| emulated_address(&network, &NodeId::from(node));
        assert_eq!(address("a-2").unwrap().to_string(), "127.77.1.2");
        let message = address("b-2").unwrap_err().message;
        assert!(message.contains("no node b-2") && message.contains("clusters a, b"), "{message}");
    }

    #[test]
    fn a_cluster_has_its_own_reserve_and_cap() {
        let text = "[scheduling]\nreserve = 1\n[[cluster]]\nname = \"ams\"\nnodes = 4\nreserve = \
        2\n[[cluster]]\nname = \"del\"\nnodes = 4\nreserve = 0\ncap = 3\n[[cluster]]\nname = \
        \"bud\"\n";
        let config = load::<springtide_runtime::config::GridConfig>(&Sources::of_text("g", text));
        let settings = scheduling(&config.unwrap().value);
        let of = |pairs: &[(&str, u32)]| {
            pairs.iter().map(|(name, count)| (ClusterId::from(*name), *count)).collect()
        };
        assert_eq!(settings.reserve, 1);
        assert_eq!(settings.reserves, of(&[("ams", 2), ("del", 0)]));
        assert_eq!(settings.caps, of(&[("del", 3)]));
    }

    #[test]
    fn the_configs_defaults_are_the_policys() {
        let config = grid_files::ad_hoc(GridShape::default(), |sources| sources).unwrap().value;
        let params = job_params(&config);
        assert_eq!(params.settings, AdaptationSettings::default());
        assert_eq!(params, JobParams::default());
        assert!(check_adaptation(&config, &params).is_ok());
    }

    #[test]
    fn every_setting_has_a_key_of_its_own() {
        // Each key is set to a value other than its default, and sets its own field.
        let defaults = serde_json::to_value(AdaptationSettings::default()).unwrap();
        let mut tried = 0;
        let mut try_out = |path: &str, default: &serde_json::Value| {
            let other = match default {
                serde_json::Value::Bool(flag) => serde_json::json!(!flag),
                number if number.is_u64() => serde_json::json!(number.as_u64().unwrap() + 1),
                number => serde_json::json!(number.as_f64().unwrap() / 2.0),
            };
            let key = format!("adaptation.{path}");
            let set = |sources: Sources| sources.with_flag("--set", &key, &other);
            let config = grid_files::ad_hoc(GridShape::default(), set).unwrap().value;
            let settings = serde_json::to_value(job_params(&config).settings).unwrap();
            let pointer = format!("/{}", path.replace('.', "/"));
            let mut expected = defaults.clone();
            *expected.pointer_mut(&pointer).unwrap() = other;
            assert_eq!(settings, expected, "{path}");
            tried += 1;
        };
        for (name, default) in defaults.as_object().unwrap() {
            match default.as_object() {
                _ if name == "period_s" => {}
                Some(inner) => {
                    inner.iter().for_each(|(key, d)| try_out(&format!("{name}.{key}"), d));
                }
                None => try_out(name, default),
            }
        }
        assert!(tried > 30, "{tried}");
    }

    #[test]
    fn contradictions_are_reported_together_before_the_start() {
        let loaded = |set: &[(&str, &str)]| {
            let with = |mut sources: Sources| {
                for (key, value) in set {
                    sources = sources.with_flag("--set", &format!("adaptation.{key}"), value);
                }
                sources
            };
            let config = grid_files::ad_hoc(GridShape::default(), with).unwrap().value;
            let params = job_params(&config);
            (config, params)
        };
        let shape = |text: &str| Some(text.parse::<GridShape>().unwrap());
        let (config, params) = loaded(&[
            ("e_min", "0.6"),
            ("slow_below", "2"),
            ("min_nodes", "8"),
            ("max_processors", "5"),
        ]);
        let message = check_start(&config, &params, shape("4x3")).unwrap_err();
        assert_eq!(message.exit, springtide_cli::exit::Exit::Usage);
        for part in [
            "e_min (0.6) must be below e_max (0.5)",
            "slow_below is 2",
            "minimum (8 processors) is above its maximum (5 processors)",
            "minimum (8 processors) is above what the grid has (6 processors)",
            "--start 4x3 names 4 clusters, the grid has 3",
            "--start 4x3 is more than cluster ams has, 2",
            "--start 4x3 is above the job's maximum (5 processors)",
        ] {
            assert!(message.message.contains(part), "{part} is not in\n{message}");
        }
        let names = |start: Option<GridShape>, set: &[(&str, &str)]| {
            let (config, params) = loaded(set);
            check_start(&config, &params, start).unwrap().map(|node_counts| {
                node_counts
                    .iter()
                    .map(|(name, n)| format!("{name} {n}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            })
        };
        assert_eq!(names(None, &[]).as_deref(), Some("ams 2, bud 2, del 2"));
        assert_eq!(names(shape("2x1"), &[]).as_deref(), Some("ams 1, del 1"));
        // Fewer than exist: the scheduler chooses.
        assert_eq!(names(None, &[("max_nodes", "4")]), None);
    }

    #[test]
    fn a_nodes_links_are_those_of_its_cluster() {
        let text = "node = \"ams-1\"\ncluster = \"ams\"\n[head]\naddress = \"127.0.0.1:1\"\n\
        [identity]\n\
        certificate = \"node.pem\"\nkey = \"node.key\"\nca = \"ca.pem\"\n\
        [[link]]\nbetween = [\"del\", \"ams\"]\nrtt = \"20ms\"\nbandwidth = \"8Mbit/s\"\n\
        congestion = \"bbr\"\n\
        [[link]]\nbetween = [\"del\", \"bud\"]\n";
        let config = load::<NodeConfig>(&Sources::of_text("node.toml", text)).unwrap().value;
        let links = node_net(&config).links;
        assert_eq!(links.len(), 1);
        let expected =
            LinkPolicy { rtt_ms: 20.0, bandwidth: 1e6, congestion: net::Congestion::Bbr };
        assert_eq!(links[&ClusterId::from("del")], expected);
        let message = describe(&config.link[0], &config.net);
        assert!(message.starts_with("link del - ams: 20ms round trip, 8Mbit/s, bbr;"), "{message}");
    }
}
