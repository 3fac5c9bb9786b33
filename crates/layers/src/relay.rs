//! Copies between two stores, or through a layer that changes the bytes: the source is read and written as the port's copies require. Only the bytes in flight
//! are in memory. The bytes come from one version of the source, because one read supplies all of them; they are
//! verified against the checksums of the source that the destination also stores.

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::{
    Algorithm, Body, ByteRange, Checksum, ChecksumScope, Context, ObjectInfo, ObjectStore, Staged,
};

use crate::store_error::StoreName;

/// One side of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RelayEnd<'a> {
    /// The store.
    pub store: &'a dyn ObjectStore,
    /// Its name in errors.
    pub name: StoreName<'a>,
}

/// Copies an object: see [`ObjectStore::copy`](tradewind_core::ObjectStore::copy).
pub(crate) async fn copy(
    context: &Context,
    from: RelayEnd<'_>,
    to: RelayEnd<'_>,
    request: CopyRequest,
) -> Result<Committed> {
    let get = GetRequest { conditions: request.source_conditions, ..GetRequest::default() };
    let mut source = from.name.in_error(from.store.get(context, &request.source, get).await)?;
    // The destination may need the window before it takes the first byte.
    source.body = source.body.unreserved();
    let algorithms = match request.algorithm {
        Some(algorithm) => vec![algorithm],
        None => source.info.checksums.iter().map(Checksum::algorithm).collect(),
    };
    let verified = verifiable(full_object_checksums(&source.info), &algorithms);
    let mut metadata = request.metadata.unwrap_or_else(|| source.info.metadata.clone().for_copy());
    metadata.tags = request.tags.unwrap_or_else(|| source.info.metadata.tags.clone());
    let stage = StageRequest {
        metadata,
        size: Some(source.info.size),
        checksum: verified.first().copied(),
        algorithms,
        verify_md5: false,
        etag: request.etag,
        precondition: request.precondition,
        identity: None,
    };
    let staged = to.name.in_error(to.store.stage(context, &request.destination, stage).await)?;
    relay(context, Source { name: from.name, found: source }, Destination { name: to.name, staged, verified })
        .await
}

/// Copies an object or a range of it into a part: see
/// [`ObjectStore::copy_part`](tradewind_core::ObjectStore::copy_part).
pub(crate) async fn copy_part(
    context: &Context,
    from: RelayEnd<'_>,
    to: RelayEnd<'_>,
    request: CopyPartRequest,
) -> Result<Committed> {
    let select = request.range.map_or(Select::Whole, Select::Range);
    let get = GetRequest { select, conditions: request.source_conditions, ..GetRequest::default() };
    let mut source = from.name.in_error(from.store.get(context, &request.source, get).await)?;
    // The destination may need the window before it takes the first byte.
    source.body = source.body.unreserved();
    check_range(request.range, source.info.size)?;
    let stage =
        StageRequest { size: Some(source.span.length), etag: request.etag, ..StageRequest::default() };
    let staged =
        to.store.stage_part(context, &request.destination, &request.upload, request.number, stage).await;
    let staged = to.name.in_error(staged)?;
    let destination = Destination { name: to.name, staged, verified: Vec::new() };
    relay(context, Source { name: from.name, found: source }, destination).await
}

/// Rejects a range that ends beyond the source, which a read would shorten.
fn check_range(range: Option<ByteRange>, size: u64) -> Result<()> {
    let is_beyond = match range {
        Some(ByteRange::Inclusive { last, .. }) => last >= size,
        Some(ByteRange::Suffix(length)) => length > size,
        Some(ByteRange::From(_)) | None => false,
    };
    match is_beyond {
        true => {
            let message = format!("the range ends beyond the source's {size} bytes");
            Err(Error::for_client(Reason::InvalidRange, message))
        }
        false => Ok(()),
    }
}

/// The checksums of the whole object.
fn full_object_checksums(info: &ObjectInfo) -> Vec<Checksum> {
    match info.scope {
        ChecksumScope::FullObject => info.checksums.clone(),
        ChecksumScope::Composite => Vec::new(),
    }
}

/// The checksums that a store with these algorithms computes.
fn verifiable(known: Vec<Checksum>, algorithms: &[Algorithm]) -> Vec<Checksum> {
    known.into_iter().filter(|checksum| algorithms.contains(&checksum.algorithm())).collect()
}

/// A read in the source store.
struct Source<'a> {
    name: StoreName<'a>,
    found: GetResponse<Body>,
}

/// A write in the destination store.
struct Destination<'a> {
    name: StoreName<'a>,
    staged: Box<dyn Staged>,
    /// Checksums of the bytes.
    verified: Vec<Checksum>,
}

/// Writes the body of the source and commits it.
async fn relay(context: &Context, source: Source<'_>, destination: Destination<'_>) -> Result<Committed> {
    let GetResponse { info, span, mut body, .. } = source.found;
    let Destination { name, mut staged, verified } = destination;
    let mut relayed_bytes = 0;
    while let Some(piece) = source.name.in_error(context.guard(body.next_copied()).await?)? {
        relayed_bytes += piece.len() as u64;
        name.in_error(staged.write(piece).await)?;
    }
    let error_of_source = |what: &str| {
        Error::new(Reason::CorruptData, format!("{}: the bytes of the copy's source {what}", source.name))
    };
    if relayed_bytes != span.length {
        return Err(error_of_source("end early"));
    }
    let expected = Expected { size: Some(span.length), checksums: verified, ..Expected::default() };
    let committed = name.in_error(staged.commit(expected).await).map_err(|error| match error.reason() {
        // The caller has sent no bytes: the source has returned others than it stored.
        Reason::BadDigest => error_of_source("differ from their checksum"),
        _ => error,
    });
    let (committed, _) = committed?;
    Ok(Committed { source_version: info.version, ..committed })
}
