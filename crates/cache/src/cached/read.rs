//! Reads: from the cache if it has the current object, else from the backing store, filling the cache.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tradewind_core::error::Result;
use tradewind_core::observation::{CacheSource, CacheStatus, ForwardReason};
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{
    Address, Body, ByteRange, Context, Error, ErrorKind, ObjectInfo, Observation, Reason, Span,
};
use tradewind_model::slices::{HEAD_BYTES, MAX_UNSLICED_BYTES};

use super::Cached;
use crate::changes::{KeyHash, Token};
use crate::classes::Rank;
use crate::extent::Place;
use crate::fill::{FillBody, FillTarget, Filler, WholeFill};
use crate::flights::Flight;
use crate::head::{Head, Stamp, is_one_extent};
use crate::options::Validation;
use crate::ram::Candidate;
use crate::reader::{CachedReader, Gathered, Origin, extents, is_same_object, slice_of_extent};
use crate::tiers::Tier;

/// Extents of which is examined whether they are cached before a body begins.
pub(crate) const MAX_EXAMINED_EXTENTS: u32 = 4096;

/// A read of at most these extents of which one is missing is forwarded as a whole.
const MAX_BRIEF_EXTENTS: u32 = 16;

/// If more than the examined extents divided by this are missing, one request to the backing store is for all from the
/// first missing one on.
const MAX_MISSING_DIVISOR: u32 = 4;

/// A read that the cache may serve.
pub(super) struct ReadAttempt<'a> {
    pub context: &'a Context,
    pub address: &'a Address,
    pub hash: KeyHash,
    token: Token,
    /// The time before the token was taken.
    pub started: Duration,
    /// The object was not compared, because the backing store does not respond.
    is_uncompared: bool,
}

/// The state of an object in the cache.
enum Lookup {
    /// The current object.
    Current(Arc<Head>, Tier),
    /// An object that is not the current one; it was dropped.
    Stale,
    Absent,
}

/// The response to a read from a current head, or the reason for which the read is better forwarded unchanged.
type Served = std::result::Result<GetResponse<Body>, ForwardReason>;

impl Cached {
    /// See [`ObjectStore::get`](tradewind_core::ObjectStore::get).
    pub(super) async fn read(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        context.check()?;
        let Some(mut attempt) = self.attempt(context, address, &request) else {
            return self.bypass(context, address, request).await;
        };
        let mut leader = None;
        let mut reason = match self.lookup(&mut attempt).await? {
            Lookup::Current(head, tier) => match self.serve(&attempt, &head, tier, &request).await? {
                Ok(response) => return Ok(response),
                Err(reason) => reason,
            },
            Lookup::Stale => ForwardReason::Stale,
            Lookup::Absent => ForwardReason::Miss,
        };
        match self.flights.join(attempt.hash.key) {
            Flight::Leader(flight) => leader = Some(flight),
            Flight::Follower(ended) => {
                context.guard(ended.cancelled()).await?;
                self.tiers.counters.shared_misses.increment();
                let Some(next) = self.attempt(context, address, &request) else {
                    return self.bypass(context, address, request).await;
                };
                attempt = next;
                if let Lookup::Current(head, tier) = self.lookup(&mut attempt).await? {
                    match self.serve(&attempt, &head, tier, &request).await? {
                        Ok(response) => return Ok(response),
                        Err(other) => reason = other,
                    }
                }
            }
        }
        let response = self.forward(&attempt, request, reason).await;
        drop(leader);
        response
    }

    /// See [`ObjectStore::head`](tradewind_core::ObjectStore::head).
    pub(super) async fn read_head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        context.check()?;
        let Some(mut attempt) = self.attempt(context, address, &request) else {
            let (hash, started) = (self.tiers.fingerprints.key(address), self.clock.now());
            let found = self.observed(hash, started, self.inner.head(context, address, request).await)?;
            return Ok(self.with_status(address, found, ForwardReason::Bypass));
        };
        let cached = self.tiers.head(address, &attempt.token).await;
        if let Some((head, tier)) = &cached
            && self.is_trusted(&attempt, head)
        {
            let span = select(&head.info, &request)?;
            return Ok(self.hit(&attempt, head, span, source(*tier), ()));
        }
        // The response to a HEAD is also the comparison. One of a range may lack the checksums of the whole.
        let whole = GetRequest { select: Select::Whole, ..request.clone() };
        let found = match &cached {
            None => {
                let found = self.inner.head(context, address, whole).await;
                self.observed(attempt.hash, attempt.started, found)
            }
            Some((head, tier)) => match self.compare(&attempt, head, whole).await {
                Ok(Some(found)) => Ok(found),
                Ok(None) => {
                    attempt.is_uncompared = true;
                    let span = select(&head.info, &request)?;
                    return Ok(self.hit(&attempt, head, span, source(*tier), ()));
                }
                Err(e) => Err(e),
            },
        };
        if let Err(e) = &found
            && e.kind() == ErrorKind::NotFound
        {
            self.drop_head(attempt.hash);
        }
        let found = found?;
        let span = match request.select {
            Select::Range(range) => range.resolve(found.info.size),
            Select::Whole | Select::Part(_) => Ok(found.span),
        };
        let reason = match cached {
            Some((head, _)) if head.info == found.info => {
                // Another head would have another content, for which nothing is cached.
                self.renew(&attempt, &head);
                let found = GetResponse { span: span?, ..found };
                return Ok(self.with_status(address, found, ForwardReason::Stale));
            }
            Some(_) => {
                self.drop_head(attempt.hash);
                ForwardReason::Stale
            }
            None => ForwardReason::Miss,
        };
        self.cache_head_only(&attempt, &found.info);
        Ok(self.with_status(address, GetResponse { span: span?, ..found }, reason))
    }

    /// Prepares a read; `None` if the cache does not serve it.
    fn attempt<'a>(
        &self,
        context: &'a Context,
        address: &'a Address,
        request: &GetRequest,
    ) -> Option<ReadAttempt<'a>> {
        let is_closed = self.is_closed.load(std::sync::atomic::Ordering::SeqCst);
        if is_closed || address.version.is_some() || matches!(request.select, Select::Part(_)) {
            return None;
        }
        let hash = self.tiers.fingerprints.key(address);
        let started = self.clock.now();
        let token = self.tiers.changes.token(hash)?;
        Some(ReadAttempt { context, address, hash, token, started, is_uncompared: false })
    }

    async fn bypass(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.tiers.counters.bypasses.increment();
        let (hash, started) = (self.tiers.fingerprints.key(address), self.clock.now());
        let found = self.observed(hash, started, self.inner.get(context, address, request).await)?;
        Ok(self.with_status(address, found, ForwardReason::Bypass))
    }

    /// The current object, if it is cached.
    async fn lookup(&self, attempt: &mut ReadAttempt<'_>) -> Result<Lookup> {
        let found = self.tiers.head(attempt.address, &attempt.token);
        let Some((head, tier)) = found.await else { return Ok(Lookup::Absent) };
        if self.is_trusted(attempt, &head) {
            return Ok(Lookup::Current(head, tier));
        }
        self.tiers.counters.validations.increment();
        match self.compare(attempt, &head, GetRequest::default()).await {
            Ok(Some(found)) if found.info == head.info => {
                self.renew(attempt, &head);
                Ok(Lookup::Current(head, tier))
            }
            Ok(None) => {
                attempt.is_uncompared = true;
                Ok(Lookup::Current(head, tier))
            }
            Ok(_) => {
                self.tiers.counters.stale.increment();
                self.drop_head(attempt.hash);
                Ok(Lookup::Stale)
            }
            Err(e) => {
                if e.kind() == ErrorKind::NotFound {
                    self.drop_head(attempt.hash);
                }
                Err(e)
            }
        }
    }

    /// True if a head needs no comparison with the backing store.
    fn is_trusted(&self, attempt: &ReadAttempt<'_>, head: &Head) -> bool {
        let changes = &self.tiers.changes;
        let (stamp, hash) = (head.stamp(), attempt.hash);
        let uncertain_until = changes.uncertain_until(hash);
        let unchanged_since = changes.unchanged_since(hash.bucket);
        if stamp.session != self.session {
            return false;
        }
        let is_certain =
            stamp.sequence >= unchanged_since && (uncertain_until.is_zero() || stamp.time >= uncertain_until);
        is_certain
            && match self.validation {
                Validation::Owner | Validation::SoleWriter => true,
                Validation::MaxAge(age) => attempt.started.saturating_sub(stamp.time) < age,
                Validation::Always => false,
            }
    }

    /// Records that a head is current.
    fn renew(&self, attempt: &ReadAttempt<'_>, head: &Arc<Head>) {
        if !self.tiers.changes.is_current(&attempt.token) {
            return;
        }
        let is_of_this_session = head.stamp().session == self.session;
        let stamp = self.stamp(attempt);
        self.tiers.renew_head(head, stamp);
        // A later read from the SSD would have to compare again. A stamp that expires is not worth a write: the table of
        // stamps has it. Nor is one that is too early after a change with an unknown outcome: each read until then
        // compares, and would write. A small object that was cached when it was written is not on the SSD yet.
        let is_final = matches!(self.validation, Validation::Owner | Validation::SoleWriter);
        let is_first = !is_of_this_session && !self.tiers.is_on_ssd(attempt.hash.key);
        let is_certain = stamp.time >= self.tiers.changes.uncertain_until(attempt.hash);
        if is_certain && (is_final || is_first) {
            self.tiers.store_renewed_head(head, &attempt.token);
        }
    }

    const fn stamp(&self, attempt: &ReadAttempt<'_>) -> Stamp {
        Stamp { session: self.session, sequence: attempt.token.sequence, time: attempt.started }
    }

    pub(super) fn drop_head(&self, hash: KeyHash) {
        self.tiers.remove_head(hash);
    }

    /// Serves a read from a current head, unless the backing store has another object after all, or the object is small
    /// and only its head is cached.
    async fn serve(
        &self,
        attempt: &ReadAttempt<'_>,
        head: &Arc<Head>,
        tier: Tier,
        request: &GetRequest,
    ) -> Result<Served> {
        let counters = &self.tiers.counters;
        let span = select(&head.info, request)?;
        if let Some(bytes) = self.small_data(attempt, head, span).await {
            let (hits, hit_bytes) = match bytes.tier.max(tier) {
                Tier::Ram => (&counters.ram_hits, &counters.ram_bytes),
                Tier::Ssd => (&counters.ssd_hits, &counters.ssd_bytes),
            };
            hits.increment();
            hit_bytes.add(span.length);
            let body = Body::from_bytes(bytes.bytes);
            let source = source(bytes.tier.max(tier));
            return Ok(Ok(self.hit(attempt, head, span, source, body)));
        }
        let is_whole = span == Span::whole(head.info.size);
        if is_whole && span.length <= self.tiers.max_small_bytes() && !self.tiers.has_indexed(head, 0) {
            return Ok(Err(ForwardReason::Miss));
        }
        let content_use = self.tiers.use_content(head, &attempt.token);
        // The content is in use: a removal from now on waits for the fill.
        let may_fill = self.tiers.may_fill(head, &attempt.token);
        let mut origin = Origin {
            store: self.inner.clone(),
            context: attempt.context.clone(),
            address: attempt.address.clone(),
            hash: attempt.hash,
            head: head.clone(),
            tiers: self.tiers.clone(),
            content_use,
            fills: may_fill.then(|| self.shared_fills.clone()),
        };
        let wanted = extents(span);
        let presence = self.presence(head, span, tier);
        let mut is_ssd_failing = presence.unreadable > 0;
        let is_brief = wanted.len() <= MAX_BRIEF_EXTENTS as usize;
        let is_much_missing = presence.missing * MAX_MISSING_DIVISOR > presence.examined;
        let has_first_slice = self.has_first_slice(head, span);
        let mut is_forwarded = presence.missing > 0 && (is_brief || is_much_missing) && !has_first_slice;
        let mut gathered = None;
        if is_brief && !is_forwarded {
            match origin.gather(span).await {
                Gathered::All(body) => gathered = Some(body),
                Gathered::Missing => {
                    is_forwarded = true;
                    let now = self.presence(head, span, tier);
                    is_ssd_failing = now.missing == now.unreadable;
                }
                Gathered::NoMemory => {}
            }
        }
        // Extents on a failing SSD are not replaced: the SSD may work again.
        if is_forwarded && is_whole && !is_ssd_failing {
            let is_absent = presence.missing == presence.examined;
            return Ok(Err(if is_absent { ForwardReason::Miss } else { ForwardReason::Partial }));
        }
        if is_forwarded && is_whole {
            // A service's bytes are known to be right at their end only, and this content is visible before.
            origin.fills = None;
        }
        let source = match presence.missing {
            0 if !is_forwarded => source(presence.tier),
            missing if missing == presence.examined => {
                CacheSource::Backing(self.reason_to_forward(head, span, ForwardReason::Miss))
            }
            _ => CacheSource::Backing(ForwardReason::Partial),
        };
        match source {
            CacheSource::Ram => counters.ram_hits.increment(),
            CacheSource::Ssd => counters.ssd_hits.increment(),
            CacheSource::Backing(ForwardReason::Miss | ForwardReason::Pressure) => {
                counters.misses.increment()
            }
            CacheSource::Backing(_) => counters.partial_hits.increment(),
        }
        if presence.missing > 0
            && let Some(permit) = self.tiers.try_head_permit()
        {
            self.tiers.ensure_head_is_stored(head, &attempt.token, permit);
        }
        let opened = if let Some(body) = gathered {
            Ok(body)
        } else if is_forwarded {
            origin.open_run(wanted, span).await.map(FillBody::into_body)
        } else {
            let reader = CachedReader::new(origin, span);
            match presence.first_missing.filter(|_| is_much_missing) {
                Some(first) => {
                    reader.with_rest_from(first, self.clock.as_ref()).await.map(CachedReader::into_body)
                }
                None => Ok(reader.into_body()),
            }
        };
        match opened {
            Ok(body) => Ok(Ok(self.hit(attempt, head, span, source, body))),
            Err(e) if e.reason() == Reason::Conflict => {
                self.drop_head(attempt.hash);
                Ok(Err(ForwardReason::Stale))
            }
            Err(e) => Err(e),
        }
    }

    /// The bytes of a span that is one buffer: of a small object, or within one extent.
    async fn small_data(&self, attempt: &ReadAttempt<'_>, head: &Arc<Head>, span: Span) -> Option<SmallData> {
        if let Some(data) = &head.data {
            let start = usize::try_from(span.offset).ok()?;
            let bytes = data.slice(start..start + usize::try_from(span.length).ok()?);
            return Some(SmallData { bytes, tier: Tier::Ram });
        }
        let wanted = extents(span);
        if wanted.len() != 1 {
            return None;
        }
        let number = wanted.start;
        if let Some(extent) = self.tiers.ram_data(head, number) {
            let bytes = slice_of_extent(&extent, head, number, span)?;
            return Some(SmallData { bytes, tier: Tier::Ram });
        }
        // A removal waits until the extent is in memory, and frees it there.
        let _use = self.tiers.use_content(head, &attempt.token);
        let may_fill = self.tiers.may_fill(head, &attempt.token);
        let extent = self.tiers.read_data(head, number, may_fill).await?;
        let bytes = slice_of_extent(&extent, head, number, span)?;
        Some(SmallData { bytes, tier: Tier::Ssd })
    }

    /// Returns true if a read begins with the first slice of a large object, and the cache has it: the first byte need not
    /// wait for the backing store.
    fn has_first_slice(&self, head: &Head, span: Span) -> bool {
        let is_stream = span.offset == 0 && span.length > MAX_UNSLICED_BYTES;
        let mut slice = extents(Span { offset: 0, length: HEAD_BYTES });
        is_stream && slice.all(|number| self.tiers.locate(head, number).is_some())
    }

    fn presence(&self, head: &Head, span: Span, tier: Tier) -> Presence {
        let mut presence = Presence { examined: 0, missing: 0, unreadable: 0, first_missing: None, tier };
        let first = self.tiers.place(head, 0);
        for number in extents(span).take(MAX_EXAMINED_EXTENTS as usize) {
            presence.examined += 1;
            match self.tiers.locate_place(Place { number, ..first }, head.content) {
                Some(tier) => presence.tier = presence.tier.max(tier),
                None => {
                    presence.missing += 1;
                    presence.unreadable += u32::from(self.tiers.has_indexed(head, number));
                    presence.first_missing.get_or_insert(number);
                }
            }
        }
        presence
    }

    /// Reads from the backing store and fills the cache.
    async fn forward(
        &self,
        attempt: &ReadAttempt<'_>,
        request: GetRequest,
        reason: ForwardReason,
    ) -> Result<GetResponse<Body>> {
        self.tiers.counters.misses.increment();
        let range = match request.select {
            Select::Range(range) => Some(range),
            Select::Whole | Select::Part(_) => None,
        };
        // A service reports the checksums of the whole with the whole only, and only that is compared with them.
        let is_all = range == Some(ByteRange::From(0));
        let request = if is_all { GetRequest { select: Select::Whole, ..request } } else { request };
        let found = self.inner.get(attempt.context, attempt.address, request).await;
        let found = self.observed(attempt.hash, attempt.started, found)?;
        let GetResponse { info, span, body, observation } = found;
        if let Some(range) = range.filter(|_| is_all) {
            range.resolve(info.size)?;
        }
        let is_whole = span == Span::whole(info.size) && (is_all || range.is_none());
        let mut reason = reason;
        let head = self.new_head(attempt, &info);
        let body = if is_whole && info.size <= self.tiers.max_small_bytes() && is_one_extent(&head) {
            let candidate = self.tiers.small_candidate(&head, attempt.hash);
            if self.tiers.is_under_pressure(candidate) {
                self.tiers.record_bypass(candidate);
                reason = ForwardReason::Pressure;
                body
            } else {
                self.fill_small(attempt, &info, candidate, body).await?
            }
        } else {
            reason = self.reason_to_forward(&head, span, reason);
            match is_whole {
                true => self.fill_whole(attempt, &info, body),
                false => self.fill_range(attempt, &info, span, body).await,
            }
        };
        Ok(self.with_status(attempt.address, GetResponse { info, span, body, observation }, reason))
    }

    /// Caches a small object with its data, which is read at once.
    async fn fill_small(
        &self,
        attempt: &ReadAttempt<'_>,
        info: &ObjectInfo,
        candidate: Candidate,
        body: Body,
    ) -> Result<Body> {
        // Without it, the object is cached in memory only.
        let permit = self.tiers.try_fill_bytes(candidate.payload_bytes);
        let bytes = match body.into_bytes() {
            Ok(bytes) => bytes,
            Err(body) => collect(body).await?,
        };
        if bytes.len() as u64 != info.size {
            let message = format!("the body has {} bytes instead of {}", bytes.len(), info.size);
            return Err(Error::new(Reason::CorruptData, message));
        }
        self.tiers.counters.backing_bytes.add(info.size);
        // A copy: the buffer may be memory of the request's window.
        let data = Some(Bytes::copy_from_slice(&bytes));
        let (address, info) = (attempt.address.clone(), info.clone());
        let head = Head::new(address, info, self.new_content(), data, self.stamp(attempt));
        self.tiers.put_head(Arc::new(head), &attempt.token, permit, None);
        Ok(Body::from_bytes(bytes))
    }

    /// Caches a large object while it passes.
    fn fill_whole(&self, attempt: &ReadAttempt<'_>, info: &ObjectInfo, body: Body) -> Body {
        let target = FillTarget { tiers: self.tiers.clone(), token: attempt.token };
        let fill = WholeFill::begin(&self.fills, self.new_head(attempt, info), target);
        FillBody::of_whole_object(body, info.size, fill, self.tiers.clone()).into_body()
    }

    /// Caches the head of an object, and a part of its data while it passes.
    async fn fill_range(&self, attempt: &ReadAttempt<'_>, info: &ObjectInfo, span: Span, body: Body) -> Body {
        let mut known = Some(info.clone());
        if info.checksums.is_empty() {
            // A service reports the checksums of the whole with a HEAD, and not with a range.
            let found = self.inner.head(attempt.context, attempt.address, GetRequest::default()).await;
            known = found.ok().map(|found| found.info).filter(|found| is_same_object(found, info));
        }
        let Some(info) = known else {
            return FillBody::new(body, None, span, span, self.tiers.clone()).into_body();
        };
        let head = self.new_head(attempt, &info);
        let permit = self.tiers.try_fill_bytes(crate::extent::EXTENT_BYTES);
        let head = permit.and_then(|permit| {
            let content_use = self.tiers.use_content(&head, &attempt.token);
            self.tiers.put_head(head, &attempt.token, Some(permit), Some(content_use))
        });
        let filler = head.and_then(|head| {
            let content_use = self.tiers.use_content(&head, &attempt.token);
            let may_fill = self.tiers.may_fill(&head, &attempt.token);
            may_fill.then(|| Filler::new(content_use, span, Some(self.shared_fills.clone())))
        });
        FillBody::new(body, filler, span, span, self.tiers.clone()).into_body()
    }

    /// Caches a head in memory, without data. A later read of the object fills the SSD.
    fn cache_head_only(&self, attempt: &ReadAttempt<'_>, info: &ObjectInfo) {
        let head = self.new_head(attempt, info);
        // Without memory for it, the next read asks the backing store again.
        let _inserted = self.tiers.insert_head(&head, &attempt.token);
    }

    fn new_head(&self, attempt: &ReadAttempt<'_>, info: &ObjectInfo) -> Arc<Head> {
        let (address, info) = (attempt.address.clone(), info.clone());
        Arc::new(Head::new(address, info, self.new_content(), None, self.stamp(attempt)))
    }

    fn hit<B>(
        &self,
        attempt: &ReadAttempt<'_>,
        head: &Head,
        span: Span,
        source: CacheSource,
        body: B,
    ) -> GetResponse<B> {
        let observation = Observation {
            first_byte: self.clock.now().saturating_sub(attempt.started),
            body_bytes: span.length,
            cache: Some(CacheStatus {
                is_uncompared: attempt.is_uncompared,
                ..self.status(source, &head.address, &head.info, span)
            }),
            ..Observation::default()
        };
        GetResponse { info: head.info.clone(), span, body, observation }
    }

    fn with_status<B>(
        &self,
        address: &Address,
        found: GetResponse<B>,
        reason: ForwardReason,
    ) -> GetResponse<B> {
        let status = self.status(CacheSource::Backing(reason), address, &found.info, found.span);
        let observation = Observation { cache: Some(status), ..found.observation };
        GetResponse { observation, ..found }
    }

    fn status(&self, source: CacheSource, address: &Address, info: &ObjectInfo, span: Span) -> CacheStatus {
        let first = Span { length: span.length.min(1), ..span };
        let rank = self.tiers.policies.rank_of_span(address, info, first);
        let Rank { class, priority, retention_seconds } = rank;
        CacheStatus { source, class: Some(class), priority, retention_seconds, is_uncompared: false }
    }

    /// [`ForwardReason::Pressure`] if the first of the missing bytes do not enter the cache, else `reason`.
    fn reason_to_forward(&self, head: &Head, span: Span, reason: ForwardReason) -> ForwardReason {
        let number = extents(Span { length: span.length.max(1), ..span }).start;
        let candidate = self.tiers.candidate(head, number);
        if self.tiers.is_under_pressure(candidate) { ForwardReason::Pressure } else { reason }
    }
}

/// Bytes in one buffer, and the slowest tier that they came from.
struct SmallData {
    bytes: Bytes,
    tier: Tier,
}

/// The cached part of a span, in extents.
struct Presence {
    examined: u32,
    missing: u32,
    /// Of the missing ones: those that an SSD has that is switched off.
    unreadable: u32,
    first_missing: Option<u32>,
    tier: Tier,
}

/// Evaluates a read against an object, as every store does.
fn select(info: &ObjectInfo, request: &GetRequest) -> Result<Span> {
    request.conditions.check(&info.etag, info.modified)?;
    match request.select {
        Select::Range(range) => range.resolve(info.size),
        Select::Whole | Select::Part(_) => Ok(Span::whole(info.size)),
    }
}

const fn source(tier: Tier) -> CacheSource {
    match tier {
        Tier::Ram => CacheSource::Ram,
        Tier::Ssd => CacheSource::Ssd,
    }
}

/// All bytes of a small body.
async fn collect(mut body: Body) -> Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(usize::try_from(body.length()).unwrap_or(0));
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes.freeze())
}
