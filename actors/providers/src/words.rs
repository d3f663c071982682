//! Quoting of words and variables for POSIX shells.
//!
//! This module knows neither the commands nor their transport.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Quotes a text as a shell word. The text must not contain NUL.
pub(super) fn quote(text: &str) -> String {
    // Lossless, since the added characters are ASCII.
    String::from_utf8_lossy(&quote_os(text.as_ref())).into_owned()
}

/// Quotes a text that may not be UTF-8.
pub(super) fn quote_os(word: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = word.as_bytes().split(|byte| *byte == b'\'').collect();
    [b"'", &parts.join(&br"'\''"[..])[..], b"'"].concat()
}

/// Checks that a shell can set these variables.
///
/// # Errors
/// The first invalid variable, in a text for the author of the config.
pub(super) fn check_env(env: &[(String, String)]) -> Result<(), String> {
    match env.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
        Some((name, value)) => {
            Err(format!("no shell can set `cluster.env` {name:?} to {value:?}: change it"))
        }
        None => Ok(()),
    }
}

/// Whether this is a valid name of a shell variable.
fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// Output of a shell that runs this script.
    fn output_of(script: &[u8]) -> Vec<u8> {
        let script = OsString::from_vec(script.to_vec());
        Command::new("sh").arg("-c").arg(script).output().unwrap().stdout
    }

    fn printing(word: &[u8]) -> Vec<u8> {
        [b"printf %s ", word].concat()
    }

    #[test]
    fn invalid_variables_are_reported() {
        let env = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        for (name, value) in [("A", ""), ("_", "x y'"), ("a1_B", "$(x)\n")] {
            assert_eq!(check_env(&env(name, value)), Ok(()), "{name}");
        }
        for (name, value) in [("", ""), ("1A", "x"), ("A B", "x"), ("a.b", "x"), ("A", "x\0y")] {
            let error = check_env(&env(name, value)).unwrap_err();
            let expected = format!("`cluster.env` {name:?} to {value:?}");
            assert!(error.contains(&expected), "{error}");
        }
        let (good, bad) = (env("A", "x"), env("É", "x"));
        assert!(check_env(&[good, bad].concat()).is_err(), "also where it is not the first");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Any text, through two nested shells, as on another machine.
        #[test]
        fn a_quoted_word_is_the_text(
            text in "[^\\x00]{0,40}",
            marks in "['\"\\\\$`!*~ \n;&|<>#-]{0,20}",
        ) {
            for text in [&text, &marks, &format!("{marks}{text}{marks}")] {
                let inner = printing(quote(text).as_bytes());
                let inner = String::from_utf8(inner).unwrap();
                let printed = output_of(format!("exec sh -c {}", quote(&inner)).as_bytes());
                prop_assert_eq!(&printed, text.as_bytes());
            }
        }

        /// Paths are arbitrary bytes.
        #[test]
        fn a_quoted_word_is_the_bytes(bytes in proptest::collection::vec(1..=u8::MAX, 0..40)) {
            let word = quote_os(OsStr::from_bytes(&bytes));
            prop_assert_eq!(output_of(&printing(&word)), bytes);
        }
    }
}
