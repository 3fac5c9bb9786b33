//! The frames and the handshake of machines that measure together.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_bench::cluster::fuzzing::stranger(data));
