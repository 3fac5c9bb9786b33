"""The two load generators: wrk with presigned URLs, and loadgen, which verifies every status, ETag and byte."""

import json
from dataclasses import dataclass
from pathlib import Path

from lib.process import Finished, Running, run_with_timeout
from lib.servers import ACCESS_KEY, SECRET_KEY

SCRIPT = Path(__file__).with_name("wrk.lua")
BUCKET = "bench"
MAX_HEAD_BYTES = 4096
REQUEST_SECONDS = 180


class GeneratorFailed(Exception):
    """A response was wrong: the results of the run are invalid."""


@dataclass
class Objects:
    """The objects of one block of the benchmark."""

    size: int
    count: int
    prefix: str = ""
    spread: int = 100

    def arguments(self) -> list[str]:
        keys = ["--bucket", BUCKET, "--spread", str(self.spread), "--count", str(self.count)]
        return [*keys, "--size", str(self.size), *(["--prefix", self.prefix] if self.prefix else [])]


@dataclass
class Outcome:
    """The result of a generator; latencies in microseconds."""

    generator: str
    operations: int
    payload_bytes: int
    seconds: float
    p50: float
    p99: float
    p999: float
    maximum: float
    client_cpu_seconds: float


class Generators:
    def __init__(self, loadgen: Path, wrk: str | None, wrk_threads: int, loadgen_threads: int):
        self.loadgen = loadgen
        self.wrk = wrk
        self.wrk_threads = wrk_threads
        self.loadgen_threads = loadgen_threads

    def _target(self, running: Running) -> list[str]:
        identity = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
        unsigned = ["--unsigned"] if running.server.is_static else []
        return ["--endpoint", running.endpoint, *identity, *unsigned]

    def call(self, running: Running, command: str, objects: Objects, options: list[str], limit: float) -> Outcome:
        """Runs loadgen against a server. Raises `GeneratorFailed` on any error."""
        arguments = [str(self.loadgen), command, *self._target(running), *objects.arguments(), *options]
        return self._outcome(running.server.name, command, run_with_timeout(arguments, limit))

    def _outcome(self, name: str, command: str, finished: Finished) -> Outcome:
        if not finished.output.strip():
            raise GeneratorFailed(f"{name}: loadgen {command}: {finished.errors.strip() or 'no output'}")
        report = json.loads(finished.output)
        if finished.status != 0 or report["errors_total"]:
            details = f"{report['errors']} in {report['operations']} operations; {report['error_samples']}"
            raise GeneratorFailed(f"{name}: loadgen {command}: {details} {finished.errors.strip()}")
        latency = report["latency_us"]
        return Outcome(
            generator="loadgen",
            operations=report["operations"],
            payload_bytes=report["bytes"],
            seconds=report["seconds"],
            p50=latency["p50"],
            p99=latency["p99"],
            p999=latency["p99.9"],
            maximum=latency["max"],
            client_cpu_seconds=finished.cpu_seconds,
        )

    def _load(self, connections: int) -> list[str]:
        return ["--connections", str(connections), "--threads", str(self.loadgen_threads)]

    def fill(self, running: Running, objects: Objects, limit: float, etag: str | None = None) -> Outcome:
        options = [*self._load(32), "--etag", etag or running.server.etag, "--timeout", str(REQUEST_SECONDS)]
        return self.call(running, "fill", objects, options, limit)

    def fill_directory(self, directory: Path, objects: Objects, limit: float) -> None:
        arguments = [str(self.loadgen), "fill", "--directory", str(directory), *objects.arguments()]
        self._outcome("static files", "fill", run_with_timeout(arguments, limit))

    def verify(self, running: Running, objects: Objects, limit: float) -> Outcome:
        """Reads every object once, in random order, and compares its content."""
        options = [*self._load(32), "--once", "--timeout", str(REQUEST_SECONDS)]
        return self.call(running, "get", objects, options, limit)

    def get(self, running: Running, objects: Objects, connections: int, seconds: float, seed: int) -> Outcome:
        options = [*self._load(connections), "--seconds", str(seconds), "--seed", str(seed)]
        return self.call(running, "get", objects, options, seconds + 120)

    def put(
        self, running: Running, objects: Objects, connections: int, seconds: float, seed: int, max_bytes: int
    ) -> Outcome:
        options = [*self._load(connections), "--seconds", str(seconds), "--seed", str(seed), "--create-bucket"]
        options += ["--max-bytes", str(max_bytes), "--etag", running.server.etag, "--timeout", str(REQUEST_SECONDS)]
        return self.call(running, "put", objects, options, seconds + 2 * REQUEST_SECONDS)

    def list_objects(self, running: Running, objects: Objects, mode: str, repeat: int, limit: float) -> Outcome:
        options = ["--mode", mode, "--repeat", str(repeat), "--seconds", str(limit)]
        return self.call(running, "list", objects, options, limit + 90)

    def presign(self, running: Running, objects: Objects, out: Path) -> None:
        arguments = [str(self.loadgen), "presign", *self._target(running), *objects.arguments(), "--out", str(out)]
        finished = run_with_timeout(arguments, 300)
        if finished.status != 0:
            raise GeneratorFailed(f"{running.server.name}: loadgen presign: {finished.errors.strip()}")

    def wrk_get(
        self, running: Running, objects: Objects, paths: Path, connections: int, seconds: int, seed: int
    ) -> Outcome:
        """Runs wrk over the presigned paths. Raises `GeneratorFailed` if a response is not a 200 with the right length."""
        threads = min(self.wrk_threads, connections)
        command = [str(self.wrk), f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s"]
        command += ["-s", str(SCRIPT), f"http://{running.endpoint}", "--", str(paths), str(seed)]
        finished = run_with_timeout(command, seconds + 120)
        lines = [line for line in finished.output.splitlines() if line.startswith("{")]
        if finished.status != 0 or not lines:
            raise GeneratorFailed(f"{running.server.name}: wrk: {finished.errors.strip() or finished.output}")
        result = json.loads(lines[-1])
        errors = {kind: result[kind] for kind in ("connect", "read", "write", "status", "timeout") if result[kind]}
        if errors or not result["requests"]:
            raise GeneratorFailed(f"{running.server.name}: wrk: {errors} in {result['requests']} requests")
        # wrk counts only statuses above 399 as errors; incomplete responses show in the number of bytes.
        min_bytes = result["requests"] * objects.size
        max_bytes = (result["requests"] + connections) * (objects.size + MAX_HEAD_BYTES)
        if not min_bytes <= result["bytes"] <= max_bytes:
            raise GeneratorFailed(f"{running.server.name}: wrk read {result['bytes']} bytes instead of {min_bytes} to {max_bytes}")
        return Outcome(
            generator="wrk",
            operations=result["requests"],
            # Responses truncated at the end are counted too; with objects of 1 MiB and more, headers are negligible.
            payload_bytes=result["bytes"] if objects.size >= 1 << 20 else min_bytes,
            seconds=result["seconds"],
            p50=result["p50"],
            p99=result["p99"],
            p999=result["p99.9"],
            maximum=result["max"],
            client_cpu_seconds=finished.cpu_seconds,
        )
