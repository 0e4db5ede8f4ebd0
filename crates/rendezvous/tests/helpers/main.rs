//! Tests of our versions of torch's elastic helpers, without torch: the store of a job, collective operations, and free
//! ports. `tests/interop/test_helpers.py` tests them together with torch.

mod collectives;
mod job_store;
mod ports;
