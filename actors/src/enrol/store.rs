//! The enrolment state in a record store: several processes read, change and write it, one at a
//! time.
//!
//! ```text
//! DIR/join.records/   the changes of the state
//! DIR/join.lock       locked by the process that reads or changes it
//! ```
//!
//! This module does not know the state's contents.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use springtide_runtime::private::give_to_owner;
use springtide_runtime::records::{
    Contents, Disk, Files, NewRecord, RecordError, RecordLog, RecordSchema, RecordSettings, read,
};

use super::state::{EnrolmentChange, EnrolmentState};
use crate::standby::Mirror;

/// Schema of a group of changes.
const SCHEMA: RecordSchema = RecordSchema { name: "join", version: 1 };
const SETTINGS: RecordSettings = RecordSettings {
    keep_segments: 0,
    ..RecordSettings::new("join", "every token and every revocation is forgotten")
};

/// Why the store is unusable.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentStoreError {
    /// Its lock is unusable.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// Path of the lock.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its records are unreadable or not writable.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// It has the format of an earlier version.
    #[error("{} has a format that this program cannot read: move it away to start without tokens, \
             names and revocations", path.display())]
    Former {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Directory of the store.
#[derive(Clone, Debug)]
pub struct EnrolmentStore {
    dir: PathBuf,
    /// Replicates each change to a second head.
    mirror: Option<Arc<Mirror>>,
}

impl EnrolmentStore {
    /// The store in this directory of a grid.
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), mirror: None }
    }

    /// With a mirror, which replicates each change of this process before the change returns.
    pub fn with_mirror(self, mirror: Option<Arc<Mirror>>) -> Self {
        Self { mirror, ..self }
    }

    fn records(&self) -> PathBuf {
        self.dir.join("join.records")
    }

    /// Waits until no other process changes the state. None if it was never written.
    fn lock(&self, exclusive: bool) -> Result<Option<fs::File>, EnrolmentStoreError> {
        let path = self.dir.join("join.lock");
        let io = |source| EnrolmentStoreError::Io { path: path.clone(), source };
        if !exclusive {
            return match fs::File::open(&path) {
                Ok(file) => file.lock_shared().map(|()| Some(file)).map_err(io),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(io(error)),
            };
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(io)?;
        give_to_owner(&path).map_err(io)?;
        file.lock().map_err(io)?;
        Ok(Some(file))
    }

    fn check_form(&self) -> Result<(), EnrolmentStoreError> {
        let path = self.dir.join("join.json");
        if path.exists() { Err(EnrolmentStoreError::Former { path }) } else { Ok(()) }
    }

    /// Reads the state, which is empty where none was written yet.
    ///
    /// # Errors
    /// [`EnrolmentStoreError`] with the file.
    pub fn read(&self) -> Result<EnrolmentState, EnrolmentStoreError> {
        self.check_form()?;
        let _lock = self.lock(false)?;
        let dir = self.records();
        let contents = read(&Disk, &dir, SETTINGS)?.unwrap_or_default();
        Ok(book_of(&contents, &dir)?)
    }

    /// Changes the state exclusively. When this returns, the change is on disk. Waits for other
    /// processes that have locked it, so it must run on a thread that may block.
    ///
    /// # Errors
    /// [`EnrolmentStoreError`]; then nothing has changed.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut EnrolmentState) -> T,
    ) -> Result<T, EnrolmentStoreError> {
        self.check_form()?;
        let _lock = self.lock(true)?;
        let changed = change_on(Arc::new(Disk), &self.records(), change)?;
        if let Some(mirror) = &self.mirror {
            let io = |source| EnrolmentStoreError::Io { path: self.records(), source };
            mirror.flush().map_err(io)?;
        }
        Ok(changed)
    }
}

fn book_of(contents: &Contents, dir: &Path) -> Result<EnrolmentState, RecordError> {
    let mut state = EnrolmentState::default();
    for record in contents.iter() {
        let changes = record.decode::<Vec<EnrolmentChange>>(SCHEMA);
        let changes = changes.map_err(|reason| record.unreadable(dir, SETTINGS, reason))?;
        changes.into_iter().for_each(|change| state.apply(change));
    }
    Ok(state)
}

fn change_on<T>(
    files: Arc<dyn Files>,
    dir: &Path,
    change: impl FnOnce(&mut EnrolmentState) -> T,
) -> Result<T, RecordError> {
    let (mut log, contents) = RecordLog::open(files, dir, SETTINGS)?;
    let before = book_of(&contents, dir)?;
    let mut state = before.clone();
    let changed = change(&mut state);
    let changes = state.changes_since(&before);
    if !changes.is_empty() {
        // A single record: a crash keeps all changes or none.
        log.append(SCHEMA, &changes)?;
    }
    if log.is_compaction_due() {
        let all = state.changes_since(&EnrolmentState::default());
        let entries: Result<Vec<NewRecord>, RecordError> =
            all.iter().map(|change| NewRecord::new(SCHEMA, &[change])).collect();
        if let Err(error) = entries.and_then(|entries| log.compact(&entries)) {
            // The change is stored; the next one compacts.
            tracing::warn!("{} is not compacted: {error}", dir.display());
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use springtide_runtime::net::join::NewToken;
    use springtide_runtime::records::memory::{MemoryFiles, StorageFault};

    use super::super::state::{TokenRole, TokenSpec};
    use super::*;

    fn create(file: &EnrolmentStore) -> String {
        let minted = NewToken::draw().unwrap();
        let (role, cluster) = (TokenRole::Node, "lab".into());
        let order = TokenSpec { role, cluster, ttl: 60, uses: 1 };
        file.change(|state| state.create(&order, &minted, 1).id).unwrap()
    }

    #[test]
    fn the_book_persists_and_is_private_to_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = EnrolmentStore::of(dir.path());
        assert_eq!(file.read().unwrap(), EnrolmentState::default());
        let id = create(&file);
        let again = EnrolmentStore::of(dir.path()).read().unwrap();
        assert_eq!(again.tokens()[0].id, id);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let records = file.records();
        assert_eq!((mode(&records), mode(&records.join("00000001.log"))), (0o700, 0o600));
    }

    #[test]
    fn files_written_by_root_belong_to_the_owner_of_the_directory() {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let dir = tempfile::tempdir().unwrap();
        if chown(dir.path(), Some(65_534), Some(65_534)).is_err() {
            return println!("skipped: this is not root");
        }
        let file = EnrolmentStore::of(dir.path());
        create(&file);
        let records = file.records();
        let log = records.join("00000001.log");
        for path in [records, log, file.dir.join("join.lock")] {
            assert_eq!(fs::metadata(&path).unwrap().uid(), 65_534, "{}", path.display());
        }
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let write = || (0..25).for_each(|_| drop(create(&EnrolmentStore::of(dir.path()))));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(write);
            }
        });
        assert_eq!(EnrolmentStore::of(dir.path()).read().unwrap().tokens().len(), 100);
    }

    fn minted(number: u8) -> NewToken {
        let text = format!("{number:08}");
        NewToken { id: text.clone(), secret: text.clone(), kept: text }
    }

    fn order() -> TokenSpec {
        TokenSpec { role: TokenRole::Node, cluster: "lab".into(), ttl: 60, uses: 1 }
    }

    fn state(files: &MemoryFiles) -> Result<EnrolmentState, RecordError> {
        let dir = Path::new("grid/join.records");
        book_of(&read(files, dir, SETTINGS)?.unwrap_or_default(), dir)
    }

    fn change(
        files: &MemoryFiles,
        change: impl FnOnce(&mut EnrolmentState),
    ) -> Result<(), RecordError> {
        change_on(Arc::new(files.clone()), Path::new("grid/join.records"), change)
    }

    #[test]
    fn every_flipped_bit_of_the_book_is_refused_and_left_alone() {
        let files = MemoryFiles::new(0);
        for number in 0..3 {
            change(&files, |state| drop(state.create(&order(), &minted(number), 1))).unwrap();
        }
        change(&files, |state| _ = state.revoke_token("00000001", 2)).unwrap();
        for path in files.paths() {
            for bit in 0..files.read(&path, 0).unwrap().len() * 8 {
                let damaged = files.copy();
                damaged.flip(&path, bit);
                let before = damaged.read(&path, 0).unwrap();
                let error = change(&damaged, |_| panic!("it is read")).unwrap_err().to_string();
                let names_damage = error.contains("00000001.log") && error.contains("is forgotten");
                assert!(names_damage, "bit {bit}: {error}");
                assert_eq!(damaged.read(&path, 0).unwrap(), before);
                state(&damaged).unwrap_err();
            }
        }
    }

    #[test]
    fn acknowledged_changes_survive_a_crash_at_any_step() {
        let live = |files: &MemoryFiles,
                    after: &mut dyn FnMut(&EnrolmentState)|
         -> Result<(), RecordError> {
            for number in 0..4_u8 {
                change(files, |state| drop(state.create(&order(), &minted(number), 1)))?;
                after(&state(files)?);
                change(files, |state| _ = state.revoke_token(&minted(number).id, 2))?;
                after(&state(files)?);
            }
            Ok(())
        };
        let files = MemoryFiles::new(0);
        live(&files, &mut |_| ()).unwrap();
        for step in 1..=files.steps() {
            for seed in 0..10 {
                let files = MemoryFiles::new(seed);
                files.fault_at(step, StorageFault::Crash);
                let mut states = vec![EnrolmentState::default()];
                live(&files, &mut |state| states.push(state.clone())).unwrap_err();
                files.restart();
                let found = state(&files).unwrap();
                // All acknowledged changes, and perhaps the one under way.
                let last = states.last().unwrap();
                let changes = found.changes_since(last);
                assert!(changes.len() <= 1, "step {step}, seed {seed}: {changes:?}");
                assert!(last.tokens().len() <= found.tokens().len());
            }
        }
    }

    #[test]
    fn the_changes_of_a_book_make_the_same_book() {
        let (mut before, mut after) = (EnrolmentState::default(), EnrolmentState::default());
        for number in 0..4 {
            before.create(&order(), &minted(number), 1);
        }
        for number in [2, 3, 5] {
            after.create(&order(), &minted(number), 1);
        }
        after.revoke_token("00000003", 4);
        let changes = after.changes_since(&before);
        assert_eq!(changes.len(), 4, "{changes:?}");
        changes.into_iter().for_each(|change| before.apply(change));
        assert_eq!(before, after);
    }

    #[test]
    fn a_book_of_an_earlier_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join.json");
        fs::write(&path, "{}").unwrap();
        let file = EnrolmentStore::of(dir.path());
        for error in [file.read().unwrap_err(), file.change(|_| ()).unwrap_err()] {
            assert!(error.to_string().contains("join.json"), "{error}");
        }
    }
}
