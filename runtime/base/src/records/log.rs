//! The log of a store: opening, appending and compaction.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::blobs::{self, BlobRef};
use super::segment::{
    BODY_MAX, Flaw, SegmentHeader, SegmentKind, decode, decode_segment_header, encode,
    encode_header,
};
use super::{Cursor, Files, OpenFile, Record, RecordError, RecordSchema, RecordSettings};

/// The contents of a store when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Snapshot of the records before the segment.
    pub snapshot: Vec<Record>,
    /// The records after the snapshot.
    pub records: Vec<Record>,
}

impl Contents {
    /// Iterates over the records of the snapshot, then over the others.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.snapshot.iter().chain(&self.records)
    }
}

/// A value to append to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    schema: RecordSchema,
    json: Vec<u8>,
}

impl NewRecord {
    /// Encodes a value under its schema.
    ///
    /// # Errors
    /// [`RecordError::Value`]: the value is no JSON, or too long.
    pub fn new(schema: RecordSchema, value: &impl Serialize) -> Result<Self, RecordError> {
        let refused = |reason: String| RecordError::Value { schema: schema.name, reason };
        let json = serde_json::to_vec(value).map_err(|error| refused(error.to_string()))?;
        if json.len() < BODY_MAX / 2 {
            Ok(Self { schema, json })
        } else {
            Err(refused(format!("it has {} bytes: make it a blob", json.len())))
        }
    }

    fn line(&self, kind: SegmentKind, number: u64) -> Vec<u8> {
        encode(kind, number, self.schema, &self.json)
    }
}

/// A store that is open for writing.
#[derive(Debug)]
pub struct RecordLog {
    files: Arc<dyn Files>,
    dir: PathBuf,
    settings: RecordSettings,
    file: Box<dyn OpenFile>,
    segment: u64,
    /// Position of the next record: the end of the last complete one.
    end: u64,
    /// Bytes of the segment's header and snapshot.
    snapshot_bytes: u64,
    last: u64,
    /// [`RecordLog::last`], for cursors of this process.
    committed: Arc<AtomicU64>,
    /// Bytes of an unfinished record may follow `end`.
    dirty: bool,
    /// The directory entry of the segment may not be durable.
    unnamed: bool,
}

impl RecordLog {
    /// Opens or creates a store and reads its contents.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::Damaged`]: the files are unchanged then.
    pub fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        settings: RecordSettings,
    ) -> Result<(Self, Contents), RecordError> {
        files.make_dir(dir).map_err(RecordError::io("make", dir))?;
        let segments = segments(&*files, dir)?;
        let (segment, read) = match segments.last() {
            Some(&segment) => (segment, read_segment(&*files, dir, segment, settings)?),
            None => {
                let header = segment_header(settings.store, 1, 0, 0);
                blobs::write_file(&*files, dir, &file_name(1), &encode_header(&header))?;
                (1, read_segment(&*files, dir, 1, settings)?)
            }
        };
        let path = dir.join(file_name(segment));
        let mut file = files.open(&path).map_err(RecordError::io("open", &path))?;
        // A crash may have occurred between a rename and its sync.
        files.sync_dir(dir).map_err(RecordError::io("sync", dir))?;
        if read.torn {
            let cut = file.truncate(read.end).and_then(|()| file.sync());
            cut.map_err(RecordError::io("cut", &path))?;
        }
        let last = read.header.base + read.contents.records.len() as u64;
        let log = Self {
            files,
            dir: dir.to_owned(),
            settings,
            file,
            segment,
            end: read.end,
            snapshot_bytes: read.snapshot_end,
            last,
            committed: Arc::new(AtomicU64::new(last)),
            dirty: false,
            unnamed: false,
        };
        log.remove_old()?;
        Ok((log, read.contents))
    }

    /// Directory of the store.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Number of the last record.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends a value. It is durable when this returns its number.
    ///
    /// # Errors
    /// [`RecordError`]: the value is not stored, and a later append may succeed.
    pub fn append(
        &mut self,
        schema: RecordSchema,
        value: &impl Serialize,
    ) -> Result<u64, RecordError> {
        self.append_all(&[NewRecord::new(schema, value)?])
    }

    /// Appends values in this order, with one wait for the disk. A crash may leave only the first
    /// of them.
    ///
    /// # Errors
    /// [`RecordError`]: no value is stored, and a later append may succeed.
    pub fn append_all(&mut self, entries: &[NewRecord]) -> Result<u64, RecordError> {
        let path = self.dir.join(file_name(self.segment));
        let io = RecordError::io("append to", &path);
        self.repair().map_err(&io)?;
        let numbered = entries.iter().zip(self.last + 1..);
        let bytes: Vec<u8> =
            numbered.flat_map(|(entry, number)| entry.line(SegmentKind::Record, number)).collect();
        // Any failure from here on may leave a part of the bytes in the file.
        self.dirty = true;
        if let Err(error) = self.file.write(self.end, &bytes).and_then(|()| self.file.sync()) {
            // If this fails, the next append repeats it.
            let _ = self.repair();
            return Err(io(error));
        }
        self.dirty = false;
        self.end += bytes.len() as u64;
        self.last += entries.len() as u64;
        self.committed.store(self.last, Ordering::Release);
        Ok(self.last)
    }

    /// Removes the traces of a failed operation, so that no record follows a damaged one.
    fn repair(&mut self) -> io::Result<()> {
        if self.unnamed {
            self.files.sync_dir(&self.dir)?;
            self.unnamed = false;
        }
        if self.dirty {
            self.file.truncate(self.end)?;
            self.file.sync()?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Whether compaction saves more than it writes.
    pub fn is_compaction_due(&self) -> bool {
        let records = self.end - self.snapshot_bytes;
        records > self.settings.compact_bytes && records > self.snapshot_bytes
    }

    /// Replaces all records by a snapshot of their net effect.
    ///
    /// # Errors
    /// [`RecordError`]: the contents are unchanged, and the store stays usable.
    pub fn compact(&mut self, snapshot: &[NewRecord]) -> Result<(), RecordError> {
        let dir = self.dir.clone();
        let io = RecordError::io("compact", &dir);
        self.repair().map_err(&io)?;
        let segment = self.segment + 1;
        let header = segment_header(self.settings.store, segment, self.last, snapshot.len() as u64);
        let numbered = snapshot.iter().zip(1..);
        let mut bytes = encode_header(&header);
        bytes
            .extend(numbered.flat_map(|(entry, number)| entry.line(SegmentKind::Snapshot, number)));
        let path = self.dir.join(file_name(segment));
        let temporary = self.dir.join(format!("{}.tmp", file_name(segment)));
        let written = self.files.create(&temporary).and_then(|mut file| {
            file.write(0, &bytes)?;
            file.sync()?;
            self.files.rename(&temporary, &path)?;
            Ok(file)
        });
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                // Opening the store removes a temporary file that is left.
                let _ = self.files.remove(&temporary);
                return Err(io(error));
            }
        };
        // The new segment is current from here on, even if its name is not yet durable. If it is
        // found after a crash, it replaces the old one, which must then have no later records.
        (self.file, self.segment, self.end) = (file, segment, bytes.len() as u64);
        self.snapshot_bytes = self.end;
        self.unnamed = true;
        self.repair().map_err(&io)?;
        self.remove_old()
    }

    /// Removes segments that no cursor may need, and temporary files that a crash left.
    fn remove_old(&self) -> Result<(), RecordError> {
        let first = self.segment.saturating_sub(self.settings.keep_segments as u64);
        let list = |dir: &Path| self.files.list(dir).map_err(RecordError::io("list", dir));
        let remove = |path: &Path| self.files.remove(path).map_err(RecordError::io("remove", path));
        for name in list(&self.dir)? {
            let old = segment_of(&name).is_some_and(|segment| segment < first);
            if old || name.ends_with(".tmp") {
                remove(&self.dir.join(name))?;
            }
        }
        let blobs = blobs::dir_of(&self.dir);
        for name in list(&blobs)?.iter().filter(|name| name.ends_with(".tmp")) {
            remove(&blobs.join(name))?;
        }
        Ok(())
    }

    /// Writes a large value into a file of its own, for a record that refers to it. It is durable
    /// when this returns. `label` is the start of the file name.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn put_blob(&self, label: &str, bytes: &[u8]) -> Result<BlobRef, RecordError> {
        blobs::put(&*self.files, &self.dir, label, bytes)
    }

    /// Reads a blob that [`RecordLog::put_blob`] wrote.
    ///
    /// # Errors
    /// [`RecordError::Blob`], [`RecordError::Io`].
    pub fn blob(&self, blob: &BlobRef) -> Result<Vec<u8>, RecordError> {
        blobs::get(&*self.files, &self.dir, blob)
    }

    /// Removes all blobs whose file name is not wanted: those that no record refers to.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn retain_blobs(&self, wanted: impl Fn(&str) -> bool) -> Result<(), RecordError> {
        blobs::retain(&*self.files, &self.dir, wanted)
    }

    /// Removes a blob that no record refers to.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn remove_blob(&self, blob: &BlobRef) -> Result<(), RecordError> {
        let path = blobs::dir_of(&self.dir).join(&blob.file);
        match self.files.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RecordError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Opens a cursor that returns the durable records from a number on.
    pub fn cursor(&self, from: u64) -> Cursor {
        let files = Arc::clone(&self.files);
        let committed = Some(Arc::clone(&self.committed));
        Cursor::new(files, &self.dir, self.settings, from, committed)
    }
}

fn segment_header(store: &str, segment: u64, base: u64, snapshot: u64) -> SegmentHeader {
    SegmentHeader { store: store.to_owned(), segment, base, snapshot }
}

/// Reads a store without changing it. `None` if there is no store.
///
/// # Errors
/// [`RecordError::Io`], [`RecordError::Damaged`].
pub fn read(
    files: &dyn Files,
    dir: &Path,
    settings: RecordSettings,
) -> Result<Option<Contents>, RecordError> {
    let segments = segments(files, dir)?;
    let read = segments.last().map(|&segment| read_segment(files, dir, segment, settings));
    Ok(read.transpose()?.map(|read| read.contents))
}

pub(super) fn file_name(segment: u64) -> String {
    format!("{segment:08}.log")
}

fn segment_of(name: &str) -> Option<u64> {
    let segment = name.strip_suffix(".log")?.parse().ok()?;
    (file_name(segment) == name).then_some(segment)
}

/// Numbers of a store's segments, ascending.
pub(super) fn segments(files: &dyn Files, dir: &Path) -> Result<Vec<u64>, RecordError> {
    let names = files.list(dir).map_err(RecordError::io("list", dir))?;
    let mut segments: Vec<u64> = names.iter().filter_map(|name| segment_of(name)).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// The parsed contents of a segment.
pub(super) struct Segment {
    pub(super) header: SegmentHeader,
    pub(super) contents: Contents,
    /// Offset after the snapshot.
    pub(super) snapshot_end: u64,
    /// Offset after each record.
    ends: Vec<u64>,
    /// Offset after the last complete record.
    pub(super) end: u64,
    /// Whether the bytes of an incomplete record follow.
    pub(super) torn: bool,
}

impl Segment {
    /// Offset after the first `count` records; after all of them, if there are fewer.
    pub(super) fn offset_after(&self, count: usize) -> u64 {
        match count.checked_sub(1) {
            None => self.snapshot_end,
            Some(last) => self.ends.get(last).copied().unwrap_or(self.end),
        }
    }
}

pub(super) fn read_segment(
    files: &dyn Files,
    dir: &Path,
    segment: u64,
    settings: RecordSettings,
) -> Result<Segment, RecordError> {
    let path = dir.join(file_name(segment));
    let bytes = files.read(&path, 0).map_err(RecordError::io("read", &path))?;
    let damaged = |record: usize, offset: usize, reason: String| RecordError::Damaged {
        path: path.clone(),
        record: record as u64,
        offset: offset as u64,
        reason,
        loss: settings.loss,
    };
    // A segment is renamed into place with its complete snapshot, so an incomplete snapshot is
    // damage.
    let cut = |flaw| match flaw {
        Flaw::Torn => "it is cut off".to_owned(),
        Flaw::Damaged(reason) => reason,
    };
    let first = decode(&bytes).map_err(|flaw| damaged(0, 0, cut(flaw)))?;
    let header = decode_segment_header(&first).map_err(|reason| damaged(0, 0, reason))?;
    if header.store != settings.store || header.segment != segment {
        let reason = format!(
            "it is segment {} of the store {}, and not segment {segment} of the store {}",
            header.segment, header.store, settings.store
        );
        return Err(damaged(0, 0, reason));
    }
    let mut contents = Contents::default();
    let (mut position, mut index) = (first.length, 1);
    while (contents.snapshot.len() as u64) < header.snapshot {
        let line =
            decode(&bytes[position..]).map_err(|flaw| damaged(index, position, cut(flaw)))?;
        if line.kind != SegmentKind::Snapshot || line.record.number != index as u64 {
            let reason = "it is not the next record of the snapshot".to_owned();
            return Err(damaged(index, position, reason));
        }
        contents.snapshot.push(line.record);
        (position, index) = (position + line.length, index + 1);
    }
    let snapshot_end = position as u64;
    let (mut next, mut ends) = (header.base + 1, Vec::new());
    while position < bytes.len() {
        let line = match decode(&bytes[position..]) {
            Ok(line) => line,
            Err(Flaw::Torn) => break,
            Err(Flaw::Damaged(reason)) => return Err(damaged(index, position, reason)),
        };
        if line.kind != SegmentKind::Record || line.record.number != next {
            let reason = format!("it is not record {next} of the store");
            return Err(damaged(index, position, reason));
        }
        contents.records.push(line.record);
        (position, index, next) = (position + line.length, index + 1, next + 1);
        ends.push(position as u64);
    }
    let torn = position < bytes.len();
    Ok(Segment { header, contents, snapshot_end, ends, end: position as u64, torn })
}
