//! Suspicions that a streamed write has raised: only a retry of the same write proves or disproves them.

use super::*;

/// A service that refuses the headers once, in the first PUT.
fn refusing_once() -> ScriptedServer {
    ScriptedServer::start(|request, answer| {
        let is_refused = request.operation == "PutObject" && request.number == 1;
        Reply::Respond(if is_refused { refusal(CRC) } else { plain(request, answer) })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn write_of_another_key_proves_no_suspicion() {
    let server = refusing_once();
    let scene = Scene::new(&server, |_| {});
    let large = vec![7; STREAMED];
    assert_eq!(scene.put_declared(&large).await.unwrap_err().kind(), ErrorKind::Unavailable);
    scene.put_at("other", b"small").await.unwrap();
    let checksum = Some(Checksum::compute(Algorithm::Crc64Nvme, &large));
    let request = StageRequest { size: Some(STREAMED as u64), checksum, ..StageRequest::default() };
    let other = Address::parse(BUCKET, "other").unwrap();
    write(scene.store.stage(&context(), &other, request).await.unwrap(), &large).await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject"), [CRC; 3]);
    scene.put_declared(&large).await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject")[3..], [""], "the retry of the write");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_write_of_another_key_drops_no_suspicion() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match (request.key.as_str(), checksum_header(request)) {
            ("invalid", _) => ScriptedResponse::error(400, "InvalidArgument", "No."),
            (_, Some(header)) => refusal(header),
            (_, None) => plain(request, answer),
        })
    });
    let scene = Scene::new(&server, |_| {});
    let large = vec![7; STREAMED];
    scene.put_declared(&large).await.unwrap_err();
    scene.put_at("invalid", b"small").await.unwrap_err();
    scene.put_declared(&large).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn body_in_memory_is_sent_with_checksums_despite_a_suspicion() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match checksum_header(request) {
            Some(header) if request.number == 1 => refusal(header),
            Some(_) => answer,
            None => ScriptedResponse::error(400, "InvalidRequest", "The bucket's policy needs a digest."),
        })
    });
    let scene = Scene::new(&server, |_| {});
    scene.put_declared(&vec![7; STREAMED]).await.unwrap_err();
    scene.put(b"small").await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject"), [CRC, CRC]);
}
