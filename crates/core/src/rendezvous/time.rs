//! Times by the wall clock and by the monotonic clock. This module reads neither clock.
//!
//! [`WallTime`] is the time in the shared state, in UTC and microseconds. It can't measure durations, because the wall
//! clocks of other machines may be wrong or jump. [`MonoTime`] measures durations.

use std::fmt;
use std::time::Duration;

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;

/// A time by the wall clock of one machine, between the years 1 and 9999, which is the range of Python's `datetime`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(i64);

impl WallTime {
    /// 0001-01-01T00:00:00Z.
    pub const MIN: WallTime = WallTime(-719_162 * MICROS_PER_DAY);
    /// 9999-12-31T23:59:59.999999Z.
    pub const MAX: WallTime = WallTime(2_932_897 * MICROS_PER_DAY - 1);
    /// 1970-01-01T00:00:00Z.
    pub const UNIX_EPOCH: WallTime = WallTime(0);

    /// Returns the time `micros` microseconds after the Unix epoch, or `None` if it is out of range.
    pub fn from_micros(micros: i64) -> Option<WallTime> {
        (Self::MIN.0..=Self::MAX.0).contains(&micros).then_some(WallTime(micros))
    }

    /// Returns the number of microseconds since the Unix epoch, which may be negative.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns the time `duration` after this one, truncated to microseconds, or `None` if it is out of range.
    pub fn checked_add(self, duration: Duration) -> Option<WallTime> {
        let micros = i64::try_from(duration.as_micros()).ok()?;
        WallTime::from_micros(self.0.checked_add(micros)?)
    }

    /// Returns the time that Python's `datetime` pickles as these bytes, or `None` if there is no such time.
    ///
    /// The bytes are the year (2 bytes, big-endian), month, day, hour, minute and second (1 byte each), and
    /// microseconds (3 bytes, big-endian). The highest bit of the month is Python's `fold`, which has no meaning in UTC
    /// and is ignored.
    pub fn from_stamp(mut stamp: [u8; 10]) -> Option<WallTime> {
        stamp[2] &= 0x7f;
        let [y1, y0, month, day, hour, minute, second, u2, u1, u0] = stamp;
        let days = days_from_civil(u16::from_be_bytes([y1, y0]).into(), month.into(), day.into());
        let seconds = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second);
        let micros = i64::from(u32::from_be_bytes([0, u2, u1, u0]));
        let time = WallTime::from_micros(days * MICROS_PER_DAY + seconds * MICROS_PER_SECOND + micros)?;
        // An invalid part, such as day 31 of April, was carried over to the next part, so the time has other bytes.
        (time.to_stamp() == stamp).then_some(time)
    }

    /// Returns the bytes that Python's `datetime` pickles for this time; see [`from_stamp`](WallTime::from_stamp).
    pub fn to_stamp(self) -> [u8; 10] {
        let (year, month, day) = civil_from_days(self.0.div_euclid(MICROS_PER_DAY));
        let in_day = self.0.rem_euclid(MICROS_PER_DAY);
        let seconds = in_day / MICROS_PER_SECOND;
        // No cast truncates: the year is in range, and the other parts are remainders.
        let [y1, y0] = (year as u16).to_be_bytes();
        let [hour, minute, second] = [seconds / 3600, seconds / 60 % 60, seconds % 60].map(|part| part as u8);
        let [_, u2, u1, u0] = ((in_day % MICROS_PER_SECOND) as u32).to_be_bytes();
        [y1, y0, month as u8, day as u8, hour, minute, second, u2, u1, u0]
    }
}

/// Formats the time by ISO 8601, always with microseconds, so that log lines align.
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [y1, y0, month, day, hour, minute, second, ..] = self.to_stamp();
        let (year, micros) = (u16::from_be_bytes([y1, y0]), self.0.rem_euclid(MICROS_PER_SECOND));
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl fmt::Debug for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of days from 1 March of the year 0 to the Unix epoch.
const EPOCH_DAYS: i64 = 719_468;
const DAYS_PER_400_YEARS: i64 = 146_097;

/// Returns the number of days from the Unix epoch to a date. Years are counted from March, so that the leap day is the
/// last day of a year and shifts no month.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let months = (month + 9) % 12;
    // From March on, every 5 months have 153 days.
    let day_of_year = (153 * months + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - EPOCH_DAYS
}

/// Returns the date `days` days after the Unix epoch: year, month, day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAYS;
    let era = days.div_euclid(DAYS_PER_400_YEARS);
    let in_era = days.rem_euclid(DAYS_PER_400_YEARS);
    // After the leap days of the earlier years are subtracted, every year has 365 days.
    let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let day_of_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// A time by this node's monotonic clock. It has no meaning on other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonoTime(Duration);

impl MonoTime {
    /// Returns the time `elapsed` after the start of the clock.
    pub fn from_start(elapsed: Duration) -> MonoTime {
        MonoTime(elapsed)
    }

    /// Returns the duration since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: MonoTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time `duration` after this one.
    pub fn after(self, duration: Duration) -> MonoTime {
        MonoTime(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> [u8; 10] {
        let bytes: Vec<u8> = text.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        bytes.try_into().unwrap()
    }

    #[test]
    fn a_pickled_datetime_converts_to_a_time_and_back() {
        let bytes = stamp("07 ea 0b 0f 11 2b 01 01 e2 40");
        let time = WallTime::from_stamp(bytes).unwrap();
        assert_eq!(time.to_string(), "2026-11-15T17:43:01.123456Z");
        assert_eq!(time.micros(), 1_794_764_581_123_456);
        assert_eq!(time.to_stamp(), bytes);
    }

    #[test]
    fn times_match_those_that_python_computes() {
        for (micros, text) in [
            (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00.000000Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        ] {
            let time = WallTime::from_micros(micros).unwrap();
            assert_eq!(time.to_string(), text);
            assert_eq!(WallTime::from_stamp(time.to_stamp()), Some(time), "{text}");
        }
    }

    #[test]
    fn every_day_in_range_follows_the_day_before_it_and_converts_back() {
        let (first, last) = (WallTime::MIN.0 / MICROS_PER_DAY, WallTime::MAX.0 / MICROS_PER_DAY);
        let days_in_month = |year: i64, month: i64| match month {
            4 | 6 | 9 | 11 => 30,
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            _ => 31,
        };
        let mut before = (0, 12, 31);
        for day in first..=last {
            let date = civil_from_days(day);
            let next = match before {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == days_in_month(year, month) => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
            assert_eq!(date, next);
            assert_eq!(days_from_civil(date.0, date.1, date.2), day);
            before = date;
        }
        assert_eq!(before, (9999, 12, 31));
    }

    #[test]
    fn times_that_do_not_exist_are_refused() {
        for (what, bytes) in [
            ("year 0", "00 00 01 01 00 00 00 00 00 00"),
            ("year 10000", "27 10 01 01 00 00 00 00 00 00"),
            ("month 0", "07 ea 00 01 00 00 00 00 00 00"),
            ("month 13", "07 ea 0d 01 00 00 00 00 00 00"),
            ("day 0", "07 ea 01 00 00 00 00 00 00 00"),
            ("31 April", "07 ea 04 1f 00 00 00 00 00 00"),
            ("29 February 2026", "07 ea 02 1d 00 00 00 00 00 00"),
            ("29 February 2100", "08 34 02 1d 00 00 00 00 00 00"),
            ("hour 24", "07 ea 01 01 18 00 00 00 00 00"),
            ("minute 60", "07 ea 01 01 00 3c 00 00 00 00"),
            ("a leap second", "07 ea 01 01 00 00 3c 00 00 00"),
            ("a million microseconds", "07 ea 01 01 00 00 00 0f 42 40"),
            ("only 0xff", "ff ff ff ff ff ff ff ff ff ff"),
        ] {
            assert_eq!(WallTime::from_stamp(stamp(bytes)), None, "{what}");
        }
        assert!(WallTime::from_stamp(stamp("07 d0 02 1d 00 00 00 00 00 00")).is_some(), "29 February 2000");
    }

    #[test]
    fn the_fold_bit_changes_nothing() {
        let plain = stamp("07 ea 0b 0f 11 2b 01 01 e2 40");
        let folded = stamp("07 ea 8b 0f 11 2b 01 01 e2 40");
        assert_eq!(WallTime::from_stamp(folded), WallTime::from_stamp(plain));
    }

    #[test]
    fn checked_add_returns_none_beyond_the_range() {
        let micro = Duration::from_micros(1);
        assert_eq!(WallTime::MAX.checked_add(micro), None);
        assert_eq!(WallTime::MAX.checked_add(Duration::MAX), None);
        assert_eq!(WallTime::MIN.checked_add(Duration::MAX), None);
        assert_eq!(WallTime::from_micros(i64::MAX), None);
        assert_eq!(WallTime::from_micros(i64::MIN), None);
        let span = Duration::from_micros((WallTime::MAX.0 - WallTime::MIN.0) as u64);
        assert_eq!(WallTime::MIN.checked_add(span), Some(WallTime::MAX));
    }

    #[test]
    fn durations_are_truncated_to_microseconds() {
        let time = WallTime::UNIX_EPOCH.checked_add(Duration::new(5, 999)).unwrap();
        assert_eq!(time.micros(), 5_000_000);
    }
}
