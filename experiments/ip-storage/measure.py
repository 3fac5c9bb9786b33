"""Measures the points of one system over one network. The command on the client is exchangeable: it gets a directory and prints
lines of JSON in the format of `tradewind bench posix --json`."""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from client import GUEST_NETWORK, INTERFACE, Client
from lib.testbed import Failed
from network import ORDER, Network
from points import Group, Point, Sweep
from systems import System

# Maximum time of a point in addition to the measured time: incomplete files are completed, caches dropped, files removed.
# A single file is aborted after this multiple of the time of a point.
EXTRA_SECONDS, MAX_FILE_FACTOR = 120, 5


@dataclass(frozen=True)
class Measurement:
    """The result of writing or reading a point."""

    network: str
    system: str
    point: Point
    phase: str
    bytes_per_second: float
    files_per_second: float
    files: int
    # Bytes on the wire in both directions per byte of the files.
    amplification: float
    # CPUs used by the client during the measurement of the group.
    client_cpus: float


@dataclass(frozen=True)
class Policy:
    """The write and read policies of a system for a form of access: a row of the paper's Table I."""

    network: str
    system: str
    form: str
    write: str
    read: str


def check(binary: Path) -> None:
    """Fails if this build has no `bench posix`."""
    help_text = subprocess.run([binary, "bench", "posix", "--help"], capture_output=True, timeout=30)
    if help_text.returncode != 0:
        raise Failed(f"{binary} has no `bench posix`; take a newer build")


def command(binary: Path, directory: str, group: Group, seconds: float) -> str:
    """The command that the client runs."""
    words = [f"/mnt/binaries/{binary.name}", "bench", "posix", directory, "--json", "--no-out", "--interface", INTERFACE]
    words += ["--only", group.scope, "--form", ",".join(group.forms), "--time", f"{seconds * 1000:.0f}ms"]
    words += ["--threads", ",".join(map(str, group.threads))]
    flag, sizes = ("--unit", group.units) if group.scope == "unit" else ("--size", group.sizes)
    words += [flag, ",".join(f"{size}B" for size in sizes)]
    return shlex.join(words)


def measure(
    system_type: type[System],
    network: Network,
    groups: list[Group],
    sweep: Sweep,
    binary: Path,
    directory: Path,
    log: Callable[[str], None],
) -> Iterator[dict]:
    """Yields the lines of the benchmark with network and system. Groups that fail are reported and skipped."""
    log(f"{system_type.title}, {network.name}: {network.about}; {ORDER}")
    with system_type(directory) as system, Client(binary, network, directory) as client:
        for line in client.run(system.mount(client.far)).strip().splitlines():
            log(f"  {line}")
        try:
            for number, group in enumerate(groups):
                start, cpu_seconds = time.monotonic(), client.cpu_seconds()
                mounted = f"/mnt/{system.name}/{number}"
                limit = len(group.points()) * (2 * MAX_FILE_FACTOR * sweep.seconds + EXTRA_SECONDS)
                try:
                    output = client.run(f"mkdir {mounted} && {command(binary, mounted, group, sweep.seconds)}", limit)
                except Failed as error:
                    log(f"  {group}: {error}")
                    continue
                elapsed = time.monotonic() - start
                cpus = (client.cpu_seconds() - cpu_seconds) / elapsed
                log(f"  {group}: {elapsed:.0f} s, CPU utilization of the client {cpus:.0%}")
                for line in output.splitlines():
                    record = {"network": network.name, "system": system.name, "client_cpus": cpus, "result": json.loads(line)}
                    if isinstance(result := read(record), Measurement):
                        log(f"    {result.phase} {result.point}: {result.bytes_per_second / 2**20:.3f} MiB/s, {result.files} files")
                    yield record
            log(f"  congestion control: {congestion_control(client)}")
            log(f"  {segments(client)}")
        finally:
            client.run(f"cd / && {system.unmount()}")
    for line in client.link_report:
        log(f"  {line}")


def read(record: dict) -> Measurement | Policy | None:
    """The measurement or policy of a record, or `None` if it has neither."""
    key, line = (record["network"], record["system"]), record["result"]
    match line.get("record"):
        case "policy":
            return Policy(*key, line["form"], *(line[phase]["policy"] if line.get(phase) else "unknown" for phase in ("write", "read")))
        case "access":
            scope, form, size, threads = (line[name] for name in ("scope", "form", "size", "threads"))
            point = Point(scope, form, size, line["call_bytes"] if scope == "unit" else size, threads)
            if line["failures"]:
                raise Failed(f"{point}: {line['failures']} {line.get('failure_samples', '')}")
            wire = line["wire"]["total" if scope == "batch" else "total_until_durable"]
            ratio = wire / line["bytes"] if line["bytes"] else 0.0
            rates = (line["bytes_per_second"]["mean"], line["files_per_second"]["mean"])
            factor = rate_correction(line)
            rates = (rate * factor for rate in rates)
            return Measurement(*key, point, line["phase"], *rates, line["files"], ratio, record["client_cpus"])
    return None


def rate_correction(line: dict) -> float:
    """The correction factor of a rate, at most 1. The rate of the steady state counts files by the fraction of their time in it.
    With few large files and many threads, which progress unevenly, it can exceed the bandwidth of the link. Upper bounds are
    all bytes divided by the time of the longest file, and by the mean time of all files of a thread."""
    file = line.get("latency", {}).get("file")
    rate = line["bytes_per_second"]["mean"]
    if line["scope"] != "batch" or not file or rate <= 0:
        return 1.0
    min_seconds = max(file["max"], file["mean"] * file["count"] / line["threads"]) / 1e6
    return min(1.0, line["bytes"] / min_seconds / rate)


def segments(client: Client) -> str:
    """Settings of the interface of the client that decide whether its packets are those on the wire."""
    output = client.run(f"ip -d link show {INTERFACE}; ethtool -k {INTERFACE} | grep generic-receive")
    words = output.split()
    segments, merges = (words[words.index(name) + 1] for name in ("gso_max_segs", "generic-receive-offload:"))
    return f"segments per packet sent by the client: {segments}; generic receive offload: {merges}"


def congestion_control(client: Client) -> str:
    """The congestion control at both ends: that of the open connections, and the default of the client."""
    sockets = subprocess.run(["ss", "-tinH", "dst", GUEST_NETWORK], capture_output=True, text=True, check=True).stdout
    words = {word for word in sockets.split() if word in ("cubic", "bbr", "reno")}
    guest = client.run("cat /proc/sys/net/ipv4/tcp_congestion_control").strip()
    return f"connections of the servers: {' and '.join(sorted(words)) or 'closed'}, client: {guest}"
