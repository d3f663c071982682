//! Numbers in workflow files: seconds, bytes and processors, with and without units, and their
//! valid ranges.
//!
//! This module does not depend on formats; its errors are messages without a place.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::error::shown;

/// The longest runtime of a task, in seconds: some 3000 years.
pub const RUNTIME_MAX_S: f64 = 1e11;

/// The runtime in seconds of a task whose file gives 0 or less.
pub const RUNTIME_MIN_S: f64 = 0.001;

/// The smallest number beyond the range of `u64`.
const U64_END: f64 = 18_446_744_073_709_551_616.0;

/// The processors of a task, as a file gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorCount {
    /// The number of processors, at least 1.
    pub processors: u32,
    /// Whether the file gives a fraction, which is rounded up.
    pub is_rounded: bool,
}

impl ProcessorCount {
    /// A number that was not rounded.
    pub fn exact(processors: u32) -> Self {
        Self { processors, is_rounded: false }
    }

    /// The product of two numbers, if it is a number of processors.
    pub fn times(self, other: Self) -> Option<Self> {
        let processors = self.processors.checked_mul(other.processors)?;
        Some(Self { processors, is_rounded: self.is_rounded || other.is_rounded })
    }
}

/// A number, or a text that may contain one: formats write `4`, `4.0` and `"4"` for the same value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Whole(i128),
    Real(f64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Real(number) => write!(f, "{number:?}"),
            Self::Text(text) => f.write_str(&shown(text)),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;

        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or text")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Whole(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar::Whole(value.into()))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Scalar, E> {
                Ok(Scalar::Whole(value))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Scalar, E> {
                Ok(i128::try_from(value).map_or(Scalar::Real(value as f64), Scalar::Whole))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Real(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }
        }

        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl Scalar {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// Converts a text with a number to that number.
    fn plain(&self) -> Self {
        let Self::Text(text) = self else { return self.clone() };
        let text = text.trim();
        // Rust accepts `inf` and `nan`, which are not valid in a workflow.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE_".contains(&byte));
        if let Ok(number) = text.parse() {
            return Self::Whole(number);
        }
        match text.parse() {
            Ok(number) if digits => Self::Real(number),
            _ => self.clone(),
        }
    }

    fn number(&self) -> Option<f64> {
        match self.plain() {
            Self::Whole(number) => Some(number as f64),
            Self::Real(number) => Some(number).filter(|number| number.is_finite()),
            Self::Text(_) => None,
        }
    }

    /// A runtime in seconds, at most [`RUNTIME_MAX_S`], but possibly 0 or less.
    pub fn seconds(&self) -> Result<f64, String> {
        self.time("runtime", "seconds")
    }

    /// A time in a unit, at most [`RUNTIME_MAX_S`], but possibly 0 or less. Errors name it and the
    /// unit.
    pub fn time(&self, what: &str, unit: &str) -> Result<f64, String> {
        let Some(number) = self.number() else {
            return Err(format!("a {what} must be a number of {unit}, found {self}"));
        };
        if number.abs() > RUNTIME_MAX_S {
            let unit = if unit == "seconds" { "s" } else { unit };
            return Err(format!("no task has a {what} of {self} {unit}"));
        }
        Ok(number)
    }

    /// A size in bytes; fractions are rounded up.
    pub fn bytes(&self) -> Result<u64, String> {
        let no =
            || format!("a size must be a number of bytes, from 0 to {}, found {self}", u64::MAX);
        match self.plain() {
            Self::Whole(number) => u64::try_from(number).map_err(|_| no()),
            Self::Real(number) if (0.0..U64_END).contains(&number) => Ok(number.ceil() as u64),
            _ => Err(no()),
        }
    }

    /// A size in bytes, none if it is less than 0; fractions are rounded up.
    pub fn bytes_unless_negative(&self) -> Result<Option<u64>, String> {
        let is_negative = match self.plain() {
            Self::Whole(number) => number < 0,
            Self::Real(number) => number.is_finite() && number < 0.0,
            Self::Text(_) => false,
        };
        if is_negative { Ok(None) } else { self.bytes().map(Some) }
    }

    /// A number of devices or of repetitions, from 0.
    pub fn count(&self, what: &str) -> Result<u32, String> {
        let whole = match self.plain() {
            Self::Real(number) if number.fract() == 0.0 && number.abs() < U64_END => {
                Self::Whole(number as i128)
            }
            other => other,
        };
        match whole {
            Self::Whole(number) if u32::try_from(number).is_ok() => Ok(number as u32),
            _ => Err(format!("{what} must be a whole number from 0 to {}, found {self}", u32::MAX)),
        }
    }

    /// The processors of a task.
    pub fn processors(&self) -> Result<ProcessorCount, String> {
        let number =
            self.number().map(f64::ceil).filter(|number| (1.0..4_294_967_296.0).contains(number));
        match number {
            Some(number) => {
                let is_rounded = self.number() != Some(number);
                Ok(ProcessorCount { processors: number as u32, is_rounded })
            }
            None => Err(format!(
                "a task's processors must be a number from 1 to {}, found {self}",
                u32::MAX
            )),
        }
    }

    /// The work of a task in floating-point operations, at least 0.
    pub fn flop(&self) -> Result<f64, String> {
        match self.number() {
            Some(number) if number >= 0.0 => Ok(number),
            _ => Err(format!("a size in flop must be a number, 0 or more, found {self}")),
        }
    }
}

/// The bytes of the unit in which schedulers give memory, and name MB.
pub(crate) const MEBIBYTE: u64 = 1 << 20;

/// Units of time, in seconds.
const TIMES: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// Units of size, in bytes.
const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// Parses a time in seconds, more than 0, from a text with a unit such as `"30 s"`. Errors name it.
pub(crate) fn duration(text: &str, what: &str) -> Result<f64, String> {
    let (number, unit) = split(text);
    let unit = TIMES.iter().find(|(name, _)| *name == unit);
    let seconds = unit.and_then(|(_, unit)| Some(number.parse::<f64>().ok()? * unit));
    match seconds.filter(|seconds| *seconds > 0.0) {
        Some(seconds) if seconds <= RUNTIME_MAX_S => Ok(seconds),
        Some(_) => Err(format!("no task has a {what} of {}", shown(text))),
        None => Err(format!(
            "a {what} must be more than 0, in seconds or with a unit as \"30 s\" (units ns, us, \
             ms, s, min, h, d), found {}",
            shown(text)
        )),
    }
}

/// Parses a size in bytes from a text with a unit such as `"10 MB"`; fractions are rounded up.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit = SIZES.iter().find(|(name, _)| *name == unit).map(|(_, unit)| *unit);
    let bytes = unit.and_then(|unit| match number.parse::<u64>() {
        Ok(number) => number.checked_mul(unit),
        Err(_) => {
            let bytes = (number.parse::<f64>().ok()? * unit as f64).ceil();
            (0.0..U64_END).contains(&bytes).then_some(bytes as u64)
        }
    });
    bytes.ok_or_else(|| {
        format!(
            "a size must be in bytes or with a unit as \"10 MB\" (units B, kB, MB, GB, TB, KiB, \
             MiB, GiB, TiB), at most {} \
             bytes, found {}",
            u64::MAX,
            shown(text)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_formats_write_them() {
        let text = Scalar::text;
        assert_eq!(text(" 4 ").processors(), Ok(ProcessorCount::exact(4)));
        assert_eq!(text("4.0").processors(), Ok(ProcessorCount::exact(4)));
        assert_eq!(
            Scalar::Real(1.2).processors(),
            Ok(ProcessorCount { processors: 2, is_rounded: true })
        );
        assert_eq!(text("18446744073709551615").bytes(), Ok(u64::MAX));
        assert_eq!(text("4.222384e+06").bytes(), Ok(4_222_384));
        assert_eq!(Scalar::Real(0.1).bytes(), Ok(1));
        assert_eq!((text("13.39").seconds(), text("-1").seconds()), (Ok(13.39), Ok(-1.0)));
        for bad in ["", "nan", "inf", "1e300", "-1", "x", "18446744073709551616", "-0.5"] {
            assert!(text(bad).bytes().is_err(), "{bad}");
            assert!(text(bad).processors().is_err(), "{bad}");
        }
        assert!(text("0").processors().is_err());
        assert_eq!(text("-0.5").bytes_unless_negative(), Ok(None));
        assert_eq!(text("0").bytes_unless_negative(), Ok(Some(0)));
        assert!(Scalar::Real(f64::NEG_INFINITY).bytes_unless_negative().is_err());
        assert_eq!((text("2.0").count("gpus"), text("0").count("gpus")), (Ok(2), Ok(0)));
        for bad in ["-1", "1.5", "x", "4294967296", "1e300"] {
            assert!(text(bad).count("gpus").is_err(), "{bad}");
        }
        assert!(Scalar::Real(f64::NAN).bytes().is_err());
    }

    #[test]
    fn units_are_read_with_and_without_a_space() {
        assert_eq!(
            ["30 s", "1.5h", "2 min"].map(|text| duration(text, "runtime")),
            [Ok(30.0), Ok(5400.0), Ok(120.0)]
        );
        assert_eq!((size("10 MB"), size("1.5KiB"), size("0 B")), (Ok(10_000_000), Ok(1536), Ok(0)));
        assert_eq!(size("18446744073709551615B"), Ok(u64::MAX));
        for bad in ["", "s", "30", "30 x", "-1 s", "0 s", "1e9 s", "99999999999999 d", "1.2.3 s"] {
            assert!(duration(bad, "runtime").is_err(), "{bad}");
        }
        for bad in ["", "B", "10", "10 mb", "-1 B", "20000000 TB", "1..5 B"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
