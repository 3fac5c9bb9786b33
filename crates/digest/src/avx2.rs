//! Sixteen or eight lanes with AVX2: a rotation is two shifts and an OR, a mixing function one to three operations. Two
//! independent registers keep the execution units busy where one would wait for its own results.

use std::arch::x86_64::*;

use crate::kernel::{kernel, paired_kernel, paired_operations};
use crate::rounds::{SINES, rounds, step};
use crate::scalar::Block;
use crate::transpose;

/// Sixteen lanes as two registers of eight.
pub(crate) mod sixteen {
    use super::*;

    paired_operations!("avx2", eight, __m256i);
    paired_kernel!("avx2", 8, 16, transpose::eight);
}

/// Eight lanes.
pub(crate) mod eight {
    use super::*;

    kernel!("avx2", __m256i, 8, transpose::eight);

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn add(x: __m256i, y: __m256i) -> __m256i {
        _mm256_add_epi32(x, y)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn splat(word: u32) -> __m256i {
        _mm256_set1_epi32(word.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn order_barrier(x: __m256i) -> __m256i {
        x
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn not(x: __m256i) -> __m256i {
        _mm256_xor_si256(x, _mm256_set1_epi32(-1))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn f(sum: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
        add(sum, _mm256_xor_si256(d, _mm256_and_si256(b, _mm256_xor_si256(c, d))))
    }

    /// The two halves have no common bits, so they can be added separately: the one without `b` leaves the critical
    /// path.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn g(sum: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
        add(add(sum, _mm256_andnot_si256(d, c)), _mm256_and_si256(b, d))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn h(sum: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
        add(sum, _mm256_xor_si256(b, _mm256_xor_si256(c, d)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn i(sum: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
        add(sum, _mm256_xor_si256(c, _mm256_or_si256(b, not(d))))
    }

    /// The right shift takes its count from a register, because `32 - SHIFT` cannot be a const argument; the
    /// compiler knows the value and emits an immediate.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn rotate<const SHIFT: i32>(x: __m256i) -> __m256i {
        let right = _mm_cvtsi32_si128(32 - SHIFT);
        _mm256_or_si256(_mm256_slli_epi32::<SHIFT>(x), _mm256_srl_epi32(x, right))
    }
}
