//! Any bytes as a client's stream. What must hold is in the library beside this.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::request_decoder(data));
