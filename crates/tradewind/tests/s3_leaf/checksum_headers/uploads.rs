//! The state in which an upload was created decides about the checksums of its parts and of its completion.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;

/// A service that rejects the headers in requests that `refuses` selects. A part needs a checksum if its upload was created
/// with an algorithm, in the completion, too; otherwise it must have none.
fn strict(refuses: impl Fn(&Request) -> bool + Send + Sync + 'static) -> ScriptedServer {
    let has_algorithm = AtomicBool::new(false);
    ScriptedServer::start(move |request, answer| {
        if let Some(header) = checksum_header(request).filter(|_| refuses(request)) {
            return Reply::Respond(refusal(header));
        }
        let has_checksum = match request.operation {
            "CompleteMultipartUpload" => {
                let parts = String::from_utf8_lossy(&request.body).matches("<ChecksumCRC64NVME>").count();
                parts == 2 && checksum_header(request).is_some()
            }
            _ => checksum_header(request).is_some(),
        };
        let answer = plain(request, answer);
        Reply::Respond(match request.operation {
            "CreateMultipartUpload" => {
                has_algorithm.store(has_checksum, Ordering::Relaxed);
                match has_checksum {
                    true => answer.with_header("x-amz-checksum-algorithm", "CRC64NVME"),
                    false => answer,
                }
            }
            "UploadPart" | "CompleteMultipartUpload"
                if has_checksum != has_algorithm.load(Ordering::Relaxed) =>
            {
                ScriptedResponse::error(400, "InvalidRequest", "Its upload was created in another way.")
            }
            "ListParts" if has_algorithm.load(Ordering::Relaxed) => {
                let body =
                    "<ListPartsResult><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm></ListPartsResult>";
                ScriptedResponse::document(body)
            }
            "ListParts" => ScriptedResponse::document("<ListPartsResult></ListPartsResult>"),
            _ => answer,
        })
    })
}

async fn finish(scene: &Scene, id: &UploadId) {
    let (large, small) = (vec![7; STREAMED], b"small");
    let parts = [put_part(scene, id, 1, &large).await.unwrap(), put_part(scene, id, 2, small).await.unwrap()];
    complete(scene, id, &[&large, &small[..]].concat(), parts).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_learned_during_an_upload_keeps_its_checksums() {
    let server = strict(|request| request.operation == "PutObject");
    let scene = Scene::new(&server, |_| {});
    let id = create(&scene).await.unwrap();
    scene.put(b"one").await.unwrap();
    scene.put(b"two").await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject"), [CRC, "", ""]);
    finish(&scene, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_another_process_keeps_its_checksums() {
    let server = strict(|request| request.operation == "PutObject");
    let (scene, other) = (Scene::new(&server, |_| {}), Scene::new(&server, |_| {}));
    let id = create(&other).await.unwrap();
    scene.put(b"one").await.unwrap();
    let (large, small) = (vec![7; STREAMED], b"small");
    let parts =
        [put_part(&scene, &id, 1, &large).await.unwrap(), put_part(&scene, &id, 2, small).await.unwrap()];
    // A third process completes it.
    let third = Scene::new(&server, |_| {});
    third.put(b"one").await.unwrap();
    complete(&third, &id, &[&large, &small[..]].concat(), parts).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_created_during_a_refusal_has_no_checksums_after_it() {
    let is_over = Arc::new(AtomicBool::new(false));
    let shared = is_over.clone();
    let server = strict(move |_| !shared.load(Ordering::Relaxed));
    let clock = SimulatedClock::new();
    let scene = Scene::with_clock(&server, clock.clone());
    let id = create(&scene).await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    clock.advance(Duration::from_secs(3601));
    finish(&scene, &id).await;
    assert_eq!(sent_headers(&server, "UploadPart"), ["", ""]);
}

/// The service accepts the algorithm of an upload, but not the checksums of its parts.
#[tokio::test(flavor = "multi_thread")]
async fn upload_whose_part_was_refused_goes_on_without_checksums() {
    for (size, headers) in [(1000, [CRC, "", "", ""]), (STREAMED, [CRC, "", "", ""])] {
        let server = refusing(|request| request.operation != "CreateMultipartUpload");
        let scene = Scene::new(&server, |_| {});
        let (id, bytes) = (create(&scene).await.unwrap(), vec![7; size]);
        let mut parts = Vec::new();
        for number in 1..4 {
            let stage = async || {
                let checksum = Some(Checksum::compute(Algorithm::Crc64Nvme, &bytes));
                let request = StageRequest { size: Some(size as u64), checksum, ..StageRequest::default() };
                let number = PartNumber::new(number).unwrap();
                let staged = scene.store.stage_part(&context(), &key(), &id, number, request).await.unwrap();
                write(staged, &bytes).await
            };
            let stored = match stage().await {
                Err(e) if e.kind() == ErrorKind::Unavailable => stage().await.unwrap(),
                stored => stored.unwrap(),
            };
            let checksum = stored.checksums.first().copied();
            parts.push(CompletePart {
                number: PartNumber::new(number).unwrap(),
                etag: stored.etag,
                checksum,
            });
        }
        assert_eq!(sent_headers(&server, "UploadPart"), headers, "{size} bytes");
        let [one, two, _] = parts.try_into().unwrap();
        complete(&scene, &id, &bytes.repeat(2), [one, two]).await.unwrap();
        assert_eq!(sent_headers(&server, "CompleteMultipartUpload"), [""]);
    }
}

/// The completion is refused, and not the parts: its document is written again, without checksums.
#[tokio::test(flavor = "multi_thread")]
async fn refused_completion_is_sent_without_checksums_of_parts() {
    let have_checksums: Arc<Mutex<Vec<bool>>> = Arc::default();
    let seen = have_checksums.clone();
    let server = ScriptedServer::start(move |request, answer| {
        if request.operation != "CompleteMultipartUpload" {
            return Reply::Respond(plain(request, answer));
        }
        seen.lock().unwrap().push(String::from_utf8_lossy(&request.body).contains("<Checksum"));
        Reply::Respond(checksum_header(request).map_or_else(|| plain(request, answer), refusal))
    });
    let scene = Scene::new(&server, |_| {});
    uploaded(&scene, [&vec![7; STREAMED], b"small"]).await.unwrap();
    assert_eq!(sent_headers(&server, "CompleteMultipartUpload"), [CRC, ""]);
    assert_eq!(*have_checksums.lock().unwrap(), [true, false]);
}

/// A client created the upload without an algorithm. Another process resumes it.
#[tokio::test(flavor = "multi_thread")]
async fn upload_without_an_algorithm_has_content_md5_and_compared_etags() {
    let server = strict(|_| false);
    let other = Scene::new(&server, |_| {});
    let id = other.store.create_upload(&context(), &key(), CreateUpload::default()).await.unwrap();
    let scene = Scene::new(&server, |_| {});
    finish(&scene, &id).await;
    let parts = server.requests_of("UploadPart");
    let have_md5: Vec<bool> = parts.iter().map(|part| !part.header("content-md5").is_empty()).collect();
    assert_eq!((have_md5, scene.counts()), (vec![false, true], [1, 1, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_part_of_an_upload_without_an_algorithm_fails() {
    let server = ScriptedServer::start(|request, answer| {
        let answer = plain(request, answer);
        Reply::Respond(match (request.operation, request.number) {
            ("UploadPart", 2..) => answer.with_header("ETag", &md5_etag(b"other bytes")),
            _ => answer,
        })
    });
    let scene = Scene::new(&server, |_| {});
    let id = scene.store.create_upload(&context(), &key(), CreateUpload::default()).await.unwrap();
    put_part(&scene, &id, 1, b"small").await.unwrap();
    for size in [100, STREAMED] {
        let failed = put_part(&scene, &id, 2, &vec![7; size]).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::BadDigest, "{size} bytes");
    }
}
