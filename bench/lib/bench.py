"""Shared by all parts of the benchmark: settings, data locations, starting of servers, and the check that the machine is idle."""

import itertools
import os
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, TypeVar

from lib.generators import Generators, Objects
from lib.process import Running, processes
from lib.quiet import ForeignLoad, Usage, measure_usage
from lib.servers import Server

Result = TypeVar("Result")

# A round is repeated for at most this long while the machine is not idle.
MAX_RETRY_SECONDS = 600


class NotQuiet(Exception):
    """Other work is running: results would be unreliable."""


class InsufficientSpace(Exception):
    """A data location is too small for a block of the benchmark."""


@dataclass
class Location:
    """A directory for the data of servers."""

    name: str
    path: Path


@dataclass
class Bench:
    servers: list[Server]
    locations: list[Location]
    generators: Generators
    rounds: int
    seconds: int
    connections: int
    force: bool
    fill_limit: float
    samples: list[dict] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    worst: Usage = field(default_factory=lambda: Usage(0.0, 0.0, 0.0))

    def log(self, text: str) -> None:
        print(text, flush=True)

    def skip(self, text: str) -> None:
        self.log(f"skipped {text}")
        self.skipped.append(text)

    def require_quiet(self, seconds: float, ours: list[Running]) -> None:
        """Fails if other processes use the machine, unless --force was given."""
        usage = measure_usage(seconds, ours)
        if not usage.is_quiet():
            if not self.force:
                raise NotQuiet(f"{usage}; stop other work, or use --force (results are then marked NOT QUIET)")
            self.note(usage)

    def note(self, usage: Usage) -> None:
        """Updates the highest foreign load of all measured intervals."""
        foreign = max(usage.foreign_cores, self.worst.foreign_cores)
        self.worst = Usage(foreign, max(usage.steal_cores, self.worst.steal_cores), usage.seconds)

    @contextmanager
    def scratch(self, location: Location) -> Iterator[Path]:
        """A temporary directory in a location, removed at the end of the context."""
        root = location.path / f"tradewind-bench-{os.getpid()}"
        root.mkdir(parents=True, exist_ok=True)
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    @contextmanager
    def running(self, server: Server, root: Path, limit: float = 60.0) -> Iterator[Running]:
        """A ready server, stopped at the end of the context."""
        started = Running(server, root / server.data_name(), root / f"run-{server.name.replace(':', '-')}")
        try:
            started.wait_ready(limit)
            yield started
        finally:
            started.stop()

    def require_space(self, location: Location, needed_bytes: int) -> None:
        free = shutil.disk_usage(location.path).free
        if location.path.is_relative_to("/dev/shm"):
            free = min(free, available_memory() - (2 << 30))
        if free < needed_bytes:
            raise InsufficientSpace(f"{location.name} has {free >> 20} MiB free, {needed_bytes >> 20} MiB are needed")

    def retry_until_quiet(self, attempt: Callable[[], tuple[Usage, Result]]) -> tuple[Usage, Result]:
        """Calls `attempt`, which returns the foreign load during its run, until the machine was idle during a run."""
        start = time.monotonic()
        for number in itertools.count(1):
            usage, result = attempt()
            if usage.is_quiet() or self.force:
                self.note(usage)
                return usage, result
            self.log(f"    {usage}: attempt {number} of this round discarded")
            if time.monotonic() - start > MAX_RETRY_SECONDS:
                break
            time.sleep(min(5 * number, 30))
        raise NotQuiet(f"the machine was not idle during {MAX_RETRY_SECONDS / 60:.0f} minutes of attempts at one round")

    def measured(self, running: Running, ours: list[Running], run) -> tuple[object, dict]:
        """Calls `run` and returns its result with the load of the machine; repeats it if other processes interfered."""

        def attempt() -> tuple[Usage, tuple[object, dict]]:
            before = running.cpu_seconds()
            load = ForeignLoad(ours)
            result, extra = run()
            usage = load.usage()
            extra["cpu_seconds"] -= before
            return usage, (result, extra)

        usage, (result, extra) = self.retry_until_quiet(attempt)
        return result, {**extra, **usage.sample()}


def rotated(items: list, by: int) -> list:
    """The items, rotated by the number of the round, so that no item always comes first."""
    by %= max(1, len(items))
    return items[by:] + items[:by]


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def remove_leftovers(location: Location) -> None:
    """Ends servers of killed runs, found by their working directory, and removes their data."""
    for directory in location.path.glob("tradewind-bench-*"):
        owner = directory.name.rpartition("-")[2]
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        for pid in processes():
            try:
                if Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(directory):
                    os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
        shutil.rmtree(directory, ignore_errors=True)


def size_name(size: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % step == 0 and size >= step:
            return f"{size // step} {unit}"
    return f"{size} B"


def default_objects(size: int, max_objects: int) -> Objects:
    """Distinct objects with about 640 MB in total, at least 40 and at most `max_objects`."""
    return Objects(size, max(40, min(max_objects, 640_000_000 // size)))
