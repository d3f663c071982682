//! The program store of a process: keeps programs by digest, receives and serves them.
//!
//! Published as [`PROGRAMS`](super::PROGRAMS). The table decides, and this actor executes. A file
//! gets its name only when it is whole and its digest is right. Jobs are only numbers here.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use bytes::Bytes;
use springtide_protocol::files::{CHUNK_MAX, FileError, FileSource, ReadChunk};
use springtide_protocol::names::PROGRAMS;
use springtide_protocol::program::{
    GetProgramTerms, OfferProgram, ProgramDigest, ProgramError, ProgramImage, ProgramTerms,
    ShippedProgram,
};
use springtide_protocol::receivers::FileServer;
use springtide_protocol::scheduler::JobAuthority;
use springtide_runtime::net::Net;
use springtide_runtime::net::tls::Role;
use springtide_runtime::remote::{Hub, MessageOrigin, Remote};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ProgramLimits;
use super::elf::read_header;
use super::table::{
    ProgramAction, ProgramArrival, ProgramEvent, ProgramSource, ProgramTable, ProgramUser,
    ReceiveError, ReceiveResult,
};
use crate::admit::{self, AdmitsMessages, AuthorityQuery, MessageSubject, SenderStanding};
use crate::audit::AuditLog;
use crate::files::dir::Dir;
use crate::files::fetch::{blocking, fetch};

/// Time for which an offered program is kept without a job.
const OFFER_TIME: Duration = Duration::from_secs(60);
/// Time after which the part of a program is removed, if no transfer resumes it.
const PART_TIME: Duration = Duration::from_secs(3600);
/// Permissions of programs: only the user of this process may read and start them.
const PROGRAM_MODE: u32 = 0o700;
/// Size of the pieces in which a file of this host is copied.
const PIECE_SIZE: usize = 1 << 20;

/// Settings of a program store.
#[derive(Clone)]
pub struct ProgramStoreSettings {
    /// Directory of the programs, which only this process uses.
    pub dir: PathBuf,
    /// Limits of number and size.
    pub limits: ProgramLimits,
    /// Whether the grid runs programs that it was not built with.
    pub foreign: bool,
    /// Fingerprint of the registry of the grid's own program. Its nodes need no other one.
    pub own: Option<u64>,
    /// Log of the programs that clients offer, if they are to be recorded.
    pub audit_log: Option<Arc<AuditLog>>,
}

/// A program store, as the other actors of its process use it.
#[derive(Clone, Debug)]
pub struct ProgramAccess {
    /// Address of the store's actor.
    pub store: Addr<ProgramStore>,
    /// Whether the grid runs programs that it was not built with.
    pub foreign: bool,
}

/// The actor of a program store.
pub struct ProgramStore {
    dir: Arc<Dir>,
    foreign: bool,
    own: Option<u64>,
    audit_log: Option<Arc<AuditLog>>,
    net: Net,
    hub: Arc<Hub>,
    table: ProgramTable,
    /// Running attempts: their number of received bytes, and their tasks.
    attempts: BTreeMap<u64, ReceiveAttempt>,
    waiting: BTreeMap<u64, oneshot::Sender<Result<ProgramArrival, ProgramError>>>,
    last_ticket: u64,
}

struct ReceiveAttempt {
    digest: ProgramDigest,
    received: Arc<AtomicU64>,
    task: SpawnHandle,
}

/// Local message to a program store: a user needs this program. The answer follows when its file
/// is in the store.
#[derive(Debug, Message)]
#[rtype(result = "Result<StoredPath, ProgramError>")]
pub struct UseProgram {
    /// The user. It releases its earlier program.
    pub user: ProgramUser,
    /// The program and its sources.
    pub program: ShippedProgram,
}

/// A program in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPath {
    /// Path of its file.
    pub path: PathBuf,
    /// How the file came into the store.
    pub arrival: ProgramArrival,
}

/// Local message to a program store: a job keeps its program. A store without its file receives it
/// from these sources, as after the takeover of another head.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct KeepProgram {
    /// The user that keeps it.
    pub user: ProgramUser,
    /// The program and its sources.
    pub program: ShippedProgram,
}

/// Local message to a program store: a user needs its program no longer.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ReleaseProgram {
    /// The user that releases it.
    pub user: ProgramUser,
}

/// Local question to a program store: how many bytes of a program have arrived? Absent: it is not
/// being received.
#[derive(Debug, Message)]
#[rtype(result = "Option<u64>")]
pub struct GetReceived {
    /// Digest of the program.
    pub digest: ProgramDigest,
}

impl ProgramStore {
    /// Starts the store and publishes it at the hub of this process. It finds the programs of an
    /// earlier process.
    ///
    /// # Errors
    /// The directory cannot be created or read.
    pub fn publish(
        settings: ProgramStoreSettings,
        net: &Net,
        hub: &Arc<Hub>,
    ) -> io::Result<ProgramAccess> {
        let ProgramStoreSettings { dir: path, limits, foreign, own, audit_log } = settings;
        fs::DirBuilder::new().recursive(true).mode(PROGRAM_MODE).create(&path)?;
        let (cluster, largest) = (net.me().cluster.clone(), limits.size_max);
        let dir = Arc::new(Dir { cluster, path, largest, mode: PROGRAM_MODE });
        let mut table = ProgramTable::new(limits);
        for (digest, bytes) in find_programs(&dir.path)? {
            for action in table.handle(ProgramEvent::Found { digest, bytes }) {
                if let ProgramAction::Remove { digest } = action {
                    remove(&dir.path, &digest);
                }
            }
        }
        let store = Self {
            dir,
            foreign,
            own,
            audit_log,
            net: net.clone(),
            hub: hub.clone(),
            table,
            attempts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_ticket: 0,
        };
        let store = store.start();
        hub.publish(PROGRAMS, store.clone())
            .accepts_from::<GetProgramTerms>(admit::by_rule)
            .accepts_judged::<OfferProgram>()
            // Users do not read each other's programs.
            .accepts_from::<ReadChunk>(|from, _| from.is(&[Role::Site, Role::Head]));
        Ok(ProgramAccess { store, foreign })
    }

    /// Requests a program for a user. The answer is the caller's.
    fn want(
        &mut self,
        ctx: &mut Context<Self>,
        user: ProgramUser,
        program: ShippedProgram,
    ) -> impl Future<Output = Result<ProgramArrival, ProgramError>> + use<> {
        let ShippedProgram { image, path, sources } = program;
        let name = image.name.clone();
        if self.table.has(&image.digest) && !self.path_of(&image.digest).exists() {
            self.apply(ctx, ProgramEvent::Vanished { digest: image.digest });
        }
        let local = path.into_iter().map(ProgramSource::Local);
        let from = local.chain(sources.into_iter().map(ProgramSource::Remote)).collect();
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let (reply, answer) = oneshot::channel();
        self.waiting.insert(ticket, reply);
        self.apply(ctx, ProgramEvent::Wanted { ticket, user, image, from });
        async move { answer.await.unwrap_or(Err(ProgramError::Cancelled { name })) }
    }

    fn path_of(&self, digest: &ProgramDigest) -> PathBuf {
        self.dir.path.join(digest.to_string())
    }

    fn apply(&mut self, ctx: &mut Context<Self>, event: ProgramEvent) {
        for action in self.table.handle(event) {
            match action {
                ProgramAction::Receive { number, image, from } => {
                    self.receive(ctx, number, image, from);
                }
                ProgramAction::Stop { number, image } => {
                    if let Some(attempt) = self.attempts.remove(&number) {
                        ctx.cancel_future(attempt.task);
                    }
                    let dir = self.dir.clone();
                    drop(tokio::task::spawn_blocking(move || dir.discard(&image.entry())));
                }
                ProgramAction::Touch { digest } => {
                    // A failure changes only the order of removals by a later process.
                    let touched = File::open(self.path_of(&digest))
                        .and_then(|file| file.set_modified(SystemTime::now()));
                    if let Err(error) = touched {
                        tracing::debug!("program {}: {error}", digest.short());
                    }
                }
                ProgramAction::Remove { digest } => {
                    tracing::info!("program {} makes room for others", digest.short());
                    remove(&self.dir.path, &digest);
                }
                ProgramAction::Answer { ticket, answer } => {
                    if let Some(reply) = self.waiting.remove(&ticket) {
                        // The caller may have gone.
                        let _ = reply.send(answer);
                    }
                }
            }
        }
    }

    /// Starts an attempt to receive a program.
    fn receive(
        &mut self,
        ctx: &mut Context<Self>,
        number: u64,
        image: ProgramImage,
        from: ProgramSource,
    ) {
        let (dir, received) = (self.dir.clone(), Arc::new(AtomicU64::default()));
        let (digest, progress) = (image.digest, received.clone());
        let server = match &from {
            ProgramSource::Local(_) => None,
            ProgramSource::Remote(FileSource { cluster, address }) => {
                self.net.learn_if_down(address.clone());
                let server: Remote<FileServer> = self.hub.remote(&address.node, PROGRAMS);
                Some((server, cluster.clone()))
            }
        };
        let work = async move {
            let began = Instant::now();
            let bytes = match (from, server) {
                (ProgramSource::Local(path), _) => {
                    copy(dir.clone(), image.clone(), path).await?;
                    0
                }
                (ProgramSource::Remote(source), Some(server)) => {
                    let node = &source.address.node;
                    tracing::info!("program {} comes from {node}", image.name);
                    let brought = fetch(dir.clone(), image.entry(), server, &progress).await;
                    let brought = brought.map_err(|error| match error {
                        FileError::NoSource { reason, .. } => {
                            ReceiveError::Source(format!("{node}: {reason}"))
                        }
                        error => ReceiveError::Source(format!("{node}: {error}")),
                    });
                    brought?.0.bytes
                }
                (ProgramSource::Remote(_), None) => 0,
            };
            check(dir, image).await?;
            let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            Ok(ProgramArrival { bytes, millis })
        };
        let finish = move |result: ReceiveResult, act: &mut Self, ctx: &mut Context<Self>| {
            act.attempts.remove(&number);
            act.apply(ctx, ProgramEvent::Received { number, result });
        };
        let task = ctx.spawn(work.into_actor(self).map(finish));
        self.attempts.insert(number, ReceiveAttempt { digest, received, task });
    }

    /// Removes the parts that no transfer has resumed for long.
    fn remove_parts(&mut self) {
        let Ok(all) = fs::read_dir(&self.dir.path) else { return };
        for entry in all.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(part) = name.strip_prefix('.').filter(|part| part.ends_with(".part")) else {
                continue;
            };
            let digest = part.split('.').next().and_then(|digits| digits.parse().ok());
            let changed = entry.metadata().and_then(|about| about.modified());
            let age = changed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            let is_old = age.is_none_or(|age| age >= PART_TIME);
            if is_old && digest.is_none_or(|digest| !self.table.receives(&digest)) {
                // A failure does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The programs in a directory, the least recently used one first.
fn find_programs(dir: &Path) -> io::Result<Vec<(ProgramDigest, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let digest = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(digest) = digest else { continue };
        let about = fs::symlink_metadata(entry.path())?;
        if about.is_file() {
            found.push((about.modified()?, digest, about.len()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, digest, bytes)| (digest, bytes)).collect())
}

fn remove(dir: &Path, digest: &ProgramDigest) {
    if let Err(error) = fs::remove_file(dir.join(digest.to_string())) {
        tracing::warn!("program {} is not removed: {error}", digest.short());
    }
}

/// Copies a file of this host into the store, if it is the program.
async fn copy(dir: Arc<Dir>, image: ProgramImage, path: PathBuf) -> Result<(), ReceiveError> {
    // A submitter may name any path: it learns no more of the file than whether it is the program.
    let is_other = format!("{} on this host is not the program", path.display());
    let work = move || {
        let other = || is_other.clone();
        let entry = image.entry();
        let disk = |_: io::Error| other();
        // Does not wait: the path may be that of a pipe.
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let mut file = options.open(&path).map_err(disk)?;
        let found = file.metadata().map_err(disk)?;
        if !found.is_file() || found.len() != image.bytes {
            return Err(other());
        }
        let start = dir.part_path(&entry);
        // A part that came over the network stays, in case that this file is another one.
        let resumed = start.exists();
        if resumed && crate::files::entry_of(&path, &entry.name).map_err(disk)? != entry {
            return Err(other());
        }
        let mut part = dir.open_part(&entry).map_err(|error| error.to_string())?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(part.received)).map_err(disk)?;
        let mut piece = vec![0; PIECE_SIZE];
        while !part.is_whole() {
            let read = io::Read::read(&mut file, &mut piece).map_err(disk)?;
            if read == 0 {
                return Err(other());
            }
            part.append(&piece[..read]).map_err(|error| error.to_string())?;
        }
        part.finish().map(drop).map_err(|error| match error {
            FileError::Damaged { .. } => other(),
            error => error.to_string(),
        })
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string())).map_err(ReceiveError::Source)
}

/// Checks that a stored file is the program that its image describes, and makes it executable.
async fn check(dir: Arc<Dir>, image: ProgramImage) -> Result<(), ReceiveError> {
    let path = dir.path.join(image.digest.to_string());
    let name = image.name.clone();
    let work = move || {
        let header = read_header(&path);
        let wrong = match header {
            Ok(header) if header.target != image.target => {
                Some(format!("it is for {}, and was offered for {}", header.target, image.target))
            }
            Ok(header) if header.interpreter != image.interpreter => {
                Some("it needs another loader than was stated".to_owned())
            }
            Ok(_) => None,
            Err(reason) => Some(reason),
        };
        if let Some(reason) = wrong {
            // Without this, the next process would find it, and check no header.
            let _ = fs::remove_file(&path);
            let error = ProgramError::NotExecutable { name, reason };
            return Err(ReceiveError::Program(Box::new(error)));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(PROGRAM_MODE))
            .map_err(|error| ReceiveError::Source(format!("{}: {error}", path.display())))
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ReceiveError::Source(error.to_string())))
}

impl AdmitsMessages for ProgramStore {
    /// Its messages are about no job.
    fn standing(
        &mut self,
        _: &MessageOrigin,
        _: &MessageSubject,
        _: Option<&JobAuthority>,
    ) -> SenderStanding {
        SenderStanding::default()
    }

    fn ask(&self, _: &MessageOrigin, _: &MessageSubject) -> Option<AuthorityQuery> {
        None
    }

    fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        self.audit_log.as_ref()
    }
}

crate::judged!(ProgramStore);

impl Actor for ProgramStore {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(PART_TIME, |act, _| act.remove_parts());
    }
}

impl Handler<UseProgram> for ProgramStore {
    type Result = ResponseFuture<Result<StoredPath, ProgramError>>;

    fn handle(&mut self, order: UseProgram, ctx: &mut Self::Context) -> Self::Result {
        let UseProgram { user, program } = order;
        if !self.foreign {
            return Box::pin(async { Err(ProgramError::Forbidden) });
        }
        let path = self.path_of(&program.image.digest);
        let answer = self.want(ctx, user, program);
        Box::pin(async move { answer.await.map(|arrival| StoredPath { path, arrival }) })
    }
}

impl Handler<KeepProgram> for ProgramStore {
    type Result = ();

    fn handle(&mut self, KeepProgram { user, program }: KeepProgram, ctx: &mut Self::Context) {
        // If no source has its file, the job fails when a site asks for it.
        if self.foreign {
            drop(self.want(ctx, user, program));
        }
    }
}

impl Handler<ReleaseProgram> for ProgramStore {
    type Result = ();

    fn handle(&mut self, ReleaseProgram { user }: ReleaseProgram, ctx: &mut Self::Context) {
        self.apply(ctx, ProgramEvent::Released { user });
    }
}

impl Handler<GetReceived> for ProgramStore {
    type Result = MessageResult<GetReceived>;

    fn handle(
        &mut self,
        GetReceived { digest }: GetReceived,
        _: &mut Self::Context,
    ) -> Self::Result {
        let attempt = self.attempts.values().find(|attempt| attempt.digest == digest);
        let received = attempt.map(|attempt| attempt.received.load(Ordering::Relaxed));
        MessageResult(received.or_else(|| self.table.receives(&digest).then_some(0)))
    }
}

impl Handler<GetProgramTerms> for ProgramStore {
    type Result = MessageResult<GetProgramTerms>;

    fn handle(&mut self, asked: GetProgramTerms, _: &mut Self::Context) -> Self::Result {
        MessageResult(ProgramTerms { needed: self.own != Some(asked.fingerprint) })
    }
}

impl Handler<OfferProgram> for ProgramStore {
    type Result = ResponseFuture<Result<(), ProgramError>>;

    fn handle(&mut self, offer: OfferProgram, ctx: &mut Self::Context) -> Self::Result {
        let OfferProgram { image, path, client } = offer;
        if !self.foreign {
            return Box::pin(async { Err(ProgramError::Forbidden) });
        }
        let cluster = client.cluster.clone();
        let program =
            ShippedProgram { image, path, sources: vec![FileSource { cluster, address: client }] };
        let user = ProgramUser::Offer(self.last_ticket + 1);
        let answer = self.want(ctx, user.clone(), program);
        ctx.run_later(OFFER_TIME, move |act, ctx| {
            act.apply(ctx, ProgramEvent::Released { user });
        });
        Box::pin(async move { answer.await.map(drop) })
    }
}

impl Handler<ReadChunk> for ProgramStore {
    type Result = ResponseFuture<Result<Bytes, FileError>>;

    fn handle(&mut self, asked: ReadChunk, ctx: &mut Self::Context) -> Self::Result {
        let ReadChunk { name, sum, at, len } = asked;
        let (dir, cluster) = (self.dir.clone(), self.dir.cluster.clone());
        let digest = sum.parse::<ProgramDigest>().ok();
        let known = digest.filter(|digest| self.table.has(digest));
        let incoming = digest.and_then(|digest| self.table.incoming(&digest)).cloned();
        let arrival = incoming.map(|image| {
            let user = ProgramUser::Reader(self.last_ticket + 1);
            let program = ShippedProgram { image, path: None, sources: Vec::new() };
            let arrival = self.want(ctx, user.clone(), program);
            (arrival, user, ctx.address())
        });
        Box::pin(async move {
            let known = match arrival {
                None => known,
                Some((arrival, user, store)) => {
                    let arrived = arrival.await.is_ok();
                    store.do_send(ReleaseProgram { user });
                    digest.filter(|_| arrived)
                }
            };
            let Some(digest) = known else { return Err(FileError::Unknown { cluster, name }) };
            let file = digest.to_string();
            let read = move || {
                let stamp = dir.stamp(&file)?;
                dir.read(&file, stamp, at, len.min(CHUNK_MAX))
            };
            blocking(&name, read).await.map(Bytes::from)
        })
    }
}
