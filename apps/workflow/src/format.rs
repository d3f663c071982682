//! The formats of workflow files, and their detection. This module does not depend on the contents.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A format of workflow files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// WfFormat of WfCommons, JSON, versions 1.3 to 1.6.
    WfFormat,
    /// DAX of Pegasus, XML, versions 2.1 to 3.6.
    Dax,
    /// Abstract workflows of Pegasus 5, YAML.
    Pegasus,
    /// DOT of Graphviz, as daggen and others write it.
    Dot,
    /// Springtide's own format, TOML.
    Own,
}

impl Format {
    /// All formats, in the order of their names in messages.
    pub const ALL: [Self; 5] = [Self::WfFormat, Self::Dax, Self::Pegasus, Self::Dot, Self::Own];

    /// The word for the format on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::WfFormat => "wfformat",
            Self::Dax => "dax",
            Self::Pegasus => "pegasus",
            Self::Dot => "dot",
            Self::Own => "toml",
        }
    }

    /// Detects the format of a file; none if it cannot be determined.
    ///
    /// The start of the content decides if only one format starts so. Otherwise the ending of the
    /// name decides, then words that only one format has.
    pub fn guess(file: &Path, text: &[u8]) -> Option<Self> {
        let text = text.strip_prefix(&BOM).unwrap_or(text).trim_ascii_start();
        match text.first() {
            Some(b'<') => return Some(Self::Dax),
            Some(b'{') => return Some(Self::WfFormat),
            _ => {}
        }
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "json" => return Some(Self::WfFormat),
            "dax" | "xml" => return Some(Self::Dax),
            "yml" | "yaml" => return Some(Self::Pegasus),
            "dot" | "gv" => return Some(Self::Dot),
            "toml" => return Some(Self::Own),
            _ => {}
        }
        let start = String::from_utf8_lossy(text.get(..START).unwrap_or(text)).into_owned();
        let words = |line: &str, words: &[&str]| words.iter().any(|word| line.starts_with(word));
        start.lines().find_map(|line| match line.trim_start() {
            line if words(line, &["digraph", "strict digraph"]) => Some(Self::Dot),
            line if words(line, &["[[task]]", "[[file]]"]) => Some(Self::Own),
            line if words(line, &["pegasus:", "jobs:"]) => Some(Self::Pegasus),
            _ => None,
        })
    }
}

/// The mark that some editors put before UTF-8.
pub(crate) const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The number of bytes that are searched for words of a format.
pub(crate) const START: usize = 64 << 10;

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WfFormat => "WfFormat JSON",
            Self::Dax => "DAX XML",
            Self::Pegasus => "Pegasus 5 YAML",
            Self::Dot => "DOT",
            Self::Own => "workflow TOML",
        })
    }
}

impl FromStr for Format {
    type Err = String;

    /// Parses a format from its [`word`](Self::word).
    ///
    /// # Errors
    /// No format has this word; the message lists those that exist.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|format| format.word() == text).ok_or_else(|| {
            let words: Vec<_> = Self::ALL.into_iter().map(Self::word).collect();
            format!("must be one of {}, found \"{}\"", words.join(", "), text.escape_debug())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_detected_by_content_or_name() {
        use Format::*;
        for (name, text, format) in [
            ("a.json", "", Some(WfFormat)),
            ("a.yaml", " {\"a\": 1}", Some(WfFormat)),
            ("a", "\u{feff}<adag/>", Some(Dax)),
            ("a.DAX", "adag", Some(Dax)),
            ("a.yml", "x-pegasus: 1", Some(Pegasus)),
            ("a", "# by hand\npegasus: '5.0'", Some(Pegasus)),
            ("a.gv", "", Some(Dot)),
            ("a.txt", "// by daggen\ndigraph G {", Some(Dot)),
            ("a.toml", "", Some(Own)),
            ("a", "name = 'x'\n[[task]]", Some(Own)),
            ("a.txt", "jobs", None),
            ("", "", None),
        ] {
            assert_eq!(Format::guess(Path::new(name), text.as_bytes()), format, "{name} {text}");
        }
        for format in Format::ALL {
            assert_eq!(format.word().parse(), Ok(format));
        }
        assert!("xml".parse::<Format>().unwrap_err().starts_with("must be one of wfformat, dax"));
    }
}
