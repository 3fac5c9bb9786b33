//! The mover: moves objects to the tier of their class after the policy, the class or the known size has changed, and
//! deletes hidden copies that interrupted changes left. It has no state: a pass that was interrupted is repeated.
//!
//! An object is copied without a lock, and takes its place only if it is still the same write. It keeps its entity tag,
//! its time and its parts. A tier that cannot keep the identity of an object gets none from the mover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::warn;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartInfo, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{Feature, GetRequest, Select, StageRequest};
use tradewind_core::{
    Address, Body, BucketName, Checksum, ChecksumScope, Context, ObjectInfo, ObjectKey, Staged,
};
use tradewind_model::token_bucket::TokenBucket;

use super::tier_set::{Change, TierSet, VisibleCopy};

/// Objects that wait to be moved before a whole pass replaces them.
const MAX_QUEUED_OBJECTS: usize = 1024;
/// Keys per listing request.
const PAGE_KEYS: usize = 1000;
/// Parts per request.
const PAGE_PARTS: usize = 1000;

/// Limits of the mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveLimits {
    /// Bytes per second, at least 1.
    pub bytes_per_second: u64,
    /// Objects in progress, at least 1.
    pub concurrency: usize,
}

/// The result of a pass of the mover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// Objects moved to another tier.
    pub moved: u64,
    /// Bytes of these objects.
    pub moved_bytes: u64,
    /// Hidden copies deleted.
    pub hidden_deleted: u64,
    /// Objects that are in another tier than that of their class, because that tier cannot keep their identity.
    pub unmovable: u64,
    /// Objects that could not be moved now.
    pub failed: u64,
}

/// Moves the objects of one routed store.
#[derive(Debug)]
pub struct Mover {
    set: Arc<TierSet>,
    limits: MoveLimits,
    bucket: Mutex<Option<TokenBucket>>,
}

/// Objects whose tier may be another one since their last change.
#[derive(Debug)]
pub(super) struct MoveQueue {
    sender: mpsc::Sender<Address>,
    receiver: tokio::sync::Mutex<mpsc::Receiver<Address>>,
    /// An object was not added.
    is_incomplete: AtomicBool,
}

impl MoveQueue {
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_OBJECTS);
        Self { sender, receiver: tokio::sync::Mutex::new(receiver), is_incomplete: AtomicBool::new(false) }
    }

    /// Adds an object. If the queue is full, a pass has to find the object.
    pub fn push(&self, address: &Address) {
        if self.sender.try_send(address.clone()).is_err() {
            self.is_incomplete.store(true, Ordering::Relaxed);
        }
    }
}

/// The result for one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    InPlace,
    Bytes(u64),
    Unmovable,
}

impl MoveReport {
    fn add(&mut self, moved: Moved, hidden: u64) {
        self.hidden_deleted += hidden;
        match moved {
            Moved::InPlace => {}
            Moved::Bytes(bytes) => {
                self.moved += 1;
                self.moved_bytes += bytes;
            }
            Moved::Unmovable => self.unmovable += 1,
        }
    }
}

impl Mover {
    pub(super) fn new(set: Arc<TierSet>, limits: MoveLimits) -> Self {
        Self { set, limits, bucket: Mutex::new(None) }
    }

    /// Visits all objects, and moves those that are in another tier than that of their class. A tier that is away
    /// ends the pass with an error; an object that cannot be moved does not.
    pub async fn run_pass(&self, context: &Context) -> Result<MoveReport> {
        let base = &self.set.tiers[self.set.base()];
        let mut report = MoveReport::default();
        for bucket in base.named(base.store.list_buckets(context).await)? {
            match self.set.prepare_bucket(context, self.set.base(), &bucket.name).await {
                Ok(()) => {}
                // Deleted meanwhile.
                Err(error) if error.reason() == Reason::NoSuchBucket => continue,
                Err(error) if error.reason() == Reason::Unsupported => {
                    warn!(%error, bucket = %bucket.name, "the objects of a bucket stay in their tiers");
                    continue;
                }
                Err(error) => return Err(error),
            }
            for tier in 0..self.set.tiers.len() {
                self.run_bucket(context, tier, &bucket.name, &mut report).await?;
            }
        }
        Ok(report)
    }

    /// Waits for an object whose class was changed, or whose size was unknown when its write began. Returns `None` if
    /// too many wait: then a pass is due.
    pub async fn next_object(&self) -> Option<Address> {
        let queue = &self.set.queue;
        let next = queue.receiver.lock().await.recv().await;
        if queue.is_incomplete.swap(false, Ordering::Relaxed) { None } else { next }
    }

    /// Moves one object, if it is in another tier than that of its class.
    pub async fn run_object(&self, context: &Context, address: &Address) -> Result<MoveReport> {
        let mut report = MoveReport::default();
        let (moved, hidden) = self.correct_tier(context, address).await?;
        report.add(moved, hidden);
        Ok(report)
    }

    async fn run_bucket(
        &self,
        context: &Context,
        tier: usize,
        bucket: &BucketName,
        report: &mut MoveReport,
    ) -> Result<()> {
        let tier = &self.set.tiers[tier];
        let mut request = ListRequest { limit: PAGE_KEYS, ..ListRequest::default() };
        loop {
            let page = match tier.store.list(context, bucket, &request).await {
                // Deleted meanwhile, or not in this tier.
                Err(error) if error.reason() == Reason::NoSuchBucket => return Ok(()),
                listed => tier.named(listed)?,
            };
            let keys = page.entries.into_iter().filter_map(|entry| match entry {
                ListEntry::Key(key, _) => ObjectKey::new(&key).ok(),
                ListEntry::CommonPrefix(_) => None,
            });
            let objects = futures::stream::iter(keys.map(|key| {
                let address = Address::new(bucket.clone(), key);
                async move { self.correct_tier(context, &address).await }
            }));
            let mut objects = objects.buffer_unordered(self.limits.concurrency.max(1));
            while let Some(corrected) = objects.next().await {
                match corrected {
                    Ok((moved, hidden)) => report.add(moved, hidden),
                    Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                    Err(error) => {
                        warn!(%error, %bucket, "cannot move an object to the tier of its class");
                        report.failed += 1;
                    }
                }
            }
            match page.next {
                Some(next) => request.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Deletes hidden copies of an object, and moves it if it is misplaced. Returns the number of copies deleted, too.
    async fn correct_tier(&self, context: &Context, address: &Address) -> Result<(Moved, u64)> {
        let change = Change { set: self.set.clone(), context: context.clone(), address: address.clone() };
        let copies = change.find_copies().await;
        let hidden = match copies.holders().nth(1) {
            Some(_) => {
                self.set
                    .change(context, address, |change| async move { change.delete_hidden().await })
                    .await?
            }
            None => 0,
        };
        let Some(VisibleCopy { tier, info }) = copies.visible()? else { return Ok((Moved::InPlace, hidden)) };
        let target = self.set.place(&info.metadata, Some(info.size));
        if target == tier {
            return Ok((Moved::InPlace, hidden));
        }
        let movement = Movement { mover: self, context, address, from: tier, to: target, info };
        Ok((movement.run().await?, hidden))
    }

    /// Waits until these bytes may pass.
    async fn throttle(&self, context: &Context, bytes: u64) -> Result<()> {
        let clock = context.deadline.clock();
        let now = clock.now();
        let until: Duration = {
            let mut bucket = self.bucket.lock();
            bucket
                .get_or_insert_with(|| TokenBucket::new(self.limits.bytes_per_second, now))
                .reserve(bytes, now)
        };
        context.guard(clock.sleep_until(until)).await
    }
}

impl Change {
    /// Deletes all copies but the visible one. Returns their number.
    async fn delete_hidden(&self) -> Result<u64> {
        let copies = self.find_copies().await;
        let Some(VisibleCopy { tier: visible, .. }) = copies.visible()? else { return Ok(0) };
        let _move = self.set.locks.begin_move(&self.address);
        let mut deleted = 0;
        for holder in copies.holders().filter(|holder| *holder != visible) {
            self.delete_copy(holder).await?;
            deleted += 1;
        }
        Ok(deleted)
    }
}

/// The move of one object.
struct Movement<'a> {
    mover: &'a Mover,
    context: &'a Context,
    address: &'a Address,
    from: usize,
    to: usize,
    /// The object, as the tier `from` reports it.
    info: &'a ObjectInfo,
}

/// Bytes in the target tier that are not visible yet.
enum Copied {
    Object(Box<dyn Staged>, Vec<Checksum>),
    Upload(UploadId, Vec<CompletePart>),
}

impl Movement<'_> {
    async fn run(&self) -> Result<Moved> {
        let Self { mover, context, address, to, .. } = self;
        let set = &mover.set;
        if !set.tiers[*to].store.capabilities().supports(Feature::Identity) {
            return Ok(Moved::Unmovable);
        }
        set.prepare_bucket(context, *to, &address.bucket).await?;
        let copied = match self.info.parts {
            Some(_) => self.copy_parts().await,
            None => self.copy_object().await,
        };
        let copied = match copied {
            // Changed or deleted meanwhile: the change has chosen its own tier.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Precondition) => {
                return Ok(Moved::InPlace);
            }
            copied => copied?,
        };
        self.switch(copied).await
    }

    /// Makes the copy the object, if the object is still the one that was copied.
    async fn switch(&self, copied: Copied) -> Result<Moved> {
        let (from, to, info) = (self.from, self.to, self.info.clone());
        let size = info.size;
        let work = move |change: Change| async move {
            let copies = change.find_copies().await;
            let store = change.tier(to).store.clone();
            let is_unchanged = matches!(
                copies.visible()?,
                Some(VisibleCopy { tier, info: now }) if tier == from && now.generation == info.generation
            );
            match copied {
                Copied::Object(staged, checksums) if is_unchanged => {
                    let expected = Expected { size: Some(size), checksums, ..Expected::default() };
                    change.replace(to, copies, async { Ok(staged.commit(expected).await?.0) }).await?;
                }
                Copied::Upload(id, parts) if is_unchanged => {
                    let request = CompleteUpload {
                        parts,
                        expected_size: Some(size),
                        identity: Some(info.identity()),
                        ..CompleteUpload::default()
                    };
                    let complete = store.complete_upload(&change.context, &change.address, &id, request);
                    change.replace(to, copies, complete).await?;
                }
                Copied::Upload(id, _) => {
                    store.abort_upload(&change.context, &change.address, &id).await?;
                    return Ok(Moved::InPlace);
                }
                Copied::Object(..) => return Ok(Moved::InPlace),
            }
            Ok(Moved::Bytes(size))
        };
        self.mover.set.change(self.context, self.address, work).await
    }

    async fn copy_object(&self) -> Result<Copied> {
        let info = self.info;
        let checksums = match info.scope {
            ChecksumScope::FullObject => info.checksums.clone(),
            ChecksumScope::Composite => Vec::new(),
        };
        let request = StageRequest {
            metadata: info.metadata.clone(),
            size: Some(info.size),
            algorithms: checksums.iter().map(Checksum::algorithm).collect(),
            checksum: checksums.first().copied(),
            identity: Some(info.identity()),
            ..StageRequest::default()
        };
        let target = &self.mover.set.tiers[self.to];
        // The commit is part of a change, which runs to its end.
        let context = super::tier_set::without_deadline(self.context);
        let mut staged = target.named(target.store.stage(&context, self.address, request).await)?;
        self.relay(Select::Whole, info.size, &mut *staged).await?;
        Ok(Copied::Object(staged, checksums))
    }

    /// Copies an object of several parts, with the same parts.
    async fn copy_parts(&self) -> Result<Copied> {
        let info = self.info;
        let target = &self.mover.set.tiers[self.to];
        let checksum = info.checksums.first().map(|checksum| (checksum.algorithm(), info.scope));
        let request = CreateUpload { metadata: info.metadata.clone(), checksum };
        let created = target.store.create_upload(self.context, self.address, request).await;
        let id = target.named(created)?;
        match self.copy_all_parts(&id).await {
            Ok(parts) => Ok(Copied::Upload(id, parts)),
            Err(error) => {
                if let Err(left) = target.store.abort_upload(self.context, self.address, &id).await {
                    warn!(error = %left, "cannot abort the upload of an object that could not be moved");
                }
                Err(error)
            }
        }
    }

    async fn copy_all_parts(&self, id: &UploadId) -> Result<Vec<CompletePart>> {
        let source = &self.mover.set.tiers[self.from];
        let (mut copied, mut after) = (Vec::new(), None);
        loop {
            let page = source.store.object_parts(self.context, self.address, after, PAGE_PARTS).await;
            let (parts, has_more) = source.named(page)?;
            for part in &parts {
                copied.push(self.copy_part(id, part).await?);
            }
            after = parts.last().map(|part| part.number);
            if !has_more || after.is_none() {
                return Ok(copied);
            }
        }
    }

    async fn copy_part(&self, id: &UploadId, part: &PartInfo) -> Result<CompletePart> {
        let target = &self.mover.set.tiers[self.to];
        let request = StageRequest {
            size: Some(part.size),
            algorithms: part.checksums.iter().map(Checksum::algorithm).collect(),
            ..StageRequest::default()
        };
        let number: PartNumber = part.number;
        let staged = target.store.stage_part(self.context, self.address, id, number, request).await;
        let mut staged = target.named(staged)?;
        self.relay(Select::Part(number), part.size, &mut *staged).await?;
        let expected =
            Expected { size: Some(part.size), checksums: part.checksums.clone(), ..Expected::default() };
        let (Committed { etag, .. }, _) = target.named(staged.commit(expected).await)?;
        Ok(CompletePart { number, etag, checksum: None })
    }

    /// Reads from the source tier and writes to the target tier. Fails with `Conflict` if the object is another one.
    async fn relay(&self, select: Select, length: u64, staged: &mut dyn Staged) -> Result<()> {
        let source = &self.mover.set.tiers[self.from];
        let request = GetRequest { select, ..GetRequest::default() };
        let found = source.named(source.store.get(self.context, self.address, request).await)?;
        if found.info.generation != self.info.generation || found.span.length != length {
            let key = self.address.key.as_str();
            return Err(Error::new(Reason::Conflict, format!("key {key:?} was changed while it was moved")));
        }
        let mut body: Body = found.body;
        while let Some(piece) = self.context.guard(body.next()).await? {
            let piece = source.named(piece)?;
            self.mover.throttle(self.context, piece.len() as u64).await?;
            // A copy in memory: the write may hold the piece, and would occupy the window for which the read waits.
            staged.write(bytes::Bytes::copy_from_slice(&piece)).await?;
        }
        Ok(())
    }
}
