//! A TCP relay that can block all bytes or cut all connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    blocked: Mutex<bool>,
    changed: Condvar,
    streams: Mutex<Vec<TcpStream>>,
}

/// A relay between clients and a server on this machine. Dropping it stops the relay.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to this port of the loopback address.
    pub fn to(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accepting.accept(&listener, target));
        Relay { shared, port, thread: Some(thread) }
    }

    /// Returns the port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Blocks all bytes in both directions. The connections stay open.
    pub fn block(&self) {
        *self.shared.blocked.lock().unwrap() = true;
    }

    /// Forwards the blocked bytes and all later ones.
    pub fn unblock(&self) {
        *self.shared.blocked.lock().unwrap() = false;
        self.shared.changed.notify_all();
    }

    /// Closes all connections. Clients can connect again.
    pub fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.unblock();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Shared {
    fn accept(&self, listener: &TcpListener, target: u16) {
        std::thread::scope(|scope| {
            loop {
                let (client, _) = listener.accept().unwrap();
                if self.stopped.load(Ordering::SeqCst) {
                    return self.cut();
                }
                self.streams.lock().unwrap().push(client.try_clone().unwrap());
                scope.spawn(move || {
                    self.wait_until_open();
                    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
                    self.streams.lock().unwrap().push(server.try_clone().unwrap());
                    if self.stopped.load(Ordering::SeqCst) {
                        return self.cut();
                    }
                    client.set_nodelay(true).unwrap();
                    server.set_nodelay(true).unwrap();
                    std::thread::scope(|scope| {
                        scope.spawn(|| self.forward(&client, &server));
                        self.forward(&server, &client);
                    });
                });
            }
        });
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn wait_until_open(&self) {
        let blocked = self.blocked.lock().unwrap();
        drop(self.changed.wait_while(blocked, |blocked| *blocked).unwrap());
    }

    /// Forwards bytes until either side ends the connection.
    fn forward(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(len) = from.read(&mut buffer) {
            self.wait_until_open();
            if len == 0 || to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
