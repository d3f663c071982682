//! The problems of a config: all at once, each with its place and, if likely, the intended word.
//!
//! This module does not know the keys of a config.

use std::fmt;
use std::path::PathBuf;

/// The source of a value or a problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    /// A place in the file. Line and column count from 1, columns in characters.
    File {
        /// The file's name as given.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// An environment variable's name.
    Env(String),
    /// A flag of the command line.
    Flag(String),
    /// A built-in default value.
    Default,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::File { file, line, .. } => write!(f, "file {file}:{line}"),
            ValueOrigin::Env(name) => write!(f, "env {name}"),
            ValueOrigin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A problem of a config.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigProblem {
    /// The place of the problem.
    pub at: ValueOrigin,
    /// The description: the key, the error and the valid values.
    pub reason: String,
    /// The likely intended word.
    pub meant: Option<String>,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            ValueOrigin::File { file, line, column } => write!(f, "{file}:{line}:{column}: ")?,
            ValueOrigin::Env(name) => write!(f, "environment variable {name}: ")?,
            ValueOrigin::Flag(flag) => write!(f, "{flag}: ")?,
            ValueOrigin::Default => {}
        }
        f.write_str(&self.reason)?;
        match &self.meant {
            Some(meant) => write!(f, "; did you mean `{meant}`?"),
            None => Ok(()),
        }
    }
}

/// A key in an earlier spelling, which is accepted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpellingWarning {
    /// The place of the key.
    pub at: ValueOrigin,
    /// The key as given.
    pub given: String,
    /// The spelling that the key has in templates and in the reference.
    pub key: &'static str,
}

impl fmt::Display for SpellingWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            ValueOrigin::File { file, line, .. } => write!(f, "{file}, line {line}: ")?,
            ValueOrigin::Env(name) => write!(f, "environment variable {name}: ")?,
            ValueOrigin::Flag(flag) => write!(f, "{flag}: ")?,
            ValueOrigin::Default => {}
        }
        write!(f, "key `{}` is spelled `{}`", self.given, self.key)
    }
}

/// The reason for which a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read. A named file must exist.
    #[error("cannot read the config file {}: {source}", file.display())]
    File {
        /// The path of the file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// All problems of the config, in order of place.
    #[error("{}", ProblemLines(.0))]
    Problems(Vec<ConfigProblem>),
}

impl ConfigError {
    /// The problems, if the file could be read.
    pub fn problems(&self) -> &[ConfigProblem] {
        match self {
            ConfigError::Problems(problems) => problems,
            ConfigError::File { .. } => &[],
        }
    }
}

struct ProblemLines<'a>(&'a [ConfigProblem]);

impl fmt::Display for ProblemLines<'_> {
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

/// The word nearest to `word`, if it is near enough: at most a third of its letters differ, or one
/// letter.
pub fn nearest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The comparison is quadratic in the length, and no key is nearly so long.
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
