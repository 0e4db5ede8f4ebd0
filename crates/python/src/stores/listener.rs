//! A listening socket handed over by its number, as torch's `master_listen_fd` has it.

use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};

use rallypoint_store::Listen;
use rustix::net::{listen, sockopt};

/// As many pending connections as the system allows.
const BACKLOG: i32 = i32::MAX;

/// Takes over a bound socket. From now on it is the server's, and closed with it.
pub(super) fn adopt_socket(number: i32) -> Result<Listen, String> {
    let refuse = |reason: String| {
        format!(
            "Failed to open existing socket. socket: {number} (master_listen_fd is not a bound TCP socket: {reason})"
        )
    };
    if number < 0 {
        return Err(refuse("it is negative".into()));
    }
    // SAFETY: the caller says with this argument that the descriptor is open and ours from now on. There is no safe way to take a
    // descriptor by its number; whether it is open at all is looked at before anything is done with it.
    #[allow(unsafe_code)]
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    let is_socket = sockopt::socket_type(&owned).and_then(|_| sockopt::socket_domain(&owned));
    if let Err(error) = is_socket {
        // Not ours to close, then.
        std::mem::forget(owned);
        return Err(refuse(error.to_string()));
    }
    listen(&owned, BACKLOG).map_err(|error| refuse(error.to_string()))?;
    Ok(Listen::Socket(TcpListener::from(owned)))
}
