//! Copying from one store to another: the bytes pass through here, straight from a read into a write, so that no more
//! of them are held than what is on its way. Of a large object each part is a ranged read of the source, of the version
//! that was looked at first; what fails costs its part, and a copy that is remembered goes on where it was cut off.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt as _;
use tokio::task::JoinSet;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::{
    Address, Algorithm, Body, Checksum, ChecksumScope, Metadata, ObjectInfo, ObjectStore, Span, Staged,
    SystemHeaders,
};
use tradewind_model::plan::Plan;

use super::carrier::{Carrier, Slot};
use super::memory::{Begun, CopiedPart, Memory, StoredPart, Version};
use super::origin::{Origin, check_place};
use super::sent::Sent;
use super::upload::Upload;

/// Is told of bytes that have left for the destination; of those of an attempt that failed as a negative number.
pub type Told = Arc<dyn Fn(i64) + Send + Sync>;

/// A store, and where in it.
pub type Place<'a> = (&'a Arc<dyn ObjectStore>, &'a Address);

/// Copies an object to another store, with its metadata but for the storage class, whose names are each service's own;
/// `size` is what a listing said of it. All of it is of one version, its bytes agree with the source's checksum of the
/// whole where it has one, and the destination keeps a checksum of the same algorithm where it can.
///
/// [`Conflict`](Reason::Conflict) where the source changed meanwhile: then nothing is at the destination.
pub async fn store_from(
    carrier: &Arc<Carrier>,
    from: Place<'_>,
    to: Place<'_>,
    size: Option<u64>,
    told: Told,
    memory: Option<Arc<dyn Memory>>,
) -> Result<Committed> {
    let copy = Arc::new(Between {
        carrier: carrier.clone(),
        origin: Origin { store: from.0.clone(), address: from.1.clone() },
        to: to.0.clone(),
        address: to.1.clone(),
        told,
        memory,
    });
    let mut known = size.filter(|size| copy.part_bytes(*size).is_none());
    loop {
        let size = match known {
            Some(size) => size,
            None => {
                let info = copy.head().await?;
                if let Some(part_bytes) = copy.part_bytes(info.size) {
                    return copy.in_parts(info, part_bytes).await;
                }
                info.size
            }
        };
        match copy.whole(size).await? {
            Some(committed) => {
                copy.abandon().await;
                return Ok(committed);
            }
            None => known = None,
        }
    }
}

/// What a copy goes between.
struct Between {
    carrier: Arc<Carrier>,
    origin: Origin,
    to: Arc<dyn ObjectStore>,
    address: Address,
    told: Told,
    memory: Option<Arc<dyn Memory>>,
}

/// A part that is at the destination, and the checksum of what passed.
type Passed = (StoredPart, Checksum);

impl Between {
    fn part_bytes(&self, size: u64) -> Option<u64> {
        self.carrier.plan().part_bytes(size).filter(|_| self.to.capabilities().multipart)
    }

    async fn head(&self) -> Result<ObjectInfo> {
        let head = || async move {
            let slot = self.carrier.slot(0).await?;
            let Origin { store, address } = &self.origin;
            Ok(store.head(&slot.context, address, GetRequest::default()).await?.info)
        };
        self.carrier.again(head).await
    }

    /// Copies an object of up to `size` bytes in one request; `None` where it is larger by now.
    async fn whole(&self, size: u64) -> Result<Option<Committed>> {
        self.carrier.again(|| self.whole_once(size)).await
    }

    async fn whole_once(&self, size: u64) -> Result<Option<Committed>> {
        let mut slot = self.carrier.slot_between(size).await?;
        let Origin { store, address } = &self.origin;
        let found = store.get(&slot.context, address, GetRequest::default()).await?;
        let info = found.info;
        if info.size > size {
            return Ok(None);
        }
        check_place(found.span, Span::whole(info.size))?;
        let expected = of_whole(&info);
        if info.size < size && expected.is_none() {
            // Replaced meanwhile, or its end got lost on the way. Nobody waits for an answer who holds a connection.
            drop((found.body, slot));
            let there = self.head().await?.size;
            if there != info.size {
                let why = format!("the source answered {} bytes of an object that has {there}", info.size);
                return Err(Error::new(Reason::Io, why));
            }
            return Box::pin(self.whole_once(there)).await;
        }
        let algorithm = expected.map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm());
        let request = StageRequest {
            metadata: carried(info.metadata),
            size: Some(info.size),
            algorithms: vec![algorithm],
            checksum: expected,
            ..StageRequest::default()
        };
        let staged = self.to.stage(&slot.context, &self.address, request).await?;
        let (committed, _) =
            self.pass(&mut slot, (found.body, info.size), staged, (algorithm, expected)).await?;
        Ok(Some(committed))
    }

    async fn in_parts(self: Arc<Self>, info: ObjectInfo, part_bytes: u64) -> Result<Committed> {
        let algorithm = algorithm_of_parts(&info);
        let (upload, part_bytes, done, is_kept) = match self.earlier(&info, algorithm).await? {
            Some((upload, part_bytes, done)) => (upload, part_bytes, done, true),
            None => {
                let metadata = carried(info.metadata.clone());
                let upload =
                    Upload::begin(&self.carrier, &self.to, &self.address, (metadata, algorithm)).await?;
                let begun = || Begun {
                    version: Some(Version::of(&info)),
                    upload: upload.id().clone(),
                    part_bytes,
                    parts: Vec::new(),
                };
                let is_kept = self.memory.as_ref().is_some_and(|memory| memory.begun(&begun()));
                if is_kept {
                    upload.keep();
                }
                (upload, part_bytes, Vec::new(), is_kept)
            }
        };
        let upload = Arc::new(upload);
        let mut parts = JoinSet::new();
        let work = (&mut parts, done);
        let copied = self.clone().parts(&upload, work, Arc::new(info), (part_bytes, algorithm)).await;
        if let Err(e) = &copied {
            // A part that came behind the end of its upload would stay.
            parts.shutdown().await;
            if is_kept && e.may_go_on() {
                return copied;
            }
            upload.give_up().await;
        }
        if let Some(memory) = &self.memory {
            memory.over();
        }
        copied
    }

    /// What was remembered is of no use: the copy is there, in one request.
    async fn abandon(&self) {
        let Some(memory) = &self.memory else { return };
        if let Some(begun) = memory.earlier() {
            Upload::of(&self.carrier, &self.to, &self.address, begun.upload).give_up().await;
            memory.over();
        }
    }

    /// The upload of a copy of this version that was begun before, the size of its parts, and those that are there. One
    /// that cannot go on is given up.
    async fn earlier(
        &self,
        info: &ObjectInfo,
        algorithm: Algorithm,
    ) -> Result<Option<(Upload, u64, Vec<Passed>)>> {
        let Some(begun) = self.memory.as_ref().and_then(|memory| memory.earlier()) else { return Ok(None) };
        if begun.version != Some(Version::of(info)) {
            Upload::of(&self.carrier, &self.to, &self.address, begun.upload).give_up().await;
            return Ok(None);
        }
        let found = Upload::remembered(&self.carrier, &self.to, &self.address, &begun).await?;
        let Some((upload, parts)) = found else { return Ok(None) };
        let is_whole = |part: &&CopiedPart| {
            let offset = u64::from(part.number.get() - 1) * begun.part_bytes;
            part.checksum.algorithm() == algorithm
                && part.length == begun.part_bytes.min(info.size.saturating_sub(offset))
        };
        let done: Vec<Passed> =
            parts.iter().filter(is_whole).map(|part| (part.stored(), part.checksum)).collect();
        for ((_, length), _) in &done {
            (self.told)(i64::try_from(*length).unwrap_or(i64::MAX));
        }
        Ok(Some((upload, begun.part_bytes, done)))
    }

    async fn parts(
        self: Arc<Self>,
        upload: &Arc<Upload>,
        (parts, mut done): (&mut JoinSet<Result<Passed>>, Vec<Passed>),
        info: Arc<ObjectInfo>,
        (part_bytes, algorithm): (u64, Algorithm),
    ) -> Result<Committed> {
        let have: HashSet<i64> = done.iter().map(|((part, _), _)| part.number.get().into()).collect();
        let mut waiting =
            Plan::chunks(info.size, part_bytes).zip(1_i64..).filter(|(_, number)| !have.contains(number));
        loop {
            while parts.len() < self.carrier.plan().of_one_object(part_bytes)
                && let Some((span, number)) = waiting.next()
            {
                let (copy, upload, info) = (self.clone(), upload.clone(), info.clone());
                parts.spawn(async move {
                    copy.part(&upload, &info, (PartNumber::new(number)?, span), algorithm).await
                });
            }
            let Some(part) = parts.join_next().await else { break };
            done.push(part.map_err(|e| Error::with_source(Reason::Defect, "a part's task failed", e))??);
        }
        done.sort_by_key(|((part, _), _)| part.number);
        let mut passed = done.iter().map(|((_, length), checksum)| (*checksum, *length));
        let first = passed.next().map(|(first, _)| first);
        let whole = first
            .and_then(|first| passed.try_fold(first, |whole, (next, length)| whole.combine(&next, length)));
        if let (Some(whole), Some(expected)) = (whole, crc_of_whole(&info)) {
            compare(whole, expected)?;
        }
        let committed = upload.complete(done.into_iter().map(|(part, _)| part).collect()).await?;
        if !have.is_empty() && !info.metadata.tags.is_empty() {
            // Some stores keep no tags with an upload: who began it knew them.
            self.carrier.again(|| self.tag(&info)).await?;
        }
        Ok(committed)
    }

    async fn tag(&self, info: &ObjectInfo) -> Result<()> {
        let slot = self.carrier.slot(0).await?;
        self.to.set_tags(&slot.context, &self.address, info.metadata.tags.clone()).await
    }

    /// Copies a part; again where that may help.
    async fn part(
        &self,
        upload: &Upload,
        info: &ObjectInfo,
        (number, span): (PartNumber, (u64, u64)),
        algorithm: Algorithm,
    ) -> Result<Passed> {
        let once = || async move {
            let mut slot = self.carrier.slot_between(span.1).await?;
            let body = self.origin.get(&slot.context, info, span).await?;
            let algorithms = vec![algorithm];
            let request = StageRequest { size: Some(span.1), algorithms, ..StageRequest::default() };
            let staged = upload.stage(&slot.context, number, request).await?;
            let (committed, checksum) =
                self.pass(&mut slot, (body, span.1), staged, (algorithm, None)).await?;
            Ok((Upload::stored(number, &committed), checksum))
        };
        let (stored, checksum) = self.carrier.again(once).await?;
        if let Some(memory) = &self.memory {
            let (length, etag) = (stored.1, stored.0.etag.clone());
            memory.stored(&CopiedPart { number, length, etag, checksum });
        }
        Ok((stored, checksum))
    }

    /// Hands a body on and commits it; answers the checksum of what passed. Under a limit each byte counts as one that
    /// comes and one that goes.
    async fn pass(
        &self,
        slot: &mut Slot<'_>,
        (mut body, length): (Body, u64),
        mut staged: Box<dyn Staged>,
        (algorithm, expected): (Algorithm, Option<Checksum>),
    ) -> Result<(Committed, Checksum)> {
        let mut hasher = Hasher::new(algorithm);
        let mut sent = Sent::new(&*self.told);
        let mut passed = 0;
        // Each is waited for twice: as one that came, and as one that goes.
        let at_once = usize::try_from(self.carrier.piece_bytes() / 2).unwrap_or(usize::MAX).max(1);
        let at_once = if self.carrier.is_limited() { at_once } else { usize::MAX };
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(of_source)?;
            hasher.update(&piece);
            passed += piece.len() as u64;
            let mut left = piece;
            while !left.is_empty() {
                let piece = left.split_to(at_once.min(left.len()));
                let bytes = piece.len();
                slot.pass(2 * bytes as u64).await;
                staged.write(piece).await?;
                sent.more(bytes);
            }
        }
        if passed != length {
            let why = format!("the source sent {passed} bytes where {length} were announced");
            return Err(Error::new(Reason::Io, why));
        }
        let checksum = hasher.finish();
        if let Some(expected) = expected {
            compare(checksum, expected)?;
        }
        let (committed, _) = staged.commit(Expected::default()).await?;
        sent.keep();
        self.carrier.stored();
        Ok((committed, checksum))
    }
}

/// What the copy carries besides its bytes.
fn carried(metadata: Metadata) -> Metadata {
    Metadata { headers: SystemHeaders { storage_class: None, ..metadata.headers }, ..metadata }
}

/// What comes in the middle of an answer does not say of which of the two stores it is.
fn of_source(e: Error) -> Error {
    Error::with_source(e.reason(), format!("reading the source failed: {e}"), e)
}

/// The source's checksum of the whole.
fn of_whole(info: &ObjectInfo) -> Option<Checksum> {
    info.checksums.first().copied().filter(|_| info.scope == ChecksumScope::FullObject)
}

/// The one of the source's checksums of the whole that can be put together from those of parts.
fn crc_of_whole(info: &ObjectInfo) -> Option<Checksum> {
    let is_of_whole = info.scope == ChecksumScope::FullObject;
    info.checksums.iter().copied().find(|checksum| is_of_whole && checksum.algorithm().is_crc())
}

/// What the checksum of a whole made of parts can be: the source's own, where it can be put together.
fn algorithm_of_parts(info: &ObjectInfo) -> Algorithm {
    crc_of_whole(info).map_or(Algorithm::Crc64Nvme, |checksum| checksum.algorithm())
}

fn compare(passed: Checksum, expected: Checksum) -> Result<()> {
    if passed.algorithm() != expected.algorithm() || passed == expected {
        return Ok(());
    }
    let why = format!("what arrived has the checksum {passed:?}, the source says {expected:?}");
    Err(Error::new(Reason::CorruptData, why))
}
