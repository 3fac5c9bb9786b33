"""Multipart uploads: the whole cycle, listings, errors, and reads by part."""

import hashlib

import pytest
from botocore.exceptions import ClientError

import sums
from expect import absent, body_of, payload, refused, s3_error

MIB = 1 << 20
PART = 5 * MIB
ETAG_OF_NOTHING = '"0123456789abcdef0123456789abcdef"'


class Upload:
    """One multipart upload under test."""

    def __init__(self, s3, bucket, key, **options):
        self.s3, self.bucket, self.key = s3, bucket, key
        self.id = s3.create_multipart_upload(Bucket=bucket, Key=key, **options)["UploadId"]
        self.name = {"Bucket": bucket, "Key": key, "UploadId": self.id}
        self.parts = {}

    def put(self, number, body, **options):
        answer = self.s3.upload_part(**self.name, PartNumber=number, Body=body, **options)
        self.parts[number] = answer["ETag"]
        return answer

    def complete(self, parts=None, **options):
        if parts is None:
            parts = [{"PartNumber": n, "ETag": etag} for n, etag in sorted(self.parts.items())]
        return self.s3.complete_multipart_upload(**self.name, MultipartUpload={"Parts": parts}, **options)

    def listed(self, **options):
        return self.s3.list_parts(**self.name, **options)


@pytest.fixture
def upload(s3, bucket, key):
    return Upload(s3, bucket, key)


@pytest.fixture(scope="module")
def three_parts(s3, bucket):
    """A completed object of three parts, for reads."""
    bodies = [payload(PART, 1), payload(PART + 1, 2), payload(1000, 3)]
    upload = Upload(s3, bucket, "three-parts")
    for number, body in enumerate(bodies, 1):
        upload.put(number, body)
    upload.complete()
    return "three-parts", bodies


def test_full_cycle(s3, bucket, key):
    bodies = [payload(PART, 1), payload(PART + 17, 2), b"tail"]
    upload = Upload(s3, bucket, key, ContentType="text/plain", Metadata={"m": "v"}, Tagging="t=1", CacheControl="no-cache")
    for number, body in enumerate(bodies, 1):
        assert upload.put(number, body)["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    absent(s3, bucket, key)
    done = upload.complete()
    assert done["ETag"] == sums.multipart_etag(bodies)
    assert (done["Bucket"], done["Key"]) == (bucket, key) and done["Location"].endswith(key)
    got = s3.get_object(Bucket=bucket, Key=key)
    assert got["Body"].read() == b"".join(bodies)
    assert (got["ETag"], got["ContentType"], got["Metadata"], got["CacheControl"], got["TagCount"]) == (
        done["ETag"], "text/plain", {"m": "v"}, "no-cache", 1,
    )  # fmt: skip
    with s3_error("NoSuchUpload", 404):
        upload.listed()
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket, Prefix=key)


def test_out_of_order_with_gaps(s3, bucket, upload):
    bodies = {10000: b"last", 7: payload(PART, 7), 42: payload(PART, 42)}
    for number, body in bodies.items():
        upload.put(number, body)
    assert [p["PartNumber"] for p in upload.listed()["Parts"]] == [7, 42, 10000]
    etag = upload.complete()["ETag"]
    ordered = [bodies[number] for number in sorted(bodies)]
    assert etag == sums.multipart_etag(ordered)
    assert body_of(s3, bucket, upload.key) == b"".join(ordered)


def test_uploading_a_part_again_replaces_it(s3, bucket, upload):
    first = upload.put(1, b"first")["ETag"]
    upload.put(1, b"second")
    parts = upload.listed()["Parts"]
    assert [(p["PartNumber"], p["Size"], p["ETag"]) for p in parts] == [(1, 6, upload.parts[1])]
    with s3_error("InvalidPart", 400):
        upload.complete([{"PartNumber": 1, "ETag": first}])
    upload.complete()
    assert body_of(s3, bucket, upload.key) == b"second"


def test_omitted_parts_are_dropped(s3, bucket, upload):
    upload.put(1, b"kept")
    upload.put(2, b"dropped")
    upload.complete([{"PartNumber": 1, "ETag": upload.parts[1]}])
    assert body_of(s3, bucket, upload.key) == b"kept"


def test_a_part_may_be_empty(s3, bucket, upload):
    upload.put(1, b"")
    upload.complete()
    assert body_of(s3, bucket, upload.key) == b""


def test_etag_of_a_part_without_quotes(s3, bucket, upload):
    upload.put(1, b"x")
    upload.complete([{"PartNumber": 1, "ETag": upload.parts[1].strip('"')}])
    assert body_of(s3, bucket, upload.key) == b"x"


def test_the_object_is_replaced_only_at_completion(s3, bucket, upload):
    s3.put_object(Bucket=bucket, Key=upload.key, Body=b"before")
    upload.put(1, b"after")
    assert body_of(s3, bucket, upload.key) == b"before"
    upload.complete()
    assert body_of(s3, bucket, upload.key) == b"after"


def test_two_uploads_of_one_key(s3, bucket, key):
    one, two = Upload(s3, bucket, key), Upload(s3, bucket, key)
    assert one.id != two.id
    one.put(1, b"one")
    two.put(1, b"two")
    one.complete()
    assert body_of(s3, bucket, key) == b"one"
    two.complete()
    assert body_of(s3, bucket, key) == b"two"


def test_concurrent_parts(s3, bucket, upload, crowd):
    bodies = {number: payload(PART if number < 6 else 99, number) for number in range(1, 7)}
    crowd(lambda number: upload.put(number, bodies[number]), bodies)
    upload.complete()
    assert body_of(s3, bucket, upload.key) == b"".join(bodies.values())


# Aborted and failed uploads


def test_abort(s3, bucket, upload):
    upload.put(1, b"x")
    assert s3.abort_multipart_upload(**upload.name)["ResponseMetadata"]["HTTPStatusCode"] == 204
    for operation in (upload.listed, upload.complete, lambda: upload.put(2, b"y")):
        with s3_error("NoSuchUpload", 404):
            operation()
    absent(s3, bucket, upload.key)


@pytest.mark.parametrize("id", ["unknown", "a" * 500, "../../etc/passwd", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"])
def test_unknown_upload(s3, bucket, key, id):
    name = {"Bucket": bucket, "Key": key, "UploadId": id}
    parts = {"Parts": [{"PartNumber": 1, "ETag": ETAG_OF_NOTHING}]}
    for operation in (
        lambda: s3.upload_part(**name, PartNumber=1, Body=b"x"),
        lambda: s3.list_parts(**name),
        lambda: s3.abort_multipart_upload(**name),
        lambda: s3.complete_multipart_upload(**name, MultipartUpload=parts),
    ):
        with s3_error("NoSuchUpload", 404):
            operation()


def test_an_upload_belongs_to_its_key(s3, bucket, upload, key):
    other = {**upload.name, "Key": key + "-other"}
    with s3_error("NoSuchUpload", 404):
        s3.upload_part(**other, PartNumber=1, Body=b"x")
    with s3_error("NoSuchUpload", 404):
        s3.abort_multipart_upload(**other)


@pytest.mark.parametrize("number", ["0", "10001", "-1", "x", ""])
def test_bad_part_number(raw, upload, number):
    response = raw.request("PUT", f"/{upload.bucket}/{upload.key}", f"partNumber={number}&uploadId={upload.id}", body=b"x")
    refused(response, "InvalidArgument", 400)


def test_wrong_or_missing_part(s3, bucket, upload):
    upload.put(1, payload(PART))
    upload.put(2, b"x")
    one, two = ({"PartNumber": n, "ETag": upload.parts[n]} for n in (1, 2))
    for parts in (
        [{**one, "ETag": ETAG_OF_NOTHING}, two],
        [one, {**two, "PartNumber": 3}],
    ):
        with s3_error("InvalidPart", 400):
            upload.complete(parts)
    for parts in ([two, one], [one, one, two]):
        with s3_error("InvalidPartOrder", 400):
            upload.complete(parts)
    absent(s3, bucket, upload.key)
    upload.complete([one, two])


def test_part_too_small(s3, bucket, upload):
    upload.put(1, payload(PART - 1))
    upload.put(2, b"x")
    with s3_error("EntityTooSmall", 400):
        upload.complete()
    absent(s3, bucket, upload.key)
    upload.put(1, payload(PART))
    upload.complete()
    assert s3.head_object(Bucket=bucket, Key=upload.key)["ContentLength"] == PART + 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<CompleteMultipartUpload></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part>",
        b"<CompleteMultipartUpload><Part><PartNumber>one</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><ETag>x</ETag></Part></CompleteMultipartUpload>",
        b"not xml at all",
        b"\x00\x01",
    ],
)
def test_malformed_completion(raw, upload, body):
    upload.put(1, b"x")
    response = raw.request("POST", f"/{upload.bucket}/{upload.key}", f"uploadId={upload.id}", body=body)
    refused(response, ("MalformedXML", "InvalidRequest") if not body else "MalformedXML", 400)
    assert len(upload.listed()["Parts"]) == 1


def test_size_given_at_completion(s3, bucket, upload):
    upload.put(1, b"12345")
    with s3_error("InvalidRequest", 400):
        upload.complete(MpuObjectSize=6)
    absent(s3, bucket, upload.key)
    upload.complete(MpuObjectSize=5)


# Listings


def test_list_parts_in_pages(s3, upload):
    for number in (1, 3, 5, 7, 9):
        upload.put(number, b"x" * number)
    seen, marker = [], 0
    for size in (2, 2, 2):
        page = upload.listed(MaxParts=size, PartNumberMarker=marker)
        seen += [(p["PartNumber"], p["Size"]) for p in page.get("Parts", [])]
        assert page["MaxParts"] == 2 and page["PartNumberMarker"] == marker and page["IsTruncated"] == (len(seen) < 5)
        marker = page["NextPartNumberMarker"]
    assert seen == [(n, n) for n in (1, 3, 5, 7, 9)]
    page = upload.listed()
    assert (page["Bucket"], page["Key"], page["UploadId"]) == (upload.bucket, upload.key, upload.id)
    assert page["Parts"][0]["LastModified"] and page["Initiator"] and page["Owner"] and page["StorageClass"] == "STANDARD"
    assert not upload.listed(PartNumberMarker=9).get("Parts")


@pytest.mark.parametrize("query", ["max-parts=-1", "max-parts=x", "part-number-marker=x"])
def test_bad_parts_page(raw, upload, query):
    query = "&".join(sorted([query, f"uploadId={upload.id}"]))
    refused(raw.request("GET", f"/{upload.bucket}/{upload.key}", query), "InvalidArgument", 400)


@pytest.fixture(scope="module")
def many_uploads(s3):
    """A bucket with seven uploads under five keys; two keys hold two uploads."""
    from conftest import empty_bucket, unique

    name = unique("uploads")
    s3.create_bucket(Bucket=name)
    keys = ["a/1", "a/1", "a/2", "b", "c/x/1", "c/x/1", "d ü"]
    ids = [(key, Upload(s3, name, key).id) for key in keys]
    yield name, ids
    empty_bucket(s3, name)
    s3.delete_bucket(Bucket=name)


def uploads_of(page):
    return [(u["Key"], u["UploadId"]) for u in page.get("Uploads", [])]


def test_list_uploads(s3, many_uploads):
    name, ids = many_uploads
    page = s3.list_multipart_uploads(Bucket=name)
    assert set(uploads_of(page)) == set(ids) and not page["IsTruncated"]
    assert [key for key, _ in uploads_of(page)] == [key for key, _ in ids]
    first = page["Uploads"][0]
    assert first["Initiated"] and first["Owner"] and first["Initiator"] and first["StorageClass"] == "STANDARD"


@pytest.mark.parametrize("prefix", ["a/", "a/1", "c", "d ü", "none"])
def test_list_uploads_by_prefix(s3, many_uploads, prefix):
    name, ids = many_uploads
    assert set(uploads_of(s3.list_multipart_uploads(Bucket=name, Prefix=prefix))) == {i for i in ids if i[0].startswith(prefix)}


def test_list_uploads_by_delimiter(s3, many_uploads):
    name, ids = many_uploads
    page = s3.list_multipart_uploads(Bucket=name, Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["a/", "c/"]
    assert {key for key, _ in uploads_of(page)} == {"b", "d ü"}
    page = s3.list_multipart_uploads(Bucket=name, Delimiter="/", Prefix="c/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["c/x/"]


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_list_uploads_in_pages(s3, many_uploads, size):
    name, ids = many_uploads
    seen, markers = [], {}
    for _ in range(len(ids) + 1):
        page = s3.list_multipart_uploads(Bucket=name, MaxUploads=size, **markers)
        assert page["MaxUploads"] == size and len(uploads_of(page)) <= size
        seen += uploads_of(page)
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert len(seen) == len(ids) and set(seen) == set(ids)


def test_key_marker_alone_skips_the_key(s3, many_uploads):
    name, ids = many_uploads
    found = uploads_of(s3.list_multipart_uploads(Bucket=name, KeyMarker="a/1"))
    assert set(found) == {i for i in ids if i[0] > "a/1"}


# Copying into parts


def test_part_copy(s3, bucket, upload, three_parts):
    source, bodies = three_parts
    whole = b"".join(bodies)
    ranges = [(0, PART - 1), (PART + 3, 2 * PART + 2)]
    origin = {"Bucket": bucket, "Key": source}
    for number, (first, last) in enumerate(ranges, 1):
        answer = s3.upload_part_copy(**upload.name, PartNumber=number, CopySource=origin, CopySourceRange=f"bytes={first}-{last}")
        upload.parts[number] = answer["CopyPartResult"]["ETag"]
        assert upload.parts[number] == f'"{hashlib.md5(whole[first : last + 1]).hexdigest()}"'
        assert answer["CopyPartResult"]["LastModified"]
    upload.parts[3] = s3.upload_part_copy(**upload.name, PartNumber=3, CopySource=origin)["CopyPartResult"]["ETag"]
    pieces = [whole[first : last + 1] for first, last in ranges] + [whole]
    assert upload.complete()["ETag"] == sums.multipart_etag(pieces)
    assert body_of(s3, bucket, upload.key) == b"".join(pieces)


def test_part_copy_outlives_its_source(s3, bucket, upload):
    s3.put_object(Bucket=bucket, Key=upload.key + "-source", Body=b"0123456789")
    answer = s3.upload_part_copy(**upload.name, PartNumber=1, CopySource=f"{bucket}/{upload.key}-source", CopySourceRange="bytes=2-5")
    s3.delete_object(Bucket=bucket, Key=upload.key + "-source")
    upload.complete([{"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]}])
    assert body_of(s3, bucket, upload.key) == b"2345"


@pytest.mark.parametrize("text", ["0-8", "bytes=1-0", "bytes=-2", "bytes=1-", "bytes=0-1,3-4", "bytes=-", "bytes=0--1", "bytes=0-100", "bytes=100-200"])
def test_bad_copy_range(s3, bucket, upload, text):
    s3.put_object(Bucket=bucket, Key=upload.key + "-source", Body=b"0123456789")
    with pytest.raises(ClientError) as caught:
        s3.upload_part_copy(**upload.name, PartNumber=1, CopySource=f"{bucket}/{upload.key}-source", CopySourceRange=text)
    # For a range that begins after the end, AWS has returned both.
    allowed = {"InvalidArgument", "InvalidRange"} if text == "bytes=100-200" else {"InvalidArgument"}
    assert caught.value.response["Error"]["Code"] in allowed
    assert not upload.listed().get("Parts")


def test_part_copy_errors(s3, bucket, upload):
    with s3_error("NoSuchKey", 404):
        s3.upload_part_copy(**upload.name, PartNumber=1, CopySource=f"{bucket}/never-was")
    s3.put_object(Bucket=bucket, Key=upload.key + "-source", Body=b"x")
    with s3_error("PreconditionFailed", 412):
        s3.upload_part_copy(**upload.name, PartNumber=1, CopySource=f"{bucket}/{upload.key}-source", CopySourceIfMatch=ETAG_OF_NOTHING)
    with s3_error("NoSuchUpload", 404):
        s3.upload_part_copy(**{**upload.name, "UploadId": "unknown"}, PartNumber=1, CopySource=f"{bucket}/{upload.key}-source")


# Reading by part


def test_read_by_part_number(s3, bucket, three_parts):
    key, bodies = three_parts
    total, start = sum(map(len, bodies)), 0
    for number, body in enumerate(bodies, 1):
        span = f"bytes {start}-{start + len(body) - 1}/{total}"
        got = s3.get_object(Bucket=bucket, Key=key, PartNumber=number)
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert (got["ContentRange"], got["PartsCount"], got["ContentLength"]) == (span, 3, len(body))
        assert got["ETag"] == sums.multipart_etag(bodies) and got["Body"].read() == body
        head = s3.head_object(Bucket=bucket, Key=key, PartNumber=number)
        assert (head["PartsCount"], head["ContentLength"]) == (3, len(body))
        start += len(body)
    with s3_error("InvalidPartNumber", 416):
        s3.get_object(Bucket=bucket, Key=key, PartNumber=4)
    with s3_error("416", 416):
        s3.head_object(Bucket=bucket, Key=key, PartNumber=4)


def test_part_number_and_range_exclude_each_other(s3, bucket, three_parts):
    with s3_error("InvalidRequest", 400):
        s3.get_object(Bucket=bucket, Key=three_parts[0], PartNumber=1, Range="bytes=0-1")


@pytest.mark.parametrize("number", ["0", "10001", "x"])
def test_bad_part_number_in_a_read(raw, bucket, three_parts, number):
    refused(raw.request("GET", f"/{bucket}/{three_parts[0]}", f"partNumber={number}"), "InvalidArgument", 400)


def test_part_one_of_a_plain_object(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"plain")
    got = s3.get_object(Bucket=bucket, Key=key, PartNumber=1)
    assert got["Body"].read() == b"plain" and got["ResponseMetadata"]["HTTPStatusCode"] == 206
    with s3_error("InvalidPartNumber", 416):
        s3.get_object(Bucket=bucket, Key=key, PartNumber=2)


def test_ranges_across_parts(s3, bucket, three_parts):
    key, bodies = three_parts
    whole = b"".join(bodies)
    for start in (0, PART - 1, PART, 2 * PART, 2 * PART + 1, len(whole) - 1001):
        assert body_of(s3, bucket, key, Range=f"bytes={start}-{start + 999}") == whole[start : start + 1000]
    assert body_of(s3, bucket, key, Range=f"bytes={PART - 5}-{2 * PART + 5}") == whole[PART - 5 : 2 * PART + 6]


ALL_ATTRIBUTES = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]


def test_attributes_of_a_plain_object(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"hello", ChecksumAlgorithm="SHA256")
    found = s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=ALL_ATTRIBUTES)
    assert found["ETag"].strip('"') == sums.md5_hex(b"hello")
    assert (found["ObjectSize"], found["StorageClass"]) == (5, "STANDARD") and found["LastModified"]
    assert found["Checksum"]["ChecksumSHA256"] == sums.checksum("SHA256", b"hello")
    assert "ObjectParts" not in found
    found = s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=["ObjectSize"])
    assert found["ObjectSize"] == 5 and not {"ETag", "Checksum", "StorageClass"} & set(found)


def test_attributes_of_parts(s3, bucket, key):
    bodies = [payload(PART, 1), payload(PART, 2), b"tail"]
    upload = Upload(s3, bucket, key, ChecksumAlgorithm="SHA256")
    parts = []
    for number, body in enumerate(bodies, 1):
        answer = upload.put(number, body, ChecksumAlgorithm="SHA256")
        parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": answer["ChecksumSHA256"]})
    upload.complete(parts)
    found = s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=ALL_ATTRIBUTES)
    assert found["ETag"].strip('"') == sums.multipart_etag(bodies).strip('"')
    assert found["ObjectSize"] == sum(map(len, bodies))
    assert found["ObjectParts"]["TotalPartsCount"] == 3
    assert [(p["PartNumber"], p["Size"], p["ChecksumSHA256"]) for p in found["ObjectParts"]["Parts"]] == [
        (n, len(body), sums.checksum("SHA256", body)) for n, body in enumerate(bodies, 1)
    ]
    page = s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=["ObjectParts"], MaxParts=1, PartNumberMarker=1)
    assert [p["PartNumber"] for p in page["ObjectParts"]["Parts"]] == [2]
    assert page["ObjectParts"]["IsTruncated"] and page["ObjectParts"]["NextPartNumberMarker"] == 2


def test_attributes_need_a_list(s3, raw, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    for headers in ({}, {"x-amz-object-attributes": "Colour"}):
        refused(raw.request("GET", f"/{bucket}/{key}", "attributes=", headers=headers), ("InvalidArgument", "InvalidRequest"), 400)
    with s3_error("NoSuchKey", 404):
        s3.get_object_attributes(Bucket=bucket, Key=key + "-none", ObjectAttributes=["ETag"])
