//! A thread that passes on what the workers write to one of the agent's streams: tee'd files line by line with a prefix,
//! standard error as it comes. Lines of different workers don't tear each other, and at the end nothing is left behind. Each
//! stream has its own, so that who doesn't read one does not hold up the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Filter;
use super::last_lines::LastLines;
use super::lines::Lines;
use crate::error::{AgentError, Result};

/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long others wait for the thread.
const CATCH_UP: Duration = Duration::from_secs(1);

/// One of the agent's own streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Console {
    Out,
    Err,
}

/// Something that is passed on.
#[derive(Debug)]
pub(super) struct Followed {
    from: From,
    lines: Lines,
    ended: bool,
}

#[derive(Debug)]
enum From {
    /// A file of which each line is shown with a prefix.
    File { file: File, prefix: Vec<u8> },
    /// A pipe or terminal whose bytes are shown as they are.
    Passage { fd: Arc<OwnedFd>, last: LastLines, shown: bool },
}

impl Followed {
    pub(super) fn file(file: File, prefix: Vec<u8>) -> Followed {
        Followed { from: From::File { file, prefix }, lines: Lines::default(), ended: false }
    }

    pub(super) fn passage(fd: OwnedFd, last: LastLines, shown: bool) -> Followed {
        Followed {
            from: From::Passage { fd: Arc::new(fd), last, shown },
            lines: Lines::default(),
            ended: false,
        }
    }
}

/// The thread and what it follows.
#[derive(Debug)]
pub(super) struct Tail {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// Locked while something is shown, which may take as long as the reader likes.
    followed: Mutex<Passing>,
    wake: OwnedFd,
    stopping: AtomicBool,
    /// Counts what was written, so that a slow reader is told from none.
    progress: AtomicU64,
    /// How often all was read: begun, and done.
    begun: AtomicU64,
    done: AtomicU64,
    /// Whether lines could not be written because their reader is gone.
    is_unread: AtomicBool,
}

#[derive(Debug)]
struct Passing {
    to: Console,
    followed: Vec<Followed>,
    filter: Option<Filter>,
    buffer: Vec<u8>,
    show: fn(Console, &[u8]) -> bool,
}

impl Tail {
    pub(super) fn start(
        to: Console,
        filter: Option<Filter>,
        show: fn(Console, &[u8]) -> bool,
    ) -> Result<Tail> {
        let system = |doing: &str, source| AgentError::System { doing: doing.into(), source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("make an event descriptor", error.into()))?;
        let passing = Passing { to, followed: Vec::new(), filter, buffer: vec![0; 64 << 10], show };
        let shared = Arc::new(Shared {
            followed: Mutex::new(passing),
            wake,
            stopping: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            is_unread: AtomicBool::new(false),
        });
        let here = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("logs".into()).spawn(move || here.follow());
        Ok(Tail { thread: thread.map_err(|error| system("start a thread", error))?, shared })
    }

    pub(super) fn add(&self, followed: Followed) {
        self.shared.lock().followed.push(followed);
        self.shared.wake();
    }

    /// Waits until what has come up to now was read, unless whoever reads our output holds that up.
    pub(super) fn catch_up(&self) {
        let next = self.shared.begun.load(Ordering::SeqCst) + 1;
        self.shared.wake();
        let deadline = Instant::now() + CATCH_UP;
        while self.shared.done.load(Ordering::SeqCst) < next && !self.is_done() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Nothing more will be written: it ends when all that was has been passed on.
    pub(super) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.wake();
    }

    /// Whether all was passed on.
    pub(super) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// After it was stopped: waits as long as somebody takes what is passed on, or has not for less than `patience`, or until
    /// `is_enough`. Returns whether all lines were shown.
    pub(super) fn wait(&self, patience: Duration, mut is_enough: impl FnMut() -> bool) -> bool {
        let mut seen = (self.shared.progress.load(Ordering::SeqCst), Instant::now());
        while !self.is_done() && seen.1.elapsed() < patience && !is_enough() {
            std::thread::sleep(Duration::from_millis(1));
            let progress = self.shared.progress.load(Ordering::SeqCst);
            if progress != seen.0 {
                seen = (progress, Instant::now());
            }
        }
        self.is_done() && !self.shared.is_unread.load(Ordering::SeqCst)
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Passing> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn follow(&self) {
        loop {
            // Asked before reading: what is written before it is said that all is written, is read.
            let stopping = self.stopping.load(Ordering::SeqCst);
            let pass = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let mut passing = self.lock();
            passing.pass_all(self);
            self.done.store(pass, Ordering::SeqCst);
            if stopping {
                passing.finish(self);
                return;
            }
            drop(passing);
            self.wait();
        }
    }

    /// Until something may have come.
    fn wait(&self) {
        let passing = self.lock();
        let mut has_files = false;
        let mut waiting = Vec::new();
        for followed in passing.followed.iter().filter(|followed| !followed.ended) {
            match &followed.from {
                From::File { .. } => has_files = true,
                From::Passage { fd, .. } => waiting.push(Arc::clone(fd)),
            }
        }
        drop(passing);
        let ready = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds: Vec<_> = waiting.iter().map(|fd| ready(fd.as_fd())).collect();
        fds.push(ready(self.wake.as_fd()));
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let _ = poll(&mut fds, has_files.then_some(&look));
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8][..]);
    }
}

impl Passing {
    fn pass_all(&mut self, shared: &Shared) {
        let Passing { to, followed, filter, buffer, show } = self;
        for followed in followed.iter_mut().filter(|followed| !followed.ended) {
            loop {
                let read = match &mut followed.from {
                    From::File { file, .. } => file.read(buffer),
                    From::Passage { fd, .. } => {
                        rustix::io::read(&**fd, &mut buffer[..]).map_err(io::Error::from)
                    }
                };
                let bytes = match read {
                    Ok(0) => {
                        followed.ended = matches!(followed.from, From::Passage { .. });
                        break;
                    }
                    Ok(length) => &buffer[..length],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A terminal whose other end is gone says so with an error.
                    Err(_) => {
                        followed.ended = true;
                        break;
                    }
                };
                match &followed.from {
                    From::Passage { last, shown, .. } => {
                        last.pass(bytes);
                        if *shown {
                            show(*to, bytes);
                        }
                    }
                    From::File { prefix, .. } => {
                        let mut batch = Batch { prefix, text: Vec::new(), filter };
                        followed.lines.take(bytes, |line| batch.add(line));
                        if !show(*to, &batch.text) {
                            shared.is_unread.store(true, Ordering::SeqCst);
                        }
                    }
                }
                shared.progress.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Nothing more will come: a last line without an end is a line.
    fn finish(&mut self, shared: &Shared) {
        let Passing { to, followed, filter, show, .. } = self;
        for followed in followed {
            if let From::File { prefix, .. } = &followed.from {
                let mut batch = Batch { prefix, text: Vec::new(), filter };
                followed.lines.finish(|line| batch.add(line));
                if !show(*to, &batch.text) {
                    shared.is_unread.store(true, Ordering::SeqCst);
                }
                shared.progress.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// Lines that are shown with one write.
struct Batch<'a> {
    prefix: &'a [u8],
    text: Vec<u8>,
    filter: &'a mut Option<Filter>,
}

impl Batch<'_> {
    fn add(&mut self, line: &[u8]) {
        let start = self.text.len();
        let line = String::from_utf8_lossy(line);
        self.text.extend_from_slice(self.prefix);
        self.text.extend_from_slice(line.as_bytes());
        self.text.push(b'\n');
        if let Some(filter) = self.filter
            && filter.wanted.iter().any(|wanted| line.contains(wanted.as_str()))
        {
            // This copy is lost; the stream's own file may have the line.
            if let Err(error) = filter.file.write_all(&self.text[start..]) {
                filter.error.report(format!("cannot write {:?}: {error}; the workers run on", filter.path));
            }
        }
    }
}

/// Shows something; whether anybody was there to see it. That nobody is ends no worker.
pub(super) fn show(to: Console, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let shown = match to {
        Console::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Console::Err => io::stderr().lock().write_all(bytes),
    };
    shown.is_ok()
}
