//! MD5 of many concurrent streams with a fraction of the CPU time of hashing them one after another.
//!
//! MD5 (RFC 1321) is a chain of dependent steps that leaves most of a core idle. An [`Engine`] therefore hashes up to
//! sixteen streams in parallel, one per lane of the SIMD registers, on a few dedicated threads. The caller is
//! asynchronous code: handing over a buffer neither blocks, nor copies, nor hashes, and the digest is a future. [`md5`]
//! and [`md5_each`] are for short messages, which are cheaper to hash on the calling thread.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod batch;
mod batch_delay;
mod engine;
#[cfg(target_arch = "x86_64")]
mod kernel;
mod lane_step;
mod lanes;
mod message;
mod pass;
mod queue;
mod rounds;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod sse2;
mod stream;
mod stream_state;
#[cfg(target_arch = "x86_64")]
mod transpose;

pub use batch::md5_each;
pub use engine::Engine;
pub use stream::{Drained, Md5Finish, Md5Stream};

/// The MD5 digest of `bytes`, computed on the calling thread.
///
/// About 1.25 ns per byte (80 us for 64 KiB); use an [`Engine`] for longer inputs.
#[must_use]
pub fn md5(bytes: &[u8]) -> [u8; 16] {
    let (blocks, tail) = bytes.as_chunks();
    let mut chain = scalar::INITIAL_CHAIN;
    scalar::run(&mut chain, blocks);
    let (padding, count) = scalar::padding(tail, bytes.len() as u64);
    scalar::run(&mut chain, &padding[..count]);
    scalar::digest(chain)
}
