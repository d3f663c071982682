//! What the tasks of a workflow are as jobs, and what its files are called in clusters' directories.
//!
//! Must not know when or where anything runs.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use bytes::Bytes;
use springtide_actors::policy::provisioning::from_seconds;
use springtide_cli::exit::Failed;
use springtide_runtime::work::encode_job;
use springtide_workflow::{Command, Task};

use super::flow::Step;
use super::task::{FileAs, TaskCommand, WorkflowTask};
use super::{Programs, RunArgs};
use crate::workflow::{Read, shown};

/// Names of files in clusters' directories end with so much of their own.
const TAIL: usize = 80;

/// A job that is a task.
#[derive(Clone, Debug)]
pub struct TaskJob {
    /// The name under which the job is registered.
    pub name: &'static str,
    /// The job, encoded for its nodes.
    pub body: Bytes,
    /// Files that it needs, as they are called in clusters' directories.
    pub files: Vec<String>,
    /// Whether it writes any.
    pub writes: bool,
}

/// A workflow's jobs and files.
#[derive(Clone, Debug)]
pub struct Bag {
    /// By task, for [`Flow`](super::flow::Flow).
    pub steps: Vec<Step>,
    /// The job of each task, by the task's index.
    pub jobs: Vec<TaskJob>,
    /// By task: what a planner takes it to last, in seconds, and its processors.
    pub planned: Vec<(f64, u32)>,
    /// Edges with bytes: as the workflow has them, scaled.
    pub edges: Vec<(usize, usize, u64)>,
    /// Files of the workflow, by their index, as they are called in clusters' directories.
    pub kept: Vec<String>,
    /// Files that tasks read and none writes.
    pub given: Vec<usize>,
    /// Files that tasks write and none reads.
    pub results: Vec<usize>,
    /// By file: the task that writes it.
    pub writers: Vec<Option<usize>>,
    /// Data passes between tasks, or comes from outside.
    pub passes: bool,
}

impl Bag {
    /// Of a workflow on a grid whose files have at most so many bytes.
    ///
    /// # Errors
    /// A task has nothing to run.
    pub fn of(
        read: &Read,
        args: &RunArgs,
        largest: u64,
        commands: &BTreeMap<String, String>,
        programs: &Programs<'_>,
    ) -> Result<Self, Failed> {
        let workflow = &read.workflow;
        check(read)?;
        let (mut writers, mut taken) =
            (vec![None; workflow.files.len()], vec![false; workflow.files.len()]);
        for (at, task) in workflow.tasks.iter().enumerate() {
            task.outputs.iter().for_each(|&file| writers[file] = Some(at));
            task.inputs.iter().for_each(|&file| taken[file] = true);
        }
        let written = |file: usize| writers[file].is_some();
        let prefix =
            format!("wf-{:x}-{:x}", std::process::id(), crate::operations::agree::now() / 1000);
        let name = |(at, file): (usize, &springtide_workflow::File)| kept(&prefix, at, &file.name);
        let kept: Vec<String> = workflow.files.iter().enumerate().map(name).collect();
        let scale = args.pretend.unwrap_or(1.0);
        let scaled = |bytes: u64| (bytes as f64 * scale).ceil() as u64;
        let pretends = args.pretend.is_some();
        let mut bag = Self {
            steps: Vec::new(),
            jobs: Vec::new(),
            planned: Vec::new(),
            edges: workflow.edges().map(|(from, to, bytes)| (from, to, scaled(bytes))).collect(),
            given: (0..kept.len())
                .filter(|&file| taken[file] && !written(file) && !pretends)
                .collect(),
            results: (0..kept.len()).filter(|&file| written(file) && !taken[file]).collect(),
            passes: false,
            writers: writers.clone(),
            kept,
        };
        for task in &workflow.tasks {
            let file = |&file: &usize| FileAs {
                kept: bag.kept[file].clone(),
                name: workflow.files[file].name.clone(),
                bytes: scaled(workflow.files[file].bytes),
            };
            // What nobody has written a stand-in does not read.
            let reads = task.inputs.iter().filter(|&&file| written(file) || !pretends);
            let (inputs, outputs): (Vec<FileAs>, Vec<FileAs>) =
                (reads.map(file).collect(), task.outputs.iter().map(file).collect());
            let runtime = task.runtime_s.unwrap_or(0.0) * scale;
            let lasts = runtime * args.slack + args.overhead.as_secs_f64();
            let processors = task.processors.unwrap_or(1);
            bag.planned.push((lasts, processors));
            bag.steps.push(Step {
                id: task.id.clone(),
                processors,
                takes: from_seconds(runtime).max(1),
                lasts: from_seconds(lasts).max(1),
                parents: task.parents.clone(),
            });
            let files = inputs.iter().map(|file| file.kept.clone()).collect();
            let writes = !outputs.is_empty();
            bag.passes |= writes || !inputs.is_empty();
            let (name, body) = match what(read, task, args, commands)? {
                Run::Job(job, arguments) => (programs.encode)(job, arguments)?,
                Run::What(what) => {
                    let job = WorkflowTask {
                        workflow: read.name(),
                        id: task.id.clone(),
                        what,
                        processors,
                        inputs,
                        outputs,
                        largest,
                    };
                    (<WorkflowTask as springtide_runtime::work::Job>::NAME, encode_job(job)?)
                }
            };
            bag.jobs.push(TaskJob { name, body, files, writes });
        }
        Ok(bag)
    }
}

/// Whether the workflow can be run as it says: what only a plan is made of need not be.
///
/// # Errors
/// It cannot: the task or file, and why.
fn check(read: &Read) -> Result<(), Failed> {
    let workflow = &read.workflow;
    let wrong = |reason: String| Failed::usage(format!("{}: {reason}", read.file.display()));
    let mut writers: Vec<Option<&str>> = vec![None; workflow.files.len()];
    for task in &workflow.tasks {
        let (id, name) = (shown(&task.id), |file: usize| shown(&workflow.files[file].name));
        if let (Some(Command::Job { job, .. }), false) =
            (&task.command, task.inputs.is_empty() && task.outputs.is_empty())
        {
            return Err(wrong(format!(
                "task {id} is the registered job {job}, which is told of no files: let it follow others by `after`"
            )));
        }
        if let Some(&both) = task.inputs.iter().find(|file| task.outputs.contains(file)) {
            let name = name(both);
            return Err(wrong(format!(
                "task {id} reads {name} and writes it: give what it writes another name"
            )));
        }
        for &file in &task.outputs {
            if let Some(other) = writers[file].replace(&task.id) {
                let (name, other) = (name(file), shown(other));
                return Err(wrong(format!(
                    "tasks {other} and {id} both write {name}: only one may"
                )));
            }
        }
    }
    for file in &workflow.files {
        let leads_out = |part| matches!(part, Component::ParentDir | Component::Prefix(_));
        if Path::new(&file.name).components().any(leads_out) || file.name.contains('\0') {
            return Err(wrong(format!(
                "the file {} leads out of its directory",
                shown(&file.name)
            )));
        }
    }
    Ok(())
}

enum Run<'a> {
    Job(&'a str, &'a [String]),
    What(TaskCommand),
}

/// What a task runs.
fn what<'a>(
    read: &Read,
    task: &'a Task,
    args: &RunArgs,
    commands: &BTreeMap<String, String>,
) -> Result<Run<'a>, Failed> {
    if let Some(scale) = args.pretend {
        return Ok(Run::What(TaskCommand::Pretend {
            seconds: task.runtime_s.unwrap_or(0.0) * scale,
        }));
    }
    let program = match &task.command {
        Some(Command::Program { program, .. }) => Some(program.as_str()),
        _ => None,
    };
    let names = [Some(task.id.as_str()), Some(task.name.as_str()), program];
    if let Some(command) = names.iter().flatten().find_map(|name| commands.get(*name)) {
        let arguments = vec!["-c".to_owned(), command.clone()];
        return Ok(Run::What(TaskCommand::Program { program: "sh".to_owned(), arguments }));
    }
    match &task.command {
        Some(Command::Job { job, arguments }) => Ok(Run::Job(job, arguments)),
        Some(Command::Program { program, arguments }) if !program.is_empty() => {
            let (program, arguments) = (program.clone(), arguments.clone());
            Ok(Run::What(TaskCommand::Program { program, arguments }))
        }
        _ => {
            let at = task.at.map_or_else(String::new, |at| format!(":{}:{}", at.line, at.column));
            Err(Failed::usage(format!(
                "{}{at}: task {} says nothing of what it runs; give a command for it or for {} with --programs FILE, or run stand-ins with \
                 --pretend 0.01",
                read.file.display(),
                shown(&task.id),
                shown(&task.name)
            )))
        }
    }
}

/// A file's name in clusters' directories: no other workflow's, plain, and not too long.
fn kept(prefix: &str, at: usize, name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let tail: Vec<char> = name.chars().map(plain).collect();
    let tail: String = tail[tail.len().saturating_sub(TAIL)..].iter().collect();
    format!("{prefix}-{at}-{tail}")
}

#[cfg(test)]
mod tests {
    use springtide_runtime::files::check_name;

    use super::*;

    #[test]
    fn every_file_has_a_name_of_its_own_that_is_plain() {
        for name in ["a.fits", "", "../../etc/passwd", "ä/ö ü", &"x".repeat(5000), "a\0b"] {
            let kept = kept("wf-1-2", 7, name);
            check_name(&kept).unwrap();
            assert!(kept.starts_with("wf-1-2-7-"), "{kept}");
        }
        assert_eq!(kept("wf-1-2", 3, "chr1/x.txt"), "wf-1-2-3-chr1_x.txt");
    }
}
