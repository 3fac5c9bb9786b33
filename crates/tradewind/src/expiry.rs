//! Expiry of stale multipart uploads: unfinished uploads are aborted after a configured age, so that their parts do not
//! occupy space forever. It uses only the port, so it works on any store.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_core::context::Deadline;
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::ListUploads;
use tradewind_core::store::BucketInfo;
use tradewind_core::{
    Address, BucketName, Budget, Clock, Context, Error, ErrorKind, ObjectKey, ObjectStore, Result, Timestamp,
};

/// Uploads per listing request.
const PAGE_UPLOADS: usize = 1000;
/// Maximum time for one bucket.
const MAX_BUCKET_TIME: Duration = Duration::from_secs(600);
/// The window of the requests, which move no payload.
const WINDOW_BYTES: usize = 64 << 10;

/// Expires uploads of one store.
#[derive(Debug)]
pub struct UploadExpiry {
    /// The store.
    pub expiring: ExpiringStore,
    /// The memory budget that rounds reserve their windows from.
    pub budget: Budget,
    /// The clock for ages and intervals.
    pub clock: Arc<dyn Clock>,
    /// Uploads older than this are aborted. Not zero.
    pub max_age: Duration,
}

/// A store whose uploads may expire.
#[derive(Debug)]
pub struct ExpiringStore {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The name of the tier if it is a local store of a volume that also has a service.
    pub tier: Option<String>,
}

/// The result of a round.
#[derive(Debug, Default)]
pub struct ExpiryRound {
    /// The number of aborted uploads.
    pub aborted: usize,
    /// The buckets with uploads that could not be listed or aborted, and the first error of each.
    pub failed: Vec<FailedBucket>,
}

/// A bucket in which a round failed.
#[derive(Debug)]
pub struct FailedBucket {
    /// Its name.
    pub bucket: BucketName,
    /// The first error.
    pub error: Error,
}

impl UploadExpiry {
    /// Runs a round at once, then every hour, or more often if uploads expire sooner, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let interval = (self.max_age / 4).clamp(Duration::from_secs(1), Duration::from_secs(3600));
        loop {
            match self.round(&stop).await {
                Ok(round) => {
                    if round.aborted > 0 {
                        info!(uploads = round.aborted, "aborted uploads that were not finished in time");
                    }
                    for FailedBucket { bucket, error } in round.failed {
                        warn!(%bucket, %error, "cannot expire unfinished uploads of a bucket; retrying later");
                    }
                }
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

    /// Runs one round over all buckets. A bucket that fails or exceeds its time does not end it.
    ///
    /// # Errors
    /// If the buckets cannot be listed, or if the round is stopped.
    pub async fn round(&self, stop: &CancellationToken) -> Result<ExpiryRound> {
        let age = i64::try_from(self.max_age.as_millis()).unwrap_or(i64::MAX);
        let oldest_kept = Timestamp::from_millis(self.clock.wall().millis().saturating_sub(age));
        let mut round = ExpiryRound::default();
        let buckets = self.expiring.store.list_buckets(&self.context(stop).await?).await?;
        for BucketInfo { name: bucket, .. } in buckets {
            let context = self.context(stop).await?;
            let expired = self.expire_bucket(&context, &bucket, oldest_kept, &mut round.aborted);
            match context.guard(expired).await.and_then(|expired| expired) {
                // The bucket was deleted concurrently.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if stop.is_cancelled() => return Err(error),
                Err(error) => round.failed.push(FailedBucket { bucket, error }),
                Ok(()) => {}
            }
        }
        Ok(round)
    }

    /// The context of the requests for one bucket, or of the listing of buckets.
    async fn context(&self, stop: &CancellationToken) -> Result<Context> {
        let deadline = Deadline::after(self.clock.clone(), MAX_BUCKET_TIME).with_cancellation(stop.clone());
        let window = self.budget.admit(WINDOW_BYTES, &deadline).await?;
        Ok(Context::new(deadline, window))
    }

    async fn expire_bucket(
        &self,
        context: &Context,
        bucket: &BucketName,
        oldest_kept: Timestamp,
        aborted: &mut usize,
    ) -> Result<()> {
        let store = &self.expiring.store;
        let mut failed = None;
        let mut request = ListUploads { limit: PAGE_UPLOADS, ..ListUploads::default() };
        loop {
            let before = *aborted;
            let page = store.list_uploads(context, bucket, &request).await?;
            for entry in page.entries {
                let ListEntry::Key(key, upload) = entry else { continue };
                // An upload of unknown age may be new.
                if upload.initiated.is_none_or(|initiated| initiated >= oldest_kept) {
                    continue;
                }
                let address = Address::new(bucket.clone(), ObjectKey::new(&key)?);
                match store.abort_upload(context, &address, &upload.id).await {
                    Ok(()) => *aborted += 1,
                    // The upload was completed or aborted concurrently.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    // Other uploads may be aborted.
                    Err(error) => {
                        context.check()?;
                        failed.get_or_insert(error);
                    }
                }
            }
            let Some((key, upload)) = page.next else { return failed.map_or(Ok(()), Err) };
            if *aborted > before {
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
    use tradewind_core::Class;
    use tradewind_core::error::Reason;
    use tradewind_core::multipart::{CreateUpload, UploadsPage};
    use tradewind_core::testing::{
        Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock,
    };
    use tradewind_layers::routed::{ClassTiers, Routed, Tier};

    const HOUR: Duration = Duration::from_secs(3600);

    async fn uploads(expiry: &UploadExpiry) -> Vec<String> {
        let deadline = Deadline::none(expiry.clock.clone());
        let context = Context::new(deadline.clone(), expiry.budget.admit(1, &deadline).await.unwrap());
        let bucket = BucketName::new("abc").unwrap();
        let request = ListUploads { limit: 10_000, ..ListUploads::default() };
        let page = expiry.expiring.store.list_uploads(&context, &bucket, &request).await.unwrap();
        page.entries.iter().map(|entry| entry.name().to_owned()).collect()
    }

    #[tokio::test]
    async fn round_aborts_only_expired_uploads() {
        let clock = SimulatedClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = MemoryStore::new(clock.clone());
        let expiry = UploadExpiry {
            expiring: ExpiringStore { store: store.clone(), tier: None },
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
        assert_eq!(expiry.round(&stop).await.unwrap().aborted, 0);
        clock.advance(23 * HOUR);
        assert_eq!(expiry.round(&stop).await.unwrap().aborted, PAGE_UPLOADS + 50);
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
        let expiry = UploadExpiry {
            expiring: ExpiringStore { store: store.clone(), tier: None },
            budget,
            clock: clock.clone(),
            max_age,
        };
        let deadline = Deadline::none(clock.clone());
        let context = Context::new(deadline.clone(), expiry.budget.admit(1, &deadline).await.unwrap());
        let address = Address::parse("abc", "key").unwrap();
        store.create_bucket(&context, &address.bucket).await.unwrap();
        store.create_upload(&context, &address, CreateUpload::default()).await.unwrap();
        clock.advance(24 * 365 * HOUR);
        assert_eq!(expiry.round(&CancellationToken::new()).await.unwrap().aborted, 0);
        assert_eq!(uploads(&expiry).await, ["key"]);
    }

    struct Scene {
        clock: Arc<SimulatedClock>,
        context: Context,
        budget: Budget,
    }

    impl Scene {
        async fn new() -> Self {
            let clock = SimulatedClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
            let (deadline, budget) = (Deadline::none(clock.clone()), Budget::new(1 << 20));
            let context = Context::new(deadline.clone(), budget.admit(1, &deadline).await.unwrap());
            Self { clock, context, budget }
        }

        async fn create_upload(&self, store: &dyn ObjectStore, bucket: &str, class: Option<u8>) {
            let address = Address::parse(bucket, "key").unwrap();
            let mut request = CreateUpload::default();
            request.metadata.classes.object = class.map(|class| Class::new(class).unwrap());
            store.create_upload(&self.context, &address, request).await.unwrap();
        }

        fn expiry(&self, store: Arc<dyn ObjectStore>) -> UploadExpiry {
            let (budget, clock) = (self.budget.clone(), self.clock.clone());
            let expiring = ExpiringStore { store, tier: None };
            UploadExpiry { expiring, budget, clock, max_age: HOUR }
        }
    }

    #[tokio::test]
    async fn failing_bucket_does_not_end_the_round() {
        for operation in [Operation::ListUploads, Operation::AbortUpload] {
            let scene = Scene::new().await;
            let below = MemoryStore::new(scene.clock.clone());
            for bucket in ["aaa", "bbb", "ccc"] {
                below.create_bucket(&scene.context, &BucketName::new(bucket).unwrap()).await.unwrap();
                scene.create_upload(&*below, bucket, None).await;
            }
            scene.clock.advance(2 * HOUR);
            let fault = Fault::FailBefore(Reason::AccessDenied);
            let plan = FaultPlan::none().with_fault(operation, FaultSchedule::Nth(1), fault);
            let expiry = scene.expiry(Faulty::new(below, plan));
            let round = expiry.round(&CancellationToken::new()).await.unwrap();
            let failed: Vec<_> = round.failed.iter().map(|failed| failed.bucket.as_str()).collect();
            assert_eq!((round.aborted, failed), (2, vec!["aaa"]), "{operation:?}");
        }
    }

    /// The ids are of the tier, whose upload is gone in the listing of all tiers.
    #[tokio::test]
    async fn tier_expires_its_uploads_while_the_service_fails() {
        let scene = Scene::new().await;
        let (ssd, far) = (MemoryStore::new(scene.clock.clone()), MemoryStore::new(scene.clock.clone()));
        let plan = [Operation::ListUploads, Operation::ListBuckets, Operation::HeadBucket].iter().fold(
            FaultPlan::none(),
            |plan, operation| {
                plan.with_fault(*operation, FaultSchedule::Always, Fault::FailBefore(Reason::Io))
            },
        );
        let failing = Faulty::new(far.clone(), plan);
        let placement = || ClassTiers::new().with_class(Class::new(25).unwrap(), 0);
        let tier = |name: &str, store: Arc<dyn ObjectStore>| Tier { name: name.to_owned(), store };
        let layer = Routed::new(vec![tier("ssd", ssd.clone())], tier("far", far), placement());
        layer.create_bucket(&scene.context, &BucketName::new("abc").unwrap()).await.unwrap();
        for class in [None, Some(25)] {
            scene.create_upload(&*layer, "abc", class).await;
        }
        scene.clock.advance(2 * HOUR);
        let failed = Routed::new(vec![tier("ssd", ssd)], tier("far", failing), placement());
        let expiry = scene.expiry(failed.tiers()[0].store.clone());
        let round = expiry.round(&CancellationToken::new()).await.unwrap();
        assert!(round.aborted == 1 && round.failed.is_empty(), "{round:?}");
        let (bucket, request) =
            (BucketName::new("abc").unwrap(), ListUploads { limit: 10, ..ListUploads::default() });
        let entries = layer.list_uploads(&scene.context, &bucket, &request).await.unwrap().entries;
        let [ListEntry::Key(_, upload)] = &entries[..] else { panic!("not one upload") };
        assert!(upload.id.0.starts_with("t1-"), "{upload:?}");
    }
}
