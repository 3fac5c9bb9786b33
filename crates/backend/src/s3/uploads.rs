//! Multipart uploads: creating, completing and aborting them, and listing their parts.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::DATE;
use http::{HeaderValue, Method};
use md5::{Digest as _, Md5};
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::multipart::{
    CompletePart, CompleteUpload, CreateUpload, PartInfo, PartNumber, PartsPage, UploadId, UploadInfo,
};
use tradewind_core::object::Committed;
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, Context, ETag, Metadata, Precondition};
use tradewind_model::retry::Attempts;
use tradewind_wire::headers::CHECKSUM_TYPE;

use super::S3Store;
use super::ambiguous_outcome::{IdentifiedWrite, VersionFilter};
use super::checksum_headers::{HeaderKind, names_checksum_header};
use super::dialect::Dialect;
use super::headers::{self, ResponseChecksums, WRITE_ID};
use super::list::MAX_PAGE_BYTES;
use super::partial_part::{PartialPart, invalid_part_error};
use super::repeats::ChangeGuard;
use super::service_error::ServiceError;
use super::upload_cache::{CachedPart, UploadProperties};
use super::versions::version_id;
use super::xml::{self, DocumentKind};
use crate::remote::client::{Call, RepeatGuard as _, ResourceKind};
use crate::remote::header_fields::{self, generation};
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::payload::BufferedBody;
use crate::remote::query::Query;

const COMPLETION: DocumentKind =
    DocumentKind { name: "a completed upload", roots: &["CompleteMultipartUploadResult", "Error"] };
const PARTS: DocumentKind = DocumentKind { name: "a list of parts", roots: &["ListPartsResult"] };

impl S3Store {
    /// CreateMultipartUpload. The upload has no checksum algorithm if the service refuses checksum headers. If it refuses
    /// only trailers, the parts have their checksums in headers.
    pub(super) async fn start_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        request.check()?;
        let mut call = Call::object(Method::POST, &address.bucket, address.key.as_str());
        call.query = Query::default().flag("uploads");
        // The upload of an attempt whose response was lost stays, without parts. It is not aborted: it cannot be
        // distinguished from the upload of another client that has not sent a part yet.
        call.may_repeat = true;
        self.prepare_classes(context, &request.metadata).await?;
        self.write_metadata(&request.metadata, &mut call.headers)?;
        // The completed object gets this id. Two attempts of this request create two uploads with the same id, and one
        // of them is completed.
        IdentifiedWrite::add_id(self, address, &Precondition::None, &mut call.headers)?;
        if let Some((algorithm, scope)) = request.checksum {
            call.headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
            call.headers.insert(CHECKSUM_TYPE, HeaderValue::from_static(scope.name()));
        }
        let response = self.send(context, &call).await?;
        let checksum = request.checksum.filter(|_| response.omitted_checksums.is_none());
        let verifies_checksums = response.header("x-amz-checksum-algorithm").is_some();
        if checksum.is_some() {
            self.set_verifies_checksums(verifies_checksums);
        }
        let document = response.collect(MAX_PAGE_BYTES).await?;
        let mut id = String::new();
        xml::for_each_element(&document, |path, text| {
            if let [_, "UploadId"] = path {
                id = text.to_owned();
            }
        })?;
        if id.is_empty() {
            return Err(Error::new(Reason::Io, "the store created an upload without an UploadId"));
        }
        let id = UploadId(id);
        let Metadata { tags, classes, .. } = request.metadata;
        let tags = self.mapped_classes.with_tag(tags, classes.object)?;
        let algorithm = checksum.map(|(algorithm, _)| algorithm);
        let write_id = call.headers.get(WRITE_ID).cloned();
        let properties = UploadProperties { algorithm, verifies_checksums, tags, write_id };
        self.uploads.lock().insert(&id, properties);
        Ok(id)
    }

    /// The checksum algorithm of an upload's parts; S3 rejects a part with another one.
    pub(super) async fn part_checksum_algorithm(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<Option<Algorithm>> {
        let cached = self.uploads.lock().get(upload).map(|upload| upload.algorithm);
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let page = self.parts_page(context, address, upload, None, 1).await?;
        let algorithm = page.upload.checksum.map(|(algorithm, _)| algorithm);
        let verifies_checksums = algorithm.is_some();
        let properties = UploadProperties { algorithm, verifies_checksums, ..UploadProperties::default() };
        self.uploads.lock().insert(upload, properties);
        Ok(algorithm)
    }

    /// Returns true if the parts and the completion of a cached upload have no checksums.
    pub(super) fn omits_checksums_of(&self, upload: &UploadId) -> bool {
        self.uploads.lock().get(upload).is_some_and(|cached| cached.algorithm.is_none())
    }

    /// Omits checksums from an upload, because the service has refused them in a part.
    pub(super) fn omit_checksums_of(&self, upload: &UploadId) {
        self.uploads.lock().omit_checksums(upload);
    }

    /// Returns true if the service has named the algorithm of an upload, so that it verifies the checksums of parts.
    pub(super) fn verifies_checksums_of(&self, upload: &UploadId) -> bool {
        self.uploads.lock().get(upload).is_some_and(|cached| cached.verifies_checksums)
    }

    /// Returns true if the completion of an upload has no checksums, because its parts have none.
    ///
    /// # Errors
    /// Those of the list of parts that may pass.
    async fn completes_without_checksums(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<bool> {
        match self.part_checksum_algorithm(context, address, upload).await {
            Ok(algorithm) => Ok(algorithm.is_none()),
            Err(e) if e.kind().is_retryable() => Err(e),
            Err(e) => {
                // The credentials may not list parts, or the completion has succeeded before.
                tracing::debug!(error = %e, upload = %upload.0, "cannot determine the algorithm of an upload");
                Ok(self.omits_headers(HeaderKind::Write))
            }
        }
    }

    /// Caches a stored part, to verify the checksum of the completed object.
    pub(super) fn cache_part(&self, upload: &UploadId, number: PartNumber, part: &Committed) {
        let Some(checksum) = part.checksums.first().copied() else { return };
        let part = CachedPart { etag: part.etag.clone(), size: part.size, checksum };
        self.uploads.lock().insert_part(upload, number, part);
    }

    /// AbortMultipartUpload.
    pub(super) async fn abort(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.uploads.lock().remove(upload);
        let call = upload_call(Method::DELETE, address, upload, Query::default());
        self.send(context, &call).await?.collect(MAX_PAGE_BYTES).await.map(drop)
    }

    /// Completes an upload. If the response is lost, the store is queried: the completion succeeded if the upload is
    /// gone and the object matches its parts. If the upload still exists, the completion is sent again.
    pub(super) async fn complete_upload_checked(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: CompleteUpload,
    ) -> Result<Committed> {
        self.check_write_condition(context, &completion.precondition).await?;
        self.check_completion(context, address, upload, &completion).await?;
        let completion = self.with_part_checksums(context, address, upload, completion).await?;
        let completed = self.complete_with_retries(context, address, upload, &completion).await?;
        let cached = self.uploads.lock().remove(upload);
        let tags = cached.map(|upload| upload.tags).filter(|tags| !tags.is_empty());
        if let Some(tags) = tags
            && self.is_ceph(context).await?
        {
            let created = address.clone().with_version(completed.version.clone());
            self.write_tags(context, &created, tags).await?;
        }
        Ok(completed)
    }

    /// Adds the checksums of parts for which the completion has none: S3 requires them for a composite checksum. They
    /// are those of the cached parts, otherwise those that the service lists.
    async fn with_part_checksums(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        mut completion: CompleteUpload,
    ) -> Result<CompleteUpload> {
        let lacks_checksum =
            |completion: &CompleteUpload| completion.parts.iter().any(|part| part.checksum.is_none());
        if !lacks_checksum(&completion) {
            return Ok(completion);
        }
        let Some(algorithm) = self.part_checksum_algorithm(context, address, upload).await? else {
            return Ok(completion);
        };
        self.uploads.lock().add_part_checksums(upload, algorithm, &mut completion);
        let mut after = None;
        while lacks_checksum(&completion) {
            let page = self.parts_page(context, address, upload, after, MAX_PAGE_ENTRIES).await?;
            for part in &page.parts {
                let Ok(at) = completion.parts.binary_search_by_key(&part.number, |named| named.number) else {
                    continue;
                };
                let named = &mut completion.parts[at];
                if named.checksum.is_none() && named.etag == part.etag {
                    named.checksum = part.checksums.iter().find(|c| c.algorithm() == algorithm).copied();
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(completion)
    }

    /// Sends a completion until its outcome is known, or no attempts are left.
    async fn complete_with_retries(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: &CompleteUpload,
    ) -> Result<Committed> {
        let mut attempts = Attempts::new();
        let mut is_lost = false;
        loop {
            let error = match self.complete_when_free(context, address, upload, completion).await {
                Ok(completed) => return Ok(completed),
                Err(error) => error,
            };
            let is_transient = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy);
            // An earlier attempt may have succeeded.
            let is_outdated = is_lost
                && (error.reason() == Reason::NoSuchUpload || error.kind() == ErrorKind::Precondition);
            if !is_transient && !is_outdated {
                return Err(error);
            }
            is_lost = true;
            if let Some(completed) = self.find_completed_object(context, address, upload, completion).await {
                return Ok(completed);
            }
            let guard = ChangeGuard::new(self, context, &address.bucket);
            if is_outdated && !guard.may_repeat().await {
                // The upload is gone, so that the version exists, but cannot be named.
                return Err(guard.unknown_outcome_error(error));
            }
            let may_succeed = matches!(error.reason(), Reason::Io | Reason::Overloaded);
            if is_outdated || error.is_final() || !may_succeed {
                return Err(error);
            }
            if self.is_ceph(context).await? && !guard.may_repeat().await {
                // radosgw may complete an upload twice.
                return Err(guard.unknown_outcome_error(error));
            }
            self.client.wait_after(context, error, None, &mut attempts).await?;
        }
    }

    /// Completes an upload, and waits while another request completes it: radosgw rejects concurrent completions, with
    /// the same error as for an upload that does not exist.
    async fn complete_when_free(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: &CompleteUpload,
    ) -> Result<Committed> {
        let mut attempt = 1;
        loop {
            match self.send_completion(context, address, upload, completion).await {
                Err(e) if is_being_completed(&e) && attempt < self.client.retry_options.max_attempts => {
                    match self.parts_page(context, address, upload, None, 1).await {
                        Err(error) if error.reason() == Reason::NoSuchUpload => {
                            return self
                                .find_completed_object(context, address, upload, completion)
                                .await
                                .ok_or(error);
                        }
                        _ => attempt += 1,
                    }
                    self.client.backoff(context, attempt).await?;
                }
                completed => return completed,
            }
        }
    }

    /// Checks what not every service checks: the order of the parts and, for radosgw, their total size.
    async fn check_completion(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: &CompleteUpload,
    ) -> Result<()> {
        if !completion.parts.is_sorted_by(|one, next| one.number < next.number) {
            // A missing upload takes precedence.
            self.parts_page(context, address, upload, None, 1).await?;
            return Err(Error::new(Reason::InvalidPartOrder, "parts must be listed in ascending order"));
        }
        let Some(expected) = completion.expected_size else { return Ok(()) };
        if !self.is_ceph(context).await? {
            return Ok(());
        }
        let (mut size, mut after) = (0, None);
        loop {
            let page = self.parts_page(context, address, upload, after, MAX_PAGE_ENTRIES).await?;
            let is_listed = |part: &&PartInfo| {
                completion.parts.binary_search_by_key(&part.number, |listed| listed.number).is_ok()
            };
            size += page.parts.iter().filter(is_listed).map(|part| part.size).sum::<u64>();
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if size != expected {
            let why = format!("the parts have {size} bytes, not {expected}");
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }

    /// The object, if it was certainly created by this upload.
    async fn find_completed_object(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: &CompleteUpload,
    ) -> Option<Committed> {
        match self.parts_page(context, address, upload, None, 1).await {
            Err(e) if e.reason() == Reason::NoSuchUpload => {}
            _ => return None,
        }
        let created = match ChangeGuard::new(self, context, &address.bucket).may_repeat().await {
            true => address.clone(),
            false => self.find_completed_version(context, address, upload, completion).await?,
        };
        let info = self.read_head(context, &created, &GetRequest::default()).await.ok()?.info;
        let has_checksum = info.scope == ChecksumScope::FullObject
            && completion.expected_checksum.is_some_and(|expected| info.checksums.contains(&expected));
        let has_etag = || multipart_etag(&completion.parts).as_ref() == Some(&info.etag);
        // A version that is named has already been compared with the upload.
        let is_same = completion.expected_size.is_none_or(|size| info.size == size)
            && (created.version.is_some() || has_checksum || has_etag());
        is_same.then_some(Committed {
            etag: info.etag,
            size: info.size,
            modified: info.modified,
            generation: info.generation,
            checksums: info.checksums,
            scope: info.scope,
            version: info.version,
            source_version: None,
        })
    }

    /// The version that was certainly created by this upload, in a bucket that keeps versions; the current object if
    /// versions cannot be listed.
    async fn find_completed_version(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: &CompleteUpload,
    ) -> Option<Address> {
        let write_id = self.uploads.lock().get(upload).and_then(|cached| cached.write_id.clone());
        let version = if let Some(write_id) = write_id {
            let identified = IdentifiedWrite::new(write_id, completion.expected_size, None);
            let found = self.find_written(context, address, &identified, true).await.ok()??;
            match version_id(&found.response.headers) {
                Some(version) => version,
                // The bucket keeps none after all: the current object is compared with the upload.
                None => return Some(address.clone()),
            }
        } else {
            let etag = multipart_etag(&completion.parts)?;
            let filter = VersionFilter { size: completion.expected_size, etag: Some(etag) };
            match self.newest_versions(context, address, &filter).await {
                Ok(mut matching) if matching.len() == 1 => matching.pop()?,
                // Another upload has created an object of the same parts.
                Ok(_) => return None,
                Err(_) => return Some(address.clone()),
            }
        };
        Some(address.clone().with_version(Some(version)))
    }

    /// CompleteMultipartUpload. A response of status 200 may still contain an error.
    async fn send_completion(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        completion: &CompleteUpload,
    ) -> Result<Committed> {
        if completion.parts.is_empty() {
            // A missing upload takes precedence.
            self.parts_page(context, address, upload, None, 1).await?;
            return Err(Error::new(Reason::InvalidRequest, "a completion must list at least one part"));
        }
        let omits_checksums = self.completes_without_checksums(context, address, upload).await?;
        if omits_checksums && let Some(part) = self.uploads.lock().find_other_checksum(upload, completion) {
            // The service does not compare it.
            let why = format!("part {} has another checksum than the completion names", part.get());
            return Err(Error::new(Reason::InvalidPart, why));
        }
        let call = completion_call(address, upload, completion, omits_checksums)?;
        let response = match self.send_corrected(context, &call, None).await {
            Err(e) if !omits_checksums && names_checksum_header(&e) => {
                tracing::debug!(error = %e, "a completion is sent without checksums");
                let bare = completion_call(address, upload, completion, true)?;
                let response = self.send_corrected(context, &bare, None).await?;
                self.prove_refusal(HeaderKind::Write);
                self.omit_checksums_of(upload);
                response
            }
            sent => sent?,
        };
        let (status, date) =
            (response.head.status, header_fields::parse_date(&response.head.headers, &DATE)?);
        let version = version_id(&response.head.headers);
        let document = response.collect(MAX_PAGE_BYTES).await?;
        let (mut etag, mut checksums) = (None, ResponseChecksums::default());
        let mut is_error = false;
        COMPLETION.for_each_element(&document, |path, text| match path {
            ["Error"] => is_error = true,
            [_, "ETag"] => etag = Some(ETag::from_text(text)),
            [_, name] => checksums.read(name, text),
            _ => {}
        })?;
        if is_error {
            let what = format!("completing the upload of {}", address.key);
            return Err(ServiceError::parse_body(&document).into_error(status, ResourceKind::Upload, &what));
        }
        let (checksums, scope) = checksums.finish();
        self.verify_completed(upload, completion, &checksums, scope)?;
        let modified = date.unwrap_or_else(|| self.client.clock.wall());
        let (etag, size) = match (etag.filter(|etag| !etag.as_str().is_empty()), completion.expected_size) {
            (Some(etag), Some(size)) => (etag, size),
            // radosgw's response does not describe the object.
            (etag, _) => {
                let info = self.read_head(context, address, &Default::default()).await?.info;
                (etag.unwrap_or(info.etag), info.size)
            }
        };
        let generation = generation(modified, etag.as_str());
        Ok(Committed { etag, size, modified, generation, checksums, scope, version, source_version: None })
    }

    /// Verifies the completed object's checksums against those of its parts.
    ///
    /// # Errors
    /// [`CorruptData`](Reason::CorruptData) if one differs. The object exists already, but is not what was sent.
    fn verify_completed(
        &self,
        upload: &UploadId,
        completion: &CompleteUpload,
        checksums: &[Checksum],
        scope: ChecksumScope,
    ) -> Result<()> {
        let uploads = self.uploads.lock();
        for found in checksums {
            let expected = uploads.object_checksum(upload, completion, found.algorithm(), scope);
            if let Some(expected) = expected.filter(|expected| expected != found) {
                let scope = scope.name();
                let why = format!(
                    "checksum mismatch: the completed object has {found:?}, its parts give {expected:?} ({scope})"
                );
                return Err(Error::new(Reason::CorruptData, why));
            }
        }
        Ok(())
    }

    /// ListParts.
    pub(super) async fn parts_page(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        let after = after.map(|number| number.get().to_string());
        let query = Query::default()
            .with("max-parts", &limit.clamp(1, MAX_PAGE_ENTRIES).to_string())
            .with_optional("part-number-marker", after.as_deref());
        let call = upload_call(Method::GET, address, upload, query);
        let document = match self.send(context, &call).await {
            Err(e) if e.reason() == Reason::NoSuchKey => {
                // radosgw's error for an upload that does not exist.
                return Err(Error::no_such_upload(&upload.0));
            }
            sent => sent?.collect(MAX_PAGE_BYTES).await?,
        };
        let mut page = PartsPage {
            upload: UploadInfo {
                id: upload.clone(),
                key: address.key.to_string(),
                initiated: None,
                metadata: Metadata::default(),
                checksum: None,
            },
            parts: Vec::new(),
            next: None,
        };
        let (mut part, mut is_truncated, mut is_incomplete) = (PartialPart::default(), false, false);
        let (mut algorithm, mut scope) = (None, None);
        PARTS.for_each_element(&document, |path, text| match path {
            [_, "IsTruncated"] => is_truncated = text == "true",
            [_, "ChecksumAlgorithm"] => algorithm = text.parse().ok(),
            [_, "ChecksumType"] => scope = text.parse().ok(),
            [_, "StorageClass"] => page.upload.metadata.headers.storage_class = headers::storage_class(text),
            [_, "Part", name] => part.read(name, text),
            [_, "Part"] => match std::mem::take(&mut part).into_info() {
                Some(part) => page.parts.push(part),
                None => is_incomplete = true,
            },
            _ => {}
        })?;
        if is_incomplete {
            return Err(invalid_part_error());
        }
        if algorithm.is_some() {
            self.set_verifies_checksums(true);
        }
        page.upload.checksum =
            algorithm.map(|algorithm| (algorithm, scope.unwrap_or(ChecksumScope::Composite)));
        page.next = page.parts.last().map(|part| part.number).filter(|_| is_truncated);
        if limit == 0 {
            page.parts.clear();
        }
        Ok(page)
    }
}

/// The ETag of an object made of these parts; `None` unless every part's ETag is an MD5.
fn multipart_etag(parts: &[CompletePart]) -> Option<ETag> {
    let tags: Option<Vec<[u8; 16]>> = parts.iter().map(|part| part.etag.md5()).collect();
    Some(ETag::from_parts(&Md5::digest(tags?.concat()).into(), parts.len()))
}

/// Returns true for radosgw's error if the upload is being completed concurrently, or does not exist.
fn is_being_completed(error: &Error) -> bool {
    ServiceError::from_source(error).is_some_and(|response| {
        response.dialect == Some(Dialect::Ceph)
            && response.code == "InternalError"
            && response.message.contains("completion is already in progress")
    })
}

/// The request of a completion.
fn completion_call<'a>(
    address: &'a Address,
    upload: &UploadId,
    completion: &CompleteUpload,
    omits_checksums: bool,
) -> Result<Call<'a>> {
    let mut document = "<CompleteMultipartUpload>".to_owned();
    for part in &completion.parts {
        let _ = write!(document, "<Part><PartNumber>{}</PartNumber><ETag>", part.number.get());
        xml::escape(&format!("\"{}\"", part.etag), &mut document);
        document.push_str("</ETag>");
        if let Some(checksum) = part.checksum.filter(|_| !omits_checksums) {
            let name = checksum.algorithm().name();
            let _ = write!(document, "<Checksum{name}>{}</Checksum{name}>", checksum.to_base64());
        }
        document.push_str("</Part>");
    }
    document.push_str("</CompleteMultipartUpload>");
    let mut call = upload_call(Method::POST, address, upload, Query::default());
    call.may_repeat = false;
    call.is_long_running = true;
    call.payload = BufferedBody::from_buffers([Bytes::from(document)]);
    headers::write_precondition(&completion.precondition, &mut call.headers)?;
    if let Some(checksum) = completion.expected_checksum.filter(|_| !omits_checksums) {
        let value = header_fields::header_value(&checksum.to_base64())?;
        call.headers.insert(checksum.algorithm().header(), value);
    }
    if let Some(size) = completion.expected_size {
        call.headers.insert("x-amz-mp-object-size", size.into());
    }
    Ok(call)
}

fn upload_call<'a>(method: Method, address: &'a Address, upload: &UploadId, query: Query) -> Call<'a> {
    let mut call = Call::object(method, &address.bucket, address.key.as_str());
    call.resource = ResourceKind::Upload;
    call.query = query.with("uploadId", &upload.0);
    call
}
