"""s5cmd, mc and rclone, which are built on three different Go libraries for S3."""

import json
import os
import time

import pytest

import commands
from conftest import ENDPOINT, REGION
from expect import body_of, payload

MIB = 1 << 20
# Names that a client must encode, and that differ only in what decoding does to them.
ODD_NAMES = ("a b", "a+b", "a%20b", "a%2Bb", "ü/日本", "q?x=1&y#z", "(x)'!*~@,;=$")
CHECKSUMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")


@pytest.fixture
def s5cmd(keys, tmp_path):
    binary = commands.binary("s5cmd")
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": keys[0],
        "AWS_SECRET_ACCESS_KEY": keys[1],
        "AWS_REGION": REGION,
        "S3_ENDPOINT_URL": ENDPOINT,
    }
    return lambda *arguments, **options: commands.run(
        [binary, "--retry-count=0", *map(str, arguments)], environment, cwd=tmp_path, **options
    )


@pytest.fixture
def mc(keys, tmp_path):
    """Runs `mc ... --json` with the server as `tw`; returns what it prints, decoded."""
    binary = commands.binary("mc")
    if "MinIO" not in commands.run([binary, "--version"], os.environ, check=False).stdout:
        pytest.skip("mc is not the MinIO client")
    scheme, address = ENDPOINT.split("://")
    environment = {**os.environ, "MC_HOST_tw": f"{scheme}://{keys[0]}:{keys[1]}@{address}", "MC_CONFIG_DIR": str(tmp_path / "mc")}
    options = ["--json", "--disable-pager"]

    def mc(*arguments, **more):
        done = commands.run([binary, *map(str, arguments), *options], environment, **more)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return mc


def put_odd_names(s3, bucket):
    for name in ODD_NAMES:
        s3.put_object(Bucket=bucket, Key=f"odd/{name}", Body=name.encode())


def write_old_file(path, data):
    """S3 reports times in whole seconds: a file from the second of its upload would look newer than its copy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - 3600,) * 2)


def keys_of(s3, bucket, prefix=""):
    return [o["Key"] for o in s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])]


def test_s5cmd_copies_odd_names(s5cmd, s3, fresh_bucket):
    put_odd_names(s3, fresh_bucket)
    s5cmd("cp", f"s3://{fresh_bucket}/odd/*", f"s3://{fresh_bucket}/copy/")
    assert keys_of(s3, fresh_bucket, "copy/") == sorted((f"copy/{name}" for name in ODD_NAMES), key=str.encode)
    for name in ODD_NAMES:
        assert body_of(s3, fresh_bucket, f"copy/{name}") == name.encode()
    # One at a time: the copy of one must not be that of another.
    for name in ("a b", "a+b"):
        s5cmd("cp", "--raw", f"s3://{fresh_bucket}/odd/{name}", f"s3://{fresh_bucket}/one")
        assert body_of(s3, fresh_bucket, "one") == name.encode()
    s5cmd("mv", "--raw", f"s3://{fresh_bucket}/odd/a+b", f"s3://{fresh_bucket}/moved")
    assert body_of(s3, fresh_bucket, "moved") == b"a+b"
    assert "odd/a+b" not in keys_of(s3, fresh_bucket) and "odd/a b" in keys_of(s3, fresh_bucket)


def test_s5cmd_syncs_and_removes(s5cmd, s3, fresh_bucket, tmp_path):
    root = tmp_path / "tree"
    for n, name in enumerate(["one", "sp ace/p+lus", "deep/er/ü", "empty"]):
        write_old_file(root / name, payload(1000 * n, n))
    write_old_file(root / "large", payload(MIB) * 12)
    s5cmd("sync", "--part-size=5", f"{root}/", f"s3://{fresh_bucket}/t/")
    assert s5cmd("sync", f"{root}/", f"s3://{fresh_bucket}/t/").stdout == "", "a second sync finds nothing to do"
    s5cmd("sync", f"s3://{fresh_bucket}/t/*", f"{tmp_path}/down/")
    for path in root.rglob("*"):
        if path.is_file():
            assert (tmp_path / "down" / path.relative_to(root)).read_bytes() == path.read_bytes()
    (root / "one").unlink()
    s5cmd("sync", "--delete", f"{root}/", f"s3://{fresh_bucket}/t/")
    assert "t/one" not in keys_of(s3, fresh_bucket) and len(keys_of(s3, fresh_bucket)) == 4
    s5cmd("rm", f"s3://{fresh_bucket}/t/*")
    assert keys_of(s3, fresh_bucket) == []


def test_s5cmd_buckets_and_streams(s5cmd, s3, temporary_names):
    name = temporary_names("s5cmd")
    s5cmd("mb", f"s3://{name}")
    s5cmd("pipe", f"s3://{name}/piped", input="from a pipe")
    assert s5cmd("cat", f"s3://{name}/piped").stdout == "from a pipe"
    assert "piped" in s5cmd("ls", f"s3://{name}").stdout
    assert s5cmd("head", f"s3://{name}/piped").returncode == 0
    assert "1 objects" in s5cmd("du", f"s3://{name}/*").stdout
    s5cmd("rm", "--all-versions", f"s3://{name}/*")
    s5cmd("rb", f"s3://{name}")


def test_s5cmd_versions(s5cmd, s3, fresh_bucket):
    s3.put_bucket_versioning(Bucket=fresh_bucket, VersioningConfiguration={"Status": "Enabled"})
    first = s3.put_object(Bucket=fresh_bucket, Key="k", Body=b"first")["VersionId"]
    s3.put_object(Bucket=fresh_bucket, Key="k", Body=b"second")
    assert s5cmd("cat", "--version-id", first, f"s3://{fresh_bucket}/k").stdout == "first"
    s5cmd("rm", f"s3://{fresh_bucket}/k")
    assert len(s5cmd("ls", "--all-versions", f"s3://{fresh_bucket}/k").stdout.splitlines()) == 3
    s5cmd("rm", "--all-versions", f"s3://{fresh_bucket}/k")
    page = s3.list_object_versions(Bucket=fresh_bucket)
    assert not page.get("Versions") and not page.get("DeleteMarkers")


@pytest.mark.parametrize("algorithm", CHECKSUMS)
def test_mc_copies_with_checksum(mc, s3, fresh_bucket, tmp_path, algorithm):
    """mc sends the checksum in a trailer, or in that of each part; for an empty file it sends none."""
    for name, data in (("empty", b""), ("small", b"123456789"), ("large", payload(MIB) * 20)):
        (tmp_path / name).write_bytes(data)
        mc("cp", "--checksum", algorithm, tmp_path / name, f"tw/{fresh_bucket}/{name}")
        assert body_of(s3, fresh_bucket, name) == data
        head = s3.head_object(Bucket=fresh_bucket, Key=name, ChecksumMode="ENABLED")
        assert name == "empty" or head[f"Checksum{algorithm}"], head


def test_mc_copies_with_md5(mc, s3, fresh_bucket, tmp_path):
    (tmp_path / "f").write_bytes(payload(70_000))
    mc("cp", "--md5", tmp_path / "f", f"tw/{fresh_bucket}/f")
    assert body_of(s3, fresh_bucket, "f") == payload(70_000)


def test_mc_mirrors_and_removes(mc, s3, fresh_bucket, tmp_path):
    root = tmp_path / "tree"
    for n, name in enumerate(["one", "sp ace/p+lus", "deep/er/ü", "empty", *(f"many/{n}" for n in range(30))]):
        write_old_file(root / name, payload(100 * n, n))
    for expected in (34, 0):  # a second mirror finds nothing to do
        done = mc("mirror", root, f"tw/{fresh_bucket}/t")
        assert len([each for each in done if each.get("source")]) == expected
    assert len(keys_of(s3, fresh_bucket)) == 34
    mc("mirror", f"tw/{fresh_bucket}/t", tmp_path / "down")
    for path in root.rglob("*"):
        if path.is_file():
            assert (tmp_path / "down" / path.relative_to(root)).read_bytes() == path.read_bytes()
    (root / "one").unlink()
    mc("mirror", "--remove", "--overwrite", root, f"tw/{fresh_bucket}/t")
    assert "t/one" not in keys_of(s3, fresh_bucket)
    mc("mirror", f"tw/{fresh_bucket}/t", f"tw/{fresh_bucket}/u")
    assert body_of(s3, fresh_bucket, "u/sp ace/p+lus") == payload(100, 1)
    mc("rm", "--recursive", "--force", f"tw/{fresh_bucket}/t")
    assert keys_of(s3, fresh_bucket, "t/") == []


def test_mc_copies_odd_names(mc, s3, fresh_bucket):
    put_odd_names(s3, fresh_bucket)
    for name in ODD_NAMES:
        mc("cp", f"tw/{fresh_bucket}/odd/{name}", f"tw/{fresh_bucket}/copy/{name}")
        assert body_of(s3, fresh_bucket, f"copy/{name}") == name.encode()


def test_mc_describes_and_shares(mc, s3, anonymous, fresh_bucket, tmp_path):
    (tmp_path / "f").write_bytes(b"shared")
    mc("cp", "--attr", "colour=blue", "--tags", "n=1&m=2", tmp_path / "f", f"tw/{fresh_bucket}/f")
    (stat,) = mc("stat", f"tw/{fresh_bucket}/f")
    assert stat["size"] == 6 and stat["metadata"]["X-Amz-Meta-Colour"] == "blue"
    (tags,) = mc("tag", "list", f"tw/{fresh_bucket}/f")
    assert tags["tagset"] == {"n": "1", "m": "2"}
    (shared,) = mc("share", "download", f"tw/{fresh_bucket}/f")
    path, _, query = shared["share"].removeprefix(ENDPOINT).partition("?")
    assert anonymous.request("GET", path, query).body == b"shared"
    (counted,) = mc("du", f"tw/{fresh_bucket}")
    assert (counted["size"], counted["objects"]) == (6, 1)


def test_mc_versions(mc, s3, fresh_bucket, tmp_path):
    mc("version", "enable", f"tw/{fresh_bucket}")
    (info,) = mc("version", "info", f"tw/{fresh_bucket}")
    assert info["versioning"]["status"] == "Enabled"
    for body in ("first", "second"):
        (tmp_path / "f").write_text(body)
        mc("cp", tmp_path / "f", f"tw/{fresh_bucket}/f")
    listed = mc("ls", "--versions", f"tw/{fresh_bucket}")
    assert [each["versionOrdinal"] for each in listed] == [2, 1]
    mc("cp", "--version-id", listed[1]["versionId"], f"tw/{fresh_bucket}/f", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "first"
    mc("rm", f"tw/{fresh_bucket}/f")
    assert keys_of(s3, fresh_bucket) == []
    assert mc("ls", "--versions", f"tw/{fresh_bucket}")[0]["isDeleteMarker"] is True
    # The last change is undone: first the removal, then the second upload.
    mc("undo", f"tw/{fresh_bucket}/f")
    assert body_of(s3, fresh_bucket, "f") == b"second"
    mc("undo", f"tw/{fresh_bucket}/f")
    assert body_of(s3, fresh_bucket, "f") == b"first"
    mc("version", "suspend", f"tw/{fresh_bucket}")
    assert s3.get_bucket_versioning(Bucket=fresh_bucket)["Status"] == "Suspended"
    mc("rm", "--versions", "--recursive", "--force", f"tw/{fresh_bucket}")
    page = s3.list_object_versions(Bucket=fresh_bucket)
    assert not page.get("Versions") and not page.get("DeleteMarkers")


def test_mc_unfinished_uploads(mc, s3, fresh_bucket):
    s3.create_multipart_upload(Bucket=fresh_bucket, Key="part/ial")
    listed = mc("ls", "--incomplete", "--recursive", f"tw/{fresh_bucket}")
    assert [each["key"] for each in listed] == ["part/ial"]
    mc("rm", "--incomplete", "--recursive", "--force", f"tw/{fresh_bucket}")
    assert not s3.list_multipart_uploads(Bucket=fresh_bucket).get("Uploads")


def test_mc_bucket_removed_with_contents(mc, s3, temporary_names):
    name = temporary_names("mc")
    mc("mb", f"tw/{name}")
    s3.put_object(Bucket=name, Key="a/b", Body=b"x")
    mc("rb", "--force", f"tw/{name}")
    assert name not in [b["Name"] for b in s3.list_buckets()["Buckets"]]
