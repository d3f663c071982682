//! Lines and columns of a text, and suggestions for misspelt words. This module does not depend on
//! formats.

use crate::error::shown;
use crate::model::Position;

/// The maximum number of words that an unknown word is compared with, and their maximum length in
/// bytes.
const COMPARED_MAX: usize = 20_000;
const WORD_MAX: usize = 64;

/// The distance in bytes of counted positions, for files that have all text in one line.
const BLOCK: usize = 256;

/// A text with an index of its lines and columns.
pub(crate) struct Text<'a> {
    text: &'a str,
    /// The byte offsets of lines.
    lines: Vec<usize>,
    /// The number of characters before each block.
    blocks: Vec<usize>,
}

/// Counts the characters that start in these bytes; continuation bytes of UTF-8 do not count.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

impl<'a> Text<'a> {
    pub fn new(text: &'a str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        let mut before = 0;
        let block = |block: &[u8]| {
            let here = before;
            before += characters(block);
            here
        };
        let blocks = text.as_bytes().chunks(BLOCK).map(block).collect();
        Self { text, lines, blocks }
    }

    /// The number of characters before a byte.
    fn before(&self, byte: usize) -> usize {
        let block = (byte / BLOCK).min(self.blocks.len().saturating_sub(1));
        let rest = self.text.as_bytes().get(block * BLOCK..byte).unwrap_or_default();
        self.blocks.get(block).copied().unwrap_or(0) + characters(rest)
    }

    pub fn as_str(&self) -> &'a str {
        self.text
    }

    /// The position of a byte of the text.
    pub fn position(&self, byte: usize) -> Position {
        let byte = byte.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= byte).saturating_sub(1);
        let start = self.lines.get(line).copied().unwrap_or(0);
        let column = self.before(byte).saturating_sub(self.before(start));
        let from_1 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX - 1).saturating_add(1);
        Position { line: from_1(line), column: from_1(column) }
    }

    /// The position of a piece that is a slice of this text.
    pub fn position_of(&self, piece: &str) -> Position {
        let byte = (piece.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        self.position(byte)
    }

    /// The position of a line and a byte in it, both from 1, as `serde_json` counts.
    pub fn position_in(&self, line: usize, column: usize) -> Position {
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(self.text.len());
        self.position(start.saturating_add(column.saturating_sub(1)))
    }

    pub fn end(&self) -> Position {
        self.position(self.text.len())
    }
}

/// The most similar word, in quotes, if the similarity is sufficient.
///
/// At most a third of the letters may differ, or one letter of a short word.
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
    fn columns_of_long_lines_are_right_too() {
        let line = "a\u{e9}\u{1f600}".repeat(500);
        let whole = format!("{line}\n{line}");
        let text = Text::new(&whole);
        let second = line.len() + 1;
        for (column, (byte, _)) in line.char_indices().enumerate() {
            let column = column as u32 + 1;
            assert_eq!(text.position(byte), Position { line: 1, column });
            assert_eq!(text.position(second + byte), Position { line: 2, column });
        }
        assert_eq!(text.end(), Position { line: 2, column: 1501 });
    }

    #[test]
    fn only_similar_words_are_suggested() {
        let words = ["runtime", "inputs", "a"];
        assert_eq!(nearest("runtme", words.into_iter()).as_deref(), Some("\"runtime\""));
        assert_eq!(nearest("processors", words.into_iter()), None);
        assert_eq!(nearest(&"x".repeat(1000), words.into_iter()), None);
    }
}
