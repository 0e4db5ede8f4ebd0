//! `rallypoint run` as an agent: restarts, ends, other nodes, and that nobody is left behind. One test a promise.

mod agent_process;
mod cleanup;
mod full_disk;
mod leaks;
mod nodes;
mod observability;
mod peers;
mod static_job;
mod stopping;
