//! News of links for actors: who went down since one last looked.
//!
//! The newest word on a peer replaces the one before, so that what waits is bounded by the number of peers. Must not know
//! what is done about it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use springtide_runtime::id::{NodeId, Peer};
use springtide_runtime::net::{Inbox, Router, Why};
use springtide_runtime::wire::Kind;
use tokio::sync::Notify;

/// What became of the link to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is up.
    Up,
    /// It is down, for this reason.
    Down(Why),
}

/// News of the links of a node, for one listener.
#[derive(Debug, Default)]
pub struct Links {
    news: Mutex<BTreeMap<NodeId, Link>>,
    changed: Notify,
}

impl Links {
    /// Listens to the links behind `router`. `door` tells listeners of one node apart.
    pub fn listen(router: &Router, door: Door) -> Arc<Links> {
        let links = Arc::new(Links::default());
        // A router tells of links whoever has a range of kinds; these numbers are no kind's.
        let kind = Kind(u16::MAX - door as u16);
        router.on(kind..=kind, links.clone());
        links
    }

    /// Waits for news and takes them all, in order of name.
    pub async fn next(&self) -> BTreeMap<NodeId, Link> {
        loop {
            let changed = self.changed.notified();
            let news = std::mem::take(&mut *self.lock());
            if !news.is_empty() {
                return news;
            }
            changed.await;
        }
    }

    fn put(&self, peer: &Peer, link: Link) {
        self.lock().insert(peer.node.clone(), link);
        self.changed.notify_one();
    }

    /// The map is whole after each step: a panic elsewhere does not spoil it.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Link>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who listens to the links of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Door {
    /// The scheduler: clients that go.
    Scheduler,
    /// The client: its scheduler or coordinator that goes.
    Client,
    /// The node's assembly: its head that goes.
    Node,
}

impl Inbox for Links {
    fn frame(&self, _from: &Peer, _kind: Kind, _body: Bytes) {}

    fn up(&self, peer: &Peer) {
        self.put(peer, Link::Up);
    }

    fn down(&self, peer: &Peer, why: &Why) {
        self.put(peer, Link::Down(why.clone()));
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::Incarnation;

    use super::*;

    #[actix_rt::test]
    async fn the_newest_word_on_a_peer_is_told_once() {
        let router = Router::default();
        let links = Links::listen(&router, Door::Client);
        let other = Links::listen(&router, Door::Scheduler);
        let peer = |node: &str| Peer {
            node: node.into(),
            incarnation: Incarnation(1),
            cluster: "ams".into(),
        };
        router.up(&peer("b"));
        router.down(&peer("b"), &"reset".into());
        router.up(&peer("a"));
        let expected =
            BTreeMap::from([("a".into(), Link::Up), ("b".into(), Link::Down("reset".into()))]);
        assert_eq!(links.next().await, expected);
        assert_eq!(other.next().await, expected);
        let waiting = links.next();
        let later = async { router.up(&peer("c")) };
        let (news, ()) = tokio::join!(waiting, later);
        assert_eq!(news.keys().map(NodeId::as_str).collect::<Vec<_>>(), ["c"]);
    }
}
