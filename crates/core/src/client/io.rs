//! What the client needs from its driver.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::deadline::Deadline;
use super::fault::ConnectionFault;

/// Connections, addresses, time and randomness.
///
/// A function that waits returns when its deadline has passed, or was cancelled, at the latest.
#[allow(async_fn_in_trait, reason = "the client needs no bounds on the futures")]
pub trait Io: Debug {
    /// One of the server's addresses.
    type Address: Display;
    /// An open connection. Dropping it closes it.
    type Stream: Debug;

    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// A random number.
    fn random(&self) -> u32;

    /// Looks up the server's addresses.
    async fn resolve(&self, deadline: &Deadline) -> Result<Vec<Self::Address>, ConnectionFault>;

    /// Opens a connection.
    async fn connect(
        &self,
        address: &Self::Address,
        deadline: &Deadline,
    ) -> Result<Self::Stream, ConnectionFault>;

    /// Hands over some bytes, at least one. This and [`Io::read`] fail with [`ConnectionFault::Silent`] at the deadline.
    async fn write(
        &self,
        stream: &mut Self::Stream,
        bytes: &[u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault>;

    /// Reads some bytes, at least one. Fails with [`ConnectionFault::Closed`] if the server closed the connection.
    async fn read(
        &self,
        stream: &mut Self::Stream,
        buffer: &mut [u8],
        deadline: &Deadline,
    ) -> Result<usize, ConnectionFault>;

    /// Sleeps until the deadline.
    async fn sleep(&self, deadline: &Deadline);

    /// Whether the connection is open and nothing has arrived on it.
    fn is_quiet(&self, stream: &Self::Stream) -> bool;

    /// Sets how long the peer's machine may leave sent bytes unacknowledged before the connection breaks.
    fn set_user_timeout(&self, stream: &Self::Stream, timeout: Duration);
}

/// Returns the result of a call whose [`Io`] blocks.
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
