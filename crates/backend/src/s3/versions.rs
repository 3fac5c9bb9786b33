//! Versions: the versioning of a bucket, requests about one version of an object, and their errors.
//!
//! A service without versions ignores the parameter `versionId`: it would read, change or delete the current object
//! instead. A read is therefore compared with the version that its response names, and any other request about a
//! version is preceded by a HEAD of it until the service has named a version.

use std::error::Error as _;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use md5::{Digest as _, Md5};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{Deleted, GetRequest};
use tradewind_core::version::{VersionId, Versioning};
use tradewind_core::{Address, BucketName, Context, Precondition};

use super::S3Store;
use super::headers::{self, BodyDigests};
use super::list::MAX_PAGE_BYTES;
use super::repeats::ChangeGuard;
use super::service_error::ServiceError;
use super::xml::DocumentKind;
use crate::remote::client::Call;
use crate::remote::payload::BufferedBody;
use crate::remote::query::Query;
use crate::remote::response::StoreResponse;

/// Header that names the version that a response is about.
const VERSION_ID: &str = "x-amz-version-id";
/// Header that names the version that a copy has read.
const SOURCE_VERSION_ID: &str = "x-amz-copy-source-version-id";
const DELETE_MARKER: &str = "x-amz-delete-marker";

const CONFIGURATION: DocumentKind =
    DocumentKind { name: "a versioning configuration", roots: &["VersioningConfiguration"] };

impl S3Store {
    /// GetBucketVersioning. Fails with [`Unsupported`](Reason::Unsupported) if the service has no versions.
    pub(super) async fn read_versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        let mut call = Call::bucket(Method::GET, bucket);
        call.query = Query::default().flag("versioning");
        let document = self.send(context, &call).await?.collect(MAX_PAGE_BYTES).await?;
        let (mut versioning, mut is_listing) = (Versioning::Off, false);
        let read = CONFIGURATION.for_each_element(&document, |path, text| match path {
            ["ListBucketResult"] => is_listing = true,
            [_, "Status"] if text == "Enabled" => versioning = Versioning::Enabled,
            [_, "Status"] if text == "Suspended" => versioning = Versioning::Suspended,
            _ => {}
        });
        if is_listing {
            return Err(Error::unsupported("keep versions of objects: the service has listed the bucket"));
        }
        read.map(|()| versioning)
    }

    /// PutBucketVersioning. Versioning that was never enabled may be set to [`Versioning::Off`].
    pub(super) async fn write_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        let status = match versioning {
            Versioning::Enabled => "Enabled",
            Versioning::Suspended => "Suspended",
            Versioning::Off => {
                return match self.read_versioning(context, bucket).await? {
                    Versioning::Off => Ok(()),
                    Versioning::Enabled | Versioning::Suspended => {
                        let why = "versioning can be suspended, but no longer turned off";
                        Err(Error::for_client(Reason::InvalidRequest, why))
                    }
                };
            }
        };
        let document =
            format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
        let mut call = Call::bucket(Method::PUT, bucket);
        call.query = Query::default().flag("versioning");
        // S3 rejects this request without a digest of its body.
        let md5 = Some(Md5::digest(&document).into());
        headers::write_body_digests(BodyDigests { checksum: None, md5 }, &mut call.headers)?;
        call.payload = BufferedBody::from_buffers([Bytes::from(document)]);
        self.send(context, &call).await?.drain().await.map(drop)
    }

    /// DeleteObject. S3 does not report whether the object existed; the result assumes that it did, unless a version is
    /// named that certainly does not exist. Fails if the service rejects the HEAD of the version for an unknown reason.
    pub(super) async fn delete_object(
        &self,
        context: &Context,
        address: &Address,
        precondition: &Precondition,
    ) -> Result<Deleted> {
        self.check_write_condition(context, precondition).await?;
        let missing = Deleted { existed: false, version: address.version.clone(), is_delete_marker: false };
        match self.confirm_version(context, address).await {
            Err(e) if e.reason() == Reason::NoSuchVersion => {
                if is_rejected(&e) {
                    Box::pin(self.check_rejected_version(context, address, e)).await?;
                }
                return Ok(missing);
            }
            Err(e) if e.reason() == Reason::DeleteMarker => {}
            confirmed => confirmed?,
        }
        let mut call = Call::object(Method::DELETE, &address.bucket, address.key.as_str());
        call.query = version_query(address);
        headers::write_precondition(precondition, &mut call.headers)?;
        call.may_repeat = *precondition == Precondition::None;
        let guard = ChangeGuard::new(self, context, &address.bucket);
        let sent = match address.version {
            // It adds a delete marker, which has no metadata and so no id.
            None => match self.send_change(&call, &guard).await {
                Err(e) => self.resolve_failed_call(address, &call, &guard, None, e).await,
                sent => sent,
            },
            // The id of a version is not used again.
            Some(_) => match self.send(context, &call).await {
                Err(e) => Err(e),
                Ok(response) => response.drain().await,
            },
        };
        let head = match sent.map_err(|e| version_error(address, &call.method, e)) {
            Err(e) if e.reason() == Reason::NoSuchVersion => {
                // An attempt whose response was lost may have removed it.
                let existed = call.outcome_unknown.load(Ordering::Relaxed);
                return Ok(Deleted { existed, ..missing });
            }
            sent => sent?,
        };
        let is_delete_marker = is_delete_marker(&head.headers);
        let added = version_id(&head.headers).filter(|_| is_delete_marker);
        Ok(Deleted { existed: true, version: address.version.clone().or(added), is_delete_marker })
    }

    /// Decides why a HEAD of the version at `address` was rejected: succeeds if the version id is the cause, because the
    /// object itself can be requested. Otherwise the version may exist, such as an object encrypted with a key of the
    /// caller's (SSE-C).
    async fn check_rejected_version(
        &self,
        context: &Context,
        address: &Address,
        rejection: Error,
    ) -> Result<()> {
        let object = address.clone().with_version(None);
        match self.read_head(context, &object, &GetRequest::default()).await {
            Ok(_) => Ok(()),
            Err(e) if e.is_inconclusive() => Err(e),
            Err(_) => {
                let version = address.version.as_ref().map_or("null", VersionId::as_str);
                let why = format!(
                    "cannot determine whether key {:?} has a version {version}: the store rejects requests about it, as \
                     for objects that are encrypted with a customer-provided key",
                    address.key.as_str()
                );
                Err(Error::with_source(Reason::InvalidRequest, why, rejection))
            }
        }
    }

    /// Sends a request about the object or the version at `address`. The call's query must name the version.
    pub(super) async fn send_versioned(
        &self,
        context: &Context,
        address: &Address,
        call: &Call<'_>,
    ) -> Result<StoreResponse> {
        self.send(context, call).await.map_err(|e| version_error(address, &call.method, e))
    }

    /// Ensures that the service will not apply a request about a version to the current object.
    ///
    /// # Errors
    /// [`NoSuchVersion`](Reason::NoSuchVersion) if the version does not exist, also because the service has no
    /// versions, and [`DeleteMarker`](Reason::DeleteMarker) if it is one. A service known to have versions is not
    /// queried.
    pub(super) async fn confirm_version(&self, context: &Context, address: &Address) -> Result<()> {
        if address.version.is_none() || self.names_versions.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Boxed, because it is rarely needed.
        Box::pin(self.read_head(context, address, &GetRequest::default())).await.map(drop)
    }

    /// The version that a response to a read of `address` is about. Fails with [`NoSuchVersion`](Reason::NoSuchVersion)
    /// if it is not the requested one.
    pub(super) fn read_version(&self, address: &Address, headers: &HeaderMap) -> Result<Option<VersionId>> {
        let found = version_id(headers);
        self.record_version(found.as_ref());
        match (&address.version, &found) {
            (None, _) | (Some(VersionId::Null), None) => Ok(found),
            (Some(requested), Some(found)) if requested == found => Ok(Some(found.clone())),
            (Some(requested), _) => Err(Error::no_such_version(address.key.as_str(), requested)),
        }
    }

    /// Records that the service has versions if it has named one.
    pub(super) fn record_version(&self, version: Option<&VersionId>) {
        if let Some(VersionId::Id(_)) = version {
            self.names_versions.store(true, Ordering::Relaxed);
        }
    }
}

/// The query that names the version at an address, if any.
pub(super) fn version_query(address: &Address) -> Query {
    Query::default().with_optional("versionId", address.version.as_ref().map(VersionId::as_str))
}

/// The version that a response is about; `None` in a bucket whose versioning was never enabled.
pub(super) fn version_id(headers: &HeaderMap) -> Option<VersionId> {
    parse_version(headers, VERSION_ID)
}

/// Returns true if a response names a version with an id of its own, even one that this program does not accept.
pub(super) fn names_version(headers: &HeaderMap) -> bool {
    headers.get(VERSION_ID).is_some_and(|version| version != VersionId::Null.as_str())
}

/// Adds the version that a response is about, unless it names one.
pub(super) fn add_version_id(version: &VersionId, headers: &mut HeaderMap) {
    if let Ok(value) = HeaderValue::try_from(version.as_str()) {
        headers.entry(VERSION_ID).or_insert(value);
    }
}

/// The version that a copy has read.
pub(super) fn source_version_id(headers: &HeaderMap) -> Option<VersionId> {
    parse_version(headers, SOURCE_VERSION_ID)
}

fn parse_version(headers: &HeaderMap, name: &str) -> Option<VersionId> {
    VersionId::parse(headers.get(name)?.to_str().ok()?).ok()
}

/// Returns true if a response is about a delete marker.
pub(super) fn is_delete_marker(headers: &HeaderMap) -> bool {
    headers.get(DELETE_MARKER).is_some_and(|value| value == "true")
}

/// The error of a request about the object or the version at `address`: a missing object may be hidden by a delete
/// marker, and what S3 reports of a version depends on the operation.
pub(super) fn version_error(address: &Address, method: &Method, error: Error) -> Error {
    let Some(response) = ServiceError::from_source(&error) else { return error };
    let key = address.key.as_str();
    match (&address.version, &response.delete_marker) {
        (None, Some(Some(marker))) if error.reason() == Reason::NoSuchKey => {
            Error::deleted(key, marker.clone())
        }
        (Some(version), Some(_)) if matches!(response.status.as_u16(), 404 | 405) => {
            Error::is_a_delete_marker(key, version.clone(), response.last_modified)
        }
        // The source of a copy.
        (Some(version), _) if is_about(response, "InvalidRequest", "delete marker") => {
            Error::is_a_delete_marker(key, version.clone(), None)
        }
        (Some(version), _) if is_missing_version(&error, response) => Error::no_such_version(key, version),
        // A response to HEAD has no code.
        (Some(version), _) if method == Method::HEAD && response.status == StatusCode::BAD_REQUEST => {
            let missing = Error::no_such_version(key, version);
            Error::with_source(missing.reason(), missing.message(), error)
        }
        _ => error,
    }
}

/// Returns true if the version does not exist, or if the service cannot parse its id.
fn is_missing_version(error: &Error, response: &ServiceError) -> bool {
    matches!(error.reason(), Reason::NoSuchKey | Reason::NoSuchVersion)
        || is_about(response, "InvalidArgument", "version")
}

/// Returns true if a version only seems to be missing, because its HEAD was rejected: see [`version_error`].
fn is_rejected(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<Error>())
}

/// Returns true if an error response has this code, and its message contains `word`.
fn is_about(response: &ServiceError, code: &str, word: &str) -> bool {
    response.code == code && response.message.to_ascii_lowercase().contains(word)
}
