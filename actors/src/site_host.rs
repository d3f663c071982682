//! A site where it is hosted: with its file server in the head's process, or both in a process of their own.
//!
//! Assembly only; must not know jobs, nor how files and certificates come about.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::Remote;

use crate::admit;
use crate::endpoint::Endpoint;
use crate::enrol::{ENROLMENT, Renewal};
use crate::files::{FileServer, Keeping, TellAgain};
use crate::job::{SCHEDULER, site_name};
use crate::links::{Door, Link, Links};
use crate::probe::Prober;
use crate::provider::{NodeRequest, Provider};
use crate::scheduler::{NodeLost, Scheduler, StubGone};
use crate::site::{
    Announce, CloseStubs, EndNodes, GetHeld, HoldStubs, LeaveJobs, OnDemand, Register, Site,
    StartAnew,
};

/// The scheduler has this long to take what a site says last.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The name of the process of a cluster's own site. No node is called so.
pub fn site_node(cluster: &ClusterId) -> NodeId {
    NodeId::from(format!("{cluster}-site"))
}

/// What a cluster's site is made of.
pub struct Part {
    /// Its cluster.
    pub cluster: ClusterId,
    /// What it starts.
    pub nodes: Vec<NodeRequest>,
    /// By whom.
    pub provider: Rc<dyn Provider>,
    /// How a provider that holds processors on demand is used.
    pub on_demand: OnDemand,
    /// The cluster's input files, if it keeps any.
    pub keeping: Option<Keeping>,
}

impl Part {
    /// Starts site and file server behind this endpoint; the scheduler is in the process of `head`. `own`: where this
    /// process is, if that is another.
    pub(crate) fn publish(
        self,
        endpoint: &Endpoint,
        head: &NodeId,
        own: Option<Contact>,
    ) -> (Addr<Site>, Option<Addr<FileServer>>) {
        let Part { cluster, nodes, provider, on_demand, keeping } = self;
        let Endpoint { net, hub, .. } = endpoint;
        let scheduler = || hub.remote(head, SCHEDULER);
        let mut site =
            Site::new(cluster.clone(), nodes, provider, on_demand, scheduler(), hub.clone());
        let files = keeping.map(|keeping| FileServer::publish(keeping, net, hub, scheduler()));
        if files.is_some() {
            site.keeps_files();
        }
        if let Some(at) = own {
            site.is_own(at);
        }
        let site = site.start();
        hub.publish(&site_name(&cluster), site.clone())
            .accepts_from::<Register>(admit::by_rule)
            .accepts_from::<StartAnew>(admit::by_rule)
            .accepts_from::<HoldStubs>(admit::by_rule)
            .accepts_from::<CloseStubs>(admit::by_rule);
        (site, files)
    }
}

/// Why a site's process cannot go on under its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteEnd {
    /// A later process of the site has linked with the head.
    Superseded,
    /// The head knows a later incarnation: the site is to begin again above that.
    Outnumbered {
        /// What the head knows. Absent where a former version refused.
        known: Option<Incarnation>,
    },
}

/// A site in a process of its own. Its actors live on the arbiter that started it.
pub struct SiteHost {
    endpoint: Endpoint,
    head: NodeId,
    links: Arc<Links>,
    /// The link to the head was up when it was last told of.
    linked: Cell<bool>,
    /// It was up once.
    was_linked: Cell<bool>,
    /// Its processors are held when jobs need them.
    on_demand: bool,
    site: Addr<Site>,
    files: Option<Addr<FileServer>>,
}

impl SiteHost {
    /// Starts it behind this endpoint, which is not started yet, and begins to take links.
    pub fn start(endpoint: Endpoint, head: Contact, part: Part) -> Self {
        let links = Links::listen(&endpoint.router, Door::Node);
        Prober::publish(&endpoint.hub);
        let on_demand = part.provider.on_demand();
        let here = endpoint.net.contact();
        let (site, files) = part.publish(&endpoint, &head.node, Some(here));
        endpoint.net.learn(head.clone());
        endpoint.start();
        let (linked, was_linked) = Default::default();
        let head = head.node;
        Self { endpoint, head, links, linked, was_linked, on_demand, site, files }
    }

    /// Of a site that is there.
    #[cfg(test)]
    pub(crate) fn of(endpoint: &Endpoint, head: &str, on_demand: bool, site: Addr<Site>) -> Self {
        let links = Links::listen(&endpoint.router, Door::Node);
        let (linked, was_linked) = Default::default();
        let files = None;
        Self {
            endpoint: endpoint.clone(),
            head: head.into(),
            links,
            linked,
            was_linked,
            on_demand,
            site,
            files,
        }
    }

    /// The head is, or may be, somewhere else now.
    pub fn learn_head(&self, head: Contact) {
        self.endpoint.net.learn(head);
    }

    /// Renews the certificate of this process each time it is due. Completes as [`Renewal::keep`].
    pub fn renew(&self, renewal: Renewal) -> impl Future<Output = String> + use<> {
        let net = self.endpoint.net.clone();
        let enrolment = self.endpoint.hub.remote(&self.head, ENROLMENT);
        async move { renewal.keep(&net, &enrolment).await }
    }

    /// Watches the link to the head: when it was lost, the head is told of everything again, however long it takes to come back.
    /// Completes when this process cannot go on under its number: see [`incarnation`](crate::incarnation).
    /// Each caller goes on where a dropped one stopped.
    pub async fn watch(&self) -> SiteEnd {
        let mut notices = self.endpoint.notices.clone();
        loop {
            let news = tokio::select! {
                biased;
                notice = notices.next() => match (notice.peer == self.head, self.was_linked.get()) {
                    (true, true) => return SiteEnd::Superseded,
                    (true, false) => return SiteEnd::Outnumbered { known: notice.known },
                    // Others do not decide which process of a site counts.
                    (false, _) => continue,
                },
                news = self.links.next() => news,
            };
            let lost = match news.get(&self.head) {
                Some(Link::Down(why)) => {
                    tracing::warn!("the head is not heard: {why}; it is called until it is");
                    self.linked.set(false);
                    true
                }
                // Up again without having been told to be down: only the newest word is kept.
                Some(Link::Up) => {
                    self.was_linked.set(true);
                    self.linked.replace(true)
                }
                None => false,
            };
            if lost {
                // They live as long as this does.
                self.site.do_send(Announce);
                if let Some(files) = &self.files {
                    files.do_send(TellAgain);
                }
            }
        }
    }

    /// Ends all nodes and closes the endpoint: each first leaves its job within `leave`, then ends in order within `grace`, or else is
    /// killed. No process is left when this completes.
    pub async fn stop(self, leave: Duration, grace: Duration, reason: &str) {
        let Self { endpoint, head, on_demand, site, .. } = self;
        let reason = format!("its site ends: {reason}");
        // A site that is gone has taken its nodes with it.
        let held = site.send(GetHeld).await.unwrap_or_default();
        if !leave.is_zero() {
            let _ = site.send(LeaveJobs { within: leave, reason: reason.clone() }).await;
        }
        let _ = site.send(EndNodes { grace }).await;
        let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
        for node in held {
            let reason = reason.clone();
            let told = match on_demand {
                // Nobody starts it before a job needs it.
                true => scheduler.send(StubGone { node, reason }).deadline(LAST_WORDS).await,
                false => {
                    let lost = NodeLost { node, reason, returns: true, retry_ms: None };
                    scheduler.send(lost).deadline(LAST_WORDS).await
                }
            };
            // A head that is gone needs no word.
            if told.is_err() {
                break;
            }
        }
        endpoint.net.close(&reason).await;
    }
}
