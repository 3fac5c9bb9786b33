//! Gzip compression (RFC 1952) of XML responses for clients that accept it (RFC 9110, 12.5.3). Uncompressed, a page of
//! a listing takes a new connection several round trips in slow start; compressed, it takes one.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue};

/// The minimum size of a compressed response: one that fits into a single packet does not arrive sooner.
const MIN_COMPRESSED_BYTES: usize = 1400;

/// The body of a response, compressed if the request accepts it and it is large enough. Sets the response's headers
/// accordingly.
pub(super) fn compress_body(request: &HeaderMap, response: &mut HeaderMap, bytes: Bytes) -> Bytes {
    if bytes.len() < MIN_COMPRESSED_BYTES || !is_accepted(request) {
        return bytes;
    }
    let mut compressed = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    // Writing to memory does not fail.
    let Ok(mut compressed) = compressed.write_all(&bytes).and_then(|()| compressed.finish()) else {
        return bytes;
    };
    compressed.shrink_to_fit();
    response.remove(CONTENT_LENGTH);
    response.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.append(VARY, HeaderValue::from_static("accept-encoding"));
    compressed.into()
}

/// Returns true if gzip is named with a weight above zero. `*` does not count, because it may not mean gzip.
fn is_accepted(request: &HeaderMap) -> bool {
    let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut words = coding.split(';').map(str::trim);
        let is_gzip = words.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = words.find_map(|word| word.strip_prefix("q=").or_else(|| word.strip_prefix("Q=")));
        is_gzip && weight.is_none_or(|weight| weight.parse().is_ok_and(|weight: f32| weight > 0.0))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn respond(accepted: &str, length: usize) -> (Bytes, HeaderMap) {
        let request = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::try_from(accepted).unwrap())]);
        let mut response = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from(length))]);
        let bytes = compress_body(&request, &mut response, vec![b'x'; length].into());
        (bytes, response)
    }

    #[test]
    fn clients_that_accept_gzip_get_it() {
        for accepted in ["gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip ; q=0.001"] {
            let (bytes, response) = respond(accepted, 5000);
            assert_eq!(
                (&response[CONTENT_ENCODING], &response[VARY]),
                (&"gzip".parse().unwrap(), &"accept-encoding".parse().unwrap())
            );
            assert!(!response.contains_key(CONTENT_LENGTH), "the length of the uncompressed body");
            let mut unzipped = Vec::new();
            GzDecoder::new(&bytes[..]).read_to_end(&mut unzipped).unwrap();
            assert_eq!(unzipped, [b'x'; 5000]);
        }
    }

    #[test]
    fn other_clients_and_small_bodies_are_not_compressed() {
        for (accepted, length) in [
            ("", 5000),
            ("identity", 5000),
            ("*", 5000),
            ("gzip;q=0", 5000),
            ("gzip;q=x", 5000),
            ("gzip", 1000),
        ] {
            let (bytes, response) = respond(accepted, length);
            assert_eq!(bytes.len(), length, "{accepted:?}");
            assert!(
                !response.contains_key(CONTENT_ENCODING) && response.contains_key(CONTENT_LENGTH),
                "{accepted:?}"
            );
        }
    }
}
