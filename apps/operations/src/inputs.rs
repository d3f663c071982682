//! Input files of jobs in the directories of a grid's clusters.
//!
//! Bytes pass through the clusters' file servers, not the scheduler. This module does not know the
//! placement of jobs.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use springtide_actors::files::catalogue::FileStatus;
use springtide_actors::files::{
    CHUNK_MAX, FileEntry, FileError, FileServer, PutChunk, ReadChunk, RemoveFiles, entry_of,
    files_name,
};
use springtide_actors::scheduler::{GetFiles, GridFiles};
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::talk::Talk;
use springtide_runtime::config::nearest;
use springtide_runtime::files::check_name;
use springtide_runtime::id::ClusterId;
use springtide_runtime::remote::{Remote, RemoteRequest};

use crate::attach::Attachment;
use crate::attach::attach_by;
use crate::signals::{Signals, word};

/// Timeout of a request that the head answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a file server to read or write a chunk.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of chunks requested ahead.
const CHUNKS_AHEAD: usize = 4;

/// Connects to the grid of a config file and works on its files until a signal.
async fn with_files<T>(
    config: &Path,
    work: impl AsyncFnOnce(&Attachment, GridFiles) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let attachment = attach_by(config).await?;
    let mut signals = Signals::take()?;
    let done = async {
        let ask = attachment.scheduler().send(GetFiles {}).deadline(REQUEST_TIMEOUT);
        work(&attachment, ask.await?).await
    };
    let done = tokio::select! {
        biased;
        exit = signals.next() => {
            let hint = "the same command continues the transfer";
            Err(Failed::new(exit, format!("{}: {hint}", word(exit))))
        }
        done = done => done,
    };
    attachment.endpoint.net.close("answered").await;
    done
}

/// The files in the clusters' directories.
///
/// # Errors
/// No grid is up.
pub async fn list(config: &Path) -> Result<Vec<FileStatus>, Failed> {
    with_files(config, async |_: &Attachment, grid| Ok(grid.files)).await
}

/// Copies a file of this host into a cluster's directory. Returns its entry there.
///
/// # Errors
/// No grid is up, it has no such cluster, the name is not a file name, or the file cannot be read.
pub async fn put_into(
    config: &Path,
    file: &Path,
    cluster: &ClusterId,
    name: Option<&str>,
    quiet: bool,
) -> Result<FileEntry, Failed> {
    with_files(config, async |attachment: &Attachment, grid| {
        let own_name = || file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.unwrap_or_else(own_name);
        check_name(name).map_err(|error| Failed::usage(format!("{error}: see --as")))?;
        let server = server(attachment, &grid, cluster)?;
        let mut talk = Talk::new(quiet);
        talk.wait_for(&format!("reading {}", file.display()));
        let entry = summed(file, name).await?;
        put(&server, file, &entry, &mut talk).await?;
        Ok(entry)
    })
    .await
}

/// Removes files from all clusters.
///
/// # Errors
/// No grid is up, or no cluster has one of the files.
pub async fn remove(config: &Path, names: &[String]) -> Result<(), Failed> {
    with_files(config, async |attachment: &Attachment, grid| {
        let known = |name: &&String| grid.files.iter().any(|file| file.name == **name);
        if let Some(unknown) = names.iter().find(|name| !known(name)) {
            return select(&grid.files, unknown, None).map(drop);
        }
        for cluster in grid.servers.keys() {
            let server = server(attachment, &grid, cluster)?;
            let word = RemoveFiles { names: names.to_vec() };
            server.send(word).deadline(CHUNK_TIMEOUT).await?.map_err(refused)?;
        }
        Ok(())
    })
    .await
}

/// A file that was copied from a cluster.
pub struct FetchedFile {
    /// The cluster that had it.
    pub cluster: ClusterId,
    /// The entry of the file in that cluster.
    pub entry: FileEntry,
}

/// Copies a cluster's file to a path of this host.
///
/// # Errors
/// No grid is up, it has no such file, or the path exists or cannot be written.
pub async fn fetch_to(
    config: &Path,
    name: &str,
    cluster: Option<ClusterId>,
    out: &Path,
    quiet: bool,
) -> Result<FetchedFile, Failed> {
    with_files(config, async |attachment: &Attachment, grid| {
        if out.symlink_metadata().is_ok() {
            let shown = out.display();
            return Err(Failed::failure(format!(
                "{shown} exists: remove it, or name another file by --out"
            )));
        }
        let (cluster, entry) = select(&grid.files, name, cluster)?;
        let server = server(attachment, &grid, &cluster)?;
        fetch(&server, &entry, out, &mut Talk::new(quiet)).await?;
        Ok(FetchedFile { cluster, entry })
    })
    .await
}

/// The entry of a file, from reading all of it. Reading may take minutes: a thread of its own
/// blocks neither signals nor the process's end.
pub async fn summed(path: &Path, name: &str) -> Result<FileEntry, Failed> {
    let (file, name) = (path.to_owned(), name.to_owned());
    let sum = on_thread("checksum", move || entry_of(&file, &name)).await;
    sum.and_then(|sum| sum).map_err(|error| cannot("read", path, &error))
}

/// Runs blocking work on a thread of its own, which the end of this process does not wait for.
///
/// # Errors
/// The thread cannot start, or panics.
pub async fn on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    let run = move || {
        // The receiver may be gone; then the result is not needed.
        let _ = done.send(work());
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    result.await.map_err(|_| std::io::Error::other("its thread has ended"))
}

/// The file server of a cluster.
pub fn server(
    attachment: &Attachment,
    grid: &GridFiles,
    cluster: &ClusterId,
) -> Result<Remote<FileServer>, Failed> {
    let Some(at) = grid.servers.get(cluster) else {
        let known: Vec<&str> = grid.servers.keys().map(ClusterId::as_str).collect();
        let there = if known.is_empty() {
            "no cluster does; set `files` in a [[cluster]]".to_owned()
        } else {
            format!("those with files are {}", known.join(", "))
        };
        return Err(Failed::usage(format!("cluster {cluster} keeps no files: {there}")));
    };
    attachment.endpoint.net.learn_if_down(at.clone());
    Ok(attachment.endpoint.hub.remote(&at.node, &files_name(cluster)))
}

/// Selects the file of a name and the cluster to copy from.
fn select(
    files: &[FileStatus],
    name: &str,
    cluster: Option<ClusterId>,
) -> Result<(ClusterId, FileEntry), Failed> {
    let Some(file) = files.iter().find(|file| file.name == name) else {
        let hint = match nearest(name, files.iter().map(|file| file.name.as_str())) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`files list` shows all files".to_owned(),
        };
        return Err(Failed::usage(format!("no cluster has a file {name}: {hint}")));
    };
    match cluster {
        Some(cluster) => match file.clusters.get(&cluster) {
            Some(entry) => Ok((cluster, entry.clone())),
            None => Err(Failed::usage(format!(
                "cluster {cluster} has no file {name}: {} has",
                places(file)
            ))),
        },
        None => match (file.differs(), file.clusters.iter().next()) {
            (Some(differs), _) => Err(Failed::usage(format!(
                "files named {name} differ ({differs}): select one with --cluster"
            ))),
            (None, Some((cluster, entry))) => Ok((cluster.clone(), entry.clone())),
            (None, None) => Err(Failed::usage(format!("no cluster has a file {name}"))),
        },
    }
}

/// Sends a file to a cluster's file server.
///
/// # Errors
/// It cannot be read, or the server refuses it.
pub async fn put(
    server: &Remote<FileServer>,
    path: &Path,
    entry: &FileEntry,
    talk: &mut Talk,
) -> Result<(), Failed> {
    let mut file = File::open(path).map_err(|error| cannot("read", path, &error))?;
    let mut chunk = vec![0; CHUNK_MAX as usize];
    // The answer contains the length that the server has already.
    let mut at = send(server, entry, 0, Bytes::new()).await?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at.received))
        .map_err(|error| cannot("read", path, &error))?;
    while !at.done {
        talk.progress(at.received, entry.bytes, "bytes");
        let left =
            usize::try_from(entry.bytes - at.received.min(entry.bytes)).unwrap_or(usize::MAX);
        let len = left.min(chunk.len());
        file.read_exact(&mut chunk[..len]).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                Failed::failure(format!("{} became shorter during the transfer", path.display()))
            }
            _ => cannot("read", path, &error),
        })?;
        let before = at.received;
        at = send(server, entry, before, Bytes::copy_from_slice(&chunk[..len])).await?;
        if !at.done && at.received != before + len as u64 {
            let name = &entry.name;
            return Err(Failed::failure(format!(
                "another client sends {name} at the same time: try again later"
            )));
        }
    }
    talk.done();
    Ok(())
}

async fn send(
    server: &Remote<FileServer>,
    entry: &FileEntry,
    at: u64,
    bytes: Bytes,
) -> Result<springtide_actors::files::UploadProgress, Failed> {
    let put = PutChunk { file: entry.clone(), at, bytes };
    server.send(put).deadline(CHUNK_TIMEOUT).await?.map_err(refused)
}

fn refused(error: FileError) -> Failed {
    match error {
        FileError::Name(_) | FileError::TooLarge { .. } => Failed::usage(error),
        _ => Failed::failure(error),
    }
}

/// Copies a file from a cluster's file server. It writes a temporary file first, so that the final
/// file is complete. An interrupted transfer continues; the checksum shows whether the beginning
/// belongs to this file.
pub async fn fetch(
    server: &Remote<FileServer>,
    entry: &FileEntry,
    out: &Path,
    talk: &mut Talk,
) -> Result<(), Failed> {
    let mut part = out.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    loop {
        let begun = receive(server, entry, &part, talk).await?;
        talk.wait_for(&format!("reading {}", part.display()));
        if summed(&part, &entry.name).await? == *entry {
            talk.done();
            return fs::rename(&part, out).map_err(|error| cannot("write", out, &error));
        }
        // The damaged file is of no use.
        let _ = fs::remove_file(&part);
        if begun == 0 {
            let name = &entry.name;
            return Err(Failed::failure(format!(
                "{name} was damaged in the transfer: fetch it \
            again"
            )));
        }
    }
}

/// Opens the file of an interrupted transfer, and returns its length.
#[allow(clippy::disallowed_methods)] // the caller reports the error
fn open_partial(part: &Path, bytes: u64) -> std::io::Result<(File, u64)> {
    let mut file = File::options().create(true).truncate(false).write(true).open(part)?;
    let mut have = file.metadata()?.len();
    if have > bytes {
        // The file is longer than the new one, so that it is of another.
        file.set_len(0)?;
        have = 0;
    }
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(have))?;
    Ok((file, have))
}

/// Copies the missing part of a file. Returns the length that existed before.
async fn receive(
    server: &Remote<FileServer>,
    entry: &FileEntry,
    part: &Path,
    talk: &mut Talk,
) -> Result<u64, Failed> {
    let (mut file, begun) =
        open_partial(part, entry.bytes).map_err(|error| cannot("write", part, &error))?;
    let (mut next, mut have) = (begun, begun);
    let mut requests: VecDeque<RemoteRequest<ReadChunk>> = VecDeque::new();
    while have < entry.bytes {
        while next < entry.bytes && requests.len() < CHUNKS_AHEAD {
            let (name, sum) = (entry.name.clone(), entry.sum.clone());
            let chunk = ReadChunk { name, sum, at: next, len: CHUNK_MAX };
            requests.push_back(server.send(chunk).deadline(CHUNK_TIMEOUT).start());
            next = entry.bytes.min(next + u64::from(CHUNK_MAX));
        }
        let Some(call) = requests.pop_front() else { break };
        let bytes = call.await?.map_err(refused)?;
        if bytes.is_empty() {
            break; // the checksum detects it
        }
        file.write_all(&bytes).map_err(|error| cannot("write", part, &error))?;
        have += bytes.len() as u64;
        talk.progress(have, entry.bytes, "bytes");
    }
    file.sync_all().map_err(|error| cannot("write", part, &error))?;
    Ok(begun)
}

/// The clusters that have a file.
pub fn places(file: &FileStatus) -> String {
    file.clusters.keys().map(ClusterId::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use springtide_cli::exit::Exit;

    fn file(name: &str, clusters: &[(&str, u64)]) -> FileStatus {
        let one = |&(cluster, bytes): &(&str, u64)| {
            let sum = format!("{bytes:064}");
            (cluster.into(), FileEntry { name: name.to_owned(), bytes, sum })
        };
        FileStatus { name: name.to_owned(), clusters: clusters.iter().map(one).collect() }
    }

    #[test]
    fn a_partial_file_is_continued_unless_it_is_too_long() {
        let temp = tempfile::tempdir().unwrap();
        let part = temp.path().join("bodies.csv.part");
        assert_eq!(open_partial(&part, 5).unwrap().1, 0);
        fs::write(&part, "abc").unwrap();
        let (mut file, have) = open_partial(&part, 5).unwrap();
        assert_eq!(have, 3);
        file.write_all(b"de").unwrap();
        assert_eq!(fs::read(&part).unwrap(), b"abcde");
        assert_eq!(open_partial(&part, 4).unwrap().1, 0);
        assert_eq!(fs::read(&part).unwrap(), b"");
    }

    #[test]
    fn the_meant_file_is_selected_or_the_choice_is_reported() {
        let files = [
            file("bodies.csv", &[("ams", 1), ("del", 1)]),
            file("text", &[("ams", 7), ("del", 8)]),
        ];
        let of = |name: &str, cluster: Option<&str>| select(&files, name, cluster.map(Into::into));
        assert_eq!(of("bodies.csv", None).unwrap().0, "ams".into());
        assert_eq!(of("text", Some("del")).unwrap().1.bytes, 8);
        for (name, cluster, expected) in [
            ("bodeis.csv", None, "did you mean bodies.csv?"),
            ("zzz", None, "`files list` shows"),
            ("text", None, "select one with --cluster"),
            ("text", Some("bud"), "cluster bud has no file text: ams, del has"),
        ] {
            let failed = of(name, cluster).unwrap_err();
            assert_eq!(failed.exit, Exit::Usage);
            assert!(failed.message.contains(expected), "{failed}");
        }
    }
}
