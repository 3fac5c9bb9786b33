//! Answers in XML as gzip (RFC 1952) for whoever accepts it (RFC 9110, 12.5.3). A page of 300 keys has 90 KB, which takes a
//! new connection three round trips; zipped, it comes in one.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue};

/// What fits into one packet comes no sooner.
const SMALLEST: usize = 1400;

/// The body of an answer, zipped where the request accepts that and it helps; the answer's headers then say so.
pub(super) fn body(request: &HeaderMap, answer: &mut HeaderMap, bytes: Bytes) -> Bytes {
    if bytes.len() < SMALLEST || !is_accepted(request) {
        return bytes;
    }
    let mut zipped = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    // Memory takes all that is written to it.
    let Ok(mut zipped) = zipped.write_all(&bytes).and_then(|()| zipped.finish()) else { return bytes };
    zipped.shrink_to_fit();
    answer.remove(CONTENT_LENGTH);
    answer.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer.append(VARY, HeaderValue::from_static("accept-encoding"));
    zipped.into()
}

/// Whether gzip is named, with a weight above zero. `*` does not count: who takes anything may mean what is there.
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

    fn of(accepted: &str, length: usize) -> (Bytes, HeaderMap) {
        let request = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::try_from(accepted).unwrap())]);
        let mut answer = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from(length))]);
        let bytes = body(&request, &mut answer, vec![b'x'; length].into());
        (bytes, answer)
    }

    #[test]
    fn who_accepts_it_gets_it() {
        for accepted in ["gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip ; q=0.001"] {
            let (bytes, answer) = of(accepted, 5000);
            assert_eq!(
                (&answer[CONTENT_ENCODING], &answer[VARY]),
                (&"gzip".parse().unwrap(), &"accept-encoding".parse().unwrap())
            );
            assert!(!answer.contains_key(CONTENT_LENGTH), "that of before");
            let mut unzipped = Vec::new();
            GzDecoder::new(&bytes[..]).read_to_end(&mut unzipped).unwrap();
            assert_eq!(unzipped, [b'x'; 5000]);
        }
    }

    #[test]
    fn nobody_else_does() {
        for (accepted, length) in [
            ("", 5000),
            ("identity", 5000),
            ("*", 5000),
            ("gzip;q=0", 5000),
            ("gzip;q=x", 5000),
            ("gzip", 1000),
        ] {
            let (bytes, answer) = of(accepted, length);
            assert_eq!(bytes.len(), length, "{accepted:?}");
            assert!(
                !answer.contains_key(CONTENT_ENCODING) && answer.contains_key(CONTENT_LENGTH),
                "{accepted:?}"
            );
        }
    }
}
