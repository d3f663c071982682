//! The network's settings, and why each default is what it is.
//!
//! Plain data with serde; must not know quinn's types.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bulk::BulkConfig;
use super::hello::Protocols;
use crate::id::ClusterId;

/// Without traffic for this long a link is dead. Both sides must agree, so it is not a setting. It only ends links to
/// hosts that vanished; who is dead is decided by the membership's own, faster heartbeat.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// A quiet link shows life this often; two may be lost on the way.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
const _: () = assert!(KEEP_ALIVE.as_millis() * 3 <= IDLE_TIMEOUT.as_millis());

/// Bytes that one peer may have in flight to this node, over all its streams: what a peer can make this node hold.
pub const RECEIVE_WINDOW: u32 = 16 << 20;
/// Bytes that this node keeps for one peer until they are acknowledged. Bulk transfers must stay well below, or the
/// other classes wait for room.
pub const SEND_WINDOW: u64 = 16 << 20;
/// Most of a link's flow control that bulk transfers may use.
const BULK_WINDOW_MAX: usize = RECEIVE_WINDOW as usize / 2;
/// Handshakes in progress at once; what comes on top is refused. Some 40 KiB each when they are never finished.
pub const MAX_INCOMING: usize = 1536;
/// The same of one host.
pub const HOST_INCOMING: usize = 256;
/// While so many are, each caller must show first that it is where it says. While few call that is a round trip and a packet each way
/// for nothing.
pub const UNSHOWN_INCOMING: usize = 64;

/// What the network of a node is set to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetConfig {
    /// Where to listen. Port 0 takes a free one, or the first free one of `ports`.
    pub bind: SocketAddr,
    /// First and last port to try when `bind` names none.
    pub ports: Option<(u16, u16)>,
    /// Where others reach this node, when that is not `bind`; port 0 stands for the port that was bound.
    pub advertise: Option<SocketAddr>,
    /// Send several packets by one system call (UDP segmentation offload): three times the bulk rate where it works. Some
    /// virtual network cards promise it and fail.
    pub gso: bool,
    /// Look for larger packets than 1200 bytes. Off for paths that drop large packets silently.
    pub mtu_discovery: bool,
    /// Size asked for the socket's send and receive buffers, in bytes; the system may grant less. The usual default of
    /// 208 KiB loses packets even on loopback at full rate.
    pub socket_buffer: usize,
    /// The link to every cluster that `links` does not name.
    pub link: LinkPolicy,
    /// The links to clusters by name.
    pub links: BTreeMap<ClusterId, LinkPolicy>,
    /// Frames that may wait to one peer in one class; a further one is refused (`SendError::Full`).
    pub queue_frames: usize,
    /// Bytes that may wait to one peer in one class, headers included.
    pub queue_bytes: usize,
    /// Bounds of bulk transfers. `window_bytes` is held to half of `RECEIVE_WINDOW`, so that transfers never use up the
    /// flow control that the other classes share.
    pub bulk: BulkConfig,
    /// Time for one attempt to open a link, from the first packet to the welcome, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Attempts to open a link before what is queued is given back.
    pub attempts: u32,
    /// Wait before the second attempt, in milliseconds; it doubles up to 2 s, and each wait is cut by up to half at random.
    pub backoff_ms: u64,
    /// Time to send what is queued when the endpoint closes, in milliseconds.
    pub close_grace_ms: u64,
    /// The minor versions of the protocol to speak. In no file: a build speaks what it speaks, and tests let it pass for another.
    #[serde(skip)]
    pub protocols: Protocols,
    /// Whether this process forgets the incarnation of a node whose link was down for a minute: so does
    /// one that does not decide which process of a node counts.
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

/// What is expected of the links to a cluster: windows and first timeouts are made from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkPolicy {
    /// Expected round trip in milliseconds. Also the first estimate of the timeout of a lost packet: three times too large
    /// costs seconds on the first loss, too small a spurious resend.
    pub rtt_ms: f64,
    /// Expected bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Which congestion control.
    pub congestion: Congestion,
}

impl Default for LinkPolicy {
    fn default() -> Self {
        // 100 Mbit/s over 100 ms: what quinn assumes too. A loopback or local link measures its own round trip from the
        // second packet on.
        Self { rtt_ms: 100.0, bandwidth: 12.5e6, congestion: Congestion::Measured }
    }
}

/// Congestion control of a link. Measured over 50 ms and 100 Mbit/s: without loss Cubic and NewReno fill the link and Bbr
/// nearly; with 0.1 % loss Cubic falls to a quarter and Bbr keeps two thirds; on a fast clean link Bbr halves the rate. Measured is
/// Cubic where nothing is lost, and better than Bbr where something is (BENCHMARKS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Fills links that lose nothing.
    Cubic,
    /// For wide-area links that lose packets at random.
    Bbr,
    /// The plain one.
    NewReno,
    /// Cubic that tells losses of the line from those of a full queue by the round trip. The default.
    #[default]
    Measured,
}

impl LinkPolicy {
    /// Receive window of one stream in bytes: twice the expected bandwidth-delay product, so that a sender that waits for
    /// the window's update fills the link all the same; at least quinn's default of 1.25 MB, at most the connection's.
    pub fn stream_window(&self) -> u32 {
        const LEAST: f64 = 1.25e6;
        let product = self.rtt_ms / 1e3 * self.bandwidth;
        within(2.0 * product, LEAST, f64::from(RECEIVE_WINDOW)) as u32
    }

    /// Bytes of a bulk transfer that may be under way before the first credit: a quarter of the expected bandwidth-delay
    /// product. Where the expectation is right, two doublings less are waited for; where it is not, the queue it makes is
    /// of one quarter of an expected round trip, once.
    pub fn bulk_start(&self) -> usize {
        within(self.rtt_ms / 1e3 * self.bandwidth / 4.0, 0.0, BULK_WINDOW_MAX as f64) as usize
    }

    /// When an unanswered steal over such a link is given up: 40 round trips, and the time that the largest usual task
    /// takes at the expected bandwidth; within 5 s (so that a busy victim is not taken for a lost one) and 60 s.
    pub fn steal_timeout(&self) -> Duration {
        const TASK: f64 = (16 << 20) as f64;
        let seconds = 40.0 * self.rtt_ms / 1e3 + TASK / self.bandwidth.max(1.0);
        Duration::from_secs_f64(within(seconds, 5.0, 60.0))
    }

    /// The first estimate of the round trip, kept within 100 ms and 3 s. Until it is measured, three of these pass before a packet is taken
    /// for lost, and first packets are long: with the round trip of an empty line they were sent again and again while they stood in the
    /// queue of a full one, and filled it (70 % of an uplink of 100 kB/s, of which 36 nodes had expected 4 ms).
    pub fn initial_rtt(&self) -> Duration {
        Duration::from_secs_f64(within(self.rtt_ms / 1e3, 0.1, 3.0))
    }
}

/// The value, kept within bounds; what is no number ends as the least.
fn within(value: f64, least: f64, most: f64) -> f64 {
    if value.is_nan() { least } else { value.clamp(least, most) }
}

impl NetConfig {
    /// The policy for links to a cluster.
    pub fn policy(&self, cluster: Option<&ClusterId>) -> &LinkPolicy {
        cluster.and_then(|cluster| self.links.get(cluster)).unwrap_or(&self.link)
    }

    pub(crate) fn bulk(&self) -> BulkConfig {
        let window_bytes = self.bulk.window_bytes.min(BULK_WINDOW_MAX);
        BulkConfig { window_bytes, ..self.bulk.clone() }
    }

    /// Bytes that may wait in the bulk class: all that the window lets out at once, with headers, so that the bulk layer's
    /// own bound is the one that holds.
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
