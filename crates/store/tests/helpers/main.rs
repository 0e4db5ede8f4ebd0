//! What is around a store: making the one of a job, ports, servers within a program, and ranks that meet. The stores
//! themselves are tested in `conformance`, torch at the other end in `tests/interop/test_helpers.py`.

#[path = "../conformance/clock.rs"]
mod clock;
mod creating;
mod meeting;
mod ports;
mod serving;
#[path = "../conformance/timing.rs"]
mod timing;
