//! `files ...`: input files of jobs in the directories of a grid's clusters.
//!
//! Bytes go to and from the clusters' file servers, not through the scheduler. Must not know where jobs are placed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::{Subcommand, ValueHint};
use serde_json::json;
use springtide_actors::files::catalogue::FileStatus;
use springtide_actors::files::{
    CHUNK_MAX, FileEntry, FileError, FileServer, PutChunk, ReadChunk, RemoveFiles, entry_of,
    files_name,
};
use springtide_actors::scheduler::{GetFiles, GridFiles};
use springtide_runtime::config::nearest;
use springtide_runtime::files::check_name;
use springtide_runtime::id::ClusterId;
use springtide_runtime::remote::{Remote, RemoteRequest};

use crate::args::GlobalArgs;
use crate::exit::Failed;
use crate::grid::cannot;
use crate::jobs::attach_by;
use crate::report::{SCHEMA, size};
use crate::run::{Attachment, print};
use crate::signals::{Signals, word};
use crate::talk::Talk;

/// How long the head may take to answer what takes it no time.
const WITHIN: Duration = Duration::from_secs(10);
/// A file server has this long to read or write a piece.
const CHUNK_WITHIN: Duration = Duration::from_secs(120);
/// Pieces that are asked for ahead.
const AHEAD: usize = 4;

/// `files ...`
#[derive(Subcommand, Clone, Debug)]
pub enum FilesCommand {
    /// Show which files there are, how long they are and which clusters have them
    List {
        /// The grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Copy a file of this machine into a cluster's directory
    Put {
        /// The file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Which cluster
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// What it is called there [default: its own name]
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// The grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
    /// Remove files from all clusters
    Remove {
        /// Their names; those that begin with wf- and are of no workflow that runs were left by one that was killed
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// The grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
    /// Copy a cluster's file to this machine
    Fetch {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// From which cluster [default: the first that has it]
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
        /// Where to [default: its name, here]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
        /// The grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
}

/// Does it.
///
/// # Errors
/// No grid is up, it has no such file or cluster, or a file cannot be read or written.
pub async fn files(command: FilesCommand, global: &GlobalArgs) -> Result<(), Failed> {
    let config = match &command {
        FilesCommand::List { config, .. }
        | FilesCommand::Put { config, .. }
        | FilesCommand::Remove { config, .. }
        | FilesCommand::Fetch { config, .. } => config.clone(),
    };
    let attachment = attach_by(&config).await?;
    let mut signals = Signals::take()?;
    let done = tokio::select! {
        biased;
        exit = signals.next() => {
            let goes_on = "the same command goes on from what is there";
            Err(Failed::new(exit, format!("{}: {goes_on}", word(exit))))
        }
        done = told(&attachment, command, global) => done,
    };
    attachment.endpoint.net.close("told").await;
    done
}

async fn told(
    attachment: &Attachment,
    command: FilesCommand,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let grid = attachment.scheduler().send(GetFiles {}).deadline(WITHIN).await?;
    match command {
        FilesCommand::List { json, .. } => {
            print(&if json { list_object(&grid.files) } else { list_text(&grid.files) })
        }
        FilesCommand::Put { file, cluster, name, .. } => {
            let name = match &name {
                Some(name) => name.as_str(),
                None => file.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
            };
            check_name(name).map_err(|error| Failed::usage(format!("{error}: see --as")))?;
            let cluster = ClusterId::from(cluster.as_str());
            let server = server(attachment, &grid, &cluster)?;
            let mut talk = Talk::new(global.quiet);
            talk.wait_for(&format!("reading {}", file.display()));
            let entry = summed(&file, name).await?;
            put(&server, &file, &entry, &mut talk).await?;
            if !global.quiet {
                eprintln!("{name} ({}) is in {cluster}", size(entry.bytes));
            }
            Ok(())
        }
        FilesCommand::Remove { names, .. } => {
            let known = |name: &&String| grid.files.iter().any(|file| file.name == **name);
            if let Some(unknown) = names.iter().find(|name| !known(name)) {
                return found(&grid.files, unknown, None).map(drop);
            }
            for cluster in grid.servers.keys() {
                let server = server(attachment, &grid, cluster)?;
                let word = RemoveFiles { names: names.clone() };
                server.send(word).deadline(CHUNK_WITHIN).await?.map_err(refused)?;
            }
            Ok(())
        }
        FilesCommand::Fetch { name, cluster, out, .. } => {
            let out = out.unwrap_or_else(|| PathBuf::from(&name));
            if out.symlink_metadata().is_ok() {
                let shown = out.display();
                return Err(Failed::failure(format!(
                    "{shown} exists: remove it, or name another file by --out"
                )));
            }
            let cluster = cluster.map(|name| ClusterId::from(name.as_str()));
            let (cluster, entry) = found(&grid.files, &name, cluster)?;
            let server = server(attachment, &grid, &cluster)?;
            fetch(&server, &entry, &out, &mut Talk::new(global.quiet)).await?;
            if !global.quiet {
                eprintln!("{} ({}) is from {cluster}", out.display(), size(entry.bytes));
            }
            Ok(())
        }
    }
}

/// What a file is, by reading all of it. That may take minutes, and must not hold up signals; a thread of its own does not hold
/// up the process's end either.
pub async fn summed(path: &Path, name: &str) -> Result<FileEntry, Failed> {
    let (done, sum) = tokio::sync::oneshot::channel();
    let (file, name) = (path.to_owned(), name.to_owned());
    let read = move || {
        // Nobody waits for it any more: then nobody wants it.
        let _ = done.send(entry_of(&file, &name));
    };
    let thread = std::thread::Builder::new().name("checksum".to_owned()).spawn(read);
    thread.map_err(|error| cannot("read", path, &error))?;
    let sum = sum.await.map_err(|_| cannot("read", path, &"its thread has ended"))?;
    sum.map_err(|error| cannot("read", path, &error))
}

/// The file server of a cluster.
pub fn server(
    attachment: &Attachment,
    grid: &GridFiles,
    cluster: &ClusterId,
) -> Result<Remote<FileServer>, Failed> {
    let Some(at) = grid.servers.get(cluster) else {
        let known: Vec<&str> = grid.servers.keys().map(ClusterId::as_str).collect();
        let there = match known.is_empty() {
            true => "no cluster does; set `files` of a [[cluster]]".to_owned(),
            false => format!("those that do are {}", known.join(", ")),
        };
        return Err(Failed::usage(format!("cluster {cluster} keeps no files: {there}")));
    };
    attachment.endpoint.net.introduce(at.clone());
    Ok(attachment.endpoint.hub.remote(&at.node, &files_name(cluster)))
}

/// Which file of a name, and from where.
fn found(
    files: &[FileStatus],
    name: &str,
    cluster: Option<ClusterId>,
) -> Result<(ClusterId, FileEntry), Failed> {
    let Some(file) = files.iter().find(|file| file.name == name) else {
        let hint = match nearest(name, files.iter().map(|file| file.name.as_str())) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`files list` shows those there are".to_owned(),
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
                "files named {name} differ ({differs}): say which by --cluster"
            ))),
            (None, Some((cluster, entry))) => Ok((cluster.clone(), entry.clone())),
            (None, None) => Err(Failed::usage(format!("no cluster has a file {name}"))),
        },
    }
}

/// Sends a file to a cluster's file server.
///
/// # Errors
/// It cannot be read, or the server does not take it.
pub async fn put(
    server: &Remote<FileServer>,
    path: &Path,
    entry: &FileEntry,
    talk: &mut Talk,
) -> Result<(), Failed> {
    let mut file = File::open(path).map_err(|error| cannot("read", path, &error))?;
    let mut chunk = vec![0; CHUNK_MAX as usize];
    // Says how much is there already.
    let mut at = send(server, entry, 0, Bytes::new()).await?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at.have))
        .map_err(|error| cannot("read", path, &error))?;
    while !at.done {
        talk.progress(at.have, entry.bytes, "bytes");
        let left = usize::try_from(entry.bytes - at.have.min(entry.bytes)).unwrap_or(usize::MAX);
        let len = left.min(chunk.len());
        file.read_exact(&mut chunk[..len]).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                Failed::failure(format!("{} became shorter while it was sent", path.display()))
            }
            _ => cannot("read", path, &error),
        })?;
        let before = at.have;
        at = send(server, entry, before, Bytes::copy_from_slice(&chunk[..len])).await?;
        if !at.done && at.have != before + len as u64 {
            let name = &entry.name;
            return Err(Failed::failure(format!(
                "somebody else sends {name} too: try again later"
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
) -> Result<springtide_actors::files::PutState, Failed> {
    let put = PutChunk { file: entry.clone(), at, bytes };
    server.send(put).deadline(CHUNK_WITHIN).await?.map_err(refused)
}

fn refused(error: FileError) -> Failed {
    match error {
        FileError::Name(_) | FileError::TooLarge { .. } => Failed::usage(error),
        _ => Failed::failure(error),
    }
}

/// Written beside its place first, so that a file that is there is whole. What came before an interruption is gone on from; its
/// checksum tells whether it was of this file.
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
        // What came of it is of no use.
        let _ = fs::remove_file(&part);
        if begun == 0 {
            let name = &entry.name;
            return Err(Failed::failure(format!("{name} arrived damaged: fetch it again")));
        }
    }
}

/// How much of a file is there already, and the file, to be gone on with.
#[allow(clippy::disallowed_methods)] // Its error is the caller's.
fn resumed(part: &Path, bytes: u64) -> std::io::Result<(File, u64)> {
    let mut file = File::options().create(true).truncate(false).write(true).open(part)?;
    let mut have = file.metadata()?.len();
    if have > bytes {
        // Of another file.
        file.set_len(0)?;
        have = 0;
    }
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(have))?;
    Ok((file, have))
}

/// Returns how much was there before.
async fn receive(
    server: &Remote<FileServer>,
    entry: &FileEntry,
    part: &Path,
    talk: &mut Talk,
) -> Result<u64, Failed> {
    let (mut file, begun) =
        resumed(part, entry.bytes).map_err(|error| cannot("write", part, &error))?;
    let (mut next, mut have) = (begun, begun);
    let mut asked: VecDeque<RemoteRequest<ReadChunk>> = VecDeque::new();
    while have < entry.bytes {
        while next < entry.bytes && asked.len() < AHEAD {
            let (name, sum) = (entry.name.clone(), entry.sum.clone());
            let chunk = ReadChunk { name, sum, at: next, len: CHUNK_MAX };
            asked.push_back(server.send(chunk).deadline(CHUNK_WITHIN).start());
            next = entry.bytes.min(next + u64::from(CHUNK_MAX));
        }
        let Some(call) = asked.pop_front() else { break };
        let bytes = call.await?.map_err(refused)?;
        if bytes.is_empty() {
            break; // found out by its checksum
        }
        file.write_all(&bytes).map_err(|error| cannot("write", part, &error))?;
        have += bytes.len() as u64;
        talk.progress(have, entry.bytes, "bytes");
    }
    file.sync_all().map_err(|error| cannot("write", part, &error))?;
    Ok(begun)
}

fn places(file: &FileStatus) -> String {
    file.clusters.keys().map(ClusterId::as_str).collect::<Vec<_>>().join(", ")
}

fn list_object(files: &[FileStatus]) -> String {
    let one = |file: &FileStatus| {
        let clusters = file.clusters.iter().map(|(cluster, entry)| {
            (cluster.to_string(), json!({ "bytes": entry.bytes, "sha256": entry.sum }))
        });
        let clusters: serde_json::Map<_, _> = clusters.collect();
        json!({ "name": file.name, "clusters": clusters, "differs": file.differs() })
    };
    let files: Vec<_> = files.iter().map(one).collect();
    format!("{}\n", json!({ "schema": SCHEMA, "files": files }))
}

fn list_text(files: &[FileStatus]) -> String {
    if files.is_empty() {
        return "no files\n".to_owned();
    }
    let rows: Vec<[String; 3]> = files
        .iter()
        .map(|file| match file.differs() {
            Some(differs) => [file.name.clone(), "differs".to_owned(), differs],
            None => {
                let bytes = file.entry().map_or(0, |entry| entry.bytes);
                [file.name.clone(), size(bytes), places(file)]
            }
        })
        .collect();
    let heads = ["FILE", "LENGTH", "CLUSTERS"].map(str::to_owned);
    let all = || std::iter::once(&heads).chain(&rows);
    let width = |i: usize| all().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let (name, length) = (width(0), width(1));
    all().map(|row| format!("{:name$}  {:>length$}  {}\n", row[0], row[1], row[2])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn file(name: &str, clusters: &[(&str, u64)]) -> FileStatus {
        let one = |&(cluster, bytes): &(&str, u64)| {
            let sum = format!("{bytes:064}");
            (cluster.into(), FileEntry { name: name.to_owned(), bytes, sum })
        };
        FileStatus { name: name.to_owned(), clusters: clusters.iter().map(one).collect() }
    }

    #[test]
    fn files_are_listed_with_their_places() {
        let files = [
            file("bodies.csv", &[("ams", 1500), ("del", 1500)]),
            file("text", &[("ams", 7), ("del", 8)]),
        ];
        let expected = "\
FILE         LENGTH  CLUSTERS
bodies.csv  1.50 kB  ams, del
text        differs  ams has 7 bytes (000000000000), del has 8 bytes (000000000000); remove the wrong ones, or give them other names
";
        assert_eq!(list_text(&files), expected, "{}", list_text(&files));
        assert_eq!(list_text(&[]), "no files\n");
        let object: serde_json::Value = serde_json::from_str(&list_object(&files)).unwrap();
        assert_eq!(object["files"][0]["clusters"]["del"]["bytes"], 1500);
    }

    #[test]
    fn what_came_before_is_gone_on_from_unless_it_is_too_long() {
        let temp = tempfile::tempdir().unwrap();
        let part = temp.path().join("bodies.csv.part");
        assert_eq!(resumed(&part, 5).unwrap().1, 0);
        fs::write(&part, "abc").unwrap();
        let (mut file, have) = resumed(&part, 5).unwrap();
        assert_eq!(have, 3);
        file.write_all(b"de").unwrap();
        assert_eq!(fs::read(&part).unwrap(), b"abcde");
        assert_eq!(resumed(&part, 4).unwrap().1, 0);
        assert_eq!(fs::read(&part).unwrap(), b"");
    }

    #[test]
    fn which_file_is_meant_is_found_or_told() {
        let files = [
            file("bodies.csv", &[("ams", 1), ("del", 1)]),
            file("text", &[("ams", 7), ("del", 8)]),
        ];
        let of = |name: &str, cluster: Option<&str>| found(&files, name, cluster.map(Into::into));
        assert_eq!(of("bodies.csv", None).unwrap().0, "ams".into());
        assert_eq!(of("text", Some("del")).unwrap().1.bytes, 8);
        for (name, cluster, told) in [
            ("bodeis.csv", None, "did you mean bodies.csv?"),
            ("zzz", None, "`files list` shows"),
            ("text", None, "say which by --cluster"),
            ("text", Some("bud"), "cluster bud has no file text: ams, del has"),
        ] {
            let failed = of(name, cluster).unwrap_err();
            assert_eq!(failed.exit, Exit::Usage);
            assert!(failed.message.contains(told), "{failed}");
        }
    }
}
