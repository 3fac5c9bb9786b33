"""A Ceph cluster on loopback, whose OSDs have a chosen speed, and the benchmarks on it."""

import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

CLUSTER = Path(__file__).resolve().parents[1] / "lib" / "ceph-cluster"
OSDS = 8
PGS = 128
FAST_MBPS, SLOW_MBPS = 20, 5
POOL = "bench"
# Pools of writes are removed after each run.
WRITE_POOL = "writes"
# Time that placement groups need to elect new primaries.
SETTLE_SECONDS = 3
# Time of GETs in which a balancer measures and acts.
WARM_UP_SECONDS = 20


class Failed(Exception):
    """A reason to end without a result."""


def run(*command: str, timeout: float = 300) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done.stdout


def ceph_json(*words: str) -> dict:
    return json.loads(run("ceph", *words, "--format", "json"))


def ceph_all(commands: list[str]) -> None:
    """Several commands in one process."""
    text = "\n".join(commands) + "\n"
    subprocess.run(["ceph"], input=text, capture_output=True, text=True, timeout=120, check=True)


class Cluster:
    """`directory` names a running cluster of `ceph-cluster`; without one, a cluster is started, and ended at the end."""

    def __init__(self, directory: Path | None, osds: int = OSDS):
        self.is_own = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tw-ceph-"))
        self.osds = osds
        self.speeds = {}

    def __enter__(self) -> "Cluster":
        if self.is_own:
            up = subprocess.run([CLUSTER, "up", self.directory, str(self.osds)], stdout=subprocess.DEVNULL)
            if up.returncode:
                raise SystemExit(up.returncode)
        os.environ["CEPH_CONF"] = str(self.directory / "ceph.conf")
        if self.is_own:
            run("ceph", "osd", "pool", "create", POOL, str(PGS), str(PGS))
        return self

    def __exit__(self, *_) -> None:
        if self.is_own:
            subprocess.run([CLUSTER, "down", self.directory], check=False)

    @property
    def conf(self) -> str:
        return str(self.directory / "ceph.conf")

    def fill(self, objects: int, size: int = 4 << 20) -> None:
        """Writes objects for the benchmarks of reads, in place of earlier ones."""
        self.set_speeds([0] * self.osds)
        run("rados", "-p", POOL, "cleanup", timeout=600)
        bench = ["rados", "-p", POOL, "bench", "600", "write", "-t", "16", "-b", str(size), "--no-cleanup"]
        run(*bench, "--max-objects", str(objects), timeout=700)

    def set_speeds(self, mbps: list[int]) -> None:
        for osd, speed in enumerate(mbps):
            if self.speeds.get(osd) != speed:
                run(str(CLUSTER), "speed", str(self.directory), str(osd), str(speed))
                self.speeds[osd] = speed

    def start_gateway(self) -> dict:
        """Starts radosgw, or finds it; returns the environment of a client."""
        saved = self.directory / "gateway.env"
        if not saved.exists():
            saved.write_text(run(str(CLUSTER), "gateway", str(self.directory)))
        settings = dict(line.split("=", 1) for line in saved.read_text().splitlines())
        return {
            **os.environ, "AWS_ENDPOINT_URL": settings["ENDPOINT"], "AWS_ACCESS_KEY_ID": settings["ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": settings["SECRET_KEY"], "AWS_REGION": "us-east-1",
        }

    def set_affinities(self, values: list[float]) -> None:
        ceph_all([f"osd primary-affinity osd.{osd} {value}" for osd, value in enumerate(values)])
        time.sleep(SETTLE_SECONDS)

    def affinities(self) -> list[float]:
        return [osd["primary_affinity"] for osd in ceph_json("osd", "dump")["osds"]]

    def reset_weights(self) -> None:
        """Undoes a reweight; data moves back at full speed."""
        speeds = dict(self.speeds)
        self.set_speeds([0] * self.osds)
        ceph_all([f"osd reweight {osd} 1" for osd in range(self.osds)])
        self.wait_until_clean()
        self.set_speeds([speeds[osd] for osd in range(self.osds)])

    def wait_until_clean(self) -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            states = ceph_json("pg", "stat")["pg_summary"]["num_pg_by_state"]
            if all(state["name"].startswith("active+clean") for state in states):
                return
            time.sleep(1)
        raise Failed("placement groups are not active+clean after 600 s")


def get_bench(binary: str, environment: dict, seconds: float) -> dict:
    """GETs of 4 MiB through radosgw, 16 at a time, as `rados_bench`. Writes its own objects first."""
    command = [binary, "bench", "object", "s3://bench", "--mix", "get", "--size", "4MiB", "--concurrency", "16"]
    command += ["--objects", "80", "--time", f"{seconds:.0f}s", "--warm-up", f"{WARM_UP_SECONDS}s", "--json", "--no-out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 300)
    if done.returncode:
        raise Failed(done.stderr[-400:])
    for line in map(json.loads, done.stdout.splitlines()):
        if line["line"] == "measurement":
            figures = line["operations"]["get"]
            return {
                "mb_per_s": figures["bytes_per_second"] / 1e6, "mb_per_s_each_second": [],
                "failures": sum(figures["failures"].values()),
            }
    raise Failed("no measurement")


def rados_bench(kind: str, seconds: float, threads: int = 16, size: int = 4 << 20) -> dict:
    """Throughput (MB/s), mean latency (s) and MB/s of each second. `kind` is seq, rand or write."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    pool = POOL
    extra = []
    if kind == "write":
        pool, extra = WRITE_POOL, ["-b", str(size), "--no-cleanup"]
        run("ceph", "osd", "pool", "create", WRITE_POOL, str(PGS), str(PGS))
        time.sleep(SETTLE_SECONDS)
    command = ["rados", "-p", pool, "bench", f"{seconds:.0f}", kind, "-t", str(threads), *extra]
    try:
        output = run(*command, timeout=seconds + 180)
    finally:
        if kind == "write":
            run("ceph", "osd", "pool", "rm", WRITE_POOL, WRITE_POOL, "--yes-i-really-really-mean-it")

    def field(name: str) -> float:
        return float(re.search(rf"^{name}[^:]*:\s+([\d.]+)", output, re.M).group(1))

    rows = [line.split() for line in output.splitlines()]
    each = [float(row[5]) for row in rows if len(row) >= 8 and row[0].isdigit() and row[5].replace(".", "").isdigit()]
    return {
        "mb_per_s": field(r"Bandwidth \(MB/sec\)"),
        "latency_s": field("Average Latency"),
        "mb_per_s_each_second": each,
    }
