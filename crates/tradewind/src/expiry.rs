//! Expiry of stale multipart uploads: unfinished uploads are aborted after a configured age, so that their parts do not
//! occupy space forever. It uses only the port, so it works on any store.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_core::context::Deadline;
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::ListUploads;
use tradewind_core::{
    Address, BucketName, Budget, Clock, Context, ErrorKind, ObjectKey, ObjectStore, Result, Timestamp,
};

/// Uploads per listing request.
const PAGE_UPLOADS: usize = 1000;
/// Maximum time of one round.
const MAX_ROUND_TIME: Duration = Duration::from_secs(600);
/// The window of a round, which moves no payload.
const WINDOW_BYTES: usize = 64 << 10;

/// Expires uploads of one store.
#[derive(Debug)]
pub struct UploadExpiry {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The memory budget that rounds reserve their windows from.
    pub budget: Budget,
    /// The clock for ages and intervals.
    pub clock: Arc<dyn Clock>,
    /// Uploads older than this are aborted. Not zero.
    pub max_age: Duration,
}

impl UploadExpiry {
    /// Runs a round at once, then every hour, or more often if uploads expire sooner, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let interval = (self.max_age / 4).clamp(Duration::from_secs(1), Duration::from_secs(3600));
        loop {
            match self.round(&stop).await {
                Ok(0) => {}
                Ok(uploads) => info!(uploads, "aborted uploads that were not finished in time"),
                Err(_) if stop.is_cancelled() => return,
                Err(error) => warn!(%error, "cannot expire unfinished uploads; retrying later"),
            }
            let next = self.clock.sleep_until(self.clock.now() + interval);
            tokio::select! {
                () = next => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Runs one round over all buckets. Returns the number of aborted uploads.
    pub async fn round(&self, stop: &CancellationToken) -> Result<usize> {
        let deadline = Deadline::after(self.clock.clone(), MAX_ROUND_TIME).with_cancellation(stop.clone());
        let window = self.budget.admit(WINDOW_BYTES, &deadline).await?;
        let context = Context::new(deadline, window);
        let age = i64::try_from(self.max_age.as_millis()).unwrap_or(i64::MAX);
        let oldest_kept = Timestamp::from_millis(self.clock.wall().millis().saturating_sub(age));
        let mut aborted = 0;
        for bucket in self.store.list_buckets(&context).await? {
            match self.expire_bucket(&context, &bucket.name, oldest_kept).await {
                Ok(uploads) => aborted += uploads,
                // The bucket was deleted concurrently.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(aborted)
    }

    async fn expire_bucket(
        &self,
        context: &Context,
        bucket: &BucketName,
        oldest_kept: Timestamp,
    ) -> Result<usize> {
        let mut aborted = 0;
        let mut request = ListUploads { limit: PAGE_UPLOADS, ..ListUploads::default() };
        loop {
            let before = aborted;
            let page = self.store.list_uploads(context, bucket, &request).await?;
            for entry in page.entries {
                let ListEntry::Key(key, upload) = entry else { continue };
                // An upload of unknown age may be new.
                if upload.initiated.is_none_or(|initiated| initiated >= oldest_kept) {
                    continue;
                }
                let address = Address::new(bucket.clone(), ObjectKey::new(&key)?);
                match self.store.abort_upload(context, &address, &upload.id).await {
                    Ok(()) => aborted += 1,
                    // The upload was completed or aborted concurrently.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            let Some((key, upload)) = page.next else { return Ok(aborted) };
            if aborted > before {
                // The page's last upload may be aborted, so it cannot serve as a marker: list again from the same
                // place.
                continue;
            }
            request.after_key = Some(key);
            request.after_upload = upload;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use tradewind_core::multipart::{CreateUpload, UploadsPage};
    use tradewind_core::testing::{MemoryStore, SimulatedClock};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn uploads(expiry: &UploadExpiry) -> Vec<String> {
        let deadline = Deadline::none(expiry.clock.clone());
        let context = Context::new(deadline.clone(), expiry.budget.admit(1, &deadline).await.unwrap());
        let bucket = BucketName::new("abc").unwrap();
        let request = ListUploads { limit: 10_000, ..ListUploads::default() };
        let page = expiry.store.list_uploads(&context, &bucket, &request).await.unwrap();
        page.entries.iter().map(|entry| entry.name().to_owned()).collect()
    }

    #[tokio::test]
    async fn round_aborts_only_expired_uploads() {
        let clock = SimulatedClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = MemoryStore::new(clock.clone());
        let expiry = UploadExpiry {
            store: store.clone(),
            budget: Budget::new(1 << 20),
            clock: clock.clone(),
            max_age: 24 * HOUR,
        };
        let deadline = Deadline::none(clock.clone());
        let context = Context::new(deadline.clone(), expiry.budget.admit(1, &deadline).await.unwrap());
        store.create_bucket(&context, &BucketName::new("abc").unwrap()).await.unwrap();
        let begin = |key: String| {
            let (store, context) = (store.clone(), context.clone());
            async move {
                let address = Address::parse("abc", &key).unwrap();
                store.create_upload(&context, &address, CreateUpload::default()).await.unwrap();
            }
        };
        // More than a page of old uploads, many of them with the same key.
        for number in 0..PAGE_UPLOADS + 50 {
            begin(format!("old-{}", number / 300)).await;
        }
        clock.advance(2 * HOUR);
        begin("old-1".to_owned()).await;
        begin("young".to_owned()).await;
        let stop = CancellationToken::new();
        assert_eq!(expiry.round(&stop).await.unwrap(), 0);
        clock.advance(23 * HOUR);
        assert_eq!(expiry.round(&stop).await.unwrap(), PAGE_UPLOADS + 50);
        assert_eq!(uploads(&expiry).await, ["old-1", "young"]);

        stop.cancel();
        assert!(expiry.round(&stop).await.is_err(), "a round stops when cancelled");
        expiry.run(stop).await;
    }

    /// A service that does not say when uploads began.
    #[derive(Debug)]
    struct Ageless(Arc<MemoryStore>);

    #[async_trait]
    impl ObjectStore for Ageless {
        tradewind_core::forward_methods! {
            to: |layer| &layer.0;
            capabilities, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head, get,
            stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, stage_part,
            copy_part, list_parts, complete_upload, abort_upload, close,
        }

        async fn list_uploads(
            &self,
            context: &Context,
            bucket: &BucketName,
            request: &ListUploads,
        ) -> Result<UploadsPage> {
            let mut page = self.0.list_uploads(context, bucket, request).await?;
            for entry in &mut page.entries {
                if let ListEntry::Key(_, upload) = entry {
                    upload.initiated = None;
                }
            }
            Ok(page)
        }
    }

    #[tokio::test]
    async fn uploads_of_unknown_age_never_expire() {
        let clock = SimulatedClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = Arc::new(Ageless(MemoryStore::new(clock.clone())));
        let (budget, max_age) = (Budget::new(1 << 20), Duration::from_secs(1));
        let expiry = UploadExpiry { store: store.clone(), budget, clock: clock.clone(), max_age };
        let deadline = Deadline::none(clock.clone());
        let context = Context::new(deadline.clone(), expiry.budget.admit(1, &deadline).await.unwrap());
        let address = Address::parse("abc", "key").unwrap();
        store.create_bucket(&context, &address.bucket).await.unwrap();
        store.create_upload(&context, &address, CreateUpload::default()).await.unwrap();
        clock.advance(24 * 365 * HOUR);
        assert_eq!(expiry.round(&CancellationToken::new()).await.unwrap(), 0);
        assert_eq!(uploads(&expiry).await, ["key"]);
    }
}
