//! Buckets.

use bytes::Bytes;
use http::Method;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::BucketInfo;
use tradewind_core::{BucketName, Context};

use super::S3Store;
use super::xml::{self, DocumentKind};
use crate::remote::client::Call;
use crate::remote::payload::Held;
use crate::remote::time::parse_time;

/// A list of buckets is no longer than this: ten thousand names.
const MOST_BUCKETS_BYTES: usize = 4 << 20;
const BUCKETS: DocumentKind = DocumentKind { name: "a list of buckets", roots: &["ListAllMyBucketsResult"] };

impl S3Store {
    /// CreateBucket, in the store's region.
    pub(super) async fn make_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        // Amazon's first region and radosgw tell whoever has it already that they made it.
        match self.find_bucket(context, bucket).await {
            Ok(()) => {
                return Err(Error::new(
                    Reason::BucketExists,
                    format!("bucket {:?} exists already", bucket.as_str()),
                ));
            }
            // Somebody else's; who may not look may still make one.
            Err(e) if matches!(e.reason(), Reason::NoSuchBucket | Reason::AccessDenied) => {}
            Err(e) => return Err(e),
        }
        let mut call = Call::bucket(Method::PUT, bucket);
        // Amazon's first region is the one that may not be named.
        if self.region != "us-east-1" {
            let mut document = "<CreateBucketConfiguration><LocationConstraint>".to_owned();
            xml::escape(&self.region, &mut document);
            document.push_str("</LocationConstraint></CreateBucketConfiguration>");
            call.payload = Held::of([Bytes::from(document)]);
        }
        // Sent twice it would find its own bucket.
        call.may_repeat = false;
        self.send(context, &call).await?.collect(MOST_BUCKETS_BYTES).await.map(drop)
    }

    /// DeleteBucket.
    pub(super) async fn remove_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut call = Call::bucket(Method::DELETE, bucket);
        call.may_repeat = false;
        self.send(context, &call).await?.collect(MOST_BUCKETS_BYTES).await.map(drop)
    }

    /// HeadBucket.
    pub(super) async fn find_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let answer = self.send(context, &Call::bucket(Method::HEAD, bucket)).await?;
        answer.collect(0).await.map(drop)
    }

    /// ListBuckets. Names that break S3's own rules are passed over: nothing of ours can address them.
    pub(super) async fn all_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let document = self.send(context, &Call::service(Method::GET)).await?;
        let document = document.collect(MOST_BUCKETS_BYTES).await?;
        let (mut found, mut name, mut created) = (Vec::new(), String::new(), None);
        BUCKETS.leaves(&document, |path, text| match path {
            [.., "Bucket", "Name"] => name = text.to_owned(),
            [.., "Bucket", "CreationDate"] => created = parse_time(text),
            [.., "Bucket"] => {
                if let Ok(name) = BucketName::new(&std::mem::take(&mut name)) {
                    found.push(BucketInfo { name, created: created.take().unwrap_or_default() });
                }
            }
            _ => {}
        })?;
        found.sort_by(|a: &BucketInfo, b| a.name.cmp(&b.name));
        Ok(found)
    }
}
