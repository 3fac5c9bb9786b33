//! Four lanes with SSE2, which every x86-64 CPU supports.

use std::arch::x86_64::*;

use crate::kernel::kernel;
use crate::rounds::{SINES, rounds, step};
use crate::scalar::Block;
use crate::transpose;

kernel!("sse2", __m128i, 4, transpose::four);

#[inline]
#[target_feature(enable = "sse2")]
fn add(x: __m128i, y: __m128i) -> __m128i {
    _mm_add_epi32(x, y)
}

#[inline]
#[target_feature(enable = "sse2")]
fn splat(word: u32) -> __m128i {
    _mm_set1_epi32(word.cast_signed())
}

#[inline]
#[target_feature(enable = "sse2")]
fn order_barrier(x: __m128i) -> __m128i {
    x
}

#[inline]
#[target_feature(enable = "sse2")]
fn not(x: __m128i) -> __m128i {
    _mm_xor_si128(x, _mm_set1_epi32(-1))
}

#[inline]
#[target_feature(enable = "sse2")]
fn f(sum: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m128i {
    add(sum, _mm_xor_si128(d, _mm_and_si128(b, _mm_xor_si128(c, d))))
}

/// The two halves have no common bits, so they can be added separately: the one without `b` leaves the critical path.
#[inline]
#[target_feature(enable = "sse2")]
fn g(sum: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m128i {
    add(add(sum, _mm_andnot_si128(d, c)), _mm_and_si128(b, d))
}

#[inline]
#[target_feature(enable = "sse2")]
fn h(sum: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m128i {
    add(sum, _mm_xor_si128(b, _mm_xor_si128(c, d)))
}

#[inline]
#[target_feature(enable = "sse2")]
fn i(sum: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m128i {
    add(sum, _mm_xor_si128(c, _mm_or_si128(b, not(d))))
}

/// The right shift takes its count from a register, because `32 - SHIFT` cannot be a const argument; the
/// compiler knows the value and emits an immediate.
#[inline]
#[target_feature(enable = "sse2")]
fn rotate<const SHIFT: i32>(x: __m128i) -> __m128i {
    let right = _mm_cvtsi32_si128(32 - SHIFT);
    _mm_or_si128(_mm_slli_epi32::<SHIFT>(x), _mm_srl_epi32(x, right))
}
