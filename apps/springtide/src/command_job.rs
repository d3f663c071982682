//! The job `command`: any program of the nodes' hosts, as processes on the job's nodes.
//!
//! Here are its options and their preparation on the submitting host. How the processes run is the
//! matter of [`springtide_runtime::command`].

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Args, FromArgMatches, ValueHint};
use serde::{Deserialize, Serialize};
use springtide_cli::exit::Failed;
use springtide_cli::options::time;
use springtide_runtime::checksum::{START, checksum_from};
use springtide_runtime::command::{
    self, CommandInput, CommandSpec, EnvironmentVariable, GRACE_MAX, ProcessUnit, STDIN_MAX,
};
use springtide_runtime::files::check_name;
use springtide_runtime::work::{
    Checkpoint, Context, InputError, Job, Outcome, Registry, Stop, encode_job,
};

use springtide_operations::program::{EncodedJob, Upload};

/// A command as a job: its options, and after [`Job::prepare`] what its processes run.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct CommandJob {
    /// Program and its arguments, after two hyphens. A relative path is one of this directory
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    command: Vec<String>,
    /// What gets one process: the job (its first node), each node, or each processor of each node
    #[arg(
        long,
        value_name = "UNIT",
        default_value = "node",
        value_parser = unit_parser(),
        hide_possible_values = true,
    )]
    per: ProcessUnit,
    /// File that each process reads from standard input, at most 1 MiB [default: empty]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    stdin: Option<PathBuf>,
    /// File of this host that the processes find in their directory. It is copied through the
    /// clusters' directories of files. Repeatable
    #[arg(long = "input", value_name = "FILE", value_hint = ValueHint::FilePath)]
    inputs: Vec<PathBuf>,
    /// Directory of the nodes' hosts in which the processes run [default: a new one for each node,
    /// which is removed afterwards]
    #[arg(long, value_name = "DIR")]
    chdir: Option<PathBuf>,
    /// Variable of the processes' environment. Repeatable
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    environment: Vec<EnvironmentVariable>,
    /// Maximum number of starts after the first one, for losses of nodes
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    restarts: u32,
    /// Time between SIGTERM and SIGKILL for processes that are to end, at most 15s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_grace)]
    grace: Duration,
    /// What the processes run, after the preparation.
    #[arg(skip)]
    #[serde(default)]
    spec: Option<CommandSpec>,
}

fn unit_parser() -> impl TypedValueParser<Value = ProcessUnit> {
    let words = ProcessUnit::WORDS;
    PossibleValuesParser::new(words.iter().map(|(word, _)| *word)).map(|word| {
        let known = ProcessUnit::WORDS.iter().find(|(known, _)| **known == word);
        known.map_or_else(ProcessUnit::default, |(_, unit)| *unit)
    })
}

fn parse_variable(text: &str) -> Result<EnvironmentVariable, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => {
            Ok(EnvironmentVariable { name: name.to_owned(), value: value.to_owned() })
        }
        _ => Err("must be NAME=VALUE such as LANG=C".to_owned()),
    }
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    let grace = time(text)?;
    if grace <= GRACE_MAX { Ok(grace) } else { Err("must be at most 15s".to_owned()) }
}

impl CommandJob {
    /// Encodes the job of a command line, with the files to upload.
    ///
    /// # Errors
    /// The options are wrong, or a file cannot be read.
    pub fn encode_matches(matches: &ArgMatches) -> Result<EncodedJob, Failed> {
        let mut job = Self::from_arg_matches(matches)
            .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
        job.prepare()?;
        let stored = job.spec.iter().flat_map(|spec| &spec.inputs);
        let uploads = job.inputs.iter().zip(stored);
        let uploads = uploads
            .map(|(path, input)| Upload { path: path.clone(), name: input.stored.clone() })
            .collect();
        Ok(EncodedJob { body: encode_job(job)?, uploads })
    }

    fn prepared(&self) -> Result<&CommandSpec, Stop> {
        let missing = || Stop::fail("the command was submitted without its preparation");
        self.spec.as_ref().ok_or_else(missing)
    }
}

impl Job for CommandJob {
    const NAME: &'static str = "command";
    const ABOUT: &'static str = "Any program, as processes on the job's nodes";

    fn register(registry: &mut Registry) {
        command::register(registry);
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        if self.spec.is_some() {
            return Ok(());
        }
        let here = std::env::current_dir()
            .map_err(|error| InputError::new(format!("the current directory: {error}")))?;
        let inputs: Vec<CommandInput> =
            self.inputs.iter().map(|path| input(path)).collect::<Result<_, _>>()?;
        for (index, one) in inputs.iter().enumerate() {
            if inputs[..index].iter().any(|other| other.name == one.name) {
                let name = &one.name;
                return Err(InputError::new(format!(
                    "--input: two files are named {name}, and the processes have one directory"
                )));
            }
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(InputError::new("no program is given: it stands after `--`"));
        };
        if let Some(bad) = self.command.iter().find(|word| word.contains('\0')) {
            return Err(InputError::new(format!("{bad:?} contains a zero byte")));
        }
        self.spec = Some(CommandSpec {
            program: find_program(program, &inputs, &here)?,
            arguments: arguments.to_vec(),
            environment: self.environment.clone(),
            directory: self.chdir.as_ref().map(|dir| here.join(dir)),
            submit_directory: Some(here),
            stdin: self.stdin.as_deref().map(read_stdin).transpose()?.map(Into::into),
            inputs,
            unit: self.per,
            restarts: self.restarts,
            grace: self.grace,
        });
        Ok(())
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        command::run(self.prepared()?, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        command::resume(self.prepared()?, state, cx)
    }
}

/// The program as the nodes find it: by its name, as an input, or by its path on this host.
fn find_program(program: &str, inputs: &[CommandInput], here: &Path) -> Result<String, InputError> {
    if program.is_empty() {
        return Err(InputError::new("the program's name is empty"));
    }
    if !program.contains('/') {
        return Ok(program.to_owned());
    }
    let path = Path::new(program);
    if path.is_absolute() {
        return Ok(program.to_owned());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if inputs.iter().any(|input| input.name == name) {
        return Ok(format!("./{name}"));
    }
    let path = here.join(path);
    if !path.is_file() {
        let shown = path.display();
        return Err(InputError::new(format!(
            "{shown} is no file: give a path of a program, or its name if the nodes have it in \
             their PATH"
        )));
    }
    // The nodes' hosts share this directory, or the program is an --input.
    let path = std::fs::canonicalize(&path).unwrap_or(path);
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| InputError::new(format!("{} is no text in UTF-8", path.display())))
}

/// The input of a path. Its stored name contains a checksum, so that another file of the same name
/// is another input.
fn input(path: &Path) -> Result<CommandInput, InputError> {
    let wrong = |reason: &dyn std::fmt::Display| {
        InputError::new(format!("--input {}: {reason}", path.display()))
    };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_name(name).map_err(|error| wrong(&error))?;
    let mut file = File::open(path).map_err(|error| wrong(&error))?;
    if !file.metadata().map_err(|error| wrong(&error))?.is_file() {
        return Err(wrong(&"it is no file"));
    }
    let (mut sum, mut buffer) = (START, vec![0; 64 << 10]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => sum = checksum_from(sum, buffer[..count].iter().copied()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(wrong(&error)),
        }
    }
    let stored = format!("input-{sum:016x}-{name}");
    check_name(&stored).map_err(|error| wrong(&error))?;
    Ok(CommandInput { stored, name: name.to_owned() })
}

fn read_stdin(path: &Path) -> Result<Vec<u8>, InputError> {
    let wrong = |reason: &dyn std::fmt::Display| {
        InputError::new(format!("--stdin {}: {reason}", path.display()))
    };
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut bytes = Vec::new();
    let limit = STDIN_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    if bytes.len() > STDIN_MAX {
        let text = format!("more than {STDIN_MAX} bytes: use --input, and read it as a file");
        return Err(wrong(&text));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use springtide_runtime::work::Job as _;

    use super::*;

    fn parsed(line: &[&str]) -> Result<CommandJob, String> {
        let command = CommandJob::augment_args(clap::Command::new("command"));
        let line = std::iter::once("command").chain(line.iter().copied());
        let matches = command.try_get_matches_from(line).map_err(|error| error.to_string())?;
        let mut job = CommandJob::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        job.prepare().map_err(|error| error.to_string())?;
        Ok(job)
    }

    #[test]
    fn a_command_line_becomes_a_command() {
        let line = ["--per", "processor", "--env", "A=b=c", "--grace", "2s", "--", "sh", "-c", "x"];
        let spec = parsed(&line).unwrap().spec.unwrap();
        assert_eq!((&*spec.program, spec.unit), ("sh", ProcessUnit::Processor));
        assert_eq!((spec.arguments, spec.restarts), (vec!["-c".to_owned(), "x".to_owned()], 2));
        let variable = EnvironmentVariable { name: "A".to_owned(), value: "b=c".to_owned() };
        assert_eq!((spec.environment, spec.grace), (vec![variable], Duration::from_secs(2)));
    }

    #[test]
    fn wrong_command_lines_name_the_option() {
        for (line, expected) in [
            (&["--per", "node"][..], "PROGRAM"),
            (&["--per", "core", "--", "true"], "job, node, processor"),
            (&["--env", "A", "--", "true"], "NAME=VALUE"),
            (&["--grace", "16s", "--", "true"], "at most 15s"),
            (&["--stdin", "/nowhere", "--", "true"], "--stdin /nowhere"),
            (&["--input", "/", "--", "true"], "--input /"),
            (&["--", "./nowhere"], "is no file"),
            (&["--", ""], "is empty"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(expected), "{line:?}: {error}");
        }
    }

    #[test]
    fn a_program_among_the_inputs_runs_from_there() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("prog");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        let shown = path.to_str().unwrap();
        let spec = parsed(&["--input", shown, "--", "bin/prog"]).unwrap().spec.unwrap();
        assert_eq!(spec.program, "./prog");
        assert!(spec.inputs[0].stored.starts_with("input-"), "{:?}", spec.inputs);
        std::fs::write(&path, "#!/bin/bash\n").unwrap();
        let other = parsed(&["--input", shown, "--", "bin/prog"]).unwrap().spec.unwrap();
        assert_ne!(spec.inputs, other.inputs);
        let large = temp.path().join("large");
        std::fs::write(&large, vec![0; STDIN_MAX + 1]).unwrap();
        let error = parsed(&["--stdin", large.to_str().unwrap(), "--", "true"]).unwrap_err();
        assert!(error.contains("use --input"), "{error}");
    }
}
