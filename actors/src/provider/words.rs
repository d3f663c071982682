//! Words and variables that POSIX shells take as they are, whatever is in them.
//!
//! Must not know what a shell is told by them, nor how they reach it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A word that stands for this text, whatever is in it but NUL.
pub(super) fn quote(text: &str) -> String {
    // Nothing is lost: what is put around and between its characters is text too.
    String::from_utf8_lossy(&quote_os(text.as_ref())).into_owned()
}

/// The same of what need not be UTF-8.
pub(super) fn quote_os(word: &OsStr) -> Vec<u8> {
    let parts: Vec<&[u8]> = word.as_bytes().split(|byte| *byte == b'\'').collect();
    [b"'", &parts.join(&br"'\''"[..])[..], b"'"].concat()
}

/// Whether a shell can give a node these variables.
///
/// # Errors
/// The first that it cannot, in words for whoever wrote the config.
pub(super) fn check_env(env: &[(String, String)]) -> Result<(), String> {
    match env.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
        Some((name, value)) => {
            Err(format!("no shell can set `cluster.env` {name:?} to {value:?}: change it"))
        }
        None => Ok(()),
    }
}

/// Whether shells have variables of this name.
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

    /// What a shell prints that runs this.
    fn said(script: &[u8]) -> Vec<u8> {
        let script = OsString::from_vec(script.to_vec());
        Command::new("sh").arg("-c").arg(script).output().unwrap().stdout
    }

    fn printing(word: &[u8]) -> Vec<u8> {
        [b"printf %s ", word].concat()
    }

    #[test]
    fn what_a_shell_cannot_set_is_told() {
        let env = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        for (name, value) in [("A", ""), ("_", "x y'"), ("a1_B", "$(x)\n")] {
            assert_eq!(check_env(&env(name, value)), Ok(()), "{name}");
        }
        for (name, value) in [("", ""), ("1A", "x"), ("A B", "x"), ("a.b", "x"), ("A", "x\0y")] {
            let told = check_env(&env(name, value)).unwrap_err();
            assert!(told.contains(&format!("`cluster.env` {name:?} to {value:?}")), "{told}");
        }
        let (good, bad) = (env("A", "x"), env("É", "x"));
        assert!(check_env(&[good, bad].concat()).is_err(), "also where it is not the first");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Words of any text, through two shells one in the other, as on another machine.
        #[test]
        fn a_quoted_word_is_the_text(text in "[^\\x00]{0,40}", marks in "['\"\\\\$`!*~ \n;&|<>#-]{0,20}") {
            for text in [&text, &marks, &format!("{marks}{text}{marks}")] {
                let inner = printing(quote(text).as_bytes());
                let inner = String::from_utf8(inner).unwrap();
                let told = said(format!("exec sh -c {}", quote(&inner)).as_bytes());
                prop_assert_eq!(&told, text.as_bytes());
            }
        }

        /// Paths are bytes.
        #[test]
        fn a_quoted_word_is_the_bytes(bytes in proptest::collection::vec(1..=u8::MAX, 0..40)) {
            let word = quote_os(OsStr::from_bytes(&bytes));
            prop_assert_eq!(said(&printing(&word)), bytes);
        }
    }
}
