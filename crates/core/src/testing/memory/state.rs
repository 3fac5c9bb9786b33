//! The memory store's state and every operation on it, synchronous and without a lock: the
//! caller holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::class::ClassUpdate;
use crate::clock::Timestamp;
use crate::condition::Precondition;
use crate::error::{Error, Reason, Result};
use crate::listing::{self, KeyCursor, ListPage, ListRequest, ObjectSummary};
use crate::metadata::{Metadata, Tags};
use crate::multipart::{
    self, CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadInfo,
    UploadsPage,
};
use crate::name::{Address, BucketName};
use crate::object::{Committed, Generation, Identity, ObjectInfo};
use crate::range::{ByteRange, Span};
use crate::store::{CopyPartRequest, CopyRequest, Deleted, GetRequest};
use crate::stored_form::{DescriptionChange, Redescribed, StoredForm, StoredSegment};
use crate::version::{self, ListVersions, ListedVersion, VersionCursor, VersionId, Versioning, VersionsPage};

use super::object::{DigestPlan, Payload, StoredObject, etag_of_parts};

#[derive(Default)]
pub(super) struct MemoryState {
    pub closed: bool,
    pub buckets: BTreeMap<BucketName, Bucket>,
    /// The last generation and the last upload's number.
    pub last_number: u64,
}

pub(super) struct Bucket {
    pub created: Timestamp,
    versioning: Versioning,
    /// By the key's bytes; the versions of a key from the newest to the oldest, at least one.
    objects: BTreeMap<Vec<u8>, Vec<StoredVersion>>,
    /// By key, then by id: ids grow, so that this is the order of initiation.
    uploads: BTreeMap<(String, UploadId), Upload>,
}

/// A version of a key.
struct StoredVersion {
    id: VersionId,
    /// The number of the write that created it.
    number: u64,
    modified: Timestamp,
    content: Content,
}

enum Content {
    Object(Arc<StoredObject>),
    DeleteMarker,
}

impl StoredVersion {
    fn object(&self) -> Option<&Arc<StoredObject>> {
        match &self.content {
            Content::Object(object) => Some(object),
            Content::DeleteMarker => None,
        }
    }
}

impl Bucket {
    /// The versions of a key, from the newest to the oldest.
    fn versions(&self, key: &str) -> &[StoredVersion] {
        self.objects.get(key.as_bytes()).map_or(&[], Vec::as_slice)
    }

    /// The id of the version that a write with this number creates.
    fn next_version(&self, number: u64) -> VersionId {
        match self.versioning {
            Versioning::Enabled => VersionId::from_number(number),
            Versioning::Off | Versioning::Suspended => VersionId::Null,
        }
    }

    fn add_version(&mut self, key: &str, version: StoredVersion) {
        self.remove_version(key, &version.id);
        self.objects.entry(key.into()).or_default().insert(0, version);
    }

    fn remove_version(&mut self, key: &str, id: &VersionId) -> Option<StoredVersion> {
        let versions = self.objects.get_mut(key.as_bytes())?;
        let index = versions.iter().position(|version| version.id == *id)?;
        let removed = versions.remove(index);
        if versions.is_empty() {
            self.objects.remove(key.as_bytes());
        }
        Some(removed)
    }
}

pub(super) struct Upload {
    info: UploadInfo,
    parts: BTreeMap<PartNumber, (PartInfo, PartContent)>,
}

/// The stored bytes of a part.
#[derive(Clone)]
struct PartContent {
    bytes: Bytes,
    /// The description of their transformation; empty if they are not transformed.
    description: Vec<u8>,
}

impl Upload {
    /// The checksum that every part needs, so that the object's can be computed from them.
    pub fn algorithm(&self) -> Algorithm {
        self.info.checksum.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm)
    }
}

/// Buckets.
impl MemoryState {
    pub fn create_bucket(&mut self, name: &BucketName, now: Timestamp) -> Result<()> {
        if self.buckets.contains_key(name) {
            return Err(Error::new(Reason::BucketExists, format!("bucket {name:?} exists already")));
        }
        let bucket = Bucket {
            created: now,
            versioning: Versioning::Off,
            objects: BTreeMap::new(),
            uploads: BTreeMap::new(),
        };
        self.buckets.insert(name.clone(), bucket);
        Ok(())
    }

    pub fn delete_bucket(&mut self, name: &BucketName) -> Result<()> {
        if !self.bucket(name)?.objects.is_empty() {
            return Err(Error::new(Reason::BucketNotEmpty, format!("bucket {name:?} holds objects")));
        }
        self.buckets.remove(name);
        Ok(())
    }

    pub fn bucket(&self, name: &BucketName) -> Result<&Bucket> {
        self.buckets.get(name).ok_or_else(|| Error::no_such_bucket(name.as_str()))
    }

    fn bucket_mut(&mut self, name: &BucketName) -> Result<&mut Bucket> {
        self.buckets.get_mut(name).ok_or_else(|| Error::no_such_bucket(name.as_str()))
    }

    fn next(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// Objects.
impl MemoryState {
    pub fn object(&self, address: &Address) -> Result<Arc<StoredObject>> {
        let key = address.key.as_str();
        let bucket = self.bucket(&address.bucket)?;
        let versions = bucket.versions(key);
        let found = match &address.version {
            None => versions.first().ok_or_else(|| Error::no_such_key(key))?,
            Some(id) => {
                id.check_numbered()?;
                let found = versions.iter().find(|version| version.id == *id);
                found.ok_or_else(|| Error::no_such_version(key, id))?
            }
        };
        match (&found.content, &address.version) {
            (Content::Object(object), _) => Ok(object.clone()),
            (Content::DeleteMarker, None) => Err(Error::deleted(key, found.id.clone())),
            (Content::DeleteMarker, Some(_)) => {
                Err(Error::is_a_delete_marker(key, found.id.clone(), Some(found.modified)))
            }
        }
    }

    /// Returns `Ok` if the bucket exists and the condition on the current version holds.
    fn check(&self, address: &Address, precondition: &Precondition) -> Result<()> {
        let key = address.key.as_str();
        let current = self.bucket(&address.bucket)?.versions(key).first().and_then(StoredVersion::object);
        precondition.check(key, current.map(|o| (&o.info.etag, o.info.generation)))
    }

    /// Adds an object as the newest version of its key.
    fn add(&mut self, address: &Address, mut object: StoredObject) -> Result<Committed> {
        let bucket = self.bucket_mut(&address.bucket)?;
        let number = object.info.generation.0;
        let id = bucket.next_version(number);
        object.info.version = (bucket.versioning != Versioning::Off).then(|| id.clone());
        let (committed, modified) = (object.committed(), object.info.modified);
        bucket.add_version(
            address.key.as_str(),
            StoredVersion { id, number, modified, content: Content::Object(Arc::new(object)) },
        );
        Ok(committed)
    }

    pub fn put(
        &mut self,
        address: &Address,
        payload: Payload,
        metadata: Metadata,
        precondition: &Precondition,
        now: Timestamp,
    ) -> Result<Committed> {
        self.check(address, precondition)?;
        let generation = Generation(self.next());
        self.add(address, payload.into_object(generation, now, metadata))
    }

    pub fn delete(
        &mut self,
        address: &Address,
        precondition: &Precondition,
        now: Timestamp,
    ) -> Result<Deleted> {
        self.check(address, precondition)?;
        let key = address.key.as_str();
        let number = self.next();
        let bucket = self.bucket_mut(&address.bucket)?;
        if let Some(id) = &address.version {
            id.check_numbered()?;
            let removed = bucket.remove_version(key, id);
            return Ok(Deleted {
                existed: removed.is_some(),
                version: Some(id.clone()),
                is_delete_marker: removed.is_some_and(|version| version.object().is_none()),
            });
        }
        let existed = bucket.versions(key).first().is_some_and(|version| version.object().is_some());
        if bucket.versioning == Versioning::Off {
            bucket.remove_version(key, &VersionId::Null);
            return Ok(Deleted { existed, ..Deleted::default() });
        }
        let id = bucket.next_version(number);
        bucket.add_version(
            key,
            StoredVersion { id: id.clone(), number, modified: now, content: Content::DeleteMarker },
        );
        Ok(Deleted { existed, version: Some(id), is_delete_marker: true })
    }

    pub fn versioning(&self, bucket: &BucketName) -> Result<Versioning> {
        Ok(self.bucket(bucket)?.versioning)
    }

    pub fn set_versioning(&mut self, bucket: &BucketName, versioning: Versioning) -> Result<()> {
        let bucket = self.bucket_mut(bucket)?;
        if versioning == Versioning::Off && bucket.versioning != Versioning::Off {
            return Err(Error::for_client(
                Reason::InvalidRequest,
                "versioning can only be suspended once it was enabled",
            ));
        }
        bucket.versioning = versioning;
        Ok(())
    }

    pub fn copy(&mut self, request: &CopyRequest, now: Timestamp) -> Result<Committed> {
        let source = self.object(&request.source)?;
        let source_version = self.version_of(&request.source, &source)?;
        let get = GetRequest { conditions: request.source_conditions.clone(), ..GetRequest::default() };
        let (_, bytes) = source.read(request.source.key.as_str(), &get)?;
        let algorithms = match request.algorithm {
            Some(algorithm) => vec![algorithm],
            None => source.info.checksums.iter().map(Checksum::algorithm).collect(),
        };
        let payload = Payload::new(bytes, &DigestPlan { algorithms, verify_md5: false, etag: request.etag });
        let mut metadata =
            request.metadata.clone().unwrap_or_else(|| source.info.metadata.clone().for_copy());
        metadata.tags = request.tags.clone().unwrap_or_else(|| source.info.metadata.tags.clone());
        let committed = self.put(&request.destination, payload, metadata, &request.precondition, now)?;
        Ok(Committed { source_version, ..committed })
    }

    pub fn set_tags(&mut self, address: &Address, tags: Tags) -> Result<()> {
        let metadata = Metadata { tags, ..self.object(address)?.info.metadata.clone() };
        self.set_metadata(address, metadata)
    }

    pub fn set_classes(&mut self, address: &Address, update: &ClassUpdate) -> Result<()> {
        let info = self.object(address)?.info.clone();
        let classes = update.apply(&info.metadata.classes, info.size)?;
        self.set_metadata(address, Metadata { classes, ..info.metadata })
    }

    pub fn redescribe(&mut self, address: &Address, change: &dyn DescriptionChange) -> Result<Redescribed> {
        let info = self.object(address)?.info.clone();
        let segments = info.stored.map(|stored| stored.segments.to_vec()).unwrap_or_default();
        let redescribed = Redescribed::apply(segments, change)?;
        if redescribed.changed > 0 {
            let segments = redescribed.segments.clone().into();
            self.rewrite(address, |info| info.stored = Some(StoredForm { segments }))?;
        }
        Ok(redescribed)
    }

    fn set_metadata(&mut self, address: &Address, metadata: Metadata) -> Result<()> {
        self.rewrite(address, |info| info.metadata = metadata)
    }

    /// Creates a new generation, because metadata differs, with the bytes, entity tag and time of the old one.
    fn rewrite(&mut self, address: &Address, change: impl FnOnce(&mut ObjectInfo)) -> Result<()> {
        let object = self.object(address)?;
        let mut info = object.info.clone();
        change(&mut info);
        info.generation = Generation(self.next());
        let changed = StoredObject { info, bytes: object.bytes.clone(), parts: object.parts.clone() };
        let versions = self.bucket_mut(&address.bucket)?.objects.get_mut(address.key.as_str().as_bytes());
        for version in versions.into_iter().flatten() {
            if version.object().is_some_and(|stored| Arc::ptr_eq(stored, &object)) {
                version.content = Content::Object(Arc::new(changed));
                break;
            }
        }
        Ok(())
    }

    pub fn list(&self, bucket: &BucketName, request: &ListRequest) -> Result<ListPage<ObjectSummary>> {
        let objects = &self.bucket(bucket)?.objects;
        listing::page(&mut Cursor { objects, at: Vec::new() }, request)
    }

    pub fn list_versions(&self, bucket: &BucketName, request: &ListVersions) -> Result<VersionsPage> {
        let objects = &self.bucket(bucket)?.objects;
        version::page_versions(&mut VersionsCursor { objects, at: Vec::new(), index: 0 }, request)
    }

    /// The version of an object that was found at an address; `None` in a bucket that was never versioned.
    pub fn version_of(&self, address: &Address, object: &StoredObject) -> Result<Option<VersionId>> {
        let is_versioned = self.bucket(&address.bucket)?.versioning != Versioning::Off;
        Ok(is_versioned.then(|| object.info.version.clone().unwrap_or(VersionId::Null)))
    }
}

/// Multipart uploads.
impl MemoryState {
    pub fn create_upload(
        &mut self,
        address: &Address,
        request: CreateUpload,
        now: Timestamp,
    ) -> Result<UploadId> {
        request.check()?;
        self.bucket(&address.bucket)?;
        let id = UploadId(crate::token::letters(self.next()));
        let key = address.key.as_str().to_owned();
        let info = UploadInfo {
            id: id.clone(),
            key: key.clone(),
            initiated: Some(now),
            metadata: request.metadata,
            checksum: request.checksum,
        };
        let uploads = &mut self.bucket_mut(&address.bucket)?.uploads;
        uploads.insert((key, id.clone()), Upload { info, parts: BTreeMap::new() });
        Ok(id)
    }

    pub fn upload(&self, address: &Address, id: &UploadId) -> Result<&Upload> {
        let uploads = &self.bucket(&address.bucket)?.uploads;
        uploads.get(&upload_key(address, id)).ok_or_else(|| Error::no_such_upload(&id.0))
    }

    pub fn put_part(
        &mut self,
        address: &Address,
        id: &UploadId,
        number: PartNumber,
        payload: Payload,
        now: Timestamp,
    ) -> Result<Committed> {
        let generation = Generation(self.next());
        let uploads = &mut self.bucket_mut(&address.bucket)?.uploads;
        let upload = uploads.get_mut(&upload_key(address, id)).ok_or_else(|| Error::no_such_upload(&id.0))?;
        let content = PartContent { bytes: payload.bytes.clone(), description: payload.description() };
        let part = payload.into_object(generation, now, Metadata::default());
        let committed = part.committed();
        let info = PartInfo {
            number,
            size: committed.size,
            etag: committed.etag.clone(),
            modified: Some(now),
            checksums: committed.checksums.clone(),
        };
        upload.parts.insert(number, (info, content));
        Ok(committed)
    }

    pub fn copy_part(&mut self, request: &CopyPartRequest, now: Timestamp) -> Result<Committed> {
        let algorithm = self.upload(&request.destination, &request.upload)?.algorithm();
        let source = self.object(&request.source)?;
        let source_version = self.version_of(&request.source, &source)?;
        let get = GetRequest { conditions: request.source_conditions.clone(), ..GetRequest::default() };
        source.read(request.source.key.as_str(), &get)?;
        let span = match request.range {
            Some(range) => resolve_within(range, source.info.size)?,
            None => Span::whole(source.info.size),
        };
        let plan = DigestPlan { algorithms: vec![algorithm], verify_md5: false, etag: request.etag };
        let payload = Payload::new(source.slice(span), &plan);
        let committed = self.put_part(&request.destination, &request.upload, request.number, payload, now)?;
        Ok(Committed { source_version, ..committed })
    }

    pub fn redescribe_upload(
        &mut self,
        address: &Address,
        id: &UploadId,
        change: &dyn DescriptionChange,
    ) -> Result<Redescribed> {
        let uploads = &mut self.bucket_mut(&address.bucket)?.uploads;
        let upload = uploads.get_mut(&upload_key(address, id)).ok_or_else(|| Error::no_such_upload(&id.0))?;
        let segments = upload.parts.values().map(|(info, content)| segment(info, content)).collect();
        let redescribed = Redescribed::apply(segments, change)?;
        for ((_, content), segment) in upload.parts.values_mut().zip(&redescribed.segments) {
            content.description.clone_from(&segment.description);
        }
        Ok(redescribed)
    }

    pub fn list_parts(
        &self,
        address: &Address,
        id: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        let upload = self.upload(address, id)?;
        let all: Vec<PartInfo> = upload.parts.values().map(|(info, _)| info.clone()).collect();
        let (parts, more) = page_of_parts(&all, after, limit);
        let next = parts.last().filter(|_| more).map(|part| part.number);
        Ok(PartsPage { upload: upload.info.clone(), parts, next })
    }

    pub fn list_uploads(&self, bucket: &BucketName, request: &ListUploads) -> Result<UploadsPage> {
        let uploads = self.bucket(bucket)?.uploads.values().map(|upload| upload.info.clone());
        multipart::page_uploads(uploads, request, |id| crate::token::number_of_letters(&id.0))
    }

    pub fn complete_upload(
        &mut self,
        address: &Address,
        id: &UploadId,
        request: &CompleteUpload,
        now: Timestamp,
    ) -> Result<Committed> {
        let upload = self.upload(address, id)?;
        let matched = multipart::match_parts(&request.parts, |number| upload.parts.get(&number).cloned())?;
        let (parts, pieces): (Vec<PartInfo>, Vec<PartContent>) = matched.into_iter().unzip();
        let (algorithm, scope) =
            upload.info.checksum.unwrap_or((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
        let checksum = multipart::checksum_of_parts(algorithm, scope, &parts)
            .ok_or_else(|| Error::new(Reason::Defect, "a part lacks the checksum of its upload"))?;
        let size = parts.iter().map(|part| part.size).sum();
        if request.expected_size.is_some_and(|expected| expected != size) {
            return Err(Error::for_client(
                Reason::InvalidRequest,
                format!("the parts have {size} bytes in total"),
            ));
        }
        upload.info.metadata.classes.check_within(size)?;
        match request.expected_checksum {
            Some(expected) if expected.algorithm() != algorithm => {
                return Err(Error::for_client(
                    Reason::InvalidRequest,
                    "the upload has another checksum algorithm",
                ));
            }
            Some(expected) if expected != checksum => {
                return Err(Error::for_client(
                    Reason::BadDigest,
                    "the object's checksum is not the one expected",
                ));
            }
            _ => {}
        }
        let metadata = upload.info.metadata.clone();
        self.check(address, &request.precondition)?;

        let generation = Generation(self.next());
        let new = || Identity { etag: etag_of_parts(&parts, generation), modified: now };
        let Identity { etag, modified } = request.identity.clone().unwrap_or_else(new);
        let info = ObjectInfo {
            size,
            etag,
            modified,
            generation,
            metadata,
            checksums: vec![checksum],
            scope,
            parts: u32::try_from(parts.len()).ok(),
            version: None,
            stored: stored_form(&parts, &pieces),
        };
        let mut bytes = BytesMut::new();
        pieces.iter().for_each(|piece| bytes.extend_from_slice(&piece.bytes));
        self.abort_upload(address, id)?;
        self.add(address, StoredObject { info, bytes: bytes.freeze(), parts })
    }

    pub fn abort_upload(&mut self, address: &Address, id: &UploadId) -> Result<()> {
        let uploads = &mut self.bucket_mut(&address.bucket)?.uploads;
        let found = uploads.remove(&upload_key(address, id));
        found.map(drop).ok_or_else(|| Error::no_such_upload(&id.0))
    }
}

/// The stored form of an object of these parts; `None` if no part is transformed.
fn stored_form(parts: &[PartInfo], contents: &[PartContent]) -> Option<StoredForm> {
    let is_transformed = contents.iter().any(|content| !content.description.is_empty());
    let segments = || parts.iter().zip(contents).map(|(info, content)| segment(info, content));
    is_transformed.then(|| StoredForm { segments: segments().collect() })
}

fn segment(info: &PartInfo, content: &PartContent) -> StoredSegment {
    StoredSegment {
        part: Some(info.number),
        plain_bytes: info.size,
        stored_bytes: content.bytes.len() as u64,
        description: content.description.clone(),
    }
}

fn upload_key(address: &Address, id: &UploadId) -> (String, UploadId) {
    (address.key.as_str().to_owned(), id.clone())
}

/// Resolves a range that must lie within the source, as S3 requires for copied parts.
fn resolve_within(range: ByteRange, size: u64) -> Result<Span> {
    let beyond = match range {
        ByteRange::Inclusive { last, .. } => last >= size,
        ByteRange::From(_) => false,
        ByteRange::Suffix(length) => length > size,
    };
    if beyond {
        return Err(Error::for_client(
            Reason::InvalidRange,
            format!("the range ends beyond the source's {size} bytes"),
        ));
    }
    range.resolve(size)
}

/// The parts after `after`, at most `limit`, and true if there are more.
pub(super) fn page_of_parts(
    parts: &[PartInfo],
    after: Option<PartNumber>,
    limit: usize,
) -> (Vec<PartInfo>, bool) {
    let later: Vec<&PartInfo> = parts.iter().filter(|part| Some(part.number) > after).collect();
    let page: Vec<PartInfo> = later.iter().take(limit).map(|&part| part.clone()).collect();
    let more = limit > 0 && later.len() > limit;
    (page, more)
}

/// A seekable view of a bucket's keys; the lock held by the caller makes it a snapshot.
struct Cursor<'a> {
    objects: &'a BTreeMap<Vec<u8>, Vec<StoredVersion>>,
    at: Vec<u8>,
}

impl KeyCursor for Cursor<'_> {
    type Item = ObjectSummary;

    fn seek(&mut self, bytes: &[u8]) -> Result<()> {
        self.at = bytes.to_vec();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(String, ObjectSummary)>> {
        let mut current = self
            .objects
            .range(self.at.clone()..)
            .filter_map(|(key, versions)| versions.first()?.object().map(|object| (key, object)));
        let Some((key, object)) = current.next() else { return Ok(None) };
        self.at = [key.as_slice(), &[0]].concat();
        Ok(Some((key_text(key), object.summary())))
    }
}

fn key_text(key: &[u8]) -> String {
    String::from_utf8(key.to_vec()).expect("keys are UTF-8 by their type")
}

/// A view of versions: the version at `index` of the first key at or after `at`.
struct VersionsCursor<'a> {
    objects: &'a BTreeMap<Vec<u8>, Vec<StoredVersion>>,
    at: Vec<u8>,
    index: usize,
}

impl VersionCursor for VersionsCursor<'_> {
    fn seek(&mut self, bytes: &[u8]) -> Result<()> {
        (self.at, self.index) = (bytes.to_vec(), 0);
        Ok(())
    }

    /// The numbers of versions order by age, so the position is found although the version was deleted.
    fn seek_after(&mut self, key: &str, version: &VersionId) -> Result<()> {
        self.seek(key.as_bytes())?;
        let versions = self.objects.get(key.as_bytes()).map_or(&[][..], Vec::as_slice);
        let number = match version {
            VersionId::Null => {
                versions.iter().find(|found| found.id == VersionId::Null).map(|found| found.number)
            }
            VersionId::Id(_) => version.number(),
        };
        let Some(number) = number else { return Ok(()) };
        self.index = versions.iter().take_while(|found| found.number >= number).count();
        if !versions.is_empty() && self.index == versions.len() {
            self.at.push(0);
            self.index = 0;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(String, ListedVersion)>> {
        let Some((key, versions)) = self.objects.range(self.at.clone()..).next() else { return Ok(None) };
        let version = &versions[self.index];
        let listed = ListedVersion {
            version: version.id.clone(),
            is_latest: self.index == 0,
            modified: version.modified,
            object: version.object().map(|object| object.summary()),
        };
        self.at = key.clone();
        self.index += 1;
        if self.index == versions.len() {
            self.at.push(0);
            self.index = 0;
        }
        Ok(Some((key_text(key), listed)))
    }
}
