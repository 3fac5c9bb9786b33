//! Reading: head, get, and what both say of an object.

use http::header::RANGE;
use http::{HeaderValue, Method, StatusCode};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartInfo, PartNumber};
use tradewind_core::store::{Found, GetRequest, Select};
use tradewind_core::{Address, Body, ByteRange, ChecksumScope, Context, ETag, ObjectInfo, Span, Timestamp};

use super::S3Store;
use super::headers::{self, Whose};
use super::xml::DocumentKind;
use crate::remote::answer::{Answer, Sum};
use crate::remote::client::Call;
use crate::remote::fields;
use crate::remote::query::Query;

/// Parts on a page, at the most, and the size of a page as XML.
const MOST_PARTS: usize = 1000;
const MOST_PARTS_BYTES: usize = 1 << 20;
/// Under the name that Amazon sends, and the one in its documentation.
const ATTRIBUTES: DocumentKind = DocumentKind {
    name: "attributes of an object",
    roots: &["GetObjectAttributesResponse", "GetObjectAttributesOutput"],
};
const MD5_OF_NOTHING: [u8; 16] = 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e_u128.to_be_bytes();

impl S3Store {
    /// HeadObject.
    pub(super) async fn read_head(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<Found<()>> {
        let answer = match self.ask(context, address, request, Method::HEAD).await {
            // An answer to HEAD has no body to say which of the two is not there.
            Err(e) if e.reason() == Reason::NoSuchKey => {
                self.send(context, &Call::bucket(Method::HEAD, &address.bucket)).await?;
                return Err(e);
            }
            answered => answered?,
        };
        let (info, span) = self.describe(context, address, request, &answer).await?;
        if let Select::Range(range) = request.select {
            range.resolve(info.size)?;
        }
        let observation = answer.observation.clone();
        // Reads the end of nothing, so that the connection is free for others.
        answer.collect(0).await?;
        Ok(Found { info, span, body: (), observation })
    }

    /// GetObject.
    pub(super) async fn read_bytes(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<Found<Body>> {
        let answer = self.ask(context, address, request, Method::GET).await?;
        let (info, span) = self.describe(context, address, request, &answer).await?;
        let length =
            answer.length().ok_or_else(|| Error::new(Reason::Io, "the store's answer has no length"))?;
        if length != span.length {
            return Err(Error::new(
                Reason::Io,
                format!("the store answered {length} bytes where {} were asked for", span.length),
            ));
        }
        let is_whole = span == Span::whole(info.size) && info.scope == ChecksumScope::FullObject;
        let expected = match request.select {
            Select::Part(_) if info.parts.is_some() => headers::checksum_of_part(&answer.head.headers)?,
            _ => info.checksums.first().copied().filter(|_| is_whole),
        };
        let observation = answer.observation.clone();
        let body = answer.into_body(context.clone(), length, expected.map(Sum::Checksum))?;
        if length == 0 && expected.is_none() {
            self.confirm_empty(context, address, request, &info).await?;
        }
        Ok(Found { info, span, body, observation })
    }

    /// Looks at the object's head where an answer without bytes carries no checksum of them: a body that got lost on the
    /// way looks the same. The tag that is the MD5 of nothing is proof enough.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if the object has bytes, [`InvalidRange`](Reason::InvalidRange) if it has none and a range was
    /// asked for.
    async fn confirm_empty(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        info: &ObjectInfo,
    ) -> Result<()> {
        if request.select == Select::Whole && info.etag.md5() == Some(MD5_OF_NOTHING) {
            return Ok(());
        }
        let select = match request.select {
            Select::Range(_) => Select::Whole,
            select => select,
        };
        let head = GetRequest { select, ..GetRequest::default() };
        // Boxed: it is hardly ever asked.
        let there = Box::pin(self.read_head(context, address, &head)).await?.span.length;
        if there > 0 {
            return Err(Error::new(Reason::Io, format!("the store answered no bytes of {there}")));
        }
        match request.select {
            Select::Range(range) => range.resolve(0).map(drop),
            Select::Whole | Select::Part(_) => Ok(()),
        }
    }

    pub(super) async fn ask(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        method: Method,
    ) -> Result<Answer> {
        if request.select == Select::Range(ByteRange::Suffix(0)) {
            // Not all stores find it unsatisfiable: radosgw answers the whole.
            self.judge(context, address, &request.conditions).await?;
            return Err(Error::new(Reason::InvalidRange, "a range of no bytes cannot be satisfied"));
        }
        let select = self.settle_select(context, address, request).await?;
        let conditions = self.settle(context, address, &request.conditions).await?;
        let mut call = Call::object(method, &address.bucket, address.key.as_str());
        call.headers.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        headers::write_conditions(&conditions, Whose::Own, &mut call.headers)?;
        match select {
            Select::Whole => {}
            Select::Range(range) => drop(call.headers.insert(RANGE, fields::range(range))),
            Select::Part(number) => {
                call.query = Query::default().with("partNumber", &number.get().to_string())
            }
        }
        self.send(context, &call).await
    }

    /// What an answer says of its object, and which bytes of it were selected.
    async fn describe(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        answer: &Answer,
    ) -> Result<(ObjectInfo, Span)> {
        let answered = &answer.head.headers;
        let length =
            answer.length().ok_or_else(|| Error::new(Reason::Io, "the store's answer has no length"))?;
        let is_partial = answer.head.status == StatusCode::PARTIAL_CONTENT;
        let (span, size) = match fields::content_range(answered)? {
            Some(found) if is_partial => found,
            // Without a place its length would be taken for the object's.
            None if is_partial => {
                let why = "the store answered a part of the object and did not say which";
                return Err(Error::new(Reason::Io, why));
            }
            _ => (Span::whole(length), length),
        };
        let mut metadata = headers::read_metadata(answered)?;
        if headers::has_tags(answered) {
            metadata.tags = Box::pin(self.read_tags(context, address)).await?;
        }
        let (mut checksums, scope) = headers::checksums(answered)?;
        let (etag, modified) = (fields::etag(answered)?, headers::modified(answered)?);
        let parts = etag.as_str().rsplit_once('-').and_then(|(_, parts)| parts.parse().ok());
        let is_asked_for = match request.select {
            Select::Whole => span == Span::whole(size),
            // Of nothing there is no range; some services answer one nevertheless.
            Select::Range(range) => size == 0 || range.resolve(size).is_ok_and(|asked| asked == span),
            Select::Part(_) => is_partial || size == 0 || parts.is_none_or(|parts: u32| parts <= 1),
        };
        if !is_asked_for {
            let (select, Span { offset, length }) = (request.select, span);
            let why = format!(
                "the store answered {length} bytes at {offset} of {size} where {select:?} was asked for"
            );
            return Err(Error::new(Reason::Io, why));
        }
        if matches!(request.select, Select::Part(_)) && parts.is_some() {
            // They are the part's.
            checksums.clear();
        }
        let generation = fields::generation(modified, etag.as_str());
        Ok((ObjectInfo { size, etag, modified, generation, metadata, checksums, scope, parts }, span))
    }

    /// The parts in GetObjectAttributes: their numbers, sizes and checksums, as far as the store tells. Amazon names
    /// only those of objects with a composite checksum.
    pub(super) async fn parts_of_object(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        if self.is_ceph(context).await? {
            // It knows no attributes, and would answer the object.
            self.read_head(context, address, &GetRequest::default()).await?;
            return Ok((Vec::new(), false));
        }
        let mut call = Call::object(Method::GET, &address.bucket, address.key.as_str());
        call.query = Query::default().flag("attributes");
        call.headers.insert("x-amz-object-attributes", HeaderValue::from_static("ObjectParts"));
        call.headers.insert("x-amz-max-parts", limit.clamp(1, MOST_PARTS).into());
        if let Some(after) = after {
            call.headers.insert("x-amz-part-number-marker", after.get().into());
        }
        let document = self.send(context, &call).await?.collect(MOST_PARTS_BYTES).await?;
        let (mut parts, mut is_truncated) = (Vec::new(), false);
        let (mut number, mut size, mut checksums) = (0, 0, Vec::new());
        ATTRIBUTES.leaves(&document, |path, text| match path {
            [.., "ObjectParts", "IsTruncated"] => is_truncated = text == "true",
            [.., "ObjectParts", "Part", "PartNumber"] => number = text.parse().unwrap_or_default(),
            [.., "ObjectParts", "Part", "Size"] => size = text.parse().unwrap_or_default(),
            [.., "ObjectParts", "Part", name] => checksums.extend(headers::checksum_element(name, text)),
            [.., "ObjectParts", "Part"] => {
                let checksums = std::mem::take(&mut checksums);
                if let Ok(number) = PartNumber::new(number) {
                    let (etag, modified) = (ETag::from_tag(""), Timestamp::default());
                    parts.push(PartInfo { number, size, etag, modified, checksums });
                }
            }
            _ => {}
        })?;
        if limit == 0 {
            return Ok((Vec::new(), !parts.is_empty()));
        }
        Ok((parts, is_truncated))
    }
}
