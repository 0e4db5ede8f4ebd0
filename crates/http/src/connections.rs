//! Accepts HTTP connections and limits their number and duration. Each connection carries one request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The maximum number of open connections. When another one arrives, the server closes the oldest.
pub(crate) const MAX_CONNECTIONS: usize = 16;
/// The time within which a client must send its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum duration of a connection, including the time that the snapshot takes.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failure to accept a connection, for example because the process has too many open files.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The size of the buffer for a request. A request whose header is longer is refused.
const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// The time for which the server reads and discards further bytes after its response. Closing a socket with unread
/// bytes resets the connection, and the client could then lose the response.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts connections until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, routes: Router) -> Infallible {
    let mut open = VecDeque::<AbortHandle>::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let serving = timeout(CONNECTION_TIMEOUT, serve_connection(stream, routes.clone()));
        open.push_back(tokio::spawn(serving).abort_handle());
    }
}

/// Answers one request. A client whose request is missing, malformed or too long gets a 4xx status or no response.
async fn serve_connection(stream: TcpStream, routes: Router) -> Option<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    http.keep_alive(false).half_close(true).max_buf_size(MAX_REQUEST_BYTES);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut stream = connection.without_shutdown().await.ok()?.io.into_inner();
    stream.shutdown().await.ok()?;
    let mut unread = vec![0; MAX_REQUEST_BYTES];
    let drain = async { while stream.read(&mut unread).await.is_ok_and(|len| len > 0) {} };
    timeout(DRAIN_TIMEOUT, drain).await.ok()
}
