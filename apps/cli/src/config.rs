//! Reading of a command's configs, with a warning for each key in an earlier spelling.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use springtide_runtime::config::{self, Config, ConfigError, Loaded, Sources};

/// The warnings that this process has printed.
static PRINTED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);

#[cfg(feature = "terminal")]
use crate::talk::tell as print_warning;

#[cfg(not(feature = "terminal"))]
fn print_warning(line: &str) {
    eprintln!("{line}");
}

/// Loads a config, and prints each of its warnings, once in a process.
///
/// # Errors
/// As of [`config::load`].
pub fn load<T: Config>(sources: &Sources) -> Result<Loaded<T>, ConfigError> {
    let loaded = config::load(sources)?;
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    for warning in &loaded.warnings {
        let line = format!("warning: {warning}");
        if printed.insert(line.clone()) {
            print_warning(&line);
        }
    }
    Ok(loaded)
}
