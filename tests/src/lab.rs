//! Laboratories of batch systems: scripts of `tests/` that start and stop daemons of their own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// This machine lacks a requirement of a laboratory.
#[derive(Debug)]
pub struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

/// A laboratory that exists as long as this value. It notices the end of a killed process, and ends
/// too.
pub(crate) struct Laboratory {
    script: &'static str,
    dir: tempfile::TempDir,
}

impl Laboratory {
    /// Starts a laboratory by its script, with these arguments.
    ///
    /// # Errors
    /// [`Skipped`]: the caller prints it and passes.
    ///
    /// # Panics
    /// Panics if the machine has all requirements and the laboratory does not start.
    pub fn start(script: &'static str, args: &[String]) -> Result<Self, Skipped> {
        let dir = tempfile::Builder::new().prefix("springtide-lab-").tempdir().expect("a folder");
        // From here on the laboratory is stopped at its end, also if the start fails half way.
        let lab = Self { script, dir };
        let mut start = lab.command("start");
        start.args(args).env("LAB_PARENT", std::process::id().to_string());
        let done = start.output().expect("bash");
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        match done.status.code() {
            Some(0) => Ok(lab),
            Some(3) => Err(Skipped(said)),
            _ => panic!("the laboratory does not start: {said}"),
        }
    }

    fn command(&self, action: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.script);
        let mut command = Command::new("bash");
        command.arg(script).arg(action).arg(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// A file or folder of the laboratory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A folder of the laboratory for files of nodes.
    pub fn files(&self, parent: &str) -> PathBuf {
        let files = self.path(parent).join("files");
        std::fs::create_dir_all(&files).expect("a folder of the laboratory");
        files
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        // The script limits its own time. It also runs while a test panics, so it must not panic.
        if let Err(error) = self.command("stop").status() {
            let dir = self.dir.path().display();
            eprintln!("the laboratory in {dir} could not be stopped: {error}");
        }
    }
}

/// Runs a command of a cluster's user, as opposed to the provider, and returns its output.
///
/// # Panics
/// Panics if the command fails.
pub(crate) fn output_of(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output().expect("a command of the laboratory");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {}: {said}", done.status);
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}
