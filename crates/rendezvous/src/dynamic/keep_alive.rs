//! The thread that shows that this node is alive while its workers work. It ends when it is dropped.

use std::sync::mpsc::{RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, atomic::Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rallypoint_core::rendezvous::{End, Goal, Reason};
use rallypoint_store::{Cancellation, sleep};

use super::driver::Driver;

/// A running thread.
pub(super) struct KeepAlive {
    /// Something to do before it is due. Dropping it tells the thread to end.
    duty: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    cancellation: Option<Arc<dyn Cancellation>>,
}

impl KeepAlive {
    pub(super) fn start(driver: Arc<Driver>) -> KeepAlive {
        let (duty, duties) = channel();
        let cancellation = driver.cancellation.clone();
        let thread = std::thread::Builder::new()
            .name("rdzv-keep-alive".into())
            .spawn(move || {
                let mut pause = driver.until_heartbeat();
                while duties.recv_timeout(pause) != Err(RecvTimeoutError::Disconnected) {
                    // Several requests are one. None is carried out once the thread is told to end.
                    let rest = std::iter::repeat_with(|| duties.try_recv()).find_map(|request| request.err());
                    if rest == Some(TryRecvError::Disconnected) {
                        return;
                    }
                    beat(&driver);
                    driver.remove_stale_keys();
                    // Whatever came of it, not at once again.
                    pause = driver.until_heartbeat().max(Duration::from_millis(100));
                }
            })
            .expect("a thread can be started");
        KeepAlive { duty: Some(duty), thread: Some(thread), cancellation }
    }

    /// Lets it do now what it would do later.
    pub(super) fn hurry(&self) {
        if let Some(duty) = &self.duty {
            let _ = duty.send(());
        }
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.duty.take();
        let Some(thread) = self.thread.take() else { return };
        // A thread that waits for a store is left to itself if the caller is interrupted.
        let mut pause = Duration::from_micros(50);
        while !thread.is_finished() && sleep(pause, self.cancellation.as_ref()) {
            pause = (2 * pause).min(Duration::from_millis(20));
        }
    }
}

/// Sends one heartbeat. A failure is logged; the next heartbeat is the next attempt.
fn beat(driver: &Driver) {
    let (me, run_id) = (&driver.me, &driver.settings.run_id);
    let began = driver.now();
    let failed =
        format!("The node '{me}' has failed to send a keep-alive heartbeat to the rendezvous '{run_id}'");
    match driver.pursue(Goal::KeepAlive) {
        Ok(End::Reached { reason: reason @ Reason::Dropped, .. }) => {
            if !driver.dropped.swap(true, Ordering::Relaxed) {
                tracing::warn!("The node '{me}' of the rendezvous '{run_id}': {reason}.");
            }
        }
        Ok(End::Timeout(_)) => {
            let limit = driver.settings.heartbeat_timeout.as_secs_f64();
            tracing::warn!("{failed} within {limit} s (heartbeat_timeout).");
        }
        Ok(_) => {}
        Err(error) => {
            if let Err(error) = driver.tolerate(error, began) {
                tracing::warn!("{failed}: {error}");
            }
        }
    }
}
