//! Uploads a stream of unknown length.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Committed;
use tradewind_core::{Address, Metadata, ObjectStore};

use super::streaming_upload::StreamingUpload;
use super::transfer_context::TransferContext;

/// Stores the bytes of a stream as one object, in parts that suit a stream of `expected_bytes`, if given. It becomes visible
/// once the stream has ended and all bytes are stored.
///
/// # Errors
/// [`InvalidArgument`](Reason::InvalidArgument) if such parts do not fit into the memory; nothing is read then.
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
        let default_part_bytes = sequence.first_part_bytes();
        sequence = sequence.with_expected_bytes(bytes);
        let (part_bytes, max_bytes) = (sequence.first_part_bytes(), transfers.plan().max_buffered_bytes);
        if part_bytes > max_bytes.max(default_part_bytes) {
            // The buffers have half of the memory.
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(Error::new(
                Reason::InvalidArgument,
                format!(
                    "a stream of the size of --expected-size has parts of {} MiB, and two of them in memory: set \
                     --max-memory to at least {} MiB",
                    mib(part_bytes),
                    mib(2 * part_bytes)
                ),
            ));
        }
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

#[cfg(test)]
mod tests {
    use tradewind_core::testing::MemoryStore;
    use tradewind_core::{Budget, SystemClock};
    use tradewind_model::plan::Plan;
    use tradewind_model::retry::RetryOptions;

    use super::*;

    #[tokio::test]
    async fn expected_size_whose_parts_exceed_the_memory_is_rejected() {
        let plan = Plan { max_buffered_bytes: 24 << 20, ..Plan::default() };
        let clock = SystemClock::shared();
        let transfers = Arc::new(TransferContext::new(
            plan,
            Budget::new(64 << 20),
            clock.clone(),
            RetryOptions::default(),
        ));
        let store: Arc<dyn ObjectStore> = MemoryStore::new(clock);
        let address = Address::parse("bucket", "key").unwrap();
        let stream = futures::stream::empty::<Result<Bytes>>();
        let stored =
            store_stream(&transfers, &store, &address, stream, Metadata::default(), Some(5 << 40)).await;
        let error = stored.unwrap_err();
        assert_eq!(error.reason(), Reason::InvalidArgument);
        assert!(error.to_string().contains("--max-memory to at least"), "{error}");
    }
}
