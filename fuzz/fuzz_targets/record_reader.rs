//! Any bytes as FileStore's file. What must hold is in the library beside this.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rallypoint_fuzz::record_reader(data));
