//! A run as it is watched: its options, and the receiver of its notes.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springtide_actors::job::NoteKind;
use springtide_actors::scheduler::CrowdedHost;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::{many, number, plural, seconds, size};
use springtide_cli::outdir::{OutDir, write_file};
use springtide_cli::talk::Talk;
use springtide_runtime::event::Record;
use springtide_runtime::work::{Outcome, OutputStream, Registry, STATE_ARTIFACT};
use tokio::time::{Instant, sleep_until};

use super::signals::{Signals, word};
use crate::options::{GlobalArgs, RunArgs};

/// A job to run with its options.
pub struct RunRequest {
    /// The name of the job.
    pub job: &'static str,
    /// The job as encoded bytes.
    pub body: Bytes,
    /// Whether the job's number of nodes cannot change while it runs.
    pub is_fixed: bool,
    /// The registry of this program.
    pub registry: Arc<Registry>,
    /// The version of this program.
    pub version: &'static str,
    /// The options of the run.
    pub args: RunArgs,
    /// The options of every command.
    pub global: GlobalArgs,
    /// The checkpoint file, if the user named one.
    pub checkpoint: Option<PathBuf>,
}

/// The state of a run that is watched.
pub struct RunWatcher<'a> {
    /// The printer of notes and progress.
    pub talk: &'a mut Talk,
    /// The receiver of files and records.
    pub out: &'a mut OutDir,
    /// The signals that may end the run.
    pub signals: &'a mut Signals,
    /// The maximum time of the run.
    pub limit: Option<Duration>,
    /// The time at which the run is ended.
    pub deadline: Option<Instant>,
    /// Whether to print additional notes.
    pub verbose: bool,
    /// Warnings to print with the result.
    pub warnings: Vec<String>,
    /// The checkpoint file, if the user named one.
    pub checkpoint: Option<PathBuf>,
    /// The last preliminary outcome of the job.
    pub preliminary: Option<Outcome>,
    /// Whether standard output has the result as JSON, and nothing else.
    pub json: bool,
}

impl RunWatcher<'_> {
    /// Waits until the run is ended from outside: by a signal or the time limit.
    pub async fn stopped(&mut self) -> Failed {
        let deadline = self.deadline;
        let over = async {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            exit = self.signals.next() => Failed::new(exit, format!("ended by {}", word(exit))),
            () = over => {
                let limit = seconds(self.limit.unwrap_or_default().as_secs_f64());
                Failed::new(Exit::Timeout, format!("ended after {limit}: see --timeout"))
            }
        }
    }

    /// Warns of hosts with more compute threads than processors, together with the result.
    pub fn warn_crowded(&mut self, crowded: &[CrowdedHost]) {
        self.warnings.extend(crowded.iter().map(ToString::to_string));
    }

    /// Writes a file of the job. Returns its path the first time.
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<Option<PathBuf>, Failed> {
        let before = self.out.files().len();
        let path = self.out.file(name, bytes)?;
        Ok((self.out.files().len() > before).then_some(path))
    }

    fn is_checkpoint(&self, name: &str) -> bool {
        self.checkpoint.is_some() && name == STATE_ARTIFACT
    }

    /// Replaces the checkpoint file.
    fn keep_checkpoint(&mut self, bytes: &[u8]) {
        let Some(path) = &self.checkpoint else { return };
        if let Err(failed) = write_file(path, bytes) {
            self.unwritten(&failed);
            self.out.add(failed);
        }
    }

    /// Reports a failed write at once; the run fails because of it at its end.
    fn unwritten(&mut self, failed: &Failed) {
        if self.out.unwritten().as_ref() == Some(&failed.message) {
            self.talk.say(&failed.message);
        }
    }

    /// Adds records to the run's log.
    pub fn records(&mut self, records: &[Record]) {
        if let Err(failed) = self.out.records(records) {
            self.unwritten(&failed);
        }
    }

    /// Handles a note of the job.
    pub fn note(&mut self, note: NoteKind) {
        match note {
            NoteKind::Started { root, workers } => {
                let count: u32 = workers.values().sum();
                if self.verbose {
                    self.talk.say(&format!(
                        "{} joined; the root runs on {root}",
                        many(count.into(), "worker")
                    ));
                }
                self.talk.wait_for("running");
                self.talk.set_facts(&format!("{count} {}", plural(count.into(), "node")));
            }
            NoteKind::Progress { done, total, what } => self.talk.progress(done, total, &what),
            NoteKind::Iteration { index, seconds: s } => {
                if self.verbose {
                    self.talk.say(&format!("iteration {} took {}", index + 1, seconds(s)));
                }
            }
            NoteKind::Text { text } => self.talk.say(&text),
            NoteKind::Preliminary { outcome } => self.preliminary = Some(*outcome),
            NoteKind::Artifact { name, bytes } if self.is_checkpoint(&name) => {
                self.keep_checkpoint(&bytes);
            }
            NoteKind::Artifact { name, bytes } => match self.write(&name, &bytes) {
                Ok(Some(path)) if self.verbose => {
                    let line = format!("{} ({})", path.display(), size(bytes.len() as u64));
                    self.talk.say(&line);
                }
                Ok(_) => {}
                Err(failed) => self.unwritten(&failed),
            },
            NoteKind::Output { stream, bytes, .. } => {
                let written = match stream {
                    OutputStream::Stdout if !self.json => {
                        std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush())
                    }
                    _ => std::io::stderr().write_all(&bytes),
                };
                if let Err(error) = written {
                    self.out.add(Failed::failure(format!("the output cannot be written: {error}")));
                }
            }
            NoteKind::Events { records } => self.records(&records),
            NoteKind::Period { total, nodes, efficiency } => {
                let tasks = total.counters.tasks.executed;
                let (of_nodes, of_tasks) = (plural(nodes.into(), "node"), plural(tasks, "task"));
                let mut facts = format!("{nodes} {of_nodes}, {} {of_tasks}", number(tasks));
                if let Some(efficiency) = efficiency {
                    facts += &format!(", efficiency {efficiency:.2}");
                }
                self.talk.set_facts(&facts);
            }
            NoteKind::Message { .. } | NoteKind::Outcome { .. } => {}
        }
    }
}
