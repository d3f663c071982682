//! Reads DAX of Pegasus, versions 2.1 to 3.6.
//!
//! A runtime is an attribute `runtime` of a job, as in the gallery of synthetic workflows, or its
//! profile or metadata `runtime`. The number of processors is the profile `pegasus:cores`,
//! otherwise `pegasus:nodes` times `pegasus:ppn`, otherwise `globus:count`. Files that are linked
//! neither as input nor as output are ignored.

use roxmltree::{Document, Error, Node, ParsingOptions};

use super::{syntax, with_position};
use crate::draft::{Draft, EdgeEnd, SizeSource};
use crate::error::{Cause, WorkflowProblem};
use crate::format::Format;
use crate::model::{Command, Position, Task};
use crate::text::Text;
use crate::values::{ProcessorCount, Scalar};

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
    let mut reader = DaxReader { text, draft: Draft::default() };
    if root.tag_name().name() != "adag" {
        let reason =
            format!("the outermost element must be <adag>, found <{}>", root.tag_name().name());
        return Err(syntax(Format::Dax, reason, reader.at(root)));
    }
    reader.draft.name = root.attribute("name").unwrap_or_default().to_owned();
    for node in root.children().filter(Node::is_element) {
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

struct DaxReader<'a, 'b> {
    text: &'b Text<'a>,
    draft: Draft,
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

    fn job(&mut self, job: Node<'_, '_>) -> Result<(), WorkflowProblem> {
        let (id, name) = (self.needed(job, "id")?, self.needed(job, "name")?);
        let task =
            self.draft.task(Task { name: name.to_owned(), at: self.at(job), ..Task::new(id) })?;
        let mut runtime = job.attribute("runtime").map(|text| (text, job));
        let (mut cores, mut nodes, mut ppn, mut count) = (None, None, None, None);
        for node in job.children().filter(Node::is_element) {
            let text = || (node.text().unwrap_or_default(), node);
            let (space, key) = (node.attribute("namespace"), node.attribute("key"));
            match (node.tag_name().name(), space, key) {
                ("argument", ..) => {
                    let arguments = arguments(node);
                    let program = name.to_owned();
                    self.draft.task_mut(task).command =
                        Some(Command::Program { program, arguments });
                }
                ("metadata", _, Some("runtime"))
                | ("profile", Some("pegasus"), Some("runtime")) => {
                    runtime = runtime.or_else(|| Some(text()));
                }
                ("profile", Some("pegasus"), Some("cores")) => cores = Some(text()),
                ("profile", Some("pegasus"), Some("nodes")) => nodes = Some(text()),
                ("profile", Some("pegasus"), Some("ppn")) => ppn = Some(text()),
                ("profile", Some("globus"), Some("count")) => count = Some(text()),
                ("stdin", ..) => self.uses(task, node, "input")?,
                ("stdout" | "stderr", ..) => self.uses(task, node, "output")?,
                ("uses", ..) => self.uses(task, node, "none")?,
                _ => {}
            }
        }
        if let Some((text, node)) = runtime {
            let at = self.at(node);
            let seconds = with_position(Scalar::text(text).seconds_from_0(), at)?;
            self.draft.runtime(task, seconds, at);
        }
        let number = |(text, node)| with_position(Scalar::text(text).processors(), self.at(node));
        let at = |found: Option<(&str, Node<'_, '_>)>| found.and_then(|(_, node)| self.at(node));
        let (processors, at) = match (cores, nodes, count) {
            (Some(cores), ..) => (number(cores)?, at(Some(cores))),
            (None, Some(nodes), _) => {
                let (nodes, place) = (number(nodes)?, at(Some(nodes)));
                let ppn = ppn.map(number).transpose()?.unwrap_or(ProcessorCount::exact(1));
                let product = nodes.times(ppn);
                let product = product.ok_or_else(|| {
                    WorkflowProblem::value("no machine has this number of processors", place)
                })?;
                (product, place)
            }
            (None, None, Some(count)) => (number(count)?, at(Some(count))),
            (None, None, None) => return Ok(()),
        };
        self.draft.processors(task, processors, at);
        Ok(())
    }

    /// Adds a file of a job; `link` is its use if the element has none.
    fn uses(&mut self, task: usize, node: Node<'_, '_>, link: &str) -> Result<(), WorkflowProblem> {
        let link = node.attribute("link").unwrap_or(link);
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
                return Err(WorkflowProblem::value(reason, self.at(node)));
            }
        };
        let at = self.at(node);
        // Up to 2.1 the attribute is named `file`.
        let name = match node.attribute("name").or_else(|| node.attribute("file")) {
            Some(name) => name,
            None => self.needed(node, "name")?,
        };
        let file = self.draft.file(name, at);
        if reads {
            self.draft.reads(task, file);
        }
        if writes {
            self.draft.writes(task, file);
        }
        let metadata = node.children().find(|child| {
            child.has_local_name("metadata") && child.attribute("key") == Some("size")
        });
        let size = node.attribute("size").or_else(|| metadata.and_then(|metadata| metadata.text()));
        if let Some(size) = size.filter(|size| !size.trim().is_empty()) {
            let bytes = with_position(Scalar::text(size).bytes(), at)?;
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
        for parent in child.children().filter(|node| node.has_local_name("parent")) {
            let of = self.needed(parent, "ref")?;
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

/// The words of a command line, which consists of text and names of files.
fn arguments(node: Node<'_, '_>) -> Vec<String> {
    let mut line = String::new();
    for part in node.children() {
        if part.is_text() {
            line.push_str(part.text().unwrap_or_default());
        } else if part.is_element() {
            let name = part.attribute("name").or_else(|| part.attribute("file"));
            line.push_str(name.unwrap_or_default());
        }
    }
    line.split_whitespace().map(str::to_owned).collect()
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
