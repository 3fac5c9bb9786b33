"""Checks whether curves have the shapes of Ou 2015: direction, ordering and turning points. Absolute values are those of this
machine. A check is skipped if a system that it compares is missing."""

from collections.abc import Iterator
from dataclasses import dataclass

from curves import Plot, fit_overhead, mean, plots, throughput
from measure import Measurement
from network import LINK_MIB
from points import KIB, MIB, NETWORKS_OF_FIGURE, SMALL

Curve = dict[int, float]
# A curve is flat if its maximum is at most this multiple of its minimum; it rises if its end is at least this multiple of its start.
MAX_FLAT_RATIO, MIN_RISE_RATIO = 1.5, 2.0
# Two systems are similar if one is at most this multiple of the other.
MAX_SIMILAR_RATIO = 2.0
# A link is saturated if this fraction of its rate is file content.
MIN_SATURATION = 0.7
# A fit is good if no point has a larger relative error.
MAX_FIT_ERROR = 0.3
# Tolerance of a monotonic curve: a step may fall to this fraction, the variation between rounds.
MONOTONIC_TOLERANCE = 0.9


@dataclass(frozen=True)
class Check:
    figure: int
    claim: str
    passed: bool
    values: str

    def __str__(self) -> str:
        return f"| {self.figure} | {self.claim} | {'yes' if self.passed else '**no**'} | {self.values} |"


class Curves:
    """The curves of one figure."""

    def __init__(self, figure: int, measurements: list[Measurement]):
        self.figure, self.measurements = figure, measurements

    def curve(self, network: str, phase: str, system: str, form: str, plot: Plot | None = None) -> Curve:
        plot = plot or next(each for each in plots(self.figure) if (each.network, each.phase) == (network, phase))
        return plot.curves(self.measurements, throughput).get((system, form), {})

    def best(self, network: str, phase: str, system: str) -> Curve:
        """The maximum over the forms of access at each point, because systems are compared and not forms."""
        by_form = [self.curve(network, phase, system, form) for form in ("direct", "sync", "default")]
        positions = sorted({x for curve in by_form for x in curve})
        return {x: max(curve[x] for curve in by_form if x in curve) for x in positions}


def rises(curve: Curve) -> bool:
    values = list(curve.values())
    return values[-1] >= MIN_RISE_RATIO * values[0] and all(b >= MONOTONIC_TOLERANCE * a for a, b in zip(values, values[1:]))


def spread(curve: Curve) -> float:
    return max(curve.values()) / max(min(curve.values()), 1e-9)


def check(figures: list[int], measurements: list[Measurement]) -> Iterator[Check]:
    for figure in figures:
        shown = Curves(figure, measurements)
        for claim, passed, values in CHECKS[figure](shown):
            yield Check(figure, claim, passed, values)


Results = Iterator[tuple[str, bool, str]]


def units(shown: Curves) -> Results:
    for system in ("file", "block"):
        for phase in ("write", "read"):
            if len(direct := shown.curve("delay", phase, system, "direct")) > 1:
                ends = list(direct.values())
                yield f"{system}: direct {phase} rises with the unit", rises(direct), f"{ends[0]:.2f} to {ends[-1]:.2f} MiB/s"
        if sync := shown.curve("delay", "read", system, "sync"):
            yield f"{system}: sync read does not depend on the unit", spread(sync) <= MAX_FLAT_RATIO, f"max / min {spread(sync):.2f}"
    for system, phases in ("file", ("write", "read")), ("object", ("write", "read")), ("block", ("read",)):
        for phase in phases:
            if default := shown.curve("delay", phase, system, "default"):
                values = f"max / min {spread(default):.2f}"
                yield f"{system}: default {phase} does not depend on the unit", spread(default) <= MAX_FLAT_RATIO, values
    if memory := shown.curve("delay", "write", "block", "default"):
        lowest = min(memory.values())
        yield "block: default write is at memory speed", lowest > 2 * LINK_MIB, f"at least {lowest:.0f} MiB/s"


def single(shown: Curves) -> Results:
    for network in NETWORKS_OF_FIGURE[3]:
        for system in ("file", "block", "object"):
            both = [shown.best(network, phase, system) for phase in ("write", "read")]
            if all(len(curve) > 1 for curve in both):
                values = ", ".join(f"{list(curve.values())[0]:.2f} to {list(curve.values())[-1]:.2f}" for curve in both)
                yield f"{system}, {network}: throughput rises with the size, write and read", all(map(rises, both)), f"{values} MiB/s"
    for phase in ("write", "read"):
        slower = {}
        for system in ("file", "block", "object"):
            ideal, late = shown.best("ideal", phase, system), shown.best("delay", phase, system)
            # Only large files: small ones wait for round trips on every system.
            large = [at for at in ideal if at in late and at >= MIB]
            if large:
                slower[system] = mean(ideal[at] / late[at] for at in large)
        if len(slower) == 3:
            values = ", ".join(f"{system} {factor:.2f} x" for system, factor in slower.items())
            yield f"delay slows block down most, {phase} from 1 MiB", max(slower, key=slower.get) == "block", values
    late = {at: value for at, value in shown.curve("delay", "read", "block", "sync").items() if at >= MIB}
    if len(late) > 1:
        yield "block: sync read with delay is constant from 1 MiB", spread(late) <= MAX_FLAT_RATIO, f"max / min {spread(late):.2f}"


def batch(shown: Curves) -> Results:
    for phase in ("write", "read"):
        means = {system: mean(shown.best("ideal", phase, system).values()) for system in ("file", "block", "object")}
        if all(means.values()):
            values = ", ".join(f"{system} {value:.2f}" for system, value in means.items())
            is_so = means["block"] > means["file"] > means["object"]
            yield f"ideal {phase}: block faster than file, file faster than object", is_so, f"{values} MiB/s"
        for network in ("delay", "realistic"):
            curves = {system: shown.best(network, phase, system) for system in ("file", "block", "object")}
            if not all(curves.values()):
                continue
            small = [at for at in curves["object"] if at <= 16 * KIB]
            others = [at for at in curves["object"] if phase == "read" or at >= MIB]
            for name, points, leader in ("small", small, "block"), ("other sizes", others, "object"):
                if phase == "read" and name == "small":
                    continue
                first = {system: mean(curve[at] for at in points if at in curve) for system, curve in curves.items()}
                values = ", ".join(f"{system} {value:.3f}" for system, value in first.items())
                title = f"{phase} of {name}" if phase == "write" else phase
                if network == "realistic" or phase == "read":
                    yield f"{network} {title}: {leader} leads", max(first, key=first.get) == leader, f"{values} MiB/s"
    for network in NETWORKS_OF_FIGURE[4]:
        direct, sync = (shown.curve(network, "write", "block", form) for form in ("direct", "sync"))
        if direct and sync:
            factor = direct[SMALL] / max(sync[SMALL], 1e-9)
            yield f"block, {network}: direct write of 4 KiB much faster than sync", factor > MAX_SIMILAR_RATIO, f"{factor:.1f} x"


def small_threads(shown: Curves) -> Results:
    for network in NETWORKS_OF_FIGURE[5]:
        if len(curve := shown.curve(network, "read", "object", "default")) > 2:
            first, peak = min(curve), max(curve, key=curve.get)
            values = ", ".join(f"{at}: {value:.3f}" for at, value in curve.items())
            is_so = peak >= 16 and curve[peak] >= MIN_RISE_RATIO * curve[first]
            yield f"object read, {network}: rises with threads, to about 32", is_so, values
        if len(curve := shown.best(network, "read", "file")) > 2:
            after = {at: value for at, value in curve.items() if at >= 4}
            values = ", ".join(f"{at}: {value:.3f}" for at, value in curve.items())
            yield f"file read, {network}: constant from 2 to 4 threads", spread(after) <= MAX_FLAT_RATIO, values
        every = {system: shown.best(network, "write", system) for system in ("file", "block", "object")}
        if all(len(curve) > 1 for curve in every.values()):
            highest = {system: max(curve.values()) for system, curve in every.items()}
            values = ", ".join(f"{system} {value:.2f}" for system, value in highest.items())
            yield f"write, {network}: block leads", max(highest, key=highest.get) == "block", f"at best {values} MiB/s"
        reads = {system: shown.best(network, "read", system) for system in ("file", "block", "object")}
        if all(len(curve) > 1 for curve in reads.values()):
            highest = {system: max(curve.values()) for system, curve in reads.items()}
            values = f"at best {', '.join(f'{system} {value:.2f}' for system, value in highest.items())} MiB/s"
            leader = "block" if network == "ideal" else "object"
            yield f"read, {network}: {leader} leads", max(highest, key=highest.get) == leader, values


def large_threads(shown: Curves) -> Results:
    for phase in ("write", "read"):
        ideal = {system: shown.best("ideal", phase, system) for system in ("file", "block", "object")}
        if all(ideal.values()):
            highest = {system: max(curve.values()) for system, curve in ideal.items()}
            values = ", ".join(f"{system} {value:.1f}" for system, value in highest.items())
            yield f"ideal {phase}: the three are similar", spread(highest) <= MAX_SIMILAR_RATIO, f"at best {values} MiB/s"
        lossy = {system: shown.best("realistic", phase, system) for system in ("file", "block", "object")}
        if all(lossy.values()):
            many = {system: mean(value for at, value in curve.items() if at > 8) for system, curve in lossy.items()}
            values = ", ".join(f"{system} {value:.2f}" for system, value in many.items())
            yield f"realistic {phase}, more than 8 threads: object leads", max(many, key=many.get) == "object", f"{values} MiB/s"
            fraction = many["object"] / LINK_MIB
            yield f"realistic {phase}, more than 8 threads: object saturates the link", fraction >= MIN_SATURATION, f"{fraction:.0%} of it"


def amplification(shown: Curves) -> Results:
    for plot in plots(7):
        curves = plot.curves(shown.measurements, lambda measurement: measurement.amplification)
        by_kib = {key: {at / KIB if plot.axis == "size" else at * SMALL / KIB: value for at, value in curve.items()}
                  for key, curve in curves.items()}  # fmt: skip
        where = f"{plot.scope} {plot.phase}" + (", by threads" if plot.axis == "threads" else "")
        for (system, form), points in by_kib.items():
            if system == "block" and (fit := fit_overhead(points)):
                a, error = fit
                # In a batch, writes that are sent later say nothing about the overhead.
                if plot.scope == "single" or (form, plot.phase) == ("sync", "write"):
                    shared = "n s" if plot.axis == "threads" else "s"
                    values = f"a = {a:.0f} KiB, largest error {error:.0%}"
                    yield f"block, {where}, {form}: (a + {shared}) / {shared}", error <= MAX_FIT_ERROR, values
        smallest = {system: min(curve[min(curve)] for (each, _), curve in curves.items() if each == system)
                    for system in {system for system, _ in curves}}  # fmt: skip
        if plot.scope == "single" and len(smallest) == 3:
            values = ", ".join(f"{system} {value:.1f}" for system, value in sorted(smallest.items()))
            yield f"{where}: object is lowest at 4 KiB, block highest", (
                min(smallest, key=smallest.get) == "object" and max(smallest, key=smallest.get) == "block"
            ), values
    kinds = [plot.curves(shown.measurements, lambda measurement: measurement.amplification).get(("object", "default"), {}) for plot in plots(7)]
    at_smallest = [curve[min(curve)] for curve in kinds if curve]
    if len(at_smallest) > 2:
        ratio = max(at_smallest) / min(at_smallest)
        yield "object: equal for one file, batches and threads", ratio <= MAX_SIMILAR_RATIO, f"max / min {ratio:.2f} at 4 KiB"


CHECKS = {2: units, 3: single, 4: batch, 5: small_threads, 6: large_threads, 7: amplification}
