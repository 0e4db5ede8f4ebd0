//! The server under bad input and faults. Tests are named after rows of the tables C, V, W and R in
//! docs/internals/robustness.md.
//!
//! The server runs as a child process, because memory, files, processor time and the log are measured per process. Each
//! test ends with [`harness::Server::assert_healthy`], which checks what all rows have in common. `RALLYPOINT_SOAK=1`
//! runs the tests with full counts. Faults of the client are tested in the store crate.

mod barriers;
mod containers;
mod frames;
mod handshake;
mod harness;
mod lengths;
mod load;
mod memory;
mod resources;
mod unread;
mod values;
mod waiting;
