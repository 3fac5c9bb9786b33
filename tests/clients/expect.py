"""Common assertions of the suite: S3 errors as reported by boto3 and on the wire."""

import contextlib
import random

import pytest
from botocore.exceptions import ClientError


def payload(size, seed=0):
    """Reproducible, incompressible bytes."""
    return random.Random(f"{size}/{seed}").randbytes(size)


@contextlib.contextmanager
def s3_error(code, status):
    """Asserts that the block fails with this S3 code (or one of several) and status, in a complete error."""
    with pytest.raises(ClientError) as caught:
        yield caught
    response = caught.value.response
    found = response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]
    codes = (code,) if isinstance(code, str) else code
    assert found[0] in codes and found[1] == status, f"want {status} {code}, got {found[1]} {found[0]}: {caught.value}"
    headers = response["ResponseMetadata"]["HTTPHeaders"]
    assert headers.get("x-amz-request-id")
    if not found[0].isdigit():  # botocore invents numeric codes for errors of HEAD, which have no body
        assert response["Error"].get("Message")
        assert response["ResponseMetadata"].get("RequestId")


def refused(response, code, status):
    """Asserts that the wire response is this S3 error: XML with its elements, and a request ID."""
    codes = (code,) if isinstance(code, str) else code
    assert response.status == status and response.code in codes, f"want {status} {code}, got {response!r}"
    check_error_body(response)


def check_error_body(response):
    error = response.xml()
    assert error.tag == "Error", response
    for name in ("Code", "Message", "RequestId"):
        assert error.findtext(name), f"no {name} in {response!r}"
    assert response.header("x-amz-request-id") == error.findtext("RequestId"), response
    assert "xml" in (response.header("content-type") or ""), response


def absent(s3, bucket, key):
    """Asserts that no object with the key is readable or listed."""
    with s3_error("404", 404):
        s3.head_object(Bucket=bucket, Key=key)
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", [])
    assert key not in [o["Key"] for o in listed]


def body_of(s3, bucket, key, **options):
    return s3.get_object(Bucket=bucket, Key=key, **options)["Body"].read()
