//! Commands of operators to the coordinator of a job.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rallypoint_coordinator::message::{Open, PROTOCOL_VERSION, Purpose, Reply};
use rallypoint_core::store::SERVER_KEY;
use rallypoint_core::wire::{MAGIC, Request};
use rallypoint_store::Endpoint;

pub use rallypoint_coordinator::message::Command as OperatorCommand;
pub use rallypoint_coordinator::roster::Roster;

use crate::machine::host_name;

/// The maximum length of a reply. A roster has about 500 bytes per node.
const MAX_REPLY_BYTES: u64 = 64 << 20;
/// The maximum number of redirects that a command follows.
const MAX_REDIRECTS: usize = 8;

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorReply {
    /// The command was carried out. The text describes the result.
    Done(String),
    /// The roster of the job.
    Roster(Box<Roster>),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The address can't be reached, or did not reply in time.
    #[error("{address} can't be reached: {error}")]
    Unreachable {
        /// The address.
        address: String,
        /// The error.
        error: std::io::Error,
    },
    /// The server has no coordinator.
    #[error(
        "{address} is a store server without a coordinator\nhint: use the --rdzv-endpoint of a job with --rdzv-backend rallypoint"
    )]
    NoCoordinator {
        /// The address.
        address: String,
    },
    /// No coordinator carried out the command.
    #[error("{0}")]
    Refused(String),
}

/// Sends a command to the coordinator of a job, and returns its reply. Asks one endpoint after the other, and follows
/// redirects to the leader.
///
/// # Errors
///
/// Fails with [`OperatorError`] if no leader of the job replies within `timeout`.
pub fn send_command(
    endpoints: &[Endpoint],
    run_id: &str,
    command: &OperatorCommand,
    timeout: Duration,
) -> Result<OperatorReply, OperatorError> {
    let start = Instant::now();
    let mut addresses: Vec<String> = endpoints.iter().rev().map(Endpoint::to_string).collect();
    let mut last = OperatorError::Refused("no coordinator of the job replied".into());
    for _ in 0..endpoints.len() + MAX_REDIRECTS {
        let Some(address) = addresses.pop() else { break };
        // Each address that is left gets the same share of the time.
        let left = timeout.saturating_sub(start.elapsed()) / (addresses.len() as u32 + 1);
        let left = left.max(Duration::from_millis(1));
        match ask(&address, run_id, command, left) {
            Ok(Reply::Done(text)) => return Ok(OperatorReply::Done(text)),
            Ok(Reply::Roster(roster)) => return Ok(OperatorReply::Roster(roster)),
            Ok(Reply::Redirect { addresses: others, why }) => {
                addresses.extend(others.into_iter().rev());
                last = OperatorError::Refused(format!("{address} does not serve the job {run_id:?}: {why}"));
            }
            Ok(Reply::Refused(refusal)) => return Err(OperatorError::Refused(refusal.to_string())),
            Ok(Reply::Failed(text)) => return Err(OperatorError::Refused(text)),
            Ok(other) => {
                last = OperatorError::Refused(format!("{address} sent an unexpected reply: {other:?}"))
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask(
    address: &str,
    run_id: &str,
    command: &OperatorCommand,
    timeout: Duration,
) -> Result<Reply, OperatorError> {
    let unreachable = |error| OperatorError::Unreachable { address: address.into(), error };
    let other = |error: String| unreachable(std::io::Error::other(error));
    let endpoint: Endpoint =
        address.parse().map_err(|error: rallypoint_store::StoreError| other(error.to_string()))?;
    let addresses = endpoint.resolve_within(timeout).map_err(|error| other(error.to_string()))?;
    let connect = |at| TcpStream::connect_timeout(at, timeout);
    let mut stream = addresses
        .iter()
        .map(connect)
        .reduce(Result::or)
        .unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into()));
    let stream =
        stream.as_mut().map_err(|error| unreachable(std::io::Error::new(error.kind(), error.to_string())))?;
    let mut exchange = || -> std::io::Result<Option<Vec<u8>>> {
        stream.set_read_timeout(Some(timeout))?;
        let mut request = Vec::new();
        Request::Validate { magic: MAGIC }.encode(&mut request);
        Request::Get { key: SERVER_KEY }.encode(&mut request);
        stream.write_all(&request)?;
        let identity = read_value(stream)?;
        if !rallypoint_core::hub::has_service(&identity) {
            return Ok(None);
        }
        let purpose = Purpose::Operator(command.clone());
        let open = Open { version: PROTOCOL_VERSION, host: host_name(), run_id: run_id.into(), purpose };
        let open = serde_json::to_vec(&open)?;
        let mut message = Vec::new();
        Request::Message { message: (&open[..]).into() }.encode(&mut message);
        stream.write_all(&message)?;
        read_value(stream).map(Some)
    };
    let reply = exchange()
        .map_err(unreachable)?
        .ok_or_else(|| OperatorError::NoCoordinator { address: address.into() })?;
    serde_json::from_slice(&reply).map_err(|error| other(error.to_string()))
}

fn read_value(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_REPLY_BYTES {
        return Err(std::io::Error::other(format!("the reply has {len} bytes")));
    }
    let mut value = Vec::new();
    stream.take(len).read_to_end(&mut value)?;
    Ok(value)
}
