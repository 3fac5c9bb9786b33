//! Multipart uploads: their records, listings and completion. Completion copies no data: the object's manifest refers
//! to the extents of the parts.

use tradewind_core::checksum::ChecksumScope;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{
    self, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadInfo, UploadsPage, checksum_of_parts,
    match_parts, page_uploads,
};
use tradewind_core::object::{Committed, Generation, Identity};
use tradewind_core::{Address, Algorithm, BucketName, Context, ETag, Metadata};

use super::commit::{CompleteUpload, PutObject};
use super::frame::RecordKind;
use super::index::IndexSnapshot;
use super::index::entries::{PartEntry, UploadEntry, UploadRecords};
use super::index::keys;
use super::open_store::OpenStore;
use super::read::{StoreSnapshot, corrupt};
use super::record::{Object, ObjectContent, Part, PartSummary, Record, Upload, UploadSeq};
use super::scan::record_at;
use super::uploads::{format_id, parse_id};

/// Listing entries processed between deadline checks.
const ENTRIES_BETWEEN_CHECKS: usize = 1024;

impl OpenStore {
    fn upload_entry(
        &self,
        index: &IndexSnapshot,
        address: &Address,
        upload: UploadSeq,
    ) -> Result<UploadEntry> {
        let bucket = self.state.bucket(address.bucket.as_str())?;
        let entry = index.get(&keys::upload(upload))?.map(|value| UploadEntry::decode(&value)).transpose()?;
        entry
            .filter(|entry| entry.bucket == bucket.id && entry.key == address.key.as_str())
            .ok_or_else(|| Error::no_such_upload(&format_id(upload)))
    }

    /// The number of an upload, which may not exist. Fails with [`NoSuchBucket`](tradewind_core::Reason::NoSuchBucket)
    /// if the bucket does not, whatever the id.
    pub(super) fn upload_seq(&self, address: &Address, upload: &UploadId) -> Result<UploadSeq> {
        self.state.bucket(address.bucket.as_str())?;
        parse_id(upload)
    }

    /// The record that created an upload.
    pub(super) fn upload(&self, address: &Address, upload: UploadSeq) -> Result<Upload> {
        let snapshot = StoreSnapshot::capture(self);
        let entry = self.upload_entry(&snapshot.index, address, upload)?;
        self.upload_record(&snapshot, &entry)
    }

    /// Reads the record of an upload's creation. The entry must be from the snapshot.
    fn upload_record(&self, snapshot: &StoreSnapshot, entry: &UploadEntry) -> Result<Upload> {
        let at = entry.location.position;
        let segment =
            snapshot.segments.get(&at.segment).ok_or_else(|| corrupt(at, "its segment is missing"))?;
        let scanned = record_at(segment, self.state.layout.salt, at.offset)?;
        match scanned.ok_or_else(|| corrupt(at, "its head is damaged"))?.record()? {
            Record::UploadCreated(upload) => Ok(*upload),
            _ => Err(corrupt(at, "it is not an upload")),
        }
    }

    fn upload_info(
        &self,
        snapshot: &StoreSnapshot,
        upload: UploadSeq,
        entry: &UploadEntry,
    ) -> Result<UploadInfo> {
        let record = self.upload_record(snapshot, entry)?;
        Ok(UploadInfo {
            id: UploadId(format_id(upload)),
            key: record.key,
            initiated: Some(record.initiated),
            metadata: record.metadata,
            checksum: record.checksum,
        })
    }

    pub(super) fn parts_page(
        &self,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        let seq = self.upload_seq(address, upload)?;
        let snapshot = StoreSnapshot::capture(self);
        let entry = self.upload_entry(&snapshot.index, address, seq)?;
        let mut parts = Vec::new();
        let mut next = None;
        let from = after.map_or(0, |after| after.get() + 1);
        for entry in snapshot.index.range(&keys::part(seq, from), &keys::parts(seq + 1)) {
            let part = decode_part(&entry?.1)?;
            if parts.len() == limit {
                next = parts.last().map(|p: &PartInfo| p.number);
                break;
            }
            parts.push(part_info(&part)?);
        }
        Ok(PartsPage { upload: self.upload_info(&snapshot, seq, &entry)?, parts, next })
    }

    /// A page of a bucket's uploads. The index entries select it; records are read from disk only for the selected
    /// ones.
    pub(super) fn uploads_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        let bucket = self.state.bucket(bucket.as_str())?;
        let snapshot = StoreSnapshot::capture(self);
        let index = &snapshot.index;
        let after = request.after_key.as_deref().unwrap_or_default();
        let mut matching = Vec::new();
        // Entries are in the order of creation, across all buckets: the whole list must be scanned.
        for (n, item) in index.prefix(&[keys::prefix::UPLOAD]).enumerate() {
            if n % ENTRIES_BETWEEN_CHECKS == 0 {
                context.check()?;
            }
            let (key, value) = item?;
            let entry = UploadEntry::decode(&value)?;
            let is_wanted = entry.bucket == bucket.id && entry.key.starts_with(&request.prefix);
            if is_wanted && entry.key.as_str() >= after {
                matching.push((entry.key, keys::number(&key)?));
            }
        }
        matching.sort();
        let matching = matching.into_iter().map(without_record);
        let mut page = page_uploads(matching, request, |id| parse_id(id).ok())?;
        for listed in &mut page.entries {
            let ListEntry::Key(_, info) = listed else { continue };
            context.check()?;
            let seq = parse_id(&info.id)?;
            let entry = index.get(&keys::upload(seq))?.ok_or_else(|| Error::no_such_upload(&info.id.0))?;
            *info = self.upload_info(&snapshot, seq, &UploadEntry::decode(&entry)?)?;
        }
        Ok(page)
    }

    /// Assembles the object of an upload from its current parts.
    pub(super) fn assemble(
        &self,
        address: &Address,
        upload: UploadSeq,
        request: &multipart::CompleteUpload,
    ) -> Result<(CompleteUpload, Committed)> {
        let snapshot = StoreSnapshot::capture(self);
        let index = &snapshot.index;
        let entry = self.upload_entry(index, address, upload)?;
        let records = index.get(&keys::upload_records(upload))?;
        let records = records.map(|value| UploadRecords::decode(&value)).transpose()?.unwrap_or_default();
        let created = self.upload_record(&snapshot, &entry)?;
        let lookup_error = std::cell::RefCell::new(None);
        let matched = match_parts(&request.parts, |number| {
            let found = index.get(&keys::part(upload, number.get())).and_then(|value| {
                let Some(value) = value else { return Ok(None) };
                let part = decode_part(&value)?;
                Ok(Some((part_info(&part)?, part)))
            });
            found.unwrap_or_else(|e| {
                *lookup_error.borrow_mut() = Some(e);
                None
            })
        });
        if let Some(e) = lookup_error.into_inner() {
            return Err(e);
        }
        let (infos, parts): (Vec<PartInfo>, Vec<Part>) = matched?.into_iter().unzip();
        let size = parts.iter().map(|part| part.size).sum();
        if let Some(expected) = request.expected_size
            && expected != size
        {
            return Err(Error::for_client(
                Reason::InvalidRequest,
                format!("the parts total {size} bytes, not {expected}"),
            ));
        }
        created.metadata.classes.check_within(size)?;
        let (algorithm, scope) =
            created.checksum.unwrap_or((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
        let checksum = checksum_of_parts(algorithm, scope, &infos);
        if let Some(expected) = request.expected_checksum {
            if expected.algorithm() != algorithm {
                let (is, sent) = (algorithm.name(), expected.algorithm().name());
                let why =
                    format!("the upload was created with {is}; a {sent} of the object cannot be verified");
                return Err(Error::for_client(Reason::InvalidRequest, why));
            }
            if checksum != Some(expected) {
                return Err(Error::for_client(
                    Reason::BadDigest,
                    "the object's checksum differs from the one sent",
                ));
            }
        }
        let Identity { etag, modified } = match request.identity.clone() {
            Some(identity) => identity,
            None => Identity { etag: self.etag_of_parts(&parts), modified: self.state.clock.wall() },
        };
        let object = Object {
            key: address.key.as_str().to_owned(),
            size,
            modified,
            etag,
            metadata: created.metadata,
            checksums: checksum.into_iter().collect(),
            scope,
            content: ObjectContent::Extents {
                runs: parts.iter().flat_map(|part| part.runs.clone()).collect(),
                new_extents: Vec::new(),
            },
            parts: parts.iter().map(summary).collect(),
            upload: Some(upload),
            ..Object::default()
        };
        let committed = Committed {
            etag: object.etag.clone(),
            size,
            modified: object.modified,
            generation: Generation(0),
            checksums: object.checksums.clone(),
            scope,
            version: None,
            source_version: None,
        };
        let put = PutObject {
            bucket: address.bucket.as_str().to_owned(),
            object: Box::new(object),
            payload: Vec::new(),
            block_crcs: Vec::new(),
            deferred_md5: None,
            precondition: request.precondition.clone(),
            pins: Vec::new(),
        };
        Ok((CompleteUpload { put, upload, newest_part_seq: records.newest_part_seq }, committed))
    }

    /// The MD5 of the parts' MD5s, or a unique tag if a part has none.
    fn etag_of_parts(&self, parts: &[Part]) -> ETag {
        let md5s: Option<Vec<[u8; 16]>> = parts.iter().map(|part| part.etag.md5()).collect();
        match md5s {
            Some(md5s) => ETag::from_parts(&tradewind_digest::md5(&md5s.concat()), parts.len()),
            None => {
                let id = self.state.next_id.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                ETag::from_text(&format!("{id:016x}-tw-{}", parts.len()))
            }
        }
    }
}

/// The part of an upload's description that the index has: enough to select the uploads of a page.
fn without_record((key, upload): (String, UploadSeq)) -> UploadInfo {
    UploadInfo {
        id: UploadId(format_id(upload)),
        key,
        initiated: None,
        metadata: Metadata::default(),
        checksum: None,
    }
}

fn decode_part(value: &[u8]) -> Result<Part> {
    part_of(&PartEntry::decode(value)?)
}

/// The part of an index entry.
pub(super) fn part_of(entry: &PartEntry) -> Result<Part> {
    match Record::decode(RecordKind::Part, &entry.fields)? {
        Record::Part(part) => Ok(*part),
        _ => Err(Error::new(Reason::CorruptData, "a part entry holds another record")),
    }
}

fn part_info(part: &Part) -> Result<PartInfo> {
    Ok(PartInfo {
        number: PartNumber::new(part.number.into())?,
        size: part.size,
        etag: part.etag.clone(),
        modified: Some(part.modified),
        checksums: part.checksums.clone(),
    })
}

fn summary(part: &Part) -> PartSummary {
    PartSummary {
        number: part.number,
        size: part.size,
        etag: part.etag.clone(),
        checksums: part.checksums.clone(),
        transformed: part.transformed.clone(),
    }
}

#[cfg(test)]
mod tests;
