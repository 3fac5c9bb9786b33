//! The checksums of a completed upload are compared with those of its parts.

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::StageRequest;
use tradewind_core::testing::context;
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, ETag, ObjectStore as _};

use crate::support::scripted_server::{BUCKET, Reply, ScriptedResponse, ScriptedServer};

const PARTS: [&[u8]; 2] = [b"the first part", b"the second"];

/// Uploads two parts with this checksum and completes them. The response contains the given elements.
async fn completed(checksum: Option<(Algorithm, ChecksumScope)>, answered: String) -> Result<Committed> {
    let server = ScriptedServer::start(move |request, answer| {
        let is_completion = request.operation == "CompleteMultipartUpload";
        let document = format!(
            "<CompleteMultipartUploadResult><ETag>&quot;x-2&quot;</ETag>{answered}</CompleteMultipartUploadResult>"
        );
        Reply::Respond(if is_completion { ScriptedResponse::document(&document) } else { answer })
    });
    let store = crate::leaf_over(server.address, |_| {});
    let (context, address) = (context(), Address::parse(BUCKET, "k").unwrap());
    let create = CreateUpload { checksum, ..CreateUpload::default() };
    let id = store.create_upload(&context, &address, create).await?;
    let mut order = CompleteUpload { expected_size: Some(24), ..CompleteUpload::default() };
    for (number, bytes) in (1..).zip(PARTS) {
        let number = PartNumber::new(number)?;
        let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
        let mut staged = store.stage_part(&context, &address, &id, number, request).await?;
        staged.write(Bytes::from_static(bytes)).await?;
        let (part, _) = staged.commit(Expected::default()).await?;
        order.parts.push(CompletePart { number, etag: part.etag, checksum: None });
    }
    store.complete_upload(&context, &address, &id, order).await
}

fn element(checksum: &Checksum, suffix: &str, scope: &str) -> String {
    let name = checksum.algorithm().name();
    format!("<Checksum{name}>{}{suffix}</Checksum{name}>{scope}", checksum.to_base64())
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_fails_if_the_checksum_differs() {
    const COMPOSITE: &str = "<ChecksumType>COMPOSITE</ChecksumType>";
    const FULL: &str = "<ChecksumType>FULL_OBJECT</ChecksumType>";
    for algorithm in Algorithm::ALL {
        let of_parts = PARTS.map(|bytes| Checksum::compute(algorithm, bytes));
        let composite = Checksum::composite(algorithm, &of_parts);
        let whole = Checksum::compute(algorithm, &PARTS.concat());
        let other = Checksum::compute(algorithm, b"something else");
        let cases: &[_] = match algorithm.is_crc() {
            true => {
                &[(ChecksumScope::FullObject, whole, "", FULL), (ChecksumScope::FullObject, whole, "", "")]
            }
            false => &[
                (ChecksumScope::Composite, composite, "-2", COMPOSITE),
                (ChecksumScope::Composite, composite, "-2", ""),
            ],
        };
        for (scope, right, suffix, said) in cases {
            let begin = Some((algorithm, *scope));
            let made = completed(begin, element(right, suffix, said)).await.unwrap();
            assert_eq!((&made.checksums[..], made.scope), (&[*right][..], *scope), "{algorithm:?} {said}");
            let failed = completed(begin, element(&other, suffix, said)).await.unwrap_err();
            assert_eq!(failed.reason(), Reason::CorruptData, "{algorithm:?} {said}: {failed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unrequested_checksum_is_compared_too() {
    let crc = |bytes: &[u8]| element(&Checksum::compute(Algorithm::Crc64Nvme, bytes), "", "");
    completed(None, crc(&PARTS.concat())).await.unwrap();
    let failed = completed(None, crc(b"something else")).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::CorruptData, "{failed}");
    // A checksum of another algorithm cannot be compared.
    completed(None, element(&Checksum::compute(Algorithm::Crc32, b"x"), "", "")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_parts_are_not_compared() {
    let server = ScriptedServer::start(|request, answer| {
        let document = "<CompleteMultipartUploadResult><ETag>x</ETag><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32>\
                        </CompleteMultipartUploadResult>";
        let is_completion = request.operation == "CompleteMultipartUpload";
        Reply::Respond(if is_completion { ScriptedResponse::document(document) } else { answer })
    });
    let store = crate::leaf_over(server.address, |_| {});
    let (context, address) = (context(), Address::parse(BUCKET, "k").unwrap());
    let id = store.create_upload(&context, &address, CreateUpload::default()).await.unwrap();
    let part =
        |checksum| CompletePart { number: PartNumber::new(1).unwrap(), etag: ETag::from_tag("x"), checksum };
    let order = |part, expected_checksum| CompleteUpload {
        parts: vec![part],
        expected_size: Some(1),
        expected_checksum,
        ..CompleteUpload::default()
    };
    store.complete_upload(&context, &address, &id, order(part(None), None)).await.unwrap();
    // The checksum that the client expects is compared.
    let promised = Some(Checksum::compute(Algorithm::Crc32, b"x"));
    let failed = store.complete_upload(&context, &address, &id, order(part(promised), promised)).await;
    assert_eq!(failed.unwrap_err().reason(), Reason::CorruptData);
}
