//! The portable kernel, which hashes one stream in general registers, and the padding that ends a message.

use crate::rounds::{SINES, rounds, step};

/// One message block of 64 bytes.
pub(crate) type Block = [u8; BLOCK_BYTES];

/// The chaining value: the words A, B, C, D of RFC 1321.
pub(crate) type Chain = [u32; 4];

/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = 64;

/// The chaining value of the empty message.
pub(crate) const INITIAL_CHAIN: Chain = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Hashes `blocks` into `chain`.
pub(crate) fn run(chain: &mut Chain, blocks: &[Block]) {
    let [mut a, mut b, mut c, mut d] = *chain;
    for block in blocks {
        let words = words(block);
        let before = [a, b, c, d];
        rounds!(a, b, c, d, words);
        a = add(a, before[0]);
        b = add(b, before[1]);
        c = add(c, before[2]);
        d = add(d, before[3]);
    }
    *chain = [a, b, c, d];
}

/// The last one or two blocks of a message of `length` bytes whose unhashed tail is `tail`.
pub(crate) fn padding(tail: &[u8], length: u64) -> ([Block; 2], usize) {
    debug_assert!(tail.len() < BLOCK_BYTES);
    let mut blocks = [[0; BLOCK_BYTES]; 2];
    let count = if tail.len() < BLOCK_BYTES - 8 { 1 } else { 2 };
    blocks[0][..tail.len()].copy_from_slice(tail);
    blocks[0][tail.len()] = 0x80;
    blocks[count - 1][BLOCK_BYTES - 8..].copy_from_slice(&length.wrapping_mul(8).to_le_bytes());
    (blocks, count)
}

/// The digest of a final chaining value.
pub(crate) fn digest(chain: Chain) -> [u8; 16] {
    let mut digest = [0; 16];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(chain) {
        *bytes = word.to_le_bytes();
    }
    digest
}

/// The block as sixteen little-endian words.
pub(crate) fn words(block: &Block) -> [u32; 16] {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

#[inline(always)]
fn add(x: u32, y: u32) -> u32 {
    x.wrapping_add(y)
}

#[inline(always)]
fn rotate<const SHIFT: u32>(x: u32) -> u32 {
    x.rotate_left(SHIFT)
}

#[inline(always)]
fn splat(sine: u32) -> u32 {
    sine
}

/// Forces the sum `x` to be computed before anything is added to it. Otherwise the compiler adds the constant last,
/// which lengthens the dependency chain of every step (on Zen 4, 1.58 instead of 1.30 CPU-s/GB).
#[inline(always)]
fn order_barrier(x: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut x = x;
        // SAFETY: the assembly is empty.
        unsafe {
            std::arch::asm!("/* {0:e} */", inout(reg) x, options(pure, nomem, nostack, preserves_flags))
        };
        x
    }
    #[cfg(not(target_arch = "x86_64"))]
    x
}

#[inline(always)]
fn f(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(sum, d ^ (b & (c ^ d)))
}

/// The two halves have no common bits, so they can be added separately: the one without `b` leaves the critical path.
#[inline(always)]
fn g(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(order_barrier(add(sum, c & !d)), b & d)
}

#[inline(always)]
fn h(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(sum, b ^ (c ^ d))
}

#[inline(always)]
fn i(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(sum, c ^ (b | !d))
}
