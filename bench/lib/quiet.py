"""Whether the machine is ours: processor time used by anything that this benchmark did not start, and time that
the hypervisor gave to other machines. Stolen time costs more than itself: caches come back cold.

From /proc/stat's user, nice and system time, less our own processes and kernel threads (write-back of what the
servers wrote is theirs, not somebody else's). Interrupt time is left out for the same reason: loopback traffic.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from lib.process import TICKS, Running, processes

LIMIT_CORES = 0.5
LIMIT_STEAL_CORES = 0.05


@dataclass
class Usage:
    """Mean cores used by others, and stolen by the hypervisor, over an interval."""

    foreign_cores: float
    steal_cores: float
    seconds: float

    def is_quiet(self) -> bool:
        return self.foreign_cores <= LIMIT_CORES and self.steal_cores <= LIMIT_STEAL_CORES

    def sample(self) -> dict[str, float]:
        return {"foreign_cores": round(self.foreign_cores, 3), "steal_cores": round(self.steal_cores, 3)}

    def __str__(self) -> str:
        return (
            f"others use {self.foreign_cores:.2f} cores (limit {LIMIT_CORES}), "
            f"the hypervisor takes {self.steal_cores:.2f} (limit {LIMIT_STEAL_CORES})"
        )


class Bystanders:
    """Measures the interval from its making to `usage()`."""

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


def look(seconds: float, ours: list[Running]) -> Usage:
    watch = Bystanders(ours)
    time.sleep(seconds)
    return watch.usage()


def load_average() -> str:
    return " ".join(Path("/proc/loadavg").read_text().split()[:3])
