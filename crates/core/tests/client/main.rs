//! Tests of the client in virtual time, against servers that are stopped, killed, restarted, cut off, slow or hostile.

mod bad_link;
mod connecting;
mod hostile;
mod identity;
mod lost_replies;
mod net;
mod operations;
mod server;
mod silence;
