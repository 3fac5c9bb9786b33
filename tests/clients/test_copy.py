"""Server-side copy: copied and replaced metadata, and conditions."""

import datetime

import pytest

import wire
from expect import absent, body_of, payload, refused, s3_error

DAY = datetime.timedelta(days=1)


@pytest.fixture
def source(s3, bucket, key):
    """An object with all kinds of metadata that a copy can include."""
    name = f"{key}-source"
    s3.put_object(
        Bucket=bucket, Key=name, Body=b"body", ContentType="text/plain", CacheControl="no-cache", Metadata={"m": "old"}, Tagging="t=old"
    )
    return name


def copy(s3, bucket, source, key, **options):
    return s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": source}, **options)


def test_copy_includes_all_metadata(s3, bucket, source, key):
    result = copy(s3, bucket, source, key)["CopyObjectResult"]
    old, new = (s3.get_object(Bucket=bucket, Key=name) for name in (source, key))
    assert result["ETag"] == new["ETag"] == old["ETag"]
    assert result["LastModified"].replace(microsecond=0) == new["LastModified"]  # headers have whole seconds
    assert new["Body"].read() == b"body"
    for name in ("ContentType", "CacheControl", "Metadata", "TagCount"):
        assert new[name] == old[name], name
    assert s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"] == [{"Key": "t", "Value": "old"}]


def test_copy_to_another_bucket(s3, bucket, fresh_bucket, source):
    s3.copy_object(Bucket=fresh_bucket, Key="there", CopySource=f"{bucket}/{source}")
    assert body_of(s3, fresh_bucket, "there") == b"body"


def test_copy_of_a_large_object(s3, bucket, key):
    data = payload(9_000_001)
    s3.put_object(Bucket=bucket, Key=key, Body=data)
    copy(s3, bucket, key, key + "-copy")
    s3.delete_object(Bucket=bucket, Key=key)
    assert body_of(s3, bucket, key + "-copy") == data


def test_replaced_metadata(s3, bucket, source, key):
    copy(s3, bucket, source, key, MetadataDirective="REPLACE", Metadata={"n": "new"}, ContentType="image/png")
    head = s3.head_object(Bucket=bucket, Key=key)
    assert head["Metadata"] == {"n": "new"} and head["ContentType"] == "image/png"
    assert "CacheControl" not in head
    assert s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"] == [{"Key": "t", "Value": "old"}]


def test_replaced_by_nothing(s3, bucket, source, key):
    copy(s3, bucket, source, key, MetadataDirective="REPLACE")
    head = s3.head_object(Bucket=bucket, Key=key)
    assert head["Metadata"] == {} and head["ContentType"] == "binary/octet-stream"


@pytest.mark.parametrize("directive", [{}, {"MetadataDirective": "COPY"}])
def test_metadata_without_replace_is_ignored(s3, bucket, source, key, directive):
    copy(s3, bucket, source, key, Metadata={"n": "new"}, ContentType="image/png", **directive)
    head = s3.head_object(Bucket=bucket, Key=key)
    assert head["Metadata"] == {"m": "old"} and head["ContentType"] == "text/plain"


def test_replaced_tags(s3, bucket, source, key):
    copy(s3, bucket, source, key, TaggingDirective="REPLACE", Tagging="t=new&u=1")
    tags = {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]}
    assert tags == {"t": "new", "u": "1"}
    assert s3.head_object(Bucket=bucket, Key=key)["Metadata"] == {"m": "old"}


def test_unknown_directive(raw, bucket, source, key):
    for name in ("x-amz-metadata-directive", "x-amz-tagging-directive"):
        headers = {"x-amz-copy-source": f"/{bucket}/{source}", name: "MERGE"}
        refused(raw.request("PUT", f"/{bucket}/{key}", headers=headers), "InvalidArgument", 400)


def test_onto_itself_needs_a_change(s3, bucket, source):
    with s3_error("InvalidRequest", 400):
        copy(s3, bucket, source, source)
    assert s3.head_object(Bucket=bucket, Key=source)["Metadata"] == {"m": "old"}
    copy(s3, bucket, source, source, MetadataDirective="REPLACE", Metadata={"m": "new"})
    assert s3.head_object(Bucket=bucket, Key=source)["Metadata"] == {"m": "new"}
    assert body_of(s3, bucket, source) == b"body"


@pytest.mark.parametrize("name", ["a b+c%d/ü?&=#.txt", "..", "a/../b", "//x", "%2F", "+", "日本/😀", "/lead"])
def test_odd_source_key(s3, raw, bucket, key, name):
    body = b"odd " + name.encode()
    name = f"odd/{name}" if name != "/lead" else name
    assert raw.request("PUT", f"/{bucket}/{wire.quote(name)}", body=body).status == 200
    for number, start in enumerate(("/", "")):
        headers = {"x-amz-copy-source": f"{start}{bucket}/{wire.quote(name)}"}
        assert raw.request("PUT", f"/{bucket}/{key}-{number}", headers=headers).status == 200
        assert body_of(s3, bucket, f"{key}-{number}") == body
    s3.copy_object(Bucket=bucket, Key=key + "-boto", CopySource={"Bucket": bucket, "Key": name})
    assert body_of(s3, bucket, key + "-boto") == body


def test_missing_source(s3, bucket, key, temporary_names):
    with s3_error("NoSuchKey", 404):
        copy(s3, bucket, "never-was", key)
    with s3_error("NoSuchBucket", 404):
        s3.copy_object(Bucket=bucket, Key=key, CopySource=f"{temporary_names('missing')}/k")
    absent(s3, bucket, key)


@pytest.mark.parametrize("text", ["/", "nokey", "/nokey", "//key"])
def test_malformed_source(raw, bucket, key, text):
    response = raw.request("PUT", f"/{bucket}/{key}", headers={"x-amz-copy-source": text})
    refused(response, ("InvalidArgument", "InvalidRequest", "InvalidBucketName"), 400)


@pytest.mark.parametrize("versions", ["versionId=0123456789abcdef0123456789abcdef"])
def test_a_version_id_is_rejected(raw, s3, bucket, source, key, versions):
    response = raw.request("PUT", f"/{bucket}/{key}", headers={"x-amz-copy-source": f"/{bucket}/{source}?{versions}"})
    assert response.status in (400, 404, 501), response
    absent(s3, bucket, key)


def test_source_conditions(s3, bucket, source, key):
    head = s3.head_object(Bucket=bucket, Key=source)
    etag, modified = head["ETag"], head["LastModified"]
    passing = [
        {"CopySourceIfMatch": etag},
        {"CopySourceIfMatch": etag.strip('"')},
        {"CopySourceIfNoneMatch": '"other"'},
        {"CopySourceIfModifiedSince": modified - DAY},
        {"CopySourceIfUnmodifiedSince": modified},
        {"CopySourceIfModifiedSince": modified + DAY},  # a date in the future is ignored
        {"CopySourceIfMatch": etag, "CopySourceIfUnmodifiedSince": modified - DAY},
    ]
    failing = [
        {"CopySourceIfMatch": '"other"'},
        {"CopySourceIfNoneMatch": etag},
        {"CopySourceIfNoneMatch": etag.strip('"')},
        {"CopySourceIfModifiedSince": modified},
        {"CopySourceIfUnmodifiedSince": modified - DAY},
        {"CopySourceIfNoneMatch": etag, "CopySourceIfModifiedSince": modified - DAY},
    ]
    for conditions in failing:
        with s3_error("PreconditionFailed", 412):
            copy(s3, bucket, source, key, **conditions)
        absent(s3, bucket, key)
    for number, conditions in enumerate(passing):
        copy(s3, bucket, source, f"{key}-{number}", **conditions)
        assert body_of(s3, bucket, f"{key}-{number}") == b"body"


def test_destination_conditions(s3, bucket, source, key):
    copy(s3, bucket, source, key, IfNoneMatch="*")
    with s3_error("PreconditionFailed", 412):
        copy(s3, bucket, source, key, IfNoneMatch="*")
    with s3_error("PreconditionFailed", 412):
        copy(s3, bucket, source, key, IfMatch='"0123456789abcdef0123456789abcdef"')
    copy(s3, bucket, source, key, IfMatch=s3.head_object(Bucket=bucket, Key=source)["ETag"])


def test_copy_of_a_multipart_object_is_one_object(s3, bucket, key):
    parts = [payload(5 << 20, 1), b"tail"]
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    done = [
        {"PartNumber": n, "ETag": s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=n, Body=p)["ETag"]}
        for n, p in enumerate(parts, 1)
    ]
    s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": done})
    etag = copy(s3, bucket, key, key + "-copy")["CopyObjectResult"]["ETag"]
    assert s3.head_object(Bucket=bucket, Key=key + "-copy")["ETag"] == etag
    assert body_of(s3, bucket, key + "-copy") == b"".join(parts)
