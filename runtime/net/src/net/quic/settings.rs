//! Converts the network's settings to quinn's, and opens the socket.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::udp::{UdpSockRef, UdpSocketState};
use quinn::{IdleTimeout, MtuDiscoveryConfig, TimeSource, TransportConfig, VarInt};

use super::NetError;
use super::congestion::MeasuredConfig;
use crate::id::ClusterId;
use crate::net::Buffers;
use crate::net::config::{
    Congestion, IDLE_TIMEOUT, KEEP_ALIVE, LinkPolicy, MAX_INCOMING, NetConfig, RECEIVE_WINDOW,
    SEND_WINDOW,
};
use crate::net::tls::{NodeIdentity, TlsError};

/// Number of one-way streams: one for each class other than control.
pub(super) const UNI_STREAMS: u8 = 2;

/// Maximum number of buffered bytes of a caller before admission, enough for its first packets.
/// quinn's default is 10 MiB.
pub(in crate::net) const INCOMING_BYTES: u64 = 16 << 10;
/// Maximum number of buffered bytes of all such callers. quinn's default is 100 MiB.
pub(in crate::net) const ALL_INCOMING_BYTES: u64 = 4 << 20;

/// quinn's settings for both sides of a link, by cluster; `None` is the default policy.
pub(super) struct Configs {
    pub dial: BTreeMap<Option<ClusterId>, quinn::ClientConfig>,
    pub accept: BTreeMap<Option<ClusterId>, Arc<quinn::ServerConfig>>,
}

impl Configs {
    /// Builds the settings. `calendar` replaces the system's date.
    pub fn new(
        config: &NetConfig,
        identity: &NodeIdentity,
        calendar: Option<Arc<dyn TimeSource>>,
    ) -> Result<Self, TlsError> {
        let unusable =
            |_| rustls::Error::General("no cipher suite for QUIC's first packets".into());
        let client = QuicClientConfig::try_from(identity.client_config()?).map_err(unusable)?;
        let server = QuicServerConfig::try_from(identity.server_config()?).map_err(unusable)?;
        let (client, server) = (Arc::new(client), Arc::new(server));
        let mut configs = Self { dial: BTreeMap::new(), accept: BTreeMap::new() };
        let named = config.links.iter().map(|(cluster, policy)| (Some(cluster.clone()), policy));
        for (cluster, policy) in named.chain([(None, &config.link)]) {
            let transport = Arc::new(transport(config, policy));
            let mut dial = quinn::ClientConfig::new(client.clone());
            dial.transport_config(transport.clone());
            let mut accept = quinn::ServerConfig::with_crypto(server.clone());
            accept.transport_config(transport).migration(false).max_incoming(MAX_INCOMING);
            accept
                .incoming_buffer_size(INCOMING_BYTES)
                .incoming_buffer_size_total(ALL_INCOMING_BYTES);
            if let Some(calendar) = &calendar {
                accept.time_source(calendar.clone());
            }
            configs.dial.insert(cluster.clone(), dial);
            configs.accept.insert(cluster, Arc::new(accept));
        }
        Ok(configs)
    }

    pub fn dial(&self, cluster: &ClusterId) -> quinn::ClientConfig {
        pick(&self.dial, Some(cluster)).clone()
    }

    pub fn accept(&self, cluster: Option<&ClusterId>) -> Arc<quinn::ServerConfig> {
        pick(&self.accept, cluster).clone()
    }
}

fn pick<'a, T>(policies: &'a BTreeMap<Option<ClusterId>, T>, cluster: Option<&ClusterId>) -> &'a T {
    policies
        .get(&cluster.cloned())
        .or_else(|| policies.get(&None))
        .expect("the default policy is always there")
}

fn transport(config: &NetConfig, policy: &LinkPolicy) -> TransportConfig {
    let congestion: Arc<dyn ControllerFactory + Send + Sync> = match policy.congestion {
        Congestion::Cubic => Arc::new(CubicConfig::default()),
        Congestion::Bbr => Arc::new(BbrConfig::default()),
        Congestion::NewReno => Arc::new(NewRenoConfig::default()),
        Congestion::Measured => Arc::new(MeasuredConfig::default()),
    };
    let idle = IdleTimeout::try_from(IDLE_TIMEOUT).expect("15 s are a valid timeout");
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1)) // the control stream
        .max_concurrent_uni_streams(VarInt::from(UNI_STREAMS))
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .stream_receive_window(VarInt::from_u32(policy.stream_window()))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW))
        .send_window(SEND_WINDOW)
        .send_fairness(false)
        .initial_rtt(policy.initial_rtt())
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(congestion)
        .enable_segmentation_offload(config.gso)
        .mtu_discovery_config(config.mtu_discovery.then(packet_sizes));
    transport
}

/// The search for the path MTU.
///
/// quinn's default approaches 1452 bytes in four probes, which cost 5.6 kB in each direction per
/// link: more than the handshake. With this minimum change it probes 1452 bytes first, then 1325.
fn packet_sizes() -> MtuDiscoveryConfig {
    let mut sizes = MtuDiscoveryConfig::default();
    sizes.minimum_change(127);
    sizes
}

/// Opens the socket on `bind`, or on the first free port of `ports` if `bind` has port 0.
pub(super) fn socket(config: &NetConfig) -> Result<(UdpSocket, Option<Buffers>), NetError> {
    let bind = config.bind;
    let range = match config.ports {
        Some((first, last)) if bind.port() == 0 => first..=last,
        _ => bind.port()..=bind.port(),
    };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in range.clone() {
        match UdpSocket::bind(SocketAddr::new(bind.ip(), port)) {
            Ok(socket) => {
                let buffers = raise_buffers(&socket, config.socket_buffer);
                return Ok((socket, buffers));
            }
            Err(error) => last = error,
        }
    }
    let what = if range.start() == range.end() {
        SocketAddr::new(bind.ip(), *range.start()).to_string()
    } else {
        format!("{} ports {} to {}", bind.ip(), range.start(), range.end())
    };
    Err(NetError::Bind { address: what, source: last })
}

/// Requests larger socket buffers, of which the system may grant less. Its usual default loses
/// packets even on loopback.
pub(in crate::net) fn raise_buffers(socket: &UdpSocket, bytes: usize) -> Option<Buffers> {
    let sock = || UdpSockRef::from(socket);
    let granted = UdpSocketState::new(sock()).and_then(|state| {
        let _ = state.set_recv_buffer_size(sock(), bytes);
        let _ = state.set_send_buffer_size(sock(), bytes);
        Ok((state.recv_buffer_size(sock())?, state.send_buffer_size(sock())?))
    });
    match granted {
        Ok((receive, send)) => {
            tracing::info!(asked = bytes, receive, send, "UDP socket buffers granted, in bytes");
            Some(Buffers { asked: bytes as u64, receive: receive as u64, send: send as u64 })
        }
        Err(error) => {
            tracing::warn!(%error, "the UDP socket's buffers could not be raised");
            None
        }
    }
}
