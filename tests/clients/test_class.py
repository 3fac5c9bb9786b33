"""The class of an object: taken from x-dss-class, kept with the object, given back."""

import pytest

from expect import absent, refused


def test_class_round_trip(raw, bucket, key):
    for number in ("0", "25", "31"):
        assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-class": number}, body=b"x").status == 200
        assert raw.request("HEAD", f"/{bucket}/{key}").header("x-dss-class") == number
        assert raw.request("GET", f"/{bucket}/{key}").header("x-dss-class") == number
        assert raw.request("GET", f"/{bucket}/{key}", headers={"Range": "bytes=0-0"}).header("x-dss-class") == number


def test_class_goes_with_the_body_it_came_with(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-class": "25"}, body=b"x").status == 200
    assert raw.request("PUT", f"/{bucket}/{key}", body=b"y").status == 200
    assert raw.request("HEAD", f"/{bucket}/{key}").header("x-dss-class") != "25"


def test_class_survives_copy(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-class": "25"}, body=b"x").status == 200
    copied = raw.request("PUT", f"/{bucket}/{key}-copy", headers={"x-amz-copy-source": f"/{bucket}/{key}"})
    assert copied.status == 200, copied
    assert raw.request("HEAD", f"/{bucket}/{key}-copy").header("x-dss-class") == "25"


def test_class_survives_multipart(s3, raw, bucket, key):
    started = raw.request("POST", f"/{bucket}/{key}", "uploads=", headers={"x-dss-class": "25"})
    upload = started.xml().findtext("UploadId")
    part = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x")
    s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )
    assert raw.request("HEAD", f"/{bucket}/{key}").header("x-dss-class") == "25"


@pytest.mark.parametrize("value", ["32", "-1", "256", "4294967321", "mail", "25.0", "0x19", "2 5", "25,26"])
def test_bad_class_is_refused(s3, raw, bucket, key, value):
    headers = {"x-dss-class": value}
    refused(raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=b"x"), "InvalidArgument", 400)
    absent(s3, bucket, key)
    refused(raw.request("POST", f"/{bucket}/{key}", "uploads=", headers=headers), "InvalidArgument", 400)
