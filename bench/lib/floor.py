"""Fetches one object into a file with the system calls that this takes and nothing else: ranges over a few connections,
each of which receives into one buffer and writes from it. No byte is looked at, and nothing is tried again. What a
client costs beyond it, its own work costs; what it costs itself, no client that reads and writes can save.
Usage: floor.py HOST:PORT BUCKET KEY SIZE FILE
"""

import hashlib
import hmac
import os
import sys
import threading
import time
from socket import create_connection, socket
from typing import Iterator

CONNECTIONS = 8
RANGE_BYTES = 8 << 20
READ_BYTES = 256 << 10
UNSIGNED = "UNSIGNED-PAYLOAD"


def signature(host: str, path: str) -> dict[str, str]:
    """The headers of a GET (AWS Signature Version 4). They do not cover the range, so one signature does for all."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = [moment[:8], os.environ["AWS_REGION"], "s3", "aws4_request"]
    headers = {"host": host, "x-amz-content-sha256": UNSIGNED, "x-amz-date": moment}
    names = ";".join(headers)
    request = "\n".join(["GET", path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, UNSIGNED])
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{os.environ['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in [*scope, "\n".join(["AWS4-HMAC-SHA256", moment, "/".join(scope), digest])]:
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{os.environ['AWS_ACCESS_KEY_ID']}/{'/'.join(scope)}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    return headers


def head(connection: socket) -> bytes:
    """An answer's head, and what came of its body with it."""
    came = b""
    while b"\r\n\r\n" not in came:
        more = connection.recv(4096)
        if not more:
            raise OSError("the server closed the connection")
        came += more
    answer, body = came.split(b"\r\n\r\n", 1)
    if b" 206 " not in answer.split(b"\r\n", 1)[0]:
        raise OSError(f"the server said {answer!r}")
    return body


def write(file: int, piece: bytes | memoryview, offset: int) -> int:
    written = 0
    while written < len(piece):
        written += os.pwrite(file, piece[written:], offset + written)
    return written


def fetch(address: tuple[str, int], request: str, starts: Iterator[int], size: int, file: int) -> None:
    buffer = memoryview(bytearray(READ_BYTES))
    with create_connection(address) as connection:
        while (start := next(starts, None)) is not None:
            end = min(start + RANGE_BYTES, size)
            connection.sendall(f"{request}range: bytes={start}-{end - 1}\r\n\r\n".encode())
            at = start
            at += write(file, head(connection), at)
            while at < end:
                received = connection.recv_into(buffer[: end - at])
                if received == 0:
                    raise OSError("the server closed the connection")
                at += write(file, buffer[:received], at)


def main() -> int:
    host, bucket, key, size, path = sys.argv[1:]
    name, port = host.rsplit(":", 1)
    target = f"/{bucket}/{key}"
    headers = "".join(f"{name}: {value}\r\n" for name, value in signature(host, target).items())
    request = f"GET {target} HTTP/1.1\r\n{headers}"
    starts = iter(range(0, int(size), RANGE_BYTES))  # each is taken by one thread
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(file, 0, int(size))
    failures: list[OSError] = []

    def work() -> None:
        try:
            fetch((name, int(port)), request, starts, int(size), file)
        except OSError as reason:
            failures.append(reason)

    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reason in failures:
        print(reason, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
