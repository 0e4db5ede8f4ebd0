//! One thread that passes on what the workers write: tee'd files line by line with a prefix, standard error as it comes.
//! Lines of different workers don't tear each other, and at the end nothing is left behind.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Filter;
use super::last_lines::LastLines;
use super::lines::Lines;
use crate::error::{AgentError, Result};

/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long whoever reads the agent's output may take none of it before the rest is given up.
const STALLED: Duration = Duration::from_secs(5);
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
    File { file: File, prefix: Vec<u8>, to: Console },
    /// A pipe or terminal whose bytes are shown as they are.
    Passage { fd: Arc<OwnedFd>, last: LastLines, shown: bool },
}

impl Followed {
    pub(super) fn file(file: File, prefix: Vec<u8>, to: Console) -> Followed {
        Followed { from: From::File { file, prefix, to }, lines: Lines::default(), ended: false }
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
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    followed: Mutex<Passing>,
    wake: OwnedFd,
    stopping: AtomicBool,
    /// Counts what was written, so that a slow reader is told from none.
    progress: AtomicU64,
}

#[derive(Debug)]
struct Passing {
    followed: Vec<Followed>,
    stdout: Option<Filter>,
    stderr: Option<Filter>,
    buffer: Vec<u8>,
    show: fn(Console, &[u8]),
}

impl Tail {
    pub(super) fn start(
        stdout: Option<Filter>,
        stderr: Option<Filter>,
        show: fn(Console, &[u8]),
    ) -> Result<Tail> {
        let system = |doing: &str, source| AgentError::System { doing: doing.into(), source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("make an event descriptor", error.into()))?;
        let passing = Passing { followed: Vec::new(), stdout, stderr, buffer: vec![0; 64 << 10], show };
        let shared = Arc::new(Shared {
            followed: Mutex::new(passing),
            wake,
            stopping: AtomicBool::new(false),
            progress: AtomicU64::new(0),
        });
        let here = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("logs".into()).spawn(move || here.follow());
        Ok(Tail { thread: Some(thread.map_err(|error| system("start a thread", error))?), shared })
    }

    pub(super) fn add(&self, followed: Followed) {
        self.shared.lock().followed.push(followed);
        self.shared.wake();
    }

    /// Reads what has come up to now, unless whoever reads our output holds that up.
    pub(super) fn catch_up(&self) {
        let deadline = Instant::now() + CATCH_UP;
        while Instant::now() < deadline {
            match self.shared.followed.try_lock() {
                Ok(mut passing) => return passing.pass_all(&self.shared.progress),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
                Err(TryLockError::Poisoned(passing)) => {
                    return passing.into_inner().pass_all(&self.shared.progress);
                }
            }
        }
    }

    /// Passes on all that was written, and ends. It is given up only if nobody takes it.
    pub(super) fn finish(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.wake();
        let mut seen = (self.shared.progress.load(Ordering::SeqCst), Instant::now());
        while !thread.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
            let progress = self.shared.progress.load(Ordering::SeqCst);
            if progress != seen.0 {
                seen = (progress, Instant::now());
            } else if seen.1.elapsed() > STALLED {
                // Nobody reads, so nobody could be told either.
                return;
            }
        }
        let _ = thread.join();
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
            let mut passing = self.lock();
            passing.pass_all(&self.progress);
            if stopping {
                passing.finish(&self.progress);
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
    fn pass_all(&mut self, progress: &AtomicU64) {
        let Passing { followed, stdout, stderr, buffer, show } = self;
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
                            show(Console::Err, bytes);
                        }
                    }
                    From::File { prefix, to, .. } => {
                        let filter = if *to == Console::Out { &mut *stdout } else { &mut *stderr };
                        let mut batch = Batch { prefix, text: Vec::new(), filter };
                        followed.lines.take(bytes, |line| batch.add(line));
                        show(*to, &batch.text);
                    }
                }
                progress.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Nothing more will come: a last line without an end is a line.
    fn finish(&mut self, progress: &AtomicU64) {
        let Passing { followed, stdout, stderr, show, .. } = self;
        for followed in followed {
            if let From::File { prefix, to, .. } = &followed.from {
                let filter = if *to == Console::Out { &mut *stdout } else { &mut *stderr };
                let mut batch = Batch { prefix, text: Vec::new(), filter };
                followed.lines.finish(|line| batch.add(line));
                show(*to, &batch.text);
                progress.fetch_add(1, Ordering::SeqCst);
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
            // A disk that is full loses this copy; the stream's own file has the line.
            let _ = filter.file.write_all(&self.text[start..]);
        }
    }
}

/// Whoever has read our output may have gone away; that ends no worker.
pub(super) fn show(to: Console, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let _ = match to {
        Console::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Console::Err => io::stderr().lock().write_all(bytes),
    };
}
