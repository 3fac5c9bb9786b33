"""Whether curves have the shape of those of Ou 2015: direction, ordering, and where they turn. Absolute values are this
machine's. A judgement needs all the systems that it compares; where one is missing nothing is said."""

from collections.abc import Iterator
from dataclasses import dataclass

from cells import KIB, MIB, SHOWN, SMALL
from curves import Plot, constant, mean, plots, throughput
from measure import Seen
from network import LINK_MIB

Curve = dict[int, float]
# A curve is flat while its values are no farther apart, and rises where its end is so many times its beginning.
FLAT, RISES = 1.5, 2.0
# Two systems are alike where one is not so many times the other.
ALIKE = 2.0
# A link is full where so much of it is files.
FILLS = 0.7
# A curve describes points that are no farther off than this.
DESCRIBES = 0.3
# A value counts as no less where it is not less by more than what two rounds differ in.
SLACK = 0.9


@dataclass(frozen=True)
class Judgement:
    figure: int
    claim: str
    holds: bool
    figures: str

    def __str__(self) -> str:
        return f"| {self.figure} | {self.claim} | {'yes' if self.holds else '**no**'} | {self.figures} |"


class Curves:
    """All that one figure shows."""

    def __init__(self, figure: int, seen: list[Seen]):
        self.figure, self.seen = figure, seen

    def of(self, network: str, phase: str, system: str, form: str, plot: Plot | None = None) -> Curve:
        plot = plot or next(each for each in plots(self.figure) if (each.network, each.phase) == (network, phase))
        return plot.curves(self.seen, throughput).get((system, form), {})

    def best(self, network: str, phase: str, system: str) -> Curve:
        """Of its forms, the better one at each point: which form is better is not what systems are compared by."""
        both = [self.of(network, phase, system, form) for form in ("direct", "sync", "default")]
        return {at: max(curve[at] for curve in both if at in curve) for at in sorted({at for curve in both for at in curve})}


def rises(curve: Curve) -> bool:
    values = list(curve.values())
    return values[-1] >= RISES * values[0] and all(b >= SLACK * a for a, b in zip(values, values[1:]))


def spread(curve: Curve) -> float:
    return max(curve.values()) / max(min(curve.values()), 1e-9)


def judge(figures: list[int], seen: list[Seen]) -> Iterator[Judgement]:
    for figure in figures:
        shown = Curves(figure, seen)
        for claim, holds, said in JUDGES[figure](shown):
            yield Judgement(figure, claim, holds, said)


Found = Iterator[tuple[str, bool, str]]


def units(shown: Curves) -> Found:
    for system in ("file", "block"):
        for phase in ("write", "read"):
            if len(direct := shown.of("delay", phase, system, "direct")) > 1:
                ends = list(direct.values())
                yield f"{system}: direct {phase} rises with the unit", rises(direct), f"{ends[0]:.2f} to {ends[-1]:.2f} MiB/s"
        if sync := shown.of("delay", "read", system, "sync"):
            yield f"{system}: sync read does not depend on the unit", spread(sync) <= FLAT, f"within {spread(sync):.2f} x"
    for system, phases in ("file", ("write", "read")), ("object", ("write", "read")), ("block", ("read",)):
        for phase in phases:
            if default := shown.of("delay", phase, system, "default"):
                said = f"within {spread(default):.2f} x"
                yield f"{system}: default {phase} does not depend on the unit", spread(default) <= FLAT, said
    if memory := shown.of("delay", "write", "block", "default"):
        least = min(memory.values())
        yield "block: default write is at memory speed", least > 2 * LINK_MIB, f"at least {least:.0f} MiB/s"


def single(shown: Curves) -> Found:
    for network in SHOWN[3]:
        for system in ("file", "block", "object"):
            both = [shown.best(network, phase, system) for phase in ("write", "read")]
            if all(len(curve) > 1 for curve in both):
                said = ", ".join(f"{list(curve.values())[0]:.2f} to {list(curve.values())[-1]:.2f}" for curve in both)
                yield f"{system}, {network}: rises with the size, write and read", all(map(rises, both)), f"{said} MiB/s"
    for phase in ("write", "read"):
        slower = {}
        for system in ("file", "block", "object"):
            ideal, late = shown.best("ideal", phase, system), shown.best("delay", phase, system)
            # The largest files: small ones wait for so many round trips, whatever the system.
            large = [at for at in ideal if at in late and at >= MIB]
            if large:
                slower[system] = mean(ideal[at] / late[at] for at in large)
        if len(slower) == 3:
            said = ", ".join(f"{system} {factor:.2f} x" for system, factor in slower.items())
            yield f"delay slows block most, {phase} from 1 MiB on", max(slower, key=slower.get) == "block", said
    late = {at: value for at, value in shown.of("delay", "read", "block", "sync").items() if at >= MIB}
    if len(late) > 1:
        yield "block: sync read with delay stays level from 1 MiB on", spread(late) <= FLAT, f"within {spread(late):.2f} x"


def batch(shown: Curves) -> Found:
    for phase in ("write", "read"):
        means = {system: mean(shown.best("ideal", phase, system).values()) for system in ("file", "block", "object")}
        if all(means.values()):
            said = ", ".join(f"{system} {value:.2f}" for system, value in means.items())
            is_so = means["block"] > means["file"] > means["object"]
            yield f"ideal {phase}: block before file before object", is_so, f"{said} MiB/s"
        for network in ("delay", "realistic"):
            curves = {system: shown.best(network, phase, system) for system in ("file", "block", "object")}
            if not all(curves.values()):
                continue
            small = [at for at in curves["object"] if at <= 16 * KIB]
            rest = [at for at in curves["object"] if phase == "read" or at >= MIB]
            for name, points, leader in ("small", small, "block"), ("the rest", rest, "object"):
                if phase == "read" and name == "small":
                    continue
                first = {system: mean(curve[at] for at in points if at in curve) for system, curve in curves.items()}
                said = ", ".join(f"{system} {value:.3f}" for system, value in first.items())
                of = f"{phase} of {name}" if phase == "write" else phase
                if network == "realistic" or phase == "read":
                    yield f"{network} {of}: {leader} leads", max(first, key=first.get) == leader, f"{said} MiB/s"
    for network in SHOWN[4]:
        direct, sync = (shown.of(network, "write", "block", form) for form in ("direct", "sync"))
        if direct and sync:
            factor = direct[SMALL] / max(sync[SMALL], 1e-9)
            yield f"block, {network}: direct write of 4 KiB far faster than sync", factor > ALIKE, f"{factor:.1f} x"


def small_threads(shown: Curves) -> Found:
    for network in SHOWN[5]:
        if len(curve := shown.of(network, "read", "object", "default")) > 2:
            first, peak = min(curve), max(curve, key=curve.get)
            said = ", ".join(f"{at}: {value:.3f}" for at, value in curve.items())
            is_so = peak >= 16 and curve[peak] >= RISES * curve[first]
            yield f"object read, {network}: rises with threads, to 32 or so", is_so, said
        if len(curve := shown.best(network, "read", "file")) > 2:
            after = {at: value for at, value in curve.items() if at >= 4}
            said = ", ".join(f"{at}: {value:.3f}" for at, value in curve.items())
            yield f"file read, {network}: level after 2 to 4 threads", spread(after) <= FLAT, said
        every = {system: shown.best(network, "write", system) for system in ("file", "block", "object")}
        if all(len(curve) > 1 for curve in every.values()):
            most = {system: max(curve.values()) for system, curve in every.items()}
            said = ", ".join(f"{system} {value:.2f}" for system, value in most.items())
            yield f"write, {network}: block leads", max(most, key=most.get) == "block", f"at best {said} MiB/s"
        reads = {system: shown.best(network, "read", system) for system in ("file", "block", "object")}
        if all(len(curve) > 1 for curve in reads.values()):
            most = {system: max(curve.values()) for system, curve in reads.items()}
            said = f"at best {', '.join(f'{system} {value:.2f}' for system, value in most.items())} MiB/s"
            leader = "block" if network == "ideal" else "object"
            yield f"read, {network}: {leader} leads", max(most, key=most.get) == leader, said


def large_threads(shown: Curves) -> Found:
    for phase in ("write", "read"):
        ideal = {system: shown.best("ideal", phase, system) for system in ("file", "block", "object")}
        if all(ideal.values()):
            most = {system: max(curve.values()) for system, curve in ideal.items()}
            said = ", ".join(f"{system} {value:.1f}" for system, value in most.items())
            yield f"ideal {phase}: the three are on a par", spread(most) <= ALIKE, f"at best {said} MiB/s"
        lossy = {system: shown.best("realistic", phase, system) for system in ("file", "block", "object")}
        if all(lossy.values()):
            many = {system: mean(value for at, value in curve.items() if at > 8) for system, curve in lossy.items()}
            said = ", ".join(f"{system} {value:.2f}" for system, value in many.items())
            yield f"realistic {phase}, more than 8 threads: object leads", max(many, key=many.get) == "object", f"{said} MiB/s"
            part = many["object"] / LINK_MIB
            yield f"realistic {phase}, more than 8 threads: object fills the link", part >= FILLS, f"{part:.0%} of it"


def amplification(shown: Curves) -> Found:
    for plot in plots(7):
        curves = plot.curves(shown.seen, lambda seen: seen.amplification)
        by_kib = {which: {at / KIB if plot.axis == "size" else at * SMALL / KIB: value for at, value in curve.items()}
                  for which, curve in curves.items()}  # fmt: skip
        where = f"{plot.scope} {plot.phase}" + (", by threads" if plot.axis == "threads" else "")
        for (system, form), points in by_kib.items():
            if system == "block" and (fitted := constant(points)):
                a, off = fitted
                # Rates of a batch in which what was written is sent later say nothing of a constant.
                if plot.scope == "single" or (form, plot.phase) == ("sync", "write"):
                    shared = "n s" if plot.axis == "threads" else "s"
                    said = f"a = {a:.0f} KiB, the worst point off by {off:.0%}"
                    yield f"block, {where}, {form}: (a + {shared}) / {shared}", off <= DESCRIBES, said
        smallest = {system: min(curve[min(curve)] for (each, _), curve in curves.items() if each == system)
                    for system in {system for system, _ in curves}}  # fmt: skip
        if plot.scope == "single" and len(smallest) == 3:
            said = ", ".join(f"{system} {value:.1f}" for system, value in sorted(smallest.items()))
            yield f"{where}: object is lowest at 4 KiB, block highest", (
                min(smallest, key=smallest.get) == "object" and max(smallest, key=smallest.get) == "block"
            ), said
    kinds = [plot.curves(shown.seen, lambda seen: seen.amplification).get(("object", "default"), {}) for plot in plots(7)]
    at_smallest = [curve[min(curve)] for curve in kinds if curve]
    if len(at_smallest) > 2:
        alike = max(at_smallest) / min(at_smallest)
        yield "object: the same for one file, batches and threads", alike <= ALIKE, f"within {alike:.2f} x at 4 KiB"


JUDGES = {2: units, 3: single, 4: batch, 5: small_threads, 6: large_threads, 7: amplification}
