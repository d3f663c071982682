//! A record store: what a grid keeps on disk, with a checksum over every byte.
//!
//! A store is a directory. Its log is a sequence of records in segments; large values are files of
//! their own, blobs, whose checksum stands in the record that names them.
//!
//! ```text
//! DIR/00000003.log      the current segment: header, snapshot, then a record a line
//! DIR/00000002.log      the segment before it, for cursors that have not read it
//! DIR/blobs/NAME        a large value
//! ```
//!
//! - [`RecordLog::append`] returns when the record is durable.
//! - [`RecordLog::compact`] replaces all records by a snapshot of what they amount to, while the store
//!   is in use. A crash at any step leaves the old segment or the new one.
//! - [`Cursor`] reads every record once from a number on, also over compactions and in another
//!   process.
//! - A last record that a crash has cut is dropped: nobody was told that it is kept. Any other
//!   damage is refused with the file's name and what to do.
//!
//! A store has one writer at a time, which its user ensures, for example by a lease. The store knows
//! nothing of what its records mean.

mod blobs;
mod checksum;
mod cursor;
mod files;
mod log;
pub mod memory;
mod segment;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

pub use self::blobs::BlobRef;
pub use self::cursor::Cursor;
pub use self::files::{Disk, Files, OpenFile};
pub use self::log::{Contents, Entry, RecordLog, read};

/// Name and version of the form of a record's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Lower-case letters, digits and dashes.
    pub name: &'static str,
    /// Grows with each change that an older program would misread.
    pub version: u32,
}

/// What a store is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Name of the store, which its segments carry: no store is taken for another.
    pub store: &'static str,
    /// What is lost when the store is moved away, for the operator who may have to.
    pub loss: &'static str,
    /// Compaction is due when the records take more bytes than this, and more than the snapshot.
    pub compact_bytes: u64,
    /// Earlier segments that stay for cursors.
    pub keep_segments: usize,
}

impl Settings {
    /// A store of this name with the usual limits.
    pub const fn new(store: &'static str, loss: &'static str) -> Self {
        Self { store, loss, compact_bytes: 256 << 10, keep_segments: 1 }
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number: 1 and so on over the store's whole life. In a snapshot its place there.
    pub number: u64,
    /// Name of its schema.
    pub schema: String,
    /// Version of its schema.
    pub version: u32,
    /// Its value as JSON.
    pub json: String,
}

impl Record {
    /// Its value, if it has this schema, in this version or an earlier one.
    ///
    /// # Errors
    /// What is wrong with it; see [`Record::unreadable`].
    pub fn decode<T: DeserializeOwned>(&self, schema: Schema) -> Result<T, String> {
        if self.schema != schema.name {
            return Err(format!("it has schema {}, expected {}", self.schema, schema.name));
        }
        if self.version > schema.version {
            return Err(format!(
                "it has schema {}/{}, this program reads up to {}: use a newer springtide",
                self.schema, self.version, schema.version
            ));
        }
        serde_json::from_str(&self.json).map_err(|error| error.to_string())
    }

    /// The error of a store in which this record cannot be understood.
    pub fn unreadable(&self, dir: &Path, settings: Settings, reason: String) -> RecordError {
        let (dir, record) = (dir.to_owned(), self.number);
        RecordError::Unreadable { dir, record, reason, loss: settings.loss }
    }
}

/// A store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refuses.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The log is damaged.
    #[error("{}, record {record} at byte {offset}: {reason}; restore the directory {} from a \
             backup, or move it away to begin without it: {loss}", path.display(),
             path.parent().unwrap_or(Path::new(".")).display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The record's place in the segment, from 0, the header.
        record: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        reason: String,
        /// What is lost without the store.
        loss: &'static str,
    },
    /// A record is whole and cannot be understood.
    #[error("{}, record {record}: {reason}; read it with the version that wrote it, or move the \
             directory away to begin without it: {loss}", dir.display())]
    Unreadable {
        /// The store.
        dir: PathBuf,
        /// The record's number.
        record: u64,
        /// What is wrong with it.
        reason: String,
        /// What is lost without the store.
        loss: &'static str,
    },
    /// A blob is damaged.
    #[error("{} is damaged: {reason}; restore it from a backup", path.display())]
    Blob {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The records from here on are no longer there.
    #[error("{}: record {wanted} was compacted away, the first is {first}: read the snapshot",
            dir.display())]
    Behind {
        /// The store.
        dir: PathBuf,
        /// The number that was wanted.
        wanted: u64,
        /// The first that is there.
        first: u64,
    },
    /// A value cannot be written as JSON, or is too long.
    #[error("a value of schema {schema} cannot be kept: {reason}")]
    Value {
        /// Name of its schema.
        schema: &'static str,
        /// Why not.
        reason: String,
    },
}

impl RecordError {
    fn io<'a>(operation: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + 'a {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }
}
