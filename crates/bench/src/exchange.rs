//! What is sent and what must come back, both ready to the byte before the clock starts.
//!
//! Nothing is parsed while measuring: a reply is compared with the one expected. So the load generator costs little
//! beside the server it shares the machine with, and a wrong answer is still noticed.

use rallypoint_core::Value;
use rallypoint_core::wire::{MAGIC, Reply, Request};

/// Some requests, sent together, and the replies to them.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// What they are, for messages.
    pub(crate) name: &'static str,
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Expected,
    /// How many requests it counts as. A PING that only acknowledges others counts as none.
    pub(crate) requests: u64,
}

/// What must come back.
#[derive(Debug)]
pub(crate) enum Expected {
    /// Exactly these bytes; none: it is over once it is sent.
    Exactly(Vec<u8>),
    /// So many numbers, whatever they are.
    Numbers(usize),
}

impl Expected {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Expected::Exactly(bytes) => bytes.len(),
            Expected::Numbers(count) => count * 8,
        }
    }
}

impl Exchange {
    /// Nothing yet.
    pub(crate) fn new(name: &'static str) -> Exchange {
        Exchange { name, request: Vec::new(), reply: Expected::Exactly(Vec::new()), requests: 0 }
    }

    /// The first words of a connection.
    pub(crate) fn handshake() -> Exchange {
        let mut handshake = Exchange::new("handshake");
        Request::Validate { magic: MAGIC }.encode(&mut handshake.request);
        handshake.ping()
    }

    /// With one more request, which gets no reply (or none yet).
    pub(crate) fn without_reply(mut self, request: Request<'_>) -> Exchange {
        request.encode(&mut self.request);
        self.requests += 1;
        self
    }

    /// With one more request, which gets this reply.
    pub(crate) fn with_reply(mut self, request: Request<'_>, reply: &Reply) -> Exchange {
        if let Expected::Exactly(bytes) = &mut self.reply {
            reply.encode(bytes);
        }
        self.without_reply(request)
    }

    /// With one more request, which gets some number. Such a batch has no others in it.
    pub(crate) fn with_number_reply(mut self, request: Request<'_>) -> Exchange {
        self.reply = Expected::Numbers(self.reply.len() / 8 + 1);
        self.without_reply(request)
    }

    /// With a PING behind it, which tells that all before it are done.
    pub(crate) fn ping(mut self) -> Exchange {
        const NONCE: u32 = 0x0072_7062;
        let requests = self.requests;
        self = self.with_reply(Request::Ping { nonce: NONCE }, &Reply::Nonce(NONCE));
        self.requests = requests;
        self
    }
}

/// The reply that carries this value.
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
    fn any_number_matches_an_expected_number() {
        let add = Request::Add { key: b"/n", delta: 1 };
        let exchange = Exchange::new("add").with_number_reply(add).with_number_reply(add);
        assert!(matches!(exchange.reply, Expected::Numbers(2)));
        assert_eq!(exchange.reply.len(), 16);
    }
}
