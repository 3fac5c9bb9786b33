//! ETags of 32 hexadecimal digits: the MD5s of most stores, and something else of others.

use super::*;

/// A tag that looks like an MD5.
fn foreign_etag(bytes: &[u8]) -> String {
    md5_etag(&[b"salt", bytes].concat())
}

/// A service that compares Content-MD5, and whose ETags only look like MD5s.
fn foreign() -> ScriptedServer {
    ScriptedServer::start(|request, answer| {
        let answer = plain(request, answer);
        Reply::Respond(match (request.operation, answer.status) {
            ("GetObject" | "HeadObject", 200) => {
                let etag = foreign_etag(&answer.body);
                answer.with_header("ETag", &etag)
            }
            ("PutObject" | "UploadPart", 200) => answer.with_header("ETag", &foreign_etag(&request.body)),
            _ => answer,
        })
    })
}

fn without_checksums(options: &mut S3Options) {
    options.request_checksums = ChecksumUse::WhenRequired;
    options.response_checksums = ChecksumUse::WhenRequired;
}

#[tokio::test(flavor = "multi_thread")]
async fn etag_is_not_compared_if_the_service_has_accepted_content_md5() {
    let server = foreign();
    let scene = Scene::new(&server, without_checksums);
    scene.put(b"small").await.unwrap();
    assert_eq!(scene.counts(), [1, 0, 0]);
    let large = vec![7; STREAMED];
    for _ in 0..2 {
        scene.put(&large).await.unwrap();
    }
    assert_eq!(scene.counts(), [1, 0, 2], "the store's ETags are known to be no MD5s");
    assert_eq!(scene.get().await.unwrap(), large);
    assert_eq!(scene.counts(), [1, 0, 3]);
    assert_eq!(server.requests_of("GetObject").len(), 2, "the first object was read back");
}

/// The service accepts each Content-MD5, and stores other bytes.
#[tokio::test(flavor = "multi_thread")]
async fn damage_despite_content_md5_is_found_by_reading_back() {
    for has_md5s in [true, false] {
        let server = ScriptedServer::start(move |request, answer| {
            let answer = plain(request, answer);
            Reply::Respond(match request.operation {
                "GetObject" => {
                    let answer = answer.with_flipped_bit(1);
                    let etag = if has_md5s { md5_etag(&answer.body) } else { foreign_etag(&answer.body) };
                    answer.with_header("ETag", &etag)
                }
                _ if has_md5s => answer.with_header("ETag", &md5_etag(b"rmall")),
                _ => answer.with_header("ETag", &foreign_etag(b"rmall")),
            })
        });
        server.put_object("other", b"bytes".to_vec());
        let scene = Scene::new(&server, without_checksums);
        for _ in 0..4 {
            assert_eq!(scene.put(b"small").await.unwrap_err().reason(), Reason::BadDigest);
        }
    }
}

/// Too large to be read back.
#[tokio::test(flavor = "multi_thread")]
async fn verified_parts_with_other_etags_fail_until_three_differ() {
    let server = foreign();
    let scene = Scene::new(&server, without_checksums);
    let id = create(&scene).await.unwrap();
    for (number, is_stored) in [(1, false), (1, false), (2, false), (3, true), (1, true)] {
        let found = put_part(&scene, &id, number, b"part").await.map_err(|e| e.reason()).map(drop);
        assert_eq!(found, if is_stored { Ok(()) } else { Err(Reason::BadDigest) }, "part {number}");
    }
}

impl Scene {
    /// Reads an object.
    async fn get_at(&self, key: &str) -> Result<Bytes> {
        let address = Address::parse(BUCKET, key)?;
        self.store.get(&context(), &address, GetRequest::default()).await?.body.collect().await
    }
}

/// Each read is repeated, since damage on the path differs each time.
#[tokio::test(flavor = "multi_thread")]
async fn reads_with_other_etags_fail_until_three_objects_differ() {
    for bytes in [vec![7; 100_000], Vec::new()] {
        let server = foreign();
        for key in ["a", "b", "c"] {
            server.put_object(key, bytes.clone());
        }
        let scene = Scene::new(&server, without_checksums);
        for (key, is_read) in [("a", false), ("a", false), ("b", false), ("c", true), ("a", true)] {
            match scene.get_at(key).await {
                Ok(read) => assert!(is_read && read == bytes, "{key}"),
                Err(e) => {
                    assert!(!is_read && e.reason() == Reason::CorruptData, "{key}: {e}");
                    assert!(e.to_string().contains("two reads agree"), "{e}");
                }
            }
        }
        assert_eq!((server.requests_of("GetObject").len(), scene.counts()), (10, [0, 0, 2]));
        // Its ETags are not certain, so a large body is sent in memory, with Content-MD5.
        let large = vec![7; STREAMED];
        scene.put(&large).await.unwrap();
        scene.put(&large).await.unwrap();
        assert_eq!(content_md5s(&server, "PutObject"), [true, false]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_that_differs_from_its_repetition_fails_in_any_bucket() {
    let server = ScriptedServer::start(|request, answer| {
        let etag = foreign_etag(request.key.as_bytes());
        let is_damaged = request.operation == "GetObject" && request.number == 7;
        let answer =
            if is_damaged { plain(request, answer).with_flipped_bit(1) } else { plain(request, answer) };
        Reply::Respond(answer.with_header("ETag", &etag))
    });
    for key in ["a", "b", "c"] {
        server.put_object(key, b"bytes".to_vec());
    }
    let scene = Scene::new(&server, without_checksums);
    for (key, is_read) in [("a", false), ("b", false), ("c", true), ("a", false), ("a", true)] {
        assert_eq!(scene.get_at(key).await.is_ok(), is_read, "{key}");
    }
}

/// A service whose ETags are MD5s, and which changes a bit of the bodies that `damages` selects.
fn damaging(damages: impl Fn(&Request) -> bool + Send + Sync + 'static) -> ScriptedServer {
    ScriptedServer::start(move |request, answer| {
        let answer = plain(request, answer);
        let is_damaged = request.operation == "GetObject" && damages(request);
        Reply::Respond(if is_damaged { answer.with_flipped_bit(1) } else { answer })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn read_that_was_damaged_once_fails() {
    for damaged in [1, 2] {
        let server = damaging(move |request| request.number == damaged);
        server.put_object("k", b"bytes".to_vec());
        let scene = Scene::new(&server, without_checksums);
        match damaged {
            1 => assert_eq!(scene.get().await.unwrap_err().reason(), Reason::CorruptData),
            _ => assert_eq!(scene.get().await.unwrap(), "bytes"),
        }
        assert_eq!(server.requests_of("GetObject").len(), 3 - damaged);
    }
}

/// Damage in the store is the same in each response.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_object_of_a_store_with_md5s_is_not_read() {
    let server = damaging(|request| request.key == "damaged");
    for key in ["k", "damaged"] {
        server.put_object(key, b"bytes".to_vec());
    }
    let scene = Scene::new(&server, without_checksums);
    scene.get().await.unwrap();
    let damaged = Address::parse(BUCKET, "damaged").unwrap();
    for _ in 0..2 {
        let found = scene.store.get(&context(), &damaged, GetRequest::default()).await.unwrap();
        assert_eq!(found.body.collect().await.unwrap_err().reason(), Reason::CorruptData);
    }
    assert_eq!(scene.get().await.unwrap(), "bytes");
    assert_eq!(scene.counts(), [0, 2, 0], "the store's ETags are still compared");
}

#[tokio::test(flavor = "multi_thread")]
async fn write_to_a_store_with_md5s_fails_if_the_etag_differs() {
    for size in [100, STREAMED] {
        let server = ScriptedServer::start(|request, answer| {
            let answer = plain(request, answer);
            let is_damaged = request.operation == "PutObject" && request.number > 1;
            Reply::Respond(match is_damaged {
                true => answer.with_header("ETag", &md5_etag(b"other bytes")),
                false => answer,
            })
        });
        let scene = Scene::new(&server, without_checksums);
        scene.put(b"small").await.unwrap();
        for _ in 0..2 {
            let failed = scene.put(&vec![7; size]).await.unwrap_err();
            assert_eq!(failed.reason(), Reason::BadDigest, "{size} bytes: {failed}");
        }
        assert_eq!(scene.counts(), [1, 0, 0]);
    }
}

/// Content-MD5 of each object or part; empty for requests without it.
fn content_md5s(server: &ScriptedServer, operation: &str) -> Vec<bool> {
    server.requests_of(operation).iter().map(|request| !request.header("content-md5").is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_with_another_etag_fails_once_and_is_retried_in_memory() {
    let server = foreign();
    let scene = Scene::new(&server, without_checksums);
    let large = vec![7; STREAMED];
    assert_eq!(scene.put(&large).await.unwrap_err().reason(), Reason::BadDigest);
    for _ in 0..2 {
        scene.put(&large).await.unwrap();
    }
    assert_eq!(content_md5s(&server, "PutObject"), [false, true, false]);
    assert_eq!(scene.counts(), [1, 0, 1]);
}

/// Its parts cannot be read back. A small object decides.
#[tokio::test(flavor = "multi_thread")]
async fn large_stream_with_another_etag_is_retried_in_parts() {
    let server = foreign();
    let scene = Scene::new(&server, |options| {
        without_checksums(options);
        options.part_bytes = 1 << 20;
    });
    let large = vec![7; (2 << 20) + 1];
    for _ in 0..2 {
        assert_eq!(scene.put(&large).await.unwrap_err().reason(), Reason::BadDigest);
    }
    assert_eq!(content_md5s(&server, "UploadPart"), [true]);
    scene.put(b"small").await.unwrap();
    scene.put(&large).await.unwrap();
    assert_eq!(server.object("k").unwrap(), large);
}

#[tokio::test(flavor = "multi_thread")]
async fn part_with_another_etag_is_retried_in_memory() {
    let server = foreign();
    let scene = Scene::new(&server, |options| {
        without_checksums(options);
        options.part_bytes = 100 << 10;
    });
    let (id, large) = (create(&scene).await.unwrap(), vec![7; STREAMED]);
    for number in [1, 1, 2] {
        assert_eq!(put_part(&scene, &id, number, &large).await.unwrap_err().reason(), Reason::BadDigest);
    }
    for number in [3, 1] {
        put_part(&scene, &id, number, &large).await.unwrap();
    }
    assert_eq!(content_md5s(&server, "UploadPart"), [false, true, true, true, false]);
}

/// The retry shows that the store's ETags are MD5s: the first attempt was damaged.
#[tokio::test(flavor = "multi_thread")]
async fn retry_of_a_damaged_stream_shows_that_etags_are_md5s() {
    let server = ScriptedServer::start(|request, answer| {
        let answer = plain(request, answer);
        Reply::Respond(match (request.operation, request.number) {
            ("PutObject", 1 | 4) => answer.with_header("ETag", &md5_etag(b"other bytes")),
            _ => answer,
        })
    });
    let scene = Scene::new(&server, without_checksums);
    let large = vec![7; STREAMED];
    for is_damaged in [true, false, false, true] {
        assert_eq!(scene.put(&large).await.is_err(), is_damaged);
    }
    assert_eq!(content_md5s(&server, "PutObject"), [false, true, false, false]);
}
