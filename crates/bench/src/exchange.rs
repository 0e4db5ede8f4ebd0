//! Requests and their expected replies, encoded before a measurement starts.
//!
//! During a measurement, received bytes are compared with the expected bytes and not parsed. The load generator
//! therefore uses little processor time, and still detects wrong replies.

use rallypoint_core::Value;
use rallypoint_core::wire::{MAGIC, Reply, Request};

/// A batch of requests that are sent together, and their replies.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The name of the operation, for messages.
    pub(crate) name: &'static str,
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Expected,
    /// The number of requests in the batch. A PING that only acknowledges other requests does not count.
    pub(crate) requests: u64,
}

/// The expected replies to a batch.
#[derive(Debug)]
pub(crate) enum Expected {
    /// Exactly these bytes. If there are none, the exchange ends when its requests are sent.
    Exactly(Vec<u8>),
    /// This number of 64-bit integers with any values.
    Numbers(usize),
}

impl Expected {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Expected::Exactly(bytes) => bytes.len(),
            Expected::Numbers(count) => count * 8,
        }
    }
}

impl Exchange {
    /// Returns an exchange without requests.
    pub(crate) fn new(name: &'static str) -> Exchange {
        Exchange { name, request: Vec::new(), reply: Expected::Exactly(Vec::new()), requests: 0 }
    }

    /// Returns the handshake of a connection.
    pub(crate) fn handshake() -> Exchange {
        let mut handshake = Exchange::new("handshake");
        Request::Validate { magic: MAGIC }.encode(&mut handshake.request);
        handshake.ping()
    }

    /// Adds a request that has no reply, or whose reply is not awaited.
    pub(crate) fn without_reply(mut self, request: Request<'_>) -> Exchange {
        request.encode(&mut self.request);
        self.requests += 1;
        self
    }

    /// Adds a request with this reply.
    pub(crate) fn with_reply(mut self, request: Request<'_>, reply: &Reply) -> Exchange {
        if let Expected::Exactly(bytes) = &mut self.reply {
            reply.encode(bytes);
        }
        self.without_reply(request)
    }

    /// Adds a request whose reply is any integer. All other requests of the batch must have such replies, too.
    pub(crate) fn with_number_reply(mut self, request: Request<'_>) -> Exchange {
        self.reply = Expected::Numbers(self.reply.len() / 8 + 1);
        self.without_reply(request)
    }

    /// Adds a PING. The server replies to the PING after it has executed the earlier requests of the batch.
    pub(crate) fn ping(mut self) -> Exchange {
        const NONCE: u32 = 0x0072_7062;
        let requests = self.requests;
        self = self.with_reply(Request::Ping { nonce: NONCE }, &Reply::Nonce(NONCE));
        self.requests = requests;
        self
    }
}

/// Returns the reply to a GET of a key with this value.
pub(crate) fn value_reply(value: &[u8]) -> Reply {
    Reply::Value(Value::copied(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_acknowledges_requests_and_is_not_counted() {
        let exchange =
            Exchange::new("set").without_reply(Request::NumKeys).without_reply(Request::NumKeys).ping();
        assert_eq!(exchange.requests, 2);
        assert_eq!(exchange.request.len(), 2 + 5);
        assert_eq!(exchange.reply.len(), 4);
    }

    #[test]
    fn number_replies_have_8_bytes_each() {
        let add = Request::Add { key: b"/n", delta: 1 };
        let exchange = Exchange::new("add").with_number_reply(add).with_number_reply(add);
        assert!(matches!(exchange.reply, Expected::Numbers(2)));
        assert_eq!(exchange.reply.len(), 16);
    }
}
