"""What the commands of the benchmark share: options, data places, building what is ours, being ended."""

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from lib.bench import Bench, Place, remove_leftovers
from lib.servers import CACHE, REPOSITORY

KNOWN_PLACES = {"tmpfs": Path("/dev/shm"), "disk": CACHE / "data"}


def size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(i?B?)", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"not a size: {text}")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


def add_common_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--fill-limit", type=float, default=3600, help="seconds after which loading a server is given up")
    add("--tradewind", type=Path, help="binary (default: built into the target directory)")
    add("--loadgen", type=Path, help="binary (default: built into the target directory)")
    add("--no-build", action="store_true", help="use the binaries as they are")
    add("--out", type=Path, default=REPOSITORY / "bench" / "results")
    add("--publish", type=Path, metavar="FILE", help="also put the tables into this document")
    add("--force", action="store_true", help="go on while other work is running; the table says NOT QUIET")
    add("--limit-minutes", type=int, default=300, help="give up after this time")


def place(name: str, path: Path) -> Place:
    """A data place, rid of what killed runs left in it."""
    found = Place(name, path)
    found.path.mkdir(parents=True, exist_ok=True)
    remove_leftovers(found)
    return found


def places(text: str) -> list[Place]:
    found = []
    for each in text.split(","):
        name, separator, path = each.partition("=")
        if not separator and name not in KNOWN_PLACES:
            sys.exit(f"unknown place {name}: tmpfs, disk or NAME=DIRECTORY")
        found.append(place(name, Path(path).resolve() if separator else KNOWN_PLACES[name]))
    return found


def binaries(options: argparse.Namespace) -> tuple[Path, Path]:
    """Builds what is ours, so that the commit in the report is what was measured."""
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
    """The servers (or clients) of that name that are installed, in the order of the table; all without `wanted`."""
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
    """The options as they go into the raw results."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def _interrupted(number: int, _) -> None:
    raise SystemExit(f"ended by {signal.Signals(number).name}; no report")


def end_in_order(limit_minutes: int) -> None:
    """Lets a signal, or the end of the time, unwind the program, so that servers stop and scratch data goes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _interrupted)
    signal.alarm(limit_minutes * 60)
