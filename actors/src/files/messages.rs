//! What file servers are told and asked, and what they tell.
//!
//! Must not know how files are kept.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::files::NameError;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote_message;

/// Most bytes of a file in one message.
pub const CHUNK_MAX: u32 = 256 << 10;

/// A file of a cluster's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its plain name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its content, 64 hexadecimal digits.
    pub sum: String,
}

impl FileEntry {
    /// The first digits of its checksum, for people.
    pub fn short_sum(&self) -> &str {
        self.sum.get(..12).unwrap_or(&self.sum)
    }

    /// Whether it makes sense: it may come from another process.
    ///
    /// # Errors
    /// [`FileError::Name`], [`FileError::Sum`].
    pub fn check(&self) -> Result<(), FileError> {
        springtide_runtime::files::check_name(&self.name)?;
        let digits = self.sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if self.sum.len() == 64 && digits { Ok(()) } else { Err(FileError::Sum) }
    }
}

/// Why a file is not read, written or brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum FileError {
    /// It is called as no file may be.
    #[error("{0}")]
    Name(String),
    /// What is said to be its checksum is none.
    #[error("a file's checksum must be 64 hexadecimal digits of SHA-256")]
    Sum,
    /// It is not there, or is no plain file.
    #[error("cluster {cluster} has no file {name}")]
    Unknown {
        /// Where.
        cluster: ClusterId,
        /// Which.
        name: String,
    },
    /// It is another one than is meant.
    #[error(
        "cluster {cluster} has another file named {name}: remove one of the two, or give one another name"
    )]
    Differs {
        /// Where.
        cluster: ClusterId,
        /// Which.
        name: String,
    },
    /// It is too long for the grid.
    #[error(
        "{name} has {bytes} bytes, and no file may have more than {largest}: see `files.largest` of the grid's config"
    )]
    TooLarge {
        /// Which.
        name: String,
        /// Its length.
        bytes: u64,
        /// The longest that is taken.
        largest: u64,
    },
    /// What came is not what was asked for.
    #[error(
        "{name} arrived damaged: its checksum is {found} and should be {expected}; it is fetched anew"
    )]
    Damaged {
        /// Which.
        name: String,
        /// What was expected.
        expected: String,
        /// What came.
        found: String,
    },
    /// Somebody else is bringing a file of this name.
    #[error("{name} is being brought to cluster {cluster} already: wait until it is there")]
    Busy {
        /// Where.
        cluster: ClusterId,
        /// Which.
        name: String,
    },
    /// Nobody wants it any more.
    #[error("nobody needs {name} any more")]
    Dropped {
        /// Which.
        name: String,
    },
    /// The disk.
    #[error("{name}: {reason}")]
    Disk {
        /// Which file.
        name: String,
        /// What the system says.
        reason: String,
    },
    /// Nobody who is said to have it gave it.
    #[error("{name} was not to be had: {reason}")]
    NoSource {
        /// Which.
        name: String,
        /// Who was asked, and what came of it.
        reason: String,
    },
    /// A message that makes no sense.
    #[error(
        "{name}: bytes from {at} on were not expected: begin where the answer to an empty message says"
    )]
    Gap {
        /// Which.
        name: String,
        /// Where they would begin.
        at: u64,
    },
}

impl From<NameError> for FileError {
    fn from(error: NameError) -> Self {
        FileError::Name(error.to_string())
    }
}

/// Who has a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Which cluster's file server.
    pub cluster: ClusterId,
    /// The process that it is in.
    pub at: Contact,
}

/// To a file server, by the scheduler: bring this file here. Answered when it is here, however long that takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BringFile {
    /// For whom; [`DropFiles`] names it.
    pub job: JobId,
    /// Which.
    pub file: FileEntry,
    /// Who has it; the first is asked first.
    pub from: Vec<Source>,
}

/// A file is where it was to be brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Brought {
    /// From where; absent: it was here.
    pub from: Option<ClusterId>,
    /// Bytes that came over the link.
    pub bytes: u64,
    /// How long they took, in seconds.
    pub seconds: f64,
}

/// To a file server, by the scheduler: nothing is brought for this job any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropFiles {
    /// For which.
    pub job: JobId,
}

/// To a file server: bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadChunk {
    /// Of which.
    pub name: String,
    /// Of the one with this checksum.
    pub sum: String,
    /// From here on.
    pub at: u64,
    /// So many, at most [`CHUNK_MAX`]; fewer come where the file ends.
    pub len: u32,
}

/// To a file server, by a client: bytes of a file that is to be kept here. The first message has none, and the answer says where
/// to begin; the file is there when all have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutChunk {
    /// Of which.
    pub file: FileEntry,
    /// From here on.
    pub at: u64,
    /// They.
    pub bytes: Bytes,
}

/// How far a file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutState {
    /// Bytes that are here.
    pub have: u64,
    /// It is whole, checked and in its place.
    pub done: bool,
}

/// To a file server, by a client: somebody has put files into the directory; look now, and tell the scheduler. Answered when that knows, or does
/// not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookForFiles {}

/// To a file server, by a client: remove these files. Those that are not there are removed already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveFiles {
    /// Their names.
    pub names: Vec<String>,
}

/// To the scheduler, by a file server: these are the files of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesHere {
    /// Which cluster.
    pub cluster: ClusterId,
    /// All of them, or why they are not known.
    pub files: Result<Vec<FileEntry>, String>,
}

remote_message! {
    "bring-file" => BringFile -> Result<Brought, FileError>;
    "drop-files" => DropFiles;
    "read-chunk" => ReadChunk -> Result<Bytes, FileError>;
    "put-chunk" => PutChunk -> Result<PutState, FileError>;
    "look-for-files" => LookForFiles;
    "remove-files" => RemoveFiles -> Result<(), FileError>;
    "files-here" => FilesHere;
}
