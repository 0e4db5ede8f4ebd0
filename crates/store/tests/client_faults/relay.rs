//! A relay between client and server that can stop passing on anything, or cut every connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    blocked: Mutex<bool>,
    changed: Condvar,
    streams: Mutex<Vec<TcpStream>>,
}

/// A running relay; it is gone when dropped.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay to that port of this machine.
    pub(crate) fn to(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accepting.accept(&listener, target));
        Relay { shared, port, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on nothing passes in either direction, and nobody is told.
    pub(crate) fn block(&self) {
        *self.shared.blocked.lock().unwrap() = true;
    }

    /// Everything passes again, also what was held up.
    pub(crate) fn unblock(&self) {
        *self.shared.blocked.lock().unwrap() = false;
        self.shared.changed.notify_all();
    }

    /// Cuts every connection. New ones may be made.
    pub(crate) fn cut(&self) {
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
                let (near, _) = listener.accept().unwrap();
                if self.stopped.load(Ordering::SeqCst) {
                    return self.cut();
                }
                self.streams.lock().unwrap().push(near.try_clone().unwrap());
                scope.spawn(move || {
                    self.wait_until_open();
                    let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { return };
                    self.streams.lock().unwrap().push(far.try_clone().unwrap());
                    if self.stopped.load(Ordering::SeqCst) {
                        return self.cut();
                    }
                    near.set_nodelay(true).unwrap();
                    far.set_nodelay(true).unwrap();
                    std::thread::scope(|scope| {
                        scope.spawn(|| self.pass(&near, &far));
                        self.pass(&far, &near);
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

    /// Passes on what comes, until either side ends.
    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream) {
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
