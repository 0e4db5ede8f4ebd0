//! Health checks over HTTP for `rallypoint serve` and `rallypoint run`.
//!
//! One thread serves all connections. For each request, it gets a snapshot from the event loop of the server or the
//! agent, and never blocks that loop. The response has status 503 if the event loop does not return a snapshot within
//! 5 s.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//!
//! use rallypoint_http::{HealthServer, parse_address};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind(parse_address("0")?)?;
//! // A real server requests the snapshot from its event loop, and waits for it up to the given timeout.
//! let server = HealthServer::start(listener, |_timeout| Some("running"))?;
//!
//! let mut stream = TcpStream::connect(server.address())?;
//! stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n")?;
//! let mut response = String::new();
//! stream.read_to_string(&mut response)?;
//! assert!(response.starts_with("HTTP/1.1 200 OK"));
//! assert!(response.ends_with("\"running\"\n"));
//! # Ok(())
//! # }
//! ```

mod address;
mod connections;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Mutex, oneshot};

pub use address::parse_address;

/// The time within which the event loop must return a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server for health checks. Dropping it stops the server.
#[derive(Debug)]
pub struct HealthServer {
    address: SocketAddr,
    /// Dropping the sender stops the thread.
    _stop: oneshot::Sender<()>,
}

impl HealthServer {
    /// Starts a server that answers every GET on `listener` with a snapshot as JSON. A HEAD gets the same response
    /// without the body. Other methods are refused.
    ///
    /// `snapshot` returns the state of an event loop. It may block up to the given time, and returns `None` if the
    /// event loop does not answer within that time.
    ///
    /// # Errors
    ///
    /// Fails if the operating system rejects `listener`, or if the thread or its event queue cannot be created.
    pub fn start<S: Serialize + Send + 'static>(
        listener: TcpListener,
        snapshot: impl Fn(Duration) -> Option<S> + Send + Sync + 'static,
    ) -> io::Result<HealthServer> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .thread_name("health-snapshot")
            .build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let source = Arc::new(Source { snapshot, lock: Mutex::new(()) });
        let routes = Router::new().fallback_service(get(move || respond(Arc::clone(&source))));
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new().name("health".into()).spawn(move || {
            runtime.spawn(connections::serve(listener, routes));
            // The sender never sends a value. `block_on` returns when the sender is dropped.
            let _ = runtime.block_on(stopped);
            // This shutdown does not wait for a pending snapshot.
            runtime.shutdown_background();
        })?;
        Ok(HealthServer { address, _stop: stop })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The source of snapshots. The lock makes requests take snapshots one after the other.
struct Source<F> {
    snapshot: F,
    lock: Mutex<()>,
}

async fn respond<S, F>(source: Arc<Source<F>>) -> Response
where
    S: Serialize + Send + 'static,
    F: Fn(Duration) -> Option<S> + Send + Sync + 'static,
{
    let taken = tokio::time::timeout(SNAPSHOT_TIMEOUT, async {
        let _guard = source.lock.lock().await;
        let source = Arc::clone(&source);
        let taken = tokio::task::spawn_blocking(move || (source.snapshot)(SNAPSHOT_TIMEOUT));
        taken.await.ok().flatten()
    });
    match taken.await.ok().flatten().and_then(|snapshot| serde_json::to_string(&snapshot).ok()) {
        Some(snapshot) => json_response(StatusCode::OK, &snapshot),
        None => json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({"status": "no answer"}).to_string()),
    }
}

fn json_response(status: StatusCode, body: &str) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

#[cfg(test)]
mod tests;
