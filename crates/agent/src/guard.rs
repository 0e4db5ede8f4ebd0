//! Nobody is left behind: what the workers have started ends with the agent, however that dies.
//!
//! | process | what |
//! |---|---|
//! | the outer one | what the user started: it hands on signals and the exit code |
//! | the keeper | the same between the other two, under a name that nobody looks for |
//! | the agent | all the rest |
//!
//! All three adopt orphans (`PR_SET_CHILD_SUBREAPER`), so every process that comes of a worker stays below them, whatever
//! sessions and parents it has on the way. Whoever sees that the process above or below it is gone kills all that is
//! below itself. So it takes one of the three to clear up, and who kills by name or by command line misses the keeper. If
//! all three are killed in one moment, the workers still die with the thread that started them (`PR_SET_PDEATHSIG`), and
//! only what they have started themselves is left to itself: the kernel knows nothing that would end it.
//!
//! The process that clears up also takes the node out of its rendezvous, so that the other nodes re-form without waiting
//! for missing heartbeats.
//!
//! The outer one and the keeper decide nothing.

mod descendants;
mod invocation;
mod keeper;
mod outer;

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::Departure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, set_child_subreaper, wait,
};

use descendants::{Process, descendants_but};
pub(crate) use descendants::{descendants, send};
pub use invocation::invoked_as;
pub(crate) use keeper::keep;
pub use outer::reaches_agent;

use crate::logs::{random_letters, remove_unused};

/// What the agent proper is called, with the number of whoever is above it and the letters of the folder behind it.
const AGENT: &str = "rallypoint-agent:";
/// What the keeper is called, likewise. It has neither our name nor the user's arguments.
const KEEPER: &str = "guard-of:";
/// What is killed may take so long to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before what is left is looked for again.
const LOOK: Duration = Duration::from_millis(5);

/// Held while a process is started or a folder is made. Whoever takes it and keeps it is the last to.
static STARTING: Mutex<()> = Mutex::new(());

/// Whoever is above is gone, and all that is below this process goes with it.
static OVER: AtomicBool = AtomicBool::new(false);

/// The folder for temporary files that goes with this agent, known to the others as well.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Shows that this process is the agent proper and that others watch over it.
#[derive(Debug)]
pub struct Guard(());

/// Puts this process under guard: the process the user started becomes the outer one, and gets the exit code to end with;
/// the agent, which is started with the same arguments, gets the guard. To be called before anything else, while there is
/// one thread.
pub fn stand() -> Result<Guard, ExitCode> {
    let name = std::env::args_os().next().unwrap_or_default();
    match Above::read(AGENT, &name) {
        Some(above) => {
            above.watch();
            Ok(Guard(()))
        }
        None => {
            let letters = random_letters().unwrap_or_default();
            Err(outer::run(below(KEEPER, &letters), &letters))
        }
    }
}

/// This program again, as what watches this process.
fn below(name: &str, letters: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(format!("{name}{}:{letters}", getpid().as_raw_nonzero()));
    command
}

/// Who started this process and is watched by it, as its own name tells.
struct Above {
    pid: Pid,
    /// Of the folder for temporary files.
    letters: String,
}

impl Above {
    fn read(kind: &str, name: &OsStr) -> Option<Above> {
        let (pid, letters) = name.to_str()?.strip_prefix(kind)?.split_once(':')?;
        Some(Above { pid: pid.parse().ok().and_then(Pid::from_raw)?, letters: letters.to_owned() })
    }

    /// From now on this process ends, with all that is below it, when the one above does.
    fn watch(&self) {
        let _ = FOLDER.set(folder(&self.letters));
        let opened = pidfd_open(self.pid, PidfdFlags::empty());
        let is_parent = || getppid() == Some(self.pid);
        // While it is the parent its number is nobody else's, so what was opened is the one above.
        let (Ok(above), true) = (opened, is_parent()) else { std::process::exit(1) };
        // Without it only what daemons do to get away from their parents goes unseen.
        let _ = set_child_subreaper(Some(getpid()));
        let watch = std::thread::Builder::new().name("guard".into()).spawn(move || end_with(&above));
        if watch.is_err() {
            std::process::exit(1);
        }
    }
}

/// Removes what an agent with this folder for temporary files may have left.
fn clear_up(folder: &Path) {
    remove_unused(folder);
    let _ = std::fs::remove_file(pipe_beside(folder));
    let _ = std::fs::remove_file(departure_beside(folder));
}

fn pipe_beside(folder: &Path) -> PathBuf {
    beside(folder, "watchdog_timer_")
}

/// The file with the [`Departure`] of this node.
fn departure_beside(folder: &Path) -> PathBuf {
    beside(folder, "rallypoint_departure_")
}

fn beside(folder: &Path, prefix: &str) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(name.replacen("torchelastic_", prefix, 1))
}

/// Lets the processes that watch over this agent take the node out of its rendezvous if the agent is killed.
pub(crate) fn prepare_departure(departure: &Departure) {
    let Some(path) = temporary_folder().map(departure_beside) else { return };
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(serde_json::to_string(departure)?.as_bytes())
    };
    let _starting = starting();
    if let Err(error) = write() {
        // If the agent is killed, the other nodes then wait until they miss its heartbeats.
        tracing::debug!("cannot write {}: {error}", path.display());
    }
}

/// Takes the node of the agent with this folder out of its rendezvous, if it is in one. All processes below the agent must
/// have ended.
fn depart(folder: &Path) {
    // Two threads of the keeper get here when the outer process is killed. The process ends with the first that returns, so the
    // second waits. The file stays until the node has left, because this process may be killed meanwhile by the outer one, which
    // then takes the node out.
    static DEPARTING: Mutex<()> = Mutex::new(());
    let path = departure_beside(folder);
    let _departing = DEPARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(text) = std::fs::read_to_string(&path) else { return };
    if let Ok(departure) = serde_json::from_str::<Departure>(&text) {
        // The store may be gone with the agent, and this process has no log. The other nodes then drop the node when they
        // miss its heartbeats.
        let _ = departure.leave();
    }
    let _ = std::fs::remove_file(&path);
}

/// The pipe for timers that goes with this agent, however it ends.
pub(crate) fn timer_pipe() -> Option<PathBuf> {
    temporary_folder().map(pipe_beside)
}

/// The folder for temporary files with these letters, as torch names it.
fn folder(letters: &str) -> PathBuf {
    std::env::temp_dir().join(format!("torchelastic_{letters}"))
}

/// The folder for temporary files that goes with this agent, however it ends, if nothing is in it.
pub(crate) fn temporary_folder() -> Option<&'static Path> {
    FOLDER.get().map(PathBuf::as_path)
}

fn end_with(above: &OwnedFd) -> ! {
    while !matches!(poll(&mut [PollFd::new(above, PollFlags::IN)], None), Ok(1..)) {}
    // Said before anybody is killed, so that nobody takes that for something that has happened by itself.
    OVER.store(true, Ordering::SeqCst);
    let last = starting();
    kill_all(PATIENCE, &[]);
    if let Some(folder) = temporary_folder() {
        depart(folder);
        clear_up(folder);
    }
    std::mem::forget(last);
    std::process::exit(1)
}

/// Whether this process is about to end, whatever it does: the workers that end now were killed.
pub(crate) fn is_over() -> bool {
    OVER.load(Ordering::SeqCst)
}

/// To be held while something is made that must not be left behind.
pub(crate) fn starting() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all that is below this process but these and what is below them, again and again until nothing is left or the time
/// is up. Whether nothing is.
fn kill_all(patience: Duration, others: &[Process]) -> bool {
    let start = Instant::now();
    let mut was_empty = false;
    loop {
        // What was adopted is nobody else's to bury.
        let nobody = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(error) => break error == rustix::io::Errno::CHILD,
            }
        };
        let found = descendants_but(getpid(), others);
        // If others are there, it is not the kernel that knows that nothing else is; so it is looked twice.
        let is_empty = found.is_empty() && !others.is_empty();
        if nobody || is_empty && std::mem::replace(&mut was_empty, is_empty) {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        found.iter().for_each(|process| send(process, Signal::KILL));
        std::thread::sleep(LOOK);
    }
}
