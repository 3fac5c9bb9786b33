"""Object checksums and Content-MD5: verified before anything is stored, and returned."""

import pytest
from botocore.httpchecksum import _SUPPORTED_CHECKSUM_ALGORITHMS

import sums
from expect import absent, body_of, payload, refused, s3_error

PART = 5 << 20
BODY = payload(70_000, "checksums")


def header(algorithm):
    return f"x-amz-checksum-{algorithm.lower()}"


@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
def test_right_value(raw, bucket, key, algorithm):
    value = sums.checksum(algorithm, BODY)
    put = raw.request("PUT", f"/{bucket}/{key}", headers={header(algorithm): value}, body=BODY)
    assert put.status == 200, put
    assert put.header(header(algorithm)) == value
    for method in ("GET", "HEAD"):
        response = raw.request(method, f"/{bucket}/{key}", headers={"x-amz-checksum-mode": "ENABLED"})
        assert response.header(header(algorithm)) == value
        assert response.header("x-amz-checksum-type") == "FULL_OBJECT"
        assert raw.request(method, f"/{bucket}/{key}").header(header(algorithm)) is None


@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
def test_wrong_value_stores_nothing(s3, raw, bucket, key, algorithm):
    headers = {header(algorithm): sums.checksum(algorithm, BODY + b"!")}
    refused(raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=BODY), "BadDigest", 400)
    absent(s3, bucket, key)
    s3.put_object(Bucket=bucket, Key=key, Body=b"before")
    refused(raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=BODY), "BadDigest", 400)
    assert body_of(s3, bucket, key) == b"before"


@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
@pytest.mark.parametrize("value", ["AAAA", "not base64!", "A" * 200], ids=["short", "garbage", "long"])
def test_malformed_value(s3, raw, bucket, key, algorithm, value):
    response = raw.request("PUT", f"/{bucket}/{key}", headers={header(algorithm): value}, body=BODY)
    refused(response, "InvalidRequest", 400)
    absent(s3, bucket, key)


def test_two_algorithms_in_one_request(s3, raw, bucket, key):
    headers = {header(a): sums.checksum(a, BODY) for a in ("CRC32", "SHA256")}
    refused(raw.request("PUT", f"/{bucket}/{key}", headers=headers, body=BODY), "InvalidRequest", 400)
    absent(s3, bucket, key)


@pytest.mark.parametrize("name", ["x-amz-sdk-checksum-algorithm", "x-amz-checksum-algorithm"])
def test_unknown_algorithm(s3, raw, bucket, key, name):
    for method, query in (("PUT", ""), ("POST", "uploads=")):
        refused(raw.request(method, f"/{bucket}/{key}", query, headers={name: "CRC99"}, body=BODY), "InvalidRequest", 400)
    absent(s3, bucket, key)


def test_value_of_an_unknown_algorithm(s3, raw, bucket, key):
    """It is rejected by name for every request whose bytes or document it would have to verify."""
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    s3.put_object(Bucket=bucket, Key=key + "-tagged", Body=b"x")
    tags = b"<Tagging><TagSet/></Tagging>"
    delete = b"<Delete><Object><Key>x</Key></Object></Delete>"
    for method, path, query, body in (
        ("PUT", f"/{bucket}/{key}", "", BODY),
        ("PUT", f"/{bucket}/{key}", f"partNumber=1&uploadId={upload}", BODY),
        ("POST", f"/{bucket}/{key}", f"uploadId={upload}", b"<CompleteMultipartUpload/>"),
        ("PUT", f"/{bucket}/{key}-tagged", "tagging=", tags),
        ("POST", f"/{bucket}", "delete=", delete),
    ):
        response = raw.request(method, path, query, headers={"x-amz-checksum-blake3": "AAAA"}, body=body)
        refused(response, "InvalidRequest", 400)
        assert "x-amz-checksum-blake3" in response.xml().findtext("Message")
    assert "Parts" not in s3.list_parts(Bucket=bucket, Key=key, UploadId=upload)
    absent(s3, bucket, key)


@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
def test_empty_value_is_not_an_absent_one(s3, raw, bucket, key, algorithm):
    refused(raw.request("PUT", f"/{bucket}/{key}", headers={header(algorithm): ""}, body=BODY), "InvalidRequest", 400)
    absent(s3, bucket, key)


def test_trailer_of_a_body_without_chunks(s3, raw, bucket, key):
    response = raw.request("PUT", f"/{bucket}/{key}", headers={"x-amz-trailer": "x-amz-checksum-crc32"}, body=BODY)
    refused(response, "InvalidRequest", 400)
    absent(s3, bucket, key)


# Algorithms that the installed boto3 can compute; XXH and the CRCs except CRC32 need its native extension.
COMPUTED = [name for name in ("CRC32", "SHA1", "SHA256", "SHA512") if name.lower() in _SUPPORTED_CHECKSUM_ALGORITHMS]


@pytest.mark.parametrize("algorithm", COMPUTED)
def test_boto3_computes_and_verifies(s3, bucket, key, algorithm):
    put = s3.put_object(Bucket=bucket, Key=key, Body=BODY, ChecksumAlgorithm=algorithm)
    assert put[f"Checksum{algorithm}"] == sums.checksum(algorithm, BODY)
    got = s3.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert got["Body"].read() == BODY  # boto3 raises an error if the checksum differs
    assert got[f"Checksum{algorithm}"] == put[f"Checksum{algorithm}"] and got["ChecksumType"] == "FULL_OBJECT"


def test_listing_names_the_algorithm(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=BODY, ChecksumAlgorithm="SHA1")
    entry = s3.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"][0]
    assert entry["ChecksumAlgorithm"] == ["SHA1"] and entry["ChecksumType"] == "FULL_OBJECT"


def test_copy_keeps_or_changes_the_algorithm(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=BODY, ChecksumAlgorithm="SHA1")
    kept = s3.copy_object(Bucket=bucket, Key=key + "-kept", CopySource=f"{bucket}/{key}")
    assert kept["CopyObjectResult"]["ChecksumSHA1"] == sums.checksum("SHA1", BODY)
    changed = s3.copy_object(Bucket=bucket, Key=key + "-changed", CopySource=f"{bucket}/{key}", ChecksumAlgorithm="SHA256")
    assert changed["CopyObjectResult"]["ChecksumSHA256"] == sums.checksum("SHA256", BODY)
    head = s3.head_object(Bucket=bucket, Key=key + "-changed", ChecksumMode="ENABLED")
    assert head["ChecksumSHA256"] == sums.checksum("SHA256", BODY)


# Content-MD5


def test_right_md5(raw, s3, bucket, key):
    response = raw.request("PUT", f"/{bucket}/{key}", headers={"Content-MD5": sums.content_md5(BODY)}, body=BODY)
    assert response.status == 200, response
    assert body_of(s3, bucket, key) == BODY


def test_wrong_md5(raw, s3, bucket, key):
    response = raw.request("PUT", f"/{bucket}/{key}", headers={"Content-MD5": sums.content_md5(b"other")}, body=BODY)
    refused(response, "BadDigest", 400)
    absent(s3, bucket, key)


@pytest.mark.parametrize("value", ["", "short", "AAAA", "d41d8cd98f00b204e9800998ecf8427e", "!" * 24])
def test_malformed_md5(raw, s3, bucket, key, value):
    refused(raw.request("PUT", f"/{bucket}/{key}", headers={"Content-MD5": value}, body=BODY), "InvalidDigest", 400)
    absent(s3, bucket, key)


def test_md5_of_a_part(raw, s3, bucket, key):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    query = f"partNumber=1&uploadId={upload}"
    wrong = {"Content-MD5": sums.content_md5(b"other")}
    refused(raw.request("PUT", f"/{bucket}/{key}", query, headers=wrong, body=BODY), "BadDigest", 400)
    assert "Parts" not in s3.list_parts(Bucket=bucket, Key=key, UploadId=upload)


# Multipart

BODIES = [bytes(range(256)) * (PART // 256), b"the tail of it"]


@pytest.fixture(scope="module")
def part_sums():
    """Checksums of the two parts and of the whole object, by algorithm (the CRCs are slow in Python)."""
    cache = {}

    def get(algorithm):
        if algorithm not in cache:
            cache[algorithm] = (
                [sums.checksum(algorithm, body) for body in BODIES],
                sums.composite(algorithm, BODIES),
                sums.checksum(algorithm, *BODIES),
            )
        return cache[algorithm]

    return get


def upload_parts(s3, bucket, key, algorithm, values, **create):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm=algorithm, **create)
    assert upload["ChecksumAlgorithm"] == algorithm
    name = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}
    parts = []
    for number, (body, value) in enumerate(zip(BODIES, values), 1):
        answer = s3.upload_part(**name, PartNumber=number, Body=body, **{f"Checksum{algorithm}": value})
        assert answer[f"Checksum{algorithm}"] == value
        parts.append({"PartNumber": number, "ETag": answer["ETag"], f"Checksum{algorithm}": value})
    return name, parts


def boto3_algorithms(s3):
    """The algorithms for which the installed boto3 has fields."""
    return s3.meta.service_model.shape_for("ChecksumAlgorithm").enum


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", *sums.HASHES])
def test_composite(s3, bucket, key, part_sums, algorithm):
    if algorithm not in boto3_algorithms(s3):
        pytest.skip(f"this boto3 does not know {algorithm}")
    values, composite, _ = part_sums(algorithm)
    name, parts = upload_parts(s3, bucket, key, algorithm, values, ChecksumType="COMPOSITE")
    listed = s3.list_parts(**name)
    assert [p[f"Checksum{algorithm}"] for p in listed["Parts"]] == values
    assert (listed["ChecksumAlgorithm"], listed["ChecksumType"]) == (algorithm, "COMPOSITE")
    done = s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})
    assert (done[f"Checksum{algorithm}"], done["ChecksumType"]) == (composite, "COMPOSITE")
    head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert (head[f"Checksum{algorithm}"], head["ChecksumType"]) == (composite, "COMPOSITE")
    found = s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=["Checksum", "ObjectParts"])
    assert found["Checksum"][f"Checksum{algorithm}"] == composite.removesuffix("-2")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME"])
def test_full_object(s3, bucket, key, part_sums, algorithm):
    values, _, whole = part_sums(algorithm)
    name, parts = upload_parts(s3, bucket, key, algorithm, values, ChecksumType="FULL_OBJECT")
    wrong = {f"Checksum{algorithm}": sums.checksum(algorithm, b"other"), "ChecksumType": "FULL_OBJECT"}
    with s3_error("BadDigest", 400):
        s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts}, **wrong)
    absent(s3, bucket, key)
    right = {f"Checksum{algorithm}": whole, "ChecksumType": "FULL_OBJECT"}
    done = s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts}, **right)
    assert (done[f"Checksum{algorithm}"], done["ChecksumType"]) == (whole, "FULL_OBJECT")
    head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert (head[f"Checksum{algorithm}"], head["ChecksumType"]) == (whole, "FULL_OBJECT")


@pytest.mark.parametrize("algorithm, kind", [("CRC64NVME", "FULL_OBJECT"), ("SHA256", "COMPOSITE"), ("CRC32", "COMPOSITE")])
def test_default_kind(s3, bucket, key, algorithm, kind):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm=algorithm)
    assert upload["ChecksumType"] == kind


@pytest.mark.parametrize("algorithm, kind", [("CRC64NVME", "COMPOSITE"), *((name, "FULL_OBJECT") for name in sums.HASHES)])
def test_unsupported_kind(s3, bucket, key, algorithm, kind):
    with s3_error("InvalidRequest", 400):
        s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm=algorithm, ChecksumType=kind)


def test_wrong_checksum_of_a_part(s3, bucket, key):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256")["UploadId"]
    name = {"Bucket": bucket, "Key": key, "UploadId": upload}
    with s3_error("BadDigest", 400):
        s3.upload_part(**name, PartNumber=1, Body=b"x", ChecksumSHA256=sums.checksum("SHA256", b"y"))
    assert "Parts" not in s3.list_parts(**name)
    part = s3.upload_part(**name, PartNumber=1, Body=b"x", ChecksumSHA256=sums.checksum("SHA256", b"x"))
    wrong = {"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": sums.checksum("SHA256", b"y")}
    with s3_error(("InvalidPart", "BadDigest"), 400):
        s3.complete_multipart_upload(**name, MultipartUpload={"Parts": [wrong]})
    absent(s3, bucket, key)


def test_part_with_another_algorithm(s3, bucket, key):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256")["UploadId"]
    with s3_error("InvalidRequest", 400):
        s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x", ChecksumCRC32=sums.checksum("CRC32", b"x"))
