//! A record store: the persistent state of a grid, with a checksum over every byte.
//!
//! A store is a directory. Its log is a sequence of records in segments. Large values are files of
//! their own, called blobs, whose checksums are part of the records that refer to them.
//!
//! ```text
//! DIR/00000003.log      the current segment: header, snapshot, then a record a line
//! DIR/00000002.log      the previous segment, for cursors that have not read it
//! DIR/blobs/NAME        a large value
//! ```
//!
//! - [`RecordLog::append`] returns when the record is durable.
//! - [`RecordLog::compact`] replaces all records by a snapshot of their net effect, while the store
//!   is in use. A crash at any step leaves either the old segment or the new one.
//! - [`Cursor`] returns every record from a number on once, across compactions and also in another
//!   process.
//! - A last record that a crash cut off is dropped, because its append did not return. Any other
//!   damage is refused, with the name of the file and a remedy.
//!
//! A store has one writer at a time, which its user ensures, for example by a lease. The store does
//! not interpret its records.

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
pub use self::log::{Contents, NewRecord, RecordLog, read};

/// Name and version of the encoding of a record's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSchema {
    /// The name: lower-case letters, digits and dashes.
    pub name: &'static str,
    /// The version. It grows with each change that an older program would misread.
    pub version: u32,
}

/// The settings of a store.
#[derive(Clone, Copy, Debug)]
pub struct RecordSettings {
    /// Name of the store. Its segments carry it, so that stores cannot be confused.
    pub store: &'static str,
    /// The consequence of removing the store, for the operator who may have to do so.
    pub loss: &'static str,
    /// Compaction is due when the records take more bytes than this, and more than the snapshot.
    pub compact_bytes: u64,
    /// Number of earlier segments that stay for cursors.
    pub keep_segments: usize,
}

impl RecordSettings {
    /// Settings of a store of this name, with default limits.
    pub const fn new(store: &'static str, loss: &'static str) -> Self {
        Self { store, loss, compact_bytes: 256 << 10, keep_segments: 1 }
    }
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record: 1 and ascending since the store was created. In a snapshot, the
    /// position in it.
    pub number: u64,
    /// Name of the schema.
    pub schema: String,
    /// Version of the schema.
    pub version: u32,
    /// The value as JSON.
    pub json: String,
}

impl Record {
    /// Decodes the value, if the record has this schema in this version or an earlier one.
    ///
    /// # Errors
    /// A description of the defect; see [`Record::unreadable`].
    pub fn decode<T: DeserializeOwned>(&self, schema: RecordSchema) -> Result<T, String> {
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

    /// The error of a store in which this record cannot be decoded.
    pub fn unreadable(&self, dir: &Path, settings: RecordSettings, reason: String) -> RecordError {
        let (dir, record) = (dir.to_owned(), self.number);
        RecordError::Unreadable { dir, record, reason, loss: settings.loss }
    }
}

/// The reason why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The log is damaged.
    #[error("{}, record {record} at byte {offset}: {reason}; restore the directory {} from a \
             backup, or move it away to begin without it: {loss}", path.display(),
             path.parent().unwrap_or(Path::new(".")).display())]
    Damaged {
        /// Path of the segment.
        path: PathBuf,
        /// Index of the record in the segment; 0 is the header.
        record: u64,
        /// Offset of the record in bytes.
        offset: u64,
        /// Description of the damage.
        reason: String,
        /// The consequence of removing the store.
        loss: &'static str,
    },
    /// A record is intact but cannot be decoded.
    #[error("{}, record {record}: {reason}; read it with the version that wrote it, or move the \
             directory away to begin without it: {loss}", dir.display())]
    Unreadable {
        /// Directory of the store.
        dir: PathBuf,
        /// Number of the record.
        record: u64,
        /// Description of the defect.
        reason: String,
        /// The consequence of removing the store.
        loss: &'static str,
    },
    /// A blob is damaged or missing.
    #[error("{} is damaged: {reason}; restore it from a backup", path.display())]
    Blob {
        /// Path of the blob's file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// A compaction removed records that the cursor has not read.
    #[error("{}: record {wanted} was compacted away, the first is {first}: read the snapshot",
            dir.display())]
    Compacted {
        /// Directory of the store.
        dir: PathBuf,
        /// Number of the next record of the cursor.
        wanted: u64,
        /// Number of the first record that exists.
        first: u64,
    },
    /// A value cannot be encoded as JSON, or is too long.
    #[error("a value of schema {schema} cannot be kept: {reason}")]
    Value {
        /// Name of the schema.
        schema: &'static str,
        /// Description of the defect.
        reason: String,
    },
}

impl RecordError {
    fn io<'a>(operation: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + 'a {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }
}
