//! The head of a grid: the process that hosts the scheduler and the sites of local clusters.
//!
//! Assembly only, independent of jobs, files and certificates.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::join::{JoinEndpoint, JoinLimits};
use springtide_runtime::net::tls::{NodeIdentity, TlsError};
use springtide_runtime::net::{Contact, NetError};

use crate::endpoint::Endpoint;
use crate::enrol::{EnrolmentActor, EnrolmentService};
use crate::files::FileServerSettings;
use crate::links::{LinkChanges, LinkListener};
use crate::probe::Prober;
use crate::programs::ProgramAccess;
use crate::provider::{NodeRequest, Provider};
use crate::scheduler::Scheduler;
use crate::scheduler::core::RecoveredJob;
use crate::scheduler::manager::ManagerSettings;
use crate::singleton::SingletonDirectory;
use crate::site::{OnDemand, Site};
use crate::site_host::SiteParts;
use crate::store::Store;
use springtide_protocol::files::FilesReport;
use springtide_protocol::job::JobEndNotice;
use springtide_protocol::names::SCHEDULER;
pub use springtide_protocol::names::{HEAD, HEAD_CLUSTER};
use springtide_protocol::program::ProgramReport;
use springtide_protocol::scheduler::{
    CancelClientJobs, CancelJob, CommitSlots, ConfirmMembership, ConfirmSlots, Drain, GetAuthority,
    GetFiles, GetJob, GetOffers, GetSample, GetSlots, GetStatus, GetWait, GridStatus, HandOver,
    JobEfficiency, MemberSilent, NeedNodes, NodeFreed, NodeLoss, NodeRegistration, NodeState,
    PlanJob, PrepareSlots, ReleaseSlots, RequestNodes, ResizeJob, RootAdvanced, SiteRegistration,
    SiteReport, SpeedsMeasured, StubDelay, StubLoss, Submit, Subscribe, Undrain, WithdrawNodes,
};
use springtide_protocol::site::{EndNodes, LeaveNodes};

/// Interval of checks of starting nodes.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A running head. Its actors live on the arbiter that started it.
pub struct Head {
    /// Endpoint of the head.
    pub endpoint: Endpoint,
    /// Address of its scheduler actor.
    pub scheduler: Addr<Scheduler>,
    sites: BTreeMap<ClusterId, Addr<Site>>,
    /// Number of permanent nodes, by cluster.
    standing: BTreeMap<ClusterId, usize>,
    /// Endpoint where nodes join, if enabled.
    join_endpoint: Rc<RefCell<Option<JoinEndpoint>>>,
    /// Store of the programs that users bring.
    programs: Option<ProgramAccess>,
}

/// What a head continues with.
#[derive(Debug, Default)]
pub struct FormerWork {
    /// Jobs of a former head.
    pub recovered: Vec<RecoveredJob>,
    /// Clusters whose sites will be started.
    pub clusters: Vec<ClusterId>,
    /// Store of the programs that users bring.
    pub programs: Option<ProgramAccess>,
}

impl Head {
    /// Starts a scheduler with this store on this endpoint, and accepts links. `settings` determine
    /// the sharing of nodes among malleable jobs.
    pub fn start(endpoint: Endpoint, store: Store, settings: ManagerSettings) -> Self {
        Self::start_again(endpoint, store, settings, Vec::new(), Vec::new(), |_, _| ())
    }

    /// Like [`Head::start`], with the jobs of a former head and the clusters whose sites will be
    /// started. `before` publishes further actors before the first call can arrive.
    pub fn start_again(
        endpoint: Endpoint,
        store: Store,
        settings: ManagerSettings,
        recovered: Vec<RecoveredJob>,
        clusters: Vec<ClusterId>,
        before: impl FnOnce(&Endpoint, &Addr<Scheduler>),
    ) -> Self {
        let recovered = FormerWork { recovered, clusters, programs: None };
        Self::start_with(endpoint, store, settings, recovered, before)
    }

    /// Like [`Head::start_again`], with a store of the programs that users bring.
    pub fn start_with(
        endpoint: Endpoint,
        store: Store,
        settings: ManagerSettings,
        former: FormerWork,
        before: impl FnOnce(&Endpoint, &Addr<Scheduler>),
    ) -> Self {
        let FormerWork { recovered, clusters, programs } = former;
        let links = LinkChanges::listen(&endpoint.router, LinkListener::Scheduler);
        let Endpoint { net, hub, recorder, .. } = endpoint.clone();
        let scheduler = Scheduler::new(net, hub, links, store, recorder, settings);
        let scheduler = scheduler.recovering(recovered, clusters);
        let scheduler = scheduler.keeping_programs(programs.clone()).start();
        endpoint
            .hub
            .publish(SCHEDULER, scheduler.clone())
            .accepts_judged::<Submit>()
            .accepts_judged::<CancelJob>()
            .accepts_judged::<CancelClientJobs>()
            .accepts_judged::<GetStatus>()
            .accepts_judged::<GetWait>()
            .accepts_judged::<GetJob>()
            .accepts_judged::<GetAuthority>()
            .accepts_judged::<PlanJob>()
            .accepts_judged::<ResizeJob>()
            .accepts_judged::<GetSlots>()
            .accepts_judged::<PrepareSlots>()
            .accepts_judged::<CommitSlots>()
            .accepts_judged::<ConfirmSlots>()
            .accepts_judged::<ReleaseSlots>()
            .accepts_judged::<GetFiles>()
            .accepts_judged::<FilesReport>()
            .accepts_judged::<SiteRegistration>()
            .accepts_judged::<NodeRegistration>()
            .accepts_judged::<NodeLoss>()
            .accepts_judged::<SiteReport>()
            .accepts_judged::<StubLoss>()
            .accepts_judged::<StubDelay>()
            .accepts_judged::<MemberSilent>()
            .accepts_judged::<RequestNodes>()
            .accepts_judged::<WithdrawNodes>()
            .accepts_judged::<NeedNodes>()
            .accepts_judged::<NodeFreed>()
            .accepts_judged::<HandOver>()
            .accepts_judged::<RootAdvanced>()
            .accepts_judged::<ConfirmMembership>()
            .accepts_judged::<GetOffers>()
            .accepts_judged::<GetSample>()
            .accepts_judged::<Subscribe>()
            .accepts_judged::<JobEfficiency>()
            .accepts_judged::<SpeedsMeasured>()
            .accepts_judged::<Drain>()
            .accepts_judged::<Undrain>()
            .accepts_judged::<JobEndNotice>()
            .accepts_judged::<ProgramReport>();
        Prober::publish(&endpoint.hub);
        SingletonDirectory::publish(&endpoint.hub, scheduler.clone());
        before(&endpoint, &scheduler);
        endpoint.start();
        Self {
            endpoint,
            scheduler,
            sites: BTreeMap::new(),
            standing: BTreeMap::new(),
            join_endpoint: Rc::default(),
            programs,
        }
    }

    /// Address for nodes and clients.
    pub fn contact(&self) -> Contact {
        self.endpoint.net.contact()
    }

    /// Starts a cluster's site, and through it the nodes.
    pub fn start_site(
        &mut self,
        cluster: ClusterId,
        nodes: Vec<NodeRequest>,
        provider: Rc<dyn Provider>,
    ) {
        self.start_site_by(cluster, nodes, provider, OnDemand::default(), None);
    }

    /// Like [`Head::start_site`]. `on_demand` are the parameters of a provider that holds
    /// processors on demand; `keeping` describes the cluster's input files, if it keeps any.
    pub fn start_site_by(
        &mut self,
        cluster: ClusterId,
        nodes: Vec<NodeRequest>,
        provider: Rc<dyn Provider>,
        on_demand: OnDemand,
        keeping: Option<FileServerSettings>,
    ) {
        if !provider.on_demand() {
            self.standing.insert(cluster.clone(), nodes.len());
        }
        let here = self.endpoint.net.me().node.clone();
        let (of, programs) = (cluster.clone(), self.programs.clone());
        let part = SiteParts { cluster: of, nodes, provider, on_demand, keeping, programs };
        let (site, _) = part.publish(&self.endpoint, &here, None);
        self.sites.insert(cluster, site);
    }

    /// Lets `enrolment` renew and revoke certificates. With `join_endpoint`, opens the address at
    /// which nodes join, and which shows `identity`. Must be called when all sites are started.
    /// Returns the address.
    ///
    /// # Errors
    /// The address cannot be opened.
    pub fn enrol(
        &mut self,
        enrolment: EnrolmentService,
        identity: &NodeIdentity,
        join_endpoint: Option<(SocketAddr, JoinLimits)>,
    ) -> Result<Option<SocketAddr>, NetError> {
        let enrolment = Arc::new(enrolment);
        let opened = join_endpoint
            .map(|(bind, limits)| JoinEndpoint::open(bind, identity, enrolment.clone(), limits));
        let opened = opened.transpose()?;
        let address = opened.as_ref().map(JoinEndpoint::address);
        *self.join_endpoint.borrow_mut() = opened;
        let join_endpoint = Rc::clone(&self.join_endpoint);
        let counts =
            move || join_endpoint.borrow().as_ref().map(JoinEndpoint::counts).unwrap_or_default();
        let Endpoint { hub, net, .. } = &self.endpoint;
        let sites = self.sites.iter();
        let sites = sites.map(|(cluster, site)| (cluster.clone(), site.clone().recipient()));
        EnrolmentActor::publish(enrolment, hub, net, sites.collect(), Box::new(counts));
        Ok(address)
    }

    /// Address where nodes join, if enabled.
    pub fn join_address(&self) -> Option<SocketAddr> {
        self.join_endpoint.borrow().as_ref().map(JoinEndpoint::address)
    }

    /// Uses another certificate of the same head from now on.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub fn renew(&self, identity: &NodeIdentity) -> Result<(), TlsError> {
        if let Some(join_endpoint) = &*self.join_endpoint.borrow() {
            join_endpoint.renew(identity)?;
        }
        self.endpoint.net.renew(identity)
    }

    /// Returns the status of the grid.
    pub async fn status(&self) -> GridStatus {
        // The scheduler lives as long as the head.
        self.scheduler.send(GetStatus {}).await.unwrap_or_default()
    }

    /// Waits until every permanent node has registered or is given up. `look` receives the number
    /// of finished nodes and of all nodes.
    pub async fn wait_for_nodes(&self, mut look: impl FnMut(usize, usize)) -> GridStatus {
        loop {
            let status = self.status().await;
            let sites = status.sites.iter().filter(|(at, _)| self.standing.contains_key(*at));
            let nodes: Vec<NodeState> =
                sites.flat_map(|(_, site)| &site.nodes).map(|node| node.state).collect();
            let starting = nodes.iter().filter(|state| **state == NodeState::Starting).count();
            let (known, all) = (nodes.len(), self.standing.values().sum());
            if known == all {
                look(known - starting, all);
                if starting == 0 {
                    return status;
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Ends in favour of another head: stubs that outlive their site are left to it. All other
    /// nodes end as by [`Head::stop`].
    pub async fn hand_over(self, grace: Duration, reason: &str) {
        for (cluster, site) in &self.sites {
            if !self.standing.contains_key(cluster) {
                // A stopped site has left them already.
                let _ = site.send(LeaveNodes).await;
            }
        }
        self.stop(grace, reason).await;
    }

    /// Ends all nodes, each in order within `grace` or else killed, and closes the endpoint.
    /// Completes when no process is left.
    pub async fn stop(self, grace: Duration, reason: &str) {
        drop(self.join_endpoint.take());
        let ends: Vec<_> = self.sites.values().map(|site| site.send(EndNodes { grace })).collect();
        for end in ends {
            // A stopped site has ended its nodes already.
            let _ = end.await;
        }
        self.endpoint.net.close(reason).await;
    }
}

/// Names of a cluster's nodes.
pub fn node_names(cluster: &ClusterId, count: u32) -> impl Iterator<Item = NodeId> + '_ {
    (1..=count).map(move |n| NodeId::from(format!("{cluster}-{n}")))
}
