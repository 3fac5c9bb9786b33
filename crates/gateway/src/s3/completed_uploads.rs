//! Multipart uploads that were completed recently. A client that lost the response to its completion sends it again; as
//! in S3, it then gets the same response, although the upload is gone. Invariants:
//! - only a completion that succeeded is cached, and only for the same parts, checksums and conditions;
//! - an upload that a client aborts, or whose bucket is deleted by this process, is not cached, even if its completion is
//!   still in flight;
//! - completions of one upload are executed one after another, and continue if their client disconnects;
//! - memory is bounded by the number of uploads and by time, and ends with the process.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use ring::digest::{Context as Digest, SHA256};
use tokio::sync::watch;
use tradewind_core::multipart::{CompletePart, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::{Address, BucketName, Context};

use super::failure::Result;
use crate::error::{Code, WireError};

/// The maximum number of cached uploads: about 8 MiB.
const MAX_CACHED_UPLOADS: usize = 16 << 10;

/// The time for which an upload is cached.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// Headers that change the outcome of a completion, in addition to those that begin with [`CHECKSUM_PREFIX`].
const HEADERS: &[&str] = &["if-match", "if-none-match", "x-amz-mp-object-size"];

const CHECKSUM_PREFIX: &str = "x-amz-checksum-";

/// A SHA-256.
type Fingerprint = [u8; 32];

/// The completed uploads of a service. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct CompletedUploads(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    completed: HashMap<Fingerprint, CompletedUpload>,
    /// The uploads in `completed`, and some forgotten ones, in the order of completion.
    order: VecDeque<Expiry>,
    in_flight: HashMap<Fingerprint, InFlight>,
}

struct CompletedUpload {
    bucket: BucketName,
    request: Fingerprint,
    committed: Committed,
}

/// A request to complete an upload.
pub(super) struct CompletionRequest<'a> {
    pub(super) address: &'a Address,
    pub(super) upload: &'a UploadId,
    pub(super) parts: &'a [CompletePart],
    /// All headers of the request.
    pub(super) headers: &'a HeaderMap,
}

/// The result of a completion.
pub(super) struct Completion {
    pub(super) committed: Committed,
    /// True if an earlier request completed the upload. Its bucket may have been deleted since.
    pub(super) is_repeated: bool,
}

struct Expiry {
    upload: Fingerprint,
    until: Duration,
}

/// A completion that is being executed.
struct InFlight {
    bucket: BucketName,
    /// Ends when the completion does.
    end: watch::Receiver<()>,
    is_aborted: bool,
}

/// The beginning of a completion.
enum Begin {
    Completed(Box<Committed>),
    Wait(watch::Receiver<()>),
    Execute(Execution),
}

/// The right to complete an upload, until it is dropped.
struct Execution {
    uploads: CompletedUploads,
    bucket: BucketName,
    upload: Fingerprint,
    request: Fingerprint,
    _end: watch::Sender<()>,
}

impl CompletedUploads {
    /// Completes an upload by `complete`, unless an equal request succeeded recently: then returns its result. Waits while another request completes the upload.
    pub(super) async fn complete<F>(
        &self,
        context: &Context,
        request: CompletionRequest<'_>,
        complete: F,
    ) -> Result<Completion>
    where
        F: Future<Output = Result<Committed>> + Send + 'static,
    {
        let bucket = &request.address.bucket;
        let upload = upload_fingerprint(request.address, request.upload);
        let request = request_fingerprint(request.parts, request.headers);
        let clock = context.deadline.clock().clone();
        let execution = loop {
            match self.begin(bucket, upload, request, clock.now()) {
                Begin::Completed(committed) => {
                    return Ok(Completion { committed: *committed, is_repeated: true });
                }
                Begin::Execute(execution) => break execution,
                // The sender is dropped at the end, which is an error here.
                Begin::Wait(mut end) => drop(context.guard(end.changed()).await?),
            }
        };
        // A separate task: the client may disconnect, and ask for the result with its next request.
        let completing = tokio::spawn(async move {
            let result = complete.await;
            if let Ok(committed) = &result {
                execution.record(committed, clock.now());
            }
            result
        });
        let committed = completing.await.unwrap_or_else(|error| {
            let message = "We encountered an internal error. Please try again.";
            Err(WireError::with_source(Code::InternalError, message, error).into())
        })?;
        Ok(Completion { committed, is_repeated: false })
    }

    /// Forgets an upload that a client aborts.
    pub(super) fn forget(&self, address: &Address, upload: &UploadId) {
        let upload = upload_fingerprint(address, upload);
        let mut state = self.0.lock();
        state.completed.remove(&upload);
        if let Some(in_flight) = state.in_flight.get_mut(&upload) {
            in_flight.is_aborted = true;
        }
    }

    /// Forgets the uploads of a bucket when the result is dropped: when its deletion ends, even if the client disconnects
    /// and the outcome is unknown.
    pub(super) const fn forget_bucket_on_drop<'a>(&'a self, bucket: &'a BucketName) -> ForgetBucket<'a> {
        ForgetBucket { uploads: self, bucket }
    }

    fn begin(&self, bucket: &BucketName, upload: Fingerprint, request: Fingerprint, now: Duration) -> Begin {
        let mut state = self.0.lock();
        state.expire(now);
        if let Some(completed) = state.completed.get(&upload)
            && completed.request == request
        {
            return Begin::Completed(Box::new(completed.committed.clone()));
        }
        if let Some(in_flight) = state.in_flight.get(&upload) {
            return Begin::Wait(in_flight.end.clone());
        }
        let (sender, end) = watch::channel(());
        state.in_flight.insert(upload, InFlight { bucket: bucket.clone(), end, is_aborted: false });
        let (uploads, bucket) = (self.clone(), bucket.clone());
        Begin::Execute(Execution { uploads, bucket, upload, request, _end: sender })
    }
}

/// Forgets the uploads of a bucket when it is dropped.
pub(super) struct ForgetBucket<'a> {
    uploads: &'a CompletedUploads,
    bucket: &'a BucketName,
}

impl Drop for ForgetBucket<'_> {
    fn drop(&mut self) {
        let mut state = self.uploads.0.lock();
        state.completed.retain(|_, completed| completed.bucket != *self.bucket);
        for in_flight in state.in_flight.values_mut().filter(|in_flight| in_flight.bucket == *self.bucket) {
            in_flight.is_aborted = true;
        }
    }
}

impl Execution {
    fn record(&self, committed: &Committed, now: Duration) {
        let mut state = self.uploads.0.lock();
        if state.in_flight.get(&self.upload).is_some_and(|in_flight| in_flight.is_aborted) {
            return;
        }
        let completed = CompletedUpload {
            bucket: self.bucket.clone(),
            request: self.request,
            committed: committed.clone(),
        };
        state.completed.insert(self.upload, completed);
        state.order.push_back(Expiry { upload: self.upload, until: now + MAX_AGE });
        state.expire(now);
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.uploads.0.lock().in_flight.remove(&self.upload);
    }
}

impl State {
    fn expire(&mut self, now: Duration) {
        while let Some(oldest) = self.order.front()
            && (oldest.until <= now || self.order.len() > MAX_CACHED_UPLOADS)
        {
            self.completed.remove(&oldest.upload);
            self.order.pop_front();
        }
    }
}

fn upload_fingerprint(address: &Address, upload: &UploadId) -> Fingerprint {
    fingerprint([address.bucket.as_str(), address.key.as_str(), &upload.0].map(str::as_bytes))
}

/// The fingerprint of everything in a request that determines its outcome, except the upload.
fn request_fingerprint(parts: &[CompletePart], headers: &HeaderMap) -> Fingerprint {
    let mut digest = Digest::new(&SHA256);
    digest.update(&(parts.len() as u64).to_le_bytes());
    for part in parts {
        digest.update(&part.number.get().to_le_bytes());
        let checksum = part.checksum.as_ref();
        let (algorithm, value) = checksum.map_or(("", &[][..]), |c| (c.algorithm().name(), c.bytes()));
        digest.update(&fingerprint([part.etag.as_str().as_bytes(), algorithm.as_bytes(), value]));
    }
    let mut relevant: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .filter(|(name, _)| name.starts_with(CHECKSUM_PREFIX) || HEADERS.contains(name))
        .collect();
    relevant.sort_by_key(|(name, _)| *name);
    for (name, value) in relevant {
        digest.update(&fingerprint([name.as_bytes(), value]));
    }
    finish(digest)
}

/// The fingerprint of texts, with their lengths.
fn fingerprint<const COUNT: usize>(texts: [&[u8]; COUNT]) -> Fingerprint {
    let mut digest = Digest::new(&SHA256);
    for text in texts {
        digest.update(&(text.len() as u64).to_le_bytes());
        digest.update(text);
    }
    finish(digest)
}

fn finish(digest: Digest) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(digest.finish().as_ref());
    fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::object::Generation;
    use tradewind_core::{ChecksumScope, ETag, Timestamp};

    fn committed() -> Committed {
        Committed {
            etag: ETag::from_tag("etag"),
            size: 1,
            modified: Timestamp::default(),
            generation: Generation(1),
            checksums: Vec::new(),
            scope: ChecksumScope::FullObject,
            version: None,
            source_version: None,
        }
    }

    fn bucket() -> BucketName {
        BucketName::new("abc").unwrap()
    }

    fn complete(uploads: &CompletedUploads, number: u64, now: Duration) {
        let upload = fingerprint([&number.to_le_bytes()]);
        let Begin::Execute(execution) = uploads.begin(&bucket(), upload, Fingerprint::default(), now) else {
            panic!("upload {number} is known")
        };
        execution.record(&committed(), now);
    }

    fn is_cached(uploads: &CompletedUploads, number: u64, now: Duration) -> bool {
        let upload = fingerprint([&number.to_le_bytes()]);
        matches!(uploads.begin(&bucket(), upload, Fingerprint::default(), now), Begin::Completed(_))
    }

    #[test]
    fn cached_uploads_are_bounded_by_number_and_time() {
        let uploads = CompletedUploads::default();
        let start = Duration::from_secs(5);
        for number in 0..=MAX_CACHED_UPLOADS as u64 {
            complete(&uploads, number, start);
        }
        assert!(!is_cached(&uploads, 0, start));
        assert!(is_cached(&uploads, 1, start));
        assert!(!is_cached(&uploads, 1, start + MAX_AGE));
        let state = uploads.0.lock();
        assert!(state.completed.is_empty() && state.order.is_empty() && state.in_flight.is_empty());
    }

    #[test]
    fn a_completion_in_flight_in_a_deleted_bucket_is_not_cached() {
        let (uploads, now) = (CompletedUploads::default(), Duration::ZERO);
        for (number, deleted, is_kept) in [(1, "abc", false), (2, "other", true)] {
            let upload = fingerprint([&u64::to_le_bytes(number)]);
            let Begin::Execute(execution) = uploads.begin(&bucket(), upload, Fingerprint::default(), now)
            else {
                panic!("upload {number} is known")
            };
            drop(uploads.forget_bucket_on_drop(&BucketName::new(deleted).unwrap()));
            execution.record(&committed(), now);
            drop(execution);
            assert_eq!(is_cached(&uploads, number, now), is_kept, "{deleted}");
        }
    }
}
