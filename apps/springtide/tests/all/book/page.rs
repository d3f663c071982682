//! Parts of a page: blocks to run or check, and the names in its text.
//!
//! Knows the Markdown that the book uses; independent of the program.

use std::path::{Path, PathBuf};

/// A page of the book.
pub struct Page {
    pub path: PathBuf,
    /// The blocks of the page, in order.
    pub parts: Vec<PageBlock>,
    /// The anchors of its headings.
    pub anchors: Vec<String>,
    /// The targets of its links and images.
    pub links: Vec<PageLink>,
    /// The text in single backquotes.
    pub code: Vec<Code>,
}

/// A link in the text of a page.
pub struct PageLink {
    pub at: usize,
    pub to: String,
}

/// Code in the text of a page.
pub struct Code {
    pub at: usize,
    pub text: String,
}

/// A command with its output.
pub struct PageCommand {
    /// The line of the command in the page.
    pub at: usize,
    pub line: String,
    pub expected: Vec<String>,
}

/// A block that is run or checked.
pub enum PageBlock {
    /// Commands, which are run unless the block says `norun`.
    Console { at: usize, run: bool, commands: Vec<PageCommand> },
    /// A file: written if it has a name, checked if it has a kind.
    File { at: usize, name: Option<String>, kind: Option<String>, whole: bool, text: String },
    /// Lines of a file of the workspace.
    Excerpt { at: usize, file: String, text: String },
}

impl PageBlock {
    pub fn at(&self) -> usize {
        match self {
            Self::Console { at, .. } | Self::File { at, .. } | Self::Excerpt { at, .. } => *at,
        }
    }
}

impl Page {
    /// The page's name in messages: its path below the book's pages.
    pub fn name(&self) -> String {
        match self.path.strip_prefix(super::src()) {
            Ok(path) => path.display().to_string(),
            Err(_) => self.path.file_name().expect("a file").to_string_lossy().into_owned(),
        }
    }

    /// Reads a page.
    ///
    /// # Panics
    /// If it cannot be read, or has a block of an unknown kind.
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

    /// Collects links and code of a line of text.
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
            self.links.push(PageLink { at, to: to.to_owned() });
            rest = after;
        }
        let mut rest = prose.as_str();
        while let Some((_, after)) = rest.split_once("src=\"") {
            let Some((to, after)) = after.split_once('"') else { break };
            self.links.push(PageLink { at, to: to.to_owned() });
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

fn block(at: usize, info: &str, body: &[&str]) -> Result<Option<PageBlock>, String> {
    let mut words = info.trim().split(',');
    let form = words.next().unwrap_or_default();
    let (mut name, mut kind, mut whole, mut run) = (None, None, true, true);
    for word in words {
        match word.split_once('=') {
            Some(("file", file)) => name = Some(file.to_owned()),
            Some(("kind", of)) => kind = Some(of.to_owned()),
            None if word == "part" => whole = false,
            None if word == "norun" => run = false,
            // For mdBook, which would otherwise offer to run it.
            None if word == "ignore" => {}
            _ => return Err(format!("unknown attribute `{word}` of a block")),
        }
    }
    let text = body.iter().map(|line| format!("{line}\n")).collect();
    match form {
        "console" => Ok(Some(PageBlock::Console { at, run, commands: commands(at, body)? })),
        "toml" => {
            let kind =
                kind.or_else(|| (name.as_deref() == Some("grid.toml")).then(|| "grid".into()));
            let kind = Some(kind.ok_or("a TOML block needs its kind: `toml,kind=grid`")?);
            Ok(Some(PageBlock::File { at, name, kind, whole, text }))
        }
        "rust" => {
            let file = name.ok_or("a Rust block needs its file: `rust,ignore,file=PATH`")?;
            Ok(Some(PageBlock::Excerpt { at, file, text }))
        }
        "json" | "csv" | "text" => {
            let file = name.is_some();
            Ok(file.then_some(PageBlock::File { at, name, kind: None, whole, text }))
        }
        other => Err(format!(
            "unknown kind `{other}` of a block: it must be console, toml, rust, json, csv or text"
        )),
    }
}

/// Lines that begin with `$ `, and the lines after each. A backslash at the end continues a line.
fn commands(at: usize, body: &[&str]) -> Result<Vec<PageCommand>, String> {
    let mut all: Vec<PageCommand> = Vec::new();
    for (i, line) in body.iter().enumerate() {
        let open = all.last_mut().filter(|page_command| page_command.line.ends_with('\\'));
        if let Some(page_command) = open {
            page_command.line.pop();
            page_command.line += line.trim_start();
        } else if let Some(command) = line.strip_prefix("$ ") {
            let (line, expected) = (command.to_owned(), Vec::new());
            all.push(PageCommand { at: at + 1 + i, line, expected });
        } else if let Some(page_command) = all.last_mut() {
            page_command.expected.push(line.trim_end().to_owned());
        } else {
            return Err("a console block must begin with a command: `$ COMMAND`".to_owned());
        }
    }
    for page_command in &mut all {
        while page_command.expected.last().is_some_and(String::is_empty) {
            page_command.expected.pop();
        }
    }
    Ok(all)
}
