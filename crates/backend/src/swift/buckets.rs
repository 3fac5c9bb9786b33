//! Buckets: containers, each with a companion where it holds anything that needs one.

use http::{Method, StatusCode};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::BucketInfo;
use tradewind_core::{BucketName, Context};

use super::SwiftStore;
use super::json::{self, MOST_ENTRIES, MOST_PAGE_BYTES};
use super::names;
use crate::remote::client::{Call, Subject};
use crate::remote::query::Query;

impl SwiftStore {
    /// Makes the container. Swift makes one that is there already again, and says so; of several at once, which each
    /// ask the container's servers, more than one may be told that it was the first.
    pub(super) async fn make_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut call = Call::bucket(Method::PUT, bucket);
        // Sent twice it would find its own container.
        call.may_repeat = false;
        if self.send_and_drain(context, &call).await?.status == StatusCode::ACCEPTED {
            return Err(Error::new(Reason::BucketExists, format!("bucket {bucket} exists already")));
        }
        // What a removal left that was broken off.
        self.forget_companion(bucket);
        self.empty_companion(context, bucket).await
    }

    /// Removes the container, then what the companion held of unfinished uploads. In the other order a refused removal
    /// would have cost the uploads.
    pub(super) async fn remove_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut call = Call::bucket(Method::DELETE, bucket);
        call.may_repeat = false;
        let removed = self.send_and_drain(context, &call).await;
        removed.map_err(|e| match e.reason() {
            Reason::Conflict => Error::new(Reason::BucketNotEmpty, format!("bucket {bucket} is not empty")),
            _ => e,
        })?;
        self.forget_companion(bucket);
        let emptied = async {
            self.empty_companion(context, bucket).await?;
            let companion = names::companion(bucket);
            let call = Call::within(Method::DELETE, Subject::Bucket, &companion, None);
            match self.send_and_drain(context, &call).await {
                // It was never made; or the bucket is made anew and used already.
                Err(e) if matches!(e.reason(), Reason::NoSuchBucket | Reason::Conflict) => Ok(()),
                other => other.map(drop),
            }
        };
        if let Err(e) = emptied.await {
            // The bucket is gone: whoever makes it again empties the companion first.
            tracing::warn!(error = %e, bucket = %bucket, "unfinished uploads of a removed bucket are left in the store");
        }
        Ok(())
    }

    /// Whether the container is there.
    pub(super) async fn find_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.send_and_drain(context, &Call::bucket(Method::HEAD, bucket)).await.map(drop)
    }

    /// The account's containers. Names that break S3's rules are passed over: nothing of ours can address them, and
    /// companions have such names.
    pub(super) async fn all_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let (mut found, mut marker) = (Vec::new(), None::<String>);
        loop {
            let mut call = Call::service(Method::GET);
            call.query = Query::default()
                .with("format", "json")
                .with("limit", &MOST_ENTRIES.to_string())
                .with_some("marker", marker.as_deref());
            let answer = self.send(context, &call).await?;
            let status = answer.head.status;
            let page = json::containers(status, &answer.collect(MOST_PAGE_BYTES).await?)?;
            let is_last = page.len() < MOST_ENTRIES;
            marker = page.last().map(|(name, _)| name.clone());
            let named = |(name, created): (String, _)| {
                Some(BucketInfo { name: BucketName::new(&name).ok()?, created })
            };
            found.extend(page.into_iter().filter_map(named));
            if is_last {
                found.sort_by(|a: &BucketInfo, b| a.name.cmp(&b.name));
                return Ok(found);
            }
        }
    }

    /// Deletes everything in a bucket's companion, where there is one.
    async fn empty_companion(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let companion = names::companion(bucket);
        match self.all_lines(context, &companion, "").await {
            Ok(lines) => self.delete_all(context, &companion, lines.into_iter().map(|line| line.name)).await,
            Err(e) if e.reason() == Reason::NoSuchBucket => Ok(()),
            Err(e) => Err(e),
        }
    }
}
