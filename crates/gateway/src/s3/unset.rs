//! Settings of a bucket, ACLs, locks of objects and archived objects, which cannot exist here. Reading one returns S3's
//! response for a bucket where it was never set, and deleting one succeeds without effect: both are true. Setting one is
//! not implemented, or has S3's error. The one exception is an ACL that grants what the owner has anyway.
//!
//! Bucket and object are looked up first: a fixed response is never given for one that does not exist.
//!
//! Encryption has no such document: S3's default would claim that objects are encrypted.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use tradewind_core::store::GetRequest;

use super::call::Call;
use super::failure::{Failure, Result};
use super::operation::Operation;
use super::service_context::ServiceContext;
use super::unsupported_headers::{FixedError, NO_OBJECT_LOCK};
use crate::body::ResponseBody;
use crate::error::Code;

/// The response about a setting that was never set.
enum Unset {
    /// A document with this root element and content.
    Document(&'static str, String),
    /// An error with this message.
    Failed(Code, &'static str),
    /// It was deleted.
    Deleted,
    /// An ACL that grants the owner alone may be set: it changes nothing.
    SameAcl,
}

const XMLNS: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Responds to an operation on such a setting; `None` for any other operation. Fails if the bucket or the object does
/// not exist.
pub(super) async fn respond(service: &ServiceContext, call: &Call) -> Option<Result<Response<ResponseBody>>> {
    let unset = unset(service, call.operation)?;
    Some(match check_exists(service, call).await {
        Ok(()) => response(unset, call),
        Err(failure) => Err(failure),
    })
}

/// Checks that the bucket exists, and for an operation on an existing object that the object does.
///
/// # Errors
/// The bucket, the object or the version does not exist, or cannot be looked up.
pub(super) async fn check_exists(service: &ServiceContext, call: &Call) -> Result<()> {
    let is_about_object = matches!(
        call.operation,
        Operation::GetObjectAcl
            | Operation::GetObjectLegalHold
            | Operation::GetObjectRetention
            | Operation::PutObjectAcl
            | Operation::PutObjectLegalHold
            | Operation::PutObjectRetention
            | Operation::RestoreObject
    );
    if is_about_object {
        service.store.head(&call.context, &call.address()?, GetRequest::default()).await?;
    } else {
        service.store.head_bucket(&call.context, call.bucket()?).await?;
    }
    Ok(())
}

fn unset(service: &ServiceContext, operation: Operation) -> Option<Unset> {
    let empty = |root| Unset::Document(root, String::new());
    let empty_list = |root| Unset::Document(root, "<IsTruncated>false</IsTruncated>".to_owned());
    Some(match operation {
        Operation::GetBucketAccelerateConfiguration => empty("AccelerateConfiguration"),
        Operation::GetBucketAcl | Operation::GetObjectAcl => {
            Unset::Document("AccessControlPolicy", access_control(service))
        }
        Operation::GetBucketCors => {
            Unset::Failed(Code::NoSuchCorsConfiguration, "The CORS configuration does not exist")
        }
        Operation::GetBucketEncryption => Unset::Failed(
            Code::EncryptionConfigurationNotFound,
            "The server side encryption configuration was not found.",
        ),
        Operation::GetBucketLifecycleConfiguration => {
            Unset::Failed(Code::NoSuchLifecycleConfiguration, "The lifecycle configuration does not exist.")
        }
        Operation::GetBucketLogging => empty("BucketLoggingStatus"),
        Operation::GetBucketNotificationConfiguration => empty("NotificationConfiguration"),
        Operation::GetBucketOwnershipControls => Unset::Document(
            "OwnershipControls",
            "<Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule>".to_owned(),
        ),
        Operation::GetBucketPolicy | Operation::GetBucketPolicyStatus => {
            Unset::Failed(Code::NoSuchBucketPolicy, "The bucket policy does not exist.")
        }
        Operation::GetBucketReplication => Unset::Failed(
            Code::ReplicationConfigurationNotFound,
            "The replication configuration was not found.",
        ),
        Operation::GetBucketRequestPayment => {
            Unset::Document("RequestPaymentConfiguration", "<Payer>BucketOwner</Payer>".to_owned())
        }
        Operation::GetBucketTagging => Unset::Failed(Code::NoSuchTagSet, "The TagSet does not exist."),
        Operation::GetBucketWebsite => Unset::Failed(
            Code::NoSuchWebsiteConfiguration,
            "The specified bucket does not have a website configuration",
        ),
        Operation::GetBucketAnalyticsConfiguration
        | Operation::GetBucketIntelligentTieringConfiguration
        | Operation::GetBucketInventoryConfiguration
        | Operation::GetBucketMetricsConfiguration => {
            Unset::Failed(Code::NoSuchConfiguration, "The specified configuration does not exist.")
        }
        Operation::ListBucketAnalyticsConfigurations => empty_list("ListBucketAnalyticsConfigurationResult"),
        Operation::ListBucketIntelligentTieringConfigurations => {
            empty_list("ListBucketIntelligentTieringConfigurationsOutput")
        }
        Operation::ListBucketInventoryConfigurations => empty_list("ListInventoryConfigurationsResult"),
        Operation::ListBucketMetricsConfigurations => empty_list("ListMetricsConfigurationsResult"),
        Operation::PutBucketAcl | Operation::PutObjectAcl => Unset::SameAcl,
        Operation::GetObjectLegalHold
        | Operation::GetObjectRetention
        | Operation::PutObjectLegalHold
        | Operation::PutObjectRetention => Unset::Failed(Code::InvalidRequest, NO_OBJECT_LOCK),
        Operation::GetObjectLockConfiguration => Unset::Failed(
            Code::ObjectLockConfigurationNotFound,
            "Object Lock configuration does not exist for this bucket.",
        ),
        Operation::GetPublicAccessBlock => Unset::Failed(
            Code::NoSuchPublicAccessBlockConfiguration,
            "The public access block configuration was not found.",
        ),
        // Whatever its storage class is called, an object can be read without being restored.
        Operation::RestoreObject => Unset::Failed(
            Code::InvalidObjectState,
            "Restore is not allowed for the object's current storage class",
        ),
        Operation::DeleteBucketCors
        | Operation::DeleteBucketEncryption
        | Operation::DeleteBucketLifecycle
        | Operation::DeleteBucketOwnershipControls
        | Operation::DeleteBucketPolicy
        | Operation::DeleteBucketReplication
        | Operation::DeleteBucketTagging
        | Operation::DeleteBucketWebsite
        | Operation::DeletePublicAccessBlock => Unset::Deleted,
        _ => return None,
    })
}

/// The content of an access control list: the owner has all permissions.
fn access_control(service: &ServiceContext) -> String {
    let owner = service.owner();
    let owner = format!(
        "<ID>{}</ID><DisplayName>{}</DisplayName>",
        owner.id.unwrap_or_default(),
        owner.display_name.unwrap_or_default()
    );
    format!(
        "<Owner>{owner}</Owner><AccessControlList><Grant>\
         <Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\">{owner}</Grantee>\
         <Permission>FULL_CONTROL</Permission></Grant></AccessControlList>"
    )
}

/// The response to an ACL that is set. The header `x-amz-acl` can only have a value that grants the owner alone:
/// all others are rejected with the headers.
fn acl_response(call: &Call) -> Result<Response<ResponseBody>> {
    match (call.header("x-amz-acl")?, call.has_body()) {
        (Some(_), false) => Ok(Response::new(ResponseBody::empty())),
        (Some(_), true) => {
            Err(Failure::new(Code::UnexpectedContent, "This request does not support content."))
        }
        (None, true) => Err(FixedError::Acl.into()),
        (None, false) => {
            Err(Failure::new(Code::MissingSecurityHeader, "Your request was missing a required header.")
                .with_field("MissingHeaderName", "x-amz-acl"))
        }
    }
}

fn response(unset: Unset, call: &Call) -> Result<Response<ResponseBody>> {
    match unset {
        Unset::SameAcl => acl_response(call),
        Unset::Document(root, content) => {
            let document = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root} xmlns=\"{XMLNS}\">{content}</{root}>"
            );
            let mut response = Response::new(ResponseBody::from(Bytes::from(document)));
            let xml = HeaderValue::from_static("application/xml");
            response.headers_mut().insert(header::CONTENT_TYPE, xml);
            Ok(response)
        }
        Unset::Failed(code, message) => Err(Failure::new(code, message)),
        Unset::Deleted => {
            let mut response = Response::new(ResponseBody::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            Ok(response)
        }
    }
}
