//! What an input file may be called: one rule for whoever names, keeps or reads one.
//!
//! Must not know where files are kept, nor how they get there.

/// Longest name, in bytes: with what is put around names of files that are being fetched it must fit a directory entry.
pub const NAME_MAX: usize = 200;

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is no name of an input file: give a plain name of at most {NAME_MAX} bytes, without slashes and not beginning \
     with a dot"
)]
pub struct NameError {
    /// What was given, cut where it is longer than a name.
    pub name: String,
}

/// Whether an input file may be called so: a plain name, which leads nowhere but into the directory that it is looked for in.
///
/// # Errors
/// [`NameError`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    let plain = |c: char| !c.is_control() && c != '/' && c != '\\';
    if !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with('.')
        && name.chars().all(plain)
    {
        return Ok(());
    }
    Err(NameError { name: name.chars().take(NAME_MAX).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere() {
        for good in ["bodies.csv", "a", "Straße 7.txt", "a..b", "x~", &"n".repeat(NAME_MAX)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = "n".repeat(NAME_MAX + 1);
        for bad in
            ["", ".", "..", ".hidden", "../x", "a/b", "/etc/passwd", "a\\b", "a\0b", "a\nb", &long]
        {
            let error = check_name(bad).expect_err(bad).to_string();
            assert!(error.contains("plain name") && error.len() < 500, "{error}");
        }
    }
}
