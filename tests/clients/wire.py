"""S3 on a plain socket: an independent SigV4 signer and an HTTP/1.1 client with access to every byte.

boto3 does not send the requests of a hostile or broken client, and hides details of responses; this module does neither.
Paths and query strings must already be percent-encoded, and are signed and sent unchanged.
"""

import datetime
import hashlib
import hmac
import re
import select
import socket
import ssl
import threading
import urllib.parse
import xml.etree.ElementTree as ElementTree

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMING = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
STREAMING_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def quote(text, safe="/"):
    """Percent-encodes as SigV4 requires: everything except unreserved characters (and `safe`)."""
    return urllib.parse.quote(text, safe=safe + "-._~")


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Signer:
    """SigV4 for one key pair. The caller can falsify the parts of the credential scope."""

    def __init__(self, access_key, secret_key, region="us-east-1", service="s3"):
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = region
        self.service = service

    def scope(self, when):
        return f"{when:%Y%m%d}/{self.region}/{self.service}/aws4_request"

    def key(self, when):
        key = ("AWS4" + self.secret_key).encode()
        for part in self.scope(when).split("/"):
            key = _hmac(key, part)
        return key

    def signature(self, method, path, query, headers, signed, payload_hash, when):
        """Hex signature of a request; `signed` lists the lower-case header names to cover."""
        by_name = {}
        for name, value in headers:
            by_name.setdefault(name.lower(), []).append(re.sub(" +", " ", value.strip()))
        canonical = "\n".join(
            [method, path, canonical_query(query)]
            + [f"{name}:{','.join(by_name.get(name, ['']))}" for name in signed]
            + ["", ";".join(signed), payload_hash]
        )
        to_sign = "\n".join(
            ["AWS4-HMAC-SHA256", f"{when:%Y%m%dT%H%M%SZ}", self.scope(when), hashlib.sha256(canonical.encode()).hexdigest()]
        )
        return _hmac(self.key(when), to_sign).hex()

    def sign(self, method, path, query, headers, payload_hash, when=None):
        """Adds the date, payload hash and Authorization headers; returns them with a `Seed`."""
        when = when or now()
        headers = list(headers) + [
            ("x-amz-date", f"{when:%Y%m%dT%H%M%SZ}"),
            ("x-amz-content-sha256", payload_hash),
        ]
        signed = sorted({name.lower() for name, _ in headers})
        signature = self.signature(method, path, query, headers, signed, payload_hash, when)
        credential = f"{self.access_key}/{self.scope(when)}"
        headers.append(
            (
                "Authorization",
                f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={';'.join(signed)}, Signature={signature}",
            )
        )
        return headers, Seed(self, when, signature)

    def presign(self, method, path, query="", expires=300, when=None, host="", headers=(), **replace):
        """The query string of a presigned URL. `replace` overrides its parameters; None drops one."""
        when = when or now()
        headers = [("host", host), *headers]
        signed = sorted({name.lower() for name, _ in headers})
        parameters = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.access_key}/{self.scope(when)}",
            "X-Amz-Date": f"{when:%Y%m%dT%H%M%SZ}",
            "X-Amz-Expires": str(expires),
            "X-Amz-SignedHeaders": ";".join(signed),
        }
        for name, value in replace.items():
            name = name.replace("_", "-")
            if value is None:
                del parameters[name]
            else:
                parameters[name] = value
        text = "&".join(f"{quote(name, '')}={quote(value, '')}" for name, value in parameters.items())
        query = f"{query}&{text}" if query else text
        signature = self.signature(method, path, query, headers, signed, UNSIGNED, when)
        return f"{query}&X-Amz-Signature={signature}"


def canonical_query(query):
    """Sorts a raw query string and adds `=` to names without a value, as the canonical request requires."""
    pairs = [pair if "=" in pair else pair + "=" for pair in query.split("&") if pair]
    return "&".join(sorted(pairs, key=lambda pair: pair.split("=", 1)))


class Seed:
    """The state for signing the chunks of a streamed body: each signature covers the previous one."""

    def __init__(self, signer, when, signature):
        self.key = signer.key(when)
        self.prefix = f"{when:%Y%m%dT%H%M%SZ}\n{signer.scope(when)}\n"
        self.previous = signature

    def chunk(self, data):
        """Signs and frames one chunk; the empty chunk is framed without its closing line."""
        to_sign = f"AWS4-HMAC-SHA256-PAYLOAD\n{self.prefix}{self.previous}\n{EMPTY_SHA256}\n{hashlib.sha256(data).hexdigest()}"
        self.previous = _hmac(self.key, to_sign).hex()
        head = f"{len(data):x};chunk-signature={self.previous}\r\n".encode()
        return head + data + b"\r\n" if data else head

    def trailer(self, name, value):
        """Frames one trailing header and the signature of the trailer."""
        line = hashlib.sha256(f"{name}:{value}\n".encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256-TRAILER\n{self.prefix}{self.previous}\n{line}"
        self.previous = _hmac(self.key, to_sign).hex()
        return f"{name}:{value}\r\nx-amz-trailer-signature:{self.previous}\r\n".encode()

    def frames(self, data, size=8192, trailer=None):
        """The whole body as a list of frames; the last one includes the trailer and the end."""
        frames = [self.chunk(data[start : start + size]) for start in range(0, len(data), size)]
        last = self.chunk(b"") + (self.trailer(*trailer) if trailer else b"") + b"\r\n"
        return [*frames, last]


def unsigned_frames(data, size=8192, trailer=None):
    """An aws-chunked body without chunk signatures."""
    frames = []
    for start in range(0, len(data), size):
        chunk = data[start : start + size]
        frames.append(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    line = f"{trailer[0]}:{trailer[1]}\r\n".encode() if trailer else b""
    return [*frames, b"0\r\n" + line + b"\r\n"]


class Response:
    def __init__(self, status, headers, body, version="HTTP/1.1"):
        self.version = version
        self.status = status
        self.headers = headers
        self.body = body

    def header(self, name, default=None):
        for key, value in self.headers:
            if key.lower() == name.lower():
                return value
        return default

    @property
    def closes(self):
        """True if the server closes the connection after this response."""
        return self.version == "HTTP/1.0" or (self.header("connection") or "").lower() == "close"

    def xml(self):
        """The body as an element tree without its namespace."""
        return parse_xml(self.body)

    @property
    def code(self):
        """The S3 error code in the body, or None."""
        try:
            return self.xml().findtext("Code")
        except ElementTree.ParseError:
            return None

    def __repr__(self):
        code = f" {self.code}: {self.xml().findtext('Message')}" if self.code else ""
        return f"<{self.status}{code} {dict(self.headers)} {self.body[:600]!r}>"


def parse_xml(data):
    return ElementTree.fromstring(re.sub(rb'\sxmlns="[^"]*"', b"", data, count=1))


class Disconnected(Exception):
    """The server closed the connection before a complete response arrived."""


class Connection:
    """One persistent connection, with operations for misbehaving clients."""

    def __init__(self, endpoint, timeout=20):
        url = urllib.parse.urlsplit(endpoint)
        self.host = url.netloc
        port = url.port or (443 if url.scheme == "https" else 80)
        self.socket = socket.create_connection((url.hostname, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if url.scheme == "https":
            context = ssl.create_default_context()
            self.socket = context.wrap_socket(self.socket, server_hostname=url.hostname)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def send_all_it_takes(self, data):
        """Sends until done or until the server stops reading, which it may do after an error response."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def finish_sending(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _fill(self):
        try:
            data = self.socket.recv(262144)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Disconnected(f"after {self.buffer[:200]!r}")
        self.buffer += data

    def _until(self, mark):
        while mark not in self.buffer:
            self._fill()
        text, _, self.buffer = self.buffer.partition(mark)
        return text

    def exactly(self, size):
        body = self.up_to(size)
        if len(body) < size:
            raise Disconnected(f"{len(body)} of {size} bytes of a body")
        return body

    def up_to(self, size):
        """At most `size` bytes: fewer if the server closes the connection first."""
        pieces = [self.buffer]
        have = len(self.buffer)
        self.buffer = b""
        while have < size:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                break
            pieces.append(data)
            have += len(data)
        whole = b"".join(pieces)
        self.buffer = whole[size:]
        return whole[:size]

    def read_head(self):
        """Status and headers of the next response, including 100 Continue."""
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status = lines[0].split(" ", 2)[:2]
        headers = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        return Response(int(status), headers, b"", version)

    def read(self, method="GET"):
        """The next final response."""
        response = self.read_head()
        while response.status == 100:
            response = self.read_head()
        if method == "HEAD" or response.status in (204, 304):
            return response
        if "chunked" in (response.header("transfer-encoding") or "").lower():
            pieces = []
            while size := int(self._until(b"\r\n").split(b";")[0], 16):
                pieces.append(self.exactly(size))
                self._until(b"\r\n")
            while self._until(b"\r\n"):
                pass
            response.body = b"".join(pieces)
        elif (length := response.header("content-length")) is not None:
            response.body = self.exactly(int(length))
        else:
            try:
                while True:
                    self._fill()
            except Disconnected:
                response.body, self.buffer = self.buffer, b""
        return response

    def ended(self):
        """True if an idle connection is unusable: closed by the server, or with unexpected bytes."""
        return bool(self.buffer or select.select([self.socket], [], [], 0)[0])

    def silent(self, seconds=0.2):
        """True if no stray bytes follow a response. A closed connection counts as silent."""
        if self.buffer:
            return False
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except (TimeoutError, ConnectionResetError):
            return True
        finally:
            self.socket.settimeout(20)


def head_bytes(method, target, headers):
    lines = [f"{method} {target} HTTP/1.1"] + [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Wire:
    """A client of one endpoint with one key pair (or none: anonymous)."""

    def __init__(self, endpoint, access_key=None, secret_key=None, region="us-east-1"):
        self.endpoint = endpoint
        self.host = urllib.parse.urlsplit(endpoint).netloc
        self.signer = Signer(access_key, secret_key, region) if access_key else None
        self.local = threading.local()

    def connect(self, timeout=20):
        return Connection(self.endpoint, timeout)

    def prepare(self, method, path, query="", headers=(), payload_hash=None, body=b"", when=None, length=True, unsigned=(), drop=(), signer=None):
        """The bytes of a request head, and the seed for signing chunks.

        `headers` are signed; `unsigned` are added and `drop` are removed after signing. `length` is a Content-Length that
        differs from the body's, or False for none.
        """
        signer = signer or self.signer
        headers = list(headers.items() if isinstance(headers, dict) else headers)
        if not any(name == "Host" for name, _ in headers):
            headers.insert(0, ("Host", self.host))
        seed = None
        if signer:
            payload_hash = payload_hash or hashlib.sha256(body).hexdigest()
            headers, seed = signer.sign(method, path, query, headers, payload_hash, when)
        headers += unsigned.items() if isinstance(unsigned, dict) else unsigned
        headers = [(name, value) for name, value in headers if name.lower() not in drop]
        if length is True:
            if body or method in ("PUT", "POST"):
                headers.append(("Content-Length", str(len(body))))
        elif length is not False:
            headers.append(("Content-Length", str(length)))
        return head_bytes(method, f"{path}?{query}" if query else path, headers), seed

    def request(self, method, path, query="", headers=(), body=b"", connection=None, **options):
        """Sends one request and returns its response, on a new connection unless one is given."""
        head, _ = self.prepare(method, path, query, headers, body=body, **options)
        if connection:
            connection.send(head + body)
            return connection.read(method)
        with self.connect() as connection:
            connection.send_all_it_takes(head + body)
            return connection.read(method)

    def kept(self, method, path, query="", **options):
        """Like `request`, but on this thread's persistent connection, for tests with thousands of requests."""
        connection = getattr(self.local, "connection", None)
        self.local.connection = None
        if connection and connection.ended():
            connection.close()
            connection = None
        connection = connection or self.connect()
        response = self.request(method, path, query, connection=connection, **options)
        if response.closes:
            connection.close()
        else:
            self.local.connection = connection
        return response

    def stream(self, path, make_body, payload_hash, decoded_length, headers=(), length=True, **options):
        """PUTs an aws-chunked body, built by `make_body(seed)` after the head is signed.

        Content-Length is not a signed header, because the framed length is known only after the chunks are signed.
        """
        headers = [("Content-Encoding", "aws-chunked"), *(headers.items() if isinstance(headers, dict) else headers)]
        if decoded_length is not None:
            headers.append(("x-amz-decoded-content-length", str(decoded_length)))
        head, seed = self.prepare("PUT", path, "", headers, payload_hash=payload_hash, length=False, **options)
        body = make_body(seed)
        if length is True:
            length = len(body)
        if length is not False:
            head = head[:-2] + f"Content-Length: {length}\r\n\r\n".encode()
        with self.connect() as connection:
            connection.send_all_it_takes(head + body)
            return connection.read("PUT")
