//! A thread that forwards the workers' output to one of the agent's streams. Lines of tee'd files get a prefix.
//! Standard error that goes to no file is forwarded unchanged.
//!
//! Tee'd lines of different workers are never mixed. Each stream of the agent has its own thread, so that a reader that
//! stops reading one stream does not block the other.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Filter;
use super::last_lines::LastLines;
use super::lines::Lines;
use crate::channel::{self, Receiver, Sender};
use crate::error::{AgentError, Result};

/// Interval for reading files. Standard error that passes through the agent is read when data arrives.
const READ_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The timeout of [`Tail::catch_up`].
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval for checking whether the reader of the agent's output still reads.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(2);

/// One of the agent's own streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Console {
    Out,
    Err,
}

/// Writes bytes to a stream. Returns whether that succeeded.
pub(super) type Show = fn(Console, &[u8]) -> bool;

/// A source of output.
pub(super) enum Source {
    /// A file whose lines are shown with a prefix.
    File { file: File, prefix: Vec<u8>, lines: Lines, filter: Option<Arc<Filter>> },
    /// The agent's end of a pipe or pseudoterminal. Its bytes are shown unchanged if `is_shown`.
    Pipe { file: File, last: LastLines, is_shown: bool },
}

enum Command {
    Follow(Source),
    /// Forwards everything that was written, and replies whether all tee'd lines so far were shown. With `is_end`, no
    /// more output follows.
    Flush {
        is_end: bool,
        reply: mpsc::Sender<bool>,
    },
    Stop,
}

/// A handle to the thread. Dropping it stops the thread.
pub(super) struct Tail {
    commands: Sender<Command>,
    progress: Arc<AtomicU64>,
}

impl Tail {
    pub(super) fn start(to: Console, show: Show) -> Result<Tail> {
        let doing = "start a thread for output";
        let (sender, commands) = channel::open().map_err(AgentError::system(doing))?;
        let progress = Arc::new(AtomicU64::new(0));
        let (all_shown, buffer) = (true, vec![0; 64 << 10]);
        let thread = TailThread {
            to,
            show,
            commands,
            progress: Arc::clone(&progress),
            all_shown,
            buffer,
            sources: Vec::new(),
        };
        std::thread::Builder::new()
            .name("logs".into())
            .spawn(move || thread.run())
            .map_err(AgentError::system(doing))?;
        Ok(Tail { commands: sender, progress })
    }

    pub(super) fn follow(&self, source: Source) {
        self.commands.send(Command::Follow(source));
    }

    /// Waits until the thread has read everything that has been written so far, for at most 1 s.
    pub(super) fn catch_up(&self) {
        let _ = self.flush(false).recv_timeout(CATCH_UP_TIMEOUT);
    }

    /// Makes the thread forward everything that was written. The receiver gets whether all tee'd lines so far were
    /// shown. With `is_end`, no more output follows.
    pub(super) fn flush(&self, is_end: bool) -> mpsc::Receiver<bool> {
        let (reply, replied) = mpsc::channel();
        self.commands.send(Command::Flush { is_end, reply });
        replied
    }

    /// Waits for the end of a flush. Stops waiting if the reader has read nothing for `stall_timeout`, or if
    /// `should_stop` returns true. Returns whether all tee'd lines were shown.
    pub(super) fn wait(
        &self,
        flushed: &mpsc::Receiver<bool>,
        stall_timeout: Duration,
        mut should_stop: impl FnMut() -> bool,
    ) -> bool {
        let (mut seen, mut since) = (None, Instant::now());
        loop {
            match flushed.recv_timeout(PROGRESS_INTERVAL) {
                Ok(all_shown) => return all_shown,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let progress = Some(self.progress.load(Ordering::SeqCst));
            if seen != progress {
                (seen, since) = (progress, Instant::now());
            }
            if since.elapsed() >= stall_timeout || should_stop() {
                return false;
            }
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.commands.send(Command::Stop);
    }
}

/// The state of the thread.
struct TailThread {
    to: Console,
    show: Show,
    commands: Receiver<Command>,
    /// The number of forwarded chunks. While it grows, the reader of the agent's stream is slow but still reads.
    progress: Arc<AtomicU64>,
    /// Whether all tee'd lines were shown.
    all_shown: bool,
    buffer: Vec<u8>,
    sources: Vec<Source>,
}

impl TailThread {
    fn run(mut self) {
        loop {
            self.wait();
            for command in self.commands.take() {
                match command {
                    Command::Follow(source) => self.sources.push(source),
                    Command::Flush { is_end, reply } => {
                        self.forward_all(is_end);
                        // The caller may have given up.
                        let _ = reply.send(self.all_shown);
                    }
                    Command::Stop => return,
                }
            }
            self.forward_all(false);
        }
    }

    /// Waits until there may be output or a command.
    fn wait(&self) {
        let mut has_files = false;
        let mut watched = vec![PollFd::new(&self.commands.wakeup, PollFlags::IN)];
        for source in &self.sources {
            match source {
                Source::File { .. } => has_files = true,
                Source::Pipe { file, .. } => {
                    watched.push(PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN));
                }
            }
        }
        let _ = poll(&mut watched, has_files.then_some(&READ_INTERVAL));
    }

    /// Forwards all output. With `is_end`, no more output follows, and all sources are removed.
    fn forward_all(&mut self, is_end: bool) {
        let mut sources = std::mem::take(&mut self.sources);
        sources.retain_mut(|source| self.forward(source, is_end) && !is_end);
        self.sources = sources;
    }

    /// Forwards the output of one source. Returns whether more output may follow.
    fn forward(&mut self, source: &mut Source, is_end: bool) -> bool {
        let mut has_more = true;
        while has_more {
            let (Source::File { file, .. } | Source::Pipe { file, .. }) = &mut *source;
            let bytes = match (file.read(&mut self.buffer), &*source) {
                (Ok(0), Source::File { .. }) => break,
                (Ok(length @ 1..), _) => &self.buffer[..length],
                (Err(error), _) if error.kind() == ErrorKind::Interrupted => continue,
                (Err(error), _) if error.kind() == ErrorKind::WouldBlock => break,
                // Reading a pseudoterminal whose other end is closed returns an error.
                _ => {
                    has_more = false;
                    continue;
                }
            };
            match source {
                Source::Pipe { last, is_shown, .. } => {
                    last.keep(bytes);
                    if *is_shown {
                        (self.show)(self.to, bytes);
                    }
                }
                Source::File { prefix, lines, filter, .. } => {
                    let mut text = Vec::new();
                    lines.take(bytes, |line| append_line(&mut text, prefix, line, filter.as_deref()));
                    self.all_shown &= (self.show)(self.to, &text);
                }
            }
            self.progress.fetch_add(1, Ordering::SeqCst);
        }
        // An unterminated last line is shown as a line.
        if let (Source::File { prefix, lines, filter, .. }, true) = (source, is_end) {
            let mut text = Vec::new();
            lines.finish(|line| append_line(&mut text, prefix, line, filter.as_deref()));
            self.all_shown &= (self.show)(self.to, &text);
        }
        has_more
    }
}

/// Appends a line with its prefix to `text`, which is shown with one write. If `filter` matches the line, also writes
/// it to the file of the filter.
fn append_line(text: &mut Vec<u8>, prefix: &[u8], line: &[u8], filter: Option<&Filter>) {
    let start = text.len();
    let line = String::from_utf8_lossy(line);
    text.extend_from_slice(prefix);
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
    if let Some(filter) = filter
        && filter.wanted.iter().any(|wanted| line.contains(wanted.as_str()))
    {
        // Only report the error. The line is not lost, because it was read from the stream's own file.
        if let Err(error) = (&filter.file).write_all(&text[start..]) {
            filter.error.report(format!("cannot write {:?}: {error}; the workers keep running", filter.path));
        }
    }
}

/// Writes bytes to one of the agent's streams. Returns whether that succeeded. A failure does not affect the workers.
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
