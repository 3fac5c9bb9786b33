"""A store over an emulated link: a Tradewind server, and commands that reach it through `tradewind lab wan`.

Everything runs in a network namespace of this program, so that addresses and ports never conflict with other programs.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "bench" / "lib" / "launch.py"
ISOLATED = "TRADEWIND_EXPERIMENT_ISOLATED"
PORT = 9000
CANNOT_RUN = 77


class Failed(Exception):
    """A run failed, or its result is wrong or unusable."""


def skip(why: str) -> None:
    """Ends the program: it cannot run on this machine."""
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(CANNOT_RUN)


def enter_namespace(congestion: str | None = None) -> None:
    """Restarts this program in a new network namespace; returns once it runs there. If a congestion control is given,
    allows it for all network namespaces of the machine."""
    if os.environ.get(ISOLATED):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    for tool in ("unshare", "ip", "setpriv"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed (Debian: util-linux and iproute2)")
    if os.geteuid() != 0:
        skip("creating network namespaces requires root")
    if not os.path.exists("/dev/net/tun"):
        skip("/dev/net/tun is missing: TUN devices are not available")
    if congestion:
        allow_congestion_control(congestion)
    os.environ[ISOLATED] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])


def tradewind(given: Path | None) -> Path:
    """The given binary, or a release build of this checkout."""
    if given:
        return given.resolve()
    subprocess.run(["cargo", "build", "--release", "-p", "tradewind"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "tradewind"


def pinned_to(cpus: list[int]) -> list[str]:
    """The prefix of a command that runs on the given CPUs only."""
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]


CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
ALLOWED_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def allow_congestion_control(congestion: str) -> None:
    allowed = ALLOWED_CONGESTION_CONTROLS.read_text().split()
    if congestion in allowed:
        return
    try:
        ALLOWED_CONGESTION_CONTROLS.write_text(" ".join([*allowed, congestion]))
    except OSError as error:
        skip(f"network namespaces of this machine may not use {congestion}: {error}")


def congestion_control() -> str:
    """The congestion control of this namespace; also that of the client's end of a link, unless the testbed sets another."""
    return CONGESTION_CONTROL.read_text().strip()


@dataclass(frozen=True)
class Link:
    """The emulated link between client and store: one-way delay, rate and loss, each of every direction."""

    delay_ms: float
    rate: str | None = None
    loss: str | None = None

    def arguments(self) -> list[str]:
        rate = ["--rate", self.rate] if self.rate else []
        loss = ["--loss", self.loss] if self.loss else []
        return ["--delay", f"{self.delay_ms:g}ms", *rate, *loss]

    def __str__(self) -> str:
        loss = f", {self.loss} loss" if self.loss else ""
        return f"RTT {2 * self.delay_ms:g} ms, {self.rate or 'unlimited rate'}{loss}"


@dataclass
class Cost:
    seconds: float
    cpu_seconds: float
    peak_mib: float
    output: str = field(repr=False)


class Testbed:
    """A running server, with its data in memory so that the link is the bottleneck.

    With `isolate_relay`, the relay has the first CPU and everything else runs on the others. The relay has a high scheduling
    priority and does the kernel's packet processing of both ends; otherwise chance decides which process it slows down.
    `congestion` is the congestion control of both ends (default: that of the machine).
    """

    def __init__(self, binary: Path, scratch: Path | None, isolate_relay: bool = False, congestion: str | None = None):
        self.binary = binary
        self.congestion = congestion
        if congestion:
            CONGESTION_CONTROL.write_text(congestion)
        first, *others = sorted(os.sched_getaffinity(0))
        if isolate_relay and not others:
            skip("the relay needs a CPU of its own, but only one CPU is available")
        self.on_first, self.on_others = ([pinned_to([first]), pinned_to(others)] if isolate_relay else [[], []])
        self.directory = Path(tempfile.mkdtemp(prefix="tradewind-experiment.", dir=scratch or "/dev/shm"))

    def __enter__(self) -> "Testbed":
        data = self.directory / "data"
        command = [*self.on_others, "setpriv", "--pdeathsig", "KILL", self.binary, "serve", "--data", data]
        command += ["--listen", f"0.0.0.0:{PORT}", "--admin", "127.0.0.1:9001"]
        with open(self.directory / "server.log", "w") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
        key = data / "root-key"
        for _ in range(200):
            if key.exists() and "AWS_SECRET" in key.read_text() and self._is_ready():
                break
            if self.server.poll() is not None:
                raise Failed((self.directory / "server.log").read_text())
            time.sleep(0.05)
        else:
            raise Failed("the server was not ready within 10 s")
        return self

    def __exit__(self, *_) -> None:
        self.server.terminate()
        self.server.wait(60)
        shutil.rmtree(self.directory)

    def _is_ready(self) -> bool:
        return self.run(["ls"], check=False).returncode == 0

    def environment(self, host: str = "127.0.0.1") -> dict[str, str]:
        path = self.directory / "data" / "root-key"
        keys = dict(line.split("=", 1) for line in path.read_text().split()) if path.exists() else {}
        home = {"HOME": str(self.directory), "PATH": os.environ["PATH"]}
        return home | keys | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{PORT}"}

    def run(self, arguments: list, check: bool = True) -> subprocess.CompletedProcess:
        """Runs `tradewind` with these arguments at the store's end of the link."""
        command = [self.binary, *arguments]
        return subprocess.run(command, env=self.environment(), check=check, capture_output=True, text=True)

    def run_remote(self, link: Link, arguments: list, statuses: tuple = (0,), limit: float = 3600) -> Cost:
        """Runs `tradewind` with these arguments at the client's end of the link."""
        return self.run_remote_command(link, [self.binary, *arguments], statuses, limit)

    def run_remote_command(self, link: Link, command: list, statuses: tuple = (0,), limit: float = 3600) -> Cost:
        """Runs any command at the client's end of the link. The cost includes the child processes that it waits for."""
        report = self.directory / "cost.json"
        # A new namespace has the machine's congestion control. Fail if it cannot be set: results would not be comparable.
        setup = f"echo {self.congestion} > {CONGESTION_CONTROL} || exit 125; " if self.congestion else ""
        setup += 'AWS_ENDPOINT_URL="http://$TRADEWIND_LAB_FAR:$0" exec "$@"'
        full = [*self.on_first, self.binary, "lab", "wan", "--via", "relay", *link.arguments(), "--", "sh", "-c", setup, str(PORT)]
        full += [*self.on_others, sys.executable, "-IS", LAUNCHER, report, *command]
        done = subprocess.run(full, env=self.environment(), capture_output=True, text=True, timeout=limit)
        if done.returncode not in statuses:
            raise Failed(f"{command} ended with status {done.returncode}: {done.stderr.strip()}")
        cost = json.loads(report.read_text())
        cpu = cost["user_seconds"] + cost["system_seconds"]
        return Cost(cost["seconds"], cpu, cost["peak_resident_bytes"] / 2**20, done.stdout)
