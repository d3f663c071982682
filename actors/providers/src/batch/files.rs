//! The files by which a stub's script and its site exchange orders.
//!
//! They are next to the node's config, on a file system that the hosts of the cluster share.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest exit status that is read, in bytes.
const EXIT_MAX: u64 = 16;

/// The files of one stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StubFiles {
    /// The start of their names: the path of the node's config.
    pub base: PathBuf,
    /// The identifier of the submission, which makes the names unique.
    pub token: String,
}

impl StubFiles {
    fn file(&self, kind: &str) -> PathBuf {
        let mut name = self.base.as_os_str().to_owned();
        name.push(format!(".{kind}-{}", self.token));
        name.into()
    }

    /// The `n`th further program of the script.
    pub fn next(&self, n: u32) -> PathBuf {
        let mut name = self.file("next").into_os_string();
        name.push(format!("-{n}"));
        name.into()
    }

    /// The `n`th further program, once the script has started it.
    pub fn taken(&self, n: u32) -> PathBuf {
        let mut name = self.file("ran").into_os_string();
        name.push(format!("-{n}"));
        name.into()
    }

    /// The file that exists while the script handles signals.
    pub fn up(&self) -> PathBuf {
        self.file("up")
    }

    /// The time since the script began, if it still runs.
    pub fn age(&self) -> Option<Duration> {
        let began = fs::metadata(self.up()).and_then(|file| file.modified()).ok()?;
        Some(began.elapsed().unwrap_or_default())
    }

    /// The file with the signal that the script sends to itself.
    pub fn order(&self) -> PathBuf {
        self.file("order")
    }

    /// The script, for batch systems that do not read it from standard input.
    pub fn script(&self) -> PathBuf {
        self.file("script")
    }

    /// The file with the exit status of the script's last program.
    fn exit(&self) -> PathBuf {
        self.file("exit")
    }

    /// The exit status of the script, if it has ended by itself.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        let mut text = String::new();
        File::open(self.exit()).ok()?.take(EXIT_MAX).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }

    /// Removes the files of a stub that has ended.
    pub fn remove(&self, programs: u32) {
        // A missing file is not an error.
        for file in [self.up(), self.order(), self.script(), self.exit()] {
            let _ = fs::remove_file(file);
        }
        for n in 1..=programs {
            let _ = fs::remove_file(self.next(n));
            let _ = fs::remove_file(self.taken(n));
        }
    }
}

/// The exit status of a shell script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExitStatus(u8);

impl std::str::FromStr for ExitStatus {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.trim().parse().map(Self)
    }
}

impl ExitStatus {
    /// Whether the last program succeeded.
    pub fn is_success(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A shell adds 128 to the number of a signal.
        match self.0 {
            129..=192 => write!(f, "signal: {}", self.0 - 128),
            status => write!(f, "exit status: {status}"),
        }
    }
}

/// Whether a file exists. Opens it: a network file system may answer from its cache whether a file
/// exists, but not whether it can be opened.
pub(super) fn exists(file: &Path) -> bool {
    File::open(file).is_ok()
}

/// Writes a file that other processes see whole or not at all. Other users cannot read it, for it
/// may hold a node's environment.
pub(super) fn write(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&new)?.write_all(text)?;
    fs::rename(&new, file)
}

/// The length of a log in bytes; 0 if it does not exist.
pub(super) fn length(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |log| log.len())
}
