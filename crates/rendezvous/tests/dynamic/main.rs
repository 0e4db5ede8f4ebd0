//! The dynamic rendezvous over a real store: nodes are threads here, each with its own connection.

mod attacks;
mod clocks;
mod faults;
mod nodes;
mod rounds;
