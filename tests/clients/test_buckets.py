"""Buckets: creation and deletion, names, and deletion that never loses an acknowledged object."""

import threading

import pytest
from botocore.exceptions import ClientError

import wire
from conftest import empty_bucket
from expect import refused, s3_error


def names_of(response):
    return [b["Name"] for b in response["Buckets"]]


def test_create_head_list_delete(s3, temporary_names):
    name = temporary_names()
    created = s3.create_bucket(Bucket=name)
    assert created["Location"] in (f"/{name}", None) or created["Location"].endswith(name)
    assert s3.head_bucket(Bucket=name)["ResponseMetadata"]["HTTPStatusCode"] == 200
    listed = s3.list_buckets()
    assert name in names_of(listed)
    assert listed["Owner"]["ID"]
    assert next(b for b in listed["Buckets"] if b["Name"] == name)["CreationDate"]
    assert s3.delete_bucket(Bucket=name)["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert name not in names_of(s3.list_buckets())
    with s3_error("404", 404):
        s3.head_bucket(Bucket=name)


def test_names_are_listed_in_byte_order(s3, temporary_names):
    for _ in range(4):
        s3.create_bucket(Bucket=temporary_names("order"))
    names = names_of(s3.list_buckets())
    assert names == sorted(names)


def test_list_by_prefix_in_pages(s3, temporary_names):
    stem = wire.now().strftime("page%H%M%S%f")
    made = sorted(temporary_names(stem) for _ in range(5))
    for name in made:
        s3.create_bucket(Bucket=name)
    prefix = f"e2e-{stem}"
    assert names_of(s3.list_buckets(Prefix=prefix)) == made
    found, token = [], {}
    for _ in range(5):
        page = s3.list_buckets(Prefix=prefix, MaxBuckets=2, **token)
        assert len(page["Buckets"]) <= 2
        found += names_of(page)
        if "ContinuationToken" not in page:
            break
        token = {"ContinuationToken": page["ContinuationToken"]}
    assert found == made


def test_create_twice(s3, bucket):
    """In its default region, S3 reports success to the owner of the bucket, unless the request names a location."""
    if s3.meta.region_name == "us-east-1":
        assert s3.create_bucket(Bucket=bucket)["Location"] == f"/{bucket}"
    else:
        with s3_error("BucketAlreadyOwnedByYou", 409):
            s3.create_bucket(Bucket=bucket)


def test_create_twice_keeps_the_objects(s3, fresh_bucket):
    s3.put_object(Bucket=fresh_bucket, Key="kept", Body=b"kept")
    try:
        s3.create_bucket(Bucket=fresh_bucket)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "BucketAlreadyOwnedByYou"
    assert s3.get_object(Bucket=fresh_bucket, Key="kept")["Body"].read() == b"kept"


def test_one_of_many_creators_wins(s3, temporary_names, crowd):
    name = temporary_names("race")
    results = crowd(lambda _: s3.create_bucket(Bucket=name), range(20))
    winners = sum(not isinstance(r, Exception) for r in results)
    assert winners == 1 or winners > 1 and s3.meta.region_name == "us-east-1", results
    codes = {r.response["Error"]["Code"] for r in results if isinstance(r, Exception)}
    assert codes <= {"BucketAlreadyOwnedByYou", "OperationAborted"}


def test_delete_of_a_bucket_with_objects_is_rejected(s3, fresh_bucket):
    s3.put_object(Bucket=fresh_bucket, Key="a/b", Body=b"x")
    with s3_error("BucketNotEmpty", 409):
        s3.delete_bucket(Bucket=fresh_bucket)
    empty_bucket(s3, fresh_bucket)
    s3.delete_bucket(Bucket=fresh_bucket)


def test_a_recreated_bucket_is_empty(s3, temporary_names):
    name = temporary_names()
    s3.create_bucket(Bucket=name)
    upload = s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    s3.put_object(Bucket=name, Key="old", Body=b"x")
    s3.delete_object(Bucket=name, Key="old")
    s3.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)
    s3.delete_bucket(Bucket=name)
    s3.create_bucket(Bucket=name)
    assert "Contents" not in s3.list_objects_v2(Bucket=name)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=name)


def test_location(s3, bucket):
    # us-east-1 is an empty element in XML, which boto3 returns as None.
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] in (None, s3.meta.region_name)


def test_location_names_the_element_as_clients_expect(raw, bucket):
    response = raw.request("GET", f"/{bucket}", "location=")
    assert response.status == 200
    assert response.xml().tag == "LocationConstraint"


MISSING = {
    "delete": lambda s3, b: s3.delete_bucket(Bucket=b),
    "location": lambda s3, b: s3.get_bucket_location(Bucket=b),
    "list v1": lambda s3, b: s3.list_objects(Bucket=b),
    "list v2": lambda s3, b: s3.list_objects_v2(Bucket=b),
    "list uploads": lambda s3, b: s3.list_multipart_uploads(Bucket=b),
    "put": lambda s3, b: s3.put_object(Bucket=b, Key="k", Body=b"x"),
    "get": lambda s3, b: s3.get_object(Bucket=b, Key="k"),
    "delete object": lambda s3, b: s3.delete_object(Bucket=b, Key="k"),
    "multi-delete": lambda s3, b: s3.delete_objects(Bucket=b, Delete={"Objects": [{"Key": "k"}]}),
    "create upload": lambda s3, b: s3.create_multipart_upload(Bucket=b, Key="k"),
    "copy": lambda s3, b: s3.copy_object(Bucket=b, Key="k", CopySource={"Bucket": b, "Key": "k"}),
    "tagging": lambda s3, b: s3.get_object_tagging(Bucket=b, Key="k"),
}


@pytest.mark.parametrize("operation", MISSING)
def test_missing_bucket(s3, operation, temporary_names):
    with s3_error("NoSuchBucket", 404):
        MISSING[operation](s3, temporary_names("missing"))


@pytest.mark.parametrize(
    "name",
    ["ab", "a" * 64, "Upper-case", "under_score", "two..dots", "-leads", "trails-", ".leads", "trails.", "192.168.5.4", "sp%20ace", "%C3%BCber", "semi%3Bcolon"],
)
def test_invalid_name(raw, name):
    refused(raw.request("PUT", f"/{name}"), "InvalidBucketName", 400)


@pytest.mark.parametrize("name", ["abc", "a" * 63, "with.dots.inside", "1-2-3", "a--b"])
def test_valid_name(s3, raw, name, temporary_names):
    stem = temporary_names("x").removeprefix("e2e-x-")
    full = name if len(name) == 63 else f"{name}{stem}" if name == "abc" else f"{name}.{stem}"
    full = stem.ljust(63, "z") if len(name) == 63 else full
    try:
        assert raw.request("PUT", f"/{full}").status == 200
        assert raw.request("HEAD", f"/{full}").status == 200
        assert raw.request("PUT", f"/{full}/key", body=b"x").status == 200
        assert raw.request("DELETE", f"/{full}/key").status == 204
    finally:
        raw.request("DELETE", f"/{full}")


def test_trailing_slash_names_the_bucket(raw, bucket):
    assert raw.request("HEAD", f"/{bucket}/").status == 200
    assert raw.request("GET", f"/{bucket}/", "list-type=2").status == 200


@pytest.mark.parametrize("round", range(5))
def test_delete_never_loses_an_acknowledged_put(s3, raw, temporary_names, round):
    """Deleting a bucket is atomic with respect to PUTs: either all of them fail, or the bucket remains."""
    name = temporary_names("atomic")
    s3.create_bucket(Bucket=name)
    writers, start, results = 8, threading.Barrier(9), []

    def put(number):
        start.wait()
        for attempt in range(3):
            results.append(raw.kept("PUT", f"/{name}/{number}-{attempt}", body=b"x").status)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    start.wait()
    deleted = raw.kept("DELETE", f"/{name}").status
    for thread in threads:
        thread.join()
    assert len(results) == writers * 3 and set(results) <= {200, 404}, results
    stored = results.count(200)
    if deleted == 204:
        assert stored == 0, "a PUT was acknowledged into a bucket whose deletion was acknowledged too"
        with s3_error("404", 404):
            s3.head_bucket(Bucket=name)
    else:
        assert deleted == 409
        assert s3.list_objects_v2(Bucket=name).get("KeyCount") == stored
