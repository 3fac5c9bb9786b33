"""GET and PUT by size: the same load on every server, in rounds of rotated order.

GET: each server is filled with the same objects, restarted, verified completely by loadgen, and then paused (SIGSTOP)
except while it is measured. PUT: each round starts with an empty data directory. The CPU time includes work after the
last response (up to 5 s), so that deferring work gives no advantage.
"""

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator

from lib.bench import Bench, InsufficientSpace, Location, default_objects, rotated, size_name
from lib.generators import GeneratorFailed, Objects, Outcome
from lib.process import MemoryWatch, Running, ServerFailed

WARM_UP_SECONDS = 1
MAX_PUT_BYTES = 4 << 30


def speed(bench: Bench, operations: list[str], sizes: list[int], max_objects: int, get_generator: str) -> None:
    for location in bench.locations:
        for size in sizes:
            objects = default_objects(size, max_objects)
            for operation in operations:
                try:
                    if operation == "GET":
                        _get_block(bench, location, objects, get_generator)
                    else:
                        for connections in dict.fromkeys((bench.connections, 1)):
                            _put_block(bench, location, objects, connections)
                except InsufficientSpace as reason:
                    bench.skip(f"{operation} {size_name(size)} on {location.name}: {reason}")


class _Block:
    """One operation and size. A server with a wrong response in any round is excluded from all rounds."""

    def __init__(self, bench: Bench, title: str):
        self.bench = bench
        self.title = title
        self.first_sample = len(bench.samples)
        self.failed: set[str] = set()

    @contextmanager
    def server(self, name: str) -> Iterator[bool]:
        """Yields true if the server has not been excluded."""
        try:
            yield name not in self.failed
        except (GeneratorFailed, ServerFailed) as reason:
            self.failed.add(name)
            self.bench.skip(f"{self.title}: {reason}")
            mine = self.bench.samples[self.first_sample :]
            self.bench.samples[self.first_sample :] = [each for each in mine if each["server"] != name]


def _get_generators(bench: Bench, choice: str, size: int) -> list[str]:
    """The generators to use. wrk reads 8 KiB per call, which makes it the bottleneck above 64 KiB."""
    if choice == "auto":
        choice = "wrk" if size <= 64 << 10 else "loadgen"
    wanted = ["wrk", "loadgen"] if choice == "both" else [choice]
    return [name for name in wanted if name != "wrk" or bench.generators.wrk] or ["loadgen"]


def _get_block(bench: Bench, location: Location, objects: Objects, generator_choice: str) -> None:
    bench.log(f"GET {size_name(objects.size)} on {location.name}: {objects.count} objects")
    servers = len({server.data_name() for server in bench.servers})
    bench.require_space(location, servers * objects.count * (objects.size + 8192) * 5 // 4)
    block = _Block(bench, f"GET {size_name(objects.size)} on {location.name}")
    with bench.scratch(location) as root, ExitStack() as stack:
        started = _filled_servers(bench, root, stack, objects)
        for number in range(bench.rounds):
            for running in rotated(started, number):
                for generator in _get_generators(bench, generator_choice, objects.size):
                    with block.server(running.server.name) as wanted:
                        if not wanted:
                            continue
                        running.resume()
                        try:
                            _get_round(bench, location, running, started, objects, root, generator, number)
                        finally:
                            running.pause()


def _filled_servers(bench: Bench, root: Path, stack: ExitStack, objects: Objects) -> list[Running]:
    """Fills, restarts, verifies and pauses every server. A server that fails is excluded from the block."""
    if any(server.is_static for server in bench.servers):
        bench.generators.fill_directory(root / "static", objects, bench.fill_limit)
    started: list[Running] = []
    for server in bench.servers:
        attempt = ExitStack()
        try:
            if not server.is_static:
                with bench.running(server, root) as running:
                    outcome = bench.generators.fill(running, objects, bench.fill_limit)
                    bench.log(f"  {server.name}: filled at {outcome.operations / outcome.seconds:,.0f}/s")
                    running.wait_until_idle()
            running = attempt.enter_context(bench.running(server, root))
            bench.generators.verify(running, objects, bench.fill_limit)
            bench.generators.presign(running, objects, _paths(root, running))
        except (GeneratorFailed, ServerFailed) as reason:
            bench.skip(f"GET {size_name(objects.size)}: {reason}")
            attempt.close()
            continue
        stack.push(attempt.pop_all())
        running.wait_until_idle()
        running.pause()
        started.append(running)
    os.sync()
    return started


def _paths(root: Path, running: Running) -> Path:
    return root / f"paths-{running.server.name.replace(':', '-')}"


def _get_round(
    bench: Bench,
    location: Location,
    running: Running,
    ours: list[Running],
    objects: Objects,
    root: Path,
    generator: str,
    number: int,
) -> None:
    def drive(seconds: int, seed: int) -> Outcome:
        if generator == "wrk":
            paths = _paths(root, running)
            return bench.generators.wrk_get(running, objects, paths, bench.connections, seconds, seed)
        return bench.generators.get(running, objects, bench.connections, seconds, seed)

    def run() -> tuple[Outcome, dict]:
        with MemoryWatch(running) as memory:
            outcome = drive(bench.seconds, number + 1)
        return outcome, _statistics(running, memory)

    drive(WARM_UP_SECONDS, 1000 + number)
    outcome, extra = bench.measured(running, ours, run)
    _add_sample(bench, "GET", location, objects, bench.connections, running, number, outcome, extra)


def _put_block(bench: Bench, location: Location, objects: Objects, connections: int) -> None:
    title = f"PUT {size_name(objects.size)} on {location.name}, connections: {connections}"
    bench.log(title)
    block = _Block(bench, title)
    bench.require_space(location, MAX_PUT_BYTES * 3 // 2)
    writable = [server for server in bench.servers if not server.is_static]
    for number in range(bench.rounds):
        for server in rotated(writable, number):
            with block.server(server.name) as wanted:
                if not wanted:
                    continue
                with bench.scratch(location) as root, bench.running(server, root) as running:
                    _put_round(bench, location, running, objects, connections, number)
            os.sync()  # writeback of one server must not slow the next one down


def _put_round(
    bench: Bench, location: Location, running: Running, objects: Objects, connections: int, number: int
) -> None:
    warm = Objects(objects.size, 40, prefix="warm/")
    bench.generators.put(running, warm, connections, WARM_UP_SECONDS, 1000 + number, MAX_PUT_BYTES // 8)
    running.wait_until_idle()

    def run() -> tuple[Outcome, dict]:
        with MemoryWatch(running) as memory:
            outcome = bench.generators.put(
                running, objects, connections, bench.seconds, number + 1, MAX_PUT_BYTES
            )
            at_end = running.cpu_seconds()
            running.wait_until_idle()
        extra = _statistics(running, memory)
        extra["cpu_seconds_after_load"] = extra["cpu_seconds"] - at_end
        return outcome, extra

    outcome, extra = bench.measured(running, [running], run)
    _add_sample(bench, "PUT", location, objects, connections, running, number, outcome, extra)


def _statistics(running: Running, memory: MemoryWatch) -> dict:
    return {
        "cpu_seconds": running.cpu_seconds(),
        "peak_anonymous_bytes": memory.peak.anonymous,
        "peak_resident_bytes": memory.peak.resident,
    }


def _add_sample(
    bench: Bench,
    operation: str,
    location: Location,
    objects: Objects,
    connections: int,
    running: Running,
    number: int,
    outcome: Outcome,
    extra: dict,
) -> None:
    objects_moved = outcome.payload_bytes / objects.size
    cpu = extra["cpu_seconds"]
    sample = {
        "location": location.name,
        "operation": operation,
        "size": objects.size,
        "objects": objects.count,
        "connections": connections,
        "server": running.server.name,
        "generator": outcome.generator,
        "round": number,
        "operations": outcome.operations,
        "payload_bytes": outcome.payload_bytes,
        "seconds": outcome.seconds,
        "operations_per_second": outcome.operations / outcome.seconds,
        "megabytes_per_second": outcome.payload_bytes / outcome.seconds / 1e6,
        "cpu_ms_per_1000": cpu / objects_moved * 1e6,
        "cpu_seconds_per_gigabyte": cpu / outcome.payload_bytes * 1e9,
        "p50_ms": outcome.p50 / 1e3,
        "p99_ms": outcome.p99 / 1e3,
        "p99.9_ms": outcome.p999 / 1e3,
        "max_ms": outcome.maximum / 1e3,
        "client_cpu_seconds": outcome.client_cpu_seconds,
        **extra,
    }
    bench.samples.append(sample)
    bench.log(
        f"  round {number + 1} {running.server.name:<17} {sample['operations_per_second']:>10,.0f}/s "
        f"{sample['megabytes_per_second']:>8,.0f} MB/s  CPU {sample['cpu_ms_per_1000']:>9,.1f} ms/1000 "
        f"{sample['cpu_seconds_per_gigabyte']:>7.3f} s/GB  p50 {sample['p50_ms']:.2f} p99 {sample['p99_ms']:.2f} ms "
        f"({outcome.generator})"
    )
