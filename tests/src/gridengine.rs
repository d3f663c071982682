//! A laboratory of a real, small Grid Engine cell on this machine, for tests.
//!
//! The script `tests/gridengine/lab.sh` starts and stops it; people use it as well.

use std::path::PathBuf;
use std::process::Command;

use crate::lab::{Laboratory, Skipped, output_of};

/// A Grid Engine cell that exists as long as this value. It notices the end of a killed process,
/// and ends too.
pub struct GridEngineLab(Laboratory);

impl GridEngineLab {
    /// Starts a cell of one machine with this number of slots.
    ///
    /// # Errors
    /// `Skipped`: the caller prints it and passes.
    ///
    /// # Panics
    /// Panics if the machine has all requirements and the cell does not start.
    pub fn start(slots: u32) -> Result<Self, Skipped> {
        Laboratory::start("gridengine/lab.sh", &[slots.to_string()]).map(Self)
    }

    /// The folder of the commands that run in the cell.
    pub fn commands(&self) -> PathBuf {
        self.0.path("bin")
    }

    /// A folder for files of nodes.
    pub fn files(&self) -> PathBuf {
        self.0.files("cell")
    }

    /// Sends a signal (`STOP`, `CONT`) to the cell's master, which answers all commands.
    ///
    /// # Panics
    /// Panics if there is no master.
    pub fn signal_master(&self, signal: &str) {
        let file = self.0.path("spool").join("qmaster/qmaster.pid");
        let pid = std::fs::read_to_string(file).expect("its number");
        // The number counts in the namespace of the cell only.
        let kill = format!("kill -{signal} {}", pid.trim());
        output_of(self.in_cell("sh").args(["-c", &kill]));
    }

    /// A command that runs in the namespaces of the cell.
    pub fn in_cell(&self, program: &str) -> Command {
        let mut command = Command::new(self.commands().join("in-cell"));
        command.arg(program);
        command
    }

    /// Runs a command of the cell's user, as opposed to the provider, and returns its output.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn user(&self, program: &str, args: &[&str]) -> String {
        output_of(Command::new(self.commands().join(program)).args(args))
    }
}
