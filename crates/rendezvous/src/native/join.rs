//! Joins rounds: runs the pre-join check, asks to join, and waits for the coordinator.

use std::time::{Duration, Instant};

use rallypoint_coordinator::message::Assignment;
use rallypoint_core::client::Deadline;
use rallypoint_core::rendezvous::NodeDesc;
use rallypoint_store::{Endpoint, StoreError};

use super::NativeRendezvousHandler;
use super::node_state::NativeFault;
use super::operator::{OperatorCommand, OperatorReply, send_command};
use super::pre_join_check::PreJoinCheck;
use crate::error::{RendezvousError, Result};
use crate::handler::{RendezvousHandler, RendezvousInfo};
use crate::observer::NativeWaiting;

/// Interval at which a waiting node notifies its observer.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest and the longest pause between two pre-join checks.
const MIN_CHECK_BACKOFF: Duration = Duration::from_secs(1);
const MAX_CHECK_BACKOFF: Duration = Duration::from_secs(60);
/// How long the coordinator may take to name the nodes of a round.
const PARTICIPANTS_TIMEOUT: Duration = Duration::from_secs(5);

impl NativeRendezvousHandler {
    /// Joins the next round, and enters it.
    pub(super) fn join_round(&self) -> Result<RendezvousInfo> {
        let mut start = Instant::now();
        if let Some(check) = &self.settings.pre_join_check {
            self.pass_check(check, start)?;
        }
        loop {
            let assignment = self.join(&mut start)?;
            tracing::info!(
                "The node '{}' has joined round {} of the rendezvous '{}' as rank {} in a world of size {}.",
                self.node,
                assignment.round,
                self.run_id,
                assignment.rank,
                assignment.world_size
            );
            if let Some(info) = self.enter(&assignment)? {
                return Ok(info);
            }
            tracing::info!(
                "round {} ended before its workers started; joining the next one",
                assignment.round
            );
        }
    }

    /// Asks to join, and waits until a round starts. `start` is the start of the join timeout.
    fn join(&self, start: &mut Instant) -> Result<Assignment> {
        self.shared.start_joining();
        self.with_client(|client, now| client.join(now));
        let timeout = self.settings.join_timeout;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            self.wait(left.min(REPORT_INTERVAL), |state| state.round.is_some())?;
            let state = self.shared.lock();
            if let Some(assignment) = &state.round {
                return Ok(assignment.clone());
            }
            if state.waits_without_limit() {
                *start = Instant::now();
            } else if left.is_zero() {
                let waits_for = state.describe_wait();
                drop(state);
                return Err(self.time_out(waits_for));
            }
            let (text, ends_in, is_limited) =
                (state.describe_wait(), state.wait_left(), !state.waits_without_limit());
            drop(state);
            self.report_waiting(&text, ends_in, *start, is_limited);
        }
    }

    /// Runs the pre-join check until it succeeds. While a check runs, the node is in its last round, so that the other
    /// nodes wait for it. After a check that failed, the node is outside of the job.
    fn pass_check(&self, check: &PreJoinCheck, start: Instant) -> Result<()> {
        self.with_client(|client, now| {
            if client.group().is_none() {
                client.stay_outside("its pre-join check runs", now);
            }
        });
        let mut backoff = MIN_CHECK_BACKOFF;
        loop {
            let Err(failure) = check.run(|| self.check_fault())? else { return Ok(()) };
            let text = format!("its pre-join check failed: {failure}");
            tracing::warn!(
                "the pre-join check of this node failed: {failure}; next check in {} s",
                backoff.as_secs()
            );
            let reason = text.clone();
            self.with_client(move |client, now| client.stay_outside(&reason, now));
            let pause = Instant::now();
            while let Some(left) = backoff.checked_sub(pause.elapsed()).filter(|left| !left.is_zero()) {
                if start.elapsed() >= self.settings.join_timeout {
                    return Err(self.time_out(format!("this node is outside: {text}")));
                }
                self.report_waiting(&format!("this node is outside: {text}"), Some(left), start, true);
                self.wait(left.min(REPORT_INTERVAL), |_| false)?;
            }
            backoff = (backoff * 2).min(MAX_CHECK_BACKOFF);
        }
    }

    /// Waits until `condition` holds, at most for `timeout`. Fails if this node can't join any more.
    fn wait(&self, timeout: Duration, condition: impl Fn(&super::NodeState) -> bool) -> Result<()> {
        let start = Instant::now();
        let slice = match self.cancellation {
            Some(_) => Deadline::CANCELLATION_INTERVAL,
            None => Duration::MAX,
        };
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let is_over = self.shared.wait_until(left.min(slice), |state| {
                condition(state) || state.is_interrupted || state.fault().is_some()
            });
            self.check_fault()?;
            if is_over || start.elapsed() >= timeout {
                return Ok(());
            }
        }
    }

    /// Fails if this node can't join any more, or was interrupted.
    pub(super) fn check_fault(&self) -> Result<()> {
        let run_id = || self.run_id.clone();
        let is_canceled = self.cancellation.as_ref().is_some_and(|cancellation| {
            cancellation.on_wait();
            cancellation.is_canceled()
        });
        let (fault, is_interrupted, was_served) = {
            let state = self.shared.lock();
            (state.fault(), state.is_interrupted, state.was_served)
        };
        match fault {
            None if is_interrupted || is_canceled => {
                self.withdraw();
                Err(RendezvousError::Interrupted { run_id: run_id() })
            }
            None => Ok(()),
            Some(NativeFault::Closed(closing)) if closing.has_finished && was_served => {
                Err(RendezvousError::GracefulExit { run_id: run_id() })
            }
            Some(fault) => {
                if fault == NativeFault::Drained
                    && let Err(error) = self.leave()
                {
                    tracing::debug!("could not leave: {error}");
                }
                Err(RendezvousError::Native { run_id: run_id(), fault })
            }
        }
    }

    fn time_out(&self, waits_for: String) -> RendezvousError {
        self.withdraw();
        let fault = NativeFault::Timeout { waits_for, timeout: self.settings.join_timeout };
        RendezvousError::Native { run_id: self.run_id.clone(), fault }
    }

    /// Tells the coordinator that this node does not want to join now. The node must have no workers.
    pub fn withdraw(&self) {
        self.with_client(|client, now| client.stay_outside("the node has stopped waiting", now));
    }

    /// Tells the observer what the node waits for. `is_limited` says that the join timeout limits the wait.
    fn report_waiting(&self, state: &str, ends_in: Option<Duration>, start: Instant, is_limited: bool) {
        let Some(observer) = &self.observer else { return };
        let waited = start.elapsed();
        let left = is_limited.then(|| self.settings.join_timeout.saturating_sub(waited));
        observer.native_waiting(&NativeWaiting { state, ends_in, waited, left });
    }

    /// Returns the nodes of a round, ordered by group rank, if the coordinator names them in time.
    pub(super) fn participants(&self, round: u64) -> Vec<NodeDesc> {
        let leader = self.shared.lock().leader().map(str::to_owned).unwrap_or_default();
        let ask = |leader: &Endpoint| {
            send_command(
                std::slice::from_ref(leader),
                &self.run_id,
                &OperatorCommand::Roster,
                PARTICIPANTS_TIMEOUT,
            )
        };
        let reply = leader.parse().map_err(|error: StoreError| error.to_string());
        match reply.and_then(|leader| ask(&leader).map_err(|error| error.to_string())) {
            Ok(OperatorReply::Roster(roster)) if roster.round.as_ref().is_some_and(|r| r.number == round) => {
                let members = roster.nodes.iter().filter(|node| node.rank.is_some());
                members
                    .map(|member| {
                        let address = member.node.address.parse::<Endpoint>();
                        let host =
                            address.map_or_else(|_| member.node.address.clone(), |address| address.host);
                        NodeDesc::new(host.as_str(), member.node.pid, 0)
                    })
                    .collect()
            }
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::warn!("the nodes of round {round} are not known: {error}");
                Vec::new()
            }
        }
    }
}
