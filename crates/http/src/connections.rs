//! Accepting connections, each with one request: how many there may be, how long each may take.

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

/// Connections at a time. When one more comes, the oldest is closed: it has had the most time.
pub(crate) const MAX_CONNECTIONS: usize = 16;
/// How long a client may take to send its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may last, including the time for the snapshot.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted, for example because the process has no file left.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Longest request. Bytes beyond it are not parsed.
const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// How long to read on after the response. If unread bytes were left, the system would reset the connection and the client
/// might lose the response.
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

/// Answers one request. A client that sends none, or a malformed one, gets at most a 400.
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
