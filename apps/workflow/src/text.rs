//! Lines and columns of a text, and words that were probably meant. Must not know any format.

use crate::error::shown;
use crate::model::Position;

/// So many words are compared with one that is not known, and no longer ones than this many bytes.
const COMPARED_MAX: usize = 20_000;
const WORD_MAX: usize = 64;

/// Where the lines of a text begin.
pub(crate) struct Text<'a> {
    text: &'a str,
    lines: Vec<usize>,
}

impl<'a> Text<'a> {
    pub fn new(text: &'a str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        Self { text, lines }
    }

    pub fn as_str(&self) -> &'a str {
        self.text
    }

    /// Of a byte of the text.
    pub fn position(&self, byte: usize) -> Position {
        let byte = byte.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= byte).saturating_sub(1);
        let start = self.lines.get(line).copied().unwrap_or(0);
        let before = self.text.as_bytes().get(start..byte).unwrap_or_default();
        // Columns count characters: bytes that go on with one are none.
        let column = before.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        let from_1 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX - 1).saturating_add(1);
        Position { line: from_1(line), column: from_1(column) }
    }

    /// Of a piece that was cut out of this text.
    pub fn position_of(&self, piece: &str) -> Position {
        let byte = (piece.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        self.position(byte)
    }

    /// Of a line and a byte of it, both from 1, as `serde_json` counts.
    pub fn position_in(&self, line: usize, column: usize) -> Position {
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(self.text.len());
        self.position(start.saturating_add(column.saturating_sub(1)))
    }

    pub fn end(&self) -> Position {
        self.position(self.text.len())
    }
}

/// The word nearest to `word`, in quotes, if one is near enough to have been meant: at most a third of it wrong, but one letter always.
pub(crate) fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<String> {
    if word.len() > WORD_MAX {
        return None;
    }
    let lower = word.to_lowercase();
    let allowed = (word.chars().count() / 3).max(1);
    words
        .take(COMPARED_MAX)
        .filter(|other| {
            other.len().abs_diff(word.len()) <= 4 * allowed && other.len() <= 2 * WORD_MAX
        })
        .map(|other| (strsim::damerau_levenshtein(&lower, &other.to_lowercase()), other))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| shown(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_1() {
        let text = Text::new("ab\né|x\n");
        let at = |byte| {
            let Position { line, column } = text.position(byte);
            (line, column)
        };
        assert_eq!((at(0), at(1), at(3), at(5), at(6)), ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3)));
        assert_eq!((at(8), at(99)), ((3, 1), (3, 1)));
        assert_eq!(text.position_of(&text.as_str()[5..]), Position { line: 2, column: 2 });
        assert_eq!(text.position_in(2, 3), Position { line: 2, column: 2 });
    }

    #[test]
    fn only_a_near_word_was_meant() {
        let words = ["runtime", "inputs", "a"];
        assert_eq!(nearest("runtme", words.into_iter()).as_deref(), Some("\"runtime\""));
        assert_eq!(nearest("processors", words.into_iter()), None);
        assert_eq!(nearest(&"x".repeat(1000), words.into_iter()), None);
    }
}
