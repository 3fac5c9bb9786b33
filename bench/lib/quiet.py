"""Foreign load of the machine: CPU time of processes that this benchmark did not start, and time stolen by the hypervisor.
Stolen time costs more than its duration, because it also cools the caches.

Computed from the user, nice and system time of /proc/stat, minus the processes of the benchmark and kernel threads (writeback
belongs to the measured servers). Interrupt time is excluded, because loopback traffic causes it.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from lib.process import TICKS, Running, processes

MAX_FOREIGN_CORES = 0.5
MAX_STEAL_CORES = 0.05


@dataclass
class Usage:
    """Mean number of cores used by other processes and stolen by the hypervisor over an interval."""

    foreign_cores: float
    steal_cores: float
    seconds: float

    def is_quiet(self) -> bool:
        return self.foreign_cores <= MAX_FOREIGN_CORES and self.steal_cores <= MAX_STEAL_CORES

    def sample(self) -> dict[str, float]:
        return {"foreign_cores": round(self.foreign_cores, 3), "steal_cores": round(self.steal_cores, 3)}

    def __str__(self) -> str:
        return (
            f"other processes use {self.foreign_cores:.2f} cores (limit {MAX_FOREIGN_CORES}), "
            f"the hypervisor steals {self.steal_cores:.2f} (limit {MAX_STEAL_CORES})"
        )


class ForeignLoad:
    """Measures the interval from its creation to `usage()`."""

    def __init__(self, ours: list[Running]):
        self.ours = ours
        self.before = self._snapshot()

    def _snapshot(self) -> dict[str, float]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        threads = [each for pid, each in processes().items() if pid == 2 or each[1] == "2"]
        kernel = sum(int(each[11]) + int(each[12]) for each in threads)
        times = os.times()
        return {
            "busy": (fields[0] + fields[1] + fields[2]) / TICKS,
            "steal": fields[7] / TICKS,
            "kernel": kernel / TICKS,
            "self": times.user + times.system + times.children_user + times.children_system,
            "servers": sum(running.cpu_seconds() for running in self.ours),
            "time": time.monotonic(),
        }

    def usage(self) -> Usage:
        after = self._snapshot()
        change = {name: after[name] - self.before[name] for name in after}
        seconds = max(change["time"], 1e-3)
        foreign = change["busy"] - change["kernel"] - change["self"] - change["servers"]
        return Usage(max(0.0, foreign / seconds), change["steal"] / seconds, seconds)


def measure_usage(seconds: float, ours: list[Running]) -> Usage:
    load = ForeignLoad(ours)
    time.sleep(seconds)
    return load.usage()


def load_average() -> str:
    return " ".join(Path("/proc/loadavg").read_text().split()[:3])
