//! The dynamic rendezvous over a real store: nodes are threads here, each with its own connection.

mod attacks;
mod clocks;
mod exit_barrier;
mod faults;
mod nodes;
mod outages;
mod rounds;
