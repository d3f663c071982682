//! Springtide's own format, TOML: for workflows that people write.
//!
//! ```toml
//! name = "mosaic"
//!
//! [[task]]
//! id = "project"
//! command = ["mProject", "raw.fits"]  # or job = "queens", arguments = ["12"]
//! runtime = "30 s"                    # or a number of seconds
//! processors = 4
//! memory = "2 GiB"                    # or a number of bytes
//! walltime = "10 min"                 # or a number of seconds
//! gpus = 1
//! stdout = "project.log"              # also stdin, stderr
//! container = "docker://ubuntu:24.04" # or { image = "...", engine = "docker" }
//! environment = { LANG = "C" }
//! retries = 2
//! outputs = ["projected.fits"]
//!
//! [[task]]
//! id = "add"
//! runtime = 12.5
//! inputs = ["projected.fits"]
//! after = ["project"]                 # follows from the file anyway
//!
//! [[file]]
//! name = "projected.fits"
//! size = "10 MB"                      # or a number of bytes
//!
//! [[file]]
//! name = "raw.fits"                   # a name that ends with / means a directory
//! source = "https://example.org/raw.fits" # or a path
//! ```
//!
//! `id` is required, and of files `name`, and `size` or `source`. A workflow without any `[[file]]`
//! has the files that its tasks name, and their sizes are unknown. With one, another name is
//! misspelt. The `name` of a task defaults to its program, its job or its id. Unlike in formats
//! that programs write, an unknown key is an error, for most are misspelt.

use std::collections::BTreeMap;

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{syntax, with_position};
use crate::draft::{Draft, EdgeEnd, SizeSource, Stream};
use crate::error::{Cause, WorkflowProblem, shown};
use crate::format::Format;
use crate::model::{Command, Container, ContainerEngine, FileSource, Position, Task, Workflow};
use crate::text::{Text, nearest};
use crate::values::{self, Scalar};

const TOP: [&str; 3] = ["name", "task", "file"];
const TASK: [&str; 19] = [
    "id",
    "name",
    "command",
    "job",
    "arguments",
    "runtime",
    "processors",
    "memory",
    "gpus",
    "walltime",
    "container",
    "environment",
    "retries",
    "stdin",
    "stdout",
    "stderr",
    "inputs",
    "outputs",
    "after",
];
const CONTAINER: [&str; 2] = ["image", "engine"];
const FILE: [&str; 3] = ["name", "size", "source"];

type FieldValue<'i> = Spanned<DeValue<'i>>;

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    let parsed = DeTable::parse(text.as_str()).map_err(|error| {
        let at = error.span().map(|span| text.position(span.start));
        syntax(Format::Own, error.message(), at)
    })?;
    let top = parsed.get_ref();
    let mut reader = NativeReader { text, draft: Draft::default(), lists_files: false };
    reader.keys(top, &TOP)?;
    if let Some(name) = top.get("name") {
        reader.draft.name = reader.string(name, "name")?;
    }
    for (file, at) in reader.tables(top.get("file"), "[[file]]")? {
        reader.lists_files = true;
        reader.file(file, at)?;
    }
    for (task, at) in reader.tables(top.get("task"), "[[task]]")? {
        reader.task(task, at)?;
    }
    Ok(reader.draft)
}

struct NativeReader<'a, 'b> {
    text: &'b Text<'a>,
    draft: Draft,
    /// Whether the workflow has `[[file]]` tables, and so all names of its files.
    lists_files: bool,
}

impl NativeReader<'_, '_> {
    fn at<T>(&self, value: &Spanned<T>) -> Option<Position> {
        Some(self.text.position(value.span().start))
    }

    /// Checks that a table has no other keys.
    fn keys(&self, table: &DeTable<'_>, keys: &[&str]) -> Result<(), WorkflowProblem> {
        // The first in the file, not in the alphabet.
        let unknown = table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => {
                let meant = nearest(key.get_ref(), keys.iter().copied());
                Err(Cause::UnknownKey { key: key.get_ref().to_string(), meant }.at(self.at(key)))
            }
        }
    }

    fn must(&self, value: &FieldValue<'_>, key: &str, what: &str) -> WorkflowProblem {
        let found = value.get_ref().type_str();
        WorkflowProblem::value(format!("{key} must be {what}, found {found}"), self.at(value))
    }

    fn string(&self, value: &FieldValue<'_>, key: &str) -> Result<String, WorkflowProblem> {
        let text = value.get_ref().as_str().map(str::to_owned);
        text.ok_or_else(|| self.must(value, key, "a text in quotes"))
    }

    /// The texts of an array, each with its position.
    fn strings(
        &self,
        value: Option<&FieldValue<'_>>,
        key: &str,
    ) -> Result<Vec<(String, Option<Position>)>, WorkflowProblem> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let wrong = |value: &FieldValue<'_>| self.must(value, key, "an array of texts in quotes");
        let array = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
        let text = |value: &FieldValue<'_>| {
            let text = value.get_ref().as_str().ok_or_else(|| wrong(value))?;
            Ok((text.to_owned(), self.at(value)))
        };
        array.iter().map(text).collect()
    }

    fn tables<'v, 'i>(
        &self,
        value: Option<&'v FieldValue<'i>>,
        key: &str,
    ) -> Result<Vec<(&'v DeTable<'i>, Option<Position>)>, WorkflowProblem> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let wrong = |value: &FieldValue<'_>| self.must(value, key, "tables with that heading");
        let array = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
        let table = |value: &'v FieldValue<'i>| {
            let table = value.get_ref().as_table().ok_or_else(|| wrong(value))?;
            Ok((table, self.at(value)))
        };
        array.iter().map(table).collect()
    }

    /// The number of a value, if it is one.
    fn number(&self, value: &FieldValue<'_>) -> Option<Scalar> {
        match value.get_ref() {
            DeValue::Integer(number) => {
                i128::from_str_radix(number.as_str(), number.radix()).ok().map(Scalar::Whole)
            }
            DeValue::Float(number) => number.as_str().parse().ok().map(Scalar::Real),
            _ => None,
        }
    }

    /// A number of bytes, or a text with a unit.
    fn bytes(&self, value: &FieldValue<'_>, key: &str) -> Result<u64, WorkflowProblem> {
        let place = self.at(value);
        match (self.number(value), value.get_ref().as_str()) {
            (Some(number), _) => with_position(number.bytes(), place),
            (None, Some(text)) => with_position(values::size(text), place),
            (None, None) => Err(self.must(value, key, "bytes or a text as \"10 MB\"")),
        }
    }

    /// A number of seconds of more than 0, or a text with a unit.
    fn seconds(&self, value: &FieldValue<'_>, key: &str) -> Result<f64, WorkflowProblem> {
        let place = self.at(value);
        match (self.number(value), value.get_ref().as_str()) {
            (Some(number), _) => match with_position(number.time(key, "seconds"), place)? {
                seconds if seconds <= 0.0 => {
                    let reason = format!("a {key} must be more than 0 s");
                    Err(WorkflowProblem::value(reason, place))
                }
                seconds => Ok(seconds),
            },
            (None, Some(text)) => with_position(values::duration(text, key), place),
            (None, None) => Err(self.must(value, key, "seconds or a text as \"30 s\"")),
        }
    }

    /// A whole number from 0.
    fn count(&self, value: &FieldValue<'_>, key: &str) -> Result<u32, WorkflowProblem> {
        match self.number(value) {
            Some(number @ Scalar::Whole(_)) => with_position(number.count(key), self.at(value)),
            _ => Err(self.must(value, key, "a whole number")),
        }
    }

    fn file(&mut self, table: &DeTable<'_>, at: Option<Position>) -> Result<(), WorkflowProblem> {
        self.keys(table, &FILE)?;
        let (size, source) = (table.get("size"), table.get("source"));
        let (Some(name), true) = (table.get("name"), size.is_some() || source.is_some()) else {
            let reason = "a [[file]] needs a name, and a size or a source";
            return Err(WorkflowProblem::value(reason, at));
        };
        let (place, name) = (self.at(name), self.string(name, "name")?);
        if self.draft.find_file(&name).is_some() {
            let reason = format!("there is another [[file]] {}", shown(&name));
            return Err(WorkflowProblem::value(reason, place));
        }
        let file = self.draft.file(&name, at);
        if let Some(size) = size {
            let bytes = self.bytes(size, "size")?;
            self.draft.size(file, SizeSource::List, Some(bytes), place);
        }
        if let Some(value) = source {
            let text = self.string(value, "source")?;
            let Some(source) = FileSource::parse(&text) else {
                let what = "an absolute path, or a URL with http, https or file";
                let reason = format!("source must be {what}, found {}", shown(&text));
                return Err(WorkflowProblem::value(reason, self.at(value)));
            };
            self.draft.source(file, source);
        }
        Ok(())
    }

    fn task(&mut self, table: &DeTable<'_>, at: Option<Position>) -> Result<(), WorkflowProblem> {
        self.keys(table, &TASK)?;
        let Some(id) = table.get("id") else {
            return Err(WorkflowProblem::value("a [[task]] needs an id", at));
        };
        let id = self.string(id, "id")?;
        let command = self.command(table, at)?;
        let name = match (table.get("name"), &command) {
            (Some(name), _) => self.string(name, "name")?,
            (
                None,
                Some(Command::Program { program: name, .. } | Command::Job { job: name, .. }),
            ) => name.clone(),
            (None, None) => id.clone(),
        };
        let task = self.draft.task(Task { name, command, at, ..Task::new(id) })?;
        if let Some(value) = table.get("runtime") {
            let (place, seconds) = (self.at(value), self.seconds(value, "runtime")?);
            self.draft.runtime(task, seconds, place);
        }
        if let Some(value) = table.get("processors") {
            match self.number(value) {
                Some(number @ Scalar::Whole(_)) => {
                    let (place, processors) = (self.at(value), number.processors());
                    self.draft.processors(task, with_position(processors, place)?, place);
                }
                _ => return Err(self.must(value, "processors", "a whole number")),
            }
        }
        self.resources(task, table)?;
        for (key, reads) in [("inputs", true), ("outputs", false)] {
            for (name, place) in self.strings(table.get(key), key)? {
                let file = self.known_file(name, place)?;
                if reads { self.draft.reads(task, file) } else { self.draft.writes(task, file) }
            }
        }
        for (key, stream) in
            [("stdin", Stream::Stdin), ("stdout", Stream::Stdout), ("stderr", Stream::Stderr)]
        {
            let Some(value) = table.get(key) else { continue };
            let file = self.known_file(self.string(value, key)?, self.at(value))?;
            self.draft.redirect(task, stream, file);
        }
        for (id, place) in self.strings(table.get("after"), "after")? {
            self.draft.edge(EdgeEnd::Id(id), EdgeEnd::Task(task), place);
        }
        Ok(())
    }

    fn known_file(&mut self, name: String, at: Option<Position>) -> Result<usize, WorkflowProblem> {
        if !self.lists_files {
            return Ok(self.draft.file(&name, at));
        }
        self.draft.find_file(&name).ok_or_else(|| {
            let meant = nearest(&name, self.draft.file_names());
            Cause::UnknownFile { name, meant }.at(at)
        })
    }

    fn resources(&mut self, task: usize, table: &DeTable<'_>) -> Result<(), WorkflowProblem> {
        if let Some(value) = table.get("memory") {
            let bytes = self.bytes(value, "memory")?;
            self.draft.memory(task, Some(bytes), self.at(value));
        }
        if let Some(value) = table.get("walltime") {
            let seconds = self.seconds(value, "walltime")?;
            self.draft.walltime(task, seconds, self.at(value));
        }
        if let Some(value) = table.get("gpus") {
            self.draft.task_mut(task).resources.gpus = Some(self.count(value, "gpus")?);
        }
        if let Some(value) = table.get("retries") {
            self.draft.task_mut(task).retries = Some(self.count(value, "retries")?);
        }
        if let Some(value) = table.get("environment") {
            let what = "a table of texts in quotes";
            let variables = value.get_ref().as_table();
            let variables = variables.ok_or_else(|| self.must(value, "environment", what))?;
            for (name, value) in variables.iter() {
                let text = value.get_ref().as_str();
                let text =
                    text.ok_or_else(|| self.must(value, name.get_ref(), "a text in quotes"))?;
                let environment = &mut self.draft.task_mut(task).environment;
                environment.insert(name.get_ref().to_string(), text.to_owned());
            }
        }
        if let Some(value) = table.get("container") {
            self.draft.task_mut(task).container = Some(self.container(value)?);
        }
        Ok(())
    }

    fn container(&self, value: &FieldValue<'_>) -> Result<Container, WorkflowProblem> {
        let (image, engine) = match value.get_ref().as_table() {
            None => (self.string(value, "container")?, None),
            Some(table) => {
                self.keys(table, &CONTAINER)?;
                let Some(image) = table.get("image") else {
                    let reason = "a container needs an image";
                    return Err(WorkflowProblem::value(reason, self.at(value)));
                };
                (self.string(image, "image")?, table.get("engine"))
            }
        };
        if image.is_empty() {
            return Err(WorkflowProblem::value("a container needs an image", self.at(value)));
        }
        let Some(value) = engine else { return Ok(Container { image, engine: None }) };
        let word = self.string(value, "engine")?;
        let engine = ContainerEngine::ALL.into_iter().find(|engine| engine.word() == word);
        let Some(engine) = engine else {
            let reason =
                format!("engine must be docker, singularity or shifter, found {}", shown(&word));
            return Err(WorkflowProblem::value(reason, self.at(value)));
        };
        Ok(Container { image, engine: Some(engine) })
    }

    fn command(
        &self,
        table: &DeTable<'_>,
        at: Option<Position>,
    ) -> Result<Option<Command>, WorkflowProblem> {
        let only = |texts: Vec<(String, _)>| texts.into_iter().map(|(text, _)| text);
        let arguments = only(self.strings(table.get("arguments"), "arguments")?).collect();
        match (table.get("command"), table.get("job")) {
            (Some(_), Some(job)) => {
                Err(WorkflowProblem::value("a task has a command or a job, not both", self.at(job)))
            }
            (Some(command), None) => {
                if let Some(arguments) = table.get("arguments") {
                    let reason =
                        "arguments are a job's: those of a command stand behind its program";
                    return Err(WorkflowProblem::value(reason, self.at(arguments)));
                }
                let mut words = only(self.strings(Some(command), "command")?);
                let Some(program) = words.next().filter(|program| !program.is_empty()) else {
                    return Err(WorkflowProblem::value(
                        "command must begin with a program",
                        self.at(command),
                    ));
                };
                Ok(Some(Command::Program { program, arguments: words.collect() }))
            }
            (None, Some(job)) => match self.string(job, "job")? {
                name if name.is_empty() => {
                    Err(WorkflowProblem::value("job must name one", self.at(job)))
                }
                job => Ok(Some(Command::Job { job, arguments })),
            },
            (None, None) if table.contains_key("arguments") => {
                Err(WorkflowProblem::value("arguments need a job that is given them", at))
            }
            (None, None) => Ok(None),
        }
    }
}

#[derive(Serialize)]
struct Written<'w> {
    name: &'w str,
    task: Vec<WrittenTask<'w>>,
    file: Vec<WrittenFile<'w>>,
}

#[derive(Serialize)]
struct WrittenTask<'w> {
    id: &'w str,
    name: &'w str,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<&'w str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'w str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    arguments: &'w [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processors: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<&'w str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<&'w str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<&'w str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<WrittenSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    walltime: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin: Option<&'w str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<&'w str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<&'w str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<WrittenContainer<'w>>,
    // Tables stand behind values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    environment: &'w BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenContainer<'w> {
    Image(&'w str),
    Table { image: &'w str, engine: &'static str },
}

#[derive(Serialize)]
struct WrittenFile<'w> {
    name: &'w str,
    size: WrittenSize,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'w str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenSize {
    Number(i64),
    /// A number beyond the range of TOML.
    Text(String),
}

pub(super) fn write(workflow: &Workflow) -> String {
    let size = |bytes: u64| match i64::try_from(bytes) {
        Ok(bytes) => WrittenSize::Number(bytes),
        Err(_) => WrittenSize::Text(format!("{bytes} B")),
    };
    let names =
        |files: &[usize]| files.iter().map(|file| workflow.files[*file].name.as_str()).collect();
    let name = |file: Option<usize>| file.map(|file| workflow.files[file].name.as_str());
    let none: &[String] = &[];
    let mut written = Written { name: &workflow.name, task: Vec::new(), file: Vec::new() };
    for task in &workflow.tasks {
        let (command, job, arguments) = match &task.command {
            Some(Command::Program { program, arguments }) => {
                let words = std::iter::once(program).chain(arguments).map(String::as_str);
                (Some(words.collect()), None, none)
            }
            Some(Command::Job { job, arguments }) => {
                (None, Some(job.as_str()), arguments.as_slice())
            }
            None => (None, None, none),
        };
        written.task.push(WrittenTask {
            id: &task.id,
            name: &task.name,
            command,
            job,
            arguments,
            runtime: task.runtime_s,
            processors: task.processors,
            inputs: names(&task.inputs),
            outputs: names(&task.outputs),
            after: task.parents.iter().map(|parent| workflow.tasks[*parent].id.as_str()).collect(),
            memory: task.resources.memory_bytes.map(size),
            gpus: task.resources.gpus,
            walltime: task.resources.walltime_s,
            retries: task.retries,
            stdin: name(task.redirects.stdin),
            stdout: name(task.redirects.stdout),
            stderr: name(task.redirects.stderr),
            container: task.container.as_ref().map(|Container { image, engine }| match engine {
                None => WrittenContainer::Image(image),
                Some(engine) => WrittenContainer::Table { image, engine: engine.word() },
            }),
            environment: &task.environment,
        });
    }
    written.file = workflow
        .files
        .iter()
        .map(|file| WrittenFile {
            name: &file.name,
            size: size(file.bytes),
            source: file.source.as_ref().map(FileSource::as_str),
        })
        .collect();
    // Tables of texts and numbers can always be written.
    toml::to_string(&written).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;

    #[test]
    fn the_tables_have_all_keys() {
        for (place, keys) in
            [("", &TOP[..]), ("task", &TASK), ("container", &CONTAINER), ("file", &FILE)]
        {
            let mut keys = keys.to_vec();
            keys.sort_unstable();
            assert_eq!(fields::used(Format::Own, place), keys, "{place}");
        }
    }
}
