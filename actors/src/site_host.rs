//! Hosts of a site: in the head's process with its file server, or both in a process of their own.
//!
//! Assembly only, independent of jobs, files and certificates.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
pub use springtide_protocol::names::site_node;
use springtide_protocol::names::{ENROLMENT, SCHEDULER, site_name};
use springtide_protocol::receivers::Scheduler;
use springtide_protocol::scheduler::{NodeLoss, StubLoss, StubLossKind};
use springtide_protocol::site::{
    EndNodes, EndStubs, LeaveJobs, ListNodes, Register, ReportEverything, RestartNodes, StartStubs,
};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::Remote;

use crate::admit;
use crate::endpoint::Endpoint;
use crate::enrol::Renewal;
use crate::files::{FileServer, FileServerSettings, RepeatReport};
use crate::links::{LinkChange, LinkChanges, LinkListener};
use crate::probe::Prober;
use crate::programs::ProgramAccess;
use crate::provider::{NodeRequest, Provider};
use crate::site::{OnDemand, Site};

/// Timeout of the last messages of a site to the scheduler.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Parts of a cluster's site.
pub struct SiteParts {
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Nodes that it starts.
    pub nodes: Vec<NodeRequest>,
    /// Provider of the nodes.
    pub provider: Rc<dyn Provider>,
    /// Parameters of a provider that holds processors on demand.
    pub on_demand: OnDemand,
    /// Input files of the cluster, if it keeps any.
    pub keeping: Option<FileServerSettings>,
    /// Programs of users, if this process keeps any.
    pub programs: Option<ProgramAccess>,
}

impl SiteParts {
    /// Starts site and file server on this endpoint; the scheduler is in the process of `head`.
    /// `own` is the address of this process, if that is another one.
    pub(crate) fn publish(
        self,
        endpoint: &Endpoint,
        head: &NodeId,
        own: Option<Contact>,
    ) -> (Addr<Site>, Option<Addr<FileServer>>) {
        let SiteParts { cluster, nodes, provider, on_demand, keeping, programs } = self;
        let Endpoint { net, hub, .. } = endpoint;
        let scheduler = || hub.remote(head, SCHEDULER);
        let mut site =
            Site::new(cluster.clone(), nodes, provider, on_demand, scheduler(), hub.clone());
        let files = keeping.map(|keeping| FileServer::publish(keeping, net, hub, scheduler()));
        if files.is_some() {
            site.keeps_files();
        }
        if let Some(programs) = programs {
            site.starts_from(programs);
        }
        if let Some(at) = own {
            site.is_own(at);
        }
        let site = site.start();
        hub.publish(&site_name(&cluster), site.clone())
            .accepts_from::<Register>(admit::by_rule)
            .accepts_from::<RestartNodes>(admit::by_rule)
            .accepts_from::<StartStubs>(admit::by_rule)
            .accepts_from::<EndStubs>(admit::by_rule);
        (site, files)
    }
}

/// Why a site's process cannot continue under its incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteEnd {
    /// A later process of the site has a link to the head.
    Superseded,
    /// The head knows a later incarnation: the site must restart with a higher one.
    IncarnationTooLow {
        /// Incarnation known to the head; absent if an older version refused.
        known: Option<Incarnation>,
    },
}

/// A site in a process of its own. Its actors live on the arbiter that started it.
pub struct SiteHost {
    endpoint: Endpoint,
    head: NodeId,
    links: Arc<LinkChanges>,
    /// Whether the link to the head was up at the last notice.
    linked: Cell<bool>,
    /// Whether it has ever been up.
    was_linked: Cell<bool>,
    /// Whether its provider holds processors on demand.
    on_demand: bool,
    site: Addr<Site>,
    files: Option<Addr<FileServer>>,
}

impl SiteHost {
    /// Starts the site on this endpoint, which is not started yet, and accepts links.
    pub fn start(endpoint: Endpoint, head: Contact, part: SiteParts) -> Self {
        let links = LinkChanges::listen(&endpoint.router, LinkListener::Node);
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

    /// Hosts an existing site.
    #[cfg(test)]
    pub(crate) fn of(endpoint: &Endpoint, head: &str, on_demand: bool, site: Addr<Site>) -> Self {
        let links = LinkChanges::listen(&endpoint.router, LinkListener::Node);
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

    /// Updates the address of the head.
    pub fn learn_head(&self, head: Contact) {
        self.endpoint.net.learn(head);
    }

    /// Renews the certificate of this process each time it is due. Completes like
    /// [`Renewal::keep`].
    pub fn renew(&self, renewal: Renewal) -> impl Future<Output = String> + use<> {
        let net = self.endpoint.net.clone();
        let enrolment = self.endpoint.hub.remote(&self.head, ENROLMENT);
        async move { renewal.keep(&net, &enrolment).await }
    }

    /// Watches the link to the head. After a loss of the link, everything is reported to the head
    /// again, independent of the length of the loss.
    ///
    /// Completes when this process cannot continue under its incarnation: see
    /// [`incarnation`](crate::incarnation). A new call continues where a dropped one stopped.
    pub async fn watch(&self) -> SiteEnd {
        let mut notices = self.endpoint.notices.clone();
        loop {
            let news = tokio::select! {
                biased;
                notice = notices.next() => match (notice.peer == self.head, self.was_linked.get()) {
                    (true, true) => return SiteEnd::Superseded,
                    (true, false) => return SiteEnd::IncarnationTooLow { known: notice.known },
                    // Other nodes do not decide which process of a site is valid.
                    (false, _) => continue,
                },
                news = self.links.next() => news,
            };
            let lost = match news.get(&self.head) {
                Some(LinkChange::Down(why)) => {
                    tracing::warn!("the link to the head is down: {why}; retrying");
                    self.linked.set(false);
                    true
                }
                // Only the latest notice is kept, so a notice that the link was down may be
                // missing.
                Some(LinkChange::Up) => {
                    self.was_linked.set(true);
                    self.linked.replace(true)
                }
                None => false,
            };
            if lost {
                // The actors live as long as this host.
                self.site.do_send(ReportEverything);
                if let Some(files) = &self.files {
                    files.do_send(RepeatReport);
                }
            }
        }
    }

    /// Ends all nodes and closes the endpoint. Each node first leaves its job within `leave`, then
    /// ends in order within `grace`, or is killed. Completes when no process is left.
    pub async fn stop(self, leave: Duration, grace: Duration, reason: &str) {
        let Self { endpoint, head, on_demand, site, .. } = self;
        let reason = format!("its site ends: {reason}");
        // A stopped site has ended its nodes already.
        let held = site.send(ListNodes).await.unwrap_or_default();
        if !leave.is_zero() {
            let _ = site.send(LeaveJobs { timeout: leave, reason: reason.clone() }).await;
        }
        let _ = site.send(EndNodes { grace }).await;
        let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
        for node in held {
            let reason = reason.clone();
            let reported = if on_demand {
                // A node on demand is not restarted before a job needs it.
                scheduler
                    .send(StubLoss { node, reason, kind: StubLossKind::Ended })
                    .deadline(FINAL_REPORT_TIMEOUT)
                    .await
            } else {
                let lost = NodeLoss { node, reason, returns: true, retry_ms: None };
                scheduler.send(lost).deadline(FINAL_REPORT_TIMEOUT).await
            };
            // A stopped head needs no report.
            if reported.is_err() {
                break;
            }
        }
        endpoint.net.close(&reason).await;
    }
}
