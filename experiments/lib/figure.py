"""Options, rounds and reports of experiments that measure time as a function of concurrency."""

import argparse
import datetime
import json
import re
import statistics
import subprocess
from pathlib import Path

from lib.testbed import ROOT, Cost, Link

MAX_BAR_LENGTH = 40


def parser(about: str, concurrency: str, delay: float, rate: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--tradewind", type=Path, metavar="BINARY", help="(default: a release build of this checkout)")
    add("--concurrency", default=concurrency, metavar="N,N,...", help="concurrent requests (default: %(default)s)")
    add("--delay", type=float, default=delay, metavar="MS", help="one-way delay (default: %(default)s)")
    add("--rate", default=rate, help="rate of each direction, such as 100mbit (default: %(default)s)")
    add("--rounds", type=int, default=3, help="number of rounds, each in a different order (default: %(default)s)")
    add("--scratch", type=Path, metavar="DIRECTORY", help="directory of the store's data (default: /dev/shm)")
    add("--publish", type=Path, metavar="DOCUMENT", help="update the table in this document")
    return options


def link(options: argparse.Namespace) -> Link:
    return Link(options.delay, options.rate)


def rounds(options: argparse.Namespace, others: list[str] = ()):
    """Yields each concurrency once per round, in an order that rotates between rounds; `others` are settings that are not
    numbers."""
    settings = [*options.concurrency.split(","), *others]
    for number in range(options.rounds):
        first = number * len(settings) // options.rounds
        for concurrency in settings[first:] + settings[:first]:
            print(f"round {number + 1} of {options.rounds}: concurrency {concurrency}", flush=True)
            yield concurrency


def sort_key(concurrency: str) -> tuple[bool, int]:
    return (not concurrency.isdigit(), int(concurrency) if concurrency.isdigit() else 0)


def table(costs: dict[str, list[Cost]]) -> list[str]:
    """Medians and ranges over the rounds, by concurrency."""
    seconds = {concurrency: [cost.seconds for cost in runs] for concurrency, runs in costs.items()}
    medians = {concurrency: statistics.median(times) for concurrency, times in seconds.items()}
    slowest = max(medians.values())
    rows = ["| concurrency | time, s | range, s | speedup over 1 | CPU, s | peak memory, MiB | |", "|---|---|---|---|---|---|---|"]
    for concurrency in sorted(costs, key=sort_key):
        times, median = seconds[concurrency], medians[concurrency]
        speedup = f"{medians['1'] / median:.1f} x" if "1" in medians and concurrency != "1" else ""
        cpu = statistics.median(cost.cpu_seconds for cost in costs[concurrency])
        peak = max(cost.peak_mib for cost in costs[concurrency])
        bar = "#" * max(1, round(MAX_BAR_LENGTH * median / slowest))
        rows.append(
            f"| {concurrency} | {median:.2f} | {min(times):.2f} to {max(times):.2f} | {speedup} | {cpu:.2f} | {peak:.0f} | `{bar}` |"
        )
    return rows


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" with uncommitted changes" if git("status", "--porcelain") else "")


def conditions(options: argparse.Namespace) -> str:
    """Date, rounds, commit and link of the measurements."""
    binary = "given binary, " if options.tradewind else ""
    rounds_text = f"{options.rounds} round{'s' if options.rounds > 1 else ''}"
    return f"{datetime.date.today()}, {rounds_text}, {binary}checkout at {commit()}, {link(options)}."


def report(name: str, options: argparse.Namespace, costs: dict[str, list[Cost]], notes: list[str]) -> None:
    """Prints the table, saves all runs as JSON in experiments/results, and publishes the table if requested."""
    about = conditions(options)
    lines = [about, *notes, "", *table(costs)]
    print("\n".join(lines))
    path = ROOT / "experiments" / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    runs = {
        concurrency: [{"seconds": c.seconds, "cpu_seconds": c.cpu_seconds, "peak_mib": c.peak_mib} for c in each]
        for concurrency, each in costs.items()
    }
    path.write_text(json.dumps({"name": name, "conditions": about, "runs": runs}, indent=1) + "\n")
    if options.publish:
        publish(name, options.publish, lines)


def publish(name: str, document: Path, lines: list[str]) -> None:
    """Replaces the lines between the two marker comments of this name in the document."""
    text = document.read_text()
    section = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not section.search(text):
        raise SystemExit(f"{document} has no markers <!-- {name} --> and <!-- end of {name} -->")
    document.write_text(section.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text))
