"""User metadata, content headers, and overrides of response headers."""

import email.header

import pytest
from botocore.exceptions import ClientError

from expect import absent, refused, s3_error


def test_metadata_round_trip(s3, bucket, key):
    given = {"Upper-Case": "Value Kept", "dash-ed": "a  b", "number": "7", "equals": "a=b; c=\"d\", e", "empty": ""}
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata=given)
    expected = {name.lower(): value for name, value in given.items()}
    found = s3.head_object(Bucket=bucket, Key=key)["Metadata"]
    assert {name.lower(): value for name, value in found.items()} == expected
    assert {name.lower(): value for name, value in s3.get_object(Bucket=bucket, Key=key)["Metadata"].items()} == expected


def test_metadata_names_return_in_lower_case(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"X-Amz-Meta-CamelCase": "v"}, body=b"x").status == 200
    head = raw.request("HEAD", f"/{bucket}/{key}")
    assert ("camelcase", "v") in [(n.lower().removeprefix("x-amz-meta-"), v) for n, v in head.headers]


def decoded_words(text):
    """Decodes RFC 2047 text."""
    return "".join(part if isinstance(part, str) else part.decode(charset or "ascii") for part, charset in email.header.decode_header(text))


def test_metadata_beyond_ascii_returns_as_rfc2047(raw, bucket, key):
    text = "Grüße, 東京"
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-amz-meta-greeting": text}, body=b"x").status == 200
    for method in ("HEAD", "GET"):
        value = raw.request(method, f"/{bucket}/{key}").header("x-amz-meta-greeting")
        assert value.lower().startswith("=?utf-8?"), value
        decoded = decoded_words(value)
        # Headers have no charset; according to its documentation, AWS first reads the bytes as Latin-1.
        assert text in (decoded, decoded.encode("latin-1", "replace").decode("utf-8", "replace"))


def test_metadata_already_in_rfc2047_means_the_same(s3, raw, bucket, key):
    encoded = email.header.Header("Grüße", "utf-8").encode()
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata={"greeting": encoded})
    assert decoded_words(raw.request("HEAD", f"/{bucket}/{key}").header("x-amz-meta-greeting")) == "Grüße"


def test_repeated_metadata_header_is_joined(raw, bucket, key):
    headers = [("x-amz-meta-a", "1"), ("x-amz-meta-a", "2")]
    assert raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=b"x").status == 200
    assert raw.request("HEAD", f"/{bucket}/{key}").header("x-amz-meta-a").replace(" ", "") == "1,2"


def test_metadata_up_to_two_kilobytes(s3, bucket, key):
    given = {"a": "x" * 1000, "b": "y" * 1000}
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata=given)
    assert s3.head_object(Bucket=bucket, Key=key)["Metadata"] == given


@pytest.mark.parametrize("given", [{"a": "x" * 2100}, {f"k{n:02}": "v" * 50 for n in range(45)}])
def test_more_metadata_is_rejected(s3, bucket, key, given):
    with s3_error("MetadataTooLarge", 400):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata=given)
    absent(s3, bucket, key)
    with s3_error("MetadataTooLarge", 400):
        s3.create_multipart_upload(Bucket=bucket, Key=key, Metadata=given)


CONTENT = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Encoding": "gzip",
    "Content-Disposition": 'attachment; filename="a b.txt"',
    "Content-Language": "de, en",
    "Cache-Control": "max-age=60, no-transform",
    "Expires": "Wed, 21 Oct 2037 07:28:00 GMT",
}


def test_content_headers_round_trip(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers=CONTENT, body=b"x").status == 200
    for method in ("HEAD", "GET"):
        response = raw.request(method, f"/{bucket}/{key}")
        assert {name: response.header(name) for name in CONTENT} == CONTENT


def test_content_headers_of_a_multipart_object(s3, raw, bucket, key):
    response = raw.request("POST", f"/{bucket}/{key}", "uploads=", headers={**CONTENT, "x-amz-meta-a": "b"})
    upload = response.xml().findtext("UploadId")
    part = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x")
    s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )
    head = raw.request("HEAD", f"/{bucket}/{key}")
    assert {name: head.header(name) for name in CONTENT} == CONTENT
    assert head.header("x-amz-meta-a") == "b"


def test_default_content_type(raw, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", body=b"x").status == 200
    head = raw.request("HEAD", f"/{bucket}/{key}")
    assert head.header("content-type") == "binary/octet-stream"
    for name in ("content-encoding", "content-disposition", "content-language", "cache-control", "expires"):
        assert head.header(name) is None


def test_response_header_overrides(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", ContentType="text/plain", CacheControl="no-cache")
    got = s3.get_object(
        Bucket=bucket,
        Key=key,
        ResponseContentType="application/x-test",
        ResponseContentEncoding="identity",
        ResponseContentDisposition='attachment; filename="a b+c.txt"',
        ResponseContentLanguage="fr",
        ResponseCacheControl="max-age=1",
        ResponseExpires="Thu, 01 Dec 1994 16:00:00 GMT",
    )
    headers = got["ResponseMetadata"]["HTTPHeaders"]
    assert headers["content-type"] == "application/x-test"
    assert headers["content-encoding"] == "identity"
    assert headers["content-disposition"] == 'attachment; filename="a b+c.txt"'
    assert headers["content-language"] == "fr"
    assert headers["cache-control"] == "max-age=1"
    assert headers["expires"] == "Thu, 01 Dec 1994 16:00:00 GMT"
    assert s3.head_object(Bucket=bucket, Key=key)["ContentType"] == "text/plain"


@pytest.mark.parametrize("value", ["text%2Fplain%0D%0AX-Injected%3A%201", "a%00b"])
def test_response_override_cannot_split_the_response(s3, raw, bucket, key, value):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    response = raw.request("GET", f"/{bucket}/{key}", f"response-content-type={value}")
    assert response.header("x-injected") is None
    assert response.status in (200, 400), response


def test_unknown_storage_class_is_rejected(raw, s3, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-amz-storage-class": "STANDARD"}, body=b"x").status == 200
    response = raw.request("PUT", f"/{bucket}/{key}2", headers={"x-amz-storage-class": "SOLID-GOLD"}, body=b"x")
    refused(response, "InvalidStorageClass", 400)
    absent(s3, bucket, key + "2")


def test_many_small_metadata_headers(raw, bucket, key):
    """The limit of S3 is the total of 2 KB, not the number."""
    given = {f"x-amz-meta-name-{n}": f"value {n}" for n in range(96)}
    path, copy = f"/{bucket}/{key}", f"/{bucket}/{key}-copy"

    def stored(target):
        headers = raw.request("HEAD", target).headers
        return {name.lower(): value for name, value in headers if name.lower().startswith("x-amz-meta-")}

    assert raw.request("PUT", path, headers=given, body=b"x").status == 200
    assert stored(path) == given
    assert raw.request("PUT", copy, headers={"x-amz-copy-source": path}).status == 200
    assert stored(copy) == given
    assert raw.request("POST", path, "uploads=", headers=given).status == 200


def test_many_metadata_headers_of_boto3(s3, bucket, key):
    """Not more than 80: Python reads at most 100 headers of a response."""
    given = {f"name-{n}": f"value {n}" for n in range(80)}
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata=given)
    assert s3.head_object(Bucket=bucket, Key=key)["Metadata"] == given


@pytest.mark.parametrize("connection", ["new", "in use"])
def test_too_many_headers_are_rejected_with_a_document(raw, bucket, key, connection):
    """By the default of `limits.headers`, 200. The head was not read, so the document has no request ID."""
    headers = {f"x-amz-meta-n{n}": "v" for n in range(250)}
    with raw.connect() as socket:
        if connection == "in use":
            assert raw.request("HEAD", f"/{bucket}", connection=socket).status == 200
        response = raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=b"x", connection=socket)
    assert (response.status, response.code) == (431, "RequestHeaderSectionTooLarge")
    assert response.xml().findtext("Message") and response.closes, response
    assert raw.request("HEAD", f"/{bucket}/{key}").status == 404


def test_too_many_headers_are_explained_to_boto3(s3, bucket, key):
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata={f"n{n}": "v" for n in range(250)})
    assert caught.value.response["Error"]["Code"] == "RequestHeaderSectionTooLarge"
