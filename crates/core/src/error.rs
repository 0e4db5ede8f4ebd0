//! What can be wrong with what a peer sent, and why the engine wants a connection closed.
//!
//! Both are about the peer: the connection ends, nothing has changed, and the text says what and which limit.

use crate::wire::Op;

/// Bytes that are not the protocol. The connection they came over can't be used again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The first request was not VALIDATE.
    #[error("first byte {found:#04x} is not VALIDATE (0x00): not a c10d store client")]
    NotValidated {
        /// The byte that came first.
        found: u8,
    },
    /// VALIDATE with another magic number.
    #[error("VALIDATE with magic {found:#010x}, not 0x3c85f7ce")]
    BadMagic {
        /// The number that came.
        found: u32,
    },
    /// VALIDATE after the first request.
    #[error("a second VALIDATE")]
    ValidatedTwice,
    /// An operation code nobody has.
    #[error("unknown operation code {code:#04x}")]
    UnknownOp {
        /// The code.
        code: u8,
    },
    /// A key, a value or a whole message longer than the limit.
    #[error("{what} of {len} bytes{}, limit {limit}", for_key(key))]
    TooLong {
        /// `key`, `value` or `message`.
        what: &'static str,
        /// The key that a value was meant for, printable; a reply names none.
        key: Option<String>,
        /// The announced length. A message has at least this length.
        len: u64,
        /// [`key_len`](crate::Limits::key_len), [`value_len`](crate::Limits::value_len),
        /// [`frame_len`](crate::Limits::frame_len) or [`reply_len`](crate::Limits::reply_len).
        limit: usize,
    },
    /// More keys in one request than the limit.
    #[error("{count} keys in one message, limit {limit}")]
    TooManyKeys {
        /// The announced count.
        count: u64,
        /// [`keys_per_request`](crate::Limits::keys_per_request).
        limit: usize,
    },
    /// Allocating the buffer of an incoming message failed.
    #[error("out of memory: cannot buffer {len} bytes of a message")]
    OutOfMemory {
        /// The size of the buffer in bytes.
        len: u64,
    },
    /// A reply that means nothing there: a byte other than 0 and 1, or a negative count.
    #[error("reply {found} to {op}")]
    BadReply {
        /// What was asked.
        op: Op,
        /// What came.
        found: i64,
    },
    /// The reply to a PING has another number. The replies are out of step, or the peer is no store.
    #[error("answered like {}", describe_peer(found.to_le_bytes()))]
    WrongNonce {
        /// The number in the reply.
        found: u32,
    },
}

/// Describes a peer that is no store by the first four bytes of its reply.
fn describe_peer(reply: [u8; 4]) -> String {
    match &reply {
        // A status line, or the page that a server sends to a client of HTTP/0.9.
        b"HTTP" | [b'<', ..] => "an HTTP server".into(),
        // An alert or a handshake record.
        [0x15 | 0x16, 3, 0..=4, _] => "a TLS server".into(),
        b"SSH-" => "an SSH server".into(),
        reply => format!("no store server (its reply begins with \"{}\")", reply.escape_ascii()),
    }
}

/// A request that is well-formed but can't be carried out: the connection is closed and nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// ADD on a value that isn't a number.
    #[error("add to {key}, whose value is not a number")]
    NotANumber {
        /// The key, printable.
        key: String,
    },
    /// ADD whose result doesn't fit 64 bits.
    #[error("add of {delta} to {key} would overflow from {value}")]
    Overflow {
        /// The key, printable.
        key: String,
        /// The number held.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// A request that would pass a limit of the server.
    #[error("{op} of {key} needs {needed} {what}, limit {limit}")]
    Limit {
        /// The operation.
        op: Op,
        /// The (first) key, printable.
        key: String,
        /// What is limited.
        what: &'static str,
        /// How much of it there would be.
        needed: usize,
        /// The limit.
        limit: usize,
    },
    /// A barrier for nobody.
    #[error("barrier {key} with world size {world_size}; it must be at least 1")]
    BadWorldSize {
        /// The key, printable.
        key: String,
        /// What was asked.
        world_size: i64,
    },
    /// A write to a reserved name, or of a value that the server does not accept under this key.
    #[error("{op} of {key}: {why}")]
    Guarded {
        /// The operation.
        op: Op,
        /// The key, printable.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A request while an earlier one of the same client is blocked. The session keeps such requests back, so this
    /// is a caller that bypassed it.
    #[error("{op} while blocked in an earlier request")]
    Blocked {
        /// What was asked.
        op: Op,
    },
}

fn for_key(key: &Option<String>) -> String {
    key.as_ref().map(|key| format!(" for {key}")).unwrap_or_default()
}

/// A key as text for messages: cut, with what isn't printable escaped.
pub fn printable(key: &[u8]) -> String {
    const MAX_PRINTED_BYTES: usize = 80;
    let is_cut = key.len() > MAX_PRINTED_BYTES;
    let mut text = key[..key.len().min(MAX_PRINTED_BYTES)].escape_ascii().to_string();
    if let Ok(whole) = std::str::from_utf8(key)
        && !is_cut
        && !whole.chars().any(char::is_control)
    {
        text = whole.to_owned();
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
            (*b"220 ", "no store server (its reply begins with \"220 \")"),
            ([0x15, 9, 9, 9], "no store server (its reply begins with \"\\x15\\t\\t\\t\")"),
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
