"""Each figure: what is measured, what is shown, and what of the paper's shape is judged."""

from clients import FAR, NEAR, Bench, Client, Point
from inference import splitting, under_a_cap
from said import Said

KINDS = (("put", "uploads"), ("get", "downloads"))
SMALL, LARGE = "4KiB", "4MiB"


def rates(row: dict[int, Point]) -> dict[int, float]:
    return {parallel: point.megabytes_per_second for parallel, point in row.items()}


def peak(row: dict[int, Point]) -> float:
    return max(rates(row).values())


def parallelism(bench: Bench, said: Said) -> None:
    """Figures 1 to 3."""
    sizes = ["1KiB", "4KiB", "16KiB", "256KiB", "4MiB"]
    found = bench.objects_of(Client(), ",".join(sizes), "1,4,16,64")
    for kind, name in KINDS:
        points = {size: found.of(kind, size) for size in sizes}
        said.table(f"Figure 1: {name} by requests at a time", "MB/s", {size: rates(row) for size, row in points.items()}, "size")
        medians = {size: {n: each.median() for n, each in row.items()} for size, row in points.items()}
        said.table(f"Figure {2 if kind == 'put' else 3}: how long {name} take in the median", "ms", medians, "size")
        small, large = (peak(points[size]) / points[size][1].megabytes_per_second for size in ("1KiB", "4MiB"))
        said.judge(f"many {name} at a time help small objects more than large ones", small > 2 * large,
                   f"1 KiB {small:.1f} x, 4 MiB {large:.1f} x; the paper's 1 KB {'27' if kind == 'put' else '21'} x")
        apart = peak(points["4MiB"]) / peak(points["4KiB"])
        said.judge(f"at best {name} of 4 MiB carry several times what 4 KiB do", apart > 3,
                   f"{apart:.1f} x; the paper's {'23.5' if kind == 'put' else '10.7'} x")
        flat = medians["4KiB"][16] / medians["4KiB"][1]
        said.judge(f"16 {name} of 4 KiB at a time take as long as one", flat < 1.5, f"{flat:.2f} x")
        later = medians["4MiB"][64] / medians["4MiB"][4]
        said.judge(f"64 {name} of 4 MiB at a time take some 16 times as long as 4", 8 < later < 24, f"{later:.1f} x; the paper's 16 MB 17 x")
        near = medians["4KiB"][1] / medians["1KiB"][1]
        said.judge(f"one at a time, {name} of 1 and of 4 KiB take the same", near < 1.2, f"{near:.2f} x")


def distributions(bench: Bench, said: Said) -> None:
    """Figures 4 to 6."""
    found = bench.objects_of(Client(), f"{SMALL},{LARGE}", "1,16,64")
    shown = {"p1": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    for kind, name in KINDS:
        rows = {f"{size} x {n}": {title: point.latency(part) for title, part in shown.items()}
                for size in (SMALL, LARGE) for n, point in found.of(kind, size).items()}
        said.table(f"Figure {4 if kind == 'put' else 5}: how {name} take differently long", "ms", rows)
        apart = {size: found.of(kind, size)[64] for size in (SMALL, LARGE)}
        spread = {size: point.latency(0.99) - point.latency(0.01) for size, point in apart.items()}
        said.judge(f"64 at a time, {name} of 4 MiB are spread more widely than those of 4 KiB", spread[LARGE] > 3 * spread[SMALL],
                   f"from p1 to p99 {spread[LARGE]:.0f} ms and {spread[SMALL]:.0f} ms")
    disk, memory = (bench.longer().objects_of(Client(files=files), LARGE, "16", "get").of("get", LARGE)[16] for files in ("magnetic", "memory"))
    rows = {name: {title: point.latency(part) for title, part in shown.items()} for name, point in (("disk", disk), ("memory", memory))}
    said.table("Figure 6: downloads of 4 MiB, 16 at a time, to files", "ms", rows, "files on")
    steps = {name: point.latency(0.99) / point.latency(0.5) for name, point in (("disk", disk), ("memory", memory))}
    said.judge("steps that the disk makes are gone where files are in memory", steps["memory"] < steps["disk"] and memory.latency(0.99) < disk.latency(0.99),
               f"p99 over p50 {steps['disk']:.1f} on the disk, {steps['memory']:.1f} in memory")


def combinations(bench: Bench, said: Said) -> None:
    """Figure 7, and what section 4.1.3 says of the processor."""
    pairs = [("4MiB", 1), ("1MiB", 4), ("256KiB", 16), ("64KiB", 64), ("16KiB", 256)]
    row = {f"{size} x {n}": bench.objects_of(Client(), size, str(n), "put").of("put", size)[n].megabytes_per_second for size, n in pairs}
    said.table("Figure 7: uploads, 4 MiB under way", "MB/s", {"": row})
    fewest, *_, most = row
    best = max(row, key=row.get)
    said.judge("neither the fewest nor the most at a time are the best", best not in (fewest, most),
               f"{best} {row[best]:.1f} MB/s, {row[best] / min(row.values()):.1f} x the least; the paper's 256 KB x 16, 3 x")
    same = {f"{size} x {n}": bench.objects_of(Client(), size, str(n), "put").of("put", size)[n] for size, n in (("1KiB", 16), ("4KiB", 4), ("16KiB", 1))}
    said.table("Section 4.1.3: the same bytes in more requests", "MB/s, parts of a processor",
               {name: {"MB/s": each.megabytes_per_second, "processor": each.cpu} for name, each in same.items()})
    speeds, costs = [[figure(each) for each in same.values()] for figure in (lambda p: p.megabytes_per_second, lambda p: p.cpu)]
    said.judge("as fast, larger requests take less of the processor", max(speeds) < 1.5 * min(speeds) and costs[0] > costs[1] > costs[2],
               ", ".join(f"{name} {100 * each.cpu:.1f} %" for name, each in same.items()) + "; the paper's 65, 15 and 5 %")


def processor(bench: Bench, said: Said) -> None:
    """Figure 8."""
    clients = {"half": Client(cpus=Client().cpus / 2), "twice that": Client()}
    found = {name: bench.objects_of(client, f"{SMALL},{LARGE}", "4,16,64") for name, client in clients.items()}
    rows = {f"{name} of {size}, {client}": rates(seen.of(kind, size)) for kind, name in KINDS for size in (SMALL, LARGE) for client, seen in found.items()}
    said.table("Figure 8: a client with half of the processor, and one with twice that", "MB/s", rows)
    gain = {size: peak(found["twice that"].of("get", size)) / peak(found["half"].of("get", size)) for size in (SMALL, LARGE)}
    said.judge("twice the processor doubles small downloads, and large ones gain less", gain[SMALL] > 1.6 and gain[LARGE] < 0.75 * gain[SMALL],
               f"4 KiB {gain[SMALL]:.2f} x, 4 MiB {gain[LARGE]:.2f} x")


def disk(bench: Bench, said: Said) -> None:
    """Figures 9 and 10."""
    bench = bench.longer()
    found = {name: bench.objects_of(Client(files=name), LARGE, "1,4,16,32") for name in ("magnetic", "ssd")}
    rows = {f"{title}, {name}": rates(seen.of(kind, LARGE)) for kind, title in KINDS for name, seen in found.items()}
    said.table("Figure 9: 4 MiB from and to files on the client's disk", "MB/s", rows)
    gain = {kind: peak(found["ssd"].of(kind, LARGE)) / peak(found["magnetic"].of(kind, LARGE)) for kind, _ in KINDS}
    said.judge("an SSD more than doubles downloads, which are written, and hardly changes uploads", gain["get"] > 2 and gain["put"] < 1.2,
               f"downloads {gain['get']:.2f} x, uploads {gain['put']:.2f} x; the paper's 2.65 x and 1.02 x")
    medians = {name: {n: point.median() for n, point in seen.of("get", LARGE).items()} for name, seen in found.items()}
    said.table("Figure 10: how long downloads take in the median", "ms", medians)
    saved = {n: 1 - medians["ssd"][n] / medians["magnetic"][n] for n in (1, 32)}
    said.judge("downloads are shorter with it, with many at a time more than with one", saved[32] > saved[1] > 0,
               f"by {saved[1]:.0%} with 1, by {saved[32]:.0%} with 32; the paper's 24 % and 65 %")


def distance(bench: Bench, said: Said) -> None:
    """Figures 11 and 12."""
    bench = bench.longer()
    found = {name: bench.objects_of(Client(line=line), f"{SMALL},{LARGE}", "1,16,64") for name, line in (("0.28 ms", NEAR), ("176 ms", FAR))}
    rows = {f"{title} of {size}, {name}": rates(seen.of(kind, size)) for kind, title in KINDS for size in (SMALL, LARGE) for name, seen in found.items()}
    said.table("Figure 11: near and far", "MB/s", rows)
    medians = {name: {n: point.median() for n, point in seen.of("put", LARGE).items()} for name, seen in found.items()}
    said.table("Figure 12: how long uploads of 4 MiB take in the median", "ms", medians)
    kept = {size: {kind: peak(found["176 ms"].of(kind, size)) / peak(found["0.28 ms"].of(kind, size)) for kind, _ in KINDS} for size in (SMALL, LARGE)}
    said.judge("at best, the distance costs large objects little and small ones most of their rate",
               min(kept[LARGE].values()) > 0.8 and max(kept[SMALL].values()) < 0.5,
               f"of 4 MiB {kept[LARGE]['put']:.0%} up and {kept[LARGE]['get']:.0%} down are left, of 4 KiB {kept[SMALL]['put']:.0%} and "
               f"{kept[SMALL]['get']:.0%}; the paper's 4 MB 90 % and 101 %")
    longer = {n: medians["176 ms"][n] / medians["0.28 ms"][n] for n in (1, 64)}
    said.judge("many at a time hide it", longer[1] > 2 and longer[64] < 1.3, f"uploads take {longer[1]:.1f} x as long with 1, {longer[64]:.2f} x with 64")


def mixed(bench: Bench, said: Said) -> None:
    """Figures 13 to 15 and Table VI."""
    client = Client(cpus=Client().cpus / 2)
    rows, kept = {}, {}
    for size in (SMALL, LARGE):
        found = bench.beside(client, ["--size", size, "--parallel", "8"], [])
        for (kind, name), (other, _) in zip(KINDS, reversed(KINDS)):
            alone, together = found.of(kind, size)[8], found.of(kind, size, f"{other} {size} x 8")[8]
            rows[f"{name} of {size}"] = {"alone": alone.megabytes_per_second, "together": together.megabytes_per_second}
            kept[kind, size] = together.megabytes_per_second / alone.megabytes_per_second
    said.table("Figure 13 and Table VI: up and down, 8 of each at a time, half the processor", "MB/s", rows)
    large = {kind: rows[f"{name} of {LARGE}"] for kind, name in KINDS}
    said.judge("large uploads and downloads take from each other", all(kept[kind, LARGE] < 0.8 for kind, _ in KINDS),
               ", ".join(f"{name} keep {kept[kind, LARGE]:.0%}" for kind, name in KINDS) + "; the paper's 51 % and 63 %")
    sum_of_both = sum(each["together"] for each in large.values())
    said.judge("together they carry less than uploads alone", sum_of_both < large["put"]["alone"],
               f"{sum_of_both:.1f} and {large['put']['alone']:.1f} MB/s; the paper's 48.0 and 58.9")
    others = [1, 8, 32]
    found = bench.beside(client, ["--mix", "put", "--size", LARGE, "--parallel", "8"], [f"put {SMALL} x {n}" for n in others])
    points = {0: found.of("put", LARGE)[8]} | {n: found.of("put", LARGE, f"put {SMALL} x {n}")[8] for n in others}
    said.table("Figure 14: uploads of 4 MiB, 8 at a time, beside so many of 4 KiB", "MB/s", {"4 MiB": rates(points)})
    said.table("Figure 15: how long they take in the median", "ms", {"4 MiB": {n: point.median() for n, point in points.items()}})
    speeds = list(rates(points).values())
    said.judge("large uploads lose the more the more small ones there are", all(more > fewer for more, fewer in zip(speeds, speeds[1:])),
               ", ".join(f"{rate:.1f} MB/s beside {n}" for n, rate in rates(points).items()))


PARTS = {"1-3": parallelism, "4-6": distributions, "7": combinations, "8": processor, "9-10": disk, "11-12": distance, "13-15": mixed, "16-17": splitting, "18-19": under_a_cap}
# Those that are about what was never tried.
INFERRED = ("16-17", "18-19")
