//! The server in figures.

use super::close_reason::CloseReason;
use crate::error::WireError;

/// A server in figures. Counts are since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused: too many, no file left, or an address with too many offences.
    pub refused: u64,
    /// VALIDATE requests with another magic number.
    pub bad_magic: u64,
    /// Connections closed because their bytes were not the protocol (`bad_magic` included).
    pub protocol_errors: u64,
    /// Connections closed because a request could not be carried out.
    pub refusals: u64,
    /// Connections closed because they did not finish the handshake in time.
    pub no_handshake: u64,
    /// Connections closed because a request arrived too slowly or took too much room.
    pub slow_input: u64,
    /// Connections closed because they did not take their replies.
    pub slow_output: u64,
    /// The most connections that limits and files allow.
    pub max_connections: u64,
    /// 1 from when there was no file for another connection until there is one again.
    pub out_of_files: u64,
    /// Keys held.
    pub keys: u64,
    /// Bytes held in keys, values and queues.
    pub bytes: u64,
}

impl ServerStats {
    /// Counts a connection that was refused or closed.
    pub(super) fn count(&mut self, reason: &CloseReason) {
        let counter = match reason {
            CloseReason::Protocol(error) => {
                self.bad_magic += u64::from(matches!(error, WireError::BadMagic { .. }));
                &mut self.protocol_errors
            }
            CloseReason::Refused(_) => &mut self.refusals,
            CloseReason::NoHandshake { .. } => &mut self.no_handshake,
            CloseReason::SlowRequest { .. }
            | CloseReason::StalledUpload { .. }
            | CloseReason::TooMuchInput { .. } => &mut self.slow_input,
            CloseReason::SlowReader { .. } | CloseReason::TooMuchOutput { .. } => &mut self.slow_output,
            CloseReason::TooManyConnections { .. } | CloseReason::OutOfFiles { .. } => &mut self.refused,
        };
        *counter += 1;
    }
}
