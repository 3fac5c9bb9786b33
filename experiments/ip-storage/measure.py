"""Measures the points of one system behind one network. The command that does it on the client is exchangeable: it is given a
directory and says what it saw in lines of JSON, as `tradewind bench posix --json` does."""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cells import Cell, Extent, Group
from client import GUEST_NETWORK, INTERFACE, Client
from lib.world import Failed
from network import ORDER, Network
from systems import System

# What a point takes at the most beside the time that is measured: files that were cut are made whole, caches dropped, files
# removed. A file by itself is given up after so many times the time of a point.
PATIENCE, FILE_TIMES = 120, 5


@dataclass(frozen=True)
class Seen:
    """A cell, written or read."""

    network: str
    system: str
    cell: Cell
    phase: str
    bytes_per_second: float
    files_per_second: float
    files: int
    # Bytes on the wire, both ways, for each byte of the files.
    amplification: float
    # Part of one processor that the client took while all of its group was measured.
    client_busy: float


@dataclass(frozen=True)
class Policy:
    """How a system writes and reads with a form of access: a row of the paper's Table I."""

    network: str
    system: str
    form: str
    write: str
    read: str


def check(binary: Path) -> None:
    """Whether this build has the benchmark."""
    asked = subprocess.run([binary, "bench", "posix", "--help"], capture_output=True, timeout=30)
    if asked.returncode != 0:
        raise Failed(f"{binary} has no `bench posix`; take a newer build")


def command(binary: Path, directory: str, group: Group, seconds: float) -> str:
    """What the client runs: any that says the same could take its place."""
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
    extent: Extent,
    binary: Path,
    directory: Path,
    say: Callable[[str], None],
) -> Iterator[dict]:
    """What the benchmark said, with where that was. Groups that fail are told of, and left out."""
    say(f"{system_type.title}, {network.name}: {network.about}; {ORDER}")
    with system_type(directory) as system, Client(binary, network, directory) as client:
        for line in client.run(system.mount(client.far)).strip().splitlines():
            say(f"  {line}")
        try:
            for number, group in enumerate(groups):
                begun, processor = time.monotonic(), client.processor_seconds()
                place = f"/mnt/{system.name}/{number}"
                limit = len(group.cells()) * (2 * FILE_TIMES * extent.seconds + PATIENCE)
                try:
                    said = client.run(f"mkdir {place} && {command(binary, place, group, extent.seconds)}", limit)
                except Failed as why:
                    say(f"  {group}: {why}")
                    continue
                took = time.monotonic() - begun
                busy = (client.processor_seconds() - processor) / took
                say(f"  {group}: {took:.0f} s, client {busy:.0%} busy")
                for line in said.splitlines():
                    told = {"network": network.name, "system": system.name, "client_busy": busy, "told": json.loads(line)}
                    if isinstance(seen := read(told), Seen):
                        say(f"    {seen.phase} {seen.cell}: {seen.bytes_per_second / 2**20:.3f} MiB/s, {seen.files} files")
                    yield told
            say(f"  congestion control: {congestion_control(client)}")
            say(f"  {segments(client)}")
        finally:
            client.run(f"cd / && {system.unmount()}")
    for line in client.carried:
        say(f"  {line}")


def read(told: dict) -> Seen | Policy | None:
    """What is of interest here in a line of the benchmark."""
    where, line = (told["network"], told["system"]), told["told"]
    match line.get("what"):
        case "policy":
            return Policy(*where, line["form"], *(line[what][0] if line.get(what) else "unknown" for what in ("write", "read")))
        case "access":
            scope, form, size, threads = (line[name] for name in ("scope", "form", "size", "threads"))
            cell = Cell(scope, form, size, line["unit"] if scope == "unit" else size, threads)
            if line["failures"]:
                raise Failed(f"{cell}: {line['failures']} {line.get('samples', '')}")
            wire = line["wire"]["total" if scope == "batch" else "settled"]
            ratio = wire / line["bytes"] if line["bytes"] else 0.0
            rates = (line["bytes_per_second"]["mean"], line["files_per_second"]["mean"])
            bound = bounded(line)
            return Seen(*where, cell, line["phase"], *(rate * bound for rate in rates), line["files"], ratio, told["client_busy"])
    return None


def bounded(line: dict) -> float:
    """What a rate is to be multiplied by. That of the steady state counts the part of a file's time that lies within it; of few
    large files of many threads, which are not served evenly, that can be more than the link carries. It cannot have been more
    than all bytes in the time of the longest file, or in what each thread took for its own."""
    file = line.get("latency", {}).get("file")
    rate = line["bytes_per_second"]["mean"]
    if line["scope"] != "batch" or not file or rate <= 0:
        return 1.0
    least_seconds = max(file["max"], file["mean"] * file["count"] / line["threads"]) / 1e6
    return min(1.0, line["bytes"] / least_seconds / rate)


def segments(client: Client) -> str:
    """Whether what the client's interface sends as a packet is one on the wire."""
    said = client.run(f"ip -d link show {INTERFACE}; ethtool -k {INTERFACE} | grep generic-receive")
    words = said.split()
    segments, merges = (words[words.index(name) + 1] for name in ("gso_max_segs", "generic-receive-offload:"))
    return f"segments in what the client hands on: {segments}; merging of what it receives: {merges}"


def congestion_control(client: Client) -> str:
    """At both ends: of connections as they are, and what the client's kernel takes."""
    asked = subprocess.run(["ss", "-tinH", "dst", GUEST_NETWORK], capture_output=True, text=True, check=True).stdout
    words = {word for word in asked.split() if word in ("cubic", "bbr", "reno")}
    guest = client.run("cat /proc/sys/net/ipv4/tcp_congestion_control").strip()
    return f"the servers' connections {' and '.join(sorted(words)) or 'closed'}, the client {guest}"
