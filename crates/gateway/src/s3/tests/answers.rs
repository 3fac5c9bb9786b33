//! Responses that public suites and clients compare with those of S3: versions, access control lists, lookups before
//! fixed responses, preflights, forms, and settings that are empty lists.

use std::sync::Arc;

use tradewind_core::{Algorithm, Checksum, VersionId};

use super::super::Options;
use super::objects::content_md5;
use super::{TestResponse, TestServer};
use crate::auth::Identity;

const VERSION: &str = "x-amz-version-id";

/// A version id of the form that the store gives, which no write got.
pub(super) fn absent_version() -> String {
    VersionId::from_number(1 << 40).to_string()
}

async fn set_versioning(server: &TestServer, status: &str) {
    let xml = format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
    server.request("PUT", "/abc?versioning").body(xml).send().await.assert_success();
}

async fn multi_delete(server: &TestServer, objects: &str) -> TestResponse {
    let xml = format!("<Delete>{objects}</Delete>");
    let md5 = content_md5(xml.as_bytes());
    server.request("POST", "/abc?delete").header("content-md5", &md5).body(xml).send().await.assert_success()
}

async fn complete_small(server: &TestServer, key: &str) -> TestResponse {
    let upload = server.send("POST", &format!("/abc/{key}?uploads")).await.assert_success();
    let upload = upload.element("UploadId").unwrap();
    let part = server.put(&format!("/abc/{key}?partNumber=1&uploadId={upload}"), b"part").await;
    let tag = part.assert_success().header("etag").unwrap().to_owned();
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    server.request("POST", format!("/abc/{key}?uploadId={upload}")).body(xml).send().await.assert_success()
}

/// S3 stores the `null` version, but names it only in responses to reads and deletes.
#[tokio::test]
async fn suspended_writes_name_no_version_and_deletes_null() {
    let server = TestServer::with_bucket().await;
    set_versioning(&server, "Enabled").await;
    server.put("/abc/from", b"x").await.assert_success();
    set_versioning(&server, "Suspended").await;
    let put = server.put("/abc/put", b"x").await.assert_success();
    let copy = server.request("PUT", "/abc/copy").header("x-amz-copy-source", "abc/from");
    let copy = copy.send().await.assert_success();
    let completed = complete_small(&server, "parts").await;
    for (name, response) in [("put", &put), ("copy", &copy), ("parts", &completed)] {
        assert_eq!(response.header(VERSION), None, "{name}: {response:?}");
        for method in ["GET", "HEAD"] {
            let found = server.send(method, &format!("/abc/{name}")).await.assert_success();
            assert_eq!(found.header(VERSION), Some("null"), "{method} {name}");
        }
    }
    assert!(copy.header("x-amz-copy-source-version-id").is_some());
    let deleted = server.send("DELETE", "/abc/put").await.assert_success();
    assert_eq!(
        (deleted.header(VERSION), deleted.header("x-amz-delete-marker")),
        (Some("null"), Some("true"))
    );
    let deleted = multi_delete(&server, "<Object><Key>copy</Key></Object>").await;
    assert_eq!(deleted.element("DeleteMarkerVersionId").as_deref(), Some("null"));
}

#[tokio::test]
async fn a_version_id_that_cannot_be_one_is_invalid() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let tagging = "<Tagging><TagSet/></Tagging>";
    for status in ["", "Enabled", "Suspended"] {
        if !status.is_empty() {
            set_versioning(&server, status).await;
        }
        for (method, query) in [
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "tagging&"),
            ("PUT", "tagging&"),
            ("DELETE", "tagging&"),
            ("GET", "acl&"),
            ("GET", "attributes&"),
            ("GET", "retention&"),
            ("POST", "restore&"),
        ] {
            let uri = |version: &str| format!("/abc/k?{query}versionId={version}");
            let send = |version: &str| {
                let request = server.request(method, uri(version));
                let request = request.header("x-amz-object-attributes", "ETag");
                if query.starts_with("tagging") && method == "PUT" { request.body(tagging) } else { request }
            };
            for impossible in ["bogus", "0", "v1"] {
                let rejected = send(impossible).send().await;
                rejected.assert_error("InvalidArgument", 400);
                assert_eq!(rejected.element("Message").as_deref(), Some("Invalid version id specified"));
                assert_eq!(rejected.element("ArgumentName").as_deref(), Some("versionId"));
                assert_eq!(rejected.element("ArgumentValue").as_deref(), Some(impossible));
            }
            let absent = send(&absent_version()).send().await;
            let expected = if (method, query) == ("DELETE", "") { 204 } else { 404 };
            assert_eq!(absent.status, expected, "{method} {query} {absent:?}");
        }
        let head = server.send("HEAD", "/abc/k?versionId=bogus").await;
        assert_eq!((head.status.as_u16(), head.body.is_empty()), (400, true));
        let copy = server.request("PUT", "/abc/to").header("x-amz-copy-source", "abc/k?versionId=bogus");
        let copy = copy.send().await;
        copy.assert_error("InvalidArgument", 400);
        assert_eq!(copy.element("ArgumentValue").as_deref(), Some("bogus"));
        let objects = format!(
            "<Object><Key>k</Key><VersionId>bogus</VersionId></Object>\
             <Object><Key>k</Key><VersionId>{}</VersionId></Object>",
            absent_version()
        );
        let deleted = multi_delete(&server, &objects).await;
        assert_eq!(deleted.elements("Deleted").len(), 1, "{deleted:?}");
        let errors = deleted.elements("Error");
        assert_eq!(errors.len(), 1, "{deleted:?}");
        for part in ["<Code>InvalidArgument</Code>", "<Key>k</Key>", "<VersionId>bogus</VersionId>"] {
            assert!(errors[0].contains(part), "{}", errors[0]);
        }
        assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
    }
    server.send("GET", "/missing/k?versionId=bogus").await.assert_error("NoSuchBucket", 404);
}

#[tokio::test]
async fn a_copy_keeps_the_algorithm_of_a_composite_checksum() {
    let server = TestServer::with_bucket().await;
    let create = server.request("POST", "/abc/from?uploads").header("x-amz-checksum-algorithm", "SHA256");
    let upload = create.send().await.assert_success().element("UploadId").unwrap();
    let of = |bytes: &[u8]| Checksum::compute(Algorithm::Sha256, bytes).to_base64();
    let part = server.request("PUT", format!("/abc/from?partNumber=1&uploadId={upload}"));
    let part = part.header("x-amz-checksum-sha256", &of(b"part")).body(&b"part"[..]).send().await;
    let tag = part.assert_success().header("etag").unwrap().to_owned();
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag><ChecksumSHA256>{}</ChecksumSHA256>\
         </Part></CompleteMultipartUpload>",
        of(b"part")
    );
    let completed = server.request("POST", format!("/abc/from?uploadId={upload}")).body(xml).send().await;
    assert_eq!(completed.assert_success().element("ChecksumType").as_deref(), Some("COMPOSITE"));
    let copied = server.request("PUT", "/abc/to").header("x-amz-copy-source", "abc/from").send().await;
    let copied = copied.assert_success();
    assert_eq!(copied.element("ChecksumSHA256"), Some(of(b"part")));
    assert_eq!(copied.element("ChecksumType").as_deref(), Some("FULL_OBJECT"));
    assert_eq!(copied.element("ChecksumCRC64NVME"), None);
}

#[tokio::test]
async fn an_acl_of_the_owner_alone_is_accepted() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for uri in ["/abc?acl", "/abc/k?acl", "/abc/k?acl&versionId=null"] {
        let put = |acl: &str| server.request("PUT", uri).header("x-amz-acl", acl);
        for acl in ["private", "bucket-owner-full-control"] {
            let set = put(acl).send().await;
            assert_eq!((set.status.as_u16(), set.body.is_empty()), (200, true), "{uri} {acl} {set:?}");
            put(acl).body("<AccessControlPolicy/>").send().await.assert_error("UnexpectedContent", 400);
        }
        put("public-read").send().await.assert_error("AccessControlListNotSupported", 400);
        let granted = put("private").header("x-amz-grant-read", "id=1").send().await;
        granted.assert_error("AccessControlListNotSupported", 400);
        let document = server.request("PUT", uri).body("<AccessControlPolicy/>").send().await;
        document.assert_error("AccessControlListNotSupported", 400);
        server.send("PUT", uri).await.assert_error("MissingSecurityHeader", 400);
    }
}

#[tokio::test]
async fn bucket_and_key_are_looked_up_before_fixed_responses() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for (method, query) in [
        ("PUT", "acl"),
        ("GET", "acl"),
        ("PUT", "retention"),
        ("GET", "retention"),
        ("PUT", "legal-hold"),
        ("GET", "legal-hold"),
    ] {
        let send = |path: &str| server.request(method, format!("{path}?{query}")).send();
        send("/missing/k").await.assert_error("NoSuchBucket", 404);
        send("/abc/missing").await.assert_error("NoSuchKey", 404);
        if query != "acl" {
            send("/abc/k").await.assert_error("InvalidRequest", 400);
        }
    }
    server.send("PUT", "/missing?acl").await.assert_error("NoSuchBucket", 404);
    for (name, value, code) in [
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-grant-read", "id=1", "AccessControlListNotSupported"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "InvalidRequest"),
    ] {
        for (method, path) in [("PUT", "k"), ("PUT", "k?acl"), ("POST", "k?uploads")] {
            let send =
                |bucket: &str| server.request(method, format!("/{bucket}/{path}")).header(name, value).send();
            send("missing").await.assert_error("NoSuchBucket", 404);
            send("abc").await.assert_error(code, 400);
        }
    }
    let acl = server.request("PUT", "/abc/missing?acl").header("x-amz-acl", "public-read").send().await;
    acl.assert_error("NoSuchKey", 404);
}

#[tokio::test]
async fn a_preflight_is_checked_and_its_bucket_looked_up() {
    let server = TestServer::with_bucket().await;
    let ask = |uri: &str| server.request("OPTIONS", uri);
    let with_origin = |uri: &str| ask(uri).header("origin", "https://a.example");
    for uri in ["/abc", "/abc/k"] {
        let no_origin = ask(uri).header("access-control-request-method", "PUT").send().await;
        no_origin.assert_error("BadRequest", 400);
        assert_eq!(
            no_origin.element("Message").as_deref(),
            Some("Insufficient information. Origin request header needed.")
        );
        for method in ["PATCH", "get", "Put", "OPTIONS", "CONNECT", "any"] {
            let unknown = with_origin(uri).header("access-control-request-method", method).send().await;
            unknown.assert_error("BadRequest", 400);
            let message = format!("Invalid Access-Control-Request-Method: {method}");
            assert_eq!(unknown.element("Message"), Some(message));
        }
        with_origin(uri).send().await.assert_error("BadRequest", 400);
        let complete = || with_origin(uri).header("access-control-request-method", "PUT");
        let bad_name = complete().header("access-control-request-headers", "x-a, b c").send().await;
        bad_name.assert_error("BadRequest", 400);
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
            let request = ask(uri).header("origin", "null").header("access-control-request-method", method);
            request.send().await.assert_error("AccessForbidden", 403);
        }
        let named = complete().header("access-control-request-headers", "x-amz-date,content-type");
        named.send().await.assert_error("AccessForbidden", 403);
    }
    let missing = with_origin("/missing/k").header("access-control-request-method", "PUT").send().await;
    missing.assert_error("NoSuchBucket", 404);
    assert_eq!(missing.element("BucketName").as_deref(), Some("missing"));
}

#[tokio::test]
async fn the_type_of_a_checksum_may_be_in_lower_case() {
    let server = TestServer::with_bucket().await;
    for (text, expected) in [("full_object", "FULL_OBJECT"), ("Composite", "COMPOSITE")] {
        let create = server.request("POST", "/abc/k?uploads").header("x-amz-checksum-algorithm", "crc32");
        let created = create.header("x-amz-checksum-type", text).send().await.assert_success();
        assert_eq!(created.header("x-amz-checksum-type"), Some(expected));
    }
    let create = server.request("POST", "/abc/k?uploads").header("x-amz-checksum-algorithm", "crc32");
    create.header("x-amz-checksum-type", "whole").send().await.assert_error("InvalidRequest", 400);
}

#[tokio::test]
async fn configurations_that_cannot_exist_are_empty_lists() {
    let server = TestServer::with_bucket().await;
    for (name, root) in [
        ("analytics", "ListBucketAnalyticsConfigurationResult"),
        ("intelligent-tiering", "ListBucketIntelligentTieringConfigurationsOutput"),
        ("inventory", "ListInventoryConfigurationsResult"),
        ("metrics", "ListMetricsConfigurationsResult"),
    ] {
        let listed = server.send("GET", &format!("/abc?{name}")).await;
        assert_eq!(listed.status, 200, "{listed:?}");
        assert!(listed.text().contains(&format!("<{root} xmlns=")), "{}", listed.text());
        assert_eq!(listed.element("IsTruncated").as_deref(), Some("false"));
        server.send("GET", &format!("/missing?{name}")).await.assert_error("NoSuchBucket", 404);
        server.send("GET", &format!("/abc?{name}&id=a")).await.assert_error("NoSuchConfiguration", 404);
        server.send("GET", &format!("/missing?{name}&id=a")).await.assert_error("NoSuchBucket", 404);
        server.send("PUT", &format!("/abc?{name}&id=a")).await.assert_error("NotImplemented", 501);
    }
}

#[tokio::test]
async fn creating_ones_own_bucket_again_succeeds_in_us_east_1() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let again = server.send("PUT", "/abc").await;
    assert_eq!((again.status.as_u16(), again.header("location")), (200, Some("/abc")), "{again:?}");
    let located = |region: &str| {
        format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
        )
    };
    let create = server.request("PUT", "/abc").body(located("us-east-1"));
    create.send().await.assert_error("BucketAlreadyOwnedByYou", 409);
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
    let elsewhere = TestServer::with(Options { region: "eu-west-1".to_owned(), ..Options::default() });
    elsewhere.send("PUT", "/abc").await.assert_success();
    elsewhere.send("PUT", "/abc").await.assert_error("BucketAlreadyOwnedByYou", 409);
    let create = elsewhere.request("PUT", "/abc").body(located("eu-west-1"));
    create.send().await.assert_error("BucketAlreadyOwnedByYou", 409);
}

#[tokio::test]
async fn a_form_that_is_not_multipart_fails_its_precondition() {
    let server = TestServer::with_bucket().await;
    let post = |media_type: &str| server.request("POST", "/abc").header("content-type", media_type).body("x");
    let mut rejected = vec![server.send("POST", "/abc").await];
    for media_type in ["application/json", "application/x-www-form-urlencoded", "text/plain"] {
        rejected.push(post(media_type).send().await);
    }
    for response in rejected {
        response.assert_error("PreconditionFailed", 412);
        let condition = response.element("Condition");
        assert_eq!(
            condition.as_deref(),
            Some("Bucket POST must be of the enclosure-type multipart/form-data")
        );
    }
    post("multipart/form-data").send().await.assert_error("MalformedPOSTRequest", 400);
    post("Multipart/Form-Data; boundary=b").send().await.assert_error("NotImplemented", 501);
    let reader = || Identity::anonymous(Arc::default());
    let anonymous = server.request("POST", "/abc").identity(reader()).body("x").send().await;
    anonymous.assert_error("PreconditionFailed", 412);
    server.request("POST", "/abc/k").identity(reader()).send().await.assert_error("AccessDenied", 403);
}

#[tokio::test]
async fn anonymous_requests_are_denied_before_they_are_malformed() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let public = || Identity::anonymous(Arc::new(["abc".to_owned()].into()));
    for (method, uri) in [
        ("PATCH", "/abc/k"),
        ("PUT", "/"),
        ("PUT", "/abc/k?partNumber=0&uploadId=x"),
        ("GET", "/a_b"),
        ("GET", "/shut/%ZZ"),
        ("GET", "/shut/k?a=1&a=2"),
        ("GET", "/abc?max-keys=1&max-keys=2"),
        ("GET", "/abc?list-type=7"),
        ("GET", "/abc/k?torrent"),
        ("HEAD", "/shut/k?partNumber=x"),
        ("DELETE", "/abc/k?versionId="),
        ("POST", "/abc/k?select&select-type=2"),
    ] {
        let rejected = server.request(method, uri).identity(public()).send().await;
        assert_eq!(rejected.status, 403, "{method} {uri} {rejected:?}");
    }
    // Of a public object, a malformed request is named as such.
    let uri = format!("/abc/{}", "k".repeat(1025));
    server.request("GET", uri).identity(public()).send().await.assert_error("KeyTooLongError", 400);
}
