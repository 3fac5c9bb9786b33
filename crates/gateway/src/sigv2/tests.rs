use std::sync::Arc;

use http::Request;

use crate::addressing::Domain;
use crate::error::{Code, WireError};
use crate::sigv4::testing::{SIGNED_AT, SIGNER, StoppedClock, keys};
use crate::sigv4::{BodyDeclaration, Verified, Verifier};

const EXPIRES: i64 = SIGNED_AT + 60;

fn presigned(method: &str, target: &str, head: &str, signed: &str) -> String {
    SIGNER.presign_v2(method, target, (head, signed), EXPIRES)
}

fn verifier(at: i64) -> Verifier {
    Verifier::new(keys(), Arc::new(StoppedClock(at)), Some("eu-west-1".to_owned()))
        .accepting_sigv2(Some(Domain::new("s3.example.com")))
}

fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(uri).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn verify(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<Verified, WireError> {
    verifier(SIGNED_AT).verify(&request(method, uri, headers).into_parts().0)
}

#[track_caller]
fn assert_rejected(method: &str, uri: &str, headers: &[(&str, &str)], code: Code) {
    match verify(method, uri, headers) {
        Ok(_) => panic!("{method} {uri} {headers:?} was accepted"),
        Err(error) => assert_eq!(error.code(), code, "{method} {uri} {headers:?} {error:?}"),
    }
}

#[test]
fn presigned_urls_of_version_2_are_verified() {
    for method in ["GET", "HEAD", "PUT"] {
        let url = presigned(method, "/b/a%20k", "\n", "/b/a%20k");
        let verified = verify(method, &url, &[]).unwrap();
        assert_eq!(verified.identity.key_id(), Some(SIGNER.id));
        assert!(verified.presigned && matches!(verified.declared, BodyDeclaration::Unsigned));
        assert_rejected(method, &url.replace("/a%20k", "/a%20j"), &[], Code::SignatureDoesNotMatch);
        assert_rejected(method, &url.replace("/b/", "/c/"), &[], Code::SignatureDoesNotMatch);
        let longer = url.replace(&EXPIRES.to_string(), &(EXPIRES + 1).to_string());
        assert_rejected(method, &longer, &[], Code::SignatureDoesNotMatch);
    }
    let url = presigned("GET", "/b/k", "\n", "/b/k");
    assert_rejected("PUT", &url, &[], Code::SignatureDoesNotMatch);
    assert_rejected("GET", &url.replace(SIGNER.id, "NOBODY"), &[], Code::InvalidAccessKeyId);
    assert_rejected("GET", &url.replace("Signature=", "Signature=A"), &[], Code::SignatureDoesNotMatch);
    for method in ["DELETE", "POST"] {
        let url = presigned(method, "/b/k", "\n", "/b/k");
        assert_rejected(method, &url, &[], Code::InvalidRequest);
    }
}

/// The example of AWS's description of the REST API.
#[test]
fn the_published_example_is_verified() {
    let key = crate::keys::AccessKey {
        id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
        secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        permissions: crate::auth::Permissions::ReadOnly,
        buckets: crate::auth::Buckets::All,
    };
    let keys = crate::keys::Keys::new([key], []);
    let verifier = Verifier::new(keys, Arc::new(StoppedClock(1_175_139_000)), None)
        .accepting_sigv2(Some(Domain::new("s3.amazonaws.com")));
    let uri = "/photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires=1175139620";
    let request = Request::get(uri).header("host", "johnsmith.s3.amazonaws.com").body(()).unwrap();
    assert!(verifier.verify(&request.into_parts().0).is_ok());
}

#[test]
fn a_url_expires() {
    let url = presigned("GET", "/b/k", "\n", "/b/k");
    let parts = request("GET", &url, &[]).into_parts().0;
    assert!(verifier(EXPIRES).verify(&parts).is_ok());
    let error = verifier(EXPIRES + 1).verify(&parts).unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::AccessDenied, "Request has expired."));
    for expires in ["x", "-1", "+1", "1e9", "", "99999999999999999999"] {
        let url = url.replace(&EXPIRES.to_string(), expires);
        assert_rejected("GET", &url, &[], Code::AccessDenied);
    }
    for name in ["AWSAccessKeyId", "Signature"] {
        assert_rejected("GET", &format!("/b/k?{name}=a&Expires={EXPIRES}"), &[], Code::AccessDenied);
    }
}

#[test]
fn everything_with_a_meaning_is_signed() {
    let url = presigned("PUT", "/b/k", "bWQ1\ntext/plain", "x-amz-acl:private\nx-amz-meta-a:1,2\n/b/k");
    let headers = [
        ("content-md5", "bWQ1"),
        ("content-type", "text/plain"),
        ("x-amz-meta-a", "1"),
        ("x-amz-meta-a", " 2 "),
        ("x-amz-acl", "private"),
    ];
    assert!(verify("PUT", &url, &headers).is_ok());
    for n in 0..headers.len() {
        let mut fewer = headers.to_vec();
        fewer.remove(n);
        assert_rejected("PUT", &url, &fewer, Code::SignatureDoesNotMatch);
    }
    let more = [headers.as_slice(), &[("x-amz-tagging", "a=b")]].concat();
    assert_rejected("PUT", &url, &more, Code::SignatureDoesNotMatch);
    let class = [headers.as_slice(), &[("x-dss-object-class", "1")]].concat();
    assert_rejected("PUT", &url, &class, Code::AccessDenied);
    assert_rejected("PUT", &url, &[("x-amz-security-token", "t")], Code::InvalidToken);

    // boto3 moves headers into the query.
    let target = "/b/k?x-amz-acl=private&content-type=text%2Fplain";
    let url = presigned("PUT", target, "\ntext/plain", "x-amz-acl:private\n/b/k");
    assert!(verify("PUT", &url, &[]).is_ok());
    assert!(verify("PUT", &url, &[("content-type", "text/plain"), ("x-amz-acl", "private")]).is_ok());
    assert_rejected("PUT", &url, &[("content-type", "text/html")], Code::SignatureDoesNotMatch);
    assert_rejected("PUT", &url.replace("private", "public-read"), &[], Code::SignatureDoesNotMatch);
    assert_rejected("PUT", &format!("{url}&x-amz-tagging=a"), &[], Code::SignatureDoesNotMatch);
}

#[test]
fn parameters_of_the_query_are_signed_or_rejected() {
    let target = "/b/k?response-content-type=a%2Fb+c&versionId=v1&uploadId=u&partNumber=1";
    let signed = "/b/k?partNumber=1&response-content-type=a/b c&uploadId=u&versionId=v1";
    let url = presigned("GET", target, "\n", signed);
    assert!(verify("GET", &url, &[]).is_ok());
    for (from, to) in
        [("v1", "v2"), ("a%2Fb", "a%2Fx"), ("partNumber=1", "partNumber=2"), ("&versionId=v1", "")]
    {
        assert_rejected("GET", &url.replace(from, to), &[], Code::SignatureDoesNotMatch);
    }
    assert!(verify("GET", &presigned("GET", "/b?location", "\n", "/b?location"), &[]).is_ok());

    let url = presigned("GET", "/b/k", "\n", "/b/k");
    for more in
        ["versionId=v1", "version%49d=v1", "tagging", "acl=", "attributes", "response-expires=x", "torrent"]
    {
        assert_rejected("GET", &format!("{url}&{more}"), &[], Code::SignatureDoesNotMatch);
    }
    for more in ["list-type=2", "encoding-type=url&max-keys=1", "x-id=GetObject"] {
        assert!(verify("GET", &format!("{url}&{more}"), &[]).is_ok(), "{more}");
    }
    // Without its prefix, a listing would have the whole bucket.
    for more in ["prefix=a", "%70refix=a", "Prefix=a", "unknown", "signature=a2"] {
        let code = verify("GET", &format!("{url}&{more}"), &[]).unwrap_err().code();
        assert!(matches!(code, Code::AccessDenied | Code::InvalidArgument), "{more} {code:?}");
    }
    let other = format!("{url}&Expires={}", EXPIRES + 1);
    assert_rejected("GET", &other, &[], Code::InvalidArgument);
    assert_rejected("GET", &format!("{url}&%45xpires={}", EXPIRES + 1), &[], Code::InvalidArgument);
}

#[test]
fn headers_of_the_body_are_rejected_in_the_query() {
    for (name, value) in [
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        ("x-amz-decoded-content-length", "5"),
        ("x-amz-signature", "a"),
    ] {
        let signed = format!("{name}:{value}\n/b/k");
        let url = presigned("PUT", "/b/k", "\n", &signed);
        assert!(verify("PUT", &url, &[(name, value)]).is_ok(), "{name}");
        for moved in [format!("{url}&{name}={value}"), format!("{url}&{}={value}", name.replace('x', "%58"))]
        {
            assert_rejected("PUT", &moved, &[], Code::InvalidRequest);
        }
    }
}

#[test]
fn a_parameter_does_not_stand_for_other_lines() {
    let url = presigned("PUT", "/b/k", "\n", "x-amz-acl:private\nx-amz-tagging:a=b\n/b/k");
    assert!(verify("PUT", &url, &[("x-amz-acl", "private"), ("x-amz-tagging", "a=b")]).is_ok());
    let swallowed = format!("{url}&x-amz-acl=private%0Ax-amz-tagging:a%3Db");
    assert_rejected("PUT", &swallowed, &[], Code::InvalidArgument);
    let url = presigned("PUT", "/b/k", "bWQ1\ntext/plain", "/b/k");
    let media_type = format!("{url}&content-md5=bWQ1%0Atext/plain");
    assert_rejected("PUT", &media_type, &[], Code::InvalidArgument);
    for control in ["%00", "%09", "%0D", "%1F", "%7F"] {
        let url = presigned("GET", &format!("/b/k?list-type=2{control}"), "\n", "/b/k");
        assert_rejected("GET", &url, &[], Code::InvalidArgument);
        let url = presigned("GET", &format!("/b/k?x-amz-a{control}=2"), "\n", "/b/k");
        assert_rejected("GET", &url, &[], Code::InvalidArgument);
    }
}

#[test]
fn a_name_with_a_colon_is_rejected() {
    let url = presigned("PUT", "/b/k", "\n", "x-amz-meta-a:b:c\n/b/k");
    assert!(verify("PUT", &url, &[("x-amz-meta-a", "b:c")]).is_ok());
    assert_rejected("PUT", &format!("{url}&x-amz-meta-a%3Ab=c"), &[], Code::InvalidRequest);
}

#[test]
fn white_space_is_trimmed_from_parameters_as_from_headers() {
    let url = presigned("PUT", "/b/k", "\n", "x-amz-meta-a:b\n/b/k");
    assert!(verify("PUT", &format!("{url}&x-amz-meta-a=+b"), &[]).is_ok());
    assert_rejected("PUT", &format!("{url}&x-amz-meta-a=b%E3%80%80"), &[], Code::SignatureDoesNotMatch);
}

#[test]
fn a_value_does_not_stand_for_other_parameters() {
    let name = "response-content-disposition";
    let signed = format!("/b/k?{name}=a&versionId=v");
    let url = presigned("GET", "/b/k", "\n", &signed);
    assert!(verify("GET", &format!("{url}&{name}=a&versionId=v"), &[]).is_ok());
    assert_rejected("GET", &format!("{url}&{name}=a%26versionId%3Dv"), &[], Code::InvalidArgument);
    for value in
        ["a&acl", "a&uploadId=u", "a&b&partNumber=1", "&tagging=", "a&response-expires=x", "a&response-x"]
    {
        let target = format!("/b/k?{name}={}", value.replace('&', "%26").replace('=', "%3D"));
        let url = presigned("GET", &target, "\n", &format!("/b/k?{name}={value}"));
        assert_rejected("GET", &url, &[], Code::InvalidArgument);
    }
    for value in ["A&B.pdf", "a&", "acl&b", "a&=acl", "a&b=acl", "a&ACL", "a?acl"] {
        let target =
            format!("/b/k?{name}={}", value.replace('&', "%26").replace('=', "%3D").replace('?', "%3F"));
        let url = presigned("GET", &target, "\n", &format!("/b/k?{name}={value}"));
        assert!(verify("GET", &url, &[]).is_ok(), "{value}");
    }
}

#[test]
fn a_bucket_in_the_host_is_signed() {
    let url = presigned("GET", "/k", "\n", "/bucket/k");
    for (host, is_valid) in [
        ("bucket.s3.example.com", true),
        ("Bucket.s3.example.com:9000", true),
        ("other.s3.example.com", false),
    ] {
        let request = Request::get(&url).header("host", host).body(()).unwrap();
        assert_eq!(verifier(SIGNED_AT).verify(&request.into_parts().0).is_ok(), is_valid, "{host}");
    }
}

#[test]
fn version_2_is_rejected_where_it_is_not_accepted() {
    let url = presigned("GET", "/b/k", "\n", "/b/k");
    let parts = request("GET", &url, &[]).into_parts().0;
    let off = Verifier::new(keys(), Arc::new(StoppedClock(SIGNED_AT)), None);
    let error = off.verify(&parts).unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest);
    assert!(error.message().ends_with("Please use AWS4-HMAC-SHA256."), "{}", error.message());
    // In a header, it is never accepted.
    let header = ("authorization", "AWS AKIAIOSFODNN7EXAMPLE:c2lnbmF0dXJl");
    assert_rejected("GET", "/b/k", &[header], Code::InvalidRequest);
    assert_rejected("GET", &url, &[header], Code::InvalidRequest);
    // A URL with both versions is one of version 4.
    assert_rejected("GET", &format!("{url}&X-Amz-Algorithm=x"), &[], Code::AuthorizationQueryParametersError);
    // A body cannot be signed.
    let word = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
    let url = presigned("PUT", "/b/k", "\n", &format!("x-amz-content-sha256:{word}\n/b/k"));
    assert_rejected("PUT", &url, &[("x-amz-content-sha256", word)], Code::InvalidRequest);
}

proptest::proptest! {
    #[test]
    fn any_query_is_parsed_without_a_panic(query in "[!-~]{0,60}", names in "(&(Signature|AWSAccessKeyId|Expires|acl|x-amz-a)=[0-9a-zA-Z%+]{0,9}){0,6}") {
        let query = format!("{query}{names}").replace('#', "");
        let request = Request::get(format!("/b/k?{query}")).body(());
        if let Ok(request) = request && super::is_presigned(&query) {
            let _result = super::PresignedV2::parse(&request.into_parts().0, None);
        }
    }
}
