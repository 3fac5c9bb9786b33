//! The parser and verifier of request signatures.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_gateway::fuzzing::signature(data));
