//! The program: its jobs, and the path from its command line to its exit code.
//!
//! This module does not know the commands' work.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::talk;
use springtide_runtime::config::nearest;
use springtide_runtime::remote::Hub;
use springtide_runtime::work::{Job, Registry, encode_job};
use springtide_simulator::apps::AppModel;

use crate::command_job::CommandJob;
use crate::commands;
use springtide_operations::program::{JobDefinition, Program};
use springtide_operations::runner_job::RunnerJob;
use springtide_workflow_engine::run::WorkflowPilot;

/// A program with its jobs. Its `main` calls [`App::main`].
pub struct App {
    pub(crate) program: Program,
}

impl App {
    /// Creates a program without jobs. Nodes of a program and version accept only each other.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        let mut registry = Registry::new();
        registry.version(version);
        // Nodes of live scenarios run these jobs.
        AppModel::register(&mut registry);
        // Tasks of workflows are jobs.
        registry.job::<WorkflowPilot>();
        Self { program: Program { name, version, registry, jobs: Vec::new(), actors: None } }
    }

    /// Adds a job. Its fields are the options of `run NAME`.
    ///
    /// # Panics
    /// If another job, task or object has one of its names.
    pub fn job<J: Job + Args>(mut self) -> Self {
        self.program.registry.job::<J>();
        self.program.jobs.push(JobDefinition {
            name: J::NAME,
            about: J::ABOUT,
            augment: J::augment_args,
            encode: |matches| {
                let job = J::from_arg_matches(matches)
                    .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
                Ok(encode_job(job)?.into())
            },
            is_fixed: false,
            is_command: false,
        });
        self
    }

    /// Adds a job that is also a command: `NAME` does the same as `run NAME`. Its `--json` prints
    /// the job's own result, with the data of the run under `run`.
    ///
    /// # Panics
    /// As [`App::job`].
    pub fn command<J: Job + Args>(self) -> Self {
        let mut app = self.job::<J>();
        if let Some(job) = app.program.jobs.last_mut() {
            job.is_command = true;
        }
        app
    }

    /// Adds the job `command`, which runs any program of the nodes' hosts: see `CommandJob`. It
    /// also adds the job `runner`, for tasks of programs in other languages. All
    /// clients that may submit jobs can then run programs as the user of the nodes.
    ///
    /// # Panics
    /// As [`App::job`].
    pub fn commands(self) -> Self {
        let mut app = self.job::<CommandJob>();
        if let Some(job) = app.program.jobs.last_mut() {
            job.is_fixed = true;
            job.encode = CommandJob::encode_matches;
        }
        app.program.registry.job::<RunnerJob>();
        app
    }

    /// Starts own actors on each node, on an arbiter apart from the runtime's. `start` runs there
    /// and publishes the actors at the hub, where tasks and other nodes find them.
    pub fn actors(mut self, start: impl Fn(&Arc<Hub>) + Send + Sync + 'static) -> Self {
        self.program.actors = Some(Arc::new(start));
        self
    }

    /// Adds the job's name to `job submit [OPTIONS] -- PROGRAM`, which is short for
    /// `job submit command [OPTIONS] -- PROGRAM`. Options of a named job follow its name. So the
    /// first word after `submit` is an option only in the short form, or with a file of jobs, which
    /// has no `--`.
    pub fn complete_line(mut line: Vec<OsString>) -> Vec<OsString> {
        let is = |at: usize, word: &str| line.get(at).is_some_and(|known| known == word);
        let end = line.iter().position(|word| word == "--").unwrap_or(0);
        let job = line[..end].iter().position(|word| word == "job");
        let Some(at) = job.map(|job| job + 1).filter(|at| is(*at, "submit") || is(*at, "plan"))
        else {
            return line;
        };
        let first = line.get(at + 1).map(|word| word.to_string_lossy().starts_with('-'));
        if first == Some(true) {
            line.insert(at + 1, "command".into());
        }
        line
    }

    /// Executes the command line of this process.
    pub fn main(self) -> ExitCode {
        self.main_with(std::env::args_os())
    }

    /// Executes a command line. Its first word is the program's name.
    pub fn main_with(
        self,
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> ExitCode {
        let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
        let line = Self::complete_line(line);
        let matches = match self.command_line().try_get_matches_from(&line) {
            Ok(matches) => matches,
            Err(mut error) => {
                let found = self.misplaced(&line, &error);
                if let Some(message) = found.or_else(|| self.unknown_job(&line, &error)) {
                    talk::error(self.program.name, &message);
                    return Exit::Usage.into();
                }
                self.suggest(&mut error);
                // Help and version are output and no failure.
                let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
                let _ = error.print();
                return exit.into();
            }
        };
        let name = self.program.name;
        match commands::execute(self.program, &matches) {
            Ok(()) => Exit::Ok.into(),
            Err(failed) => {
                talk::error(name, &failed.message);
                failed.exit.into()
            }
        }
    }

    /// Explains a word in the place of a job, such as `fbi` for `fib`.
    fn unknown_job(&self, line: &[OsString], error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
            return None;
        };
        let mut before = line.iter().take_while(|argument| *argument != word.as_str());
        before.find(|word| ["run", "submit", "plan"].iter().any(|of_job| word == of_job))?;
        let names = || self.program.jobs.iter().map(|job| job.name);
        Some(match nearest(word, names()) {
            Some(meant) => format!("no job {word}; did you mean {meant}?"),
            None => format!("no job {word}; there are {}", names().collect::<Vec<_>>().join(", ")),
        })
    }

    /// Adds a suggestion for a short word with two letters swapped, such as `pu` for `up`. clap's
    /// measure of similarity finds none.
    fn suggest(&self, error: &mut clap::Error) {
        let known = error.get(ContextKind::SuggestedSubcommand).is_some();
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
            return;
        };
        if known {
            return;
        }
        let command = self.command_line();
        if let Some(meant) = nearest(word, command.get_subcommands().map(Command::get_name)) {
            let meant = ContextValue::Strings(vec![meant.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, meant);
        }
    }

    /// Explains options before the job, as in `job submit --config G queens`: those belong to a
    /// file of jobs. clap says only that the two exclude each other.
    fn misplaced(&self, line: &[OsString], error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
            return None;
        };
        let words: Vec<&str> = line.iter().filter_map(|word| word.to_str()).collect();
        let at = words
            .windows(2)
            .position(|two| two[0] == "job" && matches!(two[1], "submit" | "plan"))?;
        let between = words.get(at + 2..)?.iter().take_while(|argument| *argument != word);
        if !between.clone().any(|argument| argument.starts_with('-')) {
            return None;
        }
        let names = || self.program.jobs.iter().map(|job| job.name);
        if names().all(|name| name != word) {
            return None;
        }
        let options: Vec<&str> = between.copied().collect();
        let (name, what, options) = (self.program.name, words[at + 1], options.join(" "));
        Some(format!("options come after the job: {name} job {what} {word} {options}"))
    }

    /// The definition of the command line, for documentation and for checks that execute nothing.
    pub fn command_line(&self) -> Command {
        commands::command_line(&self.program)
    }
}
