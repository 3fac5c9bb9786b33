//! Error documents: S3's messages, and the elements that name the subject.

use super::{TestResponse, TestServer};

/// Sends a request, and compares elements of its error document.
#[track_caller]
fn assert_elements(response: &TestResponse, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(response.element(name).as_deref(), Some(*value), "{name} of {response:?}");
    }
}

#[tokio::test]
async fn missing_resources_are_named() {
    let server = TestServer::with_bucket().await;
    let bucket = [
        ("Code", "NoSuchBucket"),
        ("Message", "The specified bucket does not exist."),
        ("BucketName", "missing"),
    ];
    for (method, path) in [
        ("GET", "/missing"),
        ("GET", "/missing/k"),
        ("DELETE", "/missing"),
        ("PUT", "/missing/k"),
        ("PUT", "/missing/k?partNumber=1&uploadId=x"),
        ("POST", "/missing/k?uploads"),
        ("GET", "/missing/k?uploadId=x"),
        ("DELETE", "/missing/k?uploadId=x"),
    ] {
        assert_elements(&server.send(method, path).await, &bucket);
    }
    let part = "<Part><PartNumber>1</PartNumber><ETag>x</ETag></Part>";
    let document = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
    let complete = |path: &str| server.request("POST", path).body(document.clone());
    assert_elements(&complete("/missing/k?uploadId=x").send().await, &bucket);
    let key = [("Code", "NoSuchKey"), ("Message", "The specified key does not exist."), ("Key", "a&lt;b")];
    assert_elements(&server.send("GET", "/abc/a%3Cb").await, &key);
    let copy = server.request("PUT", "/abc/to").header("x-amz-copy-source", "abc/a%3Cb");
    assert_elements(&copy.send().await, &key);
    let version = [
        ("Code", "NoSuchVersion"),
        ("Message", "The specified version does not exist."),
        ("Key", "k"),
        ("VersionId", "null"),
    ];
    assert_elements(&server.send("GET", "/abc/k?versionId=null").await, &version);
    let upload = [
        ("Code", "NoSuchUpload"),
        (
            "Message",
            "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have \
             been aborted or completed.",
        ),
        ("UploadId", "x"),
    ];
    assert_elements(&complete("/abc/k?uploadId=x").send().await, &upload);
}

#[tokio::test]
async fn a_failed_condition_is_named() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let old = "Sat, 01 Jan 2000 00:00:00 GMT";
    let put = || server.request("PUT", "/abc/k").body(&b"y"[..]);
    let get = || server.request("GET", "/abc/k");
    let copy = || server.request("PUT", "/abc/k").header("x-amz-copy-source", "abc/k");
    for (request, condition) in [
        (put().header("if-none-match", "*"), "If-None-Match"),
        (put().header("if-match", "\"z\""), "If-Match"),
        (get().header("if-match", "\"z\""), "If-Match"),
        (get().header("if-unmodified-since", old), "If-Unmodified-Since"),
        (server.request("DELETE", "/abc/k").header("if-match", "\"z\""), "If-Match"),
        (copy().header("if-none-match", "*").header("x-amz-metadata-directive", "REPLACE"), "If-None-Match"),
        (copy().header("x-amz-copy-source-if-match", "\"z\""), "x-amz-copy-source-If-Match"),
        (copy().header("x-amz-copy-source-if-none-match", "*"), "x-amz-copy-source-If-None-Match"),
    ] {
        let failed = request.send().await;
        failed.assert_error("PreconditionFailed", 412);
        let message = "At least one of the pre-conditions you specified did not hold.";
        assert_elements(&failed, &[("Message", message), ("Condition", condition)]);
    }
    let upload = server.send("POST", "/abc/k?uploads").await.assert_success().element("UploadId").unwrap();
    let part = server.put(&format!("/abc/k?partNumber=1&uploadId={upload}"), b"x").await.assert_success();
    let part =
        format!("<Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part>", part.header("etag").unwrap());
    let document = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
    let complete = server.request("POST", format!("/abc/k?uploadId={upload}")).body(document);
    let failed = complete.header("if-none-match", "*").send().await;
    assert_elements(&failed, &[("Code", "PreconditionFailed"), ("Condition", "If-None-Match")]);
}

#[tokio::test]
async fn an_invalid_argument_is_named_with_its_value() {
    let server = TestServer::with_bucket().await;
    for (method, path, name, value, message) in [
        (
            "GET",
            "/abc?list-type=2&max-keys=-1",
            "maxKeys",
            "-1",
            "Argument maxKeys must be an integer between 0 and 2147483647",
        ),
        (
            "GET",
            "/abc?encoding-type=base64",
            "encoding-type",
            "base64",
            "Invalid Encoding Method specified in Request",
        ),
        (
            "GET",
            "/abc?list-type=2&continuation-token=AAAA",
            "continuation-token",
            "AAAA",
            "The continuation token provided is incorrect",
        ),
        (
            "PUT",
            "/abc/k?partNumber=0&uploadId=x",
            "partNumber",
            "0",
            "Part number must be an integer between 1 and 10000, inclusive.",
        ),
        ("GET", "/abc?list-type=3", "list-type", "3", "Invalid List Type specified in Request"),
        ("GET", "/abc/k?versionId=%01", "versionId", "\u{FFFD}", "Invalid version id specified"),
        ("GET", "/abc/k?versionId=", "versionId", "", "Version id cannot be the empty string"),
        ("PUT", "/abc/k?versionId=null", "versionId", "null", "This operation does not accept a version-id."),
        (
            "GET",
            "/abc?versions&version-id-marker=null",
            "version-id-marker",
            "null",
            "A version-id marker cannot be specified without a key marker.",
        ),
    ] {
        let rejected = server.send(method, path).await;
        rejected.assert_error("InvalidArgument", 400);
        let expected = [("Message", message), ("ArgumentName", name), ("ArgumentValue", value)];
        assert_elements(&rejected, &expected);
    }
}

#[tokio::test]
async fn limits_are_named_with_the_value() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"0123456789").await.assert_success();
    let range = server.request("GET", "/abc/k").header("range", "bytes=10-").send().await;
    let expected = [
        ("Code", "InvalidRange"),
        ("Message", "The requested range is not satisfiable"),
        ("RangeRequested", "bytes=10-"),
        ("ActualObjectSize", "10"),
    ];
    assert_elements(&range, &expected);
    let part = server.send("GET", "/abc/k?partNumber=3").await;
    let expected = [("Code", "InvalidPartNumber"), ("PartNumberRequested", "3"), ("ActualPartCount", "1")];
    assert_elements(&part, &expected);
    let long = server.send("GET", &format!("/abc/{}", "k".repeat(1025))).await;
    let expected = [
        ("Code", "KeyTooLongError"),
        ("Message", "Your key is too long."),
        ("Size", "1025"),
        ("MaxSizeAllowed", "1024"),
    ];
    assert_elements(&long, &expected);
    let name = server.send("GET", "/a_b").await;
    assert_elements(&name, &[("Message", "The specified bucket is not valid."), ("BucketName", "a_b")]);
    let metadata = server.request("PUT", "/abc/m").header("x-amz-meta-m", &"v".repeat(3000)).send().await;
    let expected = [
        ("Code", "MetadataTooLarge"),
        ("Message", "Your metadata headers exceed the maximum allowed metadata size"),
        ("Size", "3001"),
        ("MaxSizeAllowed", "2048"),
    ];
    assert_elements(&metadata, &expected);
    let large = server.request("PUT", "/abc/m").declared_length(Some((5 << 30) + 1)).send().await;
    let expected = [
        ("Code", "EntityTooLarge"),
        ("Message", "Your proposed upload exceeds the maximum allowed object size."),
        ("ProposedSize", "5368709121"),
        ("MaxSizeAllowed", "5368709120"),
    ];
    assert_elements(&large, &expected);
    let class = server.request("PUT", "/abc/m").header("x-amz-storage-class", "COLD").send().await;
    let expected = [
        ("Code", "InvalidStorageClass"),
        ("Message", "The storage class you specified is not valid"),
        ("StorageClassRequested", "COLD"),
    ];
    assert_elements(&class, &expected);
}

#[tokio::test]
async fn an_invalid_part_is_named() {
    let server = TestServer::with_bucket().await;
    let upload = server.send("POST", "/abc/k?uploads").await.assert_success().element("UploadId").unwrap();
    let mut tags = Vec::new();
    for number in [1, 2] {
        let part = server.put(&format!("/abc/k?partNumber={number}&uploadId={upload}"), b"small").await;
        tags.push(part.assert_success().header("etag").unwrap().trim_matches('"').to_owned());
    }
    let complete = |parts: &[(u16, &str)]| {
        let parts = parts
            .iter()
            .map(|(number, tag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"));
        let parts: String = parts.collect();
        let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        server.request("POST", format!("/abc/k?uploadId={upload}")).body(document).send()
    };
    let invalid = [
        ("Code", "InvalidPart"),
        (
            "Message",
            "One or more of the specified parts could not be found.  The part may not have been uploaded, or \
             the specified entity tag may not match the part's entity tag.",
        ),
        ("PartNumber", "7"),
        ("ETag", "none"),
        ("UploadId", &upload),
    ];
    assert_elements(&complete(&[(1, &tags[0]), (7, "none")]).await, &invalid);
    let small = [
        ("Code", "EntityTooSmall"),
        ("Message", "Your proposed upload is smaller than the minimum allowed size"),
        ("MinSizeAllowed", "5242880"),
        ("PartNumber", "1"),
        ("ETag", &tags[0]),
    ];
    assert_elements(&complete(&[(1, &tags[0]), (2, &tags[1])]).await, &small);
    let unordered = [
        ("Code", "InvalidPartOrder"),
        ("Message", "The list of parts was not in ascending order. Parts must be ordered by part number."),
    ];
    assert_elements(&complete(&[(2, &tags[1]), (1, &tags[0])]).await, &unordered);
}

#[tokio::test]
async fn a_wrong_digest_is_named() {
    let server = TestServer::with_bucket().await;
    let put = |name, value: &str| server.request("PUT", "/abc/k").header(name, value).body(&b"x"[..]).send();
    let wrong = put("x-amz-checksum-crc32", "AAAAAA==").await;
    let message = "The CRC32 you specified did not match the calculated checksum.";
    assert_elements(&wrong, &[("Code", "BadDigest"), ("Message", message)]);
    let wrong = put("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").await;
    let message = "The Content-MD5 you specified did not match what we received.";
    assert_elements(&wrong, &[("Code", "BadDigest"), ("Message", message)]);
}

#[tokio::test]
async fn carriage_returns_in_keys_are_escaped() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/a%0Db%0A%3Cc", b"x").await.assert_success();
    let key = "a&#13;b\n&lt;c";
    for list in ["/abc", "/abc?list-type=2", "/abc?versions"] {
        assert_eq!(server.send("GET", list).await.assert_success().elements("Key"), [key], "{list}");
    }
    let prefixes = server.send("GET", "/abc?delimiter=%0D&prefix=a").await.assert_success();
    assert!(prefixes.elements("Prefix").contains(&"a&#13;".to_owned()), "{prefixes:?}");
    assert_eq!(server.send("GET", "/abc/%0D").await.element("Key").as_deref(), Some("&#13;"));
    let upload = server.send("POST", "/abc/u%0D?uploads").await.assert_success();
    assert_eq!(upload.element("Key").as_deref(), Some("u&#13;"));
    assert_eq!(server.send("GET", "/abc?uploads").await.element("Key").as_deref(), Some("u&#13;"));
    let delete = |key: &str| {
        let document = format!("<Delete><Object><Key>{key}</Key></Object></Delete>");
        let checksum =
            tradewind_core::Checksum::compute(tradewind_core::Algorithm::Crc32, document.as_bytes());
        let request = server.request("POST", "/abc?delete").body(document);
        request.header("x-amz-checksum-crc32", &checksum.to_base64()).send()
    };
    let deleted = delete(key).await.assert_success();
    assert_eq!(deleted.elements("Key"), [key]);
    assert_eq!(server.send("HEAD", "/abc/a%0Db%0A%3Cc").await.status, 404);
}

/// Clients and suites compare whole messages. Each ends as in S3's documentation.
#[tokio::test]
async fn messages_end_as_those_of_s3() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for (method, uri, message) in [
        ("GET", "/missing", "The specified bucket does not exist."),
        ("GET", "/abc/missing", "The specified key does not exist."),
        ("DELETE", "/abc", "The bucket you tried to delete is not empty."),
        ("PATCH", "/abc/k", "The specified method is not allowed against this resource."),
        ("GET", "/abc?policy", "The bucket policy does not exist."),
        ("GET", "/abc?tagging", "The TagSet does not exist."),
        ("GET", "/abc?lifecycle", "The lifecycle configuration does not exist."),
        ("GET", "/abc?encryption", "The server side encryption configuration was not found."),
        ("GET", "/abc?replication", "The replication configuration was not found."),
        ("GET", "/abc?publicAccessBlock", "The public access block configuration was not found."),
        ("GET", "/abc?object-lock", "Object Lock configuration does not exist for this bucket."),
        ("GET", "/abc/k?partNumber=2", "The requested partnumber is not satisfiable."),
        ("PUT", "/abc?versioning", "Request Body is empty"),
    ] {
        assert_elements(&server.send(method, uri).await, &[("Message", message)]);
    }
    let malformed = server.request("PUT", "/abc/k?tagging").body("<Tagging").send().await;
    let message =
        "The XML you provided was not well-formed or did not validate against our published schema.";
    assert_elements(&malformed, &[("Code", "MalformedXML"), ("Message", message)]);
    let acl = server.request("PUT", "/abc/k").header("x-amz-acl", "public-read").send().await;
    assert_elements(&acl, &[("Message", "The bucket does not allow ACLs.")]);
    let region = "<CreateBucketConfiguration><LocationConstraint>mars</LocationConstraint></CreateBucketConfiguration>";
    let elsewhere = server.request("PUT", "/new").body(region).send().await;
    let expected = [
        ("Message", "The specified location-constraint is not valid"),
        ("LocationConstraint", "mars"),
        ("Region", "us-east-1"),
    ];
    assert_elements(&elsewhere, &expected);
}
