//! Multipart uploads.

use tradewind_core::{Algorithm, Checksum};

use super::{TestResponse, TestServer};

const PART: usize = 5 << 20;

async fn create(server: &TestServer, headers: &[(&'static str, &str)]) -> String {
    let mut request = server.request("POST", "/abc/k?uploads");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.send().await.assert_success().element("UploadId").unwrap()
}

async fn put(server: &TestServer, upload: &str, number: usize, body: Vec<u8>) -> TestResponse {
    server.request("PUT", format!("/abc/k?partNumber={number}&uploadId={upload}")).body(body).send().await
}

/// Uploads a part with its checksum.
async fn put_with_checksum(
    server: &TestServer,
    upload: &str,
    number: usize,
    body: &[u8],
    algorithm: Algorithm,
) -> TestResponse {
    let request = server.request("PUT", format!("/abc/k?partNumber={number}&uploadId={upload}"));
    let checksum = Checksum::compute(algorithm, body).to_base64();
    request.header(algorithm.header(), &checksum).body(body.to_vec()).send().await
}

fn completion_with_checksums(parts: &[(usize, &str, Checksum)]) -> String {
    let parts = parts.iter().map(|(number, tag, checksum)| {
        let (name, value) = (checksum.algorithm().name(), checksum.to_base64());
        format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag>\
             <Checksum{name}>{value}</Checksum{name}></Part>"
        )
    });
    format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.collect::<String>())
}

fn completion(parts: &[(usize, &str)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(n, t)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{t}</ETag></Part>"))
        .collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

#[tokio::test]
async fn an_upload_is_created_listed_and_completed() {
    let server = TestServer::with_bucket().await;
    let headers = [
        ("content-type", "a/b"),
        ("x-amz-meta-m", "v"),
        ("x-dss-object-class", "9"),
        ("x-amz-tagging", "t=1"),
    ];
    let upload = create(&server, &headers).await;
    let bodies = [vec![1; PART], vec![2; 10]];
    let mut tags = Vec::new();
    for (n, body) in bodies.iter().enumerate() {
        let answer = put(&server, &upload, n + 1, body.clone()).await.assert_success();
        tags.push(answer.header("etag").unwrap().to_owned());
    }
    let listed = server.send("GET", &format!("/abc/k?uploadId={upload}&max-parts=1")).await.assert_success();
    assert_eq!(listed.elements("PartNumber"), ["1"]);
    assert_eq!(listed.element("IsTruncated").as_deref(), Some("true"));
    assert_eq!(listed.element("NextPartNumberMarker").as_deref(), Some("1"));
    let uploads = server.send("GET", "/abc?uploads").await.assert_success();
    assert_eq!(uploads.element("UploadId"), Some(upload.clone()));
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
    let order = completion(&[(1, &tags[0]), (2, &tags[1])]);
    let complete = |xml: String| server.request("POST", format!("/abc/k?uploadId={upload}")).body(xml);
    complete(completion(&[(2, &tags[1]), (1, &tags[0])])).send().await.assert_error("InvalidPartOrder", 400);
    complete(completion(&[(1, &tags[1])])).send().await.assert_error("InvalidPart", 400);
    complete(completion(&[])).send().await.assert_error("MalformedXML", 400);
    complete("x".to_owned()).send().await.assert_error("MalformedXML", 400);
    complete(String::new()).send().await.assert_error("MalformedXML", 400);
    complete(order.clone())
        .header("x-amz-mp-object-size", "1")
        .send()
        .await
        .assert_error("InvalidRequest", 400);
    let done = complete(order)
        .header("if-none-match", "*")
        .header("host", "s3.test:9000")
        .send()
        .await
        .assert_success();
    assert!(done.element("ETag").unwrap().ends_with("-2\""));
    assert_eq!(done.element("Location").as_deref(), Some("http://s3.test:9000/abc/k"));
    let got = server.send("GET", "/abc/k").await.assert_success();
    assert_eq!(got.body.len(), PART + 10);
    for (name, value) in headers.iter().take(3) {
        assert_eq!(got.header(name), Some(*value));
    }
    let part = server.send("GET", "/abc/k?partNumber=2").await;
    assert_eq!(
        (part.status.as_u16(), part.header("x-amz-mp-parts-count"), &part.body[..]),
        (206, Some("2"), &[2; 10][..])
    );
    server.send("GET", &format!("/abc/k?uploadId={upload}")).await.assert_error("NoSuchUpload", 404);
}

#[tokio::test]
async fn completions_verify_composite_and_full_checksums() {
    let server = TestServer::with_bucket().await;
    let bodies = [vec![1; PART], vec![2; 10]];
    for (algorithm, kind) in [
        (Algorithm::Sha256, "COMPOSITE"),
        (Algorithm::Crc32, "COMPOSITE"),
        (Algorithm::Crc32c, "FULL_OBJECT"),
        (Algorithm::Crc64Nvme, "FULL_OBJECT"),
    ] {
        let upload =
            create(&server, &[("x-amz-checksum-algorithm", algorithm.name()), ("x-amz-checksum-type", kind)])
                .await;
        let mut tags = Vec::new();
        for (n, body) in bodies.iter().enumerate() {
            let answer = match kind {
                "COMPOSITE" => put_with_checksum(&server, &upload, n + 1, body, algorithm).await,
                _ => put(&server, &upload, n + 1, body.clone()).await,
            };
            let answer = answer.assert_success();
            assert_eq!(
                answer.header(algorithm.header()),
                Some(&*Checksum::compute(algorithm, body).to_base64())
            );
            tags.push(answer.header("etag").unwrap().to_owned());
        }
        let parts: Vec<Checksum> = bodies.iter().map(|b| Checksum::compute(algorithm, b)).collect();
        let value = match kind {
            "COMPOSITE" => format!("{}-2", Checksum::composite(algorithm, &parts).to_base64()),
            _ => Checksum::compute(algorithm, &bodies.concat()).to_base64(),
        };
        let wrong = Checksum::compute(algorithm, b"wrong").to_base64();
        let order = match kind {
            "COMPOSITE" => completion_with_checksums(&[(1, &tags[0], parts[0]), (2, &tags[1], parts[1])]),
            _ => completion(&[(1, &tags[0]), (2, &tags[1])]),
        };
        let complete = |value: &str| {
            server
                .request("POST", format!("/abc/k?uploadId={upload}"))
                .body(order.clone())
                .header(algorithm.header(), value)
        };
        complete(&wrong).send().await.assert_error("BadDigest", 400);
        let mismatched = if kind == "COMPOSITE" { "FULL_OBJECT" } else { "COMPOSITE" };
        complete(&value)
            .header("x-amz-checksum-type", mismatched)
            .send()
            .await
            .assert_error("InvalidRequest", 400);
        let done = complete(&value).header("x-amz-checksum-type", kind).send().await.assert_success();
        assert_eq!(done.element("ChecksumType").as_deref(), Some(kind));
        let got = server
            .request("HEAD", "/abc/k")
            .header("x-amz-checksum-mode", "ENABLED")
            .send()
            .await
            .assert_success();
        assert_eq!(
            (got.header(algorithm.header()), got.header("x-amz-checksum-type")),
            (Some(&*value), Some(kind))
        );
    }
}

#[tokio::test]
async fn composite_uploads_require_the_checksum_of_each_part() {
    let server = TestServer::with_bucket().await;
    let upload = create(&server, &[("x-amz-checksum-algorithm", "SHA256")]).await;
    let missing = put(&server, &upload, 1, vec![1]).await;
    missing.assert_error("InvalidRequest", 400);
    let message = missing.element("Message").unwrap();
    assert!(message.ends_with("expected checksum Type: sha256, actual checksum Type: null"), "{message}");
    let sha256 = Checksum::compute(Algorithm::Sha256, &[1]);
    let trailed = server.request("PUT", format!("/abc/k?partNumber=1&uploadId={upload}")).body(&[1][..]);
    let trailed = trailed.trailer("x-amz-checksum-sha256", &sha256.to_base64()).send().await.assert_success();
    let tag = trailed.header("etag").unwrap();
    let complete = |xml: String| server.request("POST", format!("/abc/k?uploadId={upload}")).body(xml);
    let missing = complete(completion(&[(1, tag)])).send().await;
    missing.assert_error("InvalidRequest", 400);
    assert!(missing.element("Message").unwrap().contains("missing for part 1"), "{missing:?}");
    let with = |checksum| complete(completion_with_checksums(&[(1, tag, checksum)]));
    with(Checksum::compute(Algorithm::Crc32, &[1])).send().await.assert_error("BadDigest", 400);
    with(Checksum::compute(Algorithm::Sha256, &[2])).send().await.assert_error("InvalidPart", 400);
    let malformed = completion_with_checksums(&[(1, tag, sha256)]).replace(&sha256.to_base64(), "x");
    complete(malformed).send().await.assert_error("InvalidArgument", 400);
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
    with(sha256).send().await.assert_success();
}

/// The query of a request that is signed in its headers has no headers in it.
#[tokio::test]
async fn part_of_a_composite_upload_needs_its_checksum_in_a_header() {
    let server = TestServer::with_bucket().await;
    let headers = [("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", "COMPOSITE")];
    let upload = create(&server, &headers).await;
    let uri = format!("/abc/k?partNumber=1&uploadId={upload}&x-amz-checksum-crc32=AAAAAA==");
    server.put(&uri, b"part").await.assert_error("InvalidRequest", 400);
    put_with_checksum(&server, &upload, 1, b"part", Algorithm::Crc32).await.assert_success();
}

#[tokio::test]
async fn checksums_of_parts_have_the_type_full_object() {
    let server = TestServer::with_bucket().await;
    for (algorithm, kind) in [(Algorithm::Sha256, "COMPOSITE"), (Algorithm::Crc32c, "FULL_OBJECT")] {
        let headers = [("x-amz-checksum-algorithm", algorithm.name()), ("x-amz-checksum-type", kind)];
        let upload = create(&server, &headers).await;
        let bodies = [vec![1; PART], vec![2; 10]];
        let mut parts = Vec::new();
        for (n, body) in bodies.iter().enumerate() {
            let stored = put_with_checksum(&server, &upload, n + 1, body, algorithm).await.assert_success();
            parts.push((
                n + 1,
                stored.header("etag").unwrap().to_owned(),
                Checksum::compute(algorithm, body),
            ));
        }
        let named: Vec<_> = parts.iter().map(|(n, tag, checksum)| (*n, tag.as_str(), *checksum)).collect();
        let complete = server.request("POST", format!("/abc/k?uploadId={upload}"));
        complete.body(completion_with_checksums(&named)).send().await.assert_success();
        for method in ["GET", "HEAD"] {
            for (number, _, checksum) in &parts {
                let read = server.request(method, format!("/abc/k?partNumber={number}"));
                let read = read.header("x-amz-checksum-mode", "ENABLED").send().await.assert_success();
                assert_eq!(
                    (read.header(algorithm.header()), read.header("x-amz-checksum-type")),
                    (Some(&*checksum.to_base64()), Some("FULL_OBJECT")),
                    "{method} of part {number} of {kind}"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_unknown_upload_id_marker_is_rejected() {
    let server = TestServer::with_bucket().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(create(&server, &[]).await);
    }
    let list = |marker: &str| format!("/abc?uploads&max-uploads=1&key-marker=k&upload-id-marker={marker}");
    for unknown in ["5", "none", "0000000000000005"] {
        let rejected = server.send("GET", &list(unknown)).await;
        rejected.assert_error("InvalidArgument", 400);
        assert_eq!(rejected.element("ArgumentName").as_deref(), Some("upload-id-marker"));
        assert_eq!(rejected.element("ArgumentValue").as_deref(), Some(unknown));
    }
    // Without a key marker the other one is ignored.
    server.send("GET", "/abc?uploads&upload-id-marker=none").await.assert_success();
    // A page begins after an upload that has ended since.
    assert_eq!(server.send("DELETE", &format!("/abc/k?uploadId={}", ids[0])).await.status, 204);
    let page = server.send("GET", &list(&ids[0])).await.assert_success();
    assert_eq!(page.elements("UploadId"), [ids[1].clone()]);
}

#[tokio::test]
async fn invalid_uploads_and_parts_are_rejected() {
    let server = TestServer::with_bucket().await;
    let ask = |algorithm: &str, kind: &str| {
        let mut request = server.request("POST", "/abc/k?uploads");
        if !algorithm.is_empty() {
            request = request.header("x-amz-checksum-algorithm", algorithm);
        }
        request.header("x-amz-checksum-type", kind)
    };
    ask("SHA256", "FULL_OBJECT").send().await.assert_error("InvalidRequest", 400);
    ask("CRC64NVME", "COMPOSITE").send().await.assert_error("InvalidRequest", 400);
    ask("", "COMPOSITE").send().await.assert_error("InvalidRequest", 400);
    ask("MD5", "FULL_OBJECT").send().await.assert_error("InvalidRequest", 400);
    ask("XXHASH64", "FULL_OBJECT").send().await.assert_error("InvalidRequest", 400);
    ask("BLAKE3", "COMPOSITE").send().await.assert_error("InvalidRequest", 400);
    ask("CRC32", "HALF").send().await.assert_error("InvalidRequest", 400);
    assert!(server.send("GET", "/abc?uploads").await.assert_success().elements("UploadId").is_empty());
    let upload = create(&server, &[("x-amz-checksum-algorithm", "SHA1")]).await;
    let other = Checksum::compute(Algorithm::Crc32, b"x").to_base64();
    server
        .request("PUT", format!("/abc/k?partNumber=1&uploadId={upload}"))
        .header("x-amz-checksum-crc32", &other)
        .body(&b"x"[..])
        .send()
        .await
        .assert_error("InvalidRequest", 400);
    for number in ["0", "10001", "x", ""] {
        let uri = format!("/abc/k?partNumber={number}&uploadId={upload}");
        server.request("PUT", uri).body(&b"x"[..]).send().await.assert_error("InvalidArgument", 400);
    }
    put(&server, "none", 1, vec![1]).await.assert_error("NoSuchUpload", 404);
    assert_eq!(server.send("DELETE", &format!("/abc/k?uploadId={upload}")).await.status, 204);
    server.send("DELETE", &format!("/abc/k?uploadId={upload}")).await.assert_error("NoSuchUpload", 404);
}

#[tokio::test]
async fn exactly_one_of_many_conditional_completions_wins() {
    let server = TestServer::with_bucket().await;
    let mut orders = Vec::new();
    for _ in 0..100 {
        let upload = create(&server, &[]).await;
        let tag = put(&server, &upload, 1, vec![1]).await.assert_success().header("etag").unwrap().to_owned();
        orders.push((upload, completion(&[(1, &tag)])));
    }
    let completions = orders.into_iter().map(|(upload, order)| {
        let request =
            server.request("POST", format!("/abc/k?uploadId={upload}")).header("if-none-match", "*");
        request.body(order).send()
    });
    let answers = futures::future::join_all(completions).await;
    assert_eq!(answers.iter().filter(|a| a.status == 200).count(), 1);
    assert!(answers.iter().all(|a| [200, 412].contains(&a.status.as_u16())));
}

#[tokio::test]
async fn parts_are_copied_from_ranges() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/s", b"0123456789").await.assert_success();
    let upload = create(&server, &[]).await;
    let copy = |range: &str| {
        let request = server.request("PUT", format!("/abc/k?partNumber=1&uploadId={upload}"));
        let request = request.header("x-amz-copy-source", "abc/s");
        if range.is_empty() { request } else { request.header("x-amz-copy-source-range", range) }
    };
    for bad in ["0-8", "bytes=1-0", "bytes=-2", "bytes=1-", "bytes=0-1,3-4", "bytes=0-100", "bytes=100-200"] {
        copy(bad).send().await.assert_error("InvalidArgument", 400);
    }
    let copied = copy("bytes=2-5").send().await.assert_success();
    let tag = copied.element("ETag").unwrap();
    let order = completion(&[(1, &tag)]);
    server.request("POST", format!("/abc/k?uploadId={upload}")).body(order).send().await.assert_success();
    assert_eq!(server.send("GET", "/abc/k").await.text(), "2345");
}

/// The AWS SDK for JavaScript presigns it so: the upload has a composite checksum, the query that of an empty body.
#[tokio::test]
async fn a_presigned_part_has_its_checksum_in_the_query() {
    let server = TestServer::with_bucket().await;
    let begin = server.request("POST", "/abc/k?uploads").header("x-amz-checksum-algorithm", "CRC32");
    let upload = begin.send().await.assert_success().element("UploadId").unwrap();
    let part = format!("/abc/k?partNumber=1&uploadId={upload}");
    server.put(&part, b"123456789").await.assert_error("InvalidRequest", 400);
    let query = "X-Amz-Signature=s&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32";
    let put = server.put(&format!("{part}&{query}"), b"123456789").await.assert_success();
    assert_eq!(put.header("x-amz-checksum-crc32"), Some("y/Q5Jg=="));
    let other = query.replace("crc32", "sha1");
    server.put(&format!("{part}&{other}"), b"123456789").await.assert_error("InvalidRequest", 400);
}
