//! Classes of data (DSS) of existing objects, and the headers that select where a request has its classes
//! (`docs/classes.md`): in headers, or in a class section in the body ([`ClassBody`]).
//!
//! A class section is the whole classification and replaces all classes. A header replaces the classes that it names; an
//! empty one removes them. The retention is in headers only, also next to a section. All ways need permission to write.

use http::{HeaderMap, Method, StatusCode};
use tradewind_core::class::{ClassUpdate, Classes, format};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Error, Reason};
use tradewind_wire::headers::{
    DSS_CLASS_FILE, DSS_OBJECT_CLASS, DSS_OBJECT_FILE, DSS_RANGE_CLASS, DSS_RETENTION, DSS_RETENTION_SPAN,
};

use super::call::Call;
use super::checksums::DeclaredChecksums;
use super::class_body::ClassBody;
use super::failure::{Failure, Result};
use super::metadata;
use super::operation::Operation;
use super::response::PlainResponse;
use super::service_context::ServiceContext;
use super::version_id;
use crate::auth::Access;

/// Returns true if the headers select an operation on classes: PutObjectClasses or PostObjectClasses.
pub(super) fn selects_operation(method: &Method, headers: &HeaderMap) -> bool {
    match *method {
        Method::PUT => headers.contains_key(DSS_CLASS_FILE),
        Method::POST => [DSS_OBJECT_CLASS, DSS_RANGE_CLASS, DSS_RETENTION, DSS_RETENTION_SPAN]
            .iter()
            .any(|name| headers.contains_key(name)),
        _ => false,
    }
}

/// Rejects a class section where none can be: with a part, a copy, or any other request than a PUT of an object. Rejects
/// classes in both places.
pub(super) fn check_headers(operation: Operation, headers: &HeaderMap) -> Result<()> {
    let sections = [(DSS_OBJECT_FILE, Operation::PutObject), (DSS_CLASS_FILE, Operation::PutObjectClasses)];
    for (name, allowed) in sections {
        if !headers.contains_key(&name) {
            continue;
        }
        if operation != allowed {
            return Err(Failure::invalid_request(format!(
                "{name} is not allowed with {}: only the PUT of a whole object can have a class section.",
                operation.name()
            )));
        }
        if headers.contains_key(DSS_OBJECT_CLASS) || headers.contains_key(DSS_RANGE_CLASS) {
            return Err(Failure::invalid_request(format!(
                "Classes are either in headers or in a class section: {name} excludes {DSS_OBJECT_CLASS} and \
                 {DSS_RANGE_CLASS}."
            )));
        }
    }
    Ok(())
}

/// Returns true if a class section is in front of the data.
pub(super) fn has_object_file(call: &Call) -> Result<bool> {
    if !call.headers.contains_key(DSS_OBJECT_FILE) {
        return Ok(false);
    }
    check_true(call, DSS_OBJECT_FILE.as_str())?;
    Ok(true)
}

/// Checks that a header is `True`, the only value that it has.
fn check_true(call: &Call, name: &str) -> Result<()> {
    match call.header(name)? {
        Some(text) if text.eq_ignore_ascii_case("true") => Ok(()),
        other => {
            let message = format!("The only value of {name} is 'True'.");
            Err(Failure::invalid_argument(message, name, other.unwrap_or_default()))
        }
    }
}

/// PutObjectClasses: replaces the classes of an object by those in the body.
pub(super) async fn put(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    check_true(call, DSS_CLASS_FILE.as_str())?;
    reject_conditions(call)?;
    let address = call.address()?;
    call.payload_length()?;
    let mut body = ClassBody::open(call, DeclaredChecksums::read(call)?).await?;
    let section = body.take_section()?;
    while let Some(bytes) = body.next().await? {
        if !bytes.is_empty() {
            return Err(format::trailing_bytes().into());
        }
    }
    body.verify()?;
    let found = service.store.head(&call.context, &address, GetRequest::default()).await?;
    let classes = ClassUpdate::replace(section.classes_for(found.info.size)?);
    let update = ClassUpdate { retention: metadata::retention_update(call)?, ..classes };
    change(service, call, &address.with_version(found.info.version), update).await
}

/// PostObjectClasses: changes the classes of an object that the headers name.
pub(super) async fn post(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    reject_conditions(call)?;
    if call.auth.decoded_length.is_some_and(|length| length > 0) {
        return Err(Failure::invalid_request("A POST of classes has no body."));
    }
    change(service, call, &call.address()?, update(call)?).await
}

async fn change(
    service: &ServiceContext,
    call: &Call,
    address: &Address,
    update: ClassUpdate,
) -> Result<PlainResponse> {
    service.store.set_classes(&call.context, address, update).await?;
    let mut headers = HeaderMap::new();
    version_id::add_header(&mut headers, address.version.as_ref());
    Ok(PlainResponse::new(StatusCode::OK, headers))
}

/// A change of classes evaluates no conditions, so a request with one must not seem to.
fn reject_conditions(call: &Call) -> Result<()> {
    for name in ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"] {
        if call.headers.contains_key(name) {
            return Err(Failure::not_implemented(&format!("{name} with a change of classes")));
        }
    }
    Ok(())
}

/// The change that the headers of a GET request. Fails if the client may not write.
pub(super) fn update_of_read(call: &Call) -> Result<ClassUpdate> {
    let update = update(call)?;
    if !update.is_empty() {
        call.require_access(Access::Write, call.bucket.as_ref())?;
        reject_conditions(call)?;
    }
    Ok(update)
}

/// Changes the classes of the object of a GET, if its bytes can be read. Before the read: with a body in hand, the change
/// would wait for the memory or the connection that the body holds.
pub(super) async fn change_before_read(
    service: &ServiceContext,
    call: &Call,
    request: &GetRequest,
    update: ClassUpdate,
) -> Result<(), Error> {
    let address = call.address().map_err(|_| Error::new(Reason::InvalidKey, "the request names no key"))?;
    let found = service.store.head(&call.context, &address, request.clone()).await?;
    let address = address.with_version(found.info.version);
    service.store.set_classes(&call.context, &address, update).await
}

/// The change that the headers describe. An empty header removes its classes.
fn update(call: &Call) -> Result<ClassUpdate> {
    let mut update = ClassUpdate::default();
    if call.headers.contains_key(DSS_OBJECT_CLASS) {
        let text = call.header(DSS_OBJECT_CLASS.as_str())?;
        update.object = Some(text.map(Classes::parse_object).transpose()?);
    }
    if call.headers.contains_key(DSS_RANGE_CLASS) {
        let text = call.header_list(DSS_RANGE_CLASS.as_str())?;
        let ranges = text.map(|text| Classes::parse_ranges(&text)).transpose()?;
        update.ranges = Some(ranges.unwrap_or_default());
    }
    update.retention = metadata::retention_update(call)?;
    Ok(update)
}
