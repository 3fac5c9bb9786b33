//! Copies that do not read the bytes: the copy gets a manifest of the same chunks, if what the source has of entity tag
//! and checksums is what the copy needs.

use futures::StreamExt as _;
use tradewind_core::error::Result;
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, StageRequest};
use tradewind_core::stored_form::PlainAttributes;
use tradewind_core::{Algorithm, ChecksumScope, ETag, ObjectInfo, Span};

use super::decoder::{EntryBounds, Piece, ReadPlan, truncated};
use super::manifest::SegmentForm;
use super::read::{Reader, StoredBytes};
use super::staged::{ChunkSource, ManifestWriter, WriteTarget};
use crate::transformed::staged::unique_etag;

/// The attributes of a copy.
struct CopyAttributes {
    plain: PlainAttributes,
    etag_is_md5: bool,
}

/// Copies an object by its manifest; `None` if the bytes must be read and written. `target` is the destination without a
/// request.
pub(super) async fn copy_manifest(
    reader: Reader<'_>,
    mut target: WriteTarget,
    request: &CopyRequest,
) -> Result<Option<Committed>> {
    let get = GetRequest { conditions: request.source_conditions.clone(), ..GetRequest::default() };
    // The token keeps the chunks until the copy has pinned all of them and is durable.
    let StoredBytes { response: mut found, token } = reader.read_stored(get).await?;
    let Some(attributes) = attributes(&found.info, request)? else { return Ok(None) };
    let Some(form) = found.info.stored.take() else { return Ok(None) };
    let plan = ReadPlan::new(&form, Span::whole(found.info.size), &reader.address.key)?;
    let (_, mut decoder) = plan.begin(EntryBounds::default())?;

    let mut metadata = request.metadata.clone().unwrap_or_else(|| found.info.metadata.clone().for_copy());
    metadata.tags = request.tags.clone().unwrap_or_else(|| found.info.metadata.tags.clone());
    let precondition = request.precondition.clone();
    target.request = StageRequest { metadata, precondition, ..StageRequest::default() };
    let mut writer = ManifestWriter::begin(&target, ChunkSource::Copied).await?;
    loop {
        while let Some(piece) = decoder.next()? {
            let Piece::Chunk(part) = piece else { return Ok(None) };
            writer.add(part.chunk, part.length as u64).await?;
            if target.store.pins.is_doubtful(&part.chunk) {
                // To read it and write it again ends the doubt, or fails.
                return Ok(None);
            }
        }
        if decoder.rest_bytes() == 0 {
            break;
        }
        let stored = reader.context.guard(found.body.next()).await?;
        decoder.push(stored.ok_or_else(truncated)??);
    }
    let (committed, _) = writer.commit(attributes.plain, attributes.etag_is_md5).await?;
    drop(token);
    Ok(Some(Committed { source_version: found.info.version, ..committed }))
}

/// The reported attributes; `None` if they are not known without the bytes of the source, or if that is not deduplicated as
/// a whole.
fn attributes(source: &ObjectInfo, request: &CopyRequest) -> Result<Option<CopyAttributes>> {
    let Some(form) = source.stored.as_ref().filter(|_| source.size > 0) else { return Ok(None) };
    let mut etag_is_md5 = form.segments.len() == 1;
    for segment in form.segments.iter() {
        let SegmentForm::Manifest(description) = SegmentForm::of_segment(segment)? else { return Ok(None) };
        etag_is_md5 &= description.etag_is_md5;
    }
    let etag_is_md5 = etag_is_md5 && source.parts.is_none() && request.etag == ETagForm::Md5;
    let etag: ETag = match request.etag {
        ETagForm::Md5 if etag_is_md5 => source.etag.clone(),
        ETagForm::Md5 => return Ok(None),
        ETagForm::Unique => unique_etag()?,
    };
    let known = |algorithm: Algorithm| {
        source.checksums.iter().filter(|checksum| checksum.algorithm() == algorithm).copied().collect()
    };
    let checksums: Vec<_> = match request.algorithm {
        Some(algorithm) => known(algorithm),
        None => source.checksums.clone(),
    };
    if checksums.is_empty() || source.scope != ChecksumScope::FullObject {
        return Ok(None);
    }
    Ok(Some(CopyAttributes { plain: PlainAttributes { size: source.size, etag, checksums }, etag_is_md5 }))
}
