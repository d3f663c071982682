//! The hub of a node: its published actors, and the calls it has under way.
//!
//! Knows the network's handle and the directory of published actors; must not know what messages mean.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::{Actor, Addr};

use super::published::{Directory, Published};
use super::request::Remote;
use crate::id::NodeId;
use crate::net::Net;

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
    /// Tells taken from other nodes.
    tells_in,
    /// Calls of other nodes that were answered with a refusal.
    refused_in,
    /// Tells of other nodes that were dropped: no such actor, not accepted, stopped, too many in flight.
    tells_dropped,
    /// Calls of this node that had no answer in time.
    timeouts,
    /// Calls of this node whose node went away.
    gone,
    /// Answers that nobody waited for any more.
    replies_late,
    /// Calls of other nodes whose answer was not sent, for the deadline had passed or the caller had gone.
    answers_dropped,
    /// Messages from outside that did not decode.
    malformed,
}

/// A node's door between its actors and those of other nodes. One a node.
pub struct Hub {
    pub(super) net: Net,
    pub(super) directory: Directory,
    pub(super) counters: Counters,
}

impl Hub {
    /// A hub over `net`.
    pub fn new(net: Net) -> Arc<Hub> {
        Arc::new(Hub { net, directory: Directory::default(), counters: Counters::default() })
    }

    /// Publishes an actor under a name, in place of any that had it. Say what it accepts:
    /// `hub.publish("scheduler", addr).accepts::<Submit>().accepts::<Cancel>()`.
    pub fn publish<A: Actor>(&self, name: &str, addr: Addr<A>) -> Published<A> {
        Published::new(self.directory.insert(name), addr)
    }

    /// Takes a name back. Messages already in the mailbox are handled and answered. Returns whether it was published.
    pub fn unpublish(&self, name: &str) -> bool {
        self.directory.remove(name)
    }

    /// The actor published as `actor` on `node`, which may be this node. Nothing is sent; whether it is there shows when
    /// it is called.
    pub fn remote<A: Actor>(self: &Arc<Self>, node: &NodeId, actor: &str) -> Remote<A> {
        Remote { hub: Arc::clone(self), node: node.clone(), name: actor.into(), actor: PhantomData }
    }

    /// What was counted.
    pub fn stats(&self) -> HubStats {
        self.counters.snapshot()
    }
}
