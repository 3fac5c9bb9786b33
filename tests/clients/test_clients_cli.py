"""Typical use of aws-cli and rclone: upload and download of trees, large files, cleanup.

aws-cli takes a second to start, so there are few calls.
"""

import filecmp
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

import wire
from commands import run
from conftest import ENDPOINT, NO_SIGV2, REGION
from expect import payload

MIB = 1 << 20


@pytest.fixture
def aws(keys, tmp_path):
    """Runs `aws ...` with its own configuration."""
    binary = [shutil.which("aws")]
    if not binary[0]:
        binary = [sys.executable, "-m", "awscli"]
        if subprocess.run([*binary, "--version"], capture_output=True).returncode:
            pytest.skip("aws-cli is not installed")
    config = tmp_path / "aws-config"
    # By default, the command presigns in us-east-1 with the predecessor of SigV4.
    signature = "  signature_version = s3v4\n" if NO_SIGV2 else ""
    config.write_text(f"[default]\nregion = {REGION}\ns3 =\n  addressing_style = path\n{signature}")
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": keys[0],
        "AWS_SECRET_ACCESS_KEY": keys[1],
        "AWS_CONFIG_FILE": str(config),
        "AWS_ENDPOINT_URL": ENDPOINT,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    return lambda *arguments, **options: run([*binary, *map(str, arguments)], environment, **options)


@pytest.fixture
def rclone(keys, tmp_path):
    if not shutil.which("rclone"):
        pytest.skip("rclone is not installed")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"},  # rclone rejects it
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "RCLONE_CONFIG_TW_TYPE": "s3",
        "RCLONE_CONFIG_TW_PROVIDER": "Other",
        "RCLONE_CONFIG_TW_ENDPOINT": ENDPOINT,
        "RCLONE_CONFIG_TW_REGION": REGION,
        "RCLONE_CONFIG_TW_ACCESS_KEY_ID": keys[0],
        "RCLONE_CONFIG_TW_SECRET_ACCESS_KEY": keys[1],
        "RCLONE_CONFIG_TW_FORCE_PATH_STYLE": "true",
    }
    return lambda *arguments, **options: run(["rclone", "--retries=1", "--low-level-retries=1", *map(str, arguments)], environment, **options)


@pytest.fixture
def tree(tmp_path):
    """A small tree with names and sizes that are difficult for clients and servers."""
    root = tmp_path / "tree"
    files = {
        "plain.txt": b"plain\n",
        "empty": b"",
        "sp ace/p+lus & 100%.txt": b"odd name",
        "ünï/côdé 日本.bin": payload(5000),
        "deep/a/b/c/d/e/f.dat": payload(70_000),
        "multipart.bin": payload(9 * MIB + 11),
        "page.html": b"<html></html>",
        **{f"many/{n:03}.dat": payload(100 + n, n) for n in range(60)},
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        # S3 reports times in whole seconds: a file from the second of its upload would look newer than its copy.
        os.utime(path, (time.time() - 3600,) * 2)
    return root


def same_trees(one, two):
    names = [sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) for root in (one, two)]
    assert names[0] == names[1]
    match, mismatch, errors = filecmp.cmpfiles(one, two, names[0], shallow=False)
    assert not mismatch and not errors and len(match) == len(names[0])
    if shutil.which("diff"):
        assert subprocess.run(["diff", "-r", one, two]).returncode == 0


def test_aws_bucket_and_file(aws, temporary_names, tmp_path):
    name = temporary_names("aws")
    aws("s3", "mb", f"s3://{name}")
    (tmp_path / "file.txt").write_text("hello\n")
    aws("s3", "cp", tmp_path / "file.txt", f"s3://{name}/a/file.txt")
    assert "file.txt" in aws("s3", "ls", f"s3://{name}/a/").stdout
    url = aws("s3", "presign", f"s3://{name}/a/file.txt").stdout.strip()
    path, _, query = url.removeprefix(ENDPOINT).partition("?")
    assert wire.Wire(ENDPOINT).request("GET", path, query).body == b"hello\n"
    aws("s3", "rm", f"s3://{name}", "--recursive")
    aws("s3", "rb", f"s3://{name}")


def test_aws_sync_up_and_down(aws, s3, bucket, tree, tmp_path):
    target = f"s3://{bucket}/sync"
    aws("s3", "sync", tree, target)
    assert aws("s3", "sync", tree, target).stdout.strip() == "", "a second sync finds nothing to do"
    assert s3.head_object(Bucket=bucket, Key="sync/page.html")["ContentType"] == "text/html"
    aws("s3", "sync", target, tmp_path / "down")
    same_trees(tree, tmp_path / "down")


def test_aws_large_file(aws, s3, bucket, tmp_path):
    data = payload(MIB) * 64
    (tmp_path / "large").write_bytes(data)
    aws("s3", "cp", tmp_path / "large", f"s3://{bucket}/large")
    head = s3.head_object(Bucket=bucket, Key="large")
    assert head["ContentLength"] == len(data) and head["ETag"].endswith('-8"')
    aws("s3", "cp", f"s3://{bucket}/large", f"s3://{bucket}/larger")  # copies part by part on the server
    aws("s3", "cp", f"s3://{bucket}/larger", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_aws_api_commands(aws, bucket, key, tmp_path):
    (tmp_path / "body").write_bytes(b"body")
    name = ("--bucket", bucket, "--key", key)
    aws("s3api", "put-object", *name, "--body", tmp_path / "body", "--checksum-algorithm", "SHA256")
    assert "ChecksumSHA256" in aws("s3api", "get-object-attributes", *name, "--object-attributes", "Checksum").stdout


def test_rclone_sync_up_and_down(rclone, s3, temporary_names, tree, tmp_path):
    name = temporary_names("rclone")
    rclone("mkdir", f"tw:{name}")
    rclone("sync", tree, f"tw:{name}/tree")
    rclone("check", tree, f"tw:{name}/tree")
    rclone("sync", f"tw:{name}/tree", tmp_path / "down")
    same_trees(tree, tmp_path / "down")
    listed = rclone("lsf", "-R", "--files-only", f"tw:{name}/tree").stdout.splitlines()
    assert len(listed) == sum(p.is_file() for p in pathlib.Path(tree).rglob("*"))
    rclone("delete", f"tw:{name}/tree")
    assert s3.list_objects_v2(Bucket=name)["KeyCount"] == 0
    rclone("rmdir", f"tw:{name}")
    assert name not in [b["Name"] for b in s3.list_buckets()["Buckets"]]


def test_rclone_large_file(rclone, bucket, tmp_path):
    data = payload(MIB) * 20
    (tmp_path / "large").write_bytes(data)
    rclone("copyto", "--s3-upload-cutoff=5M", "--s3-chunk-size=5M", tmp_path / "large", f"tw:{bucket}/rclone-large")
    rclone("copyto", f"tw:{bucket}/rclone-large", f"tw:{bucket}/rclone-copy")
    rclone("copyto", f"tw:{bucket}/rclone-copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_rclone_versions(rclone, s3, fresh_bucket, tmp_path):
    s3.put_bucket_versioning(Bucket=fresh_bucket, VersioningConfiguration={"Status": "Enabled"})
    for body in ("first", "second, longer"):
        (tmp_path / "file.txt").write_text(body)
        rclone("copyto", tmp_path / "file.txt", f"tw:{fresh_bucket}/file.txt")
        time.sleep(1.1)  # the name of a version has its time, and S3 lists whole seconds
    rclone("deletefile", f"tw:{fresh_bucket}/file.txt")
    assert rclone("lsf", f"tw:{fresh_bucket}").stdout == ""
    # Old versions have their time in their names.
    names = rclone("lsf", "--s3-versions", f"tw:{fresh_bucket}").stdout.splitlines()
    assert len(names) == 2 and all(name.startswith("file-v") for name in names)
    bodies = {rclone("cat", "--s3-versions", f"tw:{fresh_bucket}/{name}").stdout for name in names}
    assert bodies == {"first", "second, longer"}
    rclone("backend", "cleanup-hidden", f"tw:{fresh_bucket}")
    page = s3.list_object_versions(Bucket=fresh_bucket)
    assert not page.get("Versions") and not page.get("DeleteMarkers")


def test_rclone_finds_the_limits_of_names(rclone, fresh_bucket):
    """Writes names with every control character, and reads them back."""
    found = rclone("test", "info", "--check-control", "--check-normalization", f"tw:{fresh_bucket}/info").stdout
    found = "".join(found.split())
    # A slash separates, and no key has a NUL. Names that differ in their normal form are different.
    assert r"stringNeedsEscaping=[]rune{'/','\x00'}" in found
    assert "canWriteUnnormalized=truecanReadUnnormalized=truecanReadRenormalized=false" in found


def test_rclone_checks_hashes_and_times(rclone, fresh_bucket, tree):
    rclone("sync", "--checksum", tree, f"tw:{fresh_bucket}/tree")
    assert "0 differences found" in rclone("check", "--download", tree, f"tw:{fresh_bucket}/tree").stderr
    changed = pathlib.Path(tree) / "plain.txt"
    changed.write_bytes(b"other\n")
    assert rclone("check", tree, f"tw:{fresh_bucket}/tree", check=False).returncode == 1
    rclone("sync", tree, f"tw:{fresh_bucket}/tree", "--server-side-across-configs")
    rclone("move", f"tw:{fresh_bucket}/tree", f"tw:{fresh_bucket}/moved")
    assert "0 differences found" in rclone("check", tree, f"tw:{fresh_bucket}/moved").stderr
