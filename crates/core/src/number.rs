//! Decimal numbers in stored values. They are parsed like C++'s `std::stoll`, which torch's stores use.

/// Returns the number at the start of `text`, as `std::stoll` parses it in base 10.
///
/// The function skips leading whitespace, accepts a sign, and reads digits up to the first byte that is not a digit.
/// Returns `None` if `text` has no digits there, or if the number does not fit into 64 bits.
pub fn parse_prefix(text: &[u8]) -> Option<i64> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let text = &text[start..];
    let sign = usize::from(matches!(text, [b'+' | b'-', ..]));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..sign + digits]).ok()?.parse().ok()
}

/// Returns whether `byte` is whitespace in C's "C" locale. Rust's `is_ascii_whitespace` excludes the vertical tab.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_ends_at_the_first_byte_that_is_not_a_digit() {
        for (text, number) in [
            ("0", 0),
            ("42", 42),
            ("-42", -42),
            ("+42", 42),
            ("12abc", 12),
            ("1.5", 1),
            ("0x10", 0),
            ("007", 7),
            ("5 6", 5),
            ("9\0", 9),
        ] {
            assert_eq!(parse_prefix(text.as_bytes()), Some(number), "{text:?}");
        }
    }

    #[test]
    fn the_white_space_of_c_is_skipped() {
        assert_eq!(parse_prefix(b" 7"), Some(7));
        assert_eq!(parse_prefix(b" \t\n\x0b\x0c\r-7"), Some(-7));
        assert_eq!(parse_prefix("\u{a0}7".as_bytes()), None);
    }

    #[test]
    fn text_without_leading_digits_is_not_a_number() {
        for text in ["", "abc", " ", "-", "+", "- 1", "--1", "+-1", "\x007", ".5"] {
            assert_eq!(parse_prefix(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_prefix(b"\xff1"), None);
    }

    #[test]
    fn numbers_beyond_64_bits_are_rejected() {
        assert_eq!(parse_prefix(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_prefix(b"9223372036854775808"), None);
        assert_eq!(parse_prefix(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_prefix(b"-9223372036854775809"), None);
        assert_eq!(parse_prefix(b"12345678901234567890"), None);
        assert_eq!(parse_prefix(&[b'9'; 4096]), None);
        assert_eq!(parse_prefix(&[b'0'; 4096]), Some(0));
    }
}
