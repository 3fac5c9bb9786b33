"""s3fs (fsspec) against the server: `python3 s3fs_cases.py CASE BUCKET`, with the TW_* variables of the suite."""

import os
import sys

import s3fs

MIB = 1 << 20


def filesystem(**options):
    return s3fs.S3FileSystem(
        endpoint_url=os.environ["TW_ENDPOINT"],
        key=os.environ["TW_ACCESS_KEY"],
        secret=os.environ["TW_SECRET_KEY"],
        client_kwargs={"region_name": os.environ.get("TW_REGION", "us-east-1")},
        config_kwargs={"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}},
        use_listings_cache=False,
        skip_instance_cache=True,
        **options,
    )


def raises(error, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def write(fs, path, data, mode="wb"):
    with fs.open(path, mode, block_size=5 * MIB) as file:
        file.write(data)


def exclusive_create(fs, bucket):
    write(fs, f"{bucket}/once", b"first", "xb")
    raises(FileExistsError, write, fs, f"{bucket}/once", b"second", "xb")
    raises(FileExistsError, fs.pipe_file, f"{bucket}/once", b"third", mode="create")
    assert fs.cat_file(f"{bucket}/once") == b"first"
    fs.rm(f"{bucket}/once")
    write(fs, f"{bucket}/once", b"fourth", "xb")
    assert fs.cat_file(f"{bucket}/once") == b"fourth"


def exclusive_create_of_a_large_file(fs, bucket):
    data = os.urandom(11 * MIB)
    write(fs, f"{bucket}/large", data, "xb")
    raises(FileExistsError, write, fs, f"{bucket}/large", bytes(11 * MIB), "xb")
    assert fs.cat_file(f"{bucket}/large") == data
    fs.clear_multipart_uploads(bucket)  # that of the rejected file: the client leaves it
    assert fs.list_multipart_uploads(bucket) == []


def buckets_created_and_removed(fs, bucket):
    name = f"{bucket}-made"
    fs.mkdir(name)
    assert name in fs.ls("")
    write(fs, f"{name}/a/b", b"x")
    raises(OSError, fs.rmdir, name)
    fs.rm(name, recursive=True)
    raises(FileNotFoundError, fs.rmdir, name)
    raises(FileNotFoundError, fs.ls, name)
    assert not fs.exists(name)


def trees_found_and_walked(fs, bucket):
    keys = ["t/a", "t/b/c", "t/b/d e", "t/b+c/ä", "t/z/1/2/3"]
    for key in keys:
        write(fs, f"{bucket}/{key}", key.encode())
    assert fs.find(f"{bucket}/t") == sorted(f"{bucket}/{key}" for key in keys)
    assert sorted(fs.ls(f"{bucket}/t", detail=False)) == sorted(f"{bucket}/t/{name}" for name in ("a", "b", "b+c", "z"))
    assert fs.glob(f"{bucket}/t/b/*") == [f"{bucket}/t/b/c", f"{bucket}/t/b/d e"]
    assert fs.isdir(f"{bucket}/t/b") and fs.isfile(f"{bucket}/t/a") and not fs.exists(f"{bucket}/t/q")
    assert fs.du(f"{bucket}/t") == sum(len(key.encode()) for key in keys)
    assert [files for _, _, files in fs.walk(f"{bucket}/t/z")] == [[], [], ["3"]]
    fs.rm(f"{bucket}/t", recursive=True)
    assert fs.find(f"{bucket}/t") == []


def odd_keys_copied(fs, bucket):
    for key in ("a b", "a+b", "a%20b", "a&b=c?d#e", "ü/日本", "~(x)'*!"):
        write(fs, f"{bucket}/odd/{key}", key.encode())
    for key in ("a b", "a+b", "a%20b", "a&b=c?d#e", "ü/日本", "~(x)'*!"):
        fs.cp_file(f"{bucket}/odd/{key}", f"{bucket}/copy/{key}")
        assert fs.cat_file(f"{bucket}/copy/{key}") == key.encode(), key
    fs.mv(f"{bucket}/odd/a b", f"{bucket}/moved")
    assert fs.cat_file(f"{bucket}/moved") == b"a b" and not fs.exists(f"{bucket}/odd/a b")


def large_files_in_parts(fs, bucket):
    data = os.urandom(12 * MIB + 5)
    write(fs, f"{bucket}/parts", data)
    with fs.open(f"{bucket}/parts", block_size=MIB) as file:
        file.seek(5 * MIB - 3)
        assert file.read(10) == data[5 * MIB - 3 : 5 * MIB + 7]
    fs.cp_file(f"{bucket}/parts", f"{bucket}/parts-copy")
    assert fs.cat_file(f"{bucket}/parts-copy") == data
    write(fs, f"{bucket}/parts", b"tail", "ab")
    assert fs.tail(f"{bucket}/parts", 8) == data[-4:] + b"tail"


def metadata_tags_and_urls(fs, bucket):
    path = f"{bucket}/described"
    write(fs, path, b"x")
    fs.setxattr(path, colour="blue")
    assert fs.getxattr(path, "colour") == "blue"
    fs.put_tags(path, {"n": "1"})
    assert fs.get_tags(path) == {"n": "1"}
    assert fs.checksum(path) and fs.info(path)["size"] == 1
    assert fs.sign(path, expiration=60).startswith(os.environ["TW_ENDPOINT"])
    fs.touch(f"{bucket}/touched")
    assert fs.size(f"{bucket}/touched") == 0
    raises(FileNotFoundError, fs.cat_file, f"{bucket}/not there")
    raises(FileNotFoundError, write, fs, f"{bucket}-not-there/key", b"x")


def versions(_, bucket):
    fs = filesystem(version_aware=True)
    fs.make_bucket_versioned(bucket, True)
    assert fs.is_bucket_versioned(bucket)
    path = f"{bucket}/versioned"
    write(fs, path, b"first")
    write(fs, path, b"second")
    found = [version["VersionId"] for version in fs.object_version_info(path)]
    assert len(found) == 2
    with fs.open(path, version_id=found[1]) as file:
        assert file.read() == b"first"
    fs.rm(path)
    assert not fs.exists(path)
    with fs.open(path, version_id=found[0]) as file:
        assert file.read() == b"second"


if __name__ == "__main__":
    globals()[sys.argv[1]](filesystem(), sys.argv[2])
