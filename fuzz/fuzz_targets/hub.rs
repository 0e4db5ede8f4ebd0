//! Any bytes as what several connections of a server do. What must hold is in the library beside this.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::hub(data));
