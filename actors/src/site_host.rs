//! A site where it is hosted: with its file server in the head's process, or both in a process of their own.
//!
//! Assembly only; must not know jobs, nor how files and certificates come about.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::Remote;

use crate::admit;
use crate::endpoint::Endpoint;
use crate::files::{FileServer, Keeping, TellAgain};
use crate::job::{SCHEDULER, site_name};
use crate::links::{Door, Link, Links};
use crate::probe::Prober;
use crate::provider::{NodeRequest, Provider};
use crate::scheduler::{NodeLost, Scheduler};
use crate::site::{Announce, CloseStubs, EndNodes, HoldStubs, OnDemand, Register, Site, StartAnew};

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
            .accepts_from::<Register>(admit::register)
            .accepts_from::<StartAnew>(admit::head)
            .accepts_from::<HoldStubs>(admit::head)
            .accepts_from::<CloseStubs>(admit::head);
        (site, files)
    }
}

/// A site in a process of its own. Its actors live on the arbiter that started it.
pub struct SiteHost {
    endpoint: Endpoint,
    head: NodeId,
    links: Arc<Links>,
    /// The link to the head was up when it was last told of.
    linked: Cell<bool>,
    nodes: Vec<NodeId>,
    site: Addr<Site>,
    files: Option<Addr<FileServer>>,
}

impl SiteHost {
    /// Starts it behind this endpoint, which is not started yet, and begins to take links.
    pub fn start(endpoint: Endpoint, head: Contact, part: Part) -> Self {
        let links = Links::listen(&endpoint.router, Door::Node);
        Prober::publish(&endpoint.hub);
        let nodes = part.nodes.iter().map(|request| request.node.clone()).collect();
        let here = endpoint.net.contact();
        let (site, files) = part.publish(&endpoint, &head.node, Some(here));
        endpoint.net.learn(head.clone());
        endpoint.start();
        Self { endpoint, head: head.node, links, linked: Cell::new(false), nodes, site, files }
    }

    /// The head is, or may be, somewhere else now.
    pub fn learn_head(&self, head: Contact) {
        self.endpoint.net.learn(head);
    }

    /// Watches the link to the head: when it was lost, the head is told of everything again, however long it takes to come back.
    /// Never completes.
    pub async fn watch(&self) {
        loop {
            let news = self.links.next().await;
            let lost = match news.get(&self.head) {
                Some(Link::Down(why)) => {
                    tracing::warn!("the head is not heard: {why}; it is called until it is");
                    self.linked.set(false);
                    true
                }
                // Up again without having been told to be down: only the newest word is kept.
                Some(Link::Up) => self.linked.replace(true),
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

    /// Ends all nodes, each in order within `grace` or else killed, and closes the endpoint. No process is left when this
    /// completes.
    pub async fn stop(self, grace: Duration, reason: &str) {
        let Self { endpoint, head, nodes, site, .. } = self;
        // A site that is gone has taken its nodes with it.
        let _ = site.send(EndNodes { grace }).await;
        let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
        for node in nodes {
            let lost = NodeLost { node, reason: format!("its site ends: {reason}"), returns: true };
            // A head that is gone needs no word.
            if scheduler.send(lost).deadline(LAST_WORDS).await.is_err() {
                break;
            }
        }
        endpoint.net.close(reason).await;
    }
}
