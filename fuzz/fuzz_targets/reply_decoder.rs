//! Fuzzes the client's decoder of replies. The checks are in `rallypoint_fuzz::reply_decoder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::reply_decoder(data));
