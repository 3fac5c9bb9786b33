//! Repeats of changes. In a container that keeps versions, a PUT that is carried out twice leaves two versions, and a
//! DELETE may remove an older one (`X-Versions-Location`). There, a change whose whole body may have reached the service
//! is not sent again: Swift has no condition or id by which the first request could be recognized.
//! <https://docs.openstack.org/swift/latest/api/object_versioning.html>

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use http::{HeaderMap, Method};
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Context};

use super::SwiftStore;
use crate::remote::client::{Call, RepeatGuard};
use crate::remote::response::ResponseHead;

/// Allows a change of an object to be repeated if its container keeps no versions.
struct ContainerGuard<'a> {
    store: &'a SwiftStore,
    context: &'a Context,
    bucket: &'a BucketName,
    /// The container kept versions, or may have kept some. Final for this change.
    is_denied: AtomicBool,
}

#[async_trait]
impl RepeatGuard for ContainerGuard<'_> {
    /// Unknown before the container is queried.
    fn expects_denial(&self) -> bool {
        false
    }

    async fn may_repeat(&self) -> bool {
        if self.is_denied.load(Ordering::Relaxed) {
            return false;
        }
        let call = Call::bucket(Method::HEAD, self.bucket);
        let may_repeat = match self.store.send_and_drain(self.context, &call).await {
            Ok(head) => !keeps_versions(&head.headers),
            Err(e) if e.reason() == Reason::NoSuchBucket => true,
            Err(e) => {
                tracing::debug!(error = %e, bucket = %self.bucket, "cannot determine whether a container keeps versions");
                false
            }
        };
        self.is_denied.fetch_or(!may_repeat, Ordering::Relaxed);
        may_repeat
    }
}

impl SwiftStore {
    /// Sends a change of an object of a bucket, and reads and ignores the body of the response.
    ///
    /// # Errors
    /// If the outcome is unknown and the container may keep versions, the error is final: a retry could create another
    /// version.
    pub(super) async fn send_change(
        &self,
        context: &Context,
        bucket: &BucketName,
        call: &Call<'_>,
    ) -> Result<ResponseHead> {
        let guard = ContainerGuard { store: self, context, bucket, is_denied: AtomicBool::new(false) };
        let error = match self.send_guarded(context, call, Some(&guard)).await {
            Ok(response) => match response.drain().await {
                Ok(head) => return Ok(head),
                Err(e) => {
                    call.outcome_unknown.store(true, Ordering::Relaxed);
                    e
                }
            },
            Err(e) => e,
        };
        let is_in_doubt = call.outcome_unknown.load(Ordering::Relaxed)
            && error.kind().is_retryable()
            && context.on_unknown_outcome == OnUnknownOutcome::Repeat;
        // Boxed, because it is rarely needed.
        if !is_in_doubt || Box::pin(guard.may_repeat()).await {
            return Err(error);
        }
        let message = format!(
            "{error}; container {bucket} may keep versions, and the service may have carried out the request or may \
             still do so: it was not sent again"
        );
        Err(Error::with_source(Reason::Io, message, error).without_retry())
    }
}

/// Returns true if the head of a container says that it keeps versions.
fn keeps_versions(headers: &HeaderMap) -> bool {
    let is_enabled = headers.get("x-versions-enabled").is_some_and(|value| {
        // Python's representation of a truth value.
        value.as_bytes().eq_ignore_ascii_case(b"true")
    });
    is_enabled || headers.contains_key("x-versions-location") || headers.contains_key("x-history-location")
}
