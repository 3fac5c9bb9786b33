//! Rotation of master keys for the admin API: the data keys of all objects of a volume, or of those under a prefix, are
//! wrapped by the current key of its layer `transformed`. The stored bytes stay.
//!
//! In each bucket, unfinished uploads come first: an upload that is completed meanwhile is in the listing of versions that
//! follows, or has been done. Every version is a step of its own, so that the work can be ended and repeated at any time.
//! Lines are those of `prefix_work`; the last one says how many objects and uploads need which key.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use serde_json::{Value as Json, json};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{ListUploads, UploadId};
use tradewind_core::version::ListVersions;
use tradewind_core::{Address, BucketName, Error, ObjectKey, ObjectStore as _, Reason, Result};
use tradewind_layers::Transformed;
use tradewind_layers::transformed::Rewrapped;

use super::prefix_work::{Lines, MAX_REQUEST_TIME, WorkResources, lines_of};

/// Objects that are processed concurrently. Their changes share syncs of the log.
const CONCURRENCY: usize = 16;
/// Entries of a listing request.
const PAGE_ENTRIES: usize = 1000;
/// The time between two lines about progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of failures with a line of their own.
const MAX_REPORTED_FAILURES: u64 = 100;

/// The objects of the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RewrapScope {
    /// All buckets of the volume.
    Buckets {
        /// Their names.
        buckets: Vec<BucketName>,
        /// True if the store has no other buckets.
        is_whole_store: bool,
    },
    /// Keys with a prefix.
    Prefix {
        /// The bucket.
        bucket: BucketName,
        /// The beginning of the keys.
        prefix: String,
    },
}

/// Work on the objects of a volume.
pub(super) struct RewrapWork {
    pub resources: WorkResources,
    pub layer: Arc<Transformed>,
    pub scope: RewrapScope,
}

/// An object version or an unfinished upload.
#[derive(Debug, Clone)]
struct Target {
    address: Address,
    upload: Option<UploadId>,
}

/// The counts in lines.
#[derive(Debug, Default)]
struct Counts {
    objects: u64,
    uploads: u64,
    encrypted: u64,
    rewrapped: u64,
    failed: u64,
    /// Objects and uploads that need each key.
    needed: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, target: &Target, outcome: &Rewrapped) {
        match target.upload {
            None => self.objects += 1,
            Some(_) => self.uploads += 1,
        }
        self.encrypted += u64::from(!outcome.needed_keys.is_empty());
        self.rewrapped += u64::from(outcome.rewrapped > 0);
        self.failed += u64::from(outcome.failure.is_some());
        for key in &outcome.needed_keys {
            *self.needed.entry(key.clone()).or_default() += 1;
        }
    }
}

impl RewrapWork {
    /// The lines. The work advances as they are read.
    pub fn into_lines(self) -> BoxStream<'static, Bytes> {
        lines_of(move |lines| self.run(lines))
    }

    async fn run(self, lines: Lines) {
        let stop = self.resources.stop.clone();
        let ended = tokio::select! {
            ended = self.process_all(&lines) => ended,
            () = stop.cancelled() => Err(Error::new(Reason::ShuttingDown, "the server is shutting down")),
        };
        match ended {
            Ok(counts) => lines.send(&json!({ "done": self.to_json(&counts) })).await,
            Err(error) => lines.send(&json!({ "error": { "message": error.to_string() } })).await,
        }
    }

    fn to_json(&self, counts: &Counts) -> Json {
        // Objects that were not listed or could not be read may need any key.
        let is_all =
            matches!(self.scope, RewrapScope::Buckets { is_whole_store: true, .. }) && counts.failed == 0;
        let is_unneeded = |name: &&str| {
            is_all && !counts.needed.contains_key(*name) && self.layer.current_key() != Some(*name)
        };
        json!({
            "key": self.layer.current_key(),
            "objects": counts.objects,
            "uploads": counts.uploads,
            "encrypted": counts.encrypted,
            "rewrapped": counts.rewrapped,
            "failed": counts.failed,
            "needed_keys": counts.needed,
            "unneeded_keys": self.layer.key_names().filter(is_unneeded).collect::<Vec<&str>>(),
        })
    }

    async fn process_all(&self, lines: &Lines) -> Result<Counts> {
        let mut counts = Counts::default();
        let clock = &self.resources.clock;
        let mut progress_at = clock.now() + PROGRESS_INTERVAL;
        let mut outcomes = pin!(self.outcomes());
        loop {
            tokio::select! {
                outcome = outcomes.next() => {
                    let Some(outcome) = outcome.transpose()? else { return Ok(counts) };
                    let Some(Outcome { target, rewrapped }) = outcome else { continue };
                    counts.add(&target, &rewrapped);
                    if let Some(error) = rewrapped.failure.filter(|_| counts.failed <= MAX_REPORTED_FAILURES) {
                        let (key, message) = (target.address.key.as_str(), error.to_string());
                        lines.send(&json!({ "failure": { "key": key, "message": message } })).await;
                    }
                }
                () = clock.sleep_until(progress_at) => {}
            }
            // Outcomes may follow each other without a pause.
            if clock.now() >= progress_at {
                let counts = json!({ "objects": counts.objects, "rewrapped": counts.rewrapped, "failed": counts.failed });
                lines.send(&json!({ "progress": counts })).await;
                progress_at = clock.now() + PROGRESS_INTERVAL;
            }
        }
    }

    fn outcomes(&self) -> impl Stream<Item = Result<Option<Outcome>>> {
        let places = match &self.scope {
            RewrapScope::Buckets { buckets, .. } => {
                buckets.iter().map(|bucket| Place { bucket: bucket.clone(), prefix: String::new() }).collect()
            }
            RewrapScope::Prefix { bucket, prefix } => {
                vec![Place { bucket: bucket.clone(), prefix: prefix.clone() }]
            }
        };
        let steps = places.into_iter().flat_map(|place| [Step::uploads(&place), Step::versions(&place)]);
        // One step ends before the next one begins: see the module's head.
        stream::iter(steps).then(move |step| async move { Ok::<_, Error>(self.process(step)) }).try_flatten()
    }

    fn process(&self, step: Step) -> impl Stream<Item = Result<Option<Outcome>>> {
        self.pages(step)
            .map_ok(|page| stream::iter(page.into_iter().map(Ok)))
            .try_flatten()
            .map_ok(move |target| async move { self.rewrap(target).await })
            .try_buffer_unordered(CONCURRENCY)
    }

    fn pages(&self, step: Step) -> impl Stream<Item = Result<Vec<Target>>> {
        stream::try_unfold(Some(step), async |step| {
            let Some(step) = step else { return Ok(None) };
            self.page(step).await.map(Some)
        })
    }

    /// A page, and the step to the next one.
    async fn page(&self, step: Step) -> Result<(Vec<Target>, Option<Step>)> {
        let context = self.resources.context(MAX_REQUEST_TIME).await?;
        let mut targets = Vec::new();
        match step {
            Step::Uploads { bucket, request } => {
                let page = match self.layer.list_uploads(&context, &bucket, &request).await {
                    // It was deleted meanwhile.
                    Err(error) if error.reason() == Reason::NoSuchBucket => return Ok((targets, None)),
                    page => page?,
                };
                for entry in page.entries {
                    let ListEntry::Key(key, upload) = entry else { continue };
                    let address = Address::new(bucket.clone(), ObjectKey::new(&key)?);
                    targets.push(Target { address, upload: Some(upload.id) });
                }
                let next = page.next.map(|(key, upload)| Step::Uploads {
                    bucket,
                    request: ListUploads { after_key: Some(key), after_upload: upload, ..request },
                });
                Ok((targets, next))
            }
            Step::Versions { bucket, request } => {
                let page = match self.layer.list_versions(&context, &bucket, &request).await {
                    Err(error) if error.reason() == Reason::NoSuchBucket => return Ok((targets, None)),
                    page => page?,
                };
                for entry in page.entries {
                    let ListEntry::Key(key, version) = entry else { continue };
                    if version.object.is_none() {
                        continue;
                    }
                    let address = Address::new(bucket.clone(), ObjectKey::new(&key)?);
                    targets
                        .push(Target { address: address.with_version(Some(version.version)), upload: None });
                }
                let next = page.next.map(|after| Step::Versions {
                    bucket,
                    request: ListVersions { after: Some(after), ..request },
                });
                Ok((targets, next))
            }
        }
    }

    /// Wraps the keys of one object or upload; `None` if it no longer exists.
    async fn rewrap(&self, target: Target) -> Result<Option<Outcome>> {
        let context = self.resources.context(MAX_REQUEST_TIME).await?;
        let rewrapped = match &target.upload {
            None => self.layer.rewrap(&context, &target.address).await,
            Some(upload) => self.layer.rewrap_upload(&context, &target.address, upload).await,
        };
        let gone = [
            Reason::NoSuchBucket,
            Reason::NoSuchKey,
            Reason::NoSuchVersion,
            Reason::NoSuchUpload,
            Reason::DeleteMarker,
        ];
        match rewrapped {
            Ok(rewrapped) => Ok(Some(Outcome { target, rewrapped })),
            Err(error) if gone.contains(&error.reason()) => Ok(None),
            // Its keys are unknown: no key is called unneeded.
            Err(error) if error.reason() == Reason::CorruptData => {
                let rewrapped = Rewrapped { failure: Some(error), ..Rewrapped::default() };
                Ok(Some(Outcome { target, rewrapped }))
            }
            Err(error) => Err(error),
        }
    }
}

struct Outcome {
    target: Target,
    rewrapped: Rewrapped,
}

struct Place {
    bucket: BucketName,
    prefix: String,
}

/// A page of a listing.
enum Step {
    Uploads { bucket: BucketName, request: ListUploads },
    Versions { bucket: BucketName, request: ListVersions },
}

impl Step {
    fn uploads(place: &Place) -> Self {
        let prefix = place.prefix.clone();
        let request = ListUploads { prefix, limit: PAGE_ENTRIES, ..ListUploads::default() };
        Self::Uploads { bucket: place.bucket.clone(), request }
    }

    fn versions(place: &Place) -> Self {
        let prefix = place.prefix.clone();
        let request = ListVersions { prefix, limit: PAGE_ENTRIES, ..ListVersions::default() };
        Self::Versions { bucket: place.bucket.clone(), request }
    }
}
