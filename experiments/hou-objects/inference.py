"""Figures 16 to 19: predictions from a few samples for operating points that were never measured."""

import json
import statistics

from clients import BUCKET, Bench, Client, Point
from curves import Curve, draw
from lib.testbed import ROOT
from report import Report

PLOT = ROOT / "docs" / "hou-inference.svg"
# Number of measurements of an inferred operating point, as in the paper.
REPETITIONS = 5
# Latency target as a multiple of the latency of a single request. The paper uses 0.1 s / 0.078 s and reaches concurrency 21,
# because its requests wait for the store. Here they wait for the link much earlier, so that a wider target is needed.
TARGET_FACTOR = 2.5
CONCURRENCY = [1, 2, 4, 8, 16, 32]
# Values of figure 18 in the text of the paper: seconds and MB/s by concurrency.
PAPER_LATENCY = {1: 0.078, 21: 0.1}
PAPER_RATE = {1: 3.2, 8: 25.0, 21: 48.5}
PAPER_MEASURED = (21, 0.1002, 50.11)


def upload(bench: Bench, size: str, concurrency: int) -> Point:
    return bench.measure(Client(), size, str(concurrency), "put").points("put", size)[concurrency]


def mean(point: Point) -> float:
    """The mean latency in milliseconds."""
    return sum(value * count for value, count in point.latencies) / sum(count for _, count in point.latencies) / 1e3


def tune(bench: Bench, flags: list[str]) -> list[dict]:
    """The output lines of `tradewind tune` about uploads, on the same client."""
    command = Client().command(bench.testbed, ["tune", BUCKET, "--json", *flags])
    done = bench.testbed.run_remote_command(Client().link, ["env", f"XDG_DATA_HOME={bench.testbed.directory / 'profiles'}", *command], limit=300)
    lines = map(json.loads, done.output.splitlines())
    return [line for line in lines if line.get("direction") == "upload"]


def inferred(lines: list[dict]) -> dict[tuple[int, int], dict]:
    return {(line["size"], line["concurrency"]): line for line in lines if line["line"] == "inferred"}


def splitting(bench: Bench, report: Report) -> None:
    """Figures 16 and 17: 4 MiB and 256 KiB in flight, split into 1 to 256 requests."""
    predictions = inferred(tune(bench, []))
    for figure, title, paper, splits in (
        (16, "4 MiB", "256 KB x 16", [("4MiB", 1), ("1MiB", 4), ("256KiB", 16), ("64KiB", 64), ("16KiB", 256)]),
        (17, "256 KiB", "16 KB x 16", [("256KiB", 1), ("64KiB", 4), ("16KiB", 16), ("4KiB", 64), ("1KiB", 256)]),
    ):
        measured = {split: upload(bench, *split).megabytes_per_second for split in splits}
        predicted = {split: predictions[parse_size(split[0]), split[1]]["bytes_per_second"] / 1e6 for split in splits}
        name = {split: f"{split[0]} x {split[1]}" for split in splits}
        rows = {kind: {name[split]: rate for split, rate in rates.items()} for kind, rates in (("measured", measured), ("inferred from eight probes", predicted))}
        report.table(f"Figure {figure}: uploads, {title} in flight", "MB/s", rows)
        best, chosen = max(measured, key=measured.get), max(predicted, key=predicted.get)
        report.check(f"the inferred best split of {title} has at least 95 % of the best throughput", measured[chosen] > 0.95 * measured[best],
                     f"inferred {name[chosen]}, best {name[best]}, ratio {measured[chosen] / measured[best]:.2f}; the paper's {paper}")
        report.check(f"neither the lowest nor the highest number of requests is the best for {title}", best not in (splits[0], splits[-1]),
                     f"{name[best]}, {measured[best] / min(measured.values()):.1f} x the worst")


def latency_target(bench: Bench, report: Report) -> None:
    """Figures 18 and 19: the highest concurrency of 256 KiB requests that meets a target of the mean latency."""
    row = bench.measure(Client(), "256KiB", ",".join(map(str, CONCURRENCY)), "put").points("put", "256KiB")
    latency, rate = {n: mean(point) for n, point in row.items()}, {n: point.megabytes_per_second for n, point in row.items()}
    # The flag accepts whole milliseconds.
    target = float(round(latency[1] * TARGET_FACTOR))
    trace = bench.testbed.directory / "trace.csv"
    trace.write_text("time,op,key,offset,length\n" + "".join(f"{n},put,{n},,{256 << 10}\n" for n in range(100)))
    lines = tune(bench, ["--workload", str(trace), "--latency", f"{target:.0f}ms"])
    probes = [line["concurrency"] for line in lines if line["line"] == "probe"]
    points = {concurrency: line for (_, concurrency), line in inferred(lines).items() if concurrency <= CONCURRENCY[-1]}
    report.table("Figure 18: mean latency of uploads of 256 KiB", "ms",
                 {"measured": latency, f"inferred from probes of {', '.join(map(str, sorted(set(probes))))}": {n: line["latency_seconds"] * 1e3 for n, line in points.items()},
                "the paper's": {n: seconds * 1e3 for n, seconds in PAPER_LATENCY.items()}}, "concurrency")
    report.table("Figure 18: throughput", "MB/s",
                 {"measured": rate, "inferred": {n: line["bytes_per_second"] / 1e6 for n, line in points.items()}, "the paper's": PAPER_RATE}, "concurrency")
    best_point = next(line for line in lines if line["line"] == "best_point" and line["goal"] == "latency")
    interpolated = interpolate(latency, rate, target)
    for method, (concurrency, expected_ms, expected_mb) in (
        ("eight probes and the latency model", (best_point["concurrency"], best_point["latency_seconds"] * 1e3, best_point["bytes_per_second"] / 1e6)),
        ("linear interpolation between samples, as in the paper", interpolated),
    ):
        runs = [upload(bench, "256KiB", concurrency) for _ in range(REPETITIONS)]
        times, rates = [mean(run) for run in runs], [run.megabytes_per_second for run in runs]
        report.table(f"Figure 19: at most {target:.0f} ms, by {method}: 256 KiB x {concurrency}", "ms and MB/s", {
            "inferred": {"latency": expected_ms, "bandwidth": expected_mb},
            "measured, mean of five": {"latency": statistics.mean(times), "bandwidth": statistics.mean(rates)},
            "standard error": {"latency": standard_error(times), "bandwidth": standard_error(rates)},
        })
        errors = [statistics.mean(times) / expected_ms - 1, statistics.mean(rates) / expected_mb - 1]
        report.check(f"the prediction by {method} is within 5 % of the measurement", all(abs(error) < 0.05 for error in errors),
                     f"latency {errors[0]:+.1%}, bandwidth {errors[1]:+.1%}; the paper's +0.2 % and +3.3 %")
    relative = lambda row, scale=1.0: {n: value * scale / row[1] for n, value in row.items()}  # noqa: E731
    predicted = {n: line["latency_seconds"] * 1e3 for n, line in points.items()}, {n: line["bytes_per_second"] / 1e6 for n, line in points.items()}
    paper = {PAPER_MEASURED[0]: PAPER_MEASURED[1]}, {PAPER_MEASURED[0]: PAPER_MEASURED[2]}
    PLOT.write_text(draw([
        ("Latency relative to concurrency 1", [Curve("measured", relative(latency)), Curve("inferred", {n: ms / latency[1] for n, ms in predicted[0].items()}),
                                                Curve("the paper's", relative(PAPER_LATENCY) | {n: s / PAPER_LATENCY[1] for n, s in paper[0].items()})]),
        ("Bandwidth relative to concurrency 1", [Curve("measured", relative(rate)), Curve("inferred", {n: mb / rate[1] for n, mb in predicted[1].items()}),
                                                  Curve("the paper's", relative(PAPER_RATE))]),
    ]))


def interpolate(latency: dict, rate: dict, target: float) -> tuple[int, float, float]:
    """The highest concurrency that meets the target, and its latency and bandwidth, by linear interpolation (section 5.3)."""
    def between(row: dict, n: int) -> float:
        below, above = max(k for k in row if k <= n), min(k for k in row if k >= n)
        return row[below] if below == above else row[below] + (row[above] - row[below]) * (n - below) / (above - below)

    highest = max((n for n in range(1, CONCURRENCY[-1] + 1) if between(latency, n) <= target), default=1)
    return highest, between(latency, highest), between(rate, highest)


def standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def parse_size(size: str) -> int:
    return int(size[:-3]) << (20 if size.endswith("MiB") else 10)
