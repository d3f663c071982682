//! DOT of Graphviz, as daggen, DSLab and people write it: a subset, of directed graphs.
//!
//! Nodes are tasks. Of their attributes these are understood: `label`, the name; `runtime` or `weight`, the runtime in seconds;
//! `procs`, `processors` or `cores`; and `size`, how much the task computes in floating-point operations, as daggen has it, which
//! makes a runtime with the speed of a processor (`Overrides::flop_per_s`). Of edges: `size`, `bytes` or `weight`, the bytes of a
//! file that goes from one task to the other; edges from one task with the same `label` mean the same file, which has that name.
//! Edges without any of these only tell the order. All other attributes, as daggen's `alpha`, are passed over.
//!
//! Also read: `node [..]` and `edge [..]` defaults, chains `a -> b -> c`, subgraphs as mere brackets, ports, quoted and HTML names,
//! comments. Not read: undirected graphs, and edges from or to subgraphs.

use std::collections::{BTreeMap, HashMap};

use super::{syntax, told};
use crate::draft::{Draft, End, Says};
use crate::error::{Problem, shown};
use crate::format::Format;
use crate::model::{Position, Task};
use crate::text::Text;
use crate::values::Scalar;

/// Deepest subgraph.
const DEPTH_MAX: usize = 64;

pub(super) fn read(text: &Text<'_>) -> Result<Draft, Problem> {
    let mut reader = Reader {
        tokens: Tokens { text, at: 0, ahead: None },
        draft: Draft::default(),
        files: HashMap::new(),
    };
    reader.graph()?;
    Ok(reader.draft)
}

/// A piece of the text.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Id {
        text: String,
        /// In quotes a keyword is none.
        quoted: bool,
    },
    /// One of `{ } [ ] = ; , :`.
    Sign(char),
    /// `->`.
    Arrow,
    /// `--`.
    Line,
    End,
}

impl Token {
    fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Id { text, quoted: false } if text.eq_ignore_ascii_case(word))
    }

    fn shown(&self) -> String {
        match self {
            Self::Id { text, .. } => shown(text),
            Self::Sign(sign) => shown(&sign.to_string()),
            Self::Arrow => shown("->"),
            Self::Line => shown("--"),
            Self::End => "the end of the file".to_owned(),
        }
    }
}

struct Tokens<'a, 'b> {
    text: &'b Text<'a>,
    at: usize,
    ahead: Option<(Token, usize)>,
}

impl<'a> Tokens<'a, '_> {
    fn rest(&self) -> &'a str {
        self.text.as_str().get(self.at..).unwrap_or_default()
    }

    fn wrong(&self, reason: impl Into<String>, byte: usize) -> Problem {
        syntax(Format::Dot, reason, self.text.position(byte))
    }

    /// The next token, and at which byte it begins.
    fn next(&mut self) -> Result<(Token, usize), Problem> {
        match self.ahead.take() {
            Some(token) => Ok(token),
            None => self.scan(),
        }
    }

    fn peek(&mut self) -> Result<&Token, Problem> {
        let token = self.next()?;
        Ok(&self.ahead.insert(token).0)
    }

    /// Takes the next token if it is this sign.
    fn sign(&mut self, sign: char) -> Result<bool, Problem> {
        let is = *self.peek()? == Token::Sign(sign);
        if is {
            self.ahead = None;
        }
        Ok(is)
    }

    fn expect(&mut self, sign: char) -> Result<(), Problem> {
        match self.next()? {
            (Token::Sign(found), _) if found == sign => Ok(()),
            (found, byte) => Err(self.unexpected(&format!("\"{sign}\""), &found, byte)),
        }
    }

    fn unexpected(&self, what: &str, found: &Token, byte: usize) -> Problem {
        let cut = if *found == Token::End { ": was the file cut off?" } else { "" };
        self.wrong(format!("there must be {what} here, found {}{cut}", found.shown()), byte)
    }

    fn id(&mut self, what: &str) -> Result<(String, usize), Problem> {
        match self.next()? {
            (Token::Id { text, .. }, byte) => Ok((text, byte)),
            (found, byte) => Err(self.unexpected(what, &found, byte)),
        }
    }

    fn skip(&mut self) -> Result<(), Problem> {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            self.at += blank;
            let rest = self.rest();
            let line = |rest: &str| rest.find('\n').unwrap_or(rest.len());
            let first = self
                .text
                .as_str()
                .get(..self.at)
                .is_some_and(|before| before.is_empty() || before.ends_with('\n'));
            if rest.starts_with("//") || (first && rest.starts_with('#')) {
                self.at += line(rest);
            } else if rest.starts_with("/*") {
                let Some(end) = rest.find("*/") else {
                    return Err(
                        self.wrong("this comment has no end: was the file cut off?", self.at)
                    );
                };
                self.at += end + 2;
            } else {
                return Ok(());
            }
        }
    }

    fn scan(&mut self) -> Result<(Token, usize), Problem> {
        self.skip()?;
        let (rest, start) = (self.rest(), self.at);
        let Some(first) = rest.chars().next() else { return Ok((Token::End, start)) };
        let token = match first {
            '{' | '}' | '[' | ']' | '=' | ';' | ',' | ':' => {
                self.at += 1;
                Token::Sign(first)
            }
            '"' => Token::Id { text: self.quoted()?, quoted: true },
            '<' => Token::Id { text: self.html()?, quoted: true },
            '-' if rest.starts_with("->") => {
                self.at += 2;
                Token::Arrow
            }
            '-' if rest.starts_with("--") => {
                self.at += 2;
                Token::Line
            }
            _ => {
                // Graphviz takes numbers as `-1.5e` apart; nobody writes that. Others write `1e+06` without quotes.
                let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
                let exponent = |at: usize| {
                    let (before, after) = (&rest[..at], &rest[at + 1..]);
                    digit(before) && before.ends_with(['e', 'E']) && digit(after)
                };
                let part = |(at, c): (usize, char)| {
                    c.is_alphanumeric()
                        || c == '_'
                        || c == '.'
                        || (c == '-' && at == 0)
                        || (matches!(c, '+' | '-') && exponent(at))
                };
                let end =
                    rest.char_indices().find(|at| !part(*at)).map_or(rest.len(), |(at, _)| at);
                if end == 0 {
                    return Err(self.wrong(
                        format!("{} is out of place here", shown(&first.to_string())),
                        start,
                    ));
                }
                self.at += end;
                Token::Id { text: rest[..end].to_owned(), quoted: false }
            }
        };
        Ok((token, start))
    }

    /// A text in quotes, or several joined by `+`.
    fn quoted(&mut self) -> Result<String, Problem> {
        let mut text = String::new();
        loop {
            let (start, rest) = (self.at, self.rest());
            let mut chars = rest.char_indices().skip(1);
            let end = loop {
                match chars.next() {
                    Some((at, '"')) => break at,
                    Some((_, '\\')) => match chars.next() {
                        Some((_, '"')) => text.push('"'),
                        // A line that goes on.
                        Some((_, '\n')) => {}
                        Some((_, other)) => text.extend(['\\', other]),
                        None => {
                            return Err(
                                self.wrong("this quote has no end: was the file cut off?", start)
                            );
                        }
                    },
                    Some((_, other)) => text.push(other),
                    None => {
                        return Err(
                            self.wrong("this quote has no end: was the file cut off?", start)
                        );
                    }
                }
            };
            self.at += end + 1;
            let after = self.at;
            self.skip()?;
            if !self.rest().starts_with('+') {
                self.at = after;
                return Ok(text);
            }
            self.at += 1;
            self.skip()?;
            if !self.rest().starts_with('"') {
                return Err(self.wrong("there must be a text in quotes behind \"+\"", self.at));
            }
        }
    }

    /// A text in angle brackets, which may be in it in pairs.
    fn html(&mut self) -> Result<String, Problem> {
        let (mut depth, rest) = (0_usize, self.rest());
        for (at, byte) in rest.bytes().enumerate() {
            match byte {
                b'<' => depth += 1,
                b'>' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.at += at + 1;
                return Ok(rest.get(1..at).unwrap_or_default().to_owned());
            }
        }
        Err(self.wrong("this \"<\" has no end: was the file cut off?", self.at))
    }
}

/// Attributes, each with where its value is.
type Attributes = BTreeMap<String, (String, Option<Position>)>;

/// What nodes and edges have unless they say otherwise.
#[derive(Clone, Default)]
struct Defaults {
    node: Attributes,
    edge: Attributes,
}

/// Attributes of nodes, those of edges, and all that are kept.
const NODE: [&str; 7] = ["label", "runtime", "weight", "procs", "processors", "cores", "size"];
const EDGE: [&str; 4] = ["label", "size", "bytes", "weight"];

struct Reader<'a, 'b> {
    tokens: Tokens<'a, 'b>,
    draft: Draft,
    /// Files, by the task that writes them and their label.
    files: HashMap<(usize, String), usize>,
}

impl Reader<'_, '_> {
    fn graph(&mut self) -> Result<(), Problem> {
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
            (found, byte) => Err(self.tokens.unexpected("nothing behind the graph", &found, byte)),
        }
    }

    fn group(&self, byte: usize) -> Problem {
        self.tokens.wrong(
            "edges from or to a group { } are not read: write one edge for each of its tasks",
            byte,
        )
    }

    /// A node, edges, or an attribute of the graph, from behind its first word.
    fn statement(
        &mut self,
        first: String,
        byte: usize,
        defaults: &Defaults,
    ) -> Result<(), Problem> {
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

    /// The task of a node; where it is met first, it gets what nodes have.
    fn node(&mut self, id: String, byte: usize, defaults: &Defaults) -> Result<usize, Problem> {
        if let Some(task) = self.draft.has(&id) {
            return Ok(task);
        }
        let at = Some(self.tokens.text.position(byte));
        let task = self.draft.task(Task { at, ..Task::new(id) })?;
        self.say(task, &defaults.node)?;
        Ok(task)
    }

    fn say(&mut self, task: usize, attributes: &Attributes) -> Result<(), Problem> {
        let get = |names: &[&str]| names.iter().find_map(|name| attributes.get(*name));
        if let Some((label, _)) =
            get(&["label"]).filter(|(label, _)| !label.is_empty() && label != "\\N")
        {
            self.draft.task_mut(task).name = label.clone();
        }
        if let Some((text, at)) = get(&["runtime", "weight"]) {
            let seconds = told(Scalar::text(text).seconds_from_0(), *at)?;
            self.draft.runtime(task, seconds, *at);
        }
        if let Some((text, at)) = get(&["procs", "processors", "cores"]) {
            let processors = told(Scalar::text(text).processors(), *at)?;
            self.draft.processors(task, processors, *at);
        }
        if let Some((text, at)) = get(&["size"]) {
            self.draft.flop(task, told(Scalar::text(text).flop(), *at)?);
        }
        Ok(())
    }

    fn edge(
        &mut self,
        from: usize,
        to: usize,
        attributes: &Attributes,
        at: Position,
    ) -> Result<(), Problem> {
        self.draft.edge(End::Task(from), End::Task(to), Some(at));
        let size = ["size", "bytes", "weight"].into_iter().find_map(|name| attributes.get(name));
        let Some((text, place)) = size else { return Ok(()) };
        let bytes = told(Scalar::text(text).bytes(), *place)?;
        let ends = format!("{} -> {}", self.draft.id(from), self.draft.id(to));
        let label = attributes
            .get("label")
            .map(|(label, _)| label.clone())
            .filter(|label| !label.is_empty());
        let key = (from, label.clone().unwrap_or_else(|| ends.clone()));
        let file = match self.files.get(&key) {
            Some(file) => *file,
            None => {
                // A label that another task's file has already cannot be this one's name.
                let free = |name: &String| self.draft.has_file(name).is_none();
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
        self.draft.size(file, Says::Writer, bytes, *place);
        self.draft.reads(to, file);
        Ok(())
    }

    /// Lists in brackets, of which there may be none; those attributes are kept that have one of these names.
    fn attributes(&mut self, kept: &mut Attributes, names: &[&str]) -> Result<(), Problem> {
        while self.tokens.sign('[')? {
            while !self.tokens.sign(']')? {
                if self.tokens.sign(',')? || self.tokens.sign(';')? {
                    continue;
                }
                let (name, _) = self.tokens.id("an attribute or \"]\"")?;
                // Without a value an attribute is true, which none of those that matter here can be.
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
