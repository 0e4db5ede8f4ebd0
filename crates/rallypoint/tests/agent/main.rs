//! `rallypoint run` as an agent: restarts, signals, other nodes and cleanup.

mod agent_process;
mod cleanup;
mod full_disk;
mod leaks;
mod nodes;
mod observability;
mod peers;
mod static_job;
mod stopping;
