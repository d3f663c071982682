//! Reads DAX of Pegasus, versions 2.1 to 3.6.
//!
//! A runtime is an attribute `runtime` of a job, as in the gallery of synthetic workflows, or its
//! profile or metadata `runtime`. Files that are linked neither as input nor as output are ignored.
//! The module [`fields`](crate::fields) has all elements and attributes.

use std::collections::BTreeMap;

use roxmltree::{Document, Error, Node, ParsingOptions};

use super::profiles::Profiles;
use super::{check_arguments, syntax, with_position};
use crate::arguments;
use crate::draft::{Draft, EdgeEnd, SizeSource, Stream};
use crate::error::{Cause, WorkflowProblem};
use crate::format::Format;
use crate::model::{Command, FileSource, Position, Task, local_path};
use crate::text::Text;
use crate::values::Scalar;

/// The maximum number of nodes of a document; a task with its files has ten to a hundred.
const NODES_MAX: u32 = 20_000_000;

/// The maximum length of a tag, in bytes: the time for a tag is quadratic in its attributes.
const TAG_MAX: usize = 16 << 10;

/// The maximum number of declared namespaces. Each element with a declaration gets a list of all
/// outer ones; a DAX needs two in all.
const NAMESPACES_MAX: usize = 64;

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    tags_are_short(text)?;
    if text.as_str().matches("xmlns").nth(NAMESPACES_MAX).is_some() {
        return Err(Cause::TooMany { what: "XML namespaces", limit: NAMESPACES_MAX }.at(None));
    }
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text.as_str(), options)
        .map_err(|error| wrong(&error, text))?;
    let root = document.root_element();
    let mut reader = DaxReader {
        text,
        draft: Draft::default(),
        executables: BTreeMap::new(),
        sources: BTreeMap::new(),
        always_runs: false,
    };
    if root.tag_name().name() != "adag" {
        let reason =
            format!("the outermost element must be <adag>, found <{}>", root.tag_name().name());
        return Err(syntax(Format::Dax, reason, reader.at(root)));
    }
    reader.draft.name = root.attribute("name").unwrap_or_default().to_owned();
    reader.always_runs = root.attribute("version").is_some_and(is_3_or_later);
    reader.attributes(root, "adag", "");
    let elements = || root.children().filter(Node::is_element);
    // A job may stand before the executable that it runs.
    for node in elements().filter(|node| node.has_local_name("executable")) {
        reader.executable(node);
    }
    for node in elements().filter(|node| node.has_local_name("file")) {
        reader.replica(node)?;
    }
    for node in elements() {
        reader.element(node, "adag/", "");
        match node.tag_name().name() {
            "job" => reader.job(node)?,
            kind @ ("dag" | "dax" | "adag") => {
                let task = node.attribute("id").unwrap_or_default().to_owned();
                return Err(
                    Cause::SubWorkflow { task, kind: format!("<{kind}>") }.at(reader.at(node))
                );
            }
            "child" => reader.child(node)?,
            _ => {}
        }
    }
    Ok(reader.draft)
}

/// Whether a version is of the kind in which every job runs a program.
fn is_3_or_later(version: &str) -> bool {
    let major = version.split('.').next().unwrap_or_default();
    major.trim().parse().is_ok_and(|major: u32| major >= 3)
}

/// The namespace, the name and the version of a program.
type Transformation = (String, String, String);

/// A program that the document describes.
#[derive(Default)]
struct Executable {
    /// The path, if the document has one on this system.
    path: Option<String>,
    profiles: Profiles,
}

struct DaxReader<'a, 'b> {
    text: &'b Text<'a>,
    draft: Draft,
    executables: BTreeMap<Transformation, Executable>,
    /// The places of files, by name.
    sources: BTreeMap<String, FileSource>,
    /// Whether a job without arguments runs its program.
    always_runs: bool,
}

impl DaxReader<'_, '_> {
    fn at(&self, node: Node<'_, '_>) -> Option<Position> {
        Some(self.text.position(node.range().start))
    }

    fn needed<'n>(&self, node: Node<'n, '_>, name: &str) -> Result<&'n str, WorkflowProblem> {
        node.attribute(name).ok_or_else(|| {
            WorkflowProblem::value(
                format!("<{}> has no attribute {name}", node.tag_name().name()),
                self.at(node),
            )
        })
    }

    /// Reports an element to the tables of fields.
    fn element(&mut self, node: Node<'_, '_>, place: &'static str, subject: &str) {
        let at = self.at(node);
        self.draft.field(Format::Dax, place, node.tag_name().name(), subject, at);
    }

    /// Reports the attributes of an element to the tables of fields.
    fn attributes(&mut self, node: Node<'_, '_>, place: &'static str, subject: &str) {
        let at = self.at(node);
        for attribute in node.attributes().filter(|attribute| attribute.namespace().is_none()) {
            let (name, value) = (attribute.name(), attribute.value());
            // What is not optional is written by every task.
            if name != "optional" || matches!(value.trim(), "true" | "1") {
                self.draft.field(Format::Dax, place, name, subject, at);
            }
        }
    }

    fn executable(&mut self, node: Node<'_, '_>) {
        let key = transformation(node);
        self.attributes(node, "executable", &key.1);
        let mut executable = Executable::default();
        for child in node.children().filter(Node::is_element) {
            self.element(child, "executable/", &key.1);
            match child.tag_name().name() {
                "pfn" if executable.path.is_none() => {
                    executable.path = child.attribute("url").and_then(local_path);
                }
                "profile" => self.profile(child, &mut executable.profiles),
                _ => {}
            }
        }
        self.executables.insert(key, executable);
    }

    /// Reads the place of a file.
    fn replica(&mut self, node: Node<'_, '_>) -> Result<(), WorkflowProblem> {
        let name = self.needed(node, "name")?;
        self.attributes(node, "file", name);
        for child in node.children().filter(Node::is_element) {
            self.element(child, "file/", name);
            let source = child.attribute("url").and_then(FileSource::parse);
            if let Some(source) = source.filter(|_| child.has_local_name("pfn")) {
                self.sources.entry(name.to_owned()).or_insert(source);
            }
        }
        Ok(())
    }

    fn profile(&self, node: Node<'_, '_>, profiles: &mut Profiles) {
        let (space, key) = (node.attribute("namespace"), node.attribute("key"));
        if let (Some(space), Some(key)) = (space, key) {
            profiles.insert(space, key, node.text().unwrap_or_default().trim(), self.at(node));
        }
    }

    fn job(&mut self, job: Node<'_, '_>) -> Result<(), WorkflowProblem> {
        let (id, name) = (self.needed(job, "id")?, self.needed(job, "name")?);
        let task =
            self.draft.task(Task { name: name.to_owned(), at: self.at(job), ..Task::new(id) })?;
        self.attributes(job, "job", id);
        let (mut arguments, mut profiles, mut metadata) = (None, Profiles::default(), None);
        for node in job.children().filter(Node::is_element) {
            self.element(node, "job/", id);
            match node.tag_name().name() {
                "argument" => arguments = Some(self.arguments(node, id)?),
                "metadata" if node.attribute("key") == Some("runtime") => {
                    metadata = Some((node.text().unwrap_or_default(), self.at(node)));
                }
                "profile" => self.profile(node, &mut profiles),
                "stdin" => self.uses(task, node, "input", Some(Stream::Stdin))?,
                "stdout" => self.uses(task, node, "output", Some(Stream::Stdout))?,
                "stderr" => self.uses(task, node, "output", Some(Stream::Stderr))?,
                "uses" => self.uses(task, node, "none", None)?,
                _ => {}
            }
        }
        let executable = self.executables.get(&transformation(job));
        if arguments.is_some() || self.always_runs || executable.is_some() {
            let path = executable.and_then(|executable| executable.path.clone());
            let program = path.unwrap_or_else(|| name.to_owned());
            let arguments = arguments.unwrap_or_default();
            self.draft.task_mut(task).command = Some(Command::Program { program, arguments });
        }
        if let Some(executable) = executable {
            profiles.replace_by(&executable.profiles);
        }
        let runtime = job.attribute("runtime").map(|text| (Scalar::text(text), self.at(job)));
        let metadata = || metadata.map(|(text, at)| (Scalar::text(text), at));
        if let Some((value, at)) = runtime.or_else(|| profiles.runtime()).or_else(metadata) {
            let seconds = with_position(value.seconds(), at)?;
            self.draft.runtime(task, seconds, at);
        }
        profiles.apply(&mut self.draft, task, Format::Dax)
    }

    /// The arguments of a command line, which consists of text and names of files.
    fn arguments(&mut self, node: Node<'_, '_>, id: &str) -> Result<Vec<String>, WorkflowProblem> {
        let (mut line, mut follows_file) = (String::new(), false);
        for part in node.children() {
            if part.is_text() {
                line.push_str(part.text().unwrap_or_default());
                follows_file = false;
            } else if part.is_element() {
                self.element(part, "argument/", id);
                let name = part.attribute("name").or_else(|| part.attribute("file"));
                // Names of files without text between them are arguments of their own.
                if follows_file {
                    line.push(' ');
                }
                line.push_str(name.unwrap_or_default());
                follows_file = true;
            }
        }
        let at = self.at(node);
        let arguments = arguments::split(&line)
            .map_err(|mistake| WorkflowProblem::value(mistake.reason(), at))?;
        check_arguments(&mut self.draft, &arguments, id, at);
        Ok(arguments)
    }

    /// Adds a file of a job; `link` is its use if the element has none.
    fn uses(
        &mut self,
        task: usize,
        node: Node<'_, '_>,
        link: &str,
        stream: Option<Stream>,
    ) -> Result<(), WorkflowProblem> {
        let at = self.at(node);
        // Up to 2.1 the attribute is named `file`.
        let name = match node.attribute("name").or_else(|| node.attribute("file")) {
            Some(name) => name,
            None => self.needed(node, "name")?,
        };
        self.attributes(node, "uses", name);
        let mut source = None;
        for child in node.children().filter(Node::is_element) {
            self.element(child, "uses/", name);
            if child.has_local_name("pfn") && source.is_none() {
                source = child.attribute("url").and_then(FileSource::parse);
            }
        }
        // The element of a stream defines its direction.
        let link = node.attribute("link").filter(|_| stream.is_none()).unwrap_or(link);
        let (reads, writes) = match link {
            "input" => (true, false),
            "output" => (false, true),
            "inout" => (true, true),
            "none" | "checkpoint" => return Ok(()),
            _ => {
                let reason = format!(
                    "a link must be input, output, inout, checkpoint or none, found {}",
                    crate::error::shown(link)
                );
                return Err(WorkflowProblem::value(reason, at));
            }
        };
        let file = self.draft.file(name, at);
        if let Some(source) = source.or_else(|| self.sources.get(name).cloned()) {
            self.draft.source(file, source);
        }
        match stream {
            Some(stream) => self.draft.redirect(task, stream, file),
            None => {
                if reads {
                    self.draft.reads(task, file);
                }
                if writes {
                    self.draft.writes(task, file);
                }
            }
        }
        let metadata = node.children().find(|child| {
            child.has_local_name("metadata") && child.attribute("key") == Some("size")
        });
        let size = node.attribute("size").or_else(|| metadata.and_then(|metadata| metadata.text()));
        if let Some(size) = size.filter(|size| !size.trim().is_empty()) {
            let bytes = with_position(Scalar::text(size).bytes_unless_negative(), at)?;
            self.draft.size(
                file,
                if writes { SizeSource::Writer } else { SizeSource::Reader },
                bytes,
                at,
            );
        }
        Ok(())
    }

    fn child(&mut self, child: Node<'_, '_>) -> Result<(), WorkflowProblem> {
        let id = self.needed(child, "ref")?;
        self.attributes(child, "child", id);
        for parent in child.children().filter(Node::is_element) {
            self.element(parent, "child/", id);
            if !parent.has_local_name("parent") {
                continue;
            }
            let of = self.needed(parent, "ref")?;
            self.attributes(parent, "parent", id);
            self.draft.edge(
                EdgeEnd::Id(of.to_owned()),
                EdgeEnd::Id(id.to_owned()),
                self.at(parent),
            );
        }
        Ok(())
    }
}

trait LocalName {
    /// Whether this is an element of this name, in any namespace: versions differ in it.
    fn has_local_name(&self, name: &str) -> bool;
}

impl LocalName for Node<'_, '_> {
    fn has_local_name(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

/// The program that an element names.
fn transformation(node: Node<'_, '_>) -> Transformation {
    let part = |name| node.attribute(name).unwrap_or_default().to_owned();
    (part("namespace"), part("name"), part("version"))
}

/// Checks that no tag is longer than [`TAG_MAX`].
fn tags_are_short(text: &Text<'_>) -> Result<(), WorkflowProblem> {
    let mut open = None;
    for (at, byte) in text.as_str().bytes().enumerate() {
        match (byte, open) {
            (b'<', _) => open = Some(at),
            (b'>', _) => open = None,
            (_, Some(start)) if at - start > TAG_MAX => {
                // Comments and similar constructs have no attributes.
                if !text.as_str()[start..].starts_with("<!") {
                    let reason = format!("a tag is longer than {TAG_MAX} bytes");
                    return Err(syntax(Format::Dax, reason, text.position(start)));
                }
                open = None;
            }
            _ => {}
        }
    }
    Ok(())
}

fn wrong(error: &Error, text: &Text<'_>) -> WorkflowProblem {
    let said = error.to_string();
    let reason = match error {
        Error::DtdDetected => {
            let at = text.as_str().find("<!DOCTYPE").map(|byte| text.position(byte));
            return syntax(
                Format::Dax,
                "it has a DTD, which is not read: take the <!DOCTYPE ...> out",
                at,
            );
        }
        Error::NodesLimitReached => {
            let limit = NODES_MAX as usize;
            return Cause::TooMany { what: "XML nodes", limit }.at(None);
        }
        Error::NoRootNode | Error::UnclosedRootNode | Error::UnexpectedEndOfStream => {
            return syntax(Format::Dax, format!("{said}: was the file cut off?"), text.end());
        }
        _ => said.strip_suffix(&format!(" at {}", error.pos())).unwrap_or(&said),
    };
    let place = error.pos();
    // Its columns count characters, as ours do.
    syntax(Format::Dax, reason, Position { line: place.row.max(1), column: place.col.max(1) })
}
