//! Incarnations of this process's node, and notices of peers that know a later one.
//!
//! This module knows neither roles nor messages.

pub use springtide_base::incarnation::*;
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::{NetworkHandler, Router};
use springtide_runtime::wire::Kind;
use tokio::sync::watch;

/// A router reports link events to every inbox with a range of kinds; no message has this kind.
const NOTICES: Kind = Kind(u16::MAX - 101);

/// A peer knows a later incarnation of this process's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The peer that refused.
    pub peer: NodeId,
    /// Incarnation known to the peer; absent if an older version refused.
    pub known: Option<Incarnation>,
}

/// Receives the latest notice.
#[derive(Clone, Debug)]
pub struct Notices(watch::Receiver<Option<Notice>>);

struct Listener(watch::Sender<Option<Notice>>);

impl NetworkHandler for Listener {
    fn frame(&self, _: &Peer, _: Kind, _: bytes::Bytes) {}

    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        tracing::info!(%peer, ?known, "a peer knows a later incarnation of this node");
        self.0.send_replace(Some(Notice { peer: peer.clone(), known }));
    }
}

impl Notices {
    /// Registers at `router`. A router has one listener.
    pub(crate) fn listen(router: &Router) -> Self {
        let (sender, receiver) = watch::channel(None);
        router.route(NOTICES..=NOTICES, std::sync::Arc::new(Listener(sender)));
        Self(receiver)
    }

    /// Waits for a new notice. Never completes once the router is dropped.
    pub async fn next(&mut self) -> Notice {
        loop {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(notice) = self.0.borrow_and_update().clone() {
                return notice;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_latest_notice_is_received_once() {
        let router = Router::default();
        let mut notices = Notices::listen(&router);
        router.superseded(&"a".into(), Some(Incarnation(3)));
        router.superseded(&"b".into(), None);
        assert_eq!(notices.next().await, Notice { peer: "b".into(), known: None });
        assert!(poll_once(notices.next()).is_none());
    }

    /// Returns the value of a future that is ready.
    fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
