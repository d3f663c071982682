//! Dates of the proleptic Gregorian calendar in UTC, from and to seconds since the Unix epoch.
//!
//! This module does not know the use of dates. (Conversion after H. Hinnant, "chrono-compatible
//! low-level date algorithms".)

/// Converts a day since the Unix epoch to year, month and day.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Converts a date after the Unix epoch to its day since the epoch.
fn days((year, month, day): (u64, u64, u64)) -> u64 {
    let y = year - u64::from(month <= 2);
    let (era, yoe) = (y / 400, y % 400);
    let mp = (month + 9) % 12;
    let doy = (153 * mp + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// Formats a time as `20261121-101530`, for names.
pub fn stamp(unix_s: u64) -> String {
    let ((year, month, day), rest) = (civil(unix_s / 86_400), unix_s % 86_400);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest % 3600 / 60, rest % 60)
}

/// Formats a time as `2026-11-21T10:15:30Z` (RFC 3339), for people and programs.
pub fn date(unix_s: u64) -> String {
    let ((year, month, day), rest) = (civil(unix_s / 86_400), unix_s % 86_400);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest % 3600 / 60,
        rest % 60
    )
}

/// Parses a date in the format of [`date`], with or without seconds. `None` if it is none, or
/// precedes the Unix epoch.
pub fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix(['Z', 'z'])?.split_once(['T', 't', ' '])?;
    let date = fields(date, '-', &[4, 2, 2])?;
    let time = fields(time, ':', &[2, 2, 2]).or_else(|| {
        let mut short = fields(time, ':', &[2, 2])?;
        short.push(0);
        Some(short)
    })?;
    let known = (1970..=9999).contains(&date[0])
        && (1..=12).contains(&date[1])
        && (1..=31).contains(&date[2]);
    if !known || time[0] > 23 || time[1] > 59 || time[2] > 59 {
        return None;
    }
    let date = (date[0], date[1], date[2]);
    let day = days(date);
    // The 31st of a shorter month would be another day.
    (civil(day) == date).then(|| day * 86_400 + time[0] * 3600 + time[1] * 60 + time[2])
}

fn fields(text: &str, between: char, widths: &[usize]) -> Option<Vec<u64>> {
    let parts: Vec<&str> = text.split(between).collect();
    let fits = parts.len() == widths.len()
        && parts.iter().zip(widths).all(|(part, width)| {
            part.len() == *width && part.bytes().all(|byte| byte.is_ascii_digit())
        });
    if fits { parts.iter().map(|part| part.parse().ok()).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_399), "20000228-235959");
        assert_eq!(stamp(951_868_799), "20000229-235959");
        assert_eq!(stamp(1_795_255_530), "20261121-100530");
    }

    #[test]
    fn dates_are_read_as_they_are_written() {
        for unix_s in [0, 951_868_799, 1_795_255_530, 4_102_444_800] {
            assert_eq!(parse(&date(unix_s)), Some(unix_s));
        }
        assert_eq!(parse("2026-11-21 10:05Z"), Some(1_795_255_500));
        for bad in [
            "",
            "2026-11-21",
            "2026-11-21T10:05:30",
            "2026-02-29T00:00Z",
            "2026-11-31T00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-13-01T00:00Z",
            "2026-11-21T24:00Z",
            "2026-11-21T1:00Z",
            "2026-11-2\u{e9}T10:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
