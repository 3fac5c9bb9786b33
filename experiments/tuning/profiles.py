"""The ten clients and lines that plans are judged on."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lib.world import ROOT, Line, World

SIZES = ["1KiB", "4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB"]
PARALLEL = [1, 2, 4, 8, 16, 32, 64]
DIRECTIONS = ("put", "get")

# That of most machines, and the one that losses slow down.
CONGESTION = "cubic"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
# The part of a processor that the weak client has; what serves it has to stay the stronger one.
WEAK_CPUS = 0.25
WRITE_BEHIND = "16MiB"
# What that disk carries by direction, in MB/s: uploads read it, downloads write. It is the best of the figures that `lab disk` has of
# it. In a few seconds memory holds a part of what was asked for, so that more may be counted.
DISK_MB = {"put": 61.59, "get": 23.20}
# In bytes a second, the slower way.
DISK_RATE = DISK_MB["get"] * 1e6
# A round of requests that takes longer is not measured: nobody wants a plan that keeps so much in flight.
MOST_ROUND_SECONDS = 20.0
SEGMENT_BYTES = 1448
PACKET_BYTES = 1500


def commit() -> str:
    """What of the checkout is measured. Figures that were kept meanwhile change nothing in it."""
    run = lambda *command: subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: E731
    changed = run("status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock")
    return run("describe", "--always") + ("-dirty" if changed else "")


def size_bytes(text: str) -> int:
    return int(text[:-3]) * UNITS[text[-3:]]


def value_at(latency: dict, part: float) -> float:
    """What so large a part of requests took at the most, in milliseconds."""
    wanted = part * sum(count for _, count in latency["counts"])
    for value, count in latency["counts"]:
        wanted -= count
        if wanted <= 0:
            return value / 1e3
    return float("nan")


def mean(latency: dict) -> float:
    """In milliseconds."""
    counts = latency["counts"]
    return sum(value * count for value, count in counts) / sum(count for _, count in counts) / 1e3


@dataclass(frozen=True)
class Profile:
    """A client and what lies between it and the store. `slow_disk`: its objects are files on a slow disk."""

    name: str
    rtt_ms: float
    mbit: int
    loss_percent: float = 0.0
    slow_disk: bool = False
    cpus: float | None = None

    @property
    def most_mb_per_second(self) -> float:
        """What the line carries of bodies: of each packet what is no head."""
        return self.mbit / 8 * SEGMENT_BYTES / PACKET_BYTES

    def most_mb(self, direction: str) -> float:
        """The same, or what the slow disk does where that is less."""
        return min(self.most_mb_per_second, DISK_MB[direction]) if self.slow_disk else self.most_mb_per_second

    def floor_seconds(self, size: int) -> float:
        """What the line alone takes for so many bytes."""
        return size / (self.most_mb_per_second * 1e6)

    def line(self) -> Line:
        loss = f"{self.loss_percent:g}%" if self.loss_percent else None
        return Line(self.rtt_ms / 2, f"{self.mbit}mbit", loss)

    def command(self, world: World, arguments: list) -> list:
        """A measuring command of ours as this client runs it."""
        files = ["--files", world.directory / "files"] if self.slow_disk else []
        return self.wrap(world, [world.binary, *arguments, *files])

    def wrap(self, world: World, command: list) -> list:
        """Any command, from the outside in: the disk, the part of the processors, the command."""
        if self.cpus:
            command = [world.binary, "lab", "client", "--cpus", f"{self.cpus:g}", "--", *command]
        if self.slow_disk:
            files = world.directory / "files"
            files.mkdir(exist_ok=True)
            disk = ["--profile", "hou-magnetic", "--write-behind", WRITE_BEHIND, "--loop", "4GiB"]
            command = [world.binary, "lab", "disk", *disk, files, "--", *command]
        return command

    def round_seconds(self, size: int, parallel: int) -> float:
        """How long so many requests at a time take at least: by the line's rate, by that of a slow disk, and by what one connection
        carries that takes losses for a full line (Mathis et al. 1997)."""
        rate = self.mbit * 1e6 / 8
        seconds = parallel * size / (min(rate, DISK_RATE) if self.slow_disk else rate)
        if self.loss_percent:
            rate = SEGMENT_BYTES / (self.rtt_ms / 1e3) * 1.22 / (self.loss_percent / 100) ** 0.5
            seconds = max(seconds, size / rate)
        return seconds

    def parallel_for(self, size: str) -> list[int]:
        """The parallelisms that are measured."""
        return [n for n in PARALLEL if self.round_seconds(size_bytes(size), n) <= MOST_ROUND_SECONDS]


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("near", 0.3, 1000),
        Profile("near-slow", 0.3, 100),
        Profile("region", 10, 1000),
        Profile("region-lossy", 10, 1000, 0.1),
        Profile("country", 50, 100),
        Profile("country-lossy", 50, 100, 0.1),
        Profile("ireland", 128, 1000),
        Profile("sydney", 176, 1000),
        Profile("slow-disk", 0.3, 1000, slow_disk=True),
        Profile("one-core", 0.3, 1000, cpus=WEAK_CPUS),
    )
}
RESULTS = Path(__file__).resolve().parent / "grids"


def cells_of(profile: Profile) -> list[dict]:
    """The cells that were measured. A request that lies partly in the time that counts is counted by its time and not by its bytes, so
    that some say more than the line, or the slow disk, can carry: they count for what it can."""
    path = RESULTS / f"{profile.name}.jsonl"
    cells = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for cell in cells:
        cell["mb_per_second"] = min(cell["mb_per_second"], profile.most_mb(cell["direction"]))
    return cells
