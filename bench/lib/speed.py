"""GET and PUT by size: the same load on every server in turn, in rounds of rotated order.

GET: each server is filled with the same objects, restarted, read once in full by the checking generator, and then
parked (SIGSTOP) except while it is measured. PUT: each round begins with an empty data directory; the CPU time
includes what the server still does after the last answer (up to 5 s), so that deferring work does not pay.
"""

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator

from lib.bench import Bench, NoRoom, Place, default_objects, rotated, size_name
from lib.generators import GeneratorFailed, Objects, Outcome
from lib.process import MemoryWatch, Running, ServerFailed

WARM_UP_SECONDS = 1
MOST_PUT_BYTES = 4 << 30


def speed(bench: Bench, operations: list[str], sizes: list[int], most_objects: int, get_generator: str) -> None:
    for place in bench.places:
        for size in sizes:
            objects = default_objects(size, most_objects)
            for operation in operations:
                try:
                    if operation == "GET":
                        _get_block(bench, place, objects, get_generator)
                    else:
                        for connections in dict.fromkeys((bench.connections, 1)):
                            _put_block(bench, place, objects, connections)
                except NoRoom as reason:
                    bench.skip(f"{operation} {size_name(size)} on {place.name}: {reason}")


class _Block:
    """One operation and size: a server that answers anything wrongly in any round is left out of all of it."""

    def __init__(self, bench: Bench, title: str):
        self.bench = bench
        self.title = title
        self.first_sample = len(bench.samples)
        self.failed: set[str] = set()

    @contextmanager
    def server(self, name: str) -> Iterator[bool]:
        """Yields whether the server still takes part."""
        try:
            yield name not in self.failed
        except (GeneratorFailed, ServerFailed) as reason:
            self.failed.add(name)
            self.bench.skip(f"{self.title}: {reason}")
            mine = self.bench.samples[self.first_sample :]
            self.bench.samples[self.first_sample :] = [each for each in mine if each["server"] != name]


def _get_generators(bench: Bench, choice: str, size: int) -> list[str]:
    """wrk reads 8 KiB at a time, which makes it the bottleneck above 64 KiB."""
    if choice == "auto":
        choice = "wrk" if size <= 64 << 10 else "loadgen"
    wanted = ["wrk", "loadgen"] if choice == "both" else [choice]
    return [name for name in wanted if name != "wrk" or bench.generators.wrk] or ["loadgen"]


def _get_block(bench: Bench, place: Place, objects: Objects, generator_choice: str) -> None:
    bench.say(f"GET {size_name(objects.size)} on {place.name}: {objects.count} objects")
    servers = len({server.data_name() for server in bench.servers})
    bench.require_room(place, servers * objects.count * (objects.size + 8192) * 5 // 4)
    block = _Block(bench, f"GET {size_name(objects.size)} on {place.name}")
    with bench.scratch(place) as root, ExitStack() as stack:
        started = _filled_servers(bench, root, stack, objects)
        for number in range(bench.rounds):
            for running in rotated(started, number):
                for generator in _get_generators(bench, generator_choice, objects.size):
                    with block.server(running.server.name) as wanted:
                        if not wanted:
                            continue
                        running.unpark()
                        try:
                            _get_round(bench, place, running, started, objects, root, generator, number)
                        finally:
                            running.park()


def _filled_servers(bench: Bench, root: Path, stack: ExitStack, objects: Objects) -> list[Running]:
    """Fills, restarts, verifies and parks every server; one that fails is left out of the block."""
    if any(server.is_static for server in bench.servers):
        bench.generators.fill_directory(root / "static", objects, bench.fill_limit)
    started: list[Running] = []
    for server in bench.servers:
        attempt = ExitStack()
        try:
            if not server.is_static:
                with bench.running(server, root) as running:
                    outcome = bench.generators.fill(running, objects, bench.fill_limit)
                    bench.say(f"  {server.name}: filled at {outcome.operations / outcome.seconds:,.0f}/s")
                    running.settle()
            running = attempt.enter_context(bench.running(server, root))
            bench.generators.verify(running, objects, bench.fill_limit)
            bench.generators.presign(running, objects, _paths(root, running))
        except (GeneratorFailed, ServerFailed) as reason:
            bench.skip(f"GET {size_name(objects.size)}: {reason}")
            attempt.close()
            continue
        stack.push(attempt.pop_all())
        running.settle()
        running.park()
        started.append(running)
    os.sync()
    return started


def _paths(root: Path, running: Running) -> Path:
    return root / f"paths-{running.server.name.replace(':', '-')}"


def _get_round(
    bench: Bench,
    place: Place,
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
        return outcome, _observed(running, memory)

    drive(WARM_UP_SECONDS, 1000 + number)
    outcome, extra = bench.measured(running, ours, run)
    _keep(bench, "GET", place, objects, bench.connections, running, number, outcome, extra)


def _put_block(bench: Bench, place: Place, objects: Objects, connections: int) -> None:
    title = f"PUT {size_name(objects.size)} on {place.name}, connections: {connections}"
    bench.say(title)
    block = _Block(bench, title)
    bench.require_room(place, MOST_PUT_BYTES * 3 // 2)
    able = [server for server in bench.servers if not server.is_static]
    for number in range(bench.rounds):
        for server in rotated(able, number):
            with block.server(server.name) as wanted:
                if not wanted:
                    continue
                with bench.scratch(place) as root, bench.running(server, root) as running:
                    _put_round(bench, place, running, objects, connections, number)
            os.sync()  # what one server left in the page cache is not written back on the next one's time


def _put_round(
    bench: Bench, place: Place, running: Running, objects: Objects, connections: int, number: int
) -> None:
    warm = Objects(objects.size, 40, prefix="warm/")
    bench.generators.put(running, warm, connections, WARM_UP_SECONDS, 1000 + number, MOST_PUT_BYTES // 8)
    running.settle()

    def run() -> tuple[Outcome, dict]:
        with MemoryWatch(running) as memory:
            outcome = bench.generators.put(
                running, objects, connections, bench.seconds, number + 1, MOST_PUT_BYTES
            )
            at_end = running.cpu_seconds()
            running.settle()
        extra = _observed(running, memory)
        extra["cpu_seconds_after_load"] = extra["cpu_seconds"] - at_end
        return outcome, extra

    outcome, extra = bench.measured(running, [running], run)
    _keep(bench, "PUT", place, objects, connections, running, number, outcome, extra)


def _observed(running: Running, memory: MemoryWatch) -> dict:
    return {
        "cpu_seconds": running.cpu_seconds(),
        "peak_anonymous_bytes": memory.peak.anonymous,
        "peak_resident_bytes": memory.peak.resident,
    }


def _keep(
    bench: Bench,
    operation: str,
    place: Place,
    objects: Objects,
    connections: int,
    running: Running,
    number: int,
    outcome: Outcome,
    extra: dict,
) -> None:
    whole = outcome.payload_bytes / objects.size
    cpu = extra["cpu_seconds"]
    sample = {
        "place": place.name,
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
        "cpu_ms_per_1000": cpu / whole * 1e6,
        "cpu_seconds_per_gigabyte": cpu / outcome.payload_bytes * 1e9,
        "p50_ms": outcome.p50 / 1e3,
        "p99_ms": outcome.p99 / 1e3,
        "p99.9_ms": outcome.p999 / 1e3,
        "max_ms": outcome.maximum / 1e3,
        "client_cpu_seconds": outcome.client_cpu_seconds,
        **extra,
    }
    bench.samples.append(sample)
    bench.say(
        f"  round {number + 1} {running.server.name:<17} {sample['operations_per_second']:>10,.0f}/s "
        f"{sample['megabytes_per_second']:>8,.0f} MB/s  CPU {sample['cpu_ms_per_1000']:>9,.1f} ms/1000 "
        f"{sample['cpu_seconds_per_gigabyte']:>7.3f} s/GB  p50 {sample['p50_ms']:.2f} p99 {sample['p99_ms']:.2f} ms "
        f"({outcome.generator})"
    )
