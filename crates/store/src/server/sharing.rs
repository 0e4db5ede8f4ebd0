//! The servers that the stores of one process share, by port. Which process that is, is part of the question: a forked
//! child has a copy of its parent's list, whose servers have no thread there, and whose lock may be held by nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::TcpStoreServer;
use crate::error::Result;

/// Servers by port, of the process with this number.
type Servers = (u32, HashMap<u16, Weak<TcpStoreServer>>);

/// One list for each process of a line of forks. The last of so many finds its ancestor's long let go of.
static LISTS: [Mutex<Option<Servers>>; 16] = [const { Mutex::new(None) }; 16];

/// The process that asked last, and how many before it, one forked from the other, have asked.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// The server of this process on that port, or else the one that `start` makes.
pub(super) fn find_or(
    port: u16,
    start: impl FnOnce() -> Result<TcpStoreServer>,
) -> Result<Arc<TcpStoreServer>> {
    let process = std::process::id();
    let mut list = list_of(process);
    let (owner, servers) = list.get_or_insert_with(|| (process, HashMap::new()));
    if *owner != process {
        servers.clear();
        *owner = process;
    }
    if port != 0
        && let Some(server) = servers.get(&port).and_then(Weak::upgrade)
    {
        return Ok(server);
    }
    let server = Arc::new(start()?);
    servers.retain(|_, server| server.strong_count() > 0);
    servers.insert(server.port(), Arc::downgrade(&server));
    Ok(server)
}

fn list_of(process: u32) -> MutexGuard<'static, Option<Servers>> {
    let next = |asked: u64| match (asked >> 32) as u32 == process {
        true => None,
        false => Some(u64::from(process) << 32 | u64::from((asked as u32).wrapping_add(1))),
    };
    // Refused if this process has asked before, which is as good.
    let _ = ASKED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    let place = ASKED.load(Ordering::SeqCst) as u32 as usize % LISTS.len();
    LISTS[place].lock().unwrap_or_else(PoisonError::into_inner)
}
