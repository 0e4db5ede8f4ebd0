//! Fuzzes the decoder of requests and a server with one client. The checks are in `rallypoint_fuzz::request_decoder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::request_decoder(data));
