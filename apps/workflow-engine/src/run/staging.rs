//! Files of a run in the clusters' directories: external inputs, transfers between clusters,
//! results.
//!
//! It does not know which task needs a file, nor why.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use springtide_actors::files::{
    FetchFile, FetchResult, FileEntry, FileServer, FileSource, RemoveFiles, ScanFiles,
};
use springtide_actors::scheduler::{GetFiles, GridFiles, Scheduler};
use springtide_cli::exit::{Failed, cannot};
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::pilot::{pack, unpack};
use springtide_runtime::remote::Remote;
use tokio::sync::Mutex;
use tokio::time::sleep;

use springtide_operations::attach::Attachment;
use springtide_operations::inputs::{on_thread, server};

/// Timeout of an answer that takes no work.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest scan of a cluster's directory.
const SCAN_TIMEOUT: Duration = Duration::from_secs(600);
/// The longest transfer of a file.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The most repetitions of a copy of a file, and the pause before them.
pub const COPIES_MAX: u32 = 10;
pub const COPY_INTERVAL: Duration = Duration::from_millis(500);
/// The most names in one message.
const NAMES_MAX: usize = 1000;

/// The clusters' file servers, and what is known of the files there.
pub struct Staging {
    scheduler: Remote<Scheduler>,
    servers: BTreeMap<ClusterId, Remote<FileServer>>,
    grid: GridFiles,
    /// Entries of files whose content is known.
    entries: RefCell<BTreeMap<String, FileEntry>>,
    /// One search for entries at a time: it finds those of all files.
    search: Mutex<()>,
}

impl Staging {
    /// Asks the grid for its file servers and files.
    ///
    /// # Errors
    /// The head does not answer.
    pub async fn new(attachment: &Attachment) -> Result<Rc<Self>, Failed> {
        let scheduler = attachment.scheduler();
        let grid = scheduler.send(GetFiles {}).deadline(REQUEST_TIMEOUT).await?;
        let clusters = grid.servers.keys();
        let servers = clusters
            .filter_map(|cluster| Some((cluster.clone(), server(attachment, &grid, cluster).ok()?)))
            .collect();
        let (entries, search) = (RefCell::default(), Mutex::new(()));
        Ok(Rc::new(Self { scheduler, servers, grid, entries, search }))
    }

    /// The clusters with a directory of files.
    pub fn clusters(&self) -> BTreeSet<ClusterId> {
        self.servers.keys().cloned().collect()
    }

    /// The file server of a cluster.
    pub fn server(&self, cluster: &ClusterId) -> Option<&Remote<FileServer>> {
        self.servers.get(cluster)
    }

    /// The files of a run that the clusters have, by stored name.
    ///
    /// # Errors
    /// The head does not answer.
    pub async fn stored(
        &self,
        prefix: &str,
    ) -> Result<BTreeMap<String, BTreeMap<ClusterId, FileEntry>>, Failed> {
        for server in self.servers.values() {
            server.send(ScanFiles {}).deadline(SCAN_TIMEOUT).await?;
        }
        let found = self.scheduler.send(GetFiles {}).deadline(REQUEST_TIMEOUT).await?;
        let own = found.files.into_iter().filter(|file| file.name.starts_with(prefix));
        Ok(own.map(|file| (file.name, file.clusters)).collect())
    }

    /// Records the entry of a file.
    pub fn add_entry(&self, entry: FileEntry) {
        self.entries.borrow_mut().insert(entry.name.clone(), entry);
    }

    /// The entry of a file, if it is known without a question.
    pub fn known_entry(&self, name: &str) -> Option<FileEntry> {
        self.entries.borrow().get(name).cloned()
    }

    /// Forgets the entry of a file that may have been replaced.
    pub fn forget_entry(&self, name: &str) {
        self.entries.borrow_mut().remove(name);
    }

    /// The entry of a file that one of these clusters has.
    ///
    /// # Errors
    /// None has it, or a server does not answer.
    pub async fn entry(&self, name: &str, clusters: &[ClusterId]) -> Result<FileEntry, String> {
        let _one = self.search.lock().await;
        if let Some(entry) = self.entries.borrow().get(name) {
            return Ok(entry.clone());
        }
        for server in clusters.iter().filter_map(|cluster| self.servers.get(cluster)) {
            let scanned = server.send(ScanFiles {}).deadline(SCAN_TIMEOUT).await;
            scanned.map_err(|error| format!("a file server does not answer: {error}"))?;
        }
        let found = self.scheduler.send(GetFiles {}).deadline(REQUEST_TIMEOUT).await;
        let found = found.map_err(|error| format!("the head does not answer: {error}"))?;
        let mut known = self.entries.borrow_mut();
        for file in found.files {
            if let Some(entry) = file.anywhere().map(|(_, entry)| entry) {
                known.insert(file.name, entry);
            }
        }
        known.get(name).cloned().ok_or_else(|| format!("no cluster has the file {name} any more"))
    }

    /// Brings files to a cluster, each from one of the clusters that have it. Returns the
    /// transfers in the order of the files.
    ///
    /// # Errors
    /// A file cannot be brought: the reason.
    pub async fn bring(
        &self,
        job: JobId,
        files: Vec<(String, Vec<ClusterId>)>,
        to: &ClusterId,
    ) -> Result<Vec<FetchResult>, String> {
        let Some(server) = self.servers.get(to) else {
            return Err(format!("cluster {to} has no directory for files"));
        };
        let mut transfers = Vec::new();
        for (name, clusters) in files {
            let mut tries = 0;
            let fetched = loop {
                match self.bring_file(server, (job, &name), &clusters).await {
                    Ok(fetched) => break fetched,
                    Err(error) if tries >= COPIES_MAX => {
                        return Err(format!("{name} did not reach {to}: {error}"));
                    }
                    // An attempt of a killed process may have replaced it meanwhile.
                    Err(_) => self.forget_entry(&name),
                }
                tries += 1;
                sleep(COPY_INTERVAL).await;
            };
            transfers.push(fetched);
        }
        Ok(transfers)
    }

    async fn bring_file(
        &self,
        server: &Remote<FileServer>,
        (job, name): (JobId, &str),
        clusters: &[ClusterId],
    ) -> Result<FetchResult, String> {
        let file = self.entry(name, clusters).await?;
        let source = |cluster: &ClusterId| {
            let address = self.grid.servers.get(cluster)?.clone();
            Some(FileSource { address, cluster: cluster.clone() })
        };
        let from = clusters.iter().filter_map(source).collect();
        let order = FetchFile { job, file, from };
        let fetched = server.send(order).deadline(TRANSFER_TIMEOUT).await;
        let fetched = fetched.map_err(|error| error.to_string());
        fetched.and_then(|answer| answer.map_err(|error| error.to_string()))
    }

    /// Removes files from all clusters.
    pub async fn remove(&self, names: &[String]) {
        for server in self.servers.values() {
            for names in names.chunks(NAMES_MAX) {
                let order = RemoveFiles { names: names.to_vec() };
                let removed = match server.send(order).deadline(REQUEST_TIMEOUT).await {
                    Ok(removed) => removed.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                if let Err(error) = removed {
                    tracing::warn!(%error, "files of the run are left in a cluster");
                }
            }
        }
    }
}

/// Packs a directory of this host into a file.
///
/// # Errors
/// The directory cannot be read or packed, or the file cannot be written.
pub async fn pack_directory(directory: &Path, archive: &Path) -> Result<(), Failed> {
    let (from, to) = (directory.to_owned(), archive.to_owned());
    let packed = on_thread("packing", move || pack(&from, &to, u64::MAX)).await;
    packed.and_then(|packed| packed).map_err(|error| cannot("pack", directory, &error))
}

/// Unpacks a directory to its place, which has the whole directory or nothing, and removes the
/// archive.
///
/// # Errors
/// The archive is damaged, or the directory cannot be written.
pub async fn unpack_directory(archive: PathBuf, directory: &Path) -> Result<(), Failed> {
    let (part, target) = (part_of(directory), directory.to_owned());
    let unpacked = on_thread("unpacking", move || {
        // An earlier process may have been killed meanwhile.
        let _ = std::fs::remove_dir_all(&part);
        unpack(&archive, &part)?;
        std::fs::rename(&part, &target)?;
        std::fs::remove_file(&archive)
    });
    let unpacked = unpacked.await.and_then(|unpacked| unpacked);
    unpacked.map_err(|error| cannot("unpack", directory, &error))
}

/// The path of a file while it is copied.
pub fn part_of(path: &Path) -> PathBuf {
    // The path of a directory may end with a slash.
    let mut part = path.components().as_path().as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// The path of a workflow's file below a directory.
pub fn path_below(dir: &Path, name: &str) -> PathBuf {
    dir.join(name.trim_start_matches('/'))
}
