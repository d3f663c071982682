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
//! ```
//!
//! `id`, and `name` and `size` of files, are required. The `name` of a task defaults to its
//! program, its job or its id. Unlike in formats that programs write, an unknown key is an error,
//! for most are misspelt.

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{syntax, with_position};
use crate::draft::{Draft, EdgeEnd, SizeSource};
use crate::error::{Cause, WorkflowProblem, shown};
use crate::format::Format;
use crate::model::{Command, Position, Task, Workflow};
use crate::text::{Text, nearest};
use crate::values::{self, Scalar};

const TOP: [&str; 3] = ["name", "task", "file"];
const TASK: [&str; 10] = [
    "id",
    "name",
    "command",
    "job",
    "arguments",
    "runtime",
    "processors",
    "inputs",
    "outputs",
    "after",
];
const FILE: [&str; 2] = ["name", "size"];

type FieldValue<'i> = Spanned<DeValue<'i>>;

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    let parsed = DeTable::parse(text.as_str()).map_err(|error| {
        let at = error.span().map(|span| text.position(span.start));
        syntax(Format::Own, error.message(), at)
    })?;
    let mut reader = NativeReader { text, draft: Draft::default() };
    let top = parsed.get_ref();
    reader.keys(top, &TOP)?;
    if let Some(name) = top.get("name") {
        reader.draft.name = reader.string(name, "name")?;
    }
    for (file, at) in reader.tables(top.get("file"), "[[file]]")? {
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

    fn file(&mut self, table: &DeTable<'_>, at: Option<Position>) -> Result<(), WorkflowProblem> {
        self.keys(table, &FILE)?;
        let (Some(name), Some(size)) = (table.get("name"), table.get("size")) else {
            return Err(WorkflowProblem::value("a [[file]] needs a name and a size", at));
        };
        let place = self.at(size);
        let bytes = match (self.number(size), size.get_ref().as_str()) {
            (Some(number), _) => with_position(number.bytes(), place)?,
            (None, Some(text)) => with_position(values::size(text), place)?,
            (None, None) => return Err(self.must(size, "size", "bytes or a text as \"10 MB\"")),
        };
        let (place, name) = (self.at(name), self.string(name, "name")?);
        if self.draft.find_file(&name).is_some() {
            let reason = format!("there is another [[file]] {}", shown(&name));
            return Err(WorkflowProblem::value(reason, place));
        }
        let file = self.draft.file(&name, at);
        self.draft.size(file, SizeSource::List, bytes, place);
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
            let place = self.at(value);
            let seconds = match (self.number(value), value.get_ref().as_str()) {
                (Some(number), _) => match with_position(number.seconds(), place)? {
                    seconds if seconds <= 0.0 => {
                        return Err(WorkflowProblem::value(
                            "a runtime must be more than 0 s",
                            place,
                        ));
                    }
                    seconds => seconds,
                },
                (None, Some(text)) => with_position(values::duration(text), place)?,
                (None, None) => {
                    return Err(self.must(value, "runtime", "seconds or a text as \"30 s\""));
                }
            };
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
        for (key, reads) in [("inputs", true), ("outputs", false)] {
            for (name, place) in self.strings(table.get(key), key)? {
                let Some(file) = self.draft.find_file(&name) else {
                    let meant = nearest(&name, self.draft.file_names());
                    return Err(Cause::UnknownFile { name, meant }.at(place));
                };
                if reads { self.draft.reads(task, file) } else { self.draft.writes(task, file) }
            }
        }
        for (id, place) in self.strings(table.get("after"), "after")? {
            self.draft.edge(EdgeEnd::Id(id), EdgeEnd::Task(task), place);
        }
        Ok(())
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
}

#[derive(Serialize)]
struct WrittenFile<'w> {
    name: &'w str,
    size: WrittenSize,
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
        });
    }
    written.file = workflow
        .files
        .iter()
        .map(|file| WrittenFile { name: &file.name, size: size(file.bytes) })
        .collect();
    // Tables of texts and numbers can always be written.
    toml::to_string(&written).unwrap_or_default()
}
