//! Fuzzes the content of a FileStore file. The checks are in `rallypoint_fuzz::record_reader`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::record_reader(data));
