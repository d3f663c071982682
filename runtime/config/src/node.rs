//! The config of a node process: read by `node run --config`, and written by a site.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::grid::{LinkSection, NetSection, WorkSection, check_links, check_net, check_work};
use super::schema::{
    Fallback::{Absent, Elements, Is, Required, Section},
    section,
};
use super::units::{BoundedInt, Format, HostPort, HostPorts, Level, Name, Size};
use super::{CONFIG_VERSION, Checker, Config};

section! {
    /// The config of one node.
    NodeConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Name of the grid.
        grid: Name = Is("\"local\"");
        /// Name of the node, as in its certificate.
        node: Name = Required("\"ams-1\"");
        /// Name of its cluster.
        cluster: Name = Required("\"ams\"");
        /// Incarnation of this process; default: one more than the last in the file `incarnation`
        /// in the certificate's directory.
        incarnation: Option<u64> = Absent("1764547200000000");
        /// Name under which its cluster's site is published at the head; default: that of the
        /// cluster.
        site: Option<Name> = Absent("\"ams\"");
        /// Address of its cluster's site; default: the head's.
        site_at: Option<HostPort> = Absent("\"127.0.0.1:47001\"");
        /// Head at which the node registers.
        head: HeadContact = Section;
        /// Identity of the node.
        identity: IdentitySection = Section;
        /// Whether the node joined by a token: it waits for its head without limit, and restarts on
        /// request.
        renew: bool = Is("false");
        /// Directory of the cluster's input files on this node.
        files: Option<PathBuf> = Absent("\"/data/springtide\"");
        /// The network.
        net: NetSection = Section;
        /// Expected properties of links between two clusters. Those of other clusters have no
        /// effect.
        link: Vec<LinkSection> = Elements(&[&[]]);
        /// Compute threads.
        work: WorkSection = Section;
        /// The part of its host that the node may use.
        share: HostShareSection = Section;
        /// Log lines.
        log: NodeLogSection = Section;
    }

    /// A node's part of its host. The site of a cluster with nodes on demand sets it.
    HostShareSection {
        /// Positions of the processors to which the process is bound, among those that it may use,
        /// ordered so that neighbours are near each other; default: not bound.
        processors: Option<String> = Absent("\"0,1,2,3\"");
        /// Memory of the process and its children. If they exceed it, the node ends; default: no
        /// limit.
        memory: Option<Size> = Absent("\"4GiB\"");
    }

    /// The address of the grid's head.
    HeadContact {
        /// Name of the head, as in its certificate.
        name: Name = Is("\"head\"");
        /// Address of the head, or a list of addresses, of which the first that answers is used.
        address: HostPorts = Required("\"127.0.0.1:47000\"");
    }

    /// The files of a process's identity.
    IdentitySection {
        /// Certificate, PEM.
        certificate: PathBuf = Required("\"ams-1.cert.pem\"");
        /// Private key, PEM, readable only by its user.
        key: PathBuf = Required("\"ams-1.key.pem\"");
        /// Certificate of the grid's authority, PEM.
        ca: PathBuf = Required("\"ca.cert.pem\"");
    }

    /// The log of a process.
    NodeLogSection {
        /// Minimum severity: "error", "warn", "info", "debug" or "trace".
        level: Level = Is("\"info\"");
        /// Format: "pretty" or "json".
        format: Format = Is("\"pretty\"");
        /// Path of the log file; default: stderr.
        file: Option<PathBuf> = Absent("\"ams-1.log\"");
    }
}

impl NodeConfig {
    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# A Springtide node. Every key is here with its default; what is commented out is not \
             set by default.\n\n",
        )
    }
}

impl Config for NodeConfig {
    const WHAT: &'static str = "node";

    fn check(&self, checker: &mut Checker<'_>) {
        check_net(&self.net, checker);
        check_links(&self.link, checker);
        check_work(&self.work, checker);
        if let Some(text) = &self.share.processors
            && let Err(reason) = positions(text)
        {
            checker.report("share.processors", reason);
        }
    }
}

impl HostShareSection {
    /// Positions of the processors to which the node is bound, if it is bound.
    pub fn positions(&self) -> Option<BTreeSet<usize>> {
        self.processors.as_deref().and_then(|text| positions(text).ok())
    }
}

/// Parses a list of positions.
fn positions(text: &str) -> Result<BTreeSet<usize>, String> {
    let parse = |part: &str| {
        let part = part.trim();
        let wrong = || format!("`share.processors` must list whole numbers, found \"{part}\"");
        part.parse().map_err(|_| wrong())
    };
    text.split(',').map(parse).collect()
}
