//! A laboratory of real, small Slurm clusters on this machine, for tests. One source of how that is done: the script
//! `tests/slurm/lab.sh`, which people use as well.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// This machine lacks something that a laboratory needs.
#[derive(Debug)]
pub struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

/// Slurm clusters that are there as long as this is. A process that is killed leaves none behind either: they notice its end.
pub struct SlurmLab {
    dir: tempfile::TempDir,
}

impl SlurmLab {
    /// Starts clusters of one machine each, with these names and so many processors. They are separate from each other and from
    /// whatever Slurm the machine has.
    ///
    /// # Errors
    /// [`Skipped`]: the caller prints it and passes.
    ///
    /// # Panics
    /// The machine has all that is needed, and yet they do not start.
    pub fn start(clusters: &[(&str, u32)]) -> Result<Self, Skipped> {
        let dir = tempfile::Builder::new().prefix("springtide-slurm-").tempdir().expect("a folder");
        // From here on its end is the laboratory's, also when the start fails half way.
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

    /// The `slurm.conf` of a cluster.
    pub fn conf(&self, cluster: &str) -> PathBuf {
        self.dir.path().join(cluster).join("slurm.conf")
    }

    /// A folder for files of nodes, of this cluster.
    pub fn files(&self, cluster: &str) -> PathBuf {
        let files = self.dir.path().join(cluster).join("files");
        std::fs::create_dir_all(&files).expect("a folder of the laboratory");
        files
    }

    /// Sends a signal (`STOP`, `CONT`) to a cluster's controller, which all commands ask. Stopped, it does not answer, but what was
    /// asked meanwhile may be done later.
    ///
    /// # Panics
    /// If there is no controller.
    pub fn signal_controller(&self, cluster: &str, signal: &str) {
        let file = self.dir.path().join(cluster).join("slurmctld.pid");
        let pid = std::fs::read_to_string(file).expect("its number");
        let done = Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status();
        assert!(done.expect("kill").success(), "no controller {pid}");
    }

    /// Runs a command of a cluster's user, who is not the provider, and returns what it wrote.
    ///
    /// # Panics
    /// If it fails.
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
        // It bounds its own time. Also while a test panics: nothing here may panic as well.
        if let Err(error) = self.script("stop").status() {
            eprintln!("the laboratory in {} is not ended: {error}", self.dir.path().display());
        }
    }
}
