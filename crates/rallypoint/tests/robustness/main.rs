//! The server under bad input and faults: one test or more for every row of the tables C, V, W and R, named after it.
//!
//! The server is the binary itself, as a child process, because memory, files, processor time and log are of that
//! process. Each test ends with [`harness::Server::assert_unharmed`], what all rows have in common. Counts are cut to
//! what a test run can afford; `RALLYPOINT_SOAK=1` asks for the full ones. What the client has to bear is not here.

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
