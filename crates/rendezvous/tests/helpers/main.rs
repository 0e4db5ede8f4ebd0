//! Torch's elastic helpers around a store: the store of a job, collective operations, and free ports. The same helpers
//! together with torch are tested in `tests/interop/test_helpers.py`.

mod collectives;
mod job_store;
mod ports;
