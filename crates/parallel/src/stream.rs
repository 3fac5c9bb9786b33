//! Uploads a stream of unknown length.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tradewind_core::error::Result;
use tradewind_core::object::Committed;
use tradewind_core::{Address, Metadata, ObjectStore};

use super::streaming_upload::StreamingUpload;
use super::transfer_context::TransferContext;

/// Stores the bytes of a stream as one object, in parts that suit a stream of `expected_bytes`, if given. It becomes visible once the stream has ended and all bytes are stored.
pub async fn store_stream(
    transfers: &Arc<TransferContext>,
    to: &Arc<dyn ObjectStore>,
    address: &Address,
    mut bytes: impl Stream<Item = Result<Bytes>> + Unpin,
    metadata: Metadata,
    expected_bytes: Option<u64>,
) -> Result<Committed> {
    let mut sequence = StreamingUpload::new(transfers, to, address, metadata);
    if let Some(bytes) = expected_bytes {
        sequence = sequence.with_expected_bytes(bytes);
    }
    let written = async {
        while let Some(piece) = bytes.next().await {
            sequence.write(&piece?).await?;
        }
        Ok(())
    };
    match written.await {
        Ok(()) => sequence.finish().await,
        Err(e) => {
            sequence.fail(&e).await;
            Err(e)
        }
    }
}
