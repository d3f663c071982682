//! Parsers of values of options.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use springtide_runtime::config::Time;

/// Parses a time longer than zero, such as `90s`.
///
/// # Errors
/// The text is not a time, or the time is zero.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<Time>()?.get();
    if time.is_zero() { Err("must be longer than zero".to_owned()) } else { Ok(time) }
}

/// Parses a choice of the config's keywords.
pub fn keyword_parser<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}
