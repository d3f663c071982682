//! The tokens of a DOT text: names, signs and arrows, each with its position.

use crate::error::{WorkflowProblem, shown};
use crate::format::Format;
use crate::read::syntax;
use crate::text::Text;

/// A token of the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Id {
        text: String,
        /// Whether the name is in quotes, where it is not a keyword.
        quoted: bool,
        /// Whether it is HTML, in angle brackets.
        html: bool,
    },
    /// One of the signs `{ } [ ] = ; , :`.
    Sign(char),
    /// The arrow `->` of a directed edge.
    Arrow,
    /// The line `--` of an undirected edge.
    Line,
    End,
}

impl Token {
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Id { text, quoted: false, .. } if text.eq_ignore_ascii_case(word))
    }

    pub fn shown(&self) -> String {
        match self {
            Self::Id { text, .. } => shown(text),
            Self::Sign(sign) => shown(&sign.to_string()),
            Self::Arrow => shown("->"),
            Self::Line => shown("--"),
            Self::End => "the end of the file".to_owned(),
        }
    }
}

pub struct Tokens<'a, 'b> {
    pub text: &'b Text<'a>,
    at: usize,
    ahead: Option<(Token, usize)>,
}

impl<'a, 'b> Tokens<'a, 'b> {
    pub fn new(text: &'b Text<'a>) -> Self {
        Self { text, at: 0, ahead: None }
    }

    fn rest(&self) -> &'a str {
        self.text.as_str().get(self.at..).unwrap_or_default()
    }

    pub fn wrong(&self, reason: impl Into<String>, byte: usize) -> WorkflowProblem {
        syntax(Format::Dot, reason, self.text.position(byte))
    }

    /// The next token, and the byte at which it starts.
    pub fn next(&mut self) -> Result<(Token, usize), WorkflowProblem> {
        match self.ahead.take() {
            Some(token) => Ok(token),
            None => self.scan(),
        }
    }

    pub fn peek(&mut self) -> Result<&Token, WorkflowProblem> {
        let token = self.next()?;
        Ok(&self.ahead.insert(token).0)
    }

    /// Consumes the next token if it is this sign.
    pub fn sign(&mut self, sign: char) -> Result<bool, WorkflowProblem> {
        let is = *self.peek()? == Token::Sign(sign);
        if is {
            self.ahead = None;
        }
        Ok(is)
    }

    pub fn expect(&mut self, sign: char) -> Result<(), WorkflowProblem> {
        match self.next()? {
            (Token::Sign(found), _) if found == sign => Ok(()),
            (found, byte) => Err(self.unexpected(&format!("\"{sign}\""), &found, byte)),
        }
    }

    pub fn unexpected(&self, what: &str, found: &Token, byte: usize) -> WorkflowProblem {
        let cut = if *found == Token::End { ": was the file cut off?" } else { "" };
        self.wrong(format!("there must be {what} here, found {}{cut}", found.shown()), byte)
    }

    pub fn id(&mut self, what: &str) -> Result<(String, usize), WorkflowProblem> {
        self.value(what).map(|(text, _, byte)| (text, byte))
    }

    /// A text, whether it is HTML, and the byte at which it starts.
    pub fn value(&mut self, what: &str) -> Result<(String, bool, usize), WorkflowProblem> {
        match self.next()? {
            (Token::Id { text, html, .. }, byte) => Ok((text, html, byte)),
            (found, byte) => Err(self.unexpected(what, &found, byte)),
        }
    }

    fn skip(&mut self) -> Result<(), WorkflowProblem> {
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

    fn scan(&mut self) -> Result<(Token, usize), WorkflowProblem> {
        self.skip()?;
        let (rest, start) = (self.rest(), self.at);
        let Some(first) = rest.chars().next() else { return Ok((Token::End, start)) };
        let token = match first {
            '{' | '}' | '[' | ']' | '=' | ';' | ',' | ':' => {
                self.at += 1;
                Token::Sign(first)
            }
            '"' => Token::Id { text: self.quoted()?, quoted: true, html: false },
            '<' => Token::Id { text: self.html()?, quoted: true, html: true },
            '-' if rest.starts_with("->") => {
                self.at += 2;
                Token::Arrow
            }
            '-' if rest.starts_with("--") => {
                self.at += 2;
                Token::Line
            }
            _ => {
                // Graphviz splits numbers such as `-1.5e`, which no program writes. Some write
                // `1e+06` without quotes.
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
                Token::Id { text: rest[..end].to_owned(), quoted: false, html: false }
            }
        };
        Ok((token, start))
    }

    /// A text in quotes, or several joined by `+`.
    fn quoted(&mut self) -> Result<String, WorkflowProblem> {
        let mut text = String::new();
        loop {
            let (start, rest) = (self.at, self.rest());
            let mut chars = rest.char_indices().skip(1);
            let end = loop {
                match chars.next() {
                    Some((at, '"')) => break at,
                    Some((_, '\\')) => match chars.next() {
                        Some((_, '"')) => text.push('"'),
                        // A continued line.
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

    /// A text in angle brackets, which may contain pairs of them.
    fn html(&mut self) -> Result<String, WorkflowProblem> {
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
