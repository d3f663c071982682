//! A client's connection to a running grid.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::admit::Principal;
use springtide_actors::audit::{AuditEntry, AuditLog};
use springtide_actors::client::{Client, ReceivedNews};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::enrol::{ENROLMENT, refresh_files};
use springtide_actors::head::{HEAD, HEAD_CLUSTER};
use springtide_actors::incarnation;
use springtide_actors::job::SCHEDULER;
use springtide_actors::links::LinkChanges;
use springtide_actors::probe::Prober;
use springtide_actors::scheduler::{CrowdedHost, Scheduler};
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::seconds;
use springtide_runtime::config::{GridConfig, Sources};
use springtide_runtime::id::{Incarnation, NodeId};
use springtide_runtime::net::join::JoinToken;
use springtide_runtime::net::tls::{Ca, NODE_VALIDITY, NodeIdentity, Role, calendar};
use springtide_runtime::net::{Address, Contact};
use springtide_runtime::remote::Remote;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::certificate;
use super::grid_files::{self, Authority, HeadFile};
use super::locate::hint;
use super::netconf;
use super::reach::{diagnose, local_towards};

/// Directory of a user's certificate in that of the grid, if the config names no other.
pub const IDENTITY_DIR: &str = "identity";

/// Timeout of the head's first answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(8);
/// Interval between attempts to reach a grid that is not up yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A client's connection to a running grid.
pub struct Attachment {
    /// The endpoint of the client.
    pub endpoint: Endpoint,
    /// The name of the head's node.
    pub head: NodeId,
    /// The address of the head.
    pub address: SocketAddr,
    /// Hosts of the grid with more compute threads than processors.
    pub crowded_hosts: Vec<CrowdedHost>,
    /// Changes of the links of this client.
    pub links: Arc<LinkChanges>,
    /// Whether a second head of the grid may take over.
    pub has_second_head: bool,
    /// The news of this client's jobs.
    pub news: mpsc::Receiver<ReceivedNews>,
}

impl Attachment {
    /// The scheduler of the grid.
    pub fn scheduler(&self) -> Remote<Scheduler> {
        self.endpoint.hub.remote(&self.head, SCHEDULER)
    }

    /// The next news of this client's jobs. Cancel safe.
    pub async fn news(&mut self) -> Option<ReceivedNews> {
        self.news.recv().await
    }
}

/// Finds the head of a running grid and connects to it. A user without a certificate gets one for
/// the token in the environment variable SPRINGTIDE_TOKEN.
///
/// # Errors
/// No grid is up, or the head refuses this client.
pub async fn attach(file: &Path, config: &GridConfig) -> Result<Attachment, Failed> {
    attach_with(file, config, None).await
}

/// As [`attach`], with this token instead of that of the environment.
///
/// # Errors
/// As [`attach`]; or the token is not valid.
pub async fn attach_with(
    file: &Path,
    config: &GridConfig,
    token: Option<&str>,
) -> Result<Attachment, Failed> {
    let dir = grid_files::dir_of(file, config);
    let nothing = |why: &str| {
        Failed::failure(format!(
            "no grid runs for {0}{why}: start it with `{1} up {0}`",
            file.display(),
            grid_files::program_name()
        ))
    };
    let file_of_head = HeadFile::read(&dir)?;
    let address = match (&file_of_head, &config.head.advertise) {
        // It has the first of several addresses.
        (Some(head), advertise) if advertise.as_ref().is_none_or(|all| all.all().len() == 1) => {
            head.address
        }
        (_, Some(all)) => netconf::resolve_any(all).await?,
        (_, None) => {
            let bind = Some(config.head.bind).filter(|bind| bind.port() != 0);
            bind.ok_or_else(|| nothing(""))?
        }
    };
    let host = file_of_head.as_ref().and_then(HeadFile::elsewhere).map(str::to_owned);
    let ca = grid_files::ca_dir(config, &dir);
    // The holder of the authority's key needs no certificate of a user.
    let holds_key = config.tls.ca.is_some() || ca.exists();
    let user = match &config.tls.identity {
        Some(identity) => Some(identity.clone()),
        None if holds_key => None,
        None => Some(dir.join(IDENTITY_DIR)),
    };
    if let Some(identity) = &user
        && !identity.join("node.pem").exists()
    {
        match certificate::given_token(token)? {
            Some(token) => join_as_user(config, file_of_head.as_ref(), &token, identity).await?,
            None if config.tls.identity.is_some() => {} // reading it says what is missing
            None => {
                grid_files::check_authority(config, &dir)?;
                return Err(nothing("")); // `up` makes the authority
            }
        }
    }
    let (identity, own) = match &user {
        Some(identity) => users_identity(config, identity)?,
        None => {
            grid_files::check_authority(config, &dir)?;
            (operators_identity(Ca::load(&ca)?)?, incarnation::only())
        }
    };
    let bind = SocketAddr::new(own_address(config.head.bind.ip(), address), 0);
    let endpoint = Endpoint::quic(netconf::head_net(config, bind), &identity, own)?;
    let (links, news) = Client::publish(&endpoint);
    // The scheduler asks the prober whether this process is alive.
    Prober::publish(&endpoint.hub);
    endpoint.start();
    let head = NodeId::from(HEAD);
    let contact = Contact {
        node: head.clone(),
        cluster: HEAD_CLUSTER.into(),
        address: Address::Socket(address),
    };
    endpoint.net.learn(contact.clone());
    if let Some(all) = &config.head.advertise {
        actix_rt::spawn(netconf::follow_head(endpoint.net.clone(), contact, all.clone()));
    }
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let status = scheduler.send(springtide_actors::scheduler::GetStatus {}).deadline(HEAD_TIMEOUT);
    let status = status.await;
    if let Err(error) = &status {
        let refused = Failed::from(error.clone());
        endpoint.net.close("no head").await;
        return Err(match refused.exit {
            // The head may run there, where this host cannot reach it.
            Exit::Failure if host.is_some() && address.ip().is_loopback() => {
                let host = host.unwrap_or_default();
                Failed::failure(format!(
                    "the head of {} runs on {host}, and listens only there ({address}): set \
                    `head.bind` to an address that this host can reach, or run the command \
                    there",
                    file.display()
                ))
            }
            Exit::Failure => {
                let on = host.map_or_else(String::new, |host| format!(" on {host}"));
                let why = diagnose(bind.ip(), address).await.unwrap_or_else(|| error.to_string());
                nothing(&format!(" at {address}{on} ({why})"))
            }
            _ => refused,
        });
    }
    if let Some(dir) = &user {
        let enrolment = endpoint.hub.remote(&head, ENROLMENT);
        if let Err(why) = refresh_files(&identity, dir, calendar()(), &enrolment).await {
            tracing::warn!("the certificate in {} is not renewed: {why}", dir.display());
        }
    }
    let crowded = status.map(|status| status.crowded).unwrap_or_default();
    let has_second_head = config.head.advertise.as_ref().is_some_and(|all| all.all().len() > 1);
    let crowded_hosts = crowded;
    Ok(Attachment { endpoint, head, address, crowded_hosts, links, has_second_head, news })
}

/// An identity of the operator for one command, issued by the authority of the grid. Its name says
/// which user of this host runs the command.
fn operators_identity(authority: Ca) -> Result<NodeIdentity, Failed> {
    let authority = Authority::Kept(authority, NODE_VALIDITY);
    let user = this_user();
    let (pid, unique) = (std::process::id(), incarnation::unique());
    let me = NodeId::from(format!("client-{user}-{pid}-{unique:x}"));
    authority.issue(&me, HEAD_CLUSTER, "client")
}

/// The identity of a user in this directory, and the number of its process. A later command of the
/// same identity replaces an earlier one.
fn users_identity(config: &GridConfig, dir: &Path) -> Result<(NodeIdentity, Incarnation), Failed> {
    let identity = users_certificate(config, dir)?;
    let own = incarnation::issue(dir).map_err(Failed::failure)?;
    Ok((identity, own))
}

/// The certificate and the key of a user in this directory.
fn users_certificate(config: &GridConfig, dir: &Path) -> Result<NodeIdentity, Failed> {
    let identity = NodeIdentity::load(dir)?;
    let (name, grid) = (identity.name(), identity.grid());
    if !matches!(name.role_kind(), Role::Client | Role::Viewer) || grid != config.grid.as_str() {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "tls.identity: {} has the certificate of {name} in grid {grid}, and commands need \
                 that of a client or viewer in grid {}",
                dir.display(),
                config.grid
            ),
        ));
    }
    Ok(identity)
}

/// Gets a certificate of a user for a token, and writes it to a directory.
async fn join_as_user(
    config: &GridConfig,
    head: Option<&HeadFile>,
    token: &JoinToken,
    dir: &Path,
) -> Result<(), Failed> {
    let at = match (&config.join.advertise, config.join.bind, head.and_then(|head| head.join)) {
        (Some(advertise), ..) => netconf::resolve(advertise).await?,
        (None, Some(bind), _) if bind.port() != 0 && !bind.ip().is_unspecified() => bind,
        (None, _, Some(running)) => running,
        (None, ..) => {
            return Err(Failed::usage(
                "the config does not say where the grid admits users: set `join.advertise` to the \
                address that `token create` prints",
            ));
        }
    };
    let identity = certificate::join_user(at, token).await?;
    let name = identity.name();
    if !matches!(name.role_kind(), Role::Client | Role::Viewer) {
        return Err(Failed::new(
            Exit::Auth,
            format!(
                "the token is for {name}, and commands need one of a user: create it with --role"
            ),
        ));
    }
    grid_files::make_private_dir(dir)?;
    identity.save(dir)?;
    tracing::info!("joined the grid as {name}: its certificate is in {}", dir.display());
    Ok(())
}

/// The name of this process's user, as certificates can contain it.
pub fn this_user() -> String {
    const NAME_MAX: usize = 16;
    let name = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).take(NAME_MAX).collect();
    if name.is_empty() { "user".to_owned() } else { name }
}

/// Who changes a grid's files without its head: the owner of the certificate in `tls.identity`, or
/// this host's user.
///
/// # Errors
/// The certificate cannot be read, or is not an operator's.
pub fn directory_user(config: &GridConfig) -> Result<Principal, Failed> {
    let Some(dir) = &config.tls.identity else {
        let (name, cluster) = (this_user().as_str().into(), HEAD_CLUSTER.into());
        return Ok(Principal { name, cluster, role: Some("user".to_owned()) });
    };
    let identity = users_certificate(config, dir)?;
    let name = identity.name();
    let who = Principal {
        name: name.node.clone(),
        cluster: name.cluster.clone(),
        role: Some(name.role.clone()),
    };
    if who.is_operator() {
        return Ok(who);
    }
    Err(Failed::new(
        Exit::Auth,
        format!(
            "tls.identity: {} has the certificate of {name}, and this command needs that of an \
             operator: leave `tls.identity` out to act as the owner of the grid's directory",
            dir.display()
        ),
    ))
}

/// Records a command that changes a grid's files without its head. The name of this host's user is
/// that of the environment, so the record has the user's number too.
pub fn record_command(dir: &Path, who: Principal, command: &str, detail: &str) {
    let log = AuditLog::of(dir, calendar());
    let entry = log.entry(who, command, None);
    let uid = rustix::process::getuid().as_raw();
    log.append(&AuditEntry { detail: Some(format!("{detail} (user number {uid})")), ..entry });
}

/// The address of this host from which a client reaches the head: that of the head, if it is here.
fn own_address(head: IpAddr, address: SocketAddr) -> IpAddr {
    let is_here = !head.is_unspecified() && UdpSocket::bind((head, 0)).is_ok();
    let is_here = is_here && head.is_ipv6() == address.is_ipv6();
    if is_here { head } else { local_towards(address).unwrap_or(head) }
}

/// As [`attach`], and waits up to this time for a grid that is not up yet.
///
/// # Errors
/// As [`attach`], without a time or where waiting does not help. [`Exit::Timeout`] with the last
/// failure after that time.
pub async fn attach_within(
    file: &Path,
    config: &GridConfig,
    wait: Option<Duration>,
) -> Result<Attachment, Failed> {
    let Some(wait) = wait else { return attach(file, config).await };
    let deadline = Instant::now() + wait;
    let mut why = "its head does not answer".to_owned();
    while Instant::now() < deadline {
        match timeout_at(deadline, attach(file, config)).await {
            // A refusal stays one; any other failure may be that of a grid that is coming up.
            Ok(Err(failed)) if failed.exit == Exit::Failure => why = failed.message,
            Ok(attached) => return attached,
            Err(_) => break,
        }
        sleep(RETRY_INTERVAL).await;
    }
    let (file, wait) = (file.display(), seconds(wait.as_secs_f64()));
    Err(Failed::new(Exit::Timeout, format!("the grid of {file} is not up after {wait}: {why}")))
}

/// Waits up to this time until the grid of a config is up; without a time, not at all.
///
/// # Errors
/// As [`attach_within`].
pub async fn wait_for_grid(file: &Path, wait: Option<Duration>) -> Result<(), Failed> {
    if wait.is_some() {
        let attached = attach_within(file, &grid_config(file)?, wait).await?;
        attached.endpoint.net.close("the grid is up").await;
    }
    Ok(())
}

/// Reads the grid's config.
///
/// # Errors
/// The config is missing, cannot be read or is wrong.
pub fn grid_config(file: &Path) -> Result<GridConfig, Failed> {
    if let Some(hint) = hint(file) {
        return Err(Failed::usage(hint));
    }
    Ok(load::<GridConfig>(&Sources::of_process(Some(file)))?.value)
}

/// Finds the head of the grid of a config and connects to it.
///
/// # Errors
/// As [`grid_config`] and [`attach`].
pub async fn attach_by(file: &Path) -> Result<Attachment, Failed> {
    attach(file, &grid_config(file)?).await
}
