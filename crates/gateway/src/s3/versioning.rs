//! The operations GetBucketVersioning and PutBucketVersioning.

use s3s::S3Response;
use s3s::dto::{
    BucketVersioningStatus, GetBucketVersioningInput, GetBucketVersioningOutput, MFADelete,
    PutBucketVersioningInput, PutBucketVersioningOutput,
};
use tradewind_core::Reason;
use tradewind_core::version::Versioning;

use super::call::Call;
use super::failure::{Failure, Result};
use super::service_context::ServiceContext;
use crate::error::{Code, WireError};

/// GetBucketVersioning. A bucket whose versioning was never enabled has no status.
pub(super) async fn get(
    service: &ServiceContext,
    call: &Call,
    _: GetBucketVersioningInput,
) -> Result<S3Response<GetBucketVersioningOutput>> {
    let status = match service.store.versioning(&call.context, call.bucket()?).await? {
        Versioning::Off => None,
        Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
        Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    let status = status.map(BucketVersioningStatus::from_static);
    Ok(S3Response::new(GetBucketVersioningOutput { mfa_delete: None, status }))
}

/// PutBucketVersioning. Multi-factor authentication of deletes can only stay disabled.
pub(super) async fn put(
    service: &ServiceContext,
    call: &Call,
    input: PutBucketVersioningInput,
) -> Result<S3Response<PutBucketVersioningOutput>> {
    let configuration = input.versioning_configuration;
    match configuration.mfa_delete.as_ref().map(MFADelete::as_str) {
        None | Some(MFADelete::DISABLED) => {}
        Some(MFADelete::ENABLED) => return Err(Failure::not_implemented("MfaDelete")),
        Some(_) => return Err(Failure::malformed_xml()),
    }
    let versioning = match configuration.status.as_ref().map(BucketVersioningStatus::as_str) {
        Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
        Some(_) => return Err(Failure::malformed_xml()),
        None => {
            return Err(Failure::new(
                Code::IllegalVersioningConfiguration,
                "The versioning configuration must have a Status.",
            ));
        }
    };
    match service.store.set_versioning(&call.context, call.bucket()?, versioning).await {
        Ok(()) => Ok(S3Response::new(PutBucketVersioningOutput::default())),
        Err(error) if error.reason() == Reason::Unsupported => Err(unsupported(error)),
        Err(error) => Err(error.into()),
    }
}

/// The error of a store without versions.
fn unsupported(error: tradewind_core::Error) -> Failure {
    WireError::with_source(
        Code::NotImplemented,
        "The store of this bucket does not implement versions of objects.",
        error,
    )
    .into()
}
