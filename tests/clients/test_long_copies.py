"""Copies and completions that take longer than the time after which the server sends the head of their response, with boto3, the
AWS SDK for Go v2 and minio-go: results and errors after status 200.

The server is in front of a service that delays them, and then rejects them if the key contains "fails".
"""

import concurrent.futures
import os

import pytest
from botocore.exceptions import ClientError

import commands
from conftest import ENDPOINT, REGION

pytestmark = pytest.mark.skipif(not os.environ.get("TW_LONG_COPIES"), reason="TW_LONG_COPIES not set")


@pytest.fixture
def bucket(s3, fresh_bucket):
    s3.put_object(Bucket=fresh_bucket, Key="source", Body=b"bytes")
    return fresh_bucket


def copy_object(s3, bucket, key):
    return s3.copy_object(Bucket=bucket, Key=key, CopySource=f"{bucket}/source")["CopyObjectResult"]


def copy_part(s3, bucket, key):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    part = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": 1}
    return s3.upload_part_copy(**part, CopySource=f"{bucket}/source")["CopyPartResult"]


def complete(s3, bucket, key):
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    return s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload=parts)


def test_boto3_reads_late_results_and_errors(s3, bucket):
    def run(operation, outcome):
        try:
            return operation(s3, bucket, f"{operation.__name__}-{outcome}")
        except ClientError as error:
            return error

    operations = [copy_object, copy_part, complete]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = {
            (operation, outcome): pool.submit(run, operation, outcome)
            for operation in operations
            for outcome in ("succeeds", "fails")
        }
    for operation in operations:
        assert results[operation, "succeeds"].result()["ETag"]
        error = results[operation, "fails"].result()
        assert isinstance(error, ClientError) and error.response["Error"]["Code"] == "InternalError", error


@pytest.mark.parametrize("sdk", ["aws", "minio"])
def test_go_clients_read_late_results_and_errors(sdk, keys, bucket):
    program = commands.binary("go-clients")
    environment = {
        **os.environ,
        "TW_ENDPOINT": ENDPOINT,
        "TW_REGION": REGION,
        "TW_ACCESS_KEY": keys[0],
        "TW_SECRET_KEY": keys[1],
    }
    commands.run([program, sdk, bucket], environment)
