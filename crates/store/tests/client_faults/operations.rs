//! Every operation of a client, as something to call. What each should come to is said by those who call it.

use rallypoint_core::wire::Op;
use rallypoint_store::{Result, Store, TcpStore};

use crate::SOON;

/// An operation by its name.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// Whether it may be sent again when its answer was lost.
    pub(crate) repeatable: bool,
    pub(crate) call: fn(&TcpStore) -> Result<()>,
}

impl Operation {
    /// What it is on the wire, and in errors.
    pub(crate) fn op(&self) -> Op {
        match self.name {
            "compare_exchange" => Op::CompareSet,
            name => *Op::ALL.iter().find(|op| op.name() == name.trim_start_matches("try_")).unwrap(),
        }
    }
}

/// What the operations need to succeed at once on a healthy server.
pub(crate) fn prepare(store: &dyn Store) {
    let store = store.with_timeout(Some(SOON));
    store.multi_set(&[("present", b"value"), ("number", b"1"), ("list", b"x")]).unwrap();
    for _ in 0..8 {
        store.queue_push("queue", b"item").unwrap();
    }
}

/// All of them, each such that a healthy server that was prepared answers at once.
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

/// Those that wait for what doesn't come.
pub(crate) fn waiting_operations() -> Vec<Operation> {
    let operation = |name, repeatable, call| Operation { name, repeatable, call };
    vec![
        operation("wait for a missing key", true, |store| store.wait(&["present", "missing"])),
        operation("get of a missing key", true, |store| store.get("missing").map(drop)),
        operation("multi_get of a missing key", true, |store| {
            store.multi_get(&["present", "missing"]).map(drop)
        }),
        operation("queue_pop of an empty queue", false, |store| store.queue_pop("empty").map(drop)),
        operation("barrier of two", false, |store| store.barrier("two", 2)),
    ]
}
