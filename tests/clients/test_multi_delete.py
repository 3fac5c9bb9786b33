"""DeleteObjects: up to a thousand keys, verbose or quiet."""

import pytest

import sums
from expect import body_of, refused, s3_error


def test_multi_delete(s3, fresh_bucket):
    names = ["a", "b&<c>", "ü/ö", " space ", "x+y%20"]
    for name in names:
        s3.put_object(Bucket=fresh_bucket, Key=name, Body=b"x")
    answer = s3.delete_objects(Bucket=fresh_bucket, Delete={"Objects": [{"Key": n} for n in [*names, "never-was"]]})
    assert sorted(d["Key"] for d in answer["Deleted"]) == sorted([*names, "never-was"])
    assert "Errors" not in answer
    assert s3.list_objects_v2(Bucket=fresh_bucket)["KeyCount"] == 0


def test_quiet_multi_delete_of_a_thousand(s3, raw, fresh_bucket, crowd):
    results = crowd(lambda n: raw.kept("PUT", f"/{fresh_bucket}/{n:04}", body=b"x").status, range(1001), threads=8)
    assert set(results) == {200}
    answer = s3.delete_objects(
        Bucket=fresh_bucket, Delete={"Objects": [{"Key": f"{n:04}"} for n in range(1000)], "Quiet": True}
    )
    assert "Deleted" not in answer and "Errors" not in answer
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=fresh_bucket)["Contents"]] == ["1000"]


def test_multi_delete_of_more_than_a_thousand_is_rejected(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    with s3_error("MalformedXML", 400):
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}] + [{"Key": f"none-{n}"} for n in range(1000)]})
    assert body_of(s3, bucket, key) == b"x"


def post(raw, bucket, body, headers=None):
    headers = {"Content-MD5": sums.content_md5(body)} if headers is None else headers
    return raw.request("POST", f"/{bucket}", "delete=", headers=headers, body=body)


BAD_BODIES = {
    "empty": b"",
    "not xml": b"delete everything",
    "unclosed": b"<Delete><Object><Key>a</Key></Object>",
    "no objects": b"<Delete></Delete>",
    "no key": b"<Delete><Object></Object></Delete>",
    "other root": b"<Remove><Object><Key>a</Key></Object></Remove>",
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_malformed_body(raw, bucket, case):
    refused(post(raw, bucket, BAD_BODIES[case]), ("MalformedXML", "MissingRequestBodyError"), 400)


def test_a_checksum_is_required_and_verified(s3, raw, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    body = f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
    refused(post(raw, bucket, body, headers={}), "InvalidRequest", 400)
    refused(post(raw, bucket, body, headers={"Content-MD5": sums.content_md5(b"other")}), "BadDigest", 400)
    refused(post(raw, bucket, body, headers={"x-amz-checksum-crc32": sums.checksum("CRC32", b"other")}), "BadDigest", 400)
    assert body_of(s3, bucket, key) == b"x"
    answer = post(raw, bucket, body, headers={"x-amz-checksum-sha256": sums.checksum("SHA256", body)})
    assert answer.status == 200 and [e.text for e in answer.xml().iter("Key")] == [key]


def test_condition_of_one_object(s3, bucket, key):
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"x")["ETag"]
    s3.put_object(Bucket=bucket, Key=key + "-2", Body=b"y")
    wanted = [{"Key": key, "ETag": etag}, {"Key": key + "-2", "ETag": etag}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted})
    assert [d["Key"] for d in answer["Deleted"]] == [key]
    assert [(e["Key"], e["Code"]) for e in answer["Errors"]] == [(key + "-2", "PreconditionFailed")]
    assert body_of(s3, bucket, key + "-2") == b"y"
