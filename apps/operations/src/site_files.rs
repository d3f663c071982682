//! The files that `up` writes for a cluster's site, a process of its own.
//!
//! ```text
//! DIR/site/NAME/site.toml     the cluster's name, and the address of the head
//! DIR/site/NAME/grid.toml     the grid's config
//! DIR/site/NAME/address       the last address of the site
//! DIR/site/NAME/site.lease    locked while the site runs: at most one process does
//! DIR/site/NAME/node.pem ...  the certificates of site and authority, and the site's key
//! DIR/site/NAME/node/NODE/    the same for each node; the site writes the node's config
//! ```
//!
//! The directory may be copied to the cluster's host: it contains no key of any other process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use springtide_actors::head::{HEAD, node_names};
use springtide_actors::site_host::site_node;
use springtide_cli::config::load;
use springtide_cli::exit::Failed;
use springtide_cli::outdir::write_file;
use springtide_runtime::config::{ClusterSection, GridConfig, SiteConfig, Sources};
use springtide_runtime::id::ClusterId;

use super::grid::head_addresses;
use super::grid_files::{LaunchPlan, absolute, make_private_dir};

/// The config file of a cluster's site.
pub fn file_of(dir: &Path, cluster: &str) -> PathBuf {
    dir.join("site").join(cluster).join("site.toml")
}

/// Writes the files of a site process.
///
/// # Errors
/// Files cannot be written, or names do not fit.
pub fn write(
    plan: &LaunchPlan<'_>,
    cluster: &ClusterSection,
    head: SocketAddr,
) -> Result<(), Failed> {
    let name = ClusterId::from(cluster.name.as_str());
    let file = absolute(&file_of(plan.dir, name.as_str()))?;
    let dir = file.parent().unwrap_or(&file);
    make_private_dir(dir)?;
    plan.authority.issue(&site_node(&name), name.as_str(), "site")?.save(dir)?;
    for node in node_names(&name, plan.config.node_limit(cluster)) {
        let dir = dir.join("node").join(node.as_str());
        make_private_dir(&dir)?;
        plan.authority.issue(&node, name.as_str(), "node")?.save(&dir)?;
    }
    let level = plan.log_level.unwrap_or(plan.config.log.level);
    let text = format!(
        "config_version = 1\ncluster = \"{name}\"\n[head]\nname = \"{HEAD}\"\n\
        address = {}\n\
        [identity]\ncertificate = \"node.pem\"\nkey = \"node.key\"\nca = \"ca.pem\"\n\
        [log]\nlevel = \"{level}\"\nformat = \"{}\"\n",
        head_addresses(plan.config, head),
        plan.config.log.format
    );
    // The program must be able to read the file that it writes.
    load::<SiteConfig>(&Sources::of_text("site.toml", &text))?;
    let mut config = plan.config.clone();
    for cluster in &mut config.cluster {
        if cluster.name.as_str() != name.as_str() {
            // Environment variables of other clusters may be secret.
            cluster.env.clear();
        }
        for path in [&mut cluster.files, &mut cluster.program].into_iter().flatten() {
            *path = absolute(path)?;
        }
    }
    let whole = toml::to_string(&config).map_err(Failed::failure)?;
    load::<GridConfig>(&Sources::of_text("grid.toml", &whole))?;
    for (path, text) in [(dir.join("grid.toml"), whole), (file.clone(), text)] {
        write_file(&path, text.as_bytes())?;
    }
    Ok(())
}

/// Reads a site's config, and the grid's.
///
/// # Errors
/// All mistakes in the first config that has any.
pub fn config(file: &Path) -> Result<(SiteConfig, GridConfig), Failed> {
    // Environment variables apply to the grid's config only.
    let sources = |file: &Path| Sources { file: Some(file.to_owned()), ..Sources::default() };
    let site = load::<SiteConfig>(&sources(file))?.value;
    let parent = file.parent().unwrap_or_else(|| Path::new(""));
    let grid = load::<GridConfig>(&sources(&parent.join(&site.grid_config)))?.value;
    Ok((site, grid))
}
