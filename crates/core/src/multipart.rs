//! Multipart uploads: an object made of parts that arrive in any order and become visible at once.

use std::fmt;

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::clock::Timestamp;
use crate::condition::Precondition;
use crate::error::{Error, Reason, Result};
use crate::listing::ListEntry;
use crate::metadata::Metadata;
use crate::object::ETag;

/// The highest part number.
pub const MAX_PART_NUMBER: u16 = 10_000;
/// The smallest size of every part but the last.
pub const MIN_PART_BYTES: u64 = 5 << 20;

/// The name of an upload, unique within a store; never reused. Text without spaces or `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadId(pub String);

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A part's number, 1 to 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartNumber(u16);

impl PartNumber {
    /// Checks the range.
    pub fn new(number: i64) -> Result<Self> {
        u16::try_from(number).ok().filter(|n| (1..=MAX_PART_NUMBER).contains(n)).map(Self).ok_or_else(|| {
            Error::new(
                Reason::InvalidArgument,
                format!("part number {number} is not within 1 to {MAX_PART_NUMBER}"),
            )
        })
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What a new upload will become.
#[derive(Debug, Clone, Default)]
pub struct CreateUpload {
    /// The object's metadata.
    pub metadata: Metadata,
    /// The checksum its parts carry, and how the object's is made of them. `None`: a CRC-64/NVME of
    /// the whole is kept.
    pub checksum: Option<(Algorithm, ChecksumScope)>,
}

/// An upload that was begun.
#[derive(Debug, Clone)]
pub struct UploadInfo {
    /// Its id.
    pub id: UploadId,
    /// The key it will write.
    pub key: String,
    /// When it was begun.
    pub initiated: Timestamp,
    /// The object's metadata.
    pub metadata: Metadata,
    /// See [`CreateUpload::checksum`].
    pub checksum: Option<(Algorithm, ChecksumScope)>,
}

/// A part that was committed.
#[derive(Debug, Clone)]
pub struct PartInfo {
    /// Its number.
    pub number: PartNumber,
    /// Bytes.
    pub size: u64,
    /// Its entity tag.
    pub etag: ETag,
    /// When it was committed.
    pub modified: Timestamp,
    /// Its checksums.
    pub checksums: Vec<Checksum>,
}

/// A page of parts.
#[derive(Debug, Clone)]
pub struct PartsPage {
    /// The upload itself.
    pub upload: UploadInfo,
    /// Parts in ascending order.
    pub parts: Vec<PartInfo>,
    /// Where there are more: the `after` of the next page.
    pub next: Option<PartNumber>,
}

/// A part as named at completion.
#[derive(Debug, Clone)]
pub struct CompletePart {
    /// Its number.
    pub number: PartNumber,
    /// The tag that its upload answered.
    pub etag: ETag,
    /// Its checksum, where the client names it.
    pub checksum: Option<Checksum>,
}

/// The order to make an object of parts.
#[derive(Debug, Clone, Default)]
pub struct CompleteUpload {
    /// The parts, in ascending order.
    pub parts: Vec<CompletePart>,
    /// A condition on the key, evaluated when the object becomes visible.
    pub precondition: Precondition,
    /// The size that the client expects of the object.
    pub expected_size: Option<u64>,
    /// The checksum that the client expects of the object.
    pub expected_checksum: Option<Checksum>,
}

/// Checks the parts named at completion against those committed, in S3's order of errors. `committed`
/// answers by number. Returns them in order.
pub fn match_parts<T: Clone>(
    named: &[CompletePart],
    committed: impl Fn(PartNumber) -> Option<(PartInfo, T)>,
) -> Result<Vec<(PartInfo, T)>> {
    if named.is_empty() {
        return Err(Error::new(Reason::InvalidRequest, "a completion must name at least one part"));
    }
    if named.windows(2).any(|w| w[0].number >= w[1].number) {
        return Err(Error::new(Reason::InvalidPartOrder, "parts must be named in ascending order"));
    }
    let mut parts = Vec::with_capacity(named.len());
    for part in named {
        let number = part.number.get();
        let invalid = |why: &str| Err(Error::new(Reason::InvalidPart, format!("part {number} {why}")));
        let Some((info, extra)) = committed(part.number) else {
            return invalid("was not uploaded");
        };
        if info.etag != part.etag {
            return invalid("has another ETag");
        }
        if let Some(checksum) = part.checksum
            && !info.checksums.contains(&checksum)
        {
            return invalid("has another checksum");
        }
        parts.push((info, extra));
    }
    if let Some((info, _)) = parts[..parts.len() - 1].iter().find(|(info, _)| info.size < MIN_PART_BYTES) {
        return Err(Error::new(
            Reason::EntityTooSmall,
            format!(
                "part {} has {} bytes; every part but the last needs 5 MiB",
                info.number.get(),
                info.size
            ),
        ));
    }
    Ok(parts)
}

/// The checksum of the whole object from its parts'. `None` where a part lacks one.
#[must_use]
pub fn checksum_of_parts(algorithm: Algorithm, scope: ChecksumScope, parts: &[PartInfo]) -> Option<Checksum> {
    let of_part = |p: &PartInfo| p.checksums.iter().find(|c| c.algorithm() == algorithm).copied();
    let values: Vec<(Checksum, u64)> =
        parts.iter().map(|p| Some((of_part(p)?, p.size))).collect::<Option<_>>()?;
    match scope {
        ChecksumScope::Composite => Some(Checksum::composite(algorithm, values.iter().map(|(c, _)| c))),
        ChecksumScope::FullObject => {
            let mut values = values.into_iter();
            let (first, _) = values.next()?;
            values.try_fold(first, |whole, (next, size)| whole.combine(&next, size))
        }
    }
}

/// What uploads to list.
#[derive(Debug, Clone, Default)]
pub struct ListUploads {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Roll up behind the prefix at this.
    pub delimiter: Option<String>,
    /// Only behind this key (and, with `after_upload`, from this key on).
    pub after_key: Option<String>,
    /// Within `after_key`, only uploads behind this one. Ignored without `after_key`.
    pub after_upload: Option<UploadId>,
    /// The most entries on the page.
    pub limit: usize,
}

/// A page of uploads; `next` is the last entry's key and, unless that is a common prefix, upload.
#[derive(Debug, Clone)]
pub struct UploadsPage {
    /// Uploads and common prefixes, in order of key, then of initiation.
    pub entries: Vec<ListEntry<UploadInfo>>,
    /// Where there is more: `after_key` and `after_upload` of the next page.
    pub next: Option<(String, Option<UploadId>)>,
}

/// Makes one page of a bucket's uploads, given in order of key, then of initiation.
#[must_use]
pub fn page_uploads(uploads: impl IntoIterator<Item = UploadInfo>, request: &ListUploads) -> UploadsPage {
    let mut entries: Vec<ListEntry<UploadInfo>> = Vec::new();
    let mut more = None;
    let mut passed_marker = false;
    for upload in uploads {
        let Some(rest) = upload.key.strip_prefix(&request.prefix) else { continue };
        let common = request.delimiter.as_deref().filter(|d| !d.is_empty()).and_then(|d| {
            rest.find(d).map(|at| upload.key[..request.prefix.len() + at + d.len()].to_owned())
        });
        let name = common.as_deref().unwrap_or(&upload.key);
        if let Some(after) = request.after_key.as_deref() {
            match (name.cmp(after), &request.after_upload) {
                (std::cmp::Ordering::Less, _) | (std::cmp::Ordering::Equal, None) => continue,
                (std::cmp::Ordering::Equal, Some(marker)) if !passed_marker => {
                    passed_marker = upload.id == *marker;
                    continue;
                }
                _ => {}
            }
        }
        if common.is_some()
            && entries.last().is_some_and(|e| e.name() == name && matches!(e, ListEntry::CommonPrefix(_)))
        {
            continue;
        }
        if entries.len() == request.limit {
            more = entries.last().map(|e| match e {
                ListEntry::Key(key, upload) => (key.clone(), Some(upload.id.clone())),
                ListEntry::CommonPrefix(prefix) => (prefix.clone(), None),
            });
            break;
        }
        entries.push(match common {
            Some(common) => ListEntry::CommonPrefix(common),
            None => ListEntry::Key(upload.key.clone(), upload),
        });
    }
    UploadsPage { entries, next: more }
}
