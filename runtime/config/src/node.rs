//! The config of a node process: read by `node run --config`, and written by a site.

use std::path::PathBuf;

use super::grid::{
    CONFIG_VERSION, LinkSection, NetSection, WorkSection, check_links, check_net, check_work,
};
use super::schema::{
    Fallback::{Absent, Elements, Is, Required, Section},
    section,
};
use super::units::{Format, HostPort, Level, Name, Whole};
use super::{Checker, Config};

section! {
    /// The config of one node.
    NodeConfig {
        /// Version of this form of file.
        config_version: Whole<1, CONFIG_VERSION> = Is("1");
        /// The grid's name.
        grid: Name = Is("\"local\"");
        /// The node's name, as in its certificate.
        node: Name = Required("\"ams-1\"");
        /// Its cluster.
        cluster: Name = Required("\"ams\"");
        /// The incarnation of this process. Where not given, the number after the last one in the
        /// file `incarnation` beside the certificate.
        incarnation: Option<u64> = Absent("1764547200000000");
        /// The name under which its cluster's site is published at the head; that of the cluster
        /// where not given.
        site: Option<Name> = Absent("\"ams\"");
        /// Where the process of its cluster's site is; where not given, the head is that, too.
        site_at: Option<HostPort> = Absent("\"127.0.0.1:47001\"");
        /// The grid's head, with which the node registers.
        head: HeadContact = Section;
        /// Who the node is.
        identity: IdentitySection = Section;
        /// The node has joined by a token: it waits for its head however long that is away, and
        /// begins again when it is told to.
        renew: bool = Is("false");
        /// Directory of the cluster's input files, as this node sees it.
        files: Option<PathBuf> = Absent("\"/data/springtide\"");
        /// The network.
        net: NetSection = Section;
        /// What is expected of the links between two clusters; those of other clusters than the
        /// node's do no harm.
        link: Vec<LinkSection> = Elements(&[&[]]);
        /// How compute threads work.
        work: WorkSection = Section;
        /// Log lines.
        log: NodeLogSection = Section;
    }

    /// The address of the grid's head.
    HeadContact {
        /// Its name, as in its certificate.
        name: Name = Is("\"head\"");
        /// Where it is reached.
        address: HostPort = Required("\"127.0.0.1:47000\"");
    }

    /// The files of a process's identity.
    IdentitySection {
        /// Its certificate, PEM.
        certificate: PathBuf = Required("\"ams-1.cert.pem\"");
        /// Its private key, PEM, readable by its user alone.
        key: PathBuf = Required("\"ams-1.key.pem\"");
        /// The certificate of the grid's authority, PEM.
        ca: PathBuf = Required("\"ca.cert.pem\"");
    }

    /// The log of a process.
    NodeLogSection {
        /// From which severity on: "error", "warn", "info", "debug" or "trace".
        level: Level = Is("\"info\"");
        /// How they look: "pretty" or "json".
        format: Format = Is("\"pretty\"");
        /// Where they go; to stderr where not given.
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
    }
}
