"""The clients of the paper, scaled down to one machine: how measuring commands run, and their results."""

import json
from dataclasses import dataclass, field, replace

from lib.testbed import Failed, Link, Testbed

BUCKET = "s3://figures"
RATE = "656mbit"
# The store of the paper has an RTT of 0.28 ms and needs some 35 ms for a small request; this one needs 0.1 ms. The link
# adds a part of that time, so that requests wait for the store here too.
SERVICE_TIME_MS = 5.0
NEAR, FAR = (Link((rtt_ms + SERVICE_TIME_MS) / 2, RATE) for rtt_ms in (0.28, 176))
# CPU limit of the client (the paper's has two CPUs): low enough that the client is the bottleneck, not the server.
CPUS = 0.2
# Limit of dirty pages of a disk. The clients of the paper ran until their memory was full of them.
WRITE_BEHIND = "16MiB"
MIN_FILE_SECONDS = 8.0


@dataclass(frozen=True)
class Client:
    """The properties of a client, of which each figure varies one. `files` is the medium of its objects: "magnetic" and "ssd"
    are disks, "memory" is a file system in memory, `None` means no files."""

    cpus: float = CPUS
    files: str | None = None
    link: Link = NEAR

    def command(self, testbed: Testbed, arguments: list) -> list:
        """The command inside the CPU limit inside the disk limit."""
        command = [testbed.binary, "lab", "client", "--cpus", f"{self.cpus:g}", "--", testbed.binary, *arguments]
        if not self.files:
            return command
        files = testbed.directory / "files"
        files.mkdir(exist_ok=True)
        command += ["--files", files]
        if self.files == "memory":
            return command
        disk = ["--preset", f"hou-{self.files}", "--write-behind", WRITE_BEHIND, "--loop", "3GiB"]
        return [testbed.binary, "lab", "disk", *disk, files, "--", *command]


@dataclass(frozen=True)
class Point:
    """The result of one operation, size and concurrency."""

    megabytes_per_second: float
    requests_per_second: float
    cpus: float  # mean number of CPUs used
    latencies: list = field(repr=False)  # pairs of microseconds and count, in ascending order

    def latency(self, fraction: float) -> float:
        """The quantile of the latency, in milliseconds."""
        remaining = fraction * sum(count for _, count in self.latencies)
        for value, count in self.latencies:
            remaining -= count
            if remaining <= 0:
                return value / 1e3
        raise Failed("no request started during the measurement: increase --seconds")

    def median(self) -> float:
        return self.latency(0.5)


@dataclass
class Measurements:
    """The measurements of a command."""

    lines: list

    def points(self, operation: str, size: str, concurrent_with: str | None = None) -> dict[int, Point]:
        """The points of one operation and size, by concurrency."""
        wanted = (operation, size, [concurrent_with] if concurrent_with else [])
        points = {}
        for line in self.lines:
            if (line["mix"], line["sizes"], line.get("concurrent_with", [])) == wanted:
                points[line["concurrency"]] = point(line, operation)
        return points


def point(measurement: dict, operation: str) -> Point:
    figures = measurement["operations"][operation]
    if any(figures["failures"].values()):
        raise Failed(f"{operation} {measurement['sizes']}: {figures['failure_samples']}")
    cpus = measurement.get("cpu_seconds", 0) / measurement["measured_seconds"]
    latencies = figures["latency_us"]["histogram_counts"]
    return Point(figures["bytes_per_second"] / 1e6, figures["requests_per_second"], cpus, latencies)


@dataclass
class Bench:
    """Runs measurements in a testbed, each for `seconds`."""

    testbed: Testbed
    seconds: float
    objects: int

    def with_long_measurements(self) -> "Bench":
        """A copy for requests that take seconds, such as concurrent requests to files on a disk or over a long link."""
        return replace(self, seconds=max(self.seconds, MIN_FILE_SECONDS))

    def measure(self, client: Client, sizes: str, concurrency: str, mix: str | None = None) -> Measurements:
        """Measures uploads and downloads (or the given mix) of each size with each concurrency."""
        mixes = ["--mix", mix] if mix else []
        min_objects = max(map(int, concurrency.split(",")))
        return self._run(client, ["object", BUCKET, *mixes, "--size", sizes, "--concurrency", concurrency], min_objects)

    def measure_interference(self, client: Client, load: list[str], others: list[str]) -> Measurements:
        """Measures the load alone and concurrently with each of the others; without others, uploads with downloads."""
        flags = [flag for other in others for flag in ("--concurrent-with", other)]
        return self._run(client, ["mix", BUCKET, *load, *flags])

    def _run(self, client: Client, arguments: list[str], min_objects: int = 0) -> Measurements:
        limits = ["--time", f"{self.seconds:g}s", "--warm-up", "1s", "--objects", str(max(self.objects, min_objects))]
        command = client.command(self.testbed, ["bench", *arguments, *limits, "--json", "--no-out"])
        cost = self.testbed.run_remote_command(client.link, command, limit=1800)
        lines = [json.loads(line) for line in cost.output.splitlines()]
        return Measurements([line for line in lines if line["line"] == "measurement"])
