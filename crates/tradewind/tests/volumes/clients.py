"""Copies between buckets of two volumes with boto3 and, if it is installed, the AWS CLI.

Arguments: endpoint, bucket of the first volume, bucket of the second. The keys are in the environment.
"""

import os
import shutil
import subprocess
import sys

import boto3
import botocore.config

PART_BYTES = 5 << 20


def main(endpoint, near, far):
    config = botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    s3 = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)
    names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    assert names == sorted([near, far]), names

    s3.put_object(
        Bucket=near,
        Key="a",
        Body=b"bytes",
        ContentType="text/x-test",
        Metadata={"author": "someone"},
        Tagging="project=lake",
        ChecksumAlgorithm="SHA256",
    )
    copied = s3.copy_object(Bucket=far, Key="b", CopySource={"Bucket": near, "Key": "a"})
    found = s3.get_object(Bucket=far, Key="b", ChecksumMode="ENABLED")
    assert found["Body"].read() == b"bytes"
    assert (found["ContentType"], found["Metadata"]) == ("text/x-test", {"author": "someone"}), found
    assert found["ETag"] == copied["CopyObjectResult"]["ETag"]
    assert found["ChecksumSHA256"], found
    tags = s3.get_object_tagging(Bucket=far, Key="b")["TagSet"]
    assert tags == [{"Key": "project", "Value": "lake"}], tags
    try:
        s3.copy_object(Bucket=far, Key="b", CopySource={"Bucket": near, "Key": "a"}, CopySourceIfMatch='"other"')
    except s3.exceptions.ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412, error
    else:
        raise AssertionError("a condition of the source that does not hold was ignored")

    large = bytes(range(256)) * (PART_BYTES // 128)
    s3.put_object(Bucket=near, Key="large", Body=large)
    upload = s3.create_multipart_upload(Bucket=far, Key="parts")["UploadId"]
    parts = []
    for number in (1, 2):
        first = (number - 1) * PART_BYTES
        part = s3.upload_part_copy(
            Bucket=far,
            Key="parts",
            UploadId=upload,
            PartNumber=number,
            CopySource={"Bucket": near, "Key": "large"},
            CopySourceRange=f"bytes={first}-{first + PART_BYTES - 1}",
        )
        parts.append({"PartNumber": number, "ETag": part["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(Bucket=far, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=far, Key="parts")["Body"].read() == large

    if shutil.which("aws") is None:
        print("the AWS CLI is not installed")
        return
    aws = ["aws", "--endpoint-url", endpoint, "--region", "us-east-1", "s3"]
    for command in (
        ["cp", f"s3://{far}/parts", f"s3://{near}/back"],
        ["sync", f"s3://{near}/", f"s3://{far}/synced/", "--exclude", "large"],
    ):
        subprocess.run([*aws, *command, "--only-show-errors"], check=True, timeout=120, env=os.environ)
    assert s3.get_object(Bucket=near, Key="back")["Body"].read() == large
    assert s3.get_object(Bucket=far, Key="synced/a")["Body"].read() == b"bytes"


main(*sys.argv[1:])
