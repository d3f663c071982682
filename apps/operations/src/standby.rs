//! Two heads on two machines: the one that acts, and the one that waits.
//!
//! ```text
//! DIR/member/           the member's log of records, its number of processes, and its lock
//! DIR/member/process    the process id of the member, once its endpoint is open
//! DIR/standby/          files for the other head's machine: the grid's config and a certificate
//! ```
//!
//! A process of a head begins as a member that waits. When the protocol elects it, it becomes the
//! grid's head with the files of its directory. When it loses its right to act, it replaces itself
//! by a new process, which waits. Meanwhile its socket sends nothing.
//!
//! Independent of the protocol and of the head's work.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use actix_rt::Arbiter;
use springtide_actors::endpoint::Endpoint;
use springtide_actors::enrol::{EnrolmentStore, is_due};
use springtide_actors::head::HEAD_CLUSTER;
use springtide_actors::incarnation;
use springtide_actors::lease::{Lease, LeaseError};
use springtide_actors::site_host::site_node;
use springtide_actors::standby::{
    ChangeLog, MemberLog, MemberPart, MemberStatus, MemberWatch, Members, Mirror, ReplicatedFiles,
    StandbyMember, StandbyTiming,
};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::outdir::write_file;
use springtide_runtime::config::{ClusterSection, GridConfig, Level, SitePlace, StandbySection};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::tls::{AuthorityReader, Ca, NodeIdentity, Role, calendar};
use springtide_runtime::net::{Address, Contact, Net, NetConfig};
use springtide_runtime::records::Disk;
use tokio::sync::watch;
use tokio::time::sleep;

use super::grid::ActingRole;
use super::grid_files::{
    Authority, HeadFile, LaunchPlan, absolute, ca_dir, kept_authority, make_private_dir,
    program_name, this_program,
};
use super::netconf;
use super::node::restart;
use super::notify::Notifier;
use super::signals::{Signals, word};
use super::site_files;

/// Names of the heads among the members.
const HEADS: [&str; 2] = ["head-1", "head-2"];
/// Interval between checks of the right to act. The socket asks before each datagram.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between replications of files that others write.
const MIRROR_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks of the member's certificate.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(60);

/// The members of a grid's head.
pub fn members(standby: &StandbySection) -> Members {
    let witness = ClusterId::from(standby.witness.as_str());
    Members { heads: HEADS.map(NodeId::from), witness: site_node(&witness) }
}

/// The addresses of the members, except one.
///
/// # Errors
/// A name has no address.
async fn contacts(config: &GridConfig, me: &NodeId) -> Result<Vec<Contact>, Failed> {
    let Some(standby) = &config.standby else { return Ok(Vec::new()) };
    let mut contacts = Vec::new();
    for (name, at) in HEADS.into_iter().zip(standby.heads.all()) {
        let address = Address::Socket(netconf::resolve(at).await?);
        contacts.push(Contact { node: name.into(), cluster: HEAD_CLUSTER.into(), address });
    }
    let witness = config.cluster.iter().find(|one| one.name == standby.witness);
    if let Some(ClusterSection { name, site_bind, site_advertise, .. }) = witness
        && let Some(address) = site_advertise.or(*site_bind)
    {
        let cluster = ClusterId::from(name.as_str());
        let address = Address::Socket(address);
        contacts.push(Contact { node: site_node(&cluster), cluster, address });
    }
    contacts.retain(|contact| contact.node != *me);
    Ok(contacts)
}

/// The directory of a member's own state.
fn member_dir(dir: &Path) -> PathBuf {
    dir.join("member")
}

/// The lock of a head's process that waits or acts, in a grid with a second head.
pub fn lease_path(dir: &Path) -> PathBuf {
    member_dir(dir).join("member.lease")
}

/// Checks that no head waits on this machine: the other one has the current files of the grid. A
/// command is about to change them.
///
/// # Errors
/// One waits.
pub fn check_not_waiting(config: &GridConfig, dir: &Path) -> Result<(), Failed> {
    let waits =
        config.standby.is_some() && HeadFile::read(dir)?.is_none() && member_dir(dir).exists();
    if waits {
        return Err(Failed::failure(format!(
            "no head acts on this machine: run the command on the machine of the head that acts, \
            which `{} status` shows",
            program_name()
        )));
    }
    Ok(())
}

/// The directory of the files for the other head's machine.
pub fn files_dir(dir: &Path) -> PathBuf {
    dir.join("standby")
}

/// Publishes the witness of the grid's head on a site's endpoint, if the site is the witness.
///
/// # Errors
/// Its records are damaged, or a head's name has no address.
pub async fn publish_witness(
    config: &GridConfig,
    cluster: &ClusterId,
    endpoint: &Endpoint,
    dir: &Path,
) -> Result<(), Failed> {
    let Some(standby) = config.standby.as_ref() else { return Ok(()) };
    if standby.witness.as_str() != cluster.as_str() {
        return Ok(());
    }
    let log = MemberLog::open(Arc::new(Disk), &member_dir(dir).join("records"))?;
    for contact in contacts(config, &endpoint.net.me().node).await? {
        endpoint.net.learn(contact);
    }
    StandbyMember::publish(&endpoint.hub, members(standby), StandbyTiming::default(), log, None);
    Ok(())
}

/// The member of a head, on an arbiter of its own.
struct RunningMember {
    log: Arc<ChangeLog>,
    status: watch::Receiver<MemberStatus>,
    me: NodeId,
    witness: NodeId,
    place: usize,
    /// Locked while the process runs.
    lock: Lease,
}

/// How a head's process was started.
#[derive(Clone, Copy, Debug)]
pub struct StandbyOptions {
    /// Whether its files are a copy of those that the other head has written for it.
    pub is_second: bool,
    /// The log level of nodes; the config's if absent.
    pub log_level: Option<Level>,
}

/// The parts of a member's endpoint.
struct MemberParts {
    net: NetConfig,
    identity: NodeIdentity,
    incarnation: Incarnation,
    contacts: Vec<Contact>,
    members: Members,
    log: MemberLog,
    dir: PathBuf,
    authority: PathBuf,
    validity: Duration,
}

impl MemberParts {
    /// Opens the endpoint and starts the member, on the arbiter of the caller.
    fn start(self) -> Result<(Arc<ChangeLog>, watch::Receiver<MemberStatus>), Failed> {
        let me = self.identity.name().node.clone();
        let endpoint = Endpoint::quic(self.net, &self.identity, self.incarnation)?;
        endpoint.net.revoke(&EnrolmentStore::of(&self.dir).read()?.revoked(calendar()()));
        self.contacts.into_iter().for_each(|contact| endpoint.net.learn(contact));
        let (timing, dir) = (StandbyTiming::default(), Some(self.dir.clone()));
        let (member, status) =
            StandbyMember::publish(&endpoint.hub, self.members, timing, self.log, dir);
        endpoint.start();
        let (net, validity) = (endpoint.net.clone(), self.validity);
        let log = ChangeLog::new(&self.dir, me, member);
        actix_rt::spawn(async move {
            // It owns the endpoint.
            let _endpoint = endpoint;
            keep_identity(&net, self.identity, &self.authority, validity, &self.dir).await;
        });
        Ok((log, status))
    }
}

/// Renews a member's certificate from the authority, which both heads have, and refuses the names
/// that are revoked.
async fn keep_identity(
    net: &Net,
    identity: NodeIdentity,
    authority: &Path,
    validity: Duration,
    dir: &Path,
) {
    let name = identity.name().node.clone();
    let mut dates = identity.dates().ok();
    let reader = AuthorityReader::new(authority.to_owned());
    let mut trusted = reader.read().ok().map(|ca| ca.cert_pem().to_owned());
    let today = calendar();
    loop {
        sleep(CERTIFICATE_INTERVAL).await;
        if let Ok(state) = EnrolmentStore::of(dir).read() {
            net.revoke(&state.revoked(today()));
        }
        // A head that waits for its first copy has no authority yet.
        let Some(now) = reader.read().ok().map(|ca| ca.cert_pem().to_owned()) else { continue };
        let is_current = dates.is_some_and(|dates| !is_due(dates, 0.0, today()));
        if is_current && trusted.as_ref() == Some(&now) {
            continue;
        }
        let renewed = Ca::load(authority).map_err(Failed::from).and_then(|ca| {
            let identity = Authority::Kept(ca, validity).issue(&name, HEAD_CLUSTER, "head")?;
            net.renew(&identity)?;
            Ok(identity.dates()?)
        });
        match renewed {
            Ok(of) => (dates, trusted) = (Some(of), Some(now)),
            Err(failed) => {
                tracing::warn!("the certificate of {name} is not renewed: {}", failed.message);
            }
        }
    }
}

/// The identity of a head that waits, from the directory of its config, where the other head's
/// files were copied to; and its place among the heads.
fn copied_identity(file: &Path, config: &GridConfig) -> Result<(NodeIdentity, usize), Failed> {
    let dir = file.parent().unwrap_or_else(|| Path::new(""));
    let identity = NodeIdentity::load(dir).map_err(|error| {
        let failed = Failed::from(error);
        let message = format!(
            "{}; copy the directory `standby` of the other head's state to this machine, and \
            start it with the config there",
            failed.message
        );
        Failed { message, ..failed }
    })?;
    let name = identity.name();
    let place = HEADS.iter().position(|head| *head == name.node.as_str());
    match place.filter(|_| name.role_kind() == Role::Head) {
        Some(place) if identity.grid() == config.grid.as_str() => Ok((identity, place)),
        _ => Err(Failed::new(
            Exit::Auth,
            format!(
                "{} has the certificate of {name} in grid {}, and a second head needs its own in \
                grid {}: copy the directory `standby` of the other head's state",
                dir.join("node.pem").display(),
                identity.grid(),
                config.grid
            ),
        )),
    }
}

/// The config's section about the second head.
fn section<'a>(file: &Path, config: &'a GridConfig) -> Result<&'a StandbySection, Failed> {
    config.standby.as_ref().ok_or_else(|| {
        Failed::usage(format!(
            "{}: the grid has no second head: add [standby] with `heads` and `witness`",
            file.display()
        ))
    })
}

/// Checks that a second head can be started with this config and the files next to it.
///
/// # Errors
/// The grid has no second head, or the files of the other head are missing.
pub fn check_second(file: &Path, config: &GridConfig) -> Result<(), Failed> {
    section(file, config)?;
    copied_identity(file, config).map(drop)
}

/// Whether a process is a member of the grid's head, and waits or acts.
pub fn is_member(dir: &Path, pid: u32) -> bool {
    let found = std::fs::read_to_string(process_path(dir)).ok();
    found.and_then(|text| text.trim().parse().ok()) == Some(pid)
}

fn process_path(dir: &Path) -> PathBuf {
    member_dir(dir).join("process")
}

/// How to start the other head, in one line.
pub fn other_head_line(dir: &Path) -> String {
    format!(
        "the other head: copy {} to its machine, and run there: {} up --standby grid.toml",
        files_dir(dir).display(),
        program_name()
    )
}

/// Starts the member of a head on an arbiter of its own.
async fn start_member(
    file: &Path,
    config: &GridConfig,
    dir: &Path,
    options: StandbyOptions,
) -> Result<RunningMember, Failed> {
    let standby = section(file, config)?;
    make_private_dir(dir)?;
    let own = member_dir(dir);
    make_private_dir(&own)?;
    let lock = Lease::take(&lease_path(dir)).map_err(|error| match error {
        LeaseError::Held { holder, path } => Failed::failure(format!(
            "a head of this grid runs here already ({holder}): use it, or end it first (it holds \
            the lock {})",
            path.display()
        )),
        error => Failed::failure(error),
    })?;
    let log = MemberLog::open(Arc::new(Disk), &own.join("records"))?;
    let (validity, authority) = (config.tls.validity.get(), ca_dir(config, dir));
    let (identity, place) = if options.is_second {
        let (copied, place) = copied_identity(file, config)?;
        // A later certificate, if this head has the authority by now.
        let issued = Ca::load(&authority).ok().and_then(|ca| {
            Authority::Kept(ca, validity).issue(&HEADS[place].into(), HEAD_CLUSTER, "head").ok()
        });
        (issued.unwrap_or(copied), place)
    } else {
        let kept = kept_authority(config, dir)?;
        let advertise = config.head.advertise.as_ref().map(|all| all.first());
        if let (0, Some(advertise)) = (log.state().last().index, advertise) {
            // The other members need them before this head can lead for the first time.
            let address = netconf::resolve(advertise).await?;
            let program = this_program()?;
            let plan = LaunchPlan {
                config,
                dir,
                authority: &kept,
                program: &program,
                files: None,
                log_level: options.log_level,
            };
            for cluster in config.cluster.iter().filter(|one| one.site == SitePlace::Own) {
                site_files::write(&plan, cluster, address)?;
            }
            write_files(&plan, 0)?;
        }
        (kept.issue(&HEADS[0].into(), HEAD_CLUSTER, "head")?, 0)
    };
    let me = identity.name().node.clone();
    let at = netconf::resolve(&standby.heads.all()[place]).await?;
    let mut net = netconf::head_net(config, standby.bind.unwrap_or(at));
    net.advertise = Some(at);
    let incarnation = incarnation::issue(&own).map_err(Failed::failure)?;
    let (contacts, members) = (contacts(config, &me).await?, members(standby));
    let witness = members.witness.clone();
    let dir = dir.to_owned();
    let parts = MemberParts {
        net,
        identity,
        incarnation,
        contacts,
        members,
        log,
        dir,
        authority,
        validity,
    };
    // The stores of the acting head wait for this thread.
    let arbiter = Arbiter::new();
    let (sender, started) = mpsc::channel();
    arbiter.spawn_fn(move || drop(sender.send(parts.start())));
    let started = started.recv();
    let (log, status) =
        started.map_err(|_| Failed::failure("the thread of the member has ended"))??;
    Ok(RunningMember { log, status, me, witness, place, lock })
}

/// Writes the files that another machine needs for the other head.
///
/// # Errors
/// Files cannot be written.
pub fn write_files(plan: &LaunchPlan<'_>, place: usize) -> Result<(), Failed> {
    let dir = files_dir(plan.dir);
    make_private_dir(&dir)?;
    let other = HEADS[1 - place.min(1)];
    plan.authority.issue(&other.into(), HEAD_CLUSTER, "head")?.save(&dir)?;
    let mut config = plan.config.clone();
    for cluster in &mut config.cluster {
        for path in [&mut cluster.files, &mut cluster.program].into_iter().flatten() {
            *path = absolute(path)?;
        }
    }
    let text = toml::to_string(&config).map_err(Failed::failure)?;
    write_file(&dir.join("grid.toml"), text.as_bytes())
}

/// A member's state in one line.
fn describe(me: &NodeId, status: &MemberStatus) -> String {
    match status.part {
        MemberPart::Leader => format!("{me} leads, and waits until the others confirm it"),
        MemberPart::Candidate => format!("{me} asks the other members for their votes"),
        MemberPart::Follower if status.last.index == 0 => {
            format!("{me} waits, and has no records yet")
        }
        MemberPart::Follower => format!("{me} waits"),
    }
}

/// Runs a head's process until it may act, and returns its role. `None` after a signal. `say`
/// prints a line for the user.
///
/// # Errors
/// The member cannot be started, or its disk fails.
pub async fn wait_for_role(
    file: &Path,
    config: &GridConfig,
    dir: &Path,
    options: StandbyOptions,
    say: &dyn Fn(&str),
) -> Result<Option<ActingRole>, Failed> {
    let mut signals = Signals::take()?;
    let mut member = start_member(file, config, dir, options).await?;
    // A head that acted in this directory does not act now.
    let _ = std::fs::remove_file(HeadFile::path(dir));
    say(&format!("{} waits until it may act; Ctrl-C ends it", member.me));
    if !options.is_second {
        say(&other_head_line(dir));
    }
    write_file(&process_path(dir), format!("{}\n", std::process::id()).as_bytes())?;
    let notifier = Notifier::of_env();
    notifier.ready("a head that waits");
    // It continues when the head acts.
    notifier.keep_alive();
    let mut said = String::new();
    loop {
        let status = member.status.borrow_and_update().clone();
        if let Some(failed) = status.failed {
            return Err(Failed::failure(format!("{}: {failed}", member.me)));
        }
        if status.may_act() {
            say(&format!("{} acts, in term {}", member.me, status.term.0));
            return act(member).map(Some);
        }
        let line = describe(&member.me, &status);
        if line != said {
            tracing::info!("{line}");
            said = line;
        }
        tokio::select! {
            biased;
            exit = signals.next() => {
                say(&format!("{}: this head waits no more", word(exit)));
                return Ok(None);
            }
            changed = member.status.changed() => {
                changed.map_err(|_| Failed::failure("the thread of the member has ended"))?;
            }
        }
    }
}

/// Begins to act: from now on, this process ends when it loses the right.
fn act(member: RunningMember) -> Result<ActingRole, Failed> {
    let RunningMember { log, status, me, witness, place, lock } = member;
    let (watched, name) = (status.clone(), me.clone());
    let watch = move || {
        // The lock is held as long as this process is a member.
        let _held = lock;
        while watched.borrow().may_act() {
            std::thread::sleep(CHECK_INTERVAL);
        }
        eprintln!(
            "{}: {name} has lost the right to act: another head may take over; this one begins \
            again, and waits",
            program_name()
        );
        let failed = restart(None);
        eprintln!("{}: {}", program_name(), failed.message);
        std::process::exit(failed.exit.code().into());
    };
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let failed = |error| Failed::failure(format!("a thread does not start: {error}"));
    thread("right-to-act").spawn(watch).map_err(failed)?;
    let mirror = Arc::new(Mirror::new(Arc::clone(&log)).map_err(Failed::failure)?);
    let kept = Arc::clone(&mirror);
    let replicate = move || {
        loop {
            std::thread::sleep(MIRROR_INTERVAL);
            if let Err(error) = kept.flush() {
                // A head without the right to act ends; other errors are repeated.
                tracing::warn!("files are not replicated: {error}");
            }
        }
    };
    thread("mirror").spawn(replicate).map_err(failed)?;
    let files = Arc::new(ReplicatedFiles(log));
    let members = MemberWatch { me, witness, status };
    Ok(ActingRole { files, mirror, members, place })
}
