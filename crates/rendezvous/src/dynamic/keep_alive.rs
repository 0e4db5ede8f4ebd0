//! The thread that maintains the state while the workers of a node run. It sends heartbeats, removes dead nodes and the
//! keys of old rounds, and restores what the store has lost.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rallypoint_core::rendezvous::{End, Goal, Reason};
use rallypoint_store::{Cancellation, sleep};

use super::driver::{Driver, fault_of};

/// A handle to the thread. Dropping the handle stops the thread and waits until the thread has exited or the caller is
/// interrupted.
pub(super) struct KeepAlive {
    /// Dropping the sender stops the thread.
    stop_on_drop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    cancellation: Option<Arc<dyn Cancellation>>,
}

/// The shortest pause before a heartbeat. After a failed heartbeat, the next one may be due without a pause.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);

impl KeepAlive {
    /// Starts the thread. Fails if the system can't start it.
    pub(super) fn start(driver: Arc<Driver>) -> io::Result<KeepAlive> {
        let (stop_on_drop, ended) = channel::<()>();
        let cancellation = driver.cancellation.clone();
        let thread = std::thread::Builder::new().name("rdzv-keep-alive".into()).spawn(move || {
            let pause = || driver.until_keep_alive().max(MIN_HEARTBEAT_INTERVAL);
            while ended.recv_timeout(pause()) == Err(RecvTimeoutError::Timeout) {
                send_heartbeat(&driver);
                driver.publish_again();
                driver.remove_stale_keys();
            }
        })?;
        Ok(KeepAlive { stop_on_drop: Some(stop_on_drop), thread: Some(thread), cancellation })
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.stop_on_drop.take();
        let Some(thread) = self.thread.take() else { return };
        // If the caller is interrupted, it does not wait for a thread that is blocked in a call to the store.
        let mut pause = Duration::from_micros(50);
        while !thread.is_finished() && sleep(pause, self.cancellation.as_ref()) {
            pause = (2 * pause).min(Duration::from_millis(20));
        }
    }
}

/// Sends one heartbeat, with retries for up to `heartbeat_timeout`. A failure is only logged, because the thread sends
/// another heartbeat after the next pause.
fn send_heartbeat(driver: &Driver) {
    let (me, run_id) = (&driver.me, &driver.settings.run_id);
    let failed =
        format!("The node '{me}' has failed to send a keep-alive heartbeat to the rendezvous '{run_id}'");
    match driver.pursue(Goal::KeepAlive) {
        Ok(End::Reached { reason: Reason::Dropped, .. }) => driver.log_dropped(),
        Ok(End::Failed(_)) => {
            let limit = driver.settings.heartbeat_timeout.as_secs_f64();
            tracing::warn!("{failed} within {limit} s (heartbeat_timeout).");
        }
        Ok(_) => {}
        // `Driver::pursue` logs outages and corrupt states.
        Err(error) if fault_of(&error).is_some() => {}
        Err(error) => tracing::warn!("{failed}: {error}"),
    }
}
