//! Files in memory with a model of crashes, for tests and simulations of record stores.
//!
//! After a crash a file holds its synced content and an arbitrary prefix of later writes, possibly
//! followed by zeros up to its new length. Of the names in a directory, each change since its last
//! sync may be lost, in any order.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Files, OpenFile};
use crate::random::SplitMix;

/// A fault that is injected at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageFault {
    /// The operation fails. A write may leave a part of its bytes.
    Error,
    /// The process and its host stop during the operation.
    Crash,
}

/// A file system in memory that models crashes.
#[derive(Clone, Debug)]
pub struct MemoryFiles(Arc<Mutex<DiskState>>);

#[derive(Clone, Debug)]
struct DiskState {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// Changes of names since the last sync of their directory.
    pending: Vec<DirectoryChange>,
    /// Number of operations that change state.
    steps: u64,
    fault: Option<(u64, StorageFault)>,
    stopped: bool,
    random: SplitMix,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    current: Vec<u8>,
    durable: Vec<u8>,
}

/// A change of names in one directory.
#[derive(Clone, Debug)]
struct DirectoryChange {
    removed: Option<PathBuf>,
    added: Option<(PathBuf, usize)>,
}

impl DirectoryChange {
    fn is_in(&self, dir: &Path) -> bool {
        let path = self.added.as_ref().map(|(path, _)| path).or(self.removed.as_ref());
        path.and_then(|path| path.parent()) == Some(dir)
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        if let Some(path) = &self.removed {
            names.remove(path);
        }
        if let Some((path, inode)) = &self.added {
            names.insert(path.clone(), *inode);
        }
    }
}

impl MemoryFiles {
    /// Creates an empty file system. `seed` determines the state after a crash.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            pending: Vec::new(),
            steps: 0,
            fault: None,
            stopped: false,
            random: SplitMix(seed),
        })))
    }

    /// Number of operations that have changed state.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Injects a fault into the operation with this number, counted from 1 since the file system
    /// was created.
    pub fn fault_at(&self, step: u64, fault: StorageFault) {
        self.state().fault = Some((step, fault));
    }

    /// Stops the host immediately.
    pub fn crash(&self) {
        self.state().stopped = true;
    }

    /// Whether the host has stopped.
    pub fn has_crashed(&self) -> bool {
        self.state().stopped
    }

    /// Restarts the host. Changes that were not durable may be lost.
    pub fn restart(&self) {
        let mut state = self.state();
        (state.stopped, state.fault) = (false, None);
        for change in std::mem::take(&mut state.pending) {
            if state.random.below(2) == 0 {
                change.apply(&mut state.durable);
            }
        }
        state.names = state.durable.clone();
        for index in 0..state.inodes.len() {
            let Inode { current, durable } = state.inodes[index].clone();
            let left = match current.strip_prefix(&*durable) {
                Some(more) => {
                    let written = state.random.below(more.len() + 1);
                    let mut left = [&durable, &more[..written]].concat();
                    if state.random.below(3) == 0 {
                        left.resize(current.len(), 0);
                    }
                    left
                }
                None if state.random.below(2) == 0 => current,
                None => durable,
            };
            state.inodes[index] = Inode { current: left.clone(), durable: left };
        }
    }

    /// Paths of all files, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    /// Flips one bit of a file.
    ///
    /// # Panics
    /// The file or the bit does not exist.
    pub fn flip(&self, path: &Path, bit: usize) {
        let mut state = self.state();
        let inode = state.names[path];
        let Inode { current, durable } = &mut state.inodes[inode];
        current[bit / 8] ^= 1 << (bit % 8);
        durable.clone_from(current);
    }

    /// Returns an independent copy.
    pub fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.state().clone())))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskState {
    fn check(&self) -> io::Result<()> {
        if self.stopped { Err(io::Error::other("the machine has stopped")) } else { Ok(()) }
    }

    /// Counts an operation. Returns the fault that is injected into it.
    fn step(&mut self) -> io::Result<Option<StorageFault>> {
        self.check()?;
        self.steps += 1;
        let fault = self.fault.filter(|(at, _)| *at == self.steps).map(|(_, fault)| fault);
        self.stopped = fault == Some(StorageFault::Crash);
        Ok(fault)
    }

    /// Executes an operation that is atomic: with a fault it happens as a whole or not at all.
    fn run_atomically(&mut self, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        let fault = self.step()?;
        let happens = match fault {
            None => true,
            Some(StorageFault::Error) => false,
            Some(StorageFault::Crash) => self.random.below(2) == 0,
        };
        if happens {
            change(self);
        }
        fault.map_or(Ok(()), |_| Err(io::Error::other("an injected fault")))
    }

    fn rename(&mut self, change: DirectoryChange) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.names.get(path).copied().ok_or_else(missing)
    }
}

impl Files for MemoryFiles {
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        self.state().check()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        state.check()?;
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect())
    }

    fn read(&self, path: &Path, offset: u64) -> io::Result<Vec<u8>> {
        let state = self.state();
        state.check()?;
        let bytes = &state.inodes[state.find(path)?].current;
        Ok(bytes.get(offset as usize..).unwrap_or_default().to_vec())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.state();
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        let added = Some((path.to_owned(), inode));
        state.run_atomically(|state| state.rename(DirectoryChange { removed: None, added }))?;
        Ok(Box::new(MemoryFile { files: self.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let state = self.state();
        state.check()?;
        let inode = state.find(path)?;
        Ok(Box::new(MemoryFile { files: self.clone(), inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let inode = state.find(from)?;
        let change =
            DirectoryChange { removed: Some(from.to_owned()), added: Some((to.to_owned(), inode)) };
        state.run_atomically(|state| state.rename(change))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.find(path)?;
        let change = DirectoryChange { removed: Some(path.to_owned()), added: None };
        state.run_atomically(|state| state.rename(change))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.state().run_atomically(|state| {
            let (synced, pending) =
                std::mem::take(&mut state.pending).into_iter().partition(|one| one.is_in(dir));
            state.pending = pending;
            let synced: Vec<DirectoryChange> = synced;
            synced.iter().for_each(|change| change.apply(&mut state.durable));
        })
    }
}

#[derive(Debug)]
struct MemoryFile {
    files: MemoryFiles,
    inode: usize,
}

impl OpenFile for MemoryFile {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.files.state();
        let fault = state.step()?;
        let written = match fault {
            None => bytes.len(),
            Some(_) => state.random.below(bytes.len() + 1),
        };
        let (offset, current) = (offset as usize, &mut state.inodes[self.inode].current);
        current.resize(current.len().max(offset + written), 0);
        current[offset..offset + written].copy_from_slice(&bytes[..written]);
        fault.map_or(Ok(()), |_| Err(io::Error::other("an injected fault")))
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let inode = self.inode;
        self.files
            .state()
            .run_atomically(|state| state.inodes[inode].current.truncate(length as usize))
    }

    fn sync(&mut self) -> io::Result<()> {
        let inode = self.inode;
        self.files.state().run_atomically(|state| {
            let Inode { current, durable } = &mut state.inodes[inode];
            durable.clone_from(current);
        })
    }
}
