//! Listening sockets that a program passes by file descriptor, as in torch's `master_listen_fd`.

use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};

use rallypoint_store::Listen;
use rustix::net::{listen, sockopt};

/// The length of the accept queue. The system reduces it to its own maximum.
const BACKLOG: i32 = i32::MAX;

/// Takes ownership of a bound socket and listens on it. The server closes it.
///
/// Fails with a message if the descriptor is not an open socket, or if the socket cannot listen.
pub(super) fn adopt_socket(fd: i32) -> Result<Listen, String> {
    let refuse = |reason: String| {
        format!(
            "Failed to open existing socket. socket: {fd} (master_listen_fd is not a bound TCP socket: {reason})"
        )
    };
    if fd < 0 {
        return Err(refuse("it is negative".into()));
    }
    // SAFETY: by passing this argument, the user asserts that the descriptor is open and transfers its ownership. Rust
    // has no safe way to take a descriptor by its number. The next call checks that the descriptor is an open socket
    // before anything else uses it.
    #[allow(unsafe_code)]
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let is_socket = sockopt::socket_type(&owned).and_then(|_| sockopt::socket_domain(&owned));
    if let Err(error) = is_socket {
        // The descriptor is not a socket, so it is not ours to close.
        std::mem::forget(owned);
        return Err(refuse(error.to_string()));
    }
    listen(&owned, BACKLOG).map_err(|error| refuse(error.to_string()))?;
    Ok(Listen::Socket(TcpListener::from(owned)))
}
