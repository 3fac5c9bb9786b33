"""Measurements as curves: a value over one axis, for one system and form of access."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from measure import Measurement
from points import LARGE, LARGE_QUICK, NETWORKS_OF_FIGURE, SMALL


@dataclass(frozen=True)
class Plot:
    """One plot of a figure."""

    figure: int
    network: str
    phase: str
    # "unit", "single" or "batch", and the name of the axis.
    scope: str
    axis: str
    # The file sizes, if the axis is the number of threads.
    sizes: tuple[int, ...] = ()

    def contains(self, measurement: Measurement) -> bool:
        point = measurement.point
        if (measurement.network, measurement.phase, point.scope) != (self.network, self.phase, self.scope):
            return False
        return point.size in self.sizes if self.axis == "threads" else point.threads == 1

    def position(self, measurement: Measurement) -> int:
        """The position of a measurement on the axis."""
        return getattr(measurement.point, self.axis)

    def curves(
        self, measurements: Iterable[Measurement], value: Callable[[Measurement], float]
    ) -> dict[tuple[str, str], dict[int, float]]:
        """The curves by system and form, in order of the axis."""
        curves: dict[tuple[str, str], dict[int, float]] = {}
        for measurement in sorted(filter(self.contains, measurements), key=self.position):
            key = measurement.system, measurement.point.form
            curves.setdefault(key, {})[self.position(measurement)] = value(measurement)
        return curves


def plots(figure: int) -> list[Plot]:
    def each(scope: str, axis: str, *sizes: int) -> list[Plot]:
        return [Plot(figure, network, phase, scope, axis, sizes) for network in NETWORKS_OF_FIGURE[figure] for phase in ("write", "read")]

    match figure:
        case 2:
            return each("unit", "unit")
        case 3:
            return each("single", "size")
        case 4:
            return each("batch", "size")
        case 5:
            return each("batch", "threads", SMALL)
        case 6:
            return each("batch", "threads", LARGE, LARGE_QUICK)
        case _:
            return each("single", "size") + each("batch", "size") + each("batch", "threads", SMALL)


def throughput(measurement: Measurement) -> float:
    """The throughput in MiB/s."""
    return measurement.bytes_per_second / 2**20


def mean(values: Iterable[float]) -> float:
    """The geometric mean, because ratios are compared."""
    logarithms = [math.log(max(value, 1e-9)) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else 0.0


def fit_overhead(points: dict[float, float]) -> tuple[float, float] | None:
    """Fits the paper's equations 1 to 3, amplification = (a + s) / s with s in KiB, by least squares of the relative errors.
    Returns `a` and the largest relative error."""
    if len(points) < 2:
        return None
    above = sum((ratio - 1) / kib / ratio**2 for kib, ratio in points.items())
    below = sum(1 / kib**2 / ratio**2 for kib, ratio in points.items())
    a = above / below
    return a, max(abs(ratio / (1 + a / kib) - 1) for kib, ratio in points.items())
