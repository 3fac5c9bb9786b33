//! The digests of the plain bytes of a write, as a store that keeps the bytes unchanged computes them.

use bytes::Bytes;
use tradewind_core::checksum::Hasher;
use tradewind_core::store::{ETagForm, StageRequest};
use tradewind_core::{Algorithm, Checksum};
use tradewind_digest::{Engine, Md5Stream};

/// Maximum bytes of a write queued for the hashing threads.
const MAX_MD5_QUEUE_BYTES: usize = 512 << 10;

/// The digests of a write in progress.
pub(crate) struct PlainDigests {
    engine: Option<Engine>,
    md5: Option<Md5Stream>,
    /// The first chunk, which is hashed alone if it is the only one.
    first: Option<Bytes>,
    hashers: Vec<Hasher>,
    stores_crc64: bool,
    size: u64,
}

/// The digests of a finished write.
pub(crate) struct PlainDigest {
    pub size: u64,
    /// Present if requested.
    pub md5: Option<[u8; 16]>,
    /// The checksums to store.
    pub stored: Vec<Checksum>,
    /// All checksums: the stored ones and the CRC-64/NVME.
    pub computed: Vec<Checksum>,
}

impl PlainDigests {
    pub fn new(engine: &Engine, request: &StageRequest) -> Self {
        let needs_md5 = request.etag == ETagForm::Md5 || request.verify_md5;
        let requested = &request.algorithms;
        let others = requested.iter().filter(|algorithm| **algorithm != Algorithm::Crc64Nvme);
        Self {
            engine: needs_md5.then(|| engine.clone()),
            md5: None,
            first: None,
            hashers: others.chain([&Algorithm::Crc64Nvme]).map(|algorithm| Hasher::new(*algorithm)).collect(),
            stores_crc64: requested.is_empty() || requested.contains(&Algorithm::Crc64Nvme),
            size: 0,
        }
    }

    /// Adds a chunk. Waits while the queue of the hashing threads is full.
    pub async fn update(&mut self, chunk: &Bytes) {
        self.size += chunk.len() as u64;
        for hasher in &mut self.hashers {
            hasher.update(chunk);
        }
        let Some(engine) = &self.engine else { return };
        let Some(stream) = &mut self.md5 else {
            match self.first.take() {
                None => self.first = Some(chunk.clone()),
                Some(first) => {
                    let mut stream = engine.stream();
                    stream.update(first);
                    stream.update(chunk.clone());
                    self.md5 = Some(stream);
                }
            }
            return;
        };
        stream.update(chunk.clone());
        if stream.queued_bytes() > MAX_MD5_QUEUE_BYTES {
            stream.drained(MAX_MD5_QUEUE_BYTES / 2).await;
        }
    }

    pub async fn finish(self) -> PlainDigest {
        let md5 = match self.md5 {
            Some(stream) => Some(stream.finish().await),
            None => self.engine.map(|_| tradewind_digest::md5(&self.first.unwrap_or_default())),
        };
        let computed: Vec<Checksum> = self.hashers.into_iter().map(Hasher::finish).collect();
        let mut stored = computed.clone();
        if !self.stores_crc64 {
            stored.pop();
        }
        PlainDigest { size: self.size, md5, stored, computed }
    }
}
