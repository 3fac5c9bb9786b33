"""What is measured for which figure of Ou 2015, section IV. A cell is one point of a curve: files of one size, written and then
read in one way. Some points are in several figures, and are measured once."""

from dataclasses import dataclass, replace

KIB, MIB = 1 << 10, 1 << 20
UNIT_FILE = 16 * MIB
SMALL, LARGE = 4 * KIB, 16 * MIB
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
    seconds=10,
)
QUICK = Extent(
    sizes=(4 * KIB, 64 * KIB, MIB, 16 * MIB),
    units=(4 * KIB, 256 * KIB, 16 * MIB),
    threads=(1, 4, 32, 64),
    threads_of_large=(1, 4, 16),
    seconds=3,
)


def cells(figure: int, forms: tuple[str, ...], extent: Extent) -> list[Cell]:
    """Of one system, which knows so many forms."""
    whole = [form for form in forms if form in WHOLE] or list(forms)
    if figure == 2:
        return [Cell("unit", form, UNIT_FILE, unit) for form in forms for unit in extent.units]
    if figure == 3:
        return [Cell("single", form, each, each) for form in whole for each in extent.sizes]
    if figure == 4:
        return [Cell("batch", form, each, each) for form in whole for each in extent.sizes]
    if figure == 5:
        return [Cell("batch", form, SMALL, SMALL, threads) for form in whole for threads in extent.threads]
    if figure == 6:
        return [Cell("batch", form, LARGE, LARGE, threads) for form in whole for threads in extent.threads_of_large]
    return [cell for each in (3, 4, 5) for cell in cells(each, forms, extent)]


def wanted(figures: list[int], network: str, forms: tuple[str, ...], extent: Extent) -> list[Cell]:
    """Each once, in the order of the figures. Where the link has no bounds, what the client can do at best."""
    if network == "unshaped":
        return [Cell("batch", form, LARGE, LARGE) for form in forms]
    all_of_them = (cell for figure in figures if network in SHOWN[figure] for cell in cells(figure, forms, extent))
    return list(dict.fromkeys(all_of_them))


def size(number: int) -> str:
    return f"{number // MIB} MiB" if number >= MIB else f"{number // KIB} KiB"
