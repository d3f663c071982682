//! The arguments of a command line, split and quoted as Pegasus and HTCondor do.
//!
//! White space separates arguments. Single and double quotes both keep what they enclose as it is,
//! backslashes included. Outside of quotes a backslash keeps the next character.
//!
//! Pegasus refuses a line in which a quote has no end by these rules. Such a line is split as a
//! shell does, where `\"` in double quotes is a quote.

/// A command line that cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsplittable {
    /// A quote has no end.
    Quote(char),
    /// The line ends with a backslash.
    Backslash,
}

impl Unsplittable {
    /// The mistake and its remedy.
    pub fn reason(self) -> String {
        match self {
            Self::Quote(quote) => {
                format!("the arguments have a {quote} without another: quote or escape it")
            }
            Self::Backslash => {
                "the arguments end with a backslash: write it twice or quote it".to_owned()
            }
        }
    }
}

/// Splits a command line into arguments.
pub(crate) fn split(line: &str) -> Result<Vec<String>, Unsplittable> {
    split_with(line, false).or_else(|mistake| split_with(line, true).map_err(|_| mistake))
}

/// Splits a command line, with or without escapes in double quotes.
fn split_with(line: &str, escapes_in_quotes: bool) -> Result<Vec<String>, Unsplittable> {
    let mut arguments = Vec::new();
    let mut argument: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => arguments.extend(argument.take()),
            '\\' => {
                let next = chars.next().ok_or(Unsplittable::Backslash)?;
                argument.get_or_insert_default().push(next);
            }
            '"' if escapes_in_quotes => {
                let argument = argument.get_or_insert_default();
                loop {
                    match chars.next().ok_or(Unsplittable::Quote('"'))? {
                        '"' => break,
                        '\\' => {
                            let next = chars.next().ok_or(Unsplittable::Quote('"'))?;
                            if !matches!(next, '"' | '\\') {
                                argument.push('\\');
                            }
                            argument.push(next);
                        }
                        other => argument.push(other),
                    }
                }
            }
            quote @ ('\'' | '"') => {
                let rest = chars.as_str();
                let end = rest.find(quote).ok_or(Unsplittable::Quote(quote))?;
                argument.get_or_insert_default().push_str(&rest[..end]);
                chars = rest[end + 1..].chars();
            }
            other => argument.get_or_insert_default().push(other),
        }
    }
    arguments.extend(argument);
    Ok(arguments)
}

/// Whether an argument refers to a variable, `$NAME` or `${NAME}`, which Pegasus would replace.
pub(crate) fn has_variable(argument: &str) -> bool {
    argument
        .split('$')
        .skip(1)
        .any(|after| after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_what_they_enclose() {
        for (line, arguments) in [
            ("", &[][..]),
            (" -n  2\n\tin ", &["-n", "2", "in"]),
            ("-t \"two words\" -x 'a  b'", &["-t", "two words", "-x", "a  b"]),
            ("-e \"\" ''", &["-e", "", ""]),
            ("a\"b c\"'d e'f", &["ab cd ef"]),
            ("\"it's\" '\"x\"'", &["it's", "\"x\""]),
            (r#"Karan\\nVahi "a\nb" 'a\nb' \'x\ y"#, &["Karan\\nVahi", "a\\nb", "a\\nb", "'x y"]),
        ] {
            assert_eq!(split(line).unwrap(), arguments, "{line}");
        }
        // Pegasus keeps a backslash in quotes. It refuses the second line.
        assert_eq!(split(r#""a\\" b"#).unwrap(), [r"a\\", "b"]);
        assert_eq!(split(r#"-o "{\"f g\":9, \n \\}""#).unwrap(), ["-o", r#"{"f g":9, \n \}"#]);
        assert_eq!(split("a 'b"), Err(Unsplittable::Quote('\'')));
        assert_eq!(split("a \"b'"), Err(Unsplittable::Quote('"')));
        assert_eq!(split("a\\"), Err(Unsplittable::Backslash));
    }

    #[test]
    fn variables_are_recognised() {
        for variable in ["$HOME", "-x=${A}", "a$$b"] {
            assert!(has_variable(variable), "{variable}");
        }
        for plain in ["", "$", "5$", "$1", "a$ b"] {
            assert!(!has_variable(plain), "{plain}");
        }
    }

    proptest::proptest! {
        #[test]
        fn quoted_arguments_come_back(arguments in proptest::collection::vec(".{0,8}", 0..6)) {
            // Text without one kind of quote can stand in it.
            let quoted: Vec<String> = arguments
                .iter()
                .map(|text| {
                    let parts: Vec<_> = text.split('\'').map(|part| format!("'{part}'")).collect();
                    parts.join("\"'\"")
                })
                .collect();
            proptest::prop_assert_eq!(split(&quoted.join(" ")).unwrap(), arguments);
        }
    }
}
