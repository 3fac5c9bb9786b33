//! Compares the verifier of requests with an independent client and an independent check of signatures.

use std::collections::BTreeMap;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri, header};
use percent_encoding::percent_decode;

use super::client;
use super::input::Input;
use crate::sigv4::{BodyDeclaration, Verified};

/// Verifies a request. Any request must be verified without a panic, and accepted for a key only if the independent
/// check agrees. A request signed by a client must be accepted; with one bit flipped it must be rejected, unless its
/// meaning is unchanged.
pub fn signature(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() {
        // A zero or a letter: a corpus may contain requests as text.
        0 | b'A'..=b'Z' => any_request(data.strip_prefix(b"\0").unwrap_or(data)),
        _ => signed_request(&mut input),
    }
}

fn any_request(text: &[u8]) {
    let Some(parts) = parse(text) else { return };
    if verify(&parts).is_some() {
        assert!(is_correctly_signed(&parts), "a request with a wrong signature was accepted: {parts:?}");
    }
}

fn signed_request(input: &mut Input<'_>) {
    let in_query = input.flag();
    let (mut parts, word) = unsigned_parts(input, in_query);
    if in_query {
        sign_query(&mut parts, word, input.byte())
    } else {
        sign_header(&mut parts, word)
    }
    let verified = verify(&parts).unwrap_or_else(|| panic!("a signed request was rejected: {parts:?}"));
    let is_as_declared = match verified.declared {
        BodyDeclaration::Unsigned => word == "UNSIGNED-PAYLOAD",
        BodyDeclaration::Sha256(hash) => word == hex::encode(hash),
        BodyDeclaration::SignedChunks { has_trailers, .. } => {
            word == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" && has_trailers
                || word == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" && !has_trailers
        }
        BodyDeclaration::UnsignedChunks => word == "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    };
    assert!(
        is_as_declared && verified.presigned == in_query,
        "{word} was verified as another declaration: {parts:?}"
    );

    let mut wire = render(&parts);
    assert!(parse(&wire).is_some_and(|same| meaning(&same) == meaning(&parts)));
    for _ in 0..4 {
        let (at, bit) = (input.index(wire.len()), input.byte() % 8);
        wire[at] ^= 1 << bit;
        if let Some(flipped) = parse(&wire)
            && meaning(&flipped) != meaning(&parts)
        {
            assert!(verify(&flipped).is_none(), "byte {at} was changed from {parts:?} to {flipped:?}");
        }
        wire[at] ^= 1 << bit;
    }
}

/// The result of the verifier; `None` for a rejected request and for one without a key.
fn verify(parts: &Parts) -> Option<Verified> {
    let verified = client::VERIFIER.verify(parts).ok()?;
    verified.identity.key_id().is_some().then_some(verified)
}

/// A request that a client might send, and the value of its `x-amz-content-sha256`.
fn unsigned_parts(input: &mut Input<'_>, in_query: bool) -> (Parts, &'static str) {
    const WORDS: [&str; 5] = [
        "UNSIGNED-PAYLOAD",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    ];
    const NAMES: [&str; 7] = [
        "x-amz-meta-a",
        "x-amz-meta-b",
        "x-amz-copy-source",
        "x-dss-object-class",
        "range",
        "content-type",
        "content-md5",
    ];
    let word = input.choose(&WORDS);
    let method = input.choose(&["GET", "HEAD", "PUT", "POST", "DELETE"]);
    let mut target = format!("/{}", encode(input.length_prefixed(24), b"/"));
    let query: Vec<(Vec<u8>, Vec<u8>)> = (0..input.byte() % 4)
        .map(|_| (input.length_prefixed(8).to_vec(), input.length_prefixed(12).to_vec()))
        .filter(|(name, _)| !is_signature_parameter(name))
        .collect();
    for (i, (name, value)) in query.iter().enumerate() {
        target.push(if i == 0 { '?' } else { '&' });
        target.push_str(&format!("{}={}", encode(name, b""), encode(value, b"")));
    }
    let mut request = Request::builder().method(method).uri(&target).header("host", "127.0.0.1:9000");
    for _ in 0..input.byte() % 4 {
        let name = input.choose(&NAMES);
        // Spaces but no tabs: clients disagree whether a single tab becomes a space.
        let value: Vec<u8> =
            input.length_prefixed(16).iter().copied().filter(|c| *c >= b' ' && *c != 0x7f).collect();
        request = request.header(name, value);
    }
    if !in_query {
        request = request.header("x-amz-date", client::DATE).header("x-amz-content-sha256", word);
    }
    (request.body(()).unwrap().into_parts().0, word)
}

/// Returns true if the parameter belongs to the signature, so that a client never sends it as its own.
fn is_signature_parameter(name: &[u8]) -> bool {
    name.starts_with(b"X-Amz-") || matches!(name, b"Signature" | b"AWSAccessKeyId")
}

fn sign_header(parts: &mut Parts, word: &str) {
    let meaning = meaning(parts).unwrap();
    let names = meaning.names();
    let signature = meaning.signature(client::DATE, client::SCOPE, &names, word.as_bytes());
    let value = format!(
        "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={names}, Signature={signature}",
        client::ID,
        client::SCOPE
    );
    parts.headers.insert(header::AUTHORIZATION, value.parse().unwrap());
}

fn sign_query(parts: &mut Parts, word: &str, expires: u8) {
    let names = meaning(parts).unwrap().names();
    let mut query = format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}&X-Amz-Date={}&X-Amz-Expires={expires}\
         &X-Amz-SignedHeaders={}",
        encode(format!("{}/{}", client::ID, client::SCOPE).as_bytes(), b""),
        client::DATE,
        encode(names.as_bytes(), b"")
    );
    if word != "UNSIGNED-PAYLOAD" || expires.is_multiple_of(2) {
        query.push_str(&format!("&X-Amz-Content-Sha256={word}"));
    }
    if let Some(more) = parts.uri.query() {
        query = format!("{more}&{query}");
    }
    let path = parts.uri.path().to_owned();
    parts.uri = format!("{path}?{query}").parse().unwrap();
    let meaning = meaning(parts).unwrap();
    let signature = meaning.signature(client::DATE, client::SCOPE, &names, word.as_bytes());
    parts.uri = format!("{path}?{query}&X-Amz-Signature={signature}").parse().unwrap();
}

/// The meaning of a request, independent of its encoding.
#[derive(Debug, PartialEq)]
struct Meaning {
    method: Method,
    path: Vec<u8>,
    /// Sorted as encoded. A signature's digits are in lower case.
    query: Vec<(String, String)>,
    /// Spaces folded, values of one name joined. A signature's digits are in lower case.
    headers: BTreeMap<String, Vec<u8>>,
}

/// The meaning of a request; `None` if an escape is malformed.
fn meaning(parts: &Parts) -> Option<Meaning> {
    // A target without a path means the root.
    let path = Some(parts.uri.path()).filter(|path| !path.is_empty()).unwrap_or("/");
    let mut query = Vec::new();
    for pair in parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let canonical = |text: &str| Some(encode(&decode(&text.replace('+', " "))?, b""));
        let (name, mut value) = (canonical(name)?, canonical(value)?);
        if name == "X-Amz-Signature" {
            value.make_ascii_lowercase();
        }
        query.push((name, value));
    }
    query.sort_unstable();
    let mut headers: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (name, value) in &parts.headers {
        let words = value.as_bytes().split(|c| matches!(c, b' ' | b'\t'));
        let mut value = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(&b' ');
        if name == header::AUTHORIZATION {
            let digits = value.len().saturating_sub(64);
            value[digits..].make_ascii_lowercase();
        }
        match headers.get_mut(name.as_str()) {
            Some(values) => values.extend_from_slice(&[b",", &value[..]].concat()),
            None => drop(headers.insert(name.to_string(), value)),
        }
    }
    Some(Meaning { method: parts.method.clone(), path: decode(path)?, query, headers })
}

impl Meaning {
    fn names(&self) -> String {
        self.headers.keys().cloned().collect::<Vec<_>>().join(";")
    }

    fn signature(&self, date: &str, scope: &str, names: &str, word: &[u8]) -> String {
        let pairs = self.query.iter().filter(|(name, _)| name != "X-Amz-Signature");
        let query: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
        let mut text =
            format!("{}\n{}\n{}\n", self.method, encode(&self.path, b"/"), query.join("&")).into_bytes();
        for name in names.split(';') {
            let value = self.headers.get(name).map_or(&b""[..], Vec::as_slice);
            text.extend_from_slice(&[name.as_bytes(), b":", value, b"\n"].concat());
        }
        text.extend_from_slice(&[b"\n", names.as_bytes(), b"\n", word].concat());
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", client::sha256(&text));
        client::sign(scope, text.as_bytes())
    }
}

/// Returns true if a request that was accepted for the key is signed by it. Finds the claim's fields by a simple
/// search, since the verifier has checked its syntax.
fn is_correctly_signed(parts: &Parts) -> bool {
    let Some(meaning) = meaning(parts) else { return false };
    let text = |name: &str| Some(String::from_utf8_lossy(meaning.headers.get(name)?).into_owned());
    let parameter = |wanted: &str| {
        let (_, value) = meaning.query.iter().find(|(name, _)| name == wanted)?;
        Some(String::from_utf8_lossy(&decode(value)?).into_owned())
    };
    let authorization = text("authorization");
    let field = |wanted: &str| match &authorization {
        Some(claim) => {
            let (_, value) = claim.split_once(&format!("{wanted}="))?;
            Some(value.split(',').next()?.trim().to_owned())
        }
        None => parameter(&format!("X-Amz-{wanted}")),
    };
    // A date in HTTP's other format is parsed by a library and not checked again here.
    let date = match (&authorization, text("x-amz-date")) {
        (Some(_), None) => return true,
        (Some(_), date) => date,
        (None, _) => parameter("X-Amz-Date"),
    };
    let word = parameter("X-Amz-Content-Sha256").filter(|_| authorization.is_none());
    let word = word.or_else(|| text("x-amz-content-sha256")).unwrap_or("UNSIGNED-PAYLOAD".to_owned());
    let claim = (field("Credential"), field("SignedHeaders"), field("Signature"), date);
    let (Some(credential), Some(names), Some(claimed), Some(date)) = claim else { return false };
    let Some(scope) = credential.strip_prefix(&format!("{}/", client::ID)) else { return false };
    let is_there = |name: &str| meaning.headers.contains_key(name);
    let must_be_signed = |name: &str| {
        name == "host" || name == "content-md5" || name.starts_with("x-amz-") || name.starts_with("x-dss-")
    };
    let all_are_signed =
        meaning.headers.keys().all(|name| !must_be_signed(name) || names.split(';').any(|n| n == name));
    all_are_signed
        && names.split(';').all(is_there)
        && claimed.eq_ignore_ascii_case(&meaning.signature(&date, scope, &names, word.as_bytes()))
}

/// A request as lines: method and target, then headers.
fn render(parts: &Parts) -> Vec<u8> {
    let mut text = format!("{} {}\n", parts.method, parts.uri).into_bytes();
    for (name, value) in &parts.headers {
        text.extend_from_slice(&[name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat());
    }
    text
}

/// Parses such lines; `None` if they are no request.
fn parse(text: &[u8]) -> Option<Parts> {
    let mut lines = text.split(|c| *c == b'\n');
    let mut line = lines.next()?.splitn(2, |c| *c == b' ');
    let method = Method::from_bytes(line.next()?).ok()?;
    let uri = Uri::try_from(line.next()?).ok()?;
    let mut parts = Request::new(()).into_parts().0;
    (parts.method, parts.uri) = (method, uri);
    for line in lines.take_while(|line| !line.is_empty()) {
        let colon = line.iter().position(|c| *c == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(&line[colon + 1..]).ok()?;
        parts.headers.try_append(name, value).ok()?;
    }
    Some(parts)
}

/// Encodes everything except unreserved characters and those in `cache_signing_key` as `%XX`.
fn encode(bytes: &[u8], keep: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || keep.contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let is_escape = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    text.split('%').skip(1).all(is_escape).then(|| percent_decode(text.as_bytes()).collect())
}
