//! A laboratory of real, small Slurm clusters on this machine, for tests.
//!
//! The script `tests/slurm/lab.sh` starts and stops them; people use it as well.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// This machine lacks a requirement of a laboratory.
#[derive(Debug)]
pub struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

/// Slurm clusters that exist as long as this value. They notice the end of a killed process, and
/// end too.
pub struct SlurmLab {
    dir: tempfile::TempDir,
}

impl SlurmLab {
    /// Starts clusters of one machine each, with these names and numbers of processors.
    ///
    /// They are separate from each other and from any Slurm of the machine.
    ///
    /// # Errors
    /// [`Skipped`]: the caller prints it and passes.
    ///
    /// # Panics
    /// Panics if the machine has all requirements and the clusters do not start.
    pub fn start(clusters: &[(&str, u32)]) -> Result<Self, Skipped> {
        let dir = tempfile::Builder::new().prefix("springtide-slurm-").tempdir().expect("a folder");
        // From here on the laboratory is stopped at its end, also if the start fails half way.
        let lab = Self { dir };
        let clusters: Vec<String> =
            clusters.iter().map(|(name, n)| format!("{name}={n}")).collect();
        let mut start = lab.script("start");
        start.args(&clusters).env("LAB_PARENT", std::process::id().to_string());
        let done = start.output().expect("bash");
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        match done.status.code() {
            Some(0) => Ok(lab),
            Some(3) => Err(Skipped(said)),
            _ => panic!("the laboratory does not start: {said}"),
        }
    }

    fn script(&self, action: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm/lab.sh");
        let mut command = Command::new("bash");
        command.arg(script).arg(action).arg(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// The path of a cluster's `slurm.conf`.
    pub fn conf(&self, cluster: &str) -> PathBuf {
        self.dir.path().join(cluster).join("slurm.conf")
    }

    /// A folder for files of this cluster's nodes.
    pub fn files(&self, cluster: &str) -> PathBuf {
        let files = self.dir.path().join(cluster).join("files");
        std::fs::create_dir_all(&files).expect("a folder of the laboratory");
        files
    }

    /// Sends a signal (`STOP`, `CONT`) to a cluster's controller, which answers all commands.
    ///
    /// A stopped controller does not answer, but may execute requests of that time later.
    ///
    /// # Panics
    /// Panics if there is no controller.
    pub fn signal_controller(&self, cluster: &str, signal: &str) {
        let file = self.dir.path().join(cluster).join("slurmctld.pid");
        let pid = std::fs::read_to_string(file).expect("its number");
        let done = Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status();
        assert!(done.expect("kill").success(), "no controller {pid}");
    }

    /// Runs a command of a cluster's user, as opposed to the provider, and returns its output.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn user(&self, cluster: &str, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.conf(cluster)).stdin(Stdio::null());
        command.current_dir(self.files(cluster));
        let Output { status, stdout, stderr } = command.output().expect(program);
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{program} {args:?}: {status}: {said}");
        String::from_utf8_lossy(&stdout).trim().to_owned()
    }
}

impl Drop for SlurmLab {
    fn drop(&mut self) {
        // The script limits its own time. It also runs while a test panics, so it must not panic.
        if let Err(error) = self.script("stop").status() {
            eprintln!(
                "the laboratory in {} could not be stopped: {error}",
                self.dir.path().display()
            );
        }
    }
}
