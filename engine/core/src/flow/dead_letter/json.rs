//! As much JSON as a dead letter needs.

use std::{fmt::Write, time::SystemTime};

/// A value in a record of a [`FileSink`](super::FileSink).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(String);

impl Json {
    /// A text, which is quoted.
    pub fn text(text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        let mut json = String::with_capacity(text.len() + 2);
        json.push('"');
        for c in text.chars() {
            match c {
                '"' => json.push_str("\\\""),
                '\\' => json.push_str("\\\\"),
                '\n' => json.push_str("\\n"),
                '\r' => json.push_str("\\r"),
                '\t' => json.push_str("\\t"),
                c if c < ' ' => _ = write!(json, "\\u{:04x}", u32::from(c)),
                c => json.push(c),
            }
        }
        json.push('"');
        Self(json)
    }

    /// A number.
    pub fn number(number: impl Into<i128>) -> Self {
        Self(number.into().to_string())
    }

    /// What is JSON already. Line ends in it, which JSON has between values only, become spaces: a record is one line.
    pub fn raw(json: impl Into<String>) -> Self {
        let json: String = json.into();
        Self(if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ") } else { json })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The time as RFC 3339 has it, in UTC, with milliseconds.
pub(super) fn time(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years of 365.2425 days that begin in March, so that a leap day is the last (Howard Hinnant, chrono-compatible
    // low-level date algorithms).
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let date = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn text_is_quoted_and_raw_stays_on_one_line() {
        assert_eq!(Json::text("a\"b\\c\n\u{1}é").as_str(), "\"a\\\"b\\\\c\\n\\u0001é\"");
        assert_eq!(Json::raw("{\n\"a\":1}").as_str(), "{ \"a\":1}");
        assert_eq!(Json::number(-7i64).as_str(), "-7");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds, millis| {
            time(
                SystemTime::UNIX_EPOCH
                    + Duration::from_secs(seconds)
                    + Duration::from_millis(millis),
            )
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399, 7), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }
}
