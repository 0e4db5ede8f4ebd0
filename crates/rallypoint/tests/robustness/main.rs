//! Tests of the server under bad input and faults. Their names start with the row of the tables C, V, W and R in
//! docs/internals/robustness.md that they test.
//!
//! The server runs as a child process, because its memory, file descriptors, CPU time and log are measured per
//! process. Most tests end with [`harness::Server::assert_healthy`], which checks the requirements that all rows
//! share. `RALLYPOINT_SOAK=1` runs the tests with full counts. Faults that affect the client are tested in the store
//! crate.

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
