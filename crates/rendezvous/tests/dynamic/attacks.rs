//! Tests with hostile or misleading keys in the store: states, announcements, signals, and keys of an earlier job.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rallypoint_core::rendezvous::cell;
use rallypoint_rendezvous::{RendezvousError, RendezvousHandler};
use rallypoint_store::{Failure, HashStore, Limits, Store};
use rallypoint_testkit::eventually;

use crate::nodes::{Job, assert_agree, join, join_all};

/// Returns the error of a node that finds `value` as the state.
fn join_error(value: &[u8]) -> String {
    let mut job = Job::new(1, 1);
    // The node waits until 5 s (`WITHDRAW_GRACE`) after this timeout for the state to be repaired.
    job.settings.join_timeout = Duration::from_millis(600);
    // The state is in a `HashStore`, because our server would refuse the value.
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let node = job.node_over(&store);
    store.set("torch.rendezvous.job", value).unwrap();
    let error = node.next_rendezvous().unwrap_err();
    assert!(matches!(error, RendezvousError::State { .. }), "{error}");
    // The node has not overwritten the value.
    assert_eq!(store.get("torch.rendezvous.job").unwrap(), value);
    error.to_string()
}

#[test]
fn a_value_that_is_not_a_pickle_is_a_state_error() {
    for value in [&b"!!!"[..], b"", b"AAAA", b"gAQ=", &[0xff; 1000]] {
        let text = join_error(value);
        assert!(text.contains("is corrupt"), "{text}");
    }
}

#[test]
fn a_pickle_that_calls_a_function_is_refused_and_the_error_names_the_function() {
    let marker = tempfile::tempdir().unwrap();
    let marker = marker.path().join("executed");
    // Python pickles an object whose `__reduce__` returns `(os.system, (command,))` like this.
    let command = format!("touch {}", marker.display());
    let mut pickle =
        b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c"
            .to_vec();
    pickle.push(command.len() as u8);
    pickle.extend_from_slice(command.as_bytes());
    pickle.extend_from_slice(b"\x94\x85\x94R\x94.");
    let frame = (pickle.len() - 11) as u64;
    pickle[3..11].copy_from_slice(&frame.to_le_bytes());
    let text = join_error(&cell::encode(&pickle));
    assert!(text.contains("posix.system"), "{text}");
    assert!(!marker.exists());
}

#[test]
fn a_pickled_number_is_a_state_error() {
    let text = join_error(&cell::encode(b"\x80\x04K\x05."));
    assert!(text.contains("is corrupt"), "{text}");
}

#[test]
fn a_state_that_is_too_large_is_refused_because_of_the_limit() {
    let text = join_error(&vec![b'A'; 7 << 20]);
    assert!(text.contains("limit"), "{text}");
}

#[test]
fn malformed_announcements_add_no_node_and_break_nothing() {
    let mut job = Job::new(1, 2);
    job.settings.last_call_timeout = Duration::from_millis(200);
    let node = job.node();
    let store = job.store();
    store.set("rallypoint.rendezvous/job/announced/0", b"\xff\xfe nonsense\n+ x y\n").unwrap();
    assert_eq!(node.next_rendezvous().unwrap().world_size, 1);
}

#[test]
fn our_server_refuses_harmful_states_and_so_protects_torchs_nodes() {
    let job = Job::new(1, 1);
    let (node, store) = (job.node(), job.store());
    let key = "torch.rendezvous.job";
    for value in [&b"!!!"[..], b"", &cell::encode(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R.")]
    {
        let stored = store.get(key).unwrap();
        for refused in [
            store.set(key, value).unwrap_err(),
            store.compare_set(key, &stored, value).unwrap_err(),
            store.multi_set(&[("k", b"v"), (key, value)]).unwrap_err(),
        ] {
            assert!(
                matches!(
                    refused.failure(),
                    Some(Failure::Refused(_) | Failure::Indeterminate(_) | Failure::ConnectionLost(_))
                ),
                "{refused:?}"
            );
        }
        assert_eq!(store.get(key).unwrap(), stored);
        assert!(!store.check(&["k"]).unwrap());
    }
    store.append(key, b"AAAA").unwrap_err();
    // A compare-and-set that fails may contain anything, because it changes nothing.
    assert_eq!(store.compare_set(key, b"something else", b"!!!").unwrap(), cell::NULL);
    assert_eq!(node.next_rendezvous().unwrap().world_size, 1);
}

/// A client sets the signals although nothing has changed, and they stay set. If the node kept waiting for them, each
/// wait would return immediately, and the node would read the state in a busy loop.
#[test]
fn a_false_signal_wakes_a_node_once() {
    let job = Job::new(2, 2);
    let (node, store) = (job.node(), job.store());
    for key in ["completed/0", "ended/0", "wanted/0", "completed/1"] {
        store.set(&format!("rallypoint.rendezvous/job/{key}"), b"1").unwrap();
    }
    let joining = join(&node);
    let reads = || job.counts.reads.load(Ordering::Relaxed);
    eventually("the node waits", || reads() > 2);
    let before = reads();
    // Count the reads during these 3 s.
    std::thread::sleep(Duration::from_secs(3));
    let after = reads() - before;
    assert!(after <= 6, "{after} reads in 3 s");
    node.interrupt();
    joining.join().unwrap().unwrap_err();
}

/// If the state is deleted after all nodes have exited, the next node starts a new job. The new job must not contain
/// nodes of the old one.
#[test]
fn a_job_whose_state_was_deleted_starts_without_its_old_keys() {
    let job = Job::new(2, 2);
    let nodes = job.nodes(2);
    let before = join_all(&nodes);
    drop(nodes);
    let store = job.store();
    let old_keys = ["announced/0", "completed/0"].map(|key| format!("rallypoint.rendezvous/job/{key}"));
    assert!(store.check(&[&old_keys[0], &old_keys[1]]).unwrap());
    let old_keys = [&old_keys[..], &["torch.rendezvous.job.0/MASTER_ADDR".into()]].concat();
    store.delete_key("torch.rendezvous.job").unwrap();
    let nodes = job.nodes(2);
    assert!(old_keys.iter().all(|key| !store.check(&[key]).unwrap()), "keys of the old job are left");
    let first = join(&nodes[0]);
    let state = || cell::read(&store.get("torch.rendezvous.job").unwrap(), &Limits::default()).unwrap();
    let has_joined = || state().is_some_and(|state| state.participants.contains_key(nodes[0].node()));
    eventually("the new node has joined", has_joined);
    assert_eq!(
        state().unwrap().participants.len(),
        1,
        "the new job also has other nodes; the old job had {:?}",
        before[0].participants
    );
    let rounds = [nodes[1].next_rendezvous().unwrap(), first.join().unwrap().unwrap()];
    assert_agree(&rounds);
}
