//! A small append-only file that survives crashes: what the scheduler must not forget.
//!
//! Each record is a line `CRC32 JSON`; it counts from when it is synced. A last line cut short by a crash is dropped; any
//! other damage is refused, never guessed. Must not know what the records mean to the scheduler.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{Epoch, JobId};

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    /// This epoch of this job was given out.
    Epoch {
        /// The job.
        job: JobId,
        /// Its ownership generation.
        epoch: Epoch,
    },
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// A line that is not the last one is damaged: what was given out before is not known for sure.
    #[error(
        "{}, line {line}: {reason}; restore the file, or move it away to begin a new grid", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// The open store.
#[derive(Debug)]
pub struct Store {
    /// Absent: it is in memory.
    kept: Option<Kept>,
    last_job: u64,
}

/// Where records are written.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    file: File,
    /// Where the next record goes: the end of the last whole one.
    end: u64,
}

impl Store {
    /// Opens the store, makes it when it is not there, and reads what it holds.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let io = |source| StoreError::Io { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let (entries, end) = parse(&bytes).map_err(|(line, reason)| StoreError::Damaged {
            path: path.to_owned(),
            line,
            reason,
        })?;
        file.set_len(end as u64).map_err(io)?;
        let last_job = entries.iter().map(|Entry::Epoch { job, .. }| job.0).max().unwrap_or(0);
        let kept = Kept { path: path.to_owned(), file, end: end as u64 };
        Ok(Self { kept: Some(kept), last_job })
    }

    /// A store that lasts as long as the process, for grids that do: those of tests and simulations.
    pub fn in_memory() -> Self {
        Self { kept: None, last_job: 0 }
    }

    /// Gives out a job number never given out before, with its first epoch. Both are on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the number must not be used and is not given out again.
    pub fn new_job(&mut self) -> Result<(JobId, Epoch), StoreError> {
        self.last_job += 1;
        let (job, epoch) = (JobId(self.last_job), Epoch(1));
        self.append(Entry::Epoch { job, epoch })?;
        Ok((job, epoch))
    }

    /// Gives out the epoch after `known` of a job. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the epoch must not be used.
    pub fn new_epoch(&mut self, job: JobId, known: Epoch) -> Result<Epoch, StoreError> {
        let epoch = Epoch(known.0 + 1);
        self.append(Entry::Epoch { job, epoch })?;
        Ok(epoch)
    }

    fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let Some(Kept { path, file, end }) = &mut self.kept else { return Ok(()) };
        let line = encode(&entry);
        let written = file
            .seek(SeekFrom::Start(*end))
            .and_then(|_| file.write_all(line.as_bytes()))
            .and_then(|()| file.sync_data());
        if let Err(source) = written {
            // A half-written record must not stand before a later, whole one.
            let _ = file.set_len(*end);
            return Err(StoreError::Io { path: path.clone(), source });
        }
        *end += line.len() as u64;
        Ok(())
    }
}

fn encode(entry: &Entry) -> String {
    let json = serde_json::to_string(entry).expect("an entry is plain numbers");
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

/// The whole records and where they end, or the damaged line.
fn parse(bytes: &[u8]) -> Result<(Vec<Entry>, usize), (usize, String)> {
    let mut entries = Vec::new();
    let mut end = 0;
    for (index, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        let Some(whole) = line.strip_suffix(b"\n") else {
            break; // cut short by a crash while it was written: it was never given out
        };
        entries.push(decode(whole).map_err(|reason| (index + 1, reason))?);
        end += line.len();
    }
    Ok((entries, end))
}

fn decode(line: &[u8]) -> Result<Entry, String> {
    let text = std::str::from_utf8(line).map_err(|_| "not text".to_owned())?;
    let (crc, json) = text.split_once(' ').ok_or("no checksum")?;
    if format!("{:08x}", crc32(json.as_bytes())) != crc {
        return Err("the checksum does not fit".to_owned());
    }
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// CRC-32 (IEEE 802.3, reflected), bit by bit: records are short and rare.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_checksum_is_the_common_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn numbers_are_never_given_out_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut given = Vec::new();
        for _ in 0..3 {
            let mut store = Store::open(&path).unwrap();
            given.push(store.new_job().unwrap().0.0);
            given.push(store.new_job().unwrap().0.0);
        }
        assert_eq!(given, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn cut_at_every_byte_it_recovers_to_the_last_whole_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        let mut ends = vec![0];
        for _ in 0..3 {
            store.new_job().unwrap();
            ends.push(fs::metadata(&path).unwrap().len());
        }
        let whole = fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let records = ends.iter().filter(|&&end| end <= cut as u64).count() as u64 - 1;
            let mut store = Store::open(&path).unwrap();
            assert_eq!(store.new_job().unwrap().0, JobId(records + 1), "cut at {cut}");
            // What was appended after the cut reads back.
            assert_eq!(Store::open(&path).unwrap().last_job, records + 1, "cut at {cut}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed_or_harmless() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.log");
        let mut store = Store::open(&path).unwrap();
        store.new_job().unwrap();
        store.new_job().unwrap();
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            match Store::open(&path) {
                // The last newline flipped looks like a record cut short.
                Ok(store) => {
                    assert!(bit / 8 == whole.len() - 1 && store.last_job == 1, "bit {bit}")
                }
                Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
            }
        }
    }
}
