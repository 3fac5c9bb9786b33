//! Bucket operations. A bucket is a container, with a companion container once an object needs one.

use http::{Method, StatusCode};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::BucketInfo;
use tradewind_core::{BucketName, Context};

use super::SwiftStore;
use super::json::{self, MAX_PAGE_BYTES};
use super::names;
use crate::remote::client::{Call, ResourceKind};
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::query::Query;

impl SwiftStore {
    /// Creates the container. Swift accepts the creation of an existing container, with status 202. Of several
    /// concurrent requests, more than one may be reported as the first.
    pub(super) async fn put_container(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut call = Call::bucket(Method::PUT, bucket);
        // A retry would find the container that the first attempt created.
        call.may_repeat = false;
        if self.send_and_drain(context, &call).await?.status == StatusCode::ACCEPTED {
            return Err(Error::new(Reason::BucketExists, format!("bucket {bucket} already exists")));
        }
        // Left behind by an interrupted removal.
        self.uncache_companion(bucket);
        self.empty_companion(context, bucket).await
    }

    /// Removes the container, then the companion with its unfinished uploads. In the other order, a rejected removal
    /// would lose the uploads.
    pub(super) async fn delete_container(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut call = Call::bucket(Method::DELETE, bucket);
        call.may_repeat = false;
        let removed = self.send_and_drain(context, &call).await;
        removed.map_err(|e| match e.reason() {
            Reason::Conflict => Error::new(Reason::BucketNotEmpty, format!("bucket {bucket} is not empty")),
            _ => e,
        })?;
        self.uncache_companion(bucket);
        let emptied = async {
            self.empty_companion(context, bucket).await?;
            let companion = names::companion(bucket);
            let call = Call::in_container(Method::DELETE, ResourceKind::Bucket, &companion, None);
            match self.send_and_drain(context, &call).await {
                // The companion never existed, or the bucket has been created again and is in use.
                Err(e) if matches!(e.reason(), Reason::NoSuchBucket | Reason::Conflict) => Ok(()),
                other => other.map(drop),
            }
        };
        if let Err(e) = emptied.await {
            // The bucket is gone; creating it again empties the companion first.
            tracing::warn!(error = %e, bucket = %bucket, "cannot delete the unfinished uploads of a removed bucket");
        }
        Ok(())
    }

    /// Fails with [`NoSuchBucket`](Reason::NoSuchBucket) if the container does not exist.
    pub(super) async fn find_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.send_and_drain(context, &Call::bucket(Method::HEAD, bucket)).await.map(drop)
    }

    /// Lists the account's containers. Names that violate S3's naming rules are skipped, since the port cannot address
    /// them; names of companions are among these.
    pub(super) async fn all_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let (mut found, mut marker) = (Vec::new(), None::<String>);
        loop {
            let mut call = Call::service(Method::GET);
            call.query = Query::default()
                .with("format", "json")
                .with("limit", &MAX_PAGE_ENTRIES.to_string())
                .with_optional("marker", marker.as_deref());
            let response = self.send(context, &call).await?;
            let status = response.head.status;
            let page = json::parse_account(status, &response.collect(MAX_PAGE_BYTES).await?)?;
            let is_last = page.len() < MAX_PAGE_ENTRIES;
            marker = page.last().map(|(name, _)| name.clone());
            let bucket_info = |(name, created): (String, _)| {
                Some(BucketInfo { name: BucketName::new(&name).ok()?, created })
            };
            found.extend(page.into_iter().filter_map(bucket_info));
            if is_last {
                found.sort_by(|a: &BucketInfo, b| a.name.cmp(&b.name));
                return Ok(found);
            }
        }
    }

    /// Deletes everything in a bucket's companion, if it exists.
    async fn empty_companion(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let companion = names::companion(bucket);
        match self.list_objects(context, &companion, "").await {
            Ok(lines) => self.delete_all(context, &companion, lines.into_iter().map(|line| line.name)).await,
            Err(e) if e.reason() == Reason::NoSuchBucket => Ok(()),
            Err(e) => Err(e),
        }
    }
}
