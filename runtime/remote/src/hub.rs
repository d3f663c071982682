//! The hub of a node: its published actors, and the calls it has under way.
//!
//! Knows the network's handle and the directory of published actors; must not know what messages mean.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use actix::{Actor, Addr};
use bytes::Bytes;
use tokio::runtime::Handle;

use super::callee::Callers;
use super::caller::Calls;
use super::denial::{Denial, Denials};
use super::error::Refusal;
use super::published::{Directory, Publication, Published};
use super::request::Remote;
use crate::id::{NodeId, Peer};
use crate::net::{Inbox, Net, Undelivered, Why};
use crate::wire::Kind;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a hub has counted since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct HubStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            fn snapshot(&self) -> HubStats {
                HubStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

stats! {
    /// Calls made to other nodes.
    calls_out,
    /// Calls taken from other nodes.
    calls_in,
    /// Tells sent to other nodes.
    tells_out,
    /// Tells to other nodes that surely were not delivered.
    tells_lost,
    /// Tells taken from other nodes.
    tells_in,
    /// Calls of other nodes that were answered with a refusal.
    refused_in,
    /// Messages of other nodes whose sender claimed a right that it does not have.
    denied_in,
    /// Messages of other nodes about a job that is not here, or under an earlier epoch.
    outdated_in,
    /// Tells of other nodes that were dropped: no such actor, not accepted, stopped, too many in flight.
    tells_dropped,
    /// Calls of this node that had no answer in time.
    timeouts,
    /// Calls of this node whose node went away.
    gone,
    /// Answers that nobody waited for any more.
    replies_late,
    /// Messages of other nodes that were dropped because their deadline had passed before they reached the actor.
    late_in,
    /// Calls of other nodes whose answer was not sent, for the deadline had passed or the caller had gone.
    answers_dropped,
    /// Messages from outside that did not decode.
    malformed,
}

/// A node's door between its actors and those of other nodes. One a node.
pub struct Hub {
    me: Weak<Hub>,
    pub(super) net: Net,
    pub(super) directory: Directory,
    pub(super) callers: Callers,
    pub(super) calls: Calls,
    pub(super) runtime: Handle,
    pub(super) denials: Denials,
    counters: Counters,
}

impl Hub {
    /// The kinds of payload a hub takes: `router.on(Hub::KINDS, hub.clone())`.
    pub const KINDS: RangeInclusive<Kind> = Kind::CALL..=Kind::TELL;

    /// A hub over `net`. To be made its inbox, or a part of it, before the network starts.
    ///
    /// # Panics
    /// Outside tokio's context.
    pub fn new(net: Net) -> Arc<Hub> {
        // Ids of two lives of a node must not meet: an incarnation is a time in microseconds, and a node calls less than
        // a million times a second over its life.
        let calls = Calls::new(net.me().incarnation.0);
        Arc::new_cyclic(|me| Hub {
            me: me.clone(),
            net,
            directory: Directory::default(),
            callers: Callers::default(),
            calls,
            runtime: Handle::current(),
            denials: Denials::default(),
            counters: Counters::default(),
        })
    }

    /// The network under it.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Publishes an actor under a name, in place of any that had it. Say what it accepts:
    /// `hub.publish("scheduler", addr).accepts::<Submit>().accepts::<Cancel>()`.
    pub fn publish<A: Actor>(&self, name: &str, addr: Addr<A>) -> Published<A> {
        Published::new(name, self.directory.insert(name), addr)
    }

    /// Whether an actor is published under this name.
    pub fn publishes(&self, name: &str) -> bool {
        self.directory.get(name).is_some()
    }

    /// Names of the messages that the actor published as `name` accepts.
    pub fn accepted(&self, name: &str) -> Vec<&'static str> {
        self.directory.get(name).map(|entry| entry.names()).unwrap_or_default()
    }

    /// Reports denied messages to `observer`, at most one per peer in ten seconds. Only the first observer is kept.
    pub fn observe_denials(&self, observer: impl Fn(&Denial) + Send + Sync + 'static) {
        self.denials.observe(Box::new(observer));
    }

    /// Refused messages by their name and the reason.
    pub fn refusals(&self) -> BTreeMap<(&'static str, Refusal), u64> {
        self.denials.counts()
    }

    /// Takes a name back. Messages already in the mailbox are handled and answered. Returns whether it was published.
    pub fn unpublish(&self, name: &str) -> bool {
        self.directory.remove(name)
    }

    /// As [`Hub::unpublish`], unless another actor has taken the name since.
    pub fn retract(&self, publication: &Publication) -> bool {
        self.directory.remove_entry(&publication.name, &publication.entry)
    }

    /// The actor published as `actor` on `node`, which may be this node. Nothing is sent; whether it is there shows when
    /// it is called.
    pub fn remote<A: Actor>(self: &Arc<Self>, node: &NodeId, actor: &str) -> Remote<A> {
        Remote { hub: Arc::clone(self), node: node.clone(), name: actor.into(), actor: PhantomData }
    }

    /// Ends it: nothing is published any more, and every call under way fails with `Closed`, as does every later one.
    pub fn close(&self) {
        self.directory.clear();
        self.calls.close();
    }

    /// What was counted.
    pub fn stats(&self) -> HubStats {
        self.counters.snapshot()
    }

    pub(super) fn count(&self, which: impl FnOnce(&Counters) -> &AtomicU64) {
        which(&self.counters).fetch_add(1, Ordering::Relaxed);
    }
}

impl Inbox for Hub {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        match (kind, self.me.upgrade()) {
            // Answers are made after this returns: they hold the hub.
            (Kind::CALL | Kind::TELL, Some(hub)) => hub.incoming(from, kind, body),
            (Kind::REPLY, _) => self.replied(from, body),
            _ => self.count(|counters| &counters.malformed),
        }
    }

    fn down(&self, peer: &Peer, why: &Why) {
        self.callers.down(&peer.node);
        self.calls.down(&peer.node, why);
    }

    fn undelivered(&self, (node, kind, body): Undelivered) {
        match kind {
            Kind::CALL => self.calls.undelivered(&node, &body),
            Kind::TELL => self.count(|counters| &counters.tells_lost),
            _ => self.count(|counters| &counters.answers_dropped),
        }
    }
}
