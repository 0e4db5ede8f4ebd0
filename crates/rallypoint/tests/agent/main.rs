//! Tests of `rallypoint run` as a process: restarts, signals, jobs of several nodes, and cleanup.

mod agent_process;
mod cleanup;
mod full_disk;
mod leaks;
mod native;
mod nodes;
mod observability;
mod peers;
mod static_job;
mod stopping;
