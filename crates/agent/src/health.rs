//! Whether an agent or a server lives, over HTTP: any GET is answered with what its loop says of itself, or with 503 if
//! the loop doesn't answer. Nothing can be changed through it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the loop may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long somebody who asks may take, all in all.
const ASK: Duration = Duration::from_secs(2);
/// So many are heard at a time: whoever is slow to ask holds up nobody. More than that wait.
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
    pub fn start(at: SocketAddr, ask: impl Fn(Reply) + Clone + Send + 'static) -> io::Result<Health> {
        let listener = TcpListener::bind(at)?;
        let address = listener.local_addr()?;
        tracing::info!("health checks are answered at http://{address}/");
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        std::thread::Builder::new().name("health".into()).spawn(move || {
            // As many as may be heard; each is given back.
            let (give_back, places) = channel();
            (0..AT_ONCE).for_each(|_| {
                let _ = give_back.send(());
            });
            for stream in listener.incoming() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else {
                    // No file left, most likely: to try at once would only take the processor from those who work.
                    std::thread::sleep(PAUSE);
                    continue;
                };
                let (ask, place) = (ask.clone(), Place(give_back.clone()));
                let _ = places.recv();
                // Who asks wrongly, or goes away, gets nothing; nor does anybody if there is no thread to be had.
                let _ = std::thread::Builder::new().name("health-answer".into()).spawn(move || {
                    let _place = place;
                    let _ = answer(stream, &ask);
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

/// Given back when it is dropped.
struct Place(Sender<()>);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn answer(mut stream: TcpStream, ask: &impl Fn(Reply)) -> io::Result<()> {
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
    if !request.starts_with(b"GET ") && !request.starts_with(b"HEAD ") {
        return respond(stream, "405 Method Not Allowed", &json!({"status": "only GET is answered"}));
    }
    let (reply, replied) = channel();
    ask(reply);
    match replied.recv_timeout(ANSWER) {
        Ok(state) => respond(stream, "200 OK", &state),
        Err(_) => respond(stream, "503 Service Unavailable", &json!({"status": "no answer"})),
    }
}

fn respond(mut stream: TcpStream, status: &str, body: &Value) -> io::Result<()> {
    let body = format!("{body}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes())
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

    #[test]
    fn who_asks_is_told_and_who_wants_something_else_is_not() {
        let answer = |reply: Reply| drop(reply.send(json!({"status": "running"})));
        let health = Health::start("127.0.0.1:0".parse().unwrap(), answer).unwrap();
        let text = get(health.address, "GET / HTTP/1.1\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("{\"status\":\"running\"}\n"),
            "{text}"
        );
        let text = get(health.address, "POST / HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    }

    #[test]
    fn who_is_slow_to_ask_holds_up_nobody() {
        let answer = |reply: Reply| drop(reply.send(json!({"status": "running"})));
        let health = Health::start("127.0.0.1:0".parse().unwrap(), answer).unwrap();
        let silent: Vec<_> = (0..AT_ONCE - 1).map(|_| TcpStream::connect(health.address).unwrap()).collect();
        let start = Instant::now();
        let text = get(health.address, "GET / HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(start.elapsed() < ASK, "{:?}", start.elapsed());
        drop(silent);
    }

    #[test]
    fn an_agent_that_has_gone_is_not_healthy_and_a_port_in_use_is_refused() {
        let health = Health::start("127.0.0.1:0".parse().unwrap(), drop).unwrap();
        let text = get(health.address, "GET /health HTTP/1.0\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        let error = Health::start(health.address(), drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
