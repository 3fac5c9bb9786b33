use super::*;
use proptest::prelude::*;

/// Simulates how Swift changes headers: trims blanks, changes the case of names, and drops names like `a_b`.
fn through_swift(sent: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let (mut bytes, mut count) = (0, 0);
    for (name, value) in sent {
        let text = value.to_str().expect("printable").trim().to_owned();
        if let Some(short) = name.as_str().strip_prefix(USER_PREFIX) {
            assert!(text.len() <= 256 && short.len() <= 128, "{name}: {text}");
            (bytes, count) = (bytes + short.len() + text.len(), count + 1);
            assert!(!name.as_str().contains('_'));
        }
        if name.as_str().starts_with(USER_PREFIX) || name.as_str().starts_with("content-") {
            headers.insert(name.clone(), HeaderValue::try_from(text).expect("it was one"));
        }
    }
    assert!(bytes <= 4096 && count <= 90, "{bytes} bytes in {count}");
    headers
}

fn assert_round_trip(stored: &StoredMetadata) {
    let written = stored.encode().expect("it can be written");
    let headers = through_swift(&written.headers);
    assert_eq!(written.overflow.is_some(), StoredMetadata::companion_id(&headers).is_some());
    assert_eq!(
        &StoredMetadata::decode(&headers, written.overflow.as_deref()).expect("it can be read"),
        stored
    );
    let marker = StoredMetadata { metadata: stored.metadata.clone(), ..StoredMetadata::default() };
    assert_eq!(StoredMetadata::from_json(&marker.to_json()).expect("it can be read"), marker);
}

#[test]
fn checksums_tags_and_ids_round_trip() {
    let metadata = Metadata {
        tags: Tags::new(vec![("b".to_owned(), "2".to_owned()), ("ü".to_owned(), "π".to_owned())]).unwrap(),
        ..Metadata::default()
    };
    assert_round_trip(&StoredMetadata {
        metadata,
        etag: Some(ETag::from_tag("0123-4")),
        checksums: Algorithm::ALL.map(|algorithm| Checksum::compute(algorithm, b"x")).to_vec(),
        scope: Some(ChecksumScope::Composite),
        parts: Some(4),
        id: Some("0000-1".to_owned()),
    });
}

#[test]
fn listed_content_types_have_the_storage_class() {
    let mut stored = StoredMetadata::default();
    stored.metadata.headers.storage_class = Some("STANDARD_IA".to_owned());
    stored.metadata.headers.content_type = Some("text/plain; charset=utf-8".to_owned());
    for etag in [None, Some(ETag::from_tag("0123-4"))] {
        stored.etag = etag.clone();
        assert_round_trip(&stored);
        let headers = stored.encode().unwrap().headers;
        let listed = ListedType::parse(headers[CONTENT_TYPE].to_str().unwrap());
        assert_eq!(listed.media_type, "text/plain; charset=utf-8");
        assert_eq!((listed.etag, listed.storage_class), (etag, Some("STANDARD_IA")));
    }
    stored.metadata.headers.content_type = Some(format!("text/plain{CLASS_SUFFIX}x"));
    assert_round_trip(&stored);
}

#[test]
fn later_algorithms_have_a_separate_header() {
    let later = Checksum::compute(Algorithm::XxHash3, b"x");
    let stored = StoredMetadata {
        checksums: vec![Checksum::compute(Algorithm::Crc32, b"x"), later],
        ..StoredMetadata::default()
    };
    let mut headers = stored.encode().unwrap().headers;
    let first = headers[own_header("checksums")].to_str().unwrap();
    assert!(first.starts_with("CRC32=") && !first.contains(' '), "{first}");
    headers
        .insert(own_header("later-checksums"), HeaderValue::from_static("BLAKE4=abcd XXHASH3=ctyxi2ehff8="));
    let read = StoredMetadata::decode(&headers, None).unwrap().checksums;
    let of_nine = Checksum::compute(Algorithm::XxHash3, b"123456789");
    assert_eq!(read, [Checksum::compute(Algorithm::Crc32, b"x"), of_nine], "unknown algorithms are ignored");
}

#[test]
fn read_accepts_metadata_of_other_clients() {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("image/png"));
    headers.insert("x-object-meta-colour", HeaderValue::from_static("green"));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    let stored = StoredMetadata::decode(&headers, None).unwrap();
    assert_eq!(stored.metadata.headers.content_type.as_deref(), Some("image/png"));
    assert_eq!(stored.metadata.headers.cache_control.as_deref(), Some("no-store"));
    assert_eq!(stored.metadata.user, [("colour".to_owned(), "green".to_owned())]);
}

#[test]
fn read_rejects_invalid_metadata() {
    for (name, text) in
        [("checksums", "x"), ("checksums", "CRC32=!"), ("parts", "x"), ("scope", "x"), ("more-0", "!")]
    {
        let mut headers = HeaderMap::new();
        headers.insert(own_header(name), HeaderValue::from_static(text));
        assert!(StoredMetadata::decode(&headers, None).is_err(), "{name}: {text}");
    }
}

proptest! {
    #[test]
    fn metadata_round_trips(
        user in prop::collection::btree_map("[a-zA-Z0-9_.-]{1,20}", ".{0,300}", 0..8),
        kind in prop::option::of("[ -~é\t]{1,300}"),
        language in prop::option::of(".{1,40}"),
        class in prop::option::of(0_u8..32),
    ) {
        let mut metadata = Metadata { user: user.into_iter().collect(), ..Metadata::default() };
        metadata.headers.content_type = kind.filter(|kind| kind != DEFAULT_TYPE);
        metadata.headers.content_language = language;
        metadata.classes.object = class.map(|class| Classes::parse_object(&class.to_string()).unwrap());
        metadata.classes.retention = class.and_then(|class| Retention::new(1 << 33, class.into()).ok());
        assert_round_trip(&StoredMetadata { metadata, id: Some("w".to_owned()), ..StoredMetadata::default() });
    }
}
