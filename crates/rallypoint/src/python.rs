//! Parses numbers as Python does, because torchrun parses its flags with Python's `int` and `float`.

/// Parses a number like Python's `int(text)`: surrounding whitespace, a sign, and single underscores between digits
/// are allowed.
pub(crate) fn int(text: &str) -> Result<i64, String> {
    let plain = text.trim();
    let digits = plain.strip_prefix(['+', '-']).unwrap_or(plain);
    let well_formed =
        digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let number = well_formed.then(|| plain.replace('_', "").parse().ok()).flatten();
    number.ok_or_else(|| format!("invalid int value: '{text}'"))
}

/// Parses a number like Python's `float(text)`.
pub(crate) fn float(text: &str) -> Result<f64, String> {
    let plain = text.trim();
    // Rust parses the same numbers as Python, except that Python also allows single underscores between digits.
    let bytes = plain.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let underscores = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_');
    let well_placed = |(at, _): (usize, &u8)| digit(at.checked_sub(1)) && digit(Some(at + 1));
    let well_formed = underscores.into_iter().all(well_placed);
    let number = well_formed.then(|| plain.replace('_', "").parse().ok()).flatten();
    number.ok_or_else(|| format!("invalid float value: '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        for (text, number) in [("5", 5), (" -1 ", -1), ("+7", 7), ("1_000", 1000)] {
            assert_eq!(int(text), Ok(number));
        }
        for text in ["", "x", "1.5", "1__0", "_1", "0x10"] {
            assert_eq!(int(text), Err(format!("invalid int value: '{text}'")));
        }
        for (text, number) in
            [("0.1", 0.1), ("1e-3", 1e-3), (" 5 ", 5.0), ("1_0.5", 10.5), ("inf", f64::INFINITY)]
        {
            assert_eq!(float(text), Ok(number));
        }
        for text in ["", "x", "1_", "1_.5"] {
            assert!(float(text).is_err(), "{text}");
        }
    }
}
