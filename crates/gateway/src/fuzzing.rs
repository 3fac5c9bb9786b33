//! What the fuzz targets in `fuzz/` call, one function a target: each makes a case out of any bytes and
//! panics where the code does not keep its word. The property tests below call the same functions, so
//! that every build runs a little of what the fuzzer runs for long.
//!
//! Behind the feature `fuzzing`, which only `fuzz/` sets. No interface for anybody else.

#![allow(clippy::unwrap_used, reason = "a panic is how a target fails")]

mod chunked;
mod client;
mod input;
mod range;
mod signature;

pub use self::chunked::chunked;
pub use self::range::range;
pub use self::signature::signature;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Any bytes, and bytes of an alphabet that gets further into a parser.
    fn bytes(alphabet: &'static [u8], most: usize) -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..most),
            prop::collection::vec(prop::sample::select(alphabet), 0..most),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn chunked_bodies(start in any::<[u8; 12]>(), rest in bytes(b"0123af;\r\nx-:", 300)) {
            super::chunked(&[&start[..], &rest[..]].concat());
        }

        #[test]
        fn signatures(case in bytes(b"AaZz09/=&%+:,;- \n", 300)) {
            super::signature(&case);
        }

        #[test]
        fn signed_requests_and_one_flipped_bit(seed in any::<[u8; 40]>(), rest in bytes(b"aZ9/=&%+ ~", 200)) {
            super::signature(&[&b"\x01"[..], &seed, &rest].concat());
        }

        #[test]
        fn ranges(size in any::<[u8; 9]>(), spec in "(bytes|Bytes |items)= ?[0-9]{0,22} ?-? ?[0-9]{0,22}[ ,]?") {
            super::range(&[&size[..], spec.as_bytes()].concat());
        }
    }
}
