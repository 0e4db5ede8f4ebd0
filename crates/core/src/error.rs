//! Protocol violations of a peer, and requests that the engine refuses.
//!
//! A request that causes either error has not changed any stored data, and the server closes the connection. If a reply
//! violates the protocol, the client closes the connection. The message names the cause, and the limit if a limit was
//! exceeded.

use crate::wire::Op;

/// Bytes that violate the protocol or exceed a limit of the decoder. The connection on which they arrived cannot be
/// used again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The first request was not VALIDATE.
    #[error("first byte {found:#04x} is not VALIDATE (0x00): not a c10d store client")]
    NotValidated {
        /// The first byte of the connection.
        found: u8,
    },
    /// VALIDATE with a wrong magic number.
    #[error("VALIDATE with magic {found:#010x}, not 0x3c85f7ce")]
    BadMagic {
        /// The number in the request.
        found: u32,
    },
    /// A second VALIDATE on the same connection.
    #[error("second VALIDATE on one connection")]
    ValidatedTwice,
    /// An operation code that the protocol does not define.
    #[error("unknown operation code {code:#04x}")]
    UnknownOp {
        /// The operation code.
        code: u8,
    },
    /// A key, a value or a frame that is longer than its limit.
    #[error("{what} of {len} bytes{}, limit {limit}", for_key(key))]
    TooLong {
        /// `key`, `value` or `frame`.
        what: &'static str,
        /// The key of a value in a request, as [`printable`] text. `None` for keys, frames and replies.
        key: Option<String>,
        /// The announced length of a key or value, or a lower bound for the length of a frame.
        len: u64,
        /// [`key_len`](crate::Limits::key_len), [`value_len`](crate::Limits::value_len),
        /// [`frame_len`](crate::Limits::frame_len) or [`reply_len`](crate::Limits::reply_len).
        limit: usize,
    },
    /// A list that announces more keys than the limit allows.
    #[error("{count} keys in one request, limit {limit}")]
    TooManyKeys {
        /// The announced count.
        count: u64,
        /// [`keys_per_request`](crate::Limits::keys_per_request).
        limit: usize,
    },
    /// Allocating the buffer of a frame failed.
    #[error("out of memory: cannot buffer a frame of {len} bytes")]
    OutOfMemory {
        /// The size of the buffer in bytes.
        len: u64,
    },
    /// A reply with an invalid value: a status byte other than 0 and 1, a negative count, a canceled wait that the
    /// client did not cancel, or a wrong reply to CANCEL_WAIT.
    #[error("invalid reply {found} to {op}")]
    BadReply {
        /// The operation of the request.
        op: Op,
        /// The byte or count in the reply.
        found: i64,
    },
    /// A reply to PING whose nonce differs from the nonce in the request. Usually the peer is not a store server.
    #[error("answered like {}", describe_peer(found.to_le_bytes()))]
    WrongNonce {
        /// The nonce in the reply.
        found: u32,
    },
}

/// Returns a description of a peer that is not a store server, from the first four bytes of its reply.
fn describe_peer(reply: [u8; 4]) -> String {
    match &reply {
        // The start of an HTTP status line, or of the HTML page in an HTTP/0.9 reply.
        b"HTTP" | [b'<', ..] => "an HTTP server".into(),
        // A TLS alert or handshake record.
        [0x15 | 0x16, 3, 0..=4, _] => "a TLS server".into(),
        b"SSH-" => "an SSH server".into(),
        reply => format!("an unknown server (its reply begins with \"{}\")", reply.escape_ascii()),
    }
}

/// A well-formed request that the engine refuses. The request has not changed any stored data, and the server closes
/// the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// ADD to a value that is not a number.
    #[error("add to {key}, whose value is not a number")]
    NotANumber {
        /// The key, as [`printable`] text.
        key: String,
    },
    /// ADD whose result does not fit into 64 bits.
    #[error("add of {delta} to {key} overflows its value {value}")]
    Overflow {
        /// The key, as [`printable`] text.
        key: String,
        /// The stored number.
        value: i64,
        /// The number to add.
        delta: i64,
    },
    /// A request that would exceed a limit of the server.
    #[error("{op} of {key} needs {needed} {what}, limit {limit}")]
    Limit {
        /// The operation.
        op: Op,
        /// The first key of the request, as [`printable`] text.
        key: String,
        /// The unit of `needed` and `limit`, such as `bytes in the store`.
        what: &'static str,
        /// The total that the request would lead to.
        needed: usize,
        /// The limit.
        limit: usize,
    },
    /// BARRIER with a world size below 1.
    #[error("barrier {key} with world size {world_size}; it must be at least 1")]
    BadWorldSize {
        /// The key, as [`printable`] text.
        key: String,
        /// The world size in the request.
        world_size: i64,
    },
    /// A write to a reserved key, or a write of a value that the [`WriteGuard`](crate::store::WriteGuard) rejects.
    #[error("{op} of {key}: {why}")]
    Guarded {
        /// The operation.
        op: Op,
        /// The key, as [`printable`] text.
        key: String,
        /// The reason.
        why: String,
    },
    /// A request of a client that is blocked in an earlier request. The hub defers such requests, so only a caller that
    /// uses the engine without the hub can cause this error.
    #[error("{op} while blocked in an earlier request")]
    Blocked {
        /// The operation of the request.
        op: Op,
    },
}

fn for_key(key: &Option<String>) -> String {
    key.as_ref().map(|key| format!(" for {key}")).unwrap_or_default()
}

/// Returns a key or value as text for messages.
///
/// A key of up to 80 bytes is returned unchanged if it is UTF-8 without control characters. Otherwise the first 80
/// bytes are escaped, and the length of a longer key is appended.
pub fn printable(key: &[u8]) -> String {
    const MAX_PRINTED_BYTES: usize = 80;
    let is_cut = key.len() > MAX_PRINTED_BYTES;
    let mut text = key[..key.len().min(MAX_PRINTED_BYTES)].escape_ascii().to_string();
    if let Ok(utf8) = std::str::from_utf8(key)
        && !is_cut
        && !utf8.chars().any(char::is_control)
    {
        text = utf8.to_owned();
    }
    if is_cut {
        text.push_str(&format!("… ({} bytes)", key.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_no_store_is_described_by_its_first_bytes() {
        for (reply, description) in [
            (*b"HTTP", "an HTTP server"),
            (*b"<!DO", "an HTTP server"),
            (*b"<htm", "an HTTP server"),
            ([0x15, 3, 1, 0], "a TLS server"),
            ([0x15, 3, 3, 0], "a TLS server"),
            ([0x16, 3, 3, 1], "a TLS server"),
            (*b"SSH-", "an SSH server"),
            (*b"220 ", "an unknown server (its reply begins with \"220 \")"),
            ([0x15, 9, 9, 9], "an unknown server (its reply begins with \"\\x15\\t\\t\\t\")"),
        ] {
            assert_eq!(describe_peer(reply), description);
        }
    }

    #[test]
    fn printable_keeps_utf8_escapes_other_bytes_and_truncates() {
        assert_eq!(printable("/schlüssel".as_bytes()), "/schlüssel");
        assert_eq!(printable(b"\xff\n"), "\\xff\\n");
        assert_eq!(printable(&[b'a'; 200]), format!("{}… (200 bytes)", "a".repeat(80)));
    }
}
