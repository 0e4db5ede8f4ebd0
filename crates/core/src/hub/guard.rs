//! Protects torch's agents, which unpickle and so execute what lies under the key of a rendezvous' state.

use crate::limits::Limits;
use crate::rendezvous::{StateError, cell};
use crate::store::WriteGuard;

/// Accepts only states of a rendezvous under the keys of such states.
pub(super) const STATE_GUARD: WriteGuard = WriteGuard { prefix: b"/torch.rendezvous.", check };

fn check(key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String> {
    // The keys of a round's own store have a slash behind the run id.
    if key[STATE_GUARD.prefix.len()..].contains(&b'/') {
        return Ok(());
    }
    match cell::read(value, limits) {
        // Agents of an older torch may share a rendezvous among themselves.
        Ok(_) | Err(StateError::OldAgent) => Ok(()),
        Err(error) => Err(format!("not the state of a rendezvous: {error}")),
    }
}
