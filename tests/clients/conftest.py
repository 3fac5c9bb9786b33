"""Fixtures of the end-to-end suite: the server's address, clients, and buckets that are removed afterwards.

All parameters come from TW_* variables (README.md). Buckets are unique to a module or a test, keys to a test, so modules
may run concurrently and against a server with other data.
"""

import concurrent.futures
import os
import re
import signal
import uuid

import boto3
import botocore.config
import pytest
from botocore.exceptions import ClientError

import wire

# The user's own AWS configuration must not affect the clients.
for _name in [name for name in os.environ if name.startswith(("AWS_", "RCLONE_")) and name != "AWS_CA_BUNDLE"]:
    del os.environ[_name]
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull

# Without this, boto3 sends `Expect: 100-continue` also for empty bodies; if the server sends the final response at once,
# boto3's next PUT on that connection hangs. test_expect.py tests the default.
os.environ.setdefault("BOTO_EXPERIMENTAL__NO_EMPTY_CONTINUE", "true")

ENDPOINT = os.environ.get("TW_ENDPOINT", "").rstrip("/")
REGION = os.environ.get("TW_REGION", "us-east-1")
# The versioning of every bucket that a fixture creates: "Enabled", "Suspended", or none.
VERSIONING = os.environ.get("TW_VERSIONING", "")
# Set if the server rejects presigned URLs of Signature Version 2 (`server.presigned_sigv2 = false`).
NO_SIGV2 = os.environ.get("TW_NO_PRESIGNED_SIGV2", "")
# Client programs take seconds to start on a loaded machine.
MAX_TEST_SECONDS = 180
REQUIRED = ("TW_ENDPOINT", "TW_ACCESS_KEY", "TW_SECRET_KEY")


def pytest_collection_modifyitems(items):
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if missing:
        mark = pytest.mark.skip(reason=f"no server to test: {', '.join(missing)} not set")
        for item in items:
            item.add_marker(mark)


@pytest.fixture(autouse=True)
def deadline():
    """Limits every test, even if the server makes a client wait or loop."""

    def expire(*_):
        raise TimeoutError(f"the test took over {MAX_TEST_SECONDS} seconds")

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(MAX_TEST_SECONDS)
    yield
    signal.alarm(0)


def make_client(access_key, secret_key, **settings):
    """A boto3 client without retries, which would hide failures, and by default with path-style addressing."""
    endpoint = settings.pop("endpoint", ENDPOINT)
    config = botocore.config.Config(
        region_name=REGION,
        signature_version=settings.pop("signature_version", "s3v4"),
        retries={"total_max_attempts": 1},
        connect_timeout=5,
        read_timeout=settings.pop("read_timeout", 15),
        max_pool_connections=settings.pop("max_pool_connections", 128),
        s3={"addressing_style": "path", **settings.pop("s3", {})},
        **settings,
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=config,
    )


def unique(stem):
    return f"e2e-{stem}-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def keys():
    return os.environ["TW_ACCESS_KEY"], os.environ["TW_SECRET_KEY"]


@pytest.fixture(scope="session")
def s3(keys):
    return make_client(*keys)


@pytest.fixture(scope="session")
def raw(keys):
    """The plain-socket client with the root key."""
    return wire.Wire(ENDPOINT, *keys, region=REGION)


@pytest.fixture(scope="session")
def anonymous():
    """The plain-socket client without a key."""
    return wire.Wire(ENDPOINT)


def _optional_keys(prefix):
    access, secret = f"TW_{prefix}_ACCESS_KEY", f"TW_{prefix}_SECRET_KEY"
    if not (os.environ.get(access) and os.environ.get(secret)):
        pytest.skip(f"{access} and {secret} not set")
    return os.environ[access], os.environ[secret]


def _ensure_bucket(s3, name):
    try:
        _create_bucket(s3, name)
    except ClientError as error:
        if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":
            raise
    return name


@pytest.fixture(scope="session")
def readonly():
    """boto3 with a key that may only read bucket e2e-shared."""
    return make_client(*_optional_keys("READONLY"))


@pytest.fixture(scope="session")
def writer():
    """boto3 with a key that may only read and write bucket e2e-writer."""
    return make_client(*_optional_keys("WRITER"))


@pytest.fixture(scope="session")
def shared_bucket(s3):
    return _ensure_bucket(s3, "e2e-shared")


@pytest.fixture(scope="session")
def writer_bucket(s3):
    return _ensure_bucket(s3, "e2e-writer")


@pytest.fixture(scope="session")
def public_bucket(s3):
    """A bucket with anonymous reads enabled in the server's settings."""
    name = os.environ.get("TW_PUBLIC_BUCKET")
    if not name:
        pytest.skip("TW_PUBLIC_BUCKET not set: no bucket with anonymous read")
    return _ensure_bucket(s3, name)


def empty_bucket(s3, name):
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=name):
        for upload in page.get("Uploads", []):
            s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
    for _ in range(20):  # bounded, in case the server fails to delete
        page = s3.list_object_versions(Bucket=name)
        versions = page.get("Versions", []) + page.get("DeleteMarkers", [])
        if not versions:
            break
        named = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in versions]
        s3.delete_objects(Bucket=name, Delete={"Objects": named, "Quiet": True})


def _create_bucket(s3, name):
    s3.create_bucket(Bucket=name)
    if VERSIONING:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": VERSIONING})


def _temporary_bucket(s3, stem):
    name = unique(stem)
    _create_bucket(s3, name)
    yield name
    # The cleanup is for long-lived servers; a failure of it must not fail the test.
    try:
        empty_bucket(s3, name)
        s3.delete_bucket(Bucket=name)
    except ClientError:
        pass


@pytest.fixture(scope="module")
def bucket(s3, request):
    """A bucket for the whole module; its tests use distinct keys by the fixture `key`."""
    yield from _temporary_bucket(s3, re.sub("[^a-z]", "", request.module.__name__.removeprefix("test_")))


@pytest.fixture
def fresh_bucket(s3):
    """An empty bucket for one test."""
    yield from _temporary_bucket(s3, "one")


@pytest.fixture
def key():
    return f"key-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def temporary_names(s3):
    """Returns unique bucket names; buckets that the test creates with them are removed."""
    names = []

    def name(stem="name"):
        names.append(unique(stem))
        return names[-1]

    yield name
    for each in names:
        try:
            empty_bucket(s3, each)
            s3.delete_bucket(Bucket=each)
        except ClientError:
            pass


@pytest.fixture(scope="session")
def crowd():
    """Runs a function concurrently for many inputs and returns results or exceptions."""

    def run(function, inputs, threads=32):
        def guarded(value):
            try:
                return function(value)
            except Exception as error:  # the caller checks each one
                return error

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return list(pool.map(guarded, inputs))

    return run
