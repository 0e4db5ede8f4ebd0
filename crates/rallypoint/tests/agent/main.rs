//! `rallypoint run` as an agent: restarts, ends, other nodes, and that nobody is left behind. One test a promise.

mod bed;
mod fixed;
mod full_disk;
mod left_behind;
mod nodes;
mod peers;
mod stopping;
mod telling;
mod traces;
