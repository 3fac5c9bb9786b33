//! `Range` headers and what they mean.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_gateway::fuzzing::range(data));
