//! Transposition of one block from each lane into sixteen vectors, the n-th with word n of every lane.

use std::arch::x86_64::*;

use crate::scalar::Block;

/// Four lanes: four 4x4 transpositions.
#[inline]
#[target_feature(enable = "sse2")]
pub(crate) fn four(blocks: &[&Block; 4]) -> [__m128i; 16] {
    let mut words = [_mm_setzero_si128(); 16];
    for quarter in 0..4 {
        let r0 = load_16(&blocks[0].as_chunks::<16>().0[quarter]);
        let r1 = load_16(&blocks[1].as_chunks::<16>().0[quarter]);
        let r2 = load_16(&blocks[2].as_chunks::<16>().0[quarter]);
        let r3 = load_16(&blocks[3].as_chunks::<16>().0[quarter]);
        let (low01, high01) = (_mm_unpacklo_epi32(r0, r1), _mm_unpackhi_epi32(r0, r1));
        let (low23, high23) = (_mm_unpacklo_epi32(r2, r3), _mm_unpackhi_epi32(r2, r3));
        words[4 * quarter] = _mm_unpacklo_epi64(low01, low23);
        words[4 * quarter + 1] = _mm_unpackhi_epi64(low01, low23);
        words[4 * quarter + 2] = _mm_unpacklo_epi64(high01, high23);
        words[4 * quarter + 3] = _mm_unpackhi_epi64(high01, high23);
    }
    words
}

/// Eight lanes: two 8x8 transpositions.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn eight(blocks: &[&Block; 8]) -> [__m256i; 16] {
    let mut words = [_mm256_setzero_si256(); 16];
    for half in 0..2 {
        // quads[g][w]: word w (of the low 128 bits) and w + 4 (of the high) of lanes 4g to 4g + 3.
        let mut quads = [[_mm256_setzero_si256(); 4]; 2];
        for (group, quad) in quads.iter_mut().enumerate() {
            let r0 = load_32(&blocks[4 * group].as_chunks::<32>().0[half]);
            let r1 = load_32(&blocks[4 * group + 1].as_chunks::<32>().0[half]);
            let r2 = load_32(&blocks[4 * group + 2].as_chunks::<32>().0[half]);
            let r3 = load_32(&blocks[4 * group + 3].as_chunks::<32>().0[half]);
            let (low01, high01) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
            let (low23, high23) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
            *quad = [
                _mm256_unpacklo_epi64(low01, low23),
                _mm256_unpackhi_epi64(low01, low23),
                _mm256_unpacklo_epi64(high01, high23),
                _mm256_unpackhi_epi64(high01, high23),
            ];
        }
        for word in 0..4 {
            let (first, second) = (quads[0][word], quads[1][word]);
            words[8 * half + word] = _mm256_permute2x128_si256::<0x20>(first, second);
            words[8 * half + word + 4] = _mm256_permute2x128_si256::<0x31>(first, second);
        }
    }
    words
}

/// Sixteen lanes: one 16x16 transposition.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn sixteen(blocks: &[&Block; 16]) -> [__m512i; 16] {
    // quads[g][w]: words w, w + 4, w + 8, w + 12 of lanes 4g to 4g + 3, one in each 128 bits.
    let mut quads = [[_mm512_setzero_si512(); 4]; 4];
    for (group, quad) in quads.iter_mut().enumerate() {
        let (r0, r1) = (load_64(blocks[4 * group]), load_64(blocks[4 * group + 1]));
        let (r2, r3) = (load_64(blocks[4 * group + 2]), load_64(blocks[4 * group + 3]));
        let (low01, high01) = (_mm512_unpacklo_epi32(r0, r1), _mm512_unpackhi_epi32(r0, r1));
        let (low23, high23) = (_mm512_unpacklo_epi32(r2, r3), _mm512_unpackhi_epi32(r2, r3));
        *quad = [
            _mm512_unpacklo_epi64(low01, low23),
            _mm512_unpackhi_epi64(low01, low23),
            _mm512_unpacklo_epi64(high01, high23),
            _mm512_unpackhi_epi64(high01, high23),
        ];
    }
    let mut words = [_mm512_setzero_si512(); 16];
    for word in 0..4 {
        let [q0, q1, q2, q3] = [quads[0][word], quads[1][word], quads[2][word], quads[3][word]];
        let (even01, odd01) = (_mm512_shuffle_i32x4::<0x88>(q0, q1), _mm512_shuffle_i32x4::<0xdd>(q0, q1));
        let (even23, odd23) = (_mm512_shuffle_i32x4::<0x88>(q2, q3), _mm512_shuffle_i32x4::<0xdd>(q2, q3));
        words[word] = _mm512_shuffle_i32x4::<0x88>(even01, even23);
        words[word + 4] = _mm512_shuffle_i32x4::<0x88>(odd01, odd23);
        words[word + 8] = _mm512_shuffle_i32x4::<0xdd>(even01, even23);
        words[word + 12] = _mm512_shuffle_i32x4::<0xdd>(odd01, odd23);
    }
    words
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes read, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_64(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes read, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
