//! What every process of a grid has: the network's handle, the hub of its published actors, and the router between them.
//!
//! Must not know roles.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use bytes::Bytes;
use springtide_runtime::event::{Event, Recorder, wall_clock_us};
use springtide_runtime::id::{Incarnation, Peer};
use springtide_runtime::net::tls::NodeIdentity;
use springtide_runtime::net::{AsyncUdpSocket, BAN, Inbox, Net, NetConfig, NetError, Router};
use springtide_runtime::remote::Hub;
use springtide_runtime::wire::Kind;
use tokio::time::Instant;

use crate::incarnation::Notices;

/// Facts that wait in a process to be shipped.
const FACTS_MAX: usize = 4096;

/// A router tells of links whoever has a range of kinds; this number is no kind's, nor one of `links::Door`.
const INCIDENTS: Kind = Kind(u16::MAX - 100);

/// Records what peers do that they should not.
struct Incidents(Recorder);

impl Inbox for Incidents {
    fn frame(&self, _from: &Peer, _kind: Kind, _body: Bytes) {}

    fn struck(&self, peer: &Peer, why: &str, banned: bool) {
        let then = match banned {
            true => format!("its links are refused for {} s", BAN.as_secs()),
            false => "its link is closed".to_owned(),
        };
        let what = format!("{peer} broke the protocol ({why}): {then}");
        self.0.record(Event::Fault { part: "net".to_owned(), what });
    }
}

/// A process's door to the grid. Belongs to the arbiter that made it.
#[derive(Clone)]
pub struct Endpoint {
    /// The network.
    pub net: Net,
    /// The published actors.
    pub hub: Arc<Hub>,
    /// Who gets which kinds of frames.
    pub router: Arc<Router>,
    /// What happens here.
    pub recorder: Recorder,
    /// Peers that know a later incarnation of this node.
    pub notices: Notices,
}

impl Endpoint {
    /// Opens a QUIC endpoint. Nothing comes or goes before [`Endpoint::start`], so that actors can be published first.
    ///
    /// # Errors
    /// As [`Net::quic`].
    pub fn quic(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
    ) -> Result<Self, NetError> {
        Ok(Self::begun(Net::quic(config, identity, incarnation)?, wall_clock_us()))
    }

    /// The same over what `wrap` makes of the bound UDP socket.
    ///
    /// # Errors
    /// As [`Net::quic_over`].
    pub fn quic_over(
        config: NetConfig,
        identity: &NodeIdentity,
        incarnation: Incarnation,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>>,
    ) -> Result<Self, NetError> {
        Ok(Self::begun(Net::quic_over(config, identity, incarnation, wrap)?, wall_clock_us()))
    }

    /// An endpoint over this network, whose records bear no time of the wall clock.
    pub fn over(net: Net) -> Self {
        Self::begun(net, None)
    }

    fn begun(net: Net, began_unix_us: Option<u64>) -> Self {
        let hub = Hub::new(net.clone());
        let router = Arc::new(Router::default());
        router.on(Hub::KINDS, hub.clone());
        let me = net.me();
        let began = (Instant::now(), began_unix_us);
        let recorder = Recorder::dated(me.node.clone(), me.incarnation, began, FACTS_MAX);
        let incidents = Arc::new(Incidents(recorder.clone()));
        router.on(INCIDENTS..=INCIDENTS, incidents);
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

    /// Begins to take links.
    ///
    /// # Panics
    /// When called twice.
    pub fn start(&self) {
        self.net.start(self.router.clone());
    }
}
