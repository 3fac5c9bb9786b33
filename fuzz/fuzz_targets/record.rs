//! The frames and fields of the local store's log.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_backend::local::fuzzing::record(data));
