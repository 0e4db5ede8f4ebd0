//! Sizes and times as people write them: `8MiB`, `250ms`.

use std::time::Duration;

/// Something that can be written with a unit.
pub trait Quantity: Sized {
    /// Reads it; the error says what it should have been.
    fn read(text: &str) -> Result<Self, &'static str>;
    /// Prints it as it can be read again.
    fn print(&self) -> String;
}

/// A number and its unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, text[digits..].trim()))
}

impl Quantity for usize {
    fn read(text: &str) -> Result<usize, &'static str> {
        let wrong = "a number, or a size such as 512KiB, 8MiB or 4GiB";
        let (number, unit) = split(text).ok_or(wrong)?;
        let unit = match unit {
            "" => 1,
            "KiB" | "K" | "k" => 1 << 10,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            _ => return Err(wrong),
        };
        number.checked_mul(unit).and_then(|size| usize::try_from(size).ok()).ok_or(wrong)
    }

    fn print(&self) -> String {
        match *self {
            size if size >= 1 << 30 && size % (1 << 30) == 0 => format!("{}GiB", size >> 30),
            size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{}MiB", size >> 20),
            size if size > 1 << 10 && size % (1 << 10) == 0 => format!("{}KiB", size >> 10),
            size => size.to_string(),
        }
    }
}

impl Quantity for u32 {
    fn read(text: &str) -> Result<u32, &'static str> {
        text.trim().parse().map_err(|_| "a number")
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Quantity for Duration {
    fn read(text: &str) -> Result<Duration, &'static str> {
        let wrong = "a time such as 250ms, 10s or 2min";
        let (number, unit) = split(text).ok_or(wrong)?;
        match unit {
            "ms" => Ok(Duration::from_millis(number)),
            "s" | "" => Ok(Duration::from_secs(number)),
            "min" => number.checked_mul(60).map(Duration::from_secs).ok_or(wrong),
            _ => Err(wrong),
        }
    }

    fn print(&self) -> String {
        match self.as_millis() {
            ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
            ms => format!("{ms}ms"),
        }
    }
}
