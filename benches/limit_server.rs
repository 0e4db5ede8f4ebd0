//! A server that only finds the end of each request and replies with fixed bytes. It stores, checks and limits nothing,
//! so its throughput shows the limit that sockets and request parsing set.
//!
//! `limit_server [VALUE_BYTES]` prints `listening on HOST:PORT`. Every value in its replies is `v`, repeated
//! VALUE_BYTES times.

use std::io::{self, Read, Write};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

const LISTENER: Token = Token(usize::MAX);
const READ_BYTES: usize = 256 * 1024;

struct Connection {
    stream: TcpStream,
    /// An incomplete request.
    partial: Vec<u8>,
    replies: Vec<u8>,
}

fn main() -> io::Result<()> {
    let value_bytes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(64);
    let mut value = (value_bytes as u64).to_le_bytes().to_vec();
    value.resize(8 + value_bytes, b'v');
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into())?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    println!("listening on {}", listener.local_addr()?);
    let mut connections = Slab::new();
    let mut scratch = vec![0; READ_BYTES];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let slot = connections.vacant_entry();
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(slot.key()), interest)?;
                    slot.insert(Connection { stream, partial: Vec::new(), replies: Vec::new() });
                }
            } else if let Some(connection) = connections.get_mut(event.token().0)
                && !serve(connection, &mut scratch, &value)
            {
                connections.remove(event.token().0);
            }
        }
    }
}

/// Reads requests and writes replies. Returns `false` if the connection is closed or has failed.
fn serve(connection: &mut Connection, scratch: &mut [u8], value: &[u8]) -> bool {
    loop {
        match connection.stream.read(scratch) {
            Ok(0) => return false,
            Ok(len) => {
                if connection.partial.is_empty() {
                    let used = answer_all(&scratch[..len], value, &mut connection.replies);
                    connection.partial.extend_from_slice(&scratch[used..len]);
                } else {
                    connection.partial.extend_from_slice(&scratch[..len]);
                    let used = answer_all(&connection.partial, value, &mut connection.replies);
                    connection.partial.drain(..used);
                }
                if len < scratch.len() {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    while !connection.replies.is_empty() {
        match connection.stream.write(&connection.replies) {
            Ok(sent) if sent == connection.replies.len() => connection.replies.clear(),
            Ok(sent) => drop(connection.replies.drain(..sent)),
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

/// Answers the complete requests in `bytes` and returns their total length.
fn answer_all(bytes: &[u8], value: &[u8], replies: &mut Vec<u8>) -> usize {
    let mut used = 0;
    while let Some(len) = answer(&bytes[used..], value, replies) {
        used += len;
    }
    used
}

/// Answers the first request in `bytes` and returns its length, or `None` if it is incomplete.
fn answer(bytes: &[u8], value: &[u8], replies: &mut Vec<u8>) -> Option<usize> {
    let number = |at: usize| {
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().expect("eight bytes")) as usize)
    };
    let string = |at: usize| Some(at + 8 + number(at)?).filter(|&end| end <= bytes.len());
    let fixed = |end: usize| Some(end).filter(|&end| end <= bytes.len());
    let strings = |count: usize| (0..count).try_fold(9, |at, _| string(at));
    // The codes are in the table of `core/wire/operation`.
    match bytes.first()? {
        0 => fixed(5),
        1 | 9 | 14 => string(string(1)?),
        2 => string(string(string(1)?)?).inspect(|_| replies.extend_from_slice(value)),
        3 => string(1).inspect(|_| replies.extend_from_slice(value)),
        4 => fixed(string(1)? + 8).inspect(|_| replies.extend_from_slice(&1u64.to_le_bytes())),
        5 | 6 => strings(number(1)?).inspect(|_| replies.push(0)),
        8 => string(1).inspect(|_| replies.extend_from_slice(&1u64.to_le_bytes())),
        10 => {
            let count = number(1)?;
            strings(count).inspect(|_| (0..count).for_each(|_| replies.extend_from_slice(value)))
        }
        11 => strings(number(1)? * 2),
        13 => fixed(5).inspect(|_| replies.extend_from_slice(&bytes[1..5])),
        other => panic!("this server does not support operation {other}"),
    }
}
