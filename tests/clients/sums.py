"""The ten S3 object checksums, computed independently of the server's code.

CRC-32, MD5 and the SHAs are from the standard library. CRC-32C and CRC-64/NVME are computed here with tables at about
10 MB/s, so their test bodies are small. The XXH family uses the reference implementation (`pip install xxhash`); without
it, the tests of these three do not run.
"""

import base64
import functools
import hashlib
import zlib

try:
    import xxhash
except ImportError:
    xxhash = None

XXH = ("XXHASH64", "XXHASH3", "XXHASH128") if xxhash else ()
CRCS = ("CRC32", "CRC32C", "CRC64NVME")
# The checksums of parts cannot be combined into that of the whole object.
HASHES = ("SHA1", "SHA256", "SHA512", "MD5", *XXH)
ALGORITHMS = CRCS + HASHES


def _reflected_table(polynomial):
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ polynomial if value & 1 else value >> 1
        table.append(value)
    return table


_CRC32C = _reflected_table(0x82F63B78)
_CRC64NVME = _reflected_table(0x9A6C9329AC4BC9B5)


_TABLES = {"CRC32C": (_CRC32C, 0xFFFFFFFF, 4), "CRC64NVME": (_CRC64NVME, 0xFFFFFFFFFFFFFFFF, 8)}


@functools.lru_cache(maxsize=64)
def _crc_after(algorithm, crc, piece):
    """The CRC register after `piece`. Cached, because large pieces are used several times."""
    table = _TABLES[algorithm][0]
    for byte in piece:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def digest(algorithm, *pieces):
    """The raw checksum of the joined pieces, in S3's encoding: big-endian for the CRCs."""
    if algorithm == "CRC32":
        return zlib.crc32(b"".join(pieces)).to_bytes(4, "big")
    if algorithm in _TABLES:
        _, mask, size = _TABLES[algorithm]
        crc = mask
        for piece in pieces:
            crc = _crc_after(algorithm, crc, piece)
        return (crc ^ mask).to_bytes(size, "big")
    if algorithm in XXH:
        name = {"XXHASH64": "xxh64", "XXHASH3": "xxh3_64", "XXHASH128": "xxh3_128"}[algorithm]
        return getattr(xxhash, name)(b"".join(pieces)).digest()
    return hashlib.new(algorithm.lower(), b"".join(pieces)).digest()


def checksum(algorithm, *pieces):
    """The checksum of the joined pieces in the format of a header: Base64 of the raw value."""
    return base64.b64encode(digest(algorithm, *pieces)).decode()


def composite(algorithm, parts):
    """The checksum of a COMPOSITE multipart object: the checksum of its parts' checksums, with the part count."""
    joined = b"".join(digest(algorithm, part) for part in parts)
    return f"{checksum(algorithm, joined)}-{len(parts)}"


def md5_hex(data):
    return hashlib.md5(data).hexdigest()


def content_md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def multipart_etag(parts):
    """The quoted ETag of a multipart object: MD5 of the parts' MD5s, a dash, and their count."""
    joined = b"".join(hashlib.md5(part).digest() for part in parts)
    return f'"{hashlib.md5(joined).hexdigest()}-{len(parts)}"'


assert checksum("CRC32C", b"123456789") == base64.b64encode(bytes.fromhex("e3069283")).decode()
assert checksum("CRC64NVME", b"123456789") == base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode()
