//! Sizes and durations with units, such as `8MiB` and `250ms`.

use std::time::Duration;

/// A number, size or duration that users write as text, with or without a unit.
pub trait Quantity: Sized {
    /// Parses a quantity from `text`.
    ///
    /// # Errors
    ///
    /// Fails with a description of the expected form, such as `a time such as 250ms, 10s or 2min`.
    fn parse(text: &str) -> Result<Self, &'static str>;
    /// Formats the value so that [`Quantity::parse`] returns it again. Durations are truncated to milliseconds.
    fn format(&self) -> String;
}

/// Parses a number with one of `units` and returns the product of the number and the unit's factor. `units` lists names
/// and factors.
fn parse_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The units of sizes, with their factors in bytes.
const SIZE_UNITS: [(&str, u64); 8] =
    [("", 1), ("KiB", KIB), ("K", KIB), ("k", KIB), ("MiB", MIB), ("M", MIB), ("GiB", GIB), ("G", GIB)];
/// The units of durations, with their factors in milliseconds. A number without a unit is in seconds.
const TIME_UNITS: [(&str, u64); 5] = [("ms", 1), ("", 1000), ("s", 1000), ("min", 60_000), ("h", 3_600_000)];

impl Quantity for usize {
    fn parse(text: &str) -> Result<usize, &'static str> {
        let bytes = parse_unit(text, &SIZE_UNITS).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or("a number, or a size such as 512KiB, 8MiB or 4GiB")
    }

    fn format(&self) -> String {
        match *self {
            size if size >= 1 << 30 && size % (1 << 30) == 0 => format!("{}GiB", size >> 30),
            size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{}MiB", size >> 20),
            size if size > 1 << 10 && size % (1 << 10) == 0 => format!("{}KiB", size >> 10),
            size => size.to_string(),
        }
    }
}

impl Quantity for u32 {
    fn parse(text: &str) -> Result<u32, &'static str> {
        text.trim().parse().map_err(|_| "a number")
    }

    fn format(&self) -> String {
        self.to_string()
    }
}

impl Quantity for Duration {
    fn parse(text: &str) -> Result<Duration, &'static str> {
        parse_unit(text, &TIME_UNITS).map(Duration::from_millis).ok_or("a time such as 250ms, 10s or 2min")
    }

    fn format(&self) -> String {
        match self.as_millis() {
            ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
            ms => format!("{ms}ms"),
        }
    }
}
