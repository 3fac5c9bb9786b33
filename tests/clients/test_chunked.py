"""aws-chunked bodies built by hand: signed and unsigned chunks, with and without trailers."""

import pytest

import sums
import wire
from expect import absent, body_of, payload, refused

DATA = payload(70_000, "chunked")
REFUSED_FRAMING = ("IncompleteBody", "InvalidRequest", "InvalidArgument", "InvalidChunkSizeError", "MalformedTrailerError", "MalformedChunkedEncoding")


def joined(frames):
    return b"".join(frames)


def trailer_of(algorithm, data=DATA):
    return f"x-amz-checksum-{algorithm.lower()}", sums.checksum(algorithm, data)


# Signed chunks


@pytest.mark.parametrize("size", [0, 1, 8192, 65_536, 65_537, 70_000])
def test_signed(s3, raw, bucket, key, size):
    data = DATA[:size]
    put = raw.stream(f"/{bucket}/{key}", lambda seed: joined(seed.frames(data, 8192)), wire.STREAMING, size)
    assert put.status == 200, put
    head = s3.head_object(Bucket=bucket, Key=key)
    assert head["ETag"] == f'"{sums.md5_hex(data)}"' and "ContentEncoding" not in head
    assert body_of(s3, bucket, key) == data


def test_other_content_codings_are_stored(s3, raw, bucket, key):
    head, seed = raw.prepare(
        "PUT", f"/{bucket}/{key}", headers={"Content-Encoding": "gzip,aws-chunked", "x-amz-decoded-content-length": "3"},
        payload_hash=wire.STREAMING, length=False,
    )  # fmt: skip
    body = joined(seed.frames(b"abc"))
    with raw.connect() as connection:
        connection.send(head[:-2] + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.read().status == 200
    assert s3.head_object(Bucket=bucket, Key=key)["ContentEncoding"] == "gzip"


def test_body_in_small_fragments(s3, raw, bucket, key):
    """The result does not depend on the boundaries of packets."""
    data = DATA[:9000]
    headers = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(data))}
    head, seed = raw.prepare("PUT", f"/{bucket}/{key}", headers=headers, payload_hash=wire.STREAMING, length=False)
    body = joined(seed.frames(data, 8192))
    with raw.connect() as connection:
        connection.send(head[:-2] + f"Content-Length: {len(body)}\r\n\r\n".encode())
        cuts = [*range(0, 130, 1), *range(130, 8100, 997), *range(8100, 8500, 1), len(body)]
        for start, stop in zip(cuts, cuts[1:]):
            connection.send(body[start:stop])
        assert connection.read().status == 200
    assert body_of(s3, bucket, key) == data


def tampered(change):
    """A function that builds a body and changes its list of valid frames."""

    def make(seed):
        return joined(change(seed.frames(DATA, 16_384)))

    return make


def flip(frames, number, at):
    frame = bytearray(frames[number])
    frame[at] ^= 1
    return [*frames[:number], bytes(frame), *frames[number + 1 :]]


BAD_SIGNATURES = {
    "data changed in the first chunk": lambda f: flip(f, 0, 200),
    "data changed in the last chunk": lambda f: flip(f, len(f) - 2, 200),
    "signature changed": lambda f: flip(f, 1, 30),
    "final signature changed": lambda f: flip(f, len(f) - 1, 30),
    "chunks swapped": lambda f: [f[1], f[0], *f[2:]],
    "chunk repeated in place of another": lambda f: [f[0], f[0], *f[2:]],
}


@pytest.mark.parametrize("case", BAD_SIGNATURES)
def test_bad_chunk_signature(s3, raw, bucket, key, case):
    put = raw.stream(f"/{bucket}/{key}", tampered(BAD_SIGNATURES[case]), wire.STREAMING, len(DATA))
    refused(put, "SignatureDoesNotMatch", 403)
    absent(s3, bucket, key)


BAD_FRAMING = {
    "no final chunk": lambda f: f[:-1],
    "cut within a chunk": lambda f: [*f[:-2], f[-2][:100]],
    "cut within a chunk head": lambda f: [*f[:-2], f[-2][:20]],
    "empty": lambda f: [],
    "no line end after data": lambda f: [f[0][:-2], *f[1:]],
    "size not hexadecimal": lambda f: [b"zz" + f[0], *f[1:]],
    "size negative": lambda f: [b"-" + f[0], *f[1:]],
    "size without end": lambda f: [b"f" * 40_000, *f],
    "size beyond 64 bits": lambda f: [b"ffffffffffffffffff" + f[0], *f[1:]],
    "size too large": lambda f: [b"5" + f[0], *f[1:]],
    "size too small": lambda f: [b"3" + f[0][1:], *f[1:]],
    "bare line feed": lambda f: [f[0].replace(b"\r\n", b"\n", 1), *f[1:]],
    "no signature": lambda f: [b"4000\r\n" + f[0].split(b"\r\n", 1)[1], *f[1:]],
    "more after the end": lambda f: [*f, b"more"],
    "a second body after the end": lambda f: [*f, *f],
}


@pytest.mark.parametrize("case", BAD_FRAMING)
def test_bad_framing(s3, raw, bucket, key, case):
    put = raw.stream(f"/{bucket}/{key}", tampered(BAD_FRAMING[case]), wire.STREAMING, len(DATA))
    assert put.status in (400, 403), put
    refused(put, (*REFUSED_FRAMING, "SignatureDoesNotMatch"), put.status)
    absent(s3, bucket, key)


@pytest.mark.parametrize("length", [0, 1, len(DATA) - 1, len(DATA) + 1, len(DATA) * 10])
def test_wrong_decoded_length(s3, raw, bucket, key, length):
    put = raw.stream(f"/{bucket}/{key}", tampered(lambda f: f), wire.STREAMING, length)
    refused(put, ("IncompleteBody", "InvalidRequest"), 400)
    absent(s3, bucket, key)


@pytest.mark.parametrize("length", ["-1", "x", ""])
def test_malformed_decoded_length(s3, raw, bucket, key, length):
    put = raw.stream(f"/{bucket}/{key}", tampered(lambda f: f), wire.STREAMING, length)
    refused(put, "MissingContentLength", 411)
    absent(s3, bucket, key)


def test_no_decoded_length(s3, raw, bucket, key):
    put = raw.stream(f"/{bucket}/{key}", tampered(lambda f: f), wire.STREAMING, None)
    refused(put, "MissingContentLength", 411)
    absent(s3, bucket, key)


def test_connection_lost_within_a_chunk(s3, raw, bucket, key):
    headers = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(DATA))}
    head, seed = raw.prepare("PUT", f"/{bucket}/{key}", headers=headers, payload_hash=wire.STREAMING, length=False)
    body = joined(seed.frames(DATA))
    with raw.connect() as connection:
        connection.send(head[:-2] + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:30_000])
    absent(s3, bucket, key)


def test_transfer_encoding_outside(s3, raw, bucket, key):
    """HTTP chunks around aws-chunks, which SDKs use for bodies of unknown framed length."""
    headers = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(DATA))}
    head, seed = raw.prepare("PUT", f"/{bucket}/{key}", headers=headers, payload_hash=wire.STREAMING, length=False)
    body = joined(seed.frames(DATA))
    outer = joined(wire.unsigned_frames(body, 10_000))
    with raw.connect() as connection:
        connection.send(head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + outer)
        response = connection.read()
    assert response.status == 200, response
    assert body_of(s3, bucket, key) == DATA


# Trailers


def stream_trailer(raw, bucket, key, signed, trailer, announce=None, frames=lambda f: f, data=DATA):
    announced = trailer[0] if announce is None else announce
    headers = {"x-amz-trailer": announced} if announced else {}
    if signed:
        make, payload_hash = (lambda seed: joined(frames(seed.frames(data, trailer=trailer)))), wire.STREAMING_TRAILER
    else:
        make, payload_hash = (lambda _: joined(frames(wire.unsigned_frames(data, trailer=trailer)))), wire.UNSIGNED_TRAILER
    return raw.stream(f"/{bucket}/{key}", make, payload_hash, len(data), headers=headers)


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
def test_trailer(s3, raw, bucket, key, signed, algorithm):
    name, value = trailer_of(algorithm)
    put = stream_trailer(raw, bucket, key, signed, (name, value))
    assert put.status == 200, put
    assert put.header(name) == value
    assert raw.request("HEAD", f"/{bucket}/{key}", headers={"x-amz-checksum-mode": "ENABLED"}).header(name) == value
    assert body_of(s3, bucket, key) == DATA


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
def test_wrong_value_in_the_trailer(s3, raw, bucket, key, signed, algorithm):
    refused(stream_trailer(raw, bucket, key, signed, trailer_of(algorithm, b"other")), "BadDigest", 400)
    absent(s3, bucket, key)


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_empty_body_with_trailer(s3, raw, bucket, key, signed):
    put = stream_trailer(raw, bucket, key, signed, trailer_of("CRC32", b""), data=b"")
    assert put.status == 200, put
    assert body_of(s3, bucket, key) == b""


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_trailer_for_a_part(s3, raw, bucket, key, signed):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="CRC32")["UploadId"]
    query = f"partNumber=1&uploadId={upload}"
    name, value = trailer_of("CRC32")
    headers = {"x-amz-trailer": name, "Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(DATA))}
    payload_hash = wire.STREAMING_TRAILER if signed else wire.UNSIGNED_TRAILER
    head, seed = raw.prepare("PUT", f"/{bucket}/{key}", query, headers=headers, payload_hash=payload_hash, length=False)
    body = joined(seed.frames(DATA, trailer=(name, value)) if signed else wire.unsigned_frames(DATA, trailer=(name, value)))
    with raw.connect() as connection:
        connection.send(head[:-2] + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        put = connection.read()
    assert put.status == 200 and put.header(name) == value, put


def test_trailer_signature_is_verified(s3, raw, bucket, key):
    put = stream_trailer(raw, bucket, key, True, trailer_of("CRC32"), frames=lambda f: flip(f, len(f) - 1, -10))
    refused(put, "SignatureDoesNotMatch", 403)
    absent(s3, bucket, key)


BAD_TRAILERS = {
    "announced but absent": lambda f: [*f[:-1], f[-1].split(b"x-amz-checksum")[0] + b"\r\n"],
    "another one": lambda f: [*f[:-1], f[-1].replace(b"x-amz-checksum-crc32:", b"x-amz-checksum-sha1:")],
    "no colon": lambda f: [*f[:-1], f[-1].replace(b"crc32:", b"crc32 ")],
    "not base64": lambda f: [*f[:-1], f[-1].replace(b"crc32:", b"crc32:!!!")],
    "endless": lambda f: [*f[:-1], f[-1][:-2] + b"x" * 100_000 + b"\r\n\r\n"],
    "no final chunk": lambda f: f[:-1],
}


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("case", BAD_TRAILERS)
def test_bad_trailer(s3, raw, bucket, key, signed, case):
    put = stream_trailer(raw, bucket, key, signed, trailer_of("CRC32"), frames=BAD_TRAILERS[case])
    assert put.status in (400, 403), put
    refused(put, (*REFUSED_FRAMING, "BadDigest", "SignatureDoesNotMatch"), put.status)
    absent(s3, bucket, key)


def test_trailer_that_was_not_announced(s3, raw, bucket, key):
    """An unannounced checksum must be either ignored or rejected, not used in part."""
    put = stream_trailer(raw, bucket, key, False, trailer_of("CRC32", b"other"), announce="")
    if put.status == 200:
        assert body_of(s3, bucket, key) == DATA
        assert put.header("x-amz-checksum-crc32") != sums.checksum("CRC32", b"other")
    else:
        refused(put, (*REFUSED_FRAMING, "BadDigest"), 400)
        absent(s3, bucket, key)


def test_trailer_of_an_unknown_name(s3, raw, bucket, key):
    put = stream_trailer(raw, bucket, key, False, ("x-amz-checksum-crc99", "AAAA"))
    refused(put, ("InvalidRequest", *REFUSED_FRAMING), 400)
    absent(s3, bucket, key)


def test_unsigned_without_trailer_framing_errors(s3, raw, bucket, key):
    for frames in (lambda f: [f[0][:-2], *f[1:]], lambda f: [b"g" + f[0], *f[1:]], lambda f: [*f, b"more"]):
        put = stream_trailer(raw, bucket, key, False, trailer_of("CRC32"), frames=frames)
        refused(put, REFUSED_FRAMING, 400)
        absent(s3, bucket, key)
