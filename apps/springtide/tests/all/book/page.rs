//! A page as its parts: blocks that are run or checked, and what its text names.
//!
//! Knows Markdown as far as the book uses it, and nothing of the program.

use std::path::{Path, PathBuf};

/// A page.
pub struct Page {
    pub path: PathBuf,
    /// Its blocks in their order.
    pub parts: Vec<Part>,
    /// Its headings' anchors.
    pub anchors: Vec<String>,
    /// Where its text points to, images too.
    pub links: Vec<Link>,
    /// What stands in single backquotes.
    pub code: Vec<Code>,
}

/// A link of the text.
pub struct Link {
    pub at: usize,
    pub to: String,
}

/// Code within the text.
pub struct Code {
    pub at: usize,
    pub text: String,
}

/// A command and what it prints.
pub struct Said {
    /// Its line in the page.
    pub at: usize,
    pub line: String,
    pub expected: Vec<String>,
}

/// A block that means something.
pub enum Part {
    /// Commands; they are run unless the block says `norun`.
    Console { at: usize, run: bool, commands: Vec<Said> },
    /// A file: written where it has a name, checked where it has a kind.
    File { at: usize, name: Option<String>, kind: Option<String>, whole: bool, text: String },
    /// Lines of a file of the workspace.
    Excerpt { at: usize, file: String, text: String },
}

impl Part {
    pub fn at(&self) -> usize {
        match self {
            Self::Console { at, .. } | Self::File { at, .. } | Self::Excerpt { at, .. } => *at,
        }
    }
}

impl Page {
    /// Its name in messages: the path below the book's pages.
    pub fn name(&self) -> String {
        match self.path.strip_prefix(super::src()) {
            Ok(path) => path.display().to_string(),
            Err(_) => self.path.file_name().expect("a file").to_string_lossy().into_owned(),
        }
    }

    /// Reads a page.
    ///
    /// # Panics
    /// If it cannot be read, or has a block of a kind that is not known here.
    pub fn parse(path: &Path) -> Self {
        let text = super::read(path);
        let mut page = Self {
            path: path.to_owned(),
            parts: Vec::new(),
            anchors: Vec::new(),
            links: Vec::new(),
            code: Vec::new(),
        };
        let mut lines = text.lines().enumerate();
        while let Some((i, line)) = lines.next() {
            let at = i + 1;
            if let Some(info) = line.trim_start().strip_prefix("```") {
                let body: Vec<&str> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|l| l.trim() != "```")
                    .collect();
                let part = block(at, info, &body);
                page.parts.extend(part.unwrap_or_else(|e| panic!("{}:{at}: {e}", path.display())));
                continue;
            }
            if line.starts_with('#') {
                page.anchors.push(anchor(line.trim_start_matches('#').trim()));
            }
            page.text(at, line);
        }
        page
    }

    /// Links and code of a line of text.
    fn text(&mut self, at: usize, line: &str) {
        let mut prose = String::new();
        for (i, piece) in line.split('`').enumerate() {
            if i % 2 == 1 {
                self.code.push(Code { at, text: piece.to_owned() });
                prose.push('x');
            } else {
                prose += piece;
            }
        }
        let mut rest = prose.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((to, after)) = after.split_once(')') else { break };
            self.links.push(Link { at, to: to.to_owned() });
            rest = after;
        }
        let mut rest = prose.as_str();
        while let Some((_, after)) = rest.split_once("src=\"") {
            let Some((to, after)) = after.split_once('"') else { break };
            self.links.push(Link { at, to: to.to_owned() });
            rest = after;
        }
    }
}

/// The anchor that mdBook gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

fn block(at: usize, info: &str, body: &[&str]) -> Result<Option<Part>, String> {
    let mut words = info.trim().split(',');
    let form = words.next().unwrap_or_default();
    let (mut name, mut kind, mut whole, mut run) = (None, None, true, true);
    for word in words {
        match word.split_once('=') {
            Some(("file", file)) => name = Some(file.to_owned()),
            Some(("kind", of)) => kind = Some(of.to_owned()),
            None if word == "part" => whole = false,
            None if word == "norun" => run = false,
            // For mdBook: it would offer to run it.
            None if word == "ignore" => {}
            _ => return Err(format!("what does `{word}` mean for a block?")),
        }
    }
    let text = body.iter().map(|line| format!("{line}\n")).collect();
    match form {
        "console" => Ok(Some(Part::Console { at, run, commands: commands(at, body)? })),
        "toml" => {
            let kind =
                kind.or_else(|| (name.as_deref() == Some("grid.toml")).then(|| "grid".into()));
            let kind = Some(kind.ok_or("a TOML block says its kind: `toml,kind=grid`")?);
            Ok(Some(Part::File { at, name, kind, whole, text }))
        }
        "rust" => {
            let file = name.ok_or("a Rust block says where it stands: `rust,ignore,file=PATH`")?;
            Ok(Some(Part::Excerpt { at, file, text }))
        }
        "json" | "csv" | "text" => {
            let file = name.is_some();
            Ok(file.then_some(Part::File { at, name, kind: None, whole, text }))
        }
        other => Err(format!(
            "a block of kind `{other}`: it is console, toml, rust, json, csv or text, so that it can be checked"
        )),
    }
}

/// Lines that begin with `$ `, and what follows each; one that ends with a backslash goes on.
fn commands(at: usize, body: &[&str]) -> Result<Vec<Said>, String> {
    let mut all: Vec<Said> = Vec::new();
    for (i, line) in body.iter().enumerate() {
        let open = all.last_mut().filter(|said| said.line.ends_with('\\'));
        if let Some(said) = open {
            said.line.pop();
            said.line += line.trim_start();
        } else if let Some(command) = line.strip_prefix("$ ") {
            let (line, expected) = (command.to_owned(), Vec::new());
            all.push(Said { at: at + 1 + i, line, expected });
        } else if let Some(said) = all.last_mut() {
            said.expected.push(line.trim_end().to_owned());
        } else {
            return Err("a console block begins with a command: `$ COMMAND`".to_owned());
        }
    }
    for said in &mut all {
        while said.expected.last().is_some_and(String::is_empty) {
            said.expected.pop();
        }
    }
    Ok(all)
}
