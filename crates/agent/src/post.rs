//! Letters from the threads that wait for something to the loop that waits for everything.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::signals::drain;

/// Where letters come in.
pub(crate) struct Inbox<T> {
    letters: Receiver<T>,
    /// Readable when there may be some.
    pub(crate) bell: UnixStream,
}

/// Where they are posted.
pub(crate) struct Post<T> {
    letters: Sender<T>,
    bell: Arc<UnixStream>,
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Post<T> {
        Post { letters: self.letters.clone(), bell: Arc::clone(&self.bell) }
    }
}

pub(crate) fn open<T>() -> io::Result<(Post<T>, Inbox<T>)> {
    let (bell, hand) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    hand.set_nonblocking(true)?;
    let (send, letters) = channel();
    Ok((Post { letters: send, bell: Arc::new(hand) }, Inbox { letters, bell }))
}

impl<T> Post<T> {
    /// Posts a letter. Nobody may be there any more to read it.
    pub(crate) fn send(&self, letter: T) {
        let _ = self.letters.send(letter);
        // A full pipe rings as well.
        let _ = (&*self.bell).write(&[1]);
    }
}

impl<T> Inbox<T> {
    /// Those that have come.
    pub(crate) fn take(&self) -> Vec<T> {
        drain(&self.bell);
        self.letters.try_iter().collect()
    }
}
