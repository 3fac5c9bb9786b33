//! The entry points of the fuzz targets in `fuzz/`, one function per target. Each builds a case from arbitrary bytes
//! and panics if an invariant is violated. The property tests below call the same functions, so that every build runs a
//! sample of what the fuzzer runs.
//!
//! Requires the feature `fuzzing`, which only `fuzz/` sets. This is no public interface.

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

    /// Arbitrary bytes, or bytes of an alphabet that gets further into a parser.
    fn bytes(alphabet: &'static [u8], max_bytes: usize) -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..max_bytes),
            prop::collection::vec(prop::sample::select(alphabet), 0..max_bytes),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn chunked_bodies_decode_like_the_reference(start in any::<[u8; 12]>(), rest in bytes(b"0123af;\r\nx-:", 300)) {
            super::chunked(&[&start[..], &rest[..]].concat());
        }

        #[test]
        fn any_request_is_verified_like_the_reference(case in bytes(b"AaZz09/=&%+:,;- \n", 300)) {
            super::signature(&case);
        }

        #[test]
        fn signed_requests_fail_after_a_flipped_bit(seed in any::<[u8; 40]>(), rest in bytes(b"aZ9/=&%+ ~", 200)) {
            super::signature(&[&b"\x01"[..], &seed, &rest].concat());
        }

        #[test]
        fn ranges_resolve_like_the_reference(size in any::<[u8; 9]>(), spec in "(bytes|Bytes |items)= ?[0-9]{0,22} ?-? ?[0-9]{0,22}[ ,]?") {
            super::range(&[&size[..], spec.as_bytes()].concat());
        }
    }
}
