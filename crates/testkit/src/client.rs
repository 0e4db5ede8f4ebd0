//! A client that sends and receives raw frames, including frames that no real client sends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Reply, ReplyDecoder, ReplyKind, Request};
use socket2::SockRef;

/// The timeout of every read and write. No server takes this long, even on a busy machine.
const IO_TIMEOUT: Duration = Duration::from_secs(20);

/// Encodes a request.
pub fn message(request: Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

/// Encodes an operation code and the numbers after it.
pub fn header(op: Op, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![op as u8];
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes
}

/// Encodes a key or a value: its length, followed by its bytes.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// Encodes the start of a request: it announces a value of `len` bytes, and ends before the first of these bytes.
pub fn announced(op: Op, key: &[u8], len: u64) -> Vec<u8> {
    [&[op as u8][..], &string(key), &len.to_le_bytes()].concat()
}

/// Converts keys to the type that a request takes.
pub fn list<'a>(keys: &'a [&'a str]) -> Vec<&'a [u8]> {
    keys.iter().map(|key| key.as_bytes()).collect()
}

/// Converts pairs of key and value to the type that a request takes.
pub fn pairs<'a>(pairs: &'a [(&'a str, &'a str)]) -> Vec<(&'a [u8], &'a [u8])> {
    pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect()
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub struct End {
    /// The bytes that were received before the end.
    pub received: Vec<u8>,
    /// Whether the server reset the connection (RST) instead of closing it (FIN).
    pub is_reset: bool,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    replies: ReplyDecoder,
    unread: Vec<u8>,
}

impl Client {
    /// Connects without the handshake.
    pub fn dial(address: SocketAddr) -> Client {
        Client::try_dial(address).expect("the server accepts")
    }

    /// Like [`Client::dial`], for a server that may refuse the connection.
    pub fn try_dial(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(Client { stream, replies: ReplyDecoder::default(), unread: Vec::new() })
    }

    /// Connects and completes the handshake.
    pub fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).expect("the server answers the handshake")
    }

    /// Like [`Client::connect`], for a server that may refuse the connection.
    pub fn try_connect(address: SocketAddr) -> io::Result<Client> {
        let mut client = Client::try_dial(address)?;
        client.try_send(&message(Request::Validate { magic: MAGIC }))?;
        client.try_request(Request::Ping { nonce: 7 })?;
        Ok(client)
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the server accepts the bytes");
    }

    /// Sends bytes to a server that may close the connection before it has read all of them.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends bytes until the socket would block or all are sent. Returns the number of bytes sent.
    pub fn send_nonblocking(&mut self, bytes: &[u8]) -> usize {
        self.stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(len) = self.stream.write(&bytes[sent..])
            && len > 0
        {
            sent += len;
        }
        self.stream.set_nonblocking(false).unwrap();
        sent
    }

    /// Discards the replies that were received so far. Panics if the server has ended the connection.
    pub fn discard_replies(&mut self) {
        assert!(!self.has_ended(), "the server has ended the connection");
    }

    /// Sends a request that has no reply, or whose reply is read later.
    pub fn send_request(&mut self, request: Request<'_>) {
        self.send(&message(request));
    }

    /// Sends a request and waits for its reply.
    pub fn request(&mut self, request: Request<'_>) -> Reply {
        self.try_request(request).expect("the server answers")
    }

    /// Like [`Client::request`], for a server that may close the connection.
    pub fn try_request(&mut self, request: Request<'_>) -> io::Result<Reply> {
        let kind = request.reply_kind().expect("the request has a reply");
        self.try_send(&message(request))?;
        self.try_reply(kind)
    }

    /// Waits for the next reply, which must be of this kind.
    pub fn reply(&mut self, kind: ReplyKind) -> Reply {
        self.try_reply(kind).expect("the server answers")
    }

    fn try_reply(&mut self, kind: ReplyKind) -> io::Result<Reply> {
        let limits = Limits::default();
        loop {
            let mut input = &self.unread[..];
            let reply = self.replies.next(kind, &mut input, &limits).map_err(io::Error::other)?;
            let used = self.unread.len() - input.len();
            self.unread.drain(..used);
            if let Some(reply) = reply {
                return Ok(reply);
            }
            let mut more = [0; 16 * 1024];
            match self.stream.read(&mut more)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.unread.extend_from_slice(&more[..len]),
            }
        }
    }

    /// Waits for the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.unread);
        let missing = len.checked_sub(bytes.len()).expect("no more bytes were read than requested");
        let mut rest = vec![0; missing];
        self.stream.read_exact(&mut rest).expect("the server answers");
        bytes.extend_from_slice(&rest);
        bytes
    }

    /// Reads until the server has ended the connection, and returns how it ended.
    pub fn end(mut self) -> End {
        let mut received = std::mem::take(&mut self.unread);
        let is_reset = match self.stream.read_to_end(&mut received) {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => true,
            Err(error) => panic!("the server has not ended the connection: {error}"),
        };
        End { received, is_reset }
    }

    /// Returns whether the server has ended the connection. Discards the bytes that were received.
    pub fn has_ended(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; 64 * 1024];
        let ended = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        self.stream.set_nonblocking(false).unwrap();
        ended
    }

    /// Returns the local port, which identifies this connection on the server.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// Closes the sending direction.
    pub fn shutdown_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Resets the connection (RST) instead of closing it (FIN).
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Sends a WAIT and returns when the server has registered it.
    pub fn start_waiting(&mut self, keys: &[&str]) {
        self.start_blocking(Request::Wait { keys: KeyList::new(&list(keys)) });
    }

    /// Sends a request that blocks, and returns when the server has registered it.
    ///
    /// A PING precedes the request in the same write. The server handles all bytes of one read before it sends
    /// replies, so the reply to the PING shows that the request is registered.
    pub fn start_blocking(&mut self, request: Request<'_>) {
        let mut bytes = message(Request::Ping { nonce: 8 });
        request.encode(&mut bytes);
        self.send(&bytes);
        assert_eq!(self.reply(ReplyKind::Nonce), Reply::Nonce(8));
    }

    /// Cancels a wait. Panics if the server has already completed the wait, in which case it sends two replies.
    pub fn cancel_wait(&mut self) {
        assert_eq!(self.request(Request::CancelWait), Reply::Canceled, "the wait was completed");
        self.ping();
    }

    /// Waits until the server completes the wait.
    pub fn assert_woken(&mut self) {
        assert_eq!(self.reply(ReplyKind::Waited(Op::Wait)), Reply::Stop);
    }

    /// Sends a ping and waits for its reply.
    pub fn ping(&mut self) {
        assert_eq!(self.request(Request::Ping { nonce: 0x0102_0304 }), Reply::Nonce(0x0102_0304));
    }

    /// Sets a value and waits until the server has stored it.
    pub fn set(&mut self, key: &str, value: impl AsRef<[u8]>) {
        self.send_request(Request::Set { key: key.as_bytes(), value: value.as_ref().into() });
        // SET has no reply. The reply to the PING shows that the value is stored.
        self.ping();
    }

    /// Returns the value of a key.
    pub fn value(&mut self, key: &str) -> Vec<u8> {
        match self.request(Request::Get { key: key.as_bytes() }) {
            Reply::Value(value) => value.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request and returns its reply, which must be a number.
    pub fn number(&mut self, request: Request<'_>) -> i64 {
        match self.request(request) {
            Reply::Number(number) => number,
            other => panic!("{other:?}"),
        }
    }

    /// Adds to a counter and returns the sum.
    pub fn add(&mut self, key: &str, delta: i64) -> i64 {
        self.number(Request::Add { key: key.as_bytes(), delta })
    }

    /// Returns the number of keys.
    pub fn num_keys(&mut self) -> i64 {
        self.number(Request::NumKeys)
    }

    /// Returns whether a key exists.
    pub fn is_present(&mut self, key: &str) -> bool {
        self.request(Request::Check { keys: KeyList::new(&list(&[key])) }) == Reply::Checked(true)
    }

    /// Sets several values and waits until the server has stored them.
    pub fn multi_set(&mut self, entries: &[(&str, &str)]) {
        self.send_request(Request::MultiSet { pairs: PairList::new(&pairs(entries)) });
        self.ping();
    }
}
