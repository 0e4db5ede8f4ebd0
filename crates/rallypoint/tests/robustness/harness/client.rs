//! A client that speaks the wire by hand: it can send what no real client would. It never waits without a deadline.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Reply, ReplyDecoder, ReplyKind, Request};
use socket2::SockRef;

/// Longer than anything the server may take on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request as it travels.
pub(crate) fn message(request: Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

/// A code and the numbers after it, as they travel.
pub(crate) fn header(op: Op, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![op as u8];
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes
}

/// A key as it travels.
pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// The beginning of a request that gives a key a value of so many bytes, up to where these begin.
pub(crate) fn announced(op: Op, key: &[u8], len: u64) -> Vec<u8> {
    [&[op as u8][..], &string(key), &len.to_le_bytes()].concat()
}

/// Keys as a request takes them.
pub(crate) fn list<'a>(keys: &'a [&'a str]) -> Vec<&'a [u8]> {
    keys.iter().map(|key| key.as_bytes()).collect()
}

/// Keys with values as a request takes them.
pub(crate) fn pairs<'a>(pairs: &'a [(&'a str, &'a str)]) -> Vec<(&'a [u8], &'a [u8])> {
    pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect()
}

/// How a connection ended, and what came before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Bytes that came before the end.
    pub(crate) last_words: Vec<u8>,
    /// It was torn (RST) rather than ended (FIN).
    pub(crate) torn: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    replies: ReplyDecoder,
    unread: Vec<u8>,
}

impl Client {
    /// A connection without the handshake.
    pub(crate) fn dial(address: SocketAddr) -> Client {
        Client::try_dial(address).expect("the server accepts")
    }

    pub(crate) fn try_dial(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream, replies: ReplyDecoder::default(), unread: Vec::new() })
    }

    /// A connection as a real client has it after its constructor.
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).expect("the server answers the handshake")
    }

    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Client> {
        let mut client = Client::try_dial(address)?;
        client.try_send(&message(Request::Validate { magic: MAGIC }))?;
        client.try_ask(Request::Ping { nonce: 7 })?;
        Ok(client)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the server takes it");
    }

    /// Sends what the server may refuse to take: it may have closed before all is sent.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends as much as the server and the system take without waiting; how much that was.
    pub(crate) fn send_what_is_taken(&mut self, bytes: &[u8]) -> usize {
        self.stream.set_nonblocking(true).expect("a socket");
        let mut sent = 0;
        while let Ok(len) = self.stream.write(&bytes[sent..])
            && len > 0
        {
            sent += len;
        }
        self.stream.set_nonblocking(false).expect("a socket");
        sent
    }

    /// Takes what has come so far of replies that nobody wants.
    pub(crate) fn discard_replies(&mut self) {
        assert!(!self.has_ended(), "the server has ended the connection");
    }

    /// Sends a request that has no reply, or whose reply is read later.
    pub(crate) fn tell(&mut self, request: Request<'_>) {
        self.send(&message(request));
    }

    /// Sends a request and takes its reply.
    pub(crate) fn ask(&mut self, request: Request<'_>) -> Reply {
        self.try_ask(request).expect("the server answers")
    }

    pub(crate) fn try_ask(&mut self, request: Request<'_>) -> io::Result<Reply> {
        let kind = request.reply_kind().expect("a request that is answered");
        self.try_send(&message(request))?;
        self.try_reply(kind)
    }

    /// The next reply, which must be of this kind.
    pub(crate) fn reply(&mut self, kind: ReplyKind) -> Reply {
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

    /// The next bytes, as they are.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.unread);
        let missing = len.checked_sub(bytes.len()).expect("no more was read than asked for");
        let mut rest = vec![0; missing];
        self.stream.read_exact(&mut rest).expect("the server answers");
        bytes.extend_from_slice(&rest);
        bytes
    }

    /// Reads until the server has ended the connection.
    pub(crate) fn end(mut self) -> End {
        let mut last_words = std::mem::take(&mut self.unread);
        let torn = match self.stream.read_to_end(&mut last_words) {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => true,
            Err(error) => panic!("the server has not ended the connection: {error}"),
        };
        End { last_words, torn }
    }

    /// Whether the server has ended the connection by now. Bytes that came meanwhile are dropped.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 64 * 1024];
        let ended = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        self.stream.set_nonblocking(false).expect("a socket");
        ended
    }

    /// Its own port, by which the server's end can be told from others.
    pub(crate) fn port(&self) -> u16 {
        self.stream.local_addr().expect("a socket").port()
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish_sending(&self) {
        self.stream.shutdown(Shutdown::Write).expect("a socket");
    }

    /// Tears the connection, as a killed peer's system does (RST).
    pub(crate) fn tear(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    }

    /// Blocks in a WAIT. When this returns the server is waiting for the keys, not merely about to.
    pub(crate) fn start_waiting(&mut self, keys: &[&str]) {
        self.start_blocking(Request::Wait { keys: KeyList::new(&list(keys)) });
    }

    /// Blocks in a request. One segment is handled in one go, so the ping's reply tells that the request is in.
    pub(crate) fn start_blocking(&mut self, request: Request<'_>) {
        let mut bytes = message(Request::Ping { nonce: 8 });
        request.encode(&mut bytes);
        self.send(&bytes);
        assert_eq!(self.reply(ReplyKind::Nonce), Reply::Nonce(8));
    }

    /// Ends the wait. Fails if it had been woken: then two bytes come instead of one.
    pub(crate) fn cancel_what_still_waits(&mut self) {
        assert_eq!(self.ask(Request::CancelWait), Reply::Canceled, "it has been woken");
        self.ping();
    }

    /// Fails if the wait isn't over.
    pub(crate) fn assert_woken(&mut self) {
        assert_eq!(self.reply(ReplyKind::Waited(Op::Wait)), Reply::Stop);
    }

    pub(crate) fn ping(&mut self) {
        assert_eq!(self.ask(Request::Ping { nonce: 0x0102_0304 }), Reply::Nonce(0x0102_0304));
    }

    pub(crate) fn set(&mut self, key: &str, value: impl AsRef<[u8]>) {
        self.tell(Request::Set { key: key.as_bytes(), value: value.as_ref().into() });
        // The reply to what follows tells that it is done.
        self.ping();
    }

    pub(crate) fn value(&mut self, key: &str) -> Vec<u8> {
        match self.ask(Request::Get { key: key.as_bytes() }) {
            Reply::Value(value) => value.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn number(&mut self, request: Request<'_>) -> i64 {
        match self.ask(request) {
            Reply::Number(number) => number,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn add(&mut self, key: &str, delta: i64) -> i64 {
        self.number(Request::Add { key: key.as_bytes(), delta })
    }

    pub(crate) fn num_keys(&mut self) -> i64 {
        self.number(Request::NumKeys)
    }

    pub(crate) fn is_present(&mut self, key: &str) -> bool {
        self.ask(Request::Check { keys: KeyList::new(&list(&[key])) }) == Reply::Checked(true)
    }

    pub(crate) fn multi_set(&mut self, entries: &[(&str, &str)]) {
        self.tell(Request::MultiSet { pairs: PairList::new(&pairs(entries)) });
        self.ping();
    }
}
