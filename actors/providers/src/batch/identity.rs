//! The names by which a site recognises its batch jobs, and what their comments hold.
//!
//! Pure. A batch system shows the names to all users; others' jobs never have one of them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use ring::digest::{SHA256, digest};

/// The first part of the name of each stub.
const PREFIX: &str = "springtide";
/// The first word of the comment of each stub: the version of what follows.
const COMMENT: &str = "springtide-1";
/// The longest comment that Slurm accepts, in bytes.
const COMMENT_MAX: usize = 1000;

/// The owner of stubs: one cluster of one grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StubOwner {
    grid: String,
    /// Distinguishes grids of one name. Otherwise two grids of one user would take over and end
    /// each other's stubs.
    authority: String,
    cluster: String,
}

/// The parts of a stub's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StubName {
    pub node: String,
    /// Identifier of the submission.
    pub token: String,
}

impl StubOwner {
    /// The owner of a cluster's stubs. `certificate` is that of the grid's authority.
    pub fn new(grid: &str, certificate: &str, cluster: &str) -> Self {
        // Independent of how the certificate is broken into lines.
        let lines = certificate.lines().map(str::trim).filter(|line| !line.starts_with('-'));
        let authority = hex(lines.collect::<String>().as_bytes(), 5);
        Self { grid: grid.to_owned(), authority, cluster: cluster.to_owned() }
    }

    /// The common first part of the names of all stubs.
    pub fn prefix(&self) -> String {
        let part = |text: &str| encode(text.as_bytes(), b"-_");
        let Self { grid, authority, cluster } = self;
        format!("{PREFIX}.{}.{authority}.{}.", part(grid), part(cluster))
    }

    /// The name of a stub's batch job.
    pub fn job_name(&self, name: &StubName) -> String {
        let part = |text: &str| encode(text.as_bytes(), b"-_");
        format!("{}{}.{}", self.prefix(), part(&name.node), part(&name.token))
    }

    /// Parses the name of a batch job; none for jobs of other owners.
    pub fn parse(&self, job: &str) -> Option<StubName> {
        let (node, token) = job.strip_prefix(&self.prefix())?.split_once('.')?;
        let part = |text| String::from_utf8(decode(text)?).ok();
        let name = StubName { node: part(node)?, token: part(token)? };
        // Another spelling of a name is not by this program.
        let own = !name.node.is_empty() && !name.token.is_empty() && self.job_name(&name) == job;
        own.then_some(name)
    }
}

/// A short name for batch systems that limit names to lower-case letters, digits and dashes.
pub(super) fn slug(job: &str) -> String {
    format!("{PREFIX}-{}", hex(job.as_bytes(), 10))
}

fn hex(bytes: &[u8], length: usize) -> String {
    let sum = digest(&SHA256, bytes);
    sum.as_ref().iter().take(length).map(|byte| format!("{byte:02x}")).collect()
}

/// The contents of a stub's comment. Empty if the batch system has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StubComment {
    /// The start of the names of the files that its script reads.
    pub base: Option<PathBuf>,
    /// The log of its program.
    pub log: Option<PathBuf>,
}

impl StubComment {
    /// The comment as text. Leaves out paths for which there is no room.
    pub fn text(&self) -> String {
        let mut comment = COMMENT.to_owned();
        for (key, path) in [("base", &self.base), ("log", &self.log)] {
            let Some(path) = path else { continue };
            let part = format!(" {key}={}", encode(path.as_os_str().as_bytes(), b"/.-_+@"));
            if comment.len() + part.len() <= COMMENT_MAX {
                comment.push_str(&part);
            }
        }
        comment
    }

    /// Parses a comment. One of another program is empty.
    pub fn parse(comment: &str) -> Self {
        let mut parsed = Self::default();
        let mut words = comment.split_whitespace();
        if words.next() != Some(COMMENT) {
            return parsed;
        }
        let path = |value| Some(PathBuf::from(OsString::from_vec(decode(value)?)));
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "base" => parsed.base = path(value),
                "log" => parsed.log = path(value),
                _ => {} // of a later version
            }
        }
        parsed
    }
}

/// Writes all bytes but letters, digits and `plain` as `%XX`.
fn encode(bytes: &[u8], plain: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            text.push(char::from(*byte))
        } else {
            text.push_str(&format!("%{byte:02X}"))
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_and_paths_round_trip(
            node in "\\PC{1,20}",
            token in "\\PC{1,20}",
            grid in "\\PC{1,8}",
            path in prop::collection::vec(1u8.., 1..100),
        ) {
            let owner = StubOwner::new(&grid, "ours", "vu");
            let name = StubName { node, token };
            let job = owner.job_name(&name);
            prop_assert_eq!(owner.parse(&job), Some(name));
            prop_assert!(!job.contains(['|', '\n', ' ', '<']));
            prop_assert_eq!(StubOwner::new(&grid, "ours", "v").parse(&job), None);
            prop_assert_eq!(StubOwner::new(&grid, "theirs", "vu").parse(&job), None);
            let path = PathBuf::from(OsString::from_vec(path));
            let comment = StubComment { base: Some(path), log: None };
            prop_assert_eq!(StubComment::parse(&comment.text()), comment);
            prop_assert!(slug(&job).len() <= 63);
        }
    }
}
