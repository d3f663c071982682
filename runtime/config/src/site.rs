//! The config of a cluster's site in its own process: read by `site run --config`, and written by
//! `up`.

use std::path::PathBuf;

use super::node::{HeadContact, IdentitySection, NodeLogSection};
use super::schema::{
    Fallback::{Is, Required, Section},
    section,
};
use super::units::{BoundedInt, Name};
use super::{CONFIG_VERSION, Checker, Config};

section! {
    /// A cluster's site in its own process.
    SiteConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Name of its cluster.
        cluster: Name = Required("\"ams\"");
        /// Path of the grid's config, relative to this file.
        grid_config: PathBuf = Is("\"grid.toml\"");
        /// The grid's head.
        head: HeadContact = Section;
        /// Identity of the site.
        identity: IdentitySection = Section;
        /// Log lines.
        log: NodeLogSection = Section;
    }
}

impl Config for SiteConfig {
    const WHAT: &'static str = "site";

    fn check(&self, _: &mut Checker<'_>) {}
}
