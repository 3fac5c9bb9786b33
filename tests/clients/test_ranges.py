"""Ranged reads: every form, at block boundaries, after the end, malformed."""

import hashlib

import pytest

from expect import body_of, payload, refused

RANGE_SIZE = 200_000


@pytest.fixture(scope="module")
def ranged(s3, bucket):
    data = payload(RANGE_SIZE)
    s3.put_object(Bucket=bucket, Key="ranged", Body=data)
    return data


@pytest.mark.parametrize(
    "text, start, stop",
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-4095", 0, 4096),
        ("bytes=65535-65536", 65535, 65537),
        ("bytes=65536-131071", 65536, 131072),
        (f"bytes={RANGE_SIZE - 1}-", RANGE_SIZE - 1, RANGE_SIZE),
        ("bytes=100-", 100, RANGE_SIZE),
        ("bytes=-1", RANGE_SIZE - 1, RANGE_SIZE),
        ("bytes=-70000", RANGE_SIZE - 70000, RANGE_SIZE),
        (f"bytes=-{RANGE_SIZE * 2}", 0, RANGE_SIZE),
        (f"bytes=5-{RANGE_SIZE * 9}", 5, RANGE_SIZE),
        ("bytes=5-99999999999999999", 5, RANGE_SIZE),
        (f"bytes=0-{RANGE_SIZE - 1}", 0, RANGE_SIZE),
    ],
)
def test_range(s3, raw, bucket, ranged, text, start, stop):
    for method in ("GET", "HEAD"):
        response = raw.request(method, f"/{bucket}/ranged", headers={"Range": text})
        assert response.status == 206, response
        assert response.header("content-range") == f"bytes {start}-{stop - 1}/{RANGE_SIZE}"
        assert int(response.header("content-length")) == stop - start
        assert response.header("etag") == f'"{hashlib.md5(ranged).hexdigest()}"'
        if method == "GET":
            assert response.body == ranged[start:stop]


@pytest.mark.parametrize("text", [f"bytes={RANGE_SIZE}-", f"bytes={RANGE_SIZE}-{RANGE_SIZE + 5}", "bytes=-0", "bytes=9999999-10000000"])
def test_range_beyond_the_end(raw, bucket, ranged, text):
    refused(raw.request("GET", f"/{bucket}/ranged", headers={"Range": text}), "InvalidRange", 416)
    assert raw.request("HEAD", f"/{bucket}/ranged", headers={"Range": text}).status == 416


@pytest.mark.parametrize(
    "text",
    ["bytes=abc", "bytes", "bytes=", "bytes=-", "bytes=5", "bytes 0-1", "bits=0-1", "bytes=--1", "bytes=1-x", "bytes=0x0-0x5", "bytes=9-5", "bytes=+1-5", "bytes=0-1,4-5", "0-5"],
)
def test_malformed_or_multiple_range_gives_the_whole_object(raw, bucket, ranged, text):
    response = raw.request("GET", f"/{bucket}/ranged", headers={"Range": text})
    assert response.status == 200, response
    assert response.body == ranged


def test_range_of_an_empty_object(s3, raw, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"")
    refused(raw.request("GET", f"/{bucket}/{key}", headers={"Range": "bytes=0-0"}), "InvalidRange", 416)


def test_many_ranges_of_a_large_object(s3, bucket, key):
    data = payload((16 << 20) + 77)
    s3.put_object(Bucket=bucket, Key=key, Body=data)
    at = 7
    for _ in range(60):
        at = (at * 1103515245 + 12345) % len(data)
        stop = min(len(data), at + 1 + at % 150_000)
        assert body_of(s3, bucket, key, Range=f"bytes={at}-{stop - 1}") == data[at:stop]
