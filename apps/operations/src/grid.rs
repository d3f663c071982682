//! A grid as processes: nodes' configs and providers, and the start of its head.
//!
//! This module does not know jobs.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::endpoint::Endpoint;
use springtide_actors::enrol::{
    Clusters, ENROLMENT, EnrolmentService, EnrolmentStore, IsOwn, JoinTerms, NodeConfigWriter,
    is_due, renew_files,
};
use springtide_actors::files::{FileLimits, FileServerSettings};
use springtide_actors::head::{FormerWork, HEAD, HEAD_CLUSTER, Head, node_names};
use springtide_actors::incarnation;
use springtide_actors::lease::LeaseError;
use springtide_actors::policy::malleability::HostCapacity;
use springtide_actors::programs::{ProgramLimits, ProgramStore, ProgramStoreSettings};
use springtide_actors::provider::{
    BatchCluster, BatchProvider, JoinProvider, LocalProvider, NodeRequest, Provider, SshProvider,
};
use springtide_actors::scheduler::manager::ManagerSettings;
use springtide_actors::scheduler::{GridStatus, NodeState, ShowMembers};
use springtide_actors::site::OnDemand;
use springtide_actors::site_host::site_node;
use springtide_actors::standby::{MemberWatch, Mirror};
use springtide_actors::store::{Store, StoreError};
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::outdir::{make_dir, write_file};
use springtide_runtime::config::{
    ClusterSection, GridConfig, HostSize, NodeConfig, Provider as ProviderKind, SitePlace, Sources,
    load,
};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::join::JoinLimits;
use springtide_runtime::net::tls::{
    AuthorityReader, Ca, Dates, NodeIdentity, NodeName, RotationStep, calendar,
};
use springtide_runtime::net::{Address, GateCondition};
use springtide_runtime::private;
use springtide_runtime::records::{Disk, Files};
use tokio::time::{Instant, Interval, interval_at};

use crate::agree;
use crate::desk::{ArchiveReader, ArchiveSettings, ArchiveThread, JobArchive};
use crate::grid_files::{
    Authority, HeadFile, LaunchPlan, absolute, ca_dir, make_private_dir, this_host, this_program,
};
use crate::netconf::{self, Emulated};
use crate::reach::is_loopback_down;
use crate::site_files;
use crate::standby;

/// Time that a node gets to end in order: its threads stop, its links close.
pub const NODE_GRACE: Duration = Duration::from_secs(3);

/// Name of the directory of users' programs, in that of the grid or of a site.
pub const PROGRAMS_DIR: &str = "programs";

/// Interval between reports of nodes that have not registered.
const MISSING_AFTER: Duration = Duration::from_secs(3);
/// The maximum number of nodes in a report.
const MISSING_MAX: usize = 3;
/// The maximum number of characters shown of a log line.
const LINE_MAX: usize = 300;

/// Runs first, once this process is the grid's only head.
pub type Alone<'a> = dyn Fn() -> Result<(), Failed> + 'a;

/// The role of a head that acts while another one waits on another machine.
pub struct ActingRole {
    /// The files of its stores.
    pub files: Arc<dyn Files>,
    /// The mirror of its other files.
    pub mirror: Arc<Mirror>,
    /// Until when it may act, and the other members.
    pub members: MemberWatch,
    /// Its place among the two heads, from 0.
    pub place: usize,
}

impl ActingRole {
    /// Whether it may act now.
    fn condition(&self) -> GateCondition {
        let status = self.members.status.clone();
        Arc::new(move || status.borrow().may_act())
    }
}

/// Starts the head of a grid and its sites, which start every node by the provider of its cluster.
///
/// # Errors
/// A port is in use, files cannot be written, names do not fit.
pub async fn start(plan: &LaunchPlan<'_>) -> Result<Head, Failed> {
    let provider = |cluster: &_, nodes: &_| provider_of(plan, cluster, nodes);
    Ok(launch(plan, provider, None, None).await?.0)
}

/// Starts a grid with another provider for all clusters.
///
/// # Errors
/// As [`start`].
pub async fn start_by(plan: &LaunchPlan<'_>, provider: &Rc<dyn Provider>) -> Result<Head, Failed> {
    Ok(launch(plan, |_, _| Ok(provider.clone()), None, None).await?.0)
}

/// Starts a grid whose head continues the work of earlier heads. `alone` runs first, once this is
/// known to be the only head. `fingerprint` is that of the registry of this program. With a `role`,
/// another head waits on another machine. The archive's
/// thread must end after the head.
///
/// # Errors
/// As [`start`]; or a head of this grid runs already.
pub async fn start_again(
    plan: &LaunchPlan<'_>,
    setting: ArchiveSettings,
    fingerprint: u64,
    alone: &Alone<'_>,
    role: Option<&ActingRole>,
) -> Result<(Head, Option<ArchiveThread>), Failed> {
    let provider = |cluster: &_, nodes: &_| provider_of(plan, cluster, nodes);
    launch(plan, provider, Some((setting, fingerprint, alone)), role).await
}

fn provider_of(
    plan: &LaunchPlan<'_>,
    cluster: &ClusterSection,
    nodes: &[NodeId],
) -> Result<Rc<dyn Provider>, Failed> {
    provider_for(plan.config, plan.authority.certificate(), cluster, nodes)
}

/// The provider of a cluster's processors. The `authority`'s certificate distinguishes grids of the
/// same name.
///
/// # Errors
/// The config lacks a section that the provider needs.
pub fn provider_for(
    config: &GridConfig,
    authority: &str,
    cluster: &ClusterSection,
    nodes: &[NodeId],
) -> Result<Rc<dyn Provider>, Failed> {
    let name = &cluster.name;
    let lacks = |section: &str, key: &str| {
        Failed::usage(format!("cluster \"{name}\" has no [cluster.{section}]: add it{key}"))
    };
    match (cluster.provider, &cluster.ssh, cluster.batch_system()) {
        (ProviderKind::Local, ..) if cluster.on_demand => Ok(Rc::new(LocalProvider::on_demand())),
        (ProviderKind::Local, ..) => Ok(Rc::new(LocalProvider::new())),
        (ProviderKind::Join, ..) => Ok(Rc::new(JoinProvider)),
        (ProviderKind::Ssh, Some(ssh), _) => {
            let provider = if cluster.on_demand {
                SshProvider::on_demand(ssh)
            } else {
                SshProvider::new(ssh, nodes)
            };
            let provider =
                provider.map_err(|error| Failed::usage(format!("cluster \"{name}\": {error}")))?;
            // Without a path there, the hosts get this program.
            Ok(Rc::new(match &cluster.program {
                Some(_) => provider,
                None => provider.copying(this_program()?),
            }))
        }
        (ProviderKind::Slurm | ProviderKind::Batch, _, Some(section)) => {
            let batch = BatchCluster {
                grid: config.grid.as_str(),
                authority,
                name: &ClusterId::from(name.as_str()),
                nodes: config.node_limit(cluster),
                // With nodes on demand, it counts processors.
                threads: if cluster.on_demand { 1 } else { config.threads_of(cluster) },
            };
            let provider = BatchProvider::new(&batch, &section)
                .map_err(|reason| Failed::usage(format!("cluster \"{name}\": {reason}")))?;
            Ok(Rc::new(provider))
        }
        (ProviderKind::Ssh, None, _) => Err(lacks("ssh", " with `hosts`")),
        (ProviderKind::Slurm, _, None) => Err(lacks("slurm", ", empty or not")),
        (ProviderKind::Batch, _, None) => Err(lacks("batch", " with a `preset`")),
    }
}

/// Whether a cluster's processors are held on demand, and how.
pub fn on_demand(config: &GridConfig, cluster: &ClusterSection) -> OnDemand {
    let host = |HostSize { name, processors, memory, devices }| HostCapacity {
        host: name,
        processors,
        memory,
        devices,
    };
    let hosts: Vec<HostCapacity> = config.hosts_of(cluster).into_iter().map(host).collect();
    let is_here = |one: &&ClusterSection| one.on_demand && one.provider == ProviderKind::Local;
    let binds = match cluster.provider {
        ProviderKind::Local => {
            hosts.len() == 1 && config.cluster.iter().filter(is_here).count() == 1
        }
        ProviderKind::Ssh => true,
        // A batch system binds its jobs itself.
        ProviderKind::Slurm | ProviderKind::Batch | ProviderKind::Join => false,
    };
    let default = OnDemand { hosts, binds, ..OnDemand::default() };
    match cluster.batch_system() {
        Some(batch) => OnDemand { poll: batch.poll.get(), keep: batch.keep.get(), ..default },
        None => default,
    }
}

/// Starts a grid whose clusters have these providers.
async fn launch(
    plan: &LaunchPlan<'_>,
    provider: impl Fn(&ClusterSection, &[NodeId]) -> Result<Rc<dyn Provider>, Failed>,
    again: Option<(ArchiveSettings, u64, &Alone<'_>)>,
    role: Option<&ActingRole>,
) -> Result<(Head, Option<ArchiveThread>), Failed> {
    let LaunchPlan { config, dir, .. } = *plan;
    let network = netconf::emulated(&config.net)?;
    make_private_dir(dir)?;
    // The user chooses the permissions of a run's directory; the grid's private files in it have
    // their own.
    if matches!(plan.authority, Authority::Kept(..)) {
        private::check_dir(dir)?;
    }
    // First of all: the holder of this lease is the only head of the grid.
    let files = again.as_ref().map(|(setting, ..)| Arc::clone(&setting.files));
    let files = files.unwrap_or_else(|| Arc::new(Disk));
    let mut store = Store::open_with(dir, files).map_err(|error| match error {
        StoreError::Lease(LeaseError::Held { holder, path }) => {
            let lease = path.display();
            Failed::failure(format!(
                "this grid is up already ({holder}): use it, or end it first (it holds the \
                lock {lease})"
            ))
        }
        error => error.into(),
    })?;
    let (mut archive_reader, mut own_fingerprint) = (None, None);
    if let Some((setting, fingerprint, alone)) = again {
        alone()?;
        archive_reader = Some(ArchiveReader::open(setting)?);
        own_fingerprint = Some(fingerprint);
    }
    if let Some(archive_reader) = &archive_reader {
        // The store may have been moved away for a fresh start. Reused numbers would have two
        // results.
        store.skip_numbers(archive_reader.last());
    }
    let logs = dir.join("nodes");
    make_dir(&logs)?;
    let identity = plan.authority.issue(&HEAD.into(), HEAD_CLUSTER, "head")?;
    let mut net = netconf::head_net(config, bind_of(config, dir));
    if let Some(advertise) = &config.head.advertise {
        let place = role.map_or(0, |role| role.place);
        let own = advertise.all().get(place).unwrap_or(advertise.first());
        net.advertise = Some(netconf::resolve(own).await?);
    }
    let own = match plan.authority {
        // The store's lease is held, so that no other head counts.
        Authority::Kept(..) => incarnation::issue(dir).map_err(Failed::failure)?,
        // A grid that ends with its command has no earlier head.
        Authority::Ephemeral(_) | Authority::Elsewhere => incarnation::only(),
    };
    if let Some(role) = role {
        // The next head of either machine exceeds it.
        role.mirror.flush().map_err(Failed::failure)?;
    }
    let is_acting = role.map(ActingRole::condition);
    let endpoint = match netconf::endpoint_while(net, &identity, own, network.as_ref(), is_acting) {
        Err(error) if bind_of(config, dir).ip().is_loopback() && is_loopback_down() => {
            let text = "the loopback interface of this host is down: `ip link set lo up`";
            let message = format!("{}: {text}", error.message);
            return Err(Failed { message, ..error });
        }
        // The default is an address outside all emulated networks.
        Err(error) if network.is_some() => {
            let message = format!("head.bind: {}", error.message);
            return Err(Failed { message, ..error });
        }
        opened => opened?,
    };
    if matches!(plan.authority, Authority::Kept(..)) {
        // Before any other process can connect.
        endpoint.net.revoke(&EnrolmentStore::of(dir).read()?.revoked(calendar()()));
    }
    let Address::Socket(address) = endpoint.net.address() else {
        return Err(Failed::failure("the head has no socket address"));
    };
    if let Some(role) = role {
        standby::write_files(plan, role.place)?;
    }
    // Every file is written before the first process starts.
    let mut sites = Vec::new();
    for cluster in &config.cluster {
        if cluster.site == SitePlace::Own {
            site_files::write(plan, cluster, address)?;
            continue;
        }
        let name = ClusterId::from(cluster.name.as_str());
        let nodes: Vec<NodeId> = node_names(&name, config.node_limit(cluster)).collect();
        let provider = provider(cluster, &nodes)?;
        let requests: Result<Vec<_>, _> = nodes
            .iter()
            .map(|node| match cluster.provider {
                // A node that joins from elsewhere has no files here.
                ProviderKind::Join => Ok(join_request(node, config.threads_of(cluster))),
                _ => request(plan, cluster, node, address, None, network.as_ref()),
            })
            .collect();
        sites.push((
            name,
            requests?,
            provider,
            on_demand(config, cluster),
            keeping(config, cluster),
        ));
    }
    let settings = ManagerSettings { clock_us: agree::now(), ..netconf::scheduling(config) };
    let mut recovered = match &archive_reader {
        Some(archive_reader) => store.recover(|job| archive_reader.awaits_end(job))?,
        None => Vec::new(),
    };
    for found in &mut recovered {
        found.submit.client = endpoint.net.contact();
        if let (Some(archive_reader), Some(need)) = (&archive_reader, &mut found.submit.need) {
            // The scheduler does not know jobs that ended under an earlier head.
            need.after.retain(|one| !archive_reader.is_met(one));
        }
    }
    let jobs: Vec<JobId> = recovered.iter().map(|found| found.job).collect();
    let names = config.cluster.iter().map(|cluster| ClusterId::from(cluster.name.as_str()));
    let names: Vec<ClusterId> = names.collect();
    let lost = store.lost().clone();
    // Only a grid that stays up gets jobs of other programs.
    let programs = own_fingerprint.map(|own| {
        let Endpoint { net, hub, .. } = &endpoint;
        let dir = dir.join(PROGRAMS_DIR);
        let settings = ProgramStoreSettings {
            own: Some(own),
            audit_log: store.audit_log().cloned(),
            ..program_store(config, &dir)
        };
        ProgramStore::publish(settings, net, hub).map_err(|error| cannot("use", &dir, &error))
    });
    let programs = programs.transpose()?;
    let mut archive = None;
    let former = FormerWork { recovered, clusters: names, programs };
    let mut head = Head::start_with(endpoint, store, settings, former, |endpoint, scheduler| {
        archive = archive_reader.map(|archive_reader| {
            JobArchive::open(archive_reader, endpoint, scheduler, &jobs, &lost)
        });
    });
    if let Some(role) = role {
        head.scheduler.do_send(ShowMembers(role.members.clone()));
    }
    let (pid, host) = (std::process::id(), this_host());
    let mut file = HeadFile { schema: 1, address, pid, host, join: None };
    file.write(dir)?;
    for (cluster, requests, provider, on_demand, keeping) in sites {
        head.start_site_by(cluster, requests, provider, on_demand, keeping);
    }
    // A grid that ends with its command has no join tokens.
    if matches!(plan.authority, Authority::Kept(..)) {
        file.join = enrol(plan, &mut head, &identity, address, role)?;
        if file.join.is_some() {
            file.write(dir)?;
        }
    }
    Ok((head, archive))
}

/// Starts renewal and revocation of certificates, and the join endpoint if the config has one.
/// Returns its address.
fn enrol(
    plan: &LaunchPlan<'_>,
    head: &mut Head,
    identity: &NodeIdentity,
    address: SocketAddr,
    role: Option<&ActingRole>,
) -> Result<Option<SocketAddr>, Failed> {
    let LaunchPlan { config, dir, .. } = *plan;
    let join = &config.join;
    let mut clusters = Clusters::new();
    for cluster in config.cluster.iter().filter(|cluster| cluster.provider == ProviderKind::Join) {
        let terms = join_terms(plan, cluster, address)?;
        clusters.insert(ClusterId::from(cluster.name.as_str()), terms);
    }
    let validity = join.validity.get();
    let recorder = head.endpoint.recorder.clone();
    let ca = Ca::load(&ca_dir(config, dir))?;
    let enrolment = EnrolmentService::new(
        ca,
        EnrolmentStore::of(dir).with_mirror(role.map(|role| Arc::clone(&role.mirror))),
        calendar(),
        clusters,
        validity,
        recorder,
    );
    let enrolment = enrolment.with_own(is_own(config), config.tls.validity.get());
    let enrolment = enrolment.reading_authority(ca_dir(config, dir));
    let limits = JoinLimits {
        max_callers: join.callers_max.get() as usize,
        timeout: join.answer_timeout.get(),
    };
    let opened = head.enrol(enrolment, identity, join.bind.map(|bind| (bind, limits)));
    // A site process renews the files of its own cluster.
    let here = own_clusters(config).filter(|cluster| cluster.site != SitePlace::Own);
    let files = here.flat_map(|cluster| {
        let name = ClusterId::from(cluster.name.as_str());
        let nodes: Vec<NodeId> = node_names(&name, config.node_limit(cluster)).collect();
        nodes.into_iter().map(|node| dir.join("node").join(node.as_str()))
    });
    let enrolment = head.endpoint.hub.remote(&HEAD.into(), ENROLMENT);
    actix_rt::spawn(renew_files(files.collect(), calendar(), enrolment));
    opened.map_err(|error| {
        let failed = Failed::from(error);
        Failed { message: format!("join.bind: {}", failed.message), ..failed }
    })
}

/// Clusters whose nodes get their certificates from the head, without a token.
fn own_clusters(config: &GridConfig) -> impl Iterator<Item = &ClusterSection> {
    config.cluster.iter().filter(|cluster| cluster.provider != ProviderKind::Join)
}

/// Whether the head issues certificates for a name without a token: those of nodes and of site
/// processes.
fn is_own(config: &GridConfig) -> IsOwn {
    let mut own = Vec::new();
    for cluster in own_clusters(config) {
        let id = ClusterId::from(cluster.name.as_str());
        let name = |node: NodeId, role: &str| (id.clone(), node, role.to_owned());
        own.extend(node_names(&id, config.node_limit(cluster)).map(|node| name(node, "node")));
        if cluster.site == SitePlace::Own {
            own.push(name(site_node(&id), "site"));
        }
    }
    let own: BTreeSet<(ClusterId, NodeId, String)> = own.into_iter().collect();
    Box::new(move |NodeName { node, cluster, role }| {
        own.contains(&(cluster.clone(), node.clone(), role.clone()))
    })
}

/// The config that nodes get when they join a cluster: the shared config without the parts of this
/// host.
fn join_terms(
    plan: &LaunchPlan<'_>,
    cluster: &ClusterSection,
    head: SocketAddr,
) -> Result<JoinTerms, Failed> {
    let text =
        node_config(plan, cluster, &cluster.name.as_str().into(), (head, None), plan.dir, None)?;
    let mut table: toml::Table = text.parse().map_err(Failed::failure)?;
    table.remove("identity");
    for (section, keys) in [
        ("net", &["bind", "advertise", "ports", "shape"][..]),
        ("work", &["share", "share_file", "cgroup"][..]),
    ] {
        if let Some(section) = table.get_mut(section).and_then(toml::Value::as_table_mut) {
            keys.iter().for_each(|key| drop(section.remove(*key)));
        }
    }
    if cluster.files.is_none() {
        table.remove("files");
    }
    table.insert("renew".to_owned(), true.into());
    let config: NodeConfigWriter = Box::new(move |node| {
        let mut table = table.clone();
        table.insert("node".to_owned(), node.as_str().into());
        toml::to_string(&table).map_err(|error| error.to_string())
    });
    Ok(JoinTerms { node_limit: cluster.nodes.get(), config })
}

/// The entry of a node that joins from elsewhere.
fn join_request(node: &NodeId, threads: u32) -> NodeRequest {
    let (program, config, log) = Default::default();
    let (env, host) = (Vec::new(), None);
    NodeRequest { node: node.clone(), program, config, log, env, threads, host, shipped: None }
}

/// The address of the head. Where the config takes any free port, the last head's port is
/// preferred: surviving nodes know no other.
fn bind_of(config: &GridConfig, dir: &Path) -> SocketAddr {
    let bind = config.head.bind;
    let last = fs::read(HeadFile::path(dir)).ok();
    let last: Option<HeadFile> = last.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    match last.map(|last| SocketAddr::new(bind.ip(), last.address.port())) {
        Some(last) if bind.port() == 0 && UdpSocket::bind(last).is_ok() => last,
        _ => bind,
    }
}

/// Reports nodes that have not registered after a while, with the reason if it is known.
pub struct MissingNodes {
    logs: PathBuf,
    interval: Interval,
    reported: BTreeSet<String>,
}

impl MissingNodes {
    /// Creates a reporter for the grid in this directory.
    pub fn of(dir: &Path) -> Self {
        let interval = interval_at(Instant::now() + MISSING_AFTER, MISSING_AFTER);
        Self { logs: dir.join("nodes"), interval, reported: BTreeSet::new() }
    }

    /// Completes when the next report is due.
    pub async fn wait(&mut self) {
        self.interval.tick().await;
    }

    /// Lines about nodes that have not registered, each line once.
    pub fn lines(&mut self, status: &GridStatus) -> Vec<String> {
        let nodes = status.sites.values().flat_map(|site| &site.nodes);
        let starting: Vec<_> = nodes.filter(|node| node.state == NodeState::Starting).collect();
        let mut lines = Vec::new();
        for node in starting.iter().take(MISSING_MAX) {
            let log = self.logs.join(format!("{}.log", node.node));
            let why = match &node.reason {
                Some(reason) => reason.clone(),
                None => match last_line(&log) {
                    Some(line) => format!("its log ends with: {line}"),
                    None => "its log is empty".to_owned(),
                },
            };
            lines.push(format!("node {} has not registered yet: {why}", node.node));
        }
        if starting.len() > MISSING_MAX {
            lines.push(format!("{} more nodes have not registered", starting.len() - MISSING_MAX));
        }
        lines.retain(|line| self.reported.insert(line.clone()));
        lines
    }
}

/// The last line of a log that is not empty.
fn last_line(log: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(log).ok()?).into_owned();
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().chars().take(LINE_MAX).collect())
}

/// The head's own certificate, issued by this process.
pub struct HeadCertificate {
    /// Directory of the authority.
    dir: PathBuf,
    authority: AuthorityReader,
    validity: Duration,
    /// The trusted authorities for which it was issued last.
    trusted: String,
    dates: Option<Dates>,
    /// The time of the next check of the authority.
    check_at: Instant,
    /// The time up to which a rotation has counted the time of this head.
    counted_until: Instant,
}

/// Delay between attempts after a failure to issue the certificate.
const ISSUE_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Interval between checks of the authority, which may be replaced.
const AUTHORITY_INTERVAL: Duration = Duration::from_secs(2);

impl HeadCertificate {
    /// The certificate of the head of a grid, from the authority in this directory, and its
    /// validity. Its dates are known after the first check.
    pub fn new(dir: PathBuf, validity: Duration) -> Self {
        let (authority, now) = (AuthorityReader::new(dir.clone()), Instant::now());
        let (trusted, dates) = (String::new(), None);
        Self { dir, authority, validity, trusted, dates, check_at: now, counted_until: now }
    }

    /// Renews the certificate if it is due or its authority is replaced, and continues a rotation
    /// of the authority. Returns a new step of that. To be called often.
    ///
    /// # Errors
    /// It cannot be issued or used; the current one stays in use until a later attempt.
    pub fn renew_if_due(&mut self, head: &Head, now: i64) -> Result<Option<RotationStep>, Failed> {
        let moment = Instant::now();
        if self.check_at > moment {
            return Ok(None);
        }
        let checked = self.check(head, now, moment);
        let delay = if checked.is_err() { ISSUE_RETRY_DELAY } else { AUTHORITY_INTERVAL };
        self.check_at = moment + delay;
        checked
    }

    fn check(
        &mut self,
        head: &Head,
        now: i64,
        moment: Instant,
    ) -> Result<Option<RotationStep>, Failed> {
        let step = Ca::advance_rotation(&self.dir, moment - self.counted_until)?;
        self.counted_until = moment;
        let trusted = self.authority.read()?.cert_pem().to_owned();
        let is_current = self.dates.is_some_and(|dates| !is_due(dates, 0.0, now));
        if !is_current || self.trusted != trusted {
            let authority = Authority::Kept(Ca::load(&self.dir)?, self.validity);
            let identity = authority.issue(&HEAD.into(), HEAD_CLUSTER, "head")?;
            head.renew(&identity)?;
            // Only now: after a failure, a later check repeats this.
            self.dates = Some(identity.dates()?);
            self.trusted = trusted;
            tracing::info!("the head's certificate is issued");
        }
        Ok(step)
    }
}

/// Ends a grid: every node, then the head.
pub async fn stop(head: Head, dir: &Path, reason: &str) {
    head.stop(NODE_GRACE, reason).await;
    // The file says that a head runs; the next start replaces it.
    let _ = fs::remove_file(HeadFile::path(dir));
}

/// The settings of a store of users' programs in a directory.
pub fn program_store(config: &GridConfig, dir: &Path) -> ProgramStoreSettings {
    let programs = &config.programs;
    let limits = ProgramLimits {
        size_max: programs.size_max.bytes(),
        cache_bytes: programs.cache_max.bytes(),
        transfers_max: programs.transfers_max.get() as usize,
    };
    let (foreign, own, audit_log) = (programs.foreign, None, None);
    ProgramStoreSettings { dir: dir.to_owned(), limits, foreign, own, audit_log }
}

/// The limits of a cluster's file server, if it has one.
pub fn keeping(config: &GridConfig, cluster: &ClusterSection) -> Option<FileServerSettings> {
    let limits = FileLimits {
        max_bytes: config.files.size_max.bytes(),
        max_fetches: config.files.transfers_max.get() as usize,
        scan_interval: config.files.poll.get(),
    };
    let dir = cluster.files.clone()?;
    Some(FileServerSettings { cluster: ClusterId::from(cluster.name.as_str()), dir, limits })
}

/// The addresses at which others reach the head: that of its endpoint, and the further ones of the
/// config. Earlier versions read a single one only as a text.
pub fn head_addresses(config: &GridConfig, head: SocketAddr) -> toml::Value {
    if let (Some(_), Some(advertise)) = (&config.standby, &config.head.advertise) {
        // Of both heads, in an order that is the same for both.
        return advertise.all().iter().map(ToString::to_string).collect::<Vec<_>>().into();
    }
    let more = config.head.advertise.iter().flat_map(|all| all.all().iter().skip(1));
    let more: Vec<String> = more.map(ToString::to_string).collect();
    if more.is_empty() {
        return head.to_string().into();
    }
    std::iter::once(head.to_string()).chain(more).collect::<Vec<_>>().into()
}

/// Writes the files of a node, and describes its start. The node finds the head at the first
/// address, and its site at the second if that is elsewhere.
pub fn request(
    plan: &LaunchPlan<'_>,
    cluster: &ClusterSection,
    node: &NodeId,
    head: SocketAddr,
    site: Option<SocketAddr>,
    network: Option<&Emulated>,
) -> Result<NodeRequest, Failed> {
    let dir = absolute(&plan.dir.join("node").join(node.as_str()))?;
    make_private_dir(&dir)?;
    if !matches!(plan.authority, Authority::Elsewhere) {
        plan.authority.issue(node, cluster.name.as_str(), "node")?.save(&dir)?;
    }
    let config = dir.join("node.toml");
    let text = node_config(plan, cluster, node, (head, site), &dir, network)?;
    write_file(&config, text.as_bytes())?;
    let program = cluster.program.clone().unwrap_or_else(|| plan.program.to_owned());
    Ok(NodeRequest {
        node: node.clone(),
        program,
        config,
        log: plan.dir.join("nodes").join(format!("{node}.log")),
        env: cluster.env.clone().into_iter().collect(),
        threads: plan.config.threads_of(cluster),
        host: None,
        shipped: None,
    })
}

/// A node's config file: the grid's network and work sections, and the node's identity.
fn node_config(
    plan: &LaunchPlan<'_>,
    cluster: &ClusterSection,
    node: &NodeId,
    (head, site): (SocketAddr, Option<SocketAddr>),
    dir: &Path,
    network: Option<&Emulated>,
) -> Result<String, Failed> {
    let config = plan.config;
    let text = |path: PathBuf| {
        let shown = path.display().to_string();
        path.into_os_string()
            .into_string()
            .map_err(|_| Failed::usage(format!("{shown} is not UTF-8: choose another directory")))
    };
    let table = toml::toml! { config_version = 1 };
    let mut table = table;
    let mut set = |section: Option<&str>, key: &str, value: toml::Value| {
        let target = match section {
            None => &mut table,
            Some(name) => match table
                .entry(name)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                .as_table_mut()
            {
                Some(target) => target,
                None => return,
            },
        };
        target.insert(key.to_owned(), value);
    };
    let encode = |section: &dyn Fn() -> Result<toml::Value, toml::ser::Error>| {
        section().map_err(|error| {
            Failed::failure(format!("a node's config does not serialise: {error}"))
        })
    };
    set(None, "grid", config.grid.as_str().into());
    set(None, "node", node.as_str().into());
    set(None, "cluster", cluster.name.as_str().into());
    set(None, "site", cluster.name.as_str().into());
    if let Some(site) = site {
        set(None, "site_at", site.to_string().into());
    }
    if let Some(files) = cluster.files.as_deref().or(plan.files) {
        // The node may run elsewhere than the head was started.
        set(None, "files", text(absolute(files)?)?.into());
    }
    set(None, "net", encode(&|| toml::Value::try_from(&config.net))?);
    if let (Some(network), Some(shape)) = (network, &config.net.shape) {
        // Each node has an address of its own, perhaps on another host.
        let bind =
            SocketAddr::new(netconf::emulated_address(network, node)?, config.net.bind.port());
        set(Some("net"), "bind", bind.to_string().into());
        set(Some("net"), "shape", text(absolute(shape)?)?.into());
    } else {
        let is_here = cluster.provider == ProviderKind::Local;
        let bind = netconf::bind_towards(&config.net, head, is_here);
        set(Some("net"), "bind", bind.to_string().into());
    }
    // A node needs only the links of its own cluster.
    let links = config.link.iter().filter(|link| link.other_end(cluster.name.as_str()).is_some());
    let links: Vec<_> = links.cloned().collect();
    if !links.is_empty() {
        set(None, "link", encode(&|| toml::Value::try_from(&links))?);
    }
    set(None, "work", encode(&|| toml::Value::try_from(&config.work))?);
    set(Some("work"), "threads", i64::from(config.threads_of(cluster)).into());
    set(Some("head"), "name", HEAD.into());
    set(Some("head"), "address", head_addresses(config, head));
    set(Some("identity"), "certificate", text(dir.join("node.pem"))?.into());
    set(Some("identity"), "key", text(dir.join("node.key"))?.into());
    set(Some("identity"), "ca", text(dir.join("ca.pem"))?.into());
    let level = plan.log_level.unwrap_or(config.log.level);
    set(Some("log"), "level", level.to_string().into());
    set(Some("log"), "format", config.log.format.to_string().into());
    let written = toml::to_string(&table).map_err(Failed::failure)?;
    // An unreadable config fails here rather than in each node.
    load::<NodeConfig>(&Sources::of_text("node.toml", &written))?;
    Ok(written)
}

/// Fails if a node of a settled grid is broken.
///
/// # Errors
/// The reason of the first broken node, with its last log lines.
pub fn check_whole(status: &GridStatus) -> Result<(), Failed> {
    let mut nodes = status.sites.values().flat_map(|site| &site.nodes);
    match nodes.find(|node| node.state == NodeState::Broken) {
        None => Ok(()),
        Some(node) => {
            let reason = node.reason.as_deref().unwrap_or("no reason is known");
            let message = format!("node {} does not start: {reason}", node.node);
            Err(Failed::new(Exit::NotPlaced, message))
        }
    }
}
