//! Storing bytes of which nobody knows how many there will be.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tradewind_core::error::Result;
use tradewind_core::object::Committed;
use tradewind_core::{Address, Metadata, ObjectStore};

use super::carrier::Carrier;
use super::sequence::Sequence;

/// Stores what a stream yields as one object, visible when the stream has ended and all of it is there.
pub async fn store_stream(
    carrier: &Arc<Carrier>,
    to: &Arc<dyn ObjectStore>,
    address: &Address,
    mut bytes: impl Stream<Item = Result<Bytes>> + Unpin,
    metadata: Metadata,
) -> Result<Committed> {
    let mut sequence = Sequence::new(carrier, to, address, metadata);
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
