//! The value of the state's key in a store: the base64 of the state's bytes, or a sentinel if there is no state yet.
//!
//! This module has its own base64 codec. A value must be readable exactly if Python's `base64.b64decode` can read it.
//! That function skips every byte that is not a base64 digit. It stops at the first padding that ends a group, and
//! ignores the rest. None of the crates that we use follows these rules.

use super::pickle::{self, StateError};
use super::state::State;
use crate::limits::Limits;

/// The value of the key before a node has written a state. Torch sets it first, so that every write of a state is a
/// compare-and-set on a key that exists.
pub const NULL: &[u8] = b"Y2FuaW1hZGFt";

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The entry of [`DIGIT_VALUES`] for a byte that is not a base64 digit.
const NO_DIGIT: u8 = 64;

/// The value of each byte as a base64 digit.
const DIGIT_VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 64 {
        values[DIGITS[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// Returns the state in `value`, or `None` if `value` is [`NULL`].
///
/// # Errors
///
/// Fails with a [`StateError`] if `value` is not the base64 of a state, or exceeds a limit.
pub fn read(value: &[u8], limits: &Limits) -> Result<Option<State>, StateError> {
    if value == NULL {
        return Ok(None);
    }
    pickle::decode(&decode(value, limits)?, limits).map(Some)
}

/// Returns the base64 of `bytes`, with padding and without line breaks.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = [0; 4];
        bits[1..=group.len()].copy_from_slice(group);
        let digits = [18, 12, 6, 0].map(|shift| DIGITS[(u32::from_be_bytes(bits) >> shift) as usize & 63]);
        text.extend_from_slice(&digits[..=group.len()]);
        text.extend_from_slice(&b"=="[group.len() - 1..]);
    }
    text
}

/// Decodes base64 by the rules of Python's `base64.b64decode`.
///
/// # Errors
///
/// Fails with [`StateError::TooLarge`] if `text` is longer than the base64 of the largest state, and with
/// [`StateError::Malformed`] if padding is missing.
pub fn decode(text: &[u8], limits: &Limits) -> Result<Vec<u8>, StateError> {
    let limit = limits.state_bytes.div_ceil(3).saturating_mul(4);
    if text.len() > limit {
        return Err(StateError::TooLarge { len: text.len(), limit });
    }
    let mut bytes = Vec::with_capacity(text.len().div_ceil(4) * 3);
    // The bits of the current group of four, the number of its digits, and the padding after them.
    let (mut bits, mut digits, mut padding) = (0u32, 0, 0);
    for byte in text {
        match DIGIT_VALUES[usize::from(*byte)] {
            NO_DIGIT if *byte == b'=' && digits + padding >= 3 && digits >= 2 => {
                // Two digits encode one byte, three digits two bytes.
                bytes.extend_from_slice(&(bits << (6 * (4 - digits))).to_be_bytes()[1..digits]);
                return Ok(bytes);
            }
            NO_DIGIT => padding += usize::from(*byte == b'='),
            value => {
                padding = 0;
                digits += 1;
                bits = bits << 6 | u32::from(value);
            }
        }
        if digits == 4 {
            bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
            digits = 0;
        }
    }
    match digits {
        0 => Ok(bytes),
        _ => {
            let total = bytes.len() / 3 * 4 + digits;
            let what = format!("{total} base64 digits without the padding that must follow them");
            Err(StateError::Malformed { what, at: text.len() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::{NodeDesc, WallTime};

    fn decoded(text: &str) -> Result<Vec<u8>, StateError> {
        decode(text.as_bytes(), &Limits::default())
    }

    #[test]
    fn base64_follows_the_standard_alphabet_and_padding() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("canimadam", "Y2FuaW1hZGFt"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text.as_bytes());
            assert_eq!(decoded(text).unwrap(), bytes.as_bytes());
        }
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&every), &Limits::default()), Ok(every));
    }

    #[test]
    fn bytes_that_python_ignores_are_ignored() {
        for (text, bytes) in [
            ("Zm9v\nYmFy\n", "foobar"),
            ("Z m 9 v", "foo"),
            ("Zm9v!!!!", "foo"),
            ("Zg==Zg==", "f"),
            ("Zg=!=", "f"),
            ("Zm8=garbage", "fo"),
            ("=Zm9v", "foo"),
            ("====Zm9v", "foo"),
            ("Zm9v====", "foo"),
            ("Z=m9v", "foo"),
            ("Zm=9v", "foo"),
            ("Zm9vYg=x=", "foob\x0c"),
            ("Z===m9v", "foo"),
            ("!!!", ""),
            ("====", ""),
            ("Zm9-_v", "foo"),
        ] {
            assert_eq!(decoded(text).unwrap(), bytes.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn padding_that_python_refuses_is_refused() {
        for (text, digits) in [
            ("Z", 1),
            ("Zg", 2),
            ("Zg=", 2),
            ("Zm8", 3),
            ("Zm9vZ", 5),
            ("Zm9vZ===", 5),
            ("Zm9vYg=x", 7),
            ("Zm=9vYg=", 6),
        ] {
            let what = format!("{digits} base64 digits without the padding that must follow them");
            assert_eq!(decoded(text), Err(StateError::Malformed { what, at: text.len() }), "{text:?}");
        }
    }

    #[test]
    fn a_value_larger_than_any_state_is_refused_without_decoding() {
        let limits = Limits { state_bytes: 6, ..Limits::default() };
        assert_eq!(decode(b"Zm9vYmFy", &limits), Ok(b"foobar".to_vec()));
        assert_eq!(decode(b"Zm9vYmFy\n", &limits), Err(StateError::TooLarge { len: 9, limit: 8 }));
    }

    #[test]
    fn the_sentinel_means_no_state_and_every_other_value_must_be_a_state() {
        let limits = Limits::default();
        assert_eq!(read(NULL, &limits), Ok(None));
        for (value, text) in [
            (&b""[..], "the state ends 1 byte too early for the opcode at byte 0"),
            (b"!!!", "the state ends 1 byte too early for the opcode at byte 0"),
            (b"Y2FuaW1hZGFt\n", "first byte 0x63 does not begin a pickle (0x80) at byte 0"),
        ] {
            assert_eq!(read(value, &limits).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_state_survives_encoding_and_decoding() {
        let limits = Limits::default();
        let node = NodeDesc::new("host", 1, 0);
        let state = State { last_heartbeats: [(node, WallTime::UNIX_EPOCH)].into(), ..State::default() };
        let value = encode(&pickle::encode(&state, &limits).unwrap());
        assert_eq!(read(&value, &limits), Ok(Some(state)));
    }
}
