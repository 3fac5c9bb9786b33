"""Copies a tree or one object with the CRT client of AWS, through the CRTTransferManager of s3transfer with its defaults.

Version 2 of the AWS CLI does this with `preferred_transfer_client = crt`, but it is not available as a Python package. This
program stands in for it, without the other work of the CLI. Run it with the Python of bench/.cache/venv.
Usage: crt_copy.py up|down LOCAL BUCKET [KEY]
"""

import os
import sys
from pathlib import Path

import botocore.session
from s3transfer.crt import (
    BotocoreCRTCredentialsWrapper,
    BotocoreCRTRequestSerializer,
    CRTTransferManager,
    create_s3_crt_client,
)


def keys_of(session: botocore.session.Session, bucket: str, options: dict[str, str]) -> list[str]:
    pages = session.create_client("s3", **options).get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]


def main() -> None:
    direction, local, bucket, *single = sys.argv[1:]
    session = botocore.session.get_session()
    options = {"region_name": os.environ["AWS_REGION"], "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    credentials = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    client = create_s3_crt_client(options["region_name"], credentials, use_ssl=False)
    if single:
        pairs = [(local, single[0])]
    elif direction == "up":
        files = (os.path.join(directory, name) for directory, _, names in os.walk(local) for name in names)
        pairs = [(path, os.path.relpath(path, local)) for path in files]
    else:
        pairs = [(os.path.join(local, key), key) for key in keys_of(session, bucket, options)]
        for directory in {os.path.dirname(path) for path, _ in pairs}:
            Path(directory).mkdir(parents=True, exist_ok=True)
    with CRTTransferManager(client, BotocoreCRTRequestSerializer(session, options)) as manager:
        if direction == "up":
            futures = [manager.upload(path, bucket, key) for path, key in pairs]
        else:
            futures = [manager.download(bucket, key, path) for path, key in pairs]
        for future in futures:
            future.result()


if __name__ == "__main__":
    main()
