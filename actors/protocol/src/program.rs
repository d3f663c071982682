//! Programs that users bring to a grid: their identity, their way to the hosts, and the reasons
//! against them.
//!
//! A program is named by the digest of its file. The head gets the file from the submitter, and
//! each site gets it once from the head or from another site. This module must not depend on how
//! files are stored.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};
use springtide_net::net::Contact;
use springtide_remote::remote_message;

use crate::files::{FileEntry, FileSource};

/// SHA-256 of a program's file. Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProgramDigest(pub [u8; 32]);

impl ProgramDigest {
    /// Returns the first digits, for display.
    pub fn short(&self) -> String {
        self.0[..6].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for ProgramDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ProgramDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ProgramDigest> for String {
    fn from(digest: ProgramDigest) -> Self {
        digest.to_string()
    }
}

impl FromStr for ProgramDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a program's digest must be 64 hexadecimal digits of SHA-256".to_owned();
        let digits = text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 64 || !digits {
            return Err(wrong());
        }
        let mut digest = [0; 32];
        for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(digest))
    }
}

impl TryFrom<String> for ProgramDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The machine that a program is for, as the header of its ELF file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramTarget {
    /// Number of the instruction set, `e_machine` of the header.
    pub machine: u16,
    /// Width of an address in bits, 32 or 64.
    pub bits: u8,
    /// Whether numbers begin with their least significant byte.
    pub little_endian: bool,
}

impl ProgramTarget {
    /// The name of the machine as `uname -m` prints it, if it is known.
    pub fn machine_name(&self) -> Option<&'static str> {
        Some(match (self.machine, self.bits, self.little_endian) {
            (3, ..) => "i686",
            (21, 64, true) => "ppc64le",
            (21, 64, false) => "ppc64",
            (22, 64, _) => "s390x",
            (40, ..) => "armv7l",
            (62, 64, _) => "x86_64",
            (183, 64, true) => "aarch64",
            (243, 64, _) => "riscv64",
            (258, 64, _) => "loongarch64",
            _ => return None,
        })
    }
}

impl fmt::Display for ProgramTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.machine_name() {
            Some(name) => f.write_str(name),
            None => {
                let end = if self.little_endian { "little" } else { "big" };
                write!(f, "machine {} ({} bit, {end} endian)", self.machine, self.bits)
            }
        }
    }
}

/// A program that a job needs on its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramImage {
    /// Name of its file, for display.
    pub name: String,
    /// Digest of its file.
    pub digest: ProgramDigest,
    /// Length of its file, in bytes.
    pub bytes: u64,
    /// Machine that it is for.
    pub target: ProgramTarget,
    /// Path of the loader that the system starts it with; absent: it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
}

impl ProgramImage {
    /// The file as file servers name it: by its digest.
    pub fn entry(&self) -> FileEntry {
        let sum = self.digest.to_string();
        FileEntry { name: sum.clone(), bytes: self.bytes, sum }
    }
}

/// A program in an order to start nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedProgram {
    /// The program to start.
    pub image: ProgramImage,
    /// Its path on the submitter's host. A site that has the same file there copies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Processes that have the file, in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<FileSource>,
}

/// Reasons why a program is not sent, stored or started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramError {
    /// The grid runs only programs that its operators installed.
    #[error(
        "the grid runs only its own programs: submit the job with the program of its nodes, or ask \
         its operator to set `programs.foreign`"
    )]
    Forbidden,
    /// The file is not an executable that hosts could start.
    #[error("{name} is not an executable that a host can start: {reason}")]
    NotExecutable {
        /// Name of the program.
        name: String,
        /// What its file lacks.
        reason: String,
    },
    /// The program is for another kind of machine.
    #[error(
        "{name} is for {needs}, and the hosts of cluster {cluster} are {has}: build it for {has}, \
         or ask for other clusters"
    )]
    Machine {
        /// Name of the program.
        name: String,
        /// Machine that it is for.
        needs: String,
        /// Cluster that cannot run it.
        cluster: ClusterId,
        /// Machine of the hosts.
        has: String,
    },
    /// The hosts lack the program's loader, which belongs to its C library.
    #[error(
        "{name} needs {interpreter}, which the hosts of cluster {cluster} lack: link it \
         statically, or build it against their C library"
    )]
    Interpreter {
        /// Name of the program.
        name: String,
        /// Path of the loader.
        interpreter: String,
        /// Cluster that cannot run it.
        cluster: ClusterId,
    },
    /// The program exceeds the grid's limit.
    #[error(
        "{name} has {bytes} bytes, above the limit of {max}: strip its symbols, or raise \
         `programs.size_max` of the grid's config"
    )]
    TooLarge {
        /// Name of the program.
        name: String,
        /// Length of its file, in bytes.
        bytes: u64,
        /// Longest accepted length, in bytes.
        max: u64,
    },
    /// The cache is full of programs that are in use.
    #[error(
        "{name} has {bytes} bytes, and {used} of the {max} bytes of the cache are in use: wait \
         for other programs to end, or raise `programs.cache_max` of the grid's config"
    )]
    CacheFull {
        /// Name of the program.
        name: String,
        /// Length of its file, in bytes.
        bytes: u64,
        /// Bytes of programs in use.
        used: u64,
        /// Size of the cache, in bytes.
        max: u64,
    },
    /// No process supplied the file.
    #[error("{name} could not be fetched: {reason}; submit the job again")]
    Unavailable {
        /// Name of the program.
        name: String,
        /// The errors of all sources that were tried.
        reason: String,
    },
    /// The cluster's nodes cannot be started with a program of a job.
    #[error("cluster {cluster} cannot start {name}: {reason}")]
    Provider {
        /// Name of the program.
        name: String,
        /// Cluster of the nodes.
        cluster: ClusterId,
        /// What the provider of its nodes lacks.
        reason: String,
    },
    /// The program was started, and ended before it became a node.
    #[error("{name} cannot run as a node of cluster {cluster}: node {node}: {reason}")]
    CannotRun {
        /// Name of the program.
        name: String,
        /// Cluster of the node.
        cluster: ClusterId,
        /// The node that was to start.
        node: NodeId,
        /// How the process ended, with its last lines of output.
        reason: String,
    },
    /// No job needs the program any longer.
    #[error("no job needs {name} any longer")]
    Cancelled {
        /// Name of the program.
        name: String,
    },
}

/// Question of a client to the head's program store: does the grid need this client's program?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetProgramTerms {
    /// Fingerprint of the registry of the client's program.
    pub fingerprint: u64,
}

/// Whether a client is to offer its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramTerms {
    /// Whether nodes need the program, because the grid's own one has another registry.
    pub needed: bool,
}

/// Request of a client to the head's program store: take the client's program.
///
/// The head reads the file from the client. The answer follows when the file is complete, without
/// a time limit. The head keeps it for the jobs that the client submits soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferProgram {
    /// The program of this client.
    pub image: ProgramImage,
    /// Its path on the client's host. The head copies the same file there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The client, whose actor [`PROGRAMS`](crate::names::PROGRAMS) serves the file.
    pub client: Contact,
}

/// Report of a site to the scheduler about a program that it was ordered to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Digest of the program.
    pub digest: ProgramDigest,
    /// Present state of the program there.
    pub state: ProgramState,
}

/// State of a program at a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramState {
    /// The site receives the file.
    Sending {
        /// Number of received bytes.
        received: u64,
        /// Length of the file, in bytes.
        bytes: u64,
    },
    /// The site has the file.
    Ready {
        /// Bytes received over the network.
        bytes: u64,
        /// Duration of the transfer, in milliseconds.
        millis: u64,
    },
    /// The site does not start the program.
    Failed {
        /// Reason of the failure.
        error: ProgramError,
    },
}

/// Describes a transfer of a program, as in `sending program (12 of 40 MB) to cluster ams`.
pub fn describe_sending(received: u64, bytes: u64, to: &str) -> String {
    const MEGA: u64 = 1_000_000;
    let (unit, size) = if bytes >= MEGA { ("MB", MEGA) } else { ("kB", 1000) };
    format!("sending program ({} of {} {unit}) to {to}", received / size, bytes.div_ceil(size))
}

remote_message! {
    "get-program-terms" => GetProgramTerms -> ProgramTerms;
    "offer-program" => OfferProgram -> Result<(), ProgramError>;
    "program-report" => ProgramReport;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_64_digits() {
        let text = "0123456789abcdef".repeat(4);
        let digest: ProgramDigest = text.parse().unwrap();
        assert_eq!((digest.to_string(), digest.short()), (text.clone(), "0123456789ab".to_owned()));
        for wrong in ["", &text[1..], &text.to_uppercase(), &text.replace('0', "é")] {
            assert!(wrong.parse::<ProgramDigest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn progress_of_small_programs_is_not_zero() {
        assert_eq!(
            describe_sending(12_900_000, 39_100_000, "cluster ams"),
            "sending program (12 of 40 MB) to cluster ams"
        );
        assert_eq!(
            describe_sending(0, 4100, "the head"),
            "sending program (0 of 5 kB) to the head"
        );
    }
}
