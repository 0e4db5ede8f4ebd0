//! Calls that must time out, and what a timeout may leave out if the server's answer comes too late.

use std::fmt::Debug;
use std::time::Duration;

use rallypoint_store::{Awaited, Failure, Result, StoreError};

pub(crate) use crate::timing::{SOON, eventually, goes_on_for};

/// Calls something that must time out.
#[track_caller]
pub(crate) fn times_out_after<T: Debug>(timeout: Duration, call: impl FnOnce() -> Result<T>) -> StoreError {
    crate::timing::fails_in_time(timeout, "what was waited for in vain", call)
}

/// Whether the server answered what it was asked after the time-out. On a busy machine that may come too late, and then there
/// may be no new connection in time either.
pub(crate) fn was_heard(error: &StoreError) -> bool {
    !matches!(
        error.failure(),
        Some(
            Failure::Timeout(Awaited::Keys(None))
                | Failure::NoAnswer
                | Failure::Indeterminate(_)
                | Failure::Unreachable(_)
        )
    )
}
