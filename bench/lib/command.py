"""Shared by the commands of the benchmark: options, data locations, building of the binaries, and signals."""

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from lib.bench import Bench, Location, remove_leftovers
from lib.servers import CACHE, REPOSITORY

LOCATIONS = {"tmpfs": Path("/dev/shm"), "disk": CACHE / "data"}


def size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(i?B?)", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a size such as 64K: {text}")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


def add_common_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    add("--fill-limit", type=float, default=3600, help="timeout of filling a server, in seconds (default: %(default)s)")
    add("--tradewind", type=Path, help="binary (default: built into the target directory)")
    add("--loadgen", type=Path, help="binary (default: built into the target directory)")
    add("--no-build", action="store_true", help="use the existing binaries")
    add("--out", type=Path, default=REPOSITORY / "bench" / "results", help="directory of the results (default: %(default)s)")
    add("--publish", type=Path, metavar="FILE", help="also update the tables in this document")
    add("--force", action="store_true", help="measure even if other work is running; the results are marked NOT QUIET")
    add("--limit-minutes", type=int, default=300, help="abort after this time (default: %(default)s)")


def location(name: str, path: Path) -> Location:
    """A data location, without leftovers of killed runs."""
    found = Location(name, path)
    found.path.mkdir(parents=True, exist_ok=True)
    remove_leftovers(found)
    return found


def locations(text: str) -> list[Location]:
    found = []
    for each in text.split(","):
        name, separator, path = each.partition("=")
        if not separator and name not in LOCATIONS:
            sys.exit(f"unknown location {name}; use tmpfs, disk or NAME=DIRECTORY")
        found.append(location(name, Path(path).resolve() if separator else LOCATIONS[name]))
    return found


def binaries(options: argparse.Namespace) -> tuple[Path, Path]:
    """The paths of tradewind and loadgen, built from this checkout so that they match the commit in the report."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release"
    packages = {"tradewind": options.tradewind, "tradewind-loadgen": options.loadgen}
    wanted = [name for name, given in packages.items() if given is None]
    present = [name for name in wanted if (REPOSITORY / "crates" / name.removeprefix("tradewind-")).is_dir()]
    if present and not options.no_build:
        flags = [flag for name in present for flag in ("-p", name)]
        subprocess.run(["cargo", "build", "--release", *flags], cwd=REPOSITORY, check=True, timeout=1800)
    tradewind, loadgen = options.tradewind or target / "tradewind", options.loadgen or target / "loadgen"
    if not loadgen.exists():
        sys.exit(f"no {loadgen}: build it with cargo build --release -p tradewind-loadgen")
    return tradewind.resolve(), loadgen.resolve()


def chosen(bench: Bench, kind: str, known: list, wanted: str | None) -> list:
    """The wanted servers (or clients) that are installed, in the order of the table; all installed ones without `wanted`."""
    names = wanted.split(",") if wanted else [each.name for each in known]
    if unknown := set(names) - {each.name for each in known}:
        sys.exit(f"unknown {kind}: {', '.join(sorted(unknown))}")
    found = []
    for each in known:
        if each.name in names:
            if each.binary.exists():
                found.append(each)
            else:
                bench.skip(f"{each.name}: no {each.binary.name} binary (see bench/peers)")
    return found


def plain(options: argparse.Namespace) -> dict:
    """The options in the form of the raw results."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def _interrupted(number: int, _) -> None:
    raise SystemExit(f"stopped by {signal.Signals(number).name}; no report")


def exit_on_signals(limit_minutes: int) -> None:
    """Turns signals and the time limit into an exception, so that servers are stopped and scratch data is removed."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _interrupted)
    signal.alarm(limit_minutes * 60)
