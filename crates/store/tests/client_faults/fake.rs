//! A hand-made server: it knows the store, but does with each request what the test says, and remembers what came.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::store::{ClientId, Engine, EngineOptions, Output};
use rallypoint_core::wire::{Op, Reply, Request, RequestDecoder};

use crate::clock::eventually;
use crate::place::Place;

/// What to do with a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// What a server does.
    Answer,
    /// Carries it out and closes the connection without a word.
    Close,
    /// Closes the connection; the request is not carried out.
    Refuse,
    /// Nothing at all, from now on.
    Ignore,
    /// Sends this in the place of the reply.
    Say(Vec<u8>),
    /// Sends the reply, and a moment later the same again.
    Twice,
    /// Sends so many bytes of the reply and closes the connection.
    Cut(usize),
    /// Sends the first half of the reply and closes the connection.
    Half,
    /// Sends the reply a byte at a time, with so long a pause before each.
    Drip(Duration),
}

/// A request that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Which of the connections it came over, counted from 1.
    pub(crate) connection: u32,
    pub(crate) op: Op,
    /// Which of the requests of this kind it is, over all connections, counted from 1.
    pub(crate) nth: usize,
}

type Script = Box<dyn Fn(Seen) -> Act + Send + Sync>;

struct Shared {
    script: Script,
    /// What to do with the next request of this kind, in the place of what the script says.
    trap: Mutex<Option<(Op, Act)>>,
    seen: Mutex<Vec<Seen>>,
    engine: Mutex<Engine>,
    streams: Mutex<HashMap<ClientId, TcpStream>>,
    /// Whether what was to be said twice has been.
    said: AtomicBool,
    stopped: AtomicBool,
}

/// A running server; it is gone when dropped.
pub(crate) struct Fake {
    shared: Arc<Shared>,
    place: Arc<Place>,
    thread: Option<JoinHandle<()>>,
}

/// What one of our own servers says of itself.
pub(crate) const OURS: Option<&str> = Some("version=0 instance=fake capabilities=in-order,stored");
/// A server of torch's says nothing.
pub(crate) const TORCHS: Option<&str> = None;

impl Fake {
    pub(crate) fn start(
        identity: Option<&str>,
        script: impl Fn(Seen) -> Act + Send + Sync + 'static,
    ) -> Fake {
        Fake::at(Arc::new(Place::new()), identity, script)
    }

    fn at(
        place: Arc<Place>,
        identity: Option<&str>,
        script: impl Fn(Seen) -> Act + Send + Sync + 'static,
    ) -> Fake {
        let listener = place.taken_over(|port| TcpListener::bind(("127.0.0.1", port)));
        let shared = Arc::new(Shared {
            script: Box::new(script),
            trap: Mutex::default(),
            seen: Mutex::default(),
            engine: Mutex::new(Engine::new(
                EngineOptions { identity: identity.map(|text| text.as_bytes().into()), ..Default::default() },
                (),
            )),
            streams: Mutex::default(),
            said: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accepting.accept(&listener));
        Fake { shared, place, thread: Some(thread) }
    }

    /// One that does what a server does, but for what it is told by [`Fake::at_next`].
    pub(crate) fn honest(identity: Option<&str>) -> Fake {
        Fake::start(identity, |_| Act::Answer)
    }

    /// Does this with the next request of this kind.
    pub(crate) fn at_next(&self, op: Op, act: Act) {
        *self.shared.trap.lock().unwrap() = Some((op, act));
    }

    /// Ends it, and lets an honest one take its place, on the same port and with nothing in it.
    pub(crate) fn replace(self, identity: Option<&str>) -> Fake {
        let place = Arc::clone(&self.place);
        drop(self);
        Fake::at(place, identity, |_| Act::Answer)
    }

    pub(crate) fn port(&self) -> u16 {
        self.place.port()
    }

    /// Waits until what was to be said twice has been.
    pub(crate) fn wait_until_said(&self) {
        eventually("it was said twice", || self.shared.said.swap(false, Ordering::SeqCst));
    }

    /// Waits until no connection is open on this side.
    pub(crate) fn wait_until_closed(&self) {
        eventually("all connections are closed", || self.shared.streams.lock().unwrap().is_empty());
    }

    /// Closes one connection, counted from 1.
    pub(crate) fn close(&self, connection: u32) {
        let streams = self.shared.streams.lock().unwrap();
        streams[&ClientId::new(connection)].shutdown(Shutdown::Both).unwrap();
    }

    /// How often this operation came.
    pub(crate) fn count(&self, op: Op) -> usize {
        self.shared.seen.lock().unwrap().iter().filter(|seen| seen.op == op).count()
    }

    /// How many connections brought a request.
    pub(crate) fn connections(&self) -> u32 {
        self.shared.seen.lock().unwrap().iter().map(|seen| seen.connection).max().unwrap_or(0)
    }

    /// What a key holds, as it travels (with its slash).
    pub(crate) fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.engine.lock().unwrap().snapshot().get(key.as_bytes()).map(|value| value.to_vec())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // So that it sees that it is stopped.
        let _ = TcpStream::connect(("127.0.0.1", self.port()));
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Shared {
    fn accept(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for number in 1.. {
                let (stream, _) = listener.accept().unwrap();
                if self.stopped.load(Ordering::SeqCst) {
                    return self.cut();
                }
                stream.set_nodelay(true).unwrap();
                let client = ClientId::new(number);
                self.streams.lock().unwrap().insert(client, stream.try_clone().unwrap());
                scope.spawn(move || {
                    // Whatever ends it, it has ended.
                    let _ = self.serve(&stream, client, number);
                    let _ = stream.shutdown(Shutdown::Both);
                    self.streams.lock().unwrap().remove(&client);
                    self.engine.lock().unwrap().handle_disconnect(client);
                });
            }
        });
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn serve(&self, mut stream: &TcpStream, client: ClientId, connection: u32) -> std::io::Result<()> {
        let mut decoder = RequestDecoder::default();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            let mut input = &buffer[..len];
            while let Some(frame) =
                decoder.next(&mut input, &Limits::default()).map_err(std::io::Error::other)?
            {
                let op = frame.request().op();
                let seen = {
                    let mut all = self.seen.lock().unwrap();
                    let nth = 1 + all.iter().filter(|seen| seen.op == op).count();
                    all.push(Seen { connection, op, nth });
                    Seen { connection, op, nth }
                };
                let trapped = self.trap.lock().unwrap().take_if(|(trapped, _)| *trapped == op);
                let act = trapped.map_or_else(|| (self.script)(seen), |(_, act)| act);
                let reply = match act {
                    Act::Refuse => return Ok(()),
                    Act::Ignore => return wait_for_end(stream),
                    _ => self.handle(client, frame.request())?,
                };
                match act {
                    Act::Close => return Ok(()),
                    Act::Say(bytes) => stream.write_all(&bytes)?,
                    Act::Twice => {
                        stream.write_all(&reply)?;
                        // Part of the fault: a moment later than the answer.
                        std::thread::sleep(Duration::from_millis(3));
                        stream.write_all(&reply)?;
                        self.said.store(true, Ordering::SeqCst);
                    }
                    Act::Cut(len) => return stream.write_all(&reply[..len.min(reply.len())]),
                    Act::Half => return stream.write_all(&reply[..reply.len() / 2]),
                    Act::Drip(pause) => {
                        for byte in reply {
                            std::thread::sleep(pause);
                            stream.write_all(&[byte])?;
                        }
                    }
                    _ => stream.write_all(&reply)?,
                }
            }
        }
    }

    /// Carries out a request. Its own reply comes back; others who got one by it are sent theirs.
    fn handle(&self, client: ClientId, request: Request<'_>) -> std::io::Result<Vec<u8>> {
        if matches!(request, Request::Validate { .. }) {
            return Ok(Vec::new());
        }
        let mut engine = self.engine.lock().unwrap();
        engine.handle_request(client, request);
        let mut own = Vec::new();
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Reply { client: to, reply } if to == client => reply.encode(&mut own),
                Output::Reply { client: to, reply } => {
                    if let Some(mut stream) = self.streams.lock().unwrap().get(&to) {
                        let _ = stream.write_all(&bytes(reply));
                    }
                }
                Output::Close { .. } => return Err(std::io::Error::other("refused")),
            }
        }
        Ok(own)
    }
}

/// Takes what comes and does nothing with it, until the other side has had enough.
fn wait_for_end(mut stream: &TcpStream) -> std::io::Result<()> {
    while stream.read(&mut [0; 4096])? > 0 {}
    Ok(())
}

/// The bytes of a reply.
pub(crate) fn bytes(reply: Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}
