"""Downloads one object into a file with the minimal system calls: ranges over a few connections, each with one buffer that
receives and is written. It verifies nothing and retries nothing. The result is a lower bound for clients that read and
write; what a client costs in addition is its own work.
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
    """The headers of a GET (AWS Signature Version 4). The range is not signed, so that all requests share one signature."""
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = [timestamp[:8], os.environ["AWS_REGION"], "s3", "aws4_request"]
    headers = {"host": host, "x-amz-content-sha256": UNSIGNED, "x-amz-date": timestamp}
    names = ";".join(headers)
    request = "\n".join(["GET", path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, UNSIGNED])
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{os.environ['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in [*scope, "\n".join(["AWS4-HMAC-SHA256", timestamp, "/".join(scope), digest])]:
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{os.environ['AWS_ACCESS_KEY_ID']}/{'/'.join(scope)}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    return headers


def head(connection: socket) -> bytes:
    """Reads the head of a response. Returns the part of the body that was received with it."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(4096)
        if not more:
            raise OSError("the server closed the connection")
        received += more
    response, body = received.split(b"\r\n\r\n", 1)
    if b" 206 " not in response.split(b"\r\n", 1)[0]:
        raise OSError(f"unexpected response: {response!r}")
    return body


def write(file: int, data: bytes | memoryview, offset: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], offset + written)
    return written


def fetch(address: tuple[str, int], request: str, starts: Iterator[int], size: int, file: int) -> None:
    buffer = memoryview(bytearray(READ_BYTES))
    with create_connection(address) as connection:
        while (start := next(starts, None)) is not None:
            end = min(start + RANGE_BYTES, size)
            connection.sendall(f"{request}range: bytes={start}-{end - 1}\r\n\r\n".encode())
            position = start
            position += write(file, head(connection), position)
            while position < end:
                received = connection.recv_into(buffer[: end - position])
                if received == 0:
                    raise OSError("the server closed the connection")
                position += write(file, buffer[:received], position)


def main() -> int:
    host, bucket, key, size, path = sys.argv[1:]
    name, port = host.rsplit(":", 1)
    target = f"/{bucket}/{key}"
    headers = "".join(f"{name}: {value}\r\n" for name, value in signature(host, target).items())
    request = f"GET {target} HTTP/1.1\r\n{headers}"
    starts = iter(range(0, int(size), RANGE_BYTES))  # shared by all threads; each start is taken once
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
