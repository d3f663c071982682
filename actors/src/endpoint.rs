//! Common parts of every process of a grid: the network's handle, the hub of its published actors,
//! and the router between them.
//!
//! This module does not know roles.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use bytes::Bytes;
use springtide_runtime::event::{Event, Recorder, wall_clock_us};
use springtide_runtime::id::{Incarnation, Peer};
use springtide_runtime::net::tls::NodeIdentity;
use springtide_runtime::net::{
    AsyncUdpSocket, BAN_DURATION, Net, NetConfig, NetError, NetworkHandler, Router,
};
use springtide_runtime::remote::Hub;
use springtide_runtime::wire::Kind;
use tokio::time::Instant;

use crate::incarnation::Notices;

/// Maximum number of recorded events that wait to be sent.
const FACTS_MAX: usize = 4096;

/// A router reports link events to every inbox with a range of kinds. No message and no
/// `links::LinkListener` has this kind.
const INCIDENTS: Kind = Kind(u16::MAX - 100);

/// Records peers' violations of the protocol.
struct ViolationRecorder(Recorder);

impl NetworkHandler for ViolationRecorder {
    fn frame(&self, _from: &Peer, _kind: Kind, _body: Bytes) {}

    fn violation(&self, peer: &Peer, why: &str, banned: bool) {
        let consequence = if banned {
            format!("its links are refused for {} s", BAN_DURATION.as_secs())
        } else {
            "its link is closed".to_owned()
        };
        let what = format!("{peer} broke the protocol ({why}): {consequence}");
        self.0.record(Event::Fault { part: "net".to_owned(), what });
    }
}

/// A process's access to the grid. Belongs to the arbiter that created it.
#[derive(Clone)]
pub struct Endpoint {
    /// Handle of the network.
    pub net: Net,
    /// Hub of the published actors.
    pub hub: Arc<Hub>,
    /// Routes frames by their kind.
    pub router: Arc<Router>,
    /// Recorder of this process's events.
    pub recorder: Recorder,
    /// Notices of peers that know a later incarnation of this node.
    pub notices: Notices,
}

impl Endpoint {
    /// Opens a QUIC endpoint. No frame is sent or received before [`Endpoint::start`], so that
    /// actors can be published first.
    ///
    /// # Errors
    /// As [`Net::quic`].
    pub fn quic(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
    ) -> Result<Self, NetError> {
        Ok(Self::with_net(Net::quic(config, identity, incarnation)?, wall_clock_us()))
    }

    /// Opens a QUIC endpoint over the socket that `wrap` makes of the bound UDP socket.
    ///
    /// # Errors
    /// As [`Net::quic_over`].
    pub fn quic_over(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>>,
    ) -> Result<Self, NetError> {
        Ok(Self::with_net(Net::quic_over(config, identity, incarnation, wrap)?, wall_clock_us()))
    }

    /// An endpoint over this network, whose records have no wall-clock time.
    pub fn over(net: Net) -> Self {
        Self::with_net(net, None)
    }

    fn with_net(net: Net, began_unix_us: Option<u64>) -> Self {
        let hub = Hub::new(net.clone());
        let router = Arc::new(Router::default());
        router.route(Hub::KINDS, hub.clone());
        let me = net.me();
        let (node, start) = (me.node.clone(), Instant::now());
        let recorder = Recorder::dated(node, me.incarnation, start, began_unix_us, FACTS_MAX);
        let incidents = Arc::new(ViolationRecorder(recorder.clone()));
        router.route(INCIDENTS..=INCIDENTS, incidents);
        let denied = recorder.clone();
        hub.observe_denials(move |denial| {
            let (peer, message, why) = (&denial.from.peer, denial.message, denial.why);
            let mut what = format!("{peer} sent {message}, which was refused: {why}");
            if denial.suppressed > 0 {
                what += &format!("; {} more refusals are not logged", denial.suppressed);
            }
            denied.record(Event::Fault { part: "admission".to_owned(), what });
        });
        let notices = Notices::listen(&router);
        Self { net, hub, router, recorder, notices }
    }

    /// Starts to accept links.
    ///
    /// # Panics
    /// Panics if called twice.
    pub fn start(&self) {
        self.net.start(self.router.clone());
    }
}
