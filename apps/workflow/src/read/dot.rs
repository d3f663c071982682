//! Reads DOT of Graphviz, as daggen, DSLab and people write it: a subset, of directed graphs.
//!
//! Nodes are tasks, and the module [`fields`](crate::fields) has their attributes. A name is the
//! first line of a label, as Snakemake writes the rule there. With the speed of a processor
//! (`Overrides::flop_per_s`) daggen's `size` gives a runtime.
//!
//! Edges from one task with the same `label` mean the same file, which has that name. Edges without
//! a size only define the order.
//!
//! Nextflow draws operators and channels as points and circles between processes. These nodes are
//! contracted: a process depends on the processes from which there is a path of such nodes to it.
//!
//! Other supported constructs are `node [..]` and `edge [..]` defaults, chains `a -> b -> c`,
//! subgraphs as mere brackets, ports, quoted and HTML names, and comments. Not supported are
//! undirected graphs, and edges from or to subgraphs.

mod label;
mod tokens;

use std::collections::{BTreeMap, HashMap};

use self::label::Label;
use self::tokens::{Token, Tokens};
use super::with_position;
use crate::draft::{Draft, EDGES_MAX, EdgeEnd, SizeSource};
use crate::error::{Cause, WorkflowProblem};
use crate::format::Format;
use crate::model::{Position, Task};
use crate::text::Text;
use crate::values::{Scalar, duration, size};

/// The maximum depth of subgraphs.
const DEPTH_MAX: usize = 64;

/// The maximum number of steps along edges of operators, which a small file can require.
const STEPS_MAX: usize = 100_000_000;

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    let mut reader = DotReader {
        tokens: Tokens::new(text),
        draft: Draft::default(),
        nodes: Vec::new(),
        ids: HashMap::new(),
        edges: Vec::new(),
        files: HashMap::new(),
    };
    reader.graph()?;
    reader.finish()
}

/// The value of an attribute.
#[derive(Clone, Debug)]
struct AttributeValue {
    text: String,
    is_html: bool,
    at: Option<Position>,
}

/// Attributes by their names.
#[derive(Clone, Debug, Default)]
struct Attributes(BTreeMap<String, AttributeValue>);

/// Names of one attribute.
const RUNTIME: [&str; 2] = ["runtime", "weight"];
const PROCESSORS: [&str; 3] = ["procs", "processors", "cores"];
const BYTES: [&str; 3] = ["size", "bytes", "weight"];

impl Attributes {
    fn get(&self, names: &[&str]) -> Option<&AttributeValue> {
        names.iter().find_map(|name| self.0.get(*name))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.text.as_str())
    }

    /// Adds attributes, which replace those with the same name or another name for it.
    fn replace_by(&mut self, other: Self, synonyms: &[&[&str]]) {
        for names in synonyms.iter().filter(|names| other.get(names).is_some()) {
            names.iter().for_each(|name| {
                self.0.remove(*name);
            });
        }
        self.0.extend(other.0);
    }
}

/// The default attributes of nodes and edges.
#[derive(Clone, Default)]
struct Defaults {
    node: Attributes,
    edge: Attributes,
}

struct DotNode {
    id: String,
    at: Option<Position>,
    attributes: Attributes,
}

impl DotNode {
    /// Whether this is an operator or a channel of Nextflow, and no process.
    fn is_operator(&self) -> bool {
        let digits = self.id.strip_prefix(['p', 'v']);
        let is_numbered = digits.is_some_and(|digits| {
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        });
        let has_label = self.attributes.text("label").is_some_and(|label| !label.is_empty());
        let is_drawn_small = match self.attributes.text("shape") {
            Some("point") => true,
            Some("circle") => self.attributes.text("xlabel").is_some(),
            _ => false,
        };
        is_numbered && is_drawn_small && !has_label
    }
}

struct DotEdge {
    from: usize,
    to: usize,
    attributes: Attributes,
    at: Position,
}

/// The attributes of nodes and of edges that define tasks.
const NODE: [&str; 12] = [
    "label",
    "runtime",
    "weight",
    "procs",
    "processors",
    "cores",
    "memory",
    "gpus",
    "walltime",
    "size",
    "shape",
    "xlabel",
];
const EDGE: [&str; 4] = ["label", "size", "bytes", "weight"];

struct DotReader<'a, 'b> {
    tokens: Tokens<'a, 'b>,
    draft: Draft,
    nodes: Vec<DotNode>,
    /// The nodes by their ids.
    ids: HashMap<String, usize>,
    edges: Vec<DotEdge>,
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
                    self.attributes("graph", &[], "")?;
                }
                word if word.is_word("node") => {
                    let attributes = self.attributes("node", &NODE, "")?;
                    defaults.node.replace_by(attributes, &[&RUNTIME, &PROCESSORS]);
                }
                word if word.is_word("edge") => {
                    let attributes = self.attributes("edge", &EDGE, "")?;
                    defaults.edge.replace_by(attributes, &[&BYTES]);
                }
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
        let mut chain = vec![self.node(first, byte, defaults)];
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
            chain.push(self.node(to, byte, defaults));
        }
        if let [node] = *chain {
            let id = self.nodes[node].id.clone();
            let attributes = self.attributes("node", &NODE, &id)?;
            self.nodes[node].attributes.replace_by(attributes, &[&RUNTIME, &PROCESSORS]);
            return Ok(());
        }
        let id = chain.first().map_or_else(String::new, |node| self.nodes[*node].id.clone());
        let mut attributes = defaults.edge.clone();
        attributes.replace_by(self.attributes("edge", &EDGE, &id)?, &[&BYTES]);
        for ends in chain.windows(2) {
            if let [from, to] = *ends {
                let attributes = attributes.clone();
                self.edges.push(DotEdge { from, to, attributes, at: start });
            }
        }
        Ok(())
    }

    /// Returns the index of a node; a new one gets the defaults of nodes.
    fn node(&mut self, id: String, byte: usize, defaults: &Defaults) -> usize {
        if let Some(node) = self.ids.get(&id) {
            return *node;
        }
        let at = Some(self.tokens.text.position(byte));
        self.ids.insert(id.clone(), self.nodes.len());
        self.nodes.push(DotNode { id, at, attributes: defaults.node.clone() });
        self.nodes.len() - 1
    }

    /// Makes tasks of nodes and dependencies of edges.
    fn finish(mut self) -> Result<Draft, WorkflowProblem> {
        let mut operators: Vec<bool> = self.nodes.iter().map(DotNode::is_operator).collect();
        // A graph of nothing but points is one that people draw so.
        if operators.iter().all(|is_operator| *is_operator) {
            operators.fill(false);
        }
        let nodes = std::mem::take(&mut self.nodes);
        let mut tasks = vec![None; nodes.len()];
        for (index, node) in nodes.into_iter().enumerate().filter(|(node, _)| !operators[*node]) {
            tasks[index] = Some(self.task(node)?);
        }
        let edges = std::mem::take(&mut self.edges);
        for edge in &edges {
            if let (Some(from), Some(to)) = (tasks[edge.from], tasks[edge.to]) {
                self.edge(from, to, &edge.attributes, edge.at)?;
            }
        }
        if operators.contains(&true) {
            self.contract(&edges, &tasks)?;
        }
        Ok(self.draft)
    }

    /// Adds the edges between tasks that lead through nodes which are none.
    fn contract(
        &mut self,
        edges: &[DotEdge],
        tasks: &[Option<usize>],
    ) -> Result<(), WorkflowProblem> {
        let mut targets = vec![Vec::new(); tasks.len()];
        for edge in edges {
            targets[edge.from].push((edge.to, edge.at));
        }
        let (mut steps, mut found) = (0, 0);
        let mut seen = vec![usize::MAX; tasks.len()];
        for (from, task) in tasks.iter().enumerate() {
            let Some(task) = *task else { continue };
            let mut next: Vec<_> =
                targets[from].iter().filter(|(to, _)| tasks[*to].is_none()).copied().collect();
            while let Some((operator, at)) = next.pop() {
                if std::mem::replace(&mut seen[operator], from) == from {
                    continue;
                }
                for (target, _) in &targets[operator] {
                    steps += 1;
                    match tasks[*target] {
                        Some(to) => {
                            found += 1;
                            self.draft.edge(EdgeEnd::Task(task), EdgeEnd::Task(to), Some(at));
                        }
                        None => next.push((*target, at)),
                    }
                }
                if steps > STEPS_MAX || found > EDGES_MAX {
                    let what = "edges through operators";
                    return Err(Cause::TooMany { what, limit: EDGES_MAX }.at(None));
                }
            }
        }
        Ok(())
    }

    fn task(&mut self, node: DotNode) -> Result<usize, WorkflowProblem> {
        let DotNode { id, at, attributes } = node;
        let mut name = id.clone();
        if let Some(label) = attributes.0.get("label") {
            let shape = attributes.text("shape");
            let label = Label {
                text: &label.text,
                is_html: label.is_html,
                is_record: matches!(shape, Some("record" | "Mrecord")),
                node: &id,
                graph: &self.draft.name,
            };
            name = Some(label.first_line()).filter(|name| !name.is_empty()).unwrap_or(name);
        }
        let task = self.draft.task(Task { name, at, ..Task::new(id) })?;
        if let Some(AttributeValue { text, at, .. }) = attributes.get(&RUNTIME) {
            let seconds = with_position(Scalar::text(text).seconds(), *at)?;
            self.draft.runtime(task, seconds, *at);
        }
        if let Some(AttributeValue { text, at, .. }) = attributes.get(&PROCESSORS) {
            let processors = with_position(Scalar::text(text).processors(), *at)?;
            self.draft.processors(task, processors, *at);
        }
        if let Some(AttributeValue { text, at, .. }) = attributes.get(&["memory"]) {
            let bytes =
                Scalar::text(text).bytes_unless_negative().or_else(|_| size(text).map(Some));
            self.draft.memory(task, with_position(bytes, *at)?, *at);
        }
        if let Some(AttributeValue { text, at, .. }) = attributes.get(&["gpus"]) {
            let gpus = with_position(Scalar::text(text).count("a task's GPUs"), *at)?;
            self.draft.task_mut(task).resources.gpus = Some(gpus);
        }
        if let Some(AttributeValue { text, at, .. }) = attributes.get(&["walltime"]) {
            let seconds = Scalar::text(text).time("walltime", "seconds");
            let seconds = seconds.or_else(|_| duration(text, "walltime"));
            self.draft.walltime(task, with_position(seconds, *at)?, *at);
        }
        if let Some(AttributeValue { text, at, .. }) = attributes.get(&["size"]) {
            self.draft.flop(task, with_position(Scalar::text(text).flop(), *at)?);
        }
        Ok(task)
    }

    fn edge(
        &mut self,
        from: usize,
        to: usize,
        attributes: &Attributes,
        at: Position,
    ) -> Result<(), WorkflowProblem> {
        self.draft.edge(EdgeEnd::Task(from), EdgeEnd::Task(to), Some(at));
        let Some(AttributeValue { text, at: place, .. }) = attributes.get(&BYTES) else {
            return Ok(());
        };
        let bytes = with_position(Scalar::text(text).bytes_unless_negative(), *place)?;
        let ends = format!("{} -> {}", self.draft.id(from), self.draft.id(to));
        let label = attributes.text("label").filter(|label| !label.is_empty());
        let label = label.map(str::to_owned);
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

    /// Parses lists in brackets, if there are any, and returns the attributes with these names.
    fn attributes(
        &mut self,
        place: &'static str,
        names: &[&str],
        subject: &str,
    ) -> Result<Attributes, WorkflowProblem> {
        let mut attributes = Attributes::default();
        while self.tokens.sign('[')? {
            while !self.tokens.sign(']')? {
                if self.tokens.sign(',')? || self.tokens.sign(';')? {
                    continue;
                }
                let (name, start) = self.tokens.id("an attribute or \"]\"")?;
                let name = name.to_ascii_lowercase();
                let at = Some(self.tokens.text.position(start));
                self.draft.field(Format::Dot, place, &name, subject, at);
                // An attribute without a value is true, which no known attribute can be.
                if !self.tokens.sign('=')? {
                    continue;
                }
                let (text, is_html, byte) = self.tokens.value("a value")?;
                if names.contains(&name.as_str()) {
                    let at = Some(self.tokens.text.position(byte));
                    attributes.0.insert(name, AttributeValue { text, is_html, at });
                }
            }
        }
        Ok(attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;

    #[test]
    fn the_tables_have_the_attributes_that_are_used() {
        for (place, names) in [("node", &NODE[..]), ("edge", &EDGE)] {
            let mut names = names.to_vec();
            names.sort_unstable();
            assert_eq!(fields::used(Format::Dot, place), names, "{place}");
        }
    }
}
