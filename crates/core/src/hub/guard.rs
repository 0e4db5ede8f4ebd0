//! The guard of rendezvous states. Torch's agents unpickle the value under the key of a state, which can execute code.

use crate::limits::Limits;
use crate::rendezvous::{StateError, cell};
use crate::store::WriteGuard;

/// Accepts only rendezvous states under the keys of such states.
pub(super) const STATE_GUARD: WriteGuard = WriteGuard { prefix: b"/torch.rendezvous.", check };

fn check(key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String> {
    // A key with a slash behind the run id belongs to the store of a round, and is not a state.
    if key[STATE_GUARD.prefix.len()..].contains(&b'/') {
        return Ok(());
    }
    match cell::read(value, limits) {
        // Agents of a torch before 2.6 may share a rendezvous among themselves.
        Ok(_) | Err(StateError::OldAgent) => Ok(()),
        Err(error) => Err(format!("not the state of a rendezvous: {error}")),
    }
}
