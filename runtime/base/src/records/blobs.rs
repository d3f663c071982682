//! Large values, stored in files of their own. The record that names such a file holds its length
//! and SHA-256.

use std::io;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::{Files, RecordError};

/// Characters of a blob's checksum in its file name, so that different contents have different
/// files.
const NAME_DIGITS: usize = 16;

/// A reference to a blob, part of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobRef {
    /// Name of the blob's file.
    pub file: String,
    /// Length of the blob in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in hexadecimal.
    pub sha256: String,
}

/// Directory of a store's blobs.
pub(super) fn dir_of(store: &Path) -> PathBuf {
    store.join("blobs")
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a blob, durably.
pub(super) fn put(
    files: &dyn Files,
    store: &Path,
    label: &str,
    bytes: &[u8],
) -> Result<BlobRef, RecordError> {
    let dir = dir_of(store);
    files.make_dir(&dir).map_err(RecordError::io("make", &dir))?;
    let sha256 = sha256(bytes);
    let blob = BlobRef {
        file: format!("{label}.{}", &sha256[..NAME_DIGITS]),
        bytes: bytes.len() as u64,
        sha256,
    };
    write_file(files, &dir, &blob.file, bytes)?;
    Ok(blob)
}

/// Writes a file as a whole or not at all: first under a temporary name, then renamed. Durable on
/// return.
pub(super) fn write_file(
    files: &dyn Files,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), RecordError> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.tmp")));
    let io = RecordError::io("write", &path);
    let written = files.create(&temporary).and_then(|mut file| {
        file.write(0, bytes)?;
        file.sync()
    });
    if let Err(error) = written.and_then(|()| files.rename(&temporary, &path)) {
        // Opening the store removes a temporary file that is left.
        let _ = files.remove(&temporary);
        return Err(io(error));
    }
    files.sync_dir(dir).map_err(io)
}

/// Reads a blob back.
pub(super) fn get(files: &dyn Files, store: &Path, blob: &BlobRef) -> Result<Vec<u8>, RecordError> {
    let path = dir_of(store).join(&blob.file);
    let damaged = |reason: String| RecordError::Blob { path: path.clone(), reason };
    let bytes = match files.read(&path, 0) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(damaged("it is missing".to_owned()));
        }
        Err(error) => return Err(RecordError::io("read", &path)(error)),
    };
    if bytes.len() as u64 != blob.bytes {
        return Err(damaged(format!("it has {} bytes instead of {}", bytes.len(), blob.bytes)));
    }
    if sha256(&bytes) == blob.sha256 {
        Ok(bytes)
    } else {
        Err(damaged("its checksum does not match".to_owned()))
    }
}

/// Removes all blobs whose file name is not wanted.
pub(super) fn retain(
    files: &dyn Files,
    store: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), RecordError> {
    let dir = dir_of(store);
    for name in files.list(&dir).map_err(RecordError::io("list", &dir))? {
        if !wanted(&name) {
            let path = dir.join(&name);
            files.remove(&path).map_err(RecordError::io("remove", &path))?;
        }
    }
    Ok(())
}
