//! Any bytes as a server's replies. What must hold is in the library beside this.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::reply_decoder(data));
