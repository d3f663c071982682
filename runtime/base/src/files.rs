//! The rule for names of input files, wherever one is named, stored or read.
//!
//! It knows neither where files are stored nor how they get there.

/// The longest name in bytes. With the additions for files in transfer it must fit a directory
/// entry.
pub const NAME_MAX: usize = 200;

/// The error for an invalid name of an input file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a valid name of an input file: give a plain name of at most {NAME_MAX} bytes, \
     without slashes and without a dot at its start"
)]
pub struct NameError {
    /// The given name, cut if it is too long.
    pub name: String,
}

/// Checks that an input file may have this name: a plain one, which cannot lead out of its
/// directory.
///
/// # Errors
/// The name is invalid: [`NameError`].
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
