//! Changes of links for actors: the peers whose link went up or down since the last query.
//!
//! Only the latest change of each peer is kept, so that the queue is bounded by the number of
//! peers. This module does not know the consequences.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use springtide_runtime::id::{NodeId, Peer};
use springtide_runtime::net::{LinkError, NetworkHandler, Router};
use springtide_runtime::wire::Kind;
use tokio::sync::Notify;

/// State of the link to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// The link is up.
    Up,
    /// The link is down, for this reason.
    Down(LinkError),
}

/// Changes of a node's links, for one listener.
#[derive(Debug, Default)]
pub struct LinkChanges {
    news: Mutex<BTreeMap<NodeId, LinkChange>>,
    changed: Notify,
}

impl LinkChanges {
    /// Registers a listener at `router`. `listener` distinguishes the listeners of one node.
    pub fn listen(router: &Router, listener: LinkListener) -> Arc<LinkChanges> {
        let links = Arc::new(LinkChanges::default());
        // A router reports link events to every inbox with a range of kinds; no message has these
        // kinds.
        let kind = Kind(u16::MAX - listener as u16);
        router.route(kind..=kind, links.clone());
        links
    }

    /// Waits for changes and returns them all, in order of name.
    pub async fn next(&self) -> BTreeMap<NodeId, LinkChange> {
        loop {
            let changed = self.changed.notified();
            let news = std::mem::take(&mut *self.lock());
            if !news.is_empty() {
                return news;
            }
            changed.await;
        }
    }

    fn put(&self, peer: &Peer, link: LinkChange) {
        self.lock().insert(peer.node.clone(), link);
        self.changed.notify_one();
    }

    /// Each change of the map is a single step, so a panic cannot leave it inconsistent.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, LinkChange>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener to the links of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum LinkListener {
    /// The scheduler, which watches clients.
    Scheduler,
    /// The client, which watches its scheduler and coordinators.
    Client,
    /// The node's assembly, which watches its head.
    Node,
}

impl NetworkHandler for LinkChanges {
    fn frame(&self, _from: &Peer, _kind: Kind, _body: Bytes) {}

    fn up(&self, peer: &Peer) {
        self.put(peer, LinkChange::Up);
    }

    fn down(&self, peer: &Peer, why: &LinkError) {
        self.put(peer, LinkChange::Down(why.clone()));
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::Incarnation;

    use super::*;

    #[actix_rt::test]
    async fn the_latest_change_of_a_peer_is_returned_once() {
        let router = Router::default();
        let links = LinkChanges::listen(&router, LinkListener::Client);
        let other = LinkChanges::listen(&router, LinkListener::Scheduler);
        let peer = |node: &str| Peer {
            node: node.into(),
            incarnation: Incarnation(1),
            cluster: "ams".into(),
        };
        router.up(&peer("b"));
        router.down(&peer("b"), &"reset".into());
        router.up(&peer("a"));
        let expected = BTreeMap::from([
            ("a".into(), LinkChange::Up),
            ("b".into(), LinkChange::Down("reset".into())),
        ]);
        assert_eq!(links.next().await, expected);
        assert_eq!(other.next().await, expected);
        let waiting = links.next();
        let later = async { router.up(&peer("c")) };
        let (news, ()) = tokio::join!(waiting, later);
        assert_eq!(news.keys().map(NodeId::as_str).collect::<Vec<_>>(), ["c"]);
    }
}
