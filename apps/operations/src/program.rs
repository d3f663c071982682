//! What a program consists of: its name and version, its jobs, and its actors.

use std::path::PathBuf;

use bytes::Bytes;
use clap::{ArgMatches, Command};
use springtide_actors::node::UserActors;
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::config::nearest;
use springtide_runtime::work::Registry;

/// A program with its jobs.
pub struct Program {
    /// The name of the program.
    pub name: &'static str,
    /// The version of the program.
    pub version: &'static str,
    /// The jobs, tasks and objects that its nodes execute.
    pub registry: Registry,
    /// The jobs of the command line.
    pub jobs: Vec<JobDefinition>,
    /// The actors that it starts on each node.
    pub actors: Option<UserActors>,
}

/// What a grid knows of the program that starts it.
#[derive(Clone, Copy, Debug)]
pub struct ProgramVersion {
    /// The version of the program.
    pub version: &'static str,
    /// Fingerprint of its registry.
    pub fingerprint: u64,
}

/// A job as the command line knows it.
pub struct JobDefinition {
    /// The registered name of the job.
    pub name: &'static str,
    /// Its description in one line.
    pub about: &'static str,
    /// Adds its options to a command.
    pub augment: fn(Command) -> Command,
    /// Encodes it from its options.
    pub encode: fn(&ArgMatches) -> Result<EncodedJob, Failed>,
    /// Whether its number of nodes cannot change while it runs.
    pub is_fixed: bool,
    /// Whether the job is also a command of the program, besides one of `run`.
    pub is_command: bool,
}

/// An encoded job and the files that it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedJob {
    /// The bytes of the job.
    pub body: Bytes,
    /// Files of this host that must be in a cluster's directory before the job is submitted.
    pub uploads: Vec<Upload>,
}

/// A file of this host that a job reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upload {
    /// The path of the file.
    pub path: PathBuf,
    /// Its name in the clusters' directories of files.
    pub name: String,
}

impl From<Bytes> for EncodedJob {
    fn from(body: Bytes) -> Self {
        Self { body, uploads: Vec::new() }
    }
}

impl Program {
    /// The version of the program and the fingerprint of its registry.
    pub fn about(&self) -> ProgramVersion {
        ProgramVersion { version: self.version, fingerprint: self.registry.fingerprint() }
    }

    /// The job of a name.
    ///
    /// # Errors
    /// No job has this name.
    pub fn job(&self, name: &str) -> Result<&JobDefinition, Failed> {
        self.jobs
            .iter()
            .find(|job| job.name == name)
            .ok_or_else(|| Failed::usage(format!("no job is named {name}: see `run --help`")))
    }

    /// Encodes a job from its name and options.
    ///
    /// # Errors
    /// [`Exit::NotPlaced`] if the name is wrong, with the names; the options are wrong.
    pub fn encode(
        &self,
        name: &str,
        options: &[String],
    ) -> Result<(&JobDefinition, EncodedJob), Failed> {
        let Some(job) = self.jobs.iter().find(|job| job.name == name) else {
            let names = || self.jobs.iter().map(|job| job.name);
            let hint = match nearest(name, names()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(Failed::new(Exit::NotPlaced, format!("no job is named {name}: {hint}")));
        };
        let command = (job.augment)(Command::new(job.name)).no_binary_name(true);
        let matches = command.try_get_matches_from(options).map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            Failed::usage(format!("{name}: {first}; see `run {name} --help`"))
        })?;
        Ok((job, (job.encode)(&matches)?))
    }
}
