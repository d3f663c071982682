//! Text of HTML and SVG in which every value is escaped.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

/// A text of HTML or SVG. Only constants enter it unescaped.
#[derive(Debug, Default)]
pub struct Markup(String);

impl Markup {
    /// Adds constant markup, unescaped.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Adds a text, escaped. Control characters become spaces.
    pub fn text(&mut self, text: &str) -> &mut Self {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(c),
                c if c.is_control() => self.0.push(' '),
                c => self.0.push(c),
            }
        }
        self
    }

    /// Adds an attribute of the tag that is open.
    pub fn attribute(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// Adds an attribute with a number of at most two decimals.
    pub fn number(&mut self, name: &'static str, value: f64) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"");
        let text = format!("{value:.2}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        // Writing to a text does not fail.
        let _ = write!(self.0, "{text}\"");
        self
    }

    /// Adds an element with a text.
    pub fn element(&mut self, tag: &'static str, text: &str) -> &mut Self {
        self.raw("<").raw(tag).raw(">").text(text).raw("</").raw(tag).raw(">")
    }

    /// Adds the text of other markup.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// Returns the text of the markup.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A text.
    Text(String),
    /// A number, aligned to the right.
    Number(String),
    /// Links, each with its text and address.
    Links(Vec<(String, String)>),
}

impl Cell {
    /// Makes a cell with a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes a cell with a number.
    pub fn number(text: impl Into<String>) -> Self {
        Self::Number(text.into())
    }
}

/// Adds a table. Its columns are aligned as the cells of the first row.
pub fn table(out: &mut Markup, heads: &[&'static str], rows: &[Vec<Cell>]) {
    out.raw("<div class=\"scroll\"><table><thead><tr>");
    for (at, head) in heads.iter().enumerate() {
        let first = rows.first().and_then(|row| row.get(at));
        let is_number = matches!(first, Some(Cell::Number(_)));
        out.raw(if is_number { "<th class=\"n\">" } else { "<th>" }).text(head).raw("</th>");
    }
    out.raw("</tr></thead><tbody>\n");
    for row in rows {
        out.raw("<tr>");
        for cell in row {
            match cell {
                Cell::Text(text) => out.element("td", text),
                Cell::Number(text) => out.raw("<td class=\"n\">").text(text).raw("</td>"),
                Cell::Links(links) => {
                    out.raw("<td>");
                    for (text, address) in links {
                        out.raw("<a").attribute("href", address).raw(">").text(text).raw("</a> ");
                    }
                    out.raw("</td>")
                }
            };
        }
        out.raw("</tr>\n");
    }
    out.raw("</tbody></table></div>\n");
}

/// Encodes a path or name for a URL. Slashes remain.
pub fn encode_path(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte as char);
            }
            // Writing to a text does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// The relative URL from a directory to a file.
pub fn relative_url(from: &Path, to: &Path) -> String {
    let absolute = |path: &Path| -> PathBuf {
        path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into())
    };
    let (from, to) = (absolute(from), absolute(to));
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let ups = from.components().skip(common).map(|_| "..".to_owned());
    let names = to.components().skip(common).map(|part| match part {
        Component::Normal(name) => encode_path(&name.to_string_lossy()),
        other => encode_path(&other.as_os_str().to_string_lossy()),
    });
    ups.chain(names).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let mut out = Markup::default();
        out.raw("<a").attribute("href", "x\"y").number("x", 1.0).number("y", 0.256);
        out.raw(">").text("<b>&\u{7}").raw("</a>");
        assert_eq!(
            out.into_string(),
            "<a href=\"x&quot;y\" x=\"1\" y=\"0.26\">&lt;b&gt;&amp; </a>"
        );
    }

    #[test]
    fn urls_are_relative_and_encoded() {
        let url = |from: &str, to: &str| relative_url(Path::new(from), Path::new(to));
        assert_eq!(url("/no/run", "/no/run/logs/a b.1.out"), "logs/a%20b.1.out");
        assert_eq!(url("/no/pages", "/no/run/logs/a.1.out"), "../run/logs/a.1.out");
    }
}
