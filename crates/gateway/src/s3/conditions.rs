//! Conditions in headers, converted for the port. Only the store evaluates them at the commit.

use tradewind_core::clock::Timestamp;
use tradewind_core::condition::ETagMatch;
use tradewind_core::object::ETag;
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, ErrorKind, Precondition, ReadConditions, Reason};

use super::call::Call;
use super::failure::{Failure, Result};
use super::service_context::ServiceContext;
use crate::error::Code;

/// The conditions of a read: `If-Match` and related headers.
pub(super) fn read_conditions(call: &Call) -> Result<ReadConditions> {
    read(call, ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"])
}

/// The conditions on a copy's source: `x-amz-copy-source-if-match` and related headers.
pub(super) fn source_conditions(call: &Call) -> Result<ReadConditions> {
    read(
        call,
        [
            "x-amz-copy-source-if-match",
            "x-amz-copy-source-if-none-match",
            "x-amz-copy-source-if-modified-since",
            "x-amz-copy-source-if-unmodified-since",
        ],
    )
}

fn read(call: &Call, [matches, none_match, modified, unmodified]: [&str; 4]) -> Result<ReadConditions> {
    let tags = |name| Ok::<_, Failure>(call.header_list(name)?.map(|text| ETagMatch::parse(&text)));
    // RFC 9110, 13.1.3: an invalid date is ignored. S3 also ignores a date in the future.
    let date = |name| Ok::<_, Failure>(call.header(name)?.and_then(parse_date));
    let now = call.context.deadline.clock().wall();
    Ok(ReadConditions {
        if_match: tags(matches)?,
        if_none_match: tags(none_match)?,
        if_modified_since: date(modified)?.filter(|since| *since <= now),
        if_unmodified_since: date(unmodified)?,
    })
}

/// Parses an HTTP date; `None` if it is invalid.
pub(super) fn parse_date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text).ok().map(Timestamp::from)
}

/// Maps an error of a copy's source: every failed condition is a 412, and a delete marker that the request names is an
/// invalid source.
pub(super) fn source_failure(error: tradewind_core::Error) -> Failure {
    match error.reason() {
        Reason::NotModified => Failure::new(
            Code::PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold.",
        ),
        Reason::DeleteMarker => Failure::invalid_request(
            "The source of a copy request may not specifically refer to a delete marker by version id.",
        ),
        _ => error.into(),
    }
}

/// The condition of a write or a completion: `If-None-Match: *` or `If-Match` with one tag or `*`.
pub(super) fn write_precondition(call: &Call) -> Result<Precondition> {
    match (call.header_list("if-match")?, call.header_list("if-none-match")?) {
        (None, None) => Ok(Precondition::None),
        (Some(_), Some(_)) => {
            Err(Failure::not_implemented("If-Match together with If-None-Match on a write"))
        }
        (None, Some(text)) => match ETagMatch::parse(&text) {
            ETagMatch::Any => Ok(Precondition::Absent),
            ETagMatch::OneOf(_) => Err(Failure::not_implemented("If-None-Match with a tag on a write")),
        },
        (Some(text), None) => one_tag(&text),
    }
}

/// Evaluates the condition of a copy or a completion before the operation, in addition to the store, which evaluates it at
/// the commit. An operation that takes long has sent the status of its response by then.
pub(super) async fn check_destination(
    service: &ServiceContext,
    call: &Call,
    destination: &Address,
    precondition: &Precondition,
) -> Result<()> {
    if *precondition == Precondition::None {
        return Ok(());
    }
    let found = match service.store.head(&call.context, destination, GetRequest::default()).await {
        Ok(found) => Some(found.info),
        Err(error) if matches!(error.reason(), Reason::NoSuchKey | Reason::DeleteMarker) => None,
        // The client may write the object, and this server may not be allowed to read it.
        Err(error) if error.kind() == ErrorKind::Denied => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let current = found.as_ref().map(|info| (&info.etag, info.generation));
    Ok(precondition.check(destination.key.as_str(), current)?)
}

/// The condition of a delete: `If-Match` alone.
pub(super) fn delete_precondition(call: &Call) -> Result<Precondition> {
    if call.headers.contains_key("if-none-match") {
        return Err(Failure::not_implemented("If-None-Match on a delete"));
    }
    call.header_list("if-match")?.map_or(Ok(Precondition::None), |text| one_tag(&text))
}

fn one_tag(text: &str) -> Result<Precondition> {
    match ETagMatch::parse(text) {
        ETagMatch::Any => Ok(Precondition::Exists),
        ETagMatch::OneOf(tags) => match <[ETag; 1]>::try_from(tags) {
            Ok([tag]) => Ok(Precondition::Matches(tag)),
            Err(_) => Err(Failure::not_implemented("If-Match with several tags on a write")),
        },
    }
}
