//! The interface between the client and its driver.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::deadline::Deadline;
use super::fault::ConnectionFault;

/// The driver of a client, which provides connections, addresses, time and randomness.
///
/// A function that waits must return when its deadline passes or is canceled.
#[allow(async_fn_in_trait, reason = "the client needs no bounds on the futures")]
pub trait Io: Debug {
    /// An address of the server.
    type Address: Display;
    /// An open connection. Dropping it closes it.
    type Stream: Debug;

    /// Returns the time since an arbitrary fixed point.
    fn now(&self) -> Duration;

    /// Returns a random number.
    fn random(&self) -> u32;

    /// Resolves the addresses of the server.
    async fn resolve(&self, deadline: &Deadline) -> Result<Vec<Self::Address>, ConnectionFault>;

    /// Opens a connection. Fails with [`ConnectionFault::ConnectTimeout`] at the deadline.
    async fn connect(
        &self,
        address: &Self::Address,
        deadline: &Deadline,
    ) -> Result<Self::Stream, ConnectionFault>;

    /// Writes at least one byte and returns the number of bytes written.
    ///
    /// Fails with [`ConnectionFault::Silent`] at the deadline.
    async fn write(
        &self,
        stream: &mut Self::Stream,
        bytes: &[u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault>;

    /// Reads at least one byte and returns the number of bytes read.
    ///
    /// Fails with [`ConnectionFault::Closed`] if the server closed the connection, and with [`ConnectionFault::Silent`]
    /// at the deadline.
    async fn read(
        &self,
        stream: &mut Self::Stream,
        buffer: &mut [u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault>;

    /// Sleeps until the deadline has passed or was canceled.
    async fn sleep(&self, deadline: &Deadline);

    /// Returns whether the connection is open and has no unread bytes.
    fn is_quiet(&self, stream: &Self::Stream) -> bool;

    /// Sets how long sent bytes may stay unacknowledged before the connection breaks.
    fn set_user_timeout(&self, stream: &Self::Stream, timeout: Duration);
}

/// Runs a call of a client whose [`Io`] blocks, and returns the result of the call.
///
/// # Panics
///
/// Panics if the future is not ready when it is first polled.
pub fn ready<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a blocking Io returned before it had a result"),
    }
}
