//! The network's settings, with the reasons for their defaults.
//!
//! Plain data with serde, independent of quinn's types.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bulk::BulkConfig;
use super::hello::Protocols;
use crate::id::ClusterId;

/// A link without traffic for this time is closed. Both sides must agree, so it is not a setting.
///
/// It only ends links to hosts that vanished. Membership has its own, faster heartbeats to detect
/// lost nodes.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of keep-alive packets on a quiet link. Two of them may be lost.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
const _: () = assert!(KEEP_ALIVE.as_millis() * 3 <= IDLE_TIMEOUT.as_millis());

/// Bytes that one peer may have in flight to this node, over all its streams. It bounds this node's
/// buffers.
pub const RECEIVE_WINDOW: u32 = 16 << 20;
/// Bytes that this node keeps for one peer until they are acknowledged. Bulk transfers must stay
/// well below, or the other classes wait.
pub const SEND_WINDOW: u64 = 16 << 20;
/// The share of a link's flow control that bulk transfers may use.
const BULK_WINDOW_MAX: usize = RECEIVE_WINDOW as usize / 2;
/// Maximum number of handshakes under way; others are refused. An unfinished one takes about 40
/// KiB.
pub const MAX_INCOMING: usize = 1536;
/// Maximum number of handshakes under way with one host.
pub const HOST_INCOMING: usize = 256;
/// Number of handshakes under way from which callers must validate their address. Validation costs
/// a round trip, so it is skipped below this number.
pub const UNVALIDATED_INCOMING: usize = 64;

/// The network settings of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetConfig {
    /// Address to listen on. Port 0 takes a free one, or the first free one of `ports`.
    pub bind: SocketAddr,
    /// First and last port to try if `bind` has port 0.
    pub ports: Option<(u16, u16)>,
    /// Address under which others reach this node, if it differs from `bind`. Port 0 stands for the
    /// bound port.
    pub advertise: Option<SocketAddr>,
    /// Whether to send several packets by one system call (UDP segmentation offload), which triples
    /// the bulk rate. Some virtual network cards announce it and fail.
    pub gso: bool,
    /// Whether to probe for packets larger than 1200 bytes. Disable it for paths that drop large
    /// packets silently.
    pub mtu_discovery: bool,
    /// Requested size of the socket's send and receive buffers in bytes; the system may grant less.
    /// The usual default of 208 KiB loses packets even on loopback at full rate.
    pub socket_buffer: usize,
    /// Policy of links to clusters that `links` does not name.
    pub link: LinkPolicy,
    /// Policies of links to clusters, by name.
    pub links: BTreeMap<ClusterId, LinkPolicy>,
    /// Maximum number of frames in the queue of one peer and class. Further ones are refused with
    /// `SendError::Full`.
    pub queue_frames: usize,
    /// Maximum number of bytes in the queue of one peer and class, with headers.
    pub queue_bytes: usize,
    /// Bounds of bulk transfers. `window_bytes` is limited to half of `RECEIVE_WINDOW`, so that
    /// transfers never exhaust the flow control that the other classes share.
    pub bulk: BulkConfig,
    /// Timeout of one attempt to open a link, from the first packet to the welcome, in
    /// milliseconds.
    pub connect_timeout_ms: u64,
    /// Number of attempts to open a link before queued frames are returned as undelivered.
    pub attempts: u32,
    /// Delay before the second attempt in milliseconds. It doubles up to 2 s, and each delay is
    /// shortened by up to half at random.
    pub backoff_ms: u64,
    /// Time to send queued frames when the endpoint closes, in milliseconds.
    pub close_grace_ms: u64,
    /// Minor versions of the protocol that this node speaks. Not configurable: tests set it to
    /// imitate other builds.
    #[serde(skip)]
    pub protocols: Protocols,
    /// Whether this process forgets the incarnation of a node after its link was down for a minute.
    /// Processes that do not decide which incarnation is current set it.
    pub forgets_nodes: bool,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            ports: None,
            advertise: None,
            gso: true,
            mtu_discovery: true,
            socket_buffer: 4 << 20,
            link: LinkPolicy::default(),
            links: BTreeMap::new(),
            queue_frames: 8192,
            queue_bytes: 4 << 20,
            bulk: BulkConfig { window_bytes: BULK_WINDOW_MAX, ..BulkConfig::default() },
            connect_timeout_ms: 5000,
            attempts: 6,
            backoff_ms: 50,
            close_grace_ms: 1000,
            protocols: Protocols::default(),
            forgets_nodes: false,
        }
    }
}

/// Expected properties of the links to a cluster. Windows and initial timeouts derive from them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkPolicy {
    /// Expected round-trip time in milliseconds, from which the first loss timeout is estimated. An
    /// estimate three times too large costs seconds on the first loss, one too small a spurious
    /// retransmission.
    pub rtt_ms: f64,
    /// Expected bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Congestion control of the links.
    pub congestion: Congestion,
}

impl Default for LinkPolicy {
    fn default() -> Self {
        // 100 Mbit/s over 100 ms, as quinn assumes. A local link measures its own round-trip time
        // from the second packet on.
        Self { rtt_ms: 100.0, bandwidth: 12.5e6, congestion: Congestion::Measured }
    }
}

/// Congestion control of a link.
///
/// Measured over 50 ms and 100 Mbit/s: without loss, Cubic and NewReno fill the link, and Bbr
/// nearly does. With 0.1 % loss Cubic falls to a quarter, and Bbr keeps two thirds. On a fast link
/// without loss Bbr halves the rate. Measured equals Cubic without loss and exceeds Bbr with loss
/// (BENCHMARKS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Cubic: fills links without loss.
    Cubic,
    /// BBR: for wide-area links with random loss.
    Bbr,
    /// NewReno: additive increase, multiplicative decrease.
    NewReno,
    /// Cubic that distinguishes random loss from congestion by the round-trip time. The default.
    #[default]
    Measured,
}

impl LinkPolicy {
    /// Receive window of one stream in bytes: twice the expected bandwidth-delay product.
    ///
    /// A sender that waits for window updates then still fills the link. At least quinn's default
    /// of 1.25 MB, at most the connection's window.
    pub fn stream_window(&self) -> u32 {
        const MIN: f64 = 1.25e6;
        let product = self.rtt_ms / 1e3 * self.bandwidth;
        clamp(2.0 * product, MIN, f64::from(RECEIVE_WINDOW)) as u32
    }

    /// Initial window of bulk transfers in bytes: a quarter of the expected bandwidth-delay
    /// product.
    ///
    /// If the expectation is correct, the window needs two doublings fewer. If not, the first burst
    /// queues for a quarter of an expected round trip, once.
    pub fn bulk_start(&self) -> usize {
        clamp(self.rtt_ms / 1e3 * self.bandwidth / 4.0, 0.0, BULK_WINDOW_MAX as f64) as usize
    }

    /// Timeout of a steal over such a link, clamped to 5 to 60 s.
    ///
    /// It is 40 round trips plus the transmission time of the largest usual task. The lower bound
    /// keeps busy victims from being mistaken for lost ones.
    pub fn steal_timeout(&self) -> Duration {
        const TASK: f64 = (16 << 20) as f64;
        let seconds = 40.0 * self.rtt_ms / 1e3 + TASK / self.bandwidth.max(1.0);
        Duration::from_secs_f64(clamp(seconds, 5.0, 60.0))
    }

    /// Initial estimate of the round-trip time, clamped to 100 ms to 3 s.
    ///
    /// A packet counts as lost after three estimates, and first packets are long. A shorter
    /// estimate caused repeated retransmissions of packets that waited in the queue of a full link.
    /// On an uplink of 100 kB/s, 36 nodes that expected 4 ms filled 70 % of the link with them.
    pub fn initial_rtt(&self) -> Duration {
        Duration::from_secs_f64(clamp(self.rtt_ms / 1e3, 0.1, 3.0))
    }
}

/// Clamps a value; NaN gives the lower bound.
fn clamp(value: f64, min: f64, max: f64) -> f64 {
    if value.is_nan() { min } else { value.clamp(min, max) }
}

impl NetConfig {
    /// The policy of links to a cluster.
    pub fn policy(&self, cluster: Option<&ClusterId>) -> &LinkPolicy {
        cluster.and_then(|cluster| self.links.get(cluster)).unwrap_or(&self.link)
    }

    pub(crate) fn bulk(&self) -> BulkConfig {
        let window_bytes = self.bulk.window_bytes.min(BULK_WINDOW_MAX);
        BulkConfig { window_bytes, ..self.bulk.clone() }
    }

    /// Maximum number of bytes in a queue of the bulk class: the whole window with headers, so that
    /// the bulk layer's own bound applies first.
    pub(crate) fn bulk_queue_bytes(&self) -> usize {
        self.queue_bytes.max(self.bulk().window_bytes / 8 * 9)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn close_grace(&self) -> Duration {
        Duration::from_millis(self.close_grace_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_the_expected_link() {
        let policy = |rtt_ms, bandwidth| LinkPolicy { rtt_ms, bandwidth, ..LinkPolicy::default() };
        assert_eq!(policy(0.1, 1e8).stream_window(), 1_250_000, "never below quinn's default");
        assert_eq!(policy(100.0, 50e6).stream_window(), 10_000_000);
        assert_eq!(policy(500.0, 1e9).stream_window(), RECEIVE_WINDOW);
        assert_eq!(policy(100.0, 10e6).bulk_start(), 250_000);
        assert_eq!(policy(1000.0, 1e9).bulk_start(), BULK_WINDOW_MAX);
        assert_eq!(policy(1.0, 1e9).steal_timeout(), Duration::from_secs(5));
        assert_eq!(policy(250.0, 1e9).steal_timeout().as_secs(), 10);
        assert_eq!(policy(1.0, 1.0).steal_timeout(), Duration::from_secs(60));
        let nonsense = policy(f64::NAN, f64::NAN);
        assert_eq!(nonsense.stream_window(), 1_250_000);
        assert_eq!(nonsense.bulk_start(), 0);
        assert_eq!(nonsense.steal_timeout(), Duration::from_secs(5));
        assert_eq!(nonsense.initial_rtt(), Duration::from_millis(100));
        assert_eq!(policy(4.0, 1e6).initial_rtt(), Duration::from_millis(100));
        assert_eq!(policy(600.0, 1e6).initial_rtt(), Duration::from_millis(600));
    }

    #[test]
    fn settings_are_read_from_toml() {
        let text = r#"
            bind = "0.0.0.0:0"
            ports = [7400, 7499]
            gso = false
            [link]
            rtt_ms = 1
            [links.lyon]
            rtt_ms = 20
            bandwidth = 1e6
            congestion = "bbr"
        "#;
        let config: NetConfig = toml::from_str(text).unwrap();
        assert_eq!(config.ports, Some((7400, 7499)));
        assert_eq!(config.policy(Some(&"lyon".into())).congestion, Congestion::Bbr);
        assert_eq!(config.policy(Some(&"ams".into())).rtt_ms, 1.0);
        assert_eq!(config.queue_frames, NetConfig::default().queue_frames);
        assert!(toml::from_str::<NetConfig>("bnid = 1").is_err());
    }
}
