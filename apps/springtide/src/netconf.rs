//! From the config's sections to the settings of the runtime.
//!
//! Must not know commands.

use std::net::SocketAddr;

use springtide_actors::job::{JobParams, StealMode};
use springtide_runtime::config::{
    Congestion, GridConfig, LinkSection, NetSection, NodeConfig, Steal, WorkSection,
};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::{self, LinkPolicy, NetConfig};

use crate::exit::Failed;

fn congestion(choice: Congestion) -> net::Congestion {
    match choice {
        Congestion::Cubic => net::Congestion::Cubic,
        Congestion::Bbr => net::Congestion::Bbr,
        Congestion::NewReno => net::Congestion::NewReno,
    }
}

/// What a link is set to; `section` is the one of the whole process.
pub fn policy(link: &LinkSection, section: &NetSection) -> LinkPolicy {
    LinkPolicy {
        rtt_ms: link.rtt.get().as_secs_f64() * 1e3,
        bandwidth: link.bandwidth.bytes_per_second(),
        congestion: congestion(link.congestion.unwrap_or(section.congestion)),
    }
}

/// What follows from a link's expectations, for people.
pub fn describe(link: &LinkSection, section: &NetSection) -> String {
    let policy = policy(link, section);
    format!(
        "link {} - {}: {} round trip, {}, {}; a stream's window is {}, bulk transfers begin with {}, a steal is given up \
         after {:.0} s",
        link.between.0,
        link.between.1,
        link.rtt,
        link.bandwidth,
        link.congestion.unwrap_or(section.congestion),
        crate::report::size(u64::from(policy.stream_window())),
        crate::report::size(policy.bulk_start() as u64),
        policy.steal_timeout().as_secs_f64(),
    )
}

/// The network of a node.
pub fn node_net(config: &NodeConfig) -> NetConfig {
    let mut net = net(&config.net);
    let links = config.link.iter().filter_map(|link| {
        let other = link.other_end(config.cluster.as_str())?;
        Some((ClusterId::from(other.as_str()), policy(link, &config.net)))
    });
    net.links = links.collect();
    net
}

/// The network of a process, without the links to certain clusters.
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

/// The network of the head, or of a client of it.
pub fn head_net(config: &GridConfig, bind: SocketAddr) -> NetConfig {
    let mut net = net(&config.net);
    net.bind = bind;
    net.ports = None;
    net.advertise = None;
    net
}

/// How jobs are run.
pub fn job_params(config: &GridConfig) -> JobParams {
    let period = u64::try_from(config.stats.period.get().as_millis()).unwrap_or(u64::MAX);
    JobParams { period_ms: period, ..work_params(&config.work) }
}

fn work_params(work: &WorkSection) -> JobParams {
    JobParams {
        steal: match work.steal {
            Steal::ClusterAware => StealMode::ClusterAware,
            Steal::Random => StealMode::Random,
        },
        stack_bytes: work.stack.bytes(),
        nesting_bound: work.nesting.get(),
        ..JobParams::default()
    }
}

/// The address behind a name and port.
///
/// # Errors
/// The name is not known, or has no address.
pub async fn resolve(at: &springtide_runtime::config::HostPort) -> Result<SocketAddr, Failed> {
    let failed = |why: String| Failed::failure(format!("cannot find the head at {at}: {why}"));
    let found = tokio::net::lookup_host((at.host.as_str(), at.port)).await;
    let mut found = found.map_err(|error| failed(error.to_string()))?;
    found.next().ok_or_else(|| failed("the name has no address".to_owned()))
}

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{Sources, load};

    use super::*;

    #[test]
    fn a_nodes_links_are_those_of_its_cluster() {
        let text = "node = \"ams-1\"\ncluster = \"ams\"\n[head]\naddress = \"127.0.0.1:1\"\n[identity]\n\
            certificate = \"node.pem\"\nkey = \"node.key\"\nca = \"ca.pem\"\n\
            [[link]]\nbetween = [\"del\", \"ams\"]\nrtt = \"20ms\"\nbandwidth = \"8Mbit/s\"\ncongestion = \"bbr\"\n\
            [[link]]\nbetween = [\"del\", \"bud\"]\n";
        let config = load::<NodeConfig>(&Sources::of_text("node.toml", text)).unwrap().value;
        let links = node_net(&config).links;
        assert_eq!(links.len(), 1);
        let expected =
            LinkPolicy { rtt_ms: 20.0, bandwidth: 1e6, congestion: net::Congestion::Bbr };
        assert_eq!(links[&ClusterId::from("del")], expected);
        let told = describe(&config.link[0], &config.net);
        assert!(told.starts_with("link del - ams: 20ms round trip, 1MB/s, bbr;"), "{told}");
    }
}
