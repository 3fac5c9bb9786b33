//! Changes of the descriptions of transformed bytes: a record is written again, its extents stay where they are. The bytes
//! of an inline object are part of its record, so that they are written again as by any change of metadata.
//!
//! A change is evaluated on a record and committed only if that record is still the newest. Otherwise it is evaluated
//! again: in each round one of the concurrent changes succeeds, so that all of them end.

use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::UploadId;
use tradewind_core::stored_form::{DescriptionChange, Redescribed, StoredSegment};
use tradewind_core::{Address, Context};

use super::commit::{RewritePart, RewriteVersion};
use super::complete::part_of;
use super::index::entries::PartEntry;
use super::index::keys;
use super::open_store::OpenStore;
use super::read::{StoreSnapshot, part_segment, stored_form};
use super::record::{Object, UploadSeq};

impl OpenStore {
    /// See [`ObjectStore::redescribe`](tradewind_core::ObjectStore::redescribe).
    pub(super) async fn redescribe_object(
        &self,
        context: &Context,
        address: &Address,
        change: &dyn DescriptionChange,
    ) -> Result<Redescribed> {
        loop {
            // Most objects need no change, and thus not their payload.
            let record = self.object(context, address, false).await?;
            let redescribed = Redescribed::apply(segments_of(&record.object)?, change)?;
            if redescribed.changed == 0 {
                return Ok(redescribed);
            }
            let record = self.object(context, address, true).await?;
            let mut object = Box::new(Arc::unwrap_or_clone(record.object));
            let redescribed = Redescribed::apply(segments_of(&object)?, change)?;
            set_descriptions(&mut object, &redescribed.segments);
            let rewrite = RewriteVersion {
                bucket: address.bucket.as_str().to_owned(),
                object,
                seq: record.seq,
                payload: record.payload.into_iter().collect(),
                block_crcs: record.block_crcs,
            };
            match context.guard(self.committer.submit(rewrite)).await? {
                Err(error) if error.reason() == Reason::Conflict => {}
                other => return other.map(|()| redescribed),
            }
        }
    }

    /// See [`ObjectStore::redescribe_upload`](tradewind_core::ObjectStore::redescribe_upload).
    pub(super) async fn redescribe_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        change: &dyn DescriptionChange,
    ) -> Result<Redescribed> {
        let seq = self.upload_seq(address, upload)?;
        self.upload(address, seq)?;
        let mut all = Redescribed::default();
        for number in self.part_numbers(seq)? {
            let part = self.redescribe_part(context, address, PartOfUpload { seq, upload, number }, change);
            let part = part.await?;
            all.segments.extend(part.segments);
            all.changed += part.changed;
        }
        if all.segments.iter().all(|segment| segment.description.is_empty()) {
            all.segments.clear();
        }
        Ok(all)
    }

    async fn redescribe_part(
        &self,
        context: &Context,
        address: &Address,
        place: PartOfUpload<'_>,
        change: &dyn DescriptionChange,
    ) -> Result<Redescribed> {
        loop {
            context.check()?;
            let entry = self.state.index.snapshot().get(&keys::part(place.seq, place.number))?;
            // Parts are only replaced: without an entry, the upload has ended.
            let entry = entry.ok_or_else(|| Error::no_such_upload(&place.upload.0))?;
            let entry = PartEntry::decode(&entry)?;
            let mut part = Box::new(part_of(&entry)?);
            let segment = part_segment(part.number, part.size, part.transformed.as_ref())?;
            let redescribed = Redescribed::apply(vec![segment], change)?;
            let (Some(segment), Some(transformed)) = (redescribed.segments.first(), &mut part.transformed)
            else {
                return Ok(redescribed);
            };
            if redescribed.changed == 0 {
                return Ok(redescribed);
            }
            transformed.description.clone_from(&segment.description);
            let (bucket, key) = (address.bucket.as_str().to_owned(), address.key.as_str().to_owned());
            let rewrite = RewritePart { bucket, key, part, seq: entry.seq };
            match context.guard(self.committer.submit(rewrite)).await? {
                Err(error) if error.reason() == Reason::Conflict => {}
                other => return other.map(|()| redescribed),
            }
        }
    }

    fn part_numbers(&self, upload: UploadSeq) -> Result<Vec<u16>> {
        let snapshot = StoreSnapshot::capture(self);
        let mut numbers = Vec::new();
        for entry in snapshot.index.prefix(&keys::parts(upload)) {
            numbers.push(part_of(&PartEntry::decode(&entry?.1)?)?.number);
        }
        Ok(numbers)
    }
}

/// A part by its upload and number.
#[derive(Clone, Copy)]
struct PartOfUpload<'a> {
    seq: UploadSeq,
    upload: &'a UploadId,
    number: u16,
}

/// The segments of an object; none if nothing of it is transformed.
fn segments_of(object: &Object) -> Result<Vec<StoredSegment>> {
    Ok(stored_form(object)?.map(|form| form.segments.to_vec()).unwrap_or_default())
}

/// Takes over the descriptions of segments, which are those of the object.
fn set_descriptions(object: &mut Object, segments: &[StoredSegment]) {
    let of_parts = object.parts.iter_mut().map(|part| &mut part.transformed);
    let all = match &mut object.transformed {
        whole @ Some(_) => vec![whole],
        None => of_parts.collect(),
    };
    for (transformed, segment) in all.into_iter().zip(segments) {
        if let Some(transformed) = transformed {
            transformed.description.clone_from(&segment.description);
        }
    }
}
