//! One of the two stores that a sequence is played on, with its results as text, so that
//! they can be compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::checksum::{Algorithm, Checksum};
use crate::class::{Class, ClassRange, ClassUpdate, Retention};
use crate::condition::Precondition;
use crate::error::{Error, ErrorKind, Result};
use crate::listing::{ListEntry, ListPosition, ListRequest};
use crate::metadata::Metadata;
use crate::multipart::{
    CompletePart, CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, UploadId,
};
use crate::name::Address;
use crate::object::{ETag, Expected, Generation, ObjectInfo};
use crate::range::ByteRange;
use crate::store::{
    CopyPartRequest, CopyRequest, Deleted, ETagForm, Feature, GetRequest, ObjectStore, Select, StageRequest,
};
use crate::testing::context;
use crate::version::{ListVersions, VersionId, VersionPosition};

use super::super::fixture::{
    self, Fixture, copy_request, drain, full_metadata, md5, part_number, pattern, tags,
};
use super::step::{Choice, Lie, PLACES, PREFIXES, Parts, Step, VersionAction, When};

const KEYS: [&str; PLACES / 2] = ["a", "a/b", "a/b/c", "é/\0", "b"];
const PREFIX: [&str; PREFIXES] = ["", "a", "a/", "é/", "x"];

pub(super) struct ModelStore {
    store: Arc<dyn ObjectStore>,
    desk: Fixture,
    /// Every upload created, in order, with the parts committed to it.
    uploads: Vec<(Address, UploadId, BTreeMap<PartNumber, CompletePart>)>,
    /// Uploads of a key are compared without their order.
    ignores_upload_order: bool,
}

fn place(number: usize) -> Address {
    Address::new(bucket(number % 2), crate::name::ObjectKey::new(KEYS[number / 2]).expect("a legal key"))
}

fn bucket(number: usize) -> crate::name::BucketName {
    fixture::bucket(fixture::BUCKETS[number])
}

fn metadata(number: u8) -> Metadata {
    match number {
        0 => Metadata::default(),
        1 => full_metadata(),
        n => Metadata {
            user: vec![("n".to_owned(), n.to_string())],
            tags: some_tags(n),
            ..Metadata::default()
        },
    }
}

fn some_tags(number: u8) -> crate::metadata::Tags {
    match number {
        0 => tags(&[]),
        n => tags(&[("n", &n.to_string()), ("same", "")]),
    }
}

/// A change of classes. Its range is after the end of small objects.
fn some_classes(number: u8) -> ClassUpdate {
    let class = Class::new(number).expect("a legal class");
    let range = ClassRange { first_sector: u32::from(number), sectors: 1, class };
    match number {
        0 => ClassUpdate { object: Some(None), retention: Some(None), ..ClassUpdate::default() },
        1 => ClassUpdate {
            object: Some(Some(class)),
            retention: Some(Retention::new(1000, 1).ok()),
            ..ClassUpdate::default()
        },
        2 => ClassUpdate { ranges: Some(Vec::new()), ..ClassUpdate::default() },
        _ => ClassUpdate { ranges: Some(vec![range]), ..ClassUpdate::default() },
    }
}

fn limited(limit: usize, prefix: usize, delimiter: bool) -> ListRequest {
    ListRequest {
        prefix: PREFIX[prefix].to_owned(),
        delimiter: delimiter.then(|| "/".to_owned()),
        after: None,
        limit,
    }
}

/// An object's metadata as text, without values that the store chose.
fn object_text(info: &ObjectInfo) -> String {
    let ObjectInfo { size, etag, metadata, checksums, scope, parts, version, .. } = info;
    let version = null_or_not(version);
    format!(
        "{size} bytes, {etag}, {checksums:?} over {scope:?}, parts {parts:?}, version {version:?}, {metadata:?}"
    )
}

fn parts_text(parts: &[PartInfo]) -> String {
    let each = parts.iter().map(|part| (part.number.get(), part.size, part.etag.as_str()));
    format!("{:?}", each.collect::<Vec<_>>())
}

/// An error as text. A store may choose which of several missing things it reports.
fn refusal(e: &Error) -> String {
    match e.kind() {
        ErrorKind::NotFound => "NotFound".to_owned(),
        _ => format!("{:?}", e.reason()),
    }
}

impl ModelStore {
    pub async fn open(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            store: store.clone(),
            desk: Fixture::open(store).await,
            uploads: Vec::new(),
            ignores_upload_order: false,
        }
    }

    pub async fn close(&self) {
        self.store.close().await.expect("a store closes");
    }

    /// Plays a step and returns the result as text.
    pub async fn apply(&mut self, step: &Step) -> String {
        let answer = match step.clone() {
            Step::Put { .. } | Step::PutBroken { .. } | Step::StageAndDrop { .. } => self.write(step).await,
            Step::Delete { place: at, when } => self.delete(at, when).await,
            Step::Get { place: at, select } => self.get(&place(at), select).await,
            Step::List { bucket, prefix, delimiter, after, limit } => {
                let after = after.map(|n| ListPosition::after(place(n).key.as_str()));
                self.list(bucket, ListRequest { after, ..limited(limit, prefix, delimiter) }).await
            }
            Step::Copy { from, to, metadata, tags, when } => self.copy(from, to, metadata, tags, when).await,
            Step::SetTags { place: at, tags } => {
                let set = self.store.set_tags(&context(), &place(at), some_tags(tags)).await;
                set.map(|()| "set".to_owned())
            }
            Step::SetClasses { place: at, class } => {
                let set = self.store.set_classes(&context(), &place(at), some_classes(class)).await;
                set.map(|()| "classified".to_owned())
            }
            Step::ObjectParts { place: at, after, limit } => {
                let after = after.map(part_number);
                let parts = self.store.object_parts(&context(), &place(at), after, limit).await;
                parts.map(|(parts, more)| format!("{} {more}", parts_text(&parts)))
            }
            Step::CreateBucket { bucket: n } => {
                self.store.create_bucket(&context(), &bucket(n)).await.map(|()| "made".to_owned())
            }
            Step::DeleteBucket { bucket: n } => {
                self.store.delete_bucket(&context(), &bucket(n)).await.map(|()| "removed".to_owned())
            }
            Step::SetVersioning { bucket: n, versioning } => {
                let set = self.store.set_versioning(&context(), &bucket(n), versioning).await;
                set.map(|()| "set".to_owned())
            }
            Step::ListVersions { bucket, prefix, delimiter, after, limit } => {
                self.list_versions_page(bucket, limited(limit, prefix, delimiter), after).await
            }
            Step::OnVersion { place: at, age, action } => self.on_version(at, age, action).await,
            Step::ListUploads { bucket, prefix, delimiter, limit } => {
                self.list_uploads(bucket, &limited(limit, prefix, delimiter)).await
            }
            Step::CreateUpload { .. }
            | Step::Part { .. }
            | Step::CopyPart { .. }
            | Step::Complete { .. }
            | Step::Abort { .. }
            | Step::ListParts { .. } => self.multipart(step).await,
        };
        answer.unwrap_or_else(|e| refusal(&e))
    }

    /// Returns true if the store lists the uploads of a key in order of creation.
    pub fn has_upload_order(&self) -> bool {
        self.store.capabilities().supports(Feature::UploadOrder)
    }

    /// Compares uploads without their order.
    pub fn ignore_upload_order(&mut self) {
        self.ignores_upload_order = true;
    }

    /// The whole visible state as text.
    pub async fn survey(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for n in 0..super::step::BUCKETS {
            let everything = limited(1000, 0, false);
            all.push(self.list(n, everything.clone()).await.unwrap_or_else(|e| refusal(&e)));
            let versions = self.list_versions_page(n, everything.clone(), None).await;
            all.push(versions.unwrap_or_else(|e| refusal(&e)));
            all.push(self.list_uploads(n, &everything).await.unwrap_or_else(|e| refusal(&e)));
        }
        for n in 0..PLACES {
            let object = self.get(&place(n), Choice::Whole).await.unwrap_or_else(|e| refusal(&e));
            all.push(format!("{}: {object}", place(n).key));
        }
        for (address, id, _) in &self.uploads {
            let parts = self.store.list_parts(&context(), address, id, None, 1000).await;
            all.push(parts.map_or_else(|e| refusal(&e), |page| parts_text(&page.parts)));
        }
        all
    }

    /// A version of a place, counted from the newest; `null` if it has none.
    async fn version(&self, at: usize, age: usize) -> VersionId {
        let Address { bucket, key, .. } = place(at);
        let request =
            ListVersions { prefix: key.as_str().to_owned(), limit: 1000, ..ListVersions::default() };
        let page = self.store.list_versions(&context(), &bucket, &request).await;
        let mut ids = page.into_iter().flat_map(|page| page.entries).filter_map(|entry| match entry {
            ListEntry::Key(found, listed) if found == key.as_str() => Some(listed.version),
            _ => None,
        });
        ids.nth(age).unwrap_or(VersionId::Null)
    }

    /// Performs an action on a version. Ids are chosen by the store: only whether one is `null` is compared.
    async fn on_version(&self, at: usize, age: usize, action: VersionAction) -> Result<String> {
        let address = place(at).with_version(Some(self.version(at, age).await));
        let is_null = address.version == Some(VersionId::Null);
        let outcome = match action {
            VersionAction::Get(select) => self.get(&address, select).await?,
            VersionAction::Delete => {
                let deleted = self.store.delete(&context(), &address, Precondition::None).await?;
                deleted_text(&deleted)
            }
            VersionAction::SetTags(tags) => {
                self.store.set_tags(&context(), &address, some_tags(tags)).await?;
                "set".to_owned()
            }
            VersionAction::SetClass(class) => {
                self.store.set_classes(&context(), &address, some_classes(class)).await?;
                "classified".to_owned()
            }
            VersionAction::CopyTo(to) => {
                let done = self.store.copy(&context(), copy_request(address, place(to))).await?;
                format!("{} bytes, {}, from {:?}", done.size, done.etag, null_or_not(&done.source_version))
            }
        };
        Ok(format!("null {is_null}: {outcome}"))
    }

    async fn list_versions_page(
        &self,
        number: usize,
        request: ListRequest,
        after: Option<(usize, Option<usize>)>,
    ) -> Result<String> {
        let after = match after {
            Some((at, age)) => {
                let version = match age {
                    Some(age) => Some(self.version(at, age).await),
                    None => None,
                };
                Some(VersionPosition { key: place(at).key.as_str().to_owned(), version })
            }
            None => None,
        };
        let ListRequest { prefix, delimiter, limit, .. } = request;
        let request = ListVersions { prefix, delimiter, after, limit };
        let page = self.store.list_versions(&context(), &bucket(number), &request).await?;
        let mut line = format!("{:?}: ", self.store.versioning(&context(), &bucket(number)).await?);
        for entry in &page.entries {
            let _ = match entry {
                ListEntry::Key(key, listed) => write!(
                    line,
                    "{key:?} null {} latest {} {:?}, ",
                    listed.version == VersionId::Null,
                    listed.is_latest,
                    listed.object.as_ref().map(|s| (s.size, s.etag.clone(), s.checksum))
                ),
                ListEntry::CommonPrefix(name) => write!(line, "{name:?}.., "),
            };
        }
        let next = page.next.map(|next| (next.key, null_or_not(&next.version)));
        Ok(format!("{line}next {next:?}"))
    }

    async fn precondition(&self, address: &Address, when: When) -> Precondition {
        let current = self.store.head(&context(), address, GetRequest::default()).await;
        let current = current.ok().map(|found| (found.info.etag, found.info.generation));
        let no_tag = || ETag::from_text("of no object");
        match (when, current) {
            (When::Always, _) => Precondition::None,
            (When::Absent, _) => Precondition::Absent,
            (When::Exists, _) => Precondition::Exists,
            (When::MatchesNow, Some((etag, _))) => Precondition::Matches(etag),
            (When::MatchesNow | When::MatchesOther, _) => Precondition::Matches(no_tag()),
            (When::IsNow, Some((_, generation))) => Precondition::MatchesGeneration(generation),
            (When::IsNow | When::IsOther, _) => Precondition::MatchesGeneration(Generation(u64::MAX)),
        }
    }

    async fn write(&self, step: &Step) -> Result<String> {
        let mut request = StageRequest::default();
        let mut expected = Expected::default();
        let (address, bytes) = match *step {
            Step::Put { place: at, size, seed, algorithm, when, metadata: number } => {
                request.algorithms.extend(algorithm);
                request.metadata = metadata(number);
                request.precondition = self.precondition(&place(at), when).await;
                (place(at), pattern(size, seed))
            }
            Step::PutBroken { place: at, size, lie } => {
                request.algorithms = vec![Algorithm::Crc32];
                request.verify_md5 = true;
                expected = lie_about(size, lie);
                (place(at), pattern(size, 0))
            }
            Step::StageAndDrop { place: at, size } => {
                let context = context();
                let mut staged = self.store.stage(&context, &place(at), request).await?;
                staged.write(pattern(size, 0)).await?;
                return Ok("dropped".to_owned());
            }
            _ => unreachable!("the caller passes writes only"),
        };
        let committed = self.desk.put_within(&context(), &address, bytes, request, expected).await?;
        Ok(format!("{} bytes, {}, {:?}", committed.size, committed.etag, committed.checksums))
    }

    async fn delete(&self, at: usize, when: When) -> Result<String> {
        let precondition = self.precondition(&place(at), when).await;
        let deleted = self.store.delete(&context(), &place(at), precondition).await?;
        Ok(deleted_text(&deleted))
    }

    async fn get(&self, address: &Address, choice: Choice) -> Result<String> {
        let select = match choice {
            Choice::Whole => Select::Whole,
            Choice::Inclusive(first, last) => Select::Range(ByteRange::Inclusive { first, last }),
            Choice::From(first) => Select::Range(ByteRange::From(first)),
            Choice::Suffix(length) => Select::Range(ByteRange::Suffix(length)),
            Choice::Part(number) => Select::Part(part_number(number)),
        };
        let request = GetRequest { select, ..GetRequest::default() };
        let found = self.store.get(&context(), address, request).await?;
        let bytes = drain(found.body).await?;
        Ok(format!(
            "{:?} with MD5 {}: {}",
            found.span,
            ETag::from_md5(&md5(&bytes)),
            object_text(&found.info)
        ))
    }

    async fn list(&self, number: usize, request: ListRequest) -> Result<String> {
        let page = self.store.list(&context(), &bucket(number), &request).await?;
        let mut line = String::new();
        for entry in &page.entries {
            let _ = match entry {
                ListEntry::Key(key, s) => write!(line, "{key:?} {} {} {:?}, ", s.size, s.etag, s.checksum),
                ListEntry::CommonPrefix(name) => write!(line, "{name:?}.., "),
            };
        }
        Ok(format!("{line}next {:?}", page.next.map(|next| next.name)))
    }

    async fn copy(
        &self,
        from: usize,
        to: usize,
        number: Option<u8>,
        tags: Option<u8>,
        when: When,
    ) -> Result<String> {
        let request = CopyRequest {
            metadata: number.map(metadata),
            tags: tags.map(some_tags),
            precondition: self.precondition(&place(to), when).await,
            ..copy_request(place(from), place(to))
        };
        // A missing source and a failed condition are two errors, of which a store may report either.
        if self.store.head(&context(), &place(from), GetRequest::default()).await.is_err() {
            let is_failed = self.store.copy(&context(), request).await.is_err();
            return Ok(format!("failed: {is_failed}"));
        }
        let committed = self.store.copy(&context(), request).await?;
        Ok(format!("{} bytes, {}, {:?}", committed.size, committed.etag, committed.checksums))
    }

    /// Lists uploads, named by their position in order of creation.
    async fn list_uploads(&self, number: usize, request: &ListRequest) -> Result<String> {
        let mut request = ListUploads {
            prefix: request.prefix.clone(),
            delimiter: request.delimiter.clone(),
            limit: request.limit,
            ..ListUploads::default()
        };
        let mut lines: Vec<String> = Vec::new();
        loop {
            let page = self.store.list_uploads(&context(), &bucket(number), &request).await?;
            lines.extend(page.entries.iter().map(|entry| match entry {
                ListEntry::Key(key, info) => {
                    let position = self.uploads.iter().position(|(_, id, _)| *id == info.id);
                    format!("{key:?} {position:?} {:?} {:?}, ", info.checksum, info.metadata)
                }
                ListEntry::CommonPrefix(name) => format!("{name:?}.., "),
            }));
            match page.next {
                Some((key, upload)) => {
                    lines.extend((!self.ignores_upload_order).then(|| "| ".to_owned()));
                    request.after_key = Some(key);
                    request.after_upload = upload;
                }
                None => break,
            }
        }
        if self.ignores_upload_order {
            lines.sort();
        }
        Ok(lines.concat())
    }

    async fn multipart(&mut self, step: &Step) -> Result<String> {
        if let Step::CreateUpload { place: at, checksum, metadata: number } = *step {
            let request = CreateUpload { metadata: metadata(number), checksum };
            let id = self.store.create_upload(&context(), &place(at), request).await?;
            self.uploads.push((place(at), id, BTreeMap::new()));
            return Ok("begun".to_owned());
        }
        let (Step::Part { upload, .. }
        | Step::CopyPart { upload, .. }
        | Step::Complete { upload, .. }
        | Step::Abort { upload }
        | Step::ListParts { upload, .. }) = *step
        else {
            unreachable!("the caller passes steps of uploads only")
        };
        let Some(chosen) = self.uploads.len().checked_sub(1 + upload) else {
            return Ok("there is no such upload yet".to_owned());
        };
        let (address, id, parts) = self.uploads[chosen].clone();
        match *step {
            Step::Part { number, size, seed, .. } => {
                self.part(chosen, part_number(number), pattern(size, seed)).await
            }
            Step::CopyPart { number, from, range, .. } => {
                self.copy_part(chosen, part_number(number), from, range).await
            }
            Step::Complete { parts: choice, when, .. } => {
                let precondition = self.precondition(&address, when).await;
                let parts = name_parts(parts.into_values().collect(), choice);
                let request = CompleteUpload { parts, precondition, ..CompleteUpload::default() };
                let done = self.store.complete_upload(&context(), &address, &id, request).await?;
                Ok(format!("{} bytes, {}, {:?}, {:?}", done.size, done.etag, done.checksums, done.scope))
            }
            Step::Abort { .. } => {
                self.store.abort_upload(&context(), &address, &id).await.map(|()| "aborted".to_owned())
            }
            Step::ListParts { after, limit, .. } => {
                let after = after.map(part_number);
                let page = self.store.list_parts(&context(), &address, &id, after, limit).await?;
                Ok(format!("{} next {:?}", parts_text(&page.parts), page.next))
            }
            _ => unreachable!("the other steps were dealt with above"),
        }
    }

    async fn part(&mut self, chosen: usize, number: PartNumber, bytes: bytes::Bytes) -> Result<String> {
        let (address, id, _) = &self.uploads[chosen];
        let context = context();
        let staged = self.store.stage_part(&context, address, id, number, StageRequest::default()).await;
        let mut staged = staged?;
        staged.write(bytes).await?;
        let (committed, _) = staged.commit(Expected::default()).await?;
        Ok(self.keep_part(chosen, number, committed.etag))
    }

    /// Copies a part. Of a failure only the fact is compared: the upload, the source and the range may all be wrong.
    async fn copy_part(
        &mut self,
        chosen: usize,
        number: PartNumber,
        from: usize,
        range: Option<(u64, u64)>,
    ) -> Result<String> {
        let (destination, upload, _) = self.uploads[chosen].clone();
        let request = CopyPartRequest {
            source: place(from),
            range: range.map(|(a, b)| ByteRange::Inclusive { first: a.min(b), last: a.max(b) }),
            source_conditions: crate::condition::ReadConditions::default(),
            destination,
            upload,
            number,
            etag: ETagForm::Md5,
        };
        match self.store.copy_part(&context(), request).await {
            Ok(committed) => Ok(self.keep_part(chosen, number, committed.etag)),
            Err(_) => Ok("failed".to_owned()),
        }
    }

    fn keep_part(&mut self, chosen: usize, number: PartNumber, etag: ETag) -> String {
        let line = format!("part {} with {etag}", number.get());
        self.uploads[chosen].2.insert(number, CompletePart { number, etag, checksum: None });
        line
    }
}

fn deleted_text(deleted: &Deleted) -> String {
    let Deleted { existed, version, is_delete_marker } = deleted;
    format!("existed {existed}, version {:?}, marker {is_delete_marker}", null_or_not(version))
}

/// True for the `null` version: other ids are chosen by the store.
fn null_or_not(version: &Option<VersionId>) -> Option<bool> {
    version.as_ref().map(|version| *version == VersionId::Null)
}

fn lie_about(size: usize, lie: Lie) -> Expected {
    let size = size as u64;
    match lie {
        Lie::Longer => Expected { size: Some(size + 1), ..Expected::default() },
        Lie::Shorter => Expected { size: Some(size - 1), ..Expected::default() },
        Lie::Md5 => Expected { md5: Some([0; 16]), ..Expected::default() },
        Lie::Checksum => {
            let checksums = vec![Checksum::compute(Algorithm::Crc32, b"something else")];
            Expected { checksums, ..Expected::default() }
        }
    }
}

fn name_parts(mut parts: Vec<CompletePart>, choice: Parts) -> Vec<CompletePart> {
    match choice {
        Parts::All => {}
        Parts::LastOnly => parts = parts.pop().into_iter().collect(),
        Parts::FirstAndLast if parts.len() > 2 => {
            parts.drain(1..parts.len() - 1);
        }
        Parts::FirstAndLast => {}
        Parts::Reversed => parts.reverse(),
        Parts::WithOneMissing => {
            let (number, etag) = (part_number(9), ETag::from_text("of no part"));
            parts.push(CompletePart { number, etag, checksum: None });
        }
        Parts::WithAnotherTag => {
            if let Some(last) = parts.last_mut() {
                last.etag = ETag::from_text("of another part");
            }
        }
        Parts::None => parts.clear(),
    }
    parts
}
