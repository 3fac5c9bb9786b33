//! The requested digests of a write, computed while the bytes pass. CRC-64/NVME is not among them: it is derived from
//! the block checksums.

use bytes::Bytes;
use tradewind_core::checksum::Hasher;
use tradewind_core::{Algorithm, Checksum};
use tradewind_digest::{Engine, Md5Stream};

/// Up to this size the MD5 is computed at the end; beyond, concurrently by the hashing threads.
const MAX_LATE_MD5_BYTES: usize = 64 << 10;
/// Maximum bytes of a write queued for the hashing threads.
const MAX_MD5_QUEUE_BYTES: usize = 512 << 10;
/// Other digests are computed in pieces of this size, yielding in between.
const HASH_PIECE_BYTES: usize = 128 << 10;

#[derive(Default)]
pub(super) struct StagedDigests {
    md5: Md5State,
    others: Vec<Hasher>,
}

#[derive(Default)]
enum Md5State {
    #[default]
    NotRequested,
    /// Few bytes so far: they are still buffered and will be hashed at the end.
    Deferred {
        engine: Engine,
        frames: Vec<Bytes>,
        bytes: usize,
    },
    Stream(Md5Stream),
}

/// The outcome of the MD5.
#[derive(Debug, Clone, Copy)]
pub(super) enum Md5Outcome {
    NotRequested,
    Known([u8; 16]),
    /// The committer computes it.
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
    pub fn new(engine: &Engine, md5: bool, algorithms: &[Algorithm]) -> Self {
        let md5 = if md5 {
            Md5State::Deferred { engine: engine.clone(), frames: Vec::new(), bytes: 0 }
        } else {
            Md5State::NotRequested
        };
        let others =
            algorithms.iter().filter(|a| **a != Algorithm::Crc64Nvme).map(|a| Hasher::new(*a)).collect();
        Self { md5, others }
    }

    /// Adds bytes. Waits while the hashing threads are far behind.
    pub async fn update(&mut self, frame: &Bytes) {
        let pieces = frame.len().div_ceil(HASH_PIECE_BYTES);
        for hasher in &mut self.others {
            let slow = !hasher.algorithm().is_crc();
            for piece in frame.chunks(HASH_PIECE_BYTES) {
                hasher.update(piece);
                if slow && pieces > 1 {
                    tokio::task::yield_now().await;
                }
            }
        }
        match &mut self.md5 {
            Md5State::NotRequested => {}
            Md5State::Deferred { engine, frames, bytes } => {
                frames.push(frame.clone());
                *bytes += frame.len();
                if *bytes > MAX_LATE_MD5_BYTES {
                    let mut stream = engine.stream();
                    for frame in frames.drain(..) {
                        stream.update(frame);
                    }
                    self.md5 = Md5State::Stream(stream);
                }
            }
            Md5State::Stream(stream) => {
                stream.update(frame.clone());
                if stream.queued_bytes() > MAX_MD5_QUEUE_BYTES {
                    stream.drained(MAX_MD5_QUEUE_BYTES / 2).await;
                }
            }
        }
    }

    /// Returns the MD5 and the other checksums. If the MD5 `may_be_late`, that of few bytes is left to the committer,
    /// where it costs a fraction, computed together with those of other writes. Otherwise it is computed here (at
    /// most 80 µs).
    pub async fn finish(self, may_be_late: bool) -> (Md5Outcome, Vec<Checksum>) {
        let md5 = match self.md5 {
            Md5State::NotRequested => Md5Outcome::NotRequested,
            Md5State::Deferred { .. } if may_be_late => Md5Outcome::Deferred,
            Md5State::Deferred { frames, .. } => Md5Outcome::Known(match &frames[..] {
                [] => tradewind_digest::md5(&[]),
                [frame] => tradewind_digest::md5(frame),
                frames => tradewind_digest::md5(&frames.concat()),
            }),
            Md5State::Stream(stream) => Md5Outcome::Known(stream.finish().await),
        };
        (md5, self.others.into_iter().map(Hasher::finish).collect())
    }
}
