use std::sync::Arc;

use http::Request;

use super::testing::{SIGNED_AT, SIGNER, Signer, StoppedClock, keys};
use super::{BodyDeclaration, Verified, Verifier};
use crate::error::{Code, WireError};

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn verifier(at: i64, region: Option<&str>) -> Verifier {
    Verifier::new(keys(), Arc::new(StoppedClock(at)), region.map(str::to_owned))
}

fn verify_at(at: i64, request: Request<()>) -> Result<Verified, WireError> {
    verifier(at, None).verify(&request.into_parts().0)
}

fn code(request: Request<()>) -> Code {
    verify_at(SIGNED_AT, request).unwrap_err().code()
}

fn get(uri: &str) -> Request<()> {
    Request::get(uri).header("host", "examplebucket.s3.amazonaws.com").body(()).unwrap()
}

fn with(mut request: Request<()>, name: &'static str, value: &str) -> Request<()> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// The examples in AWS's documentation of header and query authentication.
#[test]
fn the_published_examples_are_verified() {
    let scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
    let examples = [
        (
            "/test.txt",
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "/?lifecycle",
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "/?max-keys=2&prefix=J",
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ];
    for (uri, names, signature) in examples {
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}");
        let mut request = with(get(uri), "authorization", &authorization);
        request = with(request, "x-amz-date", "20130524T000000Z");
        request = with(request, "x-amz-content-sha256", EMPTY);
        request = with(request, "range", "bytes=0-9");
        let verified = verify_at(SIGNED_AT, request).unwrap();
        assert_eq!(verified.identity.key_id(), Some(SIGNER.id), "{uri}");
        assert!(matches!(verified.declared, BodyDeclaration::Sha256(_)));
    }
    let presigned = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
    assert!(verify_at(SIGNED_AT + 86_400, get(presigned)).unwrap().presigned);
    let late = verify_at(SIGNED_AT + 86_401, get(presigned)).unwrap_err();
    assert_eq!((late.code(), late.message()), (Code::AccessDenied, "Request has expired."));
    assert_eq!(verify_at(SIGNED_AT - 901, get(presigned)).unwrap_err().code(), Code::AccessDenied);
}

fn signed(uri: &str) -> Request<()> {
    let mut request = get(uri);
    SIGNER.sign(&mut request, EMPTY);
    request
}

#[test]
fn a_signature_is_valid_for_every_encoding_of_the_path() {
    assert!(verify_at(SIGNED_AT, signed("/b/a%20b%2Bc/%C3%A9?list-type=2&prefix=x%2Fy&delete")).is_ok());
    // That request, encoded as some proxies and clients do.
    let mut lazy = signed("/b/a%20b%2Bc/~k");
    *lazy.uri_mut() = "/b/a%20b+c/%7ek".parse().unwrap();
    assert!(verify_at(SIGNED_AT, lazy).is_ok());
}

#[test]
fn any_change_breaks_the_signature() {
    let mut other_path = signed("/b/k");
    *other_path.uri_mut() = "/b/j".parse().unwrap();
    assert_eq!(code(other_path), Code::SignatureDoesNotMatch);
    let mut other_query = signed("/b/k?a=1");
    *other_query.uri_mut() = "/b/k?a=2".parse().unwrap();
    assert_eq!(code(other_query), Code::SignatureDoesNotMatch);
    let mut other_method = signed("/b/k");
    *other_method.method_mut() = http::Method::DELETE;
    assert_eq!(code(other_method), Code::SignatureDoesNotMatch);
    assert_eq!(code(with(signed("/b/k"), "host", "other")), Code::SignatureDoesNotMatch);
    let mut gone = with(get("/b/k"), "range", "bytes=0-1");
    SIGNER.sign(&mut gone, EMPTY);
    gone.headers_mut().remove("range");
    assert_eq!(code(gone), Code::SignatureDoesNotMatch);
    let wrong = Signer { secret: "wrong", ..SIGNER };
    let mut request = get("/b/k");
    wrong.sign(&mut request, EMPTY);
    assert_eq!(code(request), Code::SignatureDoesNotMatch);
}

#[test]
fn headers_that_change_a_request_must_be_signed() {
    for name in [
        "x-amz-meta-a",
        "x-amz-copy-source",
        "x-dss-object-class",
        "x-dss-range-class",
        "x-dss-object-file",
        "x-dss-class-file",
        "x-dss-retention",
        "x-dss-retention-span",
        "content-md5",
    ] {
        assert_eq!(code(with(signed("/b/k"), name, "1")), Code::AccessDenied, "{name}");
        let mut covered = with(get("/b/k"), name, "1");
        SIGNER.sign(&mut covered, EMPTY);
        assert!(verify_at(SIGNED_AT, covered).is_ok());
        let mut presigned = get("/b/k");
        SIGNER.presign(&mut presigned, "60");
        assert_eq!(code(with(presigned, name, "1")), Code::AccessDenied, "{name}");
    }
    assert!(verify_at(SIGNED_AT, with(signed("/b/k"), "user-agent", "any")).is_ok());
    let mut no_host = Request::get("/b/k").body(()).unwrap();
    SIGNER.sign(&mut no_host, EMPTY);
    assert_eq!(code(no_host), Code::AccessDenied);
}

#[test]
fn signed_names_must_be_sorted_and_unique() {
    // The signature is correct, but the list of names is not canonical.
    let verified_with = |to: &str| {
        let mut request = get("/b/k");
        SIGNER.sign_with_names(&mut request, EMPTY, |names| names.replacen("host;", to, 1));
        verify_at(SIGNED_AT, request).map(|_| ()).map_err(|e| e.code())
    };
    assert_eq!(verified_with("host;"), Ok(()));
    for other in ["host;host;", "HOST;host;", "x-amz-date;host;"] {
        assert_eq!(verified_with(other), Err(Code::SignatureDoesNotMatch), "{other}");
    }
}

#[test]
fn payload_hashes_in_header_and_query_must_be_equal() {
    let presigned = |header: &str| {
        let mut request = get("/b/k?X-Amz-Content-Sha256=UNSIGNED-PAYLOAD");
        request = with(request, "x-amz-content-sha256", header);
        SIGNER.presign(&mut request, "60");
        verify_at(SIGNED_AT, request).map_err(|e| e.code())
    };
    assert!(matches!(presigned("UNSIGNED-PAYLOAD").unwrap().declared, BodyDeclaration::Unsigned));
    assert_eq!(presigned(EMPTY).unwrap_err(), Code::InvalidRequest);
}

#[test]
fn each_error_has_its_code() {
    assert_eq!(verify_at(SIGNED_AT + 901, signed("/")).unwrap_err().code(), Code::RequestTimeTooSkewed);
    assert_eq!(verify_at(SIGNED_AT - 901, signed("/")).unwrap_err().code(), Code::RequestTimeTooSkewed);
    assert!(verify_at(SIGNED_AT + 899, signed("/")).is_ok());
    let unknown = Signer { id: "NOBODY", ..SIGNER };
    let mut request = get("/");
    unknown.sign(&mut request, EMPTY);
    assert_eq!(code(request), Code::InvalidAccessKeyId);
    let mut no_hash = signed("/");
    no_hash.headers_mut().remove("x-amz-content-sha256");
    assert_eq!(code(no_hash), Code::InvalidRequest);
    let mut no_date = signed("/");
    no_date.headers_mut().remove("x-amz-date");
    assert_eq!(code(no_date), Code::AccessDenied);
    let mut odd_hash = get("/");
    SIGNER.sign(&mut odd_hash, "nonsense");
    assert_eq!(code(odd_hash), Code::InvalidArgument);
    let mut other_day = signed("/");
    other_day.headers_mut().insert("x-amz-date", "20130523T235959Z".parse().unwrap());
    assert_eq!(code(other_day), Code::AuthorizationHeaderMalformed);
    let mut both = get("/");
    SIGNER.presign(&mut both, "60");
    assert_eq!(code(with(both, "authorization", "AWS4-HMAC-SHA256 x")), Code::InvalidArgument);
    let mut twice = signed("/");
    let value = twice.headers()["authorization"].clone();
    twice.headers_mut().append("authorization", value);
    assert_eq!(code(twice), Code::InvalidArgument);
    assert_eq!(code(with(signed("/"), "x-amz-security-token", "t")), Code::InvalidToken);
    let elsewhere = verifier(SIGNED_AT, Some("eu-west-1"));
    let error = elsewhere.verify(&signed("/").into_parts().0).unwrap_err();
    assert_eq!(error.message(), "the region 'us-east-1' is wrong; expecting 'eu-west-1'");
}

#[test]
fn presigned_urls_expire_within_a_week() {
    for (expires, expected) in [("604801", false), ("-1", false), ("", false), ("x", false), ("604800", true)]
    {
        let mut request = get("/b/k");
        SIGNER.presign(&mut request, expires);
        match verify_at(SIGNED_AT, request) {
            Ok(_) => assert!(expected, "{expires}"),
            Err(e) => assert_eq!((e.code(), expected), (Code::AuthorizationQueryParametersError, false)),
        }
    }
    let mut request = get("/b/k?response-content-type=a%2Fb");
    SIGNER.presign(&mut request, "60");
    assert!(verify_at(SIGNED_AT + 60, request).is_ok());
    let incomplete = "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256";
    assert_eq!(code(get(incomplete)), Code::AuthorizationQueryParametersError);
}

#[test]
fn anonymous_requests_have_no_key() {
    let verified = verify_at(SIGNED_AT, get("/b/k")).unwrap();
    assert_eq!(verified.identity.key_id(), None);
    let streaming = with(get("/b/k"), "x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
    assert_eq!(code(streaming), Code::AccessDenied);
}
