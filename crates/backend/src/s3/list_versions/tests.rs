use super::*;

const SIZE: &str = "<Size>5</Size>";

fn parse(document: &str) -> Result<VersionsPage> {
    parse_page(document.as_bytes())
}

fn entry(element: &str, key: &str, version: &str, more: &str) -> String {
    format!(
        "<{element}><Key>{key}</Key><VersionId>{version}</VersionId>\
         <LastModified>2026-01-02T03:04:05.678Z</LastModified>{more}</{element}>"
    )
}

fn listing(entries: &[String], more: &str) -> String {
    format!(
        "<ListVersionsResult><EncodingType>url</EncodingType>{}{more}</ListVersionsResult>",
        entries.concat()
    )
}

#[test]
fn versions_and_delete_markers_keep_their_order() {
    let latest = "<IsLatest>true</IsLatest>";
    let object = "<IsLatest>false</IsLatest><Size>5</Size><ETag>&quot;x&quot;</ETag>";
    let entries = [
        entry("Version", "a+b", "z1", object),
        entry("DeleteMarker", "k", "m2", latest),
        entry("Version", "k", "z9", object),
        entry("DeleteMarker", "k", "m1", ""),
        entry("Version", "k", "null", object),
    ];
    let prefix = "<CommonPrefixes><Prefix>b%2F</Prefix></CommonPrefixes>";
    let page = parse(&listing(&entries, prefix)).unwrap();
    let labels: Vec<String> = page
        .entries
        .iter()
        .map(|entry| match entry {
            ListEntry::Key(key, listed) => {
                let size = listed.object.as_ref().map(|object| object.size);
                format!("{key} {} {} {size:?}", listed.version, listed.is_latest)
            }
            ListEntry::CommonPrefix(prefix) => prefix.clone(),
        })
        .collect();
    let expected = [
        "a b z1 false Some(5)",
        "b/",
        "k m2 true None",
        "k z9 false Some(5)",
        "k m1 false None",
        "k null false Some(5)",
    ];
    assert_eq!(labels, expected);
    let ListEntry::Key(_, null) = &page.entries[5] else { panic!("the last entry is not a version") };
    assert_eq!((&null.version, null.modified.millis()), (&VersionId::Null, 1_767_323_045_000));
    assert_eq!(page.next, None);
}

#[test]
fn next_position_is_decoded_or_that_of_the_last_entry() {
    let truncated = "<IsTruncated>true</IsTruncated>";
    let last = [entry("Version", "a%2Bb", "v2", SIZE)];
    let at = |key: &str, version: &str| {
        let version = Some(VersionId::parse(version).unwrap());
        Some(VersionPosition { key: key.to_owned(), version })
    };
    let marker = |key: &str, version: &str| {
        let version = format!("<NextVersionIdMarker>{version}</NextVersionIdMarker>");
        format!("{truncated}<NextKeyMarker>{key}</NextKeyMarker>{version}")
    };
    for (more, next) in [
        (truncated.to_owned(), at("a+b", "v2")),
        (marker("a%2Bb", "v2"), at("a+b", "v2")),
        // As radosgw sends it.
        (marker("a+b", "v2"), at("a+b", "v2")),
        (marker("z%25", "null"), at("z%", "null")),
    ] {
        assert_eq!(parse(&listing(&last, &more)).unwrap().next, next, "{more}");
    }
    let prefix = format!("{truncated}<CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>");
    let next = parse(&listing(&[], &prefix)).unwrap().next;
    assert_eq!(next, Some(VersionPosition { key: "d/".to_owned(), version: None }));
}

#[test]
fn listing_of_objects_is_unsupported() {
    let page = parse("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
    assert_eq!(page.unwrap_err().reason(), Reason::Unsupported);
}

#[test]
fn incomplete_or_unordered_pages_are_rejected() {
    let truncated = "<IsTruncated>true</IsTruncated>";
    let unordered = [entry("Version", "b", "v1", SIZE), entry("Version", "a", "v1", SIZE)];
    for bad in [
        listing(&[], truncated),
        listing(&unordered, truncated),
        listing(&[entry("Version", "a", "", SIZE)], ""),
        listing(&[entry("Version", "a", "v1", "")], ""),
        listing(&["<Version><Key>a</Key><VersionId>v</VersionId></Version>".to_owned()], ""),
        "<ListVersionsResult>".to_owned(),
        "<Welcome></Welcome>".to_owned(),
    ] {
        assert_eq!(parse(&bad).unwrap_err().reason(), Reason::Io, "{bad}");
    }
}
