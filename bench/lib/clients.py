"""The table of transfer clients: commands and settings to upload and download a tree or one object.

A new client needs only a new entry here. Every client has its own home directory and an environment without variables of
the user: an exported setting would change the measurement (AWS_CA_BUNDLE, for example, keeps rclone from starting).
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from lib.process import killed_with_parent, run_with_timeout
from lib.report import output_of
from lib.servers import ACCESS_KEY, CACHE, SECRET_KEY, version_of
from lib.targets import FLOOR

LAUNCH = Path(__file__).with_name("launch.py")
CRT_COPY = Path(__file__).with_name("crt_copy.py")
FLOOR_COPY = Path(__file__).with_name("floor.py")
REGION = "us-east-1"


class ClientFailed(Exception):
    """A client failed or timed out."""


@dataclass
class Copy:
    """One copy between a local path and a bucket: of one object if `key` is set, otherwise of a tree."""

    upload: bool
    server: str
    endpoint: str
    bucket: str
    local: Path
    key: str | None = None

    def is_tree(self) -> bool:
        return self.key is None

    def remote(self, prefix: str) -> str:
        return f"{prefix}{self.bucket}/{self.key or ''}"

    def path(self) -> str:
        return f"{self.local}/" if self.is_tree() else str(self.local)

    def endpoints(self, local: str, remote: str) -> list[str]:
        return [local, remote] if self.upload else [remote, local]


@dataclass
class Cost:
    """The elapsed time, CPU time (including child processes) and peak memory of one run of a client."""

    seconds: float
    user_seconds: float
    system_seconds: float
    peak_resident_bytes: int

    @property
    def cpu_seconds(self) -> float:
        return self.user_seconds + self.system_seconds


@dataclass
class Client:
    name: str
    binary: Path
    arguments: Callable[[Copy], list[str]]
    environment: Callable[[Copy], dict[str, str]]
    files: dict[str, str] = field(default_factory=dict)  # in its home directory
    version_stamp: str = ""

    def version(self) -> str:
        return self.version_stamp or output_of([str(self.binary), "--version"]).split("\n")[0]

    def run(self, copy: Copy, home: Path, limit: float) -> Cost:
        """Runs the copy. Raises `ClientFailed` on an error status or after `limit` seconds."""
        shutil.rmtree(home, ignore_errors=True)
        for name, text in {".keep": "", **self.files}.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C.UTF-8"}
        report = home / "cost.json"
        command = killed_with_parent([str(self.binary), *self.arguments(copy)])
        finished = run_with_timeout(
            [sys.executable, "-I", "-S", str(LAUNCH), str(report), *command],
            limit,
            environment | self.environment(copy),
            home,
        )
        if finished.status != 0:
            message = (finished.errors.strip() or finished.output.strip())[-400:] or "no output"
            raise ClientFailed(f"{self.name} ended with status {finished.status}: {' '.join(message.split())}")
        return Cost(**json.loads(report.read_text()))


def aws_environment(endpoint: str) -> dict[str, str]:
    """The environment variables of clients that use the conventions of the AWS CLI."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
    }


def _keys(copy: Copy) -> dict[str, str]:
    return aws_environment(copy.endpoint)


def _tradewind(copy: Copy) -> list[str]:
    return ["cp", *(["-r"] if copy.is_tree() else []), *copy.endpoints(copy.path(), copy.remote("s3://"))]


def _rclone(*flags: str) -> Callable[[Copy], list[str]]:
    def arguments(copy: Copy) -> list[str]:
        verb = "copy" if copy.is_tree() else "copyto"
        return [verb, *flags, *copy.endpoints(copy.path(), copy.remote("bench:"))]

    return arguments


def _rclone_remote(copy: Copy) -> dict[str, str]:
    settings = {
        "type": "s3",
        "provider": "Minio" if copy.server == "minio" else "Other",
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "region": REGION,
        "endpoint": f"http://{copy.endpoint}",
    }
    return {f"RCLONE_CONFIG_BENCH_{name.upper()}": value for name, value in settings.items()}


def _mc(copy: Copy) -> list[str]:
    flags = ["--quiet", *(["--recursive"] if copy.is_tree() else [])]
    return ["cp", *flags, *copy.endpoints(copy.path(), copy.remote("bench/"))]


def _mc_host(copy: Copy) -> dict[str, str]:
    return {"MC_HOST_bench": f"http://{ACCESS_KEY}:{SECRET_KEY}@{copy.endpoint}"}


def _aws(copy: Copy) -> list[str]:
    flags = ["--only-show-errors", *(["--recursive"] if copy.is_tree() else [])]
    return ["s3", "cp", *flags, *copy.endpoints(copy.path(), copy.remote("s3://"))]


def _crt(copy: Copy) -> list[str]:
    direction = "up" if copy.upload else "down"
    return [str(CRT_COPY), direction, str(copy.local), copy.bucket, *([copy.key] if copy.key else [])]


def floor(size: int) -> Client:
    """A minimal download of one object of this size, measured like a client: the cost of the system calls alone."""

    def arguments(copy: Copy) -> list[str]:
        return ["-I", "-S", str(FLOOR_COPY), copy.endpoint, copy.bucket, str(copy.key), str(size), str(copy.local)]

    return Client(FLOOR, Path(sys.executable), arguments, _keys)


def _s5cmd(copy: Copy) -> list[str]:
    remote = copy.remote("s3://") + ("*" if copy.is_tree() and not copy.upload else "")
    return ["--endpoint-url", f"http://{copy.endpoint}", "--log", "error", "cp", *copy.endpoints(copy.path(), remote)]


RCLONE_TUNED = ("--transfers", "32", "--checkers", "32", "--s3-no-check-bucket", "--no-traverse")


def _aws_2() -> Path:
    """The AWS CLI on the PATH if it is version 2; version 1 ignores `preferred_transfer_client`."""
    found = Path(shutil.which("aws") or "aws")
    return found if output_of([str(found), "--version"]).startswith("aws-cli/2") else Path("aws version 2")


def clients(tradewind: Path) -> list[Client]:
    """All known clients, installed or not, in the order of the report."""
    rclone = Path(shutil.which("rclone") or "rclone")
    s5cmd = Path(shutil.which("s5cmd") or CACHE / "bin" / "s5cmd")
    mc = CACHE / "bin" / "mc"
    crt = {".aws/config": "[default]\ns3 =\n  preferred_transfer_client = crt\n"}
    python = CACHE / "venv" / "bin"
    packages = version_of(CACHE / "venv" / "aws.version")
    return [
        Client("tradewind", tradewind, _tradewind, _keys),
        Client("rclone", rclone, _rclone(), _rclone_remote),
        Client("rclone:tuned", rclone, _rclone(*RCLONE_TUNED), _rclone_remote),
        Client("mc", mc, _mc, _mc_host, version_stamp=version_of(mc.with_suffix(".version"))),
        Client("aws", python / "aws", _aws, _keys),
        Client("aws:crt", _aws_2(), _aws, _keys, files=crt),
        Client("python:crt", python / "python3", _crt, _keys, version_stamp=packages),
        Client("s5cmd", s5cmd, _s5cmd, _keys),
    ]
