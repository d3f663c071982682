//! How what processes of SPMD programs say travels: as frames of the job, kept while they cannot be sent.
//!
//! Must not know what they say.

use super::*;

/// The post office of an engine's processes. It belongs to the engine, so it must not keep that alive.
pub(super) fn post_of(job: JobId, me: Peer, inner: Weak<Inner>) -> Post {
    Post::new(
        job,
        me,
        Box::new(move |to, body| {
            if let Some(inner) = inner.upgrade() {
                inner.send_encoded(to, Class::Steal, Kind::PROCESS, body);
            }
        }),
    )
}

impl Inner {
    /// Keeps for later what cannot be sent now.
    pub(super) fn keep(&self, to: &NodeId, class: Class, kind: Kind, body: Bytes) {
        self.state().unsent.push_back((to.clone(), class, kind, body));
        self.poke.notify_one();
    }
}
