"""What is measured for which figure of Ou 2015, section IV. A cell is one point of a curve: files of one size, written and then
read in one way. Some points are in several figures, and are measured once."""

import itertools
from dataclasses import dataclass, replace

KIB, MIB = 1 << 10, 1 << 20
UNIT_FILE = 16 * MIB
SMALL, LARGE = 4 * KIB, 16 * MIB
# In place of LARGE where it has to be quick: through a line that loses packets one connection carries 1 MiB a second.
LARGE_QUICKLY = 2 * MIB
# Table I has three forms; from figure 3 on the paper shows two, since files are accessed whole. Object storage heeds none.
WHOLE = ("direct", "sync")
FIGURES = (2, 3, 4, 5, 6, 7)
# Which networks a figure shows.
SHOWN = {
    2: ("delay",),
    3: ("ideal", "delay"),
    4: ("ideal", "delay", "realistic"),
    5: ("ideal", "delay", "realistic"),
    6: ("ideal", "delay", "realistic"),
    7: ("ideal",),
}


@dataclass(frozen=True)
class Cell:
    # "unit": one file in pieces; "single": one whole file; "batch": many whole files, by one or several threads.
    scope: str
    form: str
    size: int
    unit: int
    threads: int = 1

    def __str__(self) -> str:
        of = f"{size(self.size)} by {size(self.unit)}" if self.scope == "unit" else size(self.size)
        return f"{self.scope} {self.form} {of}" + (f" x {self.threads}" if self.threads > 1 else "")


@dataclass(frozen=True)
class Extent:
    """How much of each axis is measured, and for how long each point at the most."""

    sizes: tuple[int, ...]
    units: tuple[int, ...]
    threads: tuple[int, ...]
    threads_of_large: tuple[int, ...]
    large: int
    seconds: float

    def lasting(self, seconds: float) -> "Extent":
        return replace(self, seconds=seconds)


def powers_of_four(first: int, last: int) -> tuple[int, ...]:
    found = [first]
    while found[-1] < last:
        found.append(found[-1] * 4)
    return tuple(found)


FULL = Extent(
    sizes=powers_of_four(4 * KIB, 64 * MIB),
    units=powers_of_four(4 * KIB, 16 * MIB),
    threads=(1, 2, 4, 8, 16, 32, 64),
    threads_of_large=(1, 2, 4, 8, 16, 32, 64),
    large=LARGE,
    seconds=10,
)
QUICK = Extent(
    sizes=(4 * KIB, 64 * KIB, MIB, 16 * MIB),
    units=(4 * KIB, 256 * KIB, 16 * MIB),
    threads=(1, 4, 32, 64),
    threads_of_large=(1, 4, 16),
    large=LARGE_QUICKLY,
    seconds=3,
)


@dataclass(frozen=True)
class Group:
    """Cells that one command measures: each form with each size, unit and number of threads."""

    scope: str
    forms: tuple[str, ...]
    sizes: tuple[int, ...]
    units: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)

    def cells(self) -> list[Cell]:
        axes = itertools.product(self.forms, self.sizes, self.units or (0,), self.threads)
        return [Cell(self.scope, form, size, unit or size, threads) for form, size, unit, threads in axes]

    def __str__(self) -> str:
        return f"{self.scope}, {' and '.join(self.forms)}, {len(self.cells())} points"


def groups(figures: list[int], network: str, forms: tuple[str, ...], extent: Extent) -> list[Group]:
    """What the figures show of a system, which knows so many forms. Where the link has no bounds, what the client can do at
    best."""
    whole = tuple(form for form in forms if form in WHOLE) or forms
    if network == "unshaped":
        return [Group("batch", forms, (LARGE,))]
    shown = [figure for figure in figures if network in SHOWN[figure]]
    if 7 in shown:
        shown = sorted({*shown, 3, 4, 5} - {7})
    # One thread with files of these sizes is in figure 4 already.
    small, large = (
        threads[1:] if 4 in shown and size in extent.sizes else threads
        for size, threads in ((SMALL, extent.threads), (extent.large, extent.threads_of_large))
    )
    of_figures = {
        2: Group("unit", forms, (UNIT_FILE,), extent.units),
        3: Group("single", whole, extent.sizes),
        4: Group("batch", whole, extent.sizes),
        5: Group("batch", whole, (SMALL,), threads=small),
        6: Group("batch", whole, (extent.large,), threads=large),
    }
    return [of_figures[figure] for figure in shown]


def size(number: int) -> str:
    return f"{number // MIB} MiB" if number >= MIB else f"{number // KIB} KiB"
