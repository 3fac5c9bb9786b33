use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use proptest::prelude::*;

use super::{Decoder, Step};
use crate::error::{Code, WireError};
use crate::sigv4::testing::{ClientSignatureChain, chunk_signatures};
use tradewind_wire::sigv4::SigningKey;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const DATE: &str = "20130524T000000Z";
const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";
const CRC: &str = "x-amz-checksum-crc32c";

/// Decodes a body that arrives in the given pieces.
fn decode(
    mut decoder: Decoder,
    pieces: &[&[u8]],
    max_bytes: usize,
) -> Result<(Vec<u8>, HeaderMap), WireError> {
    let mut data = Vec::new();
    let mut pieces = pieces.iter();
    loop {
        match decoder.next(max_bytes)? {
            Step::Data(bytes) => {
                assert!(!bytes.is_empty() && bytes.len() <= max_bytes);
                data.extend_from_slice(&bytes);
            }
            Step::Done(trailers) => {
                // No bytes may follow.
                for piece in pieces {
                    decoder.feed(Bytes::copy_from_slice(piece));
                    decoder.next(max_bytes)?;
                }
                return Ok((data, trailers));
            }
            Step::NeedInput => match pieces.next() {
                Some(piece) => decoder.feed(Bytes::copy_from_slice(piece)),
                None => return decoder.finish().map(|()| unreachable!("`finish` must fail before `Done`")),
            },
        }
    }
}

fn unsigned(length: u64, body: &[u8]) -> Result<(Vec<u8>, HeaderMap), WireError> {
    let announced = vec![HeaderName::from_static(CRC)];
    decode(Decoder::new(length, None, true, announced), &[body], usize::MAX)
}

fn rejection_code(length: u64, body: &str) -> Code {
    unsigned(length, body.as_bytes()).unwrap_err().code()
}

/// A signed body, built as a client does.
fn signed_body(chunks: &[&[u8]], trailers: &[(&str, &str)]) -> Vec<u8> {
    let mut client = ClientSignatureChain::new(SECRET, DATE, SCOPE, &[7; 32]);
    let mut body = Vec::new();
    for chunk in chunks.iter().chain([&b"".as_slice()]) {
        let signature = client.sign("PAYLOAD", &sha256(chunk));
        body.extend_from_slice(format!("{:x};chunk-signature={signature}\r\n", chunk.len()).as_bytes());
        body.extend_from_slice(chunk);
        if !chunk.is_empty() {
            body.extend_from_slice(b"\r\n");
        }
    }
    if !trailers.is_empty() {
        let text: String = trailers.iter().map(|(n, v)| format!("{n}:{v}\n")).collect();
        let signature = client.sign("TRAILER", &sha256(text.as_bytes()));
        body.extend_from_slice(text.replace('\n', "\r\n").as_bytes());
        body.extend_from_slice(format!("x-amz-trailer-signature:{signature}\r\n").as_bytes());
    }
    body.extend_from_slice(b"\r\n");
    body
}

fn sha256(data: &[u8]) -> [u8; 32] {
    ring::digest::digest(&ring::digest::SHA256, data).as_ref().try_into().unwrap()
}

fn signed_decoder(length: u64, has_trailers: bool) -> Decoder {
    let announced = if has_trailers { vec![HeaderName::from_static(CRC)] } else { vec![] };
    let signatures = chunk_signatures(SECRET, DATE, SCOPE, &[7; 32]);
    Decoder::new(length, Some(signatures), has_trailers, announced)
}

/// The example in AWS's documentation of chunked uploads: 66,560 times `a` in two chunks.
#[test]
fn the_published_example_is_decoded() {
    let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
    let seed: [u8; 32] = hex::decode(seed).unwrap().try_into().unwrap();
    let body = [
        b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n"
            .as_slice(),
        &[b'a'; 65_536],
        b"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
        &[b'a'; 1024],
        b"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
    ]
    .concat();
    let signatures = chunk_signatures(SECRET, DATE, SCOPE, &seed);
    let decoder = Decoder::new(66_560, Some(signatures), false, vec![]);
    let (data, trailers) = decode(decoder, &[&body], 1000).unwrap();
    assert_eq!(data, [b'a'; 66_560]);
    assert!(trailers.is_empty());
    assert_eq!(format!("{:?}", SigningKey::derive(SECRET, SCOPE)), "SigningKey(<redacted>)");
}

#[test]
fn an_unsigned_body_with_a_trailer_is_decoded() {
    let (data, trailers) =
        unsigned(5, b"3\r\nabc\r\n2\r\nde\r\n0\r\nx-amz-checksum-crc32c: AAAA \r\n\r\n").unwrap();
    assert_eq!(data, b"abcde");
    assert_eq!(trailers[CRC], "AAAA");
    assert!(unsigned(0, b"0\r\nx-amz-checksum-crc32c:A\r\n\r\n").is_ok());
}

#[test]
fn malformed_framing_is_rejected() {
    assert_eq!(rejection_code(3, "3\r\nab"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "3\r\nabc\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "3\r\nabc\r\n0\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(4, "3\r\nabc\r\n0\r\n\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(2, "3\r\nabc\r\n0\r\n\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "3\r\nabcd\r\n0\r\n\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "3\nabc\r\n0\r\n\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "x\r\nabc\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "\r\nabc\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "11111111111111111\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, "ffffffffffffffff\r\n"), Code::IncompleteBody);
    assert_eq!(rejection_code(3, &"0".repeat(2000)), Code::IncompleteBody);
    assert_eq!(rejection_code(0, "0\r\n\r\n"), Code::MalformedTrailer);
    assert_eq!(rejection_code(0, "0\r\nother: 1\r\n\r\n"), Code::MalformedTrailer);
    assert_eq!(rejection_code(0, "0\r\nnothing\r\n\r\n"), Code::MalformedTrailer);
    assert_eq!(
        rejection_code(0, "0\r\nx-amz-checksum-crc32c:A\r\nx-amz-checksum-crc32c:B\r\n\r\n"),
        Code::MalformedTrailer
    );
    assert_eq!(rejection_code(0, "0\r\nx-amz-checksum-crc32c:A\r\n\r\nmore"), Code::IncompleteBody);
}

/// A signature that is none is a fault of the framing, not a wrong signature.
#[test]
fn malformed_chunk_headers_of_a_signed_body_are_incomplete() {
    let body = String::from_utf8(signed_body(&[b"x"], &[])).unwrap();
    let (_, signature) = body.split_once("chunk-signature=").unwrap();
    let signature = &signature[..64];
    let code = |changed: String| {
        assert_ne!(changed, body);
        decode(signed_decoder(1, false), &[changed.as_bytes()], 9).unwrap_err().code()
    };
    for malformed in [
        body.replacen("chunk-signature=", "", 1),
        body.replacen(";chunk-signature=", ":chunk-signature=", 1),
        body.replacen(signature, &signature[5..], 1),
        body.replacen(&format!(";chunk-signature={signature}"), "", 1),
        body.replacen("x\r\n", "x", 1),
        body.replacen("x\r\n", "xdd", 1),
        body.replacen("1;", "j;", 1),
        body.replacen("\r\n", "\n", 1),
    ] {
        assert_eq!(code(malformed.clone()), Code::IncompleteBody, "{malformed:?}");
    }
    for wrong in ["0", "z"] {
        let changed = body.replacen(signature, &wrong.repeat(64), 1);
        assert_eq!(code(changed), Code::SignatureDoesNotMatch, "{wrong}");
    }
}

/// minio-go writes LF CR LF after a trailer.
#[test]
fn a_trailer_may_end_in_lf_cr_lf() {
    let unsigned_body = "3\r\nabc\r\n0\r\nx-amz-checksum-crc32c:AAAA\n\r\n\r\n";
    let (data, trailers) = unsigned(3, unsigned_body.as_bytes()).unwrap();
    assert_eq!((data.as_slice(), &trailers[CRC]), (b"abc".as_slice(), &"AAAA".parse().unwrap()));
    // The line end of AWS's own clients is not followed by another one, nor is this one by a third.
    for body in [
        "0\r\nx-amz-checksum-crc32c:AAAA\r\n\r\n\r\n",
        "0\r\nx-amz-checksum-crc32c:AAAA\n\r\n\r\n\r\n",
        "0\r\nx-amz-checksum-crc32c:AAAA\n\r\n\rx",
    ] {
        assert_eq!(rejection_code(0, body), Code::IncompleteBody, "{body:?}");
    }
    let signed = String::from_utf8(signed_body(&[b"x"], &[(CRC, "AA==")])).unwrap();
    let minio = signed.replace("AA==\r\n", "AA==\n\r\n");
    assert_ne!(minio, signed);
    for max_bytes in [1, usize::MAX] {
        let bytes: Vec<&[u8]> = minio.as_bytes().chunks(max_bytes.min(minio.len())).collect();
        let (data, trailers) = decode(signed_decoder(1, true), &bytes, max_bytes).unwrap();
        assert_eq!((data.as_slice(), &trailers[CRC]), (b"x".as_slice(), &"AA==".parse().unwrap()));
    }
    // The trailers' signature is still required, and covers every trailer before it.
    let (unsigned, _signature) = minio.split_once("x-amz-trailer-signature").unwrap();
    let error = decode(signed_decoder(1, true), &[format!("{unsigned}\r\n").as_bytes()], 9).unwrap_err();
    assert_eq!(error.code(), Code::SignatureDoesNotMatch);
    let changed = minio.replace("AA==", "BB==");
    let error = decode(signed_decoder(1, true), &[changed.as_bytes()], 9).unwrap_err();
    assert_eq!(error.code(), Code::SignatureDoesNotMatch);
}

#[test]
fn every_flipped_byte_of_a_signed_body_is_detected() {
    let trailers = [(CRC, "sOO8/Q==")];
    let body = signed_body(&[b"hello, ", b"world"], &trailers);
    let whole = decode(signed_decoder(12, true), &[&body], usize::MAX).unwrap();
    assert_eq!(
        (whole.0.as_slice(), &whole.1[CRC]),
        (b"hello, world".as_slice(), &"sOO8/Q==".parse().unwrap())
    );
    assert_eq!(whole.1.len(), 1, "the signature is not returned as a trailer");
    for at in 0..body.len() {
        let mut flipped = body.clone();
        flipped[at] ^= 0x01;
        if let Ok(same) = decode(signed_decoder(12, true), &[&flipped], usize::MAX) {
            // A CR or LF of a trailer line may change without changing its meaning.
            assert_eq!(same.0, whole.0, "byte {at}");
            assert_eq!(same.1, whole.1, "byte {at}");
        }
        let cut = decode(signed_decoder(12, true), &[&body[..at]], usize::MAX);
        assert!(cut.is_err(), "cut at {at}");
    }
}

#[test]
fn a_signed_body_must_end_with_the_trailer_signature() {
    let body = String::from_utf8(signed_body(&[b"x"], &[(CRC, "AA==")])).unwrap();
    let (rest, _signature) = body.split_once("x-amz-trailer-signature").unwrap();
    let error = decode(signed_decoder(1, true), &[format!("{rest}\r\n").as_bytes()], 9).unwrap_err();
    assert_eq!(error.code(), Code::SignatureDoesNotMatch);
    let more = body.replace("\r\n\r\n", "\r\nx-amz-checksum-crc32c:BB==\r\n\r\n");
    let error = decode(signed_decoder(1, true), &[more.as_bytes()], 9).unwrap_err();
    assert_eq!(error.code(), Code::MalformedTrailer);
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_the_split_of_the_input(
        body in prop::collection::vec(prop::sample::select(b"0123af;\r\nx:-".to_vec()), 0..80),
        length in 0_u64..40,
        signed in any::<bool>(),
    ) {
        let decoder = || if signed { signed_decoder(length, true) } else {
            Decoder::new(length, None, false, vec![])
        };
        let whole = decode(decoder(), &[&body], usize::MAX).map_err(|e| e.code());
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        let single = decode(decoder(), &bytes, usize::MAX).map_err(|e| e.code());
        prop_assert_eq!(&whole.as_ref().map(|w| &w.0), &single.as_ref().map(|s| &s.0));
        if let Ok((data, _)) = whole {
            prop_assert_eq!(data.len() as u64, length);
        }
    }

    #[test]
    fn a_signed_body_decodes_to_the_chunks_of_the_client(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..5),
        cuts in prop::collection::vec(1_usize..30, 1..20),
        max_bytes in 1_usize..50,
    ) {
        let all = chunks.concat();
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let body = signed_body(&chunks, &[(CRC, "AA==")]);
        let mut pieces = Vec::new();
        let mut rest = body.as_slice();
        for cut in cuts.iter().cycle() {
            let (piece, tail) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = tail;
            if rest.is_empty() { break; }
        }
        let (data, trailers) = decode(signed_decoder(all.len() as u64, true), &pieces, max_bytes).unwrap();
        prop_assert_eq!(data, all);
        prop_assert_eq!(&trailers[CRC], "AA==");
    }
}
