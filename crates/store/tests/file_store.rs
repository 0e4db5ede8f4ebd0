//! Tests of `FileStore`: its operations, damaged files, killed processes and concurrent processes.
//!
//! The tests with real torch are in `tests/interop/test_file_store.py`.

#[path = "file_store/damage.rs"]
mod damage;
#[path = "file_store/fixture.rs"]
mod fixture;
#[path = "file_store/operations.rs"]
mod operations;
#[path = "file_store/processes.rs"]
mod processes;
#[path = "file_store/refcount.rs"]
mod refcount;
#[path = "file_store/trust.rs"]
mod trust;
#[path = "file_store/waiting.rs"]
mod waiting;
