//! One transfer: a file from another file server into this one's directory.
//!
//! Some chunks are asked for ahead, so that the way there and back is not waited for each time; what has come is on the disk, and
//! the next try goes on from there. Must not know who wants the file, nor who else has it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springtide_runtime::id::ClusterId;
use springtide_runtime::remote::{Refusal, Remote, RemoteError, RemoteRequest};
use tokio::time::{Instant, sleep};

use super::dir::{Dir, Part, Stamp};
use super::messages::{Brought, CHUNK_MAX, FileEntry, FileError, ReadChunk};
use super::server::FileServer;

/// Most chunks that are asked for ahead.
const AHEAD: usize = 8;
/// One more is asked for ahead after each that came so soon, and one less after each that took longer than the other.
const SOON: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(15);
/// A chunk that has not come after this time will not.
const CHUNK_WITHIN: Duration = Duration::from_secs(120);
/// A server with too many messages is left alone for so long, so many times.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
const BUSY_TIMES: u32 = 50;

/// Runs this where it may block.
///
/// # Errors
/// Those of `work`; or its thread has panicked.
pub(super) async fn blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(FileError::Disk { name: name.to_owned(), reason: error.to_string() })
    })
}

/// Fetches a file.
///
/// # Errors
/// The other has it no more, is gone, or gives something else; or the disk fails.
pub(super) async fn fetch(
    dir: Arc<Dir>,
    file: FileEntry,
    from: (Remote<FileServer>, ClusterId),
) -> Result<(Brought, Stamp), FileError> {
    let (server, cluster) = from;
    let (name, entry) = (file.name.clone(), file.clone());
    let opened = dir.clone();
    let mut part = blocking(&name, move || opened.begin(&entry)).await?;
    let began = Instant::now();
    let first = part.have;
    let mut asked: VecDeque<(u64, Instant, RemoteRequest<ReadChunk>)> = VecDeque::new();
    let (mut next, mut ahead) = (first, 1);
    while !part.is_whole() {
        while next < file.bytes && asked.len() < ahead {
            asked.push_back((next, Instant::now(), ask(&server, &file, next)));
            next = file.bytes.min(next + u64::from(CHUNK_MAX));
        }
        let Some((at, since, call)) = asked.pop_front() else { break };
        let bytes = answer(&server, &file, at, call).await?;
        ahead = match since.elapsed() {
            took if took < SOON => AHEAD.min(ahead + 1),
            took if took > LATE => (ahead - 1).max(1),
            _ => ahead,
        };
        if bytes.is_empty() {
            return Err(FileError::Gap { name, at });
        }
        part = write(&name, part, bytes).await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let bytes = part.have - first;
    let stamp = blocking(&name, move || part.finish()).await?;
    Ok((Brought { from: Some(cluster), bytes, seconds }, stamp))
}

fn ask(server: &Remote<FileServer>, file: &FileEntry, at: u64) -> RemoteRequest<ReadChunk> {
    let (name, sum) = (file.name.clone(), file.sum.clone());
    server.send(ReadChunk { name, sum, at, len: CHUNK_MAX }).deadline(CHUNK_WITHIN).start()
}

async fn answer(
    server: &Remote<FileServer>,
    file: &FileEntry,
    at: u64,
    mut call: RemoteRequest<ReadChunk>,
) -> Result<Bytes, FileError> {
    let mut busy = 0;
    loop {
        match call.await {
            Ok(answer) => return answer,
            Err(RemoteError::Refused { why: Refusal::Busy, .. }) if busy < BUSY_TIMES => {
                busy += 1;
                sleep(BUSY_PAUSE).await;
                call = ask(server, file, at);
            }
            Err(error) => {
                let (name, reason) = (file.name.clone(), error.to_string());
                return Err(FileError::NoSource { name, reason });
            }
        }
    }
}

/// What comes is written where it may block.
pub(super) async fn write(name: &str, mut part: Part, bytes: Bytes) -> Result<Part, FileError> {
    blocking(name, move || part.append(&bytes).map(|()| part)).await
}
