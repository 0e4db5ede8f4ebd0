//! One connection, which sends requests and receives replies until its deadline.
//!
//! A connection never retries. After a failed request it must be dropped.

use std::sync::Arc;
use std::time::Duration;

use super::call::Report;
use super::deadline::Deadline;
use super::fault::ConnectionFault;
use super::io::Io;
use crate::error::WireError;
use crate::limits::Limits;
use crate::store::SERVER_KEY;
use crate::wire::{KeyList, MAGIC, Reply, ReplyDecoder, ReplyKind, Request};

/// One connection to a server.
#[derive(Debug)]
pub(super) struct Connection<I: Io> {
    pub(super) io: Arc<I>,
    limits: Arc<Limits>,
    pub(super) stream: I::Stream,
    decoder: ReplyDecoder,
    /// Received bytes. Those in `input[at..end]` are not decoded yet.
    input: Vec<u8>,
    at: usize,
    end: usize,
    /// Encoded requests that are not sent yet.
    out: Vec<u8>,
    user_timeout: Option<Duration>,
    /// Whether the client may repeat the current request over another connection.
    pub(super) is_repeatable: bool,
    /// The time at which sending and receiving fail with [`ConnectionFault::Silent`].
    pub(super) deadline: Deadline,
    is_handshake_done: bool,
    /// Whether the client has verified that this connection leads to the server that it knows.
    pub(super) is_verified: bool,
    ack: Ack,
    nonce: u32,
}

/// The request whose reply acknowledges all requests before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Ack {
    #[default]
    Ping,
    /// For torch's servers before 2.5, which close the connection on a PING.
    Check,
}

/// Why a request failed on its connection.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The connection broke, or no reply arrived by the deadline. `sent` is whether the server may have received a part
    /// of the request.
    Lost { fault: ConnectionFault, sent: bool },
    /// The server violated the protocol.
    Violation(WireError),
}

impl RequestError {
    /// Returns the error with another value of `sent`, for a failure in a step before or after the request itself.
    pub(super) fn with_sent(self, sent: bool) -> RequestError {
        match self {
            RequestError::Lost { fault, .. } => RequestError::Lost { fault, sent },
            other => other,
        }
    }

    /// Returns whether the connection was lost with this fault.
    pub(super) fn is(&self, expected: ConnectionFault) -> bool {
        matches!(self, RequestError::Lost { fault, .. } if *fault == expected)
    }
}

/// The read size at the start of a reply. Most replies are short.
const SMALL_READ_BYTES: usize = 8 * 1024;
/// The read size in the middle of a reply.
const LARGE_READ_BYTES: usize = 256 * 1024;
/// The time limit for one attempt to open a connection. A slower attempt has probably lost a packet. A new attempt
/// succeeds sooner than this one would, because the kernel doubles the pause before each retransmission.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the client reports a server that has accepted the connection and sends no reply.
const SILENCE_INTERVAL: Duration = Duration::from_secs(1);
/// The nonce of the first PING. The operation code of PING is `\r`, so the code and the nonce begin with `\r\n\r\n`. An
/// HTTP server takes these bytes for the end of a request and replies immediately, so the client can recognize it.
const HANDSHAKE_NONCE: u32 = u32::from_le_bytes(*b"\n\r\n\0");

impl<I: Io> Connection<I> {
    /// Opens a connection and queues torch's handshake for the first [`Connection::send`].
    pub(super) async fn connect(
        io: &Arc<I>,
        limits: &Arc<Limits>,
        address: &I::Address,
        ack: Ack,
        deadline: &Deadline,
    ) -> Result<Connection<I>, RequestError> {
        let connected = io.connect(address, &deadline.or_after(io.now(), CONNECT_TIMEOUT)).await;
        let mut connection = Connection {
            stream: connected.map_err(|fault| RequestError::Lost { fault, sent: false })?,
            io: Arc::clone(io),
            limits: Arc::clone(limits),
            decoder: ReplyDecoder::default(),
            input: Vec::new(),
            at: 0,
            end: 0,
            out: Vec::new(),
            user_timeout: None,
            is_repeatable: true,
            deadline: deadline.clone(),
            is_handshake_done: false,
            is_verified: false,
            ack,
            nonce: HANDSHAKE_NONCE.wrapping_sub(1),
        };
        connection.queue(&Request::Validate { magic: MAGIC });
        connection.queue_ack();
        Ok(connection)
    }

    /// Sends the queued requests and waits until the handshake is done.
    ///
    /// Calls `on_silence` once per second while the server sends no reply.
    pub(super) async fn handshake(&mut self, on_silence: Report<'_>) -> Result<(), RequestError> {
        self.send().await?;
        if !self.is_handshake_done {
            self.await_input(on_silence).await?;
            self.receive_ack().await?;
            self.is_handshake_done = true;
        }
        Ok(())
    }

    /// Returns the identity of the server, or `None` if the server is not one of ours.
    ///
    /// A CHECK shows whether the server has an identity, and a GET reads it. The CHECK is sent together with the
    /// handshake if that is not done yet. If the known server is one of ours (`was_ours`), the GET is sent without
    /// waiting for the reply to the CHECK, which saves a round trip. If one of torch's older servers runs there now, it
    /// closes the connection, because the key of the GET is absent. The caller then connects again with [`Ack::Check`],
    /// and the GET is not sent ahead.
    pub(super) async fn identify(
        &mut self,
        was_ours: bool,
        on_silence: Report<'_>,
    ) -> Result<Option<String>, RequestError> {
        let get = Request::Get { key: SERVER_KEY };
        let is_read_ahead = was_ours && self.ack == Ack::Ping;
        self.queue_identify();
        if is_read_ahead {
            self.queue(&get);
        }
        self.handshake(on_silence).await?;
        let is_ours = self.receive(ReplyKind::Checked).await? == Reply::Checked(true);
        let identity = match is_read_ahead {
            true => self.receive(ReplyKind::Value).await?,
            false if is_ours => self.request(&get).await?,
            false => return Ok(None),
        };
        match identity {
            Reply::Value(value) if !value.is_empty() => {
                Ok(Some(String::from_utf8_lossy(&value).into_owned()))
            }
            _ => Ok(None),
        }
    }

    /// Queues a CHECK of the key under which our servers store their identity. Torch's servers do not have that key.
    fn queue_identify(&mut self) {
        self.queue(&Request::Check { keys: KeyList::new(&[SERVER_KEY]) });
    }

    /// Waits for the first bytes from the server and calls `on_silence` once per second until they arrive.
    async fn await_input(&mut self, on_silence: Report<'_>) -> Result<(), RequestError> {
        loop {
            let interval = self.deadline.or_after(self.io.now(), SILENCE_INTERVAL);
            match self.read_more(&interval).await {
                Err(error)
                    if error.is(ConnectionFault::Silent) && !self.deadline.has_passed(self.io.now()) =>
                {
                    on_silence(&ConnectionFault::Silent);
                }
                read => return read,
            }
        }
    }

    /// Queues a request for the next [`Connection::send`].
    pub(super) fn queue(&mut self, request: &Request<'_>) {
        request.encode(&mut self.out);
    }

    /// Queues a request whose reply acknowledges all requests before it.
    fn queue_ack(&mut self) {
        match self.ack {
            Ack::Ping => {
                self.nonce = self.nonce.wrapping_add(1);
                self.queue(&Request::Ping { nonce: self.nonce });
            }
            Ack::Check => self.queue_identify(),
        }
    }

    /// Sends the queued requests.
    pub(super) async fn send(&mut self) -> Result<(), RequestError> {
        self.choose_user_timeout();
        let mut sent = 0;
        while sent < self.out.len() {
            match self.io.write(&mut self.stream, &self.out[sent..], &self.deadline).await {
                Ok(len) => sent += len,
                // The server may have received every written byte, so the request counts as sent from its first byte
                // on.
                Err(fault) => return Err(RequestError::Lost { fault, sent: sent > 0 }),
            }
        }
        self.out.clear();
        self.out.shrink_to(LARGE_READ_BYTES);
        Ok(())
    }

    /// Sets how long the kernel keeps the connection while the server's machine acknowledges no data.
    ///
    /// A small request that may be repeated uses `client_user_timeout` (10 s), because the client can repeat it on a
    /// new connection as soon as the network works again. Other requests use `user_timeout` (120 s). With the shorter
    /// timeout, a request that must not be repeated would fail in a short outage, and a large upload would fail while
    /// the server delays it, because the server then acknowledges no data.
    fn choose_user_timeout(&mut self) {
        let limits = &self.limits;
        let can_repeat_early = self.is_repeatable && self.out.len() <= limits.client_user_timeout_len;
        let timeout = if can_repeat_early { limits.client_user_timeout } else { limits.user_timeout };
        if self.user_timeout != Some(timeout) {
            self.io.set_user_timeout(&self.stream, timeout);
            self.user_timeout = Some(timeout);
        }
    }

    /// Receives the next reply, which must be of this kind.
    pub(super) async fn receive(&mut self, kind: ReplyKind) -> Result<Reply, RequestError> {
        loop {
            let mut input = &self.input[self.at..self.end];
            let available = input.len();
            let reply = self.decoder.next(kind, &mut input, &self.limits);
            self.at += available - input.len();
            match reply {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => self.read_more(&self.deadline.clone()).await?,
                Err(error) => return Err(RequestError::Violation(error)),
            }
        }
    }

    /// Receives the reply to the last [`Connection::queue_ack`].
    async fn receive_ack(&mut self) -> Result<(), RequestError> {
        if self.ack == Ack::Check {
            return self.receive(ReplyKind::Checked).await.map(drop);
        }
        match self.receive(ReplyKind::Nonce).await? {
            Reply::Nonce(found) if found != self.nonce => {
                Err(RequestError::Violation(WireError::WrongNonce { found }))
            }
            _ => Ok(()),
        }
    }

    /// Sends the queued requests and waits until the server has handled them.
    pub(super) async fn send_acknowledged(&mut self) -> Result<(), RequestError> {
        self.queue_ack();
        self.send().await?;
        self.receive_ack().await
    }

    /// Sends one request and receives its reply.
    pub(super) async fn request(&mut self, request: &Request<'_>) -> Result<Reply, RequestError> {
        let kind = request.reply_kind().expect("the request has a reply");
        self.queue(request);
        self.send().await?;
        self.receive(kind).await
    }

    /// Returns for each key whether it is present.
    pub(super) async fn check_each(&mut self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<bool>, RequestError> {
        for key in keys {
            self.queue(&Request::Check { keys: KeyList::new(&[key.as_ref()]) });
        }
        self.send().await?;
        let mut present = Vec::with_capacity(keys.len());
        for _ in keys {
            present.push(self.receive(ReplyKind::Checked).await? == Reply::Checked(true));
        }
        Ok(present)
    }

    /// Reads more bytes into `input`, whose previous bytes must all have been decoded.
    async fn read_more(&mut self, deadline: &Deadline) -> Result<(), RequestError> {
        let read_len = if self.decoder.is_mid_reply() { LARGE_READ_BYTES } else { SMALL_READ_BYTES };
        (self.at, self.end) = (0, 0);
        if self.input.len() != read_len {
            self.input = vec![0; read_len];
        }
        let read = self.io.read(&mut self.stream, &mut self.input, deadline).await;
        self.end = read.map_err(|fault| RequestError::Lost { fault, sent: true })?;
        Ok(())
    }

    /// Returns whether the connection can be reused: it is open, no request or reply is in flight, and the server has
    /// sent no unexpected bytes.
    pub(super) fn is_usable(&self) -> bool {
        let is_clean = self.at == self.end && !self.decoder.is_mid_reply() && self.out.is_empty();
        is_clean && self.io.is_quiet(&self.stream)
    }
}
