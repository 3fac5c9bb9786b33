//! The move of one object to another tier.
//!
//! The object is copied without a lock. The copy takes its place only if the object is still the one that was copied,
//! tags and classes included; otherwise the object is queued for another move. It keeps its entity tag, its time and its
//! parts. A tier that cannot keep the identity of an object gets none from the mover.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::warn;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartInfo, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{Feature, GetRequest, Select, StageRequest};
use tradewind_core::{Address, Body, Checksum, ChecksumScope, Context, ObjectInfo, Staged};

use super::mover::{Moved, Mover};
use super::tier_set::{Change, Copies, TierSet, VisibleCopy, without_deadline};

/// Parts per request.
const PAGE_PARTS: usize = 1000;
/// The time for the abort of an upload, which also a cancelled move performs.
const MAX_ABORT_TIME: Duration = Duration::from_secs(10);

/// The move of one object.
pub(super) struct Movement<'a> {
    pub mover: &'a Mover,
    pub context: &'a Context,
    pub address: &'a Address,
    pub from: usize,
    pub to: usize,
    /// The object, as the tier `from` reports it.
    pub info: &'a ObjectInfo,
}

/// Bytes in the target tier that are not visible yet.
enum Copied {
    Object(Box<dyn Staged>, Vec<Checksum>),
    Upload(PendingUpload, Vec<CompletePart>),
}

impl Movement<'_> {
    /// Moves the object. An error leaves it where it was, or in both tiers if its outcome is unknown.
    pub async fn run(&self) -> Result<Moved> {
        let Self { mover, context, address, to, .. } = self;
        let set = &mover.set;
        if !set.tiers[*to].store.capabilities().supports(Feature::Identity) {
            return Ok(Moved::Unmovable);
        }
        set.prepare_bucket(context, *to, &address.bucket).await?;
        let copied = match self.info.parts {
            Some(_) => self.copy_parts().await,
            None => self.copy_object().await.map(Some),
        };
        match copied {
            Ok(Some(copied)) => self.switch(copied).await,
            Ok(None) => self.unless_changed(Ok(Moved::Unmovable)).await,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Precondition) => {
                self.unless_changed(Err(error)).await
            }
            Err(error) => Err(error),
        }
    }

    /// The result of a move that did not copy the object: `moved`, unless the object has changed meanwhile.
    async fn unless_changed(&self, moved: Result<Moved>) -> Result<Moved> {
        let set = self.mover.set.clone();
        let change = Change { set, context: self.context.clone(), address: self.address.clone() };
        let copies = change.find_copies().await;
        match change.is_current(&copies, VisibleCopy { tier: self.from, info: self.info })? {
            true => moved,
            false => Ok(Moved::InPlace),
        }
    }

    /// Makes the copy the object, if the object is still the one that was copied.
    async fn switch(&self, copied: Copied) -> Result<Moved> {
        let (from, to, info) = (self.from, self.to, self.info.clone());
        let work = move |change: Change| async move {
            let copies = change.find_copies().await;
            // A tier before the target that is away may have an older copy, which would become visible.
            copies.check_first(to)?;
            if !change.is_current(&copies, VisibleCopy { tier: from, info: &info })? {
                return Ok(Moved::InPlace);
            }
            match copied {
                Copied::Object(staged, checksums) => {
                    let expected = Expected { size: Some(info.size), checksums, ..Expected::default() };
                    change.replace(to, copies, async { Ok(staged.commit(expected).await?.0) }).await?;
                }
                Copied::Upload(mut upload, parts) => {
                    let request = CompleteUpload {
                        parts,
                        expected_size: Some(info.size),
                        identity: Some(info.identity()),
                        ..CompleteUpload::default()
                    };
                    let store = &change.tier(to).store;
                    let complete =
                        store.complete_upload(&change.context, &change.address, &upload.id, request);
                    change.replace(to, copies, complete).await?;
                    upload.is_completed = true;
                }
            }
            Ok(Moved::Bytes(info.size))
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
        let context = without_deadline(self.context);
        let mut staged = target.named(target.store.stage(&context, self.address, request).await)?;
        self.relay(Select::Whole, info.size, &mut *staged).await?;
        Ok(Copied::Object(staged, checksums))
    }

    /// Copies an object of several parts, with the same parts. Returns `None` if its tier does not report all of them.
    async fn copy_parts(&self) -> Result<Option<Copied>> {
        let parts = self.parts().await?;
        let size = parts.iter().fold(0_u64, |size, part| size.saturating_add(part.size));
        if size != self.info.size {
            return Ok(None);
        }
        let upload = self.create_upload().await?;
        let mut copied = Vec::with_capacity(parts.len());
        for part in &parts {
            copied.push(self.copy_part(&upload.id, part).await?);
        }
        Ok(Some(Copied::Upload(upload, copied)))
    }

    /// The parts, as the source tier reports them.
    async fn parts(&self) -> Result<Vec<PartInfo>> {
        let source = &self.mover.set.tiers[self.from];
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = source.store.object_parts(self.context, self.address, after, PAGE_PARTS).await;
            let (parts, has_more) = source.named(page)?;
            after = parts.last().map(|part| part.number);
            all.extend(parts);
            if !has_more || after.is_none() {
                return Ok(all);
            }
        }
    }

    async fn create_upload(&self) -> Result<PendingUpload> {
        let (info, set) = (self.info, &self.mover.set);
        let checksum = info.checksums.first().map(|checksum| (checksum.algorithm(), info.scope));
        let request = CreateUpload { metadata: info.metadata.clone(), checksum };
        // The id of an upload whose creation was cancelled would be unknown.
        let context = without_deadline(self.context);
        let target = &set.tiers[self.to];
        let id = target.named(target.store.create_upload(&context, self.address, request).await)?;
        let (set, address) = (set.clone(), self.address.clone());
        Ok(PendingUpload { set, tier: self.to, context, address, id, is_completed: false })
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
        while let Some(piece) = source.named(self.context.guard(body.next_copied()).await?)? {
            self.mover.throttle(self.context, piece.len() as u64).await?;
            staged.write(piece).await?;
        }
        Ok(())
    }
}

impl Change {
    /// Returns true if `copied` is what clients see now: the same write, with the same tags and classes. Generations
    /// alone do not tell: that of a service stays when tags change. If clients see something else, it is queued, because
    /// it may be in another tier than that of its class.
    fn is_current(&self, copies: &Copies, copied: VisibleCopy<'_>) -> Result<bool> {
        let Some(now) = copies.visible()? else { return Ok(false) };
        let is_current = now.tier == copied.tier && now.info == copied.info;
        if !is_current {
            self.set.queue.push(&self.address);
        }
        Ok(is_current)
    }
}

/// An upload in the target tier. Unless it was completed, it is aborted when this is dropped, with a time limit of its
/// own: the move may have been cancelled.
struct PendingUpload {
    set: Arc<TierSet>,
    tier: usize,
    context: Context,
    address: Address,
    id: UploadId,
    is_completed: bool,
}

impl Drop for PendingUpload {
    fn drop(&mut self) {
        if self.is_completed {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            warn!(bucket = %self.address.bucket, "an upload of an object that was not moved remains");
            return;
        };
        let (set, tier, address, id) = (self.set.clone(), self.tier, self.address.clone(), self.id.clone());
        let clock = self.context.deadline.clock().clone();
        let context = Context { deadline: Deadline::after(clock, MAX_ABORT_TIME), ..self.context.clone() };
        let abort = async move {
            let tier = &set.tiers[tier];
            match tier.named(tier.store.abort_upload(&context, &address, &id).await) {
                // It was completed, although the move failed later.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    warn!(%error, bucket = %address.bucket, "an upload of an object that was not moved remains");
                }
                Ok(()) => {}
            }
        };
        self.set.tasks.spawn_on(abort, &runtime);
    }
}
