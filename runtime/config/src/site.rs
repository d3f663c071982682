//! The config of a cluster's site in its own process: read by `site run --config`, and written by
//! `up`.

use std::path::PathBuf;

use super::grid::CONFIG_VERSION;
use super::node::{HeadContact, IdentitySection, NodeLogSection};
use super::schema::{
    Fallback::{Is, Required, Section},
    section,
};
use super::units::{Name, Whole};
use super::{Checker, Config};

section! {
    /// A cluster's site in its own process.
    SiteConfig {
        /// Version of this form of file.
        config_version: Whole<1, CONFIG_VERSION> = Is("1");
        /// Its cluster.
        cluster: Name = Required("\"ams\"");
        /// The grid's config; beside this file if it is relative.
        grid_config: PathBuf = Is("\"grid.toml\"");
        /// The grid's head.
        head: HeadContact = Section;
        /// Who the site is.
        identity: IdentitySection = Section;
        /// Log lines.
        log: NodeLogSection = Section;
    }
}

impl Config for SiteConfig {
    const WHAT: &'static str = "site";

    fn check(&self, _: &mut Checker<'_>) {}
}
