//! Text in columns: the width of the terminal, and paragraphs that fit it.
//!
//! This module does not know the text's content.

use std::io::IsTerminal;

/// Longer lines are hard to read, in spite of a wide terminal.
const WIDEST: usize = 110;
/// Narrower terminals break lines by themselves.
const NARROWEST: usize = 40;

/// The maximum line width: that of the terminal, within bounds. None if standard output is not a
/// terminal, so that readers get whole lines.
pub fn width() -> Option<usize> {
    let terminal = || {
        let is = std::io::stdout().is_terminal();
        is.then(|| terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0)))
    };
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.or_else(terminal).map(|columns| columns.clamp(NARROWEST, WIDEST))
}

/// Appends a paragraph: its first line after `first`, the others aligned with its text.
pub fn paragraph(out: &mut String, first: &str, text: &str, width: Option<usize>) {
    let indent = first.chars().count();
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(NARROWEST / 2));
    out.push_str(first);
    let mut used = 0;
    for word in text.split_whitespace() {
        let long = word.chars().count();
        if used > 0 && used + 1 + long > room {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = 0;
        }
        if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += long;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(first: &str, text: &str, width: Option<usize>) -> String {
        let mut out = String::new();
        paragraph(&mut out, first, text, width);
        out
    }

    #[test]
    fn paragraphs_fit_and_are_indented() {
        let text = "the job can use 12 nodes, and 6 are there or under way";
        let expected =
            "  1.0 s  the job can use 12 nodes, and 6\n         are there or under way\n";
        assert_eq!(broken("  1.0 s  ", text, Some(40)), expected);
        assert_eq!(broken("- ", text, None), format!("- {text}\n"));
        assert_eq!(broken("- ", "", Some(40)), "- \n");
        // A word that is too long has a line of its own.
        let long = "x".repeat(60);
        assert_eq!(broken("", &format!("a {long} b"), Some(40)), format!("a\n{long}\nb\n"));
    }
}
