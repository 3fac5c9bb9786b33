"""What the experiments of one kind of figure share: time over the number of requests at a time."""

import argparse
import datetime
import json
import re
import statistics
import subprocess
from pathlib import Path

from lib.world import ROOT, Cost, Line

BAR = 40


def parser(about: str, degrees: str, delay: float, rate: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--tradewind", type=Path, metavar="BINARY", help="(default: a release build of this checkout)")
    add("--at-a-time", default=degrees, metavar="N,N,...", help="requests at a time (default: %(default)s)")
    add("--delay", type=float, default=delay, metavar="MS", help="in each direction (default: %(default)s)")
    add("--rate", default=rate, help="of each direction, as 100mbit (default: %(default)s)")
    add("--rounds", type=int, default=3, help="each in another order (default: %(default)s)")
    add("--scratch", type=Path, metavar="DIRECTORY", help="for the store's data (default: /dev/shm)")
    add("--publish", type=Path, metavar="DOCUMENT", help="put the table into its place there")
    return options


def line(options: argparse.Namespace) -> Line:
    return Line(options.delay, options.rate)


def rounds(options: argparse.Namespace, others: list[str] = ()):
    """Each degree once a round, in an order that turns from round to round; `others` are settings beside the numbers."""
    degrees = [*options.at_a_time.split(","), *others]
    for number in range(options.rounds):
        turn = number * len(degrees) // options.rounds
        for degree in degrees[turn:] + degrees[:turn]:
            print(f"round {number + 1} of {options.rounds}: {degree} at a time", flush=True)
            yield degree


def order(degree: str) -> tuple[bool, int]:
    return (not degree.isdigit(), int(degree) if degree.isdigit() else 0)


def table(costs: dict[str, list[Cost]]) -> list[str]:
    """Medians over the rounds, and how far the rounds were apart."""
    seconds = {degree: [cost.seconds for cost in runs] for degree, runs in costs.items()}
    medians = {degree: statistics.median(times) for degree, times in seconds.items()}
    slowest = max(medians.values())
    rows = ["| at a time | time, s | least to most | of one at a time | CPU, s | peak, MiB | |", "|---|---|---|---|---|---|---|"]
    for degree in sorted(costs, key=order):
        times, median = seconds[degree], medians[degree]
        factor = f"{medians['1'] / median:.1f} x faster" if "1" in medians and degree != "1" else ""
        cpu = statistics.median(cost.cpu_seconds for cost in costs[degree])
        peak = max(cost.peak_mib for cost in costs[degree])
        bar = "#" * max(1, round(BAR * median / slowest))
        rows.append(
            f"| {degree} | {median:.2f} | {min(times):.2f} to {max(times):.2f} | {factor} | {cpu:.2f} | {peak:.0f} | `{bar}` |"
        )
    return rows


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain") else "")


def made(options: argparse.Namespace) -> str:
    """When, from what and behind which line the figures are."""
    binary = "a binary that was given, " if options.tradewind else ""
    rounds_made = f"{options.rounds} round{'s' if options.rounds > 1 else ''}"
    return f"{datetime.date.today()}, {rounds_made}, {binary}checkout at {commit()}, {line(options)}."


def report(name: str, options: argparse.Namespace, costs: dict[str, list[Cost]], said: list[str]) -> None:
    """Prints the table, keeps all runs as JSON beside the experiment, and publishes where that is asked for."""
    about = made(options)
    lines = [about, *said, "", *table(costs)]
    print("\n".join(lines))
    kept = ROOT / "experiments" / "results" / f"{name}.json"
    kept.parent.mkdir(exist_ok=True)
    runs = {
        degree: [{"seconds": c.seconds, "cpu_seconds": c.cpu_seconds, "peak_mib": c.peak_mib} for c in each]
        for degree, each in costs.items()
    }
    kept.write_text(json.dumps({"name": name, "made": about, "runs": runs}, indent=1) + "\n")
    if options.publish:
        publish(name, options.publish, lines)


def publish(name: str, document: Path, lines: list[str]) -> None:
    """Puts lines between the two comments that name their place."""
    text = document.read_text()
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not place.search(text):
        raise SystemExit(f"{document} has no place for {name}")
    document.write_text(place.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text))
