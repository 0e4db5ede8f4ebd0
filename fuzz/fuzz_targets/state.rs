//! Fuzzes the state of a rendezvous. The checks are in `rallypoint_fuzz::state`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::state(data));
