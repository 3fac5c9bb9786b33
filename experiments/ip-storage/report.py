"""Tables of what was measured, one for each plot of a figure, and what is to be said of their shapes."""

import datetime
from collections.abc import Iterator

from cells import size
from curves import Plot, plots, throughput
from judge import judge
from lib.figure import commit
from measure import Policy, Seen
from systems import SYSTEMS

TITLES = {
    2: "units and forms of access, a file of 16 MiB",
    3: "single files",
    4: "batches, one thread",
    5: "batches of 4 KiB, by threads",
    6: "batches of large files, by threads",
    7: "bytes on the wire for each byte of the files",
}
ORDER = list(SYSTEMS)


def report(figures: list[int], seen: list[Seen], policies: list[Policy]) -> list[str]:
    busy = max(seen, key=lambda each: each.client_busy)
    lines = [
        f"{datetime.date.today()}, checkout at {commit()}. MiB/s; the client's processor was busy at most "
        f"{busy.client_busy:.0%} ({busy.system}, {busy.network}, {busy.cell}).",
        "",
    ]
    judgements = [str(each) for each in judge(figures, seen)]
    if judgements:
        lines += ["| figure | shape | holds | |", "|---|---|---|---|", *judgements, ""]
    lines += table_of(policies)
    for figure in figures:
        for plot in plots(figure):
            lines += table(plot, seen)
    return lines


def table_of(policies: list[Policy]) -> Iterator[str]:
    """The paper's Table I. Each network finds the policies anew."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for policy in policies:
        found.setdefault((policy.system, policy.form), set()).add((policy.write, policy.read))
    if not found:
        return
    yield "Table I, policies as they were found from the bytes on the wire"
    yield ""
    yield "| system | form | write | read |"
    yield "|---|---|---|---|"
    for system, form in sorted(found, key=lambda name: (ORDER.index(name[0]), name[1])):
        writes, reads = (" or ".join(sorted(set(words))) for words in zip(*found[system, form]))
        yield f"| {SYSTEMS[system].title} | {form} | {writes} | {reads} |"
    yield ""


def table(plot: Plot, seen: list[Seen]) -> Iterator[str]:
    ratio = plot.figure == 7
    curves = plot.curves(seen, (lambda each: each.amplification) if ratio else throughput)
    if not curves:
        return
    names = sorted(curves, key=lambda name: (ORDER.index(name[0]), name[1]))
    where = f", {plot.scope}" if ratio else ""
    yield f"Figure {plot.figure}, {TITLES[plot.figure]}{where}: {plot.phase}, {plot.network}"
    yield ""
    titles = [SYSTEMS[system].title + (f" {form}" if len(SYSTEMS[system].forms) > 1 else "") for system, form in names]
    yield f"| {plot.axis} | {' | '.join(titles)} |"
    yield "|---" * (len(names) + 1) + "|"
    for at in sorted({at for curve in curves.values() for at in curve}):
        values = (f"{curves[name][at]:.3g}" if at in curves[name] else "" for name in names)
        yield f"| {at if plot.axis == 'threads' else size(at)} | {' | '.join(values)} |"
    yield ""
