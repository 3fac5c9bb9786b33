//! Multipart uploads: an object made of parts that arrive in any order and become visible at once.

use std::fmt;

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::clock::Timestamp;
use crate::condition::Precondition;
use crate::error::{Error, Reason, Result};
use crate::listing::ListEntry;
use crate::metadata::Metadata;
use crate::object::{ETag, Identity};

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
            Error::for_client(
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

/// Parameters of a new upload.
#[derive(Debug, Clone, Default)]
pub struct CreateUpload {
    /// The object's metadata.
    pub metadata: Metadata,
    /// The checksum of its parts, and the scope of the object's checksum. `None`: a CRC-64/NVME of
    /// the whole is stored. A full-object checksum that cannot be combined from parts (any but a CRC) is an
    /// [`InvalidRequest`](Reason::InvalidRequest). Parts get this checksum in addition to those that their own
    /// staging requests, so that a completion never lacks one.
    pub checksum: Option<(Algorithm, ChecksumScope)>,
}

impl CreateUpload {
    /// Rejects a full-object checksum that cannot be combined from the parts' checksums, and the composite CRC-64/NVME,
    /// which S3 does not have.
    pub fn check(&self) -> Result<()> {
        self.metadata.check()?;
        let Some((algorithm, scope)) = self.checksum else { return Ok(()) };
        if algorithm.supports(scope) {
            return Ok(());
        }
        let name = algorithm.name();
        let why = match scope {
            ChecksumScope::FullObject => {
                format!("a full-object {name} cannot be combined from those of the parts; use COMPOSITE")
            }
            ChecksumScope::Composite => format!("a {name} cannot be composite; use FULL_OBJECT"),
        };
        Err(Error::for_client(Reason::InvalidRequest, why))
    }
}

/// An unfinished upload.
#[derive(Debug, Clone)]
pub struct UploadInfo {
    /// Its id.
    pub id: UploadId,
    /// The key it will write.
    pub key: String,
    /// When it was created; `None` if the store does not say.
    pub initiated: Option<Timestamp>,
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
    /// Bytes in the part.
    pub size: u64,
    /// Its entity tag.
    pub etag: ETag,
    /// When it was committed; `None` if the store does not say.
    pub modified: Option<Timestamp>,
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
    /// The `after` of the next page, if there are more parts.
    pub next: Option<PartNumber>,
}

/// A part as named at completion.
#[derive(Debug, Clone)]
pub struct CompletePart {
    /// Its number.
    pub number: PartNumber,
    /// The entity tag returned when it was uploaded.
    pub etag: ETag,
    /// Its checksum, if the client names it.
    pub checksum: Option<Checksum>,
}

/// Parameters of a completion.
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
    /// The identity of the object that this upload moves: see
    /// [`StageRequest::identity`](crate::store::StageRequest::identity).
    pub identity: Option<Identity>,
}

/// Checks the parts named at completion against those committed, in S3's order of errors. `committed`
/// looks a part up by number. Returns the parts in order.
pub fn match_parts<T: Clone>(
    named: &[CompletePart],
    committed: impl Fn(PartNumber) -> Option<(PartInfo, T)>,
) -> Result<Vec<(PartInfo, T)>> {
    if named.is_empty() {
        return Err(Error::for_client(Reason::InvalidRequest, "a completion must name at least one part"));
    }
    if named.windows(2).any(|w| w[0].number >= w[1].number) {
        return Err(Error::new(Reason::InvalidPartOrder, "parts must be named in ascending order"));
    }
    let mut parts = Vec::with_capacity(named.len());
    for part in named {
        let number = part.number.get();
        let invalid = |why: &str| {
            Err(Error::new(Reason::InvalidPart, format!("part {number} {why}")).about_part(part.number))
        };
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
        let why = format!(
            "part {} has {} bytes; every part but the last needs 5 MiB",
            info.number.get(),
            info.size
        );
        return Err(Error::new(Reason::EntityTooSmall, why).about_part(info.number));
    }
    Ok(parts)
}

/// The checksum of the whole object from those of its parts. `None` if a part lacks one.
#[must_use]
pub fn checksum_of_parts(algorithm: Algorithm, scope: ChecksumScope, parts: &[PartInfo]) -> Option<Checksum> {
    let checksum = |p: &PartInfo| p.checksums.iter().find(|c| c.algorithm() == algorithm).copied();
    let values: Vec<(Checksum, u64)> =
        parts.iter().map(|p| Some((checksum(p)?, p.size))).collect::<Option<_>>()?;
    match scope {
        ChecksumScope::Composite => Some(Checksum::composite(algorithm, values.iter().map(|(c, _)| c))),
        ChecksumScope::FullObject => {
            let mut values = values.into_iter();
            let (first, _) = values.next()?;
            values.try_fold(first, |whole, (next, size)| whole.combine(&next, size))
        }
    }
}

/// Parameters of a page of uploads.
#[derive(Debug, Clone, Default)]
pub struct ListUploads {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys that contain this after the prefix are rolled up into one common prefix.
    pub delimiter: Option<String>,
    /// Only uploads of keys after this one (with `after_upload`, including this key).
    pub after_key: Option<String>,
    /// Within `after_key`, only uploads after this one. Ignored without `after_key`.
    pub after_upload: Option<UploadId>,
    /// The maximum number of entries on the page.
    pub limit: usize,
}

/// A page of uploads; `next` is the last entry's key and, unless that is a common prefix, upload.
#[derive(Debug, Clone)]
pub struct UploadsPage {
    /// Uploads and common prefixes, in order of key, then of initiation.
    pub entries: Vec<ListEntry<UploadInfo>>,
    /// `after_key` and `after_upload` of the next page, if there are more entries.
    pub next: Option<(String, Option<UploadId>)>,
}

/// Builds one page of a bucket's uploads, given in order of key, then of initiation.
///
/// `position` returns the place of an id in the order of initiation; `None` if it is no id of the store. The upload
/// named by `after_upload` may have ended: the page begins with the first one initiated after it.
///
/// # Errors
/// [`InvalidArgument`](Reason::InvalidArgument) if `after_upload` is no id of the store.
pub fn page_uploads<P: PartialOrd>(
    uploads: impl IntoIterator<Item = UploadInfo>,
    request: &ListUploads,
    position: impl Fn(&UploadId) -> Option<P>,
) -> Result<UploadsPage> {
    let marker = match (&request.after_key, &request.after_upload) {
        (Some(_), Some(id)) => Some(position(id).ok_or_else(invalid_upload_marker)?),
        _ => None,
    };
    let is_after_marker =
        |id: &UploadId| marker.as_ref().is_some_and(|marker| position(id).is_some_and(|own| own > *marker));
    let with_prefix = uploads.into_iter().filter(|upload| upload.key.starts_with(&request.prefix));
    let mut uploads = with_prefix.peekable();
    let rest_of_marker_key = uploads_after_marker(&mut uploads, request, is_after_marker);
    let mut entries: Vec<ListEntry<UploadInfo>> = Vec::new();
    let mut next = None;
    for upload in rest_of_marker_key.into_iter().chain(uploads) {
        let common = common_prefix(&upload.key, request);
        if let (Some(common), Some(ListEntry::CommonPrefix(last))) = (common, entries.last())
            && common == last
        {
            continue;
        }
        if entries.len() == request.limit {
            next = entries.last().map(|entry| match entry {
                ListEntry::Key(key, upload) => (key.clone(), Some(upload.id.clone())),
                ListEntry::CommonPrefix(prefix) => (prefix.clone(), None),
            });
            break;
        }
        entries.push(match common {
            Some(common) => ListEntry::CommonPrefix(common.to_owned()),
            None => ListEntry::Key(upload.key.clone(), upload),
        });
    }
    Ok(UploadsPage { entries, next })
}

/// The error of an upload id marker that is no id of the store.
fn invalid_upload_marker() -> Error {
    Error::for_client(Reason::InvalidArgument, "Invalid uploadId marker")
}

/// Consumes the uploads of keys up to `after_key`. Returns those of `after_key` itself that are after `after_upload`.
fn uploads_after_marker<I: Iterator<Item = UploadInfo>>(
    uploads: &mut std::iter::Peekable<I>,
    request: &ListUploads,
    is_after_marker: impl Fn(&UploadId) -> bool,
) -> Vec<UploadInfo> {
    let mut later = Vec::new();
    let Some(after) = request.after_key.as_deref() else { return later };
    let is_before = |upload: &UploadInfo| common_prefix(&upload.key, request).unwrap_or(&upload.key) <= after;
    while let Some(upload) = uploads.next_if(is_before) {
        if upload.key == after && is_after_marker(&upload.id) {
            later.push(upload);
        }
    }
    later
}

/// The common prefix that a key, which begins with the request's prefix, is rolled up into, if any.
fn common_prefix<'a>(key: &'a str, request: &ListUploads) -> Option<&'a str> {
    let delimiter = request.delimiter.as_deref().filter(|d| !d.is_empty())?;
    let at = key[request.prefix.len()..].find(delimiter)?;
    Some(&key[..request.prefix.len() + at + delimiter.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(key: &str, id: &str) -> UploadInfo {
        UploadInfo {
            id: UploadId(id.to_owned()),
            key: key.to_owned(),
            initiated: None,
            metadata: Metadata::default(),
            checksum: None,
        }
    }

    fn ids(page: &UploadsPage) -> Vec<&str> {
        fn id(entry: &ListEntry<UploadInfo>) -> &str {
            match entry {
                ListEntry::Key(_, info) => &info.id.0,
                ListEntry::CommonPrefix(name) => name,
            }
        }
        page.entries.iter().map(id).collect()
    }

    #[test]
    fn page_after_an_ended_upload_misses_none() {
        // A client that aborts each page before it requests the next must still see every upload.
        let left = [upload("a", "3"), upload("a", "4"), upload("b", "5")];
        let after = |id: &str| ListUploads {
            after_key: Some("a".to_owned()),
            after_upload: Some(UploadId(id.to_owned())),
            limit: 10,
            ..ListUploads::default()
        };
        let page =
            |id: &str| page_uploads(left.clone(), &after(id), |id: &UploadId| id.0.parse::<u64>().ok());
        assert_eq!(ids(&page("2").unwrap()), ["3", "4", "5"]);
        assert_eq!(ids(&page("3").unwrap()), ["4", "5"]);
        assert_eq!(ids(&page("4").unwrap()), ["5"]);
        assert_eq!(page("none").unwrap_err().reason(), Reason::InvalidArgument);
        let without_key = ListUploads { after_key: None, ..after("none") };
        let ignored = page_uploads(left.clone(), &without_key, |id: &UploadId| id.0.parse::<u64>().ok());
        assert_eq!(ids(&ignored.unwrap()), ["3", "4", "5"]);
    }
}
