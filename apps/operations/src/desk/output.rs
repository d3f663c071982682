//! The output of a command's processes: a file for each stream, and the lines of all in the job's
//! log.
//!
//! ```text
//! JOB/rank-3.out            standard output of rank 3; rank-3.err is its standard error
//! JOB/rank-3.try-2.out      the same of its second attempt
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::OutputStream;

/// The most bytes of one chunk.
pub const CHUNK_MAX: usize = 256 << 10;
/// The longest part of a line that waits for its end. Longer lines are split.
const PART_MAX: usize = 4096;

/// A file of a job that can be read while the job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFile {
    /// The lines of the job and of all its processes.
    Log,
    /// The bytes of a stream of a process.
    Stream {
        /// The rank of the process.
        rank: u32,
        /// The attempt of the process, from 1; absent: the last one that has this file.
        attempt: Option<u32>,
        /// The stream of the process.
        stream: OutputStream,
    },
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    /// The bytes from the requested offset, at most [`CHUNK_MAX`].
    pub bytes: Bytes,
    /// The length of the file at this time, in bytes.
    pub length: u64,
    /// The attempt that the file belongs to; 0 for the log.
    pub attempt: u32,
    /// Whether the job has ended, so that the file does not grow any more.
    pub has_ended: bool,
    /// The reason why the file cannot be read; a file that does not exist is empty.
    pub unreadable: Option<String>,
}

/// The name of the file of a stream.
pub(super) fn file_name(rank: u32, attempt: u32, stream: OutputStream) -> String {
    let end = match stream {
        OutputStream::Stdout => "out",
        OutputStream::Stderr => "err",
    };
    match attempt {
        0 | 1 => format!("rank-{rank}.{end}"),
        attempt => format!("rank-{rank}.try-{attempt}.{end}"),
    }
}

/// The last attempt that has a file of this stream; 1 if none has.
pub(super) fn last_attempt(dir: &Path, rank: u32, stream: OutputStream) -> u32 {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let attempts = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let attempt = name.split(".try-").nth(1)?.split('.').next()?.parse().ok()?;
        (name == file_name(rank, attempt, stream)).then_some(attempt)
    });
    attempts.max().unwrap_or(1)
}

/// Reads a chunk of a file. A file that does not exist is empty.
pub(super) fn read_chunk(path: &Path, offset: u64) -> io::Result<(Bytes, u64)> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Bytes::new(), 0)),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if offset < length {
        file.seek(SeekFrom::Start(offset))?;
        file.take(CHUNK_MAX as u64).read_to_end(&mut bytes)?;
    }
    Ok((bytes.into(), length))
}

/// Splits the output of processes into lines for the log.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    parts: BTreeMap<(u32, u32, OutputStream), Vec<u8>>,
}

impl LineSplitter {
    /// Adds a piece. Returns the lines that it completes, each with the rank if there are several
    /// processes.
    pub(super) fn add(
        &mut self,
        rank: u32,
        attempt: u32,
        stream: OutputStream,
        processes: u32,
        bytes: &[u8],
    ) -> String {
        let part = self.parts.entry((rank, attempt, stream)).or_default();
        let mut lines = String::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            part.extend_from_slice(piece);
            if piece.ends_with(b"\n") || part.len() >= PART_MAX {
                push_line(&mut lines, rank, processes, part);
                part.clear();
            }
        }
        lines
    }

    /// Returns the lines that have no end, at the end of the job.
    pub(super) fn rest(&mut self) -> String {
        let mut lines = String::new();
        for ((rank, ..), part) in std::mem::take(&mut self.parts) {
            if !part.is_empty() {
                // The number of processes is unknown here; a rank above 0 is one of several.
                push_line(&mut lines, rank, rank + 1, &part);
            }
        }
        lines
    }
}

fn push_line(lines: &mut String, rank: u32, processes: u32, part: &[u8]) {
    if processes > 1 {
        lines.push_str(&format!("{rank}: "));
    }
    let text = String::from_utf8_lossy(part);
    lines.push_str(text.trim_end_matches(['\n', '\r']));
    lines.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_complete_and_have_their_rank() {
        use OutputStream::{Stderr, Stdout};
        let mut splitter = LineSplitter::default();
        assert_eq!(splitter.add(0, 1, Stdout, 1, b"one\ntw"), "one\n");
        assert_eq!(splitter.add(0, 1, Stderr, 1, b"error\n"), "error\n");
        assert_eq!(splitter.add(0, 1, Stdout, 1, b"o\r\n\n"), "two\n\n");
        assert_eq!(splitter.add(3, 1, Stdout, 4, b"a\nb"), "3: a\n");
        assert_eq!(splitter.add(0, 1, Stdout, 1, &[b'x'; PART_MAX + 1]).len(), PART_MAX + 2);
        assert_eq!(splitter.rest(), "3: b\n");
    }

    #[test]
    fn chunks_end_with_the_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(file_name(3, 2, OutputStream::Stderr));
        assert!(path.ends_with("rank-3.try-2.err"));
        assert_eq!(read_chunk(&path, 0).unwrap(), (Bytes::new(), 0));
        assert_eq!(last_attempt(temp.path(), 3, OutputStream::Stderr), 1);
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(last_attempt(temp.path(), 3, OutputStream::Stderr), 2);
        assert_eq!(last_attempt(temp.path(), 3, OutputStream::Stdout), 1);
        assert_eq!(read_chunk(&path, 7).unwrap(), (Bytes::from_static(b"789"), 10));
        assert_eq!(read_chunk(&path, 11).unwrap(), (Bytes::new(), 10));
    }
}
