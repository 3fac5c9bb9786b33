"""Malformed requests: they get the right error, store nothing, and leave the connection in order."""

import time

import pytest

import sums
import wire
from expect import absent, body_of, check_error_body, payload, refused

DATA = payload(200_000, "bad input")


def raw_exchange(raw, text, method="GET", finish=False):
    with raw.connect() as connection:
        connection.send_all_it_takes(text)
        if finish:
            connection.finish_sending()
        return connection.read(method)


# Bodies shorter and longer than announced


@pytest.mark.parametrize("sent", [0, 1, 100_000, len(DATA) - 1])
@pytest.mark.parametrize("payload_hash", [None, wire.UNSIGNED], ids=["signed", "unsigned"])
def test_connection_closed_early(s3, raw, bucket, key, sent, payload_hash):
    s3.put_object(Bucket=bucket, Key=key + "-old", Body=b"before")
    for name in (key, key + "-old"):
        head, _ = raw.prepare("PUT", f"/{bucket}/{name}", body=DATA, payload_hash=payload_hash)
        with raw.connect() as connection:
            connection.send(head + DATA[:sent])
    time.sleep(0.1)
    absent(s3, bucket, key)
    assert body_of(s3, bucket, key + "-old") == b"before"


def test_half_closed_early(s3, raw, bucket, key):
    """The client stops sending but still reads: it gets an error or a closed connection, never success."""
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", body=DATA, payload_hash=wire.UNSIGNED)
    try:
        response = raw_exchange(raw, head + DATA[:1000], finish=True)
    except wire.Disconnected:
        pass
    else:
        assert response.status == 400 and response.code in ("IncompleteBody", "RequestTimeout"), response
    absent(s3, bucket, key)


def test_part_cut_short(s3, raw, bucket, key):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", f"partNumber=1&uploadId={upload}", body=DATA, payload_hash=wire.UNSIGNED)
    with raw.connect() as connection:
        connection.send(head + DATA[:1000])
    time.sleep(0.1)
    assert "Parts" not in s3.list_parts(Bucket=bucket, Key=key, UploadId=upload)


def test_body_longer_than_announced(s3, raw, bucket, key):
    """The surplus is parsed as another request, which is malformed."""
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", body=b"0123456789", payload_hash=wire.UNSIGNED)
    with raw.connect() as connection:
        connection.send_all_it_takes(head + b"0123456789" + b"\x00surplus\r\n\r\n")
        assert connection.read().status == 200
        try:
            assert connection.read().status == 400
        except wire.Disconnected:
            pass
    assert body_of(s3, bucket, key) == b"0123456789"


# Lengths


def test_no_length(s3, raw, bucket, key):
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", payload_hash=wire.UNSIGNED, length=False)
    refused(raw_exchange(raw, head), "MissingContentLength", 411)
    absent(s3, bucket, key)


def test_transfer_encoding_without_a_decoded_length(s3, raw, bucket, key):
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", payload_hash=wire.UNSIGNED, length=False)
    response = raw_exchange(raw, head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
    assert (response.status, response.code) in ((411, "MissingContentLength"), (501, "NotImplemented")), response
    absent(s3, bucket, key)


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "18446744073709551616", "5, 6", ""])
def test_malformed_length(s3, raw, bucket, key, length):
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", payload_hash=wire.UNSIGNED, length=False)
    try:
        response = raw_exchange(raw, head[:-2] + f"Content-Length: {length}\r\n\r\nbody!".encode())
    except wire.Disconnected:
        pass
    else:
        assert response.status in (400, 411), response
    absent(s3, bucket, key)


def test_two_lengths(s3, raw, bucket, key):
    """The classic case of request smuggling."""
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", payload_hash=wire.UNSIGNED, length=False)
    try:
        response = raw_exchange(raw, head[:-2] + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody!")
    except wire.Disconnected:
        pass
    else:
        assert response.status == 400, response
    absent(s3, bucket, key)


def test_length_and_transfer_encoding(s3, raw, bucket, key):
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", payload_hash=wire.UNSIGNED, length=False)
    text = head[:-2] + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    try:
        response = raw_exchange(raw, text)
    except wire.Disconnected:
        pass
    else:
        assert response.status in (400, 411, 501), response
    absent(s3, bucket, key)


def test_over_five_gibibytes(s3, raw, bucket, key):
    """Rejected by the declared length, before the body is requested."""
    head, _ = raw.prepare("PUT", f"/{bucket}/{key}", headers={"Expect": "100-continue"}, payload_hash=wire.UNSIGNED, length=(5 << 30) + 1)
    with raw.connect(timeout=10) as connection:
        connection.send(head)
        response = connection.read_head()
        assert response.status == 400, response
    absent(s3, bucket, key)


# Request lines, headers, paths


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello on a plain port
        bytes(range(256)),
    ],
)
def test_not_http(raw, text):
    try:
        response = raw_exchange(raw, text, finish=True)
    except wire.Disconnected:
        return
    assert 400 <= response.status < 600, response
    assert raw.request("GET", "/").status == 200


def test_headers_too_large(raw, bucket, key, s3):
    for headers in ({"x-amz-meta-a": "v" * 200_000}, {f"x-h-{n}": "v" * 50 for n in range(2000)}):
        try:
            response = raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=b"x")
        except wire.Disconnected:
            continue
        assert response.status in (400, 413, 431), response.status
    absent(s3, bucket, key)


def test_target_too_long(raw, bucket):
    try:
        response = raw.request("GET", f"/{bucket}", "prefix=" + "x" * 200_000)
    except wire.Disconnected:
        return
    assert response.status in (400, 414, 431), response.status


def test_no_host(raw):
    response = raw_exchange(raw, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert response.status in (400, 403), response


@pytest.mark.parametrize("tail", ["%FF", "a%C3", "%zz", "%", "%E0%80%80", "%ED%A0%80"], ids=["ff", "cut", "zz", "bare", "overlong", "surrogate"])
def test_key_that_is_no_utf8(raw, s3, bucket, tail):
    """A server that decodes before it verifies may report a wrong signature instead."""
    before = s3.list_objects_v2(Bucket=bucket)["KeyCount"]
    response = raw.request("PUT", f"/{bucket}/{tail}", body=b"x")
    if response.status == 403:
        refused(response, "SignatureDoesNotMatch", 403)
    else:
        refused(response, ("InvalidURI", "InvalidArgument", "InvalidRequest"), 400)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == before


# XML bodies

BOMB = b"""<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]>
<Tagging><TagSet><Tag><Key>k</Key><Value>&d;</Value></Tag></TagSet></Tagging>"""
EXTERNAL = b"""<?xml version="1.0"?><!DOCTYPE t [<!ENTITY f SYSTEM "file:///etc/hostname">]>
<Tagging><TagSet><Tag><Key>k</Key><Value>&f;</Value></Tag></TagSet></Tagging>"""

BAD_XML = {
    "empty": b"",
    "text": b"hello",
    "binary": bytes(range(256)),
    "unclosed": b"<Tagging><TagSet>",
    "wrongly nested": b"<Tagging><TagSet></Tagging></TagSet>",
    "other root": b"<Nonsense></Nonsense>",
    "no tag set": b"<Tagging></Tagging>",
    "tag without key": b"<Tagging><TagSet><Tag><Value>v</Value></Tag></TagSet></Tagging>",
    "not utf-8": b"<Tagging><TagSet><Tag><Key>\xff\xfe</Key><Value>v</Value></Tag></TagSet></Tagging>",
    "entities": BOMB,
    "external entity": EXTERNAL,
    "deep": b"<a>" * 100_000,
}


@pytest.mark.parametrize("case", BAD_XML)
def test_malformed_xml(raw, s3, bucket, key, case):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Tagging="kept=1")
    body = BAD_XML[case]
    response = raw.request("PUT", f"/{bucket}/{key}", "tagging=", headers={"Content-MD5": sums.content_md5(body)}, body=body)
    also = {"empty": "MissingRequestBodyError", "tag without key": "InvalidTag", "deep": "MaxMessageLengthExceeded"}
    refused(response, ("MalformedXML", also.get(case)), 400)
    assert s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"] == [{"Key": "kept", "Value": "1"}]


def test_malformed_bucket_configuration(raw, s3, temporary_names):
    name = temporary_names()
    refused(raw.request("PUT", f"/{name}", body=b"<CreateBucketConfiguration><Location"), "MalformedXML", 400)
    assert raw.request("HEAD", f"/{name}").status == 404


def test_xml_of_many_megabytes(raw, bucket):
    body = b"<Delete>" + b"<Object><Key>k</Key></Object>" * 200_000 + b"</Delete>"
    try:
        response = raw.request("POST", f"/{bucket}", "delete=", headers={"Content-MD5": sums.content_md5(body)}, body=body)
    except wire.Disconnected:
        return
    refused(response, ("MalformedXML", "EntityTooLarge", "MaxMessageLengthExceeded"), 400)


# Errors and connections


def error_cases(bucket):
    """A request for each kind of failure that needs no object: (method, path, query, status)."""
    return [
        ("GET", f"/{bucket}/missing", "", 404),
        ("GET", "/e2e-no-such-bucket-at-all", "", 404),
        ("GET", f"/{bucket}", "max-keys=x", 400),
        ("PUT", "/UPPER", "", 400),
        ("POST", f"/{bucket}", "", 412),
        ("GET", f"/{bucket}/k", "uploadId=none", 404),
        ("PUT", f"/{bucket}", "policy=", 501),
    ]


def test_error_documents(raw, bucket):
    seen = set()
    for method, path, query, status in error_cases(bucket):
        response = raw.request(method, path, query)
        assert response.status == status, response
        check_error_body(response)
        assert response.xml().findtext("Resource"), response
        seen.add(response.header("x-amz-request-id"))
    assert len(seen) == len(error_cases(bucket)), "request ids repeat"


def test_resource_is_escaped(raw, bucket):
    response = raw.request("GET", f"/{bucket}/%3Cscript%3E%26%22")
    refused(response, "NoSuchKey", 404)
    assert b"<script>" not in response.body


def test_errors_of_head_have_no_body(raw, bucket):
    """They also leave the connection usable for the next request."""
    with raw.connect() as connection:
        for path in (f"/{bucket}/missing", "/e2e-no-such-bucket-at-all", f"/{bucket}/missing"):
            response = raw.request("HEAD", path, connection=connection)
            assert response.status == 404 and response.header("x-amz-request-id")
            assert connection.silent()
        assert raw.request("GET", f"/{bucket}/missing", connection=connection).code == "NoSuchKey"


def test_no_content_and_not_modified_have_no_body(raw, s3, bucket, key):
    etag = s3.put_object(Bucket=bucket, Key=key, Body=b"x")["ETag"]
    with raw.connect() as connection:
        assert raw.request("GET", f"/{bucket}/{key}", headers={"If-None-Match": etag}, connection=connection).status == 304
        assert connection.silent()
        assert raw.request("DELETE", f"/{bucket}/{key}", connection=connection).status == 204
        assert connection.silent()


@pytest.mark.parametrize("size", [10, 100_000, 5_000_000])
def test_connection_after_a_rejected_body(raw, keys, bucket, key, size):
    """The rest of a rejected body is never parsed as the next request."""
    bad = wire.Signer(keys[0], "wrong")
    with raw.connect() as connection:
        head, _ = raw.prepare("PUT", f"/{bucket}/{key}", body=b"x" * size, signer=bad)
        connection.send_all_it_takes(head + b"x" * size)
        try:
            response = connection.read()
        except wire.Disconnected:
            assert size > 10, "the error got lost"
            return
        refused(response, "SignatureDoesNotMatch", 403)
        try:
            again = raw.request("GET", f"/{bucket}/missing", connection=connection)
        except (wire.Disconnected, BrokenPipeError, ConnectionResetError):
            return
        refused(again, "NoSuchKey", 404)


def test_pipelined_requests(raw, s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"0123456789")
    with raw.connect() as connection:
        for n in range(10):
            connection.send(raw.prepare("GET", f"/{bucket}/{key}", headers={"Range": f"bytes={n}-{n}"})[0])
        assert b"".join(connection.read().body for _ in range(10)) == b"0123456789"


def test_readers_that_disconnect(raw, s3, bucket, key):
    """Clients that disconnect during a download do not harm the server."""
    s3.put_object(Bucket=bucket, Key=key, Body=payload(8 << 20))
    for _ in range(20):
        with raw.connect() as connection:
            connection.send(raw.prepare("GET", f"/{bucket}/{key}")[0])
            connection.read_head()
    assert len(body_of(s3, bucket, key)) == 8 << 20


# Unsupported methods and operations


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "FOO", "PROPFIND"])
def test_unknown_method(raw, bucket, key, method):
    for path in ("/", f"/{bucket}", f"/{bucket}/{key}"):
        response = raw.request(method, path)
        assert (response.status, response.code) in ((405, "MethodNotAllowed"), (501, "NotImplemented")), response
        check_error_body(response)


def test_delete_and_put_of_the_service(raw):
    for method in ("PUT", "DELETE", "POST"):
        response = raw.request(method, "/")
        assert (response.status, response.code) in ((405, "MethodNotAllowed"), (501, "NotImplemented"), (400, "InvalidBucketName"), (400, "InvalidRequest")), response
