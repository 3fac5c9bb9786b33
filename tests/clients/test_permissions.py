"""Keys with limited permissions, and anonymous readers. Needs the keys listed in README.md."""

import uuid

import pytest

from conftest import unique
from expect import absent, body_of, refused, s3_error


@pytest.fixture
def shared(s3, shared_bucket, key):
    s3.put_object(Bucket=shared_bucket, Key=key, Body=b"shared", Tagging="t=1")
    yield {"Bucket": shared_bucket, "Key": key}
    s3.delete_object(Bucket=shared_bucket, Key=key)


READS = {
    "get": lambda c, b, k: c.get_object(Bucket=b, Key=k),
    "range": lambda c, b, k: c.get_object(Bucket=b, Key=k, Range="bytes=0-1"),
    "tags": lambda c, b, k: c.get_object_tagging(Bucket=b, Key=k),
    "attributes": lambda c, b, k: c.get_object_attributes(Bucket=b, Key=k, ObjectAttributes=["ETag"]),
    "list v1": lambda c, b, k: c.list_objects(Bucket=b, MaxKeys=1),
    "list v2": lambda c, b, k: c.list_objects_v2(Bucket=b, MaxKeys=1),
    "location": lambda c, b, k: c.get_bucket_location(Bucket=b),
}

WRITES = {
    "put": lambda c, b, k: c.put_object(Bucket=b, Key=k, Body=b"changed"),
    "put empty": lambda c, b, k: c.put_object(Bucket=b, Key=k, Body=b""),
    "delete": lambda c, b, k: c.delete_object(Bucket=b, Key=k),
    "delete missing": lambda c, b, k: c.delete_object(Bucket=b, Key=k + "-none"),
    "copy": lambda c, b, k: c.copy_object(Bucket=b, Key=k + "-2", CopySource=f"{b}/{k}"),
    "create upload": lambda c, b, k: c.create_multipart_upload(Bucket=b, Key=k),
    "put tags": lambda c, b, k: c.put_object_tagging(Bucket=b, Key=k, Tagging={"TagSet": []}),
    "delete tags": lambda c, b, k: c.delete_object_tagging(Bucket=b, Key=k),
    "delete bucket": lambda c, b, k: c.delete_bucket(Bucket=b),
    "create bucket": lambda c, b, k: c.create_bucket(Bucket=unique("denied")),
}


@pytest.mark.parametrize("name", READS)
def test_read_only_key_reads(readonly, shared, name):
    READS[name](readonly, shared["Bucket"], shared["Key"])
    assert readonly.head_object(**shared)["ContentLength"] == 6
    readonly.head_bucket(Bucket=shared["Bucket"])


@pytest.mark.parametrize("name", WRITES)
def test_read_only_key_does_not_write(s3, readonly, shared, name):
    with s3_error("AccessDenied", 403):
        WRITES[name](readonly, shared["Bucket"], shared["Key"])
    assert body_of(s3, shared["Bucket"], shared["Key"]) == b"shared"
    assert s3.get_object(**shared)["TagCount"] == 1


def test_read_only_key_does_not_delete_many(s3, readonly, shared):
    """AWS denies each key in a 200 response; denying the whole request is equivalent."""
    try:
        answer = readonly.delete_objects(Bucket=shared["Bucket"], Delete={"Objects": [{"Key": shared["Key"]}]})
    except readonly.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "AccessDenied"
    else:
        assert "Deleted" not in answer and [e["Code"] for e in answer["Errors"]] == ["AccessDenied"]
    assert body_of(s3, shared["Bucket"], shared["Key"]) == b"shared"


def test_read_only_key_does_not_touch_uploads(s3, readonly, shared):
    upload = s3.create_multipart_upload(**shared)["UploadId"]
    name = {**shared, "UploadId": upload}
    parts = {"Parts": [{"PartNumber": 1, "ETag": s3.upload_part(**name, PartNumber=1, Body=b"x")["ETag"]}]}
    for operation in (
        lambda: readonly.upload_part(**name, PartNumber=2, Body=b"x"),
        lambda: readonly.upload_part_copy(**name, PartNumber=2, CopySource=shared),
        lambda: readonly.complete_multipart_upload(**name, MultipartUpload=parts),
        lambda: readonly.abort_multipart_upload(**name),
    ):
        with s3_error("AccessDenied", 403):
            operation()
    s3.abort_multipart_upload(**name)


@pytest.mark.parametrize("name", [*READS, *[w for w in WRITES if w != "create bucket"]])
def test_other_bucket_is_closed(s3, readonly, bucket, name):
    s3.put_object(Bucket=bucket, Key="closed", Body=b"closed")
    with s3_error("AccessDenied", 403):
        {**READS, **WRITES}[name](readonly, bucket, "closed")
    with s3_error("403", 403):
        readonly.head_object(Bucket=bucket, Key="closed")
    with s3_error("403", 403):
        readonly.head_bucket(Bucket=bucket)


def test_missing_key_of_a_closed_bucket(readonly, bucket):
    """A client without permission cannot determine which keys exist."""
    with s3_error("AccessDenied", 403):
        readonly.get_object(Bucket=bucket, Key="never-was")
    with s3_error("403", 403):
        readonly.head_object(Bucket=bucket, Key="never-was")


def test_list_of_buckets_shows_no_others(readonly, bucket):
    try:
        names = [b["Name"] for b in readonly.list_buckets()["Buckets"]]
    except readonly.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "AccessDenied"
    else:
        assert bucket not in names


def test_presigned_by_a_read_only_key(readonly, anonymous, shared):
    from test_presigned import fetch

    assert fetch(anonymous, "GET", readonly.generate_presigned_url("get_object", shared)).body == b"shared"
    refused(fetch(anonymous, "PUT", readonly.generate_presigned_url("put_object", shared), body=b"x"), "AccessDenied", 403)


def test_writer_stays_in_its_bucket(s3, writer, writer_bucket, bucket, key):
    writer.put_object(Bucket=writer_bucket, Key=key, Body=b"mine")
    assert body_of(writer, writer_bucket, key) == b"mine"
    s3.put_object(Bucket=bucket, Key=key, Body=b"not yours")
    with s3_error("AccessDenied", 403):
        writer.put_object(Bucket=bucket, Key=key, Body=b"x")
    with s3_error("AccessDenied", 403):
        writer.copy_object(Bucket=bucket, Key=key, CopySource=f"{writer_bucket}/{key}")
    writer.delete_object(Bucket=writer_bucket, Key=key)


def test_writer_cannot_read_through_a_copy(s3, writer, writer_bucket, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"not yours")
    with s3_error("AccessDenied", 403):
        writer.copy_object(Bucket=writer_bucket, Key=key, CopySource=f"{bucket}/{key}")
    upload = writer.create_multipart_upload(Bucket=writer_bucket, Key=key)["UploadId"]
    name = {"Bucket": writer_bucket, "Key": key, "UploadId": upload}
    with s3_error("AccessDenied", 403):
        writer.upload_part_copy(**name, PartNumber=1, CopySource=f"{bucket}/{key}")
    writer.abort_multipart_upload(**name)
    absent(s3, writer_bucket, key)


# Without a key


@pytest.fixture
def public(s3, public_bucket):
    key = f"public-{uuid.uuid4().hex[:12]}"
    s3.put_object(Bucket=public_bucket, Key=key, Body=b"for all")
    yield f"/{public_bucket}", key
    s3.delete_object(Bucket=public_bucket, Key=key)


def test_anonymous_clients_read_a_public_bucket(anonymous, public):
    root, key = public
    assert anonymous.request("GET", f"{root}/{key}").body == b"for all"
    assert anonymous.request("HEAD", f"{root}/{key}").status == 200
    assert anonymous.request("GET", f"{root}/{key}", headers={"Range": "bytes=0-2"}).body == b"for"
    # The settings make only the objects public, for clients that know their names.
    refused(anonymous.request("GET", root, f"list-type=2&prefix={key}"), "AccessDenied", 403)
    refused(anonymous.request("GET", f"{root}/{key}-none"), "NoSuchKey", 404)


@pytest.mark.parametrize(
    "method, tail, query, body",
    [
        ("PUT", "/{key}", "", b"x"),
        ("DELETE", "/{key}", "", b""),
        ("POST", "/{key}", "uploads=", b""),
        ("PUT", "/{key}", "tagging=", b"<Tagging><TagSet/></Tagging>"),
        ("POST", "", "delete=", b"<Delete><Object><Key>k</Key></Object></Delete>"),
        ("DELETE", "", "", b""),
        ("PUT", "", "", b""),
    ],
)
def test_anonymous_clients_cannot_write(s3, anonymous, public, method, tail, query, body):
    root, key = public
    refused(anonymous.request(method, root + tail.format(key=key), query, body=body), "AccessDenied", 403)
    assert body_of(s3, root[1:], key) == b"for all"


def test_no_overrides_without_a_key(anonymous, public):
    root, key = public
    refused(anonymous.request("GET", f"{root}/{key}", "response-content-type=text%2Fhtml"), "InvalidRequest", 400)


def test_a_bad_signature_is_not_anonymous(raw, keys, public):
    """A wrong key does not fall back to anonymous access."""
    import wire

    root, key = public
    refused(raw.request("GET", f"{root}/{key}", signer=wire.Signer(keys[0], "wrong")), "SignatureDoesNotMatch", 403)


def test_service_is_closed(anonymous):
    response = anonymous.request("GET", "/")
    assert response.status in (307, 403), response
