//! The content of objects in tests: bytes that differ at every offset and for every seed. They are written in pieces,
//! and a body's pieces are released one by one as they are read.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use crate::body::Body;
use crate::error::Result;
use crate::store::Staged;

/// Size of the pieces in which [`write_all`] writes.
const WRITE_BYTES: usize = 256 << 10;

/// Writes bytes in pieces.
pub async fn write_all(staged: &mut dyn Staged, mut bytes: Bytes) -> Result<()> {
    while !bytes.is_empty() {
        staged.write(bytes.split_to(bytes.len().min(WRITE_BYTES))).await?;
    }
    Ok(())
}

/// Reads a body, releasing each piece's memory before the next.
pub async fn drain(mut body: Body) -> Result<Bytes> {
    let mut all = BytesMut::with_capacity(usize::try_from(body.length()).unwrap_or(0));
    while let Some(piece) = body.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all.freeze())
}

/// `size` pseudo-random bytes for a seed. They repeat with a prime period, so that an offset that is wrong by blocks,
/// pages or parts always yields different bytes.
#[must_use]
pub fn pattern(size: usize, seed: u64) -> Bytes {
    const PERIOD: usize = 65_521;
    let mut block = BytesMut::with_capacity(PERIOD + 8);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while block.len() < size.min(PERIOD) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block.truncate(PERIOD);
    let mut bytes = BytesMut::with_capacity(size + PERIOD);
    while bytes.len() < size {
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(size);
    bytes.freeze()
}
