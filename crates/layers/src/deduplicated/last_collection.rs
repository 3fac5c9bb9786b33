//! The time of the last collection, in an object of the bucket of chunks: a restart does not delay the next one.

use bytes::Bytes;
use tracing::warn;
use tradewind_core::clock::Timestamp;
use tradewind_core::error::{Reason, Result};
use tradewind_core::{Context, ObjectKey};

use super::chunk_store::ChunkStore;

/// Its key. The content is the wall time in milliseconds since 1970, in decimal digits.
pub(super) const LAST_COLLECTION_KEY: &str = "last-collection";

/// Records a collection that ends now. If that fails, the next one may begin early after a restart.
pub(super) async fn record(store: &ChunkStore, context: &Context) {
    let now = context.deadline.clock().wall().millis().to_string();
    let recorded = match ObjectKey::new(LAST_COLLECTION_KEY) {
        Ok(key) => store.put(context, &key, Bytes::from(now)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = recorded {
        warn!(%error, "the time of a collection was not recorded: the next one may begin early after a restart");
    }
}

/// The end of the last collection, also of earlier runs; `None` if there was none, or if its record is damaged.
pub(super) async fn read(store: &ChunkStore, context: &Context) -> Result<Option<Timestamp>> {
    match store.get(context, &ObjectKey::new(LAST_COLLECTION_KEY)?).await {
        Ok(bytes) => {
            let millis = std::str::from_utf8(&bytes).ok().and_then(|digits| digits.parse().ok());
            Ok(millis.map(Timestamp::from_millis))
        }
        Err(error)
            if matches!(error.reason(), Reason::NoSuchKey | Reason::NoSuchBucket | Reason::CorruptData) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
