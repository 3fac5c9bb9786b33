"""The figures: measurements, tables, and checks of the shapes of the paper."""

from clients import FAR, NEAR, Bench, Client, Point
from inference import latency_target, splitting
from report import Report

KINDS = (("put", "uploads"), ("get", "downloads"))
SMALL, LARGE = "4KiB", "4MiB"


def rates(row: dict[int, Point]) -> dict[int, float]:
    return {concurrency: point.megabytes_per_second for concurrency, point in row.items()}


def peak(row: dict[int, Point]) -> float:
    return max(rates(row).values())


def concurrency(bench: Bench, report: Report) -> None:
    """Figures 1 to 3."""
    sizes = ["1KiB", "4KiB", "16KiB", "256KiB", "4MiB"]
    found = bench.measure(Client(), ",".join(sizes), "1,4,16,64")
    for kind, name in KINDS:
        points = {size: found.points(kind, size) for size in sizes}
        report.table(f"Figure 1: {name} by concurrency", "MB/s", {size: rates(row) for size, row in points.items()}, "size")
        medians = {size: {n: each.median() for n, each in row.items()} for size, row in points.items()}
        report.table(f"Figure {2 if kind == 'put' else 3}: median latency of {name}", "ms", medians, "size")
        small, large = (peak(points[size]) / points[size][1].megabytes_per_second for size in ("1KiB", "4MiB"))
        report.check(f"concurrency helps {name} of small objects more than of large ones", small > 2 * large,
                     f"1 KiB {small:.1f} x, 4 MiB {large:.1f} x; the paper's 1 KB {'27' if kind == 'put' else '21'} x")
        factor = peak(points["4MiB"]) / peak(points["4KiB"])
        report.check(f"peak throughput of {name} of 4 MiB is several times that of 4 KiB", factor > 3,
                     f"{factor:.1f} x; the paper's {'23.5' if kind == 'put' else '10.7'} x")
        flat = medians["4KiB"][16] / medians["4KiB"][1]
        report.check(f"latency of {name} of 4 KiB is as low with concurrency 16 as with 1", flat < 1.5, f"{flat:.2f} x")
        later = medians["4MiB"][64] / medians["4MiB"][4]
        report.check(f"latency of {name} of 4 MiB with concurrency 64 is about 16 times that with 4", 8 < later < 24, f"{later:.1f} x; the paper's 16 MB 17 x")
        near = medians["4KiB"][1] / medians["1KiB"][1]
        report.check(f"with concurrency 1, {name} of 1 KiB and of 4 KiB have equal latency", near < 1.2, f"{near:.2f} x")


def distributions(bench: Bench, report: Report) -> None:
    """Figures 4 to 6."""
    found = bench.measure(Client(), f"{SMALL},{LARGE}", "1,16,64")
    shown = {"p1": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    for kind, name in KINDS:
        rows = {f"{size} x {n}": {title: point.latency(fraction) for title, fraction in shown.items()}
                for size in (SMALL, LARGE) for n, point in found.points(kind, size).items()}
        report.table(f"Figure {4 if kind == 'put' else 5}: latency distribution of {name}", "ms", rows)
        points = {size: found.points(kind, size)[64] for size in (SMALL, LARGE)}
        spread = {size: point.latency(0.99) - point.latency(0.01) for size, point in points.items()}
        report.check(f"with concurrency 64, latencies of {name} of 4 MiB vary more than those of 4 KiB", spread[LARGE] > 3 * spread[SMALL],
                     f"p99 - p1: {spread[LARGE]:.0f} ms and {spread[SMALL]:.0f} ms")
    disk, memory = (bench.with_long_measurements().measure(Client(files=files), LARGE, "16", "get").points("get", LARGE)[16] for files in ("magnetic", "memory"))
    rows = {name: {title: point.latency(fraction) for title, fraction in shown.items()} for name, point in (("disk", disk), ("memory", memory))}
    report.table("Figure 6: downloads of 4 MiB to files, concurrency 16", "ms", rows, "files on")
    steps = {name: point.latency(0.99) / point.latency(0.5) for name, point in (("disk", disk), ("memory", memory))}
    report.check("the steps caused by the disk disappear with files in memory", steps["memory"] < steps["disk"] and memory.latency(0.99) < disk.latency(0.99),
                 f"p99 / p50: {steps['disk']:.1f} on the disk, {steps['memory']:.1f} in memory")


def combinations(bench: Bench, report: Report) -> None:
    """Figure 7, and the CPU time of section 4.1.3."""
    pairs = [("4MiB", 1), ("1MiB", 4), ("256KiB", 16), ("64KiB", 64), ("16KiB", 256)]
    row = {f"{size} x {n}": bench.measure(Client(), size, str(n), "put").points("put", size)[n].megabytes_per_second for size, n in pairs}
    report.table("Figure 7: uploads, 4 MiB in flight", "MB/s", {"": row})
    lowest, *_, highest = row
    best = max(row, key=row.get)
    report.check("neither the lowest nor the highest concurrency is the best", best not in (lowest, highest),
                 f"{best} {row[best]:.1f} MB/s, {row[best] / min(row.values()):.1f} x the worst; the paper's 256 KB x 16, 3 x")
    same = {f"{size} x {n}": bench.measure(Client(), size, str(n), "put").points("put", size)[n] for size, n in (("1KiB", 16), ("4KiB", 4), ("16KiB", 1))}
    report.table("Section 4.1.3: the same bytes in more requests", "MB/s, CPUs",
                 {name: {"MB/s": each.megabytes_per_second, "CPUs": each.cpus} for name, each in same.items()})
    speeds, costs = [[figure(each) for each in same.values()] for figure in (lambda p: p.megabytes_per_second, lambda p: p.cpus)]
    report.check("at equal throughput, larger requests need less CPU time", max(speeds) < 1.5 * min(speeds) and costs[0] > costs[1] > costs[2],
                 ", ".join(f"{name} {100 * each.cpus:.1f} %" for name, each in same.items()) + "; the paper's 65, 15 and 5 %")


def cpu_limit(bench: Bench, report: Report) -> None:
    """Figure 8."""
    clients = {"half the CPU": Client(cpus=Client().cpus / 2), "full CPU": Client()}
    found = {name: bench.measure(client, f"{SMALL},{LARGE}", "4,16,64") for name, client in clients.items()}
    rows = {f"{name} of {size}, {client}": rates(measured.points(kind, size)) for kind, name in KINDS for size in (SMALL, LARGE) for client, measured in found.items()}
    report.table("Figure 8: clients with half and with the full CPU limit", "MB/s", rows)
    gain = {size: peak(found["full CPU"].points("get", size)) / peak(found["half the CPU"].points("get", size)) for size in (SMALL, LARGE)}
    report.check("twice the CPU doubles the throughput of small downloads; large ones gain less", gain[SMALL] > 1.6 and gain[LARGE] < 0.75 * gain[SMALL],
                 f"4 KiB {gain[SMALL]:.2f} x, 4 MiB {gain[LARGE]:.2f} x")


def disk(bench: Bench, report: Report) -> None:
    """Figures 9 and 10."""
    bench = bench.with_long_measurements()
    found = {name: bench.measure(Client(files=name), LARGE, "1,4,16,32") for name in ("magnetic", "ssd")}
    rows = {f"{title}, {name}": rates(measured.points(kind, LARGE)) for kind, title in KINDS for name, measured in found.items()}
    report.table("Figure 9: transfers of 4 MiB from and to files on the disk of the client", "MB/s", rows)
    gain = {kind: peak(found["ssd"].points(kind, LARGE)) / peak(found["magnetic"].points(kind, LARGE)) for kind, _ in KINDS}
    report.check("an SSD more than doubles download throughput (files are written) and hardly changes uploads", gain["get"] > 2 and gain["put"] < 1.2,
                 f"downloads {gain['get']:.2f} x, uploads {gain['put']:.2f} x; the paper's 2.65 x and 1.02 x")
    medians = {name: {n: point.median() for n, point in measured.points("get", LARGE).items()} for name, measured in found.items()}
    report.table("Figure 10: median latency of downloads", "ms", medians)
    saved = {n: 1 - medians["ssd"][n] / medians["magnetic"][n] for n in (1, 32)}
    report.check("an SSD shortens downloads, more with concurrency 32 than with 1", saved[32] > saved[1] > 0,
                 f"by {saved[1]:.0%} with concurrency 1, by {saved[32]:.0%} with 32; the paper's 24 % and 65 %")


def distance(bench: Bench, report: Report) -> None:
    """Figures 11 and 12."""
    bench = bench.with_long_measurements()
    found = {name: bench.measure(Client(link=link), f"{SMALL},{LARGE}", "1,16,64") for name, link in (("0.28 ms", NEAR), ("176 ms", FAR))}
    rows = {f"{title} of {size}, {name}": rates(measured.points(kind, size)) for kind, title in KINDS for size in (SMALL, LARGE) for name, measured in found.items()}
    report.table("Figure 11: short and long RTT", "MB/s", rows)
    medians = {name: {n: point.median() for n, point in measured.points("put", LARGE).items()} for name, measured in found.items()}
    report.table("Figure 12: median latency of uploads of 4 MiB", "ms", medians)
    remaining = {size: {kind: peak(found["176 ms"].points(kind, size)) / peak(found["0.28 ms"].points(kind, size)) for kind, _ in KINDS} for size in (SMALL, LARGE)}
    report.check("a long RTT costs large objects little of their peak throughput, and small ones most of it",
                 min(remaining[LARGE].values()) > 0.8 and max(remaining[SMALL].values()) < 0.5,
                 f"remaining: 4 MiB {remaining[LARGE]['put']:.0%} up and {remaining[LARGE]['get']:.0%} down, 4 KiB {remaining[SMALL]['put']:.0%} and "
                 f"{remaining[SMALL]['get']:.0%}; the paper's 4 MB 90 % and 101 %")
    longer = {n: medians["176 ms"][n] / medians["0.28 ms"][n] for n in (1, 64)}
    report.check("concurrency hides the RTT", longer[1] > 2 and longer[64] < 1.3, f"latency of uploads {longer[1]:.1f} x with concurrency 1, {longer[64]:.2f} x with 64")


def mixed(bench: Bench, report: Report) -> None:
    """Figures 13 to 15 and Table VI."""
    client = Client(cpus=Client().cpus / 2)
    rows, remaining = {}, {}
    for size in (SMALL, LARGE):
        found = bench.measure_interference(client, ["--size", size, "--concurrency", "8"], [])
        for (kind, name), (other, _) in zip(KINDS, reversed(KINDS)):
            alone, concurrent = found.points(kind, size)[8], found.points(kind, size, f"{other} {size} x 8")[8]
            rows[f"{name} of {size}"] = {"alone": alone.megabytes_per_second, "concurrent": concurrent.megabytes_per_second}
            remaining[kind, size] = concurrent.megabytes_per_second / alone.megabytes_per_second
    report.table("Figure 13 and Table VI: concurrent uploads and downloads, concurrency 8 each, half the CPU", "MB/s", rows)
    large = {kind: rows[f"{name} of {LARGE}"] for kind, name in KINDS}
    report.check("concurrent large uploads and downloads slow each other down", all(remaining[kind, LARGE] < 0.8 for kind, _ in KINDS),
                 ", ".join(f"{name} retain {remaining[kind, LARGE]:.0%}" for kind, name in KINDS) + "; the paper's 51 % and 63 %")
    sum_of_both = sum(each["concurrent"] for each in large.values())
    report.check("their total throughput is below that of uploads alone", sum_of_both < large["put"]["alone"],
                 f"{sum_of_both:.1f} and {large['put']['alone']:.1f} MB/s; the paper's 48.0 and 58.9")
    others = [1, 8, 32]
    found = bench.measure_interference(client, ["--mix", "put", "--size", LARGE, "--concurrency", "8"], [f"put {SMALL} x {n}" for n in others])
    points = {0: found.points("put", LARGE)[8]} | {n: found.points("put", LARGE, f"put {SMALL} x {n}")[8] for n in others}
    report.table("Figure 14: uploads of 4 MiB with concurrency 8, by the concurrency of simultaneous uploads of 4 KiB", "MB/s", {"4 MiB": rates(points)})
    report.table("Figure 15: their median latency", "ms", {"4 MiB": {n: point.median() for n, point in points.items()}})
    speeds = list(rates(points).values())
    report.check("throughput of large uploads falls with the number of small ones", all(more > fewer for more, fewer in zip(speeds, speeds[1:])),
                 ", ".join(f"{rate:.1f} MB/s with {n}" for n, rate in rates(points).items()))


PARTS = {"1-3": concurrency, "4-6": distributions, "7": combinations, "8": cpu_limit, "9-10": disk, "11-12": distance, "13-15": mixed, "16-17": splitting, "18-19": latency_target}
# Figures about operating points that were never measured.
INFERRED = ("16-17", "18-19")
