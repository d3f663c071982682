//! From the config's sections to the settings of the runtime.
//!
//! Must not know commands.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use springtide_actors::job::{JobParams, StealMode};
use springtide_runtime::config::{Congestion, GridConfig, NetSection, Steal, WorkSection};
use springtide_runtime::net::{self, LinkPolicy, NetConfig};

use crate::exit::Failed;

fn congestion(choice: Congestion) -> net::Congestion {
    match choice {
        Congestion::Cubic => net::Congestion::Cubic,
        Congestion::Bbr => net::Congestion::Bbr,
        Congestion::NewReno => net::Congestion::NewReno,
    }
}

/// The network of a process.
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
    net.links = BTreeMap::new();
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
