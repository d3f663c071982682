//! Copies the files of the leader to a head that lacks records.
//!
//! The leader's files change meanwhile. A copy has at least the effect of the records that were
//! applied when it began, and possibly that of later ones. These are applied again, which ends in
//! the same files. Parts that are equal already are compared by their SHA-256.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use springtide_runtime::id::NodeId;
use springtide_runtime::remote::{Remote, RemoteError};

use super::replica::{self, Replica, is_replicated, read_part};
use super::{FileChunks, FileList, ListFiles, ReadChunks, StandbyMember};

/// Bytes of a part of a file.
const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes and number of the parts in one request.
const REQUEST_BYTES: u64 = 2 << 20;
const REQUEST_CHUNKS: usize = 256;
/// Time limit of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A part of a file that a head asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Path of the file.
    pub path: String,
    /// Offset of the part.
    pub offset: u64,
    /// Length of the part.
    pub length: u64,
    /// SHA-256 of the part that the asking head has, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Bytes>,
}

/// What the leader has of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkContents {
    /// The asking head has the same.
    Same,
    /// The bytes, fewer than asked for if the file is shorter now.
    Bytes(Bytes),
    /// The file is gone.
    Absent,
}

/// The records whose effect a copy of the files has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopiedRange {
    /// Index of the last record with all of its effect.
    pub(super) from: u64,
    /// Index of the last record with possibly an effect.
    pub(super) until: u64,
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The leader does not answer.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The leader refuses.
    #[error("{0}")]
    Refused(String),
    /// The files cannot be written here.
    #[error(transparent)]
    Files(#[from] io::Error),
}

/// The state of copying.
#[derive(Debug, Default)]
pub(super) struct Copier {
    is_under_way: bool,
    copy: Option<CopiedRange>,
}

impl Copier {
    /// The present copy, if it has the effect of the records up to this index.
    pub(super) fn take_copy(&mut self, index: u64) -> Option<CopiedRange> {
        self.copy.take_if(|copy| copy.from >= index)
    }

    /// Whether a copy begins now: none is under way.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_under_way, true)
    }

    /// Keeps the result of a copy.
    pub(super) fn end(&mut self, result: Result<CopiedRange, CopyError>) -> Result<(), CopyError> {
        self.is_under_way = false;
        self.copy = Some(result?);
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(digest(&SHA256, bytes).as_ref())
}

/// Reads parts of the files in a head's directory, as many as an answer contains.
pub(super) fn read(dir: &Path, chunks: &[Chunk]) -> io::Result<Vec<ChunkContents>> {
    let (mut contents, mut total) = (Vec::new(), 0);
    for chunk in chunks.iter().take(REQUEST_CHUNKS) {
        if total >= REQUEST_BYTES {
            break;
        }
        total += chunk.length.min(CHUNK_BYTES);
        // The answers have the order of the parts, so each part has one.
        let found = if is_replicated(&chunk.path) {
            read_part(&dir.join(&chunk.path), chunk.offset, chunk.length.min(CHUNK_BYTES))?
        } else {
            None
        };
        contents.push(match found {
            None => ChunkContents::Absent,
            Some(bytes) if chunk.sha256.as_ref().is_some_and(|sum| *sum == sha256(&bytes)) => {
                ChunkContents::Same
            }
            Some(bytes) => ChunkContents::Bytes(bytes.into()),
        });
    }
    Ok(contents)
}

/// The parts of the listed files, with the checksums of those that are here.
fn parts(dir: &Path, list: &FileList) -> io::Result<Vec<Chunk>> {
    let mut parts = Vec::new();
    for file in &list.files {
        let offsets = (0..file.length.max(1)).step_by(CHUNK_BYTES as usize);
        for offset in offsets {
            let length = CHUNK_BYTES.min(file.length - offset);
            let here = read_part(&dir.join(&file.path), offset, length)?;
            let sum = here.filter(|bytes| bytes.len() as u64 == length);
            let sum = sum.map(|bytes| sha256(&bytes));
            parts.push(Chunk { path: file.path.clone(), offset, length, sha256: sum });
        }
    }
    Ok(parts)
}

/// Copies the files of a head into this directory. Files that it does not have are removed.
pub(super) async fn copy(
    source: Remote<StandbyMember>,
    me: NodeId,
    dir: PathBuf,
) -> Result<CopiedRange, CopyError> {
    let list = source.send(ListFiles { from: me.clone() }).deadline(ANSWER_TIMEOUT).await?;
    let list = list.map_err(CopyError::Refused)?;
    let mut copied = Replica::new(&dir, me.clone(), 0, 0);
    let wanted: BTreeSet<&str> = list.files.iter().map(|file| file.path.as_str()).collect();
    for file in replica::list(&dir)?.iter().filter(|file| !wanted.contains(file.path.as_str())) {
        copied.cut_copied(&file.path, None)?;
    }
    let (parts, mut until) = (parts(&dir, &list)?, list.applied);
    let (mut next, mut bytes) = (0, 0);
    while next < parts.len() {
        let chunks = parts[next..].iter().take(REQUEST_CHUNKS).cloned().collect();
        let asked = source.send(ReadChunks { from: me.clone(), chunks }).deadline(ANSWER_TIMEOUT);
        let FileChunks { applied, chunks } = asked.await?.map_err(CopyError::Refused)?;
        if chunks.is_empty() {
            return Err(CopyError::Refused("the leader has sent no part of a file".to_owned()));
        }
        until = until.max(applied);
        for contents in chunks {
            let Some(part) = parts.get(next) else { break };
            if let ChunkContents::Bytes(contents) = contents {
                bytes += contents.len();
                copied.write_copied(&part.path, part.offset, &contents)?;
            }
            next += 1;
        }
    }
    for file in list.files.iter().filter(|file| dir.join(&file.path).exists()) {
        copied.cut_copied(&file.path, Some(file.length))?;
    }
    copied.sync()?;
    tracing::info!("has copied {} files with {bytes} new bytes", list.files.len());
    Ok(CopiedRange { from: list.applied, until })
}
