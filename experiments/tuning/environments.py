"""The ten environments (client and link) on which plans are evaluated."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lib.testbed import ROOT, Link, Testbed

SIZES = ["1KiB", "4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB"]
CONCURRENCY = [1, 2, 4, 8, 16, 32, 64]
DIRECTIONS = ("put", "get")

# The default of Linux. Packet loss slows it down.
CONGESTION = "cubic"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
# CPU limit of the weak client. The server must stay faster than it.
WEAK_CPUS = 0.25
WRITE_BEHIND = "16MiB"
# Throughput of the slow disk by direction, in MB/s: uploads read it, downloads write it. The best values of the preset of
# `lab disk`. In short measurements caches hold a part of the data, so that measured values can exceed them.
DISK_MB = {"put": 61.59, "get": 23.20}
# The slower direction.
DISK_BYTES_PER_SECOND = DISK_MB["get"] * 1e6
# Points at which one round of requests takes longer are not measured: no useful plan has that much in flight.
MAX_ROUND_SECONDS = 20.0
SEGMENT_BYTES = 1448
PACKET_BYTES = 1500


def commit() -> str:
    """The commit that is measured. Only changes of code make it dirty, not saved results."""
    run = lambda *command: subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: E731
    changed = run("status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock")
    return run("describe", "--always") + ("-dirty" if changed else "")


def size_bytes(text: str) -> int:
    return int(text[:-3]) * UNITS[text[-3:]]


def quantile_ms(latency: dict, fraction: float) -> float:
    """The quantile of a latency histogram, in milliseconds."""
    remaining = fraction * sum(count for _, count in latency["histogram_counts"])
    for value, count in latency["histogram_counts"]:
        remaining -= count
        if remaining <= 0:
            return value / 1e3
    return float("nan")


def mean_ms(latency: dict) -> float:
    """The mean of a latency histogram, in milliseconds."""
    counts = latency["histogram_counts"]
    return sum(value * count for value, count in counts) / sum(count for _, count in counts) / 1e3


@dataclass(frozen=True)
class Environment:
    """A client and its link to the store. With `slow_disk`, its objects are files on a slow disk."""

    name: str
    rtt_ms: float
    mbit: int
    loss_percent: float = 0.0
    slow_disk: bool = False
    cpus: float | None = None

    @property
    def max_link_mb_per_second(self) -> float:
        """The payload bandwidth of the link: packets without their headers."""
        return self.mbit / 8 * SEGMENT_BYTES / PACKET_BYTES

    def max_mb_per_second(self, direction: str) -> float:
        """The payload bandwidth of the link or of the slow disk, whichever is lower."""
        return min(self.max_link_mb_per_second, DISK_MB[direction]) if self.slow_disk else self.max_link_mb_per_second

    def floor_seconds(self, size: int) -> float:
        """The time of `size` bytes at the bandwidth of the link, in seconds."""
        return size / (self.max_link_mb_per_second * 1e6)

    def link(self) -> Link:
        loss = f"{self.loss_percent:g}%" if self.loss_percent else None
        return Link(self.rtt_ms / 2, f"{self.mbit}mbit", loss)

    def command(self, testbed: Testbed, arguments: list) -> list:
        """A measuring command of `tradewind`, run as this client."""
        files = ["--files", testbed.directory / "files"] if self.slow_disk else []
        return self.wrap(testbed, [testbed.binary, *arguments, *files])

    def wrap(self, testbed: Testbed, command: list) -> list:
        """Any command, inside the CPU limit inside the disk limit of this client."""
        if self.cpus:
            command = [testbed.binary, "lab", "client", "--cpus", f"{self.cpus:g}", "--", *command]
        if self.slow_disk:
            files = testbed.directory / "files"
            files.mkdir(exist_ok=True)
            disk = ["--preset", "hou-magnetic", "--write-behind", WRITE_BEHIND, "--loop", "4GiB"]
            command = [testbed.binary, "lab", "disk", *disk, files, "--", *command]
        return command

    def round_seconds(self, size: int, concurrency: int) -> float:
        """A lower bound of the time of concurrent requests: by the rate of the link or of the slow disk, and by the throughput
        of one TCP connection under packet loss (Mathis et al. 1997)."""
        rate = self.mbit * 1e6 / 8
        seconds = concurrency * size / (min(rate, DISK_BYTES_PER_SECOND) if self.slow_disk else rate)
        if self.loss_percent:
            rate = SEGMENT_BYTES / (self.rtt_ms / 1e3) * 1.22 / (self.loss_percent / 100) ** 0.5
            seconds = max(seconds, size / rate)
        return seconds

    def concurrency_for(self, size: str) -> list[int]:
        """The concurrencies to measure for this size."""
        return [n for n in CONCURRENCY if self.round_seconds(size_bytes(size), n) <= MAX_ROUND_SECONDS]


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("near", 0.3, 1000),
        Environment("near-slow", 0.3, 100),
        Environment("region", 10, 1000),
        Environment("region-lossy", 10, 1000, 0.1),
        Environment("country", 50, 100),
        Environment("country-lossy", 50, 100, 0.1),
        Environment("ireland", 128, 1000),
        Environment("sydney", 176, 1000),
        Environment("slow-disk", 0.3, 1000, slow_disk=True),
        Environment("one-core", 0.3, 1000, cpus=WEAK_CPUS),
    )
}
RESULTS = Path(__file__).resolve().parent / "grids"


def load_grid(environment: Environment) -> list[dict]:
    """The measured points of an environment. Requests that overlap the end of a measurement are counted by time, not by bytes,
    so that some points exceed the bandwidth of the link or of the slow disk; they are capped at it."""
    path = RESULTS / f"{environment.name}.jsonl"
    points = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for point in points:
        point["mb_per_second"] = min(point["mb_per_second"], environment.max_mb_per_second(point["direction"]))
    return points
