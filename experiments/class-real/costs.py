"""Costs of the cache: CPU time of a write into the journal and of a hit in memory, device reads of a hit on the SSD, and the time of a cold sequential read."""

import http.client
import re
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lib.testbed import Failed
from system import BUCKET, Mode, Sizes, System

MIB = 1 << 20
SMALL_BYTES = 4096
SMALL_OBJECTS = 2000
WRK_SECONDS = 3
CONNECTIONS = 16
# Objects that exceed the memory of the cache, and their number. Heads of objects above 64 KiB are separate and fit into it.
SSD_HIT_SIZES = {"4 KiB": (4 << 10, 4000), "64 KiB": (64 << 10, 600), "1 MiB": (MIB, 60)}
SSD_HIT_MEMORY = 8 * MIB
# A fill that the SSD cannot take at once is skipped, so that objects are read several times to be cached.
MAX_FILL_PASSES = 6
LARGE_BYTES = 128 * MIB
# The SSD is written behind the reads.
FILL_SECONDS = 20
PLAIN = Mode("plain", '["ssd"]')
PLAIN_WRITES = Mode("plain", '["ssd"]', tables='[memory]\nbudget = "512MiB"\n')
CACHED = Mode("cached", '[{ cached = { CACHE } }, "ssd"]')
# The index of dirty objects has a share of the budget: here it holds all objects.
WRITE_BACK = Mode(
    "write-back",
    '[{ cached = { CACHE, write = "back", max_dirty = "2GiB" } }, "ssd"]',
    tables='[memory]\nbudget = "512MiB"\n',
)
# Below the low watermark of dirty objects, so that nothing is written back before all is acknowledged.
WRITES = 12_000
MAX_WRITE_BACK_SECONDS = 60
BOTH = Mode(
    "cached and plain",
    '[{ cached = { CACHE } }, "hdd"]',
    defaults='default_volume = "v"\n',
    tables='[volume.plain]\nstack = ["hdd"]\n[bucket.plain]\nvolume = "plain"\nanonymous_read = true\n',
)
SCRIPT = """
local count, prefix = {count}, "{prefix}"
function init(arguments) math.randomseed(tonumber(arguments[1])) end
function request() return wrk.format("GET", string.format("%s%05d", prefix, math.random(0, count - 1))) end
"""


def writes(binary: Path, scratch: Path, rounds: int) -> None:
    """CPU time of small writes, until their acknowledgement and until they are written back."""
    sizes = Sizes(file_system=0, cache=256 * MIB, cache_memory=64 * MIB, memory=None)
    acknowledged: dict[str, list[float]] = {PLAIN.name: [], WRITE_BACK.name: []}
    complete: dict[str, list[float]] = {PLAIN.name: [], WRITE_BACK.name: []}
    command = ["bench", "object", f"s3://{BUCKET}/writes/", "--mix", "put", "--size", "4KiB", "--count", str(WRITES)]
    command += ["--concurrency", str(CONNECTIONS), "--time", "60s", "--keep"]
    for number in range(rounds):
        for mode in (PLAIN_WRITES, WRITE_BACK) if number % 2 == 0 else (WRITE_BACK, PLAIN_WRITES):
            with System(binary, mode, sizes, scratch, False) as system:
                # Memory that is touched for the first time costs CPU time once.
                system.run([*command, "--out", str(scratch / f"{mode.name}-{number}-first.jsonl")])
                wait_for_write_back(system)
                before = system.cpu_seconds()
                system.run([*command, "--out", str(scratch / f"{mode.name}-{number}.jsonl")])
                acknowledged[mode.name].append((system.cpu_seconds() - before) / WRITES * 1e6)
                wait_for_write_back(system)
                complete[mode.name].append((system.cpu_seconds() - before) / WRITES * 1e6)
    print(f"\nCPU time of {WRITES} PUTs of 4 KiB, {CONNECTIONS} connections, {rounds} alternating rounds, on new stores after a first pass.\n")
    print("| server | ms per 1,000 until acknowledged, median | lowest | highest | until written back, median |\n|---|---|---|---|---|")
    for name, values in acknowledged.items():
        print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} | {statistics.median(complete[name]):.1f} |")
    for title, costs in (("until acknowledged", acknowledged), ("until written back", complete)):
        ratios = [back / plain for back, plain in zip(costs[WRITE_BACK.name], costs[PLAIN.name])]
        print(f"\nRatio {title}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def wait_for_write_back(system: System) -> None:
    end = time.monotonic() + MAX_WRITE_BACK_SECONDS
    while system.counter("tradewind_write_back_dirty_objects") > 0:
        if time.monotonic() > end:
            raise Failed("dirty objects are not written back")
        time.sleep(0.2)


def measure(binary: Path, scratch: Path, rounds: int) -> None:
    if shutil.which("wrk"):
        memory_hits(binary, scratch, rounds)
    else:
        print("\nSkipped, CPU time of hits: wrk is not installed.")
    ssd_hits(binary, scratch)
    cold_reads(binary, scratch, rounds)


def upload(system: System, name: str, size: int, count: int, bucket: str = BUCKET) -> None:
    source = system.directory / "source"
    (source / name).mkdir(parents=True)
    for number in range(count):
        (source / name / f"{number:05}").write_bytes(content(number, size))
    system.run(["cp", "-r", f"{source}/", f"s3://{bucket}/"])
    shutil.rmtree(source)


def content(number: int, size: int) -> bytes:
    line = f"object {number:08}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def read(connection: http.client.HTTPConnection, path: str, expected: bytes) -> float:
    """The time of a GET in seconds. Its bytes must be the expected ones."""
    begin = time.monotonic()
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    seconds = time.monotonic() - begin
    if response.status != 200 or body != expected:
        raise Failed(f"GET {path}: status {response.status}, {len(body)} bytes")
    return seconds


def read_all(system: System, name: str, size: int, count: int) -> None:
    connection = http.client.HTTPConnection(system.address, timeout=120)
    for number in range(count):
        read(connection, f"/{BUCKET}/{name}/{number:05}", content(number, size))
    connection.close()


def memory_hits(binary: Path, scratch: Path, rounds: int) -> None:
    sizes = Sizes(file_system=0, cache=256 * MIB, cache_memory=64 * MIB, memory=None)
    script = scratch / "random.lua"
    script.write_text(SCRIPT.format(count=SMALL_OBJECTS, prefix=f"/{BUCKET}/small/"))
    costs: dict[str, list[float]] = {PLAIN.name: [], CACHED.name: []}
    (scratch / "plain").mkdir()
    (scratch / "cached").mkdir()
    with System(binary, PLAIN, sizes, scratch / "plain", False) as plain, System(binary, CACHED, sizes, scratch / "cached", False) as cached:
        for system in (plain, cached):
            upload(system, "small", SMALL_BYTES, SMALL_OBJECTS)
            for _ in range(2):
                read_all(system, "small", SMALL_BYTES, SMALL_OBJECTS)
        hits_before = cached.counter("tradewind_cache_reads_total", 'result="ram"')
        requests = 0
        for number in range(2 * rounds):
            for system in (plain, cached) if number % 2 == 0 else (cached, plain):
                cpu, done = system.cpu_seconds(), wrk(system, script, number)
                costs[system.mode.name].append((system.cpu_seconds() - cpu) / done * 1e6)
                requests += done if system is cached else 0
        hits = cached.counter("tradewind_cache_reads_total", 'result="ram"') - hits_before
    print(f"\nCPU time of a GET of 4 KiB from memory, wrk, {CONNECTIONS} connections, {2 * rounds} alternating rounds of {WRK_SECONDS} s.")
    print(f"Hits in memory: {hits / requests * 100:.1f} % of {requests} requests.\n")
    ratios = [cached / plain for cached, plain in zip(costs[CACHED.name], costs[PLAIN.name])]
    print("| server | ms per 1,000 requests, median | lowest | highest |\n|---|---|---|---|")
    for name, values in costs.items():
        print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")
    print(f"| ratio | {statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |")


def wrk(system: System, script: Path, seed: int) -> int:
    """Successful requests of one run."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{WRK_SECONDS}s", "-s", script, f"http://{system.address}", "--", str(seed)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        raise Failed(f"wrk: {output}")
    return int(re.search(r"(\d+) requests in", output)[1])


def ssd_hits(binary: Path, scratch: Path) -> None:
    sizes = Sizes(file_system=1024 * MIB, cache=512 * MIB, cache_memory=SSD_HIT_MEMORY, memory=None)
    mode = Mode("cached", '[{ cached = { CACHE } }, "hdd"]')
    print(f"\nDevice reads of hits on the SSD, one request at a time, memory of the cache {SSD_HIT_MEMORY // MIB} MiB.\n")
    print("| object | hits on the SSD | in memory | others | reads of the SSD per hit | KiB read per hit | reads of the disk |\n|---|---|---|---|---|---|---|")
    with System(binary, mode, sizes, scratch) as system:
        for title, (size, count) in SSD_HIT_SIZES.items():
            name = title.replace(" ", "-")
            upload(system, name, size, count)
            fill(system, name, size, count)
            system.drop_page_cache()
            before = {"ssd": system.device("ssd"), "hdd": system.device("hdd")}
            results = read_all_counted(system, name, size, count)
            ssd, hdd = (system.device(device) - before[device] for device in ("ssd", "hdd"))
            hits, others = results["ssd"], results["partial"] + results["miss"] + results["bypass"]
            per_hit = [f"{ssd.reads / hits:.2f}", f"{ssd.read_bytes / hits / 1024:.1f}"] if hits else ["-", "-"]
            print(f"| {title} | {hits:.0f} | {results['ram']:.0f} | {others:.0f} | {' | '.join(per_hit)} | {hdd.reads} |")


def fill(system: System, name: str, size: int, count: int) -> None:
    """Reads all objects until the cache has them, or some passes have not cached them."""
    for _ in range(MAX_FILL_PASSES):
        results = read_all_counted(system, name, size, count)
        wait_for_fills(system)
        if results["miss"] + results["partial"] == 0:
            return


def read_all_counted(system: System, name: str, size: int, count: int) -> dict[str, float]:
    """Reads by result."""
    before = {result: reads(system, result) for result in ("ssd", "ram", "partial", "miss", "bypass")}
    read_all(system, name, size, count)
    return {result: reads(system, result) - value for result, value in before.items()}


def reads(system: System, result: str) -> float:
    return system.counter("tradewind_cache_reads_total", f'result="{result}"')


def wait_for_fills(system: System) -> None:
    """Waits until the SSD takes no more bytes."""
    end, written = time.monotonic() + FILL_SECONDS, -1.0
    while time.monotonic() < end:
        now = system.counter("tradewind_cache_ssd_written_bytes_total")
        if now == written:
            return
        written = now
        time.sleep(1)


def cold_reads(binary: Path, scratch: Path, rounds: int) -> None:
    sizes = Sizes(file_system=(2 * rounds + 3) * LARGE_BYTES + 512 * MIB, cache=(rounds + 1) * LARGE_BYTES, cache_memory=8 * MIB, memory=None)
    names = ("plain", "cached")
    ratios: list[float] = []
    runs: dict[str, list[ColdRead]] = {name: [] for name in names}
    expected = content(0, LARGE_BYTES)
    with System(binary, BOTH, sizes, scratch) as system:
        system.run(["mb", "s3://plain"])
        source = system.directory / "large"
        source.write_bytes(expected)
        for number in range(rounds):
            for bucket in (BUCKET, "plain"):
                system.run(["cp", source, f"s3://{bucket}/large-{number}"])
            for name in names if number % 2 == 0 else reversed(names):
                path = f"/{BUCKET if name == 'cached' else name}/large-{number}"
                runs[name].append(cold_read(system, path, expected))
            ratios.append(runs["plain"][-1].seconds / runs["cached"][-1].seconds)
    print(f"\nCold sequential read of an object of {LARGE_BYTES // MIB} MiB from the disk, {rounds} alternating rounds, medians.\n")
    print("| | MB/s | reads of the disk | CPU ms per MiB |\n|---|---|---|---|")
    for name, measured in runs.items():
        median = lambda value: statistics.median(map(value, measured))  # noqa: B023, E731
        rate, cpu = median(lambda run: LARGE_BYTES / run.seconds / 1e6), median(lambda run: run.cpu_seconds * 1e3 * MIB / LARGE_BYTES)
        print(f"| {name} | {rate:.1f} | {median(lambda run: run.disk_reads):.0f} | {cpu:.2f} |")
    print(f"| ratio (lowest to highest) | {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) | | |")


@dataclass(frozen=True)
class ColdRead:
    seconds: float
    disk_reads: int
    cpu_seconds: float


def cold_read(system: System, path: str, expected: bytes) -> ColdRead:
    system.drop_page_cache()
    connection = http.client.HTTPConnection(system.address, timeout=120)
    disk, cpu = system.device("hdd"), system.cpu_seconds()
    seconds = read(connection, path, expected)
    connection.close()
    return ColdRead(seconds, (system.device("hdd") - disk).reads, system.cpu_seconds() - cpu)
