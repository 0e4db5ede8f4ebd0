//! The client against servers that are stopped, killed, restarted, cut off, silent, slow or hostile: in virtual time.

mod bad_link;
mod connecting;
mod hostile;
mod identity;
mod lost_replies;
mod net;
mod operations;
mod server;
mod silence;
