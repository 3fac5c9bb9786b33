//! The aws-chunked decoder.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_gateway::fuzzing::chunked(data));
