//! One stream at a time in general registers: the portable kernel, and the padding that ends a message.

use crate::rounds::{SINES, rounds, step};

/// One message block of 64 bytes.
pub(crate) type Block = [u8; BLOCK_BYTES];

/// The chaining value: the words A, B, C, D of RFC 1321.
pub(crate) type Chain = [u32; 4];

/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = 64;

/// The chaining value of the empty message.
pub(crate) const START: Chain = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

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

/// The last one or two blocks of a message of `length` bytes whose unhashed rest is `tail`.
pub(crate) fn padding(tail: &[u8], length: u64) -> ([Block; 2], usize) {
    debug_assert!(tail.len() < BLOCK_BYTES);
    let mut blocks = [[0; BLOCK_BYTES]; 2];
    let count = if tail.len() < BLOCK_BYTES - 8 { 1 } else { 2 };
    blocks[0][..tail.len()].copy_from_slice(tail);
    blocks[0][tail.len()] = 0x80;
    blocks[count - 1][BLOCK_BYTES - 8..].copy_from_slice(&length.wrapping_mul(8).to_le_bytes());
    (blocks, count)
}

/// The digest that a final chaining value stands for.
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
fn rotate<const TURN: u32>(x: u32) -> u32 {
    x.rotate_left(TURN)
}

#[inline(always)]
fn splat(sine: u32) -> u32 {
    sine
}

/// `x`, summed up before anything is added to it; otherwise the compiler adds the constant last, which lengthens
/// the chain of every step (measured on Zen 4, CPU-s/GB: 1.58 without, 1.30 with).
#[inline(always)]
fn settled(x: u32) -> u32 {
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

/// The two halves have no bit in common, so they may be added: the one without `b` leaves the critical path.
#[inline(always)]
fn g(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(settled(add(sum, c & !d)), b & d)
}

#[inline(always)]
fn h(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(sum, b ^ (c ^ d))
}

#[inline(always)]
fn i(sum: u32, b: u32, c: u32, d: u32) -> u32 {
    add(sum, c ^ (b | !d))
}
