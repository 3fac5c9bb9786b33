//! The parser of `Range` headers and the resolution of ranges.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_gateway::fuzzing::range(data));
