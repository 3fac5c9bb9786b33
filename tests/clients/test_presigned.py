"""Presigned URLs: from boto3 and built by hand, expired, altered, malformed."""

import datetime
import urllib.parse

import pytest

import wire
from conftest import NO_SIGV2, make_client
from expect import absent, body_of, refused, s3_error

HOUR = datetime.timedelta(hours=1)


def fetch(anonymous, method, url, body=b"", headers=()):
    """Requests a URL without any key."""
    parts = urllib.parse.urlsplit(url)
    return anonymous.request(method, parts.path, parts.query, headers=headers, body=body)


@pytest.fixture
def stored(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"secret body", ContentType="text/plain")
    return {"Bucket": bucket, "Key": key}


@pytest.fixture
def path(stored):
    return f"/{stored['Bucket']}/{stored['Key']}"


def test_get_and_head(s3, anonymous, stored):
    assert fetch(anonymous, "GET", s3.generate_presigned_url("get_object", stored)).body == b"secret body"
    head = fetch(anonymous, "HEAD", s3.generate_presigned_url("head_object", stored))
    assert head.status == 200 and head.header("content-length") == "11"


def test_put_and_delete(s3, anonymous, bucket, key):
    name = {"Bucket": bucket, "Key": key}
    assert fetch(anonymous, "PUT", s3.generate_presigned_url("put_object", name), body=b"new").status == 200
    assert body_of(s3, bucket, key) == b"new"
    assert fetch(anonymous, "DELETE", s3.generate_presigned_url("delete_object", name)).status == 204
    absent(s3, bucket, key)


def test_list_and_parts(s3, anonymous, bucket, key):
    url = s3.generate_presigned_url("list_objects_v2", {"Bucket": bucket, "Prefix": "a b+ü"})
    assert fetch(anonymous, "GET", url).status == 200
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    url = s3.generate_presigned_url("upload_part", {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": 1})
    assert fetch(anonymous, "PUT", url, body=b"x").status == 200


def test_range_header_need_not_be_signed(s3, anonymous, stored):
    url = s3.generate_presigned_url("get_object", stored)
    response = fetch(anonymous, "GET", url, headers={"Range": "bytes=0-5"})
    assert (response.status, response.body) == (206, b"secret")


def test_overrides_are_part_of_the_url(s3, anonymous, stored):
    url = s3.generate_presigned_url("get_object", {**stored, "ResponseContentType": "image/png"})
    assert fetch(anonymous, "GET", url).header("content-type") == "image/png"
    refused(fetch(anonymous, "GET", url.replace("image%2Fpng", "text%2Fhtml")), "SignatureDoesNotMatch", 403)
    plain = s3.generate_presigned_url("get_object", stored)
    refused(fetch(anonymous, "GET", plain + "&response-content-type=text%2Fhtml"), "SignatureDoesNotMatch", 403)


@pytest.mark.parametrize("name", ["a b+c%/ü?&=#", "日本", "a//b", "~"])
def test_odd_keys(s3, anonymous, bucket, name):
    s3.put_object(Bucket=bucket, Key=name, Body=name.encode())
    assert fetch(anonymous, "GET", s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": name})).body == name.encode()


def test_signed_content_type_must_be_sent(s3, anonymous, bucket, key):
    url = s3.generate_presigned_url("put_object", {"Bucket": bucket, "Key": key, "ContentType": "text/plain"})
    refused(fetch(anonymous, "PUT", url, body=b"x"), ("SignatureDoesNotMatch", "AccessDenied"), 403)
    refused(fetch(anonymous, "PUT", url, body=b"x", headers={"Content-Type": "text/html"}), "SignatureDoesNotMatch", 403)
    absent(s3, bucket, key)
    assert fetch(anonymous, "PUT", url, body=b"x", headers={"Content-Type": "text/plain"}).status == 200


@pytest.mark.parametrize("name", ["x-amz-meta-a", "x-amz-tagging", "x-dss-object-class", "x-amz-copy-source"])
def test_unsigned_header_is_rejected(s3, anonymous, bucket, key, name):
    url = s3.generate_presigned_url("put_object", {"Bucket": bucket, "Key": key})
    value = f"/{bucket}/{key}" if "copy" in name else "1"
    refused(fetch(anonymous, "PUT", url, body=b"x", headers={name: value}), ("AccessDenied", "SignatureDoesNotMatch"), 403)
    absent(s3, bucket, key)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "POST"])
def test_for_one_method_only(s3, anonymous, stored, method):
    url = s3.generate_presigned_url("get_object", stored)
    response = fetch(anonymous, method, url, body=b"x" if method in ("PUT", "POST") else b"")
    assert response.status in ((400, 403, 405, 501) if method == "POST" else (403,)), response
    assert body_of(s3, stored["Bucket"], stored["Key"]) == b"secret body"


def presigned(raw, method, path, query="", **options):
    query = raw.signer.presign(method, path, query, host=raw.host, **options)
    return wire.Wire(raw.endpoint).request(method, path, query)


def test_expiry(raw, path):
    assert presigned(raw, "GET", path, expires=60).status == 200
    response = presigned(raw, "GET", path, when=wire.now() - HOUR, expires=3590)
    refused(response, "AccessDenied", 403)
    assert b"expired" in response.body.lower()
    assert presigned(raw, "GET", path, when=wire.now() - HOUR, expires=3700).status == 200


def test_not_yet(raw, path):
    refused(presigned(raw, "GET", path, when=wire.now() + HOUR), ("AccessDenied", "RequestTimeTooSkewed"), 403)


def test_tampered_signature(raw, path):
    query = raw.signer.presign("GET", path, host=raw.host)
    for bad in (query[:-1] + ("0" if query[-1] != "0" else "1"), query[:-64] + "0" * 64, query[:-64], query[:-2], query + "00"):
        response = wire.Wire(raw.endpoint).request("GET", path, bad)
        assert response.status in (400, 403)
        refused(response, ("SignatureDoesNotMatch", "AuthorizationQueryParametersError"), response.status)


def test_tampered_request(raw, path):
    query = raw.signer.presign("GET", path, host=raw.host)
    anonymous = wire.Wire(raw.endpoint)
    refused(anonymous.request("GET", path + "2", query), "SignatureDoesNotMatch", 403)
    refused(anonymous.request("GET", path, query.replace("X-Amz-Expires=300", "X-Amz-Expires=3000")), "SignatureDoesNotMatch", 403)
    refused(anonymous.request("GET", path, query + "&tagging="), "SignatureDoesNotMatch", 403)


def test_wrong_secret_and_unknown_key(raw, keys, path):
    for signer, code in (
        (wire.Signer(keys[0], "wrong"), "SignatureDoesNotMatch"),
        (wire.Signer("AKIDOESNOTEXIST00000", keys[1]), "InvalidAccessKeyId"),
    ):
        query = signer.presign("GET", path, host=raw.host)
        refused(wire.Wire(raw.endpoint).request("GET", path, query), code, 403)


MALFORMED = {
    "expires too far": {"X_Amz_Expires": "604801"},
    "expires negative": {"X_Amz_Expires": "-1"},
    "expires not a number": {"X_Amz_Expires": "soon"},
    "expires huge": {"X_Amz_Expires": "99999999999999999999"},
    "no expires": {"X_Amz_Expires": None},
    "no credential": {"X_Amz_Credential": None},
    "no date": {"X_Amz_Date": None},
    "no signed headers": {"X_Amz_SignedHeaders": None},
    "no algorithm": {"X_Amz_Algorithm": None},
    "another algorithm": {"X_Amz_Algorithm": "AWS4-HMAC-MD5"},
    "date not a date": {"X_Amz_Date": "now"},
    "credential not a scope": {"X_Amz_Credential": "AKID/only"},
    "credential empty": {"X_Amz_Credential": ""},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(raw, path, case):
    response = presigned(raw, "GET", path, **MALFORMED[case])
    assert response.status in (400, 403), response
    refused(response, ("AuthorizationQueryParametersError", "AccessDenied", "InvalidArgument", "InvalidRequest", "SignatureDoesNotMatch"), response.status)


@pytest.mark.parametrize("case", ["expires too far", "expires negative", "expires not a number", "no credential", "credential not a scope"])
def test_code_of_a_malformed_url(raw, path, case):
    refused(presigned(raw, "GET", path, **MALFORMED[case]), "AuthorizationQueryParametersError", 400)


def test_version_two_with_an_unknown_key_is_rejected(anonymous, path):
    query = "AWSAccessKeyId=AKIDEXAMPLE&Expires=99999999999&Signature=vjbyPxybdZaNmGa%2ByT272YEAiv4%3D"
    response = anonymous.request("GET", path, query)
    assert response.status in (400, 403) and response.code, response
    assert b"secret body" not in response.body


# boto3 with its default settings: in us-east-1, presigned URLs have Signature Version 2.


@pytest.fixture(scope="module")
def default_boto3(keys):
    client = make_client(*keys, signature_version=None)
    if "AWSAccessKeyId" not in client.generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"}):
        pytest.skip("this boto3 and region have Signature Version 4 by default")
    return client


needs_version_two = pytest.mark.skipif(bool(NO_SIGV2), reason="TW_NO_PRESIGNED_SIGV2 is set")


@needs_version_two
@pytest.mark.parametrize("name", ["plain", "a b+c%/ü?&=#", "日本", "a//b"])
def test_default_boto3_writes_and_reads(default_boto3, anonymous, bucket, key, name):
    given = {"Bucket": bucket, "Key": f"{key}/{name}"}
    assert fetch(anonymous, "PUT", default_boto3.generate_presigned_url("put_object", given), body=b"by URL").status == 200
    assert fetch(anonymous, "GET", default_boto3.generate_presigned_url("get_object", given)).body == b"by URL"
    head = fetch(anonymous, "HEAD", default_boto3.generate_presigned_url("head_object", given))
    assert head.status == 200 and head.header("content-length") == "6"
    ranged = fetch(anonymous, "GET", default_boto3.generate_presigned_url("get_object", given), headers={"Range": "bytes=3-"})
    assert (ranged.status, ranged.body) == (206, b"URL")


@needs_version_two
@pytest.mark.parametrize("algorithm", ["CRC32", "SHA256"])
def test_default_boto3_names_a_checksum_algorithm(default_boto3, anonymous, bucket, key, algorithm):
    """boto3 signs the name of the algorithm; a checksum cannot be added to the signed URL."""
    given = {"Bucket": bucket, "Key": key, "ChecksumAlgorithm": algorithm}
    url = default_boto3.generate_presigned_url("put_object", given)
    assert "x-amz-sdk-checksum-algorithm" in url
    assert fetch(anonymous, "PUT", url, body=b"by URL").status == 200
    upload = default_boto3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    url = default_boto3.generate_presigned_url("upload_part", {**given, "UploadId": upload, "PartNumber": 1})
    assert fetch(anonymous, "PUT", url, body=b"part").status == 200


@needs_version_two
def test_default_boto3_signs_headers_and_overrides(default_boto3, s3, anonymous, bucket, key):
    given = {"Bucket": bucket, "Key": key, "ContentType": "text/x-test", "Metadata": {"colour": "blue"}}
    url = default_boto3.generate_presigned_url("put_object", given)
    assert fetch(anonymous, "PUT", url, body=b"x").status == 200
    head = s3.head_object(Bucket=bucket, Key=key)
    assert (head["ContentType"], head["Metadata"]) == ("text/x-test", {"colour": "blue"})
    refused(fetch(anonymous, "PUT", url, body=b"y", headers={"x-amz-meta-other": "1"}), "SignatureDoesNotMatch", 403)
    url = default_boto3.generate_presigned_url(
        "get_object", {"Bucket": bucket, "Key": key, "ResponseContentDisposition": 'attachment; filename="a b.txt"'}
    )
    assert fetch(anonymous, "GET", url).header("content-disposition") == 'attachment; filename="a b.txt"'
    refused(fetch(anonymous, "GET", url.replace("attachment", "inline")), "SignatureDoesNotMatch", 403)


@needs_version_two
def test_default_boto3_url_expires_and_is_for_one_request(default_boto3, anonymous, stored):
    url = default_boto3.generate_presigned_url("get_object", stored, ExpiresIn=-10)
    refused(fetch(anonymous, "GET", url), "AccessDenied", 403)
    url = default_boto3.generate_presigned_url("get_object", stored)
    assert fetch(anonymous, "GET", url).status == 200
    refused(fetch(anonymous, "PUT", url, body=b"x"), "SignatureDoesNotMatch", 403)
    refused(fetch(anonymous, "GET", url.replace(stored["Key"], "key-other")), "SignatureDoesNotMatch", 403)


@pytest.mark.skipif(not NO_SIGV2, reason="TW_NO_PRESIGNED_SIGV2 is not set")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_default_boto3_url_is_rejected_with_a_hint(default_boto3, anonymous, stored, method):
    operation = {"GET": "get_object", "HEAD": "head_object", "PUT": "put_object"}[method]
    response = fetch(anonymous, method, default_boto3.generate_presigned_url(operation, stored), body=b"x" * (method == "PUT"))
    assert response.status == 400
    if method != "HEAD":
        refused(response, "InvalidRequest", 400)
        assert b"AWS4-HMAC-SHA256" in response.body


def test_version_two_in_headers_is_rejected_in_plain_words(keys, stored):
    client = make_client(*keys, signature_version="s3")
    with s3_error("InvalidRequest", 400) as caught:
        client.get_object(**stored)
    assert "AWS4-HMAC-SHA256" in str(caught.value)
