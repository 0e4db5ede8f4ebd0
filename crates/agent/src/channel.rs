//! A channel to a thread that waits with `poll`, such as the agent's loop.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use crate::signals::drain;

pub(crate) struct Receiver<T> {
    messages: mpsc::Receiver<T>,
    /// Readable when there may be messages.
    pub(crate) wakeup: UnixStream,
}

pub(crate) struct Sender<T> {
    messages: mpsc::Sender<T>,
    wakeup: Arc<UnixStream>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { messages: self.messages.clone(), wakeup: Arc::clone(&self.wakeup) }
    }
}

pub(crate) fn open<T>() -> io::Result<(Sender<T>, Receiver<T>)> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    write.set_nonblocking(true)?;
    let (sender, messages) = mpsc::channel();
    Ok((Sender { messages: sender, wakeup: Arc::new(write) }, Receiver { messages, wakeup: read }))
}

impl<T> Sender<T> {
    /// Sends a message. It is discarded if there is no receiver any more.
    pub(crate) fn send(&self, message: T) {
        let _ = self.messages.send(message);
        // If the socket is full, it is already readable.
        let _ = (&*self.wakeup).write(&[1]);
    }
}

impl<T> Receiver<T> {
    /// Returns all messages that have been sent.
    pub(crate) fn take(&self) -> Vec<T> {
        drain(&self.wakeup);
        self.messages.try_iter().collect()
    }
}
