"""Hou 2017, figures 21 and 22: time to sync a directory tree, by concurrency."""

import random
import sys
from collections import defaultdict
from pathlib import Path

from lib import figure
from lib.testbed import Failed, Testbed, enter_namespace, tradewind


def make_tree(root: Path, count: int, mean: int, spread: float, seed: int) -> list[int]:
    """Creates files with log-normally distributed sizes, scaled to the given mean, and incompressible content."""
    draw = random.Random(seed)
    sizes = [draw.lognormvariate(0, spread) for _ in range(count)]
    scale = mean * count / sum(sizes)
    sizes = [max(1, round(size * scale)) for size in sizes]
    for number, size in enumerate(sizes):
        path = root / f"{number // 100:02}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))
    return sizes


def run(name: str, about: str, shape: tuple[int, int, float], concurrency: str) -> None:
    options = figure.parser(about, concurrency, 25, "656mbit")
    options.add_argument("--files", type=int, default=shape[0], help="number of files (default: %(default)s)")
    options = options.parse_args()
    binary = tradewind(options.tradewind)
    enter_namespace()
    costs = defaultdict(list)
    with Testbed(binary, options.scratch) as testbed:
        tree = testbed.directory / "tree"
        sizes = make_tree(tree, options.files, *shape[1:], seed=17)
        testbed.run(["mb", "s3://synced"])
        for number, concurrency in enumerate(figure.rounds(options, ["default"])):
            flags = [] if concurrency == "default" else ["--concurrency", concurrency]
            destination = f"s3://synced/{number}/"
            cost = testbed.run_remote(figure.link(options), ["sync", *flags, tree, destination])
            remaining = testbed.run(["sync", "--checksum", "--delete", "--dry-run", tree, destination]).stdout
            if any(not action.startswith("compare ") for action in remaining.splitlines()):
                raise Failed(f"concurrency {concurrency}: the sync was incomplete: {remaining[:200]}")
            second = testbed.run(["sync", "--checksum", "--json", tree, destination]).stdout
            if '"copied":0' not in second:
                raise Failed(f"concurrency {concurrency}: the content differs after the sync: {second[-200:]}")
            costs[concurrency].append(cost)
            testbed.run(["rm", "-r", destination])
    mean = sum(sizes) / len(sizes) / 1000
    notes = [f"{len(sizes):,} files, mean size {mean:.1f} KB, compared by checksum after every run."]
    figure.report(name, options, costs, notes)


if __name__ == "__main__":
    sys.exit("run experiments/hou-21 or experiments/hou-22 instead")
