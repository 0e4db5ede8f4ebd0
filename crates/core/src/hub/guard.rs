//! The write guard for rendezvous states. Torch's agents unpickle the state of their rendezvous, and unpickling can
//! execute code.

use crate::limits::Limits;
use crate::rendezvous::{StateError, cell};
use crate::store::WriteGuard;

/// A guard for the keys of rendezvous states. It refuses every value that is neither a state nor [`cell::NULL`].
pub(super) const STATE_GUARD: WriteGuard = WriteGuard { prefix: b"/torch.rendezvous.", check };

fn check(key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String> {
    // A key with a slash usually belongs to the store of a round and is not checked. If a run id contains a slash, the
    // key of its state contains one, too. Such a state is therefore not checked either.
    if key[STATE_GUARD.prefix.len()..].contains(&b'/') {
        return Ok(());
    }
    match cell::read(value, limits) {
        // Our nodes can't use states that agents of torch before 2.6 write. The guard accepts these states so that such
        // agents can form a rendezvous among themselves.
        Ok(_) | Err(StateError::OldAgent) => Ok(()),
        Err(error) => Err(format!("not the state of a rendezvous: {error}")),
    }
}
