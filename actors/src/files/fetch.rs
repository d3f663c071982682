//! One transfer: a file from another file server into this one's directory.
//!
//! Several chunks are requested ahead, so that the round-trip time is not paid for each. Received
//! bytes are on disk, and the next attempt resumes from there. This module must not depend on who
//! needs the file, nor on other sources.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use springtide_runtime::id::ClusterId;
use springtide_runtime::remote::{Refusal, Remote, RemoteError, RemoteRequest};
use tokio::time::{Instant, sleep};

use super::dir::{Dir, PartialFile, Stamp};
use springtide_protocol::files::{CHUNK_MAX, FetchResult, FileEntry, FileError, ReadChunk};
use springtide_protocol::receivers::FileServer;

/// Most chunks that are requested ahead.
const AHEAD_MAX: usize = 8;
/// The number of chunks ahead grows by one after a chunk within `SOON`, and shrinks by one after
/// one that took longer than `LATE`.
const SOON: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(15);
/// Time limit for a chunk.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause before a busy server is asked again, and the number of repetitions.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
const BUSY_RETRIES: u32 = 50;

/// Runs `work` on a thread that may block.
///
/// # Errors
/// An error of `work`, or a panic of its thread.
pub(crate) async fn blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(FileError::Disk { name: name.to_owned(), reason: error.to_string() })
    })
}

/// Fetches a file. `received` is kept at the number of its bytes on disk.
///
/// # Errors
/// The source is lost, lacks the file or sends other content; or the disk fails.
pub(crate) async fn fetch(
    dir: Arc<Dir>,
    file: FileEntry,
    from: (Remote<FileServer>, ClusterId),
    received: &AtomicU64,
) -> Result<(FetchResult, Stamp), FileError> {
    let (server, cluster) = from;
    let (name, entry) = (file.name.clone(), file.clone());
    let opened = dir.clone();
    let mut part = blocking(&name, move || opened.open_part(&entry)).await?;
    let began = Instant::now();
    let first = part.received;
    let mut pending: VecDeque<(u64, Instant, RemoteRequest<ReadChunk>)> = VecDeque::new();
    let (mut next, mut ahead) = (first, 1);
    while !part.is_whole() {
        while next < file.bytes && pending.len() < ahead {
            pending.push_back((next, Instant::now(), request_chunk(&server, &file, next)));
            next = file.bytes.min(next + u64::from(CHUNK_MAX));
        }
        received.store(part.received, Ordering::Relaxed);
        let Some((at, since, call)) = pending.pop_front() else { break };
        let bytes = await_chunk(&server, &file, at, call).await?;
        ahead = match since.elapsed() {
            took if took < SOON => AHEAD_MAX.min(ahead + 1),
            took if took > LATE => (ahead - 1).max(1),
            _ => ahead,
        };
        if bytes.is_empty() {
            return Err(FileError::UnexpectedOffset { name, at });
        }
        part = write(&name, part, bytes).await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let bytes = part.received - first;
    let stamp = blocking(&name, move || part.finish()).await?;
    Ok((FetchResult { from: Some(cluster), bytes, seconds }, stamp))
}

fn request_chunk(
    server: &Remote<FileServer>,
    file: &FileEntry,
    at: u64,
) -> RemoteRequest<ReadChunk> {
    let (name, sum) = (file.name.clone(), file.sum.clone());
    server.send(ReadChunk { name, sum, at, len: CHUNK_MAX }).deadline(CHUNK_TIMEOUT).start()
}

async fn await_chunk(
    server: &Remote<FileServer>,
    file: &FileEntry,
    at: u64,
    mut call: RemoteRequest<ReadChunk>,
) -> Result<Bytes, FileError> {
    let mut busy = 0;
    loop {
        match call.await {
            Ok(answer) => return answer,
            Err(RemoteError::Refused { reason: Refusal::Busy, .. }) if busy < BUSY_RETRIES => {
                busy += 1;
                sleep(BUSY_PAUSE).await;
                call = request_chunk(server, file, at);
            }
            Err(error) => {
                let (name, reason) = (file.name.clone(), error.to_string());
                return Err(FileError::NoSource { name, reason });
            }
        }
    }
}

/// Writes bytes on a thread that may block.
pub(crate) async fn write(
    name: &str,
    mut part: PartialFile,
    bytes: Bytes,
) -> Result<PartialFile, FileError> {
    blocking(name, move || part.append(&bytes).map(|()| part)).await
}
