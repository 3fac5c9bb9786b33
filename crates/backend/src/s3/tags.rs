//! PutObjectTagging, GetObjectTagging and DeleteObjectTagging.

use bytes::Bytes;
use http::Method;
use tradewind_core::error::Result;
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Context, Tags};

use super::S3Store;
use super::versions::version_query;
use super::xml::{self, DocumentKind};
use crate::remote::client::Call;
use crate::remote::payload::BufferedBody;

/// Longest response: an object's tags as XML.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
const TAGS: DocumentKind = DocumentKind { name: "tags", roots: &["Tagging"] };

impl S3Store {
    /// Replaces the tags that readers see. The tag of the object's class stays.
    pub(super) async fn replace_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        if self.mapped_classes.tag.is_none() {
            return self.write_tags(context, address, tags).await;
        }
        let found = self.read_head(context, address, &GetRequest::default()).await?;
        let tags = self.mapped_classes.with_tag(tags, found.info.metadata.classes.object)?;
        self.write_tags(context, address, tags).await
    }

    /// PutObjectTagging, or DeleteObjectTagging for no tags.
    pub(super) async fn write_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        let method = if tags.is_empty() { Method::DELETE } else { Method::PUT };
        self.confirm_version(context, address).await?;
        let mut call = Call::object(method, &address.bucket, address.key.as_str());
        call.query = version_query(address).flag("tagging");
        if !tags.is_empty() {
            let mut document = "<Tagging><TagSet>".to_owned();
            for (key, value) in tags.pairs() {
                document.push_str("<Tag><Key>");
                xml::escape(key, &mut document);
                document.push_str("</Key><Value>");
                xml::escape(value, &mut document);
                document.push_str("</Value></Tag>");
            }
            document.push_str("</TagSet></Tagging>");
            call.payload = BufferedBody::from_buffers([Bytes::from(document)]);
        }
        self.send_versioned(context, address, &call).await?.drain().await.map(drop)
    }

    /// GetObjectTagging, without the tag of the object's class.
    pub(super) async fn read_tags(&self, context: &Context, address: &Address) -> Result<Tags> {
        let mut call = Call::object(Method::GET, &address.bucket, address.key.as_str());
        call.query = version_query(address).flag("tagging");
        call.caller_holds_connection = true;
        let document = self.send_versioned(context, address, &call).await?;
        let document = document.collect(MAX_RESPONSE_BYTES).await?;
        let (mut pairs, mut key, mut value) = (Vec::new(), String::new(), String::new());
        TAGS.for_each_element(&document, |path, text| match path {
            [.., "Tag", "Key"] => key = text.to_owned(),
            [.., "Tag", "Value"] => value = text.to_owned(),
            [.., "Tag"] => pairs.push((std::mem::take(&mut key), std::mem::take(&mut value))),
            _ => {}
        })?;
        Tags::new(self.mapped_classes.without_tag(pairs))
    }
}
