"""Virtual-hosted buckets (BUCKET.DOMAIN), with boto3 and on plain sockets."""

import os
import socket
import urllib.parse

import pytest
from botocore.exceptions import ClientError

from conftest import ENDPOINT, make_client, unique
from expect import refused


@pytest.fixture(scope="module")
def domain():
    name = os.environ.get("TW_DOMAIN")
    if not name:
        pytest.skip("TW_DOMAIN not set: no domain under which buckets are hosts")
    return name


@pytest.fixture
def virtual(domain, keys, monkeypatch):
    """boto3 with virtual-hosted addressing; every name in the domain resolves to the server."""
    server = urllib.parse.urlsplit(ENDPOINT)
    resolve = socket.getaddrinfo

    def getaddrinfo(host, *rest, **more):
        return resolve(server.hostname if str(host).endswith(domain) else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return make_client(
        *keys, endpoint=f"{server.scheme}://{domain}:{server.port}", s3={"addressing_style": "virtual"}
    )


def test_both_addressing_styles_reach_the_same_objects(virtual, s3, domain):
    bucket = unique("host")
    virtual.create_bucket(Bucket=bucket)
    try:
        assert bucket in [b["Name"] for b in virtual.list_buckets()["Buckets"]]
        virtual.put_object(Bucket=bucket, Key="a b/ü+%", Body=b"x" * 5000, Metadata={"m": "1"})
        assert s3.get_object(Bucket=bucket, Key="a b/ü+%")["Body"].read() == b"x" * 5000
        s3.put_object(Bucket=bucket, Key="p", Body=b"path")
        assert virtual.get_object(Bucket=bucket, Key="p", Range="bytes=1-2")["Body"].read() == b"at"
        assert virtual.head_object(Bucket=bucket, Key="a b/ü+%")["Metadata"] == {"m": "1"}
        virtual.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "p"})
        listed = virtual.list_objects_v2(Bucket=bucket)["Contents"]
        assert [o["Key"] for o in listed] == ["a b/ü+%", "copy", "p"]
        upload = virtual.create_multipart_upload(Bucket=bucket, Key="m")["UploadId"]
        part = {"Bucket": bucket, "Key": "m", "UploadId": upload}
        tag = virtual.upload_part(**part, PartNumber=1, Body=b"part")["ETag"]
        order = {"Parts": [{"ETag": tag, "PartNumber": 1}]}
        done = virtual.complete_multipart_upload(**part, MultipartUpload=order)
        server = urllib.parse.urlsplit(ENDPOINT)
        assert done["Location"] == f"{server.scheme}://{bucket}.{domain}:{server.port}/m"
        keys = [{"Key": o["Key"]} for o in virtual.list_objects(Bucket=bucket)["Contents"]]
        assert len(virtual.delete_objects(Bucket=bucket, Delete={"Objects": keys})["Deleted"]) == 4
    finally:
        virtual.delete_bucket(Bucket=bucket)
    with pytest.raises(ClientError, match="404"):
        virtual.head_bucket(Bucket=bucket)


def test_presigned_for_a_host(virtual, s3, anonymous, domain, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"by host")
    url = urllib.parse.urlsplit(virtual.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}))
    assert url.hostname == f"{bucket}.{domain}"

    def get(host):
        return anonymous.request("GET", url.path, url.query, headers={"Host": host})

    assert get(url.netloc).body == b"by host"
    # A signature for one bucket is invalid for any other.
    refused(get(url.netloc.replace(bucket, "other")), "SignatureDoesNotMatch", 403)


def test_a_host_that_is_no_bucket(virtual, raw, domain):
    refused(raw.request("GET", "/", headers={"Host": f"NO_BUCKET.{domain}"}), "InvalidBucketName", 400)
    with pytest.raises(ClientError, match="NoSuchBucket"):
        virtual.list_objects_v2(Bucket=unique("absent"))


def test_permissions_are_those_of_the_bucket_in_the_host(virtual, anonymous, domain, public_bucket, bucket):
    virtual.put_object(Bucket=public_bucket, Key="open", Body=b"open")
    virtual.put_object(Bucket=bucket, Key="open", Body=b"shut")
    assert anonymous.request("GET", "/open", headers={"Host": f"{public_bucket}.{domain}"}).body == b"open"
    assert anonymous.request("GET", "/open", headers={"Host": f"{bucket}.{domain}"}).status == 403
    # The public bucket in the path does not give access to the bucket in the host.
    answer = anonymous.request("GET", f"/{public_bucket}/open", headers={"Host": f"{bucket}.{domain}"})
    assert answer.status == 403
