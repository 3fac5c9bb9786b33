//! Reads: of a whole object with one request for its manifest, of a range with its head, up to a few entries and a part of
//! the manifest. All must be about the same write: otherwise the read begins again. Chunks are read ahead.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{Fuse, FuturesOrdered};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{Address, Body, ByteRange, Context, Generation, Span};

use super::chunk_store::ChunkStore;
use super::decoder::{
    ChunkPart, Decoder, EntryBounds, EntryPosition, EntrySearch, MAX_SEARCH_ENTRIES, Piece, ReadPlan,
    truncated,
};
use super::manifest::{self, ENTRY_BYTES, corrupt};
use crate::transformed::read::{replaced_as_none, reserve};

/// Chunks that are read concurrently.
const MAX_CONCURRENT_CHUNKS: usize = 4;
/// Bodies of at most that many bytes are read before the response begins, so that an error fails the request.
const MAX_EAGER_BYTES: u64 = 64 << 10;
/// Attempts to read one write of an object that is replaced again and again.
const MAX_ATTEMPTS: usize = 100;

/// Reads objects of the store below.
pub(super) struct Reader<'a> {
    pub store: &'a Arc<ChunkStore>,
    pub context: &'a Context,
    pub address: &'a Address,
}

/// Stored bytes of one write.
pub(super) struct StoredBytes {
    pub response: GetResponse<Body>,
    /// Keeps the chunks of the manifest.
    pub token: TaskTrackerToken,
}

/// The entries among which that of a byte is.
struct FoundEntries {
    /// The first of them.
    position: EntryPosition,
    /// The number after the last one.
    end: u64,
}

impl Reader<'_> {
    /// Reads what a request selects of the plain bytes.
    pub async fn read(&self, request: GetRequest) -> Result<GetResponse<Body>> {
        // Before the manifest is read, so that its chunks are not deleted while they are read.
        let token = self.store.pins.begin_read();
        if request.select == Select::Whole {
            let stored = self.read_stored(request).await?;
            return self.read_whole(stored).await;
        }
        for _ in 0..MAX_ATTEMPTS {
            if let Some(found) = self.try_read_span(&request, &token).await? {
                return Ok(found);
            }
        }
        Err(Error::new(Reason::Overloaded, "the object was replaced too often while it was read; retry"))
    }

    /// All stored bytes of an object.
    pub async fn read_stored(&self, request: GetRequest) -> Result<StoredBytes> {
        let token = self.store.pins.begin_read();
        let request = GetRequest { stored: true, select: Select::Whole, ..request };
        let response = self.store.inner.get(self.context, self.address, request).await?;
        Ok(StoredBytes { response, token })
    }

    async fn read_whole(&self, stored: StoredBytes) -> Result<GetResponse<Body>> {
        let StoredBytes { response: mut found, token } = stored;
        let Some(form) = found.info.stored.take() else { return Ok(found) };
        let span = Span::whole(found.info.size);
        if span.length == 0 {
            return Ok(GetResponse { span, body: Body::from_bytes(Bytes::new()), ..found });
        }
        let (_, decoder) = ReadPlan::new(&form, span, &self.address.key)?.begin(EntryBounds::default())?;
        let body = self.body(ChunkStream::new(self, decoder, found.body, token)).await?;
        Ok(GetResponse { span, body, ..found })
    }

    /// Reads a span; `None` if the object was replaced meanwhile.
    async fn try_read_span(
        &self,
        request: &GetRequest,
        token: &TaskTrackerToken,
    ) -> Result<Option<GetResponse<Body>>> {
        let inner = &self.store.inner;
        let head = inner.head(self.context, self.address, request.clone()).await?;
        let (mut info, span) = (head.info, head.span);
        let Some(form) = info.stored.take() else {
            // Not the stored bytes: those of an object that was deduplicated meanwhile have no parts.
            return replaced_as_none(inner.get(self.context, self.address, request.clone()).await);
        };
        if span.length == 0 {
            let body = Body::from_bytes(Bytes::new());
            return Ok(Some(GetResponse { info, span, body, observation: head.observation }));
        }
        let plan = ReadPlan::new(&form, span, &self.address.key)?;
        let mut bounds = EntryBounds::default();
        if let Some(search) = plan.first_search() {
            let Some(found) = self.find_entry(search, info.generation).await? else { return Ok(None) };
            bounds.first = found.position;
        }
        if let Some(search) = plan.last_search(bounds.first) {
            let Some(found) = self.find_entry(search, info.generation).await? else { return Ok(None) };
            bounds.end = Some(found.end);
        }
        let (stored_span, decoder) = plan.begin(bounds)?;
        let Some(found) = self.get_stored(stored_span, info.generation).await? else { return Ok(None) };
        let body = self.body(ChunkStream::new(self, decoder, found.body, token.clone())).await?;
        Ok(Some(GetResponse { info, span, body, observation: found.observation }))
    }

    /// Entries with that of a byte, at most [`MAX_SEARCH_ENTRIES`]; `None` if the object was replaced.
    async fn find_entry(&self, search: EntrySearch, generation: Generation) -> Result<Option<FoundEntries>> {
        let (mut position, mut end) = (search.from, search.entries);
        while end.saturating_sub(position.number) > MAX_SEARCH_ENTRIES {
            let number = position.number + (end - position.number) / 2;
            let span = Span {
                offset: search.stored_start + (number - 1) * ENTRY_BYTES as u64,
                length: ENTRY_BYTES as u64,
            };
            let Some(found) = self.get_stored(span, generation).await? else { return Ok(None) };
            let bytes = self.context.guard(found.body.collect()).await??;
            let entry = manifest::entries(&bytes)?.next().ok_or_else(truncated)?;
            if entry.end < position.previous_end {
                return Err(corrupt("is not in order"));
            }
            match entry.end <= search.byte {
                true => position = EntryPosition { number, previous_end: entry.end },
                false => end = number,
            }
        }
        Ok(Some(FoundEntries { position, end }))
    }

    /// Reads stored bytes of one write of the object; `None` if it was replaced.
    async fn get_stored(&self, span: Span, generation: Generation) -> Result<Option<GetResponse<Body>>> {
        let range = ByteRange::Inclusive { first: span.offset, last: span.end() - 1 };
        let request = GetRequest { select: Select::Range(range), stored: true, ..GetRequest::default() };
        let found = replaced_as_none(self.store.inner.get(self.context, self.address, request).await)?;
        Ok(found.filter(|found| found.info.generation == generation))
    }

    async fn body(&self, mut chunks: ChunkStream) -> Result<Body> {
        let length = chunks.decoder.rest_bytes();
        if length <= MAX_EAGER_BYTES {
            let mut plain = Vec::new();
            while let Some(piece) = chunks.next().await? {
                plain.push(piece);
            }
            let plain = match &plain[..] {
                [piece] => piece.clone(),
                pieces => Bytes::from(pieces.concat()),
            };
            return Ok(Body::from_bytes(reserve(self.context, plain)));
        }
        let context = self.context.clone();
        let pieces = futures::stream::try_unfold(chunks, move |mut chunks| {
            let context = context.clone();
            async move { Ok(chunks.next().await?.map(|piece| (reserve(&context, piece), chunks))) }
        });
        Ok(Body::from_stream(length, pieces))
    }
}

type ChunkRead = Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>;

/// The plain bytes of a span, piece by piece.
struct ChunkStream {
    store: Arc<ChunkStore>,
    context: Context,
    decoder: Decoder,
    stored: Fuse<Body>,
    /// Reads of chunks that the span needs next.
    reads: FuturesOrdered<ChunkRead>,
    _token: TaskTrackerToken,
}

impl ChunkStream {
    fn new(reader: &Reader<'_>, decoder: Decoder, stored: Body, token: TaskTrackerToken) -> Self {
        Self {
            store: reader.store.clone(),
            // The store has found the manifest: a full queue of a disk does not cut the body off.
            context: reader.context.clone().admitted(),
            decoder,
            stored: stored.fuse(),
            reads: FuturesOrdered::new(),
            _token: token,
        }
    }

    /// The next plain bytes, in memory of their own; `None` at the end of the span.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        self.context.check()?;
        loop {
            while self.reads.len() < MAX_CONCURRENT_CHUNKS {
                match self.decoder.next()? {
                    Some(Piece::Chunk(part)) => self.reads.push_back(self.read(part)),
                    Some(Piece::Plain(bytes)) => {
                        self.reads.push_back(Box::pin(std::future::ready(Ok(bytes))));
                    }
                    None => break,
                }
            }
            let needs_more = self.reads.is_empty() && self.decoder.rest_bytes() > 0;
            if !needs_more {
                let next = self.reads.next().await.transpose()?;
                if next.is_none() || (self.reads.is_empty() && self.decoder.rest_bytes() == 0) {
                    // A body that is not read to its end counts as cancelled.
                    while let Some(Ok(_)) = self.stored.next().await {}
                }
                return Ok(next);
            }
            match self.stored.next().await {
                Some(stored) => self.decoder.push(stored?),
                None => return Err(truncated()),
            }
        }
    }

    fn read(&self, part: ChunkPart) -> ChunkRead {
        let (store, context) = (self.store.clone(), self.context.clone());
        Box::pin(async move {
            let bytes = store.read(&context, part.chunk, part.length).await?;
            Ok(bytes.slice(part.start..part.end))
        })
    }
}
