"""A store behind a long line: a Tradewind server, and commands that reach it through `tradewind lab wan`.

All of it is in a network namespace of this program's own, so that no address and no port is anybody else's.
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
MEASURE = ROOT / "bench" / "lib" / "launch.py"
APART = "TRADEWIND_EXPERIMENT_APART"
PORT = 9000
CANNOT_RUN = 77


class Failed(Exception):
    """A run did not do what it was for."""


def give_up(why: str) -> None:
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(CANNOT_RUN)


def go_apart(congestion: str | None = None) -> None:
    """Runs this program again in a namespace of its own; returns where it is in one. Namespaces may then use this control of
    congestion, which the machine has to allow them all."""
    if os.environ.get(APART):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    for tool in ("unshare", "ip", "setpriv"):
        if not shutil.which(tool):
            give_up(f"{tool} is not there (Debian: util-linux and iproute2)")
    if os.geteuid() != 0:
        give_up("it needs root, to make network namespaces")
    if not os.path.exists("/dev/net/tun"):
        give_up("there are no TUN devices")
    if congestion:
        allow(congestion)
    os.environ[APART] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])


def tradewind(given: Path | None) -> Path:
    """The release binary, built if none is given."""
    if given:
        return given.resolve()
    subprocess.run(["cargo", "build", "--release", "-p", "tradewind"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "tradewind"


def on(processors: list[int]) -> list[str]:
    """What a command begins with that has these processors."""
    return ["taskset", "--cpu-list", ",".join(map(str, processors))]


CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def allow(congestion: str) -> None:
    allowed = ALLOWED.read_text().split()
    if congestion in allowed:
        return
    try:
        ALLOWED.write_text(" ".join([*allowed, congestion]))
    except OSError as e:
        give_up(f"namespaces of this machine may not use {congestion}: {e}")


def congestion_control() -> str:
    """That of whoever sends, in this namespace and in those behind a line where a world was not told otherwise."""
    return CONGESTION_CONTROL.read_text().strip()


@dataclass(frozen=True)
class Line:
    """What lies between the client and the store; each direction has all of it."""

    delay_ms: float
    rate: str | None = None
    loss: str | None = None

    def arguments(self) -> list[str]:
        rate = ["--rate", self.rate] if self.rate else []
        loss = ["--loss", self.loss] if self.loss else []
        return ["--delay", f"{self.delay_ms:g}ms", *rate, *loss]

    def __str__(self) -> str:
        loss = f", {self.loss} lost" if self.loss else ""
        return f"round trip {2 * self.delay_ms:g} ms, {self.rate or 'no bound on the rate'}{loss}"


@dataclass
class Cost:
    seconds: float
    cpu_seconds: float
    peak_mib: float
    output: str = field(repr=False)


class World:
    """The server while it runs. Its data are in memory: the line is to be what costs time.

    Where the `relay_is_apart` it has the first processor to itself, and the others are for all else. It runs before everybody, and
    does the kernel's work for packets of both ends; beside whom it does that is otherwise chance. `congestion` is the control of
    both ends; that of the machine where it is not said.
    """

    def __init__(self, binary: Path, scratch: Path | None, relay_is_apart: bool = False, congestion: str | None = None):
        self.binary = binary
        self.congestion = congestion
        if congestion:
            CONGESTION_CONTROL.write_text(congestion)
        first, *others = sorted(os.sched_getaffinity(0))
        if relay_is_apart and not others:
            give_up("the relay is to have a processor to itself, and there is one")
        self.on_first, self.on_others = ([on([first]), on(others)] if relay_is_apart else [[], []])
        self.directory = Path(tempfile.mkdtemp(prefix="tradewind-experiment.", dir=scratch or "/dev/shm"))

    def __enter__(self) -> "World":
        data = self.directory / "data"
        command = [*self.on_others, "setpriv", "--pdeathsig", "KILL", self.binary, "serve", "--data", data]
        command += ["--listen", f"0.0.0.0:{PORT}", "--admin", "127.0.0.1:9001"]
        with open(self.directory / "server.log", "w") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
        key = data / "root-key"
        for _ in range(200):
            if key.exists() and "AWS_SECRET" in key.read_text() and self._answers():
                break
            if self.server.poll() is not None:
                raise Failed((self.directory / "server.log").read_text())
            time.sleep(0.05)
        else:
            raise Failed("the server did not come up within 10 s")
        return self

    def __exit__(self, *_) -> None:
        self.server.terminate()
        self.server.wait(60)
        shutil.rmtree(self.directory)

    def _answers(self) -> bool:
        return self.run(["ls"], check=False).returncode == 0

    def environment(self, host: str = "127.0.0.1") -> dict[str, str]:
        path = self.directory / "data" / "root-key"
        keys = dict(line.split("=", 1) for line in path.read_text().split()) if path.exists() else {}
        home = {"HOME": str(self.directory), "PATH": os.environ["PATH"]}
        return home | keys | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{PORT}"}

    def run(self, arguments: list, check: bool = True) -> subprocess.CompletedProcess:
        """Runs a command of ours at the store's end of the line."""
        command = [self.binary, *arguments]
        return subprocess.run(command, env=self.environment(), check=check, capture_output=True, text=True)

    def behind(self, line: Line, arguments: list, statuses: tuple = (0,), limit: float = 3600) -> Cost:
        """Runs a command of ours at the other end of the line."""
        return self.behind_as(line, [self.binary, *arguments], statuses, limit)

    def behind_as(self, line: Line, command: list, statuses: tuple = (0,), limit: float = 3600) -> Cost:
        """Runs any command there. What it starts and waits for counts as its own."""
        report = self.directory / "cost.json"
        # A namespace begins with the machine's; figures of another are none.
        reach = f"echo {self.congestion} > {CONGESTION_CONTROL} || exit 125; " if self.congestion else ""
        reach += 'AWS_ENDPOINT_URL="http://$TRADEWIND_LAB_FAR:$0" exec "$@"'
        whole = [*self.on_first, self.binary, "lab", "wan", "--via", "relay", *line.arguments(), "--", "sh", "-c", reach, str(PORT)]
        whole += [*self.on_others, sys.executable, "-IS", MEASURE, report, *command]
        ran = subprocess.run(whole, env=self.environment(), capture_output=True, text=True, timeout=limit)
        if ran.returncode not in statuses:
            raise Failed(f"{command} ended with {ran.returncode}: {ran.stderr.strip()}")
        cost = json.loads(report.read_text())
        cpu = cost["user_seconds"] + cost["system_seconds"]
        return Cost(cost["seconds"], cpu, cost["peak_resident_bytes"] / 2**20, ran.stdout)
