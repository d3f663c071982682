//! The file server of a cluster: it keeps the directory's files, gives them to others, and brings others' files here.
//!
//! Published as [`files_name`](super::files_name) on the process of the cluster's site. Must not know jobs but by number.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::Net;
use springtide_runtime::remote::{Hub, Remote};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::dir::{Dir, Part, Stamp};
use super::fetch::{blocking, fetch, write};
use super::messages::{
    BringFile, Brought, CHUNK_MAX, DropFiles, FileEntry, FileError, FilesHere, LookForFiles,
    PutChunk, PutState, ReadChunk, RemoveFiles,
};
use super::table::{Action, Event, Table};
use super::{Limits, files_name};
use crate::admit;
use crate::scheduler::Scheduler;

/// The scheduler has this long to take what is here.
const TELL_WITHIN: Duration = Duration::from_secs(10);
/// What is here is told at least every so many looks, in case it was lost on the way.
const TELL_EVERY: u32 = 12;
/// A client that has sent nothing for so long sends no more.
const PUT_WITHIN: Duration = Duration::from_secs(60);

/// What a file server keeps, and how.
#[derive(Clone, Debug)]
pub struct Keeping {
    /// Whose files.
    pub cluster: ClusterId,
    /// Where they are, as this process sees it.
    pub dir: PathBuf,
    /// How many, and how large.
    pub limits: Limits,
}

/// The file server actor.
pub struct FileServer {
    dir: Arc<Dir>,
    limits: Limits,
    net: Net,
    hub: Arc<Hub>,
    scheduler: Remote<Scheduler>,
    table: Table,
    /// What is here, by name.
    known: Known,
    /// What came here since the directory was begun to be looked through.
    fresh: Known,
    /// As the scheduler last took it; absent: it is to be told.
    told: Option<Result<Vec<FileEntry>, String>>,
    /// Looks since it was told.
    looks: u32,
    /// It is looking, and is to look again when it has.
    looking: bool,
    look_again: bool,
    next_look: Option<SpawnHandle>,
    /// Who waits for what is here being told to the scheduler.
    lookers: Vec<oneshot::Sender<()>>,
    /// So many words to it are under way, and who waits for them.
    telling: u32,
    listeners: Vec<oneshot::Sender<()>>,
    fetches: BTreeMap<u64, SpawnHandle>,
    waiting: BTreeMap<u64, oneshot::Sender<Result<Brought, FileError>>>,
    last_ticket: u64,
    /// What clients are sending, and when they last did; absent while it is being written.
    puts: BTreeMap<String, (Instant, Option<Part>)>,
}

impl FileServer {
    /// Starts and publishes it at the hub of this process.
    pub fn publish(
        keeping: Keeping,
        net: &Net,
        hub: &Arc<Hub>,
        scheduler: Remote<Scheduler>,
    ) -> Addr<Self> {
        let Keeping { cluster, dir: path, limits } = keeping;
        let name = files_name(&cluster);
        let dir = Arc::new(Dir { cluster, path, largest: limits.largest });
        let server = Self {
            dir,
            limits,
            net: net.clone(),
            hub: hub.clone(),
            scheduler,
            table: Table::new(limits.at_once),
            known: Known::new(),
            fresh: Known::new(),
            told: None,
            looks: 0,
            looking: false,
            look_again: false,
            next_look: None,
            lookers: Vec::new(),
            telling: 0,
            listeners: Vec::new(),
            fetches: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_ticket: 0,
            puts: BTreeMap::new(),
        };
        let server = server.start();
        hub.publish(&name, server.clone())
            .accepts_from::<BringFile>(admit::by_rule)
            .accepts_from::<DropFiles>(admit::by_rule)
            .accepts_from::<ReadChunk>(admit::by_rule)
            .accepts_from::<PutChunk>(admit::by_rule)
            .accepts_from::<LookForFiles>(admit::by_rule)
            .accepts_from::<RemoveFiles>(admit::by_rule);
        server
    }

    fn feed(&mut self, ctx: &mut Context<Self>, event: Event) {
        for action in self.table.handle(event) {
            match action {
                Action::Fetch { number, file, from } => {
                    self.net.introduce(from.at.clone());
                    let server = self.hub.remote(&from.at.node, &files_name(&from.cluster));
                    tracing::info!("{} is fetched from {}", file.name, from.cluster);
                    let work = fetch(self.dir.clone(), file.clone(), (server, from.cluster));
                    let then = move |ended: Result<(Brought, Stamp), FileError>,
                                     act: &mut Self,
                                     ctx: &mut Context<Self>| {
                        act.fetches.remove(&number);
                        let answer = ended.map(|(brought, stamp)| {
                            act.came(ctx, file, stamp);
                            brought
                        });
                        if let Err(error) = &answer {
                            tracing::info!("a fetch failed: {error}");
                        }
                        act.feed(ctx, Event::Fetched { number, answer });
                    };
                    let handle = ctx.spawn(work.into_actor(self).map(then));
                    self.fetches.insert(number, handle);
                }
                Action::Stop { number, file } => {
                    if let Some(handle) = self.fetches.remove(&number) {
                        ctx.cancel_future(handle);
                    }
                    let dir = self.dir.clone();
                    drop(tokio::task::spawn_blocking(move || dir.discard(&file)));
                }
                Action::Answer { ticket, answer } => {
                    if let Some(reply) = self.waiting.remove(&ticket) {
                        // Whoever asked may be gone.
                        let _ = reply.send(answer);
                    }
                }
            }
        }
    }

    /// A file is here now.
    fn came(&mut self, ctx: &mut Context<Self>, file: FileEntry, stamp: Stamp) {
        self.fresh.insert(file.name.clone(), (stamp, file.clone()));
        self.known.insert(file.name.clone(), (stamp, file));
        self.say(ctx, Ok(self.files()));
    }

    fn files(&self) -> Vec<FileEntry> {
        self.known.values().map(|(_, entry)| entry.clone()).collect()
    }

    /// Tells the scheduler what is here.
    fn say(&mut self, ctx: &mut Context<Self>, files: Result<Vec<FileEntry>, String>) {
        self.say_for(ctx, files, Vec::new());
    }

    /// The same; these are told when it knows.
    fn say_for(
        &mut self,
        ctx: &mut Context<Self>,
        files: Result<Vec<FileEntry>, String>,
        lookers: Vec<oneshot::Sender<()>>,
    ) {
        (self.told, self.looks) = (Some(files.clone()), 0);
        let here = FilesHere { cluster: self.dir.cluster.clone(), files };
        let call = self.scheduler.send(here).deadline(TELL_WITHIN).start();
        let then = |answer: Result<(), _>, act: &mut Self, _: &mut Context<Self>| {
            if let Err(error) = answer {
                tracing::debug!("the scheduler was not told of files: {error}");
                act.told = None; // again after the next look
            }
            act.telling -= 1;
            told(lookers);
            if act.telling == 0 {
                told(std::mem::take(&mut act.listeners));
            }
        };
        self.telling += 1;
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// Looks through the directory, and again after a while.
    fn look(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.looking, true) {
            self.look_again = true; // it may have passed by what has come since
            return;
        }
        if let Some(next) = self.next_look.take() {
            ctx.cancel_future(next);
        }
        // Who sends no more has given up; what came can be gone on with.
        self.puts.retain(|_, (last, part)| part.is_none() || last.elapsed() < PUT_WITHIN);
        self.fresh.clear();
        let lookers = std::mem::take(&mut self.lookers);
        let (dir, known) = (self.dir.clone(), self.known.clone());
        let looked = tokio::task::spawn_blocking(move || look(&dir, known));
        let then = move |found: Result<std::io::Result<Known>, tokio::task::JoinError>,
                         act: &mut Self,
                         ctx: &mut Context<Self>| {
            let path = act.dir.path.display();
            let found = match found {
                Ok(found) => found.map_err(|error| format!("{path}: {error}")),
                Err(error) => Err(error.to_string()),
            };
            act.looks += 1;
            let files = match found {
                Ok(known) => {
                    act.known = known;
                    act.known.extend(std::mem::take(&mut act.fresh));
                    Ok(act.files())
                }
                Err(reason) => {
                    tracing::warn!("files of {} are not known: {reason}", act.dir.cluster);
                    act.known.clear();
                    Err(reason)
                }
            };
            if act.told.as_ref() != Some(&files) || act.looks >= TELL_EVERY {
                act.say_for(ctx, files, lookers);
            } else if act.telling > 0 {
                // It is being told what they wait for.
                act.listeners.extend(lookers);
            } else {
                told(lookers);
            }
            act.looking = false;
            if std::mem::take(&mut act.look_again) {
                return act.look(ctx);
            }
            act.next_look = Some(ctx.run_later(act.limits.poll, Self::look));
        };
        ctx.spawn(looked.into_actor(self).map(then));
    }
}

/// These need not wait any more.
fn told(lookers: Vec<oneshot::Sender<()>>) {
    for looker in lookers {
        // Whoever asked may be gone.
        let _ = looker.send(());
    }
}

type Known = BTreeMap<String, (Stamp, FileEntry)>;

/// What is there now; what is as it was is not read again.
fn look(dir: &Dir, mut known: Known) -> std::io::Result<Known> {
    dir.make()?;
    let mut all = Known::new();
    for (name, stamp) in dir.look()? {
        let same = known.remove(&name).filter(|(was, _)| *was == stamp);
        // One that is being written by somebody else is read again when it has changed.
        let read = || dir.sum(&name).inspect_err(|error| tracing::debug!("{error}")).ok();
        if let Some(found) = same.or_else(read) {
            all.insert(name, found);
        }
    }
    Ok(all)
}

/// To a file server of this process: the scheduler's was lost, and is to be told again what is here.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TellAgain;

impl Handler<TellAgain> for FileServer {
    type Result = ();

    fn handle(&mut self, _: TellAgain, _: &mut Self::Context) {
        self.told = None; // with the next look
    }
}

impl Actor for FileServer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

impl Handler<LookForFiles> for FileServer {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: LookForFiles, ctx: &mut Self::Context) -> Self::Result {
        let (looker, told) = oneshot::channel();
        self.lookers.push(looker);
        self.look(ctx);
        Box::pin(async move {
            // Dropped, if the server ends.
            let _ = told.await;
        })
    }
}

impl Handler<RemoveFiles> for FileServer {
    type Result = ResponseActFuture<Self, Result<(), FileError>>;

    fn handle(
        &mut self,
        RemoveFiles { names }: RemoveFiles,
        _: &mut Self::Context,
    ) -> Self::Result {
        let dir = self.dir.clone();
        let removed = tokio::task::spawn_blocking(move || dir.remove(&names));
        let removed = async move {
            let disk = |error: tokio::task::JoinError| FileError::Disk {
                name: "files".to_owned(),
                reason: error.to_string(),
            };
            removed.await.map_err(disk)?
        };
        Box::pin(removed.into_actor(self).map(|done, act, ctx: &mut Context<Self>| {
            act.look(ctx);
            done
        }))
    }
}

impl Handler<BringFile> for FileServer {
    type Result = ResponseFuture<Result<Brought, FileError>>;

    fn handle(&mut self, order: BringFile, ctx: &mut Self::Context) -> Self::Result {
        let BringFile { job, file, from } = order;
        let cluster = self.dir.cluster.clone();
        let known = self.known.get(&file.name).map(|(_, known)| known == &file);
        let busy = self.puts.contains_key(&file.name);
        let now = match (file.check(), known) {
            (Err(error), _) => Some(Err(error)),
            (_, Some(true)) => Some(Ok(Brought { from: None, bytes: 0, seconds: 0.0 })),
            (_, Some(false)) => Some(Err(FileError::Differs { cluster, name: file.name.clone() })),
            _ if busy => Some(Err(FileError::Busy { cluster, name: file.name.clone() })),
            (Ok(()), None) => None,
        };
        if let Some(answer) = now {
            return Box::pin(async move { answer });
        }
        self.last_ticket += 1;
        let (ticket, name) = (self.last_ticket, file.name.clone());
        let (reply, answer) = oneshot::channel();
        self.waiting.insert(ticket, reply);
        self.feed(ctx, Event::Wanted { ticket, job, file, from });
        Box::pin(async move { answer.await.unwrap_or(Err(FileError::Dropped { name })) })
    }
}

impl Handler<DropFiles> for FileServer {
    type Result = ();

    fn handle(&mut self, DropFiles { job }: DropFiles, ctx: &mut Self::Context) {
        self.feed(ctx, Event::Dropped { job });
    }
}

impl Handler<ReadChunk> for FileServer {
    type Result = ResponseFuture<Result<Bytes, FileError>>;

    fn handle(&mut self, asked: ReadChunk, _: &mut Self::Context) -> Self::Result {
        let ReadChunk { name, sum, at, len } = asked;
        let (dir, cluster) = (self.dir.clone(), self.dir.cluster.clone());
        let known = self.known.get(&name).map(|(stamp, entry)| (*stamp, entry.sum == sum));
        Box::pin(async move {
            match known {
                None => Err(FileError::Unknown { cluster, name }),
                Some((_, false)) => Err(FileError::Differs { cluster, name }),
                Some((stamp, true)) => {
                    let file = name.clone();
                    let read = move || dir.read(&file, stamp, at, len.min(CHUNK_MAX));
                    blocking(&name, read).await.map(Bytes::from)
                }
            }
        })
    }
}

impl Handler<PutChunk> for FileServer {
    type Result = ResponseActFuture<Self, Result<PutState, FileError>>;

    fn handle(&mut self, put: PutChunk, _: &mut Self::Context) -> Self::Result {
        let PutChunk { file, at, bytes } = put;
        let (dir, cluster, name) = (self.dir.clone(), self.dir.cluster.clone(), file.name.clone());
        let whole = PutState { have: file.bytes, done: true };
        let now = match self.known.get(&name) {
            Some((_, known)) if *known == file => Some(Ok(whole)),
            Some(_) => Some(Err(FileError::Differs { cluster, name: name.clone() })),
            // One at a time: whoever sends waits for each answer.
            None if self.table.has(&name) || matches!(self.puts.get(&name), Some((_, None))) => {
                Some(Err(FileError::Busy { cluster, name: name.clone() }))
            }
            None => None,
        };
        if let Some(answer) = now {
            return Box::pin(async move { answer }.into_actor(self));
        }
        let before = self.puts.insert(name.clone(), (Instant::now(), None));
        let before = before.and_then(|(_, part)| part);
        let before = before.filter(|part| part.entry == file);
        let (of, entry) = (name.clone(), file.clone());
        let work = async move {
            let mut part = match before {
                Some(part) => part,
                None => blocking(&of, move || dir.begin(&entry)).await?,
            };
            if at == part.have {
                part = write(&of, part, bytes).await?;
            }
            match part.is_whole() {
                false => Ok((Some(part), None)),
                true => Ok((None, Some(blocking(&of, move || part.finish()).await?))),
            }
        };
        type Written = Result<(Option<Part>, Option<Stamp>), FileError>;
        let then = move |written: Written, act: &mut Self, ctx: &mut Context<Self>| {
            act.puts.remove(&name);
            let (part, stamp) = written?;
            if let Some(stamp) = stamp {
                act.came(ctx, file, stamp);
                return Ok(whole);
            }
            let have = part.as_ref().map_or(0, |part| part.have);
            if part.is_some() {
                act.puts.insert(name, (Instant::now(), part));
            }
            Ok(PutState { have, done: false })
        };
        Box::pin(work.into_actor(self).map(then))
    }
}
