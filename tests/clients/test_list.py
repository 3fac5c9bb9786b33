"""Listing: order, delimiters, pages, markers, encoding; ListObjects and ListObjectsV2."""

import itertools
import urllib.parse

import pytest

from expect import refused, s3_error
from wire import quote

FLAT = ["a", "a/b", "a/b/c", "a/c", "b", "b-1", "b/", "b/x", "c//d", "c//e", "c/f", "d", "ü/1", "ü/2"]


def put_all(raw, bucket, names, crowd):
    """PUTs many small objects over a few persistent connections."""
    results = crowd(lambda name: raw.kept("PUT", f"/{bucket}/{quote(name)}", body=b"x").status, names, threads=8)
    assert set(results) == {200}


def by_bytes(names):
    return sorted(names, key=str.encode)


@pytest.fixture(scope="module")
def flat(raw, bucket, crowd):
    put_all(raw, bucket, FLAT, crowd)
    return bucket


def keys_of(page):
    return [o["Key"] for o in page.get("Contents", [])]


def prefixes_of(page):
    return [p["Prefix"] for p in page.get("CommonPrefixes", [])]


def pages(s3, operation, limit=1000, **options):
    """All pages of a listing, which must end within `limit` pages."""
    found = list(itertools.islice(s3.get_paginator(operation).paginate(**options), limit + 1))
    assert len(found) <= limit, "pages do not end"
    return found


def expected(names, prefix="", delimiter="", after=""):
    """The reference: the expected listing of `names`, as (keys, common prefixes)."""
    keys, prefixes = [], []
    for name in by_bytes(names):
        if not name.startswith(prefix) or name.encode() <= after.encode():
            continue
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            keys.append(name)
        elif (common := name[: cut + len(delimiter)]) not in prefixes:
            prefixes.append(common)
    return keys, prefixes


SHAPES = [
    {},
    {"prefix": "a"},
    {"prefix": "a/"},
    {"prefix": "nothing"},
    {"prefix": "ü"},
    {"delimiter": "/"},
    {"delimiter": "/", "prefix": "a/"},
    {"delimiter": "/", "prefix": "a"},
    {"delimiter": "/", "prefix": "b/"},
    {"delimiter": "/", "prefix": "c/"},
    {"delimiter": "//"},
    {"delimiter": "/b"},
    {"delimiter": "-", "prefix": "b"},
    {"delimiter": "absent"},
    {"delimiter": "ü"},
]


def names_id(shape):
    return ",".join(f"{k}={v}" for k, v in shape.items()) or "all"


@pytest.mark.parametrize("shape", SHAPES, ids=names_id)
def test_shape_in_both_versions(s3, flat, shape):
    keys, prefixes = expected(FLAT, **shape)
    options = {name.title(): value for name, value in shape.items()}
    one = s3.list_objects(Bucket=flat, **options)
    two = s3.list_objects_v2(Bucket=flat, **options)
    for page in (one, two):
        assert keys_of(page) == keys and prefixes_of(page) == prefixes
        assert not page["IsTruncated"] and page["MaxKeys"] == 1000 and page["Name"] == flat
        assert urllib.parse.unquote_plus(page.get("Prefix", "")) == shape.get("prefix", "")  # boto3 decodes it for v2 only
        assert page.get("Delimiter", "") == shape.get("delimiter", "")
    assert two["KeyCount"] == len(keys) + len(prefixes)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s.get("prefix") != "nothing"], ids=names_id)
def test_pages_add_up(s3, flat, shape, size):
    """Any page size returns each entry once, in order, in both versions."""
    keys, prefixes = expected(FLAT, **shape)
    options = {name.title(): value for name, value in shape.items()}
    for operation in ("list_objects", "list_objects_v2"):
        found_keys, found_prefixes = [], []
        for page in pages(s3, operation, len(FLAT), Bucket=flat, MaxKeys=size, **options):
            count = len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
            assert count == size or (not page["IsTruncated"] and count <= size)
            found_keys += keys_of(page)
            found_prefixes += prefixes_of(page)
        assert (found_keys, found_prefixes) == (keys, prefixes), operation


def test_entries_are_complete(s3, flat):
    for entry in s3.list_objects_v2(Bucket=flat, FetchOwner=True)["Contents"]:
        assert entry["Size"] == 1 and entry["ETag"].startswith('"') and entry["LastModified"] and entry["StorageClass"] == "STANDARD"
        assert entry["Owner"]["ID"]
    assert "Owner" not in s3.list_objects_v2(Bucket=flat)["Contents"][0]
    assert "Owner" in s3.list_objects(Bucket=flat)["Contents"][0]


def test_max_keys_zero(s3, flat):
    one, two = s3.list_objects(Bucket=flat, MaxKeys=0), s3.list_objects_v2(Bucket=flat, MaxKeys=0)
    for page in (one, two):
        assert keys_of(page) == [] and page["IsTruncated"] is False and page["MaxKeys"] == 0
    assert two["KeyCount"] == 0


def test_max_keys_is_limited_to_a_thousand(s3, flat):
    assert s3.list_objects_v2(Bucket=flat, MaxKeys=5000)["MaxKeys"] == 1000


@pytest.mark.parametrize("query", ["max-keys=-1", "max-keys=abc", "max-keys=1.5", "max-keys=99999999999999999999", "encoding-type=base64"])
def test_bad_parameter(raw, flat, query):
    for version in ("", "list-type=2&"):
        refused(raw.request("GET", f"/{flat}", version + query), "InvalidArgument", 400)


@pytest.mark.parametrize("after", ["", "a", "a/b", "a/bb", "b/", "d", "~", "zzz", "c//"])
def test_marker_and_start_after(s3, flat, after):
    keys, _ = expected(FLAT, after=after)
    assert keys_of(s3.list_objects(Bucket=flat, Marker=after)) == keys
    assert keys_of(s3.list_objects_v2(Bucket=flat, StartAfter=after)) == keys


def test_marker_inside_a_common_prefix(s3, flat):
    page = s3.list_objects(Bucket=flat, Delimiter="/", Marker="a/b")
    assert prefixes_of(page)[0] == "a/"  # a/b/c and a/c still follow the marker
    page = s3.list_objects(Bucket=flat, Delimiter="/", Marker="a/")
    assert "a/" not in prefixes_of(page), "a marker that is a common prefix has been seen"


def test_next_marker_is_returned_with_a_delimiter(s3, flat):
    page = s3.list_objects(Bucket=flat, Delimiter="/", MaxKeys=2)
    assert (keys_of(page), prefixes_of(page), page["NextMarker"]) == (["a"], ["a/"], "a/")


def test_a_token_overrides_start_after(s3, flat):
    first = s3.list_objects_v2(Bucket=flat, MaxKeys=3, StartAfter="a")
    assert first["StartAfter"] == "a"
    rest = s3.list_objects_v2(Bucket=flat, ContinuationToken=first["NextContinuationToken"], StartAfter="zzz")
    assert keys_of(first) + keys_of(rest) == expected(FLAT, after="a")[0]
    assert rest["ContinuationToken"] == first["NextContinuationToken"]


@pytest.mark.parametrize("token", ["", "garbage", "%21%21%21", "AAAA"])
def test_bad_token(raw, flat, token):
    refused(raw.request("GET", f"/{flat}", f"continuation-token={token}&list-type=2"), "InvalidArgument", 400)


def test_url_encoding(raw, fresh_bucket):
    names = ["a b", "a+b", "a%b", "a&b", "ü", "x/y/z", "\x01", "<tag>", "d/ü 1/k"]
    for name in names:
        assert raw.request("PUT", f"/{fresh_bucket}/{quote(name)}", body=b"x").status == 200
    for version in ("", "&list-type=2"):
        page = raw.request("GET", f"/{fresh_bucket}", "encoding-type=url" + version).xml()
        assert page.findtext("EncodingType") == "url"
        found = [e.text for e in page.iter("Key")]
        assert [urllib.parse.unquote_plus(text) for text in found] == by_bytes(names)
        assert "x/y/z" in found and not any(c in text for text in found for c in " ü<&\x01")
        query = f"delimiter=%20&encoding-type=url{version}&prefix=d%2F%C3%BC"
        page = raw.request("GET", f"/{fresh_bucket}", query).xml()
        assert urllib.parse.unquote_plus(page.findtext("CommonPrefixes/Prefix")) == "d/ü "
        assert urllib.parse.unquote_plus(page.findtext("Prefix")) == "d/ü"
        assert page.findtext("Delimiter") in ("%20", "+")


def test_without_encoding_xml_is_escaped(raw, bucket, flat, key):
    name = f"{key}<&>\"'ü"
    assert raw.request("PUT", f"/{bucket}/{quote(name)}", body=b"x").status == 200
    page = raw.request("GET", f"/{bucket}", f"prefix={quote(key, '')}").xml()
    assert [e.text for e in page.iter("Key")] == [name] and page.find("EncodingType") is None
    raw.request("DELETE", f"/{bucket}/{quote(name)}")


def test_three_thousand_keys(s3, raw, fresh_bucket, crowd):
    """Pages of a thousand keys contain the whole set in UTF-8 byte order, which differs from UTF-16 order."""
    letters = ["a", "B", "-", "~", "é", "\uffee", "\U00010000", "😀", "z/", "ß "]
    names = [f"{one}{two}{n}" for one, two, n in itertools.product(letters, letters, range(30))]
    put_all(raw, fresh_bucket, names, crowd)
    two = pages(s3, "list_objects_v2", 5, Bucket=fresh_bucket)
    one = pages(s3, "list_objects", 5, Bucket=fresh_bucket)
    for found in (two, one):
        assert [key for page in found for key in keys_of(page)] == by_bytes(names)
    assert len(two) == 3
    shallow = pages(s3, "list_objects_v2", 1000, Bucket=fresh_bucket, Delimiter="/", MaxKeys=7)
    keys, prefixes = expected(names, delimiter="/")
    assert [key for page in shallow for key in keys_of(page)] == keys
    assert [prefix for page in shallow for prefix in prefixes_of(page)] == prefixes


def test_a_listing_shows_every_acknowledged_change(raw, fresh_bucket):
    """Each PUT and DELETE is visible in the next listing."""
    present = set()
    for step in range(60):
        name = f"k{step * 7 % 20:02}"
        if name in present:
            assert raw.kept("DELETE", f"/{fresh_bucket}/{name}").status == 204
            present.remove(name)
        else:
            assert raw.kept("PUT", f"/{fresh_bucket}/{name}", body=b"x").status == 200
            present.add(name)
        page = raw.kept("GET", f"/{fresh_bucket}", "list-type=2").xml()
        assert [e.text for e in page.iter("Key")] == sorted(present)


def test_prefix_over_1024_bytes(s3, flat):
    try:
        page = s3.list_objects_v2(Bucket=flat, Prefix="x" * 1025)
    except s3.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] in ("KeyTooLongError", "InvalidArgument")
    else:
        assert page["KeyCount"] == 0


def test_list_of_a_missing_bucket(s3, temporary_names):
    with s3_error("NoSuchBucket", 404):
        s3.list_objects_v2(Bucket=temporary_names("missing"), MaxKeys=0)
