//! Uploads a stream of unknown length.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tradewind_core::error::Result;
use tradewind_core::object::Committed;
use tradewind_core::{Address, Metadata, ObjectStore};

use super::streaming_upload::StreamingUpload;
use super::transfer_context::TransferContext;

/// Stores the bytes of a stream as one object. It becomes visible once the stream has ended and all bytes are stored.
pub async fn store_stream(
    transfers: &Arc<TransferContext>,
    to: &Arc<dyn ObjectStore>,
    address: &Address,
    mut bytes: impl Stream<Item = Result<Bytes>> + Unpin,
    metadata: Metadata,
) -> Result<Committed> {
    let mut sequence = StreamingUpload::new(transfers, to, address, metadata);
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
