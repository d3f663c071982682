//! The hosts of an ssh cluster: their section and format, and the nodes of each.
//!
//! This module does not know how a host is reached.
// Doc lines of keys are also the template's comments, where `[net]` is a section's name, no link.
#![allow(rustdoc::broken_intra_doc_links)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::schema::{
    Fallback::{Absent, Is},
    section,
};
use super::units::Time;

section! {
    /// Hosts reached by ssh, without passwords.
    ///
    /// A node there listens where ssh reached its host, unless [net] says otherwise. `head.bind`
    /// must be an address that they reach.
    SshSection {
        /// Hosts, and the number of nodes on each.
        hosts: BTreeMap<String, String> = Absent("{ \"n1.example.org\" = \"8\", \
            \"me@n2.example.org:2222\" = \"4\" }");
        /// Path of the ssh command.
        command: PathBuf = Is("\"ssh\"");
        /// Options of ssh, as in its config file, except those that an unattended connection
        /// always sets itself.
        options: BTreeMap<String, String> = Absent("{ IdentityFile = \"/home/me/.ssh/grid\" }");
        /// Directory of the nodes' files on the hosts; relative to the home directory unless it
        /// starts with a slash.
        dir: PathBuf = Is("\".springtide\"");
        /// Time limit of a command.
        answer_timeout: Time = Is("\"20s\""), alias "answer_within";
    }
}

/// A host that is reached by ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshHost {
    /// The name in the config.
    pub name: String,
    /// The user to log in as; none: ssh's own choice.
    pub user: Option<String>,
    /// Its name or address; an IPv6 address has no brackets.
    pub host: String,
    /// The port; none: ssh's own choice.
    pub port: Option<u16>,
    /// The number of nodes that it takes.
    pub places: u32,
}

/// An error of the hosts of an ssh cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SshHostsError {
    /// There are no hosts.
    #[error(
        "`ssh.hosts` names no machine: give each with how many nodes it takes, \
         {{ \"n1.example.org\" = \"8\" }}"
    )]
    None,
    /// A host has an invalid format.
    #[error(
        "`ssh.hosts`: \"{name}\" is no host: write [user@]host[:port], an IPv6 address in brackets"
    )]
    NoHost {
        /// The name in the config.
        name: String,
    },
    /// The number of nodes of a host is invalid.
    #[error(
        "`ssh.hosts`: \"{name}\" must take a whole number of nodes, at least 1, found \"{found}\""
    )]
    NoNumber {
        /// The name in the config.
        name: String,
        /// The text that was found.
        found: String,
    },
    /// The hosts take fewer nodes than the cluster has.
    #[error(
        "`ssh.hosts` has places for {places} nodes, and the cluster has {nodes}: raise the numbers \
         or name more hosts"
    )]
    TooFew {
        /// The nodes that the hosts take.
        places: u64,
        /// The nodes of the cluster.
        nodes: u64,
    },
}

impl SshSection {
    /// The hosts in the order of their names, with places for this many nodes.
    ///
    /// # Errors
    /// [`SshHostsError`]: the first error found.
    pub fn hosts_for(&self, nodes: u64) -> Result<Vec<SshHost>, SshHostsError> {
        if self.hosts.is_empty() {
            return Err(SshHostsError::None);
        }
        let read = |(name, places): (&String, &String)| host(name, places);
        let hosts = self.hosts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let places = hosts.iter().map(|host| u64::from(host.places)).sum();
        if places >= nodes { Ok(hosts) } else { Err(SshHostsError::TooFew { places, nodes }) }
    }
}

/// Parses one entry of the config.
fn host(name: &str, places: &str) -> Result<SshHost, SshHostsError> {
    let no_host = || SshHostsError::NoHost { name: name.to_owned() };
    let (user, rest) = match name.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, name),
    };
    let (host, port) = match rest.strip_prefix('[') {
        Some(inside) => {
            let (host, after) = inside.split_once(']').ok_or_else(no_host)?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(no_host()),
            }
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    // A leading dash would make an option of the ssh command, and ssh itself refuses most other
    // characters.
    let sound = |text: &str, more: &str| {
        let known = |c: char| c.is_alphanumeric() || more.contains(c);
        !text.is_empty() && !text.starts_with('-') && text.chars().all(known)
    };
    let bracketed = rest.starts_with('[');
    let port = match port.map(str::parse) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err(no_host()),
    };
    if !sound(host, if bracketed { ".-_:%" } else { ".-_" })
        || user.is_some_and(|user| !sound(user, ".-_+@\\"))
    {
        return Err(no_host());
    }
    let places = match places.parse() {
        Ok(number) if number > 0 => number,
        _ => {
            let (name, found) = (name.to_owned(), places.to_owned());
            return Err(SshHostsError::NoNumber { name, found });
        }
    };
    let (name, user) = (name.to_owned(), user.map(str::to_owned));
    Ok(SshHost { name, user, host: host.to_owned(), port, places })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(name: &str) -> Option<(Option<String>, String, Option<u16>)> {
        host(name, "3").ok().map(|host| (host.user, host.host, host.port))
    }

    #[test]
    fn hosts_have_users_and_ports() {
        let some = |user: Option<&str>, host: &str, port| {
            Some((user.map(str::to_owned), host.to_owned(), port))
        };
        assert_eq!(parts("n1"), some(None, "n1", None));
        assert_eq!(parts("me@n1.example.org:22"), some(Some("me"), "n1.example.org", Some(22)));
        assert_eq!(parts("[::1]"), some(None, "::1", None));
        assert_eq!(parts("me@[fe80::1%eth0]:2222"), some(Some("me"), "fe80::1%eth0", Some(2222)));
        assert_eq!(parts("a@b@192.0.2.1"), some(Some("a@b"), "192.0.2.1", None));
        for bad in [
            "",
            "@n",
            "-oProxyCommand=x",
            "me@-n",
            "n:",
            "n:0",
            "n:65536",
            "::1",
            "[::1",
            "[::1]x",
            "[]",
            "n 1",
            "n;x",
            "$(x)",
            "me@",
            "n:ssh",
        ] {
            assert_eq!(
                host(bad, "1"),
                Err(SshHostsError::NoHost { name: bad.to_owned() }),
                "{bad}"
            );
        }
        for bad in ["", "0", "-1", "many", "1.5", "4294967296"] {
            let error = host("n1", bad).unwrap_err().to_string();
            assert!(error.contains("whole number") && error.contains("`ssh.hosts`"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_no_host_is_an_option(name in "\\PC{0,12}", places in "\\PC{0,4}") {
            if let Ok(host) = host(&name, &places) {
                prop_assert!(!host.host.is_empty() && !host.host.starts_with('-'));
                prop_assert!(host.places > 0);
                prop_assert!(host.user.is_none_or(|user| !user.starts_with('-')));
            }
        }
    }
}
