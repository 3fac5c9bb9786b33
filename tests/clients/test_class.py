"""The class of an object: set by x-dss-object-class, stored with the object, and returned."""

import pytest

from expect import absent, refused


def test_class_round_trip(raw, bucket, key):
    for number in ("0", "25", "31"):
        assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-object-class": number}, body=b"x").status == 200
        assert raw.request("HEAD", f"/{bucket}/{key}").header("x-dss-object-class") == number
        assert raw.request("GET", f"/{bucket}/{key}").header("x-dss-object-class") == number
        assert raw.request("GET", f"/{bucket}/{key}", headers={"Range": "bytes=0-0"}).header("x-dss-object-class") == number


def test_classes_of_ranges(raw, bucket, key):
    """Runs of 512-byte sectors: offset-length-class. They are within the object, in order, and do not overlap."""
    given = "0-64-25,1024-32-26"
    body = bytes((1024 + 32) * 512)
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-range-class": given}, body=body).status == 200
    for method in ("HEAD", "GET"):
        assert raw.request(method, f"/{bucket}/{key}").header("x-dss-range-class") == given
    for bad in ("0-0-1", "0-64-32", "0-64", "0-64-1,32-64-2", "64-8-1,0-8-2", "1024-33-1"):
        response = raw.request("PUT", f"/{bucket}/{key}-2", headers={"x-dss-range-class": bad}, body=body)
        refused(response, "InvalidArgument", 400)


def test_class_of_a_copy_can_be_set(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-object-class": "25", "x-amz-meta-m": "v"}, body=b"x").status == 200
    headers = {"x-amz-copy-source": f"/{bucket}/{key}", "x-dss-object-class": "7"}
    assert raw.request("PUT", f"/{bucket}/{key}-copy", headers=headers).status == 200
    head = raw.request("HEAD", f"/{bucket}/{key}-copy")
    assert (head.header("x-dss-object-class"), head.header("x-amz-meta-m")) == ("7", "v")


def test_class_is_replaced_with_the_body(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-object-class": "25"}, body=b"x").status == 200
    assert raw.request("PUT", f"/{bucket}/{key}", body=b"y").status == 200
    assert raw.request("HEAD", f"/{bucket}/{key}").header("x-dss-object-class") != "25"


def test_class_survives_copy(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-dss-object-class": "25"}, body=b"x").status == 200
    copied = raw.request("PUT", f"/{bucket}/{key}-copy", headers={"x-amz-copy-source": f"/{bucket}/{key}"})
    assert copied.status == 200, copied
    assert raw.request("HEAD", f"/{bucket}/{key}-copy").header("x-dss-object-class") == "25"


def test_class_survives_multipart(s3, raw, bucket, key):
    started = raw.request("POST", f"/{bucket}/{key}", "uploads=", headers={"x-dss-object-class": "25"})
    upload = started.xml().findtext("UploadId")
    part = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x")
    s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )
    assert raw.request("HEAD", f"/{bucket}/{key}").header("x-dss-object-class") == "25"


@pytest.mark.parametrize("value", ["32", "-1", "256", "4294967321", "mail", "25.0", "0x19", "2 5", "25,26"])
def test_invalid_class_is_rejected(s3, raw, bucket, key, value):
    headers = {"x-dss-object-class": value}
    refused(raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=b"x"), "InvalidArgument", 400)
    absent(s3, bucket, key)
    refused(raw.request("POST", f"/{bucket}/{key}", "uploads=", headers=headers), "InvalidArgument", 400)
