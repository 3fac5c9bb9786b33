"""The paper's clients, made small enough for one machine: how a measuring command runs, and what it saw."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.world import Failed, Line, World

BUCKET = "s3://figures"
RATE = "656mbit"
# The paper's store is 0.28 ms away and takes some 35 ms for a small request; this one takes a tenth of a millisecond. So that
# requests wait for a store here too, the line has a part of that.
OWN_TIME_MS = 5.0
NEAR, FAR = (Line((distance + OWN_TIME_MS) / 2, RATE) for distance in (0.28, 176))
# Of a processor, where the paper's client has two: so little that it is the client which is bounded, not what serves it.
CPUS = 0.2
# What may wait to be written to a disk; the paper's clients ran until their memory was full of it.
WRITE_BEHIND = "16MiB"
SECONDS_OF_FILES = 8.0


@dataclass(frozen=True)
class Client:
    """Its parts that are changed one at a time. `files`: where its objects are; "magnetic" and "ssd" are disks, "memory" a file
    system in memory, `None` no files at all."""

    cpus: float = CPUS
    files: str | None = None
    line: Line = NEAR

    def command(self, world: World, arguments: list) -> list:
        """From the outside in: the disk, the part of the processors, the command."""
        command = [world.binary, "lab", "client", "--cpus", f"{self.cpus:g}", "--", world.binary, *arguments]
        if not self.files:
            return command
        files = world.directory / "files"
        files.mkdir(exist_ok=True)
        command += ["--files", files]
        if self.files == "memory":
            return command
        disk = ["--profile", f"hou-{self.files}", "--write-behind", WRITE_BEHIND, "--loop", "3GiB"]
        return [world.binary, "lab", "disk", *disk, files, "--", *command]


@dataclass(frozen=True)
class Point:
    """Requests of one kind and size, so many at a time, a long way."""

    megabytes_per_second: float
    requests_per_second: float
    cpu: float  # of a processor, on the average
    latencies: list = field(repr=False)  # microseconds and how many took so long, in rising order

    def latency(self, part: float) -> float:
        """What so large a part took at the most, in milliseconds."""
        wanted = part * sum(count for _, count in self.latencies)
        for value, count in self.latencies:
            wanted -= count
            if wanted <= 0:
                return value / 1e3
        raise Failed("no request began while it was measured: --seconds is too short")

    def median(self) -> float:
        return self.latency(0.5)


@dataclass
class Seen:
    """What a command measured."""

    cells: list

    def of(self, kind: str, size: str, beside: str | None = None) -> dict[int, Point]:
        """By requests at a time."""
        wanted = (kind, size, [beside] if beside else [])
        found = {}
        for cell in self.cells:
            if (cell["mix"], cell["sizes"], cell.get("beside", [])) == wanted:
                found[cell["parallel"]] = point(cell, kind)
        return found


def point(cell: dict, kind: str) -> Point:
    figures = cell["operations"][kind]
    if any(figures["failures"].values()):
        raise Failed(f"{kind} {cell['sizes']}: {figures['samples']}")
    cpu = cell.get("cpu_seconds", 0) / cell["seconds"]
    return Point(figures["bytes_per_second"] / 1e6, figures["per_second"], cpu, figures["latency_us"]["counts"])


@dataclass
class Bench:
    """Measures in a world, each point for so long."""

    world: World
    seconds: float
    objects: int

    def longer(self) -> "Bench":
        """The same, for requests that take seconds: files on a disk, many at a time, a long way."""
        return replace(self, seconds=max(self.seconds, SECONDS_OF_FILES))

    def objects_of(self, client: Client, sizes: str, parallel: str, mix: str | None = None) -> Seen:
        """Uploads and downloads, or what the mix says, of each size and with each number at a time."""
        mixes = ["--mix", mix] if mix else []
        at_least = max(map(int, parallel.split(",")))
        return self._run(client, ["object", BUCKET, *mixes, "--size", sizes, "--parallel", parallel], at_least)

    def beside(self, client: Client, load: list[str], others: list[str]) -> Seen:
        """Loads alone and beside each other; with others, beside each of these."""
        flags = [flag for other in others for flag in ("--beside", other)]
        return self._run(client, ["mix", BUCKET, *load, *flags])

    def _run(self, client: Client, arguments: list[str], at_least: int = 0) -> Seen:
        extent = ["--time", f"{self.seconds:g}s", "--warm-up", "1s", "--objects", str(max(self.objects, at_least))]
        command = client.command(self.world, ["bench", *arguments, *extent, "--json", "--no-out"])
        cost = self.world.behind_as(client.line, command, limit=1800)
        lines = [json.loads(line) for line in cost.output.splitlines()]
        return Seen([line for line in lines if line["line"] == "cell"])
