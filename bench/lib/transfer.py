"""Copies by transfer clients: each client uploads and downloads the same tree, in rounds of rotated order.

Up: every run of a client uses a new server with an empty directory and an empty bucket. Down: the server is filled once
by loadgen, and every run writes into an empty directory. The servers run one after another. The results are verified
independently: after an upload, loadgen lists the bucket, which must contain exactly the expected keys, and compares
every byte of every object; after a download, the files are compared with the source.
"""

import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from lib.bench import Bench, InsufficientSpace, Location, rotated, size_name
from lib.clients import Client, ClientFailed, Copy, Cost, aws_environment, floor
from lib.generators import BUCKET, GeneratorFailed, Objects
from lib.process import Running, ServerFailed, run_with_timeout
from lib.quiet import ForeignLoad, Usage
from lib.servers import Server
from lib.targets import CEILING, OURS

DIRECTORIES = 20
TRIAL_OBJECTS = 40
PAGE_KEYS = 1000
CHUNK_BYTES = 1 << 20
MIN_FLOOR_BYTES = 256 << 20
BUCKET_TIMEOUT_SECONDS = 20


class WrongCopy(Exception):
    """A client reported success, but its copy is wrong: the results of the run are invalid."""


@dataclass(frozen=True)
class Workload:
    name: str
    count: int
    size: int

    @property
    def objects(self) -> Objects:
        return Objects(self.size, self.count, spread=DIRECTORIES if self.is_tree else 0)

    @property
    def is_tree(self) -> bool:
        return self.count > 1

    @property
    def title(self) -> str:
        return f"{self.count:,} x {size_name(self.size)}"

    @property
    def has_ceiling(self) -> bool:
        """Returns true if the speed of loadgen is the maximum of the server. Exceptions: one object, which it reads over one
        connection, and small objects, where the server is not the bottleneck."""
        return self.name == "medium" and self.is_tree

    @property
    def has_floor(self) -> bool:
        """Returns true if the minimum cost of a download is measured. Starting Python takes as long as a small copy."""
        return not self.is_tree and self.size >= MIN_FLOOR_BYTES


class Transfers:
    def __init__(
        self, bench: Bench, clients: list[Client], tradewind: Path, location: Location, memory: Location, client_limit: float
    ):
        self.bench = bench
        self.clients = clients
        self.tradewind = tradewind
        self.location = location
        self.memory = memory
        self.client_limit = client_limit
        self.root = self.source = Path()

    def run(self, workloads: list[Workload], directions: list[str]) -> None:
        for workload in workloads:
            with self.bench.scratch(self.memory) as memory, self.bench.scratch(self.location) as self.root:
                try:
                    self._require_space(workload)
                    self._workload(workload, directions, memory)
                except InsufficientSpace as reason:
                    self.bench.skip(f"{workload.title}: {reason}")

    def _require_space(self, workload: Workload) -> None:
        """Requires space for the source, the server (two copies while a multipart upload completes) and the download."""
        once = workload.count * (workload.size + 8192)
        self.bench.require_space(self.memory, once if self.location.path != self.memory.path else 4 * once)
        if self.location.path != self.memory.path:
            self.bench.require_space(self.location, 3 * once)

    def _workload(self, workload: Workload, directions: list[str], memory: Path) -> None:
        source = self._source(workload, memory / "source")
        trial = Workload("trial", min(workload.count, TRIAL_OBJECTS), min(workload.size, 64 << 10))
        trial_source = self._source(trial, memory / "trial")
        for server in self.bench.servers:
            self.bench.log(f"{workload.title}, {server.name} on {self.location.name}")
            try:
                self.source = trial_source
                working = [client for client in self.clients if self._try(client, server, trial)]
                self.source = source
                for direction in directions:
                    (self._uploads if direction == "up" else self._downloads)(server, workload, working)
            except ServerFailed as reason:
                self.bench.skip(f"{workload.title}: {reason}")

    def _source(self, workload: Workload, directory: Path) -> Path:
        self.bench.generators.fill_directory(directory, workload.objects, self.bench.fill_limit)
        return directory / BUCKET

    def _try(self, client: Client, server: Server, trial: Workload) -> bool:
        """Copies a few objects up and down before the measurement. Returns whether the client works with the server. It also
        loads the program of the client into the page cache."""
        try:
            with self._new_server(server) as running:
                self._create_bucket(running)
                client.run(self._copy(running, trial, upload=True), self._home(client), 60)
                self._check_upload(running, trial, client.name)
                client.run(self._copy(running, trial, upload=False), self._home(client), 60)
                self._check_download(trial, client.name)
        except ClientFailed as reason:
            self._skip(client.name, f"{server.name}, trial: {reason}")
            return False
        finally:
            shutil.rmtree(self.root / "down", ignore_errors=True)
        return True

    def _skip(self, client: str, reason: str) -> None:
        """Reports and excludes a peer that fails. A failure of tradewind ends the benchmark."""
        if client == OURS:
            raise ClientFailed(reason)
        self.bench.skip(reason)

    def _uploads(self, server: Server, workload: Workload, clients: list[Client]) -> None:
        def measure(client: Client) -> tuple[Usage, dict]:
            with self._new_server(server) as running:
                self._create_bucket(running)
                copy = self._copy(running, workload, upload=True)
                usage, sample = self._measure(running, lambda: self._run_client(client, copy))
                self._check_upload(running, workload, client.name)
            return usage, sample

        def ceiling() -> tuple[Usage, dict]:
            with self._new_server(server) as running:
                return self._measure(running, lambda: self._generate(running, workload, upload=True))

        self._rounds("up", server, workload, clients, measure, ceiling)

    def _downloads(self, server: Server, workload: Workload, clients: list[Client]) -> None:
        with self._new_server(server) as running:
            try:
                self.bench.generators.fill(running, workload.objects, self.bench.fill_limit)
                self.bench.generators.verify(running, workload.objects, self.bench.fill_limit)
            except GeneratorFailed as reason:
                raise ServerFailed(str(reason)) from reason

            def measure(client: Client) -> tuple[Usage, dict]:
                shutil.rmtree(self.root / "down", ignore_errors=True)
                copy = self._copy(running, workload, upload=False)
                usage, sample = self._measure(running, lambda: self._run_client(client, copy))
                self._check_download(workload, client.name)
                return usage, sample

            def ceiling() -> tuple[Usage, dict]:
                return self._measure(running, lambda: self._generate(running, workload, upload=False))

            if workload.has_floor:
                clients = [*clients, floor(workload.size)]
            try:
                self._rounds("down", server, workload, clients, measure, ceiling)
            finally:
                shutil.rmtree(self.root / "down", ignore_errors=True)

    def _rounds(
        self,
        direction: str,
        server: Server,
        workload: Workload,
        clients: list[Client],
        measure: Callable[[Client], tuple[Usage, dict]],
        ceiling: Callable[[], tuple[Usage, dict]],
    ) -> None:
        samples: list[dict] = []
        failed: set[str] = set()
        entrants: list[Client | None] = [*clients, *([None] if workload.has_ceiling else [])]
        for number in range(self.bench.rounds):
            for client in rotated(entrants, number):
                name = client.name if client else CEILING
                if name in failed:
                    continue
                try:
                    usage, sample = self.bench.retry_until_quiet(lambda: measure(client) if client else ceiling())
                except (ClientFailed, GeneratorFailed) as reason:
                    failed.add(name)
                    self._skip(name, f"{workload.title} {direction}, {server.name}: {reason}")
                    continue
                finally:
                    if self.location is not self.memory:
                        os.sync()  # writeback of one client must not slow the next one down
                about = {"workload": workload.name, "title": workload.title, "direction": direction}
                about |= {"location": self.location.name, "server": server.name, "client": name, "round": number}
                samples.append({**about, **_rates(workload, sample), **usage.sample()})
                self._print(samples[-1])
        self.bench.samples += [sample for sample in samples if sample["client"] not in failed]

    def _print(self, sample: dict) -> None:
        self.bench.log(
            f"  round {sample['round'] + 1} {sample['direction']:<4} {sample['client']:<13} "
            f"{sample['seconds']:>8.2f} s  CPU {sample['cpu_seconds']:>7.2f} s  "
            f"peak {sample['peak_resident_bytes'] / (1 << 20):>5.0f} MiB  "
            f"server CPU {sample['server_cpu_seconds']:>7.2f} s"
        )

    def _measure(self, running: Running, run: Callable[[], Cost]) -> tuple[Usage, dict]:
        """Measures foreign load while the client runs. The CPU time of the server includes its work after the client has
        ended."""
        running.wait_until_idle()
        before = running.cpu_seconds()
        load = ForeignLoad([running])
        cost = run()
        usage = load.usage()
        running.wait_until_idle()
        sample = {**vars(cost), "cpu_seconds": cost.cpu_seconds, "server_cpu_seconds": running.cpu_seconds() - before}
        return usage, sample

    def _run_client(self, client: Client, copy: Copy) -> Cost:
        return client.run(copy, self._home(client), self.client_limit)

    def _generate(self, running: Running, workload: Workload, upload: bool) -> Cost:
        """Runs loadgen as the client: no files, 32 connections, one thread."""
        generators = self.bench.generators
        if upload:
            outcome = generators.fill(running, workload.objects, self.client_limit, etag="any")
        else:
            outcome = generators.verify(running, workload.objects, self.client_limit)
        return Cost(outcome.seconds, outcome.client_cpu_seconds, 0.0, 0)

    @contextmanager
    def _new_server(self, server: Server) -> Iterator[Running]:
        """A server with an empty directory, which is removed at the end of the context."""
        directory = self.root / "servers"
        try:
            with self.bench.running(server, directory) as running:
                yield running
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _create_bucket(self, running: Running) -> None:
        """Creates the bucket with tradewind, outside the measurement. Retries, because MinIO reports readiness too early."""
        environment = {"HOME": str(self.root), **aws_environment(running.endpoint)}
        end = time.monotonic() + BUCKET_TIMEOUT_SECONDS
        while True:
            finished = run_with_timeout([str(self.tradewind), "mb", f"s3://{BUCKET}"], 30, environment)
            if finished.status == 0:
                return
            if time.monotonic() > end:
                raise ServerFailed(f"{running.server.name}: creating the bucket failed: {finished.errors.strip()[-300:]}")
            time.sleep(0.2)

    def _copy(self, running: Running, workload: Workload, upload: bool) -> Copy:
        local, key = self.source if upload else self.root / "down", None
        if not upload:
            local.mkdir(parents=True, exist_ok=True)
        if not workload.is_tree:
            key = next(self.source.iterdir()).name
            local /= key
        return Copy(upload, running.server.name, running.endpoint, BUCKET, local, key)

    def _home(self, client: Client) -> Path:
        return self.root / f"home-{client.name.replace(':', '-')}"

    def _check_upload(self, running: Running, workload: Workload, client: str) -> None:
        generators, objects = self.bench.generators, workload.objects
        try:
            pages = workload.count // PAGE_KEYS + 2
            generators.list_objects(running, objects, "walk", pages, self.bench.fill_limit)
            generators.verify(running, objects, self.bench.fill_limit)
        except GeneratorFailed as reason:
            raise WrongCopy(f"{client} to {running.server.name}, {workload.title}: {reason}") from reason

    def _check_download(self, workload: Workload, client: str) -> None:
        if difference := tree_difference(self.source, self.root / "down"):
            raise WrongCopy(f"{client}, {workload.title} down: {difference}")


def _rates(workload: Workload, sample: dict) -> dict:
    return {
        "objects": workload.count,
        "size": workload.size,
        **sample,
        "objects_per_second": workload.count / sample["seconds"],
        "megabytes_per_second": workload.count * workload.size / sample["seconds"] / 1e6,
        "both_cpu_seconds": sample["cpu_seconds"] + sample["server_cpu_seconds"],
    }


def tree_difference(left: Path, right: Path) -> str | None:
    """The first difference between two trees: names, lengths or bytes."""
    names, found = (
        {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()} for tree in (left, right)
    )
    if missing := names - found:
        return f"{len(missing)} files are missing: {sorted(missing)[:3]}"
    if unexpected := found - names:
        return f"{len(unexpected)} unexpected files: {sorted(unexpected)[:3]}"
    for name in sorted(names):
        with (left / name).open("rb", buffering=0) as one, (right / name).open("rb", buffering=0) as other:
            position = 0
            while True:
                chunk = one.read(CHUNK_BYTES)
                if chunk != other.read(CHUNK_BYTES):
                    return f"{name} differs at or after byte {position}"
                if not chunk:
                    break
                position += len(chunk)
    return None
