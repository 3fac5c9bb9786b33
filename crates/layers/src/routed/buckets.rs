//! Buckets. A bucket exists if it exists in the base. Other tiers get it with their first object, and lose it before
//! the base does, so that an interrupted deletion leaves a bucket that exists.

use std::sync::Arc;

use futures::future::join_all;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{BucketName, Context};

use super::tier_set::{TierSet, without_deadline};

impl TierSet {
    /// Deletes a bucket that is empty in all tiers.
    pub async fn delete_bucket(self: &Arc<Self>, context: &Context, bucket: &BucketName) -> Result<()> {
        context.check()?;
        let exclusive = context.guard(self.locks.lock_bucket(bucket)).await?;
        let (set, bucket, unlimited) = (self.clone(), bucket.clone(), without_deadline(context));
        let work = async move {
            let _exclusive = exclusive;
            set.check_empty(&unlimited, &bucket).await?;
            set.forget_bucket(&bucket);
            for (index, tier) in set.tiers.iter().enumerate() {
                match tier.store.delete_bucket(&unlimited, &bucket).await {
                    Err(error) if index < set.base() && error.reason() == Reason::NoSuchBucket => {}
                    deleted => tier.named(deleted)?,
                }
            }
            Ok(())
        };
        self.run_to_end(context, work).await
    }

    async fn check_empty(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let first = ListRequest { limit: 1, ..ListRequest::default() };
        let pages = self.tiers.iter().map(|tier| tier.store.list(context, bucket, &first));
        let listed = join_all(pages).await;
        // The base decides whether the bucket exists.
        for (index, page) in listed.into_iter().enumerate().rev() {
            match page {
                Ok(page) if page.entries.is_empty() => {}
                Ok(_) => {
                    return Err(Error::new(
                        Reason::BucketNotEmpty,
                        format!("bucket {bucket:?} holds objects"),
                    ));
                }
                Err(error) if index < self.base() && error.reason() == Reason::NoSuchBucket => {}
                Err(error) => return self.tiers[index].named(Err(error)),
            }
        }
        Ok(())
    }
}
