//! A handler of the network that dispatches to several handlers, each with its ranges of kinds.
//!
//! This module does not know the meaning of kinds.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use tokio::time::Instant;

use super::{LinkError, NetworkHandler, Undelivered};
use crate::id::{Incarnation, NodeId, Peer};
use crate::wire::Kind;

/// A [`NetworkHandler`] that dispatches payloads by kind, and reports links and transfers to all
/// handlers.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use springtide_net::net::{Net, NetworkHandler, Router};
/// # use springtide_net::wire::Kind;
/// # fn start(net: &Net, hub: Arc<dyn NetworkHandler>, steal_engine: Arc<dyn NetworkHandler>) {
/// let router = Arc::new(Router::default());
/// router.route(Kind::CALL..=Kind::TELL, hub);
/// router.route(Kind::STEAL_REQUEST..=Kind::TASK_ABANDON, steal_engine);
/// net.start(router);
/// # }
/// ```
#[derive(Default)]
pub struct Router {
    routes: RwLock<Vec<Route>>,
    stray: AtomicU64,
}

struct Route {
    kinds: RangeInclusive<Kind>,
    handler: Arc<dyn NetworkHandler>,
}

impl Router {
    /// Dispatches payloads of these kinds to `handler` from now on. May be called before and after
    /// the network has started.
    ///
    /// A handler gets each link event once, regardless of its number of ranges, in the order in
    /// which handlers were added.
    ///
    /// # Panics
    /// One of the kinds already has a handler: two users of one kind are a programming error.
    pub fn route(&self, kinds: RangeInclusive<Kind>, handler: Arc<dyn NetworkHandler>) {
        let mut routes = self.routes.write().unwrap_or_else(|e| e.into_inner());
        let clash = |route: &Route| {
            kinds.start() <= route.kinds.end() && route.kinds.start() <= kinds.end()
        };
        if let Some(route) = routes.iter().find(|route| clash(route)) {
            panic!("kinds {kinds:?} overlap {:?}, which have a handler", route.kinds);
        }
        routes.push(Route { kinds, handler });
    }

    /// Removes a handler with all its ranges. Returns whether it had one.
    pub fn remove(&self, handler: &Arc<dyn NetworkHandler>) -> bool {
        let mut routes = self.routes.write().unwrap_or_else(|e| e.into_inner());
        let before = routes.len();
        routes.retain(|route| !Arc::ptr_eq(&route.handler, handler));
        routes.len() < before
    }

    /// Removes all handlers, for the end of an endpoint in a process that continues. It breaks the
    /// reference cycle between the network and its handlers.
    pub fn clear(&self) {
        let routes = std::mem::take(&mut *self.routes.write().unwrap_or_else(|e| e.into_inner()));
        // Dropped without the lock, because destructors may call the router.
        drop(routes);
    }

    /// Number of payloads without a handler.
    pub fn unrouted(&self) -> u64 {
        self.stray.load(Ordering::Relaxed)
    }

    fn find(&self, kind: Kind) -> Option<Arc<dyn NetworkHandler>> {
        let routes = self.routes.read().unwrap_or_else(|e| e.into_inner());
        let route = routes.iter().find(|route| route.kinds.contains(&kind))?;
        Some(Arc::clone(&route.handler))
    }

    /// Calls `f` with every handler once. The lock is released before, because a handler may add
    /// routes.
    fn each(&self, mut f: impl FnMut(&dyn NetworkHandler)) {
        let mut handlers: Vec<Arc<dyn NetworkHandler>> = Vec::new();
        for route in self.routes.read().unwrap_or_else(|e| e.into_inner()).iter() {
            if !handlers.iter().any(|handler| Arc::ptr_eq(handler, &route.handler)) {
                handlers.push(Arc::clone(&route.handler));
            }
        }
        handlers.iter().for_each(|handler| f(&**handler));
    }
}

impl NetworkHandler for Router {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        match self.find(kind) {
            Some(handler) => handler.frame(from, kind, body),
            None => {
                self.stray.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(peer = %from, ?kind, "a payload without a handler is dropped");
            }
        }
    }

    fn up(&self, peer: &Peer) {
        self.each(|handler| handler.up(peer));
    }

    fn down(&self, peer: &Peer, why: &LinkError) {
        self.each(|handler| handler.down(peer, why));
    }

    fn violation(&self, peer: &Peer, why: &str, banned: bool) {
        self.each(|handler| handler.violation(peer, why, banned));
    }

    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        self.each(|handler| handler.superseded(peer, known));
    }

    fn transferred(&self, from: &Peer, bytes: u64, began: Instant, ended: Instant) {
        self.each(|handler| handler.transferred(from, bytes, began, ended));
    }

    fn undelivered(&self, payload: Undelivered) {
        if let Some(handler) = self.find(payload.1) {
            handler.undelivered(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct RouterLog(Mutex<Vec<String>>);

    impl RouterLog {
        fn push(&self, line: String) {
            self.0.lock().unwrap().push(line);
        }
    }

    impl NetworkHandler for RouterLog {
        fn frame(&self, _from: &Peer, kind: Kind, _body: Bytes) {
            self.push(format!("{kind:?}"));
        }
        fn up(&self, peer: &Peer) {
            self.push(format!("up {peer}"));
        }
        fn undelivered(&self, (node, kind, _): Undelivered) {
            self.push(format!("back {kind:?} {node}"));
        }
    }

    #[test]
    fn payloads_are_dispatched_by_kind_and_link_events_reach_each_handler_once() {
        let (a, b) = (Arc::new(RouterLog::default()), Arc::new(RouterLog::default()));
        let router = Router::default();
        router.route(Kind::CALL..=Kind::REPLY, a.clone());
        router.route(Kind::TELL..=Kind::TELL, b.clone());
        router.route(Kind::STEAL_REQUEST..=Kind::TASK_ABANDON, a.clone());
        let peer = Peer { node: "n".into(), incarnation: Incarnation(1), cluster: "c".into() };
        router.up(&peer);
        for kind in [Kind::TELL, Kind::CALL, Kind::TASK_RESULT, Kind::OBJECT_FETCH] {
            router.frame(&peer, kind, Bytes::new());
        }
        router.undelivered(("n".into(), Kind::TELL, Bytes::new()));
        assert_eq!(*a.0.lock().unwrap(), ["up c/n", "call", "task-result"]);
        assert_eq!(*b.0.lock().unwrap(), ["up c/n", "tell", "back tell n"]);
        assert_eq!(router.unrouted(), 1);
        let handler: Arc<dyn NetworkHandler> = a;
        assert!(router.remove(&handler) && !router.remove(&handler));
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn two_users_of_one_kind_are_a_mistake() {
        let router = Router::default();
        router.route(Kind::CALL..=Kind::TELL, Arc::new(RouterLog::default()));
        router.route(Kind::TELL..=Kind::TELL, Arc::new(RouterLog::default()));
    }
}
