"""Conditional reads and writes, and races that exactly one writer may win."""

import datetime
import email.utils

import pytest

from expect import absent, body_of, refused, s3_error

OTHER = '"0123456789abcdef0123456789abcdef"'
DAY = datetime.timedelta(days=1)
CROWD = 100


def http_date(when):
    return email.utils.format_datetime(when.astimezone(datetime.timezone.utc), usegmt=True)


@pytest.fixture(scope="module")
def thing(s3, bucket):
    """Key, ETag and date of an object shared by the reads."""
    etag = s3.put_object(Bucket=bucket, Key="thing", Body=b"body")["ETag"]
    return "thing", etag, s3.head_object(Bucket=bucket, Key="thing")["LastModified"]


# Reads. Each case: headers (with {etag}, {bare}, {at}, {before}, {after}) and the status.

READS = [
    ({"If-Match": "{etag}"}, 200),
    ({"If-Match": "{bare}"}, 200),
    ({"If-Match": "*"}, 200),
    ({"If-Match": OTHER}, 412),
    ({"If-None-Match": OTHER}, 200),
    ({"If-None-Match": "{etag}"}, 304),
    ({"If-None-Match": "{bare}"}, 304),
    ({"If-None-Match": "*"}, 304),
    ({"If-Modified-Since": "{before}"}, 200),
    ({"If-Modified-Since": "{at}"}, 304),
    ({"If-Modified-Since": "{after}"}, 200),  # a date in the future is ignored
    ({"If-Modified-Since": "yesterday"}, 200),  # an invalid date is ignored, too
    ({"If-Unmodified-Since": "{before}"}, 412),
    ({"If-Unmodified-Since": "{at}"}, 200),
    ({"If-Unmodified-Since": "{after}"}, 200),
    # An ETag has priority over a date.
    ({"If-Match": "{etag}", "If-Unmodified-Since": "{before}"}, 200),
    ({"If-Match": OTHER, "If-Unmodified-Since": "{at}"}, 412),
    ({"If-None-Match": "{etag}", "If-Modified-Since": "{before}"}, 304),
    ({"If-None-Match": OTHER, "If-Modified-Since": "{at}"}, 200),
    # A failed If-Match has priority over an If-None-Match that results in 304.
    ({"If-Match": OTHER, "If-None-Match": "{etag}"}, 412),
    ({"If-Match": "{etag}", "If-None-Match": "{etag}"}, 304),
]


@pytest.mark.parametrize("headers, status", READS, ids=lambda v: ",".join(f"{k}={x}" for k, x in v.items()) if isinstance(v, dict) else str(v))
def test_read(raw, bucket, thing, headers, status):
    key, etag, at = thing
    values = {"etag": etag, "bare": etag.strip('"'), "at": http_date(at), "before": http_date(at - DAY), "after": http_date(at + DAY)}
    headers = {name: text.format(**values) for name, text in headers.items()}
    got = raw.request("GET", f"/{bucket}/{key}", headers=headers)
    head = raw.request("HEAD", f"/{bucket}/{key}", headers=headers)
    assert got.status == head.status == status
    if status == 200:
        assert got.body == b"body"
    elif status == 304:
        assert got.body == b"" and got.header("etag") == etag and got.header("last-modified")
    else:
        refused(got, "PreconditionFailed", 412)


def test_condition_is_evaluated_before_range(raw, bucket, thing):
    key, etag, _ = thing
    assert raw.request("GET", f"/{bucket}/{key}", headers={"If-Match": OTHER, "Range": "bytes=0-0"}).status == 412
    assert raw.request("GET", f"/{bucket}/{key}", headers={"If-None-Match": etag, "Range": "bytes=0-0"}).status == 304
    assert raw.request("GET", f"/{bucket}/{key}", headers={"If-Match": etag, "Range": "bytes=0-0"}).body == b"b"


@pytest.mark.parametrize("headers", [{"If-Match": OTHER}, {"If-Match": "*"}, {"If-None-Match": "*"}])
def test_read_of_a_missing_key(raw, bucket, key, headers):
    refused(raw.request("GET", f"/{bucket}/{key}", headers=headers), "NoSuchKey", 404)


# Writes


def test_put_if_absent(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"first", IfNoneMatch="*")
    with s3_error("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key=key, Body=b"second", IfNoneMatch="*")
    assert body_of(s3, bucket, key) == b"first"
    s3.delete_object(Bucket=bucket, Key=key)
    s3.put_object(Bucket=bucket, Key=key, Body=b"third", IfNoneMatch="*")
    assert body_of(s3, bucket, key) == b"third"


def test_put_if_same(s3, bucket, key):
    with s3_error("NoSuchKey", 404):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", IfMatch=OTHER)
    absent(s3, bucket, key)
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"first")["ETag"]
    with s3_error("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", IfMatch=OTHER)
    assert body_of(s3, bucket, key) == b"first"
    s3.put_object(Bucket=bucket, Key=key, Body=b"second", IfMatch=etag)
    with s3_error("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key=key, Body=b"third", IfMatch=etag)
    assert body_of(s3, bucket, key) == b"second"


def test_put_if_none_match_supports_only_the_asterisk(s3, bucket, key):
    with s3_error("NotImplemented", 501):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", IfNoneMatch=OTHER)
    absent(s3, bucket, key)


def finished_upload(s3, bucket, key, body):
    """The completion parameters of an upload that is ready to be completed."""
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    etag = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=body)["ETag"]
    return {"Bucket": bucket, "Key": key, "UploadId": upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}}


def test_complete_if_absent(s3, bucket, key):
    s3.complete_multipart_upload(**finished_upload(s3, bucket, key, b"first"), IfNoneMatch="*")
    with s3_error("PreconditionFailed", 412):
        s3.complete_multipart_upload(**finished_upload(s3, bucket, key, b"second"), IfNoneMatch="*")
    assert body_of(s3, bucket, key) == b"first"


def test_complete_if_same(s3, bucket, key):
    with s3_error("NoSuchKey", 404):
        s3.complete_multipart_upload(**finished_upload(s3, bucket, key, b"x"), IfMatch=OTHER)
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"first")["ETag"]
    with s3_error("PreconditionFailed", 412):
        s3.complete_multipart_upload(**finished_upload(s3, bucket, key, b"x"), IfMatch=OTHER)
    assert body_of(s3, bucket, key) == b"first"
    s3.complete_multipart_upload(**finished_upload(s3, bucket, key, b"second"), IfMatch=etag)
    assert body_of(s3, bucket, key) == b"second"


def test_delete_if_same(s3, bucket, key):
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"x")["ETag"]
    with s3_error("PreconditionFailed", 412):
        s3.delete_object(Bucket=bucket, Key=key, IfMatch=OTHER)
    assert body_of(s3, bucket, key) == b"x"
    s3.delete_object(Bucket=bucket, Key=key, IfMatch=etag)
    absent(s3, bucket, key)
    for condition in (etag, "*"):
        with s3_error("NoSuchKey", 404):
            s3.delete_object(Bucket=bucket, Key=key, IfMatch=condition)


def test_delete_if_present(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    s3.delete_object(Bucket=bucket, Key=key, IfMatch="*")
    absent(s3, bucket, key)


# Races. The losers get 412, or 409, with which AWS requests a retry.


def one_winner(results):
    winners = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert len(winners) == 1, f"{len(winners)} of {len(results)} writers won"
    codes = {result.response["Error"]["Code"] for result in results if isinstance(result, Exception)}
    assert codes <= {"PreconditionFailed", "ConditionalRequestConflict"}, codes
    return winners[0]


@pytest.mark.parametrize("size", [8, 100_000])
def test_race_to_create(s3, bucket, key, crowd, size):
    def put(number):
        return s3.put_object(Bucket=bucket, Key=key, Body=f"{number:08}".encode() * (size // 8), IfNoneMatch="*")

    winner = one_winner(crowd(put, range(CROWD), threads=CROWD))
    assert body_of(s3, bucket, key)[:8] == f"{winner:08}".encode()


def test_race_to_replace(s3, bucket, key, crowd):
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"start")["ETag"]
    results = crowd(lambda n: s3.put_object(Bucket=bucket, Key=key, Body=f"{n}".encode(), IfMatch=etag), range(CROWD), threads=CROWD)
    assert body_of(s3, bucket, key) == str(one_winner(results)).encode()


def test_race_to_complete(s3, bucket, key, crowd):
    uploads = crowd(lambda n: finished_upload(s3, bucket, key, f"{n}".encode()), range(CROWD))
    assert all(isinstance(u, dict) for u in uploads), uploads
    results = crowd(lambda upload: s3.complete_multipart_upload(**upload, IfNoneMatch="*"), uploads, threads=CROWD)
    assert body_of(s3, bucket, key) == str(one_winner(results)).encode()


def test_race_of_puts_and_completions(s3, bucket, key, crowd):
    """Both ways of creating an object are ordered with respect to each other."""
    uploads = [finished_upload(s3, bucket, key, f"{n}".encode()) for n in range(10)]

    def write(number):
        if number % 2:
            return s3.complete_multipart_upload(**uploads[number // 2], IfNoneMatch="*")
        return s3.put_object(Bucket=bucket, Key=key, Body=b"put", IfNoneMatch="*")

    winner = one_winner(crowd(write, range(20)))
    assert body_of(s3, bucket, key) == (f"{winner // 2}".encode() if winner % 2 else b"put")


def test_race_to_delete(s3, bucket, key, crowd):
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"x")["ETag"]
    results = crowd(lambda _: s3.delete_object(Bucket=bucket, Key=key, IfMatch=etag), range(30))
    assert sum(not isinstance(r, Exception) for r in results) == 1
    codes = {r.response["Error"]["Code"] for r in results if isinstance(r, Exception)}
    assert codes <= {"NoSuchKey", "PreconditionFailed", "ConditionalRequestConflict"}


def test_counter_by_compare_and_swap(s3, bucket, key, crowd):
    """Increments that retry after a lost race never lose an update."""
    s3.put_object(Bucket=bucket, Key=key, Body=b"0")

    def increment(_):
        for _ in range(200):
            got = s3.get_object(Bucket=bucket, Key=key)
            value = int(got["Body"].read())
            try:
                s3.put_object(Bucket=bucket, Key=key, Body=str(value + 1).encode(), IfMatch=got["ETag"])
                return True
            except s3.exceptions.ClientError as error:
                assert error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict")
        return False

    assert crowd(increment, range(16), threads=8) == [True] * 16
    assert body_of(s3, bucket, key) == b"16"
