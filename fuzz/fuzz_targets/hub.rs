//! Fuzzes the actions of several connections of a server. The checks are in `rallypoint_fuzz::hub`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::hub(data));
