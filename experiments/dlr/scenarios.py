"""What is measured: each scenario yields measurements, one dictionary each."""

import random
import subprocess
import threading
import time
from dataclasses import dataclass

from cluster import FAST_MBPS, OSDS, SLOW_MBPS, Cluster, get_bench, rados_bench
from modes import BY_HAND, DEFAULT, DLR, MODES, PAPER_SECONDS, REWEIGHT, TRADEWIND, run_mode

# Objects of 4 MiB for reads.
OBJECTS = 1000
# The paper's time between two rotations of the hot spots.
ROTATION_SECONDS = 90
SLOW_HALF = list(range(OSDS // 2, OSDS))


@dataclass
class Bench:
    """How to measure."""

    cluster: Cluster
    binary: str
    seconds: float
    rounds: int
    kinds: list[str]
    modes: list[str]

    def chosen(self, modes: tuple[str, ...]) -> list[str]:
        return [mode for mode in modes if mode in self.modes]

    def rotating(self, modes: list[str]):
        """Each round with its modes in another order."""
        for number in range(self.rounds):
            shift = number % len(modes)
            for mode in modes[shift:] + modes[:shift]:
                yield number, mode

    def measure(self, mode: str, kind: str, slow: list[int], flags=(), threads: int = 16) -> dict:
        work = lambda: rados_bench(kind, self.seconds, threads)
        return run_mode(mode, self.cluster, self.binary, slow, self.seconds, work, flags)


def speeds(slow: list[int], slow_mbps: int = SLOW_MBPS) -> list[int]:
    return [slow_mbps if osd in slow else FAST_MBPS for osd in range(OSDS)]


def heterogeneity(bench: Bench):
    """Figures 1 (left), 6 and 7: half of the OSDs are slow."""
    bench.cluster.fill(OBJECTS)
    for kind in bench.kinds:
        for number in range(bench.rounds):
            bench.cluster.set_speeds(speeds([]))
            yield {"kind": kind, "mode": "no slow OSDs", "round": number, **bench.measure(DEFAULT, kind, [])}
        bench.cluster.set_speeds(speeds(SLOW_HALF))
        for number, mode in bench.rotating(bench.chosen(MODES)):
            yield {"kind": kind, "mode": mode, "round": number, **bench.measure(mode, kind, SLOW_HALF)}


def hot_spots(bench: Bench):
    """Figures 1 (right), 8 and 9: four random OSDs are slow for half of the time, then four others."""
    bench.cluster.fill(OBJECTS)
    rotation = ROTATION_SECONDS * bench.seconds / PAPER_SECONDS
    modes = bench.chosen((DEFAULT, REWEIGHT, DLR, TRADEWIND))
    for kind in bench.kinds:
        for number, mode in bench.rotating(modes):
            first = random.Random(number).sample(range(OSDS), OSDS // 2)
            second = [osd for osd in range(OSDS) if osd not in first]
            bench.cluster.set_speeds(speeds(first))
            timer = threading.Timer(rotation, bench.cluster.set_speeds, [speeds(second)])

            def work(kind=kind, timer=timer) -> dict:
                timer.start()
                return rados_bench(kind, bench.seconds)

            try:
                result = run_mode(mode, bench.cluster, bench.binary, [], bench.seconds, work)
            finally:
                timer.cancel()
                timer.join()
            yield {"kind": kind, "mode": mode, "round": number, "slow_first": first, **result}


def shallow(bench: Bench):
    """A disturber that takes little: acting by hand costs more than it gives."""
    bench.cluster.fill(OBJECTS)
    bench.cluster.set_speeds(speeds(SLOW_HALF, slow_mbps=17))
    for kind in bench.kinds:
        for number, mode in bench.rotating(bench.chosen((DEFAULT, BY_HAND, TRADEWIND))):
            yield {"kind": kind, "mode": mode, "round": number, **bench.measure(mode, kind, SLOW_HALF)}


def signal(bench: Bench):
    """Figures 3 and 4: throughput against mean and variance of the signal, for load mixes A to E.

    Mixes of the mean slow all OSDs alike; mixes of the variance keep the sum of the speeds.
    """
    bench.cluster.fill(OBJECTS)
    mixes = {
        "mean": [[20] * 8, [16] * 8, [12] * 8, [8] * 8, [4] * 8],
        "variance": [[12] * 8, [14] * 4 + [10] * 4, [16] * 4 + [8] * 4, [18] * 4 + [6] * 4, [20] * 4 + [4] * 4],
    }
    # A threshold above 100 keeps all affinities: the signal is only read.
    flags = ["--theta-h", "100", "--dlr-interval", f"{bench.seconds / 2:.1f}"]
    for changed, settings in mixes.items():
        for number in range(bench.rounds):
            for mix, mbps in zip("ABCDE", settings):
                bench.cluster.set_speeds(mbps)
                result = bench.measure(DLR, "seq", [], flags)
                yield {"changed": changed, "mix": mix, "round": number, "speeds": mbps, **result}


def theta(bench: Bench):
    """Figure 5: the paper's policy with several values of theta_i, and ours."""
    bench.cluster.fill(OBJECTS)
    bench.cluster.set_speeds(speeds(SLOW_HALF))
    values = ["0.05", "0.1", "0.2", "0.3", "0.4", "0.6"]
    for number, value in bench.rotating([*values, TRADEWIND]):
        mode, flags = (TRADEWIND, []) if value == TRADEWIND else (DLR, ["--theta-i", value])
        yield {"theta_i": value, "round": number, **bench.measure(mode, "seq", SLOW_HALF, flags)}


def sizes(bench: Bench):
    """Figure 10: object sizes, and numbers of threads for 4 MiB."""
    modes = bench.chosen((DEFAULT, DLR, TRADEWIND))
    for size in (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20):
        bench.cluster.fill(min(20_000, (OBJECTS << 22) // size), size)
        bench.cluster.set_speeds(speeds(SLOW_HALF))
        for number, mode in bench.rotating(modes):
            yield {"size": size, "threads": 16, "mode": mode, "round": number, **bench.measure(mode, "rand", SLOW_HALF)}
    bench.cluster.fill(OBJECTS)
    bench.cluster.set_speeds(speeds(SLOW_HALF))
    for threads in (1, 4, 64):
        for number, mode in bench.rotating(modes):
            result = bench.measure(mode, "rand", SLOW_HALF, threads=threads)
            yield {"size": 4 << 20, "threads": threads, "mode": mode, "round": number, **result}


def constant(bench: Bench):
    """Constant load for ten minutes: no affinity may change its direction more than once."""
    bench.cluster.fill(OBJECTS)
    bench.cluster.set_speeds(speeds(SLOW_HALF))
    work = lambda: rados_bench("rand", 600)
    yield {"mode": TRADEWIND, **run_mode(TRADEWIND, bench.cluster, bench.binary, [], 600, work)}


def overhead(bench: Bench):
    """Figure 11: CPU of the balancer and time of a round, without load and with it."""
    bench.cluster.fill(OBJECTS)
    bench.cluster.set_speeds(speeds([]))
    for mode in bench.chosen((DLR, TRADEWIND)):
        for load in ("idle", "rand"):
            work = (lambda: time.sleep(bench.seconds) or {}) if load == "idle" else (lambda: rados_bench("rand", bench.seconds))
            yield {"mode": mode, "load": load, **run_mode(mode, bench.cluster, bench.binary, [], bench.seconds, work)}


def gateway(bench: Bench):
    """GETs through radosgw, after a warm-up in which a balancer measures and acts."""
    environment = bench.cluster.start_gateway()
    subprocess.run([bench.binary, "mb", "s3://bench"], env=environment, capture_output=True, timeout=60)
    bench.cluster.set_speeds(speeds(SLOW_HALF))
    work = lambda: get_bench(bench.binary, environment, bench.seconds)
    for number, mode in bench.rotating(bench.chosen((DEFAULT, BY_HAND, TRADEWIND))):
        result = run_mode(mode, bench.cluster, bench.binary, SLOW_HALF, bench.seconds, work)
        yield {"kind": "GET", "mode": mode, "round": number, "latency_s": 16 * 4.194304 / result["mb_per_s"], **result}


SCENARIOS = {
    "heterogeneity": heterogeneity, "hot-spots": hot_spots, "shallow": shallow, "signal": signal, "theta": theta,
    "sizes": sizes, "gateway": gateway, "constant": constant, "overhead": overhead,
}
