//! Senders of messages from other nodes: their identity, their role, and checks of both.

use super::error::Refusal;
use crate::id::Peer;
use crate::net::tls::Role;

/// The sender of a message from another node, as its link's certificate names it.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// Node of the sender, with the incarnation of its hello.
    pub peer: &'a Peer,
    /// Role in the certificate; `None` on networks without certificates, which allow every message.
    pub role: Option<Role>,
}

impl Sender<'_> {
    /// Checks that the sender has one of these roles.
    ///
    /// # Errors
    /// [`Refusal::Role`].
    pub fn is(&self, roles: &[Role]) -> Result<(), Refusal> {
        match self.role {
            Some(role) if !roles.contains(&role) => Err(Refusal::Role),
            _ => Ok(()),
        }
    }

    /// Checks a message's claim about its sender.
    ///
    /// # Errors
    /// [`Refusal::Identity`].
    pub fn holds(&self, claim: impl FnOnce(&Peer) -> bool) -> Result<(), Refusal> {
        if claim(self.peer) { Ok(()) } else { Err(Refusal::Identity) }
    }
}

/// The sender of a message from another node, in owned form: see [`Sender`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageOrigin {
    /// Node of the sender, with the incarnation of its hello.
    pub peer: Peer,
    /// Role in the certificate; `None` on networks without certificates.
    pub role: Option<Role>,
}

impl MessageOrigin {
    /// Copies a sender into owned form.
    pub fn of(sender: &Sender<'_>) -> Self {
        Self { peer: sender.peer.clone(), role: sender.role }
    }

    /// Borrows the origin as a sender.
    pub fn sender(&self) -> Sender<'_> {
        Sender { peer: &self.peer, role: self.role }
    }
}

/// A function that decides whether a sender may send a message.
pub type SenderCheck<M> = fn(&Sender<'_>, &M) -> Result<(), Refusal>;
