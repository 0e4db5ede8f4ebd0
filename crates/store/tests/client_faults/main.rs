//! The client against servers that are stopped, killed, restarted, cut off, silent, slow or hostile: rows K01 to K09 of
//! the robustness page and its invariants K1 to K5. What it does with a server that behaves is in `conformance`.

mod acknowledged;
mod black_hole;
mod child;
mod clock;
mod connecting;
mod fake;
mod frozen;
mod hostile;
mod killed;
mod memory;
mod messages;
mod names;
mod network;
mod never_twice;
mod old;
mod operations;
mod place;
mod pool;
mod relay;
mod reporting;
mod restarted;
#[path = "../conformance/timing.rs"]
mod timing;
mod witnesses;
