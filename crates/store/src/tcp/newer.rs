//! Operations that older servers of torch don't have. Such a server closes the connection on an unknown operation.

use rallypoint_core::wire::{Op, Request};

use super::broken::Broken;
use super::connection::Connection;
use crate::deadline::Deadline;

/// A key that no user can name, because user keys start with a slash.
const PROBE_KEY: &[u8] = b"rallypoint/probe";

/// Returns the first release of torch whose server has this operation; `None` for operations that every server has.
pub(super) fn since(op: Op) -> Option<&'static str> {
    match op {
        Op::QueuePush | Op::QueuePop | Op::QueueLen => Some("2.8"),
        Op::ListKeys => Some("2.10"),
        Op::Barrier => Some("2.12"),
        _ => None,
    }
}

/// Whether the server closes this connection on a request of the same kind as `op` that leaves nothing behind.
pub(super) fn is_unknown(connection: &mut Connection, op: Op, deadline: &Deadline) -> bool {
    let requests = match op {
        // A barrier of one passes at once. Torch's server counts the arrival in a key.
        Op::Barrier => {
            vec![Request::Barrier { key: PROBE_KEY, world_size: 1 }, Request::DeleteKey { key: PROBE_KEY }]
        }
        Op::ListKeys => vec![Request::ListKeys],
        _ => vec![Request::QueueLen { key: PROBE_KEY }],
    };
    requests.iter().for_each(|request| connection.queue(request));
    let mut ask = || {
        connection.send(deadline)?;
        let kinds = requests.iter().filter_map(Request::reply_kind);
        kinds.map(|kind| connection.receive(kind, deadline)).collect::<Result<Vec<_>, _>>()
    };
    matches!(ask(), Err(Broken::Lost { ended: true, .. }))
}
