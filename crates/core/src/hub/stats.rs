//! The counters and gauges of a server.

use super::close_reason::CloseReason;
use crate::error::WireError;

/// The counters and gauges of a server. Counters start at 0 when the server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Number of open connections.
    pub connections: u64,
    /// Connections that the driver passed to the hub, including those that the hub then refused. Connections refused
    /// because of the file limit are not included.
    pub accepted: u64,
    /// Connections refused because of the limit on connections or files, or because their address had too many
    /// violations.
    pub refused: u64,
    /// VALIDATE requests with a wrong magic number.
    pub bad_magic: u64,
    /// Connections closed because of a protocol violation, including `bad_magic`.
    pub protocol_errors: u64,
    /// Connections closed because the engine refused a request.
    pub refusals: u64,
    /// Connections closed because VALIDATE did not arrive within `handshake`, or as the oldest stale connections beyond
    /// `stale_total` or `stale_per_address`.
    pub no_handshake: u64,
    /// Connections closed because a request arrived too slowly, or because buffered requests exceeded `input_total`.
    pub slow_input: u64,
    /// Connections closed because the peer did not read its replies.
    pub slow_output: u64,
    /// The maximum number of connections, which follows from the limits and from the file limit of the process.
    pub max_connections: u64,
    /// 1 while the process has no free file descriptors for further connections, else 0. The driver sets it.
    pub out_of_files: u64,
    /// Number of stored keys.
    pub keys: u64,
    /// Number of bytes in keys, values and queues.
    pub bytes: u64,
}

impl ServerStats {
    /// Counts a connection that was refused or closed for this reason.
    pub(super) fn count(&mut self, reason: &CloseReason) {
        let counter = match reason {
            CloseReason::InvalidMessage { .. } => &mut self.protocol_errors,
            CloseReason::Protocol(error) => {
                self.bad_magic += u64::from(matches!(error, WireError::BadMagic { .. }));
                &mut self.protocol_errors
            }
            CloseReason::Refused(_) => &mut self.refusals,
            CloseReason::NoHandshake { .. } => &mut self.no_handshake,
            CloseReason::SlowRequest { .. }
            | CloseReason::NoLink { .. }
            | CloseReason::StalledUpload { .. }
            | CloseReason::TooMuchInput { .. } => &mut self.slow_input,
            CloseReason::SlowReader { .. } | CloseReason::TooMuchOutput { .. } => &mut self.slow_output,
            CloseReason::TooManyConnections { .. } | CloseReason::OutOfFiles { .. } => &mut self.refused,
        };
        *counter += 1;
    }
}
