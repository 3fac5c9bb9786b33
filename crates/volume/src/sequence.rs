//! An object that is stored while it is made, from its beginning to its end: gathered part by part, each sent while the
//! next is gathered. A part stays in memory until the store has it, so that one that fails is sent again and no other.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, PartNumber};
use tradewind_core::object::Committed;
use tradewind_core::{Address, Algorithm, Metadata, ObjectStore};
use tradewind_model::plan::LEAST_PART;

use super::buffers::{BUFFER_BYTES, Buffer, Buffers};
use super::carrier::Carrier;
use super::memory::{Begun, CopiedPart, StoredPart};
use super::source::Source;
use super::store::store;
use super::upload::Upload;

/// Parts of one size; those behind them are twice as large, so that S3's 10,000 are enough for 400 GiB and more.
const PARTS_OF_A_SIZE: u16 = 2000;

/// Bytes in memory: buffers of one size, all full but the last, which are used again when the part has been stored.
#[derive(Default)]
struct Memory {
    buffers: Vec<Buffer>,
    length: usize,
}

impl Memory {
    /// Adds as many bytes as there is room for in the last buffer, or in another one; answers how many they are.
    fn add(&mut self, bytes: &[u8], free: &Arc<Buffers>) -> usize {
        let at = self.length % BUFFER_BYTES;
        if at == 0 {
            self.buffers.push(free.take(BUFFER_BYTES));
        }
        let fits = bytes.len().min(BUFFER_BYTES - at);
        if let Some(last) = self.buffers.last_mut() {
            last.bytes_mut()[at..at + fits].copy_from_slice(&bytes[..fits]);
        }
        self.length += fits;
        fits
    }

    fn truncate(&mut self, length: usize) {
        self.length = length;
        self.buffers.truncate(length.div_ceil(BUFFER_BYTES));
    }

    /// The bytes before `end`, piece by piece.
    fn pieces(&self, end: usize) -> impl Iterator<Item = &[u8]> {
        let starts = (0..end).step_by(BUFFER_BYTES);
        self.buffers
            .iter()
            .zip(starts)
            .map(move |(buffer, at)| &buffer.as_ref()[..BUFFER_BYTES.min(end - at)])
    }
}

impl Source for Memory {
    fn read_at(&self, offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        let missing = || Error::new(Reason::Defect, "more of a part was read than it holds");
        let mut at = usize::try_from(offset).unwrap_or(usize::MAX);
        if at.checked_add(buffer.len()).is_none_or(|end| end > self.length) {
            return Err(missing());
        }
        while !buffer.is_empty() {
            let piece = self.buffers.get(at / BUFFER_BYTES).ok_or_else(missing)?;
            let piece = &piece.as_ref()[at % BUFFER_BYTES..];
            let (now, later) = buffer.split_at_mut(piece.len().min(buffer.len()));
            now.copy_from_slice(&piece[..now.len()]);
            at += now.len();
            buffer = later;
        }
        Ok(())
    }
}

/// An object in the making. It becomes visible when it is finished; dropped before, what was sent of it is given up.
pub struct Sequence {
    carrier: Arc<Carrier>,
    store: Arc<dyn ObjectStore>,
    address: Address,
    metadata: Metadata,
    /// From the first part on; an object that is smaller goes in one request.
    upload: Option<Arc<Upload>>,
    gathered: Memory,
    written: u64,
    /// The number of the part that is gathered.
    number: u16,
    mark: Option<Mark>,
    /// Parts that were taken back.
    void: Vec<Range<u16>>,
    under_way: JoinSet<(u16, Result<StoredPart>)>,
    done: Vec<StoredPart>,
    memory: Option<Arc<dyn super::Memory>>,
    /// What was sent is remembered: after a failure that passes it stays in the store.
    is_remembered: bool,
    /// Parts that an earlier attempt sent and the store has, by their numbers.
    earlier: HashMap<u16, CopiedPart>,
}

/// A place in an object that is being made, to go back to.
struct Mark {
    number: u16,
    written: u64,
    /// Bytes of its part that stand before it.
    length: usize,
    /// The part, where it was sent since.
    sent: Option<Arc<Memory>>,
}

impl Sequence {
    /// Begins one; nothing is sent yet.
    #[must_use]
    pub fn new(
        carrier: &Arc<Carrier>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        metadata: Metadata,
    ) -> Self {
        Self {
            carrier: carrier.clone(),
            store: store.clone(),
            address: address.clone(),
            metadata,
            upload: None,
            gathered: Memory::default(),
            written: 0,
            number: 1,
            mark: None,
            void: Vec::new(),
            under_way: JoinSet::new(),
            done: Vec::new(),
            memory: None,
            is_remembered: false,
            earlier: HashMap::new(),
        }
    }

    /// The same, remembered: one that was cut off goes on with the parts that were sent and are the same bytes now.
    #[must_use]
    pub fn remembered(mut self, memory: Option<Arc<dyn super::Memory>>) -> Self {
        self.memory = memory;
        self
    }

    /// Bytes in it so far.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Adds bytes. Waits while as much is under way as may be held in memory.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let size = self.part_bytes();
            if self.gathered.length >= size {
                // Only now: the last part must not be empty, and what is no larger than one is a single request.
                self.send().await?;
            }
            let (fits, _) = bytes.split_at(bytes.len().min(size - self.gathered.length));
            let added = self.gathered.add(fits, self.carrier.buffers());
            self.written += added as u64;
            bytes = &bytes[added..];
        }
        Ok(())
    }

    /// Marks the place that it has come to. While it is marked, up to a part more is held in memory.
    pub fn mark(&mut self) {
        let (number, written, length) = (self.number, self.written, self.gathered.length);
        self.mark = Some(Mark { number, written, length, sent: None });
    }

    /// Forgets the mark: there is no way back.
    pub fn keep(&mut self) {
        self.mark = None;
    }

    /// Goes back to the mark: what was written since is not in the object. Parts of it that were sent are left out at the
    /// end, and their numbers not used again: one of them may still be on its way.
    pub fn go_back(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        self.written = mark.written;
        let Some(sent) = mark.sent else {
            self.gathered.truncate(mark.length);
            return;
        };
        self.void.push(mark.number..self.number);
        self.done.retain(|(part, _)| part.number.get() < mark.number);
        self.gathered.truncate(0);
        for mut piece in sent.pieces(mark.length) {
            while !piece.is_empty() {
                piece = &piece[self.gathered.add(piece, self.carrier.buffers())..];
            }
        }
    }

    /// Stores what is left, and makes the object of all of it.
    pub async fn finish(mut self) -> Result<Committed> {
        let has_parts = (1..self.number).any(|number| !self.is_void(number));
        let upload = self.upload.clone().filter(|_| has_parts);
        let Some(upload) = upload else {
            let (size, source) = (self.written, std::mem::take(&mut self.gathered));
            let (carrier, to, address) = (self.carrier.clone(), self.store.clone(), self.address.clone());
            let metadata = std::mem::take(&mut self.metadata);
            // Of one that was begun, everything was taken back.
            self.forget().await;
            return store(&carrier, &to, &address, Arc::new(source), size, metadata).await;
        };
        let stored = async {
            if self.gathered.length > 0 {
                self.send().await?;
            }
            self.settle(1).await?;
            upload.complete(std::mem::take(&mut self.done)).await
        };
        let stored = stored.await;
        match &stored {
            Ok(_) => {
                if let Some(memory) = &self.memory {
                    memory.over();
                }
            }
            Err(e) => self.fail(e).await,
        }
        stored
    }

    /// Ends it where it failed: what is remembered stays for another time, if it may succeed then; anything else that was
    /// stored of it is freed.
    pub async fn fail(mut self, error: &Error) {
        self.under_way.shutdown().await;
        let stays = self.is_remembered || self.upload.is_none();
        if !(stays && error.may_go_on()) {
            self.forget().await;
        }
    }

    /// Frees what was stored of it, now and before.
    pub async fn forget(mut self) {
        self.under_way.shutdown().await;
        let earlier =
            self.memory.as_ref().filter(|_| self.upload.is_none()).and_then(|memory| memory.earlier());
        let of_earlier = |begun: Begun| Upload::of(&self.carrier, &self.store, &self.address, begun.upload);
        let is_freed = match (&self.upload, earlier.map(of_earlier)) {
            (Some(upload), _) => upload.give_up().await,
            (None, Some(upload)) => upload.give_up().await,
            (None, None) => true,
        };
        // What is left is freed another time.
        if let Some(memory) = self.memory.as_ref().filter(|_| is_freed) {
            memory.over();
        }
    }

    /// The upload that its parts go to: that of an earlier attempt, or another.
    async fn begin(&mut self) -> Result<Upload> {
        let to = (&self.carrier, &self.store, &self.address);
        let earlier = self.memory.as_ref().and_then(|memory| memory.earlier());
        if let Some(begun) = earlier
            && let Some((upload, parts)) = Upload::remembered(to.0, to.1, to.2, &begun).await?
        {
            self.earlier = parts.into_iter().map(|part| (part.number.get(), part)).collect();
            self.is_remembered = true;
            return Ok(upload);
        }
        let of = (self.metadata.clone(), Algorithm::Crc64Nvme);
        let upload = Upload::begin(to.0, to.1, to.2, of).await?;
        if let Some(memory) = &self.memory {
            let part_bytes = self.carrier.plan().chunk_bytes;
            let begun = Begun { version: None, upload: upload.id().clone(), part_bytes, parts: Vec::new() };
            self.is_remembered = memory.begun(&begun);
        }
        if self.is_remembered {
            upload.keep();
        }
        Ok(upload)
    }

    fn part_bytes(&self) -> usize {
        let doublings = u32::from(self.number / PARTS_OF_A_SIZE);
        usize::try_from(self.carrier.plan().chunk_bytes.max(LEAST_PART) << doublings).unwrap_or(usize::MAX)
    }

    async fn send(&mut self) -> Result<()> {
        let number = PartNumber::new(i64::from(self.number))?;
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let begun = self.begin().await?;
                self.upload.insert(Arc::new(begun)).clone()
            }
        };
        let source = Arc::new(std::mem::take(&mut self.gathered));
        let size = source.length as u64;
        if let Some(mark) = self.mark.as_mut().filter(|mark| mark.number == self.number) {
            mark.sent = Some(source.clone());
        }
        self.number += 1;
        if let Some(part) = self.earlier.remove(&number.get()).filter(|part| part.is_of(&*source, size)) {
            self.done.push(part.stored());
            return Ok(());
        }
        let memory = self.memory.clone().filter(|_| self.is_remembered);
        self.under_way.spawn(async move {
            let part = upload.part(&*source, number, (0, size), None).await;
            if let (Some(memory), Ok(part)) = (memory, &part) {
                remember(&*memory, part);
            }
            (number.get(), part)
        });
        let fit = self.carrier.plan().memory_bytes / size.max(1);
        self.settle(usize::try_from(fit).unwrap_or(usize::MAX).max(1)).await
    }

    /// Waits until fewer than so many parts are under way.
    async fn settle(&mut self, fewer_than: usize) -> Result<()> {
        while self.under_way.len() >= fewer_than
            && let Some(ended) = self.under_way.join_next().await
        {
            let lost = |e: JoinError| Error::with_source(Reason::Defect, "a part's task failed", e);
            let (number, part) = ended.map_err(lost)?;
            // What became of a part that was taken back does not matter.
            if !self.is_void(number) {
                self.done.push(part?);
            }
        }
        Ok(())
    }

    fn is_void(&self, number: u16) -> bool {
        self.void.iter().any(|numbers| numbers.contains(&number))
    }
}

fn remember(memory: &dyn super::Memory, (part, length): &StoredPart) {
    let &CompletePart { number, ref etag, checksum } = part;
    if let Some(checksum) = checksum {
        memory.stored(&CopiedPart { number, length: *length, etag: etag.clone(), checksum });
    }
}
