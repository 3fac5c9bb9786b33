"""Keys are sequences of UTF-8 bytes: they are not folded, trimmed, normalised or decoded twice."""

import pytest

import wire
from expect import body_of, refused

ODD_KEYS = [
    "..", ".", "a/../b", "../up", "./here", "a//b", "//", "/", "/lead", "trail/", " ", "a b", " lead", "trail ", "+", "a+b", "%", "%2F", "%25", "100%",
    "ü", "e\u0301", "é", "日本", "😀", "\u2028", "\ufeffbom", "<&>\"'", "a?b", "a#b", "a;b=c", "a:b@c", "~*()!", "back\\slash", "tab\there", "new\nline",
    "\x01", "\x7f", "{}[]|^`", "CON", "a" * 1024, "ü" * 512, "d/" * 512, "index.html", "?versions", "x&amp;y",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_KEYS, ids=lambda name: ascii(name[:20]))
def test_odd_key(s3, raw, bucket, name):
    path = f"/{bucket}/{wire.quote(name)}"
    body = b"body of " + name.encode()
    assert raw.request("PUT", path, body=body).status == 200
    assert raw.request("HEAD", path).status == 200
    assert raw.request("GET", path).body == body
    assert body_of(s3, bucket, name) == body
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=name).get("Contents", [])
    assert name in [o["Key"] for o in listed]
    if is_xml(name):
        deleted = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": name}]})["Deleted"]
        assert [d["Key"] for d in deleted] == [name]
        assert raw.request("HEAD", path).status == 404
    assert raw.request("DELETE", path).status == 204
    assert raw.request("HEAD", path).status == 404


def is_xml(text):
    """True if XML 1.0 can represent the text unescaped and unchanged, as boto3's multi-delete requires."""
    return all(" " <= c != "\x7f" for c in text)


def test_odd_keys_are_different_objects(s3, raw, bucket, key):
    """Keys are not folded, trimmed, normalised or decoded twice."""
    names = ["a/b", "a//b", "a/./b", "a/../a/b", "/a/b", "a/b/", "A/b", "a%2Fb", "a%252Fb", "a+b", "a b", "a%20b", "é", "e\u0301"]
    for name in names:
        assert raw.request("PUT", f"/{bucket}/{key}/{wire.quote(name)}", body=name.encode()).status == 200
    for name in names:
        assert raw.request("GET", f"/{bucket}/{key}/{wire.quote(name)}").body == name.encode()
    assert s3.list_objects_v2(Bucket=bucket, Prefix=f"{key}/")["KeyCount"] == len(names)


@pytest.mark.parametrize("name", ["a" * 1025, "ü" * 512 + "x"], ids=["ascii", "utf-8"])
def test_key_over_1024_bytes(raw, bucket, name):
    path = f"/{bucket}/{wire.quote(name)}"
    refused(raw.request("PUT", path, body=b"x"), "KeyTooLongError", 400)
    refused(raw.request("GET", path), "KeyTooLongError", 400)
    refused(raw.request("POST", path, "uploads="), "KeyTooLongError", 400)
    refused(raw.request("PUT", path, headers={"x-amz-copy-source": f"/{bucket}/none"}), "KeyTooLongError", 400)
