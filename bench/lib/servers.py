"""The table of servers: command, readiness check, and durability of an acknowledged PUT.

A new peer needs only a new entry here. The credentials are not secret: every server listens on 127.0.0.1.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

ACCESS_KEY = "tradewindbench"
SECRET_KEY = "tradewindbenchsecret"

BENCH = Path(__file__).resolve().parent.parent
REPOSITORY = BENCH.parent
CACHE = BENCH / ".cache"


@dataclass
class Launch:
    """The parameters of one start of a server."""

    data: Path  # data directory, retained between starts
    run: Path  # scratch for configuration and logs
    port: int
    side_port: int  # admin listener or console
    config: Path | None = None


@dataclass
class Server:
    name: str
    binary: Path
    arguments: Callable[[Launch], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    ready_path: str = "/"
    ready_on_side_port: bool = False
    durability: str = ""
    version: str = ""
    is_static: bool = False  # serves files, unsigned, GET only
    etag: str = "md5"
    config: Path | None = None

    def data_name(self) -> str:
        return "static" if self.is_static else self.name.replace(":", "-")


def _tradewind(launch: Launch) -> list[str]:
    arguments = ["serve", "--data", str(launch.data), "--listen", f"127.0.0.1:{launch.port}"]
    arguments += ["--admin", f"127.0.0.1:{launch.side_port}"]
    if launch.config:
        arguments += ["--config", str(launch.config)]
    return arguments


def _minio(launch: Launch) -> list[str]:
    addresses = ["--address", f"127.0.0.1:{launch.port}", "--console-address", f"127.0.0.1:{launch.side_port}"]
    return ["server", "--quiet", *addresses, str(launch.data)]


def _versitygw(launch: Launch) -> list[str]:
    # Without --keep-alive every request needs a new connection, which is not what is compared here.
    listen = ["--port", f"127.0.0.1:{launch.port}", "--quiet", "--keep-alive", "--health", "/health"]
    return [*listen, "posix", str(launch.data)]


def _nginx(sendfile: str) -> Callable[[Launch], list[str]]:
    def arguments(launch: Launch) -> list[str]:
        run = launch.run
        temporary = "\n".join(
            f"  {kind}_temp_path {run}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        (run / "nginx.conf").write_text(f"""daemon off;
{user}
worker_processes {os.cpu_count()};
pid {run}/nginx.pid;
error_log {run}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  default_type application/octet-stream;
  sendfile {sendfile};
  tcp_nodelay on;
  keepalive_timeout 600;
  keepalive_requests 1000000000;
{temporary}
  server {{
    listen 127.0.0.1:{launch.port};
    root {launch.data};
    location = /ready {{ return 200; }}
  }}
}}
""")
        return ["-p", str(run), "-e", str(run / "error.log"), "-c", str(run / "nginx.conf")]

    return arguments


def version_of(stamp: Path) -> str:
    """The version that bench/peers installed."""
    return stamp.read_text().strip() if stamp.exists() else ""


def table(tradewind: Path, variants: dict[str, Path]) -> list[Server]:
    """All known servers, installed or not, in the order of the report."""
    credentials = {"TRADEWIND_ACCESS_KEY": ACCESS_KEY, "TRADEWIND_SECRET_KEY": SECRET_KEY}
    durable = "body and metadata are on disk (fdatasync, shared by concurrent writers) before the response"

    def ours(name: str, **settings) -> Server:
        return Server(
            name,
            tradewind,
            _tradewind,
            environment=credentials,
            ready_path="/health/ready",
            ready_on_side_port=True,
            durability=durable,
            **settings,
        )

    nginx = Path(shutil.which("nginx") or "/usr/sbin/nginx")
    return [
        ours("tradewind"),
        *(ours(f"tradewind:{name}", etag="any", config=path) for name, path in variants.items()),
        Server(
            "minio",
            CACHE / "bin" / "minio",
            _minio,
            environment={
                "MINIO_ROOT_USER": ACCESS_KEY,
                "MINIO_ROOT_PASSWORD": SECRET_KEY,
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
            },
            ready_path="/minio/health/cluster",
            durability="fdatasync of the object's file, but not of the directory after the rename",
            version=version_of(CACHE / "bin" / "minio.version"),
        ),
        Server(
            "versitygw",
            CACHE / "bin" / "versitygw",
            _versitygw,
            environment={"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            ready_path="/health",
            durability="none: no fsync of file or directory",
            version=version_of(CACHE / "bin" / "versitygw.version"),
        ),
        Server("nginx", nginx, _nginx("on"), ready_path="/ready", durability="(no PUT)", is_static=True),
        Server("nginx-nosendfile", nginx, _nginx("off"), ready_path="/ready", durability="(no PUT)", is_static=True),
    ]
