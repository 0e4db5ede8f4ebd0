//! Servers that are not stores.

use std::net::{SocketAddr, TcpListener, TcpStream};

/// Starts a server on a free port and returns its address.
///
/// For each connection, the server runs `serve` on a new thread. It accepts connections until the test process ends.
pub fn serve_connections<T>(serve: impl Fn(TcpStream) -> T + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    address
}
