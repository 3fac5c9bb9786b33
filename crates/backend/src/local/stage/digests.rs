//! The requested digests of a write, computed while the bytes pass. CRC-64/NVME is not among them: it is derived from
//! the block checksums.

use bytes::Bytes;
use tradewind_core::checksum::Hasher;
use tradewind_core::{Algorithm, Checksum};
use tradewind_digest::{Engine, Md5Stream};

/// Up to this size the bytes are buffered and the MD5 is computed at the end. Beyond it, the hashing threads compute it
/// while the bytes arrive.
const MAX_BUFFERED_MD5_BYTES: usize = 64 << 10;
/// Maximum bytes of a write queued for the hashing threads.
const MAX_MD5_QUEUE_BYTES: usize = 512 << 10;
/// Other digests are computed in steps of this size, yielding in between.
const HASH_STEP_BYTES: usize = 128 << 10;

#[derive(Default)]
pub(super) struct StagedDigests {
    md5: Md5State,
    other_hashers: Vec<Hasher>,
}

#[derive(Default)]
enum Md5State {
    #[default]
    NotRequested,
    /// At most [`MAX_BUFFERED_MD5_BYTES`] so far.
    Buffered {
        engine: Engine,
        buffers: Vec<Bytes>,
        bytes: usize,
    },
    Stream(Md5Stream),
}

/// The outcome of the MD5.
#[derive(Debug, Clone, Copy)]
pub(super) enum Md5Outcome {
    NotRequested,
    Known([u8; 16]),
    /// Not computed yet: the committer will do so.
    Deferred,
}

impl Md5Outcome {
    pub const fn known(self) -> Option<[u8; 16]> {
        match self {
            Self::Known(md5) => Some(md5),
            Self::NotRequested | Self::Deferred => None,
        }
    }
}

impl StagedDigests {
    pub fn new(engine: &Engine, needs_md5: bool, algorithms: &[Algorithm]) -> Self {
        let md5 = if needs_md5 {
            Md5State::Buffered { engine: engine.clone(), buffers: Vec::new(), bytes: 0 }
        } else {
            Md5State::NotRequested
        };
        let other_hashers =
            algorithms.iter().filter(|a| **a != Algorithm::Crc64Nvme).map(|a| Hasher::new(*a)).collect();
        Self { md5, other_hashers }
    }

    /// Adds bytes. Waits while the queue of the hashing threads is full.
    pub async fn update(&mut self, buffer: &Bytes) {
        let steps = buffer.len().div_ceil(HASH_STEP_BYTES);
        for hasher in &mut self.other_hashers {
            let is_slow = !hasher.algorithm().is_crc();
            for step in buffer.chunks(HASH_STEP_BYTES) {
                hasher.update(step);
                if is_slow && steps > 1 {
                    tokio::task::yield_now().await;
                }
            }
        }
        match &mut self.md5 {
            Md5State::NotRequested => {}
            Md5State::Buffered { engine, buffers, bytes } => {
                buffers.push(buffer.clone());
                *bytes += buffer.len();
                if *bytes > MAX_BUFFERED_MD5_BYTES {
                    let mut stream = engine.stream();
                    for buffer in buffers.drain(..) {
                        stream.update(buffer);
                    }
                    self.md5 = Md5State::Stream(stream);
                }
            }
            Md5State::Stream(stream) => {
                stream.update(buffer.clone());
                if stream.queued_bytes() > MAX_MD5_QUEUE_BYTES {
                    stream.drained(MAX_MD5_QUEUE_BYTES / 2).await;
                }
            }
        }
    }

    /// Returns the MD5 and the other checksums. With `may_defer`, the MD5 of buffered bytes is not computed here: the
    /// committer hashes those of many writes in parallel, at a fraction of the cost.
    pub async fn finish(self, may_defer: bool) -> (Md5Outcome, Vec<Checksum>) {
        let md5 = match self.md5 {
            Md5State::NotRequested => Md5Outcome::NotRequested,
            Md5State::Buffered { .. } if may_defer => Md5Outcome::Deferred,
            Md5State::Buffered { buffers, .. } => Md5Outcome::Known(match &buffers[..] {
                [] => tradewind_digest::md5(&[]),
                [buffer] => tradewind_digest::md5(buffer),
                buffers => tradewind_digest::md5(&buffers.concat()),
            }),
            Md5State::Stream(stream) => Md5Outcome::Known(stream.finish().await),
        };
        (md5, self.other_hashers.into_iter().map(Hasher::finish).collect())
    }
}
