//! Whether an agent or a server lives, over HTTP: any GET is answered with what its loop says of itself, or with 503 if
//! the loop doesn't answer. Nothing can be changed through it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the loop may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long somebody who asks may take, all in all.
const ASK: Duration = Duration::from_secs(2);
/// So many are heard at a time: whoever is slow to ask holds up nobody.
const AT_ONCE: usize = 16;
/// How long to wait when nobody can be let in.
const PAUSE: Duration = Duration::from_millis(100);
/// A request is no longer than this; what is more is not read.
const REQUEST: usize = 8 * 1024;

/// Who is to answer.
pub type Reply = Sender<Value>;

/// A thread that answers, until it is dropped.
#[derive(Debug)]
pub struct Health {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Health {
    /// Answers there; `ask` hands the question to the loop.
    pub fn start(listener: TcpListener, ask: impl Fn(Reply) + Clone + Send + 'static) -> io::Result<Health> {
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        std::thread::Builder::new().name("health".into()).spawn(move || {
            let guests = Arc::<Guests>::default();
            for (number, stream) in listener.incoming().enumerate() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else {
                    // No file left, most likely: to try at once would only take the processor from those who work.
                    std::thread::sleep(PAUSE);
                    continue;
                };
                let stream = guests.admit(number, stream);
                let (ask, guests) = (ask.clone(), Arc::clone(&guests));
                // Who asks wrongly, or goes away, gets nothing; nor does anybody if there is no thread to be had.
                let _ = std::thread::Builder::new().name("health-answer".into()).spawn(move || {
                    let _ = answer(&stream, &ask);
                    guests.dismiss(number);
                });
            }
        })?;
        Ok(Health { address, ended })
    }

    /// The address it answers at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // It waits for somebody to come.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

/// Who is being heard, the one who came first in front.
#[derive(Debug, Default)]
struct Guests(Mutex<VecDeque<(usize, Arc<TcpStream>)>>);

impl Guests {
    /// Hears one more. If there are too many, who came first has had the most time, and goes.
    fn admit(&self, number: usize, stream: TcpStream) -> Arc<TcpStream> {
        let stream = Arc::new(stream);
        let mut guests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if guests.len() >= AT_ONCE
            && let Some((_, first)) = guests.pop_front()
        {
            let _ = first.shutdown(Shutdown::Both);
        }
        guests.push_back((number, Arc::clone(&stream)));
        stream
    }

    fn dismiss(&self, number: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != number);
    }
}

fn answer(mut stream: &TcpStream, ask: &impl Fn(Reply)) -> io::Result<()> {
    stream.set_write_timeout(Some(ASK))?;
    let start = Instant::now();
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST {
        let left = ASK.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes)? {
            0 => break,
            count => request.extend_from_slice(&bytes[..count]),
        }
    }
    let (status, body) = if !request.starts_with(b"GET ") && !request.starts_with(b"HEAD ") {
        ("405 Method Not Allowed", json!({"status": "only GET is answered"}))
    } else {
        let (reply, replied) = channel();
        ask(reply);
        match replied.recv_timeout(ANSWER) {
            Ok(state) => ("200 OK", state),
            Err(_) => ("503 Service Unavailable", json!({"status": "no answer"})),
        }
    };
    let body = format!("{body}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if request.starts_with(b"HEAD ") { "" } else { &body };
    stream.write_all(format!("{head}{body}").as_bytes())?;
    // What is left unread would take the answer along when this closes.
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(PAUSE))?;
    for _ in 0..REQUEST / bytes.len() {
        if stream.read(&mut bytes)? == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn start(ask: impl Fn(Reply) + Clone + Send + 'static) -> Health {
        Health::start(TcpListener::bind("127.0.0.1:0").unwrap(), ask).unwrap()
    }

    fn running(reply: Reply) {
        let _ = reply.send(json!({"status": "running"}));
    }

    #[test]
    fn who_asks_is_told_and_who_wants_something_else_is_not() {
        let health = start(running);
        let text = get(health.address, "GET / HTTP/1.1\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("{\"status\":\"running\"}\n"),
            "{text}"
        );
        let text = get(health.address, "HEAD / HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n"), "{text}");
        let text = get(health.address, "POST / HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
        let text = get(health.address, &format!("POST / HTTP/1.1\r\n\r\n{}", "b".repeat(6000)));
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    }

    #[test]
    fn who_is_slow_to_ask_holds_up_nobody() {
        let health = start(running);
        let silent: Vec<_> = (0..3 * AT_ONCE).map(|_| TcpStream::connect(health.address).unwrap()).collect();
        let begin = Instant::now();
        let text = get(health.address, "GET / HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(begin.elapsed() < ASK / 2, "{:?}", begin.elapsed());
        drop(silent);
    }

    #[test]
    fn an_agent_that_has_gone_is_not_healthy() {
        let health = start(drop);
        let text = get(health.address(), "GET /health HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    }
}
