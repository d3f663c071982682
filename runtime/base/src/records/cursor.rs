//! Reading a store's records in order while they are written, in this process or in another.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::log::{file_name, read_segment, segments};
use super::segment::{Flaw, Kind, decode};
use super::{Files, Record, RecordError, Settings};

/// A place in a store's sequence of records.
#[derive(Debug)]
pub struct Cursor {
    files: Arc<dyn Files>,
    dir: PathBuf,
    settings: Settings,
    next: u64,
    /// Segment and offset of the next record, once they are known.
    place: Option<(u64, u64)>,
    /// The last durable record, where the writer is in this process.
    committed: Option<Arc<AtomicU64>>,
}

impl Cursor {
    /// A cursor over the files of a store that another process may write. It may see a record that
    /// is not durable yet.
    pub fn open(files: Arc<dyn Files>, dir: &Path, settings: Settings, from: u64) -> Self {
        Self::new(files, dir, settings, from, None)
    }

    pub(super) fn new(
        files: Arc<dyn Files>,
        dir: &Path,
        settings: Settings,
        from: u64,
        committed: Option<Arc<AtomicU64>>,
    ) -> Self {
        let (dir, next) = (dir.to_owned(), from.max(1));
        Self { files, dir, settings, next, place: None, committed }
    }

    /// The newest snapshot, which stands for all records before the cursor that comes with it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn of_snapshot(
        files: Arc<dyn Files>,
        dir: &Path,
        settings: Settings,
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

    /// The records that have come since the last call.
    ///
    /// # Errors
    /// [`RecordError::Behind`]: some were compacted away before they were read.
    /// [`RecordError::Damaged`], [`RecordError::Io`].
    pub fn poll(&mut self) -> Result<Vec<Record>, RecordError> {
        let mut found = Vec::new();
        loop {
            let Some((segment, offset)) = self.locate()? else { return Ok(found) };
            // What follows a segment exists before that is read to its end: it is final then.
            let followed = segments(&*self.files, &self.dir)?.contains(&(segment + 1));
            let path = self.dir.join(file_name(segment));
            let bytes = match self.files.read(&path, offset) {
                Ok(bytes) => bytes,
                // It was compacted away meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.place = None;
                    continue;
                }
                Err(error) => return Err(RecordError::io("read", &path)(error)),
            };
            let whole = self.take(&path, segment, offset, &bytes, &mut found)?;
            if !(followed && whole) {
                return Ok(found);
            }
            self.place = None;
        }
    }

    /// Takes the whole records of `bytes`. Returns whether all may be taken.
    fn take(
        &mut self,
        path: &Path,
        segment: u64,
        offset: u64,
        bytes: &[u8],
        found: &mut Vec<Record>,
    ) -> Result<bool, RecordError> {
        let committed = self.committed.as_ref().map(|last| last.load(Ordering::Acquire));
        let mut at = 0;
        let damaged = |at: usize, record: u64, reason: String| RecordError::Damaged {
            path: path.to_owned(),
            record,
            offset: offset + at as u64,
            reason,
            loss: self.settings.loss,
        };
        while at < bytes.len() && committed.is_none_or(|last| self.next <= last) {
            let line = match decode(&bytes[at..]) {
                Ok(line) => line,
                Err(Flaw::Torn) => break,
                Err(Flaw::Damaged(reason)) => return Err(damaged(at, self.next, reason)),
            };
            let number = line.record.number;
            if line.kind != Kind::Record || number > self.next {
                let reason = format!("it is not record {} of the store", self.next);
                return Err(damaged(at, self.next, reason));
            }
            at += line.length;
            // A cursor may begin at a number that is yet to come.
            if number == self.next {
                found.push(line.record);
                self.next += 1;
            }
        }
        self.place = Some((segment, offset + at as u64));
        Ok(at == bytes.len())
    }

    /// Where the next record is or will be. None if there is no store.
    fn locate(&mut self) -> Result<Option<(u64, u64)>, RecordError> {
        while self.place.is_none() {
            let all = segments(&*self.files, &self.dir)?;
            let mut first = None;
            // The newest that begins before the record has it.
            for &segment in all.iter().rev() {
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
                    return Err(RecordError::Behind { dir, wanted, first });
                }
                (None, None) if all.is_empty() => return Ok(None),
                // All were compacted away while they were looked at.
                (None, None) => {}
            }
        }
        Ok(self.place)
    }
}
