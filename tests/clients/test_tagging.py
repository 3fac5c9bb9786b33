"""Object tags: set with the object, set separately, and their limits."""

import pytest

from expect import absent, body_of, s3_error


def tags_of(s3, bucket, key):
    return {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]}


def tag_set(tags):
    return {"TagSet": [{"Key": k, "Value": v} for k, v in tags.items()]}


def test_tags_given_with_the_object(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Tagging="colour=dark%20blue&empty=&gr%C3%B6%C3%9Fe=L%2BXL")
    assert tags_of(s3, bucket, key) == {"colour": "dark blue", "empty": "", "größe": "L+XL"}
    assert s3.get_object(Bucket=bucket, Key=key)["TagCount"] == 3
    assert s3.head_object(Bucket=bucket, Key=key)["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"] == "3"


def test_put_get_delete_tagging(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"body", Metadata={"m": "1"})
    before = s3.head_object(Bucket=bucket, Key=key)
    assert tags_of(s3, bucket, key) == {}
    assert "TagCount" not in s3.get_object(Bucket=bucket, Key=key)
    s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tag_set({"a": "1", "b": "x+y @:/=_.-"}))
    assert tags_of(s3, bucket, key) == {"a": "1", "b": "x+y @:/=_.-"}
    s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tag_set({"c": "3"}))
    assert tags_of(s3, bucket, key) == {"c": "3"}
    assert s3.get_object(Bucket=bucket, Key=key)["TagCount"] == 1
    assert s3.delete_object_tagging(Bucket=bucket, Key=key)["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert tags_of(s3, bucket, key) == {}
    after = s3.head_object(Bucket=bucket, Key=key)
    assert (after["ETag"], after["Metadata"], after["LastModified"]) == (before["ETag"], before["Metadata"], before["LastModified"])
    assert body_of(s3, bucket, key) == b"body"


def test_ten_tags_of_maximum_length(s3, bucket, key):
    tags = {f"{n}".ljust(128, "k"): f"{n}".ljust(256, "v") for n in range(10)}
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tag_set(tags))
    assert tags_of(s3, bucket, key) == tags


BAD_TAGS = {
    "eleven": {f"k{n}": "v" for n in range(11)},
    "long key": {"k" * 129: "v"},
    "long value": {"k": "v" * 257},
}


@pytest.mark.parametrize("case", BAD_TAGS)
def test_tags_beyond_the_limits(s3, bucket, key, case):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", Tagging="kept=1")
    with s3_error(("InvalidTag", "BadRequest"), 400):
        s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tag_set(BAD_TAGS[case]))
    assert tags_of(s3, bucket, key) == {"kept": "1"}
    with s3_error(("InvalidTag", "BadRequest", "InvalidArgument"), 400):
        s3.put_object(Bucket=bucket, Key=key + "2", Body=b"x", Tagging="&".join(f"{k}={v}" for k, v in BAD_TAGS[case].items()))
    absent(s3, bucket, key + "2")


def test_duplicate_tags_are_rejected(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    with s3_error("InvalidTag", 400):
        s3.put_object_tagging(Bucket=bucket, Key=key, Tagging={"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]})
    with s3_error(("InvalidTag", "InvalidArgument"), 400):
        s3.put_object(Bucket=bucket, Key=key + "2", Body=b"x", Tagging="a=1&a=2")


def test_tagging_of_a_missing_object(s3, bucket, key):
    with s3_error("NoSuchKey", 404):
        s3.get_object_tagging(Bucket=bucket, Key=key)
    with s3_error("NoSuchKey", 404):
        s3.put_object_tagging(Bucket=bucket, Key=key, Tagging=tag_set({"a": "1"}))
