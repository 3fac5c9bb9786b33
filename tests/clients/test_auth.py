"""SigV4 in the header: accepted requests, and the error codes of rejected ones."""

import datetime
import hashlib

import pytest

import sums
import wire
from expect import absent, body_of, refused, s3_error

MINUTE = datetime.timedelta(minutes=1)


@pytest.fixture(scope="module")
def target(s3, bucket):
    """The path of an object that requires a valid signature."""
    s3.put_object(Bucket=bucket, Key="target", Body=b"secret body")
    return f"/{bucket}/target"


def test_unknown_key(raw, keys, target):
    response = raw.request("GET", target, signer=wire.Signer("AKIDOESNOTEXIST00000", keys[1]))
    refused(response, "InvalidAccessKeyId", 403)


def test_wrong_secret(raw, keys, target):
    for secret in (keys[1] + "x", keys[1][:-1], "", keys[1].swapcase()):
        response = raw.request("GET", target, signer=wire.Signer(keys[0], secret))
        refused(response, "SignatureDoesNotMatch", 403)
        assert keys[1].encode() not in response.body


def test_wrong_key_writes_nothing(raw, s3, keys, bucket, key):
    response = raw.request("PUT", f"/{bucket}/{key}", body=b"x", signer=wire.Signer(keys[0], "wrong"))
    refused(response, "SignatureDoesNotMatch", 403)
    absent(s3, bucket, key)


def test_boto3_sees_the_codes(s3, keys, bucket):
    from conftest import make_client

    with s3_error("InvalidAccessKeyId", 403):
        make_client("AKIDOESNOTEXIST00000", keys[1]).list_objects_v2(Bucket=bucket)
    with s3_error("SignatureDoesNotMatch", 403):
        make_client(keys[0], "wrong").list_objects_v2(Bucket=bucket)


def test_no_authorization(anonymous, target, bucket):
    refused(anonymous.request("GET", target), "AccessDenied", 403)
    refused(anonymous.request("PUT", target, body=b"x"), "AccessDenied", 403)
    refused(anonymous.request("GET", f"/{bucket}"), "AccessDenied", 403)
    assert anonymous.request("HEAD", target).status == 403


@pytest.mark.parametrize("skew", [-16, -60, -60 * 24, 16, 60, 60 * 24])
def test_skewed_clock(raw, target, skew):
    response = raw.request("GET", target, when=wire.now() + skew * MINUTE)
    # Beyond a day, the date in the credential scope is wrong, too.
    refused(response, ("RequestTimeTooSkewed", "AccessDenied") if abs(skew) > 1000 else "RequestTimeTooSkewed", 403)


@pytest.mark.parametrize("skew", [-13, 13])
def test_a_clock_within_fifteen_minutes(raw, target, skew):
    assert raw.request("GET", target, when=wire.now() + skew * MINUTE).status == 200


# The Authorization header


def send(raw, target, text):
    """A signed GET whose Authorization header is `text`, or the result of `text` for the valid one."""
    headers, _ = raw.signer.sign("GET", target, "", [("Host", raw.host)], wire.EMPTY_SHA256)
    name, right = headers.pop()
    headers.append((name, text(right) if callable(text) else text))
    with raw.connect() as connection:
        connection.send(wire.head_bytes("GET", target, headers))
        return connection.read()


MALFORMED = {
    "empty": "",
    "algorithm alone": "AWS4-HMAC-SHA256",
    "garbage after it": "AWS4-HMAC-SHA256 garbage",
    "no credential": lambda a: a.replace("Credential=", "Cred="),
    "no signature": lambda a: a.split(", Signature=")[0],
    "no signed headers": lambda a: a.replace("SignedHeaders=", "Signed="),
    "empty credential": lambda a: a.replace(a.split("Credential=")[1].split(",")[0], ""),
    "short scope": lambda a: a.replace("/s3/aws4_request", ""),
    "long scope": lambda a: a.replace("/s3/", "/s3/extra/"),
    "another service": lambda a: a.replace("/s3/", "/ec2/"),
    "another terminator": lambda a: a.replace("aws4_request", "aws5_request"),
    "date not a date": lambda a: a.replace(wire.now().strftime("%Y%m%d/"), "20xx0101/"),
    "no commas": lambda a: a.replace(",", ""),
    "megabytes": lambda a: a + "A" * 6000,
    "signature not hexadecimal": lambda a: a[:-4] + "zzzz",
    "signature too short": lambda a: a[:-2],
    "signature too long": lambda a: a + "00",
    "signature empty": lambda a: a[:-64],
    "binary": "AWS4-HMAC-SHA256 Credential=\xff\xfe, SignedHeaders=host, Signature=00",
    "basic": "Basic dXNlcjpwYXNz",
    "bearer": "Bearer abcdef",
    "version two": "AWS AKIDEXAMPLE:frJIUN8DYpKDtOLCwo//yllqDzg=",
    "asymmetric": lambda a: a.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
}

REFUSALS = ("AuthorizationHeaderMalformed", "SignatureDoesNotMatch", "InvalidArgument", "InvalidRequest", "AccessDenied", "InvalidAccessKeyId", "NotImplemented")


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_authorization(raw, target, case):
    response = send(raw, target, MALFORMED[case])
    assert response.status in (400, 403, 501), response
    refused(response, REFUSALS, response.status)
    assert b"secret body" not in response.body


@pytest.mark.parametrize("case", ["garbage after it", "no credential", "no signature", "short scope", "another service", "another terminator"])
def test_code_of_a_malformed_header(raw, target, case):
    refused(send(raw, target, MALFORMED[case]), "AuthorizationHeaderMalformed", 400)


def test_two_authorizations(raw, target):
    """A signature in both the header and the query string is rejected."""
    query = raw.signer.presign("GET", target, host=raw.host)
    refused(raw.request("GET", target, query), "InvalidArgument", 400)


# Coverage of the signature


def test_changed_request(raw, target, bucket):
    """A signature is invalid for any other request."""
    head, _ = raw.prepare("GET", target, headers={"Range": "bytes=0-0"})
    for was, becomes in (
        (b"GET ", b"DELETE "),
        (b"GET ", b"HEAD "),
        (target.encode(), target.encode() + b"2"),
        (b" HTTP/1.1", b"?tagging= HTTP/1.1"),
        (b"Range: bytes=0-0", b"Range: bytes=0-9"),
        (b"Host: ", b"Host: x"),
    ):
        with raw.connect() as connection:
            connection.send(head.replace(was, becomes, 1))
            response = connection.read("HEAD" if becomes == b"HEAD " else "GET")
        assert response.status == 403, (becomes, response)
        if becomes != b"HEAD ":
            assert response.code == "SignatureDoesNotMatch", response
    assert raw.request("GET", target).body == b"secret body"


@pytest.mark.parametrize(
    "name, value",
    [
        ("x-amz-meta-injected", "1"),
        ("x-amz-acl", "public-read"),
        ("x-amz-tagging", "a=1"),
        ("x-amz-storage-class", "STANDARD"),
        ("x-dss-object-class", "25"),
        ("X-DSS-Class", "3"),
        ("x-amz-copy-source", "/e2e-shared/k"),
    ],
)
def test_unsigned_header_is_refused(raw, s3, bucket, key, name, value):
    response = raw.request("PUT", f"/{bucket}/{key}", body=b"x", unsigned={name: value})
    refused(response, ("AccessDenied", "SignatureDoesNotMatch"), 403)
    absent(s3, bucket, key)


def test_signed_headers_must_name_the_host(raw, keys, target):
    when = wire.now()
    headers = [("x-amz-date", f"{when:%Y%m%dT%H%M%SZ}"), ("x-amz-content-sha256", wire.EMPTY_SHA256)]
    names = sorted(name for name, _ in headers)
    signature = raw.signer.signature("GET", target, "", headers, names, wire.EMPTY_SHA256, when)
    text = f"AWS4-HMAC-SHA256 Credential={keys[0]}/{raw.signer.scope(when)}, SignedHeaders={';'.join(names)}, Signature={signature}"
    with raw.connect() as connection:
        connection.send(wire.head_bytes("GET", target, [("Host", raw.host), *headers, ("Authorization", text)]))
        response = connection.read()
    assert response.status in (400, 403), response
    refused(response, REFUSALS, response.status)


def test_signed_header_that_is_missing(raw, target):
    response = raw.request("GET", target, headers={"x-amz-meta-a": "1"}, drop=("x-amz-meta-a",))
    refused(response, ("SignatureDoesNotMatch", "AccessDenied"), 403)


def test_no_date(raw, target):
    response = raw.request("GET", target, drop=("x-amz-date",))
    assert response.status in (400, 403)
    refused(response, ("AccessDenied", "AuthorizationHeaderMalformed", "SignatureDoesNotMatch"), response.status)


@pytest.mark.parametrize("date", ["", "yesterday", "20250101", "99999999T999999Z", "2025-01-01T00:00:00Z"])
def test_malformed_date(raw, target, date):
    headers, _ = raw.signer.sign("GET", target, "", [("Host", raw.host)], wire.EMPTY_SHA256)
    headers = [(name, date if name == "x-amz-date" else value) for name, value in headers]
    with raw.connect() as connection:
        connection.send(wire.head_bytes("GET", target, headers))
        response = connection.read()
    assert response.status in (400, 403) and response.code, response


# The hash of the payload


def test_payload_hash(raw, s3, bucket, key):
    wrong = hashlib.sha256(b"other").hexdigest()
    refused(raw.request("PUT", f"/{bucket}/{key}", body=b"body", payload_hash=wrong), "XAmzContentSHA256Mismatch", 400)
    absent(s3, bucket, key)
    assert raw.request("PUT", f"/{bucket}/{key}", body=b"body", payload_hash=wire.UNSIGNED).status == 200
    assert body_of(s3, bucket, key) == b"body"


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_payload_hash_of_other_sizes(raw, s3, bucket, key, size):
    wrong = hashlib.sha256(b"other").hexdigest()
    refused(raw.request("PUT", f"/{bucket}/{key}", body=b"b" * size, payload_hash=wrong), "XAmzContentSHA256Mismatch", 400)
    absent(s3, bucket, key)


def test_malformed_payload_hash(raw, s3, bucket, key):
    for text in ("", "abc", "UNSIGNED", "STREAMING-AWS4-HMAC-SHA512-PAYLOAD", "g" * 64):
        response = raw.request("PUT", f"/{bucket}/{key}", body=b"body", payload_hash=text or " ")
        assert response.status in (400, 403, 501), response
        assert response.code
        absent(s3, bucket, key)


def test_no_payload_hash(raw, s3, bucket, key):
    response = raw.request("PUT", f"/{bucket}/{key}", body=b"x", drop=("x-amz-content-sha256",))
    assert response.status in (400, 403), response
    refused(response, ("InvalidRequest", "SignatureDoesNotMatch", "AccessDenied", "MissingSecurityHeader"), response.status)
    absent(s3, bucket, key)


def test_payload_hash_of_a_query(raw, bucket, key):
    """XML bodies are also verified."""
    body = b"<Delete><Object><Key>target</Key></Object></Delete>"
    wrong = hashlib.sha256(b"other").hexdigest()
    headers = {"Content-MD5": sums.content_md5(body)}
    response = raw.request("POST", f"/{bucket}", "delete=", headers=headers, body=body, payload_hash=wrong)
    refused(response, "XAmzContentSHA256Mismatch", 400)


# Canonicalisation


@pytest.mark.parametrize("query", ["prefix=a%20b", "prefix=a%2Bb", "prefix=%C3%BC", "prefix=a%2Fb&max-keys=1&delimiter=%2F", "list-type=2&prefix="])
def test_query_strings(raw, bucket, query):
    assert raw.request("GET", f"/{bucket}", query).status == 200


def test_bare_parameter_name(raw, bucket):
    assert raw.request("GET", f"/{bucket}", "location").status == 200


def test_header_with_many_spaces(raw, s3, bucket, key):
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"X-Amz-Meta-Spaced": "a   b  c "}, body=b"x").status == 200
    assert s3.head_object(Bucket=bucket, Key=key)["Metadata"]["spaced"] in ("a   b  c", "a b c")
