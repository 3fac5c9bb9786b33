"""Tables of the measurements, one for each plot of a figure, and the checks of their shapes."""

import datetime
from collections.abc import Iterator

from checks import check
from curves import Plot, plots, throughput
from lib.figure import commit
from measure import Measurement, Policy
from points import size
from systems import SYSTEMS

TITLES = {
    2: "units and forms of access, a file of 16 MiB",
    3: "single files",
    4: "batches, one thread",
    5: "batches of 4 KiB, by threads",
    6: "batches of large files, by threads",
    7: "bytes on the wire per byte of the files",
}
ORDER = list(SYSTEMS)


def report(figures: list[int], measurements: list[Measurement], policies: list[Policy]) -> list[str]:
    busiest = max(measurements, key=lambda each: each.client_cpus)
    lines = [
        f"{datetime.date.today()}, checkout at {commit()}. MiB/s; highest CPU utilization of the client: "
        f"{busiest.client_cpus:.0%} ({busiest.system}, {busiest.network}, {busiest.point}).",
        "",
    ]
    checks = [str(each) for each in check(figures, measurements)]
    if checks:
        lines += ["| figure | shape | as in the paper | |", "|---|---|---|---|", *checks, ""]
    lines += table_of(policies)
    for figure in figures:
        for plot in plots(figure):
            lines += table(plot, measurements)
    return lines


def table_of(policies: list[Policy]) -> Iterator[str]:
    """The paper's Table I. The policies are determined again on each network; all results are shown."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for policy in policies:
        found.setdefault((policy.system, policy.form), set()).add((policy.write, policy.read))
    if not found:
        return
    yield "Table I, policies inferred from the bytes on the wire"
    yield ""
    yield "| system | form | write | read |"
    yield "|---|---|---|---|"
    for system, form in sorted(found, key=lambda name: (ORDER.index(name[0]), name[1])):
        writes, reads = (" or ".join(sorted(set(words))) for words in zip(*found[system, form]))
        yield f"| {SYSTEMS[system].title} | {form} | {writes} | {reads} |"
    yield ""


def table(plot: Plot, measurements: list[Measurement]) -> Iterator[str]:
    is_ratio = plot.figure == 7
    curves = plot.curves(measurements, (lambda each: each.amplification) if is_ratio else throughput)
    if not curves:
        return
    names = sorted(curves, key=lambda name: (ORDER.index(name[0]), name[1]))
    where = f", {plot.scope}" if is_ratio else ""
    yield f"Figure {plot.figure}, {TITLES[plot.figure]}{where}: {plot.phase}, {plot.network}"
    yield ""
    titles = [SYSTEMS[system].title + (f" {form}" if len(SYSTEMS[system].forms) > 1 else "") for system, form in names]
    yield f"| {plot.axis} | {' | '.join(titles)} |"
    yield "|---" * (len(names) + 1) + "|"
    for at in sorted({at for curve in curves.values() for at in curve}):
        values = (f"{curves[name][at]:.3g}" if at in curves[name] else "" for name in names)
        yield f"| {at if plot.axis == 'threads' else size(at)} | {' | '.join(values)} |"
    yield ""
