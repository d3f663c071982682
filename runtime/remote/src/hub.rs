//! The hub of a node: its published actors and its calls under way.
//!
//! It knows the network handle and the directory of published actors, but not the meaning of
//! messages.

use std::collections::BTreeMap;
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
use super::sender::MessageOrigin;
use crate::id::Peer;
use crate::net::{LinkError, Net, NetworkHandler, Undelivered};
use crate::wire::Kind;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a hub since its start.
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
    /// Calls sent to other nodes.
    calls_out,
    /// Calls received from other nodes.
    calls_in,
    /// Tells sent to other nodes.
    tells_out,
    /// Tells to other nodes that were certainly not delivered.
    tells_lost,
    /// Tells received from other nodes.
    tells_in,
    /// Calls of other nodes that were refused.
    refused_in,
    /// Messages of other nodes whose sender claimed a right that it does not have.
    denied_in,
    /// Messages of other nodes about an unknown job, or under an earlier epoch.
    outdated_in,
    /// Tells of other nodes that were dropped: unknown actor, not accepted, stopped, or too many in
    /// flight.
    tells_dropped,
    /// Calls of this node without a reply in time.
    timeouts,
    /// Calls of this node whose callee's node was lost.
    gone,
    /// Replies that arrived after their call had ended.
    replies_late,
    /// Messages of other nodes that were dropped because their deadline passed before they reached
    /// the actor.
    late_in,
    /// Replies that were not sent because the deadline had passed or the caller was gone.
    answers_dropped,
    /// Messages of other nodes that did not decode.
    malformed,
}

/// The entry point of remote messages: connects the actors of a node with those of other nodes. One
/// per node.
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
    /// Kinds of frames that a hub receives: `router.route(Hub::KINDS, hub.clone())`.
    pub const KINDS: RangeInclusive<Kind> = Kind::CALL..=Kind::TELL;

    /// Creates a hub over `net`. Register it as the handler, or in the router, before the network
    /// starts.
    ///
    /// # Panics
    /// The call is outside a tokio runtime.
    pub fn new(net: Net) -> Arc<Hub> {
        // Call ids of two incarnations must not collide. An incarnation is a time in microseconds,
        // and a node sends less than a million calls a second over its lifetime.
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

    /// The network under the hub.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Publishes an actor under a name and replaces an earlier one of that name.
    ///
    /// Then declare the accepted messages: `hub.publish("scheduler",
    /// addr).accepts::<Submit>().accepts::<Cancel>()`.
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

    /// Reports denied messages to `observer`, at most one per peer in ten seconds. Only the first
    /// observer is kept.
    pub fn observe_denials(&self, observer: impl Fn(&Denial) + Send + Sync + 'static) {
        self.denials.observe(Box::new(observer));
    }

    /// Numbers of refused messages by message name and reason.
    pub fn refusals(&self) -> BTreeMap<(&'static str, Refusal), u64> {
        self.denials.counts()
    }

    /// Removes a name. Messages already in the mailbox are handled and answered. Returns whether
    /// the name was published.
    pub fn unpublish(&self, name: &str) -> bool {
        self.directory.remove(name)
    }

    /// Removes a name as [`Hub::unpublish`] does, unless another actor has replaced the
    /// publication.
    pub fn retract(&self, publication: &Publication) -> bool {
        self.directory.remove_entry(&publication.name, &publication.entry)
    }

    /// Closes the hub: removes all published names and fails calls under way and later ones with
    /// `Closed`.
    pub fn close(&self) {
        self.directory.clear();
        self.calls.close();
    }

    /// The counters of the hub.
    pub fn stats(&self) -> HubStats {
        self.counters.snapshot()
    }

    /// Counts and logs a message that was refused because of its sender's rights. Other refusals
    /// are not counted here.
    pub(super) fn record_refusal(&self, from: &MessageOrigin, message: &'static str, why: Refusal) {
        if !why.concerns_rights() {
            return;
        }
        if why.is_denial() {
            self.count(|counters| &counters.denied_in);
        } else {
            self.count(|counters| &counters.outdated_in);
        }
        self.denials.record(from, message, why);
    }

    pub(super) fn count(&self, which: impl FnOnce(&Counters) -> &AtomicU64) {
        which(&self.counters).fetch_add(1, Ordering::Relaxed);
    }
}

impl NetworkHandler for Hub {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        match (kind, self.me.upgrade()) {
            // Replies are sent after this returns, so they need their own reference to the hub.
            (Kind::CALL | Kind::TELL, Some(hub)) => hub.receive(from, kind, body),
            (Kind::REPLY, _) => self.replied(from, body),
            _ => self.count(|counters| &counters.malformed),
        }
    }

    fn down(&self, peer: &Peer, why: &LinkError) {
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
