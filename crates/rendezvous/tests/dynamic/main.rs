//! The dynamic rendezvous over a real store. Nodes are threads with a connection each.

mod attacks;
mod clocks;
mod exit_barrier;
mod faults;
mod nodes;
mod outages;
mod rounds;
