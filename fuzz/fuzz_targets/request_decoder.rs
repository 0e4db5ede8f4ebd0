//! Fuzzes a client's stream of requests. The checks are in `rallypoint_fuzz::request_decoder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::request_decoder(data));
