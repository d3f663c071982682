//! Messages to and from file servers.
//!
//! This module must not depend on how files are stored.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_base::files::NameError;
use springtide_base::id::{ClusterId, JobId};
use springtide_net::net::Contact;
use springtide_remote::remote_message;

/// Prefix of the names of files that workflow runs store and remove.
pub const RUN_FILES: &str = "wf-";

/// Most bytes of a file in one message.
pub const CHUNK_MAX: u32 = 256 << 10;

/// A file in a cluster's directory of input files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileEntry {
    /// Plain file name, without a directory.
    pub name: String,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, as 64 hexadecimal digits.
    pub sum: String,
}

impl FileEntry {
    /// Returns the first digits of the checksum, for display.
    pub fn short_sum(&self) -> &str {
        self.sum.get(..12).unwrap_or(&self.sum)
    }

    /// Checks the entry, which may come from another process.
    pub fn check(&self) -> Result<(), FileError> {
        springtide_base::files::check_name(&self.name)?;
        let digits = self.sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if self.sum.len() == 64 && digits { Ok(()) } else { Err(FileError::Sum) }
    }
}

/// Errors of reading, writing and fetching files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum FileError {
    /// The file name is not allowed.
    #[error("{0}")]
    Name(String),
    /// The checksum has the wrong format.
    #[error("a file's checksum must be 64 hexadecimal digits of SHA-256")]
    Sum,
    /// The file does not exist, or is not a regular file.
    #[error("cluster {cluster} has no file {name}")]
    Unknown {
        /// Cluster without the file.
        cluster: ClusterId,
        /// Name of the file.
        name: String,
    },
    /// The cluster has another file of this name.
    #[error(
        "cluster {cluster} has another file named {name}: remove one of the two, or rename one"
    )]
    Conflict {
        /// Cluster with the other file.
        cluster: ClusterId,
        /// Name of the file.
        name: String,
    },
    /// The file exceeds the grid's limit.
    #[error(
        "{name} has {bytes} bytes, above the limit of {largest}: see `files.size_max` of the \
         grid's config"
    )]
    TooLarge {
        /// Name of the file.
        name: String,
        /// Length of the file, in bytes.
        bytes: u64,
        /// Longest accepted length, in bytes.
        largest: u64,
    },
    /// The received content does not match the checksum.
    #[error(
        "{name} arrived damaged: its checksum is {found}, not {expected}; the file is fetched again"
    )]
    Damaged {
        /// Name of the file.
        name: String,
        /// Checksum of the requested content.
        expected: String,
        /// Checksum of the received content.
        found: String,
    },
    /// Another transfer of a file of this name is under way.
    #[error("{name} is already being transferred to cluster {cluster}: wait until it is complete")]
    Busy {
        /// Cluster that receives the file.
        cluster: ClusterId,
        /// Name of the file.
        name: String,
    },
    /// No job needs the file any longer.
    #[error("no job needs {name} any longer")]
    Cancelled {
        /// Name of the file.
        name: String,
    },
    /// The disk failed.
    #[error("{name}: {reason}")]
    Disk {
        /// Name of the file.
        name: String,
        /// Error message of the operating system.
        reason: String,
    },
    /// No file server supplied the file.
    #[error("{name} could not be fetched: {reason}")]
    NoSource {
        /// Name of the file.
        name: String,
        /// The errors of all sources that were tried.
        reason: String,
    },
    /// The bytes do not continue the received part.
    #[error(
        "{name}: unexpected bytes at offset {at}: begin at the offset that the answer to an empty \
         message states"
    )]
    UnexpectedOffset {
        /// Name of the file.
        name: String,
        /// Offset of the next expected byte.
        at: u64,
    },
}

impl From<NameError> for FileError {
    fn from(error: NameError) -> Self {
        FileError::Name(error.to_string())
    }
}

/// A file server that has a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSource {
    /// Cluster of the file server.
    pub cluster: ClusterId,
    /// Address of the file server's process.
    pub address: Contact,
}

/// Order of the scheduler to a file server: fetch this file.
///
/// The answer follows when the file is complete, without a time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFile {
    /// Job that needs the file. [`CancelFetches`] refers to it.
    pub job: JobId,
    /// The file to fetch.
    pub file: FileEntry,
    /// File servers that have the file, in order of preference.
    pub from: Vec<FileSource>,
}

/// Result of a fetch: the file is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FetchResult {
    /// Cluster of the source; absent: the file was here already.
    pub from: Option<ClusterId>,
    /// Bytes received over the link.
    pub bytes: u64,
    /// Duration of the transfer, in seconds.
    pub seconds: f64,
}

/// Order of the scheduler to a file server: cancel all fetches for this job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelFetches {
    /// Job that needs no more files.
    pub job: JobId,
}

/// Request to a file server for bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadChunk {
    /// Name of the file.
    pub name: String,
    /// Checksum of the file.
    pub sum: String,
    /// Offset of the first byte.
    pub at: u64,
    /// Number of bytes, at most [`CHUNK_MAX`]. Fewer follow at the end of the file.
    pub len: u32,
}

/// Message of a client to a file server: bytes of a file to store.
///
/// The first message is empty; its answer says where to begin. The file exists once all bytes have
/// arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutChunk {
    /// The file to store.
    pub file: FileEntry,
    /// Offset of the first byte.
    pub at: u64,
    /// The bytes themselves, possibly none.
    pub bytes: Bytes,
}

/// Progress of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadProgress {
    /// Number of stored bytes.
    pub received: u64,
    /// Whether the file is complete, checked and in place.
    pub done: bool,
}

/// Request of a client to a file server: scan the directory now and report to the scheduler.
///
/// The answer follows once the scheduler knows the files, or the report has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanFiles {}

/// Request of a client to a file server: remove these files. Absent files count as removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveFiles {
    /// Names of the files.
    pub names: Vec<String>,
}

/// Report of a file server to the scheduler: all files of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesReport {
    /// Cluster of the file server.
    pub cluster: ClusterId,
    /// All files, or why they are unknown.
    pub files: Result<Vec<FileEntry>, String>,
}

/// A file name, and the files of this name in the grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Name of the file.
    pub name: String,
    /// The file that each cluster has under this name.
    pub clusters: BTreeMap<ClusterId, FileEntry>,
}

impl FileStatus {
    /// The file, if all clusters have the same one.
    pub fn entry(&self) -> Option<&FileEntry> {
        let mut all = self.clusters.values();
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Any cluster that has the file, and its entry.
    pub fn anywhere(&self) -> Option<(ClusterId, FileEntry)> {
        let (cluster, entry) = self.clusters.iter().next()?;
        Some((cluster.clone(), entry.clone()))
    }

    /// Describes how the clusters' files differ, if they do.
    pub fn differs(&self) -> Option<String> {
        if self.entry().is_some() || self.clusters.is_empty() {
            return None;
        }
        let describe = |(cluster, entry): (&ClusterId, &FileEntry)| {
            format!("{cluster} has {} bytes ({})", entry.bytes, entry.short_sum())
        };
        let all: Vec<String> = self.clusters.iter().map(describe).collect();
        Some(format!("{}; remove the wrong ones, or give them other names", all.join(", ")))
    }
}

remote_message! {
    "bring-file" => FetchFile -> Result<FetchResult, FileError>;
    "drop-files" => CancelFetches;
    "read-chunk" => ReadChunk -> Result<Bytes, FileError>;
    "put-chunk" => PutChunk -> Result<UploadProgress, FileError>;
    "look-for-files" => ScanFiles;
    "remove-files" => RemoveFiles -> Result<(), FileError>;
    "files-here" => FilesReport;
}
