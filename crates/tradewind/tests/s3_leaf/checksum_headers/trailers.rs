//! Services that accept checksum headers, but no trailers.

use super::*;

/// A service that returns the checksums it receives, and rejects trailers.
fn rejecting_trailers(rejection: impl Fn() -> ScriptedResponse + Send + Sync + 'static) -> ScriptedServer {
    ScriptedServer::start(move |request, answer| {
        if !request.header("x-amz-trailer").is_empty() {
            return Reply::Respond(rejection());
        }
        let answer = plain(request, answer);
        Reply::Respond(match (request.operation, request.header(CRC), request.header(ALGORITHM)) {
            ("PutObject" | "UploadPart", "", _) | (_, "", "") => answer,
            ("CreateMultipartUpload", _, algorithm) => answer.with_header(ALGORITHM, algorithm),
            (_, checksum, _) => answer.with_header(CRC, checksum),
        })
    })
}

/// The header that creates an upload with checksums.
const ALGORITHM: &str = "x-amz-checksum-algorithm";

fn named() -> ScriptedResponse {
    ScriptedResponse::error(400, "InvalidRequest", "STREAMING-UNSIGNED-PAYLOAD-TRAILER is not supported.")
}

fn unnamed() -> ScriptedResponse {
    let message = "A header you provided implies functionality that is not implemented.";
    ScriptedResponse::error(501, "NotImplemented", message)
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_trailers_leave_other_checksums() {
    for rejection in [named, unnamed, || refusal(CRC), || refusal("x-amz-trailer")] {
        let server = rejecting_trailers(rejection);
        let scene = Scene::new(&server, |_| {});
        let large = vec![7; STREAMED];
        scene.put(b"small").await.unwrap();
        let failed = scene.put(&large).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed}");
        for _ in 0..2 {
            scene.put(&large).await.unwrap();
            scene.put(b"small").await.unwrap();
        }
        scene.put_declared(&large).await.unwrap();
        let expected = [CRC, "x-amz-trailer", "", CRC, "", CRC, CRC];
        assert_eq!(sent_headers(&server, "PutObject"), expected, "{:?}", rejection());
        assert_eq!(scene.counts(), [0, 2, 0], "streamed bodies are compared with their ETags");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_of_trailers_is_forgotten_after_an_hour() {
    let server = rejecting_trailers(named);
    let clock = SimulatedClock::new();
    let scene = Scene::with_clock(&server, clock.clone());
    let large = vec![7; STREAMED];
    scene.put(b"small").await.unwrap();
    scene.put(&large).await.unwrap_err();
    scene.put(&large).await.unwrap();
    clock.advance(Duration::from_secs(3600));
    scene.put(&large).await.unwrap_err();
    assert_eq!(sent_headers(&server, "PutObject"), [CRC, "x-amz-trailer", "", "x-amz-trailer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailer_is_not_blamed_if_the_retry_fails() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match (request.number, request.header(CRC)) {
            (2 | 3, _) => named(),
            (_, checksum) => answer.with_header(CRC, checksum),
        })
    });
    let scene = Scene::new(&server, |_| {});
    let large = vec![7; STREAMED];
    scene.put(b"small").await.unwrap();
    assert_eq!(scene.put(&large).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(scene.put(&large).await.unwrap_err().reason(), Reason::InvalidRequest);
    let _ = scene.put(&large).await;
    assert_eq!(sent_headers(&server, "PutObject"), [CRC, "x-amz-trailer", "", "x-amz-trailer"]);
}

/// The parts of a write of unknown size are in memory.
#[tokio::test(flavor = "multi_thread")]
async fn parts_in_memory_keep_their_checksums() {
    let server = rejecting_trailers(named);
    let scene = Scene::new(&server, |options| options.part_bytes = 1 << 20);
    scene.put(b"small").await.unwrap();
    scene.put(&vec![7; STREAMED]).await.unwrap_err();
    scene.put(&vec![7; STREAMED]).await.unwrap();
    let bytes = vec![7; (1 << 20) + 1000];
    write(scene.stage(StageRequest::default()).await.unwrap(), &bytes).await.unwrap();
    assert_eq!(server.object("k").unwrap(), bytes);
    assert_eq!(sent_headers(&server, "CreateMultipartUpload"), [ALGORITHM]);
    assert_eq!(sent_headers(&server, "UploadPart"), [CRC, CRC]);
}

/// A part of an upload with an algorithm needs its checksum: it is sent in memory.
#[tokio::test(flavor = "multi_thread")]
async fn part_whose_trailer_was_rejected_is_sent_in_memory() {
    let server = rejecting_trailers(named);
    let scene = Scene::new(&server, |_| {});
    let (id, large) = (create(&scene).await.unwrap(), vec![7; STREAMED]);
    let failed = put_part(&scene, &id, 1, &large).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed}");
    for number in [1, 2] {
        put_part(&scene, &id, number, &large).await.unwrap();
    }
    assert_eq!(sent_headers(&server, "UploadPart"), ["x-amz-trailer", CRC, CRC]);
}

/// The parts of a later upload keep their checksums: they are in memory.
#[tokio::test(flavor = "multi_thread")]
async fn upload_created_after_the_rejection_has_checksums_in_headers() {
    let server = rejecting_trailers(named);
    let scene = Scene::new(&server, |_| {});
    scene.put(b"small").await.unwrap();
    scene.put(&vec![7; STREAMED]).await.unwrap_err();
    scene.put(&vec![7; STREAMED]).await.unwrap();
    uploaded(&scene, [&vec![7; STREAMED], b"small"]).await.unwrap();
    assert_eq!(sent_headers(&server, "CreateMultipartUpload"), [ALGORITHM]);
    assert_eq!(sent_headers(&server, "UploadPart"), [CRC, CRC]);
}

/// The retry in memory proves the refusal: other writes have no trailer then.
#[tokio::test(flavor = "multi_thread")]
async fn part_accepted_in_memory_proves_that_trailers_are_refused() {
    let server = rejecting_trailers(named);
    let scene = Scene::new(&server, |_| {});
    let (id, large) = (create(&scene).await.unwrap(), vec![7; STREAMED]);
    put_part(&scene, &id, 1, &large).await.unwrap_err();
    put_part(&scene, &id, 2, &large).await.unwrap_err();
    put_part(&scene, &id, 1, &large).await.unwrap();
    scene.put(&large).await.unwrap();
    assert_eq!(sent_headers(&server, "UploadPart"), ["x-amz-trailer", "x-amz-trailer", CRC]);
    assert_eq!(sent_headers(&server, "PutObject"), [""]);
}
