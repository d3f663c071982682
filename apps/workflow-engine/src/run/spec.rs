//! The tasks of a workflow as a run executes them: programs, stored names of files, and keys by
//! which completed tasks are recognised.
//!
//! It does not know when or where anything runs.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use std::time::Duration;

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use springtide_actors::policy::provisioning::from_seconds;
use springtide_cli::exit::Failed;
use springtide_runtime::command::EnvironmentVariable;
use springtide_runtime::pilot::{PilotTask, TaskFile, TaskProgram};
use springtide_workflow::{Command, Format, Task};

use super::flow::StepFiles;
use super::table::{Step, TaskLimits};
use super::{Programs, RunArgs};
use crate::{Read, shown};

/// The most characters of a file's own name in its stored name.
const NAME_MAX: usize = 80;
/// The digits of a key in stored names.
const KEY_DIGITS: usize = 16;

/// A task as a run executes it.
#[derive(Clone, Debug)]
pub struct RunTask {
    /// The task for a pilot, without the number of an attempt.
    pub task: PilotTask,
    /// The registered job that the task is instead: its name, and the job encoded for its nodes.
    pub job: Option<(&'static str, Bytes)>,
    /// The digest of what the task computes: its program, its inputs and the names of its outputs.
    pub key: String,
    /// The stored name of the record of its completion.
    pub record: String,
}

/// A workflow as a run executes it.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The tasks for the decisions of the run.
    pub steps: Vec<Step>,
    /// The files of each task.
    pub step_files: Vec<StepFiles>,
    /// The tasks for their execution.
    pub tasks: Vec<RunTask>,
    /// The expected reserved time of each task in seconds, and its processors, for a plan.
    pub planned: Vec<(f64, u32)>,
    /// The edges with their bytes.
    pub edges: Vec<(usize, usize, u64)>,
    /// The stored name of each file.
    pub stored: Vec<String>,
    /// Files that tasks read and none writes.
    pub given: Vec<usize>,
    /// Files that tasks write and none reads.
    pub results: Vec<usize>,
    /// The task that writes each file.
    pub writers: Vec<Option<usize>>,
    /// Whether tasks read or write files.
    pub has_files: bool,
}

/// What is needed to make tasks of a workflow.
pub struct SpecInput<'a> {
    /// The workflow and its file.
    pub read: &'a Read,
    /// The options of the run.
    pub args: &'a RunArgs,
    /// Commands in place of the workflow's own.
    pub commands: &'a BTreeMap<String, String>,
    /// The jobs that the program registers.
    pub programs: &'a Programs<'a>,
    /// Maximum size of a file in bytes.
    pub file_bytes_max: u64,
    /// The text that begins all stored names of the run.
    pub prefix: &'a str,
    /// The directory in which the run was begun.
    pub submit_dir: String,
    /// The digests of the files that tasks read and none writes, by their index.
    pub digests: &'a BTreeMap<usize, String>,
}

/// The external inputs: files that tasks read and no task writes.
pub fn external_input_files(read: &Read) -> Vec<usize> {
    let count = read.workflow.files.len();
    let (mut written, mut taken) = (vec![false; count], vec![false; count]);
    for task in &read.workflow.tasks {
        task.outputs.iter().for_each(|&file| written[file] = true);
        task.inputs.iter().for_each(|&file| taken[file] = true);
    }
    (0..count).filter(|&file| taken[file] && !written[file]).collect()
}

impl RunSpec {
    /// Makes the tasks of a run.
    ///
    /// # Errors
    /// A task has nothing to run, or the workflow cannot be run as it is.
    pub fn new(input: &SpecInput<'_>) -> Result<Self, Failed> {
        let SpecInput { read, args, prefix, .. } = input;
        let workflow = &read.workflow;
        check(read)?;
        let (mut writers, mut taken) =
            (vec![None; workflow.files.len()], vec![false; workflow.files.len()]);
        for (at, task) in workflow.tasks.iter().enumerate() {
            task.outputs.iter().for_each(|&file| writers[file] = Some(at));
            task.inputs.iter().for_each(|&file| taken[file] = true);
        }
        let scale = args.pretend.unwrap_or(1.0);
        let scaled = |bytes: u64| (bytes as f64 * scale).ceil() as u64;
        let pretends = args.pretend.is_some();
        let files = 0..workflow.files.len();
        let mut spec = Self {
            steps: Vec::new(),
            step_files: Vec::new(),
            tasks: Vec::new(),
            planned: Vec::new(),
            edges: workflow.edges().map(|(from, to, bytes)| (from, to, scaled(bytes))).collect(),
            stored: vec![String::new(); workflow.files.len()],
            given: files
                .clone()
                .filter(|&file| taken[file] && writers[file].is_none() && !pretends)
                .collect(),
            results: files.filter(|&file| writers[file].is_some() && !taken[file]).collect(),
            writers,
            has_files: false,
        };
        for &file in &spec.given {
            let digest = input.digests.get(&file).map_or("", String::as_str);
            spec.stored[file] = stored_name(prefix, digest, file, &workflow.files[file].name);
        }
        let mut keys = vec![String::new(); workflow.tasks.len()];
        let mut programs = BTreeMap::new();
        for &task in workflow.order() {
            let program = program_of(input, task)?;
            keys[task] = spec.key(input, task, &program, &keys);
            for &file in &workflow.tasks[task].outputs {
                let name = &workflow.files[file].name;
                spec.stored[file] = stored_name(prefix, &keys[task], file, name);
            }
            programs.insert(task, program);
        }
        for (at, task) in workflow.tasks.iter().enumerate() {
            let Some(program) = programs.remove(&at) else { continue };
            let file = |&file: &usize| TaskFile {
                stored: spec.stored[file].clone(),
                name: workflow.files[file].name.clone(),
                bytes: scaled(workflow.files[file].bytes),
            };
            // A placeholder does not read what no placeholder has written.
            let reads = |file: &&usize| spec.writers[**file].is_some() || !pretends;
            let inputs: Vec<TaskFile> = task.inputs.iter().filter(reads).map(file).collect();
            let outputs: Vec<TaskFile> = task.outputs.iter().map(file).collect();
            let read_files = task.inputs.iter().filter(reads);
            let step_files = StepFiles {
                inputs: read_files.map(|&f| (f, scaled(workflow.files[f].bytes))).collect(),
                outputs: task.outputs.clone(),
            };
            let processors = task.processors.unwrap_or(1).max(1);
            let runtime = task.runtime_s.unwrap_or(0.0) * scale;
            let lasts = runtime * args.slack + args.overhead.as_secs_f64();
            let walltime = task.resources.walltime_s.filter(|_| !pretends);
            let walltime = walltime.and_then(|limit| Duration::try_from_secs_f64(limit).ok());
            let memory = args.memory.map(|size| size.bytes());
            // The memory of a recorded instance is what a task used, and no limit.
            let is_recorded = read.format == Some(Format::WfFormat);
            let limits = TaskLimits {
                time: walltime.or(args.time_limit),
                memory_bytes: task
                    .resources
                    .memory_bytes
                    .filter(|_| !pretends && !is_recorded)
                    .or(memory),
            };
            spec.has_files |= !inputs.is_empty() || !outputs.is_empty();
            spec.planned.push((lasts, processors));
            spec.steps.push(Step {
                id: task.id.clone(),
                processors,
                takes: from_seconds(runtime).max(1),
                lasts: from_seconds(lasts).max(1),
                parents: task.parents.clone(),
                limits,
                gpus: task.resources.gpus.filter(|_| !pretends).unwrap_or(0),
                retries: task.retries,
            });
            spec.step_files.push(step_files);
            let (job, program) = match program {
                RunProgram::Job(name, arguments) => {
                    let job = (input.programs.encode)(name, arguments)?;
                    (Some(job), TaskProgram::Placeholder { seconds: 0.0 })
                }
                RunProgram::Task(program) => (None, program),
            };
            let variable =
                |name: &str, value: String| EnvironmentVariable { name: name.to_owned(), value };
            let mut environment = vec![
                variable("SPRINGTIDE_WORKFLOW", read.name()),
                variable("SPRINGTIDE_TASK", task.id.clone()),
                variable("SPRINGTIDE_PROCESSORS", processors.to_string()),
                variable("SPRINGTIDE_SUBMIT_DIR", input.submit_dir.clone()),
            ];
            environment
                .extend(task.environment.iter().map(|(name, value)| variable(name, value.clone())));
            let name = |file: Option<usize>| {
                file.filter(|_| !pretends).map(|file| workflow.files[file].name.clone())
            };
            let redirects = task.redirects;
            let task = PilotTask {
                number: 0,
                program,
                environment,
                inputs,
                outputs,
                stdin: name(redirects.stdin),
                stdout: name(redirects.stdout),
                stderr: name(redirects.stderr),
                processors,
                memory_bytes: None,
                time_limit: None,
                output_bytes_max: input.file_bytes_max,
                record: None,
            };
            let key = keys[at].clone();
            let record = format!("{prefix}-{}.done", short(&key));
            spec.tasks.push(RunTask { task, job, key, record });
        }
        Ok(spec)
    }

    /// The digest of what a task computes. The keys of its parents are known.
    fn key(
        &self,
        input: &SpecInput<'_>,
        task: usize,
        program: &RunProgram<'_>,
        keys: &[String],
    ) -> String {
        let workflow = &input.read.workflow;
        let of = &workflow.tasks[task];
        let mut digest = Context::new(&SHA256);
        let mut add = |text: &str| {
            digest.update(&(text.len() as u64).to_le_bytes());
            digest.update(text.as_bytes());
        };
        add(&of.id);
        add(&format!("{program:?} {:?}", input.args.pretend));
        add(&format!("{:?}", of.environment));
        let redirects = [of.redirects.stdin, of.redirects.stdout, of.redirects.stderr];
        add(&format!("{:?}", redirects.map(|file| file.map(|file| &workflow.files[file].name))));
        for &file in &of.inputs {
            add(&workflow.files[file].name);
            match self.writers[file] {
                Some(writer) => add(&keys[writer]),
                None => add(input.digests.get(&file).map_or("", String::as_str)),
            }
        }
        of.parents.iter().for_each(|&parent| add(&keys[parent]));
        of.outputs.iter().for_each(|&file| add(&workflow.files[file].name));
        hex(digest.finish().as_ref())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn short(key: &str) -> &str {
    key.get(..KEY_DIGITS).unwrap_or(key)
}

/// Checks that the workflow can be run as it is. One that can be planned need not be.
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
                "task {id} is the registered job {job}, which reads and writes no files: let it \
                 follow others with `after`"
            )));
        }
        if let Some(&both) = task.inputs.iter().find(|file| task.outputs.contains(file)) {
            let name = name(both);
            return Err(wrong(format!(
                "task {id} reads {name} and writes it: give the output another name"
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

/// What a task runs.
#[derive(Debug)]
enum RunProgram<'a> {
    /// A registered job with its options.
    Job(&'a str, &'a [String]),
    /// A program on a pilot.
    Task(TaskProgram),
}

fn program_of<'a>(input: &SpecInput<'a>, at: usize) -> Result<RunProgram<'a>, Failed> {
    let task: &'a Task = &input.read.workflow.tasks[at];
    if let Some(scale) = input.args.pretend {
        let seconds = task.runtime_s.unwrap_or(0.0) * scale;
        return Ok(RunProgram::Task(TaskProgram::Placeholder { seconds }));
    }
    let program = match &task.command {
        Some(Command::Program { program, .. }) => Some(program.as_str()),
        _ => None,
    };
    let names = [Some(task.id.as_str()), Some(task.name.as_str()), program];
    if let Some(command) = names.iter().flatten().find_map(|name| input.commands.get(*name)) {
        let arguments = vec!["-c".to_owned(), command.clone()];
        let program = "sh".to_owned();
        return Ok(RunProgram::Task(TaskProgram::Command { program, arguments }));
    }
    match &task.command {
        Some(Command::Job { job, arguments }) => Ok(RunProgram::Job(job, arguments)),
        Some(Command::Program { program, arguments }) if !program.is_empty() => {
            let (program, arguments) = in_container(input, task, program, arguments)?;
            Ok(RunProgram::Task(TaskProgram::Command { program, arguments }))
        }
        _ => {
            let at = task.at.map_or_else(String::new, |at| format!(":{}:{}", at.line, at.column));
            Err(Failed::usage(format!(
                "{}{at}: task {} has no command: give one for it or for {} with --programs FILE, \
                 or run placeholders with --pretend 0.01",
                input.read.file.display(),
                shown(&task.id),
                shown(&task.name)
            )))
        }
    }
}

/// The command of a task, in its container if it has one.
fn in_container(
    input: &SpecInput<'_>,
    task: &Task,
    program: &str,
    arguments: &[String],
) -> Result<(String, Vec<String>), Failed> {
    let plain = || (program.to_owned(), arguments.to_vec());
    let Some(container) = &task.container else { return Ok(plain()) };
    let Some(prefix) = &input.args.containers else {
        return Err(Failed::usage(format!(
            "{}: task {} runs in the container {}: say how with --containers, such as \
             --containers 'apptainer exec {{image}}', or run all tasks without their containers \
             with --containers ''",
            input.read.file.display(),
            shown(&task.id),
            shown(&container.image)
        )));
    };
    let mut words = prefix.split_whitespace().map(|word| word.replace("{image}", &container.image));
    let Some(first) = words.next() else { return Ok(plain()) };
    let all = words.chain([program.to_owned()]).chain(arguments.iter().cloned());
    Ok((first, all.collect()))
}

/// The name of a file in clusters' directories. It is unique, plain and not too long.
fn stored_name(prefix: &str, key: &str, file: usize, name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let own: Vec<char> = name.chars().map(plain).collect();
    let own: String = own[own.len().saturating_sub(NAME_MAX)..].iter().collect();
    format!("{prefix}-{}-{file}-{own}", short(key))
}

#[cfg(test)]
mod tests {
    use springtide_runtime::files::check_name;

    use super::*;

    #[test]
    fn every_stored_name_is_plain_and_unique() {
        for name in ["a.fits", "", "../../etc/passwd", "ä/ö ü", &"x".repeat(5000), "a\0b"] {
            let stored = stored_name("wf-1", "0123456789abcdef0123", 7, name);
            check_name(&stored).unwrap();
            assert!(stored.starts_with("wf-1-0123456789abcdef-7-"), "{stored}");
        }
        assert_eq!(stored_name("wf-1", "ab", 3, "chr1/x.txt"), "wf-1-ab-3-chr1_x.txt");
    }
}
