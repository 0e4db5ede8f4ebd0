//! Announcements between our agents: a node restarts its workers, or the job has failed. They are keys in the store of
//! the round. Torch's agents never read these keys.
//!
//! | key | value |
//! |---|---|
//! | `rallypoint.agent/news` | set with every announcement, or alone to request that all nodes report in `alive` |
//! | `rallypoint.agent/restart` | the failure for which all nodes restart their workers |
//! | `rallypoint.agent/failure` | the failure that ended the job |
//! | `rallypoint.agent/alive` | the number of nodes that have reported that they are alive |
//! | `rallypoint.agent/acknowledged` | the number of nodes that have read the failure of another node |
//! | `rallypoint.agent/restarts/RANK` | the number of restarts that the node with this group rank has counted |

use std::time::{Duration, Instant};

use rallypoint_rendezvous::KeyWait;
use rallypoint_store::{Result, Store};

use crate::report::Failure;

const ANNOUNCED: &str = "rallypoint.agent/news";
const RESTART: &str = "rallypoint.agent/restart";
const FAILURE: &str = "rallypoint.agent/failure";
const ALIVE: &str = "rallypoint.agent/alive";
const ACKNOWLEDGED: &str = "rallypoint.agent/acknowledged";

/// The timeout of each call to the store.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long our nodes may take to report that they are alive. By default, a lost node is noticed after 15 s.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The same timeout in a round with torch's nodes, which never report.
const MIXED_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);
const ALIVE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the host of the store waits until the other nodes have read the failure that ended the job.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval for checking whether announcements are still wanted.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An announcement. The failure is `None` if it can't be parsed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Announcement {
    /// All nodes restart their workers because of this failure.
    Restart(Option<Failure>),
    /// The job has failed because of this failure.
    Failure(Option<Failure>),
}

/// Announces that this node restarts its workers or, if `is_final`, that the job has failed.
pub(crate) fn announce(store: &dyn Store, failure: &Failure, is_final: bool) -> Result<()> {
    let store = store.with_timeout(Some(CALL_TIMEOUT));
    let json = serde_json::to_vec(failure).unwrap_or_else(|_| b"null".to_vec());
    let key = if is_final { FAILURE } else { RESTART };
    // Only the first announcement counts.
    store.compare_set(key, b"", &json)?;
    store.set(ANNOUNCED, b"1")
}

/// Requests that all nodes of the round report that they are alive. Waits until all have reported, or until the timeout
/// has passed. In a round without torch's nodes, the timeout is long enough to notice that a lost node sends no
/// heartbeats.
pub(crate) fn await_alive(store: &dyn Store, nodes: u64, are_all_ours: bool) {
    let start = Instant::now();
    let store = store.with_timeout(Some(CALL_TIMEOUT));
    if let Err(error) = store.set(ANNOUNCED, b"1") {
        return tracing::debug!("could not request that the other nodes report that they are alive: {error}");
    }
    let timeout = if are_all_ours { ALIVE_TIMEOUT } else { MIXED_ALIVE_TIMEOUT };
    while start.elapsed() < timeout && !store.add(ALIVE, 0).is_ok_and(|alive| alive >= nodes as i64) {
        std::thread::sleep(ALIVE_POLL_INTERVAL);
    }
}

/// Publishes the number of restarts that this node has counted. Call it before this node publishes its workers, so that
/// every node that has read all ranks also finds this number.
pub(crate) fn publish_restarts(store: &dyn Store, group_rank: u64, restarts: u32) -> Result<()> {
    store.set(&restarts_key(group_rank), restarts.to_string().as_bytes())
}

/// Returns the highest number of restarts that one of our nodes has counted, and the group ranks of torch's nodes,
/// which publish none.
pub(crate) fn read_restarts(store: &dyn Store, nodes: u64) -> Result<(u32, Vec<u64>)> {
    let (mut max_restarts, mut torch_nodes) = (0, Vec::new());
    for group_rank in 0..nodes {
        let key = restarts_key(group_rank);
        if store.check(&[&key])? {
            let count = String::from_utf8_lossy(&store.get(&key)?).parse().unwrap_or(0);
            max_restarts = max_restarts.max(count);
        } else {
            torch_nodes.push(group_rank);
        }
    }
    Ok((max_restarts, torch_nodes))
}

fn restarts_key(group_rank: u64) -> String {
    format!("rallypoint.agent/restarts/{group_rank}")
}

/// Passes announcements of a round to `deliver` until the job has failed or `is_wanted` returns false. Reports that
/// this node is alive when another node requests that. `own_rank` is the group rank of this node.
pub(crate) fn listen(
    store: &dyn Store,
    own_rank: u64,
    is_wanted: impl Fn() -> bool,
    deliver: impl Fn(Announcement),
) {
    let mut key = ANNOUNCED;
    while is_wanted() {
        let start = Instant::now();
        match KeyWait::new(store, &[key], CHECK_INTERVAL).poll(CHECK_INTERVAL) {
            Ok(true) => match read(store) {
                // A node has set `ANNOUNCED` alone.
                Ok(None) => {
                    if let Err(error) = store.with_timeout(Some(CALL_TIMEOUT)).add(ALIVE, 1) {
                        tracing::debug!("could not report that this node is alive: {error}");
                    }
                    key = FAILURE;
                }
                Ok(Some(Announcement::Restart(failure))) => {
                    deliver(Announcement::Restart(failure));
                    key = FAILURE;
                }
                Ok(Some(Announcement::Failure(failure))) => {
                    let is_own = failure.as_ref().is_some_and(|failure| failure.group_rank == own_rank);
                    deliver(Announcement::Failure(failure));
                    if !is_own {
                        // Ignore the error: only the host of the store waits for this acknowledgment, for up to 2 s.
                        let _ = store.with_timeout(Some(CALL_TIMEOUT)).add(ACKNOWLEDGED, 1);
                    }
                    return;
                }
                Err(error) => tracing::debug!("could not read an announcement: {error}"),
            },
            Ok(false) => {}
            // The thread that polls the membership reports that the store is lost.
            Err(error) => {
                tracing::debug!("cannot wait for announcements: {error}");
                std::thread::sleep(CHECK_INTERVAL.saturating_sub(start.elapsed()));
            }
        }
    }
}

/// Reads the announcement. Returns `None` if no node has announced a restart or a failure.
fn read(store: &dyn Store) -> Result<Option<Announcement>> {
    let store = store.with_timeout(Some(CALL_TIMEOUT));
    let failure = |key| store.get(key).map(|json| serde_json::from_slice(&json).ok().flatten());
    if store.check(&[FAILURE])? {
        return Ok(Some(Announcement::Failure(failure(FAILURE)?)));
    }
    if store.check(&[RESTART])? {
        return Ok(Some(Announcement::Restart(failure(RESTART)?)));
    }
    Ok(None)
}

/// Returns the failure that ended the job, if another node has announced one.
pub(crate) fn final_failure(store: &dyn Store) -> Option<Failure> {
    match read(store) {
        Ok(Some(Announcement::Failure(failure))) => failure,
        _ => None,
    }
}

/// Waits until `nodes` nodes have acknowledged the failure of another node, or `ACKNOWLEDGE_TIMEOUT` has passed.
pub(crate) fn await_acknowledgments(store: &dyn Store, nodes: u64) {
    let start = Instant::now();
    let store = store.with_timeout(Some(CALL_TIMEOUT));
    while start.elapsed() < ACKNOWLEDGE_TIMEOUT
        && store.add(ACKNOWLEDGED, 0).is_ok_and(|acknowledged| acknowledged < nodes as i64)
    {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rallypoint_store::HashStore;

    use super::*;
    use crate::report::Exit;

    fn failure(rank: u64) -> Failure {
        Failure {
            host: "h".into(),
            group_rank: 1,
            role: "default".into(),
            rank,
            local_rank: 0,
            pid: 7,
            exit: Exit::Signal(9),
            timestamp: 1,
            ran: 0.5,
            restart: 0,
            error_file: None,
            message: "Signal 9".into(),
            last_lines: vec!["oh".into()],
            shown: false,
        }
    }

    #[test]
    fn the_first_restart_and_the_first_final_failure_are_delivered() {
        let store = HashStore::new();
        announce(&store, &failure(1), false).unwrap();
        announce(&store, &failure(2), false).unwrap();
        let delivered = RefCell::new(Vec::new());
        let deliver = |announcement| {
            announce(&store, &failure(3), true).unwrap();
            delivered.borrow_mut().push(announcement);
        };
        listen(&store, 0, || true, deliver);
        assert_eq!(
            delivered.into_inner(),
            [Announcement::Restart(Some(failure(1))), Announcement::Failure(Some(failure(3)))]
        );
        assert_eq!(final_failure(&store), Some(failure(3)));
        let start = Instant::now();
        await_acknowledgments(&store, 1);
        assert!(start.elapsed() < ACKNOWLEDGE_TIMEOUT, "one node has acknowledged");
    }

    #[test]
    fn a_node_does_not_acknowledge_its_own_failure() {
        let store = HashStore::new();
        announce(&store, &failure(1), true).unwrap();
        listen(&store, 1, || true, drop);
        assert_eq!(store.add(ACKNOWLEDGED, 0).unwrap(), 0);
        listen(&store, 0, || true, drop);
        assert_eq!(store.add(ACKNOWLEDGED, 0).unwrap(), 1);
    }

    #[test]
    fn the_highest_restart_count_is_returned_and_nodes_without_one_are_torch_nodes() {
        let store = HashStore::new();
        assert_eq!(read_restarts(&store, 3).unwrap(), (0, vec![0, 1, 2]));
        publish_restarts(&store, 0, 1).unwrap();
        publish_restarts(&store, 2, 4).unwrap();
        assert_eq!(read_restarts(&store, 3).unwrap(), (4, vec![1]));
    }

    #[test]
    fn a_node_stops_listening_when_announcements_are_no_longer_wanted() {
        let store = HashStore::new();
        listen(&store, 0, || false, |announcement| panic!("{announcement:?}"));
        assert_eq!(final_failure(&store), None);
    }
}
