//! What is around a store: ports, and servers within a program. The stores themselves are tested in `conformance`.

mod ports;
mod serving;
