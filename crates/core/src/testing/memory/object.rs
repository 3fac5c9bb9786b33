//! An object of the memory store, and the payload of a write.

use bytes::Bytes;
use md5::{Digest as _, Md5};

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::clock::Timestamp;
use crate::error::{Error, Reason, Result};
use crate::listing::ObjectSummary;
use crate::metadata::Metadata;
use crate::multipart::{PartInfo, PartNumber};
use crate::object::{Committed, ETag, Expected, Generation, Identity, ObjectInfo};
use crate::range::Span;
use crate::store::{ETagForm, GetRequest, Select};
use crate::stored_form::{Reported, StoredForm, StoredSegment, needs_layer};

/// One committed write. Never changed; a new write replaces the whole.
pub(super) struct StoredObject {
    pub info: ObjectInfo,
    pub bytes: Bytes,
    /// Empty for objects that were not written by a multipart upload.
    pub parts: Vec<PartInfo>,
}

impl StoredObject {
    /// The span of the reported bytes that a request selects, if its conditions hold.
    pub fn select(&self, request: &GetRequest) -> Result<Span> {
        request.conditions.check(&self.info.etag, self.info.modified)?;
        match request.select {
            Select::Whole => Ok(Span::whole(self.info.size)),
            Select::Range(range) => range.resolve(self.info.size),
            Select::Part(number) => self.part(number),
        }
    }

    /// The bytes that a request selects, if its conditions hold, and their span.
    pub fn read(&self, key: &str, request: &GetRequest) -> Result<(Span, Bytes)> {
        if self.info.stored.is_none() {
            let span = self.select(request)?;
            return Ok((span, self.slice(span)));
        }
        request.conditions.check(&self.info.etag, self.info.modified)?;
        if !request.stored {
            return Err(needs_layer(key));
        }
        let size = self.bytes.len() as u64;
        let span = match request.select {
            Select::Whole => Span::whole(size),
            Select::Range(range) => range.resolve(size)?,
            Select::Part(_) => {
                return Err(Error::new(Reason::Defect, "a part of stored bytes was requested"));
            }
        };
        Ok((span, self.slice(span)))
    }

    fn part(&self, number: PartNumber) -> Result<Span> {
        if self.parts.is_empty() && number.get() == 1 {
            return Ok(Span::whole(self.info.size));
        }
        let mut offset = 0;
        for part in &self.parts {
            if part.number == number {
                return Ok(Span { offset, length: part.size });
            }
            offset += part.size;
        }
        Err(Error::for_client(Reason::InvalidRange, format!("the object has no part {}", number.get())))
    }

    /// The bytes of a span of this object.
    pub fn slice(&self, span: Span) -> Bytes {
        let index = |n: u64| usize::try_from(n).expect("the object lies in memory");
        self.bytes.slice(index(span.offset)..index(span.end()))
    }

    pub fn committed(&self) -> Committed {
        Committed {
            etag: self.info.etag.clone(),
            size: self.info.size,
            modified: self.info.modified,
            generation: self.info.generation,
            checksums: self.info.checksums.clone(),
            scope: self.info.scope,
            version: self.info.version.clone(),
            source_version: None,
        }
    }

    pub fn summary(&self) -> ObjectSummary {
        ObjectSummary {
            size: self.info.size,
            etag: self.info.etag.clone(),
            modified: self.info.modified,
            generation: self.info.generation,
            checksum: self.info.checksums.first().map(|c| (c.algorithm(), self.info.scope)),
            storage_class: self.info.metadata.headers.storage_class.clone(),
        }
    }
}

/// The digests to compute over a payload.
#[derive(Default)]
pub(super) struct DigestPlan {
    pub algorithms: Vec<Algorithm>,
    pub verify_md5: bool,
    pub etag: ETagForm,
}

/// Bytes and what was computed over them.
pub(super) struct Payload {
    pub bytes: Bytes,
    pub checksums: Vec<Checksum>,
    md5: Option<[u8; 16]>,
    etag: ETagForm,
    /// The identity of the object, instead of a new one.
    identity: Option<Identity>,
    reported: Option<Reported>,
}

impl Payload {
    /// Computes each algorithm of the plan once; without any, a CRC-64/NVME.
    pub fn new(bytes: Bytes, plan: &DigestPlan) -> Self {
        let mut checksums: Vec<Checksum> = Vec::new();
        for &algorithm in &plan.algorithms {
            if !checksums.iter().any(|c| c.algorithm() == algorithm) {
                checksums.push(Checksum::compute(algorithm, &bytes));
            }
        }
        if checksums.is_empty() {
            checksums.push(Checksum::compute(Algorithm::Crc64Nvme, &bytes));
        }
        let wants_md5 = plan.verify_md5 || plan.etag == ETagForm::Md5;
        let md5 = wants_md5.then(|| Md5::digest(&bytes).into());
        Self { bytes, checksums, md5, etag: plan.etag, identity: None, reported: None }
    }

    pub fn set_identity(&mut self, identity: Option<Identity>) {
        self.identity = identity;
    }

    /// Compares the bytes with the declared values, and takes the attributes to report.
    pub fn verify(&mut self, expected: Expected) -> Result<()> {
        expected.verify(self.bytes.len() as u64, self.md5, &self.checksums)?;
        self.reported = expected.reported;
        self.reported.as_ref().map_or(Ok(()), Reported::check)
    }

    /// The description of the transformation; empty without one.
    pub fn description(&self) -> Vec<u8> {
        self.reported.as_ref().map(|reported| reported.description.clone()).unwrap_or_default()
    }

    /// The entity tag of this payload when written as `generation`.
    pub fn etag(&self, generation: Generation) -> ETag {
        match (self.etag, &self.md5) {
            (ETagForm::Md5, Some(md5)) => ETag::from_md5(md5),
            _ => unique_etag(generation),
        }
    }

    /// The object that this write creates.
    pub fn into_object(
        self,
        generation: Generation,
        modified: Timestamp,
        metadata: Metadata,
    ) -> StoredObject {
        let new = || Identity { etag: self.etag(generation), modified };
        let Identity { etag, modified } = self.identity.clone().unwrap_or_else(new);
        let mut info = ObjectInfo {
            size: self.bytes.len() as u64,
            etag,
            modified,
            generation,
            metadata,
            checksums: self.checksums,
            scope: ChecksumScope::FullObject,
            parts: None,
            version: None,
            stored: None,
        };
        if let Some(Reported { plain, description }) = self.reported {
            let (plain_bytes, stored_bytes) = (plain.size, info.size);
            let segment = StoredSegment { part: None, plain_bytes, stored_bytes, description };
            info.stored = Some(StoredForm { segments: [segment].into() });
            (info.size, info.checksums) = (plain.size, plain.checksums);
            // A moved object keeps its entity tag.
            if self.identity.is_none() {
                info.etag = plain.etag;
            }
        }
        StoredObject { info, bytes: self.bytes, parts: Vec::new() }
    }
}

/// The entity tag of a multipart object: S3's form, unless a part's tag is not an MD5.
pub(super) fn etag_of_parts(parts: &[PartInfo], generation: Generation) -> ETag {
    let md5s: Option<Vec<[u8; 16]>> = parts.iter().map(|part| part.etag.md5()).collect();
    match md5s {
        Some(md5s) => ETag::from_parts(&Md5::digest(md5s.concat()).into(), parts.len()),
        None => unique_etag(generation),
    }
}

fn unique_etag(generation: Generation) -> ETag {
    ETag::from_text(&format!("{:016x}-unique", generation.0))
}
