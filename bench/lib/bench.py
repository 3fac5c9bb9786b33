"""What every part of the benchmark shares: settings, data places, starting servers, the rule of quiet."""

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
from lib.quiet import Bystanders, Usage, look
from lib.servers import Server

Result = TypeVar("Result")

# How long a round is tried again while the machine is not quiet.
PATIENCE_SECONDS = 600


class NotQuiet(Exception):
    """Other work is running: no figure may be reported."""


class NoRoom(Exception):
    """A data place is too small for a block of the benchmark."""


@dataclass
class Place:
    """Where servers keep their data."""

    name: str
    path: Path


@dataclass
class Bench:
    servers: list[Server]
    places: list[Place]
    generators: Generators
    rounds: int
    seconds: int
    connections: int
    force: bool
    fill_limit: float
    samples: list[dict] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    worst: Usage = field(default_factory=lambda: Usage(0.0, 0.0, 0.0))

    def say(self, text: str) -> None:
        print(text, flush=True)

    def skip(self, text: str) -> None:
        self.say(f"skipped {text}")
        self.skipped.append(text)

    def require_quiet(self, seconds: float, ours: list[Running]) -> None:
        """Refuses to go on while others use the machine, unless forced."""
        usage = look(seconds, ours)
        if not usage.is_quiet():
            if not self.force:
                raise NotQuiet(f"{usage}; end that work, or use --force for figures marked NOT QUIET")
            self.note(usage)

    def note(self, usage: Usage) -> None:
        """Remembers the worst of any interval in which anything was measured."""
        foreign = max(usage.foreign_cores, self.worst.foreign_cores)
        self.worst = Usage(foreign, max(usage.steal_cores, self.worst.steal_cores), usage.seconds)

    @contextmanager
    def scratch(self, place: Place) -> Iterator[Path]:
        """A directory in a place, removed with all that is in it."""
        root = place.path / f"tradewind-bench-{os.getpid()}"
        root.mkdir(parents=True, exist_ok=True)
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    @contextmanager
    def running(self, server: Server, root: Path, limit: float = 60.0) -> Iterator[Running]:
        """A ready server, stopped at the end whatever happens."""
        started = Running(server, root / server.data_name(), root / f"run-{server.name.replace(':', '-')}")
        try:
            started.wait_ready(limit)
            yield started
        finally:
            started.stop()

    def require_room(self, place: Place, needed_bytes: int) -> None:
        free = shutil.disk_usage(place.path).free
        if place.path.is_relative_to("/dev/shm"):
            free = min(free, available_memory() - (2 << 30))
        if free < needed_bytes:
            raise NoRoom(f"{place.name} has {free >> 20} MiB free, {needed_bytes >> 20} MiB are needed")

    def quietly(self, attempt: Callable[[], tuple[Usage, Result]]) -> tuple[Usage, Result]:
        """Calls `attempt`, which says what others did meanwhile, until they left it alone."""
        begun = time.monotonic()
        for number in itertools.count(1):
            usage, result = attempt()
            if usage.is_quiet() or self.force:
                self.note(usage)
                return usage, result
            self.say(f"    {usage}: attempt {number} at this round thrown away")
            if time.monotonic() - begun > PATIENCE_SECONDS:
                break
            time.sleep(min(5 * number, 30))
        raise NotQuiet(f"the machine was not quiet for {PATIENCE_SECONDS / 60:.0f} minutes of attempts at one round")

    def measured(self, running: Running, ours: list[Running], run) -> tuple[object, dict]:
        """Calls `run` and returns its result with what the machine did meanwhile; again if others disturbed it."""

        def attempt() -> tuple[Usage, tuple[object, dict]]:
            before = running.cpu_seconds()
            watch = Bystanders(ours)
            result, extra = run()
            usage = watch.usage()
            extra["cpu_seconds"] -= before
            return usage, (result, extra)

        usage, (result, extra) = self.quietly(attempt)
        return result, {**extra, **usage.sample()}


def rotated(items: list, by: int) -> list:
    """The items in an order that changes from round to round, so that nobody always comes first."""
    by %= max(1, len(items))
    return items[by:] + items[:by]


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def remove_leftovers(place: Place) -> None:
    """Ends the servers and removes the data of runs that were killed: known by their working directory."""
    for directory in place.path.glob("tradewind-bench-*"):
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


def default_objects(size: int, most: int) -> Objects:
    """As many distinct objects as make about 640 MB, at most `most`, at least one for each of 40 uploads."""
    return Objects(size, max(40, min(most, 640_000_000 // size)))
