//! Tables of the operations of a client, for tests that run each of them.

use rallypoint_core::wire::Op;
use rallypoint_store::{Result, Store, TcpStore};

use crate::CALL_TIMEOUT;

/// An operation and a function that calls it.
pub(crate) struct Operation {
    /// The name of the operation. In [`waiting_operations`], it also describes the arguments.
    pub(crate) name: &'static str,
    /// Whether the client may repeat the request after it lost the reply.
    pub(crate) repeatable: bool,
    pub(crate) call: fn(&TcpStore) -> Result<()>,
}

impl Operation {
    /// Returns the operation code of an element of [`all_operations`].
    pub(crate) fn op(&self) -> Op {
        match self.name {
            "compare_exchange" => Op::CompareSet,
            name => *Op::ALL.iter().find(|op| op.name() == name.trim_start_matches("try_")).unwrap(),
        }
    }
}

/// Sets keys and fills a queue, so that every operation of [`all_operations`] succeeds without waiting.
pub(crate) fn prepare(store: &dyn Store) {
    let store = store.with_timeout(Some(CALL_TIMEOUT));
    store.multi_set(&[("present", b"value"), ("number", b"1"), ("list", b"x")]).unwrap();
    for _ in 0..8 {
        store.queue_push("queue", b"item").unwrap();
    }
}

/// Returns all operations, with arguments for which a prepared server replies without waiting.
pub(crate) fn all_operations() -> Vec<Operation> {
    let operation = |name, repeatable, call| Operation { name, repeatable, call };
    vec![
        operation("set", true, |store| store.set("k", b"v")),
        operation("get", true, |store| store.get("present").map(drop)),
        operation("add", false, |store| store.add("number", 1).map(drop)),
        operation("check", true, |store| store.check(&["present", "k"]).map(drop)),
        operation("wait", true, |store| store.wait(&["present"])),
        operation("compare_set", false, |store| store.compare_set("c", b"", b"v").map(drop)),
        operation("compare_exchange", false, |store| store.compare_exchange("d", b"", b"v").map(drop)),
        operation("delete_key", true, |store| store.delete_key("k").map(drop)),
        operation("num_keys", true, |store| store.num_keys().map(drop)),
        operation("append", false, |store| store.append("list", b"x")),
        operation("multi_get", true, |store| store.multi_get(&["present", "number"]).map(drop)),
        operation("multi_set", true, |store| store.multi_set(&[("k", b"v"), ("l", b"w")])),
        operation("queue_push", false, |store| store.queue_push("queue", b"item")),
        operation("queue_pop", false, |store| store.queue_pop("queue").map(drop)),
        operation("try_queue_pop", false, |store| store.try_queue_pop("queue").map(drop)),
        operation("queue_len", true, |store| store.queue_len("queue").map(drop)),
        operation("list_keys", true, |store| store.list_keys().map(drop)),
        operation("barrier", false, |store| store.barrier("alone", 1)),
        operation("ping", true, |store| store.ping().map(drop)),
    ]
}

/// Returns the operations that wait, with arguments for which the wait never completes.
pub(crate) fn waiting_operations() -> Vec<Operation> {
    let operation = |name, repeatable, call| Operation { name, repeatable, call };
    vec![
        operation("wait for a missing key", true, |store| store.wait(&["present", "missing"])),
        operation("get of a missing key", true, |store| store.get("missing").map(drop)),
        operation("multi_get of a missing key", true, |store| {
            store.multi_get(&["present", "missing"]).map(drop)
        }),
        operation("queue_pop of an empty queue", false, |store| store.queue_pop("empty").map(drop)),
        operation("barrier of world size 2", false, |store| store.barrier("two", 2)),
    ]
}
