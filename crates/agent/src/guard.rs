//! Nobody is left behind: what the workers have started ends with the agent, however that dies.
//!
//! What the user starts is a small outer process, which starts itself again as the agent proper. Both adopt orphans
//! (`PR_SET_CHILD_SUBREAPER`), so every process that comes of a worker stays below both, whatever sessions and parents it
//! has on the way. If the agent dies, the outer one kills all that is below it; if the outer one dies, the agent does. If
//! both are killed in one moment, the workers still die with the thread that started them (`PR_SET_PDEATHSIG`), and only
//! what they have started themselves is left to itself.
//!
//! The outer one decides nothing: it hands on signals and the exit code.

mod descendants;
mod outer;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, set_child_subreaper, wait,
};

use descendants::{Process, descendants_but};
pub(crate) use descendants::{descendants, send};

use crate::logs::remove_unused;

/// What the agent proper is called, with the outer one's number and the name of the folder behind it.
const NAME: &str = "rallypoint-agent:";
/// What is killed may take so long to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before what is left is looked for again.
const LOOK: Duration = Duration::from_millis(5);

/// Held while a worker is started or a folder is made. Whoever takes it and keeps it is the last to.
static STARTING: Mutex<()> = Mutex::new(());

/// The outer process is gone, and all that is below this one goes with it.
static OVER: AtomicBool = AtomicBool::new(false);

/// The folder for temporary files that goes with this agent, known to the outer one as well.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Shows that this process is the agent proper and that the outer one watches over it.
#[derive(Debug)]
pub struct Guard(());

/// Puts this process under guard: the process the user started becomes the outer one, and gets the exit code to end with;
/// the one that it starts, with the same arguments, gets the guard. To be called before anything else, while there is one
/// thread.
pub fn stand() -> Result<Guard, ExitCode> {
    let mut args = std::env::args_os();
    match args.next().as_deref().and_then(outer_of) {
        Some((outer, letters)) => {
            let _ = FOLDER.set(folder(&letters));
            watch_outer(outer);
            Ok(Guard(()))
        }
        None => Err(outer::run(args)),
    }
}

/// Who watches over this process, if its name says that somebody does, and the letters of its folder.
fn outer_of(name: &OsStr) -> Option<(Pid, String)> {
    let (outer, letters) = name.to_str()?.strip_prefix(NAME)?.split_once(':')?;
    Some((outer.parse().ok().and_then(Pid::from_raw)?, letters.to_owned()))
}

fn name_of_inner(letters: &str) -> String {
    format!("{NAME}{}:{letters}", getpid().as_raw_nonzero())
}

/// The folder for temporary files with these letters, as torch names it.
fn folder(letters: &str) -> PathBuf {
    std::env::temp_dir().join(format!("torchelastic_{letters}"))
}

/// The folder for temporary files that goes with this agent, however it ends, if nothing is in it.
pub(crate) fn temporary_folder() -> Option<&'static Path> {
    FOLDER.get().map(PathBuf::as_path)
}

/// From now on this process ends, with all that is below it, when the outer one does.
fn watch_outer(outer: Pid) {
    let opened = pidfd_open(outer, PidfdFlags::empty());
    let is_parent = || getppid() == Some(outer);
    // While it is the parent its number is nobody else's, so what was opened is the outer one.
    let (Ok(outer), true) = (opened, is_parent()) else { std::process::exit(1) };
    // Without it only what daemons do to get away from their parents goes unseen.
    let _ = set_child_subreaper(Some(getpid()));
    let watch = std::thread::Builder::new().name("guard".into()).spawn(move || end_with(&outer));
    if watch.is_err() {
        std::process::exit(1);
    }
}

fn end_with(outer: &OwnedFd) -> ! {
    while !matches!(poll(&mut [PollFd::new(outer, PollFlags::IN)], None), Ok(1..)) {}
    // Said before anybody is killed, so that nobody takes that for something that has happened by itself.
    OVER.store(true, Ordering::SeqCst);
    let last = starting();
    kill_all(PATIENCE, &[]);
    if let Some(folder) = temporary_folder() {
        remove_unused(folder);
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
