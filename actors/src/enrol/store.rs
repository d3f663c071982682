//! The book as a file: read, changed and written by several processes, one at a time.
//!
//! `join.json`, readable by its owner alone, is replaced whole; `join.lock` is locked by whoever changes it. Must not know what the book
//! says.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use springtide_runtime::net::tls::{TlsError, give_to_owner, write_secret};

use super::book::Book;

/// Why the book cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The system refuses.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] TlsError),
    /// It is damaged, or of a newer version.
    #[error(
        "{} is no book of tokens that this version reads ({reason}): mend it, or move it away, whereby every token and \
         revocation is forgotten", path.display()
    )]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where the book is.
#[derive(Clone, Debug)]
pub struct BookFile {
    path: PathBuf,
}

impl BookFile {
    /// That of the grid with this directory.
    pub fn of(dir: &Path) -> Self {
        Self { path: dir.join("join.json") }
    }

    /// Reads it; an empty one, where none was written yet.
    ///
    /// # Errors
    /// [`BookError`].
    pub fn read(&self) -> Result<Book, BookError> {
        let path = || self.path.clone();
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Book::default()),
            Err(source) => return Err(BookError::Io { path: path(), source }),
        };
        let wrong = |reason: String| BookError::Malformed { path: path(), reason };
        let book: Book =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if !book.is_known() {
            return Err(wrong("it is of a newer version".to_owned()));
        }
        Ok(book)
    }

    /// Changes it while nobody else does. When this returns, the change is on disk. Waits for whoever has it open, so not to be
    /// called where others must not wait.
    ///
    /// # Errors
    /// [`BookError`]; nothing has changed then.
    pub fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> Result<T, BookError> {
        let lock = self.path.with_extension("lock");
        let io = |source| BookError::Io { path: lock.clone(), source };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&lock);
        let file = file.map_err(io)?;
        give_to_owner(&lock).map_err(io)?;
        file.lock().map_err(io)?;
        let mut book = self.read()?;
        let before = book.clone();
        let told = change(&mut book);
        if book != before {
            let text =
                serde_json::to_string_pretty(&book).map_err(|error| io(io::Error::other(error)))?;
            write_secret(&self.path, &text)?;
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::net::join::Minted;

    use super::super::book::{TokenOrder, TokenRole};
    use super::*;

    fn create(file: &BookFile) -> String {
        let minted = Minted::draw().unwrap();
        let (role, cluster) = (TokenRole::Node, "lab".into());
        let order = TokenOrder { role, cluster, ttl: 60, uses: 1 };
        file.change(|book| book.create(&order, &minted, 1).id).unwrap()
    }

    #[test]
    fn the_book_survives_and_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = BookFile::of(dir.path());
        assert_eq!(file.read().unwrap(), Book::default());
        let id = create(&file);
        let again = BookFile::of(dir.path()).read().unwrap();
        assert_eq!(again.tokens()[0].id, id);
        let mode = fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_root_writes_is_its_folders_owners() {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let dir = tempfile::tempdir().unwrap();
        if chown(dir.path(), Some(65_534), Some(65_534)).is_err() {
            return println!("skipped: this is not root");
        }
        let file = BookFile::of(dir.path());
        create(&file);
        for path in [file.path.clone(), file.path.with_extension("lock")] {
            assert_eq!(fs::metadata(&path).unwrap().uid(), 65_534, "{}", path.display());
        }
    }

    #[test]
    fn nobody_overwrites_anothers_change() {
        let dir = tempfile::tempdir().unwrap();
        let write = || (0..25).for_each(|_| drop(create(&BookFile::of(dir.path()))));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(write);
            }
        });
        assert_eq!(BookFile::of(dir.path()).read().unwrap().tokens().len(), 100);
    }

    #[test]
    fn a_damaged_book_is_told_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = BookFile::of(dir.path());
        for bad in ["{", "[]", r#"{"schema":2,"tokens":[],"names":{}}"#] {
            fs::write(&file.path, bad).unwrap();
            let error = file.change(|_| ()).unwrap_err().to_string();
            assert!(error.contains("join.json") && error.contains("mend it"), "{error}");
            assert_eq!(fs::read_to_string(&file.path).unwrap(), bad);
        }
    }
}
