//! The mark of a collection: it reads the manifests of all parts and objects, and adds their chunks to a set.
//!
//! Damaged manifests are recorded, and the mark goes on, so that operators learn of all of them at once. Other errors end
//! it. References of parts come first: an upload that has ended by then is visible as an object, or gone.

use futures::StreamExt as _;
use parking_lot::Mutex;
use tradewind_core::error::{Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Context};

use super::busy_retry::retry_busy;
use super::chunk_store::ChunkStore;
use super::damage::{DamagedObject, FoundDamage};
use super::damaged_references;
use super::decoder::truncated;
use super::manifest::{self, ENTRY_BYTES, Entry, SegmentForm};
use super::mark::MarkedChunks;
use super::object_pages::{ObjectPages, is_gone};
use super::part_references;
use crate::transformed::stored_input::StoredInput;

/// Objects that are marked concurrently.
const MAX_CONCURRENT_MARKS: usize = 16;

/// A mark in progress.
pub(super) struct Marking<'a> {
    pub store: &'a ChunkStore,
    pub context: &'a Context,
    /// The chunks that manifests refer to.
    pub marked: Mutex<MarkedChunks>,
    /// Objects and parts that could not be read.
    pub damage: FoundDamage,
    pub totals: MarkedObjects,
}

/// Deduplicated objects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MarkedObjects {
    pub objects: u64,
    /// Their bytes in chunks.
    pub bytes: u64,
}

/// The result of the mark of one object.
struct ObjectMark {
    address: Address,
    marked: Result<MarkedObjects>,
}

impl Marking<'_> {
    /// Marks everything. Fails with [`CorruptData`](Reason::CorruptData) if something is damaged.
    pub async fn run(&mut self) -> Result<()> {
        self.mark_parts().await?;
        self.mark_objects().await?;
        self.damage.check()
    }

    async fn mark_parts(&mut self) -> Result<()> {
        let (store, context) = (self.store, self.context);
        let (mut after, mut damaged) = (None, Vec::new());
        loop {
            let page = part_references::page(store, context, after).await?;
            for key in page.keys {
                let mark = |entry: Entry| self.marked.lock().insert(entry.chunk.tag());
                match part_references::read(store, context, &key, mark).await {
                    Err(error) if error.reason() == Reason::CorruptData => damaged.push(key),
                    read => drop(read?),
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for object in damaged_references::remove_ended(store, context, damaged).await? {
            self.damage.record(object)?;
        }
        Ok(())
    }

    async fn mark_objects(&mut self) -> Result<()> {
        let mut pages = ObjectPages::begin(self.store, self.context).await?;
        while let Some(page) = pages.next(self.store, self.context).await? {
            let this = &*self;
            let marks = page.into_iter().map(|address| this.mark_named_object(address));
            let marks: Vec<ObjectMark> =
                futures::stream::iter(marks).buffer_unordered(MAX_CONCURRENT_MARKS).collect().await;
            for ObjectMark { address, marked } in marks {
                match marked {
                    Ok(MarkedObjects { objects, bytes }) => {
                        self.totals.objects += objects;
                        self.totals.bytes += bytes;
                    }
                    Err(error) if error.reason() == Reason::CorruptData => {
                        self.damage.record(DamagedObject::object(address))?;
                    }
                    Err(error) => return Err(DamagedObject::object(address).name(error)),
                }
            }
        }
        Ok(())
    }

    async fn mark_named_object(&self, address: Address) -> ObjectMark {
        let marked = retry_busy(self.context, || self.mark_object(&address)).await;
        ObjectMark { address, marked }
    }

    /// Marks an object, which is not counted if it is gone or plain.
    async fn mark_object(&self, address: &Address) -> Result<MarkedObjects> {
        let inner = &self.store.inner;
        let head = match inner.head(self.context, address, GetRequest::default()).await {
            Ok(head) => head,
            Err(error) if is_gone(&error) => return Ok(MarkedObjects::default()),
            Err(error) => return Err(error),
        };
        if head.info.stored.is_none() {
            return Ok(MarkedObjects::default());
        }
        let request = GetRequest { stored: true, ..GetRequest::default() };
        let found = match inner.get(self.context, address, request).await {
            Ok(found) => found,
            Err(error) if is_gone(&error) => return Ok(MarkedObjects::default()),
            Err(error) => return Err(error),
        };
        // Another object than that of the head, perhaps: its chunks are pinned.
        let Some(form) = found.info.stored else { return Ok(MarkedObjects::default()) };
        let (mut body, mut input, mut bytes) = (found.body, StoredInput::default(), 0);
        for segment in form.segments.iter() {
            let form = SegmentForm::of_segment(segment)?;
            let (mut rest, mut end) = (segment.stored_bytes, 0);
            while rest > 0 {
                let taken = match form {
                    SegmentForm::Manifest(_) => match input.peek::<ENTRY_BYTES>() {
                        Some(entry) => {
                            let entry = Entry::decode(&entry);
                            self.marked.lock().insert(entry.chunk.tag());
                            end = entry.end;
                            input.skip(ENTRY_BYTES as u64)
                        }
                        None => 0,
                    },
                    SegmentForm::Plain | SegmentForm::Transformed => input.skip(rest),
                };
                rest -= taken;
                if taken == 0 {
                    let received = self.context.guard(body.next()).await?;
                    input.push(received.ok_or_else(truncated)??);
                    input.release_received();
                }
            }
            if matches!(form, SegmentForm::Manifest(_)) && end != segment.plain_bytes {
                return Err(manifest::corrupt("has another size than its object"));
            }
            bytes += end;
        }
        Ok(MarkedObjects { objects: 1, bytes })
    }
}
