"""Figures 16 to 19: what a few samples say of combinations that were never tried."""

import json
import statistics
from pathlib import Path

from clients import BUCKET, Bench, Client, Point
from curves import Curve, draw
from lib.world import ROOT
from said import Said

PLOT = ROOT / "docs" / "hou-inference.svg"
# How often an inferred combination is measured, as in the paper.
TIMES = 5
# The paper allows 0.1 s where one request alone takes 0.078 s, and has 21 at a time by then: requests wait for the store. Here they
# wait for the line much sooner, so that it takes a wider cap to have several.
CAP = 2.5
AT_A_TIME = [1, 2, 4, 8, 16, 32]
# What the paper's text says of figure 18: requests at a time, seconds, MB/s.
PAPER_LATENCY = {1: 0.078, 21: 0.1}
PAPER_RATE = {1: 3.2, 8: 25.0, 21: 48.5}
PAPER_MEASURED = (21, 0.1002, 50.11)


def upload(bench: Bench, size: str, parallel: int) -> Point:
    return bench.objects_of(Client(), size, str(parallel), "put").of("put", size)[parallel]


def mean(point: Point) -> float:
    """How long a request took, in milliseconds."""
    return sum(value * count for value, count in point.latencies) / sum(count for _, count in point.latencies) / 1e3


def tuned(bench: Bench, flags: list[str]) -> list[dict]:
    """What `tradewind tune` finds out of uploads, on the same client."""
    command = Client().command(bench.world, ["tune", BUCKET, "--json", *flags])
    ran = bench.world.behind_as(Client().line, ["env", f"XDG_DATA_HOME={bench.world.directory / 'profiles'}", *command], limit=300)
    lines = map(json.loads, ran.output.splitlines())
    return [line for line in lines if line.get("direction") == "upload"]


def inferred(lines: list[dict]) -> dict[tuple[int, int], dict]:
    return {(line["size"], line["parallel"]): line for line in lines if line["line"] == "inferred"}


def splitting(bench: Bench, said: Said) -> None:
    """Figures 16 and 17: an object of 4 MiB and one of 256 KiB in as many requests as it has room for."""
    found = inferred(tuned(bench, []))
    for figure, title, paper, splits in (
        (16, "4 MiB", "256 KB x 16", [("4MiB", 1), ("1MiB", 4), ("256KiB", 16), ("64KiB", 64), ("16KiB", 256)]),
        (17, "256 KiB", "16 KB x 16", [("256KiB", 1), ("64KiB", 4), ("16KiB", 16), ("4KiB", 64), ("1KiB", 256)]),
    ):
        measured = {split: upload(bench, *split).megabytes_per_second for split in splits}
        said_so = {split: found[of_text(split[0]), split[1]]["bytes_per_second"] / 1e6 for split in splits}
        name = {split: f"{split[0]} x {split[1]}" for split in splits}
        rows = {kind: {name[split]: rate for split, rate in rates.items()} for kind, rates in (("measured", measured), ("inferred from eight probes", said_so))}
        said.table(f"Figure {figure}: uploads, {title} under way", "MB/s", rows)
        best, chosen = max(measured, key=measured.get), max(said_so, key=said_so.get)
        said.judge(f"the split of {title} that is inferred to be the best is it, or as good", measured[chosen] > 0.95 * measured[best],
                   f"inferred {name[chosen]}, measured {name[best]}, {measured[chosen] / measured[best]:.2f} of it; the paper's {paper}")
        said.judge(f"neither the fewest nor the most requests are the best for {title}", best not in (splits[0], splits[-1]),
                   f"{name[best]}, {measured[best] / min(measured.values()):.1f} x the least")


def under_a_cap(bench: Bench, said: Said) -> None:
    """Figures 18 and 19: 256 KiB, as many at a time as a cap on the mean latency allows."""
    row = bench.objects_of(Client(), "256KiB", ",".join(map(str, AT_A_TIME)), "put").of("put", "256KiB")
    latency, rate = {n: mean(point) for n, point in row.items()}, {n: point.megabytes_per_second for n, point in row.items()}
    # A flag takes whole milliseconds.
    cap = float(round(latency[1] * CAP))
    trace = bench.world.directory / "trace.csv"
    trace.write_text("time,op,key,offset,length\n" + "".join(f"{n},put,{n},,{256 << 10}\n" for n in range(100)))
    lines = tuned(bench, ["--workload", str(trace), "--latency", f"{cap:.0f}ms"])
    probes = [line["parallel"] for line in lines if line["line"] == "probe"]
    cells = {parallel: line for (_, parallel), line in inferred(lines).items() if parallel <= AT_A_TIME[-1]}
    said.table("Figure 18: uploads of 256 KiB, how long they take in the mean", "ms",
               {"measured": latency, f"inferred from probes of {', '.join(map(str, sorted(set(probes))))}": {n: line["latency_seconds"] * 1e3 for n, line in cells.items()},
                "the paper's": {n: seconds * 1e3 for n, seconds in PAPER_LATENCY.items()}}, "at a time")
    said.table("Figure 18: what they carry", "MB/s",
               {"measured": rate, "inferred": {n: line["bytes_per_second"] / 1e6 for n, line in cells.items()}, "the paper's": PAPER_RATE}, "at a time")
    plan = next(line for line in lines if line["line"] == "plan" and line["goal"] == "latency")
    between = by_hand(latency, rate, cap)
    for who, (parallel, expected_ms, expected_mb) in (
        ("eight probes and the law", (plan["parallel"], plan["latency_seconds"] * 1e3, plan["bytes_per_second"] / 1e6)),
        ("the paper's straight line between samples", between),
    ):
        runs = [upload(bench, "256KiB", parallel) for _ in range(TIMES)]
        times, rates = [mean(run) for run in runs], [run.megabytes_per_second for run in runs]
        said.table(f"Figure 19: at most {cap:.0f} ms, by {who}: 256 KiB x {parallel}", "ms and MB/s", {
            "inferred": {"latency": expected_ms, "bandwidth": expected_mb},
            "measured, mean of five": {"latency": statistics.mean(times), "bandwidth": statistics.mean(rates)},
            "standard error": {"latency": error(times), "bandwidth": error(rates)},
        })
        off = [statistics.mean(times) / expected_ms - 1, statistics.mean(rates) / expected_mb - 1]
        said.judge(f"what is inferred by {who} is measured", all(abs(each) < 0.05 for each in off),
                   f"latency {off[0]:+.1%}, bandwidth {off[1]:+.1%}; the paper's +0.2 % and +3.3 %")
    relative = lambda row, scale=1.0: {n: value * scale / row[1] for n, value in row.items()}  # noqa: E731
    own = {n: line["latency_seconds"] * 1e3 for n, line in cells.items()}, {n: line["bytes_per_second"] / 1e6 for n, line in cells.items()}
    paper = {PAPER_MEASURED[0]: PAPER_MEASURED[1]}, {PAPER_MEASURED[0]: PAPER_MEASURED[2]}
    PLOT.write_text(draw([
        ("Latency, of one alone", [Curve("measured", relative(latency)), Curve("inferred", {n: ms / latency[1] for n, ms in own[0].items()}),
                                   Curve("the paper's", relative(PAPER_LATENCY) | {n: s / PAPER_LATENCY[1] for n, s in paper[0].items()})]),
        ("Bandwidth, of one alone", [Curve("measured", relative(rate)), Curve("inferred", {n: mb / rate[1] for n, mb in own[1].items()}),
                                     Curve("the paper's", relative(PAPER_RATE))]),
    ]))


def by_hand(latency: dict, rate: dict, cap: float) -> tuple[int, float, float]:
    """The most at a time that keep to the cap, where latency and bandwidth are straight lines between two samples (section 5.3)."""
    def between(row: dict, n: int) -> float:
        below, above = max(k for k in row if k <= n), min(k for k in row if k >= n)
        return row[below] if below == above else row[below] + (row[above] - row[below]) * (n - below) / (above - below)

    most = max((n for n in range(1, AT_A_TIME[-1] + 1) if between(latency, n) <= cap), default=1)
    return most, between(latency, most), between(rate, most)


def error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def of_text(size: str) -> int:
    return int(size[:-3]) << (20 if size.endswith("MiB") else 10)
