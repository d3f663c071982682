//! A laboratory of real, small Slurm clusters on this machine, for tests.
//!
//! The script `tests/slurm/lab.sh` starts and stops them; people use it as well.

use std::path::PathBuf;
use std::process::Command;

use crate::lab::{Laboratory, Skipped, output_of};

/// Slurm clusters that exist as long as this value. They notice the end of a killed process, and
/// end too.
pub struct SlurmLab(Laboratory);

impl SlurmLab {
    /// Starts clusters of one machine each, with these names and numbers of processors.
    ///
    /// They are separate from each other and from any Slurm of the machine.
    ///
    /// # Errors
    /// `Skipped`: the caller prints it and passes.
    ///
    /// # Panics
    /// Panics if the machine has all requirements and the clusters do not start.
    pub fn start(clusters: &[(&str, u32)]) -> Result<Self, Skipped> {
        let clusters: Vec<String> =
            clusters.iter().map(|(name, n)| format!("{name}={n}")).collect();
        Laboratory::start("slurm/lab.sh", &clusters).map(Self)
    }

    /// The path of a cluster's `slurm.conf`.
    pub fn conf(&self, cluster: &str) -> PathBuf {
        self.0.path(cluster).join("slurm.conf")
    }

    /// A folder for files of this cluster's nodes.
    pub fn files(&self, cluster: &str) -> PathBuf {
        self.0.files(cluster)
    }

    /// Sends a signal (`STOP`, `CONT`) to a cluster's controller, which answers all commands.
    ///
    /// A stopped controller does not answer, but may execute requests of that time later.
    ///
    /// # Panics
    /// Panics if there is no controller.
    pub fn signal_controller(&self, cluster: &str, signal: &str) {
        let file = self.0.path(cluster).join("slurmctld.pid");
        let pid = std::fs::read_to_string(file).expect("its number");
        output_of(Command::new("kill").args([&format!("-{signal}"), pid.trim()]));
    }

    /// Runs a command of a cluster's user, as opposed to the provider, and returns its output.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn user(&self, cluster: &str, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.conf(cluster));
        output_of(command.current_dir(self.files(cluster)))
    }
}
