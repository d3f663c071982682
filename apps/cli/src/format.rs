//! Numbers as texts: times, sizes and counts for people, and the version of JSON objects.

use std::time::Duration;

/// Version of the JSON object.
pub const SCHEMA: u32 = 1;

/// The median; of an even number of values, the mean of the two in the middle.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let upper = *numbers.get(numbers.len() / 2)?;
    let lower = numbers[(numbers.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

/// A duration with three digits.
pub fn seconds(s: f64) -> String {
    if s < 1e-3 {
        format!("{:.0} us", s * 1e6)
    } else if s < 1.0 {
        format!("{:.1} ms", s * 1e3)
    } else if s < 100.0 {
        format!("{s:.2} s")
    } else {
        let s = s.round() as u64;
        if s < 3600 {
            format!("{} min {:02} s", s / 60, s % 60)
        } else {
            format!("{} h {:02} min", s / 3600, s % 3600 / 60)
        }
    }
}

pub(crate) fn micros(us: u64) -> String {
    seconds(Duration::from_micros(us).as_secs_f64())
}

/// A size in bytes with three digits, in powers of ten.
pub fn size(bytes: u64) -> String {
    let units = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1e3;
        unit += 1;
    }
    let places = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.places$} {}", units[unit])
}

/// A number with separated thousands.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\'');
        }
        out.push(digit);
    }
    out
}

/// A count of things, with plural.
pub fn many(n: u64, thing: &str) -> String {
    format!("{} {}", number(n), plural(n, thing))
}

/// The word for this number of things.
pub fn plural(n: u64, thing: &str) -> String {
    format!("{thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_say_their_units() {
        let shown: Vec<_> =
            [5e-6, 0.0123, 0.9, 1.0, 75.2, 100.4, 3599.9, 7384.0].map(seconds).into();
        let expected = [
            "5 us",
            "12.3 ms",
            "900.0 ms",
            "1.00 s",
            "75.20 s",
            "1 min 40 s",
            "1 h 00 min",
            "2 h 03 min",
        ];
        assert_eq!(shown, expected);
        let shown: Vec<_> =
            [0, 999, 1000, 9_994, 99_949, 999_499, 999_500, 5_000_000_000].map(size).into();
        let expected =
            ["0 B", "999 B", "1.00 kB", "9.99 kB", "99.9 kB", "999 kB", "1.00 MB", "5.00 GB"];
        assert_eq!(shown, expected);
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1'000", "1'234'567"]);
    }
}
