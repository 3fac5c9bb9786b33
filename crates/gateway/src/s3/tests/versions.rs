//! Versions of objects: versioning of buckets, requests that name a version, delete markers, and listings.

use std::sync::Arc;

use async_trait::async_trait;
use tradewind_core::listing::ListPage;
use tradewind_core::testing::MemoryStore;
use tradewind_core::version::{ListVersions, Versioning, VersionsPage, null_versions};
use tradewind_core::{BucketName, Context, Error, ObjectStore, Result, SystemClock};

use super::super::Options;
use super::answers::absent_version;
use super::objects::content_md5;
use super::{TestResponse, TestServer};
use crate::auth::{Buckets, Identity, Permissions};

const VERSION: &str = "x-amz-version-id";
const MARKER: &str = "x-amz-delete-marker";

impl TestServer {
    /// A server with the bucket `abc`, which keeps versions.
    async fn with_versions() -> Self {
        let server = Self::with_bucket().await;
        server.set_status("Enabled").await.assert_success();
        server
    }

    async fn set_status(&self, status: &str) -> TestResponse {
        self.configure(&format!("<Status>{status}</Status>")).await
    }

    async fn configure(&self, elements: &str) -> TestResponse {
        let xml = format!("<VersioningConfiguration>{elements}</VersioningConfiguration>");
        self.request("PUT", "/abc?versioning").body(xml).send().await
    }

    /// Writes an object and returns the id of its version.
    async fn put_version(&self, uri: &str, body: &'static [u8]) -> String {
        self.put(uri, body).await.assert_success().version()
    }

    async fn delete(&self, uri: &str) -> TestResponse {
        self.send("DELETE", uri).await.assert_success()
    }

    async fn multi_delete(&self, objects: &str) -> TestResponse {
        let xml = format!("<Delete>{objects}</Delete>");
        let md5 = content_md5(xml.as_bytes());
        self.request("POST", "/abc?delete")
            .header("content-md5", &md5)
            .body(xml)
            .send()
            .await
            .assert_success()
    }

    async fn copy(&self, uri: &str, source: &str) -> TestResponse {
        self.request("PUT", uri).header("x-amz-copy-source", source).send().await
    }
}

impl TestResponse {
    #[track_caller]
    fn version(&self) -> String {
        self.header(VERSION).unwrap_or_else(|| panic!("no version in {self:?}")).to_owned()
    }

    /// The entries of a listing of versions, in order.
    fn entries(&self) -> Vec<String> {
        let text = self.text();
        let mut starts: Vec<(usize, &str)> = ["Version", "DeleteMarker"]
            .into_iter()
            .flat_map(|name| {
                text.match_indices(&format!("<{name}>")).map(|(at, _)| (at, name)).collect::<Vec<_>>()
            })
            .collect();
        starts.sort_unstable();
        let entry = |(at, name): (usize, &str)| {
            let element = text[at..].split(&format!("</{name}>")).next().unwrap();
            let field = |name: &str| {
                let (_, rest) = element.split_once(&format!("<{name}>")).unwrap();
                rest.split('<').next().unwrap().to_owned()
            };
            let marker = if name == "DeleteMarker" { " marker" } else { "" };
            let null = if field("VersionId") == "null" { " null" } else { "" };
            let latest = if field("IsLatest") == "true" { " latest" } else { "" };
            format!("{}{null}{marker}{latest}", field("Key"))
        };
        starts.into_iter().map(entry).collect()
    }
}

#[tokio::test]
async fn versioning_is_enabled_and_suspended() {
    let server = TestServer::with_bucket().await;
    let status = async || server.send("GET", "/abc?versioning").await.assert_success().element("Status");
    assert_eq!(status().await, None);
    for wanted in ["Enabled", "Suspended", "Enabled"] {
        server.set_status(wanted).await.assert_success();
        assert_eq!(status().await.as_deref(), Some(wanted));
    }
    server.configure("<Status>Suspended</Status><MfaDelete>Disabled</MfaDelete>").await.assert_success();
    assert_eq!(status().await.as_deref(), Some("Suspended"));
    let root = server.send("GET", "/abc?versioning").await;
    assert!(root.text().contains("<VersioningConfiguration"), "{root:?}");
    server.send("GET", "/none?versioning").await.assert_error("NoSuchBucket", 404);
    let body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    server.request("PUT", "/none?versioning").body(body).send().await.assert_error("NoSuchBucket", 404);
    server.send("DELETE", "/abc?versioning").await.assert_error("NotImplemented", 501);
}

#[tokio::test]
async fn invalid_versioning_configurations_have_no_effect() {
    let server = TestServer::with_bucket().await;
    server.set_status("Off").await.assert_error("MalformedXML", 400);
    server.set_status("enabled").await.assert_error("MalformedXML", 400);
    server
        .configure("<Status>Enabled</Status><MfaDelete>x</MfaDelete>")
        .await
        .assert_error("MalformedXML", 400);
    for bad in ["Enabled", "<VersioningConfiguration>", "<Versioning><Status>Enabled</Status></Versioning>"] {
        let put = server.request("PUT", "/abc?versioning").body(bad);
        put.send().await.assert_error("MalformedXML", 400);
    }
    server.send("PUT", "/abc?versioning").await.assert_error("MissingRequestBodyError", 400);
    server.configure("").await.assert_error("IllegalVersioningConfigurationException", 400);
    let mfa = server.configure("<Status>Enabled</Status><MfaDelete>Enabled</MfaDelete>").await;
    mfa.assert_error("NotImplemented", 501);
    assert!(mfa.element("Message").unwrap().contains("MfaDelete"), "{mfa:?}");
    let body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let mfa =
        server.request("PUT", "/abc?versioning").header("x-amz-mfa", "serial 123456").body(body).send().await;
    mfa.assert_error("NotImplemented", 501);
    assert!(mfa.element("Message").unwrap().contains("x-amz-mfa"), "{mfa:?}");
    let put =
        server.request("PUT", "/abc?versioning").header("content-md5", &content_md5(b"other")).body(body);
    put.send().await.assert_error("BadDigest", 400);
    assert_eq!(server.send("GET", "/abc?versioning").await.assert_success().element("Status"), None);
}

#[tokio::test]
async fn buckets_without_versioning_return_no_version_ids() {
    let server = TestServer::with_bucket().await;
    assert_eq!(server.put("/abc/k", b"x").await.assert_success().header(VERSION), None);
    for method in ["GET", "HEAD"] {
        assert_eq!(server.send(method, "/abc/k").await.assert_success().header(VERSION), None);
    }
    assert_eq!(server.send("GET", "/abc/k?versionId=null").await.assert_success().text(), "x");
    server.send("GET", "/abc/k?versionId=other").await.assert_error("InvalidArgument", 400);
    let absent = format!("/abc/k?versionId={}", absent_version());
    server.send("GET", &absent).await.assert_error("NoSuchVersion", 404);
    let copied = server.copy("/abc/l", "abc/k").await.assert_success();
    assert_eq!((copied.header(VERSION), copied.header("x-amz-copy-source-version-id")), (None, None));
    let deleted = server.delete("/abc/k").await;
    assert_eq!((deleted.header(VERSION), deleted.header(MARKER)), (None, None));
    let hidden = server.send("GET", "/abc/k").await;
    hidden.assert_error("NoSuchKey", 404);
    assert_eq!((hidden.header(VERSION), hidden.header(MARKER)), (None, None));
}

#[tokio::test]
async fn each_version_is_read_by_its_id() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"null").await.assert_success();
    server.set_status("Enabled").await.assert_success();
    let old = server.put_version("/abc/k", b"old").await;
    let new = server.put_version("/abc/k", b"new").await;
    assert!(old != new && old != "null");
    let current = server.send("GET", "/abc/k").await.assert_success();
    assert_eq!((current.text(), current.version()), ("new", new.clone()));
    for (id, body) in [("null", "null"), (&old, "old"), (&new, "new")] {
        let uri = format!("/abc/k?versionId={id}");
        let got = server.send("GET", &uri).await.assert_success();
        assert_eq!((got.text(), got.version().as_str()), (body, id));
        let head = server.send("HEAD", &uri).await.assert_success();
        assert_eq!(
            (head.header("content-length"), head.header("etag")),
            (got.header("content-length"), got.header("etag"))
        );
        assert_eq!(head.version(), id);
        let attributes = server
            .request("GET", format!("/abc/k?attributes&versionId={id}"))
            .header("x-amz-object-attributes", "ObjectSize");
        let attributes = attributes.send().await.assert_success();
        assert_eq!(attributes.element("ObjectSize").unwrap(), body.len().to_string());
        assert_eq!(attributes.version(), id);
        let range = server.request("GET", uri).header("range", "bytes=0-0").send().await;
        assert_eq!((range.status.as_u16(), range.version().as_str()), (206, id));
    }
}

#[tokio::test]
async fn invalid_and_missing_version_ids_are_rejected() {
    let server = TestServer::with_versions().await;
    let version = server.put_version("/abc/k", b"x").await;
    let tagging = "<Tagging><TagSet></TagSet></Tagging>";
    for (method, sub, body) in [
        ("GET", "", ""),
        ("DELETE", "", ""),
        ("GET", "tagging&", ""),
        ("PUT", "tagging&", tagging),
        ("DELETE", "tagging&", ""),
        ("GET", "attributes&", ""),
    ] {
        let request = |id: &str| {
            let request = server.request(method, format!("/abc/k?{sub}versionId={id}"));
            request.header("x-amz-object-attributes", "ETag").body(body)
        };
        for (id, message) in [
            ("", "Version id cannot be the empty string"),
            ("a%0Ab", "Invalid version id specified"),
            (&"v".repeat(1025), "Invalid version id specified"),
        ] {
            let rejected = request(id).send().await;
            rejected.assert_error("InvalidArgument", 400);
            assert_eq!(rejected.element("Message").as_deref(), Some(message), "{method} {sub}{id}");
        }
        if (method, sub) != ("DELETE", "") {
            let missing = request(&absent_version()).send().await;
            missing.assert_error("NoSuchVersion", 404);
            assert_eq!(missing.element("Message").as_deref(), Some("The specified version does not exist."));
        }
    }
    let head = server.send("HEAD", &format!("/abc/k?versionId={}", absent_version())).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (404, 0));
    for (method, uri) in [
        ("PUT", "/abc/k?versionId"),
        ("GET", "/abc?versions&versionId"),
        ("POST", "/abc/k?uploads&versionId"),
        ("HEAD", "/abc?versionId"),
    ] {
        let response = server.send(method, &format!("{uri}={version}")).await;
        assert_eq!(response.status, 400, "{method} {uri}");
    }
    assert_eq!(server.send("GET", "/abc/k").await.assert_success().version(), version);
}

#[tokio::test]
async fn deleted_keys_are_hidden_by_a_marker() {
    let server = TestServer::with_versions().await;
    let kept = server.put_version("/abc/k", b"x").await;
    let deleted = server.delete("/abc/k").await;
    assert_eq!((deleted.status.as_u16(), deleted.header(MARKER)), (204, Some("true")));
    let marker = deleted.version();
    assert_ne!(marker, kept);
    for method in ["GET", "HEAD"] {
        let hidden = server.send(method, "/abc/k").await;
        assert_eq!((hidden.status.as_u16(), hidden.header(MARKER)), (404, Some("true")));
        assert_eq!(hidden.version(), marker);
        let named = server.send(method, &format!("/abc/k?versionId={marker}")).await;
        assert_eq!((named.status.as_u16(), named.header(MARKER)), (405, Some("true")));
        assert_eq!((named.version(), named.header("allow")), (marker.clone(), Some("DELETE")));
        assert!(named.header("last-modified").unwrap().ends_with(" GMT"));
        assert_eq!(hidden.header("last-modified"), None);
        if method == "HEAD" {
            assert!(hidden.body.is_empty() && named.body.is_empty());
        } else {
            hidden.assert_error("NoSuchKey", 404);
            named.assert_error("MethodNotAllowed", 405);
        }
    }
    let got = server.send("GET", &format!("/abc/k?versionId={kept}")).await.assert_success();
    assert_eq!((got.text(), got.header(MARKER)), ("x", None));
    let never = server.send("GET", "/abc/never").await;
    assert_eq!((never.status.as_u16(), never.header(MARKER), never.header(VERSION)), (404, None, None));
}

#[tokio::test]
async fn a_bucket_with_only_old_versions_names_them_when_deleted() {
    let server = TestServer::with_versions().await;
    server.put_version("/abc/k", b"x").await;
    server.delete("/abc/k").await;
    let kept = server.send("DELETE", "/abc").await;
    kept.assert_error("BucketNotEmpty", 409);
    let message = "The bucket you tried to delete is not empty. You must delete all versions in the bucket.";
    assert_eq!(kept.element("Message").as_deref(), Some(message));
    assert_eq!(kept.element("BucketName").as_deref(), Some("abc"));
}

#[tokio::test]
async fn deletes_of_versions_name_what_they_removed() {
    let server = TestServer::with_versions().await;
    let old = server.put_version("/abc/k", b"old").await;
    let new = server.put_version("/abc/k", b"new").await;
    let marker = server.delete("/abc/k").await.version();
    let restored = server.delete(&format!("/abc/k?versionId={marker}")).await;
    assert_eq!((restored.version(), restored.header(MARKER)), (marker, Some("true")));
    assert_eq!(server.send("GET", "/abc/k").await.text(), "new");
    let deleted = server.delete(&format!("/abc/k?versionId={new}")).await;
    assert_eq!((deleted.version(), deleted.header(MARKER)), (new.clone(), None));
    assert_eq!(server.send("GET", "/abc/k").await.text(), "old");
    // Deletion of an absent object or version succeeds.
    assert_eq!(server.delete(&format!("/abc/k?versionId={new}")).await.version(), new);
    server.delete(&format!("/abc/k?versionId={old}")).await;
    assert!(server.send("GET", "/abc?versions").await.entries().is_empty());
    server.delete("/abc").await;
}

#[tokio::test]
async fn suspended_writes_replace_the_null_version() {
    let server = TestServer::with_versions().await;
    let kept = server.put_version("/abc/k", b"kept").await;
    server.set_status("Suspended").await.assert_success();
    for body in [&b"null"[..], b"newer"] {
        server.put("/abc/k", body).await.assert_success();
        assert_eq!(server.send("GET", "/abc?versions").await.entries(), ["k null latest", "k"]);
    }
    server.delete("/abc/k").await;
    assert_eq!(server.send("GET", "/abc?versions").await.entries(), ["k null marker latest", "k"]);
    server.delete("/abc/k?versionId=null").await;
    assert_eq!(server.send("GET", "/abc/k").await.version(), kept);
}

#[tokio::test]
async fn tags_are_those_of_the_version_named() {
    let server = TestServer::with_versions().await;
    let old = server.put_version("/abc/k", b"old").await;
    let new = server.put_version("/abc/k", b"new").await;
    let tag = |key: &str, query: String| {
        let xml = format!("<Tagging><TagSet><Tag><Key>{key}</Key><Value>1</Value></Tag></TagSet></Tagging>");
        server.request("PUT", format!("/abc/k?tagging{query}")).body(xml)
    };
    let set = tag("o", format!("&versionId={old}")).send().await.assert_success();
    assert_eq!(set.version(), old);
    tag("n", String::new()).send().await.assert_success();
    for (query, version, key) in [(String::new(), &new, "n"), (format!("&versionId={old}"), &old, "o")] {
        let got = server.send("GET", &format!("/abc/k?tagging{query}")).await.assert_success();
        assert_eq!((got.elements("Key"), &got.version()), (vec![key.to_owned()], version));
    }
    let deleted = server.delete(&format!("/abc/k?tagging&versionId={old}")).await;
    assert_eq!((deleted.status.as_u16(), deleted.version()), (204, old.clone()));
    let uri = format!("/abc/k?tagging&versionId={old}");
    assert!(server.send("GET", &uri).await.assert_success().elements("Key").is_empty());
    assert_eq!(server.send("GET", "/abc/k?tagging").await.elements("Key"), ["n"]);
}

#[tokio::test]
async fn copies_read_the_version_named() {
    let server = TestServer::with_versions().await;
    let old = server.put_version("/abc/s%3FversionId=%20", b"old").await;
    let new = server.put_version("/abc/s%3FversionId=%20", b"new").await;
    let source = "/abc/s%3FversionId=%20";
    for (query, version, body) in [
        (String::new(), &new, "new"),
        (format!("?versionId={old}"), &old, "old"),
        (format!("?versionId=%{:x}{}", old.as_bytes()[0], &old[1..]), &old, "old"),
    ] {
        let copied = server.copy("/abc/d", &format!("{source}{query}")).await.assert_success();
        assert_eq!(copied.header("x-amz-copy-source-version-id"), Some(version.as_str()));
        let got = server.send("GET", "/abc/d").await;
        assert_eq!((got.text(), got.version()), (body, copied.version()));
    }
    // An old version becomes the current one by a copy onto its own key.
    let copied = server.copy(source, &format!("{source}?versionId={old}")).await.assert_success();
    assert_eq!(server.send("GET", source).await.text(), "old");
    assert_eq!(server.send("GET", source).await.version(), copied.version());
    for (query, code, status) in [
        ("?versionId=", "InvalidArgument", 400),
        ("?versionId=a%0Ab", "InvalidArgument", 400),
        ("?versionId=%FF", "InvalidArgument", 400),
        ("?versionId=v1", "InvalidArgument", 400),
        (&format!("?versionId={}", absent_version()), "NoSuchVersion", 404),
    ] {
        server.copy("/abc/e", &format!("{source}{query}")).await.assert_error(code, status);
    }
    let marker = server.delete(source).await.version();
    let named = server.copy("/abc/e", &format!("{source}?versionId={marker}")).await;
    named.assert_error("InvalidRequest", 400);
    assert_eq!((named.header(VERSION), named.header(MARKER)), (None, None));
    let hidden = server.copy("/abc/e", source).await;
    hidden.assert_error("NoSuchKey", 404);
    assert_eq!((hidden.version(), hidden.header(MARKER)), (marker, Some("true")));
    assert_eq!(server.send("HEAD", "/abc/e").await.status, 404);
}

#[tokio::test]
async fn copies_with_new_metadata_read_the_version_named() {
    let server = TestServer::with_versions().await;
    let put = server.request("PUT", "/abc/s").header("x-dss-object-class", "7").body(&b"old"[..]);
    let old = put.send().await.assert_success().version();
    server.put_version("/abc/s", b"new").await;
    let copy = server
        .request("PUT", "/abc/d")
        .header("x-amz-copy-source", &format!("abc/s?versionId={old}"))
        .header("x-amz-metadata-directive", "REPLACE")
        .header("content-type", "a/b");
    copy.send().await.assert_success();
    let got = server.send("GET", "/abc/d").await.assert_success();
    assert_eq!(
        (got.text(), got.header("x-dss-object-class"), got.header("content-type")),
        ("old", Some("7"), Some("a/b"))
    );
}

#[tokio::test]
async fn multipart_uploads_create_and_copy_versions() {
    let server = TestServer::with_versions().await;
    let old = server.put_version("/abc/k", b"old").await;
    server.put_version("/abc/k", b"new").await;
    let upload = server.send("POST", "/abc/k?uploads").await.assert_success().element("UploadId").unwrap();
    let part = |source: String| {
        let request = server.request("PUT", format!("/abc/k?partNumber=1&uploadId={upload}"));
        request.header("x-amz-copy-source", &source)
    };
    part("abc/k?versionId=".to_owned()).send().await.assert_error("InvalidArgument", 400);
    part("abc/k?versionId=v1".to_owned()).send().await.assert_error("InvalidArgument", 400);
    let absent = format!("abc/k?versionId={}", absent_version());
    part(absent).send().await.assert_error("NoSuchVersion", 404);
    let copied = part(format!("abc/k?versionId={old}")).send().await.assert_success();
    assert_eq!(copied.header("x-amz-copy-source-version-id"), Some(old.as_str()));
    let etag = copied.element("ETag").unwrap();
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let completed =
        server.request("POST", format!("/abc/k?uploadId={upload}")).body(xml).send().await.assert_success();
    let got = server.send("GET", "/abc/k").await.assert_success();
    assert_eq!((got.text(), got.version()), ("old", completed.version()));
    let part = server.send("GET", &format!("/abc/k?partNumber=1&versionId={}", completed.version())).await;
    assert_eq!((part.status.as_u16(), part.text()), (206, "old"));
}

#[tokio::test]
async fn multi_delete_names_versions_and_markers() {
    let server = TestServer::with_versions().await;
    let old = server.put_version("/abc/k", b"old").await;
    server.put_version("/abc/k", b"new").await;
    let added = server.multi_delete("<Object><Key>k</Key></Object>").await;
    assert_eq!(
        (added.elements("DeleteMarker"), added.elements("VersionId")),
        (vec!["true".to_owned()], Vec::new())
    );
    let marker = added.element("DeleteMarkerVersionId").unwrap();
    assert_eq!(server.send("HEAD", "/abc/k").await.version(), marker);
    let removed = server
        .multi_delete(&format!(
            "<Object><Key>k</Key><VersionId>{old}</VersionId></Object><Object><Key>k</Key><VersionId>{marker}</VersionId>\
             </Object><Object><Key>k</Key><VersionId/></Object>"
        ))
        .await;
    let results = removed.elements("Deleted");
    assert_eq!(results.len(), 2, "{removed:?}");
    assert!(
        results[0].contains(&format!("<VersionId>{old}</VersionId>")) && !results[0].contains("DeleteMarker")
    );
    for element in [
        "<DeleteMarker>true</DeleteMarker>".to_owned(),
        format!("<VersionId>{marker}</VersionId>"),
        format!("<DeleteMarkerVersionId>{marker}</DeleteMarkerVersionId>"),
    ] {
        assert!(results[1].contains(&element), "{element} in {removed:?}");
    }
    assert_eq!(removed.elements("Code"), ["InvalidArgument"]);
    assert_eq!(server.send("GET", "/abc?versions").await.entries(), ["k latest"]);
    assert_eq!(server.send("GET", "/abc/k").await.text(), "new");
}

#[tokio::test]
async fn versions_and_markers_are_listed_in_order() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/b", b"null").await.assert_success();
    server.set_status("Enabled").await.assert_success();
    for key in ["a", "b", "b", "dir/x", "dir/y", "z"] {
        server.put_version(&format!("/abc/{key}"), b"bytes").await;
    }
    server.delete("/abc/b").await;
    server.put_version("/abc/b", b"again").await;
    server.delete("/abc/z").await;
    let all = server.send("GET", "/abc?versions").await.assert_success();
    let expected = [
        "a latest",
        "b latest",
        "b marker",
        "b",
        "b",
        "b null",
        "dir/x latest",
        "dir/y latest",
        "z marker latest",
        "z",
    ];
    assert_eq!(all.entries(), expected);
    assert!(all.text().contains("<ListVersionsResult"), "{all:?}");
    assert_eq!(
        (all.element("Name").as_deref(), all.element("MaxKeys").as_deref()),
        (Some("abc"), Some("1000"))
    );
    assert_eq!((all.element("IsTruncated").as_deref(), all.element("NextKeyMarker")), (Some("false"), None));
    let version = all.element("Version").unwrap();
    for name in ["ETag", "Size", "StorageClass", "LastModified", "Owner", "VersionId", "ChecksumAlgorithm"] {
        assert!(version.contains(&format!("<{name}>")), "{name} in {version}");
    }
    let marker = all.element("DeleteMarker").unwrap();
    for (name, is_present) in
        [("ETag", false), ("Size", false), ("StorageClass", false), ("LastModified", true), ("Owner", true)]
    {
        assert_eq!(marker.contains(&format!("<{name}>")), is_present, "{name} in {marker}");
    }
    assert_eq!(server.send("GET", "/abc?versions&prefix=b").await.entries(), expected[1..6]);
    let rolled = server.send("GET", "/abc?versions&delimiter=/").await;
    assert_eq!((rolled.entries().len(), rolled.elements("CommonPrefixes").len()), (8, 1));
    assert_eq!(rolled.element("Delimiter").as_deref(), Some("/"));
    assert_eq!(server.send("GET", "/abc").await.elements("Key"), ["a", "b", "dir/x", "dir/y"]);
}

#[tokio::test]
async fn pages_of_versions_continue_at_their_markers() {
    let server = TestServer::with_versions().await;
    for key in ["a", "a", "dir/x", "dir/x", "dir/y", "z"] {
        server.put_version(&format!("/abc/{key}"), b"x").await;
    }
    server.delete("/abc/a").await;
    for delimiter in ["", "&delimiter=/"] {
        let whole = server.send("GET", &format!("/abc?versions{delimiter}")).await;
        let names = |page: &TestResponse| {
            let prefixes = page.elements("CommonPrefixes").into_iter();
            (page.entries(), prefixes.collect::<Vec<_>>())
        };
        for limit in 1..8 {
            let (mut entries, mut prefixes, mut markers) = (Vec::new(), Vec::new(), String::new());
            loop {
                let uri = format!("/abc?versions{delimiter}&max-keys={limit}{markers}");
                let page = server.send("GET", &uri).await.assert_success();
                let (more_entries, more_prefixes) = names(&page);
                assert!(more_entries.len() + more_prefixes.len() <= limit);
                entries.extend(more_entries);
                prefixes.extend(more_prefixes);
                if page.element("IsTruncated").as_deref() == Some("false") {
                    break;
                }
                let version = page.element("NextVersionIdMarker");
                assert_eq!(version.is_none(), page.element("NextKeyMarker").as_deref() == Some("dir/"));
                markers = format!("&key-marker={}", page.element("NextKeyMarker").unwrap());
                markers += &version.map(|id| format!("&version-id-marker={id}")).unwrap_or_default();
            }
            assert_eq!((entries, prefixes), names(&whole), "{delimiter} {limit}");
        }
    }
}

#[tokio::test]
async fn markers_within_a_common_prefix_keep_it_listed() {
    let server = TestServer::with_versions().await;
    server.put_version("/abc/dir/x", b"x").await;
    let oldest = server.send("GET", "/abc/dir/x").await.version();
    let newest = server.put_version("/abc/dir/x", b"x").await;
    server.put_version("/abc/z", b"x").await;
    let list = async |markers: String| {
        let page = server.send("GET", &format!("/abc?versions&delimiter=/{markers}")).await.assert_success();
        (page.elements("CommonPrefixes").len(), page.entries().len(), page.element("NextKeyMarker"))
    };
    assert_eq!(list(format!("&key-marker=dir/x&version-id-marker={newest}")).await, (1, 1, None));
    assert_eq!(list(format!("&key-marker=dir/x&version-id-marker={oldest}")).await, (0, 1, None));
    assert_eq!(list("&key-marker=dir/x".to_owned()).await, (0, 1, None));
    assert_eq!(list("&key-marker=dir/a&max-keys=1".to_owned()).await, (1, 0, Some("dir/".to_owned())));
    assert_eq!(list("&key-marker=dir/".to_owned()).await, (0, 1, None));
}

#[tokio::test]
async fn parameters_of_version_listings_are_checked() {
    let server = TestServer::with_versions().await;
    let version = server.put_version("/abc/a%20%C3%BC", b"x").await;
    let encoded = server.send("GET", "/abc?versions&encoding-type=url&key-marker=a&prefix=a%20").await;
    assert_eq!(
        (encoded.element("Key").as_deref(), encoded.element("Prefix").as_deref()),
        (Some("a%20%C3%BC"), Some("a%20"))
    );
    assert_eq!(
        (encoded.element("EncodingType").as_deref(), encoded.element("KeyMarker").as_deref()),
        (Some("url"), Some("a"))
    );
    let empty = server.send("GET", "/abc?versions&key-marker=&version-id-marker=&prefix=&delimiter=").await;
    assert_eq!(empty.assert_success().elements("VersionId"), [version]);
    let none = server.send("GET", "/abc?versions&max-keys=0").await.assert_success();
    assert_eq!((none.entries().len(), none.element("IsTruncated").as_deref()), (0, Some("false")));
    let page = server.send("GET", "/abc?versions&max-keys=5000").await.assert_success();
    assert_eq!(page.element("MaxKeys").as_deref(), Some("1000"));
    for bad in [
        "max-keys=-1",
        "max-keys=x",
        "encoding-type=base64",
        "version-id-marker=v1",
        "key-marker=a&version-id-marker=%0A",
        "key-marker=a&version-id-marker=id-of-another-store",
    ] {
        server.send("GET", &format!("/abc?versions&{bad}")).await.assert_error("InvalidArgument", 400);
    }
    server.send("GET", "/none?versions").await.assert_error("NoSuchBucket", 404);
}

#[tokio::test]
async fn versions_need_permissions_of_a_key() {
    let server = TestServer::with_versions().await;
    let version = server.put_version("/abc/k", b"x").await;
    server.send("PUT", "/mine").await.assert_success();
    let by_id = format!("/abc/k?versionId={version}");
    let reader = || Identity::key("r".into(), Permissions::ReadOnly, Buckets::All);
    for uri in [&by_id, "/abc?versions", "/abc?versioning"] {
        server.request("GET", uri).identity(reader()).send().await.assert_success();
    }
    let body = "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";
    let put = server.request("PUT", "/abc?versioning").identity(reader()).body(body);
    put.send().await.assert_error("AccessDenied", 403);
    server.request("DELETE", &by_id).identity(reader()).send().await.assert_error("AccessDenied", 403);
    // A public bucket allows reads of current versions only, also with a key for another bucket.
    let public = Arc::new(["abc".to_owned()].into());
    let other = Identity::key("o".into(), Permissions::ReadWrite, Buckets::Names(["mine".to_owned()].into()));
    for identity in [Identity::anonymous(Arc::clone(&public)), other.with_public_buckets(Arc::clone(&public))]
    {
        let send = async |method: &'static str, uri: &str| {
            server.request(method, uri).identity(identity.clone()).send().await
        };
        assert_eq!(send("GET", "/abc/k").await.assert_success().version(), version);
        for uri in [&by_id, "/abc/k?versionId=null", "/abc/k?versionId=", "/abc?versions", "/abc?versioning"]
        {
            send("GET", uri).await.assert_error("AccessDenied", 403);
        }
        let copy = |source: String| {
            server.request("PUT", "/mine/k").header("x-amz-copy-source", &source).identity(identity.clone())
        };
        copy(by_id.clone()).send().await.assert_error("AccessDenied", 403);
        let copied = copy("/abc/k".to_owned()).send().await;
        assert_eq!(copied.status.is_success(), identity.key_id().is_some());
    }
    assert_eq!(server.send("GET", "/abc?versioning").await.element("Status").as_deref(), Some("Enabled"));
}

/// A store that keeps no versions.
#[derive(Debug)]
struct WithoutVersions(Arc<MemoryStore>);

#[async_trait]
impl ObjectStore for WithoutVersions {
    tradewind_core::forward_methods! {
        to: |layer| &layer.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, head, get, stage,
        delete, list, copy, set_tags, set_classes, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.0.head_bucket(context, bucket).await.map(|()| Versioning::Off)
    }

    async fn set_versioning(&self, _: &Context, _: &BucketName, _: Versioning) -> Result<()> {
        Err(Error::unsupported("keep versions"))
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        let page: ListPage<_> = self.0.list(context, bucket, &request.as_list_request()).await?;
        null_versions(page, request)
    }
}

#[tokio::test]
async fn stores_without_versions_list_null_versions() {
    let store = Arc::new(WithoutVersions(MemoryStore::new(SystemClock::shared())));
    let server = TestServer::with_store(store, Options::default());
    server.send("PUT", "/abc").await.assert_success();
    for key in ["a", "b", "c"] {
        server.put(&format!("/abc/{key}"), b"x").await.assert_success();
    }
    let rejected = server.set_status("Enabled").await;
    rejected.assert_error("NotImplemented", 501);
    assert!(rejected.element("Message").unwrap().contains("versions"), "{rejected:?}");
    assert_eq!(server.send("GET", "/abc?versioning").await.assert_success().element("Status"), None);
    let page = server.send("GET", "/abc?versions&max-keys=2").await.assert_success();
    assert_eq!(page.entries(), ["a null latest", "b null latest"]);
    assert_eq!(
        (page.element("NextKeyMarker").as_deref(), page.element("NextVersionIdMarker").as_deref()),
        (Some("b"), Some("null"))
    );
    let rest = server.send("GET", "/abc?versions&key-marker=b&version-id-marker=null").await.assert_success();
    assert_eq!(rest.entries(), ["c null latest"]);
    assert_eq!(server.delete("/abc/a?versionId=null").await.status, 204);
    assert_eq!(server.send("HEAD", "/abc/a?versionId=null").await.status, 404);
}

#[tokio::test]
async fn response_304_names_the_version() {
    let server = TestServer::with_versions().await;
    let version = server.put_version("/abc/k", b"x").await;
    let etag = server.send("HEAD", "/abc/k").await.header("etag").unwrap().to_owned();
    for method in ["GET", "HEAD"] {
        let cached = server.request(method, "/abc/k").header("if-none-match", &etag).send().await;
        assert_eq!((cached.status.as_u16(), cached.version()), (304, version.clone()), "{method}");
    }
}
