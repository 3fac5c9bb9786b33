"""PutObject by boto3 with its own retries. Prints a line when it repeats the request, and the attempts at the end."""

import sys

import boto3
from botocore.config import Config

endpoint, bucket, key, size = sys.argv[1:]
config = Config(
    retries={"mode": "standard", "total_max_attempts": 30},
    s3={"addressing_style": "path"},
    request_checksum_calculation="when_required",
)
client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)
attempts = 0


def count(**_):
    global attempts
    attempts += 1
    if attempts == 2:
        print("retrying", flush=True)


client.meta.events.register("before-send.s3.PutObject", count)
client.put_object(Bucket=bucket, Key=key, Body=b"s" * int(size))
print(attempts, flush=True)
