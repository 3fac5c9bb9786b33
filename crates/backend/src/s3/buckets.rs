//! Bucket operations.

use bytes::Bytes;
use http::Method;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::BucketInfo;
use tradewind_core::{BucketName, Context};

use super::S3Store;
use super::dialect::Dialect;
use super::xml::{self, DocumentKind};
use crate::remote::client::Call;
use crate::remote::payload::BufferedBody;
use crate::remote::time::parse_time;

/// Longest list of buckets: 10,000 names.
const MAX_BUCKET_LIST_BYTES: usize = 4 << 20;
const BUCKETS: DocumentKind = DocumentKind { name: "a list of buckets", roots: &["ListAllMyBucketsResult"] };

impl S3Store {
    /// CreateBucket, in the store's region.
    pub(super) async fn put_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        // us-east-1 and radosgw report success to the owner of an existing bucket.
        match self.find_bucket(context, bucket).await {
            Ok(()) => {
                return Err(Error::new(
                    Reason::BucketExists,
                    format!("bucket {:?} already exists", bucket.as_str()),
                ));
            }
            // AccessDenied: it may belong to another account, or HeadBucket is denied and CreateBucket is not.
            Err(e) if matches!(e.reason(), Reason::NoSuchBucket | Reason::AccessDenied) => {}
            Err(e) => return Err(e),
        }
        let mut call = Call::bucket(Method::PUT, bucket);
        // S3 rejects us-east-1 as a location constraint. Tradewind accepts it, and then reports a bucket that exists.
        if self.region != "us-east-1" || self.dialect.get() == Some(&Dialect::Tradewind) {
            let mut document = "<CreateBucketConfiguration><LocationConstraint>".to_owned();
            xml::escape(&self.region, &mut document);
            document.push_str("</LocationConstraint></CreateBucketConfiguration>");
            call.payload = BufferedBody::from_buffers([Bytes::from(document)]);
        }
        // A retry would find the bucket that the first attempt created.
        call.may_repeat = false;
        self.send(context, &call).await?.collect(MAX_BUCKET_LIST_BYTES).await.map(drop)
    }

    /// DeleteBucket.
    pub(super) async fn remove_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut call = Call::bucket(Method::DELETE, bucket);
        call.may_repeat = false;
        self.send(context, &call).await?.collect(MAX_BUCKET_LIST_BYTES).await.map(drop)
    }

    /// HeadBucket.
    pub(super) async fn find_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        let response = self.send(context, &Call::bucket(Method::HEAD, bucket)).await?;
        response.collect(0).await.map(drop)
    }

    /// ListBuckets. Names that violate S3's naming rules are skipped, since the port cannot address them.
    pub(super) async fn all_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let document = self.send(context, &Call::service(Method::GET)).await?;
        let document = document.collect(MAX_BUCKET_LIST_BYTES).await?;
        let (mut found, mut name, mut created) = (Vec::new(), String::new(), None);
        BUCKETS.for_each_element(&document, |path, text| match path {
            [.., "Bucket", "Name"] => name = text.to_owned(),
            [.., "Bucket", "CreationDate"] => created = parse_time(text),
            [.., "Bucket"] => {
                if let Ok(name) = BucketName::new(&std::mem::take(&mut name)) {
                    found.push(BucketInfo { name, created: created.take() });
                }
            }
            _ => {}
        })?;
        found.sort_by(|a: &BucketInfo, b| a.name.cmp(&b.name));
        Ok(found)
    }
}
