//! The S3 operations on any store. Requests arrive authenticated and without framing. `s3s` only encodes XML and routes
//! the operations that use XML (`codec`). Invariants:
//! - a request is exactly one supported operation, or it is rejected (`authorized_operation`);
//! - permission is checked before memory is reserved, the body is read or the store is called for a request;
//! - payload is streamed between body and store buffer by buffer, never through `s3s`;
//! - every error, including those of `s3s`, is returned in the format of `crate::error`.

mod attributes;
mod authorized_operation;
mod buckets;
mod call;
mod checksums;
mod class_body;
mod classes;
mod classifier;
mod codec;
mod completed_uploads;
mod conditions;
mod copy;
mod delete;
mod document;
mod elements;
mod error_fields;
mod failure;
mod form_upload;
mod gzip;
mod list;
mod list_versions;
mod metadata;
mod multipart;
mod operation;
mod paging;
mod parts;
mod preflight;
mod query;
mod read;
mod response;
mod service_context;
mod tagging;
#[cfg(test)]
mod tests;
mod unset;
mod unsupported_headers;
mod version_id;
mod versioning;
mod write;

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, Request, Response, Uri};
use tradewind_core::{Context, ObjectStore};

pub use classifier::{ObjectClassifier, UnlabelledObject};
pub use metadata::STORAGE_CLASSES;

pub(crate) use metadata::add_retention;

pub(crate) use authorized_operation::anonymous_rejection;
pub(crate) use checksums::add_headers as add_checksum_headers;
pub(crate) use operation::is_subresource;
pub(crate) use preflight::Preflight;
pub(crate) use query::{form_decode, percent_decode};
pub(crate) use read::trim_window;
pub(crate) use response::add_cache_status;
pub use response::object_headers;
pub use service_context::Options;

use crate::auth::{Authenticated, Identity};
use crate::body::{RequestBody, ResponseBody};
use crate::error::{Code, WireError};
use crate::outcome;
use crate::request_id::RequestId;
use authorized_operation::{AuthorizedOperation, Rejection};
use call::Call;
use codec::Codec;
use completed_uploads::CompletedUploads;
use failure::Result;
use operation::Operation;
use response::PlainResponse;
use service_context::ServiceContext;

/// An operation that copies bytes before it has a result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LongOperation {
    /// Its name in S3.
    pub(crate) name: &'static str,
    /// Its request has a body that it reads.
    pub(crate) reads_body: bool,
}

/// The S3 operations. Cheap to clone.
#[derive(Clone)]
pub struct Operations {
    service: ServiceContext,
    codec: Codec,
}

impl Operations {
    /// The operations on a store.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, options: Options) -> Self {
        let service = ServiceContext {
            store,
            options: Arc::new(options),
            completed_uploads: CompletedUploads::default(),
        };
        let codec = Codec::new(service.clone());
        Self { service, codec }
    }

    /// Determines a request's operation and checks the client's permission, before resources are reserved for the
    /// request. Stores the result in the extensions, where [`call`](Self::call) finds it.
    ///
    /// # Errors
    /// The response to a request that is rejected.
    pub(crate) fn authorize(
        &self,
        parts: &mut Parts,
        identity: &Identity,
        request_id: RequestId,
    ) -> Result<(), Box<Response<ResponseBody>>> {
        match AuthorizedOperation::authorize(parts, identity, &self.service.options) {
            Ok(authorized) => {
                parts.extensions.insert(authorized);
                Ok(())
            }
            Err(rejection) => {
                let is_head = parts.method == Method::HEAD;
                Err(Box::new(rejection.into_response(request_id, parts.uri.path(), is_head)))
            }
        }
    }

    /// The name of a request's operation, if it may take so long that the head of its response is sent before its result.
    pub(crate) fn long_operation(parts: &Parts) -> Option<LongOperation> {
        let operation = parts.extensions.get::<AuthorizedOperation>()?.operation;
        let reads_body = match operation {
            Operation::CopyObject | Operation::UploadPartCopy => false,
            Operation::CompleteMultipartUpload => true,
            _ => return None,
        };
        Some(LongOperation { name: operation.name(), reads_body })
    }

    /// Executes a request. Its extensions must have an [`Authenticated`] and a [`Context`]; without them the response
    /// is a 500. Dropping the future cancels the operation.
    pub async fn call(&self, request: Request<RequestBody>) -> Response<ResponseBody> {
        let (mut parts, body) = request.into_parts();
        let is_head = parts.method == Method::HEAD;
        let resource = parts.uri.path().to_owned();
        let auth = parts.extensions.remove::<Authenticated>();
        let context = parts.extensions.remove::<Context>();
        let (Some(auth), Some(context)) = (auth, context) else {
            let error = WireError::new(Code::InternalError, "The request was not authenticated.");
            return error.to_response(RequestId::next(), &resource, is_head);
        };
        let request_id = auth.request_id;
        if parts.method == Method::OPTIONS {
            let error = match Preflight::parse(&parts) {
                Ok(preflight) => preflight.reject(&*self.service.store, &context).await,
                Err(error) => error,
            };
            return Rejection::from(error).into_response(request_id, &resource, is_head);
        }
        let authorization = match parts.extensions.remove::<AuthorizedOperation>() {
            Some(authorized) => Ok(authorized),
            None => AuthorizedOperation::authorize(&mut parts, &auth.identity, &self.service.options),
        };
        let authorized = match authorization {
            Ok(authorized) => authorized,
            Err(rejection) => return rejection.into_response(request_id, &resource, is_head),
        };
        let operation = authorized.operation;
        let call = Arc::new(Call::new(authorized, parts.headers, auth, context, body));
        match self.execute(parts.method.clone(), parts.uri, &call).await {
            Ok(mut response) => {
                outcome::set_operation(&mut response, operation.name());
                response
            }
            Err(failure) => {
                let failure = error_fields::add(failure, &call, &parts.method);
                Rejection { failure, operation: Some(operation) }
                    .into_response(request_id, &resource, is_head)
            }
        }
    }

    /// Calls an operation: directly if it neither reads nor returns XML, otherwise through the codec.
    async fn execute(&self, method: Method, uri: Uri, call: &Arc<Call>) -> Result<Response<ResponseBody>> {
        call.context.check()?;
        let service = &self.service;
        if let Some(error) = call.header_error {
            // A bucket that is created does not exist yet.
            if call.bucket.is_some() && call.operation != Operation::CreateBucket {
                unset::check_exists(service, call).await?;
            }
            return Err(error.into());
        }
        let plain = match call.operation {
            Operation::GetObject => read::get(service, call).await,
            Operation::HeadObject => read::head(service, call).await,
            Operation::PutObject => write::put(service, call).await,
            Operation::PutObjectClasses => classes::put(service, call).await,
            Operation::PostObjectClasses => classes::post(service, call).await,
            Operation::UploadPart => parts::upload(service, call).await,
            Operation::DeleteObject => delete::delete_object(service, call).await,
            _ => {
                return match unset::respond(service, call).await {
                    Some(response) => response,
                    None => self.codec.execute(method, uri, call.clone()).await,
                };
            }
        };
        plain.map(PlainResponse::into_response)
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operations")
    }
}
