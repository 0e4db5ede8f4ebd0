//! How an exchange failed, and what the system's errors mean for it.

use std::io::ErrorKind;

use rallypoint_core::WireError;

use crate::fault::ConnectionFault;

/// How an exchange failed.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection is gone. `sent`: whether any byte of the request may have left; `ended`: whether it was the other
    /// side that closed it.
    Lost { reason: ConnectionFault, sent: bool, ended: bool },
    /// The server does not answer, or does not take what is sent.
    Silent { sent: bool },
    /// The server sent what is not the protocol.
    Violation(WireError),
    /// The answer to a ping was to another one.
    WrongNonce { sent: u32, found: u32 },
}

impl Broken {
    /// The same, of a step after which the request itself has not been sent yet, or has been answered.
    pub(super) fn before_sending(self) -> Broken {
        match self {
            Broken::Lost { reason, ended, .. } => Broken::Lost { reason, ended, sent: false },
            Broken::Silent { .. } => Broken::Silent { sent: false },
            other => other,
        }
    }

    /// The same, of a step after the request itself was sent.
    pub(super) fn after_sending(self) -> Broken {
        match self {
            Broken::Lost { reason, ended, .. } => Broken::Lost { reason, ended, sent: true },
            Broken::Silent { .. } => Broken::Silent { sent: true },
            other => other,
        }
    }
}

/// What came of reading.
pub(super) fn came(read: std::io::Result<usize>) -> Result<usize, Broken> {
    match read {
        Ok(0) => Err(Broken::Lost { reason: ConnectionFault::Closed, sent: true, ended: true }),
        Ok(len) => Ok(len),
        Err(error) => Err(broke(&error, true)),
    }
}

pub(super) fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

pub(super) fn lost(error: &std::io::Error, sent: bool) -> Broken {
    let reason = ConnectionFault::from(error);
    Broken::Lost { ended: reason == ConnectionFault::Closed, reason, sent }
}

/// The same of a connection that was made.
pub(super) fn broke(error: &std::io::Error, sent: bool) -> Broken {
    match error.kind() {
        ErrorKind::TimedOut => Broken::Lost { reason: ConnectionFault::Vanished, sent, ended: false },
        _ => lost(error, sent),
    }
}
