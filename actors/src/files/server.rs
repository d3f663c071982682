//! The file server of a cluster: keeps the directory, serves its files, and fetches others.
//!
//! Published as [`files_name`](super::files_name) in the process of the cluster's site. Jobs are
//! only numbers here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::Net;
use springtide_runtime::remote::{Hub, Remote};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::dir::{Dir, FILE_MODE, PartialFile, Stamp};
use super::fetch::{blocking, fetch, write};
use super::table::{TransferAction, TransferEvent, TransferTable};
use super::{FileLimits, files_name};
use crate::admit;
use springtide_protocol::files::{
    CHUNK_MAX, CancelFetches, FetchFile, FetchResult, FileEntry, FileError, FilesReport, PutChunk,
    ReadChunk, RemoveFiles, ScanFiles, UploadProgress,
};
use springtide_protocol::receivers::Scheduler;

/// Time limit for a report to the scheduler.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// A report follows at least every this many scans, in case one was lost.
const REPORT_SCANS: u32 = 12;
/// An upload without messages for this time counts as abandoned.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of a file server.
#[derive(Clone, Debug)]
pub struct FileServerSettings {
    /// Cluster whose files it serves.
    pub cluster: ClusterId,
    /// Path of the directory in this process.
    pub dir: PathBuf,
    /// Limits of number and size.
    pub limits: FileLimits,
}

/// The actor of a cluster's file server.
pub struct FileServer {
    dir: Arc<Dir>,
    limits: FileLimits,
    net: Net,
    hub: Arc<Hub>,
    scheduler: Remote<Scheduler>,
    table: TransferTable,
    /// Known files, by name.
    known: Known,
    /// Files that arrived since the present scan began.
    fresh: Known,
    /// The last report that the scheduler accepted. Absent: a report is due.
    last_report: Option<Result<Vec<FileEntry>, String>>,
    /// Scans since the last report.
    scans_since_report: u32,
    /// Whether a scan runs, and whether another must follow it.
    scanning: bool,
    scan_again: bool,
    next_scan: Option<SpawnHandle>,
    /// Callers that wait until the scheduler knows the present files.
    scan_waiters: Vec<oneshot::Sender<()>>,
    /// Number of reports under way, and the callers that wait for them.
    reports_in_flight: u32,
    report_waiters: Vec<oneshot::Sender<()>>,
    fetches: BTreeMap<u64, SpawnHandle>,
    waiting: BTreeMap<u64, oneshot::Sender<Result<FetchResult, FileError>>>,
    last_ticket: u64,
    /// Uploads of clients, with the time of the last message. The part is absent while it is being
    /// written.
    puts: BTreeMap<String, (Instant, Option<PartialFile>)>,
}

impl FileServer {
    /// Starts the server and publishes it at the hub of this process.
    pub fn publish(
        keeping: FileServerSettings,
        net: &Net,
        hub: &Arc<Hub>,
        scheduler: Remote<Scheduler>,
    ) -> Addr<Self> {
        let FileServerSettings { cluster, dir: path, limits } = keeping;
        let name = files_name(&cluster);
        let (largest, mode) = (limits.max_bytes, FILE_MODE);
        let dir = Arc::new(Dir { cluster, path, largest, mode });
        let server = Self {
            dir,
            limits,
            net: net.clone(),
            hub: hub.clone(),
            scheduler,
            table: TransferTable::new(limits.max_fetches),
            known: Known::new(),
            fresh: Known::new(),
            last_report: None,
            scans_since_report: 0,
            scanning: false,
            scan_again: false,
            next_scan: None,
            scan_waiters: Vec::new(),
            reports_in_flight: 0,
            report_waiters: Vec::new(),
            fetches: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_ticket: 0,
            puts: BTreeMap::new(),
        };
        let server = server.start();
        hub.publish(&name, server.clone())
            .accepts_from::<FetchFile>(admit::by_rule)
            .accepts_from::<CancelFetches>(admit::by_rule)
            .accepts_from::<ReadChunk>(admit::by_rule)
            .accepts_from::<PutChunk>(admit::by_rule)
            .accepts_from::<ScanFiles>(admit::by_rule)
            .accepts_from::<RemoveFiles>(admit::by_rule);
        server
    }

    fn apply(&mut self, ctx: &mut Context<Self>, event: TransferEvent) {
        for action in self.table.handle(event) {
            match action {
                TransferAction::Fetch { number, file, from } => {
                    self.net.learn_if_down(from.address.clone());
                    let server = self.hub.remote(&from.address.node, &files_name(&from.cluster));
                    tracing::info!("fetching {} from {}", file.name, from.cluster);
                    let (dir, entry) = (self.dir.clone(), file.clone());
                    let work = async move {
                        fetch(dir, entry, (server, from.cluster), &AtomicU64::default()).await
                    };
                    let finish = move |ended: Result<(FetchResult, Stamp), FileError>,
                                       act: &mut Self,
                                       ctx: &mut Context<Self>| {
                        act.fetches.remove(&number);
                        let answer = ended.map(|(brought, stamp)| {
                            act.record_file(ctx, file, stamp);
                            brought
                        });
                        if let Err(error) = &answer {
                            tracing::info!("a fetch failed: {error}");
                        }
                        act.apply(ctx, TransferEvent::Fetched { number, answer });
                    };
                    let handle = ctx.spawn(work.into_actor(self).map(finish));
                    self.fetches.insert(number, handle);
                }
                TransferAction::Stop { number, file } => {
                    if let Some(handle) = self.fetches.remove(&number) {
                        ctx.cancel_future(handle);
                    }
                    let dir = self.dir.clone();
                    drop(tokio::task::spawn_blocking(move || dir.discard(&file)));
                }
                TransferAction::Answer { ticket, answer } => {
                    if let Some(reply) = self.waiting.remove(&ticket) {
                        // The caller may have gone.
                        let _ = reply.send(answer);
                    }
                }
            }
        }
    }

    /// Records a complete file, and reports it.
    fn record_file(&mut self, ctx: &mut Context<Self>, file: FileEntry, stamp: Stamp) {
        self.fresh.insert(file.name.clone(), (stamp, file.clone()));
        self.known.insert(file.name.clone(), (stamp, file));
        self.report(ctx, Ok(self.files()));
    }

    fn files(&self) -> Vec<FileEntry> {
        self.known.values().map(|(_, entry)| entry.clone()).collect()
    }

    /// Reports the files to the scheduler.
    fn report(&mut self, ctx: &mut Context<Self>, files: Result<Vec<FileEntry>, String>) {
        self.report_for(ctx, files, Vec::new());
    }

    /// Reports the files, and notifies these callers once the scheduler knows them.
    fn report_for(
        &mut self,
        ctx: &mut Context<Self>,
        files: Result<Vec<FileEntry>, String>,
        scan_waiters: Vec<oneshot::Sender<()>>,
    ) {
        (self.last_report, self.scans_since_report) = (Some(files.clone()), 0);
        let here = FilesReport { cluster: self.dir.cluster.clone(), files };
        let call = self.scheduler.send(here).deadline(REPORT_TIMEOUT).start();
        let finish = |answer: Result<(), _>, act: &mut Self, _: &mut Context<Self>| {
            if let Err(error) = answer {
                tracing::debug!("the report of files did not reach the scheduler: {error}");
                act.last_report = None; // report again after the next scan
            }
            act.reports_in_flight -= 1;
            notify(scan_waiters);
            if act.reports_in_flight == 0 {
                notify(std::mem::take(&mut act.report_waiters));
            }
        };
        self.reports_in_flight += 1;
        ctx.spawn(call.into_actor(self).map(finish));
    }

    /// Scans the directory, and schedules the next scan.
    fn scan(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.scanning, true) {
            self.scan_again = true; // the running scan may have missed newer files
            return;
        }
        if let Some(next) = self.next_scan.take() {
            ctx.cancel_future(next);
        }
        // An abandoned upload can be resumed from its stored part.
        self.puts.retain(|_, (last, part)| part.is_none() || last.elapsed() < PUT_TIMEOUT);
        self.fresh.clear();
        let scan_waiters = std::mem::take(&mut self.scan_waiters);
        let (dir, known) = (self.dir.clone(), self.known.clone());
        let scanned = tokio::task::spawn_blocking(move || scan_dir(&dir, known));
        let finish = move |found: Result<std::io::Result<Known>, tokio::task::JoinError>,
                           act: &mut Self,
                           ctx: &mut Context<Self>| {
            let path = act.dir.path.display();
            let found = match found {
                Ok(found) => found.map_err(|error| format!("{path}: {error}")),
                Err(error) => Err(error.to_string()),
            };
            act.scans_since_report += 1;
            let files = match found {
                Ok(known) => {
                    act.known = known;
                    act.known.extend(std::mem::take(&mut act.fresh));
                    Ok(act.files())
                }
                Err(reason) => {
                    tracing::warn!("cannot list the files of {}: {reason}", act.dir.cluster);
                    act.known.clear();
                    Err(reason)
                }
            };
            if act.last_report.as_ref() != Some(&files) || act.scans_since_report >= REPORT_SCANS {
                act.report_for(ctx, files, scan_waiters);
            } else if act.reports_in_flight > 0 {
                // A report with these files is under way.
                act.report_waiters.extend(scan_waiters);
            } else {
                notify(scan_waiters);
            }
            act.scanning = false;
            if std::mem::take(&mut act.scan_again) {
                return act.scan(ctx);
            }
            act.next_scan = Some(ctx.run_later(act.limits.scan_interval, Self::scan));
        };
        ctx.spawn(scanned.into_actor(self).map(finish));
    }
}

/// Notifies the callers.
fn notify(scan_waiters: Vec<oneshot::Sender<()>>) {
    for waiter in scan_waiters {
        // The caller may have gone.
        let _ = waiter.send(());
    }
}

type Known = BTreeMap<String, (Stamp, FileEntry)>;

/// Scans the directory. Unchanged files are not read again.
fn scan_dir(dir: &Dir, mut known: Known) -> std::io::Result<Known> {
    dir.create()?;
    let mut all = Known::new();
    for (name, stamp) in dir.list()? {
        let same = known.remove(&name).filter(|(was, _)| *was == stamp);
        // A file that another process writes is read again once it has changed.
        let read = || dir.read_entry(&name).inspect_err(|error| tracing::debug!("{error}")).ok();
        if let Some(found) = same.or_else(read) {
            all.insert(name, found);
        }
    }
    Ok(all)
}

/// Local message to a file server: the scheduler lost its knowledge, report all files again.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RepeatReport;

impl Handler<RepeatReport> for FileServer {
    type Result = ();

    fn handle(&mut self, _: RepeatReport, _: &mut Self::Context) {
        self.last_report = None; // with the next scan
    }
}

impl Actor for FileServer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.scan(ctx);
    }
}

impl Handler<ScanFiles> for FileServer {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: ScanFiles, ctx: &mut Self::Context) -> Self::Result {
        let (waiter, scanned) = oneshot::channel();
        self.scan_waiters.push(waiter);
        self.scan(ctx);
        Box::pin(async move {
            // The sender is dropped if the server ends.
            let _ = scanned.await;
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
            act.scan(ctx);
            done
        }))
    }
}

impl Handler<FetchFile> for FileServer {
    type Result = ResponseFuture<Result<FetchResult, FileError>>;

    fn handle(&mut self, order: FetchFile, ctx: &mut Self::Context) -> Self::Result {
        let FetchFile { job, file, from } = order;
        let cluster = self.dir.cluster.clone();
        let known = self.known.get(&file.name).map(|(_, known)| known == &file);
        let busy = self.puts.contains_key(&file.name);
        let now = match (file.check(), known) {
            (Err(error), _) => Some(Err(error)),
            (_, Some(true)) => Some(Ok(FetchResult { from: None, bytes: 0, seconds: 0.0 })),
            (_, Some(false)) => Some(Err(FileError::Conflict { cluster, name: file.name.clone() })),
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
        self.apply(ctx, TransferEvent::Wanted { ticket, job, file, from });
        Box::pin(async move { answer.await.unwrap_or(Err(FileError::Cancelled { name })) })
    }
}

impl Handler<CancelFetches> for FileServer {
    type Result = ();

    fn handle(&mut self, CancelFetches { job }: CancelFetches, ctx: &mut Self::Context) {
        self.apply(ctx, TransferEvent::Dropped { job });
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
                Some((_, false)) => Err(FileError::Conflict { cluster, name }),
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
    type Result = ResponseActFuture<Self, Result<UploadProgress, FileError>>;

    fn handle(&mut self, put: PutChunk, _: &mut Self::Context) -> Self::Result {
        let PutChunk { file, at, bytes } = put;
        let (dir, cluster, name) = (self.dir.clone(), self.dir.cluster.clone(), file.name.clone());
        let whole = UploadProgress { received: file.bytes, done: true };
        let now = match self.known.get(&name) {
            Some((_, known)) if *known == file => Some(Ok(whole)),
            Some(_) => Some(Err(FileError::Conflict { cluster, name: name.clone() })),
            // One message at a time: the sender waits for each answer.
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
                None => blocking(&of, move || dir.open_part(&entry)).await?,
            };
            if at == part.received {
                part = write(&of, part, bytes).await?;
            }
            if part.is_whole() {
                Ok((None, Some(blocking(&of, move || part.finish()).await?)))
            } else {
                Ok((Some(part), None))
            }
        };
        type Written = Result<(Option<PartialFile>, Option<Stamp>), FileError>;
        let finish = move |written: Written, act: &mut Self, ctx: &mut Context<Self>| {
            act.puts.remove(&name);
            let (part, stamp) = written?;
            if let Some(stamp) = stamp {
                act.record_file(ctx, file, stamp);
                return Ok(whole);
            }
            let have = part.as_ref().map_or(0, |part| part.received);
            if part.is_some() {
                act.puts.insert(name, (Instant::now(), part));
            }
            Ok(UploadProgress { received: have, done: false })
        };
        Box::pin(work.into_actor(self).map(finish))
    }
}
