//! The first line of a label, without markup: Graphviz has labels of text, of HTML and of records.

/// What a label stands for.
pub struct Label<'a> {
    pub text: &'a str,
    /// Whether it was in angle brackets.
    pub is_html: bool,
    /// Whether the shape of its node has fields.
    pub is_record: bool,
    /// The id of its node, which `\N` stands for.
    pub node: &'a str,
    /// The name of the graph, which `\G` stands for.
    pub graph: &'a str,
}

impl Label<'_> {
    /// The first line that is not blank; empty if there is none.
    pub fn first_line(&self) -> String {
        let plain = if self.is_html { without_tags(self.text) } else { self.unescaped() };
        let mut lines = plain.split('\n').map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.join(" ")
        });
        lines.find(|line| !line.is_empty()).unwrap_or_default()
    }

    /// The text with its escapes replaced. Fields of records become lines.
    fn unescaped(&self) -> String {
        let (mut plain, mut chars) = (String::with_capacity(self.text.len()), self.text.chars());
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some('n' | 'l' | 'r') => plain.push('\n'),
                    Some('N') => plain.push_str(self.node),
                    Some('G') => plain.push_str(self.graph),
                    Some(other) => plain.push(other),
                    None => {}
                },
                '|' | '{' | '}' if self.is_record => plain.push('\n'),
                '<' if self.is_record => {
                    // The name of a port.
                    let rest = chars.as_str();
                    chars = rest.find('>').map_or(rest, |end| &rest[end + 1..]).chars();
                }
                other => plain.push(other),
            }
        }
        plain
    }
}

/// Tags that begin or end a line.
const BREAKS: [&str; 7] = ["br", "table", "tr", "td", "hr", "vr", "p"];

/// The text of HTML, with a line for each line and each cell.
fn without_tags(html: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(html.len()), html);
    while let Some(c) = rest.chars().next() {
        match c {
            '<' => {
                let end = if rest.starts_with("<!--") {
                    rest.find("-->").map(|at| at + 3)
                } else {
                    rest.find('>').map(|at| at + 1)
                };
                let (tag, after) = rest.split_at(end.unwrap_or(rest.len()));
                let name = tag.trim_matches(['<', '>', '/']);
                let name = name.split(|c: char| c.is_whitespace() || c == '/').next();
                let name = name.unwrap_or_default().to_ascii_lowercase();
                if BREAKS.contains(&name.as_str()) {
                    plain.push('\n');
                }
                rest = after;
            }
            '&' => {
                let entity = rest.find(';').and_then(|end| Some((entity(&rest[1..end])?, end + 1)));
                let (character, length) = entity.unwrap_or(('&', 1));
                plain.push(character);
                rest = &rest[length..];
            }
            other => {
                plain.push(if other == '\n' { ' ' } else { other });
                rest = &rest[other.len_utf8()..];
            }
        }
    }
    plain
}

/// The longest name of an entity, in bytes.
const ENTITY_MAX: usize = 10;

fn entity(name: &str) -> Option<char> {
    if name.len() > ENTITY_MAX {
        return None;
    }
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code);
    }
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "nbsp" => Some(' '),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_line(text: &str, is_html: bool, is_record: bool) -> String {
        Label { text, is_html, is_record, node: "7", graph: "g" }.first_line()
    }

    #[test]
    fn escapes_break_lines_and_name_the_node() {
        for (text, line) in [
            ("sort\\nsample: A", "sort"),
            ("left\\lright\\r", "left"),
            ("\\n \\n second ", "second"),
            ("task \\N of \\G", "task 7 of g"),
            ("C:\\\\temp \\\"q\\\"", "C:\\temp \"q\""),
            ("a|b {c}", "a|b {c}"),
            ("real\nline", "real"),
            ("\\", ""),
            ("", ""),
        ] {
            assert_eq!(first_line(text, false, false), line, "{text}");
        }
        for (text, line) in [
            ("{<in> align|16 GB}", "align"),
            ("{|a\\|b|c}", "a|b"),
            ("<f0> left\\n1|right", "left"),
        ] {
            assert_eq!(first_line(text, false, true), line, "{text}");
        }
    }

    #[test]
    fn markup_of_html_is_no_text() {
        for (text, line) in [
            ("<b>sort</b><br/>x", "sort"),
            ("<font point-size=\"9\">a</font> &amp; &lt;b&gt;&#33;&#x21;", "a & <b>!!"),
            (
                "<table border=\"0\">\n <tr><td>\n<b>align\n reads</b></td><td>2</td></tr></table>",
                "align reads",
            ),
            ("<!-- no > text -->x", "x"),
            ("a &unknown; & b", "a &unknown; & b"),
            ("<b", ""),
        ] {
            assert_eq!(first_line(text, true, false), line, "{text}");
        }
    }
}
