//! Writes and deletions: into the journal if they may be written back, else through.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ObjectSummary;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{Deleted, ETagForm, StageRequest};
use tradewind_core::{Address, Context, Observation, Precondition, Staged};

use super::buckets::{Bucket, OwnerCheck};
use super::changes::{Examine, KeyState};
use super::dirty_index::{Admission, DirtyState, DirtyTotals, Reservation};
use super::journal::{Journal, dirty_generation, is_reserved};
use super::options::MAX_OBJECT_FRACTION;
use super::{Shared, reject_marker};

/// The largest body that goes to the backing store if the journal turns out to be full. A local store holds the bytes of
/// such a body until its commit, so that these cost no further memory.
const MAX_REPEATED_BYTES: u64 = 128 << 10;

impl Shared {
    /// See [`ObjectStore::stage`](tradewind_core::ObjectStore::stage).
    pub async fn stage(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.check_open(context)?;
        reject_marker(address)?;
        request.metadata.check()?;
        let bucket = self.bucket(context, &address.bucket).await?;
        if let Some(reserved) = self.reserve(&bucket, address, &request)
            && let Some(staged) = self.stage_in_journal(context, address, &request, reserved).await?
        {
            return Ok(staged);
        }
        self.stage_through(context, address, request).await
    }

    /// Begins a write to the backing store.
    async fn stage_through(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.check_backing(context, &address.bucket).await?;
        // A service orders changes by their begin: what the journal has must not be sent after this one has begun.
        self.clone().flush_source(context, address).await?;
        let inner = self.backing.stage(context, address, request).await.map_err(|e| self.note_away(e))?;
        Ok(Box::new(ThroughStaged {
            shared: self,
            context: context.clone(),
            address: address.clone(),
            inner,
        }))
    }

    /// Reserves room for a write that may be written back.
    fn reserve(
        self: &Arc<Self>,
        bucket: &Bucket,
        address: &Address,
        request: &StageRequest,
    ) -> Option<Reserved> {
        let size = request.size?;
        let is_possible = address.version.is_none()
            && size <= self.options.max_dirty_bytes / MAX_OBJECT_FRACTION
            && bucket.admits_writes()
            && self.journal.is_writable(self.clock.now())
            && self.is_storable(address, request);
        if !is_possible {
            return None;
        }
        let rank = self.policy.rank(&request.metadata, size)?;
        let reservation = match self.index.admit(address, rank, size, self.limits()) {
            Admission::Reserved(reservation) => Some(reservation),
            Admission::Kept if self.cannot_go_through(address) => {
                self.index.reserve(address, size, self.limits())
            }
            Admission::Kept => {
                self.counters.bypassed.increment();
                None
            }
            Admission::Full => None,
        };
        reservation.map(|reservation| self.reserved(address, reservation))
    }

    fn reserved(self: &Arc<Self>, address: &Address, reservation: Reservation) -> Reserved {
        Reserved { shared: self.clone(), address: address.clone(), reservation }
    }

    /// True if a change of the key that goes through would fail now: the backing store is away, or the dirty data of the key
    /// cannot be written back first.
    fn cannot_go_through(&self, address: &Address) -> bool {
        self.is_backing_away.load(Ordering::Relaxed)
            || (self.index.bytes(address).is_some() && self.uncertain_until(address).is_some())
    }

    /// The limits of dirty data.
    pub fn limits(&self) -> DirtyTotals {
        DirtyTotals { bytes: self.options.max_dirty_bytes, entries: self.options.max_dirty_objects }
    }

    /// True if the backing store will accept the object and keep what the client gave: what it may reject must be
    /// rejected before the write is acknowledged.
    fn is_storable(&self, address: &Address, request: &StageRequest) -> bool {
        !is_reserved(&request.metadata)
            && self.backing.capabilities().cover(address, request)
            && self.backing.accepts(address, request)
    }

    /// Begins a write to the journal. `None` if the journal does not allow it now.
    async fn stage_in_journal(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        request: &StageRequest,
        reserved: Reserved,
    ) -> Result<Option<Box<dyn Staged>>> {
        let journal_context = Journal::change_context(context);
        let mut journaled = request.clone();
        journaled.precondition = Precondition::None;
        journaled.etag = ETagForm::Md5;
        match self.journal.store.stage(&journal_context, address, journaled).await {
            Ok(inner) => {
                let is_repeatable = request.size.is_some_and(|size| size <= MAX_REPEATED_BYTES);
                Ok(Some(Box::new(JournalStaged {
                    write: ClientWrite {
                        shared: self.clone(),
                        context: context.clone(),
                        address: address.clone(),
                        request: request.clone(),
                        body: is_repeatable.then(Vec::new),
                    },
                    destination: Destination::Journal(JournalWrite { inner, reserved }),
                })))
            }
            Err(e) if e.reason() == Reason::NoSuchBucket || self.journal.note_error(&e, self.clock.now()) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// See [`ObjectStore::delete`](tradewind_core::ObjectStore::delete).
    pub async fn delete(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.check_open(context)?;
        reject_marker(address)?;
        let bucket = self.bucket(context, &address.bucket).await?;
        let may_write_back = address.version.is_none()
            && bucket.admits_writes()
            && self.journal.is_writable(self.clock.now())
            && self.policy.rank(&tradewind_core::Metadata::default(), 0).is_some();
        let reservation = match may_write_back {
            true => self.index.reserve(address, 0, self.limits()),
            false => None,
        };
        if let Some(reservation) = reservation {
            let reserved = self.reserved(address, reservation);
            let (shared, own_context, own_address) = (self.clone(), context.clone(), address.clone());
            let own_precondition = precondition.clone();
            let work = async move {
                let _reserved = reserved;
                shared.delete_in_journal(&own_context, &own_address, &own_precondition).await
            };
            if let Some(deleted) = self.run_change(context, work).await? {
                return Ok(deleted);
            }
        }
        self.check_backing(context, &address.bucket).await?;
        let (shared, own_context, own_address) = (self.clone(), context.clone(), address.clone());
        let work = async move { shared.backing.delete(&own_context, &own_address, precondition).await };
        self.change_through(context, address, work).await
    }

    /// Adds a deletion to the journal. `None` if the bucket does not allow it any more.
    async fn delete_in_journal(
        &self,
        context: &Context,
        address: &Address,
        precondition: &Precondition,
    ) -> Result<Option<Deleted>> {
        let (bucket, _entered) = self.enter(context, &address.bucket, OwnerCheck::Lenient).await?;
        let _commit = context.guard(self.commit_locks.lock(address)).await?;
        let Some(_committing) = bucket.begin_commit() else { return Ok(None) };
        let examine = match self.backing.capabilities().reports_deleted {
            true => Examine::Always,
            false => Examine::ForPrecondition,
        };
        let state = self.key_state(context, address, precondition, examine).await?;
        state.check(address, precondition)?;
        let existed = match &state {
            KeyState::Dirty(entry) => entry.state != DirtyState::Tombstone,
            KeyState::Clean(found) => found.is_some(),
            KeyState::NotExamined => true,
        };
        // A write that was reported as failed may be in the journal: the deletion replaces it.
        if existed || self.journal.check_certain(address).is_err() {
            let context = Journal::change_context(context);
            match self.journal.put_tombstone(&context, address).await {
                Ok(generation) => {
                    self.journal.note_change(address);
                    self.note_dirty(address, DirtyState::Tombstone, generation);
                }
                Err(e) => {
                    self.journal.note_failed_change(address, &e, self.clock.now());
                    // Nothing was applied: the deletion goes through.
                    return if e.reason() == Reason::Full { Ok(None) } else { Err(e) };
                }
            }
        }
        self.counters.journaled.increment();
        Ok(Some(Deleted { existed, ..Deleted::default() }))
    }
}

/// Room for a write in the journal. Dropping it releases the room.
struct Reserved {
    shared: Arc<Shared>,
    address: Address,
    reservation: Reservation,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shared.index.release(&self.address, self.reservation);
    }
}

/// A write to the journal. If the journal's device is full, a small one continues to the backing store.
struct JournalStaged {
    write: ClientWrite,
    destination: Destination,
}

/// The request of a client.
struct ClientWrite {
    shared: Arc<Shared>,
    context: Context,
    address: Address,
    request: StageRequest,
    /// The bytes so far, if they can be written again.
    body: Option<Vec<Bytes>>,
}

enum Destination {
    Journal(JournalWrite),
    Backing(Box<dyn Staged>),
}

/// An unfinished write of the journal, and its room.
struct JournalWrite {
    inner: Box<dyn Staged>,
    reserved: Reserved,
}

#[async_trait]
impl Staged for JournalStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let Self { write, destination } = self;
        let journal = match destination {
            Destination::Journal(journal) => journal,
            Destination::Backing(staged) => return staged.write(bytes).await,
        };
        write.context.check()?;
        if let Some(body) = &mut write.body {
            body.push(bytes.clone());
        }
        let Err(error) = write.context.guard(journal.inner.write(bytes)).await? else { return Ok(()) };
        write.shared.journal.note_error(&error, write.shared.clock.now());
        if error.reason() != Reason::Full {
            return Err(error);
        }
        *destination = Destination::Backing(write.repeat_through().await?);
        Ok(())
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { mut write, destination } = *self;
        let journal = match destination {
            Destination::Journal(journal) => journal,
            Destination::Backing(staged) => return staged.commit(expected).await,
        };
        write.context.check()?;
        let body = write.body.take();
        let (shared, context) = (write.shared.clone(), write.context.clone());
        let (own_shared, own_context) = (shared.clone(), context.clone());
        let (address, request) = (write.address.clone(), write.request.clone());
        let own_expected = expected.clone();
        let work = async move {
            own_shared.commit_to_journal(&own_context, &address, &request, journal, own_expected).await
        };
        match shared.run_change(&context, work).await {
            // Nothing was applied.
            Err(error) if error.reason() == Reason::Full => {
                write.body = body;
                write.repeat_through().await?.commit(expected).await
            }
            committed => committed,
        }
    }
}

impl ClientWrite {
    /// Begins the write again, to the backing store.
    async fn repeat_through(&mut self) -> Result<Box<dyn Staged>> {
        let Some(body) = self.body.take() else {
            let why = "the device of the write-back journal is full, and the body cannot be repeated; send it again";
            return Err(Error::for_client(Reason::Overloaded, why));
        };
        let shared = self.shared.clone();
        let mut staged = shared.stage_through(&self.context, &self.address, self.request.clone()).await?;
        for bytes in body {
            staged.write(bytes).await?;
        }
        Ok(staged)
    }
}

impl Shared {
    /// Commits a write to the journal. With [`Full`](Reason::Full), nothing was applied.
    async fn commit_to_journal(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        request: &StageRequest,
        journal: JournalWrite,
        expected: Expected,
    ) -> Result<(Committed, Observation)> {
        let (bucket, _entered) = self.enter(context, &address.bucket, OwnerCheck::Lenient).await?;
        let Some(_committing) = bucket.begin_commit() else {
            let why = "the bucket was changed during the write, or is not owned any more; send it again";
            return Err(Error::new(Reason::Overloaded, why));
        };
        let _commit = context.guard(self.commit_locks.lock(address)).await?;
        let precondition = &request.precondition;
        if *precondition != Precondition::None {
            let state = self.key_state(context, address, precondition, Examine::ForPrecondition).await?;
            state.check(address, precondition)?;
        }
        context.check()?;
        let (mut committed, observation) = match journal.inner.commit(expected).await {
            Ok(committed) => committed,
            Err(e) => {
                self.journal.note_failed_change(address, &e, self.clock.now());
                return Err(e);
            }
        };
        self.journal.note_change(address);
        let storage_class = request.metadata.headers.storage_class.clone();
        let state = DirtyState::Object(summary(&committed, storage_class));
        self.note_dirty(address, state, committed.generation);
        drop(journal.reserved);
        self.counters.journaled.increment();
        committed.generation = dirty_generation(committed.generation);
        Ok((committed, observation))
    }
}

/// The item of a listing for a dirty object.
fn summary(committed: &Committed, storage_class: Option<String>) -> ObjectSummary {
    ObjectSummary {
        size: committed.size,
        etag: committed.etag.clone(),
        modified: committed.modified,
        generation: dirty_generation(committed.generation),
        checksum: committed.checksums.first().map(|checksum| (checksum.algorithm(), committed.scope)),
        storage_class,
    }
}

/// A request of a client to the backing store in flight, to which writing back yields. Dropping it ends it.
struct WriteThrough {
    shared: Arc<Shared>,
}

impl WriteThrough {
    fn begin(shared: Arc<Shared>) -> Self {
        shared.writes_through.fetch_add(1, Ordering::Relaxed);
        Self { shared }
    }
}

impl Drop for WriteThrough {
    fn drop(&mut self) {
        if self.shared.writes_through.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shared.drain_wakeup.notify_one();
        }
    }
}

/// A write that goes to the backing store.
struct ThroughStaged {
    shared: Arc<Shared>,
    context: Context,
    address: Address,
    inner: Box<dyn Staged>,
}

#[async_trait]
impl Staged for ThroughStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        // The time in which the client sends nothing does not count.
        let _in_flight = WriteThrough::begin(self.shared.clone());
        self.inner.write(bytes).await.map_err(|e| self.shared.note_away(e))
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let Self { shared, context, address, inner } = *self;
        context.check()?;
        let own_shared = shared.clone();
        let work = async move {
            let _in_flight = WriteThrough::begin(own_shared);
            inner.commit(expected).await
        };
        shared.change_through(&context, &address, work).await
    }
}
