//! Reads WfFormat of WfCommons, versions 1.3 to 1.6.
//!
//! Up to 1.4 a task has all its properties, and edges refer to tasks by name. From 1.5 on structure
//! and execution are separate, and edges refer to tasks by id. The keys of the file decide, not the
//! version that it states. The module [`fields`](crate::fields) has all keys.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{check_arguments, syntax, with_position};
use crate::draft::{Draft, EdgeEnd, SizeSource};
use crate::error::{Cause, WorkflowProblem, shown};
use crate::format::Format;
use crate::model::{Command, Position, Task, WorkflowWarning};
use crate::text::Text;
use crate::values::Scalar;

/// Unparsed pieces of the text, whose positions are known.
type Raws<'a> = Option<Vec<&'a RawValue>>;
type Raw<'a> = Option<&'a RawValue>;

#[derive(Deserialize)]
struct Top<'a> {
    name: Option<String>,
    #[serde(borrow)]
    workflow: Raw<'a>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    specification: Raw<'a>,
    #[serde(borrow)]
    execution: Raw<'a>,
    #[serde(borrow)]
    tasks: Raws<'a>,
    #[serde(borrow)]
    jobs: Raws<'a>,
}

#[derive(Deserialize)]
struct Specification<'a> {
    #[serde(borrow)]
    tasks: Raws<'a>,
    #[serde(borrow)]
    files: Raws<'a>,
}

#[derive(Deserialize)]
struct Execution<'a> {
    #[serde(borrow)]
    tasks: Raws<'a>,
}

/// The entry of a task in the structure.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskEntry<'a> {
    name: Option<String>,
    id: Option<String>,
    category: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    parents: Raws<'a>,
    #[serde(borrow)]
    children: Raws<'a>,
    #[serde(borrow)]
    input_files: Raws<'a>,
    #[serde(borrow)]
    output_files: Raws<'a>,
    #[serde(borrow)]
    files: Raws<'a>,
}

/// The entry of a task in the execution.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecutionEntry<'a> {
    id: Option<String>,
    #[serde(borrow)]
    runtime_in_seconds: Raw<'a>,
    #[serde(borrow)]
    runtime: Raw<'a>,
    #[serde(borrow)]
    core_count: Raw<'a>,
    #[serde(borrow)]
    cores: Raw<'a>,
    #[serde(borrow)]
    memory_in_bytes: Raw<'a>,
    /// In units of 1,024 bytes.
    #[serde(borrow)]
    memory: Raw<'a>,
    #[serde(borrow)]
    command: Raw<'a>,
}

#[derive(Deserialize)]
struct WfCommand {
    program: Option<String>,
    arguments: Option<Vec<String>>,
}

/// The entry of a file in the list, or of a task's file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileEntry<'a> {
    id: Option<String>,
    name: Option<String>,
    path: Option<String>,
    link: Option<String>,
    #[serde(borrow)]
    size_in_bytes: Raw<'a>,
    #[serde(borrow)]
    size: Raw<'a>,
}

/// The names of the fields of an object.
struct Keys<'a>(Vec<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Keys<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;

        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = Keys<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys<'de>, A::Error> {
                let mut keys = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    keys.push(key);
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_map(KeysVisitor)
    }
}

/// A key, which is a slice of the text unless it has escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The common part of the versions.
struct WfFormatReader<'a, 'b> {
    text: &'b Text<'a>,
    draft: Draft,
}

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    let whole: &RawValue =
        serde_json::from_str(text.as_str()).map_err(|error| wrong(&error, text, 0))?;
    let mut reader = WfFormatReader { text, draft: Draft::default() };
    let top: Top<'_> = reader.fields(whole, "", "")?;
    let Some(workflow) = top.workflow else {
        return Err(syntax(Format::WfFormat, "there is no key \"workflow\"", None));
    };
    let body: Body<'_> = reader.fields(workflow, "workflow", "")?;
    reader.draft.name = top.name.unwrap_or_default();
    match (body.specification, body.tasks.or(body.jobs)) {
        (Some(specification), _) => reader.read_separate(specification, body.execution)?,
        (None, Some(tasks)) => reader.read_combined(&tasks)?,
        (None, None) => {
            let reason =
                "\"workflow\" has neither \"specification\" (since 1.5) nor \"tasks\" (up to 1.4)";
            return Err(syntax(Format::WfFormat, reason, reader.at(workflow)));
        }
    }
    Ok(reader.draft)
}

impl<'a> WfFormatReader<'a, '_> {
    /// Parses a piece of the text.
    fn piece<T: Deserialize<'a>>(&self, raw: &'a RawValue) -> Result<T, WorkflowProblem> {
        let start =
            (raw.get().as_ptr() as usize).wrapping_sub(self.text.as_str().as_ptr() as usize);
        serde_json::from_str(raw.get()).map_err(|error| wrong(&error, self.text, start))
    }

    /// Parses an object: serde would accept an array as well.
    fn object<T: Deserialize<'a>>(&self, raw: &'a RawValue) -> Result<T, WorkflowProblem> {
        if raw.get().starts_with('{') {
            return self.piece(raw);
        }
        let reason = format!("there must be an object {{ }} here, found {}", shown(raw.get()));
        Err(syntax(Format::WfFormat, reason, self.at(raw)))
    }

    /// Reports the fields of an object to the tables of fields.
    fn report(
        &mut self,
        raw: &'a RawValue,
        place: &'static str,
        subject: Option<&str>,
    ) -> Result<(), WorkflowProblem> {
        let Keys(keys) = self.object(raw)?;
        for key in keys {
            let at = self.at(raw);
            self.draft.field(Format::WfFormat, place, &key, subject.unwrap_or_default(), at);
        }
        Ok(())
    }

    /// Parses an object, and reports its fields to the tables of fields.
    fn fields<T: Deserialize<'a>>(
        &mut self,
        raw: &'a RawValue,
        place: &'static str,
        subject: &str,
    ) -> Result<T, WorkflowProblem> {
        let object = self.object(raw)?;
        self.report(raw, place, Some(subject))?;
        Ok(object)
    }

    fn at(&self, raw: &RawValue) -> Option<Position> {
        Some(self.text.position_of(raw.get()))
    }

    /// Reads versions from 1.5 on.
    fn read_separate(
        &mut self,
        specification: &'a RawValue,
        execution: Raw<'a>,
    ) -> Result<(), WorkflowProblem> {
        let specification: Specification<'_> = self.fields(specification, "specification", "")?;
        let execution: Option<Execution<'_>> =
            execution.map(|raw| self.fields(raw, "execution", "")).transpose()?;
        for raw in specification.files.unwrap_or_default() {
            self.file(raw)?;
        }
        for raw in specification.tasks.unwrap_or_default() {
            self.task(raw)?;
        }
        let mut ran: HashMap<usize, Option<Position>> = HashMap::new();
        for raw in execution.and_then(|execution| execution.tasks).unwrap_or_default() {
            let run: ExecutionEntry<'_> = self.object(raw)?;
            let at = self.at(raw);
            let Some(id) = &run.id else {
                return Err(WorkflowProblem::value("a task of the execution has no \"id\"", at));
            };
            let Some(task) = self.draft.find_task(id) else {
                self.draft.warn(WorkflowWarning::NoSuchTask, id, at);
                continue;
            };
            if let Some(first) = ran.insert(task, at) {
                return Err(Cause::DuplicateId { id: id.clone(), first }.at(at));
            }
            self.report(raw, "task", run.id.as_deref())?;
            self.ran(task, run)?;
        }
        Ok(())
    }

    /// Reads versions up to 1.4.
    fn read_combined(&mut self, tasks: &[&'a RawValue]) -> Result<(), WorkflowProblem> {
        for raw in tasks {
            let task = self.task(raw)?;
            let run = self.object(raw)?;
            self.ran(task, run)?;
        }
        Ok(())
    }

    /// Adds a file of the list.
    fn file(&mut self, raw: &'a RawValue) -> Result<(), WorkflowProblem> {
        let listed: FileEntry<'_> = self.object(raw)?;
        self.report(raw, "file", listed.id.as_deref().or(listed.name.as_deref()))?;
        let at = self.at(raw);
        let Some(name) = listed.id.or(listed.name) else {
            return Err(WorkflowProblem::value("a file has no \"id\"", at));
        };
        let file = self.draft.file(&name, at);
        self.size(file, SizeSource::List, listed.size_in_bytes.or(listed.size))
    }

    fn size(
        &mut self,
        file: usize,
        says: SizeSource,
        size: Raw<'a>,
    ) -> Result<(), WorkflowProblem> {
        let Some(raw) = size else { return Ok(()) };
        let at = self.at(raw);
        let bytes = with_position(self.piece::<Scalar>(raw)?.bytes_unless_negative(), at)?;
        self.draft.size(file, says, bytes, at);
        Ok(())
    }

    fn task(&mut self, raw: &'a RawValue) -> Result<usize, WorkflowProblem> {
        let described: TaskEntry<'_> = self.object(raw)?;
        self.report(raw, "task", described.id.as_deref().or(described.name.as_deref()))?;
        let at = self.at(raw);
        let TaskEntry { name, id, category, kind, .. } = described;
        let Some(id) = id.or_else(|| name.clone()) else {
            return Err(WorkflowProblem::value("a task has neither \"id\" nor \"name\"", at));
        };
        // The types of 1.3 and 1.4 are compute, transfer and auxiliary: all of them take time.
        if let Some(kind) =
            kind.filter(|kind| matches!(kind.as_str(), "workflow" | "subworkflow" | "dax" | "dag"))
        {
            return Err(Cause::SubWorkflow { task: id, kind }.at(at));
        }
        let called = category.or_else(|| name.clone()).unwrap_or_else(|| id.clone());
        let task = self.draft.task(Task { name: called, at, ..Task::new(id) })?;
        if let Some(name) = name {
            self.draft.alias(task, name);
        }
        for raw in described.parents.unwrap_or_default() {
            self.draft.edge(EdgeEnd::Id(self.piece(raw)?), EdgeEnd::Task(task), self.at(raw));
        }
        for raw in described.children.unwrap_or_default() {
            self.draft.edge(EdgeEnd::Task(task), EdgeEnd::Id(self.piece(raw)?), self.at(raw));
        }
        for (files, reads) in [(described.input_files, true), (described.output_files, false)] {
            for raw in files.unwrap_or_default() {
                let name: String = self.piece(raw)?;
                let file = self.draft.file(&name, self.at(raw));
                if reads { self.draft.reads(task, file) } else { self.draft.writes(task, file) }
            }
        }
        for raw in described.files.unwrap_or_default() {
            self.used(task, raw)?;
        }
        Ok(task)
    }

    /// Adds a file of a task, up to 1.4.
    fn used(&mut self, task: usize, raw: &'a RawValue) -> Result<(), WorkflowProblem> {
        let listed: FileEntry<'_> = self.object(raw)?;
        self.report(raw, "file", listed.name.as_deref().or(listed.id.as_deref()))?;
        let at = self.at(raw);
        let Some(name) = listed.name.or(listed.id) else {
            return Err(WorkflowProblem::value("a file of a task has no \"name\"", at));
        };
        let name = listed.path.unwrap_or_default() + &name;
        let file = self.draft.file(&name, at);
        let says = match listed.link.as_deref() {
            Some("input") => {
                self.draft.reads(task, file);
                SizeSource::Reader
            }
            Some("output") => {
                self.draft.writes(task, file);
                SizeSource::Writer
            }
            _ => {
                return Err(WorkflowProblem::value(
                    "a file's \"link\" must be \"input\" or \"output\"",
                    at,
                ));
            }
        };
        self.size(file, says, listed.size_in_bytes.or(listed.size))
    }

    fn ran(&mut self, task: usize, run: ExecutionEntry<'a>) -> Result<(), WorkflowProblem> {
        if let Some(raw) = run.runtime_in_seconds.or(run.runtime) {
            let at = self.at(raw);
            let seconds = with_position(self.piece::<Scalar>(raw)?.seconds(), at)?;
            self.draft.runtime(task, seconds, at);
        }
        if let Some(raw) = run.core_count.or(run.cores) {
            let at = self.at(raw);
            let processors = with_position(self.piece::<Scalar>(raw)?.processors(), at)?;
            self.draft.processors(task, processors, at);
        }
        for (raw, unit) in [(run.memory_in_bytes, 1), (run.memory, 1024)] {
            let Some(raw) = raw else { continue };
            let at = self.at(raw);
            let size = with_position(self.piece::<Scalar>(raw)?.bytes_unless_negative(), at)?;
            self.draft.memory(task, size.map(|size| size.saturating_mul(unit)), at);
        }
        if let Some(raw) = run.command {
            let command: WfCommand = self.object(raw)?;
            let (id, at) = (self.draft.id(task).to_owned(), self.at(raw));
            self.report(raw, "command", Some(&id))?;
            if let WfCommand { program: Some(program), arguments } = command {
                let arguments = arguments.unwrap_or_default();
                check_arguments(&mut self.draft, &arguments, &id, at);
                if arguments.iter().any(|argument| argument.contains(' ')) {
                    self.draft.warn(WorkflowWarning::SpaceInArgument, &id, at);
                }
                self.draft.task_mut(task).command = Some(Command::Program { program, arguments });
            }
        }
        Ok(())
    }
}

/// The error of a piece that starts at a byte.
fn wrong(error: &serde_json::Error, text: &Text<'_>, start: usize) -> WorkflowProblem {
    let said = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = said.strip_suffix(&place).unwrap_or(&said);
    if error.is_eof() {
        return syntax(Format::WfFormat, format!("{reason}: was the file cut off?"), text.end());
    }
    let piece = text.position(start);
    let line = (piece.line as usize).saturating_add(error.line().saturating_sub(1));
    // The first line of a piece does not start at the start of a line.
    let at = match error.line() {
        0 | 1 => text.position(start.saturating_add(error.column().saturating_sub(1))),
        _ => text.position_in(line, error.column()),
    };
    syntax(Format::WfFormat, reason, at)
}
