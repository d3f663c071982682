//! A Rust source file as its lines of code, comments and string literals.

/// The kind of a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommentKind {
    /// `///`: documentation of the next item.
    Item,
    /// `//!`: documentation of the module.
    Module,
    /// `//` and `/* */`.
    Plain,
}

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceLine {
    /// The code, with string literals left empty.
    pub code: String,
    /// The comment, without its marks.
    pub comment: Option<(CommentKind, String)>,
    /// The contents of string literals that begin or go over this line.
    pub strings: String,
}

impl SourceLine {
    /// Whether the line has nothing but a comment.
    pub fn is_comment(&self) -> bool {
        self.comment.is_some() && self.code.trim().is_empty() && self.strings.is_empty()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ScanState {
    Code,
    /// Inside a string with this number of `#`; none for one with escapes.
    Text(Option<usize>),
    /// Inside nested block comments.
    Block(usize),
}

/// Splits a file into its lines.
pub fn lines(text: &str) -> Vec<SourceLine> {
    let mut state = ScanState::Code;
    text.lines().map(|line| split(line, &mut state)).collect()
}

fn split(text: &str, state: &mut ScanState) -> SourceLine {
    let mut line = SourceLine::default();
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\n');
    let hashes = |i: usize| chars[i.min(chars.len())..].iter().take_while(|c| **c == '#').count();
    let mut i = 0;
    while i < chars.len() {
        match *state {
            ScanState::Block(depth) => {
                let (next, width) = match (at(i), at(i + 1)) {
                    ('*', '/') => (depth - 1, 2),
                    ('/', '*') => (depth + 1, 2),
                    _ => (depth, 1),
                };
                let comment = line.comment.get_or_insert((CommentKind::Plain, String::new()));
                comment.1.push(at(i));
                *state = if next == 0 { ScanState::Code } else { ScanState::Block(next) };
                i += width;
            }
            ScanState::Text(None) if at(i) == '\\' => {
                line.strings.push(' ');
                i += 2;
            }
            ScanState::Text(marks) => {
                let ends = at(i) == '"' && marks.is_none_or(|marks| hashes(i + 1) >= marks);
                if ends {
                    line.strings.push(' ');
                    line.code.push('"');
                    *state = ScanState::Code;
                    i += 1 + marks.unwrap_or(0);
                } else {
                    line.strings.push(at(i));
                    i += 1;
                }
            }
            ScanState::Code => {
                let before = i.checked_sub(1).map_or(' ', at);
                let raw = at(i) == 'r' && !before.is_alphanumeric() && before != '_';
                if at(i) == '/' && at(i + 1) == '/' {
                    let kind = match at(i + 2) {
                        '!' => CommentKind::Module,
                        '/' if at(i + 3) != '/' => CommentKind::Item,
                        _ => CommentKind::Plain,
                    };
                    let marks = if kind == CommentKind::Plain { 2 } else { 3 };
                    line.comment = Some((kind, chars[i + marks..].iter().collect()));
                    break;
                } else if at(i) == '/' && at(i + 1) == '*' {
                    *state = ScanState::Block(1);
                    i += 2;
                } else if raw && at(i + 1 + hashes(i + 1)) == '"' {
                    let marks = hashes(i + 1);
                    line.code.push('"');
                    *state = ScanState::Text(Some(marks));
                    i += marks + 2;
                } else if at(i) == '"' {
                    line.code.push('"');
                    *state = ScanState::Text(None);
                    i += 1;
                } else if at(i) == '\'' && (at(i + 2) == '\'' || at(i + 1) == '\\') {
                    // A character literal; a lifetime has no closing mark.
                    let rest = &chars[i + 2..];
                    let end = rest.iter().position(|c| *c == '\'').map_or(0, |end| end + 1);
                    line.code.push_str("' '");
                    i += 2 + end;
                } else {
                    line.code.push(at(i));
                    i += 1;
                }
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comments_and_strings_are_told_apart() {
        let text = "/// One.\nfn a<'a>() { \"// no \\\" comment\"; } // Two.\nlet c = '\"'; \
                    r#\"raw \" \nmore\"#; /* three\nfour */ x\n//! Five.\n";
        let lines = lines(text);
        assert_eq!(lines[0].comment, Some((CommentKind::Item, " One.".to_owned())));
        assert_eq!(lines[1].code, "fn a<'a>() { \"\"; } ");
        assert_eq!(lines[1].comment, Some((CommentKind::Plain, " Two.".to_owned())));
        assert!(lines[1].strings.contains("// no"), "{:?}", lines[1]);
        assert_eq!(lines[2].code, "let c = ' '; \"");
        assert_eq!(lines[3].code, "\"; ");
        assert!(lines[3].comment.as_ref().is_some_and(|(_, text)| text.contains("three")));
        assert_eq!(lines[4].code.trim(), "x");
        assert_eq!(lines[5].comment, Some((CommentKind::Module, " Five.".to_owned())));
    }
}
