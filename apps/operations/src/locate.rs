//! The config of the grid that a command uses where no option names it.
//!
//! This module does not know the config's content.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::grid_files::state_dir;

/// The environment variable with the path of a grid's config.
pub const CONFIG_VARIABLE: &str = "SPRINGTIDE_CONFIG";
/// The name of a config that is found without an option.
const CONFIG_NAME: &str = "grid.toml";

/// A config that was found without an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundConfig {
    /// The environment names it.
    Named(PathBuf),
    /// It is the nearest one in the working directory and those above.
    Nearest(PathBuf),
}

/// The config of this process's environment and working directory, if any.
pub fn find() -> Option<FoundConfig> {
    let here = std::env::current_dir().ok();
    find_from(std::env::var_os(CONFIG_VARIABLE), here.as_deref())
}

fn find_from(named: Option<OsString>, here: Option<&Path>) -> Option<FoundConfig> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return Some(FoundConfig::Named(named.into()));
    }
    let here = here?;
    let dir = here.ancestors().find(|dir| dir.join(CONFIG_NAME).is_file())?;
    // A user would type the short name.
    let near = if dir == here { PathBuf::from(CONFIG_NAME) } else { dir.join(CONFIG_NAME) };
    Some(FoundConfig::Nearest(near))
}

/// The default of `--config`. A missing file is reported when it is read.
///
/// The file is searched once: each command's option asks for it when the program starts.
pub fn default_config() -> PathBuf {
    static DEFAULT: OnceLock<PathBuf> = OnceLock::new();
    let default = DEFAULT.get_or_init(|| match find() {
        Some(FoundConfig::Named(path) | FoundConfig::Nearest(path)) => path,
        None => CONFIG_NAME.into(),
    });
    default.clone()
}

/// What to do if a config is missing; none if the file exists.
pub fn hint(file: &Path) -> Option<String> {
    (!file.exists()).then(|| {
        format!(
            "no config of a grid is at {}: give one with --config FILE, set {CONFIG_VARIABLE}, or \
            change to a directory below that of a {CONFIG_NAME}",
            file.display()
        )
    })
}

/// Whether grids of this config have kept state next to it, so that the file is Springtide's.
pub fn has_state(file: &Path) -> bool {
    state_dir(file).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_precedes_the_nearest_file() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let find = |named: Option<&str>, here: &Path| {
            find_from(named.map(OsString::from), Some(here)).map(|found| match found {
                FoundConfig::Named(path) => (true, path),
                FoundConfig::Nearest(path) => (false, path),
            })
        };
        let file = temp.path().join("a/grid.toml");
        std::fs::write(&file, "").unwrap();
        assert_eq!(find(None, &deep), Some((false, file.clone())));
        assert_eq!(find(Some(""), &temp.path().join("a")), Some((false, "grid.toml".into())));
        assert_eq!(find(Some("x.toml"), &deep), Some((true, "x.toml".into())));
        assert!(hint(&file).is_none());
        assert!(hint(&deep.join("grid.toml")).unwrap().contains("SPRINGTIDE_CONFIG"));
    }
}
