//! The fast path: plain GET and HEAD of an object, served directly from the store.
//!
//! It serves only reads that succeed and use no special feature. All others, including every error, go through the
//! operations, so that only one place builds error responses. Both use the same function for their headers, and a test
//! compares both responses header by header.

use http::request::Parts;
use http::{Method, Response, StatusCode, header};
use tradewind_core::condition::ETagMatch;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{Address, ByteRange, Context, ObjectStore};

use crate::auth::Access;
use crate::body::ResponseBody;
use crate::outcome;
use crate::s3::{
    add_cache_status, add_checksum_headers, add_retention, object_headers, percent_decode, trim_window,
};
use crate::sigv4::Verified;

/// A read that the fast path can serve.
#[derive(Debug)]
pub(crate) struct PlainRead {
    address: Address,
    request: GetRequest,
    is_head: bool,
    wants_checksums: bool,
}

/// Recognizes a plain read by a client with permission. Returns `None` if the operations must handle the request.
pub(crate) fn recognize(parts: &Parts, verified: &Verified) -> Option<PlainRead> {
    let is_head = match parts.method {
        Method::GET => false,
        Method::HEAD => true,
        _ => return None,
    };
    if !parts.uri.query().is_none_or(is_plain_query) {
        return None;
    }
    let (request, wants_checksums) = plain_headers(parts)?;
    let (bucket, key) = parts.uri.path().strip_prefix('/')?.split_once('/')?;
    if !verified.identity.may(Access::Read, Some(bucket)) || !verified.declared.allows_empty_body() {
        return None;
    }
    let key = percent_decode(key).ok()?;
    // Clients usually do not percent-encode the characters of a bucket name. If one does, parsing fails here and the
    // operations handle the request.
    let address = Address::parse(bucket, &key).ok()?;
    Some(PlainRead { address, request, is_head, wants_checksums })
}

/// Returns true if a query has only a signature and `x-id`, by which some clients name the operation.
fn is_plain_query(query: &str) -> bool {
    query.split('&').all(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "X-Amz-Algorithm"
            | "X-Amz-Credential"
            | "X-Amz-Date"
            | "X-Amz-Expires"
            | "X-Amz-SignedHeaders"
            | "X-Amz-Signature" => true,
            "x-id" => matches!(value, "GetObject" | "HeadObject"),
            _ => false,
        }
    })
}

/// The read that the headers request, and true if its response has checksums. `None` if the headers request another
/// feature.
fn plain_headers(parts: &Parts) -> Option<(GetRequest, bool)> {
    let mut request = GetRequest::default();
    let mut ranges = 0;
    let mut wants_checksums = false;
    for (name, value) in &parts.headers {
        match *name {
            header::RANGE => {
                ranges += 1;
                if let Some(range) = ByteRange::parse(value.to_str().ok()?) {
                    request.select = Select::Range(range);
                }
            }
            header::IF_NONE_MATCH if request.conditions.if_none_match.is_none() => {
                request.conditions.if_none_match = Some(ETagMatch::parse(value.to_str().ok()?));
            }
            header::IF_MATCH if request.conditions.if_match.is_none() => {
                request.conditions.if_match = Some(ETagMatch::parse(value.to_str().ok()?));
            }
            header::IF_MATCH
            | header::IF_NONE_MATCH
            | header::IF_MODIFIED_SINCE
            | header::IF_UNMODIFIED_SINCE
            | header::IF_RANGE
            | header::TRANSFER_ENCODING => return None,
            header::CONTENT_LENGTH if value != "0" => return None,
            _ => {
                let name = name.as_str();
                match name {
                    "x-amz-date" | "x-amz-content-sha256" | "x-amz-user-agent" => {}
                    "x-amz-checksum-mode" if value.as_bytes().eq_ignore_ascii_case(b"enabled") => {
                        wants_checksums = true;
                    }
                    // Any other header of S3 or of differentiated storage services (DSS; see `tradewind_core::class`)
                    // requests a feature that only the operations have.
                    _ if name.starts_with("x-amz-") || name.starts_with("x-dss-") => return None,
                    _ => {}
                }
            }
        }
    }
    (ranges <= 1).then_some((request, wants_checksums))
}

/// Executes a read. Returns `None` on any failure.
pub(crate) async fn read(
    store: &dyn ObjectStore,
    context: &Context,
    read: PlainRead,
) -> Option<Response<ResponseBody>> {
    let PlainRead { address, request, is_head, wants_checksums } = read;
    let select = request.select;
    let (info, span, observation, body, operation) = if is_head {
        let object = store.head(context, &address, request).await.ok()?;
        (object.info, object.span, object.observation, ResponseBody::empty(), "HeadObject")
    } else {
        let object = store.get(context, &address, request).await.ok()?;
        trim_window(context, object.span);
        (object.info, object.span, object.observation, object.body.into(), "GetObject")
    };
    let is_partial = select != Select::Whole && span.length > 0;
    let mut response = Response::new(body);
    if is_partial {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    *response.headers_mut() = object_headers(&info, span, is_partial);
    add_retention(response.headers_mut(), &info.metadata, context.deadline.clock().wall());
    add_cache_status(response.headers_mut(), &observation);
    // The checksums are those of the whole object.
    if wants_checksums && select == Select::Whole {
        add_checksum_headers(response.headers_mut(), &info.checksums, Some(info.scope), info.parts);
    }
    outcome::set_operation(&mut response, operation);
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Buckets, Identity, Permissions};
    use crate::sigv4::BodyDeclaration;
    use http::Request;
    use std::sync::Arc;
    use tradewind_core::clock::SystemClock;
    use tradewind_core::object::Expected;
    use tradewind_core::store::StageRequest;
    use tradewind_core::testing::{MemoryStore, context};

    fn recognized(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<PlainRead> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let buckets = Buckets::Names(["bucket".to_owned()].into());
        let identity = Arc::new(Identity::key("k".into(), Permissions::ReadOnly, buckets));
        let verified = Verified { identity, declared: BodyDeclaration::Unsigned, presigned: false };
        recognize(&request.body(()).unwrap().into_parts().0, &verified)
    }

    #[test]
    fn plain_reads_are_recognized() {
        let read = recognized("GET", "/bucket/a%20b//c?x-id=GetObject", &[("range", "bytes=1-2")]).unwrap();
        assert_eq!(read.address.key.as_str(), "a b//c");
        assert_eq!(read.request.select, Select::Range(ByteRange::Inclusive { first: 1, last: 2 }));
        assert!(recognized("HEAD", "/bucket/k", &[("if-none-match", "\"a\"")]).unwrap().is_head);
        assert!(recognized("GET", "/bucket/k?X-Amz-Date=1&X-Amz-Signature=2", &[]).is_some());
        let with_checksums = recognized("GET", "/bucket/k", &[("x-amz-checksum-mode", "enabled")]);
        assert!(with_checksums.unwrap().wants_checksums);
    }

    #[test]
    fn other_requests_are_left_to_the_operations() {
        for (method, uri) in [
            ("PUT", "/bucket/k"),
            ("GET", "/bucket"),
            ("GET", "/bucket/"),
            ("GET", "/other/k"),
            ("GET", "/bucket/k?tagging"),
            ("GET", "/bucket/k?versionId=1"),
            ("GET", "/bucket/k?partNumber=1"),
            ("GET", "/bucket/k?response-content-type=a"),
            ("GET", "/bucket/k?X-Amz-Security-Token=t"),
            ("GET", "/bucket/%ff"),
            ("GET", "/bucket/%ZZ"),
            ("GET", "/"),
        ] {
            assert!(recognized(method, uri, &[]).is_none(), "{method} {uri}");
        }
        for (name, value) in [
            ("x-amz-checksum-mode", "DISABLED"),
            ("x-amz-expected-bucket-owner", "1"),
            ("if-range", "\"a\""),
            ("if-modified-since", "x"),
            ("content-length", "3"),
            ("x-dss-object-class", "1"),
        ] {
            assert!(recognized("GET", "/bucket/k", &[(name, value)]).is_none(), "{name}");
        }
        let twice = [("range", "bytes=0-1"), ("range", "bytes=2-3")];
        assert!(recognized("GET", "/bucket/k", &twice).is_none());
    }

    #[tokio::test]
    async fn a_read_retains_only_the_memory_that_it_needs() {
        const LARGE: usize = 2 << 20;
        let store = MemoryStore::new(SystemClock::shared());
        let all = context();
        for (key, length) in [("small", 1000), ("large", LARGE)] {
            let address = Address::parse("bucket", key).unwrap();
            let _ = store.create_bucket(&all, &address.bucket).await;
            let mut staged = store.stage(&all, &address, StageRequest::default()).await.unwrap();
            staged.write(vec![1; length].into()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
        for (uri, range, max_bytes) in [
            ("/bucket/small", "", 136 << 10),
            ("/bucket/large", "bytes=0-99999", 232 << 10),
            ("/bucket/large", "", all.window.size()),
        ] {
            let context = context();
            let headers = [("range", range)];
            let plain_read = recognized("GET", uri, if range.is_empty() { &[] } else { &headers }).unwrap();
            let response = read(&*store, &context, plain_read).await.unwrap();
            assert!(response.status().is_success());
            let window_bytes = context.window.size();
            assert!(
                window_bytes <= max_bytes && (max_bytes < LARGE / 4 || window_bytes == max_bytes),
                "{uri} {range}: {window_bytes} of {max_bytes}"
            );
        }
    }
}
