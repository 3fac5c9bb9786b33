"""Measures the cells of one system behind one network. The command that does it on the client is exchangeable: it is given a
directory and says what it saw in lines of JSON, as `tradewind bench posix --json` does."""

import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cells import Cell, Extent
from client import GUEST_NETWORK, Client
from lib.world import Failed
from network import Network
from systems import System

# Beside the time that is measured: files that were cut are made whole, caches dropped, files removed.
PATIENCE = 240


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
    # Part of one processor that the client took, in both phases.
    client_busy: float

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict) -> "Seen":
        return cls(**kept | {"cell": Cell(**kept["cell"])})


def command(directory: str, cell: Cell, seconds: float) -> str:
    """What the client runs."""
    words = ["python3", "-IS", "/mnt/experiment/workload.py", directory, json.dumps(asdict(cell)), f"{seconds:g}"]
    return shlex.join(words)


def read(line: dict, network: str, system: str, cell: Cell, busy: float) -> Seen:
    if line["failures"]:
        raise Failed(f"{cell} failed: {', '.join(line['failures'])}")
    wire = line["wire"]["total" if cell.scope == "batch" else "settled"]
    return Seen(
        network, system, cell, line["phase"], line["bytes_per_second"]["mean"], line["files_per_second"]["mean"], line["files"],
        wire / line["bytes"] if line["bytes"] else 0.0, busy,
    )  # fmt: skip


def measure(
    system_type: type[System], network: Network, cells: list[Cell], extent: Extent, binary: Path, directory: Path, say
) -> Iterator[Seen]:
    """Cells that fail are told of, and left out."""
    say(f"{system_type.title}, {network.name}: {network.about}; {network.may_reorder}")
    with system_type(directory) as system, Client(binary, network, directory) as client:
        for line in client.run(system.mount(client.far)).strip().splitlines():
            say(f"  {line}")
        try:
            for number, cell in enumerate(cells):
                begun, processor = time.monotonic(), client.processor_seconds()
                place = f"/mnt/{system.name}/cell{number}"
                try:
                    said = client.run(command(place, cell, extent.seconds), 2 * extent.seconds + PATIENCE)
                except Failed as why:
                    say(f"  {cell}: {why}")
                    continue
                took = time.monotonic() - begun
                busy = (client.processor_seconds() - processor) / took
                lines = [line for line in map(json.loads, said.splitlines()) if line.get("what") == "access"]
                seen = [read(line, network.name, system.name, cell, busy) for line in lines]
                rates = ", ".join(f"{each.phase} {each.bytes_per_second / 2**20:.3f} MiB/s" for each in seen)
                say(f"  {cell}: {rates}; {took:.0f} s, client {busy:.0%} busy")
                yield from seen
            say(f"  congestion control: {congestion_control(client)}")
        finally:
            client.run(f"cd / && {system.unmount()}")
    say(f"  {client.carried.rpartition('tradewind: ')[2]}")


def congestion_control(client: Client) -> str:
    """At both ends: of connections as they are, and what the client's kernel takes."""
    asked = subprocess.run(["ss", "-tinH", "dst", GUEST_NETWORK], capture_output=True, text=True, check=True).stdout
    words = {word for word in asked.split() if word in ("cubic", "bbr", "reno")}
    guest = client.run("cat /proc/sys/net/ipv4/tcp_congestion_control").strip()
    return f"the servers' connections {' and '.join(sorted(words)) or 'closed'}, the client {guest}"
