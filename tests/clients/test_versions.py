"""Object versions: enabled, suspended, read, listed, copied, tagged and removed by version.

Each test has a bucket of its own. `test_list.py` has the pages of current objects, and all other topics run with versioning
off, on and suspended (`TW_VERSIONING`).
"""

import os
import urllib.parse

import pytest

from expect import absent, body_of, payload, refused, s3_error

MIB = 1 << 20


def set_versioning(s3, bucket, status):
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})


@pytest.fixture
def versioned(s3, fresh_bucket):
    set_versioning(s3, fresh_bucket, "Enabled")
    return fresh_bucket


# The error of an id that no version can have. In front of another service, which ids are possible is not known.
IMPOSSIBLE = ("NoSuchVersion", 404) if os.environ.get("TW_OVER_SERVICE") else ("InvalidArgument", 400)


def put(s3, bucket, key, body=b"", **options):
    return s3.put_object(Bucket=bucket, Key=key, Body=body, **options).get("VersionId")


def entries(s3, bucket, **options):
    """All versions and delete markers as (key, version id, is latest, is delete marker), in the order of the listing."""
    page = s3.list_object_versions(Bucket=bucket, **options)
    assert not page["IsTruncated"]
    return entries_of(page)


def entries_of(page):
    found = [(v, False) for v in page.get("Versions", [])] + [(m, True) for m in page.get("DeleteMarkers", [])]
    # boto3 separates the two kinds: the order within a key follows from the time, except within a second.
    return [(v["Key"], v["VersionId"], v["IsLatest"], is_marker) for v, is_marker in found]


def test_state_of_a_bucket(s3, fresh_bucket):
    assert "Status" not in s3.get_bucket_versioning(Bucket=fresh_bucket)
    assert put(s3, fresh_bucket, "before") is None
    for status in ("Enabled", "Suspended", "Enabled"):
        set_versioning(s3, fresh_bucket, status)
        assert s3.get_bucket_versioning(Bucket=fresh_bucket)["Status"] == status
    with s3_error("NoSuchBucket", 404):
        s3.get_bucket_versioning(Bucket=fresh_bucket + "-missing")
    with s3_error("NoSuchBucket", 404):
        set_versioning(s3, fresh_bucket + "-missing", "Enabled")


@pytest.mark.parametrize("document", ["<A/>", "<VersioningConfiguration><Status>On</Status></VersioningConfiguration>", "", "<"])
def test_malformed_configuration(raw, s3, fresh_bucket, document):
    response = raw.request("PUT", f"/{fresh_bucket}", "versioning", body=document.encode())
    refused(response, ("MalformedXML", "IllegalVersioningConfigurationException", "MissingRequestBodyError"), 400)
    assert "Status" not in s3.get_bucket_versioning(Bucket=fresh_bucket)


def test_mfa_delete_is_rejected(s3, fresh_bucket):
    with s3_error(("NotImplemented", "InvalidRequest", "AccessDenied"), 501):
        s3.put_bucket_versioning(
            Bucket=fresh_bucket, MFA="serial 123456", VersioningConfiguration={"Status": "Enabled", "MFADelete": "Enabled"}
        )
    assert "Status" not in s3.get_bucket_versioning(Bucket=fresh_bucket)


def test_each_put_is_a_version(s3, versioned, key):
    ids = [put(s3, versioned, key, f"body {n}".encode(), Metadata={"n": str(n)}) for n in range(3)]
    assert all(ids) and len(set(ids)) == 3 and "null" not in ids
    assert entries(s3, versioned) == [(key, each, each == ids[2], False) for each in reversed(ids)]
    assert body_of(s3, versioned, key) == b"body 2"
    for n, each in enumerate(ids):
        got = s3.get_object(Bucket=versioned, Key=key, VersionId=each)
        assert (got["Body"].read(), got["VersionId"], got["Metadata"]) == (f"body {n}".encode(), each, {"n": str(n)})
        head = s3.head_object(Bucket=versioned, Key=key, VersionId=each)
        assert (head["VersionId"], head["ETag"]) == (each, got["ETag"])
        assert body_of(s3, versioned, key, VersionId=each, Range="bytes=5-") == str(n).encode()


def test_delete_marker_hides_and_is_removed(s3, raw, versioned, key):
    first = put(s3, versioned, key, b"first")
    marker = s3.delete_object(Bucket=versioned, Key=key)
    assert marker["DeleteMarker"] is True and marker["VersionId"] not in (first, "null")
    absent(s3, versioned, key)
    response = raw.request("GET", f"/{versioned}/{key}")
    refused(response, "NoSuchKey", 404)
    assert response.header("x-amz-delete-marker") == "true"
    assert response.header("x-amz-version-id") == marker["VersionId"]
    # The marker itself can be neither read nor copied.
    response = raw.request("GET", f"/{versioned}/{key}", f"versionId={marker['VersionId']}")
    refused(response, "MethodNotAllowed", 405)
    assert response.header("x-amz-delete-marker") == "true"
    assert response.header("last-modified")
    assert raw.request("HEAD", f"/{versioned}/{key}", f"versionId={marker['VersionId']}").status == 405
    source = {"Bucket": versioned, "Key": key, "VersionId": marker["VersionId"]}
    with s3_error("InvalidRequest", 400):
        s3.copy_object(Bucket=versioned, Key="copy", CopySource=source)
    with s3_error("NoSuchKey", 404):
        s3.copy_object(Bucket=versioned, Key="copy", CopySource={"Bucket": versioned, "Key": key})
    assert body_of(s3, versioned, key, VersionId=first) == b"first"
    removed = s3.delete_object(Bucket=versioned, Key=key, VersionId=marker["VersionId"])
    assert removed["DeleteMarker"] is True and removed["VersionId"] == marker["VersionId"]
    assert body_of(s3, versioned, key) == b"first"
    assert entries(s3, versioned) == [(key, first, True, False)]


def test_delete_of_a_missing_key_leaves_a_marker(s3, versioned, key):
    markers = [s3.delete_object(Bucket=versioned, Key=key)["VersionId"] for _ in range(2)]
    assert len(set(markers)) == 2
    assert entries(s3, versioned) == [(key, markers[1], True, True), (key, markers[0], False, True)]


def test_delete_of_a_version_uncovers_the_one_before(s3, versioned, key):
    ids = [put(s3, versioned, key, str(n).encode()) for n in range(3)]
    s3.delete_object(Bucket=versioned, Key=key, VersionId=ids[2])
    assert body_of(s3, versioned, key) == b"1"
    s3.delete_object(Bucket=versioned, Key=key, VersionId=ids[0])
    assert entries(s3, versioned) == [(key, ids[1], True, False)]
    answer = s3.delete_object(Bucket=versioned, Key=key, VersionId=ids[1])
    assert answer["VersionId"] == ids[1] and "DeleteMarker" not in answer
    assert entries(s3, versioned) == []
    absent(s3, versioned, key)
    # A repeated request succeeds.
    s3.delete_object(Bucket=versioned, Key=key, VersionId=ids[1])


def test_missing_and_malformed_versions(s3, versioned, key):
    kept = put(s3, versioned, key, b"x")
    gone = put(s3, versioned, key, b"y")
    s3.delete_object(Bucket=versioned, Key=key, VersionId=gone)
    with s3_error("NoSuchVersion", 404):
        s3.get_object(Bucket=versioned, Key=key, VersionId=gone)
    with s3_error("404", 404):
        s3.head_object(Bucket=versioned, Key=key, VersionId=gone)
    with s3_error("NoSuchVersion", 404):
        s3.get_object(Bucket=versioned, Key=key, VersionId="null")
    with s3_error("NoSuchVersion", 404):
        s3.get_object(Bucket=versioned, Key="other", VersionId=kept)
    for bad in ("nonsense", "0", "a/b", "ü", "null ", "v" * 300):
        with s3_error(*IMPOSSIBLE):
            s3.get_object(Bucket=versioned, Key=key, VersionId=bad)
    source = {"Bucket": versioned, "Key": key, "VersionId": gone}
    with s3_error("NoSuchVersion", 404):
        s3.copy_object(Bucket=versioned, Key="copy", CopySource=source)


def test_null_version_of_an_unversioned_bucket(s3, fresh_bucket, key):
    put(s3, fresh_bucket, key, b"plain")
    got = s3.get_object(Bucket=fresh_bucket, Key=key)
    assert "VersionId" not in got
    assert entries(s3, fresh_bucket) == [(key, "null", True, False)]
    assert body_of(s3, fresh_bucket, key, VersionId="null") == b"plain"
    set_versioning(s3, fresh_bucket, "Enabled")
    second = put(s3, fresh_bucket, key, b"second")
    assert entries(s3, fresh_bucket) == [(key, second, True, False), (key, "null", False, False)]
    assert body_of(s3, fresh_bucket, key, VersionId="null") == b"plain"
    s3.delete_object(Bucket=fresh_bucket, Key=key, VersionId="null")
    assert entries(s3, fresh_bucket) == [(key, second, True, False)]


def test_suspended_bucket_replaces_the_null_version(s3, versioned, key):
    first = put(s3, versioned, key, b"first")
    set_versioning(s3, versioned, "Suspended")
    # As in S3, the response to a write does not name the null version.
    assert put(s3, versioned, key, b"null 1") is None
    assert put(s3, versioned, key, b"null 2") is None
    assert entries(s3, versioned) == [(key, "null", True, False), (key, first, False, False)]
    assert s3.head_object(Bucket=versioned, Key=key)["VersionId"] == "null"
    # A delete replaces the null version by a marker that is the null version.
    marker = s3.delete_object(Bucket=versioned, Key=key)
    assert (marker["DeleteMarker"], marker["VersionId"]) == (True, "null")
    assert entries(s3, versioned) == [(key, first, False, False), (key, "null", True, True)]
    absent(s3, versioned, key)
    assert body_of(s3, versioned, key, VersionId=first) == b"first"
    s3.delete_object(Bucket=versioned, Key=key, VersionId="null")
    assert body_of(s3, versioned, key) == b"first"
    set_versioning(s3, versioned, "Enabled")
    assert put(s3, versioned, key, b"new") not in ("null", first)


def test_copy_of_a_version_restores_it(s3, versioned, key):
    first = put(s3, versioned, key, b"first", ContentType="text/x-first")
    put(s3, versioned, key, b"second")
    copied = s3.copy_object(
        Bucket=versioned, Key=key, CopySource={"Bucket": versioned, "Key": key, "VersionId": first}
    )
    assert copied["CopySourceVersionId"] == first and copied["VersionId"] not in (first, None)
    got = s3.get_object(Bucket=versioned, Key=key)
    assert (got["Body"].read(), got["ContentType"], got["VersionId"]) == (b"first", "text/x-first", copied["VersionId"])
    assert len(entries(s3, versioned)) == 3


def test_copy_of_an_odd_key_by_version(s3, raw, versioned):
    name = "a b+c?versionId=x&y%20"
    first = put(s3, versioned, name, b"first")
    put(s3, versioned, name, b"second")
    source = {"Bucket": versioned, "Key": name, "VersionId": first}
    s3.copy_object(Bucket=versioned, Key="copy", CopySource=source)
    assert body_of(s3, versioned, "copy") == b"first"
    header = f"/{versioned}/{urllib.parse.quote(name)}?versionId={first}"
    assert raw.request("PUT", f"/{versioned}/copy", headers={"x-amz-copy-source": header}).status == 200
    assert body_of(s3, versioned, "copy") == b"first"


def test_multipart_upload_is_a_version(s3, versioned, key):
    first = put(s3, versioned, key, b"first")
    name = {"Bucket": versioned, "Key": key}
    upload = s3.create_multipart_upload(**name)["UploadId"]
    part = s3.upload_part(**name, UploadId=upload, PartNumber=1, Body=payload(5 * MIB))
    # A part can be copied from an old version.
    source = {"Bucket": versioned, "Key": key, "VersionId": first}
    copied = s3.upload_part_copy(**name, UploadId=upload, PartNumber=2, CopySource=source)
    assert copied["CopySourceVersionId"] == first
    parts = [(1, part["ETag"]), (2, copied["CopyPartResult"]["ETag"])]
    done = s3.complete_multipart_upload(
        **name, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": n, "ETag": etag} for n, etag in parts]}
    )
    assert done["VersionId"] not in (first, None)
    assert body_of(s3, versioned, key) == payload(5 * MIB) + b"first"
    assert body_of(s3, versioned, key, PartNumber=2, VersionId=done["VersionId"]) == b"first"
    assert [each[1] for each in entries(s3, versioned)] == [done["VersionId"], first]
    attributes = s3.get_object_attributes(**name, VersionId=done["VersionId"], ObjectAttributes=["ObjectSize", "ObjectParts"])
    assert attributes["ObjectSize"] == 5 * MIB + 5 and attributes["VersionId"] == done["VersionId"]


def test_conditional_writes_compare_the_current_version(s3, versioned, key):
    first = s3.put_object(Bucket=versioned, Key=key, Body=b"1", IfNoneMatch="*")
    with s3_error("PreconditionFailed", 412):
        s3.put_object(Bucket=versioned, Key=key, Body=b"2", IfNoneMatch="*")
    second = s3.put_object(Bucket=versioned, Key=key, Body=b"2", IfMatch=first["ETag"])
    with s3_error("PreconditionFailed", 412):
        s3.put_object(Bucket=versioned, Key=key, Body=b"3", IfMatch=first["ETag"])
    s3.delete_object(Bucket=versioned, Key=key)
    # With a delete marker on top there is no current object.
    with s3_error("NoSuchKey", 404):
        s3.put_object(Bucket=versioned, Key=key, Body=b"3", IfMatch=second["ETag"])
    s3.put_object(Bucket=versioned, Key=key, Body=b"3", IfNoneMatch="*")
    assert body_of(s3, versioned, key) == b"3"
    assert len(entries(s3, versioned)) == 4


def test_conditional_delete(s3, versioned, key):
    etag = s3.put_object(Bucket=versioned, Key=key, Body=b"1")["ETag"]
    put(s3, versioned, key, b"2")
    with s3_error("PreconditionFailed", 412):
        s3.delete_object(Bucket=versioned, Key=key, IfMatch=etag)
    assert body_of(s3, versioned, key) == b"2"
    current = s3.head_object(Bucket=versioned, Key=key)["ETag"]
    assert s3.delete_object(Bucket=versioned, Key=key, IfMatch=current)["DeleteMarker"] is True
    absent(s3, versioned, key)


def test_conditional_reads_of_a_version(s3, versioned, key):
    first = s3.put_object(Bucket=versioned, Key=key, Body=b"1")
    put(s3, versioned, key, b"2")
    name = {"Bucket": versioned, "Key": key, "VersionId": first["VersionId"]}
    assert s3.get_object(**name, IfMatch=first["ETag"])["Body"].read() == b"1"
    with s3_error("304", 304):
        s3.get_object(**name, IfNoneMatch=first["ETag"])
    with s3_error("PreconditionFailed", 412):
        s3.get_object(**name, IfMatch='"other"')


def test_tags_belong_to_a_version(s3, versioned, key):
    def tags(**version):
        return {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=versioned, Key=key, **version)["TagSet"]}

    first = put(s3, versioned, key, b"1", Tagging="n=1")
    second = put(s3, versioned, key, b"2", Tagging="n=2")
    assert (tags(VersionId=first), tags(VersionId=second), tags()) == ({"n": "1"}, {"n": "2"}, {"n": "2"})
    changed = {"TagSet": [{"Key": "n", "Value": "3"}]}
    assert s3.put_object_tagging(Bucket=versioned, Key=key, VersionId=first, Tagging=changed)["VersionId"] == first
    assert (tags(VersionId=first), tags()) == ({"n": "3"}, {"n": "2"})
    assert s3.get_object(Bucket=versioned, Key=key, VersionId=first)["TagCount"] == 1
    s3.delete_object_tagging(Bucket=versioned, Key=key, VersionId=first)
    assert (tags(VersionId=first), tags()) == ({}, {"n": "2"})
    assert body_of(s3, versioned, key, VersionId=first) == b"1"
    assert [each[1] for each in entries(s3, versioned)] == [second, first], "tagging creates no version"
    marker = s3.delete_object(Bucket=versioned, Key=key)["VersionId"]
    with s3_error("MethodNotAllowed", 405):
        tags(VersionId=marker)
    with s3_error(("NoSuchKey", "MethodNotAllowed"), 404):
        tags()


def test_multi_delete_with_versions(s3, versioned):
    ids = {name: put(s3, versioned, name, name.encode()) for name in ("a", "b", "c")}
    wanted = [{"Key": "a", "VersionId": ids["a"]}, {"Key": "b"}, {"Key": "nothing"}]
    answer = s3.delete_objects(Bucket=versioned, Delete={"Objects": wanted})
    assert "Errors" not in answer
    deleted = {each["Key"]: each for each in answer["Deleted"]}
    assert deleted["a"] == {"Key": "a", "VersionId": ids["a"]}
    assert deleted["b"]["DeleteMarker"] is True and deleted["b"]["DeleteMarkerVersionId"] != ids["b"]
    assert deleted["nothing"]["DeleteMarker"] is True
    marker = deleted["b"]["DeleteMarkerVersionId"]
    answer = s3.delete_objects(Bucket=versioned, Delete={"Objects": [{"Key": "b", "VersionId": marker}]})
    assert answer["Deleted"] == [{"Key": "b", "VersionId": marker, "DeleteMarker": True, "DeleteMarkerVersionId": marker}]
    assert body_of(s3, versioned, "b") == b"b"
    quiet = s3.delete_objects(Bucket=versioned, Delete={"Objects": [{"Key": "c", "VersionId": ids["c"]}], "Quiet": True})
    assert "Deleted" not in quiet
    assert [(key, is_marker) for key, _, _, is_marker in entries(s3, versioned)] == [("b", False), ("nothing", True)]


def test_multi_delete_of_several_versions_of_a_key(s3, versioned, key):
    ids = [put(s3, versioned, key, str(n).encode()) for n in range(4)]
    wanted = [{"Key": key, "VersionId": each} for each in ids[1:]]
    answer = s3.delete_objects(Bucket=versioned, Delete={"Objects": wanted})
    assert {each["VersionId"] for each in answer["Deleted"]} == set(ids[1:])
    assert entries(s3, versioned) == [(key, ids[0], True, False)]


@pytest.fixture
def history(s3, versioned):
    """Versions and delete markers of several keys, as their listing must report them."""
    expected = []
    for name in ("a/1", "a/2", "b", "c d+ü", "z/1/2"):
        ids = [put(s3, versioned, name, str(n).encode()) for n in range(3)]
        if name in ("a/2", "z/1/2"):
            ids.append(s3.delete_object(Bucket=versioned, Key=name)["VersionId"])
        expected += [(name, each) for each in reversed(ids)]
    return versioned, expected


def listed(raw, bucket, query):
    """One page in document order, which boto3 does not keep: the entries, and the page itself."""
    response = raw.request("GET", f"/{bucket}", f"versions&{query}" if query else "versions")
    assert response.status == 200, response
    page = response.xml()
    found = [(e.findtext("Key"), e.findtext("VersionId")) for e in page if e.tag in ("Version", "DeleteMarker")]
    return found, page


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 1000])
def test_pages_have_everything_once_in_order(raw, history, size):
    bucket, expected = history
    found, query = [], ""
    for _ in range(len(expected) + 1):
        entries_on_page, page = listed(raw, bucket, f"max-keys={size}{query}")
        assert len(entries_on_page) <= size
        found += entries_on_page
        if page.findtext("IsTruncated") == "false":
            break
        markers = page.findtext("NextKeyMarker"), page.findtext("NextVersionIdMarker")
        assert markers == entries_on_page[-1]
        query = "&key-marker={}&version-id-marker={}".format(*(urllib.parse.quote(m, safe="") for m in markers))
    assert found == expected


def test_key_marker_alone_skips_the_whole_key(raw, history):
    bucket, expected = history
    assert listed(raw, bucket, "key-marker=b")[0] == [each for each in expected if each[0] > "b"]
    assert listed(raw, bucket, "key-marker=a")[0] == expected
    assert listed(raw, bucket, "key-marker=zz")[0] == []


def test_version_marker_is_within_its_key(raw, history):
    bucket, expected = history
    marker = [each for each in expected if each[0] == "b"][1]
    query = f"key-marker=b&version-id-marker={marker[1]}"
    assert listed(raw, bucket, query)[0] == expected[expected.index(marker) + 1 :]
    refused(raw.request("GET", f"/{bucket}", f"versions&version-id-marker={marker[1]}"), "InvalidArgument", 400)
    # A position that is not known would list the key again.
    refused(raw.request("GET", f"/{bucket}", "versions&key-marker=b&version-id-marker=other"), "InvalidArgument", 400)
    # The marker's version may be gone: the listing continues after it.
    raw.request("DELETE", f"/{bucket}/b", f"versionId={marker[1]}")
    assert listed(raw, bucket, query)[0] == expected[expected.index(marker) + 1 :]


def test_listing_by_prefix_and_delimiter(raw, history):
    bucket, expected = history
    assert listed(raw, bucket, "prefix=a%2F")[0] == [each for each in expected if each[0].startswith("a/")]
    found, page = listed(raw, bucket, "delimiter=%2F")
    assert found == [each for each in expected if "/" not in each[0]]
    assert [p.findtext("Prefix") for p in page.iter("CommonPrefixes")] == ["a/", "z/"]
    found, page = listed(raw, bucket, "delimiter=%2F&prefix=z%2F")
    assert not found and [p.findtext("Prefix") for p in page.iter("CommonPrefixes")] == ["z/1/"]
    # Page by page, a prefix appears once.
    seen, query = [], ""
    for _ in range(12):
        found, page = listed(raw, bucket, f"delimiter=%2F&max-keys=1{query}")
        seen += [each[0] for each in found] + [p.findtext("Prefix") for p in page.iter("CommonPrefixes")]
        if page.findtext("IsTruncated") == "false":
            break
        query = f"&key-marker={urllib.parse.quote(page.findtext('NextKeyMarker'), safe='')}"
        if version := page.findtext("NextVersionIdMarker"):
            query += f"&version-id-marker={version}"
    assert seen == ["a/", "b", "b", "b", "c d+ü", "c d+ü", "c d+ü", "z/"]


def test_listing_with_encoded_keys(raw, history):
    bucket, _ = history
    found, page = listed(raw, bucket, "encoding-type=url&prefix=c%20d&max-keys=1")
    encoded = ("c+d%2B%C3%BC", "c%20d%2B%C3%BC")
    assert found[0][0] in encoded and page.findtext("NextKeyMarker") in encoded
    assert page.findtext("Prefix") in ("c+d", "c%20d") and page.findtext("EncodingType") == "url"


def test_fields_of_a_listing(s3, versioned, key):
    put(s3, versioned, key, b"12345", StorageClass="STANDARD_IA")
    s3.delete_object(Bucket=versioned, Key=key)
    page = s3.list_object_versions(Bucket=versioned)
    version, marker = page["Versions"][0], page["DeleteMarkers"][0]
    assert (version["Size"], version["StorageClass"], version["IsLatest"]) == (5, "STANDARD_IA", False)
    assert version["ETag"].startswith('"') and version["Owner"]["ID"] and version["LastModified"]
    assert marker["IsLatest"] is True and marker["Owner"]["ID"] and marker["LastModified"]
    assert (page["Name"], page["MaxKeys"], page.get("Prefix", "")) == (versioned, 1000, "")


def test_current_listing_hides_versions_and_markers(s3, history):
    bucket, _ = history
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a/1", "b", "c d+ü"]
    assert [o["Key"] for o in s3.list_objects(Bucket=bucket)["Contents"]] == ["a/1", "b", "c d+ü"]
    page = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["a/"]


def test_bucket_with_versions_or_markers_is_not_empty(s3, versioned, key):
    first = put(s3, versioned, key, b"x")
    marker = s3.delete_object(Bucket=versioned, Key=key)["VersionId"]
    with s3_error("BucketNotEmpty", 409):
        s3.delete_bucket(Bucket=versioned)
    s3.delete_object(Bucket=versioned, Key=key, VersionId=first)
    with s3_error("BucketNotEmpty", 409):
        s3.delete_bucket(Bucket=versioned)
    s3.delete_object(Bucket=versioned, Key=key, VersionId=marker)
    s3.delete_bucket(Bucket=versioned)


def test_concurrent_writes_are_all_kept(s3, versioned, key, crowd):
    ids = crowd(lambda n: put(s3, versioned, key, str(n).encode()), range(32))
    assert all(isinstance(each, str) for each in ids) and len(set(ids)) == 32
    assert {each[1] for each in entries(s3, versioned)} == set(ids)
    for n, each in enumerate(ids):
        assert body_of(s3, versioned, key, VersionId=each) == str(n).encode()


def test_presigned_url_of_a_version(s3, anonymous, versioned, key):
    first = put(s3, versioned, key, b"first")
    put(s3, versioned, key, b"second")
    url = urllib.parse.urlsplit(s3.generate_presigned_url("get_object", {"Bucket": versioned, "Key": key, "VersionId": first}))
    assert anonymous.request("GET", url.path, url.query).body == b"first"
    refused(anonymous.request("GET", url.path, url.query.replace(first, "null")), "SignatureDoesNotMatch", 403)


def test_version_that_never_existed_changes_nothing(raw, s3, fresh_bucket, key):
    """Also where versioning was never enabled."""
    s3.put_object(Bucket=fresh_bucket, Key=key, Body=b"body")
    status = IMPOSSIBLE[1]
    for method, status in (("GET", status), ("HEAD", status), ("DELETE", 204 if status == 404 else status)):
        response = raw.request(method, f"/{fresh_bucket}/{key}", "versionId=0123456789abcdef0123456789abcdef")
        assert response.status == status, response
        assert body_of(s3, fresh_bucket, key) == b"body"


@pytest.mark.parametrize("query", ["versionId=", "versionId=null&versionId=x"])
def test_ambiguous_version_is_rejected(raw, s3, versioned, key, query):
    put(s3, versioned, key, b"x")
    refused(raw.request("GET", f"/{versioned}/{key}", query), ("InvalidArgument", "InvalidRequest"), 400)
    refused(raw.request("DELETE", f"/{versioned}/{key}", query), ("InvalidArgument", "InvalidRequest"), 400)
    assert body_of(s3, versioned, key) == b"x"
