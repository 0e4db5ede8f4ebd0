//! Torch's elastic helpers around a store: making the store of a job, ranks that meet, and free ports. Torch at the other end is tested in
//! `tests/interop/test_helpers.py`.

mod collectives;
mod job_store;
mod ports;
