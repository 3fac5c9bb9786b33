//! A bounded cache of multipart uploads: the checksum algorithm of their parts, their tags, and the checksums of the
//! parts stored here. Everything in it can be requested from the service again or is optional, so it may be dropped.

use std::collections::{BTreeMap, HashMap};

use http::HeaderValue;
use tradewind_core::multipart::{CompletePart, CompleteUpload, PartNumber, UploadId};
use tradewind_core::{Algorithm, Checksum, ChecksumScope, ETag, Tags};

/// Maximum number of cached uploads.
const MAX_CACHED_UPLOADS: usize = 4096;
/// Maximum number of cached parts of all uploads together: about 5 MiB.
const MAX_CACHED_PARTS: usize = 32 << 10;

/// The cached uploads.
#[derive(Default)]
pub(super) struct UploadCache {
    uploads: HashMap<UploadId, CachedUpload>,
    /// Number of cached parts of all uploads.
    part_count: usize,
}

/// The properties of an upload that is cached: see [`CachedUpload`].
#[derive(Default)]
pub(super) struct UploadProperties {
    pub algorithm: Option<Algorithm>,
    pub verifies_checksums: bool,
    pub tags: Tags,
    pub write_id: Option<HeaderValue>,
}

/// A cached upload.
#[derive(Default)]
pub(super) struct CachedUpload {
    /// The checksum that its parts must have. Without one, neither its parts nor its completion have checksums: it was
    /// created so, or the service has refused the checksum of a part.
    pub algorithm: Option<Algorithm>,
    /// Its tags, if it was created here: radosgw drops them.
    pub tags: Tags,
    /// The id of the write that its completion is, if it was created here with one.
    pub write_id: Option<HeaderValue>,
    /// The service has named the algorithm.
    pub verifies_checksums: bool,
    parts: BTreeMap<PartNumber, CachedPart>,
}

/// A part stored by this process, with the checksum of its bytes.
pub(super) struct CachedPart {
    pub etag: ETag,
    pub size: u64,
    pub checksum: Checksum,
}

impl UploadCache {
    pub fn get(&self, upload: &UploadId) -> Option<&CachedUpload> {
        self.uploads.get(upload)
    }

    /// Caches an upload without parts.
    pub fn insert(&mut self, upload: &UploadId, properties: UploadProperties) {
        // Uploads that are never completed here would otherwise accumulate.
        if self.uploads.len() >= MAX_CACHED_UPLOADS {
            *self = Self::default();
        }
        let cached = self.uploads.entry(upload.clone()).or_default();
        let UploadProperties { algorithm, verifies_checksums, tags, write_id } = properties;
        (cached.algorithm, cached.tags, cached.write_id) = (algorithm, tags, write_id);
        cached.verifies_checksums = verifies_checksums;
    }

    /// Omits checksums from the other parts of an upload, and from its completion.
    pub fn omit_checksums(&mut self, upload: &UploadId) {
        if let Some(cached) = self.uploads.get_mut(upload) {
            cached.algorithm = None;
        }
    }

    pub fn remove(&mut self, upload: &UploadId) -> Option<CachedUpload> {
        let removed = self.uploads.remove(upload)?;
        self.part_count -= removed.parts.len();
        Some(removed)
    }

    /// Caches a part, replacing an earlier one of its number. Does nothing if its upload is not cached.
    pub fn insert_part(&mut self, upload: &UploadId, number: PartNumber, part: CachedPart) {
        if self.part_count >= MAX_CACHED_PARTS {
            self.uploads.values_mut().for_each(|upload| upload.parts.clear());
            self.part_count = 0;
        }
        let Some(upload) = self.uploads.get_mut(upload) else { return };
        if upload.parts.insert(number, part).is_none() {
            self.part_count += 1;
        }
    }

    /// Adds the checksums of cached parts to a completion that names none for them.
    pub fn add_part_checksums(
        &self,
        upload: &UploadId,
        algorithm: Algorithm,
        completion: &mut CompleteUpload,
    ) {
        let Some(cached) = self.uploads.get(upload) else { return };
        for named in completion.parts.iter_mut().filter(|named| named.checksum.is_none()) {
            let part = cached.parts.get(&named.number).filter(|part| part.etag == named.etag);
            named.checksum = part.map(|part| part.checksum).filter(|sum| sum.algorithm() == algorithm);
        }
    }

    /// The first part whose checksum in a completion differs from the one of its bytes. Parts that are not cached with this
    /// algorithm are not compared.
    pub fn find_other_checksum(&self, upload: &UploadId, completion: &CompleteUpload) -> Option<PartNumber> {
        let cached = self.uploads.get(upload)?;
        let differs = |named: &&CompletePart| {
            let part = cached.parts.get(&named.number).filter(|part| part.etag == named.etag);
            part.zip(named.checksum).is_some_and(|(part, checksum)| {
                part.checksum.algorithm() == checksum.algorithm() && part.checksum != checksum
            })
        };
        completion.parts.iter().find(differs).map(|named| named.number)
    }

    /// The checksum that an object made of these parts must have; `None` if the checksum of a part is unknown.
    pub fn object_checksum(
        &self,
        upload: &UploadId,
        completion: &CompleteUpload,
        algorithm: Algorithm,
        scope: ChecksumScope,
    ) -> Option<Checksum> {
        let cached = self.uploads.get(upload);
        let has_algorithm = |checksum: &Checksum| checksum.algorithm() == algorithm;
        let stored = |listed: &CompletePart| {
            let part = cached?.parts.get(&listed.number)?;
            (part.etag == listed.etag && has_algorithm(&part.checksum)).then_some(part)
        };
        match scope {
            ChecksumScope::Composite => {
                let of_part = |listed: &CompletePart| {
                    listed.checksum.filter(has_algorithm).or_else(|| Some(stored(listed)?.checksum))
                };
                let parts: Option<Vec<Checksum>> = completion.parts.iter().map(of_part).collect();
                Some(Checksum::composite(algorithm, &parts?))
            }
            ChecksumScope::FullObject => {
                if let Some(expected) = completion.expected_checksum.filter(has_algorithm) {
                    return Some(expected);
                }
                let mut parts = completion.parts.iter().map(stored);
                let first = parts.next()??.checksum;
                parts.try_fold(first, |whole, part| {
                    let part = part?;
                    whole.combine(&part.checksum, part.size)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [&[u8]; 3] = [b"one", b"two", b"three"];

    fn number(number: i64) -> PartNumber {
        PartNumber::new(number).unwrap()
    }

    /// A cache with one upload, and the request that completes it.
    struct CachedParts {
        all: UploadCache,
        id: UploadId,
        completion: CompleteUpload,
    }

    fn cached_parts(algorithm: Algorithm) -> CachedParts {
        let (mut all, id) = (UploadCache::default(), UploadId("upload".to_owned()));
        all.insert(&id, UploadProperties { algorithm: Some(algorithm), ..UploadProperties::default() });
        let mut completion = CompleteUpload::default();
        for (at, bytes) in (1..).zip(PARTS) {
            let (number, etag) = (number(at), ETag::from_tag(&at.to_string()));
            let checksum = Checksum::compute(algorithm, bytes);
            let part = CachedPart { etag: etag.clone(), size: bytes.len() as u64, checksum };
            all.insert_part(&id, number, part);
            completion.parts.push(CompletePart { number, etag, checksum: None });
        }
        CachedParts { all, id, completion }
    }

    #[test]
    fn checksum_of_computes_every_algorithm_and_scope() {
        for algorithm in Algorithm::ALL {
            let CachedParts { all, id, completion } = cached_parts(algorithm);
            let of_parts = PARTS.map(|bytes| Checksum::compute(algorithm, bytes));
            let composite = all.object_checksum(&id, &completion, algorithm, ChecksumScope::Composite);
            assert_eq!(composite, Some(Checksum::composite(algorithm, &of_parts)));
            let whole = all.object_checksum(&id, &completion, algorithm, ChecksumScope::FullObject);
            assert_eq!(whole, algorithm.is_crc().then(|| Checksum::compute(algorithm, &PARTS.concat())));
        }
    }

    #[test]
    fn checksum_of_ignores_a_part_replaced_elsewhere() {
        let (algorithm, scope) = (Algorithm::Crc32, ChecksumScope::FullObject);
        let CachedParts { mut all, id, mut completion } = cached_parts(algorithm);
        completion.parts[1].etag = ETag::from_tag("another");
        assert_eq!(all.object_checksum(&id, &completion, algorithm, scope), None);
        assert_eq!(all.object_checksum(&id, &completion, algorithm, ChecksumScope::Composite), None);
        completion.parts[1].checksum = Some(Checksum::compute(algorithm, b"2"));
        assert!(all.object_checksum(&id, &completion, algorithm, ChecksumScope::Composite).is_some());
        all.remove(&id);
        assert_eq!((all.part_count, all.object_checksum(&id, &completion, algorithm, scope)), (0, None));
    }

    #[test]
    fn add_part_checksums_skips_a_part_replaced_elsewhere() {
        let CachedParts { all, id, mut completion } = cached_parts(Algorithm::Sha1);
        completion.parts[1].etag = ETag::from_tag("another");
        all.add_part_checksums(&id, Algorithm::Sha1, &mut completion);
        let added: Vec<_> = completion.parts.iter().map(|part| part.checksum).collect();
        let of = |bytes| Some(Checksum::compute(Algorithm::Sha1, bytes));
        assert_eq!(added, [of(PARTS[0]), None, of(PARTS[2])]);
    }

    #[test]
    fn insert_part_drops_all_parts_at_the_maximum() {
        let CachedParts { mut all, id, .. } = cached_parts(Algorithm::Crc32);
        for n in 0..MAX_CACHED_PARTS {
            let other = UploadId(format!("{}", n / 10_000));
            if n % 10_000 == 0 {
                all.insert(&other, UploadProperties::default());
            }
            let checksum = Checksum::compute(Algorithm::Crc32, b"");
            let part = CachedPart { etag: ETag::from_tag(""), size: 0, checksum };
            all.insert_part(&other, number((n % 10_000) as i64 + 1), part);
        }
        assert!(all.part_count <= MAX_CACHED_PARTS && all.get(&id).unwrap().parts.is_empty());
    }
}
