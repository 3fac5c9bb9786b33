//! Sixteen, eight or four lanes with AVX-512: a mixing function is one ternary-logic instruction, a rotation one
//! more, so that a step is a chain of four instructions at any width.
//!
//! `b`, the newest value, is the first operand of the ternary logic: on Zen 4 the latency from it is one cycle shorter
//! than from the others (5 cycles per step instead of 6).

use std::arch::asm;
use std::arch::x86_64::*;

use crate::kernel::kernel;
use crate::rounds::{SINES, rounds, step};
use crate::scalar::Block;
use crate::transpose;

/// The operations of `rounds!` for one register width.
macro_rules! operations {
    ($vector:ident, $register:ident, $add:ident, $rotate:ident, $ternary:ident, $splat:ident) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn add(x: $vector, y: $vector) -> $vector {
            $add(x, y)
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn rotate<const SHIFT: i32>(x: $vector) -> $vector {
            $rotate::<SHIFT>(x)
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn splat(word: u32) -> $vector {
            $splat(word.cast_signed())
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn order_barrier(x: $vector) -> $vector {
            let mut x = x;
            // SAFETY: the assembly is empty; it only keeps the compiler from reordering the sum in `x`.
            unsafe { asm!("/* {0} */", inout($register) x, options(pure, nomem, nostack, preserves_flags)) };
            x
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn f(sum: $vector, b: $vector, c: $vector, d: $vector) -> $vector {
            add(sum, $ternary::<0xca>(b, c, d))
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn g(sum: $vector, b: $vector, c: $vector, d: $vector) -> $vector {
            add(sum, $ternary::<0xe4>(b, c, d))
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn h(sum: $vector, b: $vector, c: $vector, d: $vector) -> $vector {
            add(sum, $ternary::<0x96>(b, c, d))
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512vl")]
        fn i(sum: $vector, b: $vector, c: $vector, d: $vector) -> $vector {
            add(sum, $ternary::<0x39>(b, c, d))
        }
    };
}

/// Sixteen lanes.
pub(crate) mod sixteen {
    use super::*;

    operations!(
        __m512i,
        zmm_reg,
        _mm512_add_epi32,
        _mm512_rol_epi32,
        _mm512_ternarylogic_epi32,
        _mm512_set1_epi32
    );
    kernel!("avx512f,avx512vl", __m512i, 16, transpose::sixteen);
}

/// Eight lanes.
pub(crate) mod eight {
    use super::*;

    operations!(
        __m256i,
        ymm_reg,
        _mm256_add_epi32,
        _mm256_rol_epi32,
        _mm256_ternarylogic_epi32,
        _mm256_set1_epi32
    );
    kernel!("avx512f,avx512vl", __m256i, 8, transpose::eight);
}

/// Four lanes.
pub(crate) mod four {
    use super::*;

    operations!(__m128i, xmm_reg, _mm_add_epi32, _mm_rol_epi32, _mm_ternarylogic_epi32, _mm_set1_epi32);
    kernel!("avx512f,avx512vl", __m128i, 4, transpose::four);
}
