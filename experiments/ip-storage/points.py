"""The points to measure for each figure of Ou 2015, section IV. A point of a curve is a set of files of one size that are
written and then read with one form of access. Points that are in several figures are measured once."""

import itertools
from dataclasses import dataclass, replace

KIB, MIB = 1 << 10, 1 << 20
UNIT_FILE = 16 * MIB
SMALL, LARGE = 4 * KIB, 16 * MIB
# Replaces LARGE in quick runs: on a lossy link, one connection has a throughput of only 1 MiB/s.
LARGE_QUICK = 2 * MIB
# Forms of access of whole files. Table I has three forms; from figure 3 on the paper shows two. Object storage ignores them.
WHOLE_FILE_FORMS = ("direct", "sync")
FIGURES = (2, 3, 4, 5, 6, 7)
# The networks of each figure.
NETWORKS_OF_FIGURE = {
    2: ("delay",),
    3: ("ideal", "delay"),
    4: ("ideal", "delay", "realistic"),
    5: ("ideal", "delay", "realistic"),
    6: ("ideal", "delay", "realistic"),
    7: ("ideal",),
}


@dataclass(frozen=True)
class Point:
    # "unit": one file in pieces; "single": one whole file; "batch": many whole files, with one or several threads.
    scope: str
    form: str
    size: int
    unit: int
    threads: int = 1

    def __str__(self) -> str:
        sizes = f"{size(self.size)} by {size(self.unit)}" if self.scope == "unit" else size(self.size)
        return f"{self.scope} {self.form} {sizes}" + (f" x {self.threads}" if self.threads > 1 else "")


@dataclass(frozen=True)
class Sweep:
    """The values of each axis, and the maximum duration of each point."""

    sizes: tuple[int, ...]
    units: tuple[int, ...]
    threads: tuple[int, ...]
    large_threads: tuple[int, ...]
    large: int
    seconds: float

    def with_seconds(self, seconds: float) -> "Sweep":
        return replace(self, seconds=seconds)


def powers_of_four(first: int, last: int) -> tuple[int, ...]:
    powers = [first]
    while powers[-1] < last:
        powers.append(powers[-1] * 4)
    return tuple(powers)


FULL = Sweep(
    sizes=powers_of_four(4 * KIB, 64 * MIB),
    units=powers_of_four(4 * KIB, 16 * MIB),
    threads=(1, 2, 4, 8, 16, 32, 64),
    large_threads=(1, 2, 4, 8, 16, 32, 64),
    large=LARGE,
    seconds=10,
)
QUICK = Sweep(
    sizes=(4 * KIB, 64 * KIB, MIB, 16 * MIB),
    units=(4 * KIB, 256 * KIB, 16 * MIB),
    threads=(1, 4, 32, 64),
    large_threads=(1, 4, 16),
    large=LARGE_QUICK,
    seconds=3,
)


@dataclass(frozen=True)
class Group:
    """The points that one command measures: each form with each size, unit and number of threads."""

    scope: str
    forms: tuple[str, ...]
    sizes: tuple[int, ...]
    units: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)

    def points(self) -> list[Point]:
        axes = itertools.product(self.forms, self.sizes, self.units or (0,), self.threads)
        return [Point(self.scope, form, size, unit or size, threads) for form, size, unit, threads in axes]

    def __str__(self) -> str:
        return f"{self.scope}, {' and '.join(self.forms)}, {len(self.points())} points"


def groups(figures: list[int], network: str, forms: tuple[str, ...], sweep: Sweep) -> list[Group]:
    """The points of the figures for a system with the given forms of access. Without limits of the link: the maximum of the
    client."""
    whole = tuple(form for form in forms if form in WHOLE_FILE_FORMS) or forms
    if network == "unshaped":
        return [Group("batch", forms, (LARGE,))]
    shown = [figure for figure in figures if network in NETWORKS_OF_FIGURE[figure]]
    if 7 in shown:
        shown = sorted({*shown, 3, 4, 5} - {7})
    # Figure 4 has the points with one thread.
    small, large = (
        threads[1:] if 4 in shown and size in sweep.sizes else threads
        for size, threads in ((SMALL, sweep.threads), (sweep.large, sweep.large_threads))
    )
    by_figure = {
        2: Group("unit", forms, (UNIT_FILE,), sweep.units),
        3: Group("single", whole, sweep.sizes),
        4: Group("batch", whole, sweep.sizes),
        5: Group("batch", whole, (SMALL,), threads=small),
        6: Group("batch", whole, (sweep.large,), threads=large),
    }
    return [by_figure[figure] for figure in shown]


def size(number: int) -> str:
    return f"{number // MIB} MiB" if number >= MIB else f"{number // KIB} KiB"
