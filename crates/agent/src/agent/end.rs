//! The end of a run: closes or leaves the rendezvous, and reports the outcome.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rallypoint_core::supervise::{OnEnd, Signal, Verdict};
use rallypoint_rendezvous::{RendezvousHandler, Report};
use serde_json::{Value, json};

use super::Agent;
use crate::announcements;
use crate::error::AgentError;
use crate::events::WorkerEvent;
use crate::outcome::Outcome;
use crate::report::{self, Exit, Failure};
use crate::signal_name::signal_name;

/// How long closing or leaving the rendezvous may take, even if `close_timeout` is longer. The workers have ended, and
/// a lost store must not delay the agent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a node waits until the node that has failed has closed the job. Then it closes the job itself.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the host of the store keeps running after the rendezvous was closed, if other nodes wait for the next
/// round. These nodes poll once per second.
const LINGER_GRACE: Duration = Duration::from_millis(1500);

/// How long the reader of the agent's output may read nothing before the agent discards the rest of the output.
const OUTPUT_STALL_TIMEOUT: Duration = Duration::from_secs(300);
/// The same timeout after a signal.
const SIGNALED_OUTPUT_STALL_TIMEOUT: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) fn end(mut self, verdict: Verdict, on_end: OnEnd) -> Outcome {
        self.observer.ended();
        self.stop_finishing();
        self.calls.drain(..).for_each(|call| drop(call.join()));
        let peer_failure = self.peer_failure.take().or_else(|| self.read_final_failure(verdict));
        let suspects = match (verdict, &peer_failure) {
            (Verdict::FailedElsewhere, None) => self.suspects(),
            _ => Vec::new(),
        };
        // A node that stops its command leaves when the command has ended: the coordinator may start the next round then.
        let leaves_late = verdict == Verdict::RoundOver && self.has_coordinator();
        let reason = self.close_reason(verdict, peer_failure.as_ref());
        self.close_or_leave(verdict, if leaves_late { OnEnd::Leave } else { on_end }, reason);
        let closing = self.closing();
        self.flush_output();
        let first_failure = match verdict {
            Verdict::FailedElsewhere => peer_failure,
            Verdict::Failed => self.failures.iter().min_by_key(|failure| failure.timestamp).cloned(),
            _ => None,
        };
        if verdict == Verdict::Spare && self.starts == 0 {
            tracing::warn!(
                "this node ran no workers: the job {:?} ended while it was a spare",
                self.config.rendezvous.run_id
            );
        }
        if let Verdict::Signaled(Signal(signal)) = verdict {
            tracing::info!("this node was stopped by {}", signal_name(signal).unwrap_or("a signal"));
        }
        let unknown = || AgentError::Config("the agent ended without a reason; please report this".into());
        let error = (verdict == Verdict::Error).then(|| self.error.take().unwrap_or_else(unknown));
        self.record_end(verdict, error.as_ref());
        self.logs.check_disk();
        let log_errors =
            [self.logs.error(), self.events.error()].into_iter().flatten().map(String::from).collect();
        let formation = self.formation.as_ref();
        Outcome {
            verdict,
            error,
            first_failure,
            suspects,
            closing,
            last_exit: self.last_exit.map(report::Exit::from),
            restarts: self.supervisor.restarts(),
            starts: self.starts,
            group: formation.map(|formation| (formation.round.rank, formation.round.world_size)),
            world: formation.map(|formation| (formation.ranks.first, formation.ranks.world_size)),
            failures: std::mem::take(&mut self.failures),
            log_errors,
            ran: self.start.elapsed(),
        }
    }

    /// Waits until all output of the workers is shown, so that nothing is lost if the reader is slow. If the agent has
    /// received a signal before, the timeout for a reader that reads nothing is shorter. A signal during the wait ends
    /// the wait.
    fn flush_output(&mut self) {
        let stall_timeout = if self.signaled { SIGNALED_OUTPUT_STALL_TIMEOUT } else { OUTPUT_STALL_TIMEOUT };
        let mut is_signaled = false;
        let should_stop = || {
            is_signaled = is_signaled || !self.signals.take(Instant::now()).is_empty();
            is_signaled
        };
        if !self.logs.finish(stall_timeout, should_stop) {
            let directory =
                self.logs.directory().path().map(|path| format!("; tee'd lines are in {}", path.display()));
            let directory = directory.unwrap_or_default();
            tracing::warn!(
                "some lines of the workers were not shown, because the output of the agent was not read{directory}"
            );
        }
    }

    /// Returns the failure on another node that ended the job, if that node has announced the failure.
    fn read_final_failure(&self, verdict: Verdict) -> Option<Failure> {
        let round_watch = self.round_watch.as_ref().filter(|_| verdict == Verdict::FailedElsewhere)?;
        announcements::final_failure(&*round_watch.announcements_store)
    }

    /// Returns the nodes that may have ended the job without reporting a reason. That is the node that closed the
    /// rendezvous, if the state contains its name. Otherwise it is every torch node of the round, because our nodes
    /// announce a failure before they close the rendezvous.
    fn suspects(&self) -> Vec<String> {
        if let Some(node) = self.membership.as_ref().and_then(|membership| membership.closed_by.clone()) {
            return vec![node];
        }
        let Some(formation) = &self.formation else { return Vec::new() };
        let nodes = (0..).zip(&formation.round.participants);
        let torch_nodes = nodes.filter(|(rank, _)| formation.torch_nodes.contains(rank));
        torch_nodes.map(|(rank, node)| format!("node {rank} ({}, pid {})", node.addr, node.pid)).collect()
    }

    /// Returns which node closed the job, when and why, if a coordinator has told it.
    fn closing(&self) -> Option<String> {
        let handler = self.handler().filter(|_| self.has_coordinator())?;
        handler.membership().ok()?.closed_by
    }

    /// Returns why this node closes the rendezvous, for the other nodes.
    fn close_reason(&self, verdict: Verdict, peer_failure: Option<&Failure>) -> String {
        match (verdict, self.failures.iter().min_by_key(|failure| failure.timestamp), &self.error) {
            (Verdict::Succeeded, ..) => "its workers have finished".into(),
            (Verdict::Failed, Some(failure), _) => {
                format!("worker {} (rank {}) {}", failure.local_rank, failure.rank, failure.exit.describe())
            }
            (Verdict::FailedElsewhere, ..) => match peer_failure {
                Some(failure) => {
                    format!("rank {} on {} {}", failure.rank, failure.host, failure.exit.describe())
                }
                None => "another node failed".into(),
            },
            (Verdict::Unhealthy, ..) => report::unhealthy_cause(&self.config),
            (Verdict::Error, _, Some(error)) => {
                error.to_string().lines().next().unwrap_or_default().to_owned()
            }
            _ => "the node has ended".into(),
        }
    }

    /// Closes or leaves the rendezvous, for at most `CLOSE_TIMEOUT`.
    fn close_or_leave(&mut self, verdict: Verdict, on_end: OnEnd, reason: String) {
        let Some(handler) = self.handler().cloned() else { return };
        // The command of a node that runs once ends without effect on the other nodes.
        let ends_alone = self.config.runs_once && self.has_coordinator();
        let awaits_closing = verdict == Verdict::FailedElsewhere && self.has_coordinator();
        let round = self.formation.as_ref().map(|formation| formation.round.clone());
        let announcements_store =
            self.round_watch.as_ref().map(|watch| Arc::clone(&watch.announcements_store));
        self.round_watch = None;
        let nodes = round.as_ref().map_or(1, |round| round.world_size);
        // No other node can join a rendezvous whose store is in this process, at a port that no other node knows.
        let is_private = handler.hosts_store() && self.config.rendezvous.has_private_port();
        // After a success, the last node to finish has closed the rendezvous. The host of the store exits last and
        // closes it again in case that failed.
        let is_closed = verdict == Verdict::Succeeded && nodes > 1 && !handler.hosts_store();
        let (done, is_done) = channel::<()>();
        std::thread::spawn(move || {
            if awaits_closing {
                await_closing(&*handler);
            }
            match on_end {
                OnEnd::Close if !is_private && !is_closed => match handler.close(&reason) {
                    Ok(()) if handler.hosts_store() && has_waiting_nodes(&*handler) => {
                        std::thread::sleep(LINGER_GRACE);
                    }
                    Ok(()) => {}
                    Err(error) => tracing::warn!("could not close the rendezvous: {error}"),
                },
                OnEnd::Leave if !is_private => {
                    if ends_alone {
                        handler.report(Report::Finished);
                    }
                    if let Err(error) = handler.leave() {
                        tracing::warn!("could not leave the rendezvous: {error}");
                    }
                }
                // Keep the store until waiting nodes, which poll once per second, have read that the rendezvous is
                // closed.
                OnEnd::Nothing if verdict == Verdict::Spare && handler.hosts_store() => {
                    std::thread::sleep(LINGER_GRACE);
                }
                _ => {}
            }
            if let (Verdict::Failed | Verdict::FailedElsewhere, Some(announcements_store), true) =
                (verdict, announcements_store, handler.hosts_store())
            {
                // Every node acknowledges the failure, except the one that announced it.
                announcements::await_acknowledgments(&*announcements_store, nodes - 1);
            }
            drop(handler);
            drop(done);
        });
        let _ = is_done.recv_timeout(CLOSE_TIMEOUT);
    }

    fn record_end(&mut self, verdict: Verdict, error: Option<&AgentError>) {
        let state = match verdict {
            Verdict::Succeeded => "SUCCEEDED",
            Verdict::Failed | Verdict::FailedElsewhere | Verdict::Unhealthy => "FAILED",
            Verdict::Spare | Verdict::RoundOver => return self.events.record_agent("SUCCEEDED", None),
            Verdict::Signaled(Signal(signal)) => {
                let pid = std::process::id();
                let error = format!("SignalException: Process {pid} got signal: {signal}");
                return self.events.record_agent("FAILED", Some(&error));
            }
            Verdict::Error => {
                let error = error.map(|error| error.to_string());
                return self.events.record_agent("FAILED", error.as_deref());
            }
        };
        for local_rank in 0..self.config.nproc_per_node {
            let failure = self.failures.iter().find(|failure| failure.local_rank == local_rank);
            let state = if state == "FAILED" && failure.is_none() { "TERMINATED" } else { state };
            let raw_error = failure.map(raw_error);
            let worker = WorkerEvent {
                local_rank,
                pid: self.pids.get(local_rank as usize).copied().unwrap_or(0),
                exit_code: failure.map(|failure| failure.exit.as_python()),
                raw_error: raw_error.as_deref(),
            };
            self.events.record_worker(state, worker);
        }
        self.events.record_agent("SUCCEEDED", None);
    }
}

/// Waits until the node that has failed has closed the job, so that the job is closed in its name.
fn await_closing(handler: &dyn RendezvousHandler) {
    let start = Instant::now();
    while let Some(left) = CLOSING_TIMEOUT.checked_sub(start.elapsed())
        && handler.membership().is_ok_and(|membership| !membership.is_closed)
    {
        handler.wait_for_change(left);
    }
}

/// Returns whether nodes are on the wait list or are spares.
fn has_waiting_nodes(handler: &dyn RendezvousHandler) -> bool {
    handler
        .membership()
        .is_ok_and(|membership| !membership.waiting.is_empty() || !membership.spares.is_empty())
}

/// Returns the JSON of a worker's error file, or what torch reports for a worker without such a file.
fn raw_error(failure: &Failure) -> String {
    let file = failure.error_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let json = file.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let raw = json.unwrap_or_else(|| match failure.exit {
        Exit::Signal(_) => json!({"message": "<NONE>"}),
        Exit::Code(_) => json!({
            "message": "<NONE>",
            "errorTraits": {"category": "system_terminated_error", "retryability": "False"},
        }),
    });
    raw.to_string()
}
