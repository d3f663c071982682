//! Reads the records of a store in order while this process or another one writes them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::log::{file_name, read_segment, segments};
use super::segment::{Flaw, SegmentKind, decode};
use super::{Files, Record, RecordError, RecordSettings};

/// A position in the sequence of a store's records.
#[derive(Debug)]
pub struct Cursor {
    files: Arc<dyn Files>,
    dir: PathBuf,
    settings: RecordSettings,
    next: u64,
    /// Segment and offset of the next record, if known.
    place: Option<(u64, u64)>,
    /// Number of the last durable record, if the writer is in this process.
    committed: Option<Arc<AtomicU64>>,
}

impl Cursor {
    /// Opens a cursor over a store that another process may write. It may return a record that is
    /// not yet durable.
    pub fn open(files: Arc<dyn Files>, dir: &Path, settings: RecordSettings, from: u64) -> Self {
        Self::new(files, dir, settings, from, None)
    }

    pub(super) fn new(
        files: Arc<dyn Files>,
        dir: &Path,
        settings: RecordSettings,
        from: u64,
        committed: Option<Arc<AtomicU64>>,
    ) -> Self {
        let (dir, next) = (dir.to_owned(), from.max(1));
        Self { files, dir, settings, next, place: None, committed }
    }

    /// Reads the newest snapshot, which replaces all records before the returned cursor.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn of_snapshot(
        files: Arc<dyn Files>,
        dir: &Path,
        settings: RecordSettings,
    ) -> Result<(Vec<Record>, Self), RecordError> {
        let Some(&segment) = segments(&*files, dir)?.last() else {
            return Ok((Vec::new(), Self::open(files, dir, settings, 1)));
        };
        let read = read_segment(&*files, dir, segment, settings)?;
        let cursor = Self::open(files, dir, settings, read.header.base + 1);
        Ok((read.contents.snapshot, cursor))
    }

    /// Number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the records appended since the last call.
    ///
    /// # Errors
    /// [`RecordError::Compacted`]: a compaction removed records before the cursor read them.
    /// [`RecordError::Damaged`], [`RecordError::Io`].
    pub fn poll(&mut self) -> Result<Vec<Record>, RecordError> {
        let mut found = Vec::new();
        loop {
            let Some((segment, offset)) = self.locate()? else { return Ok(found) };
            // The next segment is created after the last write to this one, so this one is final if
            // the next one exists.
            let followed = segments(&*self.files, &self.dir)?.contains(&(segment + 1));
            let path = self.dir.join(file_name(segment));
            let bytes = match self.files.read(&path, offset) {
                Ok(bytes) => bytes,
                // A compaction removed the segment in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.place = None;
                    continue;
                }
                Err(error) => return Err(RecordError::io("read", &path)(error)),
            };
            let exhausted = self.read_records(&path, segment, offset, &bytes, &mut found)?;
            if !(followed && exhausted) {
                return Ok(found);
            }
            self.place = None;
        }
    }

    /// Reads the complete records of `bytes`. Returns whether it consumed all bytes.
    fn read_records(
        &mut self,
        path: &Path,
        segment: u64,
        offset: u64,
        bytes: &[u8],
        found: &mut Vec<Record>,
    ) -> Result<bool, RecordError> {
        let committed = self.committed.as_ref().map(|last| last.load(Ordering::Acquire));
        let mut position = 0;
        let damaged = |position: usize, record: u64, reason: String| RecordError::Damaged {
            path: path.to_owned(),
            record,
            offset: offset + position as u64,
            reason,
            loss: self.settings.loss,
        };
        while position < bytes.len() && committed.is_none_or(|last| self.next <= last) {
            let line = match decode(&bytes[position..]) {
                Ok(line) => line,
                Err(Flaw::Torn) => break,
                Err(Flaw::Damaged(reason)) => return Err(damaged(position, self.next, reason)),
            };
            let number = line.record.number;
            if line.kind != SegmentKind::Record || number > self.next {
                let reason = format!("it is not record {} of the store", self.next);
                return Err(damaged(position, self.next, reason));
            }
            position += line.length;
            // A cursor may start at a number that is not yet assigned.
            if number == self.next {
                found.push(line.record);
                self.next += 1;
            }
        }
        self.place = Some((segment, offset + position as u64));
        Ok(position == bytes.len())
    }

    /// Position of the next record, whether or not it exists yet. `None` if there is no store.
    fn locate(&mut self) -> Result<Option<(u64, u64)>, RecordError> {
        while self.place.is_none() {
            let numbers = segments(&*self.files, &self.dir)?;
            let mut first = None;
            // The newest segment that starts before the record contains it.
            for &segment in numbers.iter().rev() {
                let read = match read_segment(&*self.files, &self.dir, segment, self.settings) {
                    Err(RecordError::Io { source, .. })
                        if source.kind() == io::ErrorKind::NotFound =>
                    {
                        continue;
                    }
                    read => read?,
                };
                first = Some(read.header.base + 1);
                if read.header.base < self.next {
                    let before = (self.next - 1 - read.header.base) as usize;
                    self.place = Some((segment, read.offset_after(before)));
                    break;
                }
            }
            match (self.place, first) {
                (Some(_), _) => {}
                (None, Some(first)) => {
                    let (dir, wanted) = (self.dir.clone(), self.next);
                    return Err(RecordError::Compacted { dir, wanted, first });
                }
                (None, None) if numbers.is_empty() => return Ok(None),
                // Compactions removed all listed segments in the meantime.
                (None, None) => {}
            }
        }
        Ok(self.place)
    }
}
