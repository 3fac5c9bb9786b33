"""What was measured, as curves: a value over one axis, of one system and form of access."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cells import LARGE, LARGE_QUICKLY, SHOWN, SMALL
from measure import Seen


@dataclass(frozen=True)
class Plot:
    """One of a figure's plots."""

    figure: int
    network: str
    phase: str
    # "unit", "single" or "batch", and what lies along its axis.
    scope: str
    axis: str
    # All files of one of these sizes, where the axis is the number of threads.
    sizes: tuple[int, ...] = ()

    def shows(self, seen: Seen) -> bool:
        cell = seen.cell
        if (seen.network, seen.phase, cell.scope) != (self.network, self.phase, self.scope):
            return False
        return cell.size in self.sizes if self.axis == "threads" else cell.threads == 1

    def at(self, seen: Seen) -> int:
        return getattr(seen.cell, self.axis)

    def curves(self, all_seen: Iterable[Seen], value: Callable[[Seen], float]) -> dict[tuple[str, str], dict[int, float]]:
        """By system and form, in order of the axis."""
        found: dict[tuple[str, str], dict[int, float]] = {}
        for seen in sorted(filter(self.shows, all_seen), key=self.at):
            found.setdefault((seen.system, seen.cell.form), {})[self.at(seen)] = value(seen)
        return found


def plots(figure: int) -> list[Plot]:
    def each(scope: str, axis: str, *sizes: int) -> list[Plot]:
        return [Plot(figure, network, phase, scope, axis, sizes) for network in SHOWN[figure] for phase in ("write", "read")]

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
            return each("batch", "threads", LARGE, LARGE_QUICKLY)
        case _:
            return each("single", "size") + each("batch", "size") + each("batch", "threads", SMALL)


def throughput(seen: Seen) -> float:
    """MiB a second."""
    return seen.bytes_per_second / 2**20


def mean(values: Iterable[float]) -> float:
    """Geometric: what matters is by how many times."""
    logarithms = [math.log(max(value, 1e-9)) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else 0.0


def constant(points: dict[float, float]) -> tuple[float, float] | None:
    """The form of the paper's equations 1 to 3, (a + s) / s over the KiB that share `a`: `a`, and how far the point lies off
    that is farthest off. Points count by their relative errors."""
    if len(points) < 2:
        return None
    above = sum((ratio - 1) / kib / ratio**2 for kib, ratio in points.items())
    below = sum(1 / kib**2 / ratio**2 for kib, ratio in points.items())
    a = above / below
    return a, max(abs(ratio / (1 + a / kib) - 1) for kib, ratio in points.items())
