"""Objects: bytes are returned as stored, and each read returns one version."""

import hashlib
import os

import pytest

from expect import absent, body_of, payload, s3_error

OVER_SERVICE = bool(os.environ.get("TW_OVER_SERVICE"))
KIB = 1024
MIB = 1024 * KIB
SIZES = [0, 1, 4 * KIB, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 16 * MIB, 16 * MIB + 3]


@pytest.mark.parametrize("size", SIZES)
def test_round_trip(s3, bucket, key, size):
    data = payload(size)
    etag = f'"{hashlib.md5(data).hexdigest()}"'
    assert s3.put_object(Bucket=bucket, Key=key, Body=data)["ETag"] == etag
    head = s3.head_object(Bucket=bucket, Key=key)
    assert (head["ContentLength"], head["ETag"], head["AcceptRanges"]) == (size, etag, "bytes")
    got = s3.get_object(Bucket=bucket, Key=key)
    assert (got["ContentLength"], got["ETag"]) == (size, etag)
    assert got["LastModified"] == head["LastModified"]
    assert got["Body"].read() == data
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"]
    assert [(o["Key"], o["Size"], o["ETag"]) for o in listed] == [(key, size, etag)]
    assert s3.delete_object(Bucket=bucket, Key=key)["ResponseMetadata"]["HTTPStatusCode"] == 204
    absent(s3, bucket, key)


def test_missing_key(s3, bucket, key):
    with s3_error("NoSuchKey", 404):
        s3.get_object(Bucket=bucket, Key=key)
    with s3_error("404", 404):
        s3.head_object(Bucket=bucket, Key=key)
    assert s3.delete_object(Bucket=bucket, Key=key)["ResponseMetadata"]["HTTPStatusCode"] == 204


def test_overwrite_replaces_all(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"one", Metadata={"a": "1"}, ContentType="text/plain", Tagging="t=1")
    s3.put_object(Bucket=bucket, Key=key, Body=b"second")
    got = s3.get_object(Bucket=bucket, Key=key)
    assert got["Body"].read() == b"second"
    assert got["Metadata"] == {}
    assert got["ContentType"] == "binary/octet-stream"
    assert s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"] == []


@pytest.mark.parametrize("change", ["overwrite", "delete"])
def test_a_read_sees_one_version(s3, raw, bucket, key, change):
    """A GET in flight returns the object's version at its start, even if the key changes. From a service, large objects are
    read in ranges: there the response may be cut off instead, but never contains bytes of another version."""
    old = payload(16 * MIB, seed="old")
    s3.put_object(Bucket=bucket, Key=key, Body=old)
    with raw.connect() as connection:
        connection.send(raw.prepare("GET", f"/{bucket}/{key}")[0])
        head = connection.read_head()
        assert head.status == 200
        if change == "overwrite":
            s3.put_object(Bucket=bucket, Key=key, Body=payload(16 * MIB, seed="new"))
        else:
            s3.delete_object(Bucket=bucket, Key=key)
        received = connection.up_to(len(old))
        assert received == (old[: len(received)] if OVER_SERVICE else old)


def test_writers_never_mix(s3, bucket, key, crowd):
    """Concurrent PUTs of one key leave exactly one of the bodies."""
    bodies = [bytes([n]) * (300 * KIB + n) for n in range(12)]
    results = crowd(lambda body: s3.put_object(Bucket=bucket, Key=key, Body=body)["ETag"], bodies)
    assert all(isinstance(r, str) for r in results), results
    got = s3.get_object(Bucket=bucket, Key=key)
    body = got["Body"].read()
    assert body in bodies and got["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'


def test_read_after_write_under_load(s3, bucket, key, crowd):
    def cycle(number):
        name = f"{key}/{number}"
        s3.put_object(Bucket=bucket, Key=name, Body=name.encode())
        assert body_of(s3, bucket, name) == name.encode()
        assert s3.list_objects_v2(Bucket=bucket, Prefix=name)["KeyCount"] >= 1
        s3.delete_object(Bucket=bucket, Key=name)
        absent(s3, bucket, name)

    assert crowd(cycle, range(40), threads=8) == [None] * 40


def test_head_returns_the_headers_of_get(s3, raw, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"12345", Metadata={"m": "v"}, ContentType="text/plain")
    head, got = (raw.request(method, f"/{bucket}/{key}") for method in ("HEAD", "GET"))
    for name in ("etag", "content-length", "content-type", "last-modified", "x-amz-meta-m", "accept-ranges"):
        assert head.header(name) == got.header(name) is not None, name
    assert head.header("x-amz-request-id") and head.header("x-amz-request-id") != got.header("x-amz-request-id")
