//! The write guard for rendezvous states. Torch's agents unpickle the state of their rendezvous, and unpickling can
//! execute code.

use crate::limits::Limits;
use crate::rendezvous::{StateError, cell};
use crate::store::WriteGuard;

/// A guard that accepts only rendezvous states as values of the keys of rendezvous states.
pub(super) const STATE_GUARD: WriteGuard = WriteGuard { prefix: b"/torch.rendezvous.", check };

fn check(key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String> {
    // A key with a slash belongs to the store of a round and is not checked. The state of a run whose run id contains a
    // slash has such a key, too.
    if key[STATE_GUARD.prefix.len()..].contains(&b'/') {
        return Ok(());
    }
    match cell::read(value, limits) {
        // Agents of torch before 2.6 write such states. They may form a rendezvous of their own.
        Ok(_) | Err(StateError::OldAgent) => Ok(()),
        Err(error) => Err(format!("not the state of a rendezvous: {error}")),
    }
}
