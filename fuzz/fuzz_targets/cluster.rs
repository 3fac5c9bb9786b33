//! The frames and the handshake between benchmark agents and their coordinator.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tradewind_bench::cluster::fuzzing::run_case(data));
