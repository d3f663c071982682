//! What is wrong with a config: all of it at once, each with its place and, where one can guess, the word that was meant.
//!
//! Must not know which keys there are.

use std::fmt;
use std::path::PathBuf;

/// Where a value, or a mistake, comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A place in the file; line and column count from 1, columns in characters.
    File {
        /// As it was named.
        file: String,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(String),
    /// Built in.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { file, line, .. } => write!(f, "file {file}:{line}"),
            Origin::Env(name) => write!(f, "env {name}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub at: Origin,
    /// What is wrong, naming the key and what it must be.
    pub reason: String,
    /// What was probably meant.
    pub meant: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Origin::File { file, line, column } => write!(f, "{file}:{line}:{column}: ")?,
            Origin::Env(name) => write!(f, "environment variable {name}: ")?,
            Origin::Flag(flag) => write!(f, "{flag}: ")?,
            Origin::Default => {}
        }
        f.write_str(&self.reason)?;
        match &self.meant {
            Some(meant) => write!(f, "; did you mean `{meant}`?"),
            None => Ok(()),
        }
    }
}

/// A config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read. A file that is named must be there.
    #[error("cannot read the config file {}: {source}", file.display())]
    File {
        /// Which file.
        file: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// These are its mistakes, in order of place: all there are, not just the first.
    #[error("{}", Listed(.0))]
    Problems(Vec<Problem>),
}

impl ConfigError {
    /// The mistakes, where the file could be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ConfigError::Problems(problems) => problems,
            ConfigError::File { .. } => &[],
        }
    }
}

struct Listed<'a>(&'a [Problem]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// The word nearest to `word`, if one is near enough to have been meant: at most a third of it wrong, but one letter always.
pub fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing is quadratic in the length, and what is much longer than any key was not one.
    if word.len() > 64 {
        return None;
    }
    let lower = word.to_lowercase();
    let allowed = (word.chars().count() / 3).max(1);
    let scored =
        words.into_iter().map(|w| (strsim::damerau_levenshtein(&lower, &w.to_lowercase()), w));
    scored
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, w)| w)
}
