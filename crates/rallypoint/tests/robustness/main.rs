//! Tests of the server under bad input and faults. If docs/internals/robustness.md has a row for the case (tables C, V,
//! W and R), the name of the test starts with that row.
//!
//! The server runs as a child process, because its memory, file descriptors, CPU time and log are measured per
//! process. Most tests end with [`harness::Server::assert_healthy`], which checks the requirements that all rows
//! share. `RALLYPOINT_SOAK=1` runs the tests with full counts. Faults that affect the client are tested in the core
//! crate (`tests/client`) and in the store crate (`tests/client_faults`).

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
