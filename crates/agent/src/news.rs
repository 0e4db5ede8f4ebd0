//! What nodes of ours tell each other beside what torch's do, under keys of the round's store that torch's agents never
//! look at: that one restarts its workers, and that one has failed for good.
//!
//! | key | what |
//! |---|---|
//! | `rallypoint.agent/news` | there is something to read |
//! | `rallypoint.agent/restart` | the failure that all start over for |
//! | `rallypoint.agent/failure` | the failure that ended the job |
//! | `rallypoint.agent/alive` | how many nodes have reported that they are alive; news without a restart or a failure ask for it |
//! | `rallypoint.agent/listening` | how many nodes listen |
//! | `rallypoint.agent/heard` | how many have heard of the failure |
//! | `rallypoint.agent/restarts/RANK` | how many restarts that node has counted |

use std::time::{Duration, Instant};

use rallypoint_rendezvous::PatientWait;
use rallypoint_store::{Result, Store};

use crate::report::Failure;

const NEWS: &str = "rallypoint.agent/news";
const RESTART: &str = "rallypoint.agent/restart";
const FAILURE: &str = "rallypoint.agent/failure";
const ALIVE: &str = "rallypoint.agent/alive";
const LISTENING: &str = "rallypoint.agent/listening";
const HEARD: &str = "rallypoint.agent/heard";

/// How long telling may take.
const TELL: Duration = Duration::from_secs(2);
/// How long nodes of ours may take to report that they are alive. A lost node is noticed after 15 s.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The same if nodes of torch's, which never report, are in the round.
const MIXED_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);
const ALIVE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the host of the store stays until all have heard.
const LINGER: Duration = Duration::from_secs(2);
/// How long to wait for news before looking whether anybody still wants to know.
const SLICE: Duration = Duration::from_secs(1);

/// What a node hears.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tiding {
    /// A node starts over because of this.
    Restart(Option<Failure>),
    /// A node has failed for good because of this.
    Failure(Option<Failure>),
}

/// Tells the others that this node starts over, or has failed for good.
pub(crate) fn tell(store: &dyn Store, failure: &Failure, is_final: bool) -> Result<()> {
    let store = store.with_timeout(Some(TELL));
    let json = serde_json::to_vec(failure).unwrap_or_else(|_| b"null".to_vec());
    let key = if is_final { FAILURE } else { RESTART };
    // The first one counts.
    store.compare_set(key, b"", &json)?;
    store.set(NEWS, b"1")
}

/// Asks all nodes of the round to report that they are alive, and waits until they have or the timeout is over. A node that
/// is lost meanwhile is noticed by its missing heartbeats.
pub(crate) fn await_alive(store: &dyn Store, nodes: u64) {
    let start = Instant::now();
    let store = store.with_timeout(Some(TELL));
    if let Err(error) = store.set(NEWS, b"1") {
        return tracing::debug!("the other nodes could not be asked whether they are alive: {error}");
    }
    let count = |key| store.add(key, 0).map_or(0, |count| count.max(0) as u64);
    loop {
        let are_ours = count(LISTENING) >= nodes;
        let most = if are_ours { ALIVE_TIMEOUT } else { MIXED_ALIVE_TIMEOUT };
        if start.elapsed() >= most || are_ours && count(ALIVE) >= nodes {
            return;
        }
        std::thread::sleep(ALIVE_POLL_INTERVAL);
    }
}

/// How many nodes of the round are ours, as far as they have said so.
pub(crate) fn listening(store: &dyn Store) -> Result<u64> {
    Ok(store.with_timeout(Some(TELL)).add(LISTENING, 0)?.max(0) as u64)
}

/// Says how many restarts this node has counted. To be said before it says how many workers it has: whoever knows the
/// ranks of all then finds it.
pub(crate) fn say_restarts(store: &dyn Store, rank: u64, restarts: u32) -> Result<()> {
    store.set(&restarts_of(rank), restarts.to_string().as_bytes())
}

/// The most restarts that a node of ours has counted. Torch's say nothing.
pub(crate) fn most_restarts(store: &dyn Store, nodes: u64) -> Result<u32> {
    let mut most = 0;
    for rank in 0..nodes {
        let key = restarts_of(rank);
        if store.check(&[&key])? {
            let count = String::from_utf8_lossy(&store.get(&key)?).parse().unwrap_or(0);
            most = most.max(count);
        }
    }
    Ok(most)
}

/// Whether the node of this rank is one of ours: torch's agents never write this key.
pub(crate) fn is_ours(store: &dyn Store, rank: u64) -> Result<bool> {
    store.with_timeout(Some(TELL)).check(&[&restarts_of(rank)])
}

fn restarts_of(rank: u64) -> String {
    format!("rallypoint.agent/restarts/{rank}")
}

/// Waits for news of a round and hands them on, for as long as `hand_on` and `is_wanted` say that somebody wants to know.
pub(crate) fn listen(store: &dyn Store, is_wanted: impl Fn() -> bool, hand_on: impl Fn(Tiding)) {
    let mut announced_in = None;
    let mut key = NEWS;
    while is_wanted() {
        // A restarted store has lost the count of listening nodes.
        if announced_in != Some(store.generation()) {
            match store.with_timeout(Some(TELL)).add(LISTENING, 1) {
                Ok(_) => announced_in = Some(store.generation()),
                Err(error) => tracing::debug!("could not say that this node listens: {error}"),
            }
        }
        let start = Instant::now();
        match PatientWait::new(store, &[key], SLICE).poll(SLICE) {
            Ok(true) => match read(store) {
                Ok(None) => {
                    if let Err(error) = store.with_timeout(Some(TELL)).add(ALIVE, 1) {
                        tracing::debug!("could not report that this node is alive: {error}");
                    }
                    key = FAILURE;
                }
                Ok(Some(Tiding::Restart(failure))) => {
                    hand_on(Tiding::Restart(failure));
                    key = FAILURE;
                }
                Ok(Some(failure)) => {
                    hand_on(failure);
                    // It is only a courtesy.
                    let _ = store.with_timeout(Some(TELL)).add(HEARD, 1);
                    return;
                }
                Err(error) => tracing::debug!("could not read the news: {error}"),
            },
            Ok(false) => {}
            // A store that is lost is told of by whoever watches the rendezvous.
            Err(error) => {
                tracing::debug!("no news can be heard: {error}");
                std::thread::sleep(SLICE.saturating_sub(start.elapsed()));
            }
        }
    }
}

/// Reads the news; `None` if nodes are only asked to report that they are alive.
fn read(store: &dyn Store) -> Result<Option<Tiding>> {
    let store = store.with_timeout(Some(TELL));
    let failure = |key| store.get(key).map(|json| serde_json::from_slice(&json).ok().flatten());
    if store.check(&[FAILURE])? {
        return Ok(Some(Tiding::Failure(failure(FAILURE)?)));
    }
    if store.check(&[RESTART])? {
        return Ok(Some(Tiding::Restart(failure(RESTART)?)));
    }
    Ok(None)
}

/// The failure that ended the job, if another node has told of one by now.
pub(crate) fn final_failure(store: &dyn Store) -> Option<Failure> {
    let store = store.with_timeout(Some(TELL));
    let json = store.check(&[FAILURE]).ok()?.then(|| store.get(FAILURE).ok())??;
    serde_json::from_slice(&json).ok()
}

/// Stays until all who listen have heard that this node has failed: it hosts the store.
pub(crate) fn linger(store: &dyn Store) {
    let start = Instant::now();
    let store = store.with_timeout(Some(TELL));
    let number = |key| store.add(key, 0);
    while start.elapsed() < LINGER {
        match number(LISTENING).and_then(|listening| Ok((listening, number(HEARD)?))) {
            // This node listens, too, but not to itself.
            Ok((listening, heard)) if heard + 1 < listening => std::thread::sleep(Duration::from_millis(10)),
            _ => return,
        }
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
    fn a_restart_is_heard_and_a_final_failure_after_it_and_the_first_of_each_counts() {
        let store = HashStore::new();
        tell(&store, &failure(1), false).unwrap();
        tell(&store, &failure(2), false).unwrap();
        let heard = RefCell::new(Vec::new());
        let hand_on = |tiding| {
            tell(&store, &failure(3), true).unwrap();
            heard.borrow_mut().push(tiding);
        };
        listen(&store, || true, hand_on);
        assert_eq!(
            heard.into_inner(),
            [Tiding::Restart(Some(failure(1))), Tiding::Failure(Some(failure(3)))]
        );
        assert_eq!(final_failure(&store), Some(failure(3)));
        // One listened and has heard, and the one who failed does not wait for itself.
        linger(&store);
    }

    #[test]
    fn the_most_restarts_count_and_who_says_nothing_does_not() {
        let store = HashStore::new();
        assert_eq!(most_restarts(&store, 3).unwrap(), 0);
        say_restarts(&store, 0, 1).unwrap();
        say_restarts(&store, 2, 4).unwrap();
        assert_eq!(most_restarts(&store, 3).unwrap(), 4);
    }

    #[test]
    fn nobody_listens_longer_than_it_is_wanted() {
        let store = HashStore::new();
        listen(&store, || false, |tiding| panic!("{tiding:?}"));
        assert_eq!(final_failure(&store), None);
    }
}
