//! The source of a copy, and what a copy takes over.

use super::TestServer;

#[tokio::test]
async fn a_plus_in_a_copy_source_means_a_space() {
    let server = TestServer::with_bucket().await;
    for (path, body) in [("a%20b", &b"space"[..]), ("a%2Bb", b"plus")] {
        server.put(&format!("/abc/{path}"), body).await.assert_success();
    }
    let upload =
        server.send("POST", "/abc/parts?uploads").await.assert_success().element("UploadId").unwrap();
    for (source, expected) in [("abc/a+b", "space"), ("/abc/a%20b", "space"), ("abc/a%2Bb", "plus")] {
        let copy = server.request("PUT", "/abc/to").header("x-amz-copy-source", source);
        copy.send().await.assert_success();
        assert_eq!(server.send("GET", "/abc/to").await.text(), expected, "{source}");
        let part = server.request("PUT", format!("/abc/parts?partNumber=1&uploadId={upload}"));
        let part = part.header("x-amz-copy-source", source).send().await.assert_success();
        let tag = server.send("HEAD", "/abc/to").await.header("etag").unwrap().to_owned();
        assert_eq!(part.element("ETag"), Some(tag), "{source}");
    }
}

#[tokio::test]
async fn malformed_encoding_of_a_copy_source_is_rejected() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/%25ZZ", b"x").await.assert_success();
    for source in ["abc/%ZZ", "abc/a%", "abc/%4", "abc/%FF", "%zzbc/k", "abc/k?versionId=%ZZ"] {
        let rejected = server.request("PUT", "/abc/to").header("x-amz-copy-source", source).send().await;
        rejected.assert_error("InvalidArgument", 400);
        assert_eq!(rejected.element("Message").as_deref(), Some("Invalid copy source encoding"), "{source}");
        assert_eq!(rejected.element("ArgumentName").as_deref(), Some("x-amz-copy-source"));
        assert_eq!(rejected.element("ArgumentValue").as_deref(), Some(source));
    }
    let copy = server.request("PUT", "/abc/to").header("x-amz-copy-source", "abc/%25ZZ");
    copy.send().await.assert_success();
    let tagged = server.request("PUT", "/abc/t").header("x-amz-tagging", "a=%ZZ").body(&b"x"[..]);
    tagged.send().await.assert_error("InvalidArgument", 400);
    server.send("GET", "/abc/%ZZ").await.assert_error("InvalidURI", 400);
}

#[tokio::test]
async fn copies_take_redirect_and_storage_class_only_from_headers() {
    const CLASS: &str = "x-amz-storage-class";
    const REDIRECT: &str = "x-amz-website-redirect-location";
    let server = TestServer::with_bucket().await;
    let put = server.request("PUT", "/abc/s").header(CLASS, "STANDARD_IA").header(REDIRECT, "/elsewhere");
    put.header("x-amz-meta-m", "v").body(&b"x"[..]).send().await.assert_success();
    let copy = |key: &str| server.request("PUT", format!("/abc/{key}")).header("x-amz-copy-source", "abc/s");
    copy("plain").send().await.assert_success();
    copy("class").header(CLASS, "GLACIER_IR").send().await.assert_success();
    copy("redirect").header(REDIRECT, "/there").send().await.assert_success();
    copy("data").header("x-dss-object-class", "3").send().await.assert_success();
    for (key, class, redirect) in [
        ("plain", None, None),
        ("class", Some("GLACIER_IR"), None),
        ("redirect", None, Some("/there")),
        ("data", None, None),
    ] {
        let found = server.send("HEAD", &format!("/abc/{key}")).await.assert_success();
        assert_eq!((found.header(CLASS), found.header(REDIRECT)), (class, redirect), "{key}");
        assert_eq!(found.header("x-amz-meta-m"), Some("v"), "{key}");
    }
}
