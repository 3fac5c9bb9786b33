"""A server on two throttled disks: its stack of volumes, its requests to the devices and its CPU time."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from lib.testbed import Failed, Link

ACCESS_KEY, SECRET_KEY = "TWCLASSREAL", "class-real-secret-class-real-secret-1234"
BUCKET = "class-real"
READY_SECONDS = 60
STOP_SECONDS = 120
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STORE = """
[store.{name}]
type = "local"
path = "{path}/store"
"""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the two file systems, of the cache on the SSD and in memory, of the memory with the page cache, and of the journal.

    The journal is part of the cache on the SSD: a stack without one has all of it for reads."""

    file_system: int
    cache: int
    cache_memory: int
    memory: int | None
    journal: int = 0


@dataclass(frozen=True)
class Mode:
    """A stack to measure, with the labels of its clients."""

    name: str
    stack: str
    labels: str = "off"
    # Settings before the first table, and tables.
    defaults: str = ""
    tables: str = ""

    def settings(self, sizes: Sizes, directories: dict[str, Path]) -> str:
        has_journal = "JOURNAL" in self.stack
        size = sizes.cache - sizes.journal if has_journal else sizes.cache
        cache = f'disk = "{directories["ssd"]}/cache", size = "{size}B", memory = "{sizes.cache_memory}B"'
        journal = f'write = "back", max_dirty = "{sizes.journal}B"'
        volumes = f"[volume.v]\nstack = {self.stack.replace('CACHE', cache).replace('JOURNAL', journal)}\n"
        # A store in no stack would be opened as well.
        used = [STORE.format(name=name, path=path) for name, path in directories.items() if f'"{name}"' in self.stack]
        buckets = f'[bucket.{BUCKET}]\nanonymous_read = true\nvolume = "v"\n'
        memory = '[memory]\nbudget = "256MiB"\n' if sizes.memory else ""
        return "".join([self.defaults, memory, *used, volumes, buckets, self.tables])


@dataclass(frozen=True)
class Device:
    """Requests to a block device since it exists."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int

    @classmethod
    def now(cls, name: str) -> "Device":
        values = [int(value) for value in Path(f"/sys/block/{name}/stat").read_text().split()]
        return cls(values[0], values[2] * 512, values[4], values[6] * 512)

    def __sub__(self, other: "Device") -> "Device":
        return Device(*(getattr(self, name) - getattr(other, name) for name in ("reads", "read_bytes", "writes", "written_bytes")))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def rejection(binary: Path, mode: Mode, sizes: Sizes, scratch: Path) -> str | None:
    """Why `tradewind settings check` rejects the mode; `None` if it does not."""
    path = scratch / "check.toml"
    path.write_text(mode.settings(sizes, {"hdd": scratch / "hdd", "ssd": scratch / "ssd"}))
    done = subprocess.run([binary, "settings", "check", "--config", path], capture_output=True, text=True, env=environment(scratch), check=False)
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip() or "no reason is given").splitlines()
    return lines[-1].strip().removeprefix(f"{path}:")


def environment(home: Path) -> dict[str, str]:
    keys = {"TRADEWIND_ACCESS_KEY": ACCESS_KEY, "TRADEWIND_SECRET_KEY": SECRET_KEY}
    return {"HOME": str(home), "PATH": os.environ["PATH"]} | keys


class System:
    """A running server. With `throttled`, its directories are two nested disks, the profiles of the paper. With a `link`, benchmarks
    run at the other end of it."""

    def __init__(self, binary: Path, mode: Mode, sizes: Sizes, scratch: Path, throttled: bool = True, link: Link | None = None):
        self.binary, self.mode, self.sizes, self.throttled, self.link = binary, mode, sizes, throttled, link
        self.directory = scratch / f"system-{os.getpid()}"
        self.devices: dict[str, str] = {}

    def __enter__(self) -> "System":
        directories = {name: self.directory / name for name in ("hdd", "ssd")}
        for path in directories.values():
            path.mkdir(parents=True)
        settings = self.directory / "settings.toml"
        settings.write_text(self.mode.settings(self.sizes, directories))
        self.port, self.admin = free_port(), free_port()
        host = "0.0.0.0" if self.link else "127.0.0.1"
        addresses = ["--listen", f"{host}:{self.port}", "--admin", f"{host}:{self.admin}"]
        command = [self.binary, "serve", "--config", settings, "--data", self.directory / "data", *addresses]
        if self.sizes.memory:
            command = [self.binary, "lab", "client", "--memory", f"{self.sizes.memory}B", "--", *command]
        if self.throttled:
            for name in ("ssd", "hdd"):
                disk = ["lab", "disk", "--preset", f"chen-{name}", "--loop", f"{self.sizes.file_system}B", "--write-behind", "16MiB"]
                command = [self.binary, *disk, directories[name], "--", *command]
        self.log = self.directory / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(self.directory), cwd=self.directory)
        try:
            self._wait_until_ready()
            self.run(["mb", f"s3://{BUCKET}"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"the server of {self.mode.name} ended: {self.log.read_text()}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/health/ready", timeout=1).close()
                break
            except OSError:
                select.select([], [], [], 0.1)
        else:
            raise Failed(f"the server of {self.mode.name} was not ready within {READY_SECONDS} s: {self.log.read_text()}")
        found = re.findall(r"on /dev/(loop\d+): reads at most (\S+)", self.log.read_text())
        # The outer disk is reported first.
        self.devices = dict(zip(("hdd", "ssd"), (device for device, _ in found)))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as response:
            return response.read().decode()

    def counter(self, name: str, *labels: str) -> float:
        """The sum of the series of a metric that have all these labels, as NAME="VALUE"."""
        lines = (line for line in self.metrics().splitlines() if line.startswith(name) and all(label in line for label in labels))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def device(self, name: str) -> Device:
        return Device.now(self.devices[name])

    def run(self, arguments: list, statuses: tuple = (0,), limit: float = 1800, prefix: tuple = ()) -> subprocess.CompletedProcess:
        """Runs `tradewind` as a client. A prefix is a command that runs it."""
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
        env = environment(self.directory) | keys | {"AWS_ENDPOINT_URL": f"http://{self.address}"}
        done = subprocess.run([*prefix, self.binary, *arguments], env=env, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode not in statuses:
            raise Failed(f"{arguments} ended with status {done.returncode}: {done.stderr.strip()}")
        return done

    def bench(self, arguments: list) -> dict:
        """The result of `bench class-table1`. Time limits that requests exceed are a result, other failures are not."""
        command = ["bench", "class-table1", f"s3://{BUCKET}", "--json", "--labels", self.mode.labels, *arguments]
        # Only the far end knows the address of the near one.
        metrics = f"http://$TRADEWIND_LAB_FAR:{self.admin}/metrics" if self.link else f"http://127.0.0.1:{self.admin}/metrics"
        prefix = ()
        if self.link:
            setup = f'AWS_ENDPOINT_URL="http://$TRADEWIND_LAB_FAR:{self.port}" exec "$@" --metrics "{metrics}"'
            prefix = (self.binary, "lab", "wan", "--via", "relay", *self.link.arguments(), "--", "sh", "-c", setup, "sh")
        else:
            command += ["--metrics", metrics]
        result = json.loads(self.run(command, statuses=(0, 1), prefix=prefix).stdout)
        for phase in result["phases"]:
            other = {kind: count for kind, count in phase["all"]["failures"].items() if kind != "Timeout"}
            if other:
                raise Failed(f"{self.mode.name}: {phase['operation']} failed: {other}, {phase['failure_samples']}")
        return result

    def server_pid(self) -> int:
        """The process that serves: the last of the chain of commands."""
        pid = self.process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or self._children_of_threads(pid):
            pid = int(children[-1])
        return pid

    @staticmethod
    def _children_of_threads(pid: int) -> list[str]:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [child for thread in threads for child in (thread / "children").read_text().split()]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.server_pid()}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def drop_page_cache(self) -> None:
        """Drops the page cache of the files of this server only, which are in its mount namespace."""
        root = Path(f"/proc/{self.server_pid()}/root")
        for path in (root / str(self.directory).lstrip("/")).glob("*/*/**/*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
