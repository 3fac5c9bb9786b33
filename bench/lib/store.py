"""LIST over a million keys, memory with ten million objects, and the time to open the store.

The targets are absolute, so that only this server is measured unless others are requested: filling a server that stores
one file per object with millions of objects takes hours.
"""

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from lib.bench import Bench, Location
from lib.generators import BUCKET, GeneratorFailed, Objects
from lib.process import MemoryWatch, Running, ServerFailed, killed_with_parent
from lib.servers import ACCESS_KEY, SECRET_KEY, Server
from lib.targets import OURS, Target

MIB = 1 << 20
TINY_BYTES = 100
UPLOAD_BYTES = 64 * MIB
UPLOADS = 64


class Parts:
    """Runs the parts that need a filled store. `memory` and `open` use the same one."""

    def __init__(self, bench: Bench, location: Location, cold: bool, repeat: int):
        self.bench = bench
        self.location = location
        self.cold = cold
        self.repeat = repeat
        self.rows: dict[str, list[dict]] = {}
        self.targets: list[Target] = []

    def listing(self, count: int) -> None:
        objects = Objects(TINY_BYTES, count, spread=10)
        for server in self._servers("list"):
            with self.bench.scratch(self.location) as root, ExitStack() as stack:
                try:
                    running = stack.enter_context(self.bench.running(server, root, 300))
                    self._fill(running, objects)
                    running.wait_until_idle()
                    for mode, repeat in (("delimiter", 200), ("page", 500), ("walk", count // 1000 + 1)):
                        self._time_list(running, objects, mode, repeat)
                except (GeneratorFailed, ServerFailed) as reason:
                    self.bench.skip(f"list: {reason}")

    def _time_list(self, running: Running, objects: Objects, mode: str, repeat: int) -> None:
        def run():
            outcome = self.bench.generators.list_objects(running, objects, mode, repeat, 120)
            return outcome, {"cpu_seconds": running.cpu_seconds()}

        outcome, extra = self.bench.measured(running, [running], run)
        row = {
            "server": running.server.name,
            "keys": f"{objects.count:,}",
            "request": mode,
            "requests": outcome.operations,
            "p50 ms": round(outcome.p50 / 1e3, 2),
            "p99 ms": round(outcome.p99 / 1e3, 2),
            "max ms": round(outcome.maximum / 1e3, 2),
            "CPU ms / request": round(extra["cpu_seconds"] / outcome.operations * 1e3, 3),
        }
        self._row("list", row)
        if running.server.name == OURS:
            limit, name = (10, "LIST with delimiter") if mode == "delimiter" else (20, f"LIST page ({mode})")
            self.targets.append(Target(f"{name} of {objects.count:,} keys, p99", limit, outcome.p99 / 1e3, " ms"))

    def filled(self, count: int, parts: list[str]) -> None:
        """`memory` and `open` over `count` tiny objects."""
        objects = Objects(TINY_BYTES, count, spread=100)
        for server in self._servers(" and ".join(parts)):
            with self.bench.scratch(self.location) as root:
                try:
                    with self.bench.running(server, root, 300) as running:
                        with MemoryWatch(running) as memory:
                            self._fill(running, objects)
                        self._memory_row(server, f"filling {count:,} objects", memory)
                        if "memory" in parts:
                            self._memory_under_load(running, objects)
                    if "open" in parts:
                        self._open(server, root, objects)
                except (GeneratorFailed, ServerFailed) as reason:
                    self.bench.skip(f"{' and '.join(parts)}: {reason}")

    def _memory_under_load(self, running: Running, objects: Objects) -> None:
        bench = self.bench
        with MemoryWatch(running) as memory:
            bench.generators.get(running, objects, bench.connections, max(30, bench.seconds), 1)
        self._memory_row(running.server, f"random GET over {objects.count:,} objects", memory, limit=256)
        uploads = Objects(UPLOAD_BYTES, UPLOADS, prefix="large/", spread=0)
        with MemoryWatch(running) as memory:
            bench.generators.put(running, uploads, UPLOADS, max(20, bench.seconds), 1, 12 << 30)
        self._memory_row(running.server, f"{UPLOADS} concurrent 64 MiB PUTs", memory, limit=256)

    def _memory_row(self, server: Server, load: str, memory: MemoryWatch, limit: float | None = None) -> None:
        anonymous = memory.peak.anonymous / MIB
        resident = round(memory.peak.resident / MIB, 1)
        self._row(
            "memory",
            {
                "server": server.name,
                "load": load,
                "peak anonymous MiB": round(anonymous, 1),
                "peak resident MiB": resident,
            },
        )
        if limit is not None and server.name == OURS:
            self.targets.append(Target(f"anonymous memory, {load}", limit, anonymous, " MiB"))

    def _open(self, server: Server, root: Path, objects: Objects) -> None:
        for number in range(self.repeat):
            self._drop_caches()
            clean = Running(server, root / server.data_name(), root / "run-clean")
            try:
                after_clean = clean.wait_ready(300)
                self._kill_under_load(clean, number)
            finally:
                clean.stop()
            self._drop_caches()
            again = Running(server, root / server.data_name(), root / "run-killed")
            try:
                after_kill = again.wait_ready(300)
                # Verifies a sample: the open counts only if objects are intact.
                sample = Objects(objects.size, objects.count, objects.prefix, objects.spread)
                self.bench.generators.get(again, sample, 8, 2, number + 1)
            finally:
                again.stop()
            caches = "dropped" if self.cold else "warm"
            for title, seconds, limit in (("clean stop", after_clean, 3), ("SIGKILL under PUTs", after_kill, 5)):
                row = {
                    "server": server.name,
                    "objects": f"{objects.count:,}",
                    "opened after": title,
                    "page cache": caches,
                    "seconds to ready": round(seconds, 3),
                }
                self._row("open", row)
                if server.name == OURS:
                    name = f"open after {title}, {objects.count:,} objects, caches {caches}"
                    self.targets.append(Target(name, limit, seconds, " s"))

    def _kill_under_load(self, running: Running, number: int) -> None:
        """Writes 4 KiB objects for five seconds and kills the server during the load."""
        command = [str(self.bench.generators.loadgen), "put", "--endpoint", running.endpoint, "--bucket", BUCKET]
        command += ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, "--prefix", f"late{number}/"]
        command += ["--count", "100000", "--size", "4096", "--seconds", "30", "--etag", running.server.etag]
        load = subprocess.Popen(killed_with_parent(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(5)
            if load.poll() is not None:
                raise GeneratorFailed(f"{running.server.name}: PUTs ended before the kill")
            running.kill()
        finally:
            load.kill()
            load.wait()

    def _drop_caches(self) -> None:
        if self.cold:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def _fill(self, running: Running, objects: Objects) -> None:
        outcome = self.bench.generators.fill(running, objects, self.bench.fill_limit)
        rate = outcome.operations / outcome.seconds
        self.bench.log(f"  {running.server.name}: {objects.count:,} objects at {rate:,.0f}/s")

    def _servers(self, part: str) -> list[Server]:
        writable = [server for server in self.bench.servers if not server.is_static]
        self.bench.log(f"{part} on {self.location.name}: {', '.join(server.name for server in writable) or 'no server'}")
        return writable

    def _row(self, part: str, row: dict) -> None:
        self.rows.setdefault(part, []).append(row)
        self.bench.log("  " + ", ".join(f"{name} {value}" for name, value in row.items()))
