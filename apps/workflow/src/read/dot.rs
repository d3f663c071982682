//! Reads DOT of Graphviz, as daggen, DSLab and people write it: a subset, of directed graphs.
//!
//! Nodes are tasks. These attributes of nodes are known:
//!
//! - `label`: the name;
//! - `runtime` or `weight`: the runtime in seconds;
//! - `procs`, `processors` or `cores`: the number of processors;
//! - `size`: the task's work in floating-point operations, as daggen has it. With the speed of a
//!   processor (`Overrides::flop_per_s`) it gives a runtime.
//!
//! These attributes of edges are known: `size`, `bytes` or `weight`, the bytes of a file that goes
//! from one task to the other. Edges from one task with the same `label` mean the same file, which
//! has that name. Edges without these attributes only define the order. All other attributes, such
//! as daggen's `alpha`, are ignored.
//!
//! Other supported constructs are `node [..]` and `edge [..]` defaults, chains `a -> b -> c`,
//! subgraphs as mere brackets, ports, quoted and HTML names, and comments. Not supported are
//! undirected graphs, and edges from or to subgraphs.

mod tokens;

use std::collections::{BTreeMap, HashMap};

use self::tokens::{Token, Tokens};
use super::with_position;
use crate::draft::{Draft, EdgeEnd, SizeSource};
use crate::error::WorkflowProblem;
use crate::model::{Position, Task};
use crate::text::Text;
use crate::values::Scalar;

/// The maximum depth of subgraphs.
const DEPTH_MAX: usize = 64;

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    let mut reader =
        DotReader { tokens: Tokens::new(text), draft: Draft::default(), files: HashMap::new() };
    reader.graph()?;
    Ok(reader.draft)
}

/// Attributes, each with the position of its value.
type Attributes = BTreeMap<String, (String, Option<Position>)>;

/// The default attributes of nodes and edges.
#[derive(Clone, Default)]
struct Defaults {
    node: Attributes,
    edge: Attributes,
}

/// The known attributes of nodes and of edges.
const NODE: [&str; 7] = ["label", "runtime", "weight", "procs", "processors", "cores", "size"];
const EDGE: [&str; 4] = ["label", "size", "bytes", "weight"];

struct DotReader<'a, 'b> {
    tokens: Tokens<'a, 'b>,
    draft: Draft,
    /// Files, by the task that writes them and their label.
    files: HashMap<(usize, String), usize>,
}

impl DotReader<'_, '_> {
    fn graph(&mut self) -> Result<(), WorkflowProblem> {
        let (mut word, mut byte) = self.tokens.next()?;
        if word.is_word("strict") {
            (word, byte) = self.tokens.next()?;
        }
        if word.is_word("graph") {
            return Err(self.tokens.wrong(
                "the graph is undirected: tasks need edges with a direction, \"digraph\"",
                byte,
            ));
        }
        if !word.is_word("digraph") {
            return Err(self.tokens.unexpected("\"digraph\"", &word, byte));
        }
        if !matches!(self.tokens.peek()?, Token::Sign(_)) {
            self.draft.name = self.tokens.id("the graph's name")?.0;
        }
        self.tokens.expect('{')?;
        let mut scopes = vec![Defaults::default()];
        while let Some(defaults) = scopes.last_mut() {
            let (token, byte) = self.tokens.next()?;
            match token {
                Token::Sign(';' | ',') => {}
                Token::Sign('}') => {
                    scopes.pop();
                    if !scopes.is_empty() && *self.tokens.peek()? == Token::Arrow {
                        return Err(self.group(byte));
                    }
                }
                Token::Sign('{') => {
                    let inner = defaults.clone();
                    scopes.push(inner);
                    if scopes.len() > DEPTH_MAX {
                        return Err(self
                            .tokens
                            .wrong(format!("subgraphs are deeper than {DEPTH_MAX}"), byte));
                    }
                }
                word if word.is_word("subgraph") => {
                    if !matches!(self.tokens.peek()?, Token::Sign(_)) {
                        self.tokens.id("the subgraph's name")?;
                    }
                    if *self.tokens.peek()? != Token::Sign('{') {
                        let (found, byte) = self.tokens.next()?;
                        return Err(self.tokens.unexpected("\"{\"", &found, byte));
                    }
                }
                word if word.is_word("graph") => {
                    self.attributes(&mut Attributes::new(), &[])?;
                }
                word if word.is_word("node") => self.attributes(&mut defaults.node, &NODE)?,
                word if word.is_word("edge") => self.attributes(&mut defaults.edge, &EDGE)?,
                Token::Id { text, .. } => self.statement(text, byte, defaults)?,
                found => return Err(self.tokens.unexpected("a task or an edge", &found, byte)),
            }
        }
        match self.tokens.next()? {
            (Token::End, _) => Ok(()),
            (found, byte) => {
                let reason = format!("the graph has ended before {}", found.shown());
                Err(self.tokens.wrong(reason, byte))
            }
        }
    }

    fn group(&self, byte: usize) -> WorkflowProblem {
        self.tokens.wrong(
            "edges from or to a group { } are not read: write one edge for each of its tasks",
            byte,
        )
    }

    /// Parses the rest of a node, of edges, or of an attribute of the graph, after its first word.
    fn statement(
        &mut self,
        first: String,
        byte: usize,
        defaults: &Defaults,
    ) -> Result<(), WorkflowProblem> {
        if self.tokens.sign('=')? {
            self.tokens.id("a value")?;
            return Ok(());
        }
        let mut chain = vec![self.node(first, byte, defaults)?];
        let start = self.tokens.text.position(byte);
        loop {
            if self.tokens.sign(':')? {
                self.tokens.id("a port")?;
                continue;
            }
            match self.tokens.peek()? {
                Token::Arrow => {}
                Token::Line => {
                    let (_, byte) = self.tokens.next()?;
                    return Err(self
                        .tokens
                        .wrong("an edge must be \"->\", for \"--\" has no direction", byte));
                }
                _ => break,
            }
            self.tokens.next()?;
            if *self.tokens.peek()? == Token::Sign('{') || self.tokens.peek()?.is_word("subgraph") {
                let (_, byte) = self.tokens.next()?;
                return Err(self.group(byte));
            }
            let (to, byte) = self.tokens.id("a task")?;
            chain.push(self.node(to, byte, defaults)?);
        }
        if let [task] = *chain {
            let mut attributes = Attributes::new();
            self.attributes(&mut attributes, &NODE)?;
            return self.say(task, &attributes);
        }
        let mut attributes = defaults.edge.clone();
        self.attributes(&mut attributes, &EDGE)?;
        for ends in chain.windows(2) {
            if let [from, to] = *ends {
                self.edge(from, to, &attributes, start)?;
            }
        }
        Ok(())
    }

    /// Returns the task of a node; a new one gets the defaults of nodes.
    fn node(
        &mut self,
        id: String,
        byte: usize,
        defaults: &Defaults,
    ) -> Result<usize, WorkflowProblem> {
        if let Some(task) = self.draft.find_task(&id) {
            return Ok(task);
        }
        let at = Some(self.tokens.text.position(byte));
        let task = self.draft.task(Task { at, ..Task::new(id) })?;
        self.say(task, &defaults.node)?;
        Ok(task)
    }

    fn say(&mut self, task: usize, attributes: &Attributes) -> Result<(), WorkflowProblem> {
        let get = |names: &[&str]| names.iter().find_map(|name| attributes.get(*name));
        if let Some((label, _)) =
            get(&["label"]).filter(|(label, _)| !label.is_empty() && label != "\\N")
        {
            self.draft.task_mut(task).name = label.clone();
        }
        if let Some((text, at)) = get(&["runtime", "weight"]) {
            let seconds = with_position(Scalar::text(text).seconds(), *at)?;
            self.draft.runtime(task, seconds, *at);
        }
        if let Some((text, at)) = get(&["procs", "processors", "cores"]) {
            let processors = with_position(Scalar::text(text).processors(), *at)?;
            self.draft.processors(task, processors, *at);
        }
        if let Some((text, at)) = get(&["size"]) {
            self.draft.flop(task, with_position(Scalar::text(text).flop(), *at)?);
        }
        Ok(())
    }

    fn edge(
        &mut self,
        from: usize,
        to: usize,
        attributes: &Attributes,
        at: Position,
    ) -> Result<(), WorkflowProblem> {
        self.draft.edge(EdgeEnd::Task(from), EdgeEnd::Task(to), Some(at));
        let size = ["size", "bytes", "weight"].into_iter().find_map(|name| attributes.get(name));
        let Some((text, place)) = size else { return Ok(()) };
        let bytes = with_position(Scalar::text(text).bytes_unless_negative(), *place)?;
        let ends = format!("{} -> {}", self.draft.id(from), self.draft.id(to));
        let label = attributes
            .get("label")
            .map(|(label, _)| label.clone())
            .filter(|label| !label.is_empty());
        let key = (from, label.clone().unwrap_or_else(|| ends.clone()));
        let file = match self.files.get(&key) {
            Some(file) => *file,
            None => {
                // A label that is another task's file already cannot be the name of this one.
                let free = |name: &String| self.draft.find_file(name).is_none();
                let mut name = label.filter(free).unwrap_or(ends);
                while !free(&name) {
                    name.push('\'');
                }
                let file = self.draft.file(&name, Some(at));
                self.files.insert(key, file);
                self.draft.writes(from, file);
                file
            }
        };
        self.draft.size(file, SizeSource::Writer, bytes, *place);
        self.draft.reads(to, file);
        Ok(())
    }

    /// Parses lists in brackets, if there are any, and keeps the attributes with these names.
    fn attributes(&mut self, kept: &mut Attributes, names: &[&str]) -> Result<(), WorkflowProblem> {
        while self.tokens.sign('[')? {
            while !self.tokens.sign(']')? {
                if self.tokens.sign(',')? || self.tokens.sign(';')? {
                    continue;
                }
                let (name, _) = self.tokens.id("an attribute or \"]\"")?;
                // An attribute without a value is true, which no known attribute can be.
                if !self.tokens.sign('=')? {
                    continue;
                }
                let (value, byte) = self.tokens.id("a value")?;
                let name = name.to_ascii_lowercase();
                if names.contains(&name.as_str()) {
                    kept.insert(name, (value, Some(self.tokens.text.position(byte))));
                }
            }
        }
        Ok(())
    }
}
